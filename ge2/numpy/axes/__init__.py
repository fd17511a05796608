"""Reductions over axes: sums and products, extremes, moments, counts."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INEXACT, INTEGERS
from ge2.base.errors import ArgumentError, InputError, ShapeError, TypeRuleError, ZeroWeightsError
from ge2.base.source import here
from ge2.ir import Dims, is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.composite import choose_by, no_out, real
from ge2.numpy.promotion import (
    Axes,
    all_axes,
    array,
    as_dtype,
    broadcast,
    cast,
    fresh,
    lift,
    one_axis,
    reduced_axes,
    reshape,
    resolve,
)
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ReduceAnd, ReduceMax, ReduceMin, ReduceOr, ReduceProd, ReduceSum
from ge2.ops.shape import BroadcastInDim, StopGradient, Transpose

UNSET: Any = np._NoValue
UINT64, INT64 = np.dtype(np.uint64), np.dtype(np.int64)


def with_ones(shape: Dims, axes: Dims) -> Dims:
    """The shape with those axes kept at size 1."""
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


def finish(y: Any, shape: Dims, axes: Dims, keepdims: Any) -> Any:
    """A reduction's result, its axes kept at size 1 where asked by a bool of
    Python or an integer.
    """
    if keepdims is UNSET:
        return y
    try:
        keeps = operator.index(keepdims)
    except TypeError as error:  # of NumPy's bools, too
        raise TypeRuleError(
            f"keepdims: {error}", where=here(), fix="keepdims=True or False"
        ) from None
    return reshape(y, with_ones(shape, axes)) if keeps else y


def is_set(x: Any) -> bool:
    return x is not UNSET and x is not None


def masked(x: Any, where: Any, other: Any) -> Any:
    """The array, its elements outside the mask replaced by a number that does not
    matter to the reduction.
    """
    if where is True or where is UNSET:
        return x
    mask = broadcast(e.truth(array(where)), type_of(x).shape)
    return choose_by(mask, x, type_of(x).dtype.type(other))


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype of a sum: small integers and bools widen to 64 bits, as in NumPy."""
    if dtype == BOOL or (dtype in INTEGERS and dtype.kind == "i"):
        return INT64
    return UINT64 if dtype in INTEGERS else dtype


# -------------------------------------------------------------------------------- sums and extremes


