"""Derivatives and batches of graphs, as the rules of operations that hold
graphs are given them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ge2.base.record import record
from ge2.ir import ArrayType, Flags, Graph
from ge2.ops.graphs.control import Call
from ge2.ops.graphs.policy import Rule, inlined
from ge2.trace import retrace, run
from ge2.transforms.graphs.partition import obeying, partition, split
from ge2.transforms.graphs.rules import jvp_graph, vjp_graph, vmap_graph, zero


@record
class Deriving:
    """The `Derive` of `ir.op`. `fuses`: attention is found, and has a derivative by rule."""

    apart: bool = False
    fuses: bool = True

    def vjp(
        self, graph: Graph, wanted: Flags, held: Flags | None = None
    ) -> tuple[Graph, Graph, int]:
        return partition(
            vjp_graph(graph, wanted, self), len(graph.inputs), len(graph.outputs), held
        )

    def again(self, graph: Graph, wanted: Flags, rule: Rule) -> tuple[Graph, Graph, int]:
        joint = inlined(vjp_graph(inlined(graph, (Call,)), wanted, self), (Call,))
        return obeying(joint, len(graph.inputs), len(graph.outputs), rule)

    def jvp(self, graph: Graph, active: Flags) -> Graph:
        return jvp_graph(graph, active, self)

    def linear(self, graph: Graph, active: Flags) -> tuple[Graph, Graph, int]:
        return split(jvp_graph(graph, active, APART), len(graph.inputs), len(graph.outputs))

    def batch(
        self, graph: Graph, batched: Flags, size: int, out: Flags | None = None
    ) -> tuple[Graph, Flags]:
        return vmap_graph(graph, tuple(0 if b else None for b in batched), size, self, out)

    def trace(self, f: Callable[..., Sequence[Any]], types: Sequence[ArrayType]) -> Graph:
        return retrace(f, types)

    def run(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        return run(graph, args)

    def zeros(self, t: ArrayType) -> Any:
        return zero(t)


DERIVE, APART, PLAIN = Deriving(), Deriving(apart=True), Deriving(fuses=False)
