"""Steps that are one kernel together, loops and branches among them: small
enough to stay in a block.
"""

from __future__ import annotations

from typing import Any, final

from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Graph, GraphOp
from ge2.ops.region import evaluated


@final
@record
class Resident(GraphOp):
    """A graph, loops and branches and what is around them, whose values live in
    a block's shared memory.

    `grid`: all blocks of a GPU do it together, and what is wide lies in their registers and in its
    L2 cache. `rows` is 0, or the size of an axis along which no element knows of another: blocks
    then share its rows. How many rows and rounds there are is handed to the kernel. It is made
    after all derivatives, of steps that are already chosen for a GPU.
    """

    graph: Graph
    rows: int = 0
    grid: bool = False
    name = "resident"

    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != tuple(v.type for v in self.graph.inputs):
            listed = ", ".join(map(str, types))
            raise TypeRuleError(
                f"resident steps of {len(self.graph.inputs)} inputs were given {listed}"
            )
        return tuple(a.type for a in self.graph.outputs)

    def reference(self, *arrays: Any) -> Any:
        return evaluated(self.graph, arrays)
