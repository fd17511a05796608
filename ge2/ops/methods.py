"""The vocabulary of `ir.Value`, in terms of operations: what rules ask
of the arrays they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX
from ge2.ir import ArrayType, Dims
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import BY_NAME, CONJ, EQ, NE, WHERE, ConvertElementType
from ge2.ops.index import Gather, ScatterAdd
from ge2.ops.reduce import ReduceMax, ReduceOr, ReduceProd, ReduceSum
from ge2.ops.scan import CumProd, CumSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Rev, Slice, Transpose
from ge2.ops.sort import ArgSort

RUNNING = {"sum": CumSum, "prod": CumProd}


class ArrayMethods:
    """Mixed into whatever stands for an array and has a `type`."""

    __slots__ = ()
    type: ArrayType

    def scalar(self, number: Any) -> Any:
        """A number in this array's dtype; arrays pass through."""
        return (
            self.type.dtype.type(number)
            if isinstance(number, bool | int | float | complex)
            else number
        )

    # fmt: off
    def same(self, other: Any) -> Any: return EQ(self, self.scalar(other))
    def differs(self, other: Any) -> Any: return NE(self, self.scalar(other))
    def select(self, a: Any, b: Any) -> Any: return WHERE(self, a, b)
    def pointwise(self, name: str, *others: Any) -> Any: return BY_NAME[name](self, *map(self.scalar, others))
    def zeros(self) -> Any: return self.filled(0)
    def ones(self) -> Any: return self.filled(1)
    def fold_sum(self, axes: Dims) -> Any: return ReduceSum(tuple(sorted(axes)))(self) if axes else self
    def fold_prod(self, axes: Dims) -> Any: return ReduceProd(tuple(sorted(axes)))(self) if axes else self
    def fold_max(self, axes: Dims) -> Any: return ReduceMax(tuple(sorted(axes)))(self) if axes else self
    def fold_or(self, axes: Dims) -> Any: return ReduceOr(tuple(sorted(axes)))(self) if axes else self
    # fmt: on

    def filled(self, number: int) -> Any:
        t = self.type
        return BroadcastInDim(t.shape, ())(t.dtype.type(number))

    def cast(self, dtype: np.dtype, weak: bool = False) -> Any:
        if self.type.dtype == dtype and self.type.weak == weak:
            return self
        return ConvertElementType(dtype, weak)(self)

    def conj(self) -> Any:
        return CONJ(self) if self.type.dtype in COMPLEX else self

    def spread(self, shape: Dims, dims: Dims) -> Any:
        return self if shape == self.type.shape else BroadcastInDim(shape, dims)(self)

    def reorder(self, order: Dims) -> Any:
        return self if order == tuple(range(len(order))) else Transpose(order)(self)

    def reshaped(self, shape: Dims) -> Any:
        return self if shape == self.type.shape else Reshape(shape)(self)

    def move_axis(self, source: int, target: int) -> Any:
        if source == target:
            return self
        order = [i for i in range(self.type.ndim) if i != source]
        order.insert(target, source)
        return Transpose(tuple(order))(self)

    def sliced(self, start: Dims, stop: Dims, step: Dims) -> Any:
        if stop == self.type.shape and not any(start) and all(s == 1 for s in step):
            return self
        return Slice(start, stop, step)(self)

    def padded(self, low: Dims, high: Dims, inner: Dims) -> Any:
        return Pad(low, high, inner)(self) if any((*low, *high, *inner)) else self

    def reversed_along(self, axes: Dims) -> Any:
        return Rev(axes)(self) if axes else self

    def joined(self, others: Sequence[Any], axis: int) -> Any:
        return Concatenate(axis)(self, *others) if others else self

    def count(self, shape: Dims, axis: int, dtype: np.dtype) -> Any:
        return Iota(shape, axis, dtype)()

    def dot(self, other: Any, contract: Any, beside: Any = ((), ()), **params: Any) -> Any:
        return DotGeneral(contract, beside, **params)(self, other)

    def gathered(self, axes: Dims, *indices: Any) -> Any:
        return Gather(axes)(self, *indices)

    def scatter_added(self, axes: Dims, updates: Any, *indices: Any) -> Any:
        return ScatterAdd(axes)(self, updates, *indices)

    def running(self, kind: str, axis: int, reverse: bool = False) -> Any:
        return RUNNING[kind](axis, reverse)(self)

    def sorting(self, axis: int) -> Any:
        return ArgSort(axis)(self)
