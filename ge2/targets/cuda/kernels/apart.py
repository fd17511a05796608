"""The other candidate where several steps could be one kernel."""

from __future__ import annotations

from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import library_seconds


@final
class Apart(Cuda):
    """The steps of a problem one by one, each with a choice of its own."""

    name = "launches, step by step"
    code = "step by step"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return ""

    def is_ranked(self, caps: Caps | None) -> bool:
        return True

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """Of a product and a region: the library's product, and the bytes of the region."""
        op = problem.op
        if not isinstance(op, ProductRegion):
            return caps.speed.of(problem)
        product, rest = (Problem.of(each, problem.target) for each in (op.product, op.rest))
        return library_seconds(product, caps) + caps.speed.of(rest)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        return Kernels(())
