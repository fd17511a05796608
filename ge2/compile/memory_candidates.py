"""The values of a program that may be computed again: the arrays that are untouched at its fullest
step, and how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

from ge2.base.record import record
from ge2.base.source import Source
from ge2.compile.pipeline import Search
from ge2.ir import Eqn, Graph, Var
from ge2.ops.graphs.region import Region
from ge2.ops.shape import Barrier
from ge2.program import Buffer, Program, computing, passes
from ge2.program.timeline import Lifetime
from ge2.transforms.graphs.partition import BYTE, cheapest, effort
from ge2.transforms.graphs.policies import twins


@final
@record
class Repeat:
    """A value that is computed again instead of being kept: its line, its
    operation, bytes and operations.
    """

    source: Source | None
    name: str
    nbytes: int
    operations: int


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


@final
class Waiting:
    """The facts of a program at its fullest step."""

    def __init__(
        self, graph: Graph, program: Program, search: Search, needs: Sequence[Lifetime] = ()
    ) -> None:
        """`needs`: what its steps need besides its arrays."""
        self.graph, self.program, self.search = graph, program, search
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
        passing = passes(program)
        self.arena = {
            v: b
            for v, b in program.buffers.items()
            if b.storage == "arena" or b.over or v in passing
        }
        self.counted = {id(b) for b in self.arena.values()}
        over = {id(b.base) for b in self.arena.values() if b.over}
        # a result that is written over others has its memory from their first on
        self.first = {
            v: self.steps.get(v, b.first) if id(b) in over else b.first
            for v, b in self.arena.items()
        }
        spans = [Lifetime(b.type.nbytes, self.first[v], b.last) for v, b in self.arena.items()]
        self.fullest = fullest([*spans, *needs])

    def home(self, var: Var) -> Buffer:
        buffer = self.program.buffers[var]
        return buffer.base or buffer

    def waits(self, var: Var) -> bool:
        buffer = self.arena[var]
        lives = self.first[var] < self.fullest < buffer.last
        return lives and self.fullest not in self.touched.get(id(buffer), ())

    def lies(self, var: Var) -> bool:
        """True if an array that is not given or returned is in memory at the fullest step."""
        buffer = self.arena.get(var)
        return buffer is not None and self.first[var] <= self.fullest <= buffer.last

    def found(self) -> Iterator[Candidate]:
        """A candidate for each array that waits, untouched, at the fullest step."""
        for var in filter(self.waits, self.arena):
            candidate = self.candidate(var, self.there)
            if candidate is not None:
                yield candidate

    def cut(self) -> list[Candidate]:
        """The arrays that wait and are not in the cheapest cut that makes them
        all again by cheap work.
        """

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
        """The way to compute a value again for its readers behind the fullest step."""
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
        views = [
            self.makers[v]
            for v in self.views([v for e in again for v in e.outs])
            if self.place[v] < at
        ]
        again = in_order(self.place, [*again, *views])
        freed = var.type.nbytes - sum(v.type.nbytes for v in longer)
        work = sum(operations(eqn, self.search) for eqn in again)
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
                if is_view(eqn) and eqn.outs[0] not in found:
                    found[eqn.outs[0]] = None
                    waiting.append(eqn.outs[0])
        return sorted(found, key=self.place.__getitem__)

    def is_late(self, eqn: Eqn) -> bool:
        if is_view(eqn) or not eqn.outs:
            return False
        return self.steps.get(eqn.outs[0], -1) > self.fullest

    def closure(
        self, var: Var, at: int, step: int, there: Callable[[Var, int], bool]
    ) -> tuple[list[Eqn], set[Var], list[Var]] | None:
        """The equations that make a value from what is there at a step; that;
        and what has to wait for it.
        """
        found: dict[Var, Eqn] = {}
        kept: set[Var] = set()
        longer: list[Var] = []
        waiting = [var]
        while waiting:
            v = waiting.pop()
            if v in found:
                continue
            eqn = self.makers.get(v)
            if eqn is None or eqn.op.effect or len(found) >= self.search.longest:
                return None
            found.update(dict.fromkeys(eqn.outs, eqn))
            chosen = [twin.outs[0] for twin in self.twins.get(eqn, ())]
            waiting += [v for v in chosen if self.place[v] < at]
            for a in eqn.inputs:
                if not isinstance(a, Var) or a.type.weak or a in kept:
                    continue
                if there(a, step):
                    kept.add(a)
                elif a in self.arena and a.type.nbytes * self.search.small <= var.type.nbytes:
                    kept.add(a)
                    longer.append(a)
                else:
                    waiting.append(a)
        return in_order(self.place, found.values()), kept, longer

    def there(self, var: Var, step: int) -> bool:
        """True if a value is in memory at a step anyway."""
        if var in self.inputs:
            return True
        if var not in self.program.buffers:
            return False
        buffer = self.program.buffers[var]
        home = buffer if buffer.over else self.home(var)
        return home.last >= step if id(home) in self.counted else home.storage != "view"

    def tie(self, var: Var, at: int, step: int) -> Var | None:
        """The latest value before a step that its equation reads, or else any:
        nothing begins before that.
        """
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
    """The equation that makes its result `i`: of a barrier, the one that
    passes this value alone.
    """
    if isinstance(eqn.op, Barrier) and len(eqn.outs) > 1:
        return Eqn(eqn.op, eqn.inputs[i : i + 1], eqn.outs[i : i + 1], eqn.source)
    return eqn


def fullest(spans: Iterable[Lifetime]) -> int:
    """The first step at which most bytes are in use."""
    changes: dict[int, int] = {}
    for span in spans:
        changes[span.first] = changes.get(span.first, 0) + span.nbytes
        changes[span.last + 1] = changes.get(span.last + 1, 0) - span.nbytes
    most, at, now = -1, -1, 0
    for step in sorted(changes):
        now += changes[step]
        if now > most:
            most, at = now, step
    return at


def is_view(eqn: Eqn) -> bool:
    """True if the result is a view of the input.

    A barrier is a step, which waits for all that it reads.
    """
    return eqn.op.is_view and not eqn.op.several


def operations(eqn: Eqn, search: Search) -> int:
    """The cost of computing an equation again; to move elements costs something too."""
    found = computing(eqn)
    moved = 0 if eqn.op.is_view else sum(v.type.size for v in eqn.outs)
    return found.flops + search.transcendental * found.transcendentals or moved
