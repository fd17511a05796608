"""The type of an array: what is known of it before it is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import field
from typing import Any

import numpy as np

from ge2.base.dtypes import PYTHON, short
from ge2.base.errors import InputError
from ge2.base.pytree import register_leaf
from ge2.base.record import record
from ge2.base.source import here

Dims = tuple[int, ...]


class Shaped:
    """What follows from a shape."""

    __slots__ = ()
    shape: Dims

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@record
class ArrayType(Shaped):
    """Shape, dtype, and whether it is weak: a Python number, whose dtype yields to any array's.

    >>> print(ArrayType((2, 3), np.dtype("float32")))
    f32[2,3]
    """

    shape: Dims
    dtype: np.dtype
    weak: bool = False

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Dims) -> ArrayType:
        return ArrayType(shape, self.dtype)

    def with_dtype(self, dtype: np.dtype) -> ArrayType:
        return ArrayType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{'~' if self.weak else ''}{short(self.dtype)}[{','.join(map(str, self.shape))}]"


@register_leaf
@record
class ShapeDtypeStruct(Shaped):
    """The shape and dtype of an array that is not there; with `weak_type`, of a Python number.

    InputError for a shape that is no sequence of sizes, or a dtype that is none.

    >>> s = ShapeDtypeStruct((2, 3), "float32")
    >>> s, s.ndim, s.size
    (ShapeDtypeStruct(shape=(2, 3), dtype=dtype('float32')), 2, 6)
    """

    shape: Dims
    dtype: Any
    weak_type: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))
        object.__setattr__(self, "dtype", checked_dtype(self.dtype))

    @property
    def type(self) -> ArrayType:
        return ArrayType(self.shape, self.dtype, self.weak_type)

    def __dlpack__(self) -> Any:
        raise BufferError("a ShapeDtypeStruct has no elements")


def no_struct(what: str) -> InputError:
    return InputError(f"the {what}", where=here(), fix="ge2.ShapeDtypeStruct((2, 3), np.float32)")


def checked_shape(shape: Any) -> Dims:
    sizes = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (None,)
    if not all(hasattr(n, "__index__") and n >= 0 for n in sizes):
        raise no_struct(f"shape of a ShapeDtypeStruct is a tuple of sizes; got {shape!r}")
    return tuple(n.__index__() for n in sizes)


def checked_dtype(dtype: Any) -> np.dtype:
    found: np.dtype | None = None
    with suppress(TypeError):
        found = None if dtype is None else np.dtype(dtype)
    if found is None:
        raise no_struct(f"dtype of a ShapeDtypeStruct is a dtype or its name; got {dtype!r}")
    return found


_scalars: dict[type, ArrayType] = {t: ArrayType((), d, weak=True) for t, d in PYTHON.items()}


def type_of(value: Any) -> ArrayType:
    """The type of a traced value, an array, a NumPy scalar or a Python number."""
    weak = _scalars.get(type(value))
    if weak is not None:
        return weak
    own = getattr(value, "type", None)
    if isinstance(own, ArrayType):
        return own
    if isinstance(value, (np.ndarray, np.generic)):
        return ArrayType(value.shape, value.dtype)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
        return ArrayType(shape, dtype)
    raise InputError(
        f"{type(value).__name__} is neither an array nor a number", fix="np.asarray(x)"
    )
