"""Elementwise functions that are made of others: choosing, rounding, comparing,
parts of complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, EXTENDED, FLOAT64, INEXACT, INTEGERS
from ge2.base.errors import ArgumentError, ConcretizationTypeError, InputError, TypeRuleError
from ge2.base.gpu import beside, host
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.creation import all_beside, full
from ge2.numpy.options import checked_order
from ge2.numpy.promotion import (
    array,
    as_dtype,
    cast,
    common_dtype,
    common_shape,
    fit,
    fresh,
    lift,
    reshape,
    strong,
)
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ReduceAnd


def no_out(name: str, out: Any) -> None:
    if out is not None:
        raise InputError(f"{name}: out= is not supported", where=here(), fix="y = f(x)")


def known_elements(x: Any) -> Any:
    """The elements of an array, of a traced one where its trace knows
    them (as for `if`); else None.
    """
    try:
        return np.asarray(host(x))
    except ConcretizationTypeError:
        return None


# ----------------------------------------------------------------------------------------- choosing


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Elements of `x` where `condition` holds, of `y` elsewhere, broadcast
    together, as `numpy.where`.

    With one argument it is `nonzero`, whose shape depends on values: an error on traced values.

    >>> where([True, False], 1.0, [5, 6])
    array([1., 6.])
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ArgumentError(
            "where takes either both x and y, or neither", where=here(), fix="np.where(mask, x, y)"
        )
    return choose_by(e.truth(condition), lift(x), lift(y))


def choose_by(mask: Any, x: Any, y: Any) -> Any:
    dtype = common_dtype((x, y))
    shape = common_shape("where", (mask, x, y))
    return ops.WHERE(fit(strong(mask), BOOL, shape), fit(x, dtype, shape), fit(y, dtype, shape))


def nonzero(a: Any) -> Any:
    """The indices of elements that are not zero; an error on traced values,
    which decide its shape.
    """
    given = a = array(a)
    a = a if (known := known_elements(a)) is None else known
    if is_traced(a):
        raise ConcretizationTypeError(
            f"the shape of nonzero(x) depends on the values of x, which is traced {a.type}",
            where=here(),
            fix="np.where(mask, x, other) of three arguments, or a mask that is no traced value",
        )
    return all_beside(np.nonzero(a), given)


def flatnonzero(a: Any) -> Any:
    """`nonzero` of the flattened array; an error on traced values."""
    x = array(a)
    return nonzero(reshape(x, (type_of(x).size,)))[0]


def argwhere(a: Any) -> Any:
    """`nonzero`, an index a row; an error on traced values."""
    return beside(np.transpose(nonzero(host(array(a)))), a)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice of the first condition that holds, as `numpy.select`."""
    if len(condlist) != len(choicelist) or not condlist:
        what = "list of cases must be same length as list of conditions, and not empty"
        raise ArgumentError(what, where=here(), fix="one choice for each condition")
    masks = [lift(c) for c in condlist]
    if any(type_of(m).dtype != BOOL for m in masks):
        raise InputError("select takes conditions of dtype bool", where=here(), fix="x != 0")
    choices = [lift(c) for c in (*choicelist, default)]
    dtype, shape = common_dtype(choices), common_shape("select", (*masks, *choices))
    y = fit(choices[-1], dtype, shape)
    for mask, choice in zip(reversed(masks), reversed(choices[:-1]), strict=True):
        y = ops.WHERE(fit(strong(mask), BOOL, shape), fit(choice, dtype, shape), y)
    return y


def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
) -> Any:
    """`a` held between two bounds, either of which may be None, as `numpy.clip`.

    >>> clip([1.0, 5.0, 9.0], 2.0, 6.0)
    array([2., 5., 6.])
    """
    no_out("clip", out)
    if (min is not None or max is not None) and (a_min is not None or a_max is not None):
        what = "Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is forbidden."
        raise ArgumentError(what, where=here(), fix="np.clip(x, low, high)")
    low, high = a_min if min is None else min, a_max if max is None else max
    a = array(a)  # a number of Python's has a dtype of its own there, its bounds have none
    own = type_of(a)
    if own.dtype in INTEGERS:  # bounds that its integers cannot pass
        limits = np.iinfo(own.dtype)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
    if low is None and high is None:
        return e.positive(a)
    if low is None or high is None:
        return e.minimum(a, high) if low is None else e.maximum(a, low)
    xs = [lift(x) for x in (a, low, high)]
    dtype, shape = common_dtype(xs), common_shape("clip", xs)
    x, low, high = (fit(x, dtype, shape) for x in xs)
    return ops.MIN(ops.MAX(x, low), high)


