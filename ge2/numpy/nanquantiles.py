"""Medians and quantiles of the elements that are not NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import FLOAT64, INEXACT, INT64
from ge2.base.errors import ArgumentError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.composite import choose_by, known_elements, no_out
from ge2.numpy.plain import plainly
from ge2.numpy.promotion import Axes, array, cast, reshape
from ge2.numpy.reductions import moment_dtypes, with_ones
from ge2.numpy.reductions import sum as total
from ge2.numpy.selecting import take_along_axis
from ge2.numpy.shapes import moveaxis
from ge2.numpy.sorting import lerp, median, percentile, quantile, sorted_last


@plainly(np.nanmedian)
def nanmedian(
    a: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, keepdims: Any = False
) -> Any:
    """The median of the elements that are not NaN, as `numpy.nanmedian`; NaN where all are."""
    no_out("nanmedian", out)
    if type_of(array(a)).dtype not in INEXACT:
        return median(a, axis, keepdims=keepdims)
    return nanquantile(a, 0.5, axis, keepdims=keepdims)


@plainly(np.nanquantile)
def nanquantile(
    a: Any, q: Any, axis: Axes = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: Any = False, *, weights: Any = None,
) -> Any:  # fmt: skip
    """The q-quantile of the elements that are not NaN, as `numpy.nanquantile`;
    linear, without weights.
    """
    no_out("nanquantile", out)
    if method != "linear" or weights is not None:
        what = f"nanquantile: method={method!r} with weights={weights is not None} is not supported"
        raise ArgumentError(what, where=here(), fix="method='linear'")
    if type_of(array(a)).dtype not in INEXACT:
        return quantile(a, q, axis, keepdims=keepdims)
    line, axes = sorted_last(a, axis)
    work = moment_dtypes(type_of(line).dtype, None)[1]
    parts = type_of(line).dtype.type(q) if isinstance(q, int | float) else array(q)
    parts = parts if type_of(parts).dtype in INEXACT else cast(parts, FLOAT64)
    checked(parts)
    y = of_lines(cast(line, work), parts)
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


def of_lines(line: Any, parts: Any) -> Any:
    """The quantiles of lines that are sorted, NaN last; their axes come first."""
    lead, shape = type_of(line).shape[:-1], type_of(parts).shape
    count = total(e.logical_not(e.isnan(line)), -1)
    flat = reshape(parts, (type_of(parts).size,))
    place = e.multiply(flat, e.maximum(e.subtract(reshape(count, (*lead, 1)), 1), 0))
    low = e.floor(place)
    at = cast(low, INT64)
    after = e.minimum(e.add(at, 1), e.maximum(e.subtract(reshape(count, (*lead, 1)), 1), 0))
    below, above = (take_along_axis(line, i, -1) for i in (at, after))
    y = lerp(below, above, cast(e.subtract(place, low), type_of(flat).dtype))
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
    parts = q / 100 if isinstance(q, int | float) else e.true_divide(array(q), 100)
    return nanquantile(a, parts, axis, out, method=method, keepdims=keepdims, weights=weights)
