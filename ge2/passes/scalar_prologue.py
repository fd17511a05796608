"""Scalars that depend on scalar arguments alone, such as what a step's count makes of rates.

Fused into whichever region reads them first, they would have all others that read them wait for the
whole of it, and be computed for each of its elements. So those that are costly, and what belongs to
them, stay apart where several regions read them, and can be computed before all else.
"""

from __future__ import annotations

from collections.abc import Callable

from ge2.ir import Eqn, Graph, Var
from ge2.ops.elementwise import Pointlike
from ge2.passes.python_scalars import on_host

EASY = 4  # instructions that may as well be computed for each element


def early(graph: Graph, takes: Callable[[Eqn], bool]) -> set[int]:
    """The numbers of the equations that make costly scalars, those they are made of, and those made
    of them; of those that a region takes.
    """
    known = {v for v in graph.inputs if not v.type.shape}
    costly: set[Var] = set()
    found, chosen = list[int](), set[int]()
    for index, eqn in enumerate(graph.eqns):
        read = [a for a in eqn.inputs if isinstance(a, Var)]
        if not known.issuperset(read) or any(v.type.shape for v in eqn.outs):
            continue
        if on_host(eqn):
            known.update(eqn.outs)
        elif isinstance(eqn.op, Pointlike) and takes(eqn):
            known.update(eqn.outs)
            found.append(index)
            if eqn.op.cost.instructions > EASY or not costly.isdisjoint(read):
                costly.update(eqn.outs)
                chosen.add(index)
    needed = {a for i in chosen for a in graph.eqns[i].inputs}
    for index in reversed(found):
        if not needed.isdisjoint(graph.eqns[index].outs):
            chosen.add(index)
            needed.update(graph.eqns[index].inputs)
    return chosen
