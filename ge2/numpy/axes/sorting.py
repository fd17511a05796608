"""Sorting, searching what is sorted, and what is made of it: medians, quantiles, interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT64, INEXACT, INT64
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access import checked_index, getitem
from ge2.numpy.access.selecting import take, take_along_axis
from ge2.numpy.axes import any as any_of
from ge2.numpy.axes import mean, weights_like, with_ones
from ge2.numpy.axes import sum as total
from ge2.numpy.axes.scans import cumsum
from ge2.numpy.composite import choose_by, concatenate, imag, known_elements, no_out, real
from ge2.numpy.promotion import (
    Axes,
    all_axes,
    array,
    broadcast,
    cast,
    common_dtype,
    lift,
    one_axis,
    reshape,
)
from ge2.numpy.shapes import flip, moveaxis, part, ravel
from ge2.ops.elementwise import COMPLEX_OF
from ge2.ops.sort import ArgSort, SearchSorted, Sort, TopK

KINDS = ("quicksort", "heapsort", "mergesort", "stable")


def in_order(a: Any, axis: int | None, order: Any) -> tuple[Any, int]:
    """The array, flattened if no axis is given, and its axis."""
    if order is not None:
        raise InputError("order= is for structured arrays", where=here(), fix="leave it out")
    x = array(a)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    return x, one_axis(axis, type_of(x).ndim, x)


def check_kind(kind: Any, stable: Any) -> None:
    """Refuses a `kind` that NumPy does not have, or that is given with `stable`."""
    if kind is None:
        return
    if stable is not None:
        what = "`kind` and `stable` cannot be given together"
        raise ArgumentError(what, where=here(), fix="stable=True alone")
    if not isinstance(kind, str):
        what = f"sort kind must be str, not {type(kind).__name__}"
        raise InputError(what, where=here(), fix="kind='stable'")
    if kind[:1].lower() not in tuple("qhms"):
        what = f"sort kind must be one of {', '.join(KINDS)}; got {kind!r}"
        raise ArgumentError(what, where=here(), fix="kind='stable'")


def sort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> Any:
    """Sorted along an axis, NaN last, as `numpy.sort`; every `kind` is stable."""
    check_kind(kind, stable)
    x, axis = in_order(a, axis, order)
    return Sort(axis)(x)


def argsort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> Any:
    """The indices that sort along an axis, always stably, as `numpy.argsort(..., stable=True)`."""
    check_kind(kind, stable)
    x, axis = in_order(a, None if axis in (0, -1) and not type_of(array(a)).shape else axis, order)
    return ArgSort(axis)(x)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The `k` largest elements along an axis, the largest first, and their indices as int64.

    `x` is real, with `k` elements at least along `axis`; both results have its shape with `k`
    there, the first its dtype. Of equal elements the first comes first. NaN is larger than any
    number; its sign, and that of a zero, are nothing to the order. ShapeError for another `k`;
    TypeRuleError for complex numbers.

    `jax.lax.top_k`, but for its order of signed zeros and NaN and its int32.

    >>> import numpy as np, ge2
    >>> ge2.lax.top_k(np.array([1.0, 5.0, 3.0, 5.0]), 3)
    (array([5., 5., 3.]), array([1, 3, 2]))
    """
    x, axis = in_order(x, axis, None)
    if issubclass(type(k), bool) or not issubclass(type(k), int | np.integer):
        what = f"top_k takes k as an int, which shapes depend on; got {type(k).__name__}"
        raise ArgumentError(
            what, where=here(), fix="a number that is known; static_argnames='k' under jit"
        )
    op = TopK(int(k), axis)
    op.infer(type_of(x))  # references look at no type
    values, indices = op(x)
    return values, indices


def check_kth(a: Any, kth: Any, axis: int | None, kind: str) -> None:
    """Refuses places that are outside; those of a traced `kth` are not known."""
    if kind != "introselect":
        what = f"select kind must be 'introselect'; got {kind!r}"
        raise ArgumentError(what, where=here(), fix="leave out kind=")
    x, at = in_order(a, axis, None)
    wanted, n = known_elements(array(kth)), type_of(x).shape[at]
    if wanted is None or not type_of(x).size:
        return
    if wanted.dtype.kind not in "iu":
        what = f"Partition index must be integer; got {type_of(wanted)}"
        raise InputError(what, where=here(), fix="int(kth)")
    outside = [int(k) for k in wanted.ravel() if not -n <= k < n]
    if outside:
        what = f"kth(={outside[0]}) out of bounds ({n})"
        raise ArgumentError(what, where=here(), fix=f"kth from 0 to {n - 1}")


