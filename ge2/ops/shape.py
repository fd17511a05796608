"""Operations that move elements without changing them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from operator import mul
from typing import Any, final

import numpy as np

from ge2.base.errors import ShapeError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Axes,
    Axis,
    Batched,
    Cotangents,
    Dims,
    Eqn,
    Flags,
    Lowering,
    Op,
    Value,
    Values,
    Var,
)
from ge2.ir.graph import FREE, SIMPLE


@record
class View(Lowering):
    """No kernel: the reader indexes through it."""


def place_along(shape: Dims, axis: int, n: int) -> Slice:
    """The slice of a place along an axis, which stays, with size 1."""
    start = tuple(n if a == axis else 0 for a in range(len(shape)))
    stop = tuple(n + 1 if a == axis else size for a, size in enumerate(shape))
    return Slice(start, stop, (1,) * len(shape))


def inverse(order: Dims) -> Dims:
    return tuple(order.index(i) for i in range(len(order)))


def front(x: Value, axis: Axis) -> Value:
    """The batched value with its batch axis first."""
    assert axis is not None
    return x.move_axis(axis, 0)


class Unary(Op):
    """One array in, one out, linear, its results independent of the values."""

    __slots__ = ()
    cost = FREE
    linear = is_view = True
    lowering = View()

    def refuse(self, why: str) -> ShapeError:
        return ShapeError(f"{self.name}: {why}")


@final
@record
class BroadcastInDim(Unary):
    """Input axis `i` becomes axis `dims[i]` of the result; the other axes are new."""

    shape: Dims
    dims: Dims
    name = "broadcast_in_dim"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        ordered = list(self.dims) == sorted(set(self.dims)) and set(self.dims) <= set(
            range(len(self.shape))
        )
        if not ordered or tuple(self.shape[d] for d in self.dims) != x.shape:
            raise self.refuse(f"{x} does not broadcast to {self.shape} along axes {self.dims}")
        return (x.with_shape(self.shape),)

    def reference(self, *arrays: Any) -> Any:
        x = np.asarray(arrays[0])
        new = tuple(i for i in range(len(self.shape)) if i not in self.dims)
        return np.broadcast_to(np.expand_dims(x, new), self.shape)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        assert cts[0] is not None
        ct = cts[0].fold_sum(tuple(i for i in range(len(self.shape)) if i not in self.dims))
        return [ct.cast(ct.dtype, weak=True) if xs[0].type.weak else ct]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        x = front(xs[0], axes[0])
        return (x.spread((size, *self.shape), (0, *(d + 1 for d in self.dims))),), (0,)


@final
@record
class Transpose(Unary):
    """Axis `i` of the result is axis `order[i]` of the input."""

    order: Dims
    name = "transpose"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if sorted(self.order) != list(range(x.ndim)):
            raise self.refuse(f"{self.order} is no order of the axes of {x}")
        return (x.with_shape(tuple(x.shape[i] for i in self.order)),)

    def reference(self, *arrays: Any) -> Any:
        return np.transpose(arrays[0], self.order)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        assert cts[0] is not None
        return [cts[0].reorder(inverse(self.order))]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        x = front(xs[0], axes[0])
        return (x.reorder((0, *(i + 1 for i in self.order))),), (0,)


@final
@record
class Reshape(Unary):
    """The same elements, in row-major order, under another shape."""

    shape: Dims
    name = "reshape"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.size != math.prod(self.shape):
            raise self.refuse(
                f"{x} has {x.size} elements, shape {self.shape} has {math.prod(self.shape)}"
            )
        return (x.with_shape(self.shape),)

    def reference(self, *arrays: Any) -> Any:
        return np.reshape(arrays[0], self.shape)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        assert cts[0] is not None
        ct = cts[0].reshaped(xs[0].shape)
        return [ct.cast(ct.dtype, weak=True) if xs[0].type.weak else ct]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (front(xs[0], axes[0]).reshaped((size, *self.shape)),), (0,)


@final
@record
class Slice(Unary):
    """Elements `start, start + step, ...` before `stop` along each axis; steps are positive."""

    start: Dims
    stop: Dims
    step: Dims
    name = "slice"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if not len(self.start) == len(self.stop) == len(self.step) == x.ndim:
            raise self.refuse(f"start, stop and step have one number for each axis of {x}")
        bounds = zip(self.start, self.stop, self.step, x.shape, strict=True)
        if any(not 0 <= a <= b <= n or s < 1 for a, b, s, n in bounds):
            raise self.refuse(
                f"{self.start} to {self.stop} in steps of {self.step} lies outside {x}"
            )
        ends = zip(self.start, self.stop, self.step, strict=True)
        return (x.with_shape(tuple(-(-(b - a) // s) for a, b, s in ends)),)

    def reference(self, *arrays: Any) -> Any:
        return arrays[0][tuple(map(slice, self.start, self.stop, self.step))]

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (x,) = cts, xs
        assert ct is not None
        sides = zip(x.shape, self.start, self.step, ct.shape, strict=True)
        high = tuple(n - (a + (m - 1) * s + 1 if m else a) for n, a, s, m in sides)
        return [ct.padded(self.start, high, tuple(s - 1 for s in self.step))]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        x = front(xs[0], axes[0])
        return (x.sliced((0, *self.start), (size, *self.stop), (1, *self.step)),), (0,)


@final
@record
class Rev(Unary):
    """The elements along `axes` in reverse."""

    axes: Dims
    name = "rev"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if len(set(self.axes)) != len(self.axes) or not set(self.axes) <= set(range(x.ndim)):
            raise self.refuse(f"axes {self.axes} of {x}, which has axes 0 to {x.ndim - 1}")
        return (x.with_shape(x.shape),)

    def reference(self, *arrays: Any) -> Any:
        return np.flip(arrays[0], self.axes)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        assert cts[0] is not None
        return [cts[0].reversed_along(self.axes)]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (front(xs[0], axes[0]).reversed_along(tuple(a + 1 for a in self.axes)),), (0,)


def slice_before_reshape(op: Slice, before: Dims, after: Dims) -> Slice | None:
    """The slice of an array with the elements of a slice `op` of its reshape, in their order; None if
    there is none.

    >>> slice_before_reshape(Slice((0, 1, 0), (8, 2, 4), (1, 1, 1)), (8, 12), (8, 3, 4))
    Slice(start=(0, 4), stop=(8, 8), step=(1, 1))
    >>> slice_before_reshape(Slice((8,), (20,), (1,)), (8, 4), (32,))
    Slice(start=(2, 0), stop=(5, 4), step=(1, 1))
    """
    if 0 in before:
        return None
    behind, first, runs = (
        1,
        0,
        list[tuple[int, int]](),
    )  # runs: how many elements, and how far apart
    for n, start, stop, step in reversed([*zip(after, op.start, op.stop, op.step, strict=True)]):
        count, apart = -((start - stop) // step), step * behind
        first, behind = first + start * behind, behind * n
        if runs and runs[-1][0] * runs[-1][1] == apart:
            runs[-1] = runs[-1][0] * count, runs[-1][1]
        elif count != 1:
            runs.append((count, apart))
    return slice_of_runs(runs, first, before)


def slice_of_runs(runs: list[tuple[int, int]], first: int, shape: Dims) -> Slice | None:
    """The slice of an array of a shape that has such runs of elements, the innermost first."""
    cut, behind = list[tuple[int, int, int]](), 1
    for n in reversed(shape):
        start = first // behind % n
        count, apart = runs[0] if runs else (1, 0)
        step, rest = divmod(apart, behind)
        if count == 1 or step >= n:
            cut.append((start, start + 1, 1))
        elif rest or not step:
            return None
        elif start + (count - 1) * step < n:
            cut.append((start, start + (count - 1) * step + 1, step))
            runs = runs[1:]
        else:  # the axis has as many in each line, and the next one has the lines
            here, left = divmod(n, step)
            if left or start >= step or count % here:
                return None
            cut.append((start, start + (here - 1) * step + 1, step))
            runs = [(count // here, behind * n), *runs[1:]]
        behind *= n
    left_over = runs or first >= behind
    return None if left_over else Slice(*zip(*reversed(cut), strict=True)) if cut else None


def blocks(x: Dims, y: Dims) -> Iterator[tuple[Dims, Dims]]:
    """The axes of two shapes that have the same elements, as few at a time as may be.

    >>> list(blocks((8, 512, 64, 64), (8, 32, 65536)))
    [((0,), (0,)), ((1, 2, 3), (1, 2))]
    """
    # of each shape: after how many elements an axis ends
    ends = [dict[int, int](), dict[int, int]()]
    for shape, found in zip((x, y), ends, strict=True):
        for d, n in enumerate(accumulate(shape, mul)):
            if shape[d] != 1:
                found[n] = d
    before = (-1, -1)
    for n in ends[0]:
        if n in ends[1]:
            after = ends[0][n], ends[1][n]
            a, b = (
                tuple(d for d in range(i + 1, j + 1) if shape[d] != 1)
                for shape, i, j in zip((x, y), before, after, strict=True)
            )
            yield a, b
            before = after


def factors(n: int, cuts: Iterable[int]) -> Dims:
    """The sizes that an axis is cut into; `cuts`: the elements behind each cut."""
    return tuple(a // b for a, b in pairwise([n, *sorted(cuts, reverse=True), 1])) if cuts else (n,)


@final
@record
class Pad(Unary):
    """Zeros before, after and between the elements along each axis; a
    negative `low` or `high` crops.

    A second, scalar input would be the value of the padding; zeros are all that linear algebra
    needs, so other values are put there by `where`.
    """

    low: Dims
    high: Dims
    inner: Dims
    name = "pad"
    cost = SIMPLE
    is_view = may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if not len(self.low) == len(self.high) == len(self.inner) == x.ndim:
            raise self.refuse(f"low, high and inner have one number for each axis of {x}")
        sides = zip(x.shape, self.low, self.high, self.inner, strict=True)
        shape = tuple(a + b + n + max(n - 1, 0) * i for n, a, b, i in sides)
        if min(shape, default=0) < 0 or min(self.inner, default=0) < 0:
            raise self.refuse(
                f"{x} by low {self.low}, high {self.high}, inner {self.inner} has no shape"
            )
        return (x.with_shape(shape),)

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        low, high = ([max(n, 0) for n in side] for side in (self.low, self.high))
        spread = [max(n + (n - 1) * i, 0) for n, i in zip(x.shape, self.inner, strict=True)]
        y = np.zeros(tuple(a + n + b for a, n, b in zip(low, spread, high, strict=True)), x.dtype)
        inside = zip(low, spread, self.inner, strict=True)
        y[tuple(slice(a, a + n, i + 1) for a, n, i in inside)] = x
        crop = zip(self.low, self.high, y.shape, strict=True)
        return y[tuple(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in crop)]

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (x,) = cts, xs
        assert ct is not None
        none = (0,) * x.ndim
        if 0 in x.shape:
            return [x.zeros()]
        cropped = [tuple(max(-n, 0) for n in side) for side in (self.low, self.high)]
        uncropped = ct.padded(cropped[0], cropped[1], none)
        start = tuple(max(n, 0) for n in self.low)
        stop = tuple(
            a + n + (n - 1) * i for a, n, i in zip(start, x.shape, self.inner, strict=True)
        )
        return [uncropped.sliced(start, stop, tuple(i + 1 for i in self.inner))]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        x = front(xs[0], axes[0])
        return (x.padded((0, *self.low), (0, *self.high), (0, *self.inner)),), (0,)


@final
@record
class Concatenate(Op):
    """Arrays one after another along `axis`."""

    axis: int
    name = "concatenate"
    lowering = View()
    linear = True
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        first, axis = types[0], self.axis
        rest = {(t.ndim, t.shape[:axis], t.shape[axis + 1 :], t.dtype) for t in types}
        if not 0 <= axis < first.ndim or len(rest) > 1:
            listed = ", ".join(map(str, types))
            what = f"concatenate along axis {axis} takes arrays alike in all other axes"
            raise ShapeError(f"{what}; got {listed}")
        total = sum(t.shape[axis] for t in types)
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def reference(self, *arrays: Any) -> Any:
        return np.concatenate(arrays, self.axis)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,) = cts
        assert ct is not None
        found: list[Value | None] = []
        at, axis, ones = 0, self.axis, (1,) * ct.ndim
        for x, want in zip(xs, wanted, strict=True):
            start = tuple(at if i == axis else 0 for i in range(ct.ndim))
            at += x.shape[axis]
            stop = tuple(at if i == axis else n for i, n in enumerate(ct.shape))
            found.append(ct.sliced(start, stop, ones) if want else None)
        return found

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        moved = [
            x.spread((size, *x.shape), tuple(range(1, x.ndim + 1))) if a is None else front(x, a)
            for x, a in zip(xs, axes, strict=True)
        ]
        return (Concatenate(self.axis + 1)(*moved),), (0,)


@final
@record
class Iota(Op):
    """The numbers 0, 1, ... along `axis`, the same along all others."""

    shape: Dims
    axis: int
    dtype: np.dtype
    name = "iota"
    cost = FREE
    lowering = View()

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types or not 0 <= self.axis < len(self.shape):
            raise ShapeError(f"iota along axis {self.axis} of shape {self.shape}")
        return (ArrayType(self.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        numbers = np.arange(self.shape[self.axis]).astype(self.dtype)
        return np.broadcast_to(
            numbers.reshape((-1,) + (1,) * (len(self.shape) - self.axis - 1)), self.shape
        )


class Identity(Op):
    """Passes its arrays on."""

    __slots__ = ()
    cost = FREE
    is_view = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return types

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        ys = self(*xs)
        return (ys if self.several else (ys,)), axes


@final
@record
class StopGradient(Identity):
    """The same value, through which no derivative flows."""

    name = "stop_gradient"
    lowering = View()

    def reference(self, *arrays: Any) -> Any:
        return arrays[0]


@final
@record
class Name(Identity):
    """The same value under a label, by which a checkpoint's policy knows it."""

    label: str
    name = "name"
    lowering = View()
    linear = True

    def reference(self, *arrays: Any) -> Any:
        return arrays[0]

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return cts


