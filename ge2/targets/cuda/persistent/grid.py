"""Persistent kernels of all blocks of a GPU: barriers, loops over elements, iterations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.arrays import accumulator as widened
from ge2.base.record import mutable, record
from ge2.codegen.text import Text, guard
from ge2.ir import ArrayType, Eqn, Graph
from ge2.targets.cuda.emit.words import HELD, Each, State, start_of
from ge2.targets.cuda.emit.words import Stage as Reduction
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.persistent.matrices import Spread, Tile
from ge2.targets.cuda.persistent.nodes import (
    Choice,
    E,
    Key,
    Level,
    Loop,
    Node,
    Own,
    Rounds,
    Scope,
    Stage,
    Statement,
    Strides,
    Teams,
    Unwritten,
    everything,
    named,
    wide,
)
from ge2.targets.cuda.persistent.reads import (
    Folds,
    Loops,
    after,
    folded_axes,
    merging,
    reads,
    state_name,
    together,
)
from ge2.targets.cuda.persistent.values import Array, Index, Made
from ge2.targets.cuda.tuning import GridKernel

# -------- Where all blocks of a grid must meet: a pass over the levels of a kernel, in the order in
# which they run.
# A thread may read what it has written itself. What another one has written since all met last, it
# reads after they have met; and so it writes what another one may still read. A carry has two
# places, which change roles at the end of a round, and what a round leaves meets the next: loops
# are gone through until nothing is new. Of a stack each round has another part.


FIRST: Final = -1  # who writes: the first block
ANY: Final = -2  # whoever it may be
OTHER = {"now": "then", "then": "now", "": ""}
# of a stack: that of a round, and those of rounds before
PART, PAST = "part of ", "earlier part of "


@final
@record
class Access:
    """Some elements of an array. `who`: of a size, each thread its own; or FIRST, or ANY.

    `turns`: it is written at two places by turns, so nobody overtakes who reads it.
    """

    name: str
    half: str
    who: int
    turns: bool = False

    def meets(self, other: Access) -> bool:
        """True if two accesses may be to one place, by two threads."""
        same = self.name == other.name and (
            not self.half or not other.half or self.half == other.half
        )
        return same and (self.who != other.who or self.who == ANY)


Accesses = frozenset[Access]
NONE: Accesses = frozenset()


@final
@record
class Since:
    """The values that were read and written since the last barrier of all blocks."""

    read: Accesses = NONE
    written: Accesses = NONE

    def __or__(self, other: Since) -> Since:
        return Since(self.read | other.read, self.written | other.written)

    def changed(self, half: Callable[[Access], str]) -> Since:
        """The same with other halves."""

        def all_of(accesses: Accesses) -> Accesses:
            return frozenset(Access(a.name, half(a), a.who, a.turns) for a in accesses)

        return Since(all_of(self.read), all_of(self.written))


def wait(nodes: Sequence[Node], home: Callable[[Made, bool, Loop], Array]) -> None:
    """Notes at each level whether all blocks meet before it.

    `home` tells where a result is read.
    """
    Waits(home).walk(nodes, Since())


@final
class Waits:
    def __init__(self, home: Callable[[Made, bool, Loop], Array]) -> None:
        self.home = home
        self.known: dict[int, Since] = {}

    def walk(self, nodes: Sequence[Node], state: Since) -> Since:
        for node in nodes:
            if isinstance(node, Level):
                state = self.level(node, state)
            elif isinstance(node, Rounds):
                state = self.rounds(node, state)
            else:
                state = self.choice(node, state)
        return state

    def level(self, node: Level, state: Since) -> Since:
        touched = self.touched(node)
        if node.wait or met(state, touched):
            node.wait, state = True, Since()
        return state | touched

    def rounds(self, node: Rounds, state: Since) -> Since:
        pairs = {now.name for _, now, _ in node.pairs if not now.mine}
        part, past = f"{PART}{node.label}", f"{PAST}{node.label}"

        def any_half(a: Access) -> str:
            return "" if a.name in pairs or a.half in (part, past) else a.half

        def next_half(a: Access) -> str:
            return OTHER[a.half] if a.name in pairs else past if a.half == part else a.half

        before = state.changed(any_half)  # which half is which begins anew
        while True:
            tested = self.walk(node.test, before)
            after = self.walk(node.body, tested).changed(next_half)
            if before | after == before:
                return (tested if node.decided is not None else before).changed(any_half)
            before = before | after

    def choice(self, node: Choice, state: Since) -> Since:
        after = Since()
        for branch in node.branches:
            after = after | self.walk(branch, state)
        return after

    def touched(self, level: Level) -> Since:
        """Returns what the loops of a level read and write.

        Unwritten if they would have to wait for each other.
        """
        if id(level) in self.known:
            return self.known[id(level)]
        found = [self.of_loop(loop) for loop in level.loops]
        for one in found:
            for other in found:
                if any(r.meets(w) for r in one.read for w in other.written):
                    raise Unwritten("a level that reads what it writes")
        together = Since()
        for each in found:
            together = together | each
        self.known[id(level)] = together
        return together

    def of_loop(self, loop: Loop) -> Since:
        read, written = set[Access](), set[Access]()
        writer = loop.key.size if loop.key.spread else ANY if loop.key.wide else FIRST
        for s in loop.statements:
            for x, own in reads(s):
                if isinstance(x, Made) and x.loop is loop and own:
                    continue
                if isinstance(s.kept, Spread) and x is s.kept.other:
                    x = s.kept.operand
                array = x if isinstance(x, Array) else self.home(x, own, loop)
                if elsewhere(array):
                    who = loop.key.size if own and loop.key.spread else ANY
                    read.add(Access(array.name, half(array), who))
            if s.parts is not None and s.key is not None and s.key.stage in ("whole", "chunk"):
                written.add(Access(s.parts.name, "", ANY, turns=True))
                continue
            written.update(Access(h.name, half(h), writer) for h in s.y.homes if elsewhere(h))
            if s.into is not None and elsewhere(s.into):
                written.add(Access(s.into.name, half(s.into), ANY if loop.key.wide else FIRST))
        return Since(frozenset(read), frozenset(written))


def half(x: Array) -> str:
    """Returns which part of its memory an array is."""
    return x.half or (f"{PART}{x.stack[1]}" if x.stack is not None else "")


def met(state: Since, touched: Since) -> bool:
    """True if something is read before it is written, or written before
    it is read, by other threads.
    """
    late = any(r.meets(w) for r in touched.read for w in state.written)
    return late or any(
        w.meets(a) for w in touched.written if not w.turns for a in state.read | state.written
    )


def elsewhere(x: Array) -> bool:
    """True if other threads see an array that changes."""
    return not (x.shared or x.given or x.mine)


# -------- What a persistent kernel is that all blocks of a grid do together: who has which elements,
# and where.
# Values of few elements each block computes for itself, in its shared memory. Of a wide one each
# thread has some elements, the same ones in all loops of the size: those that no other thread reads
# stay in its registers, others lie in global memory, which the L2 cache holds.


@final
@record
class Grid:
    """So many blocks of so many threads, all on the GPU at once.

    `tiles`: how blocks share so many elements, where a product says so; else threads take turns.
    `trial`: it is to be seen whether such a kernel is worth its while.
    """

    blocks: int
    threads: int
    tiles: dict[int, Tile]
    tuning: GridKernel
    trial: bool = False

    @staticmethod
    def of(graph: Graph, chip: Chip, trial: bool = False) -> Grid:
        """As many blocks as a graph keeps busy, of those that the chip has room for."""
        tuning = chip.tuning.grid
        blocks = blocks_for(widest(graph), tuning.threads, chip.together)
        return Grid(blocks, tuning.threads, {}, tuning, trial)

    @property
    def size(self) -> int:
        return self.blocks * self.threads

    def each(self, n: int) -> int:
        """Returns how many of n elements a thread has."""
        return -(-self.tiles[n].size // self.threads) if n in self.tiles else -(-n // self.size)


def words(dtype: np.dtype) -> int:
    """Registers of an element."""
    return max(widened(dtype).itemsize // 4, 1)


@final
@mutable
class Homes:
    """The memory of wide values.

    `foreign`: names of those of which a thread reads what another one has.

    Which those are is known when all is planned: `late` says that there are
    more, and to plan again.
    """

    grid: Grid
    foreign: set[str]
    left: int  # registers of a thread for such values
    own: dict[str, Array] = field(default_factory=dict)  # in registers
    late: bool = False

    def fits(self, name: str, type_: ArrayType, times: int = 1) -> bool:
        """True if a value may be in registers; then so many of them are taken."""
        each = self.grid.each(type_.size)
        taken = times * each * words(type_.dtype)
        if name in self.foreign or each > self.grid.tuning.unrolled or taken > self.left:
            return False
        self.left -= taken
        return True

    def registers(self, name: str, type_: ArrayType) -> Array:
        found = self.own[name] = Array(name, type_, (), mine=True)
        return found

    def told(self, x: Array) -> None:
        """Notes that other threads than its own read an array, or write it."""
        if x.mine and x.name not in self.foreign:
            self.foreign.add(x.name)
            self.late = True


@final
@record
class Stages:
    """A fold of which `count` parts for each result come first, by
    `first`, and are folded by `then`.
    """

    first: Key
    count: int
    then: Key


def trailing(eqn: Eqn) -> bool:
    """True if a fold is over the last axes, so that elements that become one lie side by side."""
    axes, n = folded_axes(eqn), len(eqn.inputs[0].type.shape)
    return sorted(axes) == list(range(n - len(axes), n))


def lanes(size: int, folded: int, grid: Grid, side_by_side: bool) -> int:
    """Threads of a warp that share a result."""
    if not side_by_side:
        return 1  # neighbours read what lies side by side if each has a result
    free, useful = max(grid.size // size, 1), max(folded // grid.tuning.fold, 1)
    return min(32, 1 << (free.bit_length() - 1), 1 << (useful.bit_length() - 1))


def staged(eqn: Eqn, grid: Grid, team: Any, wide: bool) -> Key | Stages | None:
    """Returns how all threads of a grid fold, if that is not for a block: at once, or by stages.

    `team(size, folded)`: the threads of a block that share one of `size`
    results that each block has.
    """
    (x,), (y,) = eqn.inputs, eqn.outs
    size, folded = y.type.size, x.type.size // max(y.type.size, 1)
    if not wide and x.type.size <= grid.tuning.few:
        return None
    if size == 1:
        return Stages(
            Key(folded, wide=True, stage="whole"), grid.blocks, Key(1, team(1, grid.blocks))
        )
    side_by_side = trailing(eqn)
    each = lanes(size, folded, grid, side_by_side)
    count = max(min(grid.size // (size * each), folded // (grid.tuning.fold * each)), 1)
    count = min(count, grid.blocks)
    if wide and count == 1:
        return Key(size, each, wide=True)
    then = Key(size, 1, wide=True, stage="finish") if wide else Key(size, team(size, count))
    return Stages(Key(count * size, each, wide=True, stage="chunk"), count, then)


def shared_products(eqn: Eqn, folded: int, grid: Grid, wide: bool) -> Key | None:
    """Returns how all threads of a grid multiply; None if each block does it for itself."""
    size = eqn.outs[0].type.size
    if not wide and size * folded <= grid.tuning.few:
        return None
    if grid.trial and size * folded > grid.tuning.products:
        raise Unwritten("a product for a library")
    return Key(size, lanes(size, folded, grid, True), wide=True)


def blocks_for(widest: int, threads: int, most: int) -> int:
    """Blocks for so many elements: fewer meet sooner.

    >>> blocks_for(1 << 20, 512, 132), blocks_for(5000, 512, 132)
    (132, 10)
    """
    return max(min(most, math.ceil(widest / threads)), 1)


def widest(graph: Graph) -> int:
    """The most threads that a step of a graph keeps busy."""
    return max(map(wide, everything(graph)), default=1)


# -------- Loops over elements that the threads of a grid share, as text.


class Statements(Loops, Protocol):
    """The writer of a kernel, as loops that threads share ask it."""

    folds: Folds

    def statement(self, s: Statement) -> list[Reduction]: ...
    def writes(
        self, s: Statement, which: Callable[[Array], bool] = ..., value: str = ""
    ) -> list[Text]: ...
    def note(self, eqn: Eqn) -> str: ...


@final
@record
class Sharing:
    """The loops of a `writer` that the threads of a grid share."""

    writer: Statements
    grid: Grid

    def lines(self, loop: Loop) -> list[Stage]:
        """A loop of which each thread of the grid has a part."""
        key = loop.key
        if key.stage == "whole":
            return [Scope(tuple(self.whole(s))) for s in loop.statements]
        if key.spread:
            return [Scope(tuple(self.spread(loop)))]
        if key.stage == "chunk":
            return [line for s in loop.statements for line in self.chunk(s)]
        lines = [line for s in loop.statements for line in self.writer.statement(s)]
        writes = [line for s in loop.statements for line in self.writer.writes(s)]
        return [by_teams(key, self.grid.size, lines, writes, "mine")]

    def chunk(self, s: Statement) -> list[Stage]:
        """The parts of a fold into several results."""
        p, key = s.parts, s.key
        assert p is not None and key is not None
        write = Text(f"{p.name}[{p.start} + {E}] = {state_name(p)};")
        loop = by_teams(key, self.grid.size, self.writer.statement(s), [write], "mine")
        return [Text(f"{p.turn} ^= 1;"), loop]

    def spread(self, loop: Loop) -> list[Stage]:
        """A loop over a thread's own elements. What goes to memory is written when all was read."""
        for s in loop.statements:
            s.y.name = s.y.name or self.writer.plan.label("copied")
        lines, late, kept = list[Reduction](), list[Reduction](), list[Text]()
        known = set(self.writer.early)
        count = self.at_once(loop.key.size)
        for s in loop.statements:
            lines += [*self.writer.statement(s), *self.writer.writes(s, lambda home: home.mine)]
            if s.into is not None or any(not home.mine for home in s.y.homes):
                name = self.writer.plan.label(f"{s.y.name}_late")
                kept.append(Text(f"{HELD[widened(s.y.type.dtype)]} {name}[{count}];"))
                lines.append(Text(f"{name}[i] = {s.y.name};"))
                late += self.writer.writes(s, lambda home: not home.mine, f"{name}[i]")
        k = loop.statements[0].kept
        before: list[Stage] = k.lines() if k is not None else []
        lines += after(self.writer, known)
        return [*before, *kept, *self.each(loop.key.size, lines, late)]

    def at_once(self, size: int) -> int:
        """Of how many elements a thread's reads are under way together."""
        each = self.grid.each(size)
        return each if each <= self.grid.tuning.unrolled else self.grid.tuning.together

    def each(self, size: int, *bodies: list[Reduction]) -> list[Stage]:
        """Loops over the elements of a thread of the grid, all of one body,
        then all of the next.
        """
        count, each = self.at_once(size), self.grid.each(size)
        if size in self.grid.tiles:
            return self.in_tiles(self.grid.tiles[size], count, bodies)
        whole = each <= self.grid.tuning.unrolled
        first, full = ("mine", size // self.grid.size) if whole else ("begin", 0)
        guard = f"i < {full} || {E} < {size}" if full else f"{E} < {size}"
        guard = guard if full < each else ""
        code, found = f"const int {E} = {first}{' + i * GRID' if count > 1 else ''};", list[Own]()
        for body in filter(None, bodies):
            place = (Text(code),) if guard or named(E, body) else ()
            found.append(Own(count, place, guard, tuple(body)))
        return [*found] if whole else [Strides(size, count, tuple(found))]

    def in_tiles(self, tile: Tile, count: int, bodies: Sequence[list[Reduction]]) -> list[Stage]:
        """The same where the blocks share the elements by tiles."""
        return [
            Own(count, tuple(tile.place(named(E, body))), tile.guard, tuple(body))
            for body in filter(None, bodies)
        ]

    def whole(self, s: Statement) -> list[Stage]:
        """A fold of all elements of a value into one: the part of a block, of
        those that its threads have.
        """
        assert s.eqn is not None and s.parts is not None
        op: Any = s.eqn.op
        dtype, name = widened(s.xs[0].type.dtype), state_name(s.parts)
        merge = merging(op, dtype)
        value = self.writer.folds.lifted(s.eqn, s.xs[0], Index(s.xs[0].type.shape, E), E)
        taken_in = Text(f"{name} = {merge(name, value)};", self.writer.note(s.eqn))
        p = s.parts
        return [
            State(p.state, name, start_of(op, dtype)),
            *self.each(s.xs[0].type.size, [taken_in]),
            Text(f"{p.turn} ^= 1;"),
            *together(name, p.state, merge, self.grid.threads),
            guard("thread == 0", f"{p.name}[{p.start} + blockIdx.x] = {name};"),
        ]


def by_teams(
    key: Key,
    threads: int,
    lines: Sequence[Reduction],
    writes: Sequence[Text],
    thread: str = "thread",
) -> Teams:
    """A loop in which threads side by side have an element together; the first of them writes it.

    There are so many `threads`, of which `thread` is the number.
    """
    size, team = key.size, key.team
    at_once = threads // team
    place = f"{thread} / {team}" if team > 1 else thread
    if size > at_once:
        place = f"begin + {place}"
    exact = size % at_once == 0
    inside = [] if exact else [f"{place} < {size}"]
    clamped = place if exact else f"{place} < {size} ? {place} : {size - 1}"
    guard = " && ".join([*(["lane == 0"] if team > 1 else []), *inside])
    return Teams(size, at_once, team, clamped, tuple(lines), guard, tuple(writes))


def moved(node: Rounds, grid: Grid) -> list[Each]:
    """Returns the lines that write what of a carry is in registers to its other place."""
    return [
        Each("i", str(grid.each(now.type.size)), (Text(f"{now.name}[i] = {then.name}[i];"),))
        for _, now, then in node.pairs
        if now.mine
    ]
