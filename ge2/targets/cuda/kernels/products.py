"""Matrix products on a device: by BLAS, and in CUDA for what BLAS does not multiply."""

from __future__ import annotations

from typing import final

from ge2.base.dtypes import BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64
from ge2.choice.family import Family, Launch, Problem
from ge2.codegen.text import Operand
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda, Operands, copying
from ge2.targets.cuda.products.gemm import arranged, contraction
from ge2.targets.cuda.products.matrices import sums_in
from ge2.targets.cuda.products.small import Small
from ge2.targets.cuda.products.tiles import Tiles

HALVES = (FLOAT16, BFLOAT16)
BY_BLAS = {
    *((d, d) for d in (FLOAT32, FLOAT64, COMPLEX64, COMPLEX128, *HALVES)),
    *((d, FLOAT32) for d in HALVES),
}


def refusal(problem: Problem) -> str:
    """Why a problem is no matrix product of arrays."""
    if not isinstance(problem.op, DotGeneral):
        return f"{problem.op.name} is not a matrix product"
    return "an operand is a Python number" if any(t.weak for t in problem.inputs) else ""


@final
class CudaBlas(Family):
    """A product by the device's BLAS, of operands as they lie."""

    name = "product by BLAS"
    target = "cuda"

    def refuses(self, problem: Problem) -> str:
        if why := refusal(problem):
            return why
        (a, b), (y,) = problem.inputs, problem.outs
        if (a.dtype, y.dtype) not in BY_BLAS:
            return f"BLAS does not multiply {a.dtype.name} to {y.dtype.name}"
        return "there is nothing to multiply" if not (a.size and b.size) else ""

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.name, problem.op)


@final
class CudaProduct(Cuda):
    """A product in tiles: integers wrap, half types are summed in float32."""

    name = "product in CUDA"

    def refuses(self, problem: Problem) -> str:
        if why := refusal(problem):
            return why
        (a, _), (y,) = problem.inputs, problem.outs
        kinds = {a.dtype.kind, y.dtype.kind, sums_in(a.dtype, y.dtype).kind}
        mixed = len(kinds & {"b", "c"}) and len(kinds) > 1
        return f"{a.dtype.name} is not summed to {y.dtype.name} in CUDA" if mixed else ""

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        (a, b), (y,), op = problem.inputs, problem.outs, problem.op
        assert isinstance(op, DotGeneral)
        if not y.size:
            return Kernels(())
        strides = ins[0].strides, ins[1].strides, outs[0].strides
        # copies of both merge what is summed over
        copies, axes = next(each for each in arranged(op, a, b, strides) if len(each[1].sums) <= 1)
        operands, kernels, temps = list(ins), list[CudaKernel](), list[int]()
        for i, (t, copy) in enumerate(zip((a, b), copies, strict=True)):
            if copy is not None:
                operands[i] = Operand("temp", len(temps), copy)
                temps.append(t.nbytes)
                kernels += copying(t, t, ins[i], operands[i], chip).kernels
        kernels.append(Tiles(axes, (operands[0], operands[1], outs[0]), a.dtype, y.dtype).kernel())
        return Kernels(tuple(kernels), tuple(temps))


@final
class CudaSmallProduct(Cuda):
    """A small product, in BLAS's place. Which are, `small_products` says once it is known how operands lie:
    so it is not in the catalog, which knows types alone."""

    name = "small product in CUDA"

    def refuses(self, problem: Problem) -> str:
        return refusal(problem)

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        (a, b), (y,), op = problem.inputs, problem.outs, problem.op
        assert isinstance(op, DotGeneral)
        axes = contraction(op, a, b, (ins[0].strides, ins[1].strides, outs[0].strides))
        return Kernels((Small(axes, (ins[0], ins[1], outs[0]), a.dtype, y.dtype).kernel(),))