def accumulate(name: str, op: Callable[..., Any], merge: Any, unit: int) -> Callable[..., Any]:
    def function(
        a: Any, axis: Axes = None, dtype: Any = None, out: Any = None, keepdims: Any = False,
        initial: Any = UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        no_out(name, out)
        x = array(a)
        t = type_of(x)
        x = cast(x, as_dtype(dtype) if dtype is not None else wide(t.dtype))
        axes = reduced_axes(axis, t.ndim, x)
        x = masked(x, where, unit)
        y = op(axes)(x) if axes else fresh(x)
        y = merge(y, cast(lift(initial), type_of(x).dtype)) if is_set(initial) else y
        return finish(y, t.shape, axes, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {"sum" if unit == 0 else "product"} over the given axes, as `numpy.{name}`.

    Integers widen to 64 bits; half types are accumulated in float32, rounded once, and keep their dtype.
    """
    return function


def extreme(name: str, op: Callable[..., Any], merge: Any) -> Callable[..., Any]:
    def function(
        a: Any,
        axis: Axes = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = UNSET,
        where: Any = True,
    ) -> Any:
        no_out(name, out)
        x = array(a)
        t = type_of(x)
        axes = reduced_axes(axis, t.ndim, x)
        first = cast(lift(initial), t.dtype) if is_set(initial) else None
        if where is not True and where is not UNSET:
            if first is None:
                what = f"reduction operation '{name}' does not have an identity"
                what += ", so to use a where mask one has to specify 'initial'"
                raise ShapeError(what, where=here(), fix=f"{name}(x, initial=..., where=mask)")
            x = choose_by(broadcast(e.truth(array(where)), t.shape), x, first)
        if builtins.any(t.shape[i] == 0 for i in axes):
            return _extreme_of_nothing(name, x, axes, first, keepdims)
        y = op(axes)(x) if axes else fresh(x)
        y = merge(y, first) if first is not None else y
        return finish(y, t.shape, axes, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"The {name[-3:]}imum over the given axes, NaN where one is among them, as `numpy.{name}`."
    )
    return function


def _extreme_of_nothing(name: str, x: Any, axes: Dims, first: Any, keepdims: Any) -> Any:
    shape = type_of(x).shape
    left = tuple([n for i, n in enumerate(shape) if i not in axes])
    if first is None:
        what = f"zero-size array to reduction operation {name}imum which has no identity"
        what += f": {type_of(x)} over axes {axes}"
        raise ShapeError(what, where=here(), fix="initial=")
    return finish(broadcast(first, left), shape, axes, keepdims)


def truth_of(name: str, op: Callable[..., Any], unit: bool) -> Callable[..., Any]:
    def function(
        a: Any, axis: Axes = None, out: Any = None, keepdims: Any = False, *, where: Any = True
    ) -> Any:
        no_out(name, out)
        x = e.truth(array(a))
        shape = type_of(x).shape
        axes = reduced_axes(axis, len(shape), x)
        x = masked(x, where, unit)
        return finish(op(axes)(x) if axes else fresh(x), shape, axes, keepdims)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Whether {name} elements along the given axes are true, as `numpy.{name}`."
    return function


# fmt: off
sum  = accumulate("sum",  ReduceSum,  e.add,      0)
prod = accumulate("prod", ReduceProd, e.multiply, 1)
max  = extreme("max", ReduceMax, e.maximum)
min  = extreme("min", ReduceMin, e.minimum)
any  = truth_of("any", ReduceOr,  False)
all  = truth_of("all", ReduceAnd, True)
# fmt: on
amax, amin = max, min


def ptp(a: Any, axis: Axes = None, out: Any = None, keepdims: Any = False) -> Any:
    """The largest minus the smallest, as `numpy.ptp`."""
    no_out("ptp", out)
    return e.subtract(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))


def count_nonzero(a: Any, axis: Axes = None, *, keepdims: Any = False) -> Any:
    """The number of elements that are not zero, as int64."""
    return sum(e.truth(array(a)), axis, keepdims=keepdims)


# ------------------------------------------------------------------------------------------ moments


def count(x: Any, axes: Dims, where: Any, keepdims: bool = False) -> Any:
    """The number of elements that go into each result: a number, or an array where a mask chooses."""
    shape = type_of(x).shape
    if where is True or where is UNSET:
        return math.prod([shape[i] for i in axes])
    mask = broadcast(e.truth(array(where)), shape)
    return sum(mask, axes, keepdims=keepdims)


def moment_dtypes(dtype: np.dtype, asked: Any) -> tuple[np.dtype, np.dtype]:
    """In which dtype a mean is computed, and of which it is."""
    if asked is not None:
        own = as_dtype(asked)
        return (FLOAT32 if own in HALF else own), own
    if dtype not in INEXACT:
        return FLOAT64, FLOAT64
    return (FLOAT32 if dtype in HALF else dtype), dtype


def mean(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = False,
    *,
    where: Any = True,
) -> Any:
    """The arithmetic mean, as `numpy.mean`: float64 for integers, half types computed in float32.

    >>> mean([[1, 2], [3, 4]], axis=0)
    array([2., 3.])
    """
    no_out("mean", out)
    x = array(a)
    work, own = moment_dtypes(type_of(x).dtype, dtype)
    axes = all_axes(axis, type_of(x).ndim, x)
    total = sum(cast(x, work), axes, keepdims=keepdims, where=where)
    return cast(divided(total, count(x, axes, where, is_set(keepdims) and bool(keepdims))), own)


def divided(total: Any, number: Any) -> Any:
    """A sum by a count, in the dtype of the sum where that is inexact, as NumPy's mean does."""
    dtype = type_of(total).dtype
    if dtype not in INEXACT:
        return e.divide(total, number)
    return ops.DIV(
        total, dtype.type(number) if issubclass(type(number), int) else cast(number, dtype)
    )


def var(
    a: Any, axis: Axes = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, where: Any = True, mean: Any = UNSET, correction: Any = UNSET,
) -> Any:  # fmt: skip
    """The mean of the squared distances from the mean, as `numpy.var`;
    `correction` is `ddof` too.
    """
    no_out("var", out)
    x = array(a)
    shape = type_of(x).shape
    work, own = moment_dtypes(type_of(x).dtype, no_integer("var", dtype))
    axes = all_axes(axis, len(shape), x)
    ddof = corrected(ddof, correction)
    # a real mean of complex numbers that is asked for is taken of the numbers
    # themselves, as NumPy does
    to_sum = cast(x, work)
    x = x if type_of(x).dtype in COMPLEX and work not in COMPLEX else to_sum
    if where is not True:  # what is left out has no derivative either, whatever it is
        x = choose_by(array(where), x, type_of(x).dtype.type(0))
        to_sum = cast(x, work)
    apart = e.subtract(x, array(mean) if is_set(mean) else centre(to_sum, axes, where))
    squares = ops.SQUARE(apart)
    if type_of(apart).dtype in COMPLEX:
        squares = e.add(ops.SQUARE(ops.REAL_PART(apart)), ops.SQUARE(ops.IMAG(apart)))
    total = sum(squares, axes, keepdims=keepdims, where=where)
    number = count(x, axes, where, is_set(keepdims) and bool(keepdims))
    if issubclass(type(number), int) and issubclass(type(ddof), int | float):
        y = e.divide(total, float(builtins.max(number - ddof, 0)))
    else:
        y = divided(total, e.maximum(e.subtract(number, ddof), 0))
    return cast(y, own) if own not in COMPLEX or dtype is not None else y


def centre(x: Any, axes: Dims, where: Any) -> Any:
    """The mean over the axes, repeated along them."""
    return repeated(
        divided(sum(x, axes, where=where), count(x, axes, where)), type_of(x).shape, axes
    )


def repeated(y: Any, shape: Dims, axes: Dims) -> Any:
    """A reduction's result in the shape of what was reduced."""
    return (
        BroadcastInDim(shape, tuple([i for i in range(len(shape)) if i not in axes]))(y)
        if axes
        else y
    )


def corrected(ddof: Any, correction: Any) -> Any:
    """Returns the number subtracted from the count of elements, which only one of both names may give."""
    if not is_set(correction):
        return ddof
    if is_traced(ddof) or ddof != 0:
        what = f"ddof and correction can't be provided simultaneously; got {ddof}, {correction}"
        raise ArgumentError(what, where=here(), fix="correction=n alone")
    return correction


def no_integer(name: str, dtype: Any) -> Any:
    """The dtype that was asked for, which must not be one in which distances
    from the mean are truncated.
    """
    if dtype is not None and as_dtype(dtype) not in INEXACT:
        raise InputError(
            f"{name} in {as_dtype(dtype)} would be truncated", where=here(), fix="dtype=float"
        )
    return dtype


def std(
    a: Any, axis: Axes = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False,
    *, where: Any = True, mean: Any = UNSET, correction: Any = UNSET,
) -> Any:  # fmt: skip
    """The square root of `var`, as `numpy.std`."""
    no_out("std", out)
    x = array(a)
    work, own = moment_dtypes(type_of(x).dtype, no_integer("std", dtype))
    y = e.sqrt(
        var(
            x if type_of(x).dtype in COMPLEX and work not in COMPLEX else cast(x, work),
            axis,
            dtype and work,
            None,
            ddof,
            keepdims,
            where=where,
            mean=mean,
            correction=correction,
        )
    )
    return cast(y, own) if own not in COMPLEX or dtype is not None else y


def average(
    a: Any, axis: Axes = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False
) -> Any:
    """The weighted mean, as `numpy.average`; with `returned` also the sum of the weights.

    Traced weights of sum 0, where NumPy has a ZeroDivisionError, give an infinite mean, or NaN.
    """
    x = array(a)
    if weights is None:
        y = mean(x, axis, keepdims=keepdims)
        number = count(x, all_axes(axis, type_of(x).ndim, x), True)
        return (y, broadcast(type_of(y).dtype.type(number), type_of(y).shape)) if returned else y
    w = weights_like(x, array(weights), axis)
    dtype = resolve(np.multiply, (type_of(x).dtype, type_of(w).dtype))[-1]
    dtype = dtype if dtype in INEXACT else FLOAT64
    total = sum(w, axis, dtype, keepdims=keepdims)
    if not is_traced(total) and np.any(total == 0):
        what = "Weights sum to zero, can't be normalized"
        raise ZeroWeightsError(what, where=here(), fix="weights that do not cancel")
    y = e.divide(sum(e.multiply(x, cast(w, dtype)), axis, dtype, keepdims=keepdims), total)
    return (y, broadcast(total, type_of(y).shape)) if returned else y


def weights_like(x: Any, w: Any, axis: Axes) -> Any:
    """The weights, of the shape of `x` or of its averaged axes, in the shape of `x`."""
    shape = type_of(x).shape
    if type_of(w).shape == shape:
        return w
    axes = all_axes(axis, len(shape), x)
    order = [one_axis(a, len(shape), x) for a in axis] if isinstance(axis, tuple | list) else axes
    if axis is None or type_of(w).shape != tuple([shape[i] for i in order]):
        what = f"shape of weights, {type_of(w)}, must be that of a, {type_of(x)}, along axis {axis}"
        raise ShapeError(what, where=here(), fix="weights.reshape")
    w = Transpose(tuple([order.index(i) for i in axes]))(w)
    return broadcast(reshape(w, tuple([n if i in axes else 1 for i, n in enumerate(shape)])), shape)


def logsumexp(
    a: Any, axis: Axes = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """log(sum(b * exp(a))) without overflow; -inf where every element is -inf, with derivative 0
    there. With `return_sign` two arrays: the logarithm of the sum's absolute value, and its sign.

    >>> float(logsumexp([1000.0, 1000.0]).round(3))
    1000.693
    >>> y, sign = logsumexp([1.0, 2.0], b=[1.0, -1.0], return_sign=True)
    >>> float(y.round(3)), float(sign)
    (1.541, -1.0)
    """
    x = array(a)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in INEXACT else FLOAT64)
    t = type_of(x)
    axes = all_axes(axis, t.ndim, x)
    if builtins.any(t.shape[i] == 0 for i in axes):
        none = sum(e.exp(x), axes, keepdims=keepdims)
        return (e.log(none), none) if return_sign else e.log(none)
    high = StopGradient()(max(real(x), axes))
    high = choose_by(e.isfinite(high), high, type_of(high).dtype.type(0))
    terms = e.exp(e.subtract(x, repeated(high, t.shape, axes)))
    total = sum(terms if b is None else e.multiply(b, terms), axes)
    sign = e.sign(total) if return_sign else None
    total = e.absolute(total) if return_sign else total
    empty = e.equal(total, 0)
    safe = choose_by(empty, type_of(total).dtype.type(1), total)
    y = choose_by(empty, type_of(total).dtype.type(-np.inf), e.add(e.log(safe), high))
    y = finish(y, t.shape, axes, keepdims)
    return (y, finish(sign, t.shape, axes, keepdims)) if return_sign else y


# ------------------------------------------------------------------------------------- NaN left out


def without_nan(function: Callable[..., Any], unit: float) -> Callable[..., Any]:
    def nan_function(a: Any, axis: Axes = None, *args: Any, **more: Any) -> Any:
        x = array(a)
        if type_of(x).dtype in INEXACT:
            x = choose_by(ops.IS_NAN(x), type_of(x).dtype.type(unit), x)
        return function(x, axis, *args, **more)

    nan_function.__name__ = nan_function.__qualname__ = f"nan{function.__name__}"
    nan_function.__doc__ = f"`{function.__name__}` of the elements that are not NaN, as `numpy.nan{function.__name__}`."
    return nan_function


nansum, nanprod = without_nan(sum, 0.0), without_nan(prod, 1.0)


def nan_extreme(function: Callable[..., Any], name: str, unit: float) -> Callable[..., Any]:
    def nan_function(
        a: Any, axis: Axes = None, out: Any = None, keepdims: Any = False, **more: Any
    ) -> Any:
        x = array(a)
        if type_of(x).dtype not in INEXACT:
            return function(x, axis, out, keepdims, **more)
        kind = type_of(x).dtype.type
        nan, where = ops.IS_NAN(x), more.get("where", True)
        apart = nan if where is True else e.logical_or(nan, e.logical_not(where))
        none = all(apart, axis, keepdims=keepdims)
        if is_set(more.get("initial", UNSET)):
            no_number = e.isnan(more["initial"])
            more["initial"] = choose_by(no_number, kind(unit), more["initial"])
            none = e.logical_and(none, no_number)
        y = function(choose_by(nan, kind(unit), x), axis, out, keepdims, **more)
        return choose_by(none, kind(np.nan), y)

    nan_function.__name__ = nan_function.__qualname__ = name
    nan_function.__doc__ = f"""The {name[3:]}imum of the elements that are not NaN, as `numpy.{name}`.

    It is NaN, without a warning, where all are.
    """
    return nan_function


nanmax, nanmin = nan_extreme(max, "nanmax", -np.inf), nan_extreme(min, "nanmin", np.inf)


def nanmean(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: Any = False,
    *,
    where: Any = True,
) -> Any:
    """The mean of the elements that are not NaN, as `numpy.nanmean`; NaN,
    unwarned, where all are.
    """
    x = array(a)
    inexact_only("mean", x, dtype)
    return mean(_zeroed(x), axis, dtype, out, keepdims, where=_numbers(x, where))


def nanvar(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    **more: Any,
) -> Any:
    """The variance of the elements that are not NaN, as `numpy.nanvar`."""
    x = array(a)
    inexact_only("var", x, dtype)
    where = _numbers(x, more.pop("where", True))
    y = var(_zeroed(x), axis, dtype, out, ddof, keepdims, where=where, **more)
    if type_of(x).dtype not in INEXACT:
        return y
    ddof = corrected(ddof, more.get("correction", UNSET))
    number = count(
        x, all_axes(axis, type_of(x).ndim, x), where, is_set(keepdims) and bool(keepdims)
    )
    return choose_by(e.greater(number, ddof), y, type_of(y).dtype.type(np.nan))


def nanstd(
    a: Any,
    axis: Axes = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: Any = False,
    **more: Any,
) -> Any:
    """The standard deviation of the elements that are not NaN, as `numpy.nanstd`."""
    return e.sqrt(nanvar(a, axis, dtype, out, ddof, keepdims, **more))


def inexact_only(name: str, x: Any, dtype: Any) -> None:
    """Refuses a moment of inexact numbers in integers."""
    if dtype is not None and type_of(x).dtype in INEXACT and as_dtype(dtype) not in INEXACT:
        what = f"nan{name}: if a is inexact, then dtype must be inexact; got {as_dtype(dtype)}"
        raise InputError(what, where=here(), fix="dtype=float")


def _zeroed(x: Any) -> Any:
    """The array with zeros for NaN: what is left out of a sum must not reach
    its derivative either.
    """
    if type_of(x).dtype not in INEXACT:
        return x
    return choose_by(e.isnan(x), type_of(x).dtype.type(0), x)


def _numbers(x: Any, where: Any) -> Any:
    if type_of(x).dtype not in INEXACT:
        return where
    return e.logical_and(e.logical_not(e.isnan(x)), True if where is UNSET else where)
