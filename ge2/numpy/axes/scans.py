"""Running sums and extremes, differences, convolution, polynomials, covariance."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT64, INEXACT, INT64, INTEGERS, UINT8
from ge2.base.errors import ArgumentError, InputError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access import checked_index, getitem
from ge2.numpy.access.selecting import take
from ge2.numpy.axes import UNSET, all, average, finish, mean, wide
from ge2.numpy.axes import sum as total
from ge2.numpy.composite import choose_by, clip, concatenate, no_out, real
from ge2.numpy.creation import iota, zeros
from ge2.numpy.products import in_one_dtype, matmul
from ge2.numpy.promotion import (
    Axes,
    array,
    as_dtype,
    broadcast,
    cast,
    check_casting,
    common_dtype,
    lift,
    one_axis,
    reshape,
)
from ge2.numpy.shapes import diagonal, flip, part, ravel, transpose
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ArgMax, ArgMin, CumMax, CumMin, CumProd, CumSum

# -------- Running sums, products and extremes, differences and the trapezoidal rule.


Function = Callable[..., Any]


def running(name: str, op: Function, of_bits: Function, what: str) -> Function:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        no_out(name, out)
        x = array(a)
        t = type_of(x)
        x = cast(x, as_dtype(dtype) if dtype is not None else wide(t.dtype))
        x = ravel(x) if axis is None or not t.ndim else x
        at = 0 if axis is None else one_axis(axis, type_of(x).ndim, x)
        if type_of(x).dtype == BOOL:  # asked for: whether any was true so far, or all were
            return cast(of_bits(at)(cast(x, UINT8)), BOOL)
        return op(at)(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {what} so far along an axis, or over the flattened array, as `numpy.{name}`.

    Integers widen to 64 bits; half types are accumulated in float32 and keep their dtype.
    """
    return function


cumsum = running("cumsum", CumSum, CumMax, "sum")
cumprod = running("cumprod", CumProd, CumMin, "product")


