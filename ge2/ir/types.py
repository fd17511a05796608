"""The type of an array, and a value as the rules of operations see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from ge2.base.arrays import PYTHON, short
from ge2.base.errors import InputError
from ge2.base.pytree import register_leaf
from ge2.base.record import record
from ge2.base.source import here

# -------- The type of an array: what is known of it before it is computed.


Dims = tuple[int, ...]


class Shaped:
    """The attributes that follow from a shape."""

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


def is_traced(x: Any) -> bool:
    """True of a value of a trace, which has a cell in place of elements."""
    return hasattr(x, "cell")


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


# ------------------------------------------------------------------------------------------- value
# The vocabulary of rules: what a derivative or batching rule may ask of an array.
#
# Rules call methods of the values they are given and import no other operation, so no two operation
# files need each other. The operators broadcast and promote as NumPy's do.


Number = bool | int | float | complex
Pair = tuple[Dims, Dims]


class Value(Protocol):
    @property
    def type(self) -> ArrayType: ...
    @property
    def shape(self) -> Dims: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype: ...

    def __neg__(self) -> Value: ...
    def __invert__(self) -> Value: ...
    def __add__(self, other: Any) -> Value: ...
    def __radd__(self, other: Any) -> Value: ...
    def __sub__(self, other: Any) -> Value: ...
    def __rsub__(self, other: Any) -> Value: ...
    def __mul__(self, other: Any) -> Value: ...
    def __rmul__(self, other: Any) -> Value: ...
    def __truediv__(self, other: Any) -> Value: ...
    def __rtruediv__(self, other: Any) -> Value: ...
    def __pow__(self, other: Any) -> Value: ...
    def __and__(self, other: Any) -> Value: ...
    def __or__(self, other: Any) -> Value: ...
    def __lt__(self, other: Any) -> Value: ...
    def __le__(self, other: Any) -> Value: ...
    def __gt__(self, other: Any) -> Value: ...
    def __ge__(self, other: Any) -> Value: ...

    # elementwise
    def same(self, other: Any) -> Value: ...  # ==, as bool
    def differs(self, other: Any) -> Value: ...  # !=, as bool
    def select(self, a: Any, b: Any) -> Value: ...  # self is a bool mask: a where it holds, else b
    # the elementwise op of this name, e.g. "sin"
    def pointwise(self, name: str, *others: Any) -> Value: ...
    def cast(self, dtype: np.dtype, weak: bool = False) -> Value: ...
    def conj(self) -> Value: ...  # the value itself where it is real
    def zeros(self) -> Value: ...  # of this shape and dtype
    def ones(self) -> Value: ...

    # reductions over the given axes, which leave the shape
    def fold_sum(self, axes: Dims) -> Value: ...
    def fold_max(self, axes: Dims) -> Value: ...
    def fold_or(self, axes: Dims) -> Value: ...

    # shape
    # broadcast_in_dim: axis i becomes axis dims[i]
    def spread(self, shape: Dims, dims: Dims) -> Value: ...
    def reorder(self, order: Dims) -> Value: ...  # transpose
    def reshaped(self, shape: Dims) -> Value: ...
    def move_axis(self, source: int, target: int) -> Value: ...
    def sliced(self, start: Dims, stop: Dims, step: Dims) -> Value: ...
    # with zeros; negative low/high crop
    def padded(self, low: Dims, high: Dims, inner: Dims) -> Value: ...
    def reversed_along(self, axes: Dims) -> Value: ...
    # concatenate [self, *others]
    def joined(self, others: Sequence[Value], axis: int) -> Value: ...
    # iota of that shape along axis
    def count(self, shape: Dims, axis: int, dtype: np.dtype) -> Value: ...

    # products, indices, orders
    def dot(
        self, other: Value, contract: Pair, beside: Pair = ((), ()), **params: Any
    ) -> Value: ...
    def gathered(self, axes: Dims, *indices: Value) -> Value: ...
    def scatter_added(self, axes: Dims, updates: Value, *indices: Value) -> Value: ...
    def sorting(self, axis: int) -> Value: ...  # argsort, stable
