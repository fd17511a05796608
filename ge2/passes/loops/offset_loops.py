"""Loops over slices whose starts count, as scans: how one is described, and the equations of it.

x[i + 3 t]  ->  scan over t: gather x at (i + 3 t)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.record import mutable, record
from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var, applied
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import AND, BY_NAME, WHERE, ConvertElementType
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import Gather, Scatter, UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce, ReduceMax, ReduceMin, kept
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
    parts: Sequence[Node] = ()  # of a loop: the nodes of all iterations


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
@record
class Body:
    """The ends of a loop's body: `count`, the number of the iteration; `carried`, carries within it,
    their `first` values, and `result`, their next ones; `outs`, the last ones outside.
    """

    count: Var
    carried: tuple[Var, ...]
    first: tuple[Atom, ...]
    result: tuple[Atom, ...]
    outs: tuple[Var, ...]
    source: Source | None


@final
class Scope:
    """The equations of a graph, within that of another or the whole. `widest`: elements of an axis
    at most, of which it may read a part of a computed size.
    """

    def __init__(self, widest: int, outer: Scope | None = None) -> None:
        self.widest, self.outer = widest, outer
        self.first: list[Eqn] = []  # of the whole program: those of what is counted
        self.eqns: list[Eqn] = []
        self.inner: dict[Var, Var] = {}  # values of the graph around as this one calls them
        self.offsets: dict[tuple[Start, int], Atom] = {}
        self.lengths: dict[int, Var] = {}
        self.windows: dict[Atom, Windows] = {}  # of values whose size changes
        self.masks: dict[tuple[Window, int], Var] = {}

    def read(self, a: Atom) -> Atom:
        """A value of the graph around."""
        if isinstance(a, Literal):
            return a
        if a not in self.inner:
            self.inner[a] = Var(ArrayType(a.type.shape, a.type.dtype))
            assert self.outer is not None
            if a in self.outer.windows:
                found = [w and w.read(self) for w in self.outer.windows[a]]
                self.windows[self.inner[a]] = tuple(found)
        return self.inner[a]

    def make(self, op: Op, *inputs: Atom, source: Source | None = None) -> Var:
        return applied(self.eqns, op, *inputs, source=source)

    def counts(self, length: int) -> Var:
        """The numbers from 0 to a length, made once for the whole program."""
        if self.outer is not None:
            found = self.read(self.outer.counts(length))
            assert isinstance(found, Var)
            return found
        if length not in self.lengths:
            op, out = Iota((length,), 0, INT64), Var(ArrayType((length,), INT64))
            self.first.append(Eqn(op, (), (out,)))
            self.lengths[length] = out
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

    def strong(self, a: Atom) -> Atom:
        return self.make(ConvertElementType(a.type.dtype), a) if a.type.weak else a

    # -- nodes

    def place(
        self,
        node: Node,
        inputs: Sequence[Atom],
        numbers: Sequence[Start],
        outs: Sequence[Var] | None = None,
    ) -> tuple[Var, ...]:
        """Adds a node that reads these inputs, at these numbers; what it makes, under new names if
        none are given.

        Raises `UnevenError` where sizes change as in no loop.
        """
        if node.loop is not None:
            return self.place_loop(node.loop, inputs, numbers, node.outs, outs)
        (eqn,) = node.eqns
        known = all(isinstance(n, int) for n in numbers)
        if known and not any(a in self.windows for a in inputs):
            made = tuple(Var(v.type) for v in eqn.outs) if outs is None else tuple(outs)
            self.eqns.append(Eqn(eqn.op, operands(eqn, inputs), made, eqn.source))
            return made
        return (Uneven(self, eqn, operands(eqn, inputs), numbers).place(),)

    def place_loop(
        self,
        loop: Loop,
        inputs: Sequence[Atom],
        numbers: Sequence[Start],
        like: Sequence[Var],
        outs: Sequence[Var] | None,
    ) -> tuple[Var, ...]:
        inner, count = Scope(self.widest, self), Var(NUMBER)
        first = list(inputs[loop.read :])
        first += [self.zeros(v.type) for v in like[len(first) :]]
        carried = tuple(Var(a.type) for a in first)
        for v, a in zip(carried, first, strict=True):
            if a in self.windows:
                inner.windows[v] = tuple(w and w.read(inner) for w in self.windows[a])
        result = inner.iteration(loop, inputs, numbers, carried, count)
        for v, a in zip(carried, result, strict=True):
            if v.type != a.type or inner.windows.get(v) != inner.windows.get(a):
                raise UnevenError("the size of a carry changes")
        made = tuple(Var(a.type) for a in first) if outs is None else tuple(outs)
        for v, a in zip(made, first, strict=True):
            if a in self.windows:
                self.windows[v] = self.windows[a]
        source = loop.body[0].eqns[0].source
        body = Body(count, carried, tuple(first), tuple(result), made, source)
        if isinstance(numbers[0], int):
            inner.scan(numbers[0], body)
        else:
            inner.repeat(numbers[0], body)
        return made

    def iteration(
        self,
        loop: Loop,
        inputs: Sequence[Atom],
        numbers: Sequence[Start],
        carried: Sequence[Var],
        count: Var,
    ) -> list[Var]:
        """Adds the nodes of a loop; the next values of its carries."""
        made: list[tuple[Var, ...]] = []
        at = 0
        for each, wires in zip(loop.body, loop.wires, strict=True):
            n = len(each.numbers)
            steps, starts = loop.steps[at : at + n], numbers[1 + at : 1 + at + n]
            moved = [self.offset(s, d, count) for s, d in zip(starts, steps, strict=True)]
            read = [wired(w, inputs, self, carried, made) for w in wires]
            made.append(self.place(each, read, moved))
            at += n
        return [made[o][i] for o, i in loop.carries]

    def scan(self, length: int, body: Body) -> None:
        """Adds the loop of this body to the graph around."""
        around = self.outer
        assert around is not None
        consts, given = tuple(self.inner.values()), list(map(around.strong, self.inner))
        counts = around.counts(length)
        graph = Graph((*consts, *body.carried, body.count), tuple(self.eqns), body.result)
        op = ScanLoop(graph, length, len(consts), len(body.carried))
        around.eqns.append(Eqn(op, (*given, *body.first, counts), body.outs, body.source))

    def repeat(self, length: Atom, body: Body) -> None:
        """Adds the loop of this body, whose length is computed."""
        around = self.outer
        assert around is not None
        after = self.make(BY_NAME["add"], body.count, number(1))
        consts, given = tuple(self.inner.values()), list(map(around.strong, self.inner))
        within = (*consts, body.count, *body.carried)
        graph = Graph(within, tuple(self.eqns), (after, *body.result))
        limit, at, goes_on = Var(NUMBER), Var(NUMBER), Var(DECIDED)
        less = Eqn(BY_NAME["lt"], (at, limit), (goes_on,), body.source)
        until = Graph((limit, at, *(Var(v.type) for v in body.carried)), (less,), (goes_on,))
        op = WhileLoop(until, graph, 1, len(consts))
        inputs = (length, *given, number(0), *body.first)
        around.eqns.append(Eqn(op, inputs, (Var(NUMBER), *body.outs), body.source))

    def zeros(self, t: ArrayType) -> Atom:
        zero = Literal.of(t.dtype.type(0))
        return self.make(BroadcastInDim(t.shape, ()), zero) if t.shape else zero


def number(n: int) -> Literal:
    return Literal.of(np.int64(n))


def atom(n: Start) -> Atom:
    return number(n) if isinstance(n, int) else n


def operands(eqn: Eqn, values: Sequence[Atom]) -> tuple[Atom, ...]:
    """The inputs of an equation, where these are what it reads that is no literal."""
    left = iter(values)
    return tuple(a if isinstance(a, Literal) else next(left) for a in eqn.inputs)


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

    def get(self, x: Atom) -> Var:
        """The slice of an array."""
        shape = x.type.shape
        start, stop, step = [0] * len(shape), [*shape], [1] * len(shape)
        for axis, (first, n, each) in zip(self.rest, self.window, strict=True):
            start[axis], stop[axis], step[axis] = first, last(first, n, each), each
        if (tuple(start), tuple(stop)) != ((0,) * len(shape), shape) or set(step) != {1}:
            x = self.make(Slice(tuple(start), tuple(stop), tuple(step)), x)
        if not self.axes:
            assert isinstance(x, Var)
            return x
        y, order = self.make(Gather(self.axes), x, *self.indices), self.order()
        if order == tuple(sorted(order)):
            return self.make(Reshape(self.sizes), y)
        y = self.make(Reshape(tuple(self.sizes[i] for i in order)), y)
        return self.make(Transpose(inverse(order)), y)

    def put(self, x: Atom, u: Atom) -> Var:
        """The array with an update in place of the slice."""
        if not self.axes:
            start, _, step = zip(*self.window, strict=True)
            return self.make(UpdateSlice(start, step), x, u)
        order, shape = self.order(), x.type.shape
        if order != tuple(sorted(order)):
            u = self.make(Transpose(order), u)
        u = self.make(Reshape(tuple(self.sizes[i] for i in (*self.long, *self.rest))), u)
        full = tuple((0, shape[i], 1) for i in self.rest)
        op = Scatter(self.axes, () if self.window == full else self.window, unique=True)
        return self.make(op, x, u, *self.indices)


def last(first: int, n: int, step: int) -> int:
    """The end of a slice."""
    return first + (n - 1) * step + 1 if n else first


# -------- Sizes that change. Of an axis that has fewer elements in some iterations there are all of
# the array that it is a part of: what is outside of the window counts for nothing in sums, and is
# not written.


class UnevenError(Exception):
    """Sizes change in a way that no loop has."""


@final
@record
class Window:
    """The elements of an axis that there are in an iteration."""

    start: Start
    size: Start

    def read(self, scope: Scope) -> Window:
        """The same in a loop."""
        start, size = (n if isinstance(n, int) else scope.read(n) for n in (self.start, self.size))
        return Window(start, size)


Windows = tuple[Window | None, ...]
OF_ANY_SIZE: Final = (Pointlike, DotGeneral, ReduceMax, ReduceMin, Transpose)


@final
class Uneven:
    """An equation of which some starts and sizes are computed, or that reads what has such sizes."""

    def __init__(
        self, scope: Scope, eqn: Eqn, inputs: Sequence[Atom], numbers: Sequence[Start]
    ) -> None:
        self.scope, self.eqn, self.inputs, self.numbers = scope, eqn, inputs, numbers

    def place(self) -> Var:
        """Adds it; what it makes."""
        for kind, rule in RULES:
            if isinstance(self.eqn.op, kind):
                out, windows = rule(self)
                if sum(w is not None for w in windows) > 1:
                    raise UnevenError("several sizes change")
                if any(windows):
                    self.scope.windows[out] = windows
                return out
        raise UnevenError(f"{self.eqn.op.name} of a size that changes")

    def make(self, op: Op, *inputs: Atom) -> Var:
        return self.scope.make(op, *inputs, source=self.eqn.source)

    def windows(self, a: Atom) -> Windows:
        return self.scope.windows.get(a, (None,) * a.type.ndim)

    def part(self, step: Dims, x: Atom) -> tuple[Part, Windows]:
        """The slice that the numbers name; axes whose size is computed are whole."""
        n = x.type.ndim
        starts, sizes, found = list(self.numbers[:n]), list[int](), list[Window | None]()
        for axis, (start, size) in enumerate(zip(starts, self.numbers[n:], strict=True)):
            there, all_of_it = self.windows(x)[axis], x.type.shape[axis]
            window = None if isinstance(size, int) else Window(start, size)
            if there is not None:
                if start != 0 or size != there.size:
                    raise UnevenError("a part of what has sizes that change")
                window = there
            if window is not None and (step[axis] != 1 or all_of_it > self.scope.widest):
                raise UnevenError("a part in steps, or of a long axis")
            if window is not None:
                starts[axis] = 0
            sizes.append(all_of_it if window is not None else int(size))  # type: ignore[arg-type]
            found.append(window)
        return Part(self.scope, step, tuple(sizes), starts, self.eqn.source), tuple(found)

    def slice(self) -> tuple[Var, Windows]:
        op, (x,) = self.eqn.op, self.inputs
        assert isinstance(op, Slice)
        part, windows = self.part(op.step, x)
        return part.get(x), windows

    def update(self) -> tuple[Var, Windows]:
        op, (x, u) = self.eqn.op, self.inputs
        assert isinstance(op, UpdateSlice)
        part, windows = self.part(op.step, x)
        if any(self.windows(x)) or self.windows(u) != windows or u.type.shape != part.sizes:
            raise UnevenError("what is written to a part is of another one")
        for axis, window in enumerate(windows):
            if window is not None:
                old = part.get(x)
                u = self.make(WHERE, self.mask(axis, window, u), u, old)
        return part.put(x, u), self.windows(x)

    def mask(self, axis: int, window: Window, like: Atom) -> Var:
        """True of the elements of the window, in the shape of an array."""
        shape, masks = like.type.shape, self.scope.masks
        key = window, shape[axis]
        if key not in masks:
            counts = self.make(Iota((shape[axis],), 0, INT64))
            if window.start == 0:
                masks[key] = self.make(BY_NAME["lt"], counts, atom(window.size))
            else:
                moved = self.make(BY_NAME["sub"], counts, atom(window.start))
                inside = self.make(BY_NAME["lt"], moved, atom(window.size))
                from_start = self.make(BY_NAME["ge"], moved, number(0))
                masks[key] = self.make(AND, from_start, inside)
        if shape == (shape[axis],):
            return masks[key]
        return self.make(BroadcastInDim(shape, (axis,)), masks[key])

    def masked(self, x: Atom, axes: Sequence[int], neutral: float) -> Atom:
        """An array with a number in place of what is outside of its windows."""
        for axis in axes:
            window = self.windows(x)[axis]
            if window is not None:
                other = Literal.of(x.type.dtype.type(neutral))
                windows = self.windows(x)
                x = self.make(WHERE, self.mask(axis, window, x), x, other)
                self.scope.windows[x] = windows
        return x

    def reshape(self) -> tuple[Var, Windows]:
        (x,) = self.inputs
        given = [(n, w) for n, w in zip(x.type.shape, self.windows(x), strict=True) if w or n != 1]
        sizes, found, left = list[int](), list[Window | None](), iter(given)
        for size in self.numbers:
            if size == 1:
                sizes.append(1)
                found.append(None)
                continue
            n, window = next(left, (0, None))
            if size != (n if window is None else window.size):
                raise UnevenError("a reshape of sizes that change")
            sizes.append(n)
            found.append(window)
        if next(left, None) is not None:
            raise UnevenError("a reshape of sizes that change")
        return self.make(Reshape(tuple(sizes)), x), tuple(found)

    def broadcast(self) -> tuple[Var, Windows]:
        op, (x,) = self.eqn.op, self.inputs
        assert isinstance(op, BroadcastInDim)
        sizes, found = list[int](), list[Window | None]()
        for axis, size in enumerate(self.numbers):
            if isinstance(size, int):
                n, window = size, None
            elif axis in op.dims and (there := self.windows(x)[op.dims.index(axis)]) is not None:
                n, window = x.type.shape[op.dims.index(axis)], there
            else:
                n, window = self.of_size(size)
            if window is not None and window.size != size:
                raise UnevenError("a broadcast of sizes that change")
            sizes.append(n)
            found.append(window)
        return self.make(BroadcastInDim(tuple(sizes), op.dims), x), tuple(found)

    def of_size(self, size: Atom) -> tuple[int, Window]:
        """A known axis of a size that changes."""
        for a, windows in self.scope.windows.items():
            for n, window in zip(a.type.shape, windows, strict=True):
                if window is not None and window.size == size:
                    return n, window
        raise UnevenError("a broadcast to a size that is no array's")

    def pointwise(self) -> tuple[Var, Windows]:
        kinds = {(a.type.shape, self.windows(a)) for a in self.inputs if a.type.ndim}
        if len(kinds) != 1:
            raise UnevenError("different parts of axes in one operation")
        return self.make(self.eqn.op, *self.inputs), kinds.pop()[1]

    def transpose(self) -> tuple[Var, Windows]:
        op, (x,) = self.eqn.op, self.inputs
        assert isinstance(op, Transpose)
        return self.make(op, x), tuple(self.windows(x)[i] for i in op.order)

    def reduce(self) -> tuple[Var, Windows]:
        op, (x,) = self.eqn.op, self.inputs
        assert isinstance(op, Reduce)
        windows = tuple(self.windows(x)[i] for i in kept(op.axes, x.type.ndim))
        x = self.masked(x, op.axes, op.neutral_of(x.type.dtype))
        return self.make(op, x), windows

    def product(self) -> tuple[Var, Windows]:
        op, (a, b) = self.eqn.op, self.inputs
        assert isinstance(op, DotGeneral)
        for pair in (op.contract, op.beside):
            for i, j in zip(*pair, strict=True):
                same = a.type.shape[i] == b.type.shape[j]
                if not same or self.windows(a)[i] != self.windows(b)[j]:
                    raise UnevenError("a product of different parts of axes")
        of_a = kept((*op.contract[0], *op.beside[0]), a.type.ndim)
        of_b = kept((*op.contract[1], *op.beside[1]), b.type.ndim)
        windows = (
            *(self.windows(a)[i] for i in (*op.beside[0], *of_a)),
            *(self.windows(b)[i] for i in of_b),
        )
        a, b = self.masked(a, op.contract[0], 0), self.masked(b, op.contract[1], 0)
        return self.make(op, a, b), windows


RULES: Final = (
    (Slice, Uneven.slice),
    (UpdateSlice, Uneven.update),
    (Reshape, Uneven.reshape),
    (BroadcastInDim, Uneven.broadcast),
    (Pointlike, Uneven.pointwise),
    (Transpose, Uneven.transpose),
    (Reduce, Uneven.reduce),
    (DotGeneral, Uneven.product),
)
