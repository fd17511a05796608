"""The type of an array: what is known of it before it is computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge2.base.dtypes import PYTHON, short
from ge2.base.errors import InputError
from ge2.base.record import record

Dims = tuple[int, ...]


@record
class ArrayType:
    """Shape, dtype, and whether it is weak: a Python number, whose dtype yields to any array's.

    >>> print(ArrayType((2, 3), np.dtype("float32")))
    f32[2,3]
    """

    shape: Dims
    dtype: np.dtype
    weak: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Dims) -> ArrayType:
        return ArrayType(shape, self.dtype)

    def with_dtype(self, dtype: np.dtype) -> ArrayType:
        return ArrayType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{'~' if self.weak else ''}{short(self.dtype)}[{','.join(map(str, self.shape))}]"


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
    raise InputError(f"{type(value).__name__} is neither an array nor a number", fix="np.asarray(x)")
