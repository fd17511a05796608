"""Dtypes, questions about them, and constants, under NumPy's names."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, EXTENDED, FLOATS, INEXACT, INTEGERS, promote
from ge2.base.dtypes import can_cast as allowed
from ge2.base.errors import ArgumentError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy.promotion import as_dtype, kind_of, lift, one_axis, result_of

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
    """Whether a dtype is of a kind, or of one of several, as `numpy.isdtype`; half
    types are real floating.

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
    """Whether a cast is allowed by a rule, as `numpy.can_cast`; of an array its dtype counts."""
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
    """Whether the argument is a number, not an array; weak traced values are numbers."""
    t = getattr(element, "type", None)
    return t.weak if t is not None and hasattr(t, "weak") else np.isscalar(element)


def iterable(y: Any) -> bool:
    """Whether the argument has elements to go through."""
    return hasattr(y, "__iter__") and not (hasattr(y, "type") and not type_of(y).shape)
