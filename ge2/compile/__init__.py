"""From a closed graph to an executable; programs that show one graph, or measure a device's limits."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, host
from ge2.base.config import config
from ge2.base.detect import toolchain
from ge2.base.errors import DeviceError
from ge2.base.record import collector_paused, record
from ge2.base.source import warn
from ge2.choice import Decisions, Speed, deciding, keep_speed, probed
from ge2.codegen.environment import render
from ge2.compile.catalog import know_families
from ge2.compile.executable import Executable
from ge2.compile.pipeline import (
    FIRST,
    NAMES,
    TUNING,
    Tuning,
    pipeline_of,
    rewritten_within_limit,
    rolled,
    tuning_now,
)
from ge2.compile.schedule import planned_round, schedule
from ge2.ir import Eqn, Graph, Op
from ge2.ops.graphs.effects import DebugCallback, HostOp, PureCallback
from ge2.passes import TIDY
from ge2.passes.context import Context, Iotas, dump, dump_file, label, run, stages
from ge2.passes.fold import counted
from ge2.passes.loops.roll import roll
from ge2.program import CONTROL, Program, Step, announce_straight
from ge2.program.assembler import Ceilings, Clock, HostClock, best
from ge2.targets.c.loops import held
from ge2.targets.c.tuning import TUNING as C_TUNING
from ge2.trace import is_long, tidy
from ge2.trace.concrete import watching
from ge2.transforms.arguments import ShapeDtypeStruct, make_jaxpr

if TYPE_CHECKING:
    from pathlib import Path

    from ge2.compile.catalog import Smaller
    from ge2.compile.memory import Remat
    from ge2.targets.cuda.device import Device
    from ge2.trace.writes import Writes


# -------- A program that shows what ge2 does with one graph, to be run by itself: in a bug report,
# or later.


TEMPLATE = "numpy/repro.py.jinja"
LARGEST = 1 << 28  # bytes of arguments that are written
SETTINGS = ("executor", "threads", "passes_off")


@final
@record
class Text:
    """The view that the template prints."""

    title: str
    file: str
    inputs: str
    graph: str
    settings: str
    version: str
    machine: str


def dump_repro(graph: Graph, executable: Executable) -> None:
    """Writes the program for a graph; what looks at values in Python is left out of it."""
    name = executable.label
    plain = without_callbacks(graph)
    calls = pure_callbacks(plain)
    if calls:
        listed = ", ".join(op.function.title for op in calls)
        text = f"{executable.name} calls Python functions, which no text holds: {listed}"
        dump(f"{name}-repro.py", f"raise SystemExit({text!r})")
        return
    settings = {each: getattr(config, each) for each in SETTINGS}
    view = Text(
        executable.name,
        f"{name}-repro.py",
        f"{name}-inputs.npz",
        literal(str(plain)),
        repr(settings),
        version(),
        f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
    )
    dump(f"{name}-repro.py", render(TEMPLATE, view).rstrip("\n"))


def dump_inputs(name: str, arrays: Sequence[Any]) -> None:
    """Writes the arguments of a call, unless they are very large."""
    if sum(np.asarray(x).nbytes for x in map(host, arrays)) > LARGEST:
        return
    named = {f"input_{i}": np.asarray(host(x)) for i, x in enumerate(arrays)}

    def write(path: Path) -> None:
        np.savez(path, **named)  # type: ignore[arg-type]

    dump_file(f"{name}-inputs.npz", write)


def version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("ge2")
    except PackageNotFoundError:
        return "of a checkout"


def literal(text: str) -> str:
    """The text as Python spells it, its lines as they are if that is possible."""
    return repr(text) if '"""' in text else f'r"""\n{text}\n"""'


# -------------------------------------------------------------------------------- what holds Python


def without_callbacks(graph: Graph) -> Graph:
    """The graph without what is called for its effect alone."""
    eqns = [e for e in graph.eqns if not isinstance(e.op, DebugCallback)]
    return Graph(graph.inputs, tuple(map(quiet, eqns)), graph.outputs, graph.consts)


