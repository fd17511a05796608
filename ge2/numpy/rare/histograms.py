"""Counting: how often each number occurs, and how many elements fall between edges."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT64, INEXACT, INT64, INTEGERS, UINT8
from ge2.base.errors import ArgumentError, ConcretizationTypeError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access import getitem
from ge2.numpy.access.selecting import take_along_axis
from ge2.numpy.axes import max as largest
from ge2.numpy.axes import mean, moment_dtypes, nanmean, weights_like, with_ones
from ge2.numpy.axes import min as smallest
from ge2.numpy.axes import sum as total
from ge2.numpy.axes.scans import diff
from ge2.numpy.axes.sorting import (
    PLACES,
    WHOLE,
    by_weights,
    check_method,
    lerp,
    lines_of,
    median,
    percentile,
    quantile,
    searchsorted,
    sorted_last,
)
from ge2.numpy.composite import choose_by, concatenate, known_elements, no_out
from ge2.numpy.creation import full, linspace, zeros
from ge2.numpy.promotion import Axes, array, cast, common_dtype, lift, plainly, reshape
from ge2.numpy.shapes import moveaxis, ravel
from ge2.ops.index import ScatterAdd

# ----------------------------------------------------------------------------------------- bincount


@plainly(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: Any = 0) -> Any:
    """The count of each number from 0 on, or the sum of their weights, as `numpy.bincount`.

    NumPy's result ends at the largest number. Of numbers that are traced the length is `minlength`,
    which must be given; a number outside, which is negative or would make NumPy's result longer, is
    an IndexError when the program runs (a GPU, which checks no index, counts it elsewhere). Numbers
    that are known, while `weights` are traced, give NumPy's length.

    ConcretizationTypeError without a `minlength`; TypeRuleError for numbers that are no integers.
    """
    index, least = numbered(x), operator.index(minlength)
    if least < 0:
        raise ArgumentError("'minlength' must not be negative", where=here(), fix="minlength=0")
    n = length(index, least)
    w = None if weights is None else weighing(index, weights)
    inside = index
    if type_of(index).dtype.kind == "i":  # -1 is no name of the last
        if type_of(array(x)).dtype.itemsize < 8 and n <= np.iinfo(np.int32).max:
            index = cast(index, np.dtype(np.int32))  # half the bytes
        inside = choose_by(e.less(index, 0), type_of(index).dtype.type(n), index)
    values = full(type_of(index).shape, 1, INT64) if w is None else w
    return ScatterAdd((0,))(zeros(n, type_of(values).dtype), values, inside)


def numbered(x: Any) -> Any:
    index = array(x)
    t = type_of(index)
    if t.ndim != 1:
        what = f"bincount takes one axis; got {t}"
        raise ShapeError(
            f"object of too small depth for desired array: {what}", where=here(), fix="x.ravel()"
        )
    if t.dtype not in INTEGERS | {BOOL}:
        what = f"Cannot cast array data from {t.dtype} to int64 according to the rule 'safe': {t}"
        raise TypeRuleError(what, where=here(), fix="x.astype(int)")
    small = t.dtype.kind in "bu" and t.dtype.itemsize < 8
    return cast(index, UINT8 if t.dtype == BOOL else t.dtype if small else INT64)


def length(index: Any, least: int) -> int:
    known = known_elements(index)
    if known is not None:
        if known.size and known.min() < 0:
            raise ArgumentError("'list' argument must have no negative elements", where=here())
        return max(least, int(known.max()) + 1) if known.size else least
    if not least:
        what = f"the length of bincount(x) depends on the values of x, which is traced {type_of(index)}"
        raise ConcretizationTypeError(
            what, where=here(), fix="np.bincount(x, minlength=n), every x below n"
        )
    return least


def weighing(index: Any, weights: Any) -> Any:
    w = array(weights)
    t = type_of(w)
    if t.shape != type_of(index).shape:
        what = f"The weights and list don't have the same length: {t}, {type_of(index)}"
        raise ShapeError(what, where=here())
    if t.dtype in COMPLEX:
        what = f"Cannot cast array data from {t.dtype} to float64 according to the rule 'safe': {t}"
        raise TypeRuleError(what, where=here(), fix="its .real and its .imag")
    return cast(w, FLOAT64)


# --------------------------------------------------------------------------------------- histograms


@plainly(np.histogram_bin_edges)
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of the bins that `histogram` counts in, as `numpy.histogram_bin_edges`."""
    return edges_of(prepared(a, weights)[0], bins, range)


