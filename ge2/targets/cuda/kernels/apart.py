"""The other candidate where several steps could be one kernel."""

from __future__ import annotations

import math
from typing import Final, final

from ge2.choice.problem import Problem, Variant
from ge2.ir import Eqn, Var
from ge2.ops.attention.ops import FusedAttention, FusedBackward
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import library_seconds, multiple

# times as long as its bytes take: a region of rows that are no multiples of 16 bytes apart
SCATTERED: Final = 3.0


@final
class Apart(Cuda):
    """The steps of a problem one by one, each with a choice of its own."""

    name = "launches, step by step"
    code = "step by step"

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
        product, rest = (Problem.of(each, problem.target) for each in (op.product, op.rest))
        given = dict(zip(op.graph.inputs, problem.arrays[0], strict=True))
        (y,), factors = product.outs, [given[x] for x in op.product.inputs if isinstance(x, Var)]
        row = math.gcd(16, y.shape[-1] * y.dtype.itemsize)
        bytes_ = math.gcd(row, multiple(product.inputs, factors))
        passes = 1.0 if row == 16 else SCATTERED
        # what the one kernel keeps of the product is written once: by the product itself
        kept = y.nbytes / caps.speed.moved if op.keeps else 0.0
        return library_seconds(product, caps, bytes_) + caps.speed.of(rest, passes=passes) - kept

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        return Kernels(())


def product_and_rest(eqn: Eqn, caps: Caps) -> float:
    """The library's product; and its largest array, which a region writes or reads: half of one that
    does both.
    """
    if not isinstance(eqn.op, DotGeneral):
        return 0.0
    largest = max(a.type.nbytes for a in (*eqn.inputs, *eqn.outs))
    moved = caps.speed.cached if largest < caps.speed.cache else caps.speed.moved
    return library_seconds(Problem.of(eqn, "cuda"), caps) + caps.speed.launch / 2 + largest / moved