@final
@record
class Barrier(Identity):
    """The same values, but no pass looks through it: what follows is computed after, and again."""

    name = "barrier"
    several = True
    linear = True

    def reference(self, *arrays: Any) -> Any:
        return arrays

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return cts


# ---------------------------------------------------------------------------------------- constant
# An array as part of a graph, bytes and all: what a rule of the user's made for itself.


@final
@record
class Constant(Op):
    """The elements as `data`, their bytes in C order, in hexadecimal digits."""

    shape: Dims
    dtype: np.dtype
    data: str
    name = "constant"

    @staticmethod
    def of(array: Any) -> Constant:
        x = np.asarray(array)
        # x: so that it is a word in any case
        return Constant(x.shape, x.dtype, "x" + x.tobytes().hex())

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return (ArrayType(self.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        return np.frombuffer(bytes.fromhex(self.data[1:]), self.dtype).reshape(self.shape).copy()

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        return (self(),), (None,)


# -------- What is known of values that count, and of views of them.


def counts_along(makers: Mapping[Atom, Eqn], atom: Atom) -> int | None:
    """The axis along which a value counts 0, 1, 2, ...; None if it does not."""
    made = makers.get(atom) if isinstance(atom, Var) else None
    if made is None:
        return None
    if isinstance(made.op, Iota):
        return made.op.axis
    inner = (
        counts_along(makers, made.inputs[0])
        if isinstance(made.op, BroadcastInDim | Reshape | Transpose)
        else None
    )
    return None if inner is None else moved(made, inner)


def moved(eqn: Eqn, axis: int) -> int | None:
    """The axis of the result of a view that an axis of its input becomes."""
    op, before, after = eqn.op, eqn.inputs[0].type.shape, eqn.outs[0].type.shape
    if isinstance(op, BroadcastInDim):
        return op.dims[axis]
    if isinstance(op, Transpose):
        return op.order.index(axis)
    if [n for n in before if n != 1] != [n for n in after if n != 1] or before[axis] == 1:
        return None
    place = sum(n != 1 for n in before[:axis])
    return [d for d, n in enumerate(after) if n != 1][place]


def unshaped(makers: Mapping[Atom, Eqn], a: Atom) -> Atom:
    while (eqn := makers.get(a)) is not None and isinstance(eqn.op, Reshape):
        (a,) = eqn.inputs
    return a


def unspread(makers: Mapping[Atom, Eqn], x: Atom, a: Atom) -> tuple[Atom, Dims] | None:
    """The value that is repeated to the shape of x, and its axes."""
    if not a.type.shape and x.type.shape:
        return a, ()
    eqn = makers.get(a)
    if eqn is None or not isinstance(eqn.op, BroadcastInDim):
        return None
    return eqn.inputs[0], eqn.op.dims


def joined_of(makers: Mapping[Atom, Eqn], x: Atom, axis: int) -> tuple[Atom, ...]:
    """The elements along an axis that a value is joined of, or a view of such; none if it is not."""
    e, shape = makers.get(x), x.type.shape
    if e is not None and isinstance(e.op, Reshape):
        inner = e.inputs[0].type.shape
        long = [d for d, n in enumerate(inner) if n != 1]
        if shape[axis] == 1 or [inner[d] for d in long] != [n for n in shape if n != 1]:
            return ()
        axis = long[sum(n != 1 for n in shape[:axis])]
        e = makers.get(e.inputs[0])
    if e is None or not isinstance(e.op, Concatenate) or e.op.axis != axis:
        return ()
    return e.inputs if len(e.inputs) == e.outs[0].type.shape[axis] else ()
