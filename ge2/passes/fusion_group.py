"""A region in the making."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeVar, final

from ge2.base.arrays import HALF
from ge2.base.record import mutable
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ir.graph import BRANCHING
from ge2.ops.elementwise import FLOOR_DIV, REM, SHIFT_LEFT, SHIFT_RIGHT
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce, kept
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Transpose
from ge2.passes.context import Fusion

# -------- A region in the making: its equations, and which axis of the iteration space each of
# their axes is.


NONE = -1  # in place of an axis: of size 1
FOLDS: Final = (Reduce, ArgReduce)
JOINS: Final = (Pad, Concatenate)

Span = tuple[frozenset[int], Dims]  # the axes that a fold folds, and those of its result
# operands: a value, and for each axis of it the axis of the result, or NONE
Uses = Sequence[tuple[Var, Dims]]


class Group:
    """Equations that will run as one loop over the axes `axes`.

    `embed` has for each value made or read the axes of the space its own axes are. `whole` are the
    axes that must not be cut into blocks, since the result of a reduction over them is read inside.
    `tables` are the arrays that are read at indices: nothing of them is made here. `picked` is how
    many single elements are read so, `costly` for how many elements something costly is computed.
    """

    __slots__ = (
        "axes", "ceiling", "consumers", "costly", "embed", "entries", "folded", "halves", "level", "made", "part",
        "picked", "tables", "tails", "tuning", "twisted", "whole", "widest",
    )  # fmt: skip

    def __init__(self, level: int, tuning: Fusion, part: int = 0) -> None:
        self.level, self.part, self.tuning = level, part, tuning
        self.axes: dict[int, int] = {}  # the size of each axis
        self.embed: dict[Var, Dims] = {}
        # by equation: the axes of its result, or input if it reduces
        self.entries: dict[int, Dims] = {}
        self.widest: Dims = ()  # the axes of an equation that has the most of them
        self.made: set[Var] = set()
        self.folded: dict[Var, frozenset[int]] = {}  # results of reductions, and over what
        self.twisted: set[Var] = set()  # read in more than one orientation
        self.whole: frozenset[int] = frozenset()
        self.tables: set[Var] = set()
        self.picked = self.costly = self.tails = 0
        self.consumers: set[Group] = set()
        self.halves = 0  # values of half types that are read
        # the least level of an equation outside any group that reads from here
        self.ceiling = math.inf

    @property
    def folds(self) -> bool:
        return bool(self.folded or self.whole)

    @property
    def spans(self) -> list[Span]:
        return [(over, self.embed[v]) for v, over in self.folded.items()]

    def full(self, folds: bool, other: Group | None = None) -> bool:
        """True if no equation, or no other group, can join; `folds`: it reduces."""
        count, length, most = len(self.entries) + 1, self.length, self.tuning
        if other is not None:
            count, length = count - 1 + len(other.entries), length + other.length
        too_many = count > most.folding or length > most.members
        return count > most.endless or (too_many and (folds or self.folds))

    def keeps_apart(self, picked: int, costly: int) -> bool:
        """True if what reads so many single elements, or computes so many costly ones, may not join.

        Reads that wait for memory overlap as far as the instructions between them are few, and
        elements at arbitrary places keep costly ones from being computed side by side.
        """
        if not (picked or self.picked):
            return False
        picked, costly = max(picked, self.picked), max(costly, self.costly)
        return costly * self.tuning.seldom > picked

    @property
    def length(self) -> int:
        """Equations, and what arrays of half types that are read are as long as."""
        return len(self.entries) + self.tuning.conversion * self.halves

    @property
    def longest(self) -> int:
        """No less than its equations and what all arrays that they read or make are as long as."""
        arrays = len(self.entries) + len(self.embed) - len(self.made) + len(self.tables)
        return len(self.entries) + max(self.tuning.array, self.tuning.conversion) * arrays

    def limit(self, leaders: dict[Group, Group], but: Group | None = None) -> float:
        """The level that this group must stay below, for others read from it."""
        least = self.ceiling
        for consumer in self.consumers:
            consumer = leader(leaders, consumer) if consumer in leaders else consumer
            if consumer is not but and consumer is not self and consumer.level < least:
                least = consumer.level
        return least

    def place(self, uses: Uses, shape: Dims) -> Dims | None:
        """The axes that a result of `shape` has here, given where its operands are; None if it
        does not fit. Two loops of one length can be one (`matched`).
        """
        for var, dims in uses:
            if var in self.made and dims == straight(len(shape)):
                # in the same orientation, without axes of size 1: the usual case
                entry = self.embed[var]
                return entry if self.agrees(uses, entry) else None
        found = self.bound(uses, shape)
        if found is None:
            return None
        known = {d: axis for d, axis in enumerate(found) if axis is not None}
        if not matched(known, dict(enumerate(shape)), self):
            return None
        fresh = iter(range(1 + max(self.axes, default=-1), 1000))
        entry = tuple([known[d] if d in known else next(fresh) for d in range(len(shape))])
        return entry if self.agrees(uses, entry) else None

    def bound(self, uses: Uses, shape: Dims) -> list[int | None] | None:
        """The axes of a result that its operands settle: those made
        here must agree, inputs need not.
        """
        found: list[int | None] = [NONE if n == 1 else None for n in shape]
        taken: set[int] = set()
        for var, dims in uses:
            if var in self.made and not bind(found, taken, self.embed[var], dims):
                return None
        for var, dims in uses:
            if var in self.embed and var not in self.made:
                trial, also = list(found), set(taken)
                if bind(trial, also, self.embed[var], dims):
                    found, taken = trial, also
        return found

    def agrees(self, uses: Uses, entry: Dims) -> bool:
        """True if all values made here have the axes by which an equation with that entry reads them."""
        made = [(var, dims) for var, dims in uses if var in self.made]
        return all(self.embed[var] == seen_from(entry, dims) for var, dims in made)

    def closes(self, uses: Uses) -> frozenset[int]:
        """The axes that become whole when these values are read inside."""
        folded = self.folded
        over = [folded[var] for var, _ in uses if var in folded] if folded else []
        return self.whole.union(*over) if over else self.whole

    def with_axes(self, entry: Dims, shape: Dims) -> dict[int, int]:
        """The axes, with those of an equation."""
        axes = self.axes
        if axes.keys() >= {*entry} - {NONE}:
            return axes
        new = {a: n for a, n in zip(entry, shape, strict=True) if a != NONE and a not in axes}
        return {**axes, **new}

    def add(self, index: int, var: Var, entry: Dims, out: Dims, uses: Uses) -> None:
        """Takes in an equation with an `entry` by `place`; `out` are the axes of its result."""
        self.entries[index] = entry
        if len(entry) > len(self.widest):
            self.widest = entry
        made = self.made
        for x, dims in uses:
            if x not in made:
                self.read(x, seen_from(entry, dims))
        self.embed[var] = out
        self.made.add(var)

    def along(self, axes: Iterable[int]) -> bool:
        """True if an array with these axes lies along the lines of the widest equation's."""
        order = [self.widest.index(axis) for axis in axes if axis in self.widest and axis != NONE]
        return order == sorted(order)

    def read(self, var: Var, at: Dims) -> None:
        if var not in self.embed and var.type.dtype in HALF:
            self.halves += 1
        if self.embed.setdefault(var, at) != at:
            self.twisted.add(var)


