"""Reductions over any axes, running sums and their like, sorting and quantiles."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ge2
import ge2.numpy as gnp
from ge2.base.arrays import FLOAT32, HALF
from ge2.base.errors import InputError, OutOfBoundsError, ShapeError
from ge2.trace import Input, stage
from tests.numpy.agreement import DTYPES, FEW, agree, draw, same, traced

FOLDS = [np.sum, np.prod, np.max, np.min, np.any, np.all, np.amax, np.amin]
MOMENTS = [np.mean, np.var, np.std]
NANS = [np.nansum, np.nanprod, np.nanmax, np.nanmin, np.nanmean, np.nanvar, np.nanstd]
AXES = [None, 0, 1, -1, (0, 2), (1, -1), (), (0, 1, 2)]
name = lambda f: f.__name__  # noqa: E731


@pytest.mark.parametrize("f", [*FOLDS, *MOMENTS, np.ptp, np.count_nonzero], ids=name)
def test_every_axis(f: Any, rng: np.random.Generator) -> None:
    for dtype in FEW:
        x = draw(rng, dtype, (2, 3, 4))
        for axis, keepdims in itertools.product(AXES, (False, True)):
            agree(f, x, axis=axis, keepdims=keepdims, trace=dtype in ("f4", "i1"))


@pytest.mark.parametrize(
    "f", [*FOLDS, *MOMENTS, *NANS, np.ptp, np.count_nonzero, np.argmax, np.argmin], ids=name
)
def test_every_dtype(f: Any, rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        agree(f, draw(rng, dtype, (3, 4)))
        agree(f, draw(rng, dtype, (6, 8)).T[::-2, ::3], axis=1)
        agree(f, draw(rng, dtype, ())[()])


@pytest.mark.parametrize(
    "f", [*FOLDS, *MOMENTS, *NANS, np.count_nonzero, np.argmax, np.argmin], ids=name
)
def test_sizes_of_zero_and_one(f: Any) -> None:
    for shape in ((0,), (0, 3), (3, 0), (1,), (1, 1)):
        for axis in range(len(shape)):
            agree(f, np.ones(shape, "f4"), axis=axis)
        agree(f, np.ones(shape, "f4"))


@pytest.mark.parametrize("f", [np.sum, np.prod, np.mean, np.var, np.std], ids=name)
def test_dtype_argument(f: Any, rng: np.random.Generator) -> None:
    for source, target in itertools.product(("i1", "f4", "f8"), ("i8", "f4", "f8", "c16")):
        if target != "i8" or f not in (np.var, np.std):
            agree(f, draw(rng, source, (3, 4), 1), axis=0, dtype=target)


def test_a_variance_is_not_truncated() -> None:
    for f in (gnp.var, gnp.std):
        with pytest.raises(InputError, match="would be truncated"):
            f(np.ones(3), dtype=int)


@pytest.mark.parametrize("f", [np.sum, np.prod, np.max, np.min], ids=name)
def test_initial_and_where(f: Any, rng: np.random.Generator) -> None:
    x, mask = draw(rng, "f4", (3, 4)), rng.random((3, 4)) < 0.5
    agree(f, x, initial=2)
    agree(f, x, axis=0, initial=1.5, where=mask)
    agree(f, x, axis=1, initial=1.5, where=mask[0])
    agree(f, np.ones((0, 3), "f4"), axis=0, initial=7)
    if f in (np.max, np.min):
        agree(f, x, where=mask)  # NumPy: a mask needs initial
    else:
        agree(f, x, where=mask)


@pytest.mark.parametrize("f", [*MOMENTS, np.any, np.all], ids=name)
def test_where(f: Any, rng: np.random.Generator) -> None:
    x, mask = draw(rng, "f8", (3, 4)), rng.random((3, 4)) < 0.7
    agree(f, x, axis=0, where=mask)
    agree(f, x, where=mask, keepdims=True)


def test_variance_with_fewer_degrees_of_freedom(rng: np.random.Generator) -> None:
    x = draw(rng, "f8", (3, 4))
    for f, ddof in itertools.product((np.var, np.std), (0, 1, 0.5, 5)):
        agree(f, x, axis=1, ddof=ddof)
        agree(f, x, correction=ddof)
        agree(f, draw(rng, "c8", (3, 4)), axis=1, ddof=ddof)
    agree(np.var, x, axis=0, mean=np.mean(x, 0, keepdims=True))


@pytest.mark.parametrize("f", [np.argmax, np.argmin], ids=name)
def test_indices_of_extremes(f: Any, rng: np.random.Generator) -> None:
    for axis, keepdims in itertools.product((None, 0, 1, -1), (False, True)):
        agree(f, draw(rng, "i4", (3, 4, 2)), axis=axis, keepdims=keepdims)
    agree(f, np.array([1.0, np.nan, 5.0, np.nan]))
    agree(f, np.zeros(4))


@pytest.mark.parametrize("f", NANS, ids=name)
def test_nan_is_left_out(f: Any) -> None:
    x = np.array([[1.0, np.nan, 3.0], [np.nan, np.nan, np.nan], [4.0, 5.0, -2.0]])
    for axis in (None, 0, 1):
        agree(f, x, axis=axis)
        agree(f, x, axis=axis, keepdims=True)
        agree(f, x.astype("f4"), axis=axis)


def test_weighted_average(rng: np.random.Generator) -> None:
    x, w = draw(rng, "f8", (3, 4)), rng.random(4)
    agree(np.average, x)
    agree(np.average, x, axis=1, weights=w)
    agree(np.average, x, weights=rng.random((3, 4)))
    agree(np.average, x.astype(int), axis=1, weights=w.astype("f4"), keepdims=True)
    agree(np.average, x, axis=1, weights=w, returned=True)
    agree(np.average, x, axis=0, returned=True)
    agree(np.average, x, axis=0, weights=w)


@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
        elements=st.floats(-9, 9),
    ),
    st.data(),
)
def test_any_shape_and_axes(x: Any, data: st.DataObject) -> None:
    axes = data.draw(
        st.none() | st.lists(st.sampled_from(range(max(x.ndim, 1))), unique=True).map(tuple)
    )
    keepdims = data.draw(st.booleans())
    for f in (np.sum, np.max, np.mean, np.var, np.all):
        agree(f, x, axis=axes, keepdims=keepdims)


# --------------------------------------------------------------------------------------- half types


@pytest.mark.parametrize("dtype", sorted(HALF, key=str), ids=str)
def test_half_types_accumulate_in_float32_and_round_once(
    dtype: np.dtype, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((50, 7)).astype(dtype)
    wide = x.astype(FLOAT32)
    for f in (np.sum, np.mean, np.var, np.std, np.max, np.cumsum):
        same(f(wide, 0).astype(dtype), gnp.FUNCTIONS[f](x, 0), False, f.__name__)
        same(f(wide, 0).astype(dtype), traced(f, x, 0, only=[0]), False, f.__name__)


def test_long_sums_of_half_types_do_not_stall() -> None:
    assert gnp.sum(np.ones(4096, ml_dtypes.bfloat16)) == 4096
    assert gnp.mean(np.full(70000, 3, np.float16)) == 3


# ---------------------------------------------------------------------------------------- logsumexp


def test_logsumexp() -> None:
    x = np.array(
        [
            [1000.0, 1000.0, 1000.0],
            [-np.inf, 0.0, 1.0],
            [-np.inf, -np.inf, -np.inf],
            [np.inf, 1.0, 2.0],
        ]
    )
    want = np.array([1000 + np.log(3), np.log(1 + np.e), -np.inf, np.inf])
    np.testing.assert_allclose(gnp.logsumexp(x, 1), want)
    np.testing.assert_allclose(gnp.logsumexp(x, 1, keepdims=True), want[:, None])
    np.testing.assert_allclose(
        gnp.logsumexp([1.0, 2.0], b=[2.0, -0.5]), np.log(2 * np.e - np.e**2 / 2)
    )
    assert gnp.logsumexp(x.astype("f4"), 1).dtype == np.float32
    assert gnp.logsumexp([1, 2]).dtype == np.float64
    assert gnp.logsumexp(np.ones((2, 0)), 1).tolist() == [-np.inf, -np.inf]
    np.testing.assert_allclose(traced(gnp.logsumexp, x, 1, only=[0]), want)


# ------------------------------------------------------------------------------------------ running


@pytest.mark.parametrize("f", [np.cumsum, np.cumprod, np.nancumsum, np.nancumprod], ids=name)
def test_running_sums(f: Any, rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        for axis in (None, 0, -1):
            agree(f, draw(rng, dtype, (3, 4)), axis=axis)
    agree(f, np.float64(3))
    agree(f, np.ones((0, 2)), axis=0)
    agree(f, draw(rng, "i1", (3,)), dtype="f4")
    agree(f, np.array([1.0, np.nan, 2.0]))


@pytest.mark.parametrize("f", [np.cumulative_sum, np.cumulative_prod], ids=name)
def test_running_sums_of_the_array_api(f: Any, rng: np.random.Generator) -> None:
    for dtype in FEW:
        agree(f, draw(rng, dtype, (4,)))
        agree(f, draw(rng, dtype, (3, 4)), axis=1, include_initial=True)
    agree(f, draw(rng, "f4", (3, 4)))


def test_running_extremes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4))
    for f, theirs in ((gnp.cummax, np.maximum), (gnp.cummin, np.minimum)):
        np.testing.assert_array_equal(f(x, 1), theirs.accumulate(x, 1))
        np.testing.assert_array_equal(f(x), theirs.accumulate(x.ravel()))


def test_differences(rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        x = draw(rng, dtype, (3, 5))
        for n, axis in itertools.product((0, 1, 2, 7), (0, -1)):
            agree(np.diff, x, n, axis)
        agree(np.diff, x, prepend=0)
        agree(np.diff, x, append=x[:, :1], prepend=x)
        agree(np.ediff1d, x) if dtype.kind != "b" else None
    agree(np.ediff1d, x, 1, 2)
    agree(np.diff, x, -1)


def test_trapezoid(rng: np.random.Generator) -> None:
    for dtype in FEW:
        y = draw(rng, dtype, (3, 5))
        agree(np.trapezoid, y)
        agree(np.trapezoid, y, dx=0.5, axis=0) if dtype.kind != "b" else None
        agree(np.trapezoid, y, np.arange(5.0))
        agree(np.trapezoid, y, draw(rng, "f8", (3, 5)))


def test_unwrap(rng: np.random.Generator) -> None:
    x = np.cumsum(rng.uniform(-3, 3, (3, 9)), 1)
    wrapped = (x + np.pi) % (2 * np.pi) - np.pi
    agree(np.unwrap, wrapped)
    agree(np.unwrap, wrapped, axis=0, discont=4.0)
    agree(np.unwrap, wrapped.astype("f4"), period=3.0)


# ------------------------------------------------------------------------------------------ sorting


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sorting(dtype: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, dtype, (4, 9))
    for axis in (-1, 0, None):
        agree(np.sort, x, axis=axis, exact=True)
        agree(np.argsort, x, axis=axis, stable=True)
    if dtype.kind == "f":
        agree(np.sort, np.where(rng.random((4, 9)) < 0.3, np.nan, x).astype(dtype), exact=True)


def test_searching(rng: np.random.Generator) -> None:
    for a, v in itertools.product(("i1", "f4", "f8", "u8"), repeat=2):
        line = np.sort(draw(rng, a, (7,)))
        for side in ("left", "right"):
            agree(np.searchsorted, line, draw(rng, v, (3, 4)), side)
        agree(np.searchsorted, line, 1)
        agree(np.digitize, draw(rng, v, (5,)), line, right=True)
        agree(np.digitize, draw(rng, v, (5,)), line[::-1], trace=False)
    agree(np.searchsorted, line, 1, "middle")
    agree(np.searchsorted, np.ones((2, 2)), 1)
    x = draw(rng, "f8", (5,))
    agree(np.searchsorted, x, 0.5, sorter=np.argsort(x), trace=False)


@pytest.mark.parametrize(
    ("f", "good", "bad"),
    [
        (np.digitize, [[0.0, 1.5], [2.0, 0.5], [1.0, 1.0]], [[0.0, 2.0, 1.0]]),
        (np.percentile, [0.0, 40.0, 100.0], [-1.0, 100.5, np.nan]),
    ],
)
def test_traced_values_that_numpy_refuses_fail_at_run_time(f, good, bad):
    x, jitted = np.array([1.0, 2.0, 0.0]), ge2.jit(f)
    for second in good:
        np.testing.assert_allclose(jitted(x, np.array(second)), f(x, second))
    for second in bad:
        with pytest.raises(IndexError, match="out of bounds"):
            jitted(x, np.array(second))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind in "iuf"], ids=str)
def test_quantiles(dtype: np.dtype, rng: np.random.Generator) -> None:
    for shape in ((3, 4), (2, 3, 5), (1,)):
        x = draw(rng, dtype, shape)
        for axis in (None, 0, -1):
            agree(np.median, x, axis=axis)
            agree(np.median, x, axis=axis, keepdims=True)
            if dtype.itemsize == 8 and dtype.kind == "f":
                agree(np.quantile, x, 0.3, axis=axis)
                agree(np.quantile, x, [0.0, 0.25, 1.0], axis=axis, keepdims=True)
                agree(np.percentile, x, np.array([[10.0, 50.0]]), axis=axis)
    agree(np.median, draw(rng, dtype, (2, 3, 5)), axis=(0, 2))


def test_nan_spreads_through_quantiles() -> None:
    x = np.array([[1.0, np.nan], [2.0, 3.0]])
    agree(np.median, x, axis=1)
    agree(np.quantile, x, [0.5, 1.0], axis=1)


def test_interpolation(rng: np.random.Generator) -> None:
    xp, fp = np.array([0.0, 1.0, 2.5, 4.0]), np.array([1.0, -1.0, 3.0, 0.0])
    x = np.concatenate([rng.uniform(-1, 5, 20), xp, [np.nan, np.inf, -np.inf]])
    agree(np.interp, x, xp, fp)
    agree(np.interp, x, xp, fp, left=-7.0, right=9.0)
    agree(np.interp, 1.5, xp, fp)
    agree(np.interp, x, xp, fp * 1j)
    agree(np.interp, x, xp[:1], fp[:1])


# ------------------------------------------------------------------------------------------- errors


def test_errors() -> None:
    x = np.ones((2, 3), "f4")
    with pytest.raises(
        OutOfBoundsError, match=r"axis 2 is out of bounds for array of dimension 2 of f32\[2,3\]"
    ):
        gnp.sum(x, 2)
    with pytest.raises(ShapeError, match="duplicate value in 'axis'"):
        gnp.sum(x, (0, -2))
    with pytest.raises(InputError, match="an axis is an integer; got 0.5"):
        gnp.sum(x, 0.5)
    with pytest.raises(
        ShapeError, match=r"zero-size array to reduction operation maximum(.|\n)*try  initial="
    ):
        gnp.max(np.ones(0))
    with pytest.raises(ValueError, match="output"):  # NumPy's own
        gnp.sum(x, out=x)
    agree(np.argmax, np.ones((2, 0)))


def test_sums_of_one_array_are_one_equation() -> None:
    graph = stage(
        lambda x: [np.sum(x, 0), x.max(), np.sum(x, ())],
        [Input(gnp.promotion.type_of(np.ones((2, 3))))],
    ).graph
    assert [e.op.name for e in graph.eqns] == ["reduce_sum", "reduce_max"]
