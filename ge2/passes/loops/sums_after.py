"""Sums of products that a scan carries become one product after it, at the price of stacks.

`late.py` does so where both factors are stacked anyway. On a GPU the product of all rounds is many
times as fast as one a round, and without it the rows of a round know nothing of each other; so here
a factor is stacked for it, as long as a loop's stacks no more than double.
"""

from __future__ import annotations

from dataclasses import replace

from ge2.ir import Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD
from ge2.ops.loops import ScanLoop
from ge2.ops.shape import Reshape, Transpose
from ge2.passes.loops.hoist import Scan, trim


def sums_after(graph: Graph) -> Graph:
    if not any(isinstance(e.op, ScanLoop) for e in graph.eqns):
        return graph
    read = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    makers = {v: e for e in graph.eqns for v in e.outs}
    eqns: list[Eqn] = []
    changed = False
    for eqn in graph.eqns:
        more = factors(eqn) if isinstance(eqn.op, ScanLoop) and not eqn.op.body.effect else []
        if not more:
            eqns.append(eqn)
            continue
        wide, stacks = stacking(eqn, more)
        eqns += Scan(wide, read | set(stacks), makers).run()
        changed = True
    return trim(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)) if changed else graph


def stacking(eqn: Eqn, more: list[Var]) -> tuple[Eqn, list[Var]]:
    """The scan with further values stacked, and their stacks."""
    op = eqn.op
    assert isinstance(op, ScanLoop)
    body = Graph(op.body.inputs, op.body.eqns, (*op.body.outputs, *more), op.body.consts)
    stacks = [Var(v.type.with_shape((op.length, *v.type.shape))) for v in more]
    return Eqn(replace(op, body=body), eqn.inputs, (*eqn.outs, *stacks), eqn.source), stacks


def factors(eqn: Eqn) -> list[Var]:
    """What is to be stacked so that each sum of products may be taken;
    nothing if it is too much.
    """
    op = eqn.op
    assert isinstance(op, ScanLoop)
    inputs = op.body.inputs
    consts, elements = set(inputs[: op.consts]), set(inputs[op.consts + op.carry :])
    known = elements | {a for a in op.body.outputs[op.carry :] if isinstance(a, Var)}
    found: list[Var] = []
    for old, new in zip(inputs[op.consts :], op.body.outputs[: op.carry], strict=False):
        both = multiplied(op.body, old, new) if isinstance(new, Var) else []
        if consts.isdisjoint(both):
            found += [v for v in both if v not in known and v not in found]
    there = sum(v.type.nbytes for v in known)
    return found if sum(v.type.nbytes for v in found) <= there else []


def multiplied(body: Graph, old: Var, new: Var) -> list[Var]:
    """The factors of the product that a round adds to a carry and that nothing else reads."""
    makers = {v: e for e in body.eqns for v in e.outs}
    reads = [a for e in body.eqns for a in e.inputs] + list(body.outputs)
    total = makers.get(new)
    if total is None or total.op != ADD or reads.count(new) != 1 or reads.count(old) != 1:
        return []
    if old not in total.inputs:
        return []
    value = next((a for a in total.inputs if a is not old), old)
    while isinstance(value, Var) and reads.count(value) == 1 and value in makers:
        maker = makers[value]
        if isinstance(maker.op, DotGeneral):
            return [untransposed(a, makers) for a in maker.inputs if isinstance(a, Var)]
        if not isinstance(maker.op, Transpose | Reshape):
            break
        (value,) = maker.inputs
    return []


def untransposed(v: Var, makers: dict[Var, Eqn]) -> Var:
    """A value, or what it is a transposition of."""
    while v in makers and isinstance(makers[v].op, Transpose):
        (x,) = makers[v].inputs
        if not isinstance(x, Var):
            break
        v = x
    return v