@final
@mutable
class Incoming:
    """An equation that is to be in a group, and what each group is asked of it: `tables` are read at
    indices, `read` are the groups that make what it reads, with their levels, or None with that of
    the value; `picked` and `costly` are numbers of elements.
    """

    index: int
    eqn: Eqn
    uses: Uses
    shape: Dims
    tables: list[Var]
    read: Sequence[tuple[Group | None, int]]
    reduces: bool
    picked: int
    costly: int


def picked(eqn: Eqn) -> int:
    """The elements that are read at indices of their own, not as part of rows."""
    if type(eqn.op) is not Gather:
        return 0
    count = max(a.type.size for a in eqn.inputs[1:])
    return count if count == eqn.outs[0].type.size else 0


def short(eqn: Eqn, most: int) -> bool:
    """True of a gather of single elements, or of rows of so many at most that lie side by side."""
    shape, axes = eqn.inputs[0].type.shape, eqn.op.axes  # type: ignore[attr-defined]
    row = math.prod(n for a, n in enumerate(shape) if a not in axes)
    return picked(eqn) > 0 or (row <= most and len(shape) - 1 not in axes)


def costly(eqn: Eqn) -> int:
    """The elements that a function or a remainder of integers is computed for."""
    op = eqn.op
    if op.cost.instructions < BRANCHING.instructions:
        return 0
    # the cases of shifts are masks of vectors, and so are those of remainders by a number
    if op in (SHIFT_LEFT, SHIFT_RIGHT):
        return 0
    by = eqn.inputs[-1]
    if op in (REM, FLOOR_DIV) and isinstance(by, Literal) and by.type.dtype.itemsize <= 4:
        return 0
    return eqn.outs[0].type.size


