"""An array of constants is made right before it is read for the first time.

  z = broadcast_in_dim 0.0; ...; y = scatter_reduce z i u
  ->  ...; z = broadcast_in_dim 0.0; y = scatter_reduce z i u

A derivative makes the zeros into which it adds as soon as anything is differentiated; those of an
embedding, 150 MB, would wait through the whole backward pass. Made late, they take memory for two
steps, and are in the cache when they are read.
"""

from __future__ import annotations

from dataclasses import replace

from ge2.ir import Eqn, Graph, Literal, Var
from ge2.ops.shape import BroadcastInDim, Iota


def constants_late(graph: Graph) -> Graph:
    """The graph with each array of constants before what reads it first; others keep their order."""
    waiting: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if is_constant(eqn):
            waiting[eqn.outs[0]] = eqn
            continue
        needed = dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var) and a in waiting)
        eqns += [*map(waiting.pop, needed), eqn]
    return replace(graph, eqns=(*eqns, *waiting.values()))


def is_constant(eqn: Eqn) -> bool:
    """True if an equation makes an array of literals, or of places, alone."""
    literals = all(isinstance(a, Literal) for a in eqn.inputs)
    return isinstance(eqn.op, BroadcastInDim | Iota) and literals
