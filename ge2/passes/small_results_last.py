"""Moves regions that compute small results of the program to its end, one beside another.

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
    """Returns the graph with the regions last whose results are small and read by no equation."""
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
    """Returns True for a region that reads and makes few bytes in all."""
    values = (*eqn.inputs, *eqn.outs)
    return isinstance(eqn.op, Region) and sum(v.type.nbytes for v in values) <= SMALL
