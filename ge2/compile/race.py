"""Races: candidates for kernels, single or of several steps, are checked, timed, and written down."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import field, replace
from functools import partial
from statistics import median
from typing import Any, Final, final

import numpy as np

from ge2.base.config import config
from ge2.base.errors import Ge2Error
from ge2.base.record import computed, mutable, record
from ge2.base.source import table
from ge2.choice import Measured, Problem, prefs
from ge2.choice import record as kept
from ge2.choice.bench import Bench, Images, Prepared, Run
from ge2.choice.choose import Candidate, Choice, candidates, choose, written
from ge2.choice.record import Entry, ProblemClass, class_of, code_of
from ge2.compile.executable import Executable
from ge2.ops.graphs.contraction import is_contraction, steps_of
from ge2.program import Program, Step
from ge2.program.assembler import seconds
from ge2.targets.c.native import made
from ge2.targets.cuda.assemble.bench import CudaBench
from ge2.targets.cuda.device import Device, download, upload
from ge2.targets.cuda.kernels.tensor_cores import Apart

# -------- Races: the candidates for the kernels of a program are checked, timed, and written down.
# Each candidate is compiled by itself, must make what the reference makes and write nothing else,
# and is timed in turns with the others; then the best two again. What is wrong, writes outside,
# does not compile or finds no memory never wins, is kept with its reason, and stops nothing.


ROUNDS: Final = 7  # medians of so many times of each
AGAIN: Final = 9  # of the best two, once more
BUDGET: Final = 30.0  # seconds for a program, by default
NOISE: Final = 0.1  # of a spread, beyond which the best two run again, so many times
TRIES: Final = 3
LEAST: Final = 2e-4  # seconds that a time is of: as many runs as that takes
MOST: Final = 1.0  # seconds of all rounds of one candidate
CLOSE: Final = 2.0  # times the best: a candidate beyond needs no more rounds
FAR: Final = (
    20.0  # times the best so far: a run that takes so long, and this many seconds, is the last
)
LONG: Final = 1.0
ROOM: Final = 1 << 30  # bytes of the arrays of problems that are made ready together
FAILURES: Final = (Ge2Error, ArithmeticError, LookupError, ValueError, OSError, MemoryError)

Tell = Callable[[str], None]


# ---------------------------------------------------------------------------------------- problems


def benches(executable: Executable) -> Iterator[Bench]:
    """The kernel problems of a program, of loops and branches too; those that move most come first."""
    found = [(program, step) for program in programs(executable) for step in program.steps]
    kernels = [(p, s) for p, s in found if s.kind in ("kernel", "copy", "matmul")]
    for program, step in sorted(kernels, key=lambda each: -size(each[1])):
        bench = bench_of(executable, program, step)
        if bench is not None:
            yield bench


def programs(executable: Executable) -> Iterator[Program]:
    """A program, and those of its loops and branches."""
    yield from nested(executable.program, executable.tuning.c.loops.small)
    for inner in executable.branches.values():
        for each in inner:
            yield from programs(each)


def nested(program: Program, small: int) -> Iterator[Program]:
    """A program and those in it, but for the bodies of loops in C which are too small for threads."""
    yield program
    for bodies in program.inner.values():
        for body in bodies:
            if program.target != "c" or sum(map(made, body.steps)) > small:
                yield from nested(body, small)


def size(step: Step) -> int:
    return sum(a.type.nbytes for a in (*step.eqn.inputs, *step.eqn.outs))


def bench_of(executable: Executable, program: Program, step: Step) -> Bench | None:
    """The bench that races the candidates of a step; None where there are none."""
    if program.target == "c":
        from ge2.targets.c.bench import CBench
        from ge2.targets.c.libraries import limits

        return CBench(program, step, limits(executable.threads, executable.tuning.c))
    if program.target == "cuda" and executable.device is not None:
        from ge2.targets.cuda.assemble.bench import CudaBench

        found = joint(program, step, executable.device)
        return found or CudaBench(program, step, executable.device)
    return None


# ------------------------------------------------------------------------------------------- races


@final
@mutable
class Racer:
    """A candidate in a race: what runs it, its times, or why it does not serve."""

    candidate: Candidate
    run: Run | None = None
    once: float = 0.0  # seconds of its first run
    code: str = ""
    failure: str = ""
    times: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The time of a call: of one whose arrays are in caches, and one whose are not, the mean."""
        warm = undisturbed(self.times)
        return (warm + undisturbed(self.cold)) / 2 if self.cold else warm

    @property
    def spread(self) -> float:
        """The width of the faster half of its times, as a part of the median."""
        ordered = sorted(self.times)
        return (ordered[len(ordered) // 2] - ordered[0]) / max(self.median, 1e-12)


def undisturbed(times: Sequence[float]) -> float:
    """The median of the faster half: what other programs take from a kernel is not its own."""
    return median(sorted(times)[: (len(times) + 1) // 2])


@final
@record
class Race:
    """The outcome of a race: the entry of the record, the problem in words, and predictions beside
    it.

    `before`: what would have been chosen without it.
    """

    problem: str
    entry: Entry
    predicted: tuple[tuple[str, float | None], ...]
    before: str = ""

    @property
    def winner(self) -> str:
        best = self.entry.best
        return "" if best is None else ", ".join(filter(None, (best.family, best.variant)))

    @property
    def changed(self) -> bool:
        return bool(self.winner) and self.winner != self.before


def is_race(bench: Bench) -> bool:
    """True if anything competes for a problem, on a device whose measurements are kept."""
    return bool(bench.caps.kind) and len(bench.offered) > 1


def ahead(benches: Sequence[Bench], end: float) -> None:
    """Compiles the candidates of several problems, and computes their references, all at once on as
    many threads as the settings allow. What fails here fails again where it is raced, by itself.
    """

    def work(run: Run) -> None:
        if time.monotonic() < end:
            with suppress(*FAILURES):
                run()

    if (count := config.thread_count()) < 2:
        return
    with ThreadPoolExecutor(count) as pool:
        for bench in benches:
            for images in bench.images:
                pool.submit(copy_context().run, work, partial(getattr, images, "wanted"))
            for candidate in bench.offered:
                with suppress(*FAILURES), bench.here():
                    pool.submit(copy_context().run, work, bench.ahead(candidate))


def race(bench: Bench, end: float = float("inf"), tell: Tell | None = None) -> Race | None:
    """The race for a problem, and its entry in the record; None if nothing competes, or the time
    that there is (`end`, by the clock of `time.monotonic`) is over.
    """
    problem, caps = bench.problem, bench.caps
    if not is_race(bench) or time.monotonic() > end:
        return None
    try:
        for images in bench.images:
            _ = images.wanted
    except (ArithmeticError, LookupError, ValueError, MemoryError):
        return None  # numbers that are drawn are nothing that it takes, such as indices it computes
    fair = replace(prefs(), tune="cached", pins=(), only=())
    before = written(choose(problem, caps, fair, bench.catalog))[0].taken
    with kept.store().turn(), bench.here():  # two races at once would time each other
        racers = [Racer(c) for c in bench.offered]
        whole = checked(bench, racers, end, tell)
        timed(bench, [r for r in racers if r.run is not None], end)
        if all(r.failure for r in racers):  # arrays that others make in place are not on a bench
            return None
        rows = [row(bench, r) for r in racers if r.failure or r.times]
        entry = kept.keep(caps.kind, class_of(problem), whole, rows)
    return Race(
        str(bench.step.eqn.op.name) if not bench.step.name else bench.step.name,
        entry,
        tuple((r.candidate.title, r.candidate.predicted) for r in racers),
        before.title,
    )


def checked(bench: Bench, racers: Sequence[Racer], end: float, tell: Tell | None) -> bool:
    """Compiles and checks each; False if there was no time for all."""
    met: set[tuple[object, ...]] = set()
    best = float("inf")
    for n, racer in enumerate(racers):
        if time.monotonic() > end and n >= 2:
            return False
        if tell is not None:
            tell(f"{bench.step.name}: {racer.candidate.title}, {n + 1} of {len(racers)}")
        try:
            racer.code = bench.code(racer.candidate)
            prepared = bench.prepared(racer.candidate)
            if prepared.code not in met:  # else another variant becomes the same
                met.add(prepared.code)
                racer.run, racer.failure = verified(bench, prepared, max(LONG, FAR * best))
            if racer.run is not None:
                racer.once = seconds(bench.clock, racer.run)
                best = min(best, racer.once)
        except MemoryError as error:
            racer.failure = f"there is no memory for it: {first_line(error)}"
        except FAILURES as error:
            racer.failure = f"{type(error).__name__}: {first_line(error)}"
    return True


def verified(
    bench: Bench, prepared: Prepared, limit: float = float("inf")
) -> tuple[Run | None, str]:
    """The function that runs a candidate, if it makes what it should, in so many seconds; else the
    reason.
    """
    run = None
    for images in bench.images:
        memory = bench.memory(images)
        run = prepared.bound(memory, images)
        took = seconds(bench.clock, run)
        if took > limit:
            return None, f"a run takes {took:.1f} s, and the limit of candidates is {limit:.1f} s"
        if why := bench.wrong(images, memory):
            return None, why
    return run, ""


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def timed(bench: Bench, racers: Sequence[Racer], end: float) -> None:
    """Times in turns; the best two once more, so that chance decides less."""
    counts = [max(1, min(1000, round(LEAST / max(racer.once, 1e-7)))) for racer in racers]
    collecting = gc.isenabled()
    gc.disable()
    try:
        rounds(bench, [*zip(racers, counts, strict=True)], ROUNDS, end)
        ranked = sorted(zip(racers, counts, strict=True), key=lambda each: each[0].median)
        for _ in range(TRIES if len(ranked) > 1 else 0):
            rounds(bench, ranked[:2], AGAIN, end)
            if max(r.spread for r, _ in ranked[:2]) < NOISE:
                break
    finally:
        if collecting:
            gc.enable()


def rounds(bench: Bench, racers: Sequence[tuple[Racer, int]], count: int, end: float) -> None:
    for n in range(count):
        best = min((min(r.times) for r, _ in racers if r.times), default=0.0)
        for racer, many in racers:
            slow = n > 1 and min(racer.times) > CLOSE * best
            long = n > 1 and sum(racer.times) * many > MOST
            if slow or long or (n > 0 and time.monotonic() > end):
                continue
            racer.times.append(seconds(bench.clock, partial(repeat, racer, many)) / many)
            for cold in bench.colds:
                assert racer.run is not None
                racer.cold.append(seconds(cold, racer.run))


def repeat(racer: Racer, many: int) -> None:
    assert racer.run is not None
    for _ in range(many):
        racer.run()


def row(bench: Bench, racer: Racer) -> Measured:
    family, caps = racer.candidate.family, bench.caps
    found = Measured(
        family.name, racer.candidate.variant.name, code=racer.code, device=caps.kind,
        driver=caps.driver, libraries=caps.libraries, predicted=racer.candidate.predicted or 0.0,
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )  # fmt: skip
    if racer.failure:
        return found._replace(failure=racer.failure)
    words = "as the reference, nothing outside"
    return found._replace(median=racer.median, spread=racer.spread, verified=words)


# ---------------------------------------------------------------------------------------- programs


@final
@record
class Tuned:
    """The outcome of tuning a program: a race for each class of problems, and how long it took.

    `left`: problems for which there was no time; `known`: those that the record had.
    """

    races: tuple[Race, ...]
    seconds: float
    known: int = 0
    left: int = 0

    @property
    def changed(self) -> bool:
        """True if a race was won by another candidate than would have been taken."""
        return any(race.changed for race in self.races)

    def __str__(self) -> str:
        rows = [("problem", "taken before", "winner", "us", "spread", "failed")]
        for each in self.races:
            best = each.entry.best
            failed = sum(bool(r.failure) for r in each.entry.rows)
            time, spread = (f"{best.median * 1e6:.3g}", f"{best.spread:.1%}") if best else ("", "")
            rows.append((each.problem, each.before, each.winner, time, spread, str(failed or "")))
        words = f"{len(self.races)} races in {self.seconds:.1f} s"
        words += f", {self.known} were in the record" if self.known else ""
        words += f", {self.left} left for want of time" if self.left else ""
        return f"{table(rows)}\n{words}" if self.races else words


def tune(
    executable: Executable,
    budget: float | None = None,
    tell: Tell | None = None,
    again: bool = False,
) -> Tuned:
    """Races for all kernel problems of a program that the record lacks, in `budget` seconds.

    `again`: for those that it has, too. What is built stays as it is.
    """
    begin = time.monotonic()
    end = float("inf") if budget is None else begin + budget
    by_class: dict[ProblemClass, Bench] = {}
    for bench in benches(executable):
        by_class.setdefault(class_of(bench.problem), bench)
    fresh = [b for problem, b in by_class.items() if again or not is_known(b, problem)]
    known, races, left = len(by_class) - len(fresh), list[Race](), 0
    if fresh and time.monotonic() < end:
        probed(fresh[0], executable, tell)
    while fresh:
        if time.monotonic() >= end:
            left += len(fresh)
            break
        together = [fresh.pop(0) for _ in range(at_once(fresh))]
        ahead([bench for bench in together if is_race(bench)], end)
        for bench in together:
            if time.monotonic() >= end:
                left += 1
            elif (found := race(bench, end, tell)) is not None:
                races.append(found)
    return Tuned(tuple(races), time.monotonic() - begin, known, left)


def at_once(benches: Sequence[Bench]) -> int:
    """The number of problems to compile at once: enough to occupy all threads, within the memory
    that their arrays may take.
    """
    candidates, nbytes = 0, 0
    for n, bench in enumerate(benches):
        candidates += len(bench.offered)
        nbytes += 4 * size(bench.step)  # arrays and results, of both signs
        if n and nbytes > ROOM:
            return n
        if candidates >= 2 * config.thread_count():
            return n + 1
    return len(benches)


@final
@mutable
class Lasting:
    """When tuning ends, by the clock of `time.monotonic`, and whether it found another winner."""

    end: float
    changed: bool = False


_lasting: ContextVar[Lasting | None] = ContextVar("ge2_tuning", default=None)


@contextmanager
def lasting(end: float) -> Iterator[None]:
    """Inside, programs are tuned until then. If that ends with other winners, programs that were
    built before are built anew when they are called next.
    """
    found = Lasting(end)
    token = _lasting.set(found)
    try:
        yield
    finally:
        _lasting.reset(token)
        if found.changed:
            config.renew()


def tune_first(executable: Executable) -> Tuned:
    """Races for a program that is not built yet, so that it is built of the winners."""
    around = _lasting.get()
    budget = BUDGET if around is None else max(around.end - time.monotonic(), 0.0)
    found = tune(executable, budget, on_stderr)
    if around is not None:
        around.changed |= found.changed
    return found


def probed(bench: Bench, executable: Executable, tell: Tell | None) -> None:
    """Measures the limits that predictions are made of, unless the record has them."""
    from ge2.choice import probed
    from ge2.compile import probe

    if probed(bench.caps.kind) is None and tell is not None:
        tell(f"the limits of {bench.caps.kind}")
    with kept.store().turn():
        probe(bench.caps, executable.device)


def is_known(bench: Bench, problem: ProblemClass) -> bool:
    """True if the record has a race of today's kernels."""
    entry, _ = kept.find(bench.caps.kind, problem, bench.catalog)
    if entry is None or not entry.raced or any(row.stale for row in entry.rows):
        return False
    fair = replace(prefs(), tune="off", pins=(), only=())
    offered = candidates(bench.problem, bench.caps, fair, bench.catalog, every=False)
    named = {(c.family.name, c.variant.name): c for c in offered if not c.refusal}
    timed = (row for row in entry.rows if not row.failure)
    return all(is_of(bench, named.get((row.family, row.variant)), row) for row in timed)


def is_of(bench: Bench, candidate: Candidate | None, row: Measured) -> bool:
    """True if a candidate has today the kernels that were measured."""
    if candidate is None:
        return False
    return bench.code(candidate) == row.code


def on_stderr(text: str) -> None:
    """Progress as a line, which on a terminal replaces the last one; by the setting `progress`."""
    if config.progress == "off" or sys.stderr is None:
        return
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[Kge2 tune: {text[:100]}")
    else:
        sys.stderr.write(f"ge2 tune: {text}\n")
    sys.stderr.flush()


# -------- Steps that a pass has made one kernel on a bench: that kernel, and a program of the steps
# apart.


@final
class JointBench(CudaBench):
    """The problem is that for which the pass chose: what the record has of it decides there."""

    def __init__(self, program: Program, step: Step, device: Device, choice: Choice) -> None:
        super().__init__(program, step, device)
        self.choice, self.catalog = choice, choice.catalog

    @property
    def problem(self) -> Problem:
        return self.choice.problem

    def chosen(self, candidate: Candidate) -> Candidate:
        """The kernel as the program has it: worked out for its own values."""
        own = self.choice.taken
        return own if own.title == candidate.title else candidate

    def code(self, candidate: Candidate) -> str:
        variant, settled = self.chosen(candidate).variant, self.assembler().problem(self.step)
        family = candidate.family
        return family.code or code_of(family.kernels(settled, variant, self.caps))

    def settings(self) -> AbstractContextManager[Any]:
        """The settings of the steps apart."""
        apart = (f for f in self.catalog if isinstance(f, Apart))
        joining = next(f.joining for f in apart if not f.refusal(self.problem, self.caps))
        tune = "off" if config.tune == "off" else "cached"
        return config.using(passes_off=(*config.passes_off, *joining), tune=tune)

    @computed
    def apart(self) -> Executable:
        """The program of the steps."""
        from ge2.compile import compile_graph

        op: Any = self.step.eqn.op
        graph = steps_of(op).steps if is_contraction(op) else op.graph
        with self.settings():
            return compile_graph(graph, name="apart", device=self.device)

    def ahead(self, candidate: Candidate) -> Run:
        if not isinstance(candidate.family, Apart):
            return super().ahead(self.chosen(candidate))
        with self.settings():
            text: Any = self.apart.unbuilt()
        return partial(self.device.prepare, text.kernels.texts)

    def prepared(self, candidate: Candidate) -> Prepared:
        if not isinstance(candidate.family, Apart):
            return super().prepared(self.chosen(candidate))
        with self.settings():
            self.apart.build()
        return Prepared(("apart",), partial(self.bound_apart, self.apart))

    def bound_apart(self, executable: Executable, memory: dict[int, Any], images: Images) -> Run:
        """A call of the program; the first writes its results to where the kernel has them."""
        given = [upload(self.device, x) if isinstance(x, np.ndarray) else x for x in images.given()]
        seen: list[bool] = []

        def run() -> None:
            results = executable(*given)
            if seen:
                return
            seen.append(True)
            hosts = {id(x.buffer): images.bytes[id(x.buffer)].copy() for x in images.outs}
            for x, y in zip(images.outs, results, strict=True):
                x.of(hosts[id(x.buffer)])[...] = download(y).view(x.type.dtype)
            for n, host in hosts.items():
                memory[n][...] = self.put(host)

        return run


def joint(program: Program, step: Step, device: Device) -> JointBench | None:
    """The bench of a step that a pass has made of several; None of any other."""
    choice = step.eqn.choice
    if not isinstance(choice, Choice) or not any(isinstance(f, Apart) for f in choice.catalog):
        return None
    return None if isinstance(choice.family, Apart) else JointBench(program, step, device, choice)