# -------------------------------------------------------------------------------- parts of a number


def real(val: Any) -> Any:
    """The real part; a real array is its own, as `numpy.real`."""
    x = array(val)
    return ops.REAL_PART(x) if type_of(x).dtype in COMPLEX else x


def imag(val: Any) -> Any:
    """The imaginary part; zeros of the same dtype for a real array, as `numpy.imag`."""
    x = array(val)
    return ops.IMAG(x) if type_of(x).dtype in COMPLEX else zeros_as(x)


def zeros_as(x: Any) -> Any:
    t = type_of(x)
    return beside(full(t.shape, t.dtype.type(0)), x)


def angle(z: Any, deg: bool = False) -> Any:
    """The argument of a complex number, in radians or degrees, as `numpy.angle`."""
    x = array(z)
    y = e.arctan2(imag(x), real(x)) if type_of(x).dtype in COMPLEX else e.arctan2(0, x)
    return e.multiply(y, 180 / math.pi) if deg else y


def isreal(x: Any) -> Any:
    """True where the imaginary part is zero."""
    return e.equal(imag(x), 0)


def iscomplex(x: Any) -> Any:
    """True where the imaginary part is not zero."""
    return e.not_equal(imag(x), 0)


def iscomplexobj(x: Any) -> bool:
    """True if the dtype is complex."""
    return type_of(lift(x)).dtype in COMPLEX


def isrealobj(x: Any) -> bool:
    """True if the dtype is not complex."""
    return not iscomplexobj(x)


def isposinf(x: Any, out: Any = None) -> Any:
    """True where an element is positive infinity."""
    no_out("isposinf", out)
    return e.logical_and(e.isinf(x), e.logical_not(e.signbit(x)))


def isneginf(x: Any, out: Any = None) -> Any:
    """True where an element is negative infinity."""
    no_out("isneginf", out)
    return e.logical_and(e.isinf(x), e.signbit(x))


# ----------------------------------------------------------------------------------------- rounding


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """To the given number of decimals, halves to even, as `numpy.round`.

    >>> round([1.25, 2.5], 1)
    array([1.2, 2.5])
    """
    no_out("round", out)
    x = array(a)
    dtype = type_of(x).dtype
    if decimals == 0 and (dtype == BOOL or dtype in INEXACT):
        return e.rint(x)
    if dtype == BOOL:
        raise TypeRuleError(
            f"round of {type_of(x)} to decimals", where=here(), fix="x.astype(float)"
        )
    if decimals >= 0 and dtype not in INEXACT:
        return fresh(x)
    scale = 10.0 ** abs(decimals)
    if dtype not in INEXACT:
        return cast(ops.MUL(ops.RINT(e.divide(cast(x, FLOAT64), scale)), np.float64(scale)), dtype)
    if decimals > 0:
        return e.divide(e.rint(e.multiply(x, scale)), scale)
    return e.multiply(e.rint(e.divide(x, scale)), scale)


around = round


def fix(x: Any, out: Any = None) -> Any:
    """Towards zero, as `numpy.fix`."""
    no_out("fix", out)
    return e.trunc(x)


