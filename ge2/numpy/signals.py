"""Convolution, slopes, polynomials, covariance."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT64, INEXACT
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.composite import clip, real
from ge2.numpy.creation import zeros
from ge2.numpy.joining import concatenate
from ge2.numpy.padding import pad
from ge2.numpy.products import in_one_dtype, matmul
from ge2.numpy.promotion import Axes, all_axes, array, as_dtype, broadcast, cast, common_dtype, reshape
from ge2.numpy.reductions import mean
from ge2.numpy.selecting import take
from ge2.numpy.shapes import diagonal, flip, part, transpose


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The convolution of two rows of numbers, as `numpy.convolve`; memory grows with both sizes."""
    a, v = in_one_dtype(None, a, v)
    a, v = (reshape(x, (1,)) if not type_of(x).ndim else x for x in (a, v))
    if type_of(a).ndim != 1 or type_of(v).ndim != 1 or not type_of(a).size or not type_of(v).size:
        raise ShapeError(
            f"convolve takes two arrays of one axis, not empty; got {type_of(a)}, {type_of(v)}", where=here()
        )
    if type_of(v).size > type_of(a).size:
        a, v = v, a
    n, m = type_of(a).size, type_of(v).size
    windows = take(pad(a, m - 1), np.arange(n + m - 1)[:, None] + np.arange(m))
    return _trimmed(matmul(windows, flip(v)), n, m, mode)


def _trimmed(y: Any, n: int, m: int, mode: str) -> Any:
    """The part of a full convolution of n and m numbers that a mode names."""
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"mode is 'full', 'same' or 'valid'; got {mode!r}", where=here())
    if mode == "full":
        return y
    start, length = ((m - 1) // 2, n) if mode == "same" else (m - 1, n - m + 1)
    return part(y, 0, start, start + length)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The correlation of two rows of numbers, as `numpy.correlate`."""
    a, v = array(a), array(v)
    v = e.conjugate(v) if type_of(v).dtype in COMPLEX else v
    if type_of(v).size <= type_of(a).size:
        return convolve(a, flip(v), mode)
    return flip(convolve(flip(a), v, mode))


def gradient(f: Any, *varargs: Any, axis: Axes = None, edge_order: int = 1) -> Any:
    """Slopes by central differences, as `numpy.gradient`; distances are numbers or places."""
    x = array(f)
    axes = all_axes(axis, type_of(x).ndim, x)
    if len(varargs) not in (0, 1, len(axes)) or edge_order not in (1, 2):
        raise ArgumentError(
            f"gradient: {len(varargs)} distances for {len(axes)} axes, edge_order {edge_order}", where=here()
        )
    given = varargs if len(varargs) == len(axes) else (varargs or (1.0,)) * len(axes)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in INEXACT else FLOAT64)
    slopes = tuple([_slope(x, axis, h, edge_order) for axis, h in zip(axes, given, strict=True)])
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(x: Any, axis: int, h: Any, order: int) -> Any:
    n, ndim = type_of(x).shape[axis], type_of(x).ndim
    if n < order + 1:
        what = f"Shape of array too small to calculate a numerical gradient: {type_of(x)} along axis {axis}"
        raise ShapeError(what, where=here(), fix=f"at least {order + 1} elements")
    places = array(h)
    if type_of(places).ndim:
        steps = e.subtract(part(places, 0, 1, n), part(places, 0, 0, n - 1))
        steps = reshape(steps, tuple([n - 1 if i == axis else 1 for i in range(ndim)]))
    else:
        steps = broadcast(places, tuple([n - 1 if i == axis else 1 for i in range(ndim)]))
    rises = e.divide(e.subtract(part(x, axis, 1, n), part(x, axis, 0, n - 1)), steps)
    first, last = part(rises, axis, 0, 1), part(rises, axis, n - 2, n - 1)
    if n > 2:
        before, after = part(steps, axis, 0, n - 2), part(steps, axis, 1, n - 1)
        left, right = part(rises, axis, 0, n - 2), part(rises, axis, 1, n - 1)
        inner = e.divide(e.add(e.multiply(after, left), e.multiply(before, right)), e.add(before, after))
        if order == 2:  # the line through the two nearest slopes, extended to the edge
            first = e.add(first, e.subtract(first, part(inner, axis, 0, 1)))
            last = e.add(last, e.subtract(last, part(inner, axis, n - 3, n - 2)))
        rises = concatenate([first, inner, last], axis)
    else:
        rises = concatenate([first, last], axis)
    return cast(rises, type_of(x).dtype)


def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its highest power first, by Horner's rule, as `numpy.polyval`."""
    p, x = array(p), array(x)
    y = zeros(type_of(x).shape, type_of(x).dtype)
    for i in range(type_of(p).shape[0]):
        y = e.add(e.multiply(y, x), take(p, i))
    return y


def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None,
        fweights: Any = None, aweights: Any = None, *, dtype: Any = None) -> Any:  # fmt: skip
    """The covariance of variables, a row each, as `numpy.cov`; without weights."""
    if fweights is not None or aweights is not None:
        raise ArgumentError(
            "cov: weights are not supported", where=here(), fix="np.average, and products by hand"
        )
    x = _variables(m, rowvar)
    x = x if y is None else concatenate([x, _variables(y, rowvar)], 0)
    x = cast(x, as_dtype(dtype) if dtype is not None else common_dtype((x, np.float64(0))))
    apart = e.subtract(x, mean(x, 1, keepdims=True))
    other = e.conjugate(apart) if type_of(apart).dtype in COMPLEX else apart
    count = type_of(x).shape[1] - (ddof if ddof is not None else 0 if bias else 1)
    c = e.divide(matmul(apart, transpose(other)), float(max(count, 0)))
    return reshape(c, tuple([n for n in type_of(c).shape if n != 1]))


def _variables(m: Any, rowvar: bool) -> Any:
    x = array(m)
    if type_of(x).ndim > 2:
        raise ShapeError(f"m has more than 2 dimensions: {type_of(x)}", where=here())
    x = reshape(x, (1, type_of(x).size)) if type_of(x).ndim < 2 else x
    return x if rowvar or type_of(array(m)).ndim < 2 else transpose(x)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """The correlation coefficients of variables, a row each, as `numpy.corrcoef`."""
    c = cov(x, y, rowvar, dtype=dtype)
    if not type_of(c).ndim:
        return e.divide(c, c)
    scale = e.sqrt(real(diagonal(c)))
    c = e.divide(e.divide(c, reshape(scale, (type_of(scale).size, 1))), scale)
    return c if type_of(c).dtype in COMPLEX else clip(c, -1, 1)
