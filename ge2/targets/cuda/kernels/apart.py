"""The other candidate where several steps could be one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.attention.ops import FusedAttention, FusedBackward
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import OnTensorCores, step_by_step
from ge2.targets.cuda.kernels.gemm.mma import GemmMma, GemmMmaRegion
from ge2.targets.cuda.kernels.gemm.wgmma import (
    GemmWgmma,
    GemmWgmmaOfCopies,
    GemmWgmmaRegion,
    GemmWgmmaRegionOfCopies,
)
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.product_region import before_seconds
from ge2.targets.cuda.kernels.products import library_seconds, multiple


class Apart(Cuda):
    """The steps of a problem one by one, each with a choice of its own."""

    name = "launches, step by step"
    code = "step by step"
    joining: ClassVar[tuple[str, ...]] = (
        "resident",
        "epilogue",
    )  # passes that make one kernel of steps

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return ""

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """Of products and what is between them: the library's products, and the bytes of regions."""
        op = problem.op
        if isinstance(op, FusedAttention | FusedBackward):
            return sum(product_and_rest(e, caps) for e in op.jaxpr.eqns)
        if not isinstance(op, ProductRegion):
            return caps.speed.of(problem)
        return step_by_step(problem, caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        return Kernels(())


@final
class MadeBefore(Apart):
    """The regions that make operands of a product, then the small product and what follows it."""

    name, kin = "operands that are made before", "small product and region in CUDA"
    code = "made before"
    joining = ("resident", "prologue")

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        op = problem.op
        assert isinstance(op, ProductRegion)
        return before_seconds(problem, op, caps)


@final
class OneByOne(Apart):
    """A product, and another of the same left factor with the region that reads both."""

    name = "one product after the other"
    code = "one by one"

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Of both, as they would be chosen."""
        op = problem.op
        assert isinstance(op, ProductRegion)
        given = problem.placed(op.graph)
        first, second = op.products
        (y,) = first.outs
        read = dict.fromkeys(v for e in (second, op.rest) for v in e.inputs)
        inputs = tuple(v for v in read if isinstance(v, Var) and v not in second.outs)
        joint = ProductRegion(Graph(inputs, (second, op.rest), op.rest.outs))

        def operand(role: str, i: int, a: Atom) -> Operand:
            found = given.get(a) if isinstance(a, Var) else None
            return found or Operand(role, i, plain(a.type.shape).strides)

        eqns = first, Eqn(joint, inputs, op.rest.outs)
        problems = [Problem.of(e, problem.target, operand) for e in eqns]
        kept = y.type.nbytes / caps.speed.moved if op.places[0] in op.kept else 0.0
        return sum(quickest(each, caps) for each in problems) - kept


def quickest(problem: Problem, caps: Caps) -> float:
    """Returns what a product takes by warp groups, which come before a library; else by the quicker of
    the library and warps.
    """
    joint = isinstance(problem.op, ProductRegion)
    bare: tuple[OnTensorCores, ...] = GemmWgmma(), GemmWgmmaOfCopies(), GemmMma()
    families = (GemmWgmmaRegion(), GemmWgmmaRegionOfCopies(), GemmMmaRegion()) if joint else bare
    first, *others = ([*timed(family, problem, caps)] for family in families)
    if first:
        return min(first)
    if joint:
        library = Apart().seconds(problem, Variant(), caps) or 0.0
    else:
        library = library_seconds(problem, caps, multiple(problem.inputs, problem.arrays[0]))
    return min([library, *(each for some in others for each in some)])


def timed(family: OnTensorCores, problem: Problem, caps: Caps) -> Iterator[float]:
    """The seconds of all variants of a family, if it serves a problem."""
    if not family.refuses(problem, caps):
        yield from (family.seconds(problem, v, caps) for v in family.variants(problem, caps))


def product_and_rest(eqn: Eqn, caps: Caps) -> float:
    """The library's product; and its largest array, which a region writes or reads: half of one that
    does both.
    """
    if not isinstance(eqn.op, DotGeneral):
        return 0.0
    largest = max(a.type.nbytes for a in (*eqn.inputs, *eqn.outs))
    moved = caps.speed.cached if largest < caps.speed.cache else caps.speed.moved
    return library_seconds(Problem.of(eqn, "cuda"), caps) + caps.speed.launch / 2 + largest / moved
