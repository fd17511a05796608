"""Values that wait long for their late readers are computed again for them,
from what is there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge2.ir import Atom, Eqn, Graph, Var, rename
from ge2.ops.shape import Barrier


def repeated(graph: Graph, again: Sequence[Eqn], at: int, after: Var | None) -> Graph:
    """The graph that computes the equations `again` a second time before
    equation `at`, for the rest of it.

    What they read comes through a barrier, tied to the value `after`: so no pass finds that they
    are the same as before, and none of them begins earlier.
    """
    env: dict[Var, Atom] = {}
    eqns = list(graph.eqns[:at])
    made = {v for e in again for v in e.outs}
    given = dict.fromkeys(
        a for e in again for a in e.inputs if isinstance(a, Var) and a not in made
    )
    read = [v for v in given if not v.type.weak]
    if read:
        tied = [*read, *([] if after is None or after in given else [after])]
        outs = tuple(Var(v.type) for v in tied)
        eqns.append(Eqn(Barrier(), tuple(tied), outs, again[-1].source))
        env.update(zip(read, outs, strict=False))
    for eqn in again:
        fresh = tuple(Var(v.type) for v in eqn.outs)
        eqns.append(Eqn(eqn.op, rename(env, eqn.inputs), fresh, eqn.source))
        env.update(zip(eqn.outs, fresh, strict=True))
    late = {v: a for v, a in env.items() if v in made}
    eqns += [Eqn(e.op, rename(late, e.inputs), e.outs, e.source) for e in graph.eqns[at:]]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)