def quiet(eqn: Eqn) -> Eqn:
    if not any(g.effect for g in eqn.op.graphs()):
        return eqn
    return Eqn(quiet_op(eqn.op), eqn.inputs, eqn.outs, eqn.source)


def quiet_op(op: Any) -> Op:
    """The operation with its graphs as `without_callbacks` leaves them."""
    made: Op = replace(
        op, **{f.name: quiet_value(getattr(op, f.name)) for f in fields(op) if f.init}
    )
    return made


def quiet_value(value: Any) -> Any:
    if isinstance(value, Graph):
        return without_callbacks(value)
    if isinstance(value, tuple):
        return tuple(map(quiet_value, value))
    return value


def pure_callbacks(graph: Graph) -> list[PureCallback]:
    """The calls of Python functions whose results the graph reads."""
    found: list[PureCallback] = []
    for eqn in graph.eqns:
        if isinstance(eqn.op, HostOp):
            found += [eqn.op] if isinstance(eqn.op, PureCallback) else []
        else:
            found += [op for inner in eqn.op.graphs() for op in pure_callbacks(inner)]
    return found


# -------- From a closed graph to an Executable.


Begun = Callable[[Step, int], tuple[Graph, Callable[[Graph], Program]]]
PATIENCE = 5.0  # seconds for what an error says
# what `passes_off` may name: passes, parts of one of them, and a rule
SWITCHED = (*NAMES, "epilogue", "pairs", "prologue", "small_products")


@final
@record
class How:
    """The options that a program is made with. `called` is what its files begin with; `device` runs
    CUDA.
    """

    donated: tuple[bool, ...]
    name: str
    called: str
    target: str
    device: Device | None
    smaller: Smaller | None = None  # what it would compute again in so much memory
    homes: tuple[int, ...] = ()  # the inputs that the first outputs are the last contents of
    iotas: Iotas = ()  # the inputs that count
    outer: bool = True  # whoever calls it keeps its results
    tuning: Tuning = TUNING

    @property
    def context(self) -> Context:
        caps = None if self.device is None else self.device.limits
        return Context(
            caps, self.homes, self.iotas, tuning=self.tuning.passes, gathers=self.target == "c",
            tails=self.target == "cuda", outer=self.outer,
        )  # fmt: skip

    def rewritten(self, graph: Graph) -> Graph:
        """The graph after the pipeline of the target; a loop in it that stays long straight code is
        announced before the work on that begins.
        """
        for name, found in stages(pipeline_of(self.target), graph, self.context, self.called):
            graph = found
            if name == roll.__name__:
                announce_straight(self.name, graph, self.tuning.planning)
        return graph

    def stages(self, graph: Graph) -> Iterator[tuple[str, Graph]]:
        """Each pass of the pipeline that is not switched off, with the graph after it."""
        return stages(pipeline_of(self.target), graph, self.context)

    def scheduled(self, graph: Graph) -> Program:
        return schedule(graph, self.donated, self.target, self.homes, self.inner, self.tuning)

    def part(self, name: str, called: str) -> How:
        """The settings of a program that is part of this one: its own name, and nothing donated."""
        return replace(
            self, donated=(), name=name, called=called, smaller=None, homes=(), iotas=(), outer=False
        )  # fmt: skip

    def inner(self, eqn: Eqn, i: int) -> Program:
        """Graph `i` of a loop or a branch as a program of launches."""
        name = f"{self.name}_{eqn.op.name}{i}"
        how = self.part(name, label(name))
        graph = how.rewritten(held(eqn.op)[i])
        made = planned_round(eqn.op, i, graph, self.target, how.inner, self.tuning)
        return replace(made, label=how.called)


