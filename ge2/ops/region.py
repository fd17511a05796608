"""A Region: an operation that holds a graph, which becomes one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Dims, Evaluate, Graph, GraphOp, Var, read

KINDS = ("pointwise", "rowwise", "reduce")
EVALUATE = Evaluate()


@final
@record
class Region(GraphOp):
    """A graph whose equations run over one iteration space, so that a block of
    it at a time stays in cache.

    `axes` says for each equation which axis of `space` each axis of its result is (for a reduction:
    of its input), -1 for an axis of size 1. Views in the graph are index expressions. A reduction
    whose result is read inside has its axes whole in a block.
    """

    kind: str
    space: Dims
    axes: tuple[Dims, ...]
    graph: Graph
    name = "region"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if self.kind not in KINDS or types != tuple(v.type for v in self.graph.inputs):
            listed = ", ".join(map(str, types))
            raise TypeRuleError(
                f"a {self.kind} region of {len(self.graph.inputs)} inputs was given {listed}"
            )
        return tuple(a.type for a in self.graph.outputs)

    def reference(self, *arrays: Any) -> Any:
        return evaluated(self.graph, arrays)


def evaluated(graph: Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a graph by the references of its operations."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        env.update(zip(eqn.outs, EVALUATE.apply(eqn.op, read(env, eqn.inputs)), strict=True))
    return tuple(read(env, graph.outputs))
