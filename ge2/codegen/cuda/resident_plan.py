"""A graph as phases of a block: loops over elements between barriers, within rounds and branches.

Each equation becomes a statement of a loop over the elements of its result, or is computed where it is read.
What a statement reads at another place, or another thread has, is read from memory and after a barrier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, final

from ge2.base.record import mutable, record
from ge2.codegen.cuda.resident_index import VIEWS, Index
from ge2.codegen.cuda.resident_values import (
    POINTS,
    Array,
    Inline,
    Made,
    Number,
    Picked,
    Reader,
    Seen,
    Value,
    spoken,
    whole,
)
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var
from ge2.ops.control import Cond
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import TRANSCENDENTAL
from ge2.ops.loops import ScanLoop
from ge2.ops.reduce import ArgReduce, Reduce, kept
from ge2.ops.shape import Iota
from ge2.ops.while_loop import WhileLoop

LOOPS = (ScanLoop, WhileLoop)
FOLDS = (Reduce, ArgReduce)
DEEP: Final = 3  # numbers of a chain that are computed anew wherever the last is read
WHOLE: Final = 256  # elements from which on all threads of the block fold them into one
E = "e"  # the place of an element in its loop
Ends = Sequence[tuple[Atom, Array]]


class Unwritten(Exception):
    """What no resident kernel does; who asks for one takes another way."""


@final
@record
class Key:
    """What statements of one loop have in common: so many elements, each by a team of threads.

    `product` is that whose matrix the threads keep; its team is another one.
    """

    size: int
    team: int = 1
    product: Eqn | None = None


@final
@mutable
class Statement:
    """An equation, or a copy where there is none."""

    y: Made
    eqn: Eqn | None
    xs: Sequence[Value]
    key: Key | None = None  # None: it goes where what it reads is
    kept: Any = None  # how threads keep a matrix, of a product that is made so


@final
@mutable
class Loop:
    key: Key
    statements: list[Statement] = field(default_factory=list)


@final
@mutable
class Level:
    """Loops that need not wait for each other; a barrier follows."""

    loops: list[Loop] = field(default_factory=list)


@final
@mutable
class Rounds:
    """A loop over rounds: `length`, or while `decided` holds after the nodes of `test`.

    `count` is the argument that has the length: it is no part of the text.
    """

    label: str
    side: str  # which of its two places the carry has
    body: list[Node]
    length: int = 0
    reverse: bool = False
    count: str = ""
    test: list[Node] = field(default_factory=list)
    decided: Value | None = None


@final
@mutable
class Choice:
    """Of several branches the one that `index` tells."""

    label: str
    index: Value
    branches: list[list[Node]]


Node = Level | Rounds | Choice


@final
@mutable
class Plan:
    """The arrays that the nodes of a kernel have in shared memory, and in global memory for themselves."""

    threads: int
    number: Callable[[Literal], Value]
    named: Callable[[Var], str]
    keeps: Callable[
        [Eqn, Sequence[Value]], Any
    ]  # how a product's matrix is kept from round to round, if it is
    alone: bool = True  # whether the kernel has one block, and not some for rows each
    inside: int = 0  # how many loops are around
    shared: list[tuple[Array, int]] = field(default_factory=list)  # with so many elements
    temps: list[Array] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)

    def label(self, name: str) -> str:
        """A name that nothing else has."""
        self.taken[name] += 1
        return name if self.taken[name] == 1 else self.label(f"{name}_{self.taken[name]}")

    def graph(self, graph: Graph, given: Sequence[Value], ends: Ends, test: bool = False) -> Scope:
        """A graph's nodes, with values for its inputs and places for its results.

        The result of a `test` need not be stored.
        """
        scope = Scope(self, graph, dict(zip(graph.inputs, given, strict=True)), list(ends), test)
        for eqn in graph.eqns:
            scope.take(eqn)
        scope.finish()
        return scope

    def room(self, name: str, type_: ArrayType, times: int = 1) -> Array:
        """An array in shared memory."""
        found = whole(self.label(name), type_, shared=True)
        self.shared.append((found, type_.size * times))
        return found

    def temp(self, name: str, type_: ArrayType) -> Array:
        """An array in global memory, for each block one of its own."""
        found = whole(self.label(name), type_, "" if self.alone else f"(int)blockIdx.x * {type_.size}")
        self.temps.append(found)
        return found

    def need(self, x: Made) -> None:
        """Sees to it that a result may be read in other loops: of shared memory, but for what is large."""
        if not any(home.shared for home in x.homes):
            x.homes.insert(0, self.room(x.name, x.type))

    def team(self, size: int, folded: int) -> int:
        """Threads that fold elements into one: as many as are free, and have something to do."""
        if size == 1 and folded >= WHOLE:
            return self.threads
        free = max(self.threads // size, 1)
        return min(1 << (free.bit_length() - 1), 32, 1 << max((folded - 1) // 2, 0).bit_length())


@final
class Scope:
    """A graph on its way to nodes."""

    def __init__(
        self, plan: Plan, graph: Graph, env: dict[Var, Value], ends: list[tuple[Atom, Array]], test: bool
    ) -> None:
        self.plan, self.graph, self.env, self.ends, self.test = plan, graph, env, ends, test
        self.nodes: list[Node] = []
        self.pending: list[Statement] = []
        self.readers = readers(graph)
        self.placed: set[int] = set()  # numbers of the ends that a statement writes
        self.outputs = set(graph.outputs)

    # -- equations

    def take(self, eqn: Eqn) -> None:
        op = eqn.op
        if isinstance(op, VIEWS):
            for i, y in enumerate(eqn.outs):
                self.env[y] = Seen(eqn, i, self.value(eqn.inputs[i]), y.type)
        elif isinstance(op, Iota) and self.counts(eqn.outs[0]):
            self.env[eqn.outs[0]] = Inline(eqn, [], eqn.outs[0].type)
        elif isinstance(op, LOOPS):
            self.rounds(eqn)
        elif isinstance(op, Cond):
            self.choice(eqn)
        elif isinstance(op, POINTS) and spoken(eqn):
            self.point(eqn)
        elif isinstance(op, FOLDS):
            (x,), (y,) = eqn.inputs, eqn.outs
            folded = x.type.size // max(y.type.size, 1)
            self.make(eqn, Key(y.type.size, self.plan.team(y.type.size, folded)))
        elif isinstance(op, DotGeneral):
            self.product(eqn)
        else:
            raise Unwritten(f"{op.name} is no step of a resident kernel")

    def value(self, a: Atom) -> Value:
        return self.plan.number(a) if isinstance(a, Literal) else self.env[a]

    def point(self, eqn: Eqn) -> None:
        (y,), xs = eqn.outs, [*map(self.value, eqn.inputs)]
        depth = 1 + max([x.depth for x in xs if isinstance(x, Inline)], default=0)
        cheap = y.type.size == 1 and depth <= DEEP and eqn.op.name not in TRANSCENDENTAL
        inside = (self.test or y not in self.outputs) and (cheap or self.passing(y))
        if inside:
            self.env[y] = Inline(eqn, xs, y.type, depth)
        else:
            self.make(eqn, None)

    def counts(self, y: Var) -> bool:
        """Whether loops alone read a value, as one whose elements count rounds is read."""
        read = self.readers.found.get(y, [])
        return y not in self.outputs and all(isinstance(each.op, LOOPS) for each in read)

    def passing(self, y: Var) -> bool:
        """Whether a value is read once, at a place that its own loop has not: by a fold, through a view."""
        if y in self.outputs or self.readers.count(y) != 1:
            return False
        reader = self.readers.of(y)
        if isinstance(reader.op, FOLDS):
            return True
        if isinstance(reader.op, VIEWS):
            (seen,) = reader.outs[:1]
            return len(reader.outs) == 1 and seen.type.size == y.type.size and self.onward(seen)
        return isinstance(reader.op, POINTS) and spoken(reader) and self.passing(reader.outs[0])

    def onward(self, seen: Var) -> bool:
        """Whether a view is read once, by what computes with its elements."""
        if seen in self.outputs or self.readers.count(seen) != 1:
            return False
        op = self.readers.of(seen).op
        return isinstance(op, FOLDS) or (isinstance(op, POINTS) and spoken(self.readers.of(seen)))

    def product(self, eqn: Eqn) -> None:
        op, a, (y,) = eqn.op, eqn.inputs[0].type, eqn.outs
        assert isinstance(op, DotGeneral)
        found = self.plan.keeps(eqn, [*map(self.value, eqn.inputs)]) if self.plan.inside else None
        if found is not None:
            self.make(eqn, Key(y.type.size, 0, eqn)).kept = found
            return
        folded = math.prod(a.shape[i] for i in op.contract[0])
        self.make(eqn, Key(y.type.size, self.plan.team(y.type.size, folded)))

    def make(self, eqn: Eqn, key: Key | None) -> Statement:
        (y,) = eqn.outs
        homes = []
        for n, (a, array) in enumerate(self.ends):
            if a is y:
                homes.append(array)
                self.placed.add(n)
        made = Made(self.plan.label(self.plan.named(y)), y.type, homes)
        found = Statement(made, eqn, [*map(self.value, eqn.inputs)], key)
        self.env[y] = made
        self.pending.append(found)
        return found

    def copy(self, x: Value, to: Array) -> None:
        self.pending.append(Statement(Made("", to.type, [to]), None, [x]))

    def finish(self) -> None:
        for n, (a, array) in enumerate(self.ends):
            if n not in self.placed:
                self.copy(self.value(a), array)
        self.flush()

    # -- loops and branches

    def rounds(self, eqn: Eqn) -> None:
        op: Any = eqn.op
        scan = isinstance(op, ScanLoop)
        if scan and not op.length:
            raise Unwritten("a loop of no rounds")
        label = self.plan.label("round")
        consts, start, elements = [*map(self.value, eqn.inputs)], [], []
        if scan:
            consts, start, elements = (list(p) for p in op.parts(consts))
            body, more = op.body, []
        else:
            tests, consts, start = (list(p) for p in op.parts(consts))
            body, more = op.body, tests
        first = len(consts)
        changed = [a is not body.inputs[first + i] for i, a in enumerate(body.outputs[: len(start)])]
        if scan is False:
            changed = [True] * len(start) if not any(changed) else changed
        side = f"{label}_side"
        pairs = [
            self.plan.room(self.plan.named(v), v.type, 2) if c else None
            for v, c in zip(body.inputs[first : first + len(start)], changed, strict=True)
        ]
        for x, pair in zip(start, pairs, strict=True):
            if pair is not None:
                self.copy(x, pair)
        self.flush()
        now = [x if p is None else placed(p, side) for x, p in zip(start, pairs, strict=True)]
        then = [None if p is None else placed(p, f"({side} ^ 1)") for p in pairs]
        ends = [(a, t) for a, t in zip(body.outputs, then, strict=False) if t is not None]
        stacks = self.stacks(eqn, len(start)) if scan else []
        rows = [part(x, label) for x in elements]
        found = zip(body.outputs[len(start) :], stacks, strict=True) if scan else ()
        ends += [(a, y.part(label)) for a, y in found if y is not None]
        self.plan.inside += 1
        node = Rounds(label, side, [])
        if scan:
            node.length, node.reverse, node.count = op.length, op.reverse, self.plan.label("rounds")
        if not scan:
            test = self.plan.graph(op.cond, [*more, *now], (), test=True)
            node.test, node.decided = test.nodes, test.value(op.cond.outputs[0])
            self.look(node.decided)
        node.body = self.plan.graph(body, [*consts, *now, *rows], ends).nodes
        self.plan.inside -= 1
        self.nodes.append(node)
        for y, value in zip(eqn.outs, [*now, *stacks], strict=True):
            if value is not None:
                self.env[y] = value

    def stacks(self, eqn: Eqn, carry: int) -> list[Array | None]:
        """Where results of each round lie: among those of the kernel, or in memory that it has for itself."""
        found: list[Array | None] = []
        for y in eqn.outs[carry:]:
            n = next((n for n, (a, _) in enumerate(self.ends) if a is y and n not in self.placed), None)
            if n is not None:
                self.placed.add(n)
                found.append(self.ends[n][1])
            elif self.readers.count(y) or y in self.outputs:
                found.append(self.plan.temp(self.plan.named(y), y.type))
            else:
                found.append(None)
        return found

    def choice(self, eqn: Eqn) -> None:
        op, (index, *xs) = eqn.op, [*map(self.value, eqn.inputs)]
        assert isinstance(op, Cond)
        self.flush()
        homes = [self.home(y) for y in eqn.outs]
        node = Choice(self.plan.label("chosen"), index, [])
        self.look(index)
        for branch in op.branches:
            ends = [(a, h) for a, hs in zip(branch.outputs, homes, strict=True) for h in hs]
            node.branches.append(self.plan.graph(branch, xs, ends).nodes)
        self.nodes.append(node)
        for y, found in zip(eqn.outs, homes, strict=True):
            if found:
                self.env[y] = found[0]

    def home(self, y: Var) -> list[Array]:
        """Where each branch of a cond writes a result."""
        found = []
        for n, (a, array) in enumerate(self.ends):
            if a is y:
                self.placed.add(n)
                found.append(array)
        read = self.readers.count(y)
        if read and not any(array.shared for array in found):
            found.insert(0, self.plan.room(self.plan.named(y), y.type))
        return found

    # -- levels

    def look(self, x: Value) -> None:
        """Notes what is read by all threads, to decide."""
        Reader(self.note).element(x, Index(x.type.shape, "0"))

    def note(self, x: Made, _: Index) -> str:
        self.plan.need(x)
        return "0"

    def flush(self) -> None:
        """Puts the statements so far into loops, each as early as what it reads allows."""
        level: dict[int, int] = {}
        keys: dict[int, Key] = {}
        loops: dict[tuple[int, Key], Loop] = {}
        for s in self.pending:
            reads = self.reads(s)
            here = [(x, own) for x, own in reads if id(x) in level]
            top = max((level[id(x)] for x, _ in here), default=-1)
            last = [(x, own) for x, own in here if level[id(x)] == top]
            shared = {keys[id(x)] for x, _ in last}
            size = s.y.type.size
            together = s.key is None and len(shared) == 1 and all(own for _, own in last)
            if together and next(iter(shared)).size == size:
                at, key = top, next(iter(shared))
            else:
                at, key = top + 1, s.key or Key(size)
            level[id(s.y)], keys[id(s.y)] = at, key
            loop = loops.setdefault((at, key), Loop(key))
            loop.statements.append(s)
            s.y.loop = loop
            for x, own in reads:
                if x.loop is not loop or not own:
                    self.plan.need(x)
        for at in range(max(level.values(), default=-1) + 1):
            self.nodes.append(Level([loop for (n, _), loop in loops.items() if n == at]))
        self.pending = []

    def reads(self, s: Statement) -> list[tuple[Made, bool]]:
        """The results of statements that one reads, and whether at its own place."""
        found: list[tuple[Made, bool]] = []

        def made(x: Made, at: Index) -> str:
            found.append((x, at.flat == E))
            return "0"

        reader = Reader(made)
        if s.eqn is None:
            reader.element(s.xs[0], Index(s.y.type.shape, E))
        elif isinstance(s.eqn.op, POINTS):
            reader.computed(s.eqn, s.xs, Index(s.y.type.shape, E))
        else:
            for x in s.xs:
                reader.element(x, Index(x.type.shape, "k"))
        return found


@final
class Readers:
    """Who reads each value of a graph, and how often."""

    def __init__(self, graph: Graph) -> None:
        self.found: dict[Var, list[Eqn]] = {}
        for eqn in graph.eqns:
            for a in eqn.inputs:
                if isinstance(a, Var):
                    self.found.setdefault(a, []).append(eqn)

    def count(self, v: Var) -> int:
        return len(self.found.get(v, ()))

    def of(self, v: Var) -> Eqn:
        """The only one."""
        return self.found[v][0]


def readers(graph: Graph) -> Readers:
    return Readers(graph)


def placed(pair: Array, side: str) -> Array:
    """One of the two places of a carry."""
    n = pair.type.size
    return whole(pair.name, pair.type, side if n == 1 else f"{side} * {n}", shared=True)


def part(x: Value, number: str) -> Value:
    """An element of a stack."""
    if isinstance(x, Array):
        return x.part(number)
    return x if isinstance(x, Number) else Picked(x, number, x.type.with_shape(x.type.shape[1:]))


def folded_axes(eqn: Eqn) -> tuple[int, ...]:
    op: Any = eqn.op
    return (op.axis,) if isinstance(op, ArgReduce) else op.axes


def taken(eqn: Eqn, e: str, k: str) -> Index:
    """The place in what is folded, of element `k` of those that become element `e`."""
    (x,), axes = eqn.inputs, folded_axes(eqn)
    shape = x.type.shape
    left = kept(axes, len(shape))
    count = math.prod(shape[a] for a in axes)
    if axes == tuple(range(len(left), len(shape))):
        flat = k if not left or math.prod(shape[a] for a in left) == 1 else f"{e} * {count} + {k}"
        return Index(shape, flat)
    inner = Index(tuple(shape[a] for a in axes), k).each()
    outer = Index(tuple(shape[a] for a in left), e).each()
    along = [""] * len(shape)
    for a, text in (*zip(axes, inner, strict=True), *zip(left, outer, strict=True)):
        along[a] = text
    return Index(shape, "", tuple(along))


def multiplied(eqn: Eqn, e: str, k: str) -> tuple[Index, Index]:
    """The places in both operands of a product."""
    op, (a, b), (y,) = eqn.op, (x.type for x in eqn.inputs), eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    each = Index(y.type.shape, e).each()
    beside, rest = each[: len(op.beside[0])], each[len(op.beside[0]) :]
    sums = Index(tuple(a.shape[i] for i in op.contract[0]), k).each()
    found = []
    for n, (t, free) in enumerate(((a, free_a), (b, free_b))):
        own = rest[: len(free_a)] if n == 0 else rest[len(free_a) :]
        pairs = (*zip(op.beside[n], beside, strict=True), *zip(op.contract[n], sums, strict=True))
        at: Mapping[int, str] = dict((*pairs, *zip(free, own, strict=True)))
        found.append(Index(t.shape, "", tuple(at[i] for i in range(t.ndim))))
    return found[0], found[1]
