"""Loops and branches, and small steps around them, as one kernel."""

from __future__ import annotations

from typing import final

from ge2.codegen.cuda.chip import Chip
from ge2.codegen.cuda.partial import Kernels
from ge2.codegen.cuda.resident import resident_kernel
from ge2.kernels.cuda import Cuda, Operands
from ge2.kernels.kernel import Problem
from ge2.ops.resident import Resident


@final
class CudaResident(Cuda):
    name = "resident steps in CUDA"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, Resident) else f"{problem.op.name} is not resident"

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        op = problem.op
        assert isinstance(op, Resident)
        return resident_kernel(op.graph, op.rows, ins, outs, chip, op.grid)
