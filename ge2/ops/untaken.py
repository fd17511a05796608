"""Branches of a batched cond: all are computed, and derivatives see those that are taken.

Zero times an infinite derivative is NaN, so it is not enough to select among results: cotangents
are cut off where they enter a branch and where they leave it
(https://github.com/jax-ml/jax/issues/1052).
"""

from __future__ import annotations

from typing import Final

from ge2.base.dtypes import BOOL, INEXACT
from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Eqn, Flags, Graph, GraphOp, Literal, Op, Reversing, Var, rename
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import WHERE, ConvertElementType, Pointlike
from ge2.ops.index import Gather
from ge2.ops.shape import StopGradient

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
