"""Sums at indices make rows times weights themselves, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.kernels.programs import needs_compiler

PLACES, COUNT, WIDE = 900, 2500, 132


def sums(at: Any, *updates: Any) -> Any:
    y = np.zeros((PLACES, updates[0].shape[-1]), updates[0].dtype)
    for n, u in enumerate(updates):
        np.add.at(y, (at + n) % PLACES, u)
    return y


def messages(x: Any, w: Any, source: Any, to: Any) -> Any:
    return sums(to, x[source] * w[:, None])


def read_as_they_are(x: Any, w: Any, source: Any, to: Any) -> Any:
    return sums(to, x[source])


def corners(x: Any, w: Any, source: Any, to: Any) -> Any:
    """Parts of one array of rows, each times two weights."""
    each = np.tanh(x)[:COUNT]
    return sums(to, each * w[:, None] * (1 - w)[:, None], each * (1 - w)[:, None] * w[:, None])


def of_two_reads(x: Any, w: Any, source: Any, to: Any) -> Any:
    return sums(to, x[source] * w[:, None], (1 - w)[:, None] * x[source - 7])


def of_pairs(x: Any, w: Any, source: Any, to: Any) -> Any:
    """Indices along two axes."""
    rows = x[source.reshape(-1, 2)] * w.reshape(-1, 2)[..., None]
    y = np.zeros((PLACES, rows.shape[-1]), rows.dtype)
    np.add.at(y, to.reshape(-1, 2), rows)
    return y


def that_are_read_again(x: Any, w: Any, source: Any, to: Any) -> Any:
    rows = x[source] * w[:, None]
    return sums(to, rows), rows


def of_weights_for_elements(x: Any, w: Any, source: Any, to: Any) -> Any:
    return sums(to, x[source] * np.outer(w, w[: x.shape[1]]))


def in_their_order(x: Any, w: Any, source: Any, to: Any) -> Any:
    return sums(to, x[:COUNT] * w[:, None])


MADE = (messages, read_as_they_are, corners, of_two_reads, of_pairs)


def given(dtype: Any, wide: int = WIDE) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    source = rng.integers(7 - COUNT, COUNT, COUNT)
    to = np.minimum(rng.geometric(0.01, COUNT) * 3, PLACES) - 1
    x, w = rng.normal(size=(COUNT + 1, wide)), rng.normal(size=COUNT)
    return x.astype(dtype), w.astype(dtype), source, to


def planned(f: Any) -> list[int]:
    """The arrays that each sum of a program reads, by the plan for an H200."""
    graph = ge2.make_jaxpr(f)(*given(np.float32)).graph
    found = compile_graph(graph, device=OfflineDevice(H200)).program.graph
    return [len(e.inputs) for e in found.eqns if "sums_" in e.op.name]


@pytest.mark.parametrize(("f", "read"), [*zip(MADE, (5, 4, 5, 5, 5), strict=True)])
def test_rows_are_made_where_they_are_summed(f: Any, read: int) -> None:
    """They are read of the array, in an order, with an index and with weights."""
    assert planned(f) == [read]
    with config.using(passes_off=("made_where_summed",)):
        assert planned(f) == [2]


@pytest.mark.parametrize("f", [that_are_read_again, of_weights_for_elements, in_their_order])
def test_other_rows_are_arrays(f: Any) -> None:
    assert planned(f) == [2]


@needs_compiler
@pytest.mark.parametrize("f", MADE)
@pytest.mark.parametrize(("dtype", "wide"), [("f4", WIDE), ("f8", WIDE - 1)])
def test_the_sums_have_the_same_bits(f: Any, dtype: str, wide: int) -> None:
    args = given(dtype, wide)
    with config.using(executor="emulator"):
        step = ge2.jit(f)
        assert "sums_in_order" in step.lower(*args).as_text("cuda")
        found = step(*args)
        with config.using(passes_off=("made_where_summed",)):
            np.testing.assert_array_equal(found, ge2.jit(f)(*args))
    np.testing.assert_allclose(found, f(*args), rtol=1e-4, atol=1e-4 if dtype == "f4" else 1e-12)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f2", ge2.numpy.bfloat16])
def test_rows_of_half_types_are_rounded_once(dtype: Any) -> None:
    args = given(dtype)
    exact = messages(*(a.astype("f8") if a.dtype.itemsize == 2 else a for a in args))
    with config.using(executor="emulator"):
        found = ge2.jit(messages)(*args).astype("f8")
        with config.using(passes_off=("made_where_summed",)):
            apart = ge2.jit(messages)(*args).astype("f8")
    ulp = np.abs(np.spacing(exact.astype("f2")).astype("f8")) * (1 if dtype == "f2" else 8)
    assert (np.abs(found - exact) <= np.abs(apart - exact).max() + ulp).all()
