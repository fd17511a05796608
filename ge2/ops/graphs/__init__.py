"""Operations that hold graphs, and those by which regions read and write arrays elsewhere than where
their space is: in runs, around the end, as windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, final

import numpy as np

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Op, Var
from ge2.ir.graph import FREE, applied
from ge2.ops.index import Gather, UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Slice, View

Runs = tuple[tuple[int, int, int], ...]


@final
@record
class InRuns(Op):
    """An array of which each axis is gone through in runs: along one, from a place of the result on,
    elements from an index on are read one after another (step 1), or one again and again (0).

    `axes` has for each axis of the array the axis of the result, and its runs (place, index, step); of
    the axes that the result has not, the one element that is read. It stands in regions alone, and is
    made after all derivatives.
    """

    shape: Dims
    axes: tuple[tuple[int, Runs], ...]
    name = "in_runs"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        read = [axis for axis, _ in self.axes if axis >= 0]
        if len(self.axes) != x.ndim or read != list(range(len(self.shape))):
            raise TypeRuleError(f"in_runs of shape {self.shape} does not go through {x}")
        return (x.with_shape(self.shape),)

    def reference(self, *arrays: Any) -> Any:
        (y,) = arrays
        for d, (axis, runs) in reversed([*enumerate(self.axes)]):
            n = self.shape[axis] if axis >= 0 else 1
            y = np.take(y, indices(runs, n) if axis >= 0 else runs[0][1], d)
        return y


@final
@record
class Rolled(Op):
    """An array whose elements are `shifts` places further along each axis, around which they wrap, each
    shift less than the size: where a region writes a result. It stands in regions alone, as InRuns.
    """

    shifts: Dims
    name = "rolled"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        sides = zip(self.shifts, x.shape, strict=True) if len(self.shifts) == x.ndim else ()
        if len(self.shifts) != x.ndim or not all(0 <= n < max(size, 1) for n, size in sides):
            raise TypeRuleError(f"{x} is not rolled by {self.shifts}")
        return (ArrayType(x.shape, x.dtype),)

    def reference(self, *arrays: Any) -> Any:
        return np.roll(arrays[0], self.shifts, tuple(range(len(self.shifts))))

    def runs(self, shape: Dims) -> list[tuple[int, Runs]]:
        """The axes along which elements are elsewhere, and the index of each place."""
        sides = enumerate(zip(self.shifts, shape, strict=True))
        return [(d, ((0, n, 1), (size - n, 0, 1))) for d, (n, size) in sides if n]


@final
@record
class Windows(Op):
    """The windows along an axis of an array, as a view: element (i, j, ...) of the result is element
    i + j of that axis. It is made after all derivatives, of a gather at those places.
    """

    axis: int
    counts: tuple[int, int]
    name = "windows"
    cost = FREE
    is_view = True
    lowering = View()

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        rest = [n for a, n in enumerate(x.shape) if a != self.axis]
        if not 0 <= self.axis < x.ndim or not 0 < sum(self.counts) - 1 <= x.shape[self.axis]:
            raise TypeRuleError(f"windows of {self.counts} places along axis {self.axis} of {x}")
        return (x.with_shape((*self.counts, *rest)),)

    def reference(self, *arrays: Any) -> Any:
        (x,), (count, size) = arrays, self.counts
        found = np.lib.stride_tricks.sliding_window_view(x, size, self.axis)
        return np.moveaxis(found, (self.axis, -1), (0, 1))[:count]

    def strides(self, x: Dims) -> Dims:
        """The strides of the result for an operand with strides `x`."""
        return x[self.axis], x[self.axis], *x[: self.axis], *x[self.axis + 1 :]


def indices(runs: Runs, n: int) -> np.ndarray:
    """The index at each of `n` places.

    >>> indices(((0, 7, 1), (2, 0, 1), (5, 9, 0)), 7)
    array([7, 8, 0, 1, 2, 9, 9])
    """
    ends = [begin for begin, *_ in runs[1:]] + [n]
    each = [i + step * np.arange(end - at) for (at, i, step), end in zip(runs, ends, strict=True)]
    return np.concatenate(each)


# -------- Where the elements of an array are that is seen through slices, joins and repetition:
# along each axis in runs of places, of elements one after another, or of one again and again.


class Run(NamedTuple):
    """The places of a result from `begin` to `end`: elements from `first` on, `step` apart (1 or 0)."""

    begin: int
    end: int
    first: int
    step: int


@final
@dataclass(frozen=True)
class Along:
    """The read along an axis of an array: at places along `axis` of the result; -1: one element."""

    axis: int
    runs: tuple[Run, ...]

    def moved(self, by: int) -> Along:
        return Along(self.axis, tuple(r._replace(first=r.first + by) for r in self.runs))

    def within(self, begin: int, end: int) -> Along | None:
        """The same of a part of the array, which has the elements from `begin` to `end`."""
        found = []
        for r in self.runs:
            if not r.step:
                inside = begin <= r.first < end
                found += [r._replace(first=r.first - begin)] if inside else []
                continue
            start, last = max(begin, r.first), min(end, r.first + r.end - r.begin)
            at = r.begin + start - r.first
            found += [Run(at, at + last - start, start - begin, 1)] if start < last else []
        return Along(self.axis, tuple(found)) if found else None

    @property
    def indices(self) -> Runs:
        """The runs, of which those are one that go on."""
        found = [self.runs[0]]
        for r in self.runs[1:]:
            last = found[-1]
            on = last.first + last.step * (last.end - last.begin)
            if r.step == last.step and r.first == on:
                found[-1] = last._replace(end=r.end)
            else:
                found.append(r)
        return tuple((r.begin, r.first, r.step) for r in found)


def spread(part: Along, axes: tuple[Along, ...]) -> list[tuple[Along, Along]]:
    """The axes of an array that a part of a join is of, each as it is at the places of the part, too,
    if it is one element.
    """
    found = []
    for along in axes:
        index = along.runs[0].first
        there = tuple(Run(r.begin, r.end, index, 0) for r in part.runs)
        found.append((along, along if along.axis >= 0 else Along(part.axis, there)))
    return found


def together(axis: int, parts: tuple[tuple[Along, Along], ...]) -> Along | None:
    """The read along an axis of an array by all parts of a join, which follow one another along
    an axis of the result; None if parts differ in what they read along another axis.
    """
    (first, _), *_ = parts
    if all(along == first for along, _ in parts):
        return first
    if any(along.axis != axis for _, along in parts):
        return None
    return Along(axis, tuple(sorted(r for _, along in parts for r in along.runs)))


def seen_axes(eqn: Eqn, axes: tuple[Along, ...]) -> tuple[Along, ...]:
    """The indices of the elements of a value that is seen with more or fewer axes."""
    op, (x,), (y,) = eqn.op, eqn.inputs, eqn.outs
    if isinstance(op, BroadcastInDim):
        return tuple(axes[d] for d in op.dims)
    rest = iter([d for d, n in enumerate(y.type.shape) if n != 1])
    one = Along(-1, (Run(0, 1, 0, 0),))
    return tuple(one if n == 1 else axes[next(rest)] for n in x.type.shape)


# -------- Arrays that are parts of others: slices, joins, pads and updates.


def is_move(eqn: Eqn) -> bool:
    """True of what puts arrays at places of another."""
    op = eqn.op
    if not eqn.outs or not eqn.outs[0].type.size or eqn.outs[0].type.weak:
        return False
    if isinstance(op, Pad):
        return not any(op.inner)
    if isinstance(op, UpdateSlice):
        return set(op.step) <= {1}
    return isinstance(op, Concatenate)


def is_part(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Slice) and set(eqn.op.step) <= {1}


def is_join(eqn: Eqn) -> bool:
    op = eqn.op
    plain = bool(eqn.outs) and bool(eqn.outs[0].type.size) and not eqn.outs[0].type.weak
    return plain and (isinstance(op, Concatenate) or (isinstance(op, Pad) and not any(op.inner)))


def is_number(eqn: Eqn) -> bool:
    """True of a number that is repeated."""
    return isinstance(eqn.op, BroadcastInDim) and not eqn.op.dims


def lows(eqn: Eqn, y: Atom, ndim: int) -> list[Dims]:
    """The places at which the first element of an operand lies in what it is part of."""
    op, none = eqn.op, (0,) * ndim
    if is_part(eqn):
        return [less(none, op.start)]  # type: ignore[attr-defined]
    if isinstance(op, Pad):
        return [op.low]
    if isinstance(op, UpdateSlice):
        return [at for a, at in zip(eqn.inputs, (none, op.start), strict=True) if a is y]
    if isinstance(op, Concatenate):
        sizes = (a.type.shape[op.axis] for a in eqn.inputs)
        begins = zip(eqn.inputs, accumulate(sizes, initial=0), strict=False)
        return [(*none[: op.axis], n, *none[op.axis + 1 :]) for a, n in begins if a is y]
    return [none]


def less(a: Dims, b: Dims) -> Dims:
    return tuple(n - m for n, m in zip(a, b, strict=True))


# -------- Arrays that are rolled: joins of two slices, as `np.roll` leaves them along one axis after
# another.


Rolls = dict[Var, tuple[Var, Dims]]  # for a rolled value that of which, and by how many places


def rolled(graph: Graph) -> Rolls:
    """The values that are another rolled along axes, each element by so many places of each axis."""
    found = Rolls()
    joins = [e for e in graph.eqns if isinstance(e.op, Concatenate) and len(e.inputs) == 2]
    slices: dict[Atom, Eqn] = (
        {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Slice)} if joins else {}
    )
    for join in joins:
        first, second = (slices.get(a) for a in join.inputs)
        if first is None or second is None or not exchange(join, first, second):
            continue
        x, (y, *_), axis = first.inputs[0], join.outs, join.op.axis  # type: ignore[attr-defined]
        if isinstance(x, Var):
            base, shifts = found.get(x, (x, (0,) * y.type.ndim))
            by = (shifts[axis] + join.inputs[0].type.shape[axis]) % max(y.type.shape[axis], 1)
            found[y] = base, (*shifts[:axis], by, *shifts[axis + 1 :])
    return found


def stored_rolls(graph: Graph, inside: Callable[[Eqn], bool]) -> Rolls:
    """Returns the rolled arrays that have to be stored: results of the graph, or views of such, and inputs
    of equations for which `inside` is false, which cannot be fused.
    """
    found = rolled(graph)
    if not found:
        return found
    readers, returned = dict[Atom, list[Eqn]](), {*graph.outputs}
    for e in graph.eqns:
        for a in e.inputs:
            readers.setdefault(a, []).append(e)

    def is_stored(x: Var) -> bool:
        if x in returned:
            return True
        for e in readers.get(x, ()):
            if e.op.is_view and any(map(is_stored, e.outs)):
                return True
            if not (e.op.is_view or inside(e) or e.outs[0] in found):
                return True
        return False

    return {y: roll for y, roll in found.items() if any(roll[1]) and is_stored(y)}


def exchange(join: Eqn, first: Eqn, second: Eqn) -> bool:
    """True of a join of two slices that are all of one array, the last of it first."""
    (x, *_), (y, *_), axis = first.inputs, join.outs, join.op.axis  # type: ignore[attr-defined]
    if second.inputs != first.inputs or x.type.shape != y.type.shape:
        return False
    begin = (0,) * y.type.ndim
    at = second.op.stop[axis]  # type: ignore[attr-defined]
    cut = (*begin[:axis], at, *begin[axis + 1 :])
    end = (*y.type.shape[:axis], at, *y.type.shape[axis + 1 :])
    step = (1,) * y.type.ndim
    return first.op == Slice(cut, y.type.shape, step) and second.op == Slice(begin, end, step)


# -------- The elements that slices read and writes write, along each axis.


Span = tuple[int, int, int]  # along one axis: the first element, the step, how many


def of_slice(op: Slice) -> list[Span]:
    bounds = zip(op.start, op.stop, op.step, strict=True)
    return [(a, s, -(-(b - a) // s)) for a, b, s in bounds]


def of_write(op: Any, u: Atom) -> list[Span]:
    return list(zip(op.start, op.step, u.type.shape, strict=True))


def last_of(span: Span) -> int:
    return span[0] + span[1] * (span[2] - 1)


def within(read: Span, write: Span) -> bool:
    """True if along this axis all that is read is written."""
    (a, s, n), (b, t, m) = read, write
    inside = b <= a and last_of(read) <= last_of(write)
    return n > 0 < m and inside and (a - b) % t == 0 and (n == 1 or s % t == 0)


def array_before_writes(eqn: Eqn, makers: Mapping[Any, Eqn], unwritten: Container[Atom]) -> Atom:
    """The array that has the elements outside the slice that an update writes: that before all updates
    within the same slice, for none of which there is a kernel.
    """
    x, spans = eqn.inputs[0], of_write(eqn.op, eqn.inputs[1])
    while x in unwritten and isinstance(makers[x].op, UpdateSlice):
        before, u = makers[x].inputs
        if not all(map(within, of_write(makers[x].op, u), spans)):
            break
        x = before
    return x


def apart(read: Span, write: Span) -> bool:
    """True if along this axis nothing that is read is written."""
    (a, s, n), (b, t, m) = read, write
    common = math.gcd(s if n > 1 else 0, t if m > 1 else 0)
    outside = n == 0 or m == 0 or last_of(read) < b or last_of(write) < a
    return outside or (common > 0 and (a - b) % common != 0)


def slice_of(read: Sequence[Span], write: Sequence[Span]) -> Slice:
    """The slice of what was written that lies where the other lies in the whole."""
    start = tuple([(a - b) // t for (a, _, _), (b, t, _) in zip(read, write, strict=True)])
    step = tuple([max(s // t, 1) for (_, s, _), (_, t, _) in zip(read, write, strict=True)])
    ends = zip(start, step, read, strict=True)
    return Slice(start, tuple([a + s * (n - 1) + 1 for a, s, (_, _, n) in ends]), step)


# -------- Parts that one kernel can make together.


Makers = Mapping[Any, Eqn]


def are_together(parts: Sequence[Atom], makers: Makers, most: int) -> bool:
    """True if parts of one type are computed from some of the same arrays."""
    if not 1 < len(parts) == len({*parts}) <= most or len({a.type for a in parts}) > 1:
        return False
    return bool(set[Atom].intersection(*(elements_behind(a, makers) for a in parts)))


def elements_behind(x: Atom, makers: Makers) -> set[Atom]:
    """The arrays of as many elements from which an array is computed, or read, element by element."""
    found, new = set[Atom](), [x]
    while new:
        eqn = makers.get(new.pop())
        if eqn is not None and isinstance(eqn.op, Reshape | Pointlike | Gather):
            more = {a for a in eqn.inputs if a.type.size == x.type.size} - found
            found, new = found | more, [*new, *more]
    return found


def repeated_along(a: Atom, makers: Makers) -> Eqn | None:
    """The equation that repeats an array along the last axis, if one does."""
    made = makers.get(a)
    repeats = made is not None and isinstance(made.op, BroadcastInDim) and made.op.shape
    return made if repeats and len(repeats) - 1 not in made.op.dims else None  # type: ignore[union-attr]


def in_shape(x: Atom, shape: Dims, makers: Makers, made: list[Eqn], known: dict[Atom, Atom]) -> Any:
    """An array in another shape, and with it the equations that make it element by element, so that no
    reshape stands between them and what reads it; `known`: what has that shape already.
    """
    eqn = makers.get(x)
    if x.type.shape == shape or x in known:
        return known.get(x, x)
    if eqn is not None and isinstance(eqn.op, Reshape):
        return in_shape(eqn.inputs[0], shape, makers, made, known)
    op: Op = Reshape(shape)
    inputs: tuple[Atom, ...] = (x,)
    if eqn is not None and (read := read_by_elements(eqn)):
        op = eqn.op
        inputs = tuple(
            in_shape(a, shape, makers, made, known) if n in read else a
            for n, a in enumerate(eqn.inputs)
        )
    known[x] = applied(made, op, *inputs, source=None if eqn is None else eqn.source)
    return known[x]


def read_by_elements(eqn: Eqn) -> frozenset[int]:
    """The numbers of the operands of which each element of a result needs the one at its own place."""
    first, alike = 0, eqn.outs[0].type.shape
    if isinstance(eqn.op, Gather) and len(eqn.op.axes) == eqn.inputs[0].type.ndim:
        first = 1  # behind what is read at indices
    elif not isinstance(eqn.op, Pointlike):
        return frozenset()
    return frozenset(
        n for n, a in enumerate(eqn.inputs) if n >= first and a.type.shape == alike != ()
    )


def reshaped_once(eqn: Eqn, makers: Makers) -> Eqn:
    """An equation that reshapes what is reshaped before, as one that does so to what was there first."""
    before = makers.get(eqn.inputs[0]) if isinstance(eqn.op, Reshape) else None
    if before is None or not isinstance(before.op, Reshape):
        return eqn
    return replace(eqn, inputs=before.inputs)
