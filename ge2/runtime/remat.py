"""A program that fits in so much memory: values that wait long are computed again, the dearest first.

The plan of a program tells at which step most memory is in use, and which arrays only wait there for a later
reader. Of these some are given up: those that free the most bytes for each operation that is done again. Then
the program is planned anew, and so on, in an order that does not depend on the limit; what is used is the
shortest beginning of that order that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, final

from ge2.base.errors import MemoryLimitError
from ge2.base.record import mutable, record
from ge2.base.source import Source
from ge2.base.words import count_words, size_words, table
from ge2.ir import Eqn, Graph, Var, without_dead_code
from ge2.ops.region import Region
from ge2.ops.shape import Barrier
from ge2.passes.repeat import VIEWS, repeated
from ge2.runtime.cost import computing
from ge2.runtime.memory import Lifetime, plan
from ge2.runtime.program import Buffer, Program
from ge2.transforms.partition import BYTE, cheapest, effort, twins

if TYPE_CHECKING:
    from ge2.runtime.executable import Executable

SMALL: Final = 16  # a value of so small a part of what is freed may wait instead of being computed again
LONGEST: Final = 256  # equations that are computed again for one value
PART: Final = 4  # one in so many of the values that wait is given up at a time
ROUNDS: Final = 200
TRANSCENDENTAL: Final = 8  # what exp or tanh counts beside an addition

Planned = Callable[[Graph], Program]
Built = Callable[[Program], "Executable"]


@final
@record
class Repeat:
    """A value that is computed again instead of being kept: its line, its operation, bytes and operations."""

    source: Source | None
    name: str
    nbytes: int
    operations: int


@final
@record
class Remat:
    """What a program computes again to fit in its memory limit. Printed, a table by the user's lines."""

    limit: int
    before: int  # bytes of the program that computes nothing again: its arena and its results
    after: int
    repeats: tuple[Repeat, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines whose values are computed again."""
        return tuple(dict.fromkeys(str(r.source) for r in self.repeats))

    def __str__(self) -> str:
        limit, before, after = map(size_words, (self.limit, self.before, self.after))
        head = f"limit {limit}: needs {after}"
        if not self.repeats:
            return f"{head}, nothing is computed again"
        rows = []
        for line in self.lines:
            of = [r for r in self.repeats if str(r.source) == line]
            names = ", ".join(dict.fromkeys(r.name for r in of))
            freed, work = sum(r.nbytes for r in of), sum(r.operations for r in of)
            rows.append((f"  {line}", names, size_words(freed), f"{count_words(work)} operations"))
        return f"{head}, {before} without computing again\n{table(rows, frozenset((2, 3)))}"


@final
@record
class Candidate:
    """A way to give up a value: what is computed again, before which equation, tied to what."""

    value: Var
    again: tuple[Eqn, ...]
    at: int
    after: Var | None
    kept: frozenset[Var]  # what it is computed from
    repeat: Repeat

    @property
    def worth(self) -> float:
        return self.repeat.nbytes / (self.repeat.operations + 1)


def fitted(graph: Graph, limit: int, planned: Planned, built: Built, name: str) -> tuple[Executable, Remat]:
    """The executable of a graph whose arena and results need at most `limit` bytes.

    MemoryLimitError if there is none, which names the least limit that there is one for.
    """
    start = Trial(graph, planned(graph))
    plain = built(start.program)
    before = plain.memory_analysis().peak
    if before <= limit:
        return plain, Remat(limit, before, before)
    best, target = start, limit
    for trial in rounds(start, planned):
        while trial.peak <= target:
            found = shortest(trial, target, planned)
            made = built(found.program)
            exact = made.memory_analysis().peak
            if exact <= limit:
                return made, Remat(limit, before, exact, found.repeats)
            target = min(found.peak - 1, limit - (exact - found.peak))  # kernels need scratch, too
        best = trial if trial.peak < best.peak else best
    made = built(best.program)
    least = made.memory_analysis().peak
    if least <= limit:
        return made, Remat(limit, before, least, best.repeats)
    sizes = f"{size_words(min(least, before))} for scratch and results, but the limit is {size_words(limit)}"
    place = graph.eqns[-1].source if graph.eqns else None
    raise MemoryLimitError(
        f"{name} needs at least {sizes}", where=place, fix=f"memory_limit={min(least, before)}"
    )


@final
@mutable
class Trial:
    """A graph, its program, and how it came to be."""

    graph: Graph
    program: Program
    before: Trial | None = None
    batch: tuple[Candidate, ...] = ()  # what was given up since
    _size: list[int] = field(default_factory=list)

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        return (*(self.before.repeats if self.before else ()), *(c.repeat for c in self.batch))

    @property
    def peak(self) -> int:
        """Bytes of the arena and the results; scratch of kernels is not known yet."""
        return self.size[0]

    @property
    def size(self) -> list[int]:
        """The peak, and how much waits how long."""
        if not self._size:
            arena = [b for b in self.program.buffers.values() if b.storage == "arena"]
            found = plan([Lifetime(b.type.nbytes, b.first, b.last) for b in arena])
            waits = sum(b.type.nbytes * (b.last - b.first) for b in arena)
            self._size += [found.nbytes + result_bytes(self.program), waits]
        return self._size

    def without(self, batch: Sequence[Candidate], planned: Planned) -> Trial:
        """The values of a batch computed again."""
        graph = self.graph
        for c in sorted(batch, key=lambda c: -c.at):  # an insertion moves what is below
            graph = repeated(graph, c.again, c.at, c.after)
        graph = without_dead_code(graph)
        return Trial(graph, planned(graph), self, tuple(batch))


def result_bytes(program: Program) -> int:
    made = [program.buffers[v] for v in dict.fromkeys(program.graph.outputs) if isinstance(v, Var)]
    donated = sum(b.type.nbytes for b in made if b.donor)
    return sum(a.type.nbytes for a in program.graph.outputs) - donated


def rounds(trial: Trial, planned: Planned) -> Iterator[Trial]:
    """Ever smaller programs."""
    useless: set[Var] = set()
    for number in range(ROUNDS):
        waiting = Waiting(trial.graph, trial.program)
        batch = (number == 0 and waiting.cut()) or chosen(list(waiting.found()), useless)
        if not batch:
            return
        found = trial.without(batch, planned)
        while found.size >= trial.size and len(batch) > 1:
            batch = batch[: len(batch) // 2]
            found = trial.without(batch, planned)
        if found.size >= trial.size:
            useless.add(batch[0].value)
            continue
        trial = found
        yield trial


def chosen(found: Sequence[Candidate], useless: set[Var]) -> list[Candidate]:
    """The most worthy of them, none computed from another."""
    batch: list[Candidate] = []
    given: set[Var] = set()
    kept: set[Var] = set()
    for c in sorted(found, key=lambda c: -c.worth):
        if c.value in useless or c.value in kept or not c.kept.isdisjoint(given):
            continue
        batch.append(c)
        given.add(c.value)
        kept |= c.kept
    return batch[: max(1, len(found) // PART)]


def shortest(trial: Trial, target: int, planned: Planned) -> Trial:
    """The shortest beginning of the last batch that fits, given that all of it does."""
    low, high, best, before = 1, len(trial.batch), trial, trial.before
    while low < high and before is not None:
        middle = (low + high) // 2
        found = before.without(trial.batch[:middle], planned)
        if found.peak <= target:
            high, best = middle, found
        else:
            low = middle + 1
    return best


# ------------------------------------------------------------------------------------- what may be given up


@final
class Waiting:
    """What is known of a program at its fullest step."""

    def __init__(self, graph: Graph, program: Program) -> None:
        self.graph, self.program = graph, program
        self.makers = {v: alone(e, i) for e in graph.eqns for i, v in enumerate(e.outs)}
        self.place = {v: i for i, e in enumerate(graph.eqns) for v in e.outs}
        self.inputs = set(graph.inputs)
        self.twins = twins(graph.eqns)
        self.steps: dict[Var, int] = {}  # in which each value is made, regions looked into
        self.touched: dict[int, set[int]] = {}  # by the identity of a buffer
        for step in program.steps:
            inner = step.eqn.op.graph.eqns if isinstance(step.eqn.op, Region) else ()
            self.steps.update((v, step.number) for e in (*inner, step.eqn) for v in e.outs)
            for a in step.eqn.inputs:
                if isinstance(a, Var):
                    self.touched.setdefault(id(self.home(a)), set()).add(step.number)
        self.readers: dict[Var, list[int]] = {}
        for i, e in enumerate(graph.eqns):
            for a in dict.fromkeys(a for a in e.inputs if isinstance(a, Var)):
                self.readers.setdefault(a, []).append(i)
        self.arena = {v: b for v, b in program.buffers.items() if b.storage == "arena"}
        self.fullest = fullest(self.arena.values())

    def home(self, var: Var) -> Buffer:
        buffer = self.program.buffers[var]
        return buffer.base or buffer

    def waits(self, var: Var) -> bool:
        buffer = self.arena[var]
        lives = buffer.first < self.fullest < buffer.last
        return lives and self.fullest not in self.touched.get(id(buffer), ())

    def found(self) -> Iterator[Candidate]:
        """A candidate for each array that waits, untouched, at the fullest step."""
        for var in filter(self.waits, self.arena):
            candidate = self.candidate(var, self.there)
            if candidate is not None:
                yield candidate

    def cut(self) -> list[Candidate]:
        """The arrays that wait and are not in the cheapest cut that makes them all again by cheap work."""

        def price(var: Var) -> int:
            if self.there(var, self.fullest + 1) and not (var in self.arena and self.waits(var)):
                return 0
            return var.type.nbytes * BYTE + 1

        wanted = [v for v in self.arena if self.waits(v)]
        choice = cheapest(wanted, self.makers, price, lambda e: effort(e, 0), self.twins)
        there = lambda var, step: var in choice.saved or var in self.inputs  # noqa: E731
        found = [self.candidate(v, there) for v in wanted if self.makers[v] in choice.again]
        return sorted((c for c in found if c is not None), key=lambda c: -c.worth)

    def candidate(self, var: Var, there: Callable[[Var, int], bool]) -> Candidate | None:
        """How a value would be computed again for its readers behind the fullest step."""
        seen = [var, *self.views([var])]
        readers = sorted({i for v in seen for i in self.readers.get(v, ())})
        late = [i for i in readers if self.is_late(self.graph.eqns[i])]
        if not late or var not in self.makers:
            return None
        at = late[0]
        step = self.steps[self.graph.eqns[at].outs[0]]
        closure = self.closure(var, at, step, there)
        if closure is None:
            return None
        again, kept, longer = closure
        views = [self.makers[v] for v in self.views([v for e in again for v in e.outs]) if self.place[v] < at]
        again = in_order(self.place, [*again, *views])
        freed = var.type.nbytes - sum(v.type.nbytes for v in longer)
        work = sum(map(operations, again))
        made = self.makers[var]
        repeat = Repeat(made.source, made.op.name, freed, work)
        return Candidate(var, tuple(again), at, self.tie(var, at, step), frozenset(kept), repeat)

    def views(self, values: Sequence[Var]) -> list[Var]:
        """The views of values, in the order of the graph."""
        found: dict[Var, None] = {}
        waiting = list(values)
        while waiting:
            for i in self.readers.get(waiting.pop(), ()):
                eqn = self.graph.eqns[i]
                if isinstance(eqn.op, VIEWS) and eqn.outs[0] not in found:
                    found[eqn.outs[0]] = None
                    waiting.append(eqn.outs[0])
        return sorted(found, key=self.place.__getitem__)

    def is_late(self, eqn: Eqn) -> bool:
        if isinstance(eqn.op, VIEWS) or not eqn.outs:
            return False
        return self.steps.get(eqn.outs[0], -1) > self.fullest

    def closure(
        self, var: Var, at: int, step: int, there: Callable[[Var, int], bool]
    ) -> tuple[list[Eqn], set[Var], list[Var]] | None:
        """The equations that make a value from what is there at a step; that; and what has to wait for it."""
        found: dict[Var, Eqn] = {}
        kept: set[Var] = set()
        longer: list[Var] = []
        waiting = [var]
        while waiting:
            v = waiting.pop()
            if v in found:
                continue
            eqn = self.makers.get(v)
            if eqn is None or eqn.op.effect or len(found) >= LONGEST:
                return None
            found.update(dict.fromkeys(eqn.outs, eqn))
            chosen = [twin.outs[0] for twin in self.twins.get(eqn, ())]
            waiting += [v for v in chosen if self.place[v] < at]
            for a in eqn.inputs:
                if not isinstance(a, Var) or a.type.weak or a in kept:
                    continue
                if there(a, step):
                    kept.add(a)
                elif a in self.arena and a.type.nbytes * SMALL <= var.type.nbytes:
                    kept.add(a)
                    longer.append(a)
                else:
                    waiting.append(a)
        return in_order(self.place, found.values()), kept, longer

    def there(self, var: Var, step: int) -> bool:
        """Whether a value lies in memory at a step anyway."""
        if var in self.inputs:
            return True
        if var not in self.program.buffers:
            return False
        home = self.home(var)
        return home.last >= step if home.storage == "arena" else home.storage != "view"

    def tie(self, var: Var, at: int, step: int) -> Var | None:
        """The latest value before a step that its equation reads, or else any: nothing begins before that."""
        reads = [a for a in self.program.steps[step].eqn.inputs if isinstance(a, Var)]
        for options in (reads, self.arena):
            late = [
                v
                for v in options
                if not v.type.weak
                and self.fullest <= self.steps.get(v, -1) < step
                and self.place[v] < at
                and self.home(v) is not self.home(var)
            ]
            if late:
                return max(late, key=self.steps.__getitem__)
        return None


def in_order(place: dict[Var, int], eqns: Iterable[Eqn]) -> list[Eqn]:
    return sorted(dict.fromkeys(eqns), key=lambda e: place[e.outs[0]])


def alone(eqn: Eqn, i: int) -> Eqn:
    """The equation that makes its result `i`: of a barrier, the one that passes this value alone."""
    if isinstance(eqn.op, Barrier) and len(eqn.outs) > 1:
        return Eqn(eqn.op, eqn.inputs[i : i + 1], eqn.outs[i : i + 1], eqn.source)
    return eqn


def fullest(buffers: Iterable[Buffer]) -> int:
    """The first step at which most bytes are in use."""
    changes: dict[int, int] = {}
    for b in buffers:
        changes[b.first] = changes.get(b.first, 0) + b.type.nbytes
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.type.nbytes
    most, at, now = -1, -1, 0
    for step in sorted(changes):
        now += changes[step]
        if now > most:
            most, at = now, step
    return at


def operations(eqn: Eqn) -> int:
    """What it costs to compute an equation again; to move elements costs something too."""
    found = computing(eqn)
    moved = 0 if isinstance(eqn.op, (*VIEWS, Barrier)) else sum(v.type.size for v in eqn.outs)
    return found.flops + TRANSCENDENTAL * found.transcendentals or moved
