"""Values that wait long for their late readers are computed again for them,
from what is there anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.base.arrays import INEXACT
from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, Literal, Var, rename, without_dead_code
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.shape import Barrier
from ge2.transforms.graphs.policies import seen_through, twins


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


# ----------------------------------------------------------------------------------------- unstack
# What a loop stacks for a later one is computed again there, iteration by iteration,
# from what that has anyway.
#
# A loop and its derivative are two scans over as many iterations: the second reads what the
# first one stacked. A stack that can be made again from constants, elements and other
# stacks of the same iteration need not be kept.


@final
@record
class Unstacked:
    """A stack that is given up: the graph without it, and the equations of a
    iteration that make it again.
    """

    value: Var
    made: Eqn
    again: tuple[Eqn, ...]
    length: int
    graph: Graph


def unstacked(graph: Graph, wanted: Callable[[Var], bool]) -> Iterator[Unstacked]:
    """A way for each of the wanted stacks that loops alone read."""
    readers: dict[Atom, list[Eqn]] = {}
    for eqn in graph.eqns:
        for a in dict.fromkeys(eqn.inputs):
            readers.setdefault(a, []).append(eqn)
    for eqn in graph.eqns:
        if not isinstance(eqn.op, ScanLoop) or eqn.op.effect:
            continue
        for i in range(eqn.op.carry, len(eqn.outs)):
            v, later = eqn.outs[i], readers.get(eqn.outs[i], [])
            if not later or v in graph.outputs or not wanted(v):
                continue
            if all(reads_rounds(e, v, eqn.op.length) for e in later):
                found = given_up(graph, eqn, i, later)
                if found is not None:
                    yield found


def reads_rounds(eqn: Eqn, v: Var, length: int) -> bool:
    """True if a loop reads a stack as its elements alone, and does not ask where its values equal
    others.

    What is computed again may differ in its last bit.
    """
    op = eqn.op
    if not isinstance(op, ScanLoop) or op.length != length:
        return False
    at = op.consts + op.carry
    if v in eqn.inputs[:at]:
        return False
    element = op.body.inputs[at + eqn.inputs[at:].index(v)]
    makers = {v: e for e in op.body.eqns for v in e.outs}
    compared = {
        seen_through(makers, a) for e in op.body.eqns if e.op.name in ("eq", "ne") for a in e.inputs
    }
    return eqn.inputs.count(v) == 1 and (
        element not in compared or element.type.dtype not in INEXACT
    )


def given_up(graph: Graph, first: Eqn, i: int, later: list[Eqn]) -> Unstacked | None:
    loop = first.op
    assert isinstance(loop, ScanLoop)
    outer = in_memory(first, i)
    again = remade(loop.body, loop.body.outputs[i], outer)
    if not again:
        return None
    changed = {id(first): without_result(first, i)}
    for eqn in later:
        changed[id(eqn)] = remaking(
            eqn, first.outs[i], loop.body.outputs[i], again, outer, loop.consts, first
        )
    eqns = tuple(changed.get(id(e), e) for e in graph.eqns)
    return Unstacked(
        first.outs[i], first, tuple(again), loop.length,
        without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts)),
    )  # fmt: skip


def in_memory(eqn: Eqn, i: int) -> dict[Var, Atom]:
    """The values of an iteration that are there without stack `i`, and which array
    holds each of all iterations.
    """
    op = eqn.op
    assert isinstance(op, ScanLoop)
    consts, _, elements = op.parts(list(zip(op.body.inputs, eqn.inputs, strict=True)))
    stacks = [(a, v) for a, v in zip(op.body.outputs, eqn.outs, strict=True)][op.carry :]
    del stacks[i - op.carry]
    found = {a: v for a, v in stacks if isinstance(a, Var)}
    return {**found, **dict(elements), **dict(consts)}


def remade(body: Graph, wanted: Atom, there: Mapping[Var, Atom]) -> list[Eqn] | None:
    """The equations of an iteration that make a value from what is there, in
    order; None if there are none.

    With x, if it is asked where x == max(x), goes max(x).
    """
    makers = {v: e for e in body.eqns for v in e.outs}
    equal = twins(body.eqns)
    found: dict[Eqn, None] = {}
    together: set[Atom] = set()
    waiting = [wanted]
    while waiting:
        a = waiting.pop()
        if isinstance(a, Literal) or (a in there and a not in together):
            continue
        eqn = makers.get(a)
        if eqn is None or eqn.op.effect:
            return None
        if eqn not in found:
            found[eqn] = None
            more = [v for e in equal.get(eqn, ()) for v in e.outs]
            together.update(more)
            waiting += [*eqn.inputs, *more]
    return [e for e in body.eqns if e in found]


def without_result(eqn: Eqn, i: int) -> Eqn:
    op = eqn.op
    assert isinstance(op, ScanLoop)
    outputs = (*op.body.outputs[:i], *op.body.outputs[i + 1 :])
    body = without_dead_code(Graph(op.body.inputs, op.body.eqns, outputs))
    return Eqn(replace(op, body=body), eqn.inputs, (*eqn.outs[:i], *eqn.outs[i + 1 :]), eqn.source)


def remaking(
    eqn: Eqn,
    stack: Var,
    value: Atom,
    again: list[Eqn],
    there: Mapping[Var, Atom],
    consts: int,
    first: Eqn,
) -> Eqn:
    """The later loop, each of whose iterations makes the value again instead of reading it."""
    op = eqn.op
    assert isinstance(op, ScanLoop) and isinstance(first.op, ScanLoop)
    parts = op.parts(list(zip(op.body.inputs, eqn.inputs, strict=True)))
    fixed = set(first.op.body.inputs[:consts])
    env: dict[Var, Atom] = {}
    for v in dict.fromkeys(a for e in again for a in e.inputs if isinstance(a, Var) and a in there):
        part = parts[0] if v in fixed else parts[2]
        known = next((inner for inner, outer in part if outer is there[v]), None)
        if known is None:
            known = Var(v.type)
            part.append((known, there[v]))
        env[v] = known
    eqns = []
    for e in again:
        outs = tuple(Var(v.type) for v in e.outs)
        eqns.append(Eqn(e.op, rename(env, e.inputs), outs, e.source))
        env.update(zip(e.outs, outs, strict=True))
    old = next(inner for inner, outer in parts[2] if outer is stack)
    elements = [pair for pair in parts[2] if pair[1] is not stack]
    new = {old: env[value]}  # type: ignore[index]
    eqns += [Eqn(e.op, rename(new, e.inputs), e.outs, e.source) for e in op.body.eqns]
    given = [*parts[0], *parts[1], *elements]
    body = Graph(tuple(v for v, _ in given), tuple(eqns), rename(new, op.body.outputs))
    return Eqn(
        op.of(body, len(parts[0]), op.carry), tuple(a for _, a in given), eqn.outs, eqn.source
    )
