"""From a closed graph to an Executable."""

from __future__ import annotations

from ge2.backends.cpu.launcher import prepare
from ge2.backends.cpu.toolchain import toolchain
from ge2.base.config import config
from ge2.ir import Graph
from ge2.passes.dump import label
from ge2.passes.pipeline import run_pipeline
from ge2.runtime.executable import Executable
from ge2.runtime.loops import CONTROL, held
from ge2.runtime.repro import dump_repro
from ge2.runtime.schedule import schedule
from ge2.trace.watch import watching


def compile_graph(
    graph: Graph, *, donated: tuple[bool, ...] = (), name: str = "f", whole: bool = True
) -> Executable:
    """The graph, through every pass, as a program that runs on this machine.

    `donated` says for each input whether its memory may be used for results; `whole`, whether it is no part
    of another program. The executor, the number of threads and the passes are those of `config` now.
    """
    target = "c" if config.executor == "c" and toolchain() is not None else "cpu"
    if target == "c":
        prepare()
    program = schedule(run_pipeline(graph, called := label(name)), donated, target)
    branches = {
        step.number: tuple(
            compile_graph(inner, name=f"{name}_{step.name}{i}", whole=False)
            for i, inner in enumerate(held(step.eqn.op))
        )
        for step in program.steps
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL)
    }
    watched = graph if whole and watching() else None
    made = Executable(
        name, program, config.executor, config.thread_count(), branches, donated, watched, called
    )
    if called:
        dump_repro(graph, made)
    return made
