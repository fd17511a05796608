"""When each array of a program is there: at which step it is born and
dies, and whose memory it takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, final

from ge2.base.formatting import Printed, size_words, table
from ge2.base.locks import computed
from ge2.base.memory import Room
from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import Eqn
from ge2.ops.region import ProductRegion, Region
from ge2.ops.shape import Constant
from ge2.program.program import END, Buffer, Program

KINDS: Final = ("argument", "result", "arena", "scratch", "library", "constant")
NAMED: Final = 3  # arrays that the table names whose memory one takes
HEAD: Final = ("buffer", "is", "bytes", "born", "dies", "reuse of", "line")


@final
@record
class Row:
    """An array that is there from step `born` to step `dies`, both included; -1
    and END: the whole call.

    `kind` is one of KINDS; scratch is what a single step has to itself. `at`: where in the arena,
    -1 outside. `reuse`: the arrays whose memory it takes, a donated argument or those that lay
    there before. `line`: the user's, where it is made.
    """

    name: str
    type: str
    kind: str
    nbytes: int
    born: int
    dies: int
    at: int = -1
    reuse: tuple[str, ...] = ()
    line: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}:{self.type}" if self.type else self.name

    def lives(self, step: int) -> bool:
        """Whether it takes memory of its own at a step: arguments and results do so throughout."""
        if self.kind == "result" and self.reuse:
            return False
        return self.kind in ("argument", "result", "constant") or self.born <= step <= self.dies

    def cells(self) -> tuple[str, ...]:
        born, dies = (
            "call" if self.born < 0 else str(self.born),
            "end" if self.dies >= END else str(self.dies),
        )
        more = len(self.reuse) - NAMED
        reuse = ", ".join(self.reuse[:NAMED]) + (f" and {more} more" if more > 0 else "")
        return self.title, self.kind, size_words(self.nbytes), born, dies, reuse, self.line


@final
class Timeline(Printed):
    """The arrays of a program in the order in which they are born.

    Printed, a table; `rows` are its lines.

    `rooms` are the places in the arena, of arrays and of what steps need besides.
    """

    def __init__(self, program: Program, rooms: Sequence[Room], arena: int) -> None:
        self.program, self.rooms, self.arena = program, rooms, arena

    @computed
    def rows(self) -> tuple[Row, ...]:
        places = {room.name: room for room in self.rooms}
        found = [*self.arrays(places), *map(self.scratch, places.values())]
        found.sort(key=lambda row: (row.born, row.kind != "argument"))
        return tuple(reusing(found))

    @computed
    def fullest(self) -> int:
        """The step at which most memory is in use; -1 if there are no steps."""
        changes = dict.fromkeys((step.number for step in self.program.steps), 0)
        for row in self.rows:
            if row.kind in ("arena", "scratch", "library") and changes:
                changes[max(row.born, 0)] += row.nbytes
                if row.dies + 1 in changes:
                    changes[row.dies + 1] -= row.nbytes
        now, best = 0, (-1, -1)
        for number, change in changes.items():
            now += change
            best = max(best, (now, -number))
        return -best[1] if changes else -1

    def at(self, step: int) -> tuple[Row, ...]:
        """What takes memory at a step, the largest first."""
        return tuple(
            sorted((row for row in self.rows if row.lives(step)), key=lambda row: -row.nbytes)
        )

    def step(self, number: int) -> str:
        """A step in words."""
        step = self.program.steps[number]
        where = f", {step.eqn.source}" if step.eqn.source is not None else ""
        return f"step {number}, {step.name}{where}"

    def __str__(self) -> str:
        steps = len(self.program.steps)
        head = f"{steps} {'step' if steps == 1 else 'steps'}, arena of {size_words(self.arena)}"
        if steps:
            most = sum(row.nbytes for row in self.at(self.fullest))
            head += f"; most is in use at {self.step(self.fullest)}: {size_words(most)}"
        rows = [HEAD, *(row.cells() for row in self.rows)]
        return f"{head}\n{table(rows, frozenset((2, 3, 4)))}"

    # -- rows

    def arrays(self, places: dict[str, Room]) -> Iterator[Row]:
        """Whatever is no view and no number of Python's; takes those of the
        arena out of `places`.
        """
        lines = {
            v: line(step.eqn, i) for step in self.program.steps for i, v in enumerate(step.eqn.outs)
        }
        constant = {
            v for s in self.program.steps if isinstance(s.eqn.op, Constant) for v in s.eqn.outs
        }
        for var, b in self.program.buffers.items():
            if b.storage in ("view", "host") or b.base is not None or var.type.weak:
                continue
            kind = "constant" if var in constant else kind_of(b)
            room = places.pop(b.name, None)
            at = -1 if room is None else room.offset
            reuse = (b.donor,) if b.donor else ()
            own = lines.get(var, "")
            yield Row(b.name, str(b.type), kind, b.type.nbytes, b.first, b.last, at, reuse, own)

    def scratch(self, room: Room) -> Row:
        life, step = room.life, self.program.steps[room.life.first]
        name, where = f"{room.name} of {step.name}", line(step.eqn, 0)
        return Row(name, "", "scratch", life.nbytes, life.first, life.last, room.offset, (), where)


def kind_of(b: Buffer) -> str:
    known = {"input": "argument", "output": "result"}
    return known.get(b.storage, b.storage)


def line(eqn: Eqn, i: int) -> str:
    """The user's line that makes result `i` of an equation; of a
    region, that of the equation in it.
    """
    source: Source | None = eqn.source
    if isinstance(eqn.op, ProductRegion):
        rest = eqn.op.rest
        return (
            line(rest, rest.outs.index(eqn.op.graph.outputs[i]))
            if i < len(eqn.outs)
            else str(source or "")
        )
    if isinstance(eqn.op, Region) and i < len(eqn.op.graph.outputs):
        made = eqn.op.graph.outputs[i]
        inner = next((e for e in eqn.op.graph.eqns if made in e.outs), None)
        source = inner.source if inner is not None and inner.source is not None else source
    return "" if source is None else str(source)


def reusing(rows: Iterable[Row]) -> Iterator[Row]:
    """Rows in the order of their birth, those of the arena with the ones that lay there last."""
    starts: list[int] = []  # of parts of the arena that follow each other
    owners: list[tuple[int, str]] = []  # where each ends, and who had it last
    for row in rows:
        if row.at < 0 or not row.nbytes:
            yield row
            continue
        begin, end = row.at, row.at + row.nbytes
        low = bisect_left(starts, begin)
        if low and owners[low - 1][0] > begin:
            low -= 1
        high = bisect_left(starts, end)
        before = owners[low:high]
        left = [(starts[low], (begin, before[0][1]))] if before and starts[low] < begin else []
        right = [(end, before[-1])] if before and before[-1][0] > end else []
        parts = [*left, (begin, (end, row.name.split()[0])), *right]
        starts[low:high], owners[low:high] = [s for s, _ in parts], [owner for _, owner in parts]
        names = tuple(dict.fromkeys(name for _, name in before))
        yield replace(row, reuse=names)
