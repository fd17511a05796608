"""Calls at the edge of what NumPy's functions take: each must give NumPy's values, dtype or error.

A row is a call as it is written; its array arguments are also traced. Each stands for a
class that was wrong once: arguments that were taken and not looked at, dtypes,
infinities in formulas, errors of NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from tests.numpy.agreement import agree, attempt, compare, traced

NAN, INF = np.nan, np.inf
V = np.array([0.5, 1.5, 2.5, -1, 9, NAN])
ROWS = np.array([[NAN, NAN], [1, NAN]])
HOLES = np.array([[1.0, NAN, 3], [NAN, NAN, NAN], [1, 2, 4]])
PLACES = np.array([0.0, 1.5, 2, 4, 7, 9])
SPIKES = [[0.0, NAN, 2, 4], [0, 1e8, 1], [1, 2, 3], [INF, 1, 2, 3, -INF, 7]]
TWO_AXES = np.arange(24.0).reshape(4, 6) ** 2
TURNS = np.array([1j, -1j, 2 + 1j])
X = np.array([0.0, 1, 0.5, -1, 2, NAN, INF, -INF, 1.5])
BYTES = np.array([1, 200], np.uint8)
BOOLS = np.array([True, False, True])


def a(*values: Any, dtype: Any = None) -> np.ndarray:
    return np.array(values, dtype)


def gradients() -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    for x in SPIKES:
        for dtype in (np.float32, np.float64):
            y = np.array(x, dtype)
            for given in ((), (2.0,), (PLACES[: len(x)],), (np.arange(len(x)),)):
                calls += [(np.gradient, (y, *given), {"edge_order": order}) for order in (1, 2)]
    calls += [
        (np.gradient, (TWO_AXES,), {"axis": k}) for k in (None, 0, 1, (0, 1), (1, 0), -1, (0, 0))
    ]
    calls += [
        (np.gradient, (TWO_AXES, 2.0, 3.0), {"axis": (1, 0)}),
        (np.gradient, (TWO_AXES, PLACES, 3.0), {"axis": (1, 0)}),
        (np.gradient, (TWO_AXES, PLACES), {}),
        (np.gradient, (TWO_AXES,), {"edge_order": 3}),
        (np.gradient, (a(1, 5, 2**63 + 3, dtype=np.uint64),), {}),
        (np.gradient, (BOOLS,), {}),
    ]
    return calls


def orders() -> list[tuple[Any, ...]]:
    """Bins that rise and fall, sorts by name, parts of sorts."""
    bins = ([3, 2, 1], [1, 2, 3], [1, 1, 1], [2, 1], [5], [3, 3, 1], [1, 3, 3])
    calls: list[tuple[Any, ...]] = [
        (np.digitize, (V, np.array(b, t), right), {})
        for b in bins
        for t in (float, int)
        for right in (False, True)
    ]
    calls += [(np.digitize, (V, [3, 1, 2]), {}), (np.digitize, (V * 1j, a(1, 2.0)), {})]
    for kind in ("bogus", "stable", "mergesort", 3):
        calls += [
            (np.sort, (V,), {"kind": kind}),
            (np.argsort, (V,), {"kind": kind, "stable": None}),
        ]
    calls += [(np.sort, (V,), {"kind": "heapsort", "stable": True})]
    for k in (-5, 4, 1.0):
        calls += [
            (f, (a(3.0, 2, 1, 0), k), {}) for f in (np.partition, np.argpartition) if k != 4 or f
        ]
    return calls


def quantiles() -> list[tuple[Any, ...]]:
    """Of each dtype: what q's own dtype does to that of the result, and its range."""
    fractions = (0.25, [0.25, 0.5], 0, 1, np.float32(0.3), a(0.1, dtype=np.float32), np.float64(0.3), 1.0,
                 True, [0, 1], 1.5, -0.1, np.array(0.5))  # fmt: skip
    calls: list[tuple[Any, ...]] = [
        (lambda x, q=q: np.quantile(x, q), (a(3, 1, 2, 5, 4, dtype=t),), {})
        for t in (np.float32, np.float64, np.int32, np.float16, np.uint8)
        for q in fractions
    ]
    for q in (0, 50, 101, -1, [20, 80], 12.5):
        calls += [
            (lambda x, q=q: np.percentile(x, q), (a(3, 1, 2, dtype=t),), {}) for t in ("f4", "f8")
        ]
    calls += [(lambda x, q=q: np.quantile(x, q), (a(-INF, 1, 2),), {}) for q in (0, 0.0, 1)]
    for method in ("lower", "higher", "nearest", "midpoint", "inverted_cdf", "averaged_inverted_cdf",
                   "closest_observation", "interpolated_inverted_cdf", "hazen",
                   "weibull", "median_unbiased", "normal_unbiased"):  # fmt: skip
        calls += [
            (lambda x, q=q, m=method: np.quantile(x, q, method=m), (x,), {})
            for x in (a(3, 1, 2, 5, 4), a(3, 1, 2, 4, dtype=np.int32), a(1, NAN, 2))
            for q in (0.0, 0.01, 0.3, 0.5, [0.125, 0.99], 1.0)
        ]
    calls += weighted_quantiles()
    return [*calls, (lambda x: np.quantile(x, 0.5), (a(1j, 2),), {})]