@collector_paused  # `lower` and `explain` come here without a call
def compile_graph(
    graph: Graph,
    *,
    donated: tuple[bool, ...] = (),
    name: str = "f",
    limit: int | None = None,
    part: bool = False,
    limited: bool = False,
    device: Device | None = None,
    writes: Writes | None = None,
    iotas: Iotas = (),
) -> Executable:
    """The graph, through every pass, as a program that runs on this machine.

    `donated` says for each input whether its memory may be used for results; `writes`
    which inputs the first outputs are carried back to; `iotas` which inputs count;
    `limit` how many bytes scratch and results may take (MemoryLimitError); `part`,
    whether another program runs it, which may be `limited`. The executor, the number of
    threads and the passes are those of `config` now. `device` runs CUDA; None is this
    machine's processor, or what stands for a GPU where the executor is "emulator".
    """
    device = device or stand_in()
    if not part:
        know_passes()
        if config.prefer:
            know_families()
        if device is not None:
            refuse_results(graph, device, name, len(writes.each) if writes else 0)
    if device is not None or limit is not None:  # no loops are found in it as it was traced
        graph = tidy(graph) if is_long(graph) else graph
    called = label(name)
    how = replace(how_to_make(name, device, donated, writes, iotas), called=called)
    if device is not None and not part and limit is None:
        how = replace(how, smaller=partial(helping, graph, how))
    limit = None if config.executor == "reference" else limit
    decided: Decisions | None = None if device is None else []  # C has the numbers in its text
    with deciding(decided):
        made = planned(graph, limit, limited, how)
    made.decided = decided
    if limit is None:
        made.remade = partial(planned, graph, None, limited, how)
    if how.target == "c":
        made.blocked = partial(planned, graph, limit, limited, replace(how, target="cpu"))
    made.part = part
    made.writes = writes
    made.watched, made.label = graph if not part and watching() else None, called
    if config.tune == "on" and not part:
        from ge2.compile.race import tune_first  # hardly ever needed

        tune_first(made)
    if called:
        dump_repro(counted(graph, how.context), made)
    return made


def planned(graph: Graph, limit: int | None, limited: bool, how: How) -> Executable:
    """The program of a graph before any pass, within a limit on its memory if there is one."""
    if limit is not None:
        return fitting(graph, limit, how)
    return executable(how.scheduled(how.rewritten(graph)), how, limited)


def how_to_make(
    name: str,
    device: Device | None,
    donated: tuple[bool, ...] = (),
    writes: Writes | None = None,
    iotas: Iotas = (),
) -> How:
    """The target of a program for a GPU, or of this machine's processor now,
    and what is known beside it.
    """
    native = config.executor == "c" and toolchain() is not None
    target = "cuda" if device is not None else "c" if native else "cpu"
    homes = () if writes is None or watching() else writes.inputs
    tuning = tuning_now()
    return How(donated, name, "", target, device, homes=homes, iotas=iotas, tuning=tuning)


def know_passes() -> None:
    """Warns of a name among the passes to be left out that is none of a pass."""
    for name in config.passes_off:
        if name not in SWITCHED:
            from difflib import get_close_matches  # hardly ever needed

            nearest = get_close_matches(name, SWITCHED, 1, 0.0)
            warn(
                f"passes_off names {name!r}, which is no pass",
                fix=nearest[0],
                once=("passes_off", name),
            )


def refuse_results(graph: Graph, device: Device, name: str, written: int = 0) -> None:
    """DeviceError for a result of a dtype of which the device has no arrays,
    behind `written` inputs.
    """
    from ge2.targets.cuda.device import kept_as

    for n, a in enumerate(graph.outputs[written:]):
        if kept_as(device, a.type.dtype) != a.type.dtype:
            made = next((eqn for eqn in graph.eqns if a in eqn.outs), None)
            raise DeviceError(
                f"result {n} of {name} is {a.type}, and CuPy has no such arrays",
                where=made and made.source,
                fix="y.astype(np.float16) for what is returned; inside the function fp8 may be used",
            )


