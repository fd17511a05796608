"""From a closed graph to an Executable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, final

from ge2.base.config import config
from ge2.base.errors import DeviceError
from ge2.base.log import warn
from ge2.base.record import record
from ge2.base.toolchain.detect import toolchain
from ge2.compile.executable import Executable
from ge2.compile.persistent import resident
from ge2.compile.product_epilogue import epilogue_for
from ge2.compile.repro import dump_repro
from ge2.compile.schedule import planned_round, schedule
from ge2.ir import Graph
from ge2.passes.dump import label
from ge2.passes.fuse import fuse
from ge2.passes.loops.roll import roll
from ge2.passes.loops.rolled_to_scan import stack_all
from ge2.passes.loops.sums_after import sums_after
from ge2.passes.pipeline import PIPELINE, run_pass, run_pipeline
from ge2.program.host_control_flow import CONTROL
from ge2.program.program import Program, Step
from ge2.targets.c.loops import held
from ge2.targets.cuda.device import kept_as
from ge2.trace.strong import strong
from ge2.trace.watch import watching

if TYPE_CHECKING:
    from ge2.compile.memory_limit import Remat, Smaller
    from ge2.targets.cuda.device import Device
    from ge2.trace.writes import Writes

Begun = Callable[[Step, int], tuple[Graph, Callable[[Graph], Program]]]
PATIENCE = 5.0  # seconds for what an error says
ROLL = PIPELINE.index(roll)  # the passes before are those after which memory is planned
FUSE = PIPELINE.index(fuse)
PASSES = (
    *(step.__name__ for step in (*PIPELINE, stack_all, sums_after, resident)),
    "epilogue",
    "small_products",
)


@final
@record
class How:
    """What a program is made for. `called` is what its files begin with; `device` runs CUDA."""

    donated: tuple[bool, ...]
    name: str
    called: str
    target: str
    device: Device | None
    smaller: Smaller | None = None  # what it would compute again in so much memory
    homes: tuple[int, ...] = ()  # the inputs that the first outputs are the last contents of

    def scheduled(self, graph: Graph) -> Program:
        return schedule(graph, self.donated, self.target, self.homes)


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
) -> Executable:
    """The graph, through every pass, as a program that runs on this machine.

    `donated` says for each input whether its memory may be used for results; `writes` which inputs the first
    outputs are carried back to; `limit` how many bytes scratch and results may take (MemoryLimitError);
    `part`, whether another program runs it, which may be `limited`. The executor, the number of threads and
    the passes are those of `config` now. `device` runs CUDA; None is this machine's processor, or what stands
    for a GPU where the executor is "shim".
    """
    device = device or stand_in()
    if not part:
        know_passes()
        if device is not None:
            refuse_results(graph, device, name, len(writes.each) if writes else 0)
    target = (
        "cuda" if device is not None else "c" if config.executor == "c" and toolchain() is not None else "cpu"
    )
    called = label(name)
    homes = () if writes is None or watching() else writes.inputs
    how = How(donated, name, called, target, device, homes=homes)
    if device is not None and not part and limit is None:
        how = replace(how, smaller=partial(helping, graph, how))
    if limit is None or config.executor == "reference":
        made = executable(how.scheduled(passed(graph, called, target, device)), how, limited)
    else:
        made = fitting(graph, limit, how)
    made.part = part
    made.writes = writes
    made.watched, made.label = graph if not part and watching() else None, called
    if called:
        dump_repro(graph, made)
    return made


def know_passes() -> None:
    """Warns of a name among the passes to be left out that is none of a pass."""
    for name in config.passes_off:
        if name not in PASSES:
            from difflib import get_close_matches  # hardly ever needed

            nearest = get_close_matches(name, PASSES, 1, 0.0)
            warn(f"passes_off names {name!r}, which is no pass", fix=nearest[0], once=("passes_off", name))


def refuse_results(graph: Graph, device: Device, name: str, written: int = 0) -> None:
    """DeviceError for a result of a dtype of which the device has no arrays, behind `written` inputs."""
    for n, a in enumerate(graph.outputs[written:]):
        if kept_as(device, a.type.dtype) != a.type.dtype:
            made = next((eqn for eqn in graph.eqns if a in eqn.outs), None)
            raise DeviceError(
                f"result {n} of {name} is {a.type}, and CuPy has no such arrays",
                where=made and made.source,
                fix="y.astype(np.float16) for what is returned; inside the function fp8 may be used",
            )


def passed(graph: Graph, called: str, target: str, device: Device | None) -> Graph:
    """The graph after all passes.

    Those for a GPU alone make more scans of repeats, put sums after them, and give small products what is
    done to their elements.
    """
    if device is None:
        return run_pipeline(graph, called)
    graph = run_pipeline(graph, called, last=FUSE)
    for step in (stack_all, sums_after):
        graph = run_pass(step, graph, f"{called}-{FUSE}")
    graph = run_pipeline(graph, called, FUSE)
    return run_pass(epilogue_for(device.limits), graph, f"{called}-{len(PIPELINE)}")


def stand_in() -> Device | None:
    """What runs CUDA on a machine without a GPU, if that is wanted."""
    if config.executor != "shim":
        return None
    from ge2.targets.cuda.emulator.device import ShimDevice

    return ShimDevice()


def planners(how: How) -> tuple[Callable[[Graph], Program], Begun]:
    """How a graph becomes a program once its loops are found, and likewise what a step of a program runs."""

    def planned(graph: Graph) -> Program:
        return how.scheduled(run_pipeline(graph, how.called, ROLL + 1))

    def begun(step: Step, i: int) -> tuple[Graph, Callable[[Graph], Program]]:
        return inner_graph(step, i, how.target)

    return planned, begun


def helping(graph: Graph, how: How, limit: int, peak: int) -> Remat | None:
    """What a program for which there was no memory would compute again to fit, if that is found soon."""
    from ge2.compile.memory_limit import estimated  # hardly ever needed

    return estimated(
        run_pipeline(graph, last=ROLL), limit, peak, *planners(replace(how, called="")), PATIENCE
    )


def fitting(graph: Graph, limit: int, how: How) -> Executable:
    """The program that computes again what does not fit.

    Loops stay unrolled while that is looked for, since it may be of any round, and are rolled then if the
    program still fits.
    """
    from ge2.compile.memory_limit import Remat, fitted  # hardly ever needed

    whole = run_pipeline(graph, how.called, last=ROLL)
    planned, begun = planners(how)

    def built(program: Program) -> Executable:
        return executable(program, how, True)

    plain = built(how.scheduled(run_pipeline(whole, how.called, ROLL)))
    if (peak := plain.memory_analysis().peak) <= limit:
        plain.remat = Remat(limit, peak, peak)
        return plain
    found, remat, repeating = fitted(whole, limit, planned, begun, built, how.name)
    rounds = run_pipeline(repeating, last=ROLL + 1, first=ROLL)
    if rounds is not repeating:
        rolled = built(planned(rounds))
        if (peak := rolled.memory_analysis().peak) <= limit:
            found, remat = rolled, replace(remat, after=peak)
    found.remat = remat
    return found


def inner_graph(step: Step, i: int, target: str) -> tuple[Graph, Callable[[Graph], Program]]:
    """Graph `i` of a loop or a branch, before regions are made in it, and how it is planned."""
    op: Any = step.eqn.op
    graph = held(op)[i]
    in_c = step.kind == "loop"

    def planned(graph: Graph) -> Program:
        fused = run_pipeline(graph, first=ROLL + 1)
        return planned_round(op, i, fused, target) if in_c else schedule(fused, (), target)

    return run_pipeline(strong(graph) if in_c else graph, last=ROLL), planned


def executable(program: Program, how: How, limited: bool = False) -> Executable:
    branches = {
        step.number: tuple(branch(step, i, how, limited) for i in range(len(held(step.eqn.op))))
        for step in program.steps
        if step.kind in ("library", "hosted") and isinstance(step.eqn.op, CONTROL)
    }
    return Executable(
        how.name, program, config.executor, config.thread_count(), branches, how.donated, device=how.device,
        limited=limited, ranged=config.nvtx, smaller=how.smaller, homes=how.homes,
    )  # fmt: skip


def branch(step: Step, i: int, how: How, limited: bool) -> Executable:
    """Graph `i` of a loop or a branch, as a program that is run with the whole."""
    graph, name = held(step.eqn.op)[i], f"{how.name}_{step.name}{i}"
    made = compile_graph(graph, name=name, part=True, limited=limited, device=how.device)
    made.within = step.eqn.op
    made.scope = "" if step.eqn.source is None else step.eqn.source.scope
    return made
