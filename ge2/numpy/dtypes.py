"""Dtypes, questions about them, and constants, under NumPy's names."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, EXTENDED, FLOATS, INEXACT, INTEGERS, promote, real_part
from ge2.base.dtypes import can_cast as allowed
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.numpy import elementwise
from ge2.numpy.access.indexing import getitem
from ge2.numpy.joining import stack
from ge2.numpy.promotion import as_dtype, cast, kind_of, lift, one_axis, reshape, result_of
from ge2.ops.elementwise import COMPLEX_OF, IMAG, REAL_PART
from ge2.ops.sort import BitcastConvertType

bool_ = np.bool_
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128
bfloat16, float8_e4m3fn, float8_e5m2 = (
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
)
dtype, ndarray = np.dtype, np.ndarray
e, pi, inf, nan, newaxis, euler_gamma = math.e, math.pi, math.inf, math.nan, None, np.euler_gamma

KINDS = {
    "bool": frozenset((BOOL,)), "numeric": INTEGERS | INEXACT, "integral": INTEGERS, "real floating": FLOATS,
    "complex floating": COMPLEX, "signed integer": frozenset(d for d in INTEGERS if d.kind == "i"),
    "unsigned integer": frozenset(d for d in INTEGERS if d.kind == "u"),
}  # fmt: skip


def isdtype(dtype: Any, kind: Any) -> bool:
    """True if a dtype is of a kind, or of one of several, as `numpy.isdtype`; half types are real
    floating.

    >>> isdtype(bfloat16, "real floating")
    True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    found = np.dtype(dtype)
    if not isinstance(kind, str):
        return bool(found == np.dtype(kind))
    if kind not in KINDS:
        raise ArgumentError(
            f"kind argument is a string, but {kind!r} is not a known kind name.",
            where=here(),
            fix=", ".join(KINDS),
        )
    return found in KINDS[kind]


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that holds all arguments, arrays or dtypes; Python numbers
    yield, as `numpy.result_type`.
    """
    return result_of(tuple([_kind(x) for x in arrays_and_dtypes]))


def _kind(x: Any) -> Any:
    if isinstance(x, np.dtype | type | str):
        return as_dtype(x)
    return kind_of(type_of(lift(x)))


def promote_types(type1: Any, type2: Any) -> Any:
    """The smallest dtype that holds both, as `numpy.promote_types`; half types promote as float16.

    >>> promote_types(bfloat16, float16)
    dtype('float32')
    """
    return promote(as_dtype(type1), as_dtype(type2))


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """True if a cast is allowed by a rule, as `numpy.can_cast`; of an array its dtype counts."""
    # np.float32 has one for its values
    of_value = hasattr(from_, "dtype") and not isinstance(from_, type)
    return allowed(as_dtype(from_.dtype if of_value else from_), as_dtype(to), casting)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """As `numpy.issubdtype`, with bfloat16 and fp8 under `numpy.floating`."""
    if arg1 in EXTENDED or arg1 in {d.type for d in EXTENDED}:
        return np.issubdtype(np.float16, arg2) if arg2 != np.float16 else False
    return np.issubdtype(arg1, arg2)


def shape(a: Any) -> tuple[int, ...]:
    """The shape of an array, as `numpy.shape`."""
    return type_of(lift(a)).shape


def ndim(a: Any) -> int:
    """The number of axes of an array."""
    return type_of(lift(a)).ndim


def size(a: Any, axis: int | tuple[int, ...] | None = None) -> int:
    """The number of elements of an array, or along some of its axes."""
    t = type_of(lift(a))
    if axis is None:
        return t.size
    axes = axis if isinstance(axis, tuple) else (axis,)
    return math.prod(t.shape[one_axis(each, t.ndim, a)] for each in axes)


def isscalar(element: Any) -> bool:
    """True if the argument is a number, not an array; weak traced values are numbers."""
    t = getattr(element, "type", None)
    return t.weak if t is not None and hasattr(t, "weak") else np.isscalar(element)


def iterable(y: Any) -> bool:
    """True if the argument has elements to go through."""
    return hasattr(y, "__iter__") and not (hasattr(y, "type") and not type_of(y).shape)


# -------------------------------------------------------------------------------------------- bits
# The bytes of an array as elements of another dtype, least significant byte first.


UINT8 = np.dtype(np.uint8)


def view(x: Any, dtype: Any) -> Any:
    """The bytes of `x` as elements of another dtype, as `x.view(dtype)`.

    With elements of another size the last axis grows or shrinks. Real and imaginary
    parts are differentiated through; the bits of a number have no derivative. Raises
    ShapeError if the bytes do not suffice.

    >>> view(np.array([1.0, -0.0], np.float32), np.uint32)
    array([1065353216, 2147483648], dtype=uint32)
    >>> view(np.array([1 + 2j]), np.float64)
    array([1., 2.])
    """
    x, target = lift(x), as_dtype(dtype)
    t = type_of(x)
    if t.dtype == target:
        return cast(x, target)
    shape = viewed_shape(t, target)
    parts = UINT8 if target == BOOL else real_part(target)
    y = regrouped(parts_of(x), parts)
    pairs = reshape(y, (*shape, target.itemsize // parts.itemsize))
    first = getitem(pairs, (..., 0))
    if target in COMPLEX:
        return COMPLEX_OF(first, getitem(pairs, (..., 1)))
    return elementwise.not_equal(first, 0) if target == BOOL else first


def viewed_shape(t: ArrayType, target: np.dtype) -> tuple[int, ...]:
    old, new = t.dtype.itemsize, target.itemsize
    if old == new:
        return t.shape
    if not t.shape:
        what = f"view of {t} as {target}: an array of no axes keeps the size of its elements"
        raise ShapeError(what, where=here(), fix="x[None].view(dtype)")
    if t.shape[-1] * old % new:
        what = f"view of {t} as {target}: the last axis has {t.shape[-1] * old} bytes, no multiple of {new}"
        raise ShapeError(what, where=here(), fix="another dtype, or x padded along its last axis")
    return (*t.shape[:-1], t.shape[-1] * old // new)


def parts_of(x: Any) -> Any:
    """The real and imaginary parts, or the one number, of each element along the last axis."""
    t = type_of(x)
    if t.dtype in COMPLEX:
        pairs = stack([REAL_PART(x), IMAG(x)], -1)
        return reshape(pairs, (*t.shape[:-1], 2 * t.shape[-1]) if t.shape else (2,))
    x = cast(x, UINT8) if t.dtype == BOOL else x
    return x if t.shape else reshape(x, (1,))


def regrouped(x: Any, dtype: np.dtype) -> Any:
    """The bytes of the last axis as numbers of another dtype."""
    t = type_of(x)
    old, new = t.dtype.itemsize, dtype.itemsize
    if old == new:
        return same_size(x, dtype)
    bits, small = same_size(x, unsigned(old)), unsigned(min(old, new))
    shifts = [8 * small.itemsize * i for i in range(max(old, new) // small.itemsize)]
    if old > new:
        cut = [cast(elementwise.right_shift(bits, bits_type(s, bits)), small) for s in shifts]
        return same_size(reshape(stack(cut, -1), (*t.shape[:-1], t.shape[-1] * old // new)), dtype)
    groups = cast(
        reshape(bits, (*t.shape[:-1], t.shape[-1] * old // new, len(shifts))), unsigned(new)
    )
    y = getitem(groups, (..., 0))
    for i, s in enumerate(shifts[1:], 1):
        y = elementwise.bitwise_or(
            y, elementwise.left_shift(getitem(groups, (..., i)), bits_type(s, y))
        )
    return same_size(y, dtype)


def same_size(x: Any, dtype: np.dtype) -> Any:
    return x if type_of(x).dtype == dtype else BitcastConvertType(dtype)(x)


def unsigned(size: int) -> np.dtype:
    return np.dtype(f"u{size}")


def bits_type(number: int, like: Any) -> Any:
    """A number in the dtype of an array."""
    return type_of(like).dtype.type(number)
