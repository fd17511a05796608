"""When each array of a program is there: at which step it is born and
dies, and whose memory it takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Final, final

from ge2.base.formatting import Printed, size_words, table
from ge2.base.locks import computed
from ge2.base.memory import Lifetime, Plan, Room, in_time, lowest, plan
from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import Atom, Eqn, Var
from ge2.ops.graphs.region import ProductRegion, Region
from ge2.ops.shape import Constant
from ge2.program.program import END, Buffer, Program
from ge2.program.tuning import Concurrent

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
        """True if it takes memory of its own at a step: arguments and results do so throughout."""
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
        """The arrays that take memory at a step, the largest first."""
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
    """Rows in the order of their birth, those of the arena with the ones that were there last."""
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


# --------------------------------------------------------------------------------- concurrent plan
# Where arrays are so that steps that know nothing of each other need not wait for each other.
#
# What follows in time may be at the same place, and that is how little memory is enough. But in a
# captured graph steps run at once that need nothing of each other, unless one writes where the
# other's arrays are: the gradient of one layer's weights would wait for that of the next layer's.
# So an array takes the place of a small one only if all who read that are steps that it needs
# anyway.


Touching = dict[str, set[int]]


def planned_beside(
    program: Program, needs: Sequence[tuple[str, Lifetime]], alignment: int, tuning: Concurrent
) -> Plan:
    """The places of arrays and of what steps need besides, by name;
    tight where apart costs too much.
    """
    lives = [life for _, life in needs]
    tight = plan(lives, alignment)
    if len(needs) > tuning.arrays:
        return tight
    before = behind(program)
    touching = users(program)
    by = [touching.get(name) or {life.first} for name, life in needs]
    apart = lowest(lives, in_time(lives), keeps_apart(lives, by, before, tuning.large), alignment)
    return apart if tight.nbytes < apart.nbytes <= tight.nbytes + tuning.more else tight


def planned_unhurried(
    program: Program,
    needs: Sequence[tuple[str, Lifetime]],
    alignment: int,
    tuning: Concurrent,
    early: Set[str],
    late: Set[str],
) -> Plan:
    """The same, where arrays that are `early` may be written before their time, and those that are
    `late` be read after it: if the arena is hardly larger for it.
    """
    found, end = planned_beside(program, needs, alignment, tuning), len(program.steps) - 1

    def unhurried(name: str, life: Lifetime) -> Lifetime:
        first = 0 if name in early and life.nbytes <= tuning.tiny else life.first
        last = end if name in late and life.nbytes <= tuning.large else life.last
        return replace(life, first=first, last=last)

    longer = [(name, unhurried(name, life)) for name, life in needs]
    if longer == needs:
        return found
    other = planned_beside(program, longer, alignment, tuning)
    return other if other.nbytes <= found.nbytes + tuning.unhurried else found


def keeps_apart(
    lives: Sequence[Lifetime], by: Sequence[set[int]], before: Sequence[int], large: int
) -> Callable[[int, int], bool]:
    """Tells whether two arrays may not share a place, given who uses them and
    what each step needs; `large` ones of more bytes may where their lifetimes do not meet.
    """
    masks = [sum(1 << n for n in steps) for steps in by]
    common = [~0] * len(by)
    for i, steps in enumerate(by):
        for n in steps:
            common[i] &= before[n]

    def apart(i: int, j: int) -> bool:
        a, b = lives[i], lives[j]
        if a.meets(b):
            return True
        if max(a.nbytes, b.nbytes) > large:
            return False
        return bool(masks[i] & ~common[j]) and bool(masks[j] & ~common[i])

    return apart


def users(program: Program) -> Touching:
    """The steps that write or read each array, also through views."""
    found: Touching = defaultdict(set)
    for step in program.steps:
        if step.kind != "view":
            for name in homes(program, (*step.eqn.inputs, *step.eqn.outs)):
                found[name].add(step.number)
    return found


def behind(program: Program) -> list[int]:
    """For each step those that it needs, and those that they need, as the bits of a number.

    Who writes over an argument needs all that read it before.
    """
    found: list[int] = []
    writers: Touching = defaultdict(set)
    readers: Touching = defaultdict(set)
    given = {b.name for b in program.buffers.values() if b.storage == "input"}
    for step in program.steps:
        reads, writes = homes(program, step.eqn.inputs), homes(program, step.eqn.outs)
        needs = {n for name in reads for n in writers[name]}
        needs |= {n for name in writes if name in given for n in readers[name]}
        mask = 0
        for n in needs:
            mask |= found[n] | 1 << n
        found.append(mask)
        if step.kind != "view":
            for name in reads:
                readers[name].add(step.number)
            for name in writes:
                writers[name].add(step.number)
    return found


def homes(program: Program, atoms: Sequence[Atom]) -> list[str]:
    """The owner of each array's memory: of a view what it views, of a result perhaps an argument."""
    buffers = [program.buffers[a] for a in atoms if isinstance(a, Var)]
    return [base.donor or base.name for b in buffers for base in (b.base or b,)]
