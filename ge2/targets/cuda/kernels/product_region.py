"""A small product and the elementwise work on its result, as one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Operand
from ge2.ir import Atom, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda, copying
from ge2.targets.cuda.kernels.products import CLOCK, precision
from ge2.targets.cuda.kernels.small_products import predicted, refusal
from ge2.targets.cuda.products.column_sums import FOLDS
from ge2.targets.cuda.products.gemm import contraction, tight
from ge2.targets.cuda.products.matrices import SIDE
from ge2.targets.cuda.products.prologue import Prologue, operations, prologue
from ge2.targets.cuda.products.small import Small
from ge2.targets.cuda.products.small_region import NAMES, SmallRegion


@final
class CudaProductRegion(Cuda):
    """A product that a region goes on with."""

    name = "small product and region in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ProductRegion):
            return f"{op.name} is not a product and a region"
        if len(op.products) > 1:
            return "it is two products and a region"
        if why := unspoken(op.region.graph):
            return why
        if any(isinstance(e.op, FOLDS) for e in op.region.graph.eqns):
            return "what comes after it is folded"
        shape, product = op.product.outs[0].type.shape, op.product.op
        assert isinstance(product, DotGeneral)
        if len(shape) != 2 or min(shape) == 1 or product.beside != ((), ()):
            return "the product is no matrix"
        if caps is None or not problem.settled:
            return ""
        lies = read_of(op, dict(zip(op.graph.inputs, problem.arrays[0], strict=True)))
        (a, b), y, dot = op.product.inputs, op.product.outs[0].type, op.product.op
        if any(1 not in lies[x].strides for e in op.prologues for x in e.outs):
            return "an operand that is made has no neighbours"
        assert isinstance(dot, DotGeneral) and isinstance(a, Var) and isinstance(b, Var)
        strides = lies[a].strides, lies[b].strides, tight(y.shape, (0, 1))
        axes = contraction(dot, a.type, b.type, strides)
        rounded = precision(dot) is not None
        return refusal(axes, a.type.dtype, y.dtype, rounded, caps.limits)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if operands are made as they are read, which may cost more than to make them before."""
        return isinstance(problem.op, ProductRegion) and bool(problem.op.prologues)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        op = problem.op
        if not isinstance(op, ProductRegion) or not op.prologues:
            return super().seconds(problem, variant, caps)
        return made_seconds(problem, op, caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        op = problem.op
        assert isinstance(op, ProductRegion)
        given: dict[Atom, Operand] = dict(zip(op.graph.inputs, ins, strict=True))
        given.update(zip(op.graph.outputs, outs, strict=True))
        given = read_of(op, given)
        inner, rest, (y,) = op.region.graph, op.rest, op.product.outs
        pairs = zip((*inner.inputs, *inner.outputs), (*rest.inputs, *rest.outs), strict=True)
        operands = {v: given[a] for v, a in pairs if isinstance(v, Var) and a in given}
        before, factors, temps = self.factors(op, given, chip)
        (a, b), dot = (x.type for x in op.product.inputs), op.product.op
        assert isinstance(dot, DotGeneral)
        result = Operand("in", 0, tight(y.type.shape, (0, 1)))
        lie = factors[0].strides, factors[1].strides, result.strides
        axes, placed = contraction(dot, a, b, lie), (*factors, result)
        small = Small(axes, placed, a.dtype, y.type.dtype, chip, NAMES)
        made = prologues_of(op, chip)
        kernel = SmallRegion(small, op.region, op.place, operands, chip, made).kernel()
        return Kernels((*before, kernel), temps)

    def factors(
        self, op: ProductRegion, given: dict[Atom, Operand], chip: Chip
    ) -> tuple[list[CudaKernel], tuple[Operand, Operand], tuple[int, ...]]:
        """Returns what is multiplied, in C order where it lies as no small product
        takes it; and the copies.
        """
        kernels, temps, found = list[CudaKernel](), list[int](), list[Operand]()
        for x in op.product.inputs:
            lies = given[x]
            if 1 not in lies.strides:
                copy = Operand("temp", len(temps), tight(x.type.shape, range(len(x.type.shape))))
                temps.append(x.type.nbytes)
                kernels += copying(x.type, x.type, lies, copy, chip).kernels
                lies = copy
            found.append(lies)
        return kernels, (found[0], found[1]), tuple(temps)


def read_of(op: ProductRegion, given: Mapping[Any, Operand]) -> dict[Atom, Operand]:
    """The same with operands that are made, which lie as what they are made of."""
    found = dict(given)
    found.update((e.outs[0], given[e.inputs[0]]) for e in op.prologues)
    return found


def prologues_of(op: ProductRegion, chip: Chip) -> tuple[Prologue, ...]:
    """What is printed of the operands that are made."""
    sides = list(op.product.inputs)
    return tuple(prologue(e, sides.index(e.outs[0]), chip) for e in op.prologues)


def clocks_of(problem: Problem, op: ProductRegion, caps: Caps) -> int:
    """The clocks of the product, whose operands are there."""
    given = read_of(op, dict(zip(op.graph.inputs, problem.arrays[0], strict=True)))
    (a, b), y, dot = op.product.inputs, op.product.outs[0].type, op.product.op
    assert isinstance(dot, DotGeneral)
    strides = given[a].strides, given[b].strides, tight(y.shape, (0, 1))
    axes = contraction(dot, a.type, b.type, strides)
    return predicted(axes, a.type.dtype, caps.limits)


def made_seconds(problem: Problem, op: ProductRegion, caps: Caps) -> float:
    """The clocks of the product; those of what is made, again for each tile beside or below another;
    and of stages that no copies bring ahead of their use.
    """
    tuning, a = caps.limits.tuning.products, op.product.inputs[0].type
    assert isinstance(op.product.op, DotGeneral)
    (axis,) = op.product.op.contract[0]
    stages = -(-a.shape[axis] // (4 * tuning.slices))
    blocks = -(-op.product.outs[0].type.size // SIDE**2)
    each = -(-blocks // caps.limits.multiprocessors)
    work = stages * each * operations(op, caps.speed.functions) * tuning.made
    waits = max(stages - tuning.ahead, 0) * tuning.waits
    return caps.speed.launch + (clocks_of(problem, op, caps) + work + waits) / CLOCK


def before_seconds(problem: Problem, op: ProductRegion, caps: Caps) -> float:
    """The regions that make operands, and the product and what follows it."""
    first = sum(caps.speed.of(Problem.of(e, problem.target)) for e in op.prologues)
    return first + caps.speed.launch + clocks_of(problem, op, caps) / CLOCK
