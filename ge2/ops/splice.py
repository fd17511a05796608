"""Calls replaced by what they call."""

from __future__ import annotations

from collections.abc import Sequence

from ge2.ir import Atom, Eqn, Graph, GraphOp, Op, Var, rename

Calls = tuple[type[Op], ...]


def spliced(graph: Graph, calls: Calls) -> Graph:
    """The graph in which operations of these classes are replaced by the first graph that they hold."""
    if not any(isinstance(eqn.op, calls) for eqn in graph.eqns):
        return graph
    eqns: list[Eqn] = []
    env: dict[Var, Atom] = {}
    splice(graph.eqns, env, eqns, calls, fresh=False)
    return Graph(graph.inputs, tuple(eqns), rename(env, graph.outputs), graph.consts)


def splice(body: Sequence[Eqn], env: dict[Var, Atom], eqns: list[Eqn], calls: Calls, fresh: bool) -> None:
    """Appends the equations of `body`; `fresh`: under new names, for a graph may be called twice."""
    for eqn in body:
        inputs = rename(env, eqn.inputs)
        if isinstance(eqn.op, calls):
            assert isinstance(eqn.op, GraphOp)
            inner = eqn.op.graphs()[0]
            names: dict[Var, Atom] = dict(zip(inner.inputs, inputs, strict=True))
            splice(inner.eqns, names, eqns, calls, fresh=True)
            env.update(zip(eqn.outs, rename(names, inner.outputs), strict=True))
            continue
        outs = tuple(Var(v.type) for v in eqn.outs) if fresh else eqn.outs
        if fresh:
            env.update(zip(eqn.outs, outs, strict=True))
        eqns.append(Eqn(eqn.op, inputs, outs, eqn.source))
