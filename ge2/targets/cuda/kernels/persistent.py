"""Loops and branches, and small steps around them, as one kernel."""

from __future__ import annotations

from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.ir import Graph, Var
from ge2.ops.graphs.region import Resident
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.persistent.kernel import resident_kernel
from ge2.targets.cuda.persistent.nodes import Unwritten
from ge2.targets.cuda.persistent.steps import (
    Fit,
    Steps,
    by_rows,
    in_block,
    on_all_blocks,
    quick,
    taken_in,
)


@final
class CudaResident(Cuda):
    """Steps of a program in one kernel. Where a pass asks, with what it knows of `steps`, they are
    those of the graph, and the plan of a variant is what they are without regions.
    """

    name = "persistent kernel in CUDA"

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        return "" if isinstance(op, Resident) else f"{op.name} is no loop or branch"

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        op = problem.op
        assert isinstance(op, Resident)
        rows = f"blocks share {op.rows} rows" if op.rows else "one block"
        name = "all blocks together" if op.grid else rows
        if self.steps is None:  # it was found to fit
            return (Variant(name),)
        try:
            return (Variant(name, fit(op, caps.chip, self.steps)),)
        except Unwritten as why:
            return (Variant(name, refusal=str(why)),)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), op, fit = problem.arrays, problem.op, variant.plan
        assert isinstance(op, Resident)
        return resident_kernel(op, ins, outs, caps.chip, fit.trial if fit else None)


def fit(op: Resident, chip: Chip, steps: Steps) -> Fit:
    """The steps of a graph as one kernel. Unwritten, with the reason, if they cannot be."""
    graph, tuning = op.graph, chip.tuning.persistent
    if not graph.outputs:
        raise Unwritten("nothing reads its results")
    if any(a.type.weak for a in graph.outputs):
        raise Unwritten("a Python number comes out of it")
    if op.rows:
        quick(graph.eqns[0], tuning.alone)
    flat = [each for e in graph.eqns for each in steps.flat(e, tuning.depth)]
    made = {v for e in flat for v in e.outs}
    given = [a for e in flat for a in e.inputs if isinstance(a, Var) and a not in made]
    body = Graph(tuple(dict.fromkeys(given)), tuple(flat), graph.outputs)
    if op.rows:
        return by_rows(body, op.rows, chip)
    for e in graph.eqns:
        taken_in(e, steps.flat(e, tuning.depth), tuning.grid if op.grid else tuning.block)
    return on_all_blocks(body, chip) if op.grid else in_block(body, chip)
