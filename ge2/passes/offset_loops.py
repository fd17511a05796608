"""Loops over slices whose starts count, as scans: how one is described, and the equations of it.

x[i + 3 t]  ->  scan over t: gather x at (i + 3 t)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.record import mutable
from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import Gather, Scatter, UpdateSlice
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Slice, Transpose, inverse

NUMBER: Final = ArrayType((), INT64)
DECIDED: Final = ArrayType((), np.dtype(np.bool_))
Start = int | Atom  # of a slice, or the length of a loop: known, or computed in the loop around

# An input of a node in a loop: from outside, by its number among what the loop reads; the first
# value of a carry, by its number among carries; a result of an earlier node of the same iteration.
Wire = tuple[str, int, int]


@final
@mutable
class Node:
    """An equation, or a loop of nodes, with the numbers in which iterations may differ."""

    key: int  # equal for nodes that differ in names and numbers alone
    inputs: tuple[Var, ...]
    outs: tuple[Var, ...]
    numbers: tuple[int, ...]  # starts of slices, and lengths of loops
    eqns: Sequence[Eqn]  # of a loop: those that it stands for
    loop: Loop | None = None


@final
@mutable
class Loop:
    """Iterations of the same nodes, whose numbers change by `steps`.

    The first number of the loop's node is its length, the others those of its first iteration.
    """

    body: tuple[Node, ...]  # of the first iteration
    wires: tuple[tuple[Wire, ...], ...]  # of the inputs of each
    steps: tuple[int, ...]
    carries: tuple[tuple[int, int], ...]  # node, result: the next value of each
    read: int  # the number of values from outside; the inputs after them are the first of carries


@final
class Scope:
    """The equations of a graph, within that of another or the whole."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.outer = outer
        self.eqns: list[Eqn] = []
        self.inner: dict[Var, Var] = {}  # values of the graph around as this one calls them
        self.offsets: dict[tuple[Start, int], Atom] = {}
        self.lengths: dict[int, Var] = {}

    def read(self, a: Atom) -> Atom:
        """A value of the graph around."""
        if isinstance(a, Literal):
            return a
        if a not in self.inner:
            self.inner[a] = Var(ArrayType(a.type.shape, a.type.dtype))
        return self.inner[a]

    def make(self, op: Op, *inputs: Atom, source: Source | None = None) -> Var:
        out = Var(op.infer(*(a.type for a in inputs))[0])
        self.eqns.append(Eqn(op, inputs, (out,), source))
        return out

    def counts(self, length: int) -> Var:
        """The numbers from 0 to a length, made once for the whole program."""
        if self.outer is not None:
            found = self.read(self.outer.counts(length))
            assert isinstance(found, Var)
            return found
        if length not in self.lengths:
            self.lengths[length] = self.make(Iota((length,), 0, INT64))
        return self.lengths[length]

    def offset(self, start: Start, step: int, count: Var) -> Start:
        """A number of the iteration that `count` numbers, from one of the graph around."""
        if not isinstance(start, int):
            start = self.read(start)
        if step == 0:
            return start
        key = start, step
        if key not in self.offsets:
            moved = self.make(BY_NAME["mul"], count, number(step)) if step != 1 else count
            self.offsets[key] = (
                moved if start == 0 else self.make(BY_NAME["add"], moved, atom(start))
            )
        return self.offsets[key]

    def given(self) -> list[Atom]:
        """The values of the graph around, which are arrays to a loop."""
        assert self.outer is not None
        return [self.outer.strong(a) for a in self.inner]

    def strong(self, a: Atom) -> Atom:
        return self.make(ConvertElementType(a.type.dtype), a) if a.type.weak else a

    # -- nodes

    def place(
        self, node: Node, inputs: Sequence[Atom], numbers: Sequence[Start], outs: Sequence[Var]
    ) -> None:
        """Adds a node that reads these inputs, at these numbers, and makes these values."""
        if node.loop is not None:
            self.place_loop(node.loop, node, inputs, numbers, outs)
            return
        (eqn,) = node.eqns
        if any(not isinstance(n, int) for n in numbers):
            self.place_slice(eqn, inputs, numbers, outs[0])
            return
        values = iter(inputs)
        read = tuple(a if isinstance(a, Literal) else next(values) for a in eqn.inputs)
        self.eqns.append(Eqn(eqn.op, read, tuple(outs), eqn.source))

    def place_slice(
        self, eqn: Eqn, inputs: Sequence[Atom], numbers: Sequence[Start], out: Var
    ) -> None:
        if isinstance(eqn.op, Slice):
            part = Part(self, eqn.op.step, eqn.outs[0].type.shape, numbers, eqn.source)
            part.get(inputs[0], out)
        else:
            assert isinstance(eqn.op, UpdateSlice)
            part = Part(self, eqn.op.step, eqn.inputs[1].type.shape, numbers, eqn.source)
            part.put(inputs[0], inputs[1], out)

    def place_loop(
        self,
        loop: Loop,
        node: Node,
        inputs: Sequence[Atom],
        numbers: Sequence[Start],
        outs: Sequence[Var],
    ) -> None:
        body, count = Scope(self), Var(NUMBER)
        first = list(inputs[loop.read :])
        first += [self.zeros(v.type) for v in outs[len(first) :]]
        carried = [Var(a.type) for a in first]
        made: list[tuple[Var, ...]] = []
        at = 0
        for each, wires in zip(loop.body, loop.wires, strict=True):
            n = len(each.numbers)
            steps = loop.steps[at : at + n]
            starts = numbers[1 + at : 1 + at + n]
            moved = [body.offset(s, d, count) for s, d in zip(starts, steps, strict=True)]
            read = [wired(w, inputs, body, carried, made) for w in wires]
            made.append(tuple(Var(v.type) for v in each.outs))
            body.place(each, read, moved, made[-1])
            at += n
        result = [made[o][i] for o, i in loop.carries]
        source = loop.body[0].eqns[0].source
        body.close(numbers[0], count, carried, first, result, outs, source)

    def close(
        self,
        length: Start,
        count: Var,
        carried: Sequence[Var],
        first: Sequence[Atom],
        result: Sequence[Atom],
        outs: Sequence[Var],
        source: Source | None,
    ) -> None:
        """Adds the loop of which this is the body to the graph around."""
        around = self.outer
        assert around is not None
        if isinstance(length, int):
            counts = around.counts(length)
            consts, given = tuple(self.inner.values()), self.given()
            graph = Graph((*consts, *carried, count), tuple(self.eqns), tuple(result))
            op: Op = ScanLoop(graph, length, len(consts), len(carried))
            around.eqns.append(Eqn(op, (*given, *first, counts), tuple(outs), source))
            return
        after = self.make(BY_NAME["add"], count, number(1))
        consts, given = tuple(self.inner.values()), self.given()
        graph = Graph((*consts, count, *carried), tuple(self.eqns), (after, *result))
        limit, at, goes_on = Var(NUMBER), Var(NUMBER), Var(DECIDED)
        others = [Var(v.type) for v in carried]
        less = Eqn(BY_NAME["lt"], (at, limit), (goes_on,), source)
        until = Graph((limit, at, *others), (less,), (goes_on,))
        op = WhileLoop(until, graph, 1, len(consts))
        inputs = (length, *given, number(0), *first)
        around.eqns.append(Eqn(op, inputs, (Var(NUMBER), *outs), source))

    def zeros(self, t: ArrayType) -> Atom:
        zero = Literal.of(t.dtype.type(0))
        return self.make(BroadcastInDim(t.shape, ()), zero) if t.shape else zero


