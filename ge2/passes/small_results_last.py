"""What computes small results of the whole program alone runs at its end, one beside another.

  b', m', v' = region b m v g; ...; c', n', w' = region c n w h; ...
  ->  ...; b', m', v' = region b m v g; c', n', w' = region c n w h

The biases and gains of a network are updated by a kernel each, as soon as their gradients are
there. Between the large kernels of a backward pass each is a launch of its own, and the memory of
its gradient is taken for other values after it; next to one another they become one launch
(`launch/bundle`). A gradient waits for that, so it has to be small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ge2.ir import Eqn, Graph, Var
from ge2.ops.graphs.region import Region
from ge2.passes.context import NOTHING, Context

SMALL: Final = 1 << 18  # bytes of all values that an equation reads, or makes
FEW: Final = 4  # equations for which the order stays


def small_results_last(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with regions that make small results, and nothing that is read again, at its end."""
    if context.body:
        return graph
    read = {a for e in graph.eqns for a in e.inputs if isinstance(a, Var)}
    late = [e for e in graph.eqns if is_small(e) and read.isdisjoint(e.outs)]
    if len(late) < FEW:
        return graph
    moved = {id(e) for e in late}
    first = (e for e in graph.eqns if id(e) not in moved)
    return replace(graph, eqns=(*first, *late))


def is_small(eqn: Eqn) -> bool:
    """True for a region of few bytes, of which no other result is in its memory."""
    values = (*eqn.inputs, *eqn.outs)
    return isinstance(eqn.op, Region) and sum(v.type.nbytes for v in values) <= SMALL
