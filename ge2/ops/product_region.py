"""A matrix product and the elementwise work on its result, which becomes one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Eqn, Graph, GraphOp, Var, rename
from ge2.ops.region import Region, evaluated


@final
@record
class ProductRegion(GraphOp):
    """A graph of two equations: a `dot_general`, and a pointwise region
    that alone reads its result.

    It is made after all derivatives, of steps that are already chosen for a GPU.
    """

    graph: Graph
    name = "product_region"

    @property
    def product(self) -> Eqn:
        return self.graph.eqns[0]

    @property
    def rest(self) -> Eqn:
        """The region."""
        return self.graph.eqns[1]

    @property
    def region(self) -> Region:
        assert isinstance(self.rest.op, Region)
        return self.rest.op

    @property
    def place(self) -> Var:
        """What the product is called in the region's graph."""
        return self.region.graph.inputs[self.rest.inputs.index(self.product.outs[0])]

    @property
    def flat(self) -> Graph:
        """The product and the equations of the region, for people."""
        inner = self.region.graph
        env = dict(zip(inner.inputs, self.rest.inputs, strict=True))
        eqns = [replace(e, inputs=rename(env, e.inputs)) for e in inner.eqns]
        outs = dict(zip(self.rest.outs, inner.outputs, strict=True))
        return Graph(self.graph.inputs, (self.product, *eqns), rename(outs, self.graph.outputs))

    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != tuple(v.type for v in self.graph.inputs):
            listed = ", ".join(map(str, types))
            raise TypeRuleError(
                f"a product region of {len(self.graph.inputs)} inputs was given {listed}"
            )
        return tuple(a.type for a in self.graph.outputs)

    def reference(self, *arrays: Any) -> Any:
        return evaluated(self.graph, arrays)