def bind(found: list[int | None], taken: set[int], at: Dims, dims: Dims) -> bool:
    """Sets the axes of a result from those of one operand; False if they contradict what is set."""
    for axis, d in zip(at, dims, strict=True):
        if d == NONE or axis == NONE:
            continue
        if found[d] is None and axis not in taken:
            found[d] = axis
            taken.add(axis)
        elif found[d] != axis:
            return False
    return True


def seen_from(entry: Dims, dims: Dims) -> Dims:
    """The axes of an operand, given those of the result."""
    if dims == straight(len(entry)):
        return entry
    return tuple([NONE if d == NONE else entry[d] for d in dims])


T = TypeVar("T")


def leader(leaders: dict[T, T], group: T) -> T:
    """The group that a group is part of by now."""
    first = group
    while group in leaders:
        group = leaders[group]
    if group is not first:
        leaders[first] = group
    return group


def merged(a: Group, b: Group) -> dict[int, int] | None:
    """The axis of `a` that each axis of `b` is, if the two can be one loop; new axes get new
    numbers.
    """
    found: dict[int, int] = {}
    small, large = (a, b) if len(a.embed) < len(b.embed) else (b, a)
    hints = []
    for var in small.embed:
        if var not in large.embed:
            continue
        made = var in a.made or var in b.made
        if made and (var in a.twisted or var in b.twisted):
            return None
        if not made:
            hints.append(var)
        elif not pair(found, a.embed[var], b.embed[var]):
            return None
    for var in hints:
        trial = dict(found)
        if pair(trial, a.embed[var], b.embed[var]):
            found = trial
    order = dict.fromkeys([axis for axis in (*b.widest, *b.axes) if axis != NONE])
    if not matched(found, {axis: b.axes[axis] for axis in order}, a):
        return None
    fresh = iter(range(1 + max(a.axes, default=-1), 1000))
    return {**found, **{axis: next(fresh) for axis in b.axes if axis not in found}}


def matched(found: dict[int, int], sizes: Mapping[int, int], group: Group) -> bool:
    """Takes each axis of which nothing is known for the first of its size that `group` has left.

    False if some axes on both sides are left, or if a large array would be read across its lines for
    the sake of this alone: each line of it would be read as often as it has elements.
    """
    before = [found[d] for d in sizes if d in found]
    rest = [axis for axis in group.axes if axis not in found.values()]
    for d, n in sizes.items():
        match = None if d in found else next((a for a in rest if group.axes[a] == n), None)
        if match is not None:
            found[d] = match
            rest.remove(match)
    if rest and len(found) < len(sizes):  # a new axis only where all others are too
        return False
    if len(before) == len(sizes) or math.prod(sizes.values()) <= group.tuning.crossed:
        return True
    return group.along([found[d] for d in sizes if d in found]) or not group.along(before)


