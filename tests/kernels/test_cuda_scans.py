"""Running sums, products and extremes in CUDA against their references,
on the CPU, a fiber a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import BFLOAT16, BOOL, COMPLEX, FLOAT32, FLOAT64, INEXACT, SHORT
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.ir import ArrayType, Eqn, Graph, Op, Var
from ge2.ops.reduce import CumMax, CumMin, CumProd, CumSum
from ge2.ops.shape import Rev, Slice, Transpose
from ge2.targets.cuda.emulator import EMULATED, ShimDevice
from tests.exhaustive import sampled
from tests.kernels.programs import needs_compiler, numbers
from tests.kernels.test_scans_c import close
from tests.small import planned_by

pytestmark = needs_compiler
SCANS = (CumSum, CumProd, CumMax, CumMin)
SIZES = (1, 2, 31, 32, 33, 127, 1023, 1025, 2053)
SEEDS = (0, 1, 7)


def applied(x: Any, *ops: Op, seed: int = 0) -> Any:
    """What operations make of an array on the shim, the same bits in another
    order of the threads.
    """
    given = var = Var(ArrayType(x.shape, x.dtype))
    eqns = []
    for op in ops:
        (out,) = op.infer(var.type)
        eqns.append(Eqn(op, (var,), (new := Var(out),)))
        var = new
    graph = Graph((given,), tuple(eqns), (var,))
    found = [
        compile_graph(graph, device=ShimDevice(config.tuned(EMULATED), s))(x)[0]
        for s in (seed, seed + 100)
    ]
    assert found[0].tobytes() == found[1].tobytes()
    return found[0]


def finite(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    x = numbers(rng, shape, dtype)
    return (
        np.where(np.isfinite(x.astype(complex)), x, x.dtype.type(0)).astype(dtype)
        if dtype in INEXACT
        else x
    )


def checked(op: Any, x: Any, seed: int = 0) -> None:
    y = applied(x, op, seed=seed)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    with np.errstate(all="ignore"):
        if isinstance(op, CumSum | CumProd) and x.dtype in (FLOAT64, np.dtype(np.complex128)):
            near(op, x, y)
        else:
            close(op, x, y, op.reference(x))


def near(op: Any, x: Any, y: Any) -> None:
    """Within a few roundings of what more digits tell."""
    line = np.flip(x, op.axis) if op.reverse else x
    wide = np.clongdouble if x.dtype.kind == "c" else np.longdouble
    truth, size = (
        op.ufunc.accumulate(a, op.axis, dtype=a.dtype) for a in (line.astype(wide), np.abs(line))
    )
    if op.reverse:
        truth, size = np.flip(truth, op.axis), np.flip(size, op.axis)
    inside = np.isfinite(truth.astype(x.dtype)) & np.isfinite(size)
    assert (np.abs(y - truth)[inside] <= 24 * np.finfo(x.dtype).eps * size[inside] + 1e-300).all()


NARROW = planned_by(EMULATED, "scans", block=64, packs=1, run=1)


@pytest.fixture
def narrow() -> Iterator[None]:
    """Blocks and tiles so small that even short lines are of many."""
    with config.using(tuning=(NARROW,)):
        yield


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_few_lines_are_shared_by_blocks(n: int, narrow: None, rng: np.random.Generator) -> None:
    for seed, reverse in zip(SEEDS, (False, True, False), strict=True):
        checked(CumSum(0, reverse), finite(rng, (n,), FLOAT32), seed)
        checked(CumMax(1, reverse), finite(rng, (3, n), FLOAT64), seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reverse", [False, True])
def test_groups_of_tiles_follow_each_other(
    reverse: bool, narrow: None, rng: np.random.Generator
) -> None:
    x = finite(rng, (64 * 4 * 32 * 3 + 1000,), FLOAT32)
    checked(CumSum(0, reverse), x, 5)
    checked(CumSum(1, reverse), rng.integers(-9, 9, (2, 64 * 2 * 32 * 2 + 77)), 3)


def test_groups_of_groups(narrow: None, rng: np.random.Generator) -> None:
    checked(CumMax(0), finite(rng, (64 * 2 * 32 * 32 * 2 + 1000,), FLOAT64))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [9000, 20_011])
def test_tiles_as_large_as_they_are(n: int, rng: np.random.Generator) -> None:
    for dtype, op in (
        (FLOAT32, CumSum(0)),
        (FLOAT32, CumProd(0, True)),
        (BFLOAT16, CumSum(0, True)),
    ):
        checked(op, finite(rng, (n,), dtype))
    checked(CumMax(0), rng.random(n) < 1e-3)
    x = finite(rng, (3 * n,), FLOAT32)
    close(
        CumSum(0),
        x[::3],
        applied(x, Slice((0,), (3 * n,), (3,)), CumSum(0)),
        CumSum(0).reference(x[::3]),
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_many_lines_have_teams(n: int, rng: np.random.Generator) -> None:
    lines = 9 if n > 100 else 600
    checked(CumSum(1), finite(rng, (lines, n), FLOAT32))
    checked(CumMin(1, True), finite(rng, (lines, n), FLOAT64), 4)


def test_lines_of_several_tiles_by_one_block(rng: np.random.Generator) -> None:
    with config.using(tuning=(planned_by(NARROW, "scans", lines=0),)):
        for op in (CumSum(1), CumProd(1, True), CumMax(1)):
            checked(op, finite(rng, (5, 1037), FLOAT32), 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [1, 31, 33, 1025, 5003])
@pytest.mark.parametrize("width", [2, 7, 12, 140])
def test_columns_are_shared_by_blocks(n: int, width: int, rng: np.random.Generator) -> None:
    checked(CumSum(0, n > 100), finite(rng, (n, width), FLOAT32), n)
    checked(CumMax(1), finite(rng, (2, n, width), FLOAT64), n)


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [3, 8])
def test_columns_of_a_thread(width: int, rng: np.random.Generator) -> None:
    with config.using(tuning=(planned_by(EMULATED, "scans", busy=0),)):
        for op in (CumSum(1), CumProd(1, True), CumMin(1)):
            checked(op, finite(rng, (5, 137, width), FLOAT32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [d for d in SHORT if d != BOOL], ids=str)
def test_every_dtype(dtype: np.dtype, narrow: None, rng: np.random.Generator) -> None:
    for scan in SCANS:
        x = finite(rng, (2, 703), dtype)
        # of numbers that never overflow, for then NumPy's are NaN
        if scan is CumProd and dtype in COMPLEX:
            x = np.exp(1j * x.real).astype(dtype)
        checked(scan(1, scan in (CumMax, CumProd)), x)
        checked(scan(0, scan in (CumMax, CumProd)), x.reshape(703, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_axis(axis: int, rng: np.random.Generator) -> None:
    cases = product(((5, 33, 7), (1, 40, 300), (2, 3, 4)), SCANS)
    for shape, scan in sampled(cases, lambda case: f"{axis} {case}", lambda case: case[1]):
        checked(scan(axis, scan is CumSum), finite(rng, shape, FLOAT32))


def test_bools_have_extremes(rng: np.random.Generator) -> None:
    x = rng.random((37, 41)) < 0.05
    for op in (CumMax(0), CumMin(1), CumMax(1, True)):
        np.testing.assert_array_equal(applied(x, op), op.reference(x))


def test_views_are_scanned_where_they_lie(rng: np.random.Generator) -> None:
    x = finite(rng, (33, 70), FLOAT32)
    for view, seen in (
        (Transpose((1, 0)), x.T),
        (Rev((0, 1)), x[::-1, ::-1]),
        (Slice((1, 3), (33, 70), (2, 1)), x[1::2, 3:]),
        (Slice((0, 1), (33, 70), (1, 3)), x[:, 1::3]),
    ):
        for op in (CumSum(1), CumSum(0, True)):
            close(op, seen, applied(x, view, op), op.reference(seen))


def test_nan_stays_and_signs_of_zero() -> None:
    x = np.array([1, 2, np.nan, 5, -np.inf, np.inf] * 40)
    for op in (CumMax(0), CumMin(0), CumMax(0, True), CumSum(0)):
        np.testing.assert_array_equal(applied(x, op), op.reference(x))
    zeros = np.array([-0.0, -0.0, 0.0, -0.0])
    np.testing.assert_array_equal(np.signbit(applied(zeros, CumSum(0))), [True, True, False, False])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, np.dtype(np.complex64)], ids=str)
def test_products_neither_overflow_nor_vanish_on_the_way(dtype: np.dtype, narrow: None) -> None:
    large = np.finfo(dtype).max / 4
    x = np.full(1500, large, dtype)
    x[0] = 0
    np.testing.assert_array_equal(applied(x, CumProd(0)), np.zeros(1500, dtype))
    x[0], x[1::2] = 1, 1 / large
    np.testing.assert_allclose(applied(x, CumProd(0))[1::2], CumProd(0).reference(x)[1::2], 1e-3)


def test_sums_are_nearer_than_numpys(rng: np.random.Generator) -> None:
    x = rng.standard_normal(60_000).astype(np.float32)
    y, exact = applied(x, CumSum(0)), np.cumsum(x.astype(FLOAT64))
    assert (np.abs(y - exact) <= np.spacing(np.abs(exact).astype(np.float32)) * 0.5001).all()


def test_nothing_is_launched_for_no_elements() -> None:
    for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 1)):
        assert applied(np.empty(shape, np.float32), CumSum(axis)).shape == shape