def cummax(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """The largest so far along an axis, or over the flattened array;
    `numpy.maximum.accumulate` in NumPy.
    """
    return _extreme(CumMax, a, axis, dtype)


def cummin(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """The smallest so far along an axis, or over the flattened array;
    `numpy.minimum.accumulate` in NumPy.
    """
    return _extreme(CumMin, a, axis, dtype)


def _extreme(op: Function, a: Any, axis: int | None, dtype: Any) -> Any:
    x = array(a)
    x = cast(x, type_of(x).dtype if dtype is None else as_dtype(dtype))
    x = ravel(x) if axis is None else x
    return op(0 if axis is None else one_axis(axis, type_of(x).ndim, x))(x)


def cumulative(name: str, f: Function, unit: int) -> Function:
    def function(
        x: Any,
        /,
        *,
        axis: int | None = None,
        dtype: Any = None,
        out: Any = None,
        include_initial: bool = False,
    ) -> Any:
        x = array(x)
        ndim = type_of(x).ndim
        if axis is None and ndim > 1:
            what = f"For arrays which have more than one dimension ``axis`` argument is required: {type_of(x)}"
            raise ShapeError(what, where=here(), fix="axis=0")
        axis = one_axis(0 if axis is None else axis, ndim or 1, x)
        y = f(x, axis, dtype, out)
        if not include_initial:
            return y
        shape = tuple([1 if i == axis else n for i, n in enumerate(type_of(y).shape)])
        return concatenate([broadcast(type_of(y).dtype.type(unit), shape), y], axis)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`{f.__name__}` with the array API's name and arguments, as `numpy.{name}`."
    return function


cumulative_sum = cumulative("cumulative_sum", cumsum, 0)
cumulative_prod = cumulative("cumulative_prod", cumprod, 1)


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """`cumsum` with NaN counted as 0, as `numpy.nancumsum`."""
    return cumsum(_without_nan(a, 0), axis, dtype, out)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """`cumprod` with NaN counted as 1, as `numpy.nancumprod`."""
    return cumprod(_without_nan(a, 1), axis, dtype, out)


def _without_nan(a: Any, unit: int) -> Any:
    x = array(a)
    dtype = type_of(x).dtype
    return choose_by(ops.IS_NAN(x), dtype.type(unit), x) if dtype in INEXACT else x


# -------------------------------------------------------------------------------------- differences


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = UNSET, append: Any = UNSET) -> Any:
    """Each element less the one before it, n times over, as `numpy.diff`.

    >>> diff([1, 4, 9])
    array([3, 5])
    """
    x = array(a)
    n = operator.index(n)
    if n < 0:
        raise ArgumentError(f"order must be non-negative but got {n}", where=here())
    if n == 0:
        return x
    axis = one_axis(axis, type_of(x).ndim, x)
    ends = [_end(v, x, axis) for v in (prepend, append)]
    parts = [
        *([ends[0]] if ends[0] is not None else []),
        x,
        *([ends[1]] if ends[1] is not None else []),
    ]
    x = concatenate(parts, axis) if len(parts) > 1 else x
    minus = e.not_equal if type_of(x).dtype == BOOL else e.subtract
    for _ in range(n):
        size = type_of(x).shape[axis]
        low = min(1, size)
        x = minus(part(x, axis, low, size), part(x, axis, 0, size - low))
    return x


def _end(v: Any, x: Any, axis: int) -> Any:
    """The end that goes before or after, with a number repeated along the other axes."""
    if v is UNSET:
        return None
    v = array(v)
    shape = type_of(x).shape
    return v if type_of(v).ndim else broadcast(v, (*shape[:axis], 1, *shape[axis + 1 :]))


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of the flattened array, between what is given, as `numpy.ediff1d`."""
    if type_of(array(ary)).dtype == BOOL:
        what = f"ediff1d of {type_of(array(ary))}: bools have no difference"
        raise TypeRuleError(what, where=here(), fix="x[1:] ^ x[:-1]")
    y = diff(ravel(ary))
    parts = [y]
    for name, given in (("to_begin", to_begin), ("to_end", to_end)):
        if given is not None:
            end, dtype = array(given), type_of(y).dtype
            check_casting(end, dtype, "same_kind")
            parts.insert(0 if name == "to_begin" else len(parts), ravel(cast(end, dtype)))
    return concatenate(parts) if len(parts) > 1 else y


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral by the trapezoidal rule, as `numpy.trapezoid`."""
    y = array(y)
    ndim = type_of(y).ndim
    axis = one_axis(axis, ndim, y)
    if x is None:
        d = dx
    else:
        x = array(x)
        d = diff(x, axis=-1 if type_of(x).ndim == 1 else axis)
        if type_of(x).ndim == 1:
            d = reshape(d, tuple([type_of(d).size if i == axis else 1 for i in range(ndim)]))
    size = type_of(y).shape[axis]
    low = min(1, size)
    pairs = e.add(part(y, axis, low, size), part(y, axis, 0, size - low))
    return total(e.divide(e.multiply(d, pairs), 2.0), axis)


def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 6.283185307179586) -> Any:
    """Jumps of more than half a period taken out, as `numpy.unwrap`."""
    x = array(p)
    axis = one_axis(axis, type_of(x).ndim, x)
    step = diff(x, axis=axis)
    dtype = type_of(e.multiply(step, period)).dtype
    half, ambiguous = period / 2, True  # half a period up is half a period down
    if dtype in INTEGERS:
        half, ambiguous = period // 2, period % 2 == 0
    turned = e.subtract(e.mod(e.add(step, half), period), half)
    if ambiguous:
        turned = choose_by(e.logical_and(e.equal(turned, -half), e.greater(step, 0)), half, turned)
    correction = e.subtract(turned, step)
    stays = e.less(e.absolute(step), period / 2 if discont is None else discont)
    correction = choose_by(stays, 0, correction)
    first = part(x, axis, 0, min(1, type_of(x).shape[axis]))
    rest = part(x, axis, min(1, type_of(x).shape[axis]), type_of(x).shape[axis])
    return concatenate([cast(first, dtype), e.add(rest, cumsum(correction, axis))], axis)


