"""Cutting a joint graph in two: what can be computed now, and what waits for the cotangents (or tangents)."""

from __future__ import annotations

from ge2.base.errors import VerifyError
from ge2.base.pause import collector_paused
from ge2.ir import Atom, Eqn, Graph, Var, without_dead_code
from ge2.trace import tidy


@collector_paused
def split(joint: Graph, known: int, outputs: int) -> tuple[Graph, Graph, int]:
    """(the first `known` inputs) -> (the first `outputs`, residuals); (residuals, other inputs) -> the rest.

    The last result is the number of residuals. What costs nothing to make again (constants, broadcasts of
    them) is no residual.
    """
    late: set[Atom] = set(joint.inputs[known:])
    cheap: set[Atom] = set()
    first: list[Eqn] = []
    second: list[Eqn] = []
    for eqn in joint.eqns:
        if not late.isdisjoint(eqn.inputs):
            late.update(eqn.outs)
            second.append(eqn)
            continue
        first.append(eqn)
        if not eqn.op.effect and all(not isinstance(a, Var) or a in cheap for a in eqn.inputs):
            cheap.update(eqn.outs)
            second.append(eqn)
    if not late.isdisjoint(joint.outputs[:outputs]):
        raise VerifyError("a result depends on what its derivative waits for", where=joint)
    rest = joint.outputs[outputs:]
    back = without_dead_code(Graph((), tuple(second), rest))
    made: set[Atom] = {*joint.inputs[known:], *(v for e in back.eqns for v in e.outs)}
    read = [a for e in back.eqns for a in e.inputs] + list(rest)
    residuals = tuple(dict.fromkeys(a for a in read if isinstance(a, Var) and a not in made))
    forward = tidy(Graph(joint.inputs[:known], tuple(first), (*joint.outputs[:outputs], *residuals)))
    return forward, Graph((*residuals, *joint.inputs[known:]), back.eqns, rest), len(residuals)
