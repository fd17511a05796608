"""Generated CUDA: every family writes the launches of a step, given where its arrays are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.choice.family import Family, Launch, Problem
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import Layout, viewed
from ge2.codegen.moving import VIEWS, copied, counted, filled, unspoken
from ge2.codegen.text import Operand, whole
from ge2.ir import ArrayType, Eqn, Var
from ge2.ops.region import Region
from ge2.ops.shape import Iota
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.region_variants import cuda_kernels
from ge2.targets.cuda.emit.split_region import cut, inhabited
from ge2.targets.cuda.emit.two_stage_reduce import Kernels

Operands = Sequence[Operand]


class Cuda(Family):
    """Kernels in CUDA."""

    target = "cuda"

    @abstractmethod
    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        """The kernels of the problem on such a chip."""

    def launch(self, problem: Problem) -> Launch:
        return Launch(self.name, problem.op)


@final
class CudaRegion(Cuda):
    name = "region in CUDA"

    def refuses(self, problem: Problem) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        return next((why for e in op.graph.eqns if (why := unspoken(e))), "")

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        op = problem.op
        assert isinstance(op, Region)
        operands: dict[Var, Operand] = dict(zip(op.graph.inputs, ins, strict=True))
        for var, operand in zip(op.graph.outputs, outs, strict=True):
            assert isinstance(var, Var)
            operands[var] = operand
        return regional(op, operands, chip)


def regional(region: Region, operands: Mapping[Var, Operand], chip: Chip) -> Kernels:
    """The kernels of a region; of its two halves where it is more than one kernel can do."""
    temps: list[int] = []
    kernels = written(region, dict(operands), chip, temps)
    return Kernels(tuple(kernels), tuple(temps))


def written(region: Region, operands: dict[Var, Operand], chip: Chip, temps: list[int]) -> list[CudaKernel]:
    """The same, with the arrays that they have for themselves added to `temps`, and to `operands`."""
    rest = inhabited(region)
    if rest is None:
        return []
    region = rest
    found = cuda_kernels(region, operands, chip)
    if found is not None:
        kernels = [k.shifted(len(temps)) for k in found.kernels]
        temps += found.temps
        return kernels
    kernels = []
    for half in cut(region):
        for var in half.graph.outputs:
            assert isinstance(var, Var)
            if var not in operands:
                operands[var] = whole("temp", len(temps), var.type.shape)
                temps.append(var.type.nbytes)
        kernels += written(half, operands, chip, temps)
    return kernels


# ------------------------------------------------------------------------------------------- moving elements


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, chip: Chip) -> Kernels:
    """A copy from one array, or part of one, to another of the same shape."""
    return regional(*copied(x, to, source, target), chip)


def filling(to: ArrayType, source: Operand | None, target: Operand, chip: Chip) -> Kernels:
    """One number, or zero, in every element of an array."""
    return regional(*filled(to, source, target), chip)


@final
class CudaCopy(Cuda):
    """A view that has to be a copy."""

    name = "copy in CUDA"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, VIEWS) else f"{problem.op.name} is not a copy"

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        (x,), (to,), op = problem.inputs, problem.outs, problem.op
        if ins[0].value:
            return filling(to, ins[0], outs[0], chip)
        (source,) = ins
        found = viewed(Eqn(op, (Var(x),), (Var(to),)), Layout(source.offset, source.strides))
        if found is not None:
            seen = replace(source, offset=found.offset, strides=found.strides)
            return copying(to, to, seen, outs[0], chip)
        target = replace(outs[0], strides=strides_of(x.shape))  # the same order in another shape
        return copying(x, x, source, target, chip)


@final
class CudaConstant(Cuda):
    """Numbers that count along an axis."""

    name = "iota in CUDA"

    def refuses(self, problem: Problem) -> str:
        return "" if isinstance(problem.op, Iota) else f"{problem.op.name} counts nothing"

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, chip: Chip) -> Kernels:
        (to,) = problem.outs
        assert isinstance(problem.op, Iota)
        return regional(*counted(problem.op, to, outs[0]), chip)
