"""The values that the policy of a checkpoint saves inside of loops and branches: the first run
passes them to the second.

A loop that is run again for the derivative is two: the first one stacks, beside its results, what
the policy saves of each iteration; the second one reads that, and computes the rest of what the
derivative reads. Branches do the same without stacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from ge2.base.arrays import INEXACT
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    Literal,
    Op,
    Reversing,
    Var,
    rename,
    without_dead_code,
)
from ge2.ops.graphs.control import Call, CallSaving, Cond, Rule, inlined, saves
from ge2.ops.graphs.loops import ScanLoop, stacked
from ge2.ops.graphs.region import read_by, slots_for, with_slots
from ge2.ops.shape import Name

JITTED = (Call, CallSaving)


def unnamed(eqns: Iterable[Eqn]) -> dict[Var, Atom]:
    """Each labelled value as it was before it had a label."""
    same: dict[Var, Atom] = {}
    for e in eqns:
        if isinstance(e.op, Name):
            same[e.outs[0]] = rename(same, e.inputs)[0]
    return same


def labels(eqns: Iterable[Eqn]) -> dict[Atom, set[str]]:
    """The labels of each value."""
    found: dict[Atom, set[str]] = {}
    same: dict[Var, Atom] = {}
    for e in eqns:
        if isinstance(e.op, Name):
            value = same[e.outs[0]] = rename(same, e.inputs)[0]
            found.setdefault(value, set()).add(e.op.label)
    return found


def renamed(eqns: Sequence[Eqn], same: Mapping[Var, Atom]) -> list[Eqn]:
    return (
        [Eqn(e.op, rename(same, e.inputs), e.outs, e.source) for e in eqns] if same else list(eqns)
    )


def plain(op: Op) -> Op:
    """The operation itself, if it is one that yields residuals; in loops and
    branches calls are inlined.
    """
    op = op.plain() if isinstance(op, Reversing) else op
    if isinstance(op, ScanLoop):
        return replace(op, body=inlined(op.body, JITTED))
    return Cond(tuple(inlined(b, JITTED) for b in op.branches)) if isinstance(op, Cond) else op


def is_looked_into(eqn: Eqn) -> bool:
    op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
    return isinstance(op, ScanLoop | Cond)


def is_constant(eqn: Eqn) -> bool:
    return eqn.op.effect is None and all(isinstance(a, Literal) for a in eqn.inputs)


def may_save(rule: Rule, eqn: Eqn, marked: Mapping[Atom, Collection[str]]) -> bool:
    """True if the results of an equation may be kept: those of a loop if all that it computes may
    be.
    """
    found = {label for v in eqn.outs for label in marked.get(v, ())}
    op = plain(eqn.op)
    if not isinstance(op, ScanLoop | Cond):
        return op.effect is not None or saves(rule, op, found)
    if found and not saves(rule, None, found):
        return False
    return all(saves_all(rule, graph) for graph in op.graphs())


def by_label(rule: Rule, v: Var, marked: Mapping[Atom, Collection[str]]) -> bool:
    """True if a result of a loop or a branch has a label for which it is kept."""
    return v in marked and saves(rule, None, marked[v])


def saves_all(rule: Rule, graph: Graph) -> bool:
    marked = labels(graph.eqns)
    rest = (e for e in graph.eqns if e.outs and not is_constant(e) and not isinstance(e.op, Name))
    return all(may_save(rule, e, marked) for e in rest)


def looked_into(
    rule: Rule, early: Sequence[Eqn], again: Sequence[Eqn], late: set[Var], results: set[Atom]
) -> tuple[list[Eqn], list[Eqn]]:
    """The equations of the forward half, and those run again, where each loop and branch is two.

    `late` is what the backward half reads, `results` what the forward half returns.
    """
    twice = {e.outs[0]: e for e in again if is_looked_into(e)}
    read = results | {a for e in early for a in e.inputs}
    wanted = late | {a for e in again for a in e.inputs}
    marked = labels(early)
    first, second = [], {v: [e] for e in again for v in e.outs[:1]}
    for eqn in early:
        if not eqn.outs or eqn.outs[0] not in twice:
            first.append(eqn)
            continue
        found = [v for v in eqn.outs if v in wanted and not by_label(rule, v, marked)]
        halves = parted(rule, twice[eqn.outs[0]], found, read)
        first.append(Eqn(halves.first.op, eqn.inputs, halves.first.outs, eqn.source))
        second[eqn.outs[0]] = halves.second
    return first, [e for each in second.values() for e in each]


@final
class Again:
    """The equations of a graph that are run a second time for some of its values.

    `first` are those that are run the first time, `again` those of the second, which read what is
    `saved`, and of the graph's inputs what is in `need`. Prints are among the first alone.
    """

    def __init__(self, rule: Rule, graph: Graph, wanted: Iterable[Atom]) -> None:
        marked, self.same = labels(graph.eqns), unnamed(graph.eqns)
        equal = {m for each in twins(graph.eqns).values() for m in each}
        self.wanted = rename(self.same, tuple(wanted))
        self.need: set[Atom] = set(self.wanted)
        self.saved: dict[Var, None] = {}
        first: list[Eqn] = []
        again: list[Eqn] = []
        read = set(graph.outputs) | {a for e in graph.eqns for a in e.inputs}
        for eqn in reversed(graph.eqns):
            found = [v for v in eqn.outs if v in self.need]
            first.append(eqn)
            if not found or isinstance(eqn.op, Name):
                continue
            if may_save(rule, eqn, marked) and not is_constant(eqn) and eqn not in equal:
                self.saved.update(dict.fromkeys(found))
                continue
            more = renamed([eqn], self.same)
            if is_looked_into(eqn):
                self.saved.update((v, None) for v in found if by_label(rule, v, marked))
                found = [v for v in found if v not in self.saved]
                halves = parted(rule, more[0], found, read)
                first[-1] = Eqn(halves.first.op, eqn.inputs, halves.first.outs, eqn.source)
                self.saved.update(dict.fromkeys(halves.saved))
                more = halves.second
            self.need.update(a for e in more for a in e.inputs if a not in self.saved)
            again += more
        self.first, self.again = tuple(first[::-1]), tuple(again[::-1])


@final
@record
class Halves:
    """A loop or a branch, run twice: the first time with what is saved as further results."""

    first: Eqn
    second: list[Eqn]  # one, if anything is left for it
    saved: list[Var]


def parted(rule: Rule, eqn: Eqn, found: Sequence[Var], read: Collection[Atom]) -> Halves:
    """The two runs of an equation:

    `found` are the results of the second, `read` those of the first.
    """
    op: Any = plain(eqn.op)
    return (part_scan if isinstance(op, ScanLoop) else part_cond)(rule, op, eqn, found, read)


def part_scan(
    rule: Rule, op: ScanLoop, eqn: Eqn, found: Sequence[Var], read: Collection[Atom]
) -> Halves:
    body, n, outs = op.body, op.carry, eqn.outs
    carried = body.inputs[op.consts : op.consts + n]
    stacks = [i for i in range(n, len(outs)) if outs[i] in found]
    on = {i for i in range(n) if outs[i] in found}
    while True:  # what is read of the carry is carried again
        half = Again(rule, body, [body.outputs[i] for i in (*sorted(on), *stacks)])
        grown = on | {i for i, v in enumerate(carried) if v in half.need}
        if grown == on:
            break
        on = grown
    saved = list(half.saved)
    ends = rename(half.same, body.outputs)
    there = {ends[i]: outs[i] for i in reversed(range(n, len(outs))) if ends[i] in half.saved}
    stacked_again = [there.get(v) or Var(stacked(v.type, op.length)) for v in saved]
    direct = {i for i in stacks if ends[i] in half.saved}
    kept = [
        i
        for i in range(n, len(outs))
        if outs[i] in read or i in direct or outs[i] in there.values()
    ]
    more = [(v, y) for v, y in zip(saved, stacked_again, strict=True) if v not in there]
    results = (*body.outputs[:n], *(body.outputs[i] for i in kept), *(v for v, _ in more))
    made = (*outs[:n], *(outs[i] for i in kept), *(y for _, y in more))
    loop = op.of(Graph(body.inputs, half.first, results), op.consts, n)
    first = Eqn(loop, eqn.inputs, made, eqn.source)
    rest = [i for i in (*sorted(on), *stacks) if i not in direct]
    if not rest:
        return Halves(first, [], stacked_again)
    parts = op.parts(list(zip(body.inputs, eqn.inputs, strict=True)))
    consts, elements = (
        [(v, a) for v, a in part if v in half.need] for part in (parts[0], parts[2])
    )
    given = [
        *consts,
        *(parts[1][i] for i in sorted(on)),
        *elements,
        *zip(saved, stacked_again, strict=True),
    ]
    graph = Graph(tuple(v for v, _ in given), half.again, tuple(ends[i] for i in rest))
    again = op.of(without_dead_code(graph), len(consts), len(on))
    made = tuple(outs[i] if outs[i] in found else Var(outs[i].type) for i in rest)
    return Halves(first, [Eqn(again, tuple(a for _, a in given), made, eqn.source)], stacked_again)


def part_cond(
    rule: Rule, op: Cond, eqn: Eqn, found: Sequence[Var], read: Collection[Atom]
) -> Halves:
    outs = [i for i, v in enumerate(eqn.outs) if v in found]
    kept = [i for i, v in enumerate(eqn.outs) if v in read]
    slots: list[ArrayType] = []
    firsts, seconds = [], []
    halves = [Again(rule, b, [b.outputs[i] for i in outs]) for b in op.branches]
    placed = [slots_for(tuple(h.saved), slots) for h in halves]
    for b, h, places in zip(op.branches, halves, placed, strict=True):
        saved = tuple(h.saved)
        graph = Graph(b.inputs, h.first, (*(b.outputs[i] for i in kept), *saved))
        firsts.append(without_dead_code(with_slots(graph, len(kept), places, slots)))
        handed = [saved[places.index(i)] if i in places else Var(t) for i, t in enumerate(slots)]
        seconds.append(without_dead_code(Graph((*b.inputs, *handed), h.again, h.wanted)))
    outer = [Var(t) for t in slots]
    first = Eqn(Cond(tuple(firsts)), eqn.inputs, (*(eqn.outs[i] for i in kept), *outer), eqn.source)
    if not outs:
        return Halves(first, [], outer)
    given = (*eqn.inputs[1:], *outer)
    used = [i for i in range(len(given)) if any(g.inputs[i] in read_by(g) for g in seconds)]
    again = Cond(tuple(Graph(tuple(g.inputs[i] for i in used), g.eqns, g.outputs) for g in seconds))
    made = tuple(eqn.outs[i] for i in outs)
    return Halves(
        first, [Eqn(again, (eqn.inputs[0], *(given[i] for i in used)), made, eqn.source)], outer
    )


# ------------------------------------------------------------------------------------------- twins
# Values that are equal to others at some place, which their derivatives ask for.


def twins(eqns: Sequence[Eqn]) -> dict[Eqn, list[Eqn]]:
    """For the equations that make x, where some other asks whether x ==
    max(x): those that make max(x).

    A value that is computed again may differ in its last bit, if it is fused with other
    work than before. So of two values that are equal at some place, either both are
    computed again or the first is kept.
    """
    makers = {v: e for e in eqns for v in e.outs}
    found: dict[Eqn, list[Eqn]] = {}
    for e in eqns:
        if e.op.name in ("eq", "ne") and e.inputs[0].type.dtype in INEXACT:
            a, b = (seen_through(makers, x) for x in e.inputs)
            for x, y in ((a, b), (b, a)):
                source, choice = makers.get(x), makers.get(y)  # type: ignore[arg-type]
                if source is None or choice is None or source is choice:
                    continue
                if x in {
                    seen_through(makers, i) for i in choice.inputs
                } and choice not in found.get(source, ()):
                    found.setdefault(source, []).append(choice)
    return found


def seen_through(makers: Mapping[Var, Eqn], atom: Atom) -> Atom:
    """The value that another is a view of."""
    while isinstance(atom, Var) and (eqn := makers.get(atom)) is not None:
        if not eqn.op.is_view:
            return atom
        atom = eqn.inputs[eqn.outs.index(atom)]
    return atom