def weighted_quantiles() -> list[tuple[Any, ...]]:
    """And those without NaN, of lines of several lengths, by methods that have no weights."""
    x, w = a([3, NAN, 2, 5], [1, 1, 0, 4], [NAN] * 4), a([0, 1, 2, 1], [1, 1, 1, 1], [2, 1, 0, 0])
    cases = (
        (np.quantile, None, w),
        (np.quantile, 1, w[0]),
        (np.nanquantile, 1, w),
        (np.nanquantile, 0, w + 1),
    )
    calls: list[tuple[Any, ...]] = [
        (
            lambda x, w, f=f, axis=axis: f(
                x, [0, 0.3, 1.0], axis, weights=w, method="inverted_cdf"
            ),
            (x, v),
            {},
        )
        for f, axis, v in cases
    ]
    wrong = {"weights": a(1, 2)}, {"weights": a(1, -2), "method": "inverted_cdf"}, {"method": "no"}
    calls += [(lambda x, more=more: np.quantile(x, 0.5, **more), (a(1, 2),), {}) for more in wrong]
    return calls + [
        (lambda x, m=method: np.nanquantile(x, [0.125, 0.99], 1, method=m), (x,), {})
        for method in ("nearest", "averaged_inverted_cdf", "hazen")
    ]


def interpolations() -> list[tuple[Any, ...]]:
    ends = ([0.0, INF], [INF, INF], [-INF, INF], [1.0, 2.0], [NAN, 1.0], [1, NAN])
    calls = [
        (np.interp, (X, a(0.0, 1.0), np.array(y)), more)
        for y in ends
        for more in ({}, {"left": -5, "right": 7.0})
    ]
    three = a(0.0, 1, 1.5)
    return [
        *calls,
        (np.interp, (X, three, a(1 + 1j, complex(2, INF), 4 + 2j)), {}),
        (np.interp, (X, three, a(1, 2, 4.0)), {"period": 2.0}),
        (np.interp, (X, a(3, 0.0, 1), a(1, 2, 4.0)), {"period": -2.0}),
        (np.interp, (X, three, a(1, 2, 4.0)), {"period": 0}),
        (np.interp, (X, a(-INF, 0, INF), a(1, 2, 4.0)), {}),
        (np.interp, (X, a(1.0), a(4.0)), {}),
    ]


