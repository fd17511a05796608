"""Generated C: every family writes the kernels of a step, given where its arrays are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.choice.problem import Family, Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.moves import copied
from ge2.codegen.text import CKernel, Operand
from ge2.ir import ArrayType, Var
from ge2.ops.graphs.region import Region
from ge2.targets.c.caps import Caps
from ge2.targets.c.emit.region import c_kernel

Operands = Sequence[Operand]


@final
@record
class Pieces:
    """Kernels that run one after another, and the bytes of arrays that they have for themselves."""

    kernels: tuple[CKernel, ...]
    temps: tuple[int, ...] = ()
    products: frozenset[tuple[str, str]] = frozenset()


class Generated(Family[Caps, Pieces]):
    """Kernels in C."""

    target = "c"


@final
class CRegion(Generated):
    name = "region in C"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        return next((why for e in op.graph.eqns if (why := unspoken(e))), "")

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Pieces:
        ins, outs = problem.arrays
        op = problem.op
        assert isinstance(op, Region)
        operands: dict[Var, Operand] = dict(zip(op.graph.inputs, ins, strict=True))
        for var, operand in zip(op.graph.outputs, outs, strict=True):
            assert isinstance(var, Var)
            operands[var] = operand
        return Pieces((c_kernel(op, operands, caps),))


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, caps: Caps) -> CKernel:
    """A copy from one array, or part of one, to another of the same shape."""
    return c_kernel(*copied(x, to, source, target), caps)


def unless_same(kernel: CKernel) -> CKernel:
    """A copy that is not made where a donated input lends its memory to the result."""
    return replace(kernel, unless_same=True)
