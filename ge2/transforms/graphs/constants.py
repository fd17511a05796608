"""Arrays that a rule reads or makes become part of the graph: they are no
inputs of any function.
"""

from __future__ import annotations

from ge2.base.errors import NoRuleError
from ge2.base.source import here
from ge2.ir import Eqn, Graph, Literal, type_of
from ge2.ops.shape import BroadcastInDim, Constant
from ge2.trace import Closed, is_traced

LARGEST = 1 << 20  # bytes


def embedded(closed: Closed, what: str) -> Graph:
    """The graph, captured arrays as constants in it; NoRuleError for traced
    values and large arrays.
    """
    graph = closed.graph
    if not closed.captured:
        return graph
    eqns = []
    for var, x in zip(graph.inputs, closed.captured, strict=False):
        t = type_of(x)
        if is_traced(x):
            why = f"{what} reads a traced value ({t}) from around it, which it was not given"
            raise NoRuleError(why, where=here(), fix="pass it as an argument of the function")
        if t.nbytes > LARGEST:
            why = f"{what} reads an array of {t.nbytes >> 20} MB ({t}) that it was not given"
            raise NoRuleError(why, where=here(), fix="pass it as an argument of the function")
        same = x.size and x.tobytes() == x.ravel()[:1].tobytes() * x.size
        if same:
            eqns.append(Eqn(BroadcastInDim(t.shape, ()), (Literal.of(x.ravel()[0]),), (var,)))
        else:
            eqns.append(Eqn(Constant.of(x), (), (var,)))
    return Graph(graph.inputs[len(eqns) :], (*eqns, *graph.eqns), graph.outputs)