# ---------------------------------------------------------------------------------------- extremes
# The indices of the extremes of an array.


def truth(keepdims: Any) -> bool:
    """NumPy takes any value here."""
    return keepdims is not UNSET and bool(keepdims)


def arg_extreme(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    def function(a: Any, axis: int | None = None, out: Any = None, *, keepdims: Any = False) -> Any:
        no_out(name, out)
        x = array(a)
        shape = type_of(x).shape
        axis = None if not shape and axis in (0, -1) else axis
        axes = tuple(range(len(shape))) if axis is None else (one_axis(axis, len(shape), x),)
        x = reshape(x, (math.prod(shape),)) if axis is None else x
        at = 0 if axis is None else axes[0]
        if type_of(x).shape[at] == 0:
            raise ShapeError(
                f"attempt to get {name} of an empty sequence: {type_of(x)}",
                where=here(),
                fix="a test of x.size",
            )
        return finish(op(at)(x), shape, axes, truth(keepdims))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The index of the first {name[3:]}imum along an axis, or of the flattened array.

    A NaN is an extreme, as in `numpy.{name}`.
    """
    return function


argmax, argmin = arg_extreme("argmax", ArgMax), arg_extreme("argmin", ArgMin)


def indices_unless(failed: Any, found: Any, n: int) -> Any:
    """The indices, below n; an error where `failed` holds, at once if that is
    known, else when it runs.
    """
    if not is_traced(failed):
        if np.any(failed):
            raise ArgumentError(
                "All-NaN slice encountered", where=here(), fix="np.isnan(x).all(axis)"
            )
        return found
    return checked_index(choose_by(failed, n, found), n)


def nan_index(function: Callable[..., Any], name: str, unit: float) -> Callable[..., Any]:
    def nan_function(
        a: Any, axis: int | None = None, out: Any = None, *, keepdims: Any = False
    ) -> Any:
        x = array(a)
        if type_of(x).dtype in INEXACT:
            nan = ops.IS_NAN(x)
            empty = all(nan, axis, keepdims=truth(keepdims))
            x = choose_by(nan, type_of(x).dtype.type(unit), x)
            found = function(x, axis, out, keepdims=keepdims)
            n = (
                type_of(x).size
                if axis is None
                else type_of(x).shape[one_axis(axis, type_of(x).ndim)]
            )
            return indices_unless(empty, found, n)
        return function(x, axis, out, keepdims=keepdims)

    nan_function.__name__ = nan_function.__qualname__ = name
    nan_function.__doc__ = f"""`{function.__name__}` of the elements that are not NaN.

    Where all are NaN it is an error, of traced arrays when the program runs: an IndexError (on a GPU, 0).
    """
    return nan_function


nanargmax, nanargmin = (
    nan_index(argmax, "nanargmax", -np.inf),
    nan_index(argmin, "nanargmin", np.inf),
)


# -------- Convolution, slopes, polynomials, covariance.


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The convolution of two rows of numbers, as `numpy.convolve`.

    Its work is the product of the sizes; the memory of it is at most a 32nd of that.
    """
    a, v = in_one_dtype(None, a, v)
    a, v = (reshape(x, (1,)) if not type_of(x).ndim else x for x in (a, v))
    if type_of(a).ndim != 1 or type_of(v).ndim != 1 or not type_of(a).size or not type_of(v).size:
        raise ShapeError(
            f"convolve takes two arrays of one axis, not empty; got {type_of(a)}, {type_of(v)}",
            where=here(),
        )
    if type_of(v).size > type_of(a).size:
        a, v = v, a
    n, m = type_of(a).size, type_of(v).size
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"mode is 'full', 'same' or 'valid'; got {mode!r}", where=here())
    start, length = {
        "full": (0, n + m - 1),
        "same": ((m - 1) // 2, n),
        "valid": (m - 1, n - m + 1),
    }[mode]
    stop, v = start + length, flip(v)
    parts = (
        _by_index(a, v, start, min(stop, m - 1)),
        _by_slices(a, v) if m <= TAPS else _by_blocks(a, v),
        _by_index(a, v, max(start, n), stop),
    )
    found = [y for y in parts if type_of(y).size]
    return found[0] if len(found) == 1 else concatenate(found)


# taps of a filter that are one sum of slices, one loop over memory; of more, a sum of blocks of taps
# is quicker to compile
TAPS = 128
BLOCK = 32


def _by_slices(a: Any, v: Any) -> Any:
    """The sums of windows of `a` that are inside, each times `v`: slices of `a`, times one number."""
    n, m = type_of(a).size, type_of(v).size
    terms = [e.multiply(part(a, 0, k, n - m + 1 + k), getitem(v, k)) for k in range(m)]
    return reduce(e.add, terms)


def _by_blocks(a: Any, v: Any) -> Any:
    """As `_by_slices`: a row for each block of taps, whose windows are slices of all rows at once."""
    n, m = type_of(a).size, type_of(v).size
    blocks, length = m // BLOCK, n - m + 1
    shape = (blocks, length + BLOCK - 1)
    rows = take(a, e.add(e.multiply(iota(shape, 0, INT64), BLOCK), iota(shape, 1, INT64)))
    taps = reshape(part(v, 0, 0, blocks * BLOCK), (blocks, BLOCK))
    terms = [
        e.multiply(part(rows, 1, k, length + k), part(taps, 1, k, k + 1)) for k in range(BLOCK)
    ]
    found = total(reduce(e.add, terms), 0, type_of(a).dtype)
    rest = [e.multiply(part(a, 0, k, length + k), getitem(v, k)) for k in range(blocks * BLOCK, m)]
    return reduce(e.add, rest, found)


def _by_index(a: Any, v: Any, start: int, stop: int) -> Any:
    """Elements of a full convolution from a place on to another: a table of windows, summed."""
    n, m = type_of(a).size, type_of(v).size
    shape = (max(stop - start, 0), m)
    at = e.subtract(e.add(iota(shape, 0, INT64), iota(shape, 1, INT64)), m - 1 - start)
    inside = e.logical_and(e.greater_equal(at, 0), e.less(at, n))
    terms = e.multiply(take(a, clip(at, 0, n - 1)), v)
    # outside; an infinity times a padding of zeros would be NaN
    zero = type_of(terms).dtype.type(0)
    return total(choose_by(inside, terms, zero), 1, type_of(a).dtype)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The correlation of two rows of numbers, as `numpy.correlate`."""
    a, v = array(a), array(v)
    v = e.conjugate(v) if type_of(v).dtype in COMPLEX else v
    if type_of(v).size <= type_of(a).size:
        return convolve(a, flip(v), mode)
    return flip(convolve(flip(a), v, mode))


def gradient(f: Any, *varargs: Any, axis: Axes = None, edge_order: int = 1) -> Any:
    """Slopes by central differences, as `numpy.gradient`; distances are numbers or coordinates.

    The results are in the order of `axis`. Coordinates that are known to be evenly spaced count as
    one distance, as in NumPy; traced ones take the formula of uneven spacing.
    """
    x = array(f)
    ndim = type_of(x).ndim
    axes = [one_axis(a, ndim, x) for a in (range(ndim) if axis is None else _listed(axis))]
    if len(set(axes)) < len(axes):
        raise ShapeError(f"repeated axis in {axis}", where=here(), fix="each axis once")
    if len(varargs) not in (0, len(axes)) and (
        len(varargs) != 1 or type_of(array(varargs[0])).ndim
    ):
        what = f"gradient: {len(varargs)} distances for {len(axes)} axes"
        raise InputError(what, where=here(), fix="one number, or one for each axis")
    if edge_order not in (1, 2):
        raise ArgumentError("'edge_order' greater than 2 not supported", where=here(), fix="1 or 2")
    if type_of(x).dtype == BOOL:
        raise TypeRuleError(
            f"gradient of {type_of(x)}: bools have no difference", fix="f.astype(float)"
        )
    given = varargs if len(varargs) == len(axes) else (varargs or (1.0,)) * len(axes)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in INEXACT else FLOAT64)
    slopes = tuple([_slope(x, axis, h, edge_order) for axis, h in zip(axes, given, strict=True)])
    return slopes[0] if len(slopes) == 1 else slopes


def _listed(axis: Axes) -> Sequence[int]:
    return axis if isinstance(axis, tuple | list) else (axis,)


def _slope(x: Any, axis: int, h: Any, order: int) -> Any:
    n = type_of(x).shape[axis]
    if n < order + 1:
        what = f"Shape of array too small to calculate a numerical gradient: {type_of(x)} along axis {axis}"
        raise ShapeError(what, where=here(), fix=f"at least {order + 1} elements")

    def at(start: int, stop: int) -> Any:
        return part(x, axis, start % (n + 1), stop % (n + 1))

    distance = _distance(h, x, axis)
    first, inner, last = _rows(at, distance, axis, order)
    return cast(concatenate([first, *([inner] if n > 2 else []), last], axis), type_of(x).dtype)


def _rows(
    at: Callable[[int, int], Any], distance: Any, axis: int, order: int
) -> tuple[Any, Any, Any]:
    if not type_of(distance).ndim:
        return _even(at, distance, order)
    uneven = _uneven(at, distance, axis, order)
    if not is_traced(distance):
        return uneven
    one = reshape(part(distance, axis, 0, 1), ())  # NumPy looks whether all distances are this one
    same = all(e.equal(distance, one))
    even = _even(at, one, order)
    first, inner, last = (choose_by(same, a, b) for a, b in zip(even, uneven, strict=True))
    return first, inner, last


def _distance(h: Any, x: Any, axis: int) -> Any:
    """The distance between neighbours: a number, or one for each pair along the axis."""
    if not type_of(lift(h)).ndim:
        return lift(h)
    places, n = array(h), type_of(x).shape[axis]
    if type_of(places).shape != (n,):
        what = (
            f"distances of {type_of(places)} must match the length of axis {axis} of {type_of(x)}"
        )
        raise ShapeError(what, where=here(), fix=f"a number, or {n} coordinates")
    places = places if type_of(places).dtype in INEXACT else cast(places, FLOAT64)
    steps = e.subtract(part(places, 0, 1, n), part(places, 0, 0, n - 1))
    if not is_traced(steps) and (steps == steps[0]).all():
        return steps[0]
    return reshape(steps, tuple([n - 1 if i == axis else 1 for i in range(type_of(x).ndim)]))


def _even(at: Callable[[int, int], Any], h: Any, order: int) -> tuple[Any, Any, Any]:
    """The first slope, those inside, and the last, for one distance."""
    inner = e.divide(e.subtract(at(2, -1), at(0, -3)), e.multiply(2.0, h))
    if order == 1:
        return (
            e.divide(e.subtract(at(1, 2), at(0, 1)), h),
            inner,
            e.divide(e.subtract(at(-2, -1), at(-3, -2)), h),
        )
    a, b, c = (e.divide(k, h) for k in (1.5, 2.0, 0.5))
    first = _weighted((e.negative(a), b, e.negative(c)), (at(0, 1), at(1, 2), at(2, 3)))
    last = _weighted((c, e.negative(b), a), (at(-4, -3), at(-3, -2), at(-2, -1)))
    return first, inner, last


def _uneven(at: Callable[[int, int], Any], h: Any, axis: int, order: int) -> tuple[Any, Any, Any]:
    """The same for one distance between each two neighbours:
    derivatives of the parabola through three.
    """
    n = type_of(h).shape[axis]

    def step(start: int, stop: int) -> Any:
        return part(h, axis, start, stop)

    before, after = step(0, n - 1), step(1, n)
    both = e.add(before, after)
    weights = (
        e.negative(e.divide(after, e.multiply(before, both))),
        e.divide(e.subtract(after, before), e.multiply(before, after)),
        e.divide(before, e.multiply(after, both)),
    )
    inner = _weighted(weights, (at(0, -3), at(1, -2), at(2, -1)))
    if order == 1:
        first = e.divide(e.subtract(at(1, 2), at(0, 1)), step(0, 1))
        return first, inner, e.divide(e.subtract(at(-2, -1), at(-3, -2)), step(n - 1, n))
    edge = _edge(step(0, 1), step(1, 2))
    first = _weighted(edge, (at(0, 1), at(1, 2), at(2, 3)))
    c, b, a = _edge(step(n - 1, n), step(n - 2, n - 1))
    minus = (e.negative(a), e.negative(b), e.negative(c))
    return first, inner, _weighted(minus, (at(-4, -3), at(-3, -2), at(-2, -1)))


def _edge(near: Any, far: Any) -> tuple[Any, Any, Any]:
    """The weights of an edge's slope, of its own element first; distances from the edge inwards."""
    both = e.add(near, far)
    return (
        e.negative(e.divide(e.add(both, near), e.multiply(near, both))),
        e.divide(both, e.multiply(near, far)),
        e.negative(e.divide(near, e.multiply(far, both))),
    )


def _weighted(weights: Sequence[Any], xs: Sequence[Any]) -> Any:
    a, b, c = (e.multiply(w, x) for w, x in zip(weights, xs, strict=True))
    return e.add(e.add(a, b), c)


def polyval(p: Any, x: Any) -> Any:
    """A polynomial, its highest power first, by Horner's rule, as `numpy.polyval`.

    Further axes of `p` are those of coefficients, which broadcast with `x`.
    """
    p, x = array(p), array(x)
    y = zeros(type_of(x).shape, type_of(x).dtype)
    for i in range(type_of(p).shape[0]):
        y = e.add(e.multiply(y, x), getitem(p, i))
    return y


def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None,
        fweights: Any = None, aweights: Any = None, *, dtype: Any = None) -> Any:  # fmt: skip
    """The covariance of variables, a row each, as `numpy.cov`."""
    if ddof is not None and ddof != int(ddof):
        raise ArgumentError("ddof must be integer", where=here(), fix="ddof=1")
    if dtype is not None and as_dtype(dtype) not in INEXACT:
        what = f"cov in {as_dtype(dtype)} would truncate the distances from the mean"
        raise TypeRuleError(what, where=here(), fix="dtype=float")
    x = _variables(m, rowvar)
    x = x if y is None else concatenate([x, _variables(y, rowvar)], 0)
    x = cast(x, as_dtype(dtype) if dtype is not None else common_dtype((x, np.float64(0))))
    ddof = ddof if ddof is not None else 0 if bias else 1
    if fweights is None and aweights is None:
        apart, count = (
            e.subtract(x, mean(x, 1, keepdims=True)),
            float(max(type_of(x).shape[1] - ddof, 0)),
        )
        weighted = apart
    else:
        w, count = _weights(fweights, aweights, ddof, type_of(x).shape[1])
        apart = e.subtract(x, reshape(average(x, 1, w), (type_of(x).shape[0], 1)))
        weighted = e.multiply(apart, w)
    other = e.conjugate(weighted) if type_of(x).dtype in COMPLEX else weighted
    c = e.divide(matmul(apart, transpose(other)), count)
    return reshape(c, tuple([n for n in type_of(c).shape if n != 1]))


def _weights(fweights: Any, aweights: Any, ddof: int, n: int) -> tuple[Any, Any]:
    """The weight of each observation, and the divisor of their products."""
    given = [array(w) for w in (fweights, aweights) if w is not None]
    if any(type_of(w).shape != (n,) for w in given):
        what = f"cov: weights are a row of {n}; got {', '.join(str(type_of(w)) for w in given)}"
        raise ShapeError(what, where=here(), fix="weights, one for each observation")
    if fweights is not None and type_of(given[0]).dtype in INEXACT:
        raise TypeRuleError("fweights must be integer", where=here(), fix="fweights.astype(int)")
    w = reduce(e.multiply, given)
    whole = total(w)
    lost = (
        float(ddof) if aweights is None else e.divide(e.multiply(ddof, total(w * given[-1])), whole)
    )
    return w, whole if not ddof else e.maximum(e.subtract(whole, lost), 0.0)


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
