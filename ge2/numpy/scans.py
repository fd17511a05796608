"""Running sums, products and extremes, differences and the trapezoidal rule."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, INEXACT
from ge2.base.errors import ArgumentError, InputError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.indexing import checked_index
from ge2.numpy.composite import choose_by, concatenate, no_out
from ge2.numpy.promotion import array, as_dtype, broadcast, cast, check_casting, one_axis, reshape
from ge2.numpy.reductions import UNSET, all, finish, wide
from ge2.numpy.reductions import sum as total
from ge2.numpy.shapes import part, ravel
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ArgMax, ArgMin, CumMax, CumMin, CumProd, CumSum

Function = Callable[..., Any]


def running(name: str, op: Function, what: str) -> Function:
    def function(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
        no_out(name, out)
        x = array(a)
        t = type_of(x)
        x = cast(x, as_dtype(dtype) if dtype is not None else wide(t.dtype))
        x = ravel(x) if axis is None or not t.ndim else x
        return op(0 if axis is None else one_axis(axis, type_of(x).ndim, x))(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {what} so far along an axis, or over the flattened array, as `numpy.{name}`.

    Integers widen to 64 bits; half types are accumulated in float32 and keep their dtype.
    """
    return function


cumsum, cumprod = running("cumsum", CumSum, "sum"), running("cumprod", CumProd, "product")


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
    """Jumps of more than half a period taken out, as `numpy.unwrap`; for real inexact arrays."""
    x = array(p)
    axis = one_axis(axis, type_of(x).ndim, x)
    step = diff(x, axis=axis)
    dtype = type_of(e.multiply(step, period)).dtype
    if dtype not in INEXACT:
        raise InputError("unwrap takes floating-point angles", where=here(), fix="x.astype(float)")
    half = period / 2
    turned = e.subtract(e.mod(e.add(step, half), period), half)
    turned = choose_by(e.logical_and(e.equal(turned, -half), e.greater(step, 0)), half, turned)
    correction = e.subtract(turned, step)
    correction = choose_by(
        e.less(e.absolute(step), half if discont is None else discont), 0, correction
    )
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
