"""Regions on the CPU: NumPy's own SIMD loops, over blocks that stay in cache."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, final

from ge2.base.record import record
from ge2.choice.problem import Family, Problem, Variant
from ge2.codegen.layout import KernelView
from ge2.ops.graphs.region import Region
from ge2.ops.pointlike import Pointlike
from ge2.targets.c.blocked.numpy_calls import has_text
from ge2.targets.c.blocked.region import kernel_view, source
from ge2.targets.c.caps import Caps
from ge2.targets.c.tuning import Tuning


@final
@record
class Launch:
    """A kernel in Python. It serves every region equal to `op`, whose values its view speaks of."""

    op: Region
    source: str
    view: KernelView


class Blocked(Family[Caps, Launch]):
    """One template for the three kinds of region."""

    target = "cpu"
    kind: ClassVar[str]

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        if op.kind != self.kind:
            return f"the region is {op.kind}"
        lacking = [
            e.op.name for e in op.graph.eqns if isinstance(e.op, Pointlike) and not has_text(e.op)
        ]
        return f"{lacking[0]} cannot write to an array that is there already" if lacking else ""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Launch:
        assert isinstance(problem.op, Region)
        return rendered(problem.op, problem.shared, caps.tuning)


@lru_cache(maxsize=256)
def rendered(op: Region, shared: frozenset[tuple[int, int]], tuning: Tuning) -> Launch:
    """The kernel of a region, written once for equal ones."""
    view = kernel_view(op, op.kind, tuning, shared)
    return Launch(op, source(view), view)


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