def stand_in() -> Device | None:
    """The emulator, which runs CUDA on a machine without a GPU, if that is wanted."""
    if config.executor != "emulator":
        return None
    from ge2.targets.cuda.emulator import EMULATED, ShimDevice

    return ShimDevice(config.tuned(EMULATED))


def planners(how: How) -> tuple[Callable[[Graph], Program], Begun]:
    """The function that makes a program of a graph whose loops are found, and likewise what a step
    of a program runs.
    """

    def planned(graph: Graph) -> Program:
        return how.scheduled(rewritten_within_limit(graph, how.target, how.context, how.called))

    def begun(step: Step, i: int) -> tuple[Graph, Callable[[Graph], Program]]:
        return inner_graph(step, i, how)

    return planned, begun


def helping(graph: Graph, how: How, limit: int, peak: int) -> Remat | None:
    """The values that a program for which there was no memory would compute again to fit, if they
    are found soon.
    """
    from ge2.compile.memory import estimated  # hardly ever needed

    tidy = run(FIRST, graph, how.context)
    return estimated(
        tidy, limit, peak, *planners(replace(how, called="")), PATIENCE, how.tuning.search
    )


def fitting(graph: Graph, limit: int, how: How) -> Executable:
    """The program that computes again what does not fit.

    Loops stay unrolled while that is looked for, since it may be of any iteration, and are rolled
    then if the program still fits.
    """
    from ge2.compile.memory import Remat, fitted  # hardly ever needed

    whole = run(FIRST, graph, how.context, how.called)
    planned, begun = planners(how)

    def built(program: Program) -> Executable:
        return executable(program, how, True)

    plain = built(planned(rolled(whole, how.context, how.called)))
    if (peak := plain.memory_analysis().peak) <= limit:
        plain.remat = Remat(limit, peak, peak)
        return plain
    found, remat, repeating = fitted(
        whole, limit, planned, begun, built, how.name, how.tuning.search
    )
    rounds = rolled(repeating, how.context)
    if rounds is not repeating:
        short = built(planned(rounds))
        if (peak := short.memory_analysis().peak) <= limit:
            found, remat = short, replace(remat, after=peak)
    found.remat = remat
    return found


def inner_graph(step: Step, i: int, how: How) -> tuple[Graph, Callable[[Graph], Program]]:
    """Graph `i` of a loop or a branch, before regions are made in it, and how it is planned."""
    op: Any = step.eqn.op
    target = how.target
    context = replace(
        how.context, body=step.kind == "loop", written=(), iotas=(), caps=None, outer=False
    )

    def planned(graph: Graph) -> Program:
        fused = rewritten_within_limit(graph, target, context)
        own = step.kind in ("loop", "hosted")
        if own:
            return planned_round(op, i, fused, target, tuning=how.tuning)
        return schedule(fused, (), target, tuning=how.tuning)

    return run(TIDY, held(op)[i], context), planned


def executable(program: Program, how: How, limited: bool = False) -> Executable:
    branches = {
        step.number: tuple(
            branch(program, step, i, how, limited) for i in range(len(held(step.eqn.op)))
        )
        for step in program.steps
        if step.kind in ("library", "hosted") and isinstance(step.eqn.op, CONTROL)
    }
    return Executable(
        how.name, program, config.executor, config.thread_count(), branches, how.donated, device=how.device,
        limited=limited, ranged=config.nvtx, smaller=how.smaller, tuning=how.tuning,
    )  # fmt: skip


def branch(program: Program, step: Step, i: int, how: How, limited: bool) -> Executable:
    """Graph `i` of a loop or a branch, as a program that is run with the whole."""
    graph, name = held(step.eqn.op)[i], f"{how.name}_{step.name}{i}"
    if step.kind == "hosted":
        inner = program.inner[step.number][i]
        made = executable(inner, how.part(name, inner.label), limited)
        made.part, made.label = True, inner.label
        if inner.label:
            dump_repro(graph, made)
    else:
        made = compile_graph(graph, name=name, part=True, limited=limited, device=how.device)
    made.within = step.eqn.op
    made.scope = "" if step.eqn.source is None else step.eqn.source.scope
    return made