@plainly(np.histogram)
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    """The count of elements in each bin, and the edges of the bins, as `numpy.histogram`.

    The number of bins must be known: an integer, or edges of a known number. `range`,
    or without it the smallest and the largest element, may be traced. A bin holds what
    is not below its first edge and below its second, the last one its second edge too.
    Bins that NumPy would choose ("auto") are an error.
    """
    x, w = prepared(a, weights)
    edges = edges_of(x, bins, range)
    n = type_of(edges).size - 1
    inside = e.logical_and(
        e.greater_equal(x, getitem(edges, 0)), e.less_equal(x, getitem(edges, -1))
    )
    place = e.minimum(e.subtract(searchsorted(edges, x, "right"), 1), n - 1)
    found = counted(n, e.maximum(place, 0), inside, w)
    if density:
        found = e.divide(e.divide(found, cast(diff(edges), FLOAT64)), total(found))
    return found, edges


def counted(n: int, place: Any, inside: Any, w: Any) -> Any:
    """The number, or the weights, of the elements at each place, those inside alone."""
    one = np.int64(1) if w is None else w
    values = choose_by(inside, one, type_of(one).dtype.type(0))
    wide = INT64 if w is None or type_of(w).dtype == BOOL else type_of(w).dtype
    found = ScatterAdd((0,))(zeros(n, wide), cast(values, wide), place)
    return found if w is None else cast(found, type_of(w).dtype)


def prepared(a: Any, weights: Any) -> tuple[Any, Any]:
    """The elements in a row, and their weights."""
    x = array(a)
    w = None if weights is None else array(weights)
    if w is not None and type_of(w).shape != type_of(x).shape:
        what = f"weights should have the same shape as a; got {type_of(w)}, {type_of(x)}"
        raise ShapeError(what, where=here(), fix="np.broadcast_to(weights, a.shape)")
    x = cast(x, np.dtype(np.uint8)) if type_of(x).dtype == BOOL else x
    if type_of(x).dtype in COMPLEX:
        raise TypeRuleError(
            f"a histogram of {type_of(x)}: complex numbers have no order",
            where=here(),
            fix="x.real",
        )
    return ravel(x), None if w is None else ravel(w)


def edges_of(x: Any, bins: Any, range: Any) -> Any:
    """The edges of equal bins, or the given ones."""
    if isinstance(bins, str):
        what = f"bins={bins!r} has as many bins as the elements say, which are traced"
        raise ConcretizationTypeError(what, where=here(), fix="bins=n of a number that is known")
    if type_of(array(bins)).ndim == 1:
        return rising(array(bins))
    if type_of(array(bins)).ndim:
        raise ShapeError("`bins` must be 1d, when an array", where=here())
    try:
        n = operator.index(bins)
    except TypeError:
        raise TypeRuleError(
            "`bins` must be an integer, a string, or an array", where=here()
        ) from None
    if n < 1:
        raise ArgumentError("`bins` must be positive, when an integer", where=here())
    first, last = ends(x, range)
    dtype = common_dtype((x, *map(lift, () if range is None else range)))
    return linspace(first, last, n + 1, dtype=dtype if dtype in INEXACT else FLOAT64)


def rising(edges: Any) -> Any:
    known = known_elements(edges)
    if known is not None and (known[:-1] > known[1:]).any():
        raise ArgumentError(
            "`bins` must increase monotonically, when an array", where=here(), fix="np.sort(bins)"
        )
    return edges


