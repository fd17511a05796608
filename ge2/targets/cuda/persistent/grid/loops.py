"""Loops over elements that the threads of a grid share, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from ge2.base.record import record
from ge2.codegen.kernel_values import held as widened
from ge2.codegen.text import Text, guard
from ge2.targets.cuda.emit.reductions import Each, State, start_of
from ge2.targets.cuda.emit.reductions import Stage as Reduction
from ge2.targets.cuda.emit.types import HELD
from ge2.targets.cuda.persistent.grid.elements import Grid
from ge2.targets.cuda.persistent.grid.matrices import Tile
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.nodes import E, Key, Loop, Rounds, Statement
from ge2.targets.cuda.persistent.prefetch import after
from ge2.targets.cuda.persistent.reductions import merging, state_name, together
from ge2.targets.cuda.persistent.skeleton import Own, Scope, Stage, Strides, Teams, named

if TYPE_CHECKING:
    from ge2.targets.cuda.persistent.kernel import Writer


@final
@record
class Sharing:
    """The loops of a `writer` that the threads of a grid share."""

    writer: Writer
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
