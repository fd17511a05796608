"""From a closed graph to an Executable."""

from __future__ import annotations

from ge2.backends.cpu.toolchain import toolchain
from ge2.base.config import config
from ge2.ir import Graph
from ge2.passes.dump import label
from ge2.passes.pipeline import PIPELINE, run_pipeline
from ge2.passes.roll import roll
from ge2.runtime.executable import Executable
from ge2.runtime.loops import CONTROL, held
from ge2.runtime.program import Program
from ge2.runtime.repro import dump_repro
from ge2.runtime.schedule import schedule
from ge2.trace.watch import watching

ROLL = PIPELINE.index(roll)  # the passes before are those after which memory is planned


def compile_graph(
    graph: Graph,
    *,
    donated: tuple[bool, ...] = (),
    name: str = "f",
    limit: int | None = None,
    whole: bool = True,
) -> Executable:
    """The graph, through every pass, as a program that runs on this machine.

    `donated` says for each input whether its memory may be used for results; `limit` how many bytes scratch
    and results may take (MemoryLimitError); `whole`, whether it is no part of another program. The executor,
    the number of threads and the passes are those of `config` now.
    """
    target = "c" if config.executor == "c" and toolchain() is not None else "cpu"
    called = label(name)
    if limit is None or config.executor == "reference":
        made = executable(schedule(run_pipeline(graph, called), donated, target), donated, name)
    else:
        made = limited(graph, limit, (donated, name, called, target))
    made.watched, made.label = graph if whole and watching() else None, called
    if called:
        dump_repro(graph, made)
    return made


def limited(graph: Graph, limit: int, how: tuple[tuple[bool, ...], str, str, str]) -> Executable:
    """The program that computes again what does not fit; loops stay unrolled, for any round may be."""
    from ge2.runtime.remat import Remat, fitted  # hardly ever needed

    donated, name, called, target = how
    whole = run_pipeline(graph, called, last=ROLL)
    plain = executable(schedule(run_pipeline(whole, called, ROLL), donated, target), donated, name)
    if (peak := plain.memory_analysis().peak) <= limit:
        plain.remat = Remat(limit, peak, peak)
        return plain

    def planned(graph: Graph) -> Program:
        return schedule(run_pipeline(graph, called, ROLL + 1), donated, target)

    found, remat = fitted(whole, limit, planned, lambda p: executable(p, donated, name), name)
    found.remat = remat
    return found


def executable(program: Program, donated: tuple[bool, ...], name: str) -> Executable:
    branches = {
        step.number: tuple(
            compile_graph(inner, name=f"{name}_{step.name}{i}", whole=False)
            for i, inner in enumerate(held(step.eqn.op))
        )
        for step in program.steps
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL)
    }
    return Executable(name, program, config.executor, config.thread_count(), branches, donated)