def ends(x: Any, range: Any) -> tuple[Any, Any]:
    """The first and the last edge; half a step to each side where they are equal."""
    if range is not None:
        first, last = (array(v) for v in range)
        known = [known_elements(v) for v in (first, last)]
        if all(v is not None for v in known) and not (
            np.isfinite(known).all() and known[0] <= known[1]
        ):
            what = "max must be larger than min in range parameter, and both finite"
            raise ArgumentError(f"{what}; got {range}", where=here())
    elif not type_of(x).size:
        first, last = np.float64(0), np.float64(1)
    else:
        first, last = smallest(x), largest(x)
    same = e.equal(first, last)
    return (choose_by(same, e.subtract(first, 0.5), first), choose_by(same, e.add(last, 0.5), last))


# ----------------------------------------------------------------------------- of several variables


@plainly(np.histogram2d)
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any, Any]:
    """The count of pairs in each cell, and the edges along both axes, as `numpy.histogram2d`."""
    x, y = array(x), array(y)
    if type_of(x).shape != type_of(y).shape:
        raise ShapeError(
            f"x and y must have the same length; got {type_of(x)}, {type_of(y)}", where=here()
        )
    one = not issubclass(type(bins), int | np.integer) and len(bins) not in (1, 2)
    found, edges = histogramdd([x, y], [array(bins)] * 2 if one else bins, range, density, weights)
    return found, edges[0], edges[1]


@plainly(np.histogramdd)
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, tuple[Any, ...]]:
    """The count of points in each cell, and the edges along each axis, as `numpy.histogramdd`.

    `sample` has a point a row, or is a list of the coordinates of all points.
    """
    lines = coordinates(sample)
    each = (
        per_axis("bins", bins, len(lines))
        if not issubclass(type(bins), int | np.integer)
        else [bins] * len(lines)
    )
    spans = [None] * len(lines) if range is None else per_axis("range", range, len(lines))
    edges = [edges_of(x, b, s) for x, b, s in zip(lines, each, spans, strict=True)]
    w = (
        None
        if weights is None
        else cast(array(weights), common_dtype((array(weights), np.float64(0))))
    )
    sizes = tuple([type_of(v).size - 1 for v in edges])
    place, inside = cell(lines, edges, sizes)
    found = cast(
        counted(math.prod(sizes), place, inside, w), FLOAT64 if w is None else type_of(w).dtype
    )
    found = reshape(found, sizes)
    if density:
        found = e.divide(found, total(found))
        for i, v in enumerate(edges):
            wide = reshape(diff(v), (*(1,) * i, sizes[i], *(1,) * (len(sizes) - i - 1)))
            found = e.divide(found, wide)
    return found, tuple(edges)


def coordinates(sample: Any) -> list[Any]:
    if isinstance(sample, list | tuple):
        return [array(x) for x in sample]
    x = array(sample)
    x = reshape(x, (type_of(x).size, 1)) if type_of(x).ndim == 1 else x
    if type_of(x).ndim != 2:
        raise ShapeError(f"histogramdd takes a point a row; got {type_of(x)}", where=here())
    columns = moveaxis(x, 1, 0)
    return [getitem(columns, i) for i in _count(type_of(columns).shape[0])]


_count = range


def per_axis(name: str, given: Sequence[Any], n: int) -> list[Any]:
    if len(given) != n:
        what = f"The dimension of {name} must be equal to the dimension of the sample, {n}; got {len(given)}"
        raise ArgumentError(what, where=here())
    return list(given)


