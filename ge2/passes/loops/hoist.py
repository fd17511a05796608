"""Scans without what nobody reads; what no round changes is computed before
them, what is gathered after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from ge2.ir import Atom, Eqn, Graph, Literal, Var, rename, without_dead_code
from ge2.ir.op import FREE
from ge2.ops.dot import DotGeneral
from ge2.ops.loops import ScanLoop
from ge2.ops.shape import BroadcastInDim, Transpose
from ge2.passes.loops.sink import late


def trim(graph: Graph) -> Graph:
    if not any(isinstance(e.op, ScanLoop) for e in graph.eqns):
        return graph
    read: set[Atom] = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    makers = {v: e for e in graph.eqns for v in e.outs}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if isinstance(eqn.op, ScanLoop) and not any(e.op.effect for e in eqn.op.body.eqns):
            eqns += Scan(eqn, read, makers).run()
        else:
            eqns.append(eqn)
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def by_rows(eqn: Eqn) -> bool:
    """Whether it is a matrix times a vector."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or [a.type.ndim for a in eqn.inputs] != [2, 1]:
        return False
    return op.contract == ((1,), (0,))


@final
class Scan:
    """One scan, as lists that get shorter."""

    def __init__(self, eqn: Eqn, read: set[Atom], makers: dict[Var, Eqn]) -> None:
        assert isinstance(eqn.op, ScanLoop)
        self.eqn, self.op, self.read, self.makers = eqn, eqn.op, read, makers
        self.body = eqn.op.body
        consts, carry, elements = eqn.op.parts(list(zip(self.body.inputs, eqn.inputs, strict=True)))
        self.consts, self.elements = consts, elements
        outs = list(zip(self.body.outputs, eqn.outs, strict=True))
        self.carry = [(*pair, *out) for pair, out in zip(carry, outs, strict=False)]
        self.results = outs[eqn.op.carry :]
        self.before: list[Eqn] = []

    def run(self) -> list[Eqn]:
        self.results = [(a, v) for a, v in self.results if v in self.read]
        self.drop_carries()
        self.unchanged()
        self.filled()
        self.hoist()
        self.turn()
        after = late(self)
        self.drop_inputs()
        return [*self.before, self.made(), *after]

    def outputs(self) -> list[Atom]:
        return [*(out for _, _, out, _ in self.carry), *(a for a, _ in self.results)]

    def live(self, outputs: Sequence[Atom]) -> set[Atom]:
        """The inputs of a round that some of its outputs depend on."""
        graph = without_dead_code(Graph(self.body.inputs, self.body.eqns, tuple(outputs)))
        return {a for e in graph.eqns for a in e.inputs} | set(outputs)

    def drop_carries(self) -> None:
        """Those that are read neither after the loop nor by what is."""
        kept = [c for c in self.carry if c[3] in self.read]
        while True:
            live = self.live([*(c[2] for c in kept), *(a for a, _ in self.results)])
            grown = [c for c in self.carry if c in kept or c[0] in live]
            if len(grown) == len(kept):
                break
            kept = grown
        self.carry = kept

    def unchanged(self) -> None:
        """A carry that no round changes, and that is not read after the loop, is a constant."""
        still = [c for c in self.carry if c[2] is c[0] and c[3] not in self.read]
        self.carry = [c for c in self.carry if c not in still]
        self.consts += [(c[0], c[1]) for c in still]

    def filled(self) -> None:
        """Elements that are all the same number are made of it in each round."""
        made: list[Eqn] = []
        for inner, outer in list(self.elements):
            maker = self.makers.get(outer) if isinstance(outer, Var) else None
            if maker is None or not isinstance(maker.op, BroadcastInDim) or maker.op.dims:
                continue
            (number,) = maker.inputs
            if isinstance(number, Literal) and not number.type.weak:
                self.elements.remove((inner, outer))
                made.append(
                    Eqn(BroadcastInDim(inner.type.shape, ()), (number,), (inner,), self.eqn.source)
                )
        if made:
            self.body = Graph(self.body.inputs, (*made, *self.body.eqns), self.body.outputs)

    def hoist(self) -> None:
        """What depends on constants alone is computed before the loop."""
        outer: dict[Var, Atom] = dict(self.consts)
        stays: list[Eqn] = []
        moved: list[Eqn] = []
        for eqn in self.body.eqns:
            known = all(isinstance(a, Literal) or a in outer for a in eqn.inputs)
            reads = any(isinstance(a, Var) for a in eqn.inputs)
            if not (known and reads) or eqn.op.effect or any(v.type.weak for v in eqn.outs):
                stays.append(eqn)
                continue
            fresh = tuple(Var(v.type) for v in eqn.outs)
            moved.append(Eqn(eqn.op, rename(outer, eqn.inputs), fresh, eqn.source))
            outer.update(zip(eqn.outs, fresh, strict=True))
            stays.append(eqn)
        heavy = [
            e for e in self.body.eqns if e.op.cost is not FREE and all(v in outer for v in e.outs)
        ]
        if not heavy:
            return
        out = {v for e in heavy for v in e.outs}
        self.before = moved
        self.consts += [(v, outer[v]) for e in heavy for v in e.outs]
        self.body = Graph(
            self.body.inputs, tuple(e for e in stays if out.isdisjoint(e.outs)), self.body.outputs
        )

    def turn(self) -> None:
        """A constant matrix that multiplies a vector in each round is laid in columns, once."""
        outer, eqns = dict(self.consts), []
        for eqn in self.body.eqns:
            matrix = eqn.inputs[0] if eqn.inputs else None
            if not (isinstance(matrix, Var) and matrix in outer and by_rows(eqn)):
                eqns.append(eqn)
                continue
            shape = (matrix.type.shape[1], matrix.type.shape[0])
            turned, inner = (Var(matrix.type.with_shape(shape)) for _ in range(2))
            self.before.append(Eqn(Transpose((1, 0)), (outer[matrix],), (turned,), eqn.source))
            self.consts.append((inner, turned))
            op = replace(eqn.op, contract=((0,), (0,)))  # type: ignore[type-var]
            eqns.append(Eqn(op, (inner, eqn.inputs[1]), eqn.outs, eqn.source))
        self.body = Graph(self.body.inputs, tuple(eqns), self.body.outputs)

    def drop_inputs(self) -> None:
        live = self.live(self.outputs())
        self.consts = [(inner, outer) for inner, outer in self.consts if inner in live]
        self.elements = [(inner, outer) for inner, outer in self.elements if inner in live]

    def made(self) -> Eqn:
        inner = (
            *(v for v, _ in self.consts),
            *(c[0] for c in self.carry),
            *(v for v, _ in self.elements),
        )
        given = (
            *(a for _, a in self.consts),
            *(c[1] for c in self.carry),
            *(a for _, a in self.elements),
        )
        body = without_dead_code(Graph(inner, self.body.eqns, tuple(self.outputs())))
        op = self.op.of(body, len(self.consts), len(self.carry))
        return Eqn(
            op, given, (*(c[3] for c in self.carry), *(v for _, v in self.results)), self.eqn.source
        )