# ------------------------------------------------------------------------------------------- values


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """NaN as `nan`, infinities as the largest finite numbers, as
    `numpy.nan_to_num`; always a new array.
    """
    x = array(x)
    dtype = type_of(x).dtype
    if dtype not in INEXACT:
        return fresh(x)
    if dtype in COMPLEX:
        parts = (nan_to_num(part, True, nan, posinf, neginf) for part in (real(x), imag(x)))
        return ops.COMPLEX_OF(*parts)
    limits = finfo(dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    y = choose_by(ops.IS_NAN(x), cast(lift(nan), dtype), x)
    y = choose_by(ops.EQ(x, dtype.type(np.inf)), cast(lift(high), dtype), y)
    return choose_by(ops.EQ(x, dtype.type(-np.inf)), cast(lift(low), dtype), y)


def finfo(dtype: Any) -> Any:
    """Limits of a float dtype, of bfloat16 and fp8 too, as `numpy.finfo`; takes arrays as well."""
    d = np.dtype(dtype) if isinstance(dtype, np.dtype | type | str) else type_of(lift(dtype)).dtype
    return ml_dtypes.finfo(d) if d in EXTENDED else np.finfo(d)  # type: ignore[no-untyped-call]


def iinfo(dtype: Any) -> Any:
    """Limits of an integer dtype, as `numpy.iinfo`; takes arrays as well."""
    return np.iinfo(
        np.dtype(dtype) if isinstance(dtype, np.dtype | type | str) else type_of(lift(dtype)).dtype
    )


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0, as `numpy.sinc`."""
    x = array(x)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in INEXACT else FLOAT64)
    y = e.multiply(x, math.pi)
    near = e.less(e.absolute(y), 1.0)
    far = where(near, 1.0, y)
    return where(near, sinc_near_zero(where(near, y, 0.0)), e.divide(e.sin(far), far))


def sinc_near_zero(y: Any) -> Any:
    """sin(y) / y by its series, to the last bit for |y| < 1: the quotient's
    derivatives cancel there.
    """
    square = e.multiply(y, y)
    total: Any = 1 / math.factorial(21)  # a Python number, so that the dtype stays that of y
    for k in range(9, -1, -1):
        total = e.add(e.multiply(square, total), (-1.0) ** k / math.factorial(2 * k + 1))
    return total


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True where `|a - b| <= atol + rtol |b|`, or both are the same infinity, as `numpy.isclose`."""
    a, b = lift(a), lift(b)
    if type_of(b).dtype not in INEXACT:
        b = cast(b, FLOAT64)
    near = e.less_equal(e.absolute(e.subtract(a, b)), e.add(atol, e.multiply(rtol, e.absolute(b))))
    near = e.logical_or(e.logical_and(near, e.isfinite(b)), e.equal(a, b))
    return e.logical_or(near, e.logical_and(e.isnan(a), e.isnan(b))) if equal_nan else near


def all_of(x: Any) -> Any:
    """True if every element holds: a bool, or a traced scalar."""
    y = ReduceAnd(tuple(range(type_of(x).ndim)))(x)
    return y if is_traced(y) else bool(y)


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True if all elements are close, as `numpy.allclose`; a traced bool of traced arguments."""
    return all_of(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """True if shapes and elements are equal, as `numpy.array_equal`; a traced bool of traced
    arguments.
    """
    a, b = array(a1), array(a2)
    if type_of(a).shape != type_of(b).shape:
        return False
    same = e.equal(a, b)
    if equal_nan:
        same = e.logical_or(same, e.logical_and(e.isnan(a), e.isnan(b)))
    return all_of(same)


def array_equiv(a1: Any, a2: Any) -> Any:
    """True if all elements are equal after broadcasting, as `numpy.array_equiv`."""
    a, b = array(a1), array(a2)
    try:
        common_shape("array_equiv", (a, b))
    except ValueError:
        return False
    return all_of(e.equal(a, b))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """The same numbers in another dtype, as `numpy.astype`; of complex numbers
    the real part, unwarned.

    >>> astype(np.array([1.7, -1.7]), int)
    array([ 1, -1])
    """
    if device not in (None, "cpu"):
        what = f'Device not understood. Only "cpu" is allowed, but received: {device}'
        raise ArgumentError(what, where=here(), fix="leave out device=")
    x, target = lift(x), as_dtype(dtype)
    y = cast(x, target)
    return fresh(y) if y is x and copy else y


def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """The same elements in an array of its own."""
    checked_order(order)
    return fresh(array(a))
