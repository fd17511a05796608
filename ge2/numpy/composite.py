"""Functions composed of others: choosing, rounding, comparing, joining."""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, EXTENDED, FLOAT64, INEXACT, INTEGERS, beside, host
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    InputError,
    ShapeError,
    TypeRuleError,
)
from ge2.base.source import here
from ge2.ir import is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.creation import all_beside, full
from ge2.numpy.promotion import (
    CASTINGS,
    array,
    as_dtype,
    cast,
    check_casting,
    checked_order,
    common_dtype,
    common_shape,
    fit,
    fresh,
    in_trace,
    lift,
    listed,
    no_scalar,
    one_axis,
    reshape,
    strong,
)
from ge2.numpy.shapes import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    between,
    moveaxis,
    part,
    ravel,
    transpose,
)
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ReduceAnd
from ge2.ops.shape import Concatenate

# -------- Elementwise functions made of others: choosing, rounding, comparing, complex parts.


def no_out(name: str, out: Any) -> None:
    if out is not None:
        raise InputError(f"{name}: out= is not supported", where=here(), fix="y = f(x)")


def known_elements(x: Any) -> Any:
    """The elements of an array, of a traced one if its trace knows them, or it has none; else None."""
    if is_traced(x) and not x.size:
        return np.empty(x.shape, x.dtype)
    try:
        return None if is_traced(x) and not x.is_known() else np.asarray(host(x))
    except ConcretizationTypeError:
        return None


# ----------------------------------------------------------------------------------------- choosing


