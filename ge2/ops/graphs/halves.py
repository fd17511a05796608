"""Forward and backward halves of several graphs, one of which will run, made to
hand over the same types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ge2.base.dtypes import BOOL, INEXACT
from ge2.base.source import Source
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Flags,
    Graph,
    GraphOp,
    Literal,
    Op,
    Reversing,
    Var,
    rename,
)
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import WHERE, ConvertElementType
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, StopGradient

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


# ----------------------------------------------------------------------------------------- untaken
# Branches of a batched cond: all are computed, and derivatives see those that are taken.
#
# Zero times an infinite derivative is NaN, so it is not enough to select among results: cotangents
# are cut off where they enter a branch and where they leave it
# (https://github.com/jax-ml/jax/issues/1052).


FLAG: Final = ArrayType((), BOOL)


def shielded(
    branch: Graph, batched: Flags, calls: tuple[type[GraphOp], ...]
) -> tuple[Graph, Flags]:
    """The branch with two further inputs, before its own: if an element takes
    it, and if any element does.

    `batched` says which inputs differ from element to element; the second result says it of the
    outputs. Operations of the kinds `calls` are rebuilt around their own graph by a method `of`.
    """
    shield = Shield(branch, batched, calls)
    for eqn in branch.eqns:
        shield.equation(eqn)
    outputs = rename(shield.names, branch.outputs)
    graph = Graph((shield.taken, shield.some, *shield.inputs), tuple(shield.eqns), outputs)
    return graph, tuple(a in shield.split for a in outputs)


class Shield:
    """A branch as it is rewritten. `split` are the values that differ from element to element.

    A shared value stays shared where that is right: its cotangent is the sum of all elements', each
    of which must then be zero where the branch is not taken.
    """

    def __init__(self, branch: Graph, batched: Flags, calls: tuple[type[GraphOp], ...]) -> None:
        self.taken, self.some, self.calls = Var(FLAG), Var(FLAG), calls
        self.inputs = tuple(Var(v.type) for v in branch.inputs)
        self.eqns: list[Eqn] = []
        self.names: dict[Var, Atom] = {}
        self.split: set[Atom] = {v for v, b in zip(self.inputs, batched, strict=True) if b}
        self.live: set[Atom] = {v for v in self.inputs if v.type.dtype in INEXACT}
        for old, new in zip(branch.inputs, self.inputs, strict=True):
            self.names[old] = self.gated(new, self.taken if new in self.split else self.some, None)

    def equation(self, eqn: Eqn) -> None:
        op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
        inputs = rename(self.names, eqn.inputs)
        if isinstance(op, self.calls):
            self.call(op, inputs, eqn)
            return
        mixed = any(a in self.split for a in inputs)
        shared = mixed and any(a in self.live and a not in self.split for a in inputs)
        product = isinstance(op, DotGeneral)
        moves = op.linear and not isinstance(op, Pointlike)
        late = shared and (moves or product or isinstance(op, Gather))
        if shared and not late:
            inputs = tuple(
                a if a in self.split else self.gated(a, self.taken, eqn.source) for a in inputs
            )
        elif late and product:
            inputs = tuple(self.zeroed(a, eqn.source) if a in self.split else a for a in inputs)
        outs = self.record(op, inputs, tuple(v.type for v in eqn.outs), eqn.source)
        found = [self.gated(v, self.taken, eqn.source) if late else v for v in outs]
        self.names.update(zip(eqn.outs, found, strict=True))

    def call(self, op: GraphOp, inputs: tuple[Atom, ...], eqn: Eqn) -> None:
        graph, split = shielded(op.graphs()[0], tuple(a in self.split for a in inputs), self.calls)
        inner: Op = op.of(graph)  # type: ignore[attr-defined]
        outs = self.record(
            inner, (self.taken, self.some, *inputs), tuple(v.type for v in eqn.outs), eqn.source
        )
        self.split.difference_update(v for v, s in zip(outs, split, strict=True) if not s)
        self.names.update(zip(eqn.outs, outs, strict=True))

    def record(
        self, op: Op, inputs: tuple[Atom, ...], types: tuple[ArrayType, ...], source: Source | None
    ) -> tuple[Var, ...]:
        outs = tuple(Var(t) for t in types)
        self.eqns.append(Eqn(op, inputs, outs, source))
        if any(a in self.split or a is self.taken for a in inputs):
            self.split.update(outs)
        if any(a in self.live for a in inputs):
            self.live.update(v for v in outs if v.type.dtype in INEXACT)
        return outs

    def gated(self, x: Atom, mask: Var, source: Source | None) -> Atom:
        """The same value, whose cotangent is zero where the mask does not hold."""
        if x not in self.live:
            return x
        (stopped,) = self.record(StopGradient(), (x,), (x.type,), source)
        return self.chosen(mask, x, stopped, source)

    def zeroed(self, x: Atom, source: Source | None) -> Atom:
        """Zero where the branch is not taken: an infinity there times a
        cotangent of zero would be NaN.
        """
        zero = Literal.of(x.type.dtype.type(0))
        return self.chosen(self.taken, x, zero, source) if x.type.dtype in INEXACT else x

    def chosen(self, mask: Var, x: Atom, other: Atom, source: Source | None) -> Atom:
        strong = ArrayType(x.type.shape, x.type.dtype)
        (y,) = self.record(WHERE, (mask, x, other), (strong,), source)
        if not x.type.weak:
            return y
        return self.record(ConvertElementType(x.type.dtype, weak=True), (y,), (x.type,), source)[0]
