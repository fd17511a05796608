"""Sorting along an axis, stably and with NaN last, as NumPy does; the largest;
searching what is sorted.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, EXTENDED, FLOAT32, INT64
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axes, Batched, Cotangents, Flags, Op, Value, Values
from ge2.ir.graph import SIMPLE
from ge2.ops.index import leading
from ge2.ops.pointlike import Pointlike


def comparable(x: Any) -> Any:
    """In a dtype whose order NumPy knows: bfloat16 and fp8 as float32."""
    x = np.asarray(x)
    return x.astype(FLOAT32) if x.dtype in EXTENDED else x


def along(x: Value, order: Value, axis: int) -> list[Value]:
    """An index for each axis of `x` that picks, along `axis`, what `order` says."""
    return [order if i == axis else x.count(x.shape, i, INT64) for i in range(x.ndim)]


class Ordering(Op):
    """One array in, one of its shape out, each line along `axis` by itself."""

    __slots__ = ()
    may_alias = False
    axis: int

    def result(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.axis < x.ndim:
            raise ShapeError(
                f"{self.name} along axis {self.axis} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        return x.with_shape(x.shape)

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        return (type(self)(self.axis + (self.axis >= axis))(x),), (axis,)  # type: ignore[call-arg]


@final
@record
class Sort(Ordering):
    axis: int
    name = "sort"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        return (self.result(x),)

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        return np.sort(comparable(x), self.axis, kind="stable").astype(x.dtype, copy=False)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (x,) = cts, xs
        assert ct is not None
        back = along(x, x.sorting(self.axis), self.axis)
        return [ct.zeros().scatter_added(tuple(range(x.ndim)), ct, *back)]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        (t,), (x,) = ts, xs
        assert t is not None
        return [t.gathered(tuple(range(x.ndim)), *along(x, x.sorting(self.axis), self.axis))]


@final
@record
class ArgSort(Ordering):
    """The indices, as int64, that sort each line; equal elements keep their order."""

    axis: int
    name = "argsort"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        return (self.result(x).with_dtype(INT64),)

    def reference(self, *arrays: Any) -> Any:
        return np.argsort(comparable(arrays[0]), self.axis, kind="stable").astype(INT64, copy=False)


@final
@record
class TopK(Op):
    """The `k` largest of each line along `axis`, the largest first, and their indices as int64.

    Of equal elements the first comes first. NaN is larger than all numbers, whatever its sign, and
    -0.0 equals 0.0, as in `sort`, whose last elements these are in the other order.
    """

    k: int
    axis: int
    name = "top_k"
    may_alias = False
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype in COMPLEX:
            raise TypeRuleError(f"top_k takes real numbers; got {x}", fix="abs(x), x.real")
        if not 0 <= self.axis < x.ndim:
            raise ShapeError(
                f"top_k along axis {self.axis} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        if not 0 <= self.k <= x.shape[self.axis]:
            n = x.shape[self.axis]
            raise ShapeError(
                f"top_k of {self.k} elements along axis {self.axis} of {x}", fix=f"k from 0 to {n}"
            )
        found = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return found, found.with_dtype(INT64)

    def reference(self, *arrays: Any) -> Any:
        (x,), axis = arrays, self.axis
        x = np.asarray(x)
        # backwards, so that the first of equals is the last of them
        order = np.argsort(np.flip(comparable(x), axis), axis, kind="stable")
        first = (*(slice(None),) * axis, slice(None, self.k))
        at = (x.shape[axis] - 1 - np.flip(order, axis))[first].astype(INT64, copy=False)
        return np.take_along_axis(x, at, axis), at

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct, _), (_, at), (x,) = cts, ys, xs
        if ct is None:
            return [None]
        return [x.zeros().scatter_added(tuple(range(x.ndim)), ct, *along(at, at, self.axis))]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        (t,), (_, at) = ts, ys
        assert t is not None
        return [t.gathered(tuple(range(t.ndim)), *along(at, at, self.axis)), None]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        later = self.axis >= axis
        return TopK(self.k, self.axis + later)(x), (axis, axis)


@final
@record
class SearchSorted(Op):
    """The index at which each value would be inserted: (sorted[n], values) -> int64, before or
    after its equals by `side`.

    The first `beside` axes are shared: a value is sought in the line at its own place.
    """

    side: str = "left"
    beside: int = 0
    name = "searchsorted"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        line, values = types
        if self.side not in ("left", "right"):
            raise TypeRuleError(f"side is 'left' or 'right'; got {self.side!r}")
        if line.dtype != values.dtype:
            raise TypeRuleError(
                f"searchsorted takes arrays of one dtype; got {line}, {values}", fix="astype"
            )
        if line.ndim != self.beside + 1 or line.shape[:-1] != values.shape[: self.beside]:
            raise ShapeError(
                f"searchsorted takes a sorted array of one axis; got {line} for values {values}"
            )
        return (ArrayType(values.shape, INT64),)

    def reference(self, *arrays: Any) -> Any:
        line, values = map(comparable, arrays)
        side: Any = self.side
        if not self.beside:
            return np.asarray(np.searchsorted(line, values, side)).astype(INT64, copy=False)
        many = math.prod(line.shape[:-1])
        found = np.empty(values.shape, INT64)
        each = found.reshape(many, math.prod(values.shape[self.beside :]))
        for y, a, v in zip(
            each, line.reshape(many, line.shape[-1]), values.reshape(each.shape), strict=True
        ):
            y[:] = np.searchsorted(a, v, side)
        return found

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (line, values), (of_line, of_values) = xs, axes
        if of_line is None and not self.beside:
            return (self(line, values),), (of_values,)
        line, values = leading(line, of_line, size), leading(values, of_values, size)
        return (SearchSorted(self.side, self.beside + 1)(line, values),), (0,)


# -------------------------------------------------------------------------------------------- bits
# The bits of an element as an element of another dtype of the same size.


@final
@record
class BitcastConvertType(Pointlike):
    """The same bits in another dtype of that size; integers and floats.

    Bits have no derivative: what is made of them counts as a constant.
    """

    dtype: np.dtype
    name = "bitcast_convert_type"
    cost = SIMPLE
    retypes = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype.itemsize != self.dtype.itemsize or {x.dtype, self.dtype} & {BOOL, *COMPLEX}:
            what = f"bitcast_convert_type takes integers or floats of the size of {self.dtype}; got {x}"
            raise TypeRuleError(what, fix="x.view(dtype)")
        return (ArrayType(x.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        x = arrays[0] if hasattr(arrays[0], "dtype") else np.asarray(arrays[0])
        return x.view(self.dtype)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [None]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        return [None]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (self(*xs),), axes


@final
@record
class ToFront(Op):
    """The elements of a vector that a mask chooses, one after another, then one number in place of each
    other: (mask, x, rest). A target makes it of writes at the running sum of a mask.
    """

    name = "to_front"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        mask, x, rest = types
        fits = mask.dtype == BOOL and mask.shape == x.shape and x.ndim == 1 and not rest.shape
        if not fits or rest.dtype != x.dtype:
            raise TypeRuleError(
                f"{self.name} takes a mask, a vector of its shape and a number; got {mask}, {x}, {rest}"
            )
        return (x.with_shape(x.shape),)

    def reference(self, *arrays: Any) -> Any:
        mask, x, rest = arrays
        y = np.full(x.shape, rest, x.dtype)
        y[: np.count_nonzero(mask)] = x[mask]
        return y
