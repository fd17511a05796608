"""Every operation, each whole in one place; `ALL` lists them, `TABLE` makes them by name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX
from ge2.ir import ArrayType, Dims, Op
from ge2.ops.attention.ops import ATTENTION as ATTENTION
from ge2.ops.attention.ops import FusedAttention as FusedAttention
from ge2.ops.attention.ops import FusedBackward as FusedBackward
from ge2.ops.dot import Contraction as Contraction
from ge2.ops.dot import DotGeneral as DotGeneral
from ge2.ops.dot import Fft as Fft
from ge2.ops.dot import Irfft as Irfft
from ge2.ops.dot import Rfft as Rfft
from ge2.ops.elementwise import BY_NAME as BY_NAME
from ge2.ops.elementwise import CONJ, EQ, NE, WHERE
from ge2.ops.elementwise import ELEMENTWISE as ELEMENTWISE
from ge2.ops.elementwise import Complex as Complex
from ge2.ops.elementwise import ConvertElementType as ConvertElementType
from ge2.ops.elementwise import IntegerPow as IntegerPow
from ge2.ops.elementwise import Ldexp as Ldexp
from ge2.ops.elementwise import Where as Where
from ge2.ops.graphs.associative import AssociativeScan as AssociativeScan
from ge2.ops.graphs.associative import AssociativeScanSaving as AssociativeScanSaving
from ge2.ops.graphs.control import CONTROL as CONTROL
from ge2.ops.graphs.control import Call as Call
from ge2.ops.graphs.control import CallSaving as CallSaving
from ge2.ops.graphs.control import Checkpoint as Checkpoint
from ge2.ops.graphs.control import CheckpointSaving as CheckpointSaving
from ge2.ops.graphs.control import Cond as Cond
from ge2.ops.graphs.control import CondSaving as CondSaving
from ge2.ops.graphs.custom import CUSTOM as CUSTOM
from ge2.ops.graphs.custom import CustomBatch as CustomBatch
from ge2.ops.graphs.custom import CustomBatchSaving as CustomBatchSaving
from ge2.ops.graphs.custom import CustomJvp as CustomJvp
from ge2.ops.graphs.custom import CustomJvpSaving as CustomJvpSaving
from ge2.ops.graphs.custom import CustomVjp as CustomVjp
from ge2.ops.graphs.custom import CustomVjpSaving as CustomVjpSaving
from ge2.ops.graphs.effects import EFFECTS as EFFECTS
from ge2.ops.graphs.effects import DebugCallback as DebugCallback
from ge2.ops.graphs.effects import DebugPrint as DebugPrint
from ge2.ops.graphs.effects import PureCallback as PureCallback
from ge2.ops.graphs.loops import ScanLoop as ScanLoop
from ge2.ops.graphs.loops import ScanSaving as ScanSaving
from ge2.ops.graphs.while_loop import SOLVES as SOLVES
from ge2.ops.graphs.while_loop import LinearSolve as LinearSolve
from ge2.ops.graphs.while_loop import LinearSolveSaving as LinearSolveSaving
from ge2.ops.graphs.while_loop import Root as Root
from ge2.ops.graphs.while_loop import RootSaving as RootSaving
from ge2.ops.graphs.while_loop import WhileLoop as WhileLoop
from ge2.ops.index import Gather as Gather
from ge2.ops.index import Scatter as Scatter
from ge2.ops.index import ScatterAdd as ScatterAdd
from ge2.ops.index import ScatterMax as ScatterMax
from ge2.ops.index import ScatterMin as ScatterMin
from ge2.ops.index import UpdateSlice as UpdateSlice
from ge2.ops.linalg import Cholesky as Cholesky
from ge2.ops.linalg import Cofactors as Cofactors
from ge2.ops.linalg import Det as Det
from ge2.ops.linalg import Pinv as Pinv
from ge2.ops.linalg import SlogDet as SlogDet
from ge2.ops.linalg import Solve as Solve
from ge2.ops.linalg.decompositions import Eig as Eig
from ge2.ops.linalg.decompositions import Eigh as Eigh
from ge2.ops.linalg.decompositions import Qr as Qr
from ge2.ops.linalg.decompositions import Svd as Svd
from ge2.ops.pointlike import Elementwise as Elementwise
from ge2.ops.pointlike import Pointwise as Pointwise
from ge2.ops.random import RandomBits as RandomBits
from ge2.ops.random import RandomFold as RandomFold
from ge2.ops.reduce import ArgMax as ArgMax
from ge2.ops.reduce import ArgMin as ArgMin
from ge2.ops.reduce import CumMax as CumMax
from ge2.ops.reduce import CumMin as CumMin
from ge2.ops.reduce import CumProd as CumProd
from ge2.ops.reduce import CumSum as CumSum
from ge2.ops.reduce import Fold as Fold
from ge2.ops.reduce import ReduceAnd as ReduceAnd
from ge2.ops.reduce import ReduceMax as ReduceMax
from ge2.ops.reduce import ReduceMin as ReduceMin
from ge2.ops.reduce import ReduceOr as ReduceOr
from ge2.ops.reduce import ReduceProd as ReduceProd
from ge2.ops.reduce import ReduceSum as ReduceSum
from ge2.ops.reduce import Scan as Scan
from ge2.ops.shape import Barrier as Barrier
from ge2.ops.shape import BroadcastInDim as BroadcastInDim
from ge2.ops.shape import Concatenate as Concatenate
from ge2.ops.shape import Constant as Constant
from ge2.ops.shape import Iota as Iota
from ge2.ops.shape import Name as Name
from ge2.ops.shape import Pad as Pad
from ge2.ops.shape import Reshape as Reshape
from ge2.ops.shape import Rev as Rev
from ge2.ops.shape import Slice as Slice
from ge2.ops.shape import StopGradient as StopGradient
from ge2.ops.shape import Transpose as Transpose
from ge2.ops.shape import View as View
from ge2.ops.sort import ArgSort as ArgSort
from ge2.ops.sort import BitcastConvertType as BitcastConvertType
from ge2.ops.sort import SearchSorted as SearchSorted
from ge2.ops.sort import Sort as Sort
from ge2.ops.sort import TopK as TopK
from ge2.ops.special import SPECIAL as SPECIAL
from ge2.ops.special import Bessel as Bessel
from ge2.ops.special import Polygamma as Polygamma

# -------- The vocabulary of `ir.Value`, in terms of operations: what rules ask of the arrays they
# are given.


class ArrayMethods:
    """Mixed into whatever stands for an array and has a `type`."""

    __slots__ = ()
    type: ArrayType

    def scalar(self, number: Any) -> Any:
        """A number in this array's dtype; arrays pass through."""
        return (
            self.type.dtype.type(number)
            if issubclass(type(number), bool | int | float | complex)
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

    def sorting(self, axis: int) -> Any:
        return ArgSort(axis)(self)


# -------- Every operation, each whole in one place; `ALL` lists them, `TABLE` makes them by name.


# "repeat" is made by a pass
LOOPS: tuple[type[Op], ...] = (
    ScanLoop,
    ScanSaving,
    WhileLoop,
    AssociativeScan,
    AssociativeScanSaving,
)
# fmt: off
CLASSES: tuple[type[Op], ...] = (
    Complex, Where, ConvertElementType, BitcastConvertType, IntegerPow, Ldexp,
    ReduceSum, ReduceProd, ReduceMax, ReduceMin, ReduceOr, ReduceAnd, ArgMax, ArgMin,
    BroadcastInDim, Transpose, Reshape, Slice, Rev, Pad, Concatenate, Iota, Constant,
    StopGradient, Barrier, Name,
    DotGeneral, Gather, ScatterAdd, ScatterMax, ScatterMin, Scatter, UpdateSlice,
    CumSum, CumProd, CumMax, CumMin, Sort, ArgSort, TopK, SearchSorted, RandomBits, RandomFold,
    Fft, Rfft, Irfft, Solve, Pinv, Det, Cofactors, SlogDet, Cholesky, Qr, Eigh, Eig, Svd, Polygamma, Bessel,
)
# fmt: on

NAMED = (*ELEMENTWISE, *SPECIAL)  # single values; of the others there are classes
ALL: tuple[Op | type[Op], ...] = (*NAMED, *CLASSES, *CONTROL, *LOOPS, *CUSTOM, *SOLVES, *EFFECTS)
TABLE: dict[str, Callable[..., Op]] = {
    **{op.name: (lambda op=op: op) for op in NAMED},
    **{op.name: op for op in (*CLASSES, *CONTROL, *LOOPS, *CUSTOM, *SOLVES, *EFFECTS, *ATTENTION)},
}
OWN: dict[str, Callable[..., Op]] = {}  # of users, by name
KNOWN = ChainMap(TABLE, OWN)  # what the text of a graph may name
# names of users' operations that were defined again: the text means the latest
REPLACED: set[str] = set()
