"""Reading and writing elements at indices: by integer arrays along some axes,
or along a regular slice.

Indices wrap and are checked as NumPy's: -1 is the last element, and what is
outside is an IndexError.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import COMPLEX, INEXACT, INT32, INT64, INTEGERS, accumulator
from ge2.base.errors import ShapeError, TypeRuleError
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
    Op,
    Value,
    Values,
)
from ge2.ir.graph import DIVISION
from ge2.ops.pointlike import stretch
from ge2.ops.reduce import Fold, Reduce, ReduceMax, ReduceMin, ReduceSum, kept
from ge2.ops.shape import front, inverse

Window = tuple[tuple[int, int, int], ...]


class Indexed(Op):
    """Indexes the axes `axes` by one integer array each, all of one shape or scalars."""

    __slots__ = ()
    axes: Dims
    window: Window = ()  # the part of each other axis that it reads or writes; () for all of it
    linear = True
    may_alias = False

    def check(self, x: ArrayType, indices: Sequence[ArrayType]) -> Dims:
        """The shape of the selection: the indices' shape, then the axes
        of `x` that are not indexed.
        """
        ordered = self.axes and tuple(sorted(set(self.axes))) == self.axes
        if not ordered or not 0 <= self.axes[0] <= self.axes[-1] < x.ndim:
            raise ShapeError(
                f"{self.name} along axes {self.axes} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        if len(indices) != len(self.axes):
            raise ShapeError(
                f"{self.name} takes one index for each of axes {self.axes}; got {len(indices)}"
            )
        for t in indices:
            if t.dtype not in INTEGERS:
                raise TypeRuleError(
                    f"{self.name} takes integer indices; got {t}", fix="index.astype(int)"
                )
        shapes = {t.shape for t in indices if t.shape}
        if len(shapes) > 1:
            listed = ", ".join(map(str, indices))
            raise ShapeError(f"{self.name} takes indices of one shape, or scalars; got {listed}")
        return (*next(iter(shapes), ()), *(n for _, n, _ in inside(self, x)))

    def places(self, x: Any, indices: Sequence[Any]) -> Any:
        """Each index as one number, counted in row-major order over the indexed axes."""
        total: Any = np.zeros((), np.intp)
        for axis, index in zip(self.axes, indices, strict=True):
            n = x.shape[axis]
            total = total * n + within(np.asarray(index), n, axis)
        return total

    def batch_indices(self, indices: Values, axes: Axes, size: int) -> list[Value]:
        """A count of the batch, then the indices, all with the batch axis first."""
        shape = index_shape(indices, axes)
        moved = [stretch(i, a, (size, *shape)) for i, a in zip(indices, axes, strict=True)]
        return [indices[0].count((size, *shape), 0, INT64), *moved]


def spans(op: Indexed, shape: Dims) -> Window:
    """Range that an operation reads or writes of each axis that it does not
    index: start, count and step.
    """
    return op.window or tuple((0, shape[a], 1) for a in kept(op.axes, len(shape)))


def inside(op: Indexed, x: ArrayType) -> Window:
    """The spans, none of which leaves its axis."""
    found, over = spans(op, x.shape), [x.shape[a] for a in kept(op.axes, x.ndim)]
    if len(found) != len(over):
        raise ShapeError(f"{op.name} along {op.axes} has a window of {len(found)} axes of {x}")
    for n, (start, count, step) in zip(over, found, strict=True):
        if min(start, count) < 0 or step < 1 or (count and start + (count - 1) * step >= n):
            raise ShapeError(
                f"{op.name}: {count} from {start} in steps of {step} lie outside of {x}"
            )
    return found


def part_of(op: Indexed, shape: Dims) -> tuple[slice, ...]:
    """The part of an array that it reads or writes: all of the axes that it indexes."""
    found = [slice(None)] * len(shape)
    for axis, (start, n, step) in zip(kept(op.axes, len(shape)), spans(op, shape), strict=True):
        found[axis] = slice(start, start + n * step, step)
    return tuple(found)


def within(index: Any, n: int, axis: int) -> Any:
    """The index counted from the start, if it is inside an axis of size `n`."""
    bad = (index < -n) | (index >= n)
    if bad.any():
        first = index[bad].ravel()[0] if index.ndim else index
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {n}")
    index = index.astype(np.intp, copy=False)
    return np.where(index < 0, index + n, index)


def index_shape(indices: Values, axes: Axes) -> Dims:
    """The shape of the indices without their batch axes."""
    pairs = zip(indices, axes, strict=True)
    return max(
        (i.shape if a is None else i.shape[:a] + i.shape[a + 1 :] for i, a in pairs), key=len
    )


def leading(x: Value, axis: Axis, size: int, at: int = 0) -> Value:
    """The value with its batch axis at `at`, repeated along it if it has none."""
    if axis is not None:
        return x.move_axis(axis, at)
    shape = (*x.shape[:at], size, *x.shape[at:])
    return x.spread(shape, tuple(i for i in range(x.ndim + 1) if i != at))


@final
@record
class Gather(Indexed):
    """The elements at the indices: their shape, then the axes of `x` that are not indexed."""

    axes: Dims
    name = "gather"
    cost = DIVISION  # of an element that may be anywhere

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, *indices = types
        return (x.with_shape(self.check(x, indices)),)

    def reference(self, *arrays: Any) -> Any:
        x, *indices = arrays
        if len(self.axes) == 1 and np.ndim(indices[0]):
            index = np.asarray(indices[0]).astype(np.intp, copy=False)
            axis = self.axes[0]
            y = np.take(x, index, axis)
            return np.moveaxis(y, range(axis, axis + index.ndim), range(index.ndim)) if axis else y
        return np.transpose(x, (*self.axes, *kept(self.axes, x.ndim)))[
            tuple(np.asarray(i) for i in indices)
        ]

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (x, *indices) = cts, xs
        assert ct is not None
        return [x.zeros().scatter_added(self.axes, ct, *indices), *(None for _ in indices)]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x, *indices), (axis, *rest) = xs, axes
        if axis is not None and not any(a is not None for a in rest):
            over = tuple(a + (a >= axis) for a in self.axes)
            at = index_shape(indices, rest)
            return (x.gathered(over, *indices),), (len(at) + axis - sum(a < axis for a in over),)
        count, *moved = self.batch_indices(indices, rest, size)
        if axis is None:
            return (x.gathered(self.axes, *moved),), (0,)
        over = (0, *(a + 1 for a in self.axes))
        return (front(x, axis).gathered(over, count, *moved),), (0,)


class Writing(Indexed):
    """A copy of `x` with updates written at the indices: (x, updates, *indices). The updates may be
    one number, after the passes of a target that has kernels for it.
    """

    __slots__ = ()

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, updates, *indices = types
        shape = self.check(x, indices)
        if updates.shape not in (shape, ()) or updates.dtype != x.dtype:
            raise ShapeError(
                f"{self.name} into {x} takes updates {x.with_shape(shape)}; got {updates}"
            )
        return (x.with_shape(x.shape),)

    def reference(self, *arrays: Any) -> Any:
        x, updates, *indices = arrays
        if self.window:
            whole, part = np.array(x), part_of(self, x.shape)
            whole[part] = type(self)(self.axes).reference(x[part], updates, *indices)  # type: ignore[call-arg]
            return whole
        order = (*self.axes, *kept(self.axes, x.ndim))
        turned = np.transpose(x, order)
        row = math.prod(turned.shape[len(self.axes) :])
        y = (
            np.array(turned, accumulator(x.dtype), order="C").reshape(-1, row)
            if x.size
            else turned.copy()
        )
        places = self.places(x, indices)
        if not updates.shape:
            given: list[Any] = [*map(np.asarray, indices)]
            updates = np.broadcast_to(updates, self.check(x, given))
        if y.size and updates.size:
            places = np.broadcast_to(places, index_dims(updates, x, self.axes)).ravel()
            self.write(y, places, updates.reshape(-1, row))
        return np.transpose(y.reshape(turned.shape), inverse(order)).astype(x.dtype, copy=False)

    @abstractmethod
    def write(self, y: Any, places: Any, updates: Any) -> None:
        """Writes rows of `updates` to the rows `places` of `y`, in place."""

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x, updates, *indices), (axis, of_updates, *rest) = xs, axes
        over = tuple(a + 1 for a in self.axes)
        x = leading(x, axis, size)
        if not any(a is not None for a in rest):
            updates = leading(updates, of_updates, size, len(index_shape(indices, rest)))
            return (self.along(over, ((0, size, 1),))(x, updates, *indices),), (0,)
        count, *moved = self.batch_indices(indices, rest, size)
        updates = leading(updates, of_updates, size)
        return (self.along((0, *over), ())(x, updates, count, *moved),), (0,)

    @abstractmethod
    def along(self, axes: Dims, first: Window) -> Op:
        """The same along other axes; where it has a window, `first` is that of the axes before."""


def index_dims(updates: Any, x: Any, axes: Dims) -> Dims:
    """The part of the shape of the updates that the indices have."""
    return tuple(updates.shape[: updates.ndim - (x.ndim - len(axes))])


class ScatterReduce(Writing):
    """`x` reduced with the updates at the indices; those that meet at one place all count."""

    __slots__ = ()
    reduction: ClassVar[Reduce]  # what of the values of one place is their result

    @property
    def merge(self) -> str:
        """The expression of two values of one place."""
        assert isinstance(self.reduction.lowering, Fold)
        return self.reduction.lowering.merge

    def neutral_of(self, dtype: np.dtype) -> Any:
        """The number of a dtype that leaves every other as it is, to the bit.

        >>> ScatterAdd((0,)).neutral_of(np.dtype("f4")), ScatterMax((0,)).neutral_of(np.dtype("u1"))
        (-0.0, 0)
        """
        found = self.reduction.neutral_of(dtype)
        exact = found or (-0.0 if dtype in INEXACT else found)
        return complex(exact, exact) if dtype in COMPLEX else exact

    def along(self, axes: Dims, first: Window) -> Op:
        return type(self)(axes)  # type: ignore[call-arg]

    def write(self, y: Any, places: Any, updates: Any) -> None:
        updates, ufunc = updates.astype(y.dtype, copy=False), self.reduction.ufunc
        if len(places) == 1:
            y[places[0]] = ufunc(y[places[0]], updates[0])
            return
        # a ufunc's `at` is fast for one flat index alone
        row = y.shape[1]
        flat = places if row == 1 else (places[:, None] * row + np.arange(row)).ravel()
        ufunc.at(y.reshape(-1), flat, updates.ravel())


@final
@record
class ScatterAdd(ScatterReduce):
    """`x` with the updates added at the indices; those that meet at one place are all added."""

    axes: Dims
    name = "scatter_add"
    reduction = ReduceSum((0,))

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (_, _, *indices) = cts, xs
        assert ct is not None
        at = ct.gathered(self.axes, *indices) if wanted[1] else None
        return [ct, at, *(None for _ in indices)]


class ScatterExtreme(ScatterReduce):
    """The largest or smallest of `x` and the updates; equal winners share the cotangent."""

    __slots__ = ()
    linear = False
    exact = True

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (y,), (x, updates, *indices) = cts, ys, xs
        assert ct is not None
        wide = accumulator(x.dtype)  # float16 cannot count beyond 65504
        # a NaN that no update met is its own result
        stayed = x.same(y).pointwise("or", x.differs(x))
        won = updates.same(y.gathered(self.axes, *indices))
        count = stayed.cast(wide).scatter_added(self.axes, won.cast(wide), *indices)
        share = (ct.cast(wide) / count).cast(x.dtype)
        ct_x = stayed.select(share, x.zeros()) if wanted[0] else None
        at = share.gathered(self.axes, *indices)
        ct_updates = won.select(at, updates.zeros()) if wanted[1] else None
        return [ct_x, ct_updates, *(None for _ in indices)]


@final
@record
class ScatterMax(ScatterExtreme):
    """The largest of an element of `x` and the updates for it; NaN if one is."""

    axes: Dims
    name = "scatter_max"
    reduction = ReduceMax((0,))


@final
@record
class ScatterMin(ScatterExtreme):
    """The smallest of an element of `x` and the updates for it; NaN if one is."""

    axes: Dims
    name = "scatter_min"
    reduction = ReduceMin((0,))


@final
@record
class Scatter(Writing):
    """`x` with the updates in place of the elements at the indices; of several
    for a place the last wins.

    With a window, they go to a part of the axes that are not indexed: (start, count,
    step) of each, in order. `unique`: no two indices are one, as the caller knows; the
    derivative then looks for none.
    """

    axes: Dims
    window: Window = ()
    unique: bool = False
    name = "scatter"

    def params(self) -> dict[str, Any]:
        more = {"window": self.window} if self.window else {}
        return {"axes": self.axes} | more | ({"unique": True} if self.unique else {})

    def along(self, axes: Dims, first: Window) -> Op:
        return Scatter(axes, (*first, *self.window) if self.window else (), self.unique)

    def write(self, y: Any, places: Any, updates: Any) -> None:
        y[places] = updates

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (_, updates, *indices) = cts, xs
        assert ct is not None
        ct_x: Value | None = self(ct, updates.zeros(), *indices) if wanted[0] else None
        ct_updates = self.of_winners(ct, updates, indices) if wanted[1] else None
        return [ct_x, ct_updates, *(None for _ in indices)]

    def of_winners(self, ct: Value, updates: Value, indices: Values) -> Value:
        """The cotangent that each update is owed: nothing if a later one overwrote it."""
        at = windowed(ct, self).gathered(self.axes, *indices)
        shape = index_shape(indices, (None,) * len(indices))
        count = math.prod(shape)
        if count < 2 or self.unique:
            return at
        number = ct.count((count,), 0, INT64).reshaped(shape)
        sizes = tuple(ct.shape[a] for a in self.axes)
        none = ct.count(sizes, 0, INT64).zeros()
        over = tuple(range(len(sizes)))
        last: Value = Scatter(over)(none, number, *indices)
        won = last.gathered(over, *indices).same(number)
        return won.spread(updates.shape, tuple(range(len(shape)))).select(at, at.zeros())


def windowed(x: Value, op: Scatter) -> Value:
    """The part of `x` that is written to."""
    if not op.window:
        return x
    start, stop, step = [0] * x.ndim, [*x.shape], [1] * x.ndim
    for axis, (first, n, each) in zip(kept(op.axes, x.ndim), op.window, strict=True):
        start[axis], stop[axis], step[axis] = (
            first,
            first + (n - 1) * each + 1 if n else first,
            each,
        )
    return x.sliced(tuple(start), tuple(stop), tuple(step))


@final
@record
class UpdateSlice(Op):
    """`x` with `u` in place of the elements `start, start + step, ...` of each
    axis; steps are positive.
    """

    start: Dims
    step: Dims
    name = "update_slice"
    may_alias = False
    linear = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x, u = types
        if u.dtype != x.dtype:
            raise TypeRuleError(
                f"update_slice takes arrays of one dtype; got {x}, {u}", fix="u.astype"
            )
        if not len(self.start) == len(self.step) == x.ndim == u.ndim:
            raise ShapeError(
                f"update_slice: start and step have one number for each axis of {x} and of {u}"
            )
        ends = zip(self.start, self.stop(u.shape), self.step, x.shape, strict=True)
        if any(a < 0 or b > n or s < 1 for a, b, s, n in ends):
            raise ShapeError(
                f"update_slice: {u} from {self.start} in steps of {self.step} lies outside {x}"
            )
        return (x.with_shape(x.shape),)

    def stop(self, shape: Dims) -> Dims:
        """The end of an update of that shape."""
        sides = zip(self.start, self.step, shape, strict=True)
        return tuple(a + (n - 1) * s + 1 if n else a for a, s, n in sides)

    def reference(self, *arrays: Any) -> Any:
        x, u = arrays
        y = np.array(x)
        y[tuple(map(slice, self.start, self.stop(u.shape), self.step))] = u
        return y

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (_, u) = cts, xs
        assert ct is not None
        ct_x = self(ct, u.zeros()) if wanted[0] else None
        return [ct_x, ct.sliced(self.start, self.stop(u.shape), self.step) if wanted[1] else None]

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        x, u = (leading(v, a, size) for v, a in zip(xs, axes, strict=True))
        return (UpdateSlice((0, *self.start), (1, *self.step))(x, u),), (0,)


@final
@record
class RowSums(Op):
    """Zeros of a shape, but for the sums of the updates that name each element of a line along an
    axis: updates and indices, of as many a line as they have along that axis.
    """

    shape: Dims
    axis: int
    name = "row_sums"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        updates, index = types
        before, after = self.shape[: self.axis], self.shape[self.axis + 1 :]
        fits = updates.shape == (*before, *updates.shape[self.axis : self.axis + 1], *after)
        if index.dtype not in INTEGERS or index.shape != updates.shape or not fits:
            raise TypeRuleError(f"row_sums takes updates and their indices; got {updates}, {index}")
        return (updates.with_shape(self.shape),)

    def reference(self, *arrays: Any) -> Any:
        updates, index = (np.asarray(a) for a in arrays)
        y, places = (
            np.zeros(self.shape, updates.dtype),
            list(np.ogrid[tuple(map(slice, index.shape))]),
        )
        places[self.axis] = within(index, self.shape[self.axis], self.axis)
        np.add.at(y, tuple(places), updates)
        return y


@final
@record
class UpdateOrder(Op):
    """The order of updates by their places, of one place in their own: the numbers of the updates,
    and those places. Both are counted in row-major order, over the axes of the indices and over
    axes of these sizes.
    """

    sizes: Dims
    name = "update_order"
    several = True
    may_alias = False

    @property
    def adding(self) -> ScatterAdd:
        return ScatterAdd(tuple(range(len(self.sizes))))

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        x = ArrayType(self.sizes, INT32)
        shape = next((t.shape for t in types if t.shape), ())
        self.adding.infer(x, x.with_shape(shape), *types)
        return (ArrayType((math.prod(shape),), INT32),) * 2

    def reference(self, *arrays: Any) -> Any:
        x = np.broadcast_to(np.int8(0), self.sizes)
        places = self.adding.places(x, arrays).ravel()
        order = np.argsort(places, kind="stable")
        return order.astype(INT32), places[order].astype(INT32)


@final
@record
class SumsInOrder(Op):
    """The updates that meet at each place along `axes` of an array of a shape, added up, by their
    order; `over`: the shape of the indices, of which that is. With `factors`, arrays at the end that
    have a number for each update, or an index before, updates are rows of the first array times these:
    those of the index, or one after another and again from the first.
    """

    axes: Dims
    shape: Dims
    over: Dims
    factors: int = 0
    name = "sums_in_order"
    may_alias = False

    def params(self) -> dict[str, Any]:
        found = {"axes": self.axes, "over": self.over, "shape": self.shape}
        return found | ({"factors": self.factors} if self.factors else {})

    @property
    def adding(self) -> ScatterAdd:
        return ScatterAdd(self.axes)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        updates, _, _, *made = types
        updates = updates.with_shape((*self.over, *updates.shape[1:])) if made else updates
        indices = [ArrayType(self.over, INT32)] * len(self.axes)
        return self.adding.infer(updates.with_shape(self.shape), updates, *indices)

    def reference(self, *arrays: Any) -> Any:
        updates, order, places, *made = arrays
        sizes = [self.shape[a] for a in self.axes]
        rest = [n for a, n in enumerate(self.shape) if a not in self.axes]
        if made:
            named = len(made) > self.factors
            updates = np.take(updates, made[0] if named else np.arange(len(order)), 0, mode="wrap")
        for by in made[len(made) - self.factors :]:
            updates = updates * by.reshape(-1, *[1] * len(rest))
        rows = np.broadcast_to(updates, (*self.over, *rest)).reshape(-1, *rest)
        x = np.zeros(self.shape, updates.dtype)
        at = np.unravel_index(places, sizes)
        return self.adding.reference(x, rows[order], *at)


# -------- Writes of parts that are alike, as a program makes them that keeps its state in an array.


class Tiles:
    """Writes in a row of parts that are alike and cover each other wholly or not at all, such as
    elements: which of them a read is of is one look, where a loop has written thousands.
    """

    def __init__(self, root: Atom, shape: Dims) -> None:
        self.root, self.shape, self.count = root, shape, 0
        # where, and which so many th write it was
        self.parts = dict[Dims, list[tuple[int, Atom]]]()

    def takes(self, start: Dims, step: Dims, shape: Dims) -> bool:
        aligned = all(n and a % n == 0 for a, n in zip(start, shape, strict=True))
        return shape == self.shape and aligned and all(s == 1 for s in step)

    def last(self, start: Dims, count: int) -> Atom | None:
        """The value of a part after the first `count` writes; None if none of them is to it."""
        return next((u for k, u in reversed(self.parts.get(start, [])) if k < count), None)


def tiled(write: Eqn, tiles: dict[Atom, tuple[Tiles, int]]) -> tuple[Tiles, int]:
    """The writes up to this one, and their number: those before, or it alone; 0 if it is no tile."""
    (base, u), op = write.inputs, write.op
    assert isinstance(op, UpdateSlice)
    part, alone = (op.start, op.step, u.type.shape), Tiles(base, u.type.shape)
    found, count = tiles.get(base, (alone, 0))
    if not 0 < count == found.count or not found.takes(*part):
        found = alone
    if found.takes(*part):
        found.parts.setdefault(op.start, []).append((found.count, u))
        found.count += 1
    return found, found.count
