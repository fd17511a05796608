"""Graphs made smaller without changing what they compute: equal equations once, unread ones not at all."""

from __future__ import annotations

from typing import Any

from ge2.ir import Atom, Eqn, Graph, Var, without_dead_code


def tidy(graph: Graph) -> Graph:
    """What every transform ends with."""
    return without_dead_code(cse(without_dead_code(graph)))


def cse(graph: Graph) -> Graph:
    """Each equation whose operation and inputs were met before reads the earlier results instead."""
    env: dict[Any, Atom] = {}
    seen: dict[Any, tuple[Var, ...]] = {}
    eqns: list[Eqn] = []
    get = env.get
    for eqn in graph.eqns:
        inputs = tuple([get(a, a) for a in eqn.inputs]) if env else eqn.inputs
        op = eqn.op
        if not op.effect:
            outs = seen.setdefault((op, inputs), eqn.outs)
            if outs is not eqn.outs:
                env.update(zip(eqn.outs, outs, strict=True))
                continue
        eqns.append(eqn if inputs == eqn.inputs else Eqn(op, inputs, eqn.outs, eqn.source))
    if len(eqns) == len(graph.eqns):
        return graph
    return Graph(graph.inputs, tuple(eqns), tuple([get(a, a) for a in graph.outputs]), graph.consts)