def partition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: Any = None
) -> Any:
    """Sorted: every element at its place, not the k-th alone, as `numpy.partition` allows."""
    check_kth(a, kth, axis, kind)
    return sort(a, axis, None, order)


def argpartition(
    a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: Any = None
) -> Any:
    """The indices that sort, as `numpy.argpartition` allows."""
    check_kth(a, kth, axis, kind)
    return argsort(a, axis, None, order)


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    """True for each element that is among the others, by comparing all pairs, as `numpy.isin`."""
    if kind not in (None, "sort", "table"):
        what = f"Invalid kind: {kind!r}. Please use None, 'sort' or 'table'."
        raise ArgumentError(what, where=here())
    x, others = array(element), ravel(test_elements)
    found = any_of(e.equal(reshape(x, (*type_of(x).shape, 1)), others), -1)
    return e.logical_not(found) if invert else found


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """The place of each `v` in the sorted `a`, as `numpy.searchsorted`."""
    if side not in ("left", "right"):
        raise ArgumentError(f"search side must be 'left' or 'right' (got {side!r})", where=here())
    line, values = array(a), lift(v)
    if type_of(line).ndim != 1:
        raise ShapeError(
            f"searchsorted takes a sorted array of one axis; got {type_of(line)}",
            where=here(),
            fix="a.ravel()",
        )
    if sorter is not None:
        if type_of(array(sorter)).shape != type_of(line).shape:
            what = f"sorter.size must equal a.size; got {type_of(array(sorter))}, {type_of(line)}"
            raise ArgumentError(what, where=here(), fix="sorter=np.argsort(a)")
        line = take(line, sorter)
    dtype = common_dtype((line, values))
    return SearchSorted(side)(cast(line, dtype), cast(values, dtype))


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The bin of each element, as `numpy.digitize`: the bins rise or fall, traced ones too.

    Raises ArgumentError for bins that do neither, where their elements are known; where they are
    traced, an IndexError when the program runs, on the CPU.
    """
    edges, side = array(bins), "left" if right else "right"
    if type_of(array(x)).dtype in COMPLEX:
        raise InputError(f"x may not be complex: {type_of(array(x))}", where=here(), fix="x.real")
    n = type_of(edges).size
    if n < 2:
        return searchsorted(edges, x, side)
    known = known_elements(edges)
    if known is not None:
        falls, rises = (known[1:] < known[:-1]).any(), (known[1:] > known[:-1]).any()
        if falls and rises:
            what = "bins must be monotonically increasing or decreasing"
            raise ArgumentError(what, where=here(), fix="np.sort(bins)")
        rising = not falls
        found = searchsorted(edges if rising else flip(edges), x, side)
        return found if rising else e.subtract(n, found)
    falling = e.greater(getitem(edges, 0), getitem(edges, -1))
    found = searchsorted(choose_by(falling, flip(edges), edges), x, side)
    after, before = getitem(edges, np.s_[1:]), getitem(edges, np.s_[:-1])
    failed = e.logical_and(any_of(e.less(after, before)), any_of(e.greater(after, before)))
    return checked_index(
        choose_by(failed, n + 1, choose_by(falling, e.subtract(n, found), found)), n + 1
    )


# ---------------------------------------------------------------------------------------- quantiles


def sorted_last(a: Any, axis: Axes) -> tuple[Any, tuple[int, ...]]:
    """Sorted along a last axis that holds the elements of all the given ones; and those."""
    x, axes = lines_of(array(a), axis)
    return Sort(type_of(x).ndim - 1)(x), axes


def lines_of(x: Any, axis: Axes) -> tuple[Any, tuple[int, ...]]:
    """The array with a last axis that holds the elements of all the given ones; and those."""
    shape = type_of(x).shape
    axes = all_axes(axis, len(shape), x)
    rest = tuple([i for i in range(len(shape)) if i not in axes])
    x = moveaxis(x, axes, tuple(range(len(rest), len(shape))))
    return reshape(x, (*(shape[i] for i in rest), math.prod(shape[i] for i in axes))), axes


def ends_in_nan(line: Any) -> Any:
    """True where a sorted line ends in NaN, without its axis."""
    last = type_of(line).ndim - 1
    end = part(line, last, type_of(line).shape[-1] - 1, type_of(line).shape[-1])
    return e.isnan(reshape(end, type_of(line).shape[:-1]))


def median(
    a: Any,
    axis: Axes = None,
    out: Any = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Any:
    """The middle element, or the mean of the two in the middle, as `numpy.median`."""
    no_out("median", out)
    line, axes = sorted_last(a, axis)
    n, last = type_of(line).shape[-1], type_of(line).ndim - 1
    y = mean(part(line, last, (n - 1) // 2, n // 2 + 1) if n else line, last)
    y = (
        choose_by(ends_in_nan(line), type_of(y).dtype.type(np.nan), y)
        if n and type_of(line).dtype in INEXACT
        else y
    )
    return reshape(y, with_ones(type_of(array(a)).shape, axes)) if keepdims else y


def quantile(
    a: Any, q: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """The q-quantile, as `numpy.quantile`.

    Weights that are traced and negative, which NumPy refuses, count as they are.
    """
    no_out("quantile", out)
    check_method(method, weights)
    check_fraction(a, q)
    line, axes = lines_of(array(a), axis) if weights is not None else sorted_last(a, axis)
    if not type_of(line).shape[-1]:
        what = f"a quantile of no elements: axes {axes} of {type_of(array(a))}"
        raise ShapeError(what, where=here(), fix="a test of x.size")
    if weights is None:
        y = between_elements(line, q, method)
    else:
        line, y = by_weights(
            line, lines_of(weights_like(array(a), array(weights), axis), axis)[0], q
        )
    if type_of(line).dtype in INEXACT:
        y = choose_by(
            broadcast(ends_in_nan(line), type_of(y).shape), type_of(y).dtype.type(np.nan), y
        )
    if not keepdims:
        return y
    return reshape(y, type_of(lift(q)).shape + with_ones(type_of(array(a)).shape, axes))


def check_method(method: str, weights: Any) -> None:
    """Refuses methods that NumPy does not have, with weights or without."""
    if method not in PLACES:
        what = f"{method!r} is no method of quantiles"
        raise ArgumentError(what, where=here(), fix=f"one of {', '.join(PLACES)}")
    if weights is not None and method != "inverted_cdf":
        what = f"weights are for quantiles with method='inverted_cdf'; got {method!r}"
        raise ArgumentError(what, where=here(), fix="method='inverted_cdf'")


def by_weights(line: Any, weights: Any, q: Any) -> tuple[Any, Any]:
    """The lines in order, and the first elements at which q of the weight is reached; axes of q
    come first.
    """
    known = known_elements(weights)
    if known is not None and (known < 0).any():
        raise ArgumentError("Weights must be non-negative.", where=here(), fix="np.abs(weights)")
    order, last = argsort(line, -1, stable=True), type_of(line).ndim - 1
    line = take_along_axis(line, order, -1)
    reached = cumsum(take_along_axis(weights, order, -1), -1, FLOAT64)
    reached = e.divide(reached, getitem(reached, np.s_[..., -1:]))
    reached = choose_by(e.equal(reached, 0), -1.0, reached)  # 0 is not reached by nothing
    shape, n = type_of(lift(q)).shape, type_of(line).shape[-1]
    parts = reshape(cast(array(q), FLOAT64), (math.prod(shape), *(1,) * (last + 1)))
    place = e.minimum(total(e.less(reached, parts), -1), n - 1)
    lead = type_of(line).shape[:-1]
    y = take_along_axis(line, moveaxis(place, 0, -1), -1)
    return line, reshape(moveaxis(y, -1, 0), (*shape, *lead))


def check_fraction(a: Any, q: Any) -> None:
    """Refuses quantiles that are known and not between 0 and 1, and elements without an order."""
    if type_of(array(a)).dtype in COMPLEX:
        raise InputError(
            "a must be an array of real numbers", where=here(), fix="np.abs(a), or a.real"
        )
    known = known_elements(array(q))
    if known is not None and not ((known >= 0) & (known <= 1)).all():
        what = "Quantiles must be in the range [0, 1], percentiles in the range [0, 100]"
        raise ArgumentError(what, where=here(), fix="np.clip")


def unbiased(alpha: float, beta: float) -> Callable[[Any, Any], Any]:
    """The place among n elements of the fraction q, by Hyndman and Fan (1996)."""
    slope, first = 1 - alpha - beta, alpha - 1
    return lambda n, q: e.add(e.add(e.multiply(q, n), e.multiply(q, slope)), first)


def whole(rounded: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda n, q: rounded(e.multiply(q, n - 1))


def inverted(n: Any, q: Any) -> Any:
    """The place before which q n elements are."""
    return e.subtract(e.multiply(q, n), 1)


def averaged(n: Any, q: Any) -> Any:
    """The next place, or between two where q n is whole."""
    place = inverted(n, q)
    low = e.floor(place)
    return choose_by(e.equal(place, low), e.add(low, 0.5), e.add(low, 1.0))


def closest(n: Any, q: Any) -> Any:
    """The closest place, which is an odd one, counted from 0, where two are as close."""
    place = e.subtract(inverted(n, q), 0.5)
    low = e.floor(place)
    stays = e.logical_and(e.equal(place, low), e.equal(e.remainder(low, 2), 1))
    return choose_by(stays, low, e.add(low, 1))


# Methods of quantiles: the place of the fraction q among n elements, which may be between two.
PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda n, q: e.multiply(q, n - 1),
    "lower": whole(e.floor),
    "higher": whole(e.ceil),
    "nearest": whole(e.rint),
    "midpoint": whole(lambda x: e.multiply(e.add(e.floor(x), e.ceil(x)), 0.5)),
    "inverted_cdf": lambda n, q: e.ceil(inverted(n, q)),
    "averaged_inverted_cdf": averaged,
    "closest_observation": closest,
    "interpolated_inverted_cdf": unbiased(0, 1),
    "hazen": unbiased(0.5, 0.5),
    "weibull": unbiased(0, 0),
    "median_unbiased": unbiased(1 / 3, 1 / 3),
    "normal_unbiased": unbiased(3 / 8, 3 / 8),
}
WHOLE = ("lower", "higher", "nearest", "inverted_cdf", "closest_observation")


def between_elements(line: Any, q: Any, method: str = "linear") -> Any:
    """Elements of a sorted last axis at the fraction q of its length.

    A traced q outside [0, 1], where NumPy has a ValueError, is an IndexError when the program runs,
    on the CPU, and NaN elsewhere. As in NumPy an integer q takes elements as they are, and a
    float's dtype takes part in that of the result unless it is a Python number.
    """
    n, last, own = type_of(line).shape[-1], type_of(line).ndim - 1, type_of(line).dtype
    q = lift(q)
    if type(q) is float and own in INEXACT:
        q = own.type(q)
    q = array(q)
    t = type_of(q)
    if t.dtype not in INEXACT:
        return first_axes(take(line, e.multiply(cast(q, INT64), n - 1), last), t.ndim)
    place = PLACES[method](n, q)
    if method != "linear":
        place = e.minimum(e.maximum(place, 0), n - 1)
    low = e.minimum(e.maximum(e.floor(place), 0), n - 1)
    inside = e.logical_and(e.greater_equal(q, 0), e.less_equal(q, 1))
    outside = e.logical_not(inside)
    index = choose_by(inside, cast(choose_by(inside, low, 0), INT64), n)
    if method in WHOLE:
        return first_axes(take(line, index, last), t.ndim)
    high = e.minimum(e.add(index, 1), n - 1)
    gamma = choose_by(outside, t.dtype.type(np.nan), e.subtract(place, low))
    a0, a1 = (first_axes(take(line, i, last), t.ndim) for i in (index, high))
    return lerp(a0, a1, reshape(gamma, t.shape + (1,) * last))


def first_axes(x: Any, n: int) -> Any:
    """The last n axes put first."""
    ndim = type_of(x).ndim
    return moveaxis(x, tuple(range(ndim - n, ndim)), tuple(range(n)))


def lerp(a: Any, b: Any, t: Any) -> Any:
    """From a to b, exact at both ends, as NumPy's."""
    apart = e.subtract(b, a)
    return choose_by(
        e.greater_equal(t, 0.5),
        e.subtract(b, e.multiply(apart, e.subtract(1, t))),
        e.add(a, e.multiply(apart, t)),
    )


