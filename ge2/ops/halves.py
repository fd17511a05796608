"""Forward and backward halves of several graphs, one of which will run, made to
hand over the same types.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var, rename
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.shape import BroadcastInDim

Graphs = tuple[Graph, ...]
Half = tuple[Graph, Graph, int]  # forward, backward, and how many residuals the one hands the other


def joined_halves(halves: Sequence[Half], outputs: int) -> tuple[Graphs, Graphs, int, Dims]:
    """The forward graphs, the backward graphs, how many residuals, and what the
    backward graphs read beside.

    Those inputs and results of the forward graphs, by number, that some backward graph reads are
    given to all of them, before the residuals. A residual of one graph takes the place that others
    have for theirs, if it has the same type; an empty place is zeros.
    """
    halves = [reading_ends(*half) for half in halves]
    slots: list[ArrayType] = []
    placed = [slots_for(f.outputs[outputs:], slots) for f, _, _ in halves]
    forward = [
        with_slots(f, outputs, places, slots)
        for (f, _, _), places in zip(halves, placed, strict=True)
    ]
    ends = len(halves[0][0].inputs) + outputs
    again = [i for i in range(ends) if any(b.inputs[i] in read_by(b) for _, b, _ in halves)]
    backward = []
    for (_, b, n), places in zip(halves, placed, strict=True):
        kept = [
            b.inputs[ends + places.index(i)] if i in places else Var(t) for i, t in enumerate(slots)
        ]
        inputs = (*(b.inputs[i] for i in again), *kept, *b.inputs[ends + n :])
        backward.append(Graph(inputs, b.eqns, b.outputs))
    return tuple(forward), tuple(backward), len(slots), tuple(again)


def read_by(graph: Graph) -> set[Atom]:
    return {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)


def reading_ends(forward: Graph, backward: Graph, count: int) -> Half:
    """Halves of which the second is given inputs and results again, so that
    none of them is a residual.
    """
    at = len(forward.outputs) - count
    results = {a: Var(a.type) for a in forward.outputs[:at]}
    ends: dict[Atom, Atom] = {**results, **{v: v for v in forward.inputs}}
    pairs = list(zip(backward.inputs, forward.outputs[at:], strict=False))
    names = {v: ends[a] for v, a in pairs if a in ends}
    rest = [(v, a) for v, a in pairs if a not in ends]
    eqns = tuple(Eqn(e.op, rename(names, e.inputs), e.outs, e.source) for e in backward.eqns)
    given = [results.pop(a) if a in results else Var(a.type) for a in forward.outputs[:at]]
    read = (*forward.inputs, *given, *(v for v, _ in rest), *backward.inputs[count:])
    first = Graph(forward.inputs, forward.eqns, (*forward.outputs[:at], *(a for _, a in rest)))
    return first, Graph(read, eqns, rename(names, backward.outputs)), len(rest)


def slots_for(residuals: Sequence[Atom], slots: list[ArrayType]) -> list[int]:
    """A place of its own for each residual, among those there are or a new one."""
    places: list[int] = []
    for a in residuals:
        free = (i for i, t in enumerate(slots) if t == a.type and i not in places)
        places.append(next(free, len(slots)))
        if places[-1] == len(slots):
            slots.append(a.type)
    return places


def with_slots(
    graph: Graph, outputs: int, places: Sequence[int], slots: Sequence[ArrayType]
) -> Graph:
    """The graph, its residuals in their places and zeros in the others."""
    zeros = {i: zero_equation(t) for i, t in enumerate(slots) if i not in places}
    kept = [
        zeros[i].outs[0] if i in zeros else graph.outputs[outputs + places.index(i)]
        for i in range(len(slots))
    ]
    return Graph(graph.inputs, (*graph.eqns, *zeros.values()), (*graph.outputs[:outputs], *kept))


def zero_equation(type: ArrayType) -> Eqn:
    zero = (Literal.of(type.dtype.type(0)),)
    op: Op = (
        ConvertElementType(type.dtype, weak=True) if type.weak else BroadcastInDim(type.shape, ())
    )
    return Eqn(op, zero, (Var(type),))
