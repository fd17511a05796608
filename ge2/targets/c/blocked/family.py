"""Regions on the CPU: NumPy's own SIMD loops, over blocks that stay in cache."""

from __future__ import annotations

from typing import ClassVar, final

from ge2.choice.family import Family, Launch, Problem
from ge2.ops.elementwise import Pointlike
from ge2.ops.region import Region
from ge2.targets.c.blocked.numpy_calls import has_text
from ge2.targets.c.blocked.region import kernel_view, source


class Blocked(Family):
    """One template for the three kinds of region."""

    target = "cpu"
    kind: ClassVar[str]

    def refuses(self, problem: Problem) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        if op.kind != self.kind:
            return f"the region is {op.kind}"
        lacking = [e.op.name for e in op.graph.eqns if isinstance(e.op, Pointlike) and not has_text(e.op)]
        return f"{lacking[0]} cannot write to an array that is there already" if lacking else ""

    def launch(self, problem: Problem) -> Launch:
        assert isinstance(problem.op, Region)
        view = kernel_view(problem.op, problem.op.kind, problem.shared)
        return Launch(self.name, problem.op, source(view), view)


@final
class BlockedPointwise(Blocked):
    name = "blocked pointwise"
    kind = "pointwise"


@final
class BlockedRowwise(Blocked):
    name = "blocked rowwise"
    kind = "rowwise"


@final
class BlockedReduce(Blocked):
    name = "blocked reduce"
    kind = "reduce"
