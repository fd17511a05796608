"""Parts of arrays that take turns along an axis; parts of joins; diagonals; counts of narrow numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.compile import compile_graph
from ge2.ir import Graph, verify
from ge2.ops.shape import Pad
from ge2.passes import TIDY
from ge2.passes.context import Context, run
from ge2.passes.simplify import simplify
from ge2.passes.slices import slices_first
from ge2.targets.cuda.emulator import OfflineDevice
from ge2.targets.cuda.limits import H200
from tests.exhaustive import examples
from tests.kernels.programs import needs_compiler
from tests.passes.graphs import names, same


def traced(f: Callable[..., Any], *arrays: Any) -> Graph:
    return ge2.make_jaxpr(f)(*arrays).graph


def simplified(f: Callable[..., Any], *arrays: Any) -> Graph:
    """The graph by algebra alone, whose results are those of before to the bit."""
    graph = traced(f, *arrays)
    found = verify(simplify(graph))
    same(graph, found, *arrays)
    return found


def padded(x: Any, count: int, n: int, axis: int) -> Any:
    """An array with zeros where the others have their turns."""
    sides = [[0] * x.ndim for _ in range(3)]
    for side, zeros in zip(sides, (n, count - 1 - n, count - 1), strict=True):
        side[axis] = zeros
    return Pad(*map(tuple, sides))(x)


@given(st.integers(2, 4), st.integers(0, 2), st.sampled_from(["f4", "i4", "f8"]), st.randoms())
@settings(max_examples=examples(10))
def test_a_sum_of_what_takes_turns_is_a_join(
    count: int, axis: int, dtype: str, random: Any
) -> None:
    rng = np.random.default_rng(random.randrange(1000))
    parts = [rng.integers(-2, 2, (3, 4, 2)).astype(dtype) * -1 for _ in range(count)]
    order = [*range(count)]
    random.shuffle(order)

    def f(*parts: Any) -> Any:
        total = padded(parts[order[0]], count, order[0], axis)
        for n in order[1:]:
            total = total + padded(parts[n], count, n, axis)
        return total

    found = names(simplified(f, *parts))
    assert "pad" not in found and found.count("concatenate") == 1


def test_a_sum_with_a_further_term_has_the_join_in_it() -> None:
    a, b, z = np.array([[-0.0, 2.0]]), np.array([[5.0, -0.0]]), np.array([[-0.0, 1.0], [3.0, -0.0]])
    found = simplified(lambda a, b, z: (padded(a, 2, 0, 0) + padded(b, 2, 1, 0)) + z, a, b, z)
    assert "pad" not in names(found) and names(found).count("concatenate") == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: padded(a, 2, 0, 0) + padded(b, 2, 0, 0),  # both have the same places
        lambda a, b: padded(a, 3, 0, 0) + padded(b, 3, 1, 0),  # and some nobody has
        lambda a, b: (padded(a, 2, 0, 0) + 1) + padded(b, 2, 1, 0),
        lambda a, b: padded(a, 2, 0, 0) * padded(b, 2, 1, 0),
        lambda a, b: (lambda x: (x + padded(b, 2, 1, 0), x))(padded(a, 2, 0, 0)),
        lambda a, b: padded(padded(a, 2, 0, 0), 2, 1, 1) + padded(padded(b, 2, 0, 0), 2, 0, 1),
    ],
)  # fmt: skip
def test_of_other_sums_the_values_stay(f: Any) -> None:
    simplified(f, np.array([[-0.0, 2.0], [3.0, -1.0]]), np.array([[5.0, -0.0], [-7.0, 1.0]]))


def test_writes_that_take_turns_are_a_join() -> None:
    def f(a: Any, b: Any) -> Any:
        y = np.tile(a[:, :1], 6)
        y[:, 1::2] = a
        y[:, ::2] = b
        return y

    a, b = np.arange(12.0).reshape(4, 3), -np.arange(12.0).reshape(4, 3)
    graph = traced(f, a, b)
    found = verify(run(TIDY, graph, Context(caps=OfflineDevice(H200))))  # type: ignore[arg-type]
    same(graph, found, a, b)
    assert "update_slice" not in names(found) and "concatenate" in names(found)


def rotated(x: Any, c: Any) -> Any:
    """Neighbours as pairs, each turned."""
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * c - b, a + b * c], -1).reshape(x.shape)


def test_work_on_what_takes_turns_is_done_for_each(rng: np.random.Generator) -> None:
    x, c = rng.standard_normal((3, 8)), rng.standard_normal((3, 4))
    tidy = run(TIDY, traced(ge2.grad(lambda x, c: (rotated(x, c) ** 3).sum()), x, c))
    found = verify(slices_first(tidy))
    same(tidy, found, x, c)
    assert all(
        e.outs[0].type.shape != (3, 8) for e in found.eqns if e.op.name in ("mul", "integer_pow")
    )
    assert names(found).count("concatenate") == 1 < names(tidy).count("concatenate")


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "shim"])
def test_a_rotation_and_its_gradient_are_one_kernel_each(
    executor: str, rng: np.random.Generator
) -> None:
    x, c = rng.standard_normal((5, 2, 16)).astype("f4"), rng.standard_normal((5, 2, 8)).astype("f4")
    slope = ge2.grad(lambda x, c: (rotated(x, c) ** 3).sum())
    for f, wanted in ((rotated, rotated(x, c)), (slope, slope(x, c))):
        with ge2.config.using(executor=executor):
            np.testing.assert_allclose(ge2.jit(f)(x, c), wanted, rtol=1e-4, atol=1e-4)
        planned = compile_graph(traced(f, x, c), name="f", device=OfflineDevice(H200))
        assert len(planned.kernels) == 1


def test_a_slice_of_a_join_is_of_its_part() -> None:
    x, y = np.arange(12.0).reshape(3, 4), np.arange(6.0).reshape(3, 2)

    def f(x: Any, y: Any) -> Any:
        whole = np.concatenate([x, y, x * 2], 1)
        return whole[:, :4], whole[1:, 4:6], whole[:, 5:6], whole[:, 7::2], whole[:, 3:5]

    found = simplified(f, x, y)
    assert found.outputs[0] is found.inputs[0]
    assert names(found).count("slice") == 4 and names(found).count("concatenate") == 1


@given(st.integers(1, 4), st.integers(1, 4), st.integers(-4, 4), st.booleans())
@settings(max_examples=examples(20))
def test_the_derivative_of_a_diagonal_is_a_mask(
    rows: int, columns: int, by: int, batch: bool
) -> None:
    n = len(np.diagonal(np.zeros((rows, columns)), by)) if -rows < by < columns else 0
    x = np.arange(1.0, 1 + rows * columns * (2 if batch else 1))
    x = x.reshape(*((2,) if batch else ()), rows, columns)
    ct = -np.arange(n * (2 if batch else 1), dtype=float).reshape(*((2,) if batch else ()), n)

    def f(x: Any, ct: Any) -> Any:
        return ge2.vjp(lambda x: np.diagonal(x, by, -2, -1), x)[1](ct)[0]

    if n:
        simplified(f, x, ct)


def test_a_diagonal_of_a_square_is_no_pad() -> None:
    f = ge2.grad(lambda x: (np.diagonal(x) ** 2).sum())
    assert "pad" not in names(run(TIDY, traced(f, np.ones((5, 5)))))
    assert "pad" not in names(run(TIDY, traced(f, np.ones((5, 7)))))


@pytest.mark.parametrize(
    ("dtype", "narrow"), [("?", True), ("u1", True), ("i2", True), ("i4", False), ("f4", False)]
)
def test_narrow_numbers_are_summed_narrow(dtype: str, narrow: bool) -> None:
    x = (np.arange(60).reshape(3, 20) % 3 - 1).astype(dtype)
    found = simplified(lambda x: x.astype(np.int64).sum(1), x)
    (total,) = (e for e in found.eqns if e.op.name == "reduce_sum")
    assert (total.outs[0].type.dtype == np.int32) == narrow
    assert found.outputs[0].type.dtype == np.int64


def test_a_sum_of_many_narrow_numbers_stays_wide() -> None:
    f = traced(lambda x: x.astype(np.int64).sum(), np.broadcast_to(np.uint16(0), (1 << 15, 1)))
    assert (
        next(e for e in simplify(f).eqns if e.op.name == "reduce_sum").outs[0].type.dtype
        == np.int64
    )