# -------- Limits of a device, measured: what it moves and computes by programs that do nothing
# else.


COPIED: Final = 1 << 26  # elements of float32: what no cache holds
CACHED: Final = 1 << 15  # those that the caches of one core hold
ELEMENTS: Final = 1 << 20
CHAINS, STEPS = 8, 16  # sums beside each other, and multiply-adds of each
SIDE: Final = 512  # of matrices
SCALE: Final = 8  # times smaller: a probe takes a second at most


def processor_ceilings(clock: Clock, double: bool, scale: int = 1) -> Ceilings:
    """As programs reach them under the settings of now. With `scale`, of arrays so much smaller."""
    moved = best_of(negated, FLOAT32, COPIED // scale, clock)
    dtypes = [FLOAT32, *([FLOAT64] if double else [])]
    times = [best_of(multiplied, dtype, ELEMENTS // scale, clock) for dtype in dtypes]
    rates = [2 * CHAINS * STEPS * (ELEMENTS // scale) / each for each in times]
    return Ceilings(2 * FLOAT32.itemsize * (COPIED // scale) / moved, *rates)


def best_of(f: Any, dtype: np.dtype, size: int, clock: Clock) -> float:
    """The seconds of a function of one array.

    Loops in it stay unrolled, so that sums stay in registers.
    """
    graph = make_jaxpr(f)(ShapeDtypeStruct((size,), dtype)).graph
    off = (*config.passes_off, "roll")
    with config.using(passes_off=off, debug_nans=False, debug_infs=False, tune="off"):
        program = compile_graph(graph, name=f.__name__)
        program.build()
    x = np.full(size, 0.5, dtype)
    return best(clock, lambda: program(x))


def negated(x: Any) -> Any:
    return -x


def multiplied(x: Any) -> Any:
    """Sums that do not wait for each other: a product and an addition, which ge2 rounds apart."""
    sums = [x + i / CHAINS for i in range(CHAINS)]
    for _ in range(STEPS):
        sums = [s * x + x for s in sums]
    return sum(sums[1:], sums[0])


# ------------------------------------------------------------------------------------------- probe


def probe(caps: Any, device: Device | None) -> Speed:
    """The speed of a device, from the record or else measured now, in a second, and kept there."""
    known = probed(caps.kind)
    if known is None:
        known = processor(caps) if device is None else gpu(device, caps.usual)
        keep_speed(caps.kind, known)
        if device is None and caps.threads > 1:  # variants do with one
            probe(replace(caps, threads=1), None)
    return known


def processor(caps: Any) -> Speed:
    """With as many threads as kernels have: the launch is that of a team of them."""
    clock, threads = HostClock(), max(caps.threads, 1)
    with config.using(threads=threads):
        most = processor_ceilings(clock, True, SCALE)
        cached = best_of(negated, FLOAT32, CACHED, clock)
        a = np.ones((SIDE, SIDE), np.float32)
        product = best(clock, lambda: a @ a)
        regions = replace(C_TUNING.regions, grain=1, task=1)
        with config.using(tuning=(replace(C_TUNING, regions=regions),)):
            launch = best_of(negated, FLOAT32, 64, clock)
    return Speed(
        most.moved, 2 * FLOAT32.itemsize * CACHED / cached, caps.usual.cache, most.single, most.double,
        2 * SIDE**3 / product, launch, caps.usual.functions,
    )  # fmt: skip


def gpu(device: Device, usual: Speed) -> Speed:
    """The speed that its own kernels reach; products of the library as the data sheet has them."""
    from ge2.targets.cuda.assemble.bench import clock_of
    from ge2.targets.cuda.load.gpu import ceilings

    with device.here():
        clock = clock_of(device, False)
        most, launch = ceilings(device, clock, True), clock.nothing()
    found = replace(usual, moved=most.moved, single=most.single, double=most.double)
    return replace(found, launch=max(launch, usual.launch))