def percentile(a: Any, q: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False,
               method: str = "linear", keepdims: bool = False, *, weights: Any = None) -> Any:  # fmt: skip
    """`quantile` with q from 0 to 100, as `numpy.percentile`."""
    q = q / 100 if type(q) in (bool, int, float) else e.true_divide(q, 100)
    return quantile(a, q, axis, out, overwrite_input, method, keepdims, weights=weights)


def periodic(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """The arguments of `interp` within one period, its points sorted and one added at each end."""
    if known_elements(array(period)) == 0:
        raise ArgumentError("period must be a non-zero value", where=here(), fix="period=2 * np.pi")
    period = e.absolute(period)
    x, xp = e.remainder(x, period), e.remainder(xp, period)
    order = argsort(xp)
    xp, fp = take(xp, order), take(fp, order)
    n = type_of(xp).size
    first, last = part(xp, 0, 0, 1), part(xp, 0, n - 1, n)
    xp = concatenate([e.subtract(last, period), xp, e.add(first, period)])
    return x, xp, concatenate([part(fp, 0, n - 1, n), fp, part(fp, 0, 0, 1)])


def on_segment(x: Any, x0: Any, x1: Any, y0: Any, y1: Any) -> Any:
    """The line from (x0, y0) to (x1, y1) at x: the ends' own values there, and from the other end
    or constant where an infinity would make it NaN, as NumPy has it. Complex values part by part.
    """
    if type_of(y0).dtype in COMPLEX:
        parts = [on_segment(x, x0, x1, f(y0), f(y1)) for f in (real, imag)]
        return COMPLEX_OF(*parts)
    wide = e.subtract(x1, x0)
    slope = e.divide(e.subtract(y1, y0), choose_by(e.equal(wide, 0), 1.0, wide))
    y = e.add(e.multiply(slope, e.subtract(x, x0)), y0)
    y = choose_by(e.isnan(y), e.add(e.multiply(slope, e.subtract(x, x1)), y1), y)
    y = choose_by(e.logical_and(e.isnan(y), e.equal(y0, y1)), y0, y)
    y = choose_by(e.equal(x, x0), y0, y)
    return choose_by(e.equal(x, x1), y1, y)


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Linear between the points (xp, fp), xp rising or, with `period`, in any
    order, as `numpy.interp`.
    """
    x, xp, fp = (array(v) for v in (x, xp, fp))
    x, xp = (cast(v, FLOAT64) for v in (x, xp))
    fp = cast(fp, common_dtype((fp, np.float64(0))))
    n = type_of(xp).size
    if type_of(xp).shape != type_of(fp).shape or type_of(xp).ndim != 1 or not n:
        raise ShapeError(
            f"interp takes points of one axis, not none; got {type_of(xp)}, {type_of(fp)}",
            where=here(),
        )
    if period is not None:
        x, xp, fp = periodic(x, xp, fp, period)
        n, left, right = n + 2, None, None
    at = e.minimum(e.maximum(searchsorted(xp, x, "right"), 1), max(n - 1, 1))
    low, high = e.subtract(at, 1), e.minimum(at, n - 1)
    ends = take(xp, low), take(xp, high), take(fp, low), take(fp, high)
    y = on_segment(x, *ends) if n > 1 else ends[2]
    below, above = (
        take(fp, i) if value is None else lift(value) for i, value in ((0, left), (n - 1, right))
    )
    y = choose_by(e.less(x, take(xp, 0)), below, y)
    y = choose_by(e.greater(x, take(xp, n - 1)), above, y)
    return choose_by(e.isnan(x), np.float64(np.nan), y) if n > 1 else y
