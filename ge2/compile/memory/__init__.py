"""A program that fits in so much memory: values that wait long are computed
again, the dearest first.

The plan of a program says at which step most memory is in use, and which arrays only wait there
for a later reader. Of these some are given up: those that free the most bytes for each operation
that is done again. If the step runs a loop or a branch, whose own program needs memory, values may
be given up within that instead. Then the program is planned anew, and so on, in an order that does
not depend on the limit; what is used is the shortest beginning of that order that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

from ge2.base.errors import MemoryLimitError
from ge2.base.record import mutable, record
from ge2.base.source import Printed, count_words, size_words, table
from ge2.compile.memory.candidates import (
    Candidate,
    Repeat,
    Unstacked,
    Waiting,
    operations,
    repeated,
    unstacked,
)
from ge2.compile.pipeline import SEARCH, Search
from ge2.ir import Eqn, Graph, Var, without_dead_code
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.program import CONTROL, Program, Step, passing
from ge2.program.timeline import Lifetime, plan
from ge2.targets.c.loops import held, spares
from ge2.targets.cuda.assemble.loops import spare

if TYPE_CHECKING:
    from ge2.compile.catalog import Memory


class Measured(Protocol):
    """A program that was made, whose memory is known."""

    def memory_analysis(self) -> Memory: ...


Made = TypeVar("Made", bound=Measured)
Planned = Callable[[Graph], Program]
Begun = Callable[[Step, int], tuple[Graph, Planned]]


@final
@record
class Remat(Printed):
    """The values that a program computes again to fit in its memory limit.

    Printed, a table by the user's lines.
    """

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


def fitted(
    graph: Graph,
    limit: int,
    planned: Planned,
    begun: Begun,
    built: Callable[[Program], Made],
    name: str,
    search: Search = SEARCH,
) -> tuple[Made, Remat, Graph]:
    """The executable of a graph whose arena and results need at most `limit`
    bytes, and what it is of.

    `begun` gives a graph that a step of a program runs, and how that is planned. MemoryLimitError
    if there is no such executable, which names the least limit that there is one for.
    """
    start = Trial(graph, Planner(planned, begun, search))
    plain = built(start.program)
    before = plain.memory_analysis().peak
    if before <= limit:
        return plain, Remat(limit, before, before), graph
    trials = [start]
    fit = first_fit(collected(rounds(start), trials), limit, built)
    if fit is None:
        best = min(trials, key=lambda trial: trial.peak)
        made = built(best.program)
        fit = Fit(made, made.memory_analysis().peak, best)
        while fit.peak > limit and (smaller := first_fit(trials, fit.peak - 1, built)) is not None:
            fit = smaller
    if fit.peak <= limit:
        return fit.made, Remat(limit, before, fit.peak, fit.trial.repeats), fit.trial.graph
    least = min(fit.peak, before)
    place = graph.eqns[-1].source if graph.eqns else None
    raise MemoryLimitError(
        f"{name} needs at least {size_words(least)} for scratch and results, but the limit is "
        f"{size_words(limit)}",
        where=place,
        fix=f"memory_limit={least}",
    )


@final
@record
class Fit(Generic[Made]):
    """A program that was made: its executable, and the bytes that it really needs."""

    made: Made
    peak: int
    trial: Trial


def collected(trials: Iterator[Trial], into: list[Trial]) -> Iterator[Trial]:
    for trial in trials:
        into.append(trial)
        yield trial


def first_fit(
    trials: Iterable[Trial], limit: int, built: Callable[[Program], Made]
) -> Fit[Made] | None:
    """The first program of trials, or of a beginning of what one did last, that needs at most `limit`
    bytes. It is made to be known: kernels need scratch, too.
    """
    target = limit
    for trial in trials:
        while trial.peak <= target:
            found = shortest(trial, target)
            made = built(found.program)
            exact = made.memory_analysis().peak
            if exact <= limit:
                return Fit(made, exact, found)
            target = min(found.peak - 1, limit - (exact - found.peak))
    return None


def estimated(
    graph: Graph,
    limit: int,
    peak: int,
    planned: Planned,
    begun: Begun,
    seconds: float,
    search: Search = SEARCH,
) -> Remat | None:
    """The values that a program of `peak` bytes would compute again to need at most about `limit`.

    Nothing is compiled: the scratch of its kernels is taken to stay what it is. None if
    nothing is found in so much time.
    """
    start, end = Trial(graph, Planner(planned, begun, search)), monotonic() + seconds
    own = max(peak - start.peak, 0)
    for trial in rounds(start):
        if trial.peak + own <= limit:
            found = shortest(trial, limit - own)
            return Remat(limit, peak, found.peak + own, found.repeats)
        if monotonic() > end:
            break
    return None


@final
class Planner:
    """The functions that make programs of graphs of one kind, and what is known of the graphs that
    their steps run.
    """

    def __init__(self, planned: Planned, begun: Begun, search: Search) -> None:
        self.planned, self.begun, self.search = planned, begun, search
        self.known: dict[tuple[int, int, str], tuple[Graph, Link]] = {}

    def links(self, step: Step) -> list[Link]:
        """The programs that a step runs, as they are now."""
        if step.kind not in ("loop", "hosted", "library") or not isinstance(step.eqn.op, CONTROL):
            return []
        return [self.link(step, i, graph) for i, graph in enumerate(held(step.eqn.op))]

    def link(self, step: Step, i: int, graph: Graph) -> Link:
        key = id(graph), i, step.kind
        if key not in self.known:
            inner, planned = self.begun(step, i)
            trial = Trial(inner, Planner(planned, self.begun, self.search))
            self.known[key] = graph, Link(trial, rounds(trial))
        return self.known[key][1]

    def learn(self, step: Step, i: int, link: Link) -> None:
        graph = link.trial.graph
        self.known[id(graph), i, step.kind] = graph, link


@final
class Link:
    """One of ever smaller programs, and how to get the next."""

    def __init__(self, trial: Trial, rest: Iterator[Trial]) -> None:
        self.trial, self.rest = trial, rest
        self.found: list[Link | None] = []

    def after(self) -> Link | None:
        if not self.found:
            trial = next(self.rest, None)
            self.found.append(None if trial is None else Link(trial, self.rest))
        return self.found[0]


@final
@record
class Within:
    """A change of graph `i` that a step runs, `times` in each call."""

    step: Step
    i: int
    link: Link

    @property
    def times(self) -> int:
        op: Any = self.step.eqn.op
        if isinstance(op, Cond):
            return 1
        rounds = self.link.trial.planner.search.while_rounds
        return rounds if isinstance(op, WhileLoop) else op.length

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        """The values that it computes again since the program before."""
        return tuple(
            replace(r, operations=r.operations * self.times) for r in self.link.trial.latest
        )


@final
@mutable
class Trial:
    """A graph, its program, and how it came to be."""

    graph: Graph
    planner: Planner
    before: Trial | None = None
    batch: tuple[Candidate, ...] = ()  # what was given up since
    within: Within | None = None  # what was changed instead
    stack: Unstacked | None = None  # likewise
    program: Program = field(init=False)
    needs: list[Lifetime] = field(init=False)
    scratch: int = field(init=False)
    # the peak, how much waits how long, the sizes of inner programs
    size: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        program = self.program = self.planner.planned(self.graph)
        inner = [(step, self.planner.links(step)) for step in program.steps]
        self.needs = [need(program, step, links) for step, links in inner if links]
        arena = [b for b in program.buffers.values() if b.storage == "arena"]
        lifetimes = [Lifetime(b.type.nbytes, b.first, b.last) for b in arena]
        found = plan([*lifetimes, *(n for n in self.needs if n.nbytes)])
        waits = sum(b.type.nbytes * (b.last - b.first) for b in arena)
        self.scratch = found.nbytes + passing(program)
        sizes = [link.trial.size for _, links in inner for link in links]
        self.size = [self.scratch + result_bytes(program), waits, sizes]

    @property
    def peak(self) -> int:
        """Bytes of the arena and the results; scratch of kernels is not known yet."""
        return self.size[0]  # type: ignore[no-any-return]

    @property
    def latest(self) -> tuple[Repeat, ...]:
        """The values that are computed again since the trial before."""
        if self.stack is not None:
            return (remade(self.stack, self.planner.search),)
        return tuple(c.repeat for c in self.batch) if self.within is None else self.within.repeats

    @property
    def repeats(self) -> tuple[Repeat, ...]:
        return (*(self.before.repeats if self.before else ()), *self.latest)

    def without(self, batch: Sequence[Candidate]) -> Trial:
        """The values of a batch computed again."""
        graph = self.graph
        for c in sorted(batch, key=lambda c: -c.at):  # an insertion moves what is below
            graph = repeated(graph, c.again, c.at, c.after)
        return Trial(without_dead_code(graph), self.planner, self, tuple(batch))

    def inside(self, n: int) -> Within | None:
        """The next smaller program in place of the largest that step `n` runs
        and that can be smaller.
        """
        step = self.program.steps[n] if 0 <= n < len(self.program.steps) else None
        links = [] if step is None or not step.eqn.outs else self.planner.links(step)
        for i in sorted(range(len(links)), key=lambda i: -links[i].trial.scratch):
            link = links[i].after()
            if link is not None:
                return Within(step, i, link)  # type: ignore[arg-type]
        return None

    def changed(self, within: Within) -> Trial:
        """With another program in a step."""
        step, i, link = within.step, within.i, within.link
        self.planner.learn(step, i, link)
        eqns = []
        for eqn in self.graph.eqns:
            if eqn.outs and eqn.outs[0] is step.eqn.outs[0]:
                eqn = Eqn(holding(eqn.op, i, link.trial.graph), eqn.inputs, eqn.outs, eqn.source)
            eqns.append(eqn)
        graph = Graph(self.graph.inputs, tuple(eqns), self.graph.outputs, self.graph.consts)
        return Trial(graph, self.planner, self, within=within)

    def unstacked(self, change: Unstacked) -> Trial:
        """With a loop that makes again what it read."""
        return Trial(change.graph, self.planner, self, stack=change)

    @property
    def parts(self) -> int:
        """In how many steps one gets here from the trial before."""
        if self.stack is not None:
            return 1
        return len(self.batch) if self.within is None else self.within.link.trial.parts

    def beginning(self, count: int) -> Trial:
        """The trial before, with so many of these steps."""
        assert self.before is not None and self.stack is None
        if self.within is None:
            return self.before.without(self.batch[:count])
        trial = self.within.link.trial.beginning(count)
        return self.before.changed(replace(self.within, link=Link(trial, iter(()))))


def need(program: Program, step: Step, links: Sequence[Link]) -> Lifetime:
    """The memory that a step needs to run one of these programs at a time."""
    nbytes = max(link.trial.scratch for link in links)
    if step.kind == "loop":
        nbytes += sum(spares(step.eqn.op, i, p) for i, p in enumerate(program.inner[step.number]))
    if step.kind == "hosted":
        nbytes += sum(t.nbytes for t in spare(step.eqn.op))
    return Lifetime(nbytes, step.number, step.number)


def holding(op: Any, i: int, graph: Graph) -> Any:
    """A loop or a branch with another graph."""
    if isinstance(op, Cond):
        return Cond((*op.branches[:i], graph, *op.branches[i + 1 :]))
    if isinstance(op, WhileLoop):
        return replace(op, cond=graph) if i == 0 else replace(op, body=graph)
    return replace(op, body=graph)


def result_bytes(program: Program) -> int:
    made = [program.buffers[v] for v in dict.fromkeys(program.graph.outputs) if isinstance(v, Var)]
    donated = sum(b.type.nbytes for b in made if b.donor)
    return sum(a.type.nbytes for a in program.graph.outputs) - donated


def rounds(trial: Trial) -> Iterator[Trial]:
    """Ever smaller programs."""
    useless, search = set[Var](), trial.planner.search
    for number in range(search.rounds):
        waiting = Waiting(trial.graph, trial.program, search, trial.needs)
        batch = (number == 0 and waiting.cut()) or chosen(list(waiting.found()), useless, search)
        other = better(trial, waiting, worth([c.repeat for c in batch]), useless)
        if other is not None:
            trial = other
            yield trial
            continue
        if not batch:
            return
        found = trial.without(batch)
        while found.size >= trial.size and len(batch) > 1:
            batch = batch[: len(batch) // 2]
            found = trial.without(batch)
        if found.size >= trial.size:
            useless.add(batch[0].value)
            continue
        trial = found
        yield trial


def better(trial: Trial, waiting: Waiting, least: float, useless: set[Var]) -> Trial | None:
    """A smaller program by a change of loops and branches, if that is
    worth so much: the most worthy.
    """
    within = trial.inside(waiting.fullest)
    stacks = list(unstacked(trial.graph, lambda v: v not in useless and waiting.lies(v)))
    options: list[tuple[float, Within | Unstacked]] = [
        (worth((remade(u, trial.planner.search),)), u) for u in stacks
    ]
    if within is not None:
        options.append((worth(within.repeats), within))
    for value, change in sorted(options, key=lambda pair: -pair[0]):
        if value < least:
            return None
        found = trial.changed(change) if isinstance(change, Within) else trial.unstacked(change)
        if found.size < trial.size:
            return found
        if isinstance(change, Unstacked):
            useless.add(change.value)
    return None


def remade(change: Unstacked, search: Search) -> Repeat:
    """A stack that is made again iteration by iteration."""
    last = change.again[-1]
    work = change.length * sum(operations(eqn, search) for eqn in change.again)
    return Repeat(last.source, last.op.name, change.value.type.nbytes, work)


def worth(repeats: Sequence[Repeat]) -> float:
    """Bytes freed for each operation."""
    return sum(r.nbytes for r in repeats) / (sum(r.operations for r in repeats) + 1)


def chosen(found: Sequence[Candidate], useless: set[Var], search: Search) -> list[Candidate]:
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
    return batch[: max(1, len(found) // search.part)]


def shortest(trial: Trial, target: int) -> Trial:
    """The shortest beginning of what was done last that fits, given that all of it does."""
    low, high, best = 1, trial.parts, trial
    while low < high and trial.before is not None:
        middle = (low + high) // 2
        found = trial.beginning(middle)
        if found.peak <= target:
            high, best = middle, found
        else:
            low = middle + 1
    return best
