"""The lifetimes of a program's arrays, and their offsets in the arena."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from typing import Final, final

from ge2.base.config import config
from ge2.base.record import computed, record
from ge2.base.source import Printed, Source, size_words, table
from ge2.ir import Atom, Eqn, Var
from ge2.ops.graphs.region import Region
from ge2.ops.shape import Constant
from ge2.program import END, Buffer, Concurrent, Program

# -------- Offsets of arrays in memory that several share: a pure function of sizes and lifetimes.


ALIGNMENT = 64  # a cache line, and the widest vector


@final
@record
class Arenas:
    """The search for a smaller arena."""

    large: int = 1 << 26  # bytes of an arena for which it is worth to look for a better plan
    arrays: int = 1024  # at most, of which each is compared with each: 80 ms
    slack: float = 1 / 128  # of an arena, that nobody misses


ARENAS: Final = Arenas()


@final
@record
class Lifetime:
    """An array of `nbytes` that is needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """True if both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


@final
@record
class Room:
    """A place in the arena by the name of what is there: an array, or what
    a step needs besides.
    """

    name: str
    life: Lifetime
    offset: int


@final
@record
class Plan:
    """The offset of each array, and the size of the arena that holds them all."""

    offsets: tuple[int, ...]
    nbytes: int


def plan(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> Plan:
    """The arrays in the order in which they are needed, each in the smallest gap that holds it; the
    largest first, each at the lowest place, if they take much memory, and less in that way.

    Offsets are multiples of `alignment`.

    >>> plan([Lifetime(100, 0, 1), Lifetime(50, 1, 2), Lifetime(100, 2, 3)])
    Plan(offsets=(0, 128, 0), nbytes=192)
    """
    found = first_come(lifetimes, alignment)
    tuning = config.tuned(ARENAS)
    large = found.nbytes >= tuning.large and len(lifetimes) <= tuning.arrays
    if not large or found.nbytes <= (1 + tuning.slack) * most_at_once(lifetimes):
        return found
    order = sorted(
        range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, lifetimes[i].first, i)
    )
    other = lowest_in_time(lifetimes, order, alignment)
    return min(found, other, key=lambda each: each.nbytes)


def most_at_once(lifetimes: Sequence[Lifetime]) -> int:
    """The bytes of the arrays that are needed at the fullest step: no plan takes less."""
    changes = Counter[int]()
    for each in lifetimes:
        changes[each.first] += each.nbytes
        changes[each.last + 1] -= each.nbytes
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def first_come(lifetimes: Sequence[Lifetime], alignment: int) -> Plan:
    """The arrays in the order in which they are needed, each in the smallest gap that holds it."""
    gaps: list[tuple[int, int]] = []  # (size, offset), by size
    live: list[tuple[int, int, int]] = []  # (last, offset, size), by last
    offsets, top = [0] * len(lifetimes), 0
    for i in in_time(lifetimes):
        need = lifetimes[i]
        while live and live[0][0] < need.first:
            _, offset, size = live.pop(0)
            top = give_back(gaps, offset, size, top)
        size = sized(need, alignment)
        at = next((g for g, (room, _) in enumerate(gaps) if room >= size), None)
        if at is None:
            offset, top = top, top + size
        else:
            room, offset = gaps.pop(at)
            if room > size:
                insort(gaps, (room - size, offset + size))
        offsets[i] = offset
        insort(live, (need.last, offset, size))
    high = max(
        (o + sized(n, alignment) for o, n in zip(offsets, lifetimes, strict=True)), default=0
    )
    return Plan(tuple(offsets), high)


def lowest(
    lives: Sequence[Lifetime],
    order: Iterable[int],
    apart: Callable[[int, int], bool],
    alignment: int,
) -> Plan:
    """Each array, in that order of their numbers, at the lowest place where
    those that are `apart` are not.

    >>> lives = [Lifetime(32, 0, 1), Lifetime(16, 1, 2), Lifetime(32, 2, 3)]
    >>> lowest(lives, range(3), lambda i, j: lives[i].meets(lives[j]), 16)
    Plan(offsets=(0, 32, 0), nbytes=48)
    """
    offsets, done = (
        [0] * len(lives),
        list[tuple[int, int, int]](),
    )  # (offset, number, end), by offset
    for i in order:
        size, at = sized(lives[i], alignment), 0
        for offset, j, end in done:
            if offset >= at + size:
                break  # and so are all after it
            if end > at and apart(i, j):
                at = end
        offsets[i] = at
        insort(done, (at, i, at + size))
    return Plan(tuple(offsets), max((end for _, _, end in done), default=0))


def lowest_in_time(lives: Sequence[Lifetime], order: Iterable[int], alignment: int) -> Plan:
    """The same, where those are apart that are needed at one step: compared here, pair by pair."""
    offsets = [0] * len(lives)
    done = list[tuple[int, int, int, int]]()  # (offset, end, first, last), by offset
    for i in order:
        size, at = sized(lives[i], alignment), 0
        first, last = lives[i].first, lives[i].last
        for offset, end, begun, over in done:
            if end > at:
                if offset >= at + size:
                    break  # and so are all after it
                if begun <= last and first <= over:
                    at = end
        offsets[i] = at
        insort(done, (at, at + size, first, last))
    return Plan(tuple(offsets), max([end for _, end, *_ in done], default=0))


def in_time(lives: Sequence[Lifetime]) -> list[int]:
    """The numbers of arrays, the ones that are needed first before the others,
    the largest of them first.
    """
    return sorted(range(len(lives)), key=lambda i: (lives[i].first, -lives[i].nbytes, i))


def sized(need: Lifetime, alignment: int = ALIGNMENT) -> int:
    """The bytes that an array takes of the arena."""
    return -(-max(need.nbytes, 1) // alignment) * alignment


def give_back(gaps: list[tuple[int, int]], offset: int, size: int, top: int) -> int:
    """Joins a freed place with its neighbours; the new top of what is in use."""
    for gap in [g for g in gaps if g[1] + g[0] == offset or offset + size == g[1]]:
        gaps.remove(gap)
        offset, size = min(offset, gap[1]), size + gap[0]
    if offset + size == top:
        return offset
    insort(gaps, (size, offset))
    return top


# -------- When each array of a program is there: at which step it is born and dies, and whose
# memory it takes.


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


# -------- The arena of a program while its text is written: what is in it, and then where.


@final
class Arena:
    """Arrays by their names, with their lifetimes; `plan` has their offsets once all are known."""

    __slots__ = ("needs", "plan")

    def __init__(self) -> None:
        self.needs: dict[str, Lifetime] = {}
        self.plan: Plan | None = None

    def claim(self, buffers: Iterable[Buffer]) -> list[str]:
        """Claims room for arrays of a program; their names."""
        found = [b for b in buffers if b.storage == "arena"]
        self.needs |= {b.name: Lifetime(b.type.nbytes, b.first, b.last) for b in found}
        return [b.name for b in found]

    @property
    def nbytes(self) -> int:
        return 0 if self.plan is None else self.plan.nbytes

    def offsets(self) -> dict[str, int]:
        """The offset of each array, by its name."""
        assert self.plan is not None
        return dict(zip(self.needs, self.plan.offsets, strict=True))

    def rooms(self) -> list[Room]:
        """The arrays with their lifetimes and offsets."""
        offsets = self.offsets()
        return [Room(name, life, offsets[name]) for name, life in self.needs.items()]