def of_each(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which computes each element by itself, also of those that a mask chooses."""

    @functools.wraps(function)
    def of_chosen(*args: Any, **more: Any) -> Any:
        chosen = e.answering(args)
        if chosen is None:
            return function(*args, **more)
        return chosen.of_elements(lambda *xs: function(*xs, **more), *args)

    return of_chosen


@of_each
def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """Elements of `x` where `condition` holds, of `y` elsewhere, broadcast, as `numpy.where`.

    With one argument it is `nonzero`.

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
    """The indices of elements that are not zero; of traced values, which
    decide how many they are, only to index with, or to reduce.
    """
    given = a = array(a)
    a = a if (known := known_elements(a)) is None else known
    if is_traced(a):
        if not a.type.shape:
            what = f"Calling nonzero on 0d arrays is not allowed: a traced {a.type}"
            raise ArgumentError(what, where=here(), fix="np.atleast_1d(x)")
        return a.nonzero_places()
    return all_beside(np.nonzero(a), given)


def flatnonzero(a: Any) -> Any:
    """`nonzero` of the flattened array."""
    x = array(a)
    return nonzero(reshape(x, (type_of(x).size,)))[0]


def argwhere(a: Any) -> Any:
    """`nonzero`, an index a row; an error on traced values."""
    indices = nonzero(host(array(a)))
    if indices and hasattr(type(indices[0]), "of_elements"):
        raise indices[0].error()
    return beside(np.transpose(indices), a)


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


@of_each
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


@of_each
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


@of_each
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


@of_each
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


@of_each
def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0, as `numpy.sinc`."""
    x = array(x)
    x = cast(x, type_of(x).dtype if type_of(x).dtype in INEXACT else FLOAT64)
    y = e.multiply(x, math.pi)
    near = e.less(e.absolute(y), 1.0)
    far = where(near, 1.0, y)
    return where(near, sinc_near_zero(where(near, y, 0.0)), e.divide(e.sin(far), far))


def sinc_near_zero(y: Any) -> Any:
    """sin(y) / y by its series, to the last bit for |y| < 1, where a quotient's slopes cancel."""
    square = e.multiply(y, y)
    total: Any = 1 / math.factorial(21)  # a Python number, so that the dtype stays that of y
    for k in range(9, -1, -1):
        total = e.add(e.multiply(square, total), (-1.0) ** k / math.factorial(2 * k + 1))
    return total


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """True where `|a - b| <= atol + rtol |b|`, or both are the same infinity, as `numpy.isclose`."""
    a, b = lift(a), lift(b)
    if type_of(b).dtype not in INEXACT:
        b = float(b) if type(b) in (bool, int) else cast(b, FLOAT64)  # a number takes a's dtype
    near = e.less_equal(e.absolute(e.subtract(a, b)), lift(atol) + lift(rtol) * abs(b))
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
    """The same numbers in another dtype, as `numpy.astype`; of complex numbers the real part.

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
    return in_trace(fresh(no_scalar(a)))


# -------- Arrays joined to one, and one taken to parts.


def concatenate(
    arrays: Any,
    /,
    axis: int | None = 0,
    out: Any = None,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
) -> Any:
    """Arrays one after another along an existing axis, as `numpy.concatenate`."""
    no_out("concatenate", out)
    xs = [array(x) for x in arrays]
    if not xs:
        raise ShapeError("need at least one array to concatenate", where=here())
    if axis is None:
        if dtype is None:  # numbers of Python's, which have no dtype until they are arrays
            dtype, casting = common_dtype([lift(x) for x in arrays]), "unsafe"
        xs, axis = [ravel(x) for x in xs], 0
    types = [type_of(x) for x in xs]
    if types[0].ndim == 0:
        raise ShapeError(
            "zero-dimensional arrays cannot be concatenated", where=here(), fix="np.stack"
        )
    at = one_axis(axis, types[0].ndim, xs[0])
    others = {t.shape[:at] + t.shape[at + 1 :] for t in types}
    if len(others) > 1 or len({t.ndim for t in types}) > 1:
        what = f"all the input array dimensions except for the concatenation axis {at} must match exactly"
        what += f"; got {listed(xs)}"
        raise ShapeError(what, where=here(), fix="np.stack for a new axis, or x.reshape")
    return Concatenate(at)(*in_common(xs, dtype, casting))


concat = concatenate


def in_common(xs: Sequence[Any], dtype: Any, casting: str) -> list[Any]:
    """The arrays in the dtype that holds them all, or in the one asked for."""
    if casting not in CASTINGS:
        what = f"casting must be one of {', '.join(map(repr, CASTINGS))} (got {casting!r})"
        raise ArgumentError(what, where=here(), fix="casting='same_kind'")
    if dtype is None:
        common = common_dtype(xs)
        return [cast(x, common) for x in xs]
    target = as_dtype(dtype)
    for x in xs:
        check_casting(x, target, casting)
    return [cast(x, target) for x in xs]


def stack(
    arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    """Arrays of one shape along a new axis, as `numpy.stack`."""
    xs = [array(x) for x in arrays]
    if not xs:
        raise ShapeError("need at least one array to stack", where=here())
    shape = type_of(xs[0]).shape
    if builtins.any(type_of(x).shape != shape for x in xs):
        raise ShapeError(
            f"all input arrays must have the same shape; got {listed(xs)}",
            where=here(),
            fix="np.stack(np.broadcast_arrays(x, y))",
        )
    at = one_axis(axis, len(shape) + 1)
    return concatenate(
        [reshape(x, (*shape[:at], 1, *shape[at:])) for x in xs],
        at,
        out,
        dtype=dtype,
        casting=casting,
    )


def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Rows below one another, as `numpy.vstack`."""
    return concatenate([atleast_2d(x) for x in tup], 0, dtype=dtype, casting=casting)


def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    """Columns beside one another, as `numpy.hstack`."""
    xs = [atleast_1d(x) for x in tup]
    return concatenate(
        xs, 0 if xs and type_of(xs[0]).ndim == 1 else 1, dtype=dtype, casting=casting
    )


def dstack(tup: Any) -> Any:
    """Along the third axis, as `numpy.dstack`."""
    return concatenate([atleast_3d(x) for x in tup], 2)


def column_stack(tup: Any) -> Any:
    """Rows as columns beside one another, as `numpy.column_stack`."""
    columns = [array(x) for x in tup]
    return concatenate([x if type_of(x).ndim > 1 else transpose(atleast_2d(x)) for x in columns], 1)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` after `arr`, both flattened if no axis is given, as `numpy.append`."""
    return concatenate((array(arr), array(values)), axis)


def block(arrays: Any) -> Any:
    """A matrix of blocks from nested lists, the innermost side by side, as `numpy.block`."""
    depth, ndim = _nesting(arrays), _most_axes(arrays)
    ndim = builtins.max(depth, ndim)

    def join(item: Any, level: int) -> Any:
        if not isinstance(item, list):
            x = no_scalar(item)
            return reshape(x, (1,) * (ndim - type_of(x).ndim) + type_of(x).shape)
        return concatenate([join(i, level - 1) for i in item], axis=-level)

    return fresh(join(arrays, depth)) if depth == 0 else join(arrays, depth)


def _nesting(item: Any) -> int:
    return 1 + builtins.max(map(_nesting, item)) if isinstance(item, list) else 0


def _most_axes(item: Any) -> int:
    return (
        builtins.max(map(_most_axes, item)) if isinstance(item, list) else type_of(array(item)).ndim
    )


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Parts along an axis, so many, or between given indices, as `numpy.array_split`."""
    x = array(ary)
    axis = one_axis(axis, type_of(x).ndim, x)
    size = type_of(x).shape[axis]
    if is_number(indices_or_sections):
        sections = operator.index(indices_or_sections)
        if sections <= 0:
            raise ShapeError("number sections must be larger than 0.", where=here())
        each, extra = builtins.divmod(size, sections)
        cuts = [i * each + builtins.min(i, extra) for i in range(sections + 1)]
    else:
        cuts = [0, *map(operator.index, indices_or_sections), size]
    return [part(x, axis, *between(a, b, size)) for a, b in itertools.pairwise(cuts)]


def is_number(x: Any) -> bool:
    return issubclass(type(x), int | np.integer) or getattr(x, "shape", None) == ()


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Equal parts along an axis, or the parts between the given indices, as `numpy.split`."""
    x = array(ary)
    size = type_of(x).shape[one_axis(axis, type_of(x).ndim, x)]
    if is_number(indices_or_sections) and size % operator.index(indices_or_sections):
        what = f"array split does not result in an equal division: axis {axis} of {type_of(x)}"
        raise ShapeError(f"{what} into {indices_or_sections}", where=here(), fix="np.array_split")
    return array_split(x, indices_or_sections, axis)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 1, or axis 0 of a row."""
    return split(ary, indices_or_sections, 1 if type_of(array(ary)).ndim > 1 else 0)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 0, of two axes or more."""
    if type_of(array(ary)).ndim < 2:
        what = f"vsplit only works on arrays of 2 or more dimensions; got {type_of(array(ary))}"
        raise ShapeError(what, where=here(), fix="np.split(x, n)")
    return split(ary, indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 2."""
    return split(ary, indices_or_sections, 2)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, without it, as `numpy.unstack`."""
    x = moveaxis(x, axis, 0)
    n, *rest = type_of(x).shape
    return tuple([reshape(part(x, 0, i, i + 1), tuple(rest)) for i in range(n)])
