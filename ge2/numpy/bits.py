"""The bytes of an array as elements of another dtype, least significant byte first."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, real_part
from ge2.base.errors import ShapeError
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.indexing import getitem
from ge2.numpy.joining import stack
from ge2.numpy.promotion import as_dtype, cast, lift, reshape
from ge2.ops.elementwise import COMPLEX_OF, IMAG, REAL_PART
from ge2.ops.sort import BitcastConvertType

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
    return e.not_equal(first, 0) if target == BOOL else first


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
        cut = [cast(e.right_shift(bits, bits_type(s, bits)), small) for s in shifts]
        return same_size(reshape(stack(cut, -1), (*t.shape[:-1], t.shape[-1] * old // new)), dtype)
    groups = cast(
        reshape(bits, (*t.shape[:-1], t.shape[-1] * old // new, len(shifts))), unsigned(new)
    )
    y = getitem(groups, (..., 0))
    for i, s in enumerate(shifts[1:], 1):
        y = e.bitwise_or(y, e.left_shift(getitem(groups, (..., i)), bits_type(s, y)))
    return same_size(y, dtype)


def same_size(x: Any, dtype: np.dtype) -> Any:
    return x if type_of(x).dtype == dtype else BitcastConvertType(dtype)(x)


def unsigned(size: int) -> np.dtype:
    return np.dtype(f"u{size}")


def bits_type(number: int, like: Any) -> Any:
    """A number in the dtype of an array."""
    return type_of(like).dtype.type(number)
