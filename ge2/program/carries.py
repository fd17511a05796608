"""Operands that a loop or a branch may write over, so that it works
where they are and copies nothing.

A carry can be updated where it lies if the body does so itself: its result is made in
the memory of the carry it was given. So loops in loops, branches in loops and loops in
branches hand one array through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge2.ir import Atom, Graph, Var
from ge2.ops.control import Cond
from ge2.ops.index import Scatter, ScatterAdd, UpdateSlice
from ge2.ops.loops import RepeatLoop, ScanLoop
from ge2.ops.while_loop import WhileLoop
from ge2.program.program import Program

WRITES = (UpdateSlice, Scatter, ScatterAdd)
COUNTED = (ScanLoop, RepeatLoop)


def overwritten(op: Any, programs: Sequence[Program]) -> dict[int, int]:
    """Results that may take the memory of an operand, each with its number
    among the equation's inputs.
    """
    if isinstance(op, Cond):
        pairs = branch_pairs(op)
        return {i: 1 + k for i, k in pairs.items() if all(reuses_input(p, i, k) for p in programs)}
    first, slot, count = carry_of(op)
    return {i: first + i for i in range(count) if reuses_input(programs[-1], i, slot + i)}


def carry_of(op: Any) -> tuple[int, int, int]:
    """Offsets of the carry among a loop's operands and among its body's inputs, and its length."""
    if isinstance(op, COUNTED):
        return op.consts, op.consts, op.carry
    return op.cond_consts + op.body_consts, op.body_consts, len(op.body.outputs)


def reuses_input(program: Program, i: int, k: int) -> bool:
    """True if result `i` of a program is its input `k`, or is made in its memory."""
    out, given = program.graph.outputs[i], program.graph.inputs[k]
    if out is given:
        return True
    made = isinstance(out, Var) and program.graph.outputs.index(out) == i
    return made and program.buffers[out].donor == program.buffers[given].name  # type: ignore[index]


def branch_pairs(op: Cond) -> dict[int, int]:
    """Results that every branch makes by writing into the same one of their
    inputs, or passes on.
    """
    found: dict[int, int] = {}
    for i in range(len(op.graphs()[0].outputs)):
        origins = {origin(graph, graph.outputs[i]) for graph in op.graphs()}
        (k, *others) = origins
        if not others and k is not None and k not in found.values():
            found[i] = k
    return found


def origin(graph: Graph, a: Atom) -> int | None:
    """The number of the input that a value is, after writes into parts of it."""
    makers = {v: e for e in graph.eqns for v in e.outs}
    while isinstance(a, Var) and a not in graph.inputs:
        eqn = makers[a]
        i = eqn.outs.index(a)
        if isinstance(eqn.op, WRITES):
            a = eqn.inputs[0]
        elif isinstance(eqn.op, (*COUNTED, WhileLoop)) and i < carry_of(eqn.op)[2]:
            a = eqn.inputs[carry_of(eqn.op)[0] + i]
        elif isinstance(eqn.op, Cond) and i in (pairs := branch_pairs(eqn.op)):
            a = eqn.inputs[1 + pairs[i]]
        else:
            return None
    return graph.inputs.index(a) if isinstance(a, Var) else None