def cell(lines: list[Any], edges: list[Any], sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The number of each point's cell, and where it is inside all edges."""
    place: Any = np.int64(0)
    inside: Any = np.bool_(True)
    for x, v, n in zip(lines, edges, sizes, strict=True):
        at = e.minimum(e.maximum(e.subtract(searchsorted(v, x, "right"), 1), 0), n - 1)
        place = e.add(e.multiply(place, n), at)
        within = e.logical_and(e.greater_equal(x, getitem(v, 0)), e.less_equal(x, getitem(v, -1)))
        inside = e.logical_and(inside, within)
    return place, inside


# ------------------------------------------------------------------------------------ nanquantiles
# Medians and quantiles of the elements that are not NaN.


@plainly(np.nanmedian)
def nanmedian(
    a: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False
) -> Any:
    """The median of the elements that are not NaN, as `numpy.nanmedian`; NaN where all are."""
    no_out("nanmedian", out)
    if not type_of(array(a)).size:
        return nanmean(a, axis, keepdims=keepdims)
    if type_of(array(a)).dtype not in INEXACT:
        return median(a, axis, keepdims=keepdims)
    line, axes = sorted_last(a, axis)  # NaN last
    count = total(e.logical_not(e.isnan(line)), -1, keepdims=True)
    low, high = e.floor_divide(e.maximum(e.subtract(count, 1), 0), 2), e.floor_divide(count, 2)
    below, above = (take_along_axis(line, i, -1) for i in (low, high))
    middle = e.equal(low, high)  # one element, of which no mean is taken: it may be infinite
    y = mean(concatenate((below, choose_by(middle, below, above)), -1), -1)
    y = choose_by(middle[..., 0], below[..., 0], y)
    return reshape(y, with_ones(type_of(array(a)).shape, axes)) if keepdims else y


@plainly(np.nanquantile)
def nanquantile(
    a: Any, q: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: Any = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """The q-quantile of the elements that are not NaN, as `numpy.nanquantile`."""
    no_out("nanquantile", out)
    x = array(a)
    if not type_of(x).size:
        return nanmean(x, axis, keepdims=keepdims)
    if type_of(x).dtype not in INEXACT:
        return quantile(x, q, axis, method=method, keepdims=keepdims, weights=weights)
    check_method(method, weights)
    dtype = type_of(x).dtype
    parts = dtype.type(q) if issubclass(type(q), int | float) else array(q)
    parts = (
        parts
        if type_of(parts).dtype in INEXACT
        else cast(parts, dtype if method == "linear" else FLOAT64)
    )
    checked(parts)
    if weights is None:
        line, axes = sorted_last(x, axis)
        y = of_lines(cast(line, moment_dtypes(dtype, None)[1]), parts, method)
    else:
        line, axes = lines_of(x, axis)
        w = lines_of(weights_like(x, array(weights), axis), axis)[0]
        y = by_weights(line, choose_by(e.isnan(line), type_of(w).dtype.type(0), w), parts)[1]
    return (
        reshape(y, type_of(parts).shape + with_ones(type_of(array(a)).shape, axes))
        if keepdims
        else y
    )


def checked(parts: Any) -> None:
    known = known_elements(parts)
    if known is not None and not ((known >= 0) & (known <= 1)).all():
        raise ArgumentError(
            "Quantiles must be in the range [0, 1]", where=here(), fix="np.nanpercentile"
        )


def of_lines(line: Any, parts: Any, method: str) -> Any:
    """The quantiles of lines that are sorted, NaN last; their axes come first."""
    lead, shape = type_of(line).shape[:-1], type_of(parts).shape
    count = total(e.logical_not(e.isnan(line)), -1)
    flat = reshape(parts, (type_of(parts).size,))
    number = reshape(count, (*lead, 1))
    last = e.maximum(e.subtract(number, 1), 0)
    place = e.minimum(e.maximum(PLACES[method](number, flat), 0), last)
    low = e.floor(place)
    at = cast(low, INT64)
    after = e.minimum(e.add(at, 1), last)
    below, above = (take_along_axis(line, i, -1) for i in (at, after))
    between = e.subtract(place, low)
    y = below if method in WHOLE else lerp(below, above, cast(between, type_of(flat).dtype))
    y = choose_by(reshape(e.equal(count, 0), (*lead, 1)), type_of(y).dtype.type(np.nan), y)
    return reshape(moveaxis(y, -1, 0), (*shape, *lead))


@plainly(np.nanpercentile)
def nanpercentile(
    a: Any, q: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: Any = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """`nanquantile` with q from 0 to 100, as `numpy.nanpercentile`."""
    if type_of(array(a)).dtype not in INEXACT:
        return percentile(a, q, axis, out, method=method, keepdims=keepdims, weights=weights)
    parts = q / 100 if issubclass(type(q), int | float) else e.true_divide(array(q), 100)
    return nanquantile(a, parts, axis, out, method=method, keepdims=keepdims, weights=weights)
