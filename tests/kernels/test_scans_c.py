"""Running sums, products and extremes in C against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import BOOL, COMPLEX, COMPLEX128, FLOAT64, HALF, INEXACT, INTEGERS, SHORT
from ge2.base.config import config
from ge2.ops.reduce import CumMax, CumMin, CumProd, CumSum
from ge2.targets.c.tuning import Scans, Tuning
from tests.kernels.programs import Programs, eager_threads, needs_compiler, numbers

pytestmark = [needs_compiler, pytest.mark.usefixtures("eager_threads")]
__all__ = ["eager_threads"]
SCANS = (CumSum, CumProd, CumMax, CumMin)


@np.errstate(all="ignore")
def close(op: Any, x: Any, y: Any, wanted: Any) -> None:
    """Exact for integers and extremes; sums and products at least as near to
    the truth as the reference.
    """
    if isinstance(op, CumMax | CumMin) or x.dtype in INTEGERS:
        np.testing.assert_array_equal(y.astype(COMPLEX128), np.asarray(wanted).astype(COMPLEX128))
        return
    truth = type(op)(op.axis, op.reverse).reference(
        x.astype(COMPLEX128 if x.dtype in COMPLEX else FLOAT64)
    )
    finite = np.isfinite(np.asarray(wanted).astype(COMPLEX128)) & np.isfinite(truth)
    a, b, c = (np.asarray(v).astype(COMPLEX128) for v in (y, wanted, truth))
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    step = (
        np.finfo(np.float64).eps if x.dtype in (FLOAT64, COMPLEX128) else np.finfo(np.float32).eps
    )
    if x.dtype in HALF:
        step = 2.0**-2 if x.dtype.itemsize == 1 else 2.0**-7
    total = type(op)(op.axis, op.reverse).reference(np.abs(x.astype(COMPLEX128)))
    error, theirs = np.abs(a - c)[finite], np.abs(b - c)[finite]
    assert (error <= np.maximum(theirs, 2 * step * np.abs(total)[finite] + 1e-30)).all()


@settings(max_examples=5)
@given(st.data())
def test_as_the_references(data: st.DataObject) -> None:
    programs, draw, ops = Programs(), data.draw, []
    for _ in range(8):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 19, 33)), min_size=1, max_size=3)))
        dtype = draw(st.sampled_from([d for d in SHORT if d != BOOL]))
        scan = draw(st.sampled_from(SCANS))
        op = scan(draw(st.integers(0, len(shape) - 1)), draw(st.booleans()))
        x = numbers(rng, shape, dtype)
        if scan in (CumSum, CumProd) and dtype in INEXACT:
            x = np.where(np.isfinite(x.astype(COMPLEX128)), x, x.dtype.type(0)).astype(dtype)
        view = programs.view(draw, x)
        ops.append((op, view[1]))
        programs.add(op, view)
    results = programs.results()
    for (op, x), y, wanted in zip(ops, results, programs.wanted, strict=True):
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        close(op, x, y, wanted)


def test_long_lines_are_cut_into_chunks(rng: np.random.Generator) -> None:
    programs, ops = Programs(), []
    for dtype in (np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.float16), FLOAT64):
        for scan in SCANS:
            for shape, reverse in (((1000,), False), ((2, 3, 129), True)):
                x = numbers(rng, shape, dtype, small=scan in (CumSum, CumProd))
                x = np.where(np.isfinite(x), x, x.dtype.type(1))
                op = scan(len(shape) - 1, reverse)
                ops.append((op, x))
                programs.add(op, (programs.given(x), x))
    with config.using(tuning=(Tuning(scans=Scans(chunk=64)),)):
        results = programs.results()
    for (op, x), y, wanted in zip(ops, results, programs.wanted, strict=True):
        close(op, x, y, wanted)


def test_sums_are_nearer_than_numpys(rng: np.random.Generator) -> None:
    x = rng.standard_normal(300_000).astype(np.float32)
    programs = Programs()
    programs.add(CumSum(0), (programs.given(x), x))
    (y,), exact = programs.results(), np.cumsum(x.astype(FLOAT64))
    assert np.abs(y - exact).max() <= 1e-7 * np.abs(exact).max()
    assert np.abs(y - exact).max() <= np.abs(np.cumsum(x) - exact).max()


def test_nan_stays_and_zero_times_a_large_product_is_zero() -> None:
    x = np.array([1, 2, np.nan, 5, -np.inf, np.inf] * 40)
    big = np.array([0.0, *[1e300] * 40])
    programs = Programs()
    for op in (CumMax(0), CumMin(0), CumMax(0, True), CumSum(0)):
        programs.add(op, (programs.given(x), x))
    programs.add(CumProd(0), (programs.given(big), big))
    programs.check()


def test_bools_have_extremes() -> None:
    x = np.array([[0, 1, 0], [1, 0, 0]], bool)
    programs = Programs()
    for op in (CumMax(0), CumMin(1), CumMax(1, True)):
        programs.add(op, (programs.given(x), x))
    programs.check()