def number(n: int) -> Literal:
    return Literal.of(np.int64(n))


def atom(n: Start) -> Atom:
    return number(n) if isinstance(n, int) else n


def wired(
    wire: Wire,
    inputs: Sequence[Atom],
    body: Scope,
    carried: Sequence[Var],
    made: Sequence[Sequence[Var]],
) -> Atom:
    kind, a, b = wire
    if kind == "outside":
        return body.read(inputs[a])
    return carried[a] if kind == "carry" else made[a][b]


@final
class Part:
    """A slice of an array of which some axes start at computed numbers."""

    def __init__(
        self,
        scope: Scope,
        step: Dims,
        sizes: Dims,
        starts: Sequence[Start],
        source: Source | None,
    ) -> None:
        self.scope, self.sizes, self.source = scope, sizes, source
        every = range(len(sizes))
        self.axes = tuple(i for i in every if not isinstance(starts[i], int))
        self.rest = tuple(i for i in every if i not in self.axes)
        self.long = tuple(i for i in self.axes if sizes[i] != 1)
        self.single = tuple(i for i in self.axes if sizes[i] == 1)
        # start, count and step of each of the other axes
        self.window = tuple((int(starts[i]), sizes[i], step[i]) for i in self.rest)  # type: ignore[arg-type]
        self.indices = [self.index(i, atom(starts[i]), step[i]) for i in self.axes]

    def index(self, axis: int, start: Atom, step: int) -> Atom:
        """The indices along an axis; those of axes that are not of size one have one shape."""
        if axis in self.single:
            return start
        shape = tuple(self.sizes[i] for i in self.long)
        counts = self.make(Iota(shape, self.long.index(axis), INT64))
        if step != 1:
            counts = self.make(BY_NAME["mul"], counts, number(step))
        return self.make(BY_NAME["add"], counts, start)

    def make(self, op: Op, *inputs: Atom) -> Var:
        return self.scope.make(op, *inputs, source=self.source)

    def order(self) -> Dims:
        """The axes as a gather has them, and then those of size one."""
        return (*self.long, *self.rest, *self.single)

    def get(self, x: Atom, out: Var) -> None:
        """Makes `out` the slice of an array."""
        shape = x.type.shape
        start, stop, step = [0] * len(shape), [*shape], [1] * len(shape)
        for axis, (first, n, each) in zip(self.rest, self.window, strict=True):
            start[axis], stop[axis], step[axis] = first, last(first, n, each), each
        if (tuple(start), tuple(stop)) != ((0,) * len(shape), shape) or set(step) != {1}:
            x = self.make(Slice(tuple(start), tuple(stop), tuple(step)), x)
        y = self.make(Gather(self.axes), x, *self.indices)
        order = self.order()
        if order != tuple(sorted(order)):
            y = self.make(Reshape(tuple(self.sizes[i] for i in order)), y)
            op: Op = Transpose(inverse(order))
        else:
            op = Reshape(out.type.shape)
        self.scope.eqns.append(Eqn(op, (y,), (out,), self.source))

    def put(self, x: Atom, u: Atom, out: Var) -> None:
        """Makes `out` the array with an update in place of the slice."""
        order, shape = self.order(), x.type.shape
        if order != tuple(sorted(order)):
            u = self.make(Transpose(order), u)
        u = self.make(Reshape(tuple(self.sizes[i] for i in (*self.long, *self.rest))), u)
        full = tuple((0, shape[i], 1) for i in self.rest)
        op = Scatter(self.axes, () if self.window == full else self.window, unique=True)
        self.scope.eqns.append(Eqn(op, (x, u, *self.indices), (out,), self.source))


def last(first: int, n: int, step: int) -> int:
    """The end of a slice."""
    return first + (n - 1) * step + 1 if n else first