def reductions() -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    for f in (np.nanmax, np.nanmin):
        calls += [(f, (ROWS,), {"axis": 1, "initial": 0.0}), (f, (ROWS,), {"axis": 1})]
        calls += [(f, (np.zeros((2, 0)),), {"axis": 1, "initial": 2.0})]
    for f in (np.var, np.std):
        calls += [(f, (TURNS,), {"dtype": t}) for t in (np.float32, np.float64, np.complex64, None)]
    for f in (np.nanvar, np.nanstd):
        calls += [(f, (HOLES,), {"ddof": d, "axis": 1}) for d in (0, 1, 3)]
        calls += [
            (f, (a(1.0, 2),), {"ddof": 3}),
            (f, (a(1, 2),), {"ddof": 3}),
            (f, (HOLES,), {"dtype": int}),
        ]
        calls += [(f, (HOLES,), {"correction": 1, "keepdims": True}), (f, (HOLES * 1j,), {})]
    calls += [(np.nanmean, (a(1.0, NAN),), {"dtype": int}), (np.nanmean, (HOLES,), {"axis": 1})]
    gaps = np.array(
        [[0, INF, NAN, -0.0], [NAN, INF, -INF, 3], [INF, 1, 2, 3], [1e308, 1e308, NAN, NAN]]
    )
    calls += [(np.nanmedian, (gaps,), {"axis": k, "keepdims": True}) for k in (None, 0, 1)]
    calls += [(np.nanmedian, (gaps[:, :n],), {"axis": 1}) for n in (1, 2, 3)]
    for empty in (np.zeros((3, 0)), np.zeros((3, 0), np.int32), np.zeros((0, 3), np.float32)):
        calls += [(np.median, (empty,), {"axis": k, "keepdims": True}) for k in (None, 0, 1)]
    small = a(1, 2, dtype=np.uint8)
    calls += [(f, (ROWS,), {"axis": 1, "initial": np.nan}) for f in (np.nanmax, np.nanmin)]
    calls += [(np.nanmax, (ROWS,), {"initial": np.nan, "where": np.isnan(ROWS)})]
    calls += [(np.min, (small,), {"initial": -99}), (np.max, (small,), {"initial": 300})]
    return [*calls, (np.sum, (small,), {"initial": -9}), (np.nanargmax, (ROWS[1],), {})]


def products() -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = [
        (f, (x, y, mode), {})
        for f in (np.convolve, np.correlate)
        for x, y in ((a(1, INF, 2), a(1.0, 2)), (a(1, 2, 3.0), a(INF, 2)), (a(1, 2, 3), a(1, 2)))
        for mode in ("full", "same", "valid")
    ]
    table = np.array([[1, 2], [3, 4]])
    return [
        *calls,
        (np.polyval, (table, a(1, 1)), {}),
        (np.polyval, (table, np.array([[1, 2], [3, 4.0]])), {}),
        (np.polyval, (a(1, 2, 3.0), table), {}),
    ]


def arrays() -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = [
        (np.vander, (a(20, 3, dtype=t), *more), {})
        for t in (np.uint8, np.int8, np.uint64, np.int32, bool, np.float32, np.complex64)
        for more in ((), (3, True))
    ]
    ends = (
        (-1.0, -100.0), (1, 100), (1j, 8j), (np.float32(1), np.float32(8)),
        (a(1.0, 2), a(10.0, 20)), (1 + 1j, -4),
    )  # fmt: skip
    calls += [
        (np.geomspace, (np.asarray(x), np.asarray(y), n, whole), {})
        for x, y in ends
        for n in (3, 1, 0)
        for whole in (True, False)
    ]
    calls += [
        (np.geomspace, (np.asarray(1.0), np.asarray(100.0), 3), {"dtype": t})
        for t in (np.float32, int)
    ]
    signed = a(1, 2, dtype=np.int8)
    return [
        *calls,
        (np.geomspace, (0.0, 1.0, 3), {}),
        (np.vander, (np.ones((2, 2)),), {}),
        (np.ix_, (a(1, 2), np.array([[1, 2]])), {}),
        (np.ediff1d, (BOOLS,), {}),
        *((np.ediff1d, (a(5, 9, dtype=t), x), {}) for x in (7, 1.5) for t in ("u1", "i1", "f4")),
        *(
            (np.linspace, (a(1, 2, dtype=t), x, 4), {})
            for x in (7, 1.5)
            for t in ("f4", "c8", "i1")
        ),
        (np.logspace, (2, np.asarray(1, np.float32), 3), {}),
        (np.logspace, (a(0.0, 1), 2.0, 3), {"base": a(2.0, 3), "axis": 1}),
        (np.choose, (a(0, 1, 0), [a(1, 2, 3, dtype=np.float32), 7]), {}),
        (np.choose, (a(0, 1, 0), [a(1, 2, 3, dtype=np.int8), 7.5]), {}),
        *((np.histogram, (a(1, 2, 5, dtype=t), 3, (0, 7)), {}) for t in ("f4", "i1")),
        (np.full_like, (signed, 200), {}),
        (np.full_like, (signed, 100), {}),
        (np.full_like, (signed, 1.5), {}),
        (np.clip, (BYTES, -1, 2), {}),
        (np.clip, (BYTES, -1, 300), {}),
        (np.clip, (a(1, 7), 2.5, 3), {}),
        (np.clip, (np.asarray(7), None, np.asarray(3, np.float16)), {}),
        *((np.clip, (x, None, a(3, 9, dtype=t)), {}) for x in (7, 1.5) for t in (np.float16, "i1")),
        *((np.unravel_index, (a(1, 3), (2, 3), order), {}) for order in "CF"),
        (np.unravel_index, (np.array([[1, 5]], np.uint8), (2, 3)), {}),
    ]


