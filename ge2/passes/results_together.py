"""Moves regions that compute results of the program one beside another: small ones to its end.

  b', m', v' = region b m v g; ...; c', n', w' = region c n w h; ...
  ->  ...; b', m', v' = region b m v g; c', n', w' = region c n w h

The weights of a network are updated by a kernel each, as soon as their gradients are there. Between
the large kernels of a backward pass each is a launch of its own, which begins and ends with an idle
GPU; next to one another they become one launch (`launch/bundle`). A gradient waits for that, so all
that wait at once have to be few bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from ge2.ir import Eqn, Graph, Var
from ge2.ops.graphs.region import Region
from ge2.passes.context import NOTHING, Context
from ge2.passes.tuning import Results


def results_together(graph: Graph, context: Context = NOTHING) -> Graph:
    """Returns the graph with regions whose results no equation reads side by side."""
    if context.body:
        return graph
    tuning = context.tuning.results
    read = {a for e in graph.eqns for a in e.inputs if isinstance(a, Var)}
    last = [e for e in graph.eqns if isinstance(e.op, Region) and read.isdisjoint(e.outs)]
    small = [e for e in last if sum(v.type.nbytes for v in (*e.inputs, *e.outs)) <= tuning.small]
    small = small if len(small) >= tuning.few else []
    made = {v for e in graph.eqns for v in e.outs}
    moved = {id(e) for e in small}
    groups = waiting([e for e in last if id(e) not in moved], made, tuning)
    if not small and not groups:
        return graph
    behind = {id(group[-1]): group for group in groups}  # of each last one all of its group
    moved |= {id(e) for group in groups for e in group}
    eqns = list[Eqn]()
    for e in graph.eqns:
        eqns += behind.get(id(e), [] if id(e) in moved else [e])
    return replace(graph, eqns=(*eqns, *small))


def waiting(eqns: Sequence[Eqn], made: Collection[Var], tuning: Results) -> list[list[Eqn]]:
    """Groups of equations that are alike, of which all but the last wait, with what they alone may
    read of what the program has made.
    """
    groups, room = dict[Hashable, list[list[Eqn]]](), dict[Hashable, int]()
    for e in eqns:
        key = likeness(e)
        needed = sum(a.type.nbytes for a in e.inputs if a in made)
        room[key] = room.get(key, -1) - needed
        if room[key] < 0:  # the first, or one for which there is none
            groups.setdefault(key, []).append([])
            room[key] = max(tuning.waiting - needed, 0)
        groups[key][-1].append(e)
    return [group for alike in groups.values() for group in alike if len(group) >= tuning.few]


def likeness(e: Eqn) -> Hashable:
    """Returns a key that is equal for regions whose kernels probably have the same text."""
    assert isinstance(e.op, Region)
    types = (*(a.type for a in e.inputs), *(v.type for v in e.outs))
    return e.op.kind, len(e.op.graph.eqns), tuple([(t.dtype, t.ndim) for t in types])
