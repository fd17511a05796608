"""Operations that hold graphs, replaced by what they compute."""

from __future__ import annotations

from collections.abc import Sequence

from ge2.ir import Atom, Eqn, Graph, GraphOp, Op, Reversing, Var, rename

Kinds = tuple[type[GraphOp], ...]


def inlined(graph: Graph, kinds: Kinds) -> Graph:
    """The graph with the equations of the first graph of each operation of
    these kinds in its place.
    """
    if not any(isinstance(eqn.op, (*kinds, Reversing)) for eqn in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    splice(graph.eqns, env, eqns, kinds, fresh=False)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def splice(
    body: Sequence[Eqn], env: dict[Var, Atom], eqns: list[Eqn], kinds: Kinds, fresh: bool
) -> None:
    """Appends the equations of `body`; `fresh`: under new names, for a graph
    may be called twice.
    """
    for eqn in body:
        inputs = rename(env, eqn.inputs)
        if isinstance(eqn.op, kinds):
            assert isinstance(eqn.op, GraphOp)
            inner = eqn.op.graphs()[0]
            names: dict[Var, Atom] = dict(zip(inner.inputs, inputs, strict=True))
            splice(inner.eqns, names, eqns, kinds, fresh=True)
            env.update(zip(eqn.outs, rename(names, inner.outputs), strict=True))
            continue
        # its derivative is done
        op: Op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
        outs = tuple(Var(v.type) for v in eqn.outs) if fresh else eqn.outs
        if fresh:
            env.update(zip(eqn.outs, outs, strict=True))
        eqns.append(Eqn(op, inputs, outs, eqn.source))