def powers() -> list[tuple[Any, ...]]:
    bases = (
        BOOLS, a(1, 2, dtype=np.int8), a(1.5, -2), a(1.5, -2, dtype="f4"), a(1.5, -2j, dtype="c8"),
    )  # fmt: skip
    return [
        (f, (x,), {})
        for n in (0, 1, 2, 3, 0.5, 2.0, -1, True, np.int8(2), NAN, INF, -INF, 1.5)
        for x in bases
        for f in (lambda x, n=n: x**n, lambda x, n=n: np.power(x, n))
    ]


def casts() -> list[tuple[Any, ...]]:
    def copied(x: Any, to: Any, rule: str) -> Any:
        y = np.zeros_like(x, dtype=to)
        np.copyto(y, x, casting=rule)
        return y

    return [
        (f, (a(1.5, 2),), {})
        for rule in ("safe", "same_kind", "no", "bogus")
        for to in (int, np.float32, np.float64, complex)
        for f in (
            lambda x, to=to, rule=rule: x.astype(to, casting=rule),
            lambda x, to=to, rule=rule: copied(x, to, rule),
            lambda x, to=to, rule=rule: np.einsum("i,i->i", x, x, dtype=to, casting=rule),
        )
    ]


def empties() -> list[tuple[Any, ...]]:
    """Of no elements: an index, the slices of a sum, a norm, a median, what is sorted."""
    rows: list[Callable[..., Any]] = [
        lambda x: np.prod(x[:, ()], axis=1),
        lambda x: x[:, (), None],
        lambda x: np.add.reduceat(x, [], axis=0),
        lambda x: np.partition(x[:0], 1, 0),
        lambda x: np.linalg.norm(x[:0], np.inf, (0, 1)),
        lambda x: np.linalg.vector_norm(x[:0], ord=np.inf),
    ]
    f32 = np.zeros((0, 3), np.float32)
    return [(f, (np.ones((3, 4)),), {}) for f in rows] + [
        (f, (f32,), {"axis": axis, "keepdims": True})
        for f in (np.nanmedian, lambda x, **more: np.nanquantile(x, 0.5, **more))
        for axis in (None, 0, 1)
    ]


