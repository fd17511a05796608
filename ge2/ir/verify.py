"""Checks that a graph is well formed; every pass is followed by it in the tests."""

from __future__ import annotations

from ge2.base.errors import VerifyError
from ge2.ir.graph import Graph, Literal, Var
from ge2.ir.op import GraphOp


def verify(graph: Graph) -> Graph:
    """The graph itself, if values are defined once, before use, and typed as their rules say."""
    known: set[Var] = set()
    _define(known, graph.inputs, graph)
    for eqn in graph.eqns:
        for atom in eqn.inputs:
            if isinstance(atom, Var) and atom not in known:
                raise VerifyError(f"{eqn.op} reads a value that is not defined yet", where=graph)
        got, want = tuple(v.type for v in eqn.outs), eqn.op.infer(*(a.type for a in eqn.inputs))
        if got != want:
            raise VerifyError(f"{eqn.op} yields {_types(want)}, but is typed {_types(got)}", where=graph)
        if isinstance(eqn.op, GraphOp):
            for inner in eqn.op.graphs():
                verify(inner)
        _define(known, eqn.outs, graph)
    for atom in graph.outputs:
        if not isinstance(atom, Literal) and atom not in known:
            raise VerifyError("an output is not defined", where=graph)
    return graph


def _define(known: set[Var], new: tuple[Var, ...], graph: Graph) -> None:
    if len(set(new)) != len(new) or not known.isdisjoint(new):
        raise VerifyError("a value is defined twice", where=graph)
    known.update(new)


def _types(types: tuple[object, ...]) -> str:
    return ", ".join(map(str, types)) or "nothing"
