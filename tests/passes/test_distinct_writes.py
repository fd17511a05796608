"""Writes at indices that are all different, and what masks move to the front, on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.ir import Graph
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, ShimDevice
from ge2.targets.cuda.limits import H200
from tests.kernels.programs import needs_compiler


def kept_first(keep: Any, x: Any, rest: Any = 0, read: Any = slice(None, -1)) -> Any:
    """What a mask chooses, at the front of an array that has a place more for all else."""
    n = x.shape[0]
    out = np.full(n + 1, rest, x.dtype)
    out[np.where(keep, np.cumsum(keep) - 1, n)] = x
    return out[read]


def graph_of(f: Any, *args: Any) -> Graph:
    return compile_graph(ge2.make_jaxpr(f)(*args).graph, device=OfflineDevice(H200)).program.graph


def ops_of(f: Any, *args: Any) -> list[str]:
    return [e.op.name for e in graph_of(f, *args).eqns]


X = np.linspace(-1, 1, 70, dtype=np.float32)


def test_a_mask_moves_to_the_front_what_it_chooses() -> None:
    assert ops_of(lambda x: kept_first(x > 0, x * 2), X) == ["region", "to_front"]
    with config.using(passes_off=("distinct_writes",)):
        assert "scatter" in ops_of(lambda x: kept_first(x > 0, x * 2), X)


def test_counts_in_32_bits_and_parts_of_the_front() -> None:
    def f(x: Any) -> Any:
        keep = x > 0
        out = np.zeros(x.shape[0] + 5, np.float32)
        out[np.where(keep, np.cumsum(keep.astype(np.int32)) - 1, 72)] = x
        return out[3:40:2], out[:70]

    assert ops_of(f, X).count("to_front") == 1
    assert "scatter" not in ops_of(f, X)


def behind_what_is_read(x: Any) -> Any:
    return kept_first(x > 0, x, read=slice(None))


def of_another_mask(x: Any) -> Any:
    keep, out = x > 0, np.zeros(71, np.float32)
    out[np.where(x > 0.5, np.cumsum(keep) - 1, 70)] = x
    return out[:-1]


def counted_from_one(x: Any) -> Any:
    keep, out = x > 0, np.zeros(72, np.float32)
    out[np.where(keep, np.cumsum(keep), 71)] = x
    return out[:70]


def to_a_place_that_is_read(x: Any) -> Any:
    keep, out = x > 0, np.zeros(70, np.float32)
    out[np.where(keep, np.cumsum(keep) - 1, 69)] = x
    return out[:70]


def over_other_values(x: Any) -> Any:
    keep, out = x > 0, np.concatenate([x, x[:1]]) * 3
    out[np.where(keep, np.cumsum(keep) - 1, 70)] = x
    return out[:70]


@pytest.mark.parametrize(
    "f",
    [behind_what_is_read, of_another_mask, counted_from_one, to_a_place_that_is_read, over_other_values],
)  # fmt: skip
def test_other_writes_stay(f: Any) -> None:
    assert "to_front" not in ops_of(f, X)
    assert "scatter" in ops_of(f, X)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", ge2.numpy.bfloat16, "i8", "u1", "?", "c8"])
def test_every_dtype(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x, keep = rng.integers(-9, 9, 5000).astype(dtype), rng.random(5000) < 0.4
    with config.using(executor="emulator"):
        step = ge2.jit(lambda k, x: kept_first(k, x, 1))
        assert "ge2_front_moves" in step.lower(keep, x).as_text("cuda")
        np.testing.assert_array_equal(step(keep, x), kept_first(keep, x, 1))


@needs_compiler
@pytest.mark.parametrize("often", [0.0, 0.02, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 31, 4096, 4097, 50_000])
def test_any_number_may_be_chosen(n: int, often: float) -> None:
    """By several blocks, which have several tiles each on a chip of one multiprocessor."""
    rng = np.random.default_rng(n)
    keep, x = rng.random(2 * n) < often, rng.normal(size=2 * n)
    graph = ge2.make_jaxpr(lambda k, x: kept_first(k[::2], x[1::2]))(keep, x).graph
    for seed in (0, 7):
        chip = replace(EMULATED, multiprocessors=1)
        program = compile_graph(graph, device=ShimDevice(chip, seed=seed, watch=True))
        assert "ge2_front_moves" in "".join(k.source for k in program.kernels)
        (found,) = program(keep, x)
        np.testing.assert_array_equal(found, kept_first(keep[::2], x[1::2]))


def inverse(x: Any) -> Any:
    order = np.argsort(x)
    y = np.zeros(x.shape, np.int64)
    y[order] = np.arange(x.shape[0])
    return y


def of_rows(x: Any) -> Any:
    y = np.ones((70, 3), np.float32)
    y[np.argsort(x)[::2]] = np.stack([x, x, x], -1)[:35]
    return y


def of_both(x: Any) -> Any:
    y = np.ones(90, np.float32)
    y[np.argsort(x)[np.argsort(-x)].astype(np.int32)] = x
    return y


def of_few_places(x: Any) -> Any:
    y = np.ones(69, np.float32)
    y[np.argsort(x)] = x
    return y


def of_remainders(x: Any) -> Any:
    y = np.ones(70, np.float32)
    y[np.argsort(x) % 35] = x
    return y


@pytest.mark.parametrize(("f", "unique"), [
    (inverse, True), (of_rows, True), (of_both, True), (of_few_places, False), (of_remainders, False),
])  # fmt: skip
def test_what_orders_a_line_names_no_place_twice(f: Any, unique: bool) -> None:
    (write,) = [e for e in graph_of(f, X).eqns if e.op.name == "scatter"]
    assert write.op.unique is unique  # type: ignore[attr-defined]


@needs_compiler
@pytest.mark.parametrize("f", [inverse, of_rows, of_both])
def test_no_last_one_is_looked_for(f: Any) -> None:
    x = np.random.default_rng(2).permutation(X)
    with config.using(executor="emulator"):
        step = ge2.jit(f)
        assert "ge2_last" not in step.lower(x).as_text("cuda")
        np.testing.assert_array_equal(step(x), f(x))