def choices() -> list[tuple[Any, ...]]:
    """Weights along axes in any order, and indices that broadcast."""
    x, ones = np.arange(24.0).reshape(2, 3, 4) ** 2, np.ones((1, 2, 5), np.int64)
    square, w = np.arange(12).reshape(2, 2, 3), np.array([[0.2, 0.8], [0.4, 0.6]])
    return [
        *((lambda x, w, k=k: np.average(x, k, w), (square, w), {}) for k in ((0, 1), (1, 0))),
        (lambda x, w: np.average(x, (2, 0), w), (x, w.repeat(2, 0)), {}),
        (lambda x, w: np.average(x, (-1, 0, 1), w), (x, x.transpose(2, 0, 1)), {}),
        (np.take_along_axis, (x[:, :, :1], ones), {"axis": 1}),
        (np.take_along_axis, (x[:1, :, 0], np.ones((3, 2), np.int64)), {"axis": 1}),
        (lambda i, x: np.choose(i, (x, 1)), (BOOLS, a(1.0, 2, 3)), {}),
        (lambda x: np.searchsorted(x, 0, sorter=[1, 2]), (a(1.0, 2, 3),), {}),
        (np.vsplit, (a(1.0, 2), 2), {}),
        (lambda x: np.histogram(x, 3, a(0.0, 2)), (a(1.0, 2, 0.5),), {}),
        (lambda x, r: np.histogram(x, 3, r), (a(1.0, 2, 0.5), a(0.0, 2)), {}),
    ]


def dtypes() -> list[tuple[Any, ...]]:
    """Python's numbers beside float32, running sums of bools, angles that are integers."""
    one, few = np.float32(1), a(1, 2, 3, 4, 5, dtype=np.float32)
    calls: list[tuple[Any, ...]] = [
        (lambda x: np.concatenate([x, 1.0], axis=None), (one,), {}),
        (lambda x: np.append(x, 1.0), (few,), {}),
        *((f, (one, 2, 0.4999999999999999, 0), {}) for f in (np.isclose, np.allclose)),
        *((lambda x, f=f: f(x, dtype=bool), (a(0, 2, 0),), {}) for f in (np.cumsum, np.cumprod)),
        *((np.unwrap, (a(0, 75, 150, 225, 45),), {"period": n}) for n in (255, 4, 7.0)),
        *((f, (few,), {"ddof": 1, "correction": 1}) for f in (np.var, np.std, np.nanvar)),
    ]
    method = "averaged_inverted_cdf"
    return calls + [
        (lambda x, q=q: np.quantile(x, q, method=method), (few,), {}) for q in (0.5, one / 4)
    ]


FAMILIES = (
    gradients, orders, quantiles, interpolations, reductions, products, arrays, powers, casts,
    empties, choices, dtypes,
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_corners(family: Callable[[], list[tuple[Any, ...]]]) -> None:
    for f, args, more in family():
        if f in gnp.FUNCTIONS:
            agree(f, *args, **more)
        else:  # an operator or a call with arguments that are never traced
            compare(
                attempt(f, *args), attempt(traced, f, *args), False, f"{family.__name__} {args}"
            )


def test_what_only_the_run_can_know_is_an_error_of_the_run() -> None:
    unravelled = ge2.jit(lambda k: np.unravel_index(k, (2, 3)))
    assert [x.tolist() for x in unravelled(a(1, 5))] == [[0, 1], [1, 2]]
    largest = ge2.jit(lambda x: np.nanargmax(x, axis=1))
    assert largest(np.array([[1, NAN], [NAN, 2.0]])).tolist() == [0, 1]
    for f, x in ((unravelled, a(1, 6)), (unravelled, a(-1, 0)), (largest, ROWS)):
        with pytest.raises(IndexError, match="out of bounds"):
            f(x)
    with pytest.raises(ValueError, match="All-NaN slice"):
        ge2.numpy.nanargmax(ROWS, axis=1)
    with pytest.raises(ZeroDivisionError, match="Weights sum to zero"):
        ge2.numpy.average(a(1.0, 2), weights=a(1.0, -1))


@pytest.mark.parametrize("make", [np.arange, lambda n, dtype: np.indices((2, n), dtype=dtype)])
def test_bools_count_to_two(make: Any) -> None:
    ours = gnp.arange if make is np.arange else lambda n, dtype: gnp.indices((2, n), dtype=dtype)
    for n in (0, 1, 2):
        np.testing.assert_array_equal(ours(n, dtype=bool), make(n, dtype=bool), strict=True)
    for f in (make, ours):
        with pytest.raises(TypeError):
            f(3, dtype=bool)
