"""Values of a program that may be rematerialised, and the equations that compute them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.base.arrays import INEXACT
from ge2.base.record import record
from ge2.base.source import Source
from ge2.compile.pipeline import Search
from ge2.ir import (
    Atom,
    Eqn,
    Graph,
    Literal,
    Var,
    anew,
    makers_of,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.shape import Barrier
from ge2.program import Program, computing, passes
from ge2.program.timeline import Lifetime
from ge2.transforms.graphs.partition import BYTE, cheapest, effort
from ge2.transforms.graphs.policies import seen_through, twins

# -------- The values of a program that may be computed again: the arrays that are untouched at its
# fullest step, and how.


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
                    self.touched.setdefault(id(self.program.home(a)), set()).add(step.number)
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
        home = buffer if buffer.over else self.program.home(var)
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
                and self.program.home(v) is not self.program.home(var)
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


# -------- Values that wait long for their late readers are computed again for them, from what is
# there anyway.


def repeated(graph: Graph, again: Sequence[Eqn], at: int, after: Var | None) -> Graph:
    """The graph that computes the equations `again` a second time before
    equation `at`, for the rest of it.

    What they read comes through a barrier, tied to the value `after`: so no pass finds that they
    are the same as before, and none of them begins earlier.
    """
    env: dict[Var, Atom] = {}
    eqns = list(graph.eqns[:at])
    made = {v for e in again for v in e.outs}
    given = dict.fromkeys(
        a for e in again for a in e.inputs if isinstance(a, Var) and a not in made
    )
    read = [v for v in given if not v.type.weak]
    if read:
        tied = [*read, *([] if after is None or after in given else [after])]
        outs = tuple(Var(v.type) for v in tied)
        eqns.append(Eqn(Barrier(), tuple(tied), outs, again[-1].source))
        env.update(zip(read, outs, strict=False))
    eqns += [anew(env, e) for e in again]
    late = {v: a for v, a in env.items() if v in made}
    eqns += [renamed(late, e) for e in graph.eqns[at:]]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


# ----------------------------------------------------------------------------------------- unstack
# What a loop stacks for a later one is computed again there, iteration by iteration,
# from what that has anyway.
#
# A loop and its derivative are two scans over as many iterations: the second reads what the
# first one stacked. A stack that can be made again from constants, elements and other
# stacks of the same iteration need not be kept.


@final
@record
class Unstacked:
    """A stack that is given up: the graph without it, and the equations of a
    iteration that make it again.
    """

    value: Var
    made: Eqn
    again: tuple[Eqn, ...]
    length: int
    graph: Graph


def unstacked(graph: Graph, wanted: Callable[[Var], bool]) -> Iterator[Unstacked]:
    """A way for each of the wanted stacks that loops alone read."""
    readers = readers_of(graph)
    for eqn in graph.eqns:
        if not isinstance(eqn.op, ScanLoop) or eqn.op.effect:
            continue
        for i in range(eqn.op.carry, len(eqn.outs)):
            v, later = eqn.outs[i], readers.get(eqn.outs[i], [])
            if not later or v in graph.outputs or not wanted(v):
                continue
            if all(reads_rounds(e, v, eqn.op.length) for e in later):
                found = given_up(graph, eqn, i, later)
                if found is not None:
                    yield found


def reads_rounds(eqn: Eqn, v: Var, length: int) -> bool:
    """True if a loop reads a stack as its elements alone, and does not ask where its values equal
    others.

    What is computed again may differ in its last bit.
    """
    op = eqn.op
    if not isinstance(op, ScanLoop) or op.length != length:
        return False
    at = op.consts + op.carry
    if v in eqn.inputs[:at]:
        return False
    element = op.body.inputs[at + eqn.inputs[at:].index(v)]
    makers = makers_of(op.body)
    compared = {
        seen_through(makers, a) for e in op.body.eqns if e.op.name in ("eq", "ne") for a in e.inputs
    }
    return eqn.inputs.count(v) == 1 and (
        element not in compared or element.type.dtype not in INEXACT
    )


def given_up(graph: Graph, first: Eqn, i: int, later: list[Eqn]) -> Unstacked | None:
    loop = first.op
    assert isinstance(loop, ScanLoop)
    outer = in_memory(first, i)
    again = remade(loop.body, loop.body.outputs[i], outer)
    if not again:
        return None
    changed = {id(first): without_result(first, i)}
    for eqn in later:
        changed[id(eqn)] = remaking(
            eqn, first.outs[i], loop.body.outputs[i], again, outer, loop.consts, first
        )
    eqns = tuple(changed.get(id(e), e) for e in graph.eqns)
    return Unstacked(
        first.outs[i], first, tuple(again), loop.length,
        without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts)),
    )  # fmt: skip


def in_memory(eqn: Eqn, i: int) -> dict[Var, Atom]:
    """The values of an iteration that are there without stack `i`, and which array
    holds each of all iterations.
    """
    op = eqn.op
    assert isinstance(op, ScanLoop)
    consts, _, elements = op.parts(list(zip(op.body.inputs, eqn.inputs, strict=True)))
    stacks = [(a, v) for a, v in zip(op.body.outputs, eqn.outs, strict=True)][op.carry :]
    del stacks[i - op.carry]
    found = {a: v for a, v in stacks if isinstance(a, Var)}
    return {**found, **dict(elements), **dict(consts)}


def remade(body: Graph, wanted: Atom, there: Mapping[Var, Atom]) -> list[Eqn] | None:
    """The equations of an iteration that make a value from what is there, in
    order; None if there are none.

    With x, if it is asked where x == max(x), goes max(x).
    """
    makers = makers_of(body)
    equal = twins(body.eqns)
    found: dict[Eqn, None] = {}
    together: set[Atom] = set()
    waiting = [wanted]
    while waiting:
        a = waiting.pop()
        if isinstance(a, Literal) or (a in there and a not in together):
            continue
        eqn = makers.get(a)
        if eqn is None or eqn.op.effect:
            return None
        if eqn not in found:
            found[eqn] = None
            more = [v for e in equal.get(eqn, ()) for v in e.outs]
            together.update(more)
            waiting += [*eqn.inputs, *more]
    return [e for e in body.eqns if e in found]


def without_result(eqn: Eqn, i: int) -> Eqn:
    op = eqn.op
    assert isinstance(op, ScanLoop)
    outputs = (*op.body.outputs[:i], *op.body.outputs[i + 1 :])
    body = without_dead_code(Graph(op.body.inputs, op.body.eqns, outputs))
    return Eqn(replace(op, body=body), eqn.inputs, (*eqn.outs[:i], *eqn.outs[i + 1 :]), eqn.source)


def remaking(
    eqn: Eqn,
    stack: Var,
    value: Atom,
    again: list[Eqn],
    there: Mapping[Var, Atom],
    consts: int,
    first: Eqn,
) -> Eqn:
    """The later loop, each of whose iterations makes the value again instead of reading it."""
    op = eqn.op
    assert isinstance(op, ScanLoop) and isinstance(first.op, ScanLoop)
    parts = op.parts(list(zip(op.body.inputs, eqn.inputs, strict=True)))
    fixed = set(first.op.body.inputs[:consts])
    env: dict[Var, Atom] = {}
    for v in dict.fromkeys(a for e in again for a in e.inputs if isinstance(a, Var) and a in there):
        part = parts[0] if v in fixed else parts[2]
        known = next((inner for inner, outer in part if outer is there[v]), None)
        if known is None:
            known = Var(v.type)
            part.append((known, there[v]))
        env[v] = known
    eqns = [anew(env, e) for e in again]
    old = next(inner for inner, outer in parts[2] if outer is stack)
    elements = [pair for pair in parts[2] if pair[1] is not stack]
    new = {old: env[value]}  # type: ignore[index]
    eqns += [renamed(new, e) for e in op.body.eqns]
    given = [*parts[0], *parts[1], *elements]
    body = Graph(tuple(v for v, _ in given), tuple(eqns), rename(new, op.body.outputs))
    return Eqn(
        op.of(body, len(parts[0]), op.carry), tuple(a for _, a in given), eqn.outs, eqn.source
    )
