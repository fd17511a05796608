"""Graphs made smaller without changing what they compute: equal
equations once, unread ones not at all.
"""

from __future__ import annotations

from typing import Any

from ge2.base.gc_pause import collector_paused
from ge2.ir import Atom, Eqn, Graph, Var, without_dead_code
from ge2.trace.exact import COMMUTATIVE, RULES, Known, remember, with_scalars


@collector_paused
def tidy(graph: Graph) -> Graph:
    """What every transform ends with."""
    return without_dead_code(cse(graph))


def cse(graph: Graph) -> Graph:
    """Each equation whose operation and inputs were met before reads the earlier results instead.

    What `exact` knows to be no work at all goes on the way.
    """
    env: dict[Any, Atom] = {}
    seen: dict[Any, tuple[Var, ...]] = {}
    known: Known = {}
    eqns: list[Eqn] = []
    get = env.get
    for eqn in graph.eqns:
        op, inputs = eqn.op, eqn.inputs
        if env:
            inputs = tuple([get(a, a) for a in inputs])
        if known:
            inputs = with_scalars(op, inputs, known)
        rule = RULES.get(op.name)
        if rule is not None and (found := rule(op, inputs, eqn.outs[0].type, known)) is not None:
            env[eqn.outs[0]] = found
            continue
        if not op.effect:
            key = (
                frozenset(inputs)
                if op.name in COMMUTATIVE and eqn.outs[0].type.dtype.kind != "c"
                else inputs
            )
            outs = seen.setdefault((op, key), eqn.outs)
            if outs is not eqn.outs:
                env.update(zip(eqn.outs, outs, strict=True))
                continue
        eqns.append(eqn if inputs == eqn.inputs else Eqn(op, inputs, eqn.outs, eqn.source))
        remember(eqns[-1], known)
    if not env and not known:
        return graph
    return Graph(graph.inputs, tuple(eqns), tuple([get(a, a) for a in graph.outputs]), graph.consts)
