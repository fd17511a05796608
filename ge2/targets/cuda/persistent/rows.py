"""Loops whose rows are independent of each other, and carries that are written in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

from ge2.base.record import mutable, record
from ge2.ir import ArrayType, Atom, Eqn, Graph, Var, makers_of
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import readers_of
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import ArgReduce, Reduce, kept
from ge2.ops.shape import (
    Barrier,
    BroadcastInDim,
    Concatenate,
    Iota,
    Name,
    Pad,
    Reshape,
    Rev,
    Slice,
    StopGradient,
    Transpose,
)
from ge2.program import branch_pairs, carry_of
from ge2.targets.cuda.persistent.nodes import LOOPS, Statement, Unwritten
from ge2.targets.cuda.persistent.values import POINTS, WRITES, Array, Read

# -------- Loops whose rows know nothing of each other: which axis of each value counts them, and
# the loop over a few.
# Blocks then share the rows, and none ever waits for another.


Along = int | None  # which axis of a value counts rows; None: the value is the same for all of them
Axes = dict[Var, Along]


class Tangled(Unwritten):
    """Rows that know of each other."""

    def __init__(self) -> None:
        super().__init__("its rows know of each other")


class Wanted(Exception):
    """A value that is to have rows along an axis, for what reads it has."""

    def __init__(self, var: Var, axis: int) -> None:
        self.var, self.axis = var, axis


@final
@record
class Split:
    """A graph for `each` of the rows, with the axes along which its inputs
    and results have rows.
    """

    graph: Graph
    each: int
    inputs: tuple[Along, ...]
    outputs: tuple[Along, ...]


def split(graph: Graph, rows: int, each: int, tries: int) -> Split:
    """The graph of one loop for `each` of its rows. Tangled if they know of each other, or more
    values than `tries` turn out to have rows after what reads them.
    """
    axes, outputs = axes_in(graph, rows, tries)
    local = Local(axes, rows, each)
    inputs = tuple(axes[v] for v in graph.inputs)
    return Split(local.graph(graph), each, inputs, outputs)


def axes_in(graph: Graph, rows: int, tries: int) -> tuple[Axes, tuple[Along, ...]]:
    (eqn,) = graph.eqns
    op: Any = eqn.op
    if not isinstance(op, ScanLoop):
        raise Tangled
    _, start, elements = op.parts(eqn.inputs)
    forced: dict[Var, int] = {}
    for a in start:
        if isinstance(a, Var) and a.type.shape[:1] == (rows,):
            forced[a] = 0
    for a in elements:
        if isinstance(a, Var) and a.type.shape[1:2] == (rows,):
            forced[a] = 1
    for _ in range(tries):
        found = Rows(rows, forced)
        try:
            return found.axes, found.graph(graph, [forced.get(v) for v in graph.inputs])
        except Wanted as wanted:
            if wanted.var in forced:
                raise Tangled from None
            forced[wanted.var] = wanted.axis
    raise Tangled


class Rows:
    """The axis of each value that counts rows, from the first value to the last."""

    def __init__(self, rows: int, forced: dict[Var, int]) -> None:
        self.rows, self.forced = rows, forced
        self.axes: Axes = {}
        self.makers: dict[Var, Eqn] = {}
        self.outer: dict[
            Var, tuple[Atom, int]
        ] = {}  # of inputs of inner graphs: what they are, one axis more

    def graph(self, graph: Graph, given: Sequence[Along]) -> tuple[Along, ...]:
        self.axes.update(zip(graph.inputs, given, strict=True))
        for eqn in graph.eqns:
            self.makers.update(dict.fromkeys(eqn.outs, eqn))
            found = self.results(eqn)
            for y, axis in zip(eqn.outs, found, strict=True):
                axis = self.forced.get(y) if axis is None else axis
                if axis is not None and y.type.shape[axis] != self.rows:
                    raise Tangled
                self.axes[y] = axis
        return tuple(map(self.of, graph.outputs))

    def of(self, a: Atom) -> Along:
        return self.axes[a] if isinstance(a, Var) else None

    def results(self, eqn: Eqn) -> Sequence[Along]:
        op: Any = eqn.op
        given = [*map(self.of, eqn.inputs)]
        if isinstance(op, ScanLoop):
            return self.scan(op, eqn, given)
        if isinstance(op, Cond):
            return self.cond(op, eqn, given)
        if all(axis is None for axis in given):
            return [None] * len(eqn.outs)
        if isinstance(op, Barrier | StopGradient | Name):
            return given
        if isinstance(op, Draw):
            raise Tangled
        if isinstance(op, Pointlike):
            return [self.alike(eqn, given)]
        if isinstance(op, DotGeneral):
            return [self.product(op, eqn, given)]
        if isinstance(op, Concatenate):
            axis = self.alike(eqn, given)
            if axis == op.axis:
                raise Tangled
            return [axis]
        if len(given) != 1:
            raise Tangled
        return [self.moved(op, eqn.inputs[0].type, given[0])]

    def alike(self, eqn: Eqn, given: Sequence[Along]) -> int:
        """The axis of operands of one shape, scalars aside."""
        found = {a for a in given if a is not None}
        if len(found) != 1:
            raise Tangled
        (axis,) = found
        for x, at in zip(eqn.inputs, given, strict=True):
            if at is None and x.type.shape:
                self.want(x, axis)
        return axis

    def want(self, x: Atom, axis: int) -> None:
        """Asks that a value have rows along an axis: it repeats along it, or it is given.

        Raises.
        """
        if not isinstance(x, Var) or x.type.shape[axis] != self.rows:
            raise Tangled
        maker = self.makers.get(x)
        if maker is None:
            if x in self.outer:
                source, more = self.outer[x]
                if isinstance(source, Var) and self.axes.get(source) is None:
                    self.want(source, axis + more)
            raise Wanted(x, axis)
        op: Any = maker.op
        if isinstance(op, BroadcastInDim) and axis not in op.dims:
            raise Wanted(x, axis)
        if isinstance(op, Iota) and axis != op.axis:
            raise Wanted(x, axis)
        if isinstance(op, Pointlike) and not isinstance(op, Draw):
            for a in maker.inputs:
                if a.type.shape and self.of(a) is None:
                    self.want(a, axis)
            raise Wanted(x, axis)
        raise Tangled

    def product(self, op: DotGeneral, eqn: Eqn, given: Sequence[Along]) -> int:
        a, b = (x.type for x in eqn.inputs)
        free = op.free(a, b)
        beside = len(op.beside[0])
        for n, axis in enumerate(given):
            if axis is None:
                continue
            if axis in op.contract[n]:
                raise Tangled
            if axis in op.beside[n]:
                at = op.beside[n].index(axis)
                if given[1 - n] is None:
                    self.want(eqn.inputs[1 - n], op.beside[1 - n][at])
                if given[1 - n] != op.beside[1 - n][at]:
                    raise Tangled
                return at
            if given[1 - n] is not None:
                raise Tangled
            return beside + (len(free[0]) if n else 0) + free[n].index(axis)
        raise Tangled

    def moved(self, op: Any, x: ArrayType, axis: Along) -> Along:
        """Returns where the rows are in the result of what folds or moves elements of one array."""
        if axis is None:
            raise Tangled
        if isinstance(op, Reduce | ArgReduce):
            over = op.axes if isinstance(op, Reduce) else (op.axis,)
            if axis in over:
                raise Tangled
            return kept(over, x.ndim).index(axis)
        if isinstance(op, BroadcastInDim):
            return op.dims[axis]
        if isinstance(op, Transpose):
            return op.order.index(axis)
        if isinstance(op, Reshape):
            before = math.prod(x.shape[:axis])
            places = [i for i, n in enumerate(op.shape) if n == self.rows]
            found = next((i for i in places if math.prod(op.shape[:i]) == before), None)
            if found is not None:
                return found
        if isinstance(op, Slice) and (op.start[axis], op.stop[axis], op.step[axis]) == (
            0,
            self.rows,
            1,
        ):
            return axis
        if isinstance(op, Rev) and axis not in op.axes:
            return axis
        if isinstance(op, Pad) and op.low[axis] == op.high[axis] == op.inner[axis] == 0:
            return axis
        raise Tangled

    def scan(self, op: ScanLoop, eqn: Eqn, given: Sequence[Along]) -> list[Along]:
        consts, start, elements = op.parts(list(given))
        if any(axis == 0 for axis in elements):
            raise Tangled
        inside = [*consts, *start, *(None if axis is None else axis - 1 for axis in elements)]
        more = [0] * (len(consts) + len(start)) + [1] * len(elements)
        outer = zip(eqn.inputs, more, strict=True)
        self.outer.update(zip(op.body.inputs, outer, strict=True))
        inside = [self.forced.get(v, axis) for v, axis in zip(op.body.inputs, inside, strict=True)]
        found = self.graph(op.body, inside)
        for axis, new, a in zip(start, found, op.body.outputs, strict=False):
            if axis != new:
                if axis is not None and new is None:
                    self.want(a, axis)
                raise Tangled
        return [*start, *(None if axis is None else axis + 1 for axis in found[len(start) :])]

    def cond(self, op: Cond, eqn: Eqn, given: Sequence[Along]) -> list[Along]:
        if given[0] is not None:
            raise Tangled
        results = []
        for branch in op.branches:
            outer = zip(eqn.inputs[1:], [0] * len(given), strict=False)
            self.outer.update(zip(branch.inputs, outer, strict=True))
            inside = [
                self.forced.get(v, axis) for v, axis in zip(branch.inputs, given[1:], strict=True)
            ]
            results.append(self.graph(branch, inside))
        if any(r != results[0] for r in results):
            raise Tangled
        return list(results[0])


class Local:
    """Graphs with fewer rows."""

    def __init__(self, axes: Axes, rows: int, each: int) -> None:
        self.axes, self.rows, self.each = axes, rows, each

    def graph(self, graph: Graph) -> Graph:
        env: dict[Var, Atom] = {v: Var(self.type(v)) for v in graph.inputs}
        eqns = []
        for eqn in graph.eqns:
            made = tuple(Var(self.type(v)) for v in eqn.outs)
            env.update(zip(eqn.outs, made, strict=True))
            inputs = tuple(env[a] if isinstance(a, Var) else a for a in eqn.inputs)
            eqns.append(Eqn(self.op(eqn), inputs, made, eqn.source))
        outputs = tuple(env[a] if isinstance(a, Var) else a for a in graph.outputs)
        inputs = tuple(env[v] for v in graph.inputs)
        return Graph(inputs, tuple(eqns), outputs)  # type: ignore[arg-type]

    def type(self, v: Var) -> ArrayType:
        axis = self.axes[v]
        if axis is None:
            return v.type
        return v.type.with_shape(
            tuple(self.each if i == axis else n for i, n in enumerate(v.type.shape))
        )

    def op(self, eqn: Eqn) -> Any:
        op: Any = eqn.op
        if isinstance(op, ScanLoop):
            return replace(op, body=self.graph(op.body))
        if isinstance(op, Cond):
            return Cond(tuple(map(self.graph, op.branches)))
        axis = self.axes[eqn.outs[0]]
        if isinstance(op, BroadcastInDim | Reshape | Iota):
            return replace(op, shape=self.type(eqn.outs[0]).shape)
        if isinstance(op, Slice) and axis is not None:
            return replace(
                op, stop=tuple(self.each if i == axis else n for i, n in enumerate(op.stop))
            )
        return op


def fewest(rows: int, multiprocessors: int) -> int:
    """Returns how many rows a block has: as few as give each multiprocessor one block,
    and a divisor of all of them.

    >>> fewest(32, 132), fewest(256, 132), fewest(257, 132), fewest(1000, 132)
    (1, 2, 1, 8)
    """
    most = -(-rows // multiprocessors)
    return max(n for n in range(1, most + 1) if rows % n == 0)


# -------- Carries of which iterations write parts: they have one place, and are written there.
# `x[i] = v` then costs what is written. What reads the array before a write must be done when that
# begins: a value that would else be computed where it is read, later, is stored where it is made.


PARTS = (*WRITES, UpdateSlice)


@final
@mutable
class Stays:
    """The writes of a graph that happen in place.

    `arrays`: the numbers of the inputs. `versions`: the results that are one of these after a
    write. `stored`: values that are not computed where they are read, since that is too late.
    """

    arrays: set[int] = field(default_factory=set)
    versions: set[Var] = field(default_factory=set)
    stored: set[Var] = field(default_factory=set)


def stays(graph: Graph, pairs: Sequence[tuple[int, int]], alone: bool) -> Stays:
    """Returns what of a graph is written in place, of results that may be made in inputs, each pair
    by number; `alone`: one block does all, so that a thread that writes an element may read before.
    """
    found = Stays()
    users = Users(graph)
    for i, k in pairs:
        writes = chain(users, graph.outputs[i], graph.inputs[k], alone)
        late = None if writes is None else users.late(writes, graph.inputs[k], alone)
        if writes and late is not None:
            found.arrays.add(k)
            found.versions |= {y for _, y in writes}
            found.stored |= late
    return found


def of_loop(op: Any, alone: bool) -> Stays:
    """Returns what the body of a loop writes in place; the numbers are those of its inputs."""
    _, first, count = carry_of(op)
    seen = {a for e in op.cond.eqns for a in e.inputs} | set(op.cond.outputs) if tests(op) else ()
    more = op.cond_consts if tests(op) else 0
    pairs = [
        (i, first + i)
        for i in range(count)
        if not tests(op) or op.cond.inputs[more + i] not in seen
    ]
    return stays(op.body, pairs, alone)


def tests(op: Any) -> bool:
    return isinstance(op, WhileLoop)


def of_branches(op: Cond, alone: bool) -> dict[int, int]:
    """The results that all branches make by writes into the same operand of theirs, or pass on."""
    return {
        i: k
        for i, k in branch_pairs(op).items()
        if all(
            graph.outputs[i] is graph.inputs[k] or k in stays(graph, [(i, k)], alone).arrays
            for graph in op.branches
        )
    }


def chain(users: Users, y: Atom, x: Var, alone: bool) -> list[tuple[Eqn, Var]] | None:
    """The equations that turn an input into a result by writes alone, each with what it makes."""
    found = list[tuple[Eqn, Var]]()
    while y is not x:
        eqn = users.makers.get(y)
        source = None if eqn is None else written(eqn, y, alone)
        if eqn is None or source is None or eqn.inputs.count(source) != 1:
            return None
        assert isinstance(y, Var)
        found.insert(0, (eqn, y))
        y = source
    return found


def written(eqn: Eqn, y: Atom, alone: bool) -> Atom | None:
    """The operand that an equation writes parts of, where its result `y` is that afterwards."""
    op: Any = eqn.op
    if isinstance(op, PARTS):
        return eqn.inputs[0]
    i = eqn.outs.index(y)
    if isinstance(op, Cond):
        k = of_branches(op, alone).get(i)
        return None if k is None else eqn.inputs[1 + k]
    if not isinstance(op, LOOPS):
        return None
    given, first, count = carry_of(op)
    return eqn.inputs[given + i] if i < count and first + i in of_loop(op, alone).arrays else None


@final
class Users:
    """The readers of the values of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.makers = makers_of(graph)
        self.order = {id(e): n for n, e in enumerate(graph.eqns)}
        self.found, self.outputs = readers_of(graph), set(graph.outputs)

    def late(self, writes: Sequence[tuple[Eqn, Var]], x: Var, alone: bool) -> set[Var] | None:
        """The values to be stored before an array is written; None if it is read afterwards."""
        found, now = set[Var](), x
        for eqn, y in writes:
            if now in self.outputs:
                return None
            for other in self.found[now]:
                if other is eqn:
                    continue
                if self.order[id(other)] > self.order[id(eqn)]:
                    return None
                found |= self.late_of(other, eqn, alone)
            now = y
        return found

    def late_of(self, eqn: Eqn, write: Eqn, alone: bool) -> set[Var]:
        """The values to be stored of those that are computed where they are read, with what an
        equation reads: the last before a read by a write, or after it.
        """
        found = set[Var]()
        for v in eqn.outs if lazy(eqn) else ():
            users = self.found.get(v, ())
            if v in self.outputs or any(self.reads_late(user, write, alone) for user in users):
                found.add(v)
            else:
                found = found.union(*(self.late_of(user, write, alone) for user in users))
        return found

    def reads_late(self, eqn: Eqn, write: Eqn, alone: bool) -> bool:
        """True if an equation reads when a write may have begun. A single thread that writes one
        element reads all it needs before.
        """
        if eqn is not write:
            return self.order[id(eqn)] > self.order[id(write)]
        one = isinstance(eqn.op, PARTS) and eqn.inputs[1].type.size == 1
        return not (alone and one)


def lazy(eqn: Eqn) -> bool:
    """True of what may be computed where it is read."""
    return eqn.op.is_view or isinstance(eqn.op, POINTS)


@final
@mutable
class Order:
    """At which levels arrays are read and written, of those that statements write in place."""

    read: dict[str, int] = field(default_factory=dict)
    wrote: dict[str, int] = field(default_factory=dict)

    def floor(self, s: Statement, found: Sequence[Read]) -> int:
        """The first level at which a statement may be: after writes, and a write after reads."""
        names = {x.name for x, _ in found if isinstance(x, Array)}
        last = max((self.wrote.get(name, -1) for name in names), default=-1)
        if s.into is not None:
            last = max(last, self.wrote.get(s.into.name, -1), self.read.get(s.into.name, -1))
        return last + 1

    def note(self, s: Statement, found: Sequence[Read], at: int) -> None:
        for x, _ in found:
            if isinstance(x, Array):
                self.read[x.name] = max(self.read.get(x.name, -1), at)
        if s.into is not None:
            self.wrote[s.into.name] = max(self.wrote.get(s.into.name, -1), at)