def pair(found: dict[int, int], of_a: Dims, of_b: Dims) -> bool:
    for i, j in zip(of_a, of_b, strict=True):
        if i == NONE and j == NONE:
            continue
        if found.get(j, i) != i or (j not in found and i in found.values()):
            return False
        found[j] = i
    return True


def dims_of(op: Op, x: Var | Any, out: Dims) -> Dims | None:
    """For a view: which axis of its result each axis of its input is; None for other operations."""
    if isinstance(op, BroadcastInDim):
        return tuple(
            NONE if n == 1 and out[d] == 1 else d
            for n, d in zip(x.type.shape, op.dims, strict=True)
        )
    if isinstance(op, Transpose):
        return tuple(NONE if n == 1 else op.order.index(i) for i, n in enumerate(x.type.shape))
    if isinstance(op, Reshape):
        before = [n for n in x.type.shape if n != 1]
        if before != [n for n in out if n != 1]:
            return None
        places = iter([d for d, n in enumerate(out) if n != 1])
        return tuple(NONE if n == 1 else next(places) for n in x.type.shape)
    return None


@cache
def straight(ndim: int) -> Dims:
    """The axes 0, 1, ..., ndim - 1: an operand that has these is not turned."""
    return tuple(range(ndim))


@cache
def plain(shape: Dims) -> Dims:
    """A value as a view of itself."""
    return tuple(NONE if n == 1 else d for d, n in enumerate(shape))


def fusible(eqn: Eqn) -> bool:
    op = eqn.op
    if isinstance(op, Pointlike):
        out = eqn.outs[0].type
        return not out.weak and (op.through_float32 or out.dtype not in HALF)
    return folds(op)


def folds(op: Op) -> bool:
    return isinstance(op, FOLDS)


def elements_of(eqn: Eqn) -> Sequence[Atom]:
    """The operands of which an equation reads an element for each of its result."""
    return eqn.inputs[1:] if type(eqn.op) is Gather else eqn.inputs


def too_large(
    axes: Mapping[int, int], whole: Iterable[int], tuning: Fusion, gathers: bool = False
) -> bool:
    """True if rows of these whole axes are too long for a block, or for single elements to be read
    at indices once for each fold of them, or leave a long loop no axis to cut.
    """
    row = math.prod(axes[a] for a in whole)
    return row > (tuning.gathered if gathers else tuning.row) or (
        row > tuning.block and row == math.prod(axes.values())
    )


def better_shared(
    axes: Mapping[int, int], whole: frozenset[int], entries: Sequence[Dims], tuning: Fusion,
    units: int,
) -> bool:  # fmt: skip
    """True if several blocks of a GPU with so many multiprocessors would read columns sooner than one
    that has them whole, by more than their launches cost. The last axis of the equations' `entries`
    lies along threads.
    """
    if not (units and whole):
        return False
    lying = max(entries, key=lambda e: len(set(e) - {NONE}))
    if next((a for a in reversed(lying) if a != NONE), NONE) in whole:
        return False
    rows, elements = math.prod(axes[a] for a in whole), math.prod(axes.values())
    columns, enough = elements // max(rows, 1), tuning.columns * units
    idle = elements * (enough - columns) > tuning.many * columns
    return idle or elements >= tuning.shared


def sideways(axes: Mapping[int, int], widest: Dims, spans: Iterable[Span]) -> bool:
    """True if a fold has the last axis of the space, and one before an axis that it lacks: threads
    would lie along that, and all else be done across memory.
    """
    order = [a for a in widest if a != NONE]
    for over, rest in spans:
        first = min((order.index(a) for a in over if a in order), default=len(order))
        lacking = axes.keys() - over - {*rest}
        if order[-1:] and order[-1] in over and not lacking.isdisjoint(order[first:]):
            return True
    return False


