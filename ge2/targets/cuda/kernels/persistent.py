"""Loops and branches, and small steps around them, as one kernel."""

from __future__ import annotations

from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.ops.graphs.region import Resident
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.persistent.kernel import resident_kernel


@final
class CudaResident(Cuda):
    name = "resident steps in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Resident) else f"{problem.op.name} is not resident"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op = problem.op
        assert isinstance(op, Resident)
        return resident_kernel(op.graph, op.rows, ins, outs, chip, op.grid)
