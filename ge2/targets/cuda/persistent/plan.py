"""A graph as phases of a block: loops over elements between barriers, in iterations and branches.

Each equation becomes a statement of a loop over the elements of its result, or is
computed where it is read. What a statement reads at another place, or another thread
has, is read from memory and after a barrier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, Final, final

from ge2.base.arrays import accumulator
from ge2.base.record import mutable
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.reduce import ArgReduce
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit.words import HELD, SUFFIX
from ge2.targets.cuda.persistent.grid import Grid, Homes, shared_products, staged
from ge2.targets.cuda.persistent.nodes import (
    FOLDS,
    LOOPS,
    Choice,
    Key,
    Level,
    Loop,
    Node,
    Parts,
    Rounds,
    Statement,
    Unwritten,
)
from ge2.targets.cuda.persistent.reads import part, placed, read_by_all, readers, reads
from ge2.targets.cuda.persistent.rows import PARTS, Order, Stays, of_branches, of_loop, stays
from ge2.targets.cuda.persistent.values import (
    POINTS,
    Array,
    Inline,
    Made,
    Seen,
    Value,
    spoken,
    whole,
)
from ge2.targets.cuda.tuning import Persistent

Ends = Sequence[tuple[Atom, Array]]
NONE: Final = Stays()


@final
@mutable
class Plan:
    """The arrays that the nodes of a kernel have in shared memory, and in
    global memory for themselves.
    """

    threads: int
    tuning: Persistent
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
    grid: Grid | None = None  # where all blocks do the graph together
    homes: Homes | None = None  # of wide values, then
    parts: list[Parts] = field(default_factory=list)

    def label(self, name: str) -> str:
        """A name that nothing else has."""
        self.taken[name] += 1
        return name if self.taken[name] == 1 else self.label(f"{name}_{self.taken[name]}")

    def graph(
        self,
        graph: Graph,
        given: Sequence[Value],
        ends: Ends,
        test: bool = False,
        kept: Stays = NONE,
    ) -> Scope:
        """A graph's nodes, with values for its inputs and places for its results.

        The result of a `test` need not be stored. Those `kept` are written in place.
        """
        env = dict(zip(graph.inputs, given, strict=True))
        scope = Scope(self, graph, env, list(ends), test, kept)
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
        found = whole(
            self.label(name), type_, "" if self.alone else f"(int)blockIdx.x * {type_.size}"
        )
        self.temps.append(found)
        return found

    def wide(self, type_: ArrayType) -> bool:
        """True if the threads of a grid share the elements of a value."""
        return self.grid is not None and type_.size > self.grid.tuning.narrow

    def widely(self, x: Value) -> bool:
        """True if a value lies where all blocks read it: it is there from the start, or wide."""
        if isinstance(x, Seen):
            return self.widely(x.source)
        return x.wide if isinstance(x, Made) else isinstance(x, Array) and not x.shared

    def place(self, name: str, type_: ArrayType) -> Array:
        """Returns where a value lies that is read in other loops than that which makes it."""
        if not self.wide(type_):
            return self.room(name, type_)
        return self.wide_place(self.label(name), type_)

    def wide_place(self, name: str, type_: ArrayType) -> Array:
        assert self.homes is not None
        if self.homes.fits(name, type_):
            return self.homes.registers(name, type_)
        found = whole(name, type_)
        self.temps.append(found)
        return found

    def pair(self, name: str, type_: ArrayType, side: str) -> tuple[Array, Array, Array]:
        """The two places of a carry: where it begins, that of this round, and that of the next."""
        if not self.wide(type_):
            pair = self.room(name, type_, 2)
            return pair, placed(pair, side), placed(pair, f"({side} ^ 1)")
        assert self.homes is not None
        name = self.label(name)
        after = self.label(f"{name}_next")
        if after not in self.homes.foreign and self.homes.fits(name, type_, 2):
            now = self.homes.registers(name, type_)
            return now, now, self.homes.registers(after, type_)
        self.temps.append(whole(name, type_.with_shape((2, *type_.shape))))
        found, n = whole(name, type_), type_.size
        then = replace(found, start=f"({side} ^ 1) * {n}", half="then")
        return found, replace(found, start=f"{side} * {n}", half="now"), then

    def one_place(self, name: str, type_: ArrayType) -> Array:
        """The place of a carry that is written in place: its elements have no fixed threads."""
        if not self.wide(type_):
            return self.room(name, type_)
        found = whole(self.label(name), type_)
        self.temps.append(found)
        return found

    def need(self, x: Made, own: bool = False) -> None:
        """Sees to it that a result may be read in other loops: of shared
        memory, but for what is large.

        `own`: each thread reads of a wide one what it has made itself.
        """
        if not x.wide:
            if not any(home.shared for home in x.homes):
                x.homes.insert(0, self.room(x.name, x.type))
            return
        if not x.homes:
            x.homes.append(self.wide_place(self.label(f"{x.name}_own"), x.type))
        if not own and all(home.mine for home in x.homes):
            self.told(x.homes[0])

    def need_packed(self, x: Made) -> None:
        """Sees to it that all blocks may read rows of a result in accesses of 16 bytes."""
        self.need(x)
        if not any(home.packed for home in x.homes if not home.mine):
            found = whole(self.label(f"{x.name}_rows"), x.type)
            self.temps.append(found)
            x.homes.append(found)

    def told(self, x: Array) -> None:
        if self.homes is not None:
            self.homes.told(x)

    def left(self, eqn: Eqn, name: str, count: int) -> Parts:
        """A place for what the first stage of a fold leaves."""
        dtype, size = accumulator(eqn.inputs[0].type.dtype), eqn.outs[0].type.size
        indexed = isinstance(eqn.op, ArgReduce)
        state = f"ge2_indexed_{SUFFIX[dtype]}" if indexed else HELD[dtype]
        each = max(16, dtype.itemsize + 8) if indexed else dtype.itemsize
        found = Parts(self.label(f"{name}_parts"), eqn, count, size, state, 2 * count * size * each)
        self.label(found.turn)
        self.parts.append(found)
        return found

    def team(self, size: int, folded: int) -> int:
        """Threads that fold elements into one: as many as are free, and have something to do."""
        if size == 1 and folded >= self.tuning.whole:
            return self.threads
        free = max(self.threads // size, 1)
        return min(1 << (free.bit_length() - 1), 32, 1 << max((folded - 1) // 2, 0).bit_length())


@final
class Scope:
    """A graph on its way to nodes."""

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        env: dict[Var, Value],
        ends: list[tuple[Atom, Array]],
        test: bool,
        kept: Stays,
    ) -> None:
        self.plan, self.graph, self.env, self.ends, self.test = plan, graph, env, ends, test
        self.kept = kept
        self.nodes: list[Node] = []
        self.pending: list[Statement] = []
        self.readers = readers(graph)
        self.placed: set[int] = set()  # numbers of the ends that a statement writes
        self.outputs = set(graph.outputs)

    # -- equations

    def take(self, eqn: Eqn) -> None:
        op = eqn.op
        if op.is_view:
            for i, y in enumerate(eqn.outs):
                seen = self.env[y] = Seen(eqn, i, self.value(eqn.inputs[i]), y.type)
                if y in self.kept.stored:
                    self.env[y] = self.store(y, seen)
        elif isinstance(op, PARTS) and eqn.outs[0] in self.kept.versions:
            self.write(eqn)
        elif isinstance(op, Iota) and self.counts(eqn.outs[0]):
            self.env[eqn.outs[0]] = Inline(eqn, [], eqn.outs[0].type)
        elif isinstance(op, LOOPS):
            self.rounds(eqn)
        elif isinstance(op, Cond):
            self.choice(eqn)
        elif isinstance(op, POINTS) and spoken(eqn):
            self.point(eqn)
        elif isinstance(op, FOLDS):
            self.fold(eqn)
        elif isinstance(op, DotGeneral):
            self.product(eqn)
        else:
            raise Unwritten(f"{op.name} is no step of a persistent kernel")

    def value(self, a: Atom) -> Value:
        return self.plan.number(a) if isinstance(a, Literal) else self.env[a]

    def point(self, eqn: Eqn) -> None:
        (y,), xs = eqn.outs, [*map(self.value, eqn.inputs)]
        depth = 1 + max([x.depth for x in xs if isinstance(x, Inline)], default=0)
        cheap = (
            y.type.size == 1
            and depth <= self.plan.tuning.inlined
            and not eqn.op.cost.transcendental
        )
        inside = (self.test or y not in self.outputs) and (cheap or self.passing(y))
        inside = inside and y not in self.kept.stored
        if inside:
            self.env[y] = Inline(eqn, xs, y.type, depth)
        else:
            self.make(eqn, None)

    def counts(self, y: Var) -> bool:
        """True if loops alone read a value, as one whose elements count rounds is read."""
        read = self.readers.found.get(y, [])
        return y not in self.outputs and all(isinstance(each.op, LOOPS) for each in read)

    def passing(self, y: Var) -> bool:
        """True if a value is read once, at a place that its own loop has not:
        by a fold, through a view.
        """
        if y in self.outputs or self.readers.count(y) != 1:
            return False
        reader = self.readers.of(y)
        if isinstance(reader.op, FOLDS):
            return True
        if reader.op.is_view:
            (seen,) = reader.outs[:1]
            return len(reader.outs) == 1 and seen.type.size == y.type.size and self.onward(seen)
        return isinstance(reader.op, POINTS) and spoken(reader) and self.passing(reader.outs[0])

    def onward(self, seen: Var) -> bool:
        """True if a view is read once, by what computes with its elements."""
        if seen in self.outputs or self.readers.count(seen) != 1:
            return False
        op = self.readers.of(seen).op
        return isinstance(op, FOLDS) or (isinstance(op, POINTS) and spoken(self.readers.of(seen)))

    def fold(self, eqn: Eqn) -> None:
        (x,), (y,), plan = eqn.inputs, eqn.outs, self.plan
        alone = Key(y.type.size, plan.team(y.type.size, x.type.size // max(y.type.size, 1)))
        how = (staged(eqn, plan.grid, plan.team, plan.wide(y.type)) if plan.grid else None) or alone
        if isinstance(how, Key):
            self.make(eqn, how)
            return
        parts, t = (
            plan.left(eqn, plan.named(y), how.count),
            x.type.with_shape((how.count * y.type.size,)),
        )
        some = Made(parts.name, t, [whole(parts.name, t, parts.start)], wide=True)
        self.pending.append(Statement(some, eqn, [self.value(x)], how.first, parts=parts))
        then = self.make(eqn, how.then)
        then.xs, then.parts = [some], parts

    def product(self, eqn: Eqn) -> None:
        op, a, (y,) = eqn.op, eqn.inputs[0].type, eqn.outs
        assert isinstance(op, DotGeneral)
        found = self.plan.keeps(eqn, [*map(self.value, eqn.inputs)]) if self.plan.inside else None
        if found is not None:
            wide = self.plan.grid is not None
            self.make(eqn, Key(y.type.size, 1 if wide else 0, eqn, wide=wide)).kept = found
            return
        folded, grid = math.prod(a.shape[i] for i in op.contract[0]), self.plan.grid
        key = shared_products(eqn, folded, grid, self.plan.wide(y.type)) if grid else None
        if key is not None and not self.plan.wide(y.type):
            self.by_all(eqn, key)
        else:
            self.make(eqn, key or Key(y.type.size, self.plan.team(y.type.size, folded)))

    def by_all(self, eqn: Eqn, key: Key) -> None:
        """A result of few elements that all blocks make together, and that
        each of them then has.
        """
        (y,) = eqn.outs
        made = Made(self.plan.label(f"{self.plan.named(y)}_shared"), y.type, wide=True)
        self.pending.append(Statement(made, eqn, [*map(self.value, eqn.inputs)], key))
        found = self.make(eqn, Key(y.type.size))
        found.eqn, found.xs = None, [made]

    def make(self, eqn: Eqn, key: Key | None) -> Statement:
        (y,) = eqn.outs
        homes = []
        for n, (a, array) in enumerate(self.ends):
            if a is y:
                homes.append(array)
                self.placed.add(n)
        made = Made(self.plan.label(self.plan.named(y)), y.type, homes, wide=self.plan.wide(y.type))
        found = Statement(made, eqn, [*map(self.value, eqn.inputs)], key)
        self.env[y] = made
        self.pending.append(found)
        return found

    def store(self, y: Var, x: Value) -> Made:
        """A value as it is now, of an array that is about to be written."""
        made = Made(self.plan.label(self.plan.named(y)), y.type, wide=self.plan.wide(y.type))
        self.pending.append(Statement(made, None, [x]))
        return made

    def write(self, eqn: Eqn) -> None:
        """Updates go where the array lies."""
        (y,), xs, type_ = eqn.outs, [*map(self.value, eqn.inputs)], eqn.inputs[1].type
        into = self.env[y] = xs[0]
        assert isinstance(into, Array)
        made = Made(self.plan.label(self.plan.named(y)), type_, wide=self.widely(into, type_))
        self.pending.append(Statement(made, eqn, xs, into=into))

    def widely(self, into: Array, updates: ArrayType) -> bool:
        """True if all threads of a grid share updates: of what each block has, each writes all."""
        return not into.shared and self.plan.wide(updates)

    def copy(self, x: Value, to: Array) -> None:
        self.pending.append(
            Statement(Made("", to.type, [to], wide=self.plan.wide(to.type)), None, [x])
        )

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
        side = f"{label}_side"
        kept = of_loop(op, self.plan.grid is None)
        changed = changes(body, len(consts), len(start), scan)
        pairs = self.pairs(body.inputs[len(consts) :], changed, side, kept, len(consts))
        self.begin(eqn, body.inputs[len(consts) :], start, pairs, kept, len(consts))
        now = [x if p is None else p[1] for x, p in zip(start, pairs, strict=True)]
        then = [None if p is None else p[2] for p in pairs]
        ends = [(a, t) for a, t in zip(body.outputs, then, strict=False) if t is not None]
        stacks = self.stacks(eqn, len(start)) if scan else []
        rows = [part(x, label) for x in elements]
        found = zip(body.outputs[len(start) :], stacks, strict=True) if scan else ()
        ends += [(a, y.part(label)) for a, y in found if y is not None]
        self.plan.inside += 1
        node = Rounds(
            label, side, [], pairs=[p for p in pairs if p is not None and not p[0].shared]
        )
        if scan:
            node.length, node.reverse, node.count = op.length, op.reverse, self.plan.label("rounds")
        if not scan:
            test = self.plan.graph(op.cond, [*more, *now], (), test=True)
            node.decided = test.look(test.value(op.cond.outputs[0]))
            node.test = test.nodes
        node.body = self.plan.graph(body, [*consts, *now, *rows], ends, kept=kept).nodes
        self.plan.inside -= 1
        self.nodes.append(node)
        for y, value in zip(eqn.outs, [*now, *stacks], strict=True):
            if value is not None:
                self.env[y] = value

    def begin(
        self, eqn: Eqn, inputs: Sequence[Var], start: list[Any], pairs: Sequence[Any], kept: Stays,
        first: int,
    ) -> None:  # fmt: skip
        """Copies the first values of what a loop carries to where its iterations read them."""
        for i, (x, pair) in enumerate(zip(start, pairs, strict=True)):
            if pair is not None:
                self.copy(x, pair[0])
            elif first + i in kept.arrays and eqn.outs[i] not in self.kept.versions:
                start[i] = self.plan.one_place(self.plan.named(inputs[i]), x.type)
                self.copy(x, start[i])
        self.flush()

    def pairs(
        self, inputs: Sequence[Var], changed: Sequence[bool], side: str, kept: Stays, first: int
    ) -> list[tuple[Array, Array, Array] | None]:
        """Two arrays for each value that a loop carries, one of which an iteration reads; None for
        one that stays as it is, or is written in place.
        """
        return [
            self.plan.pair(self.plan.named(v), v.type, side)
            if new and first + i not in kept.arrays
            else None
            for i, (v, new) in enumerate(zip(inputs, changed, strict=False))
        ]

    def stacks(self, eqn: Eqn, carry: int) -> list[Array | None]:
        """Returns where results of each round lie: among those of the kernel, or in
        memory that it has for itself.
        """
        found: list[Array | None] = []
        for y in eqn.outs[carry:]:
            n = next(
                (n for n, (a, _) in enumerate(self.ends) if a is y and n not in self.placed), None
            )
            if n is not None and self.ends[n][1].mine:  # whose parts other threads have
                self.plan.told(self.ends[n][1])
                n = None
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
        over = of_branches(op, self.plan.grid is None)
        over = {i: k for i, k in over.items() if eqn.outs[i] in self.kept.versions}
        homes = [[] if i in over else self.home(y) for i, y in enumerate(eqn.outs)]
        node = Choice(self.plan.label("chosen"), self.look(index), [])
        for branch in op.branches:
            ends = [(a, h) for a, hs in zip(branch.outputs, homes, strict=True) for h in hs]
            kept = stays(branch, [*over.items()], self.plan.grid is None)
            node.branches.append(self.plan.graph(branch, xs, ends, kept=kept).nodes)
        self.nodes.append(node)
        self.env.update((eqn.outs[i], xs[k]) for i, k in over.items())
        for y, found in zip(eqn.outs, homes, strict=True):
            if found:
                self.env[y] = found[0]

    def home(self, y: Var) -> list[Array]:
        """Returns where each branch of a cond writes a result."""
        found = []
        for n, (a, array) in enumerate(self.ends):
            if a is y:
                self.placed.add(n)
                found.append(array)
        there = any(array.shared for array in found) or (found and self.plan.wide(y.type))
        if self.readers.count(y) and not there:
            found.insert(0, self.plan.place(self.plan.named(y), y.type))
        return found

    # -- levels

    def look(self, x: Value) -> Value:
        """Returns what all threads read, to decide: a value of a grid's, once each
        block has it for itself.
        """
        found = read_by_all(x)
        if any(each.wide if isinstance(each, Made) else elsewhere(each) for each in found):
            made = Made(self.plan.label("decided"), x.type)
            self.pending.append(Statement(made, None, [x]))
            self.flush()
            x, found = made, [made]
        for each in found:
            if isinstance(each, Made):
                self.plan.need(each)
        return x

    def flush(self) -> None:
        """Puts the statements so far into loops, each as early as what it reads allows."""
        level: dict[int, int] = {}
        keys: dict[int, Key] = {}
        loops: dict[tuple[int, Key], Loop] = {}
        order = Order()
        for s in self.pending:
            found = reads(s)
            floor = order.floor(s, found)
            made = [(x, own) for x, own in found if isinstance(x, Made)]
            here = [(x, own) for x, own in made if id(x) in level]
            top = max((level[id(x)] for x, _ in here), default=-1)
            last = [(x, own) for x, own in here if level[id(x)] == top]
            shared = {keys[id(x)] for x, _ in last}
            size, wide = s.y.type.size, s.y.wide
            together = s.key is None and len(shared) == 1 and all(own for _, own in last)
            together = together and top >= floor
            if together and (next(iter(shared)).size, next(iter(shared)).wide) == (size, wide):
                at, key = top, next(iter(shared))
            else:
                at, key = max(top + 1, floor), s.key or Key(size, wide=wide)
            order.note(s, found, at)
            level[id(s.y)], keys[id(s.y)] = at, key
            loop = loops.setdefault((at, key), Loop(key))
            loop.statements.append(s)
            s.y.loop = loop
            for x, own in found:
                if isinstance(x, Array):
                    if not (own and key.spread):
                        self.plan.told(x)
                elif x.loop is not loop or not own:
                    self.plan.need(x, own and key.spread and x.loop.key.spread)
            if key.wide and s.kept is not None and isinstance(s.kept.other, Made):
                self.plan.need_packed(s.kept.other)
            if not key.spread:
                for home in s.y.homes:
                    self.plan.told(home)
        for at in range(max(level.values(), default=-1) + 1):
            self.nodes.append(Level([loop for (n, _), loop in loops.items() if n == at]))
        self.pending = []


def changes(body: Graph, first: int, count: int, scan: bool) -> list[bool]:
    """The values that a loop carries and an iteration replaces; all those of a `while` that
    replaces none.
    """
    found = [a is not body.inputs[first + i] for i, a in enumerate(body.outputs[:count])]
    return found if scan or any(found) else [True] * count


def elsewhere(x: Array) -> bool:
    """True if an array is neither each block's own nor there from the start."""
    return not x.shared and not x.given