def spans_of(a: Group, b: Group, names: Mapping[int, int]) -> list[Span]:
    """The spans of two groups that become one, by the names of the axes of `a`."""
    return [*a.spans, *((frozenset(named(names, o)), named(names, r)) for o, r in b.spans)]


def only_readers(graph: Graph) -> dict[Atom, Eqn]:
    """The equation that reads a value, of those that one alone reads."""
    found: dict[Atom, Eqn | None] = dict.fromkeys(graph.outputs)
    for eqn in graph.eqns:
        for a in eqn.inputs:
            if type(a) is Var:  # a literal's hash is worked out in Python
                found[a] = None if a in found else eqn
    return {a: eqn for a, eqn in found.items() if eqn is not None}


def depths(graph: Graph, fusible: Callable[[Eqn], bool]) -> dict[Atom, int]:
    """The number of steps that no region takes before each value, one after another; 0 left out."""
    found: dict[Atom, int] = {}
    for eqn in graph.eqns:
        apart = not (fusible(eqn) or eqn.op.is_view or isinstance(eqn.op, Iota))
        depth = max([found.get(a, 0) for a in eqn.inputs if type(a) is Var], default=0) + apart
        if depth:
            found.update(dict.fromkeys(eqn.outs, depth))
    return found


def shifted_multiples(graph: Graph) -> dict[int, int]:
    """A number each for equations whose results are only padded or joined, and are made of one array by
    little more than smaller ones: where there are several of an array, who reads those reads it, shifted.
    """
    moved, found = only_joined(graph), dict[Atom, list[int]]()
    if not moved:
        return {}
    small = {e.outs[0] for e in graph.eqns if isinstance(e.op, BroadcastInDim)}
    made = {v for e in graph.eqns if fusible(e) for v in e.outs}
    for n, e in enumerate(graph.eqns):
        if isinstance(e.op, Pointlike) and e.outs[0] in moved and fusible(e):
            large = [a for a in e.inputs if a not in small and a.type.shape]
            if len(large) == 1 and large[0] in made:
                found.setdefault(large[0], []).append(n)
    return {n: -1 - n for each in found.values() if len(each) > 1 for n in each}


def only_joined(graph: Graph) -> set[Atom]:
    """The values that are read only to be padded or joined."""
    found = {a for e in graph.eqns if isinstance(e.op, JOINS) for a in e.inputs if type(a) is Var}
    found.difference_update(graph.outputs if found else ())
    for e in graph.eqns if found else ():
        if not (isinstance(e.op, JOINS) or found.isdisjoint(e.inputs)):
            found.difference_update(e.inputs)
    return set[Atom](found)


def when_needed(
    entries: Sequence[int], graph: Graph, bases: Callable[[Eqn], Sequence[Var]]
) -> list[int]:
    """Equations, each right before the first of them that reads it, so that no cut lies between."""
    makers = {graph.eqns[n].outs[0]: n for n in entries}
    read = {n: [makers[v] for v in bases(graph.eqns[n]) if v in makers] for n in entries}
    inner = {m for each in read.values() for m in each}
    depth, found = dict[int, int](), dict[int, None]()
    for n in entries:
        depth[n] = 1 + max((depth[m] for m in read[n]), default=0)
    waiting = [n for n in reversed(entries) if n not in inner]
    while waiting:  # what takes the longest way comes first
        n = waiting[-1]
        if before := [m for m in read[n] if m not in found]:
            waiting += sorted(before, key=depth.__getitem__)
        elif waiting.pop() not in found:
            found[n] = None
    return list(found)


def cuts(crossing: Sequence[int], lengths: Sequence[int], most: int) -> list[int]:
    """Cuts of a sequence into parts of at most that length: in the latter half
    of each, where least crosses.

    >>> cuts([0, 3, 3, 1, 4, 4, 2, 5], [1] * 8, 4)
    [3, 6]
    """
    found, start, upto = list[int](), 0, [0, *accumulate(lengths)]
    while upto[-1] - upto[start] > most:
        end = max(bisect_right(upto, upto[start] + most) - 1, start + 1)
        start = min(range((start + end + 1) // 2, end + 1), key=lambda i: (crossing[i], -i))
        found.append(start)
    return found


def named(names: Mapping[int, int], axes: Iterable[int]) -> Dims:
    """Axes of one group as another calls them."""
    return tuple([NONE if axis == NONE else names[axis] for axis in axes])


def joint(
    a: Group, b: Group, names: Mapping[int, int]
) -> tuple[dict[int, int], dict[Var, frozenset[int]], frozenset[int]]:
    """The axes of two groups in one, the results of their reductions, and the axes that must not
    be cut; `names` says which axis of `a` each of `b` is.
    """
    axes = {**a.axes, **{names[axis]: n for axis, n in b.axes.items()}}
    of_b = {var: frozenset(named(names, over)) for var, over in b.folded.items()}
    folded = {**a.folded, **of_b}
    read = [folded[v] for v in a.embed if v in b.folded]
    read += [folded[v] for v in b.embed if v in a.folded]
    return axes, folded, a.whole.union(named(names, b.whole), *read)


def folded_axes(op: Any) -> Dims:
    return (op.axis,) if isinstance(op, ArgReduce) else op.axes


def folding(op: Any, entry: Dims) -> tuple[frozenset[int], Dims]:
    """The axes of the space that a reduction folds away, and those of its result."""
    over = folded_axes(op)
    return frozenset(entry[i] for i in over) - {NONE}, tuple(
        entry[i] for i in kept(over, len(entry))
    )


def numbering(group: Group) -> dict[int, int]:
    """The axes in the order of an equation that has them all, as far as one has."""
    widest = max(group.entries.values(), key=lambda entry: len(set(entry) - {NONE}), default=())
    order = dict.fromkeys([a for a in widest if a != NONE])
    order.update(dict.fromkeys(group.axes))
    return {axis: i for i, axis in enumerate(order)}


class Writer:
    """Collects the inner graph of a region."""

    def __init__(self, views: Mapping[Var, Eqn], number: Mapping[int, int]) -> None:
        self.views, self.number = views, number  # equations of views, and axes of the space
        self.inputs: dict[Var, None] = {}
        self.eqns: list[Eqn] = []
        self.axes: list[Dims] = []
        self.made: set[Var] = set()
        self.seen: dict[tuple[Var, Dims], Var] = {}  # views, by orientation

    def equation(self, eqn: Eqn, entry: Dims) -> None:
        at = tuple([self.number[a] for a in entry])
        read = elements_of(eqn)
        inputs = tuple([self.operand(a, at[: a.type.ndim]) if type(a) is Var else a for a in read])
        if isinstance(eqn.op, Gather):
            (table,) = tables = eqn.inputs[:1]
            assert isinstance(table, Var)
            self.inputs[table] = None
            inputs = (*tables, *inputs)
        self.eqns.append(eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source))
        self.axes.append(at)
        self.made.update(eqn.outs)

    def operand(self, var: Var, at: Dims) -> Var:
        """A value seen with these axes: made here, a view written here, or an input."""
        eqn = self.views.get(var)
        if eqn is None:
            if var not in self.made:
                self.inputs[var] = None
            return var
        known = self.seen.get((var, at))
        if known is not None:
            return known
        inputs: tuple[Var, ...] = ()
        for x in eqn.inputs:
            dims = dims_of(eqn.op, x, var.type.shape)
            assert isinstance(x, Var) and dims is not None
            inputs = (self.operand(x, seen_from(at, dims)),)
        out = var if var not in self.made else Var(var.type)
        self.made.add(out)
        self.seen[var, at] = out
        self.eqns.append(Eqn(eqn.op, inputs, (out,), eqn.source))
        self.axes.append(at)
        return out
