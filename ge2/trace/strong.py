"""Graphs without Python numbers: what a loop computes again and again is
computed beside its arrays.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ge2.ir import ArrayType, Atom, Eqn, Graph, GraphOp, Literal, Op, Var, type_of
from ge2.ops.elementwise import ConvertElementType
from ge2.trace.tracer import is_traced


def strong_type(t: ArrayType) -> ArrayType:
    return ArrayType(t.shape, t.dtype) if t.weak else t


def strong_value(x: Any) -> Any:
    """A Python number as a scalar array of its dtype."""
    t = type_of(x)
    if not t.weak:
        return x
    return x.cast(t.dtype, False) if is_traced(x) else t.dtype.type(x)


def strong(graph: Graph) -> Graph:
    """The same graph on arrays alone: its weak values have the dtypes
    that they had as Python numbers.
    """
    return Strengthening(graph).run()


class Strengthening:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.env: dict[Var, Atom] = {}
        self.eqns: list[Eqn] = []

    def run(self) -> Graph:
        inputs = tuple(map(self.fresh, self.graph.inputs))
        for eqn in self.graph.eqns:
            self.add(eqn)
        outputs = tuple(map(self.atom, self.graph.outputs))
        return Graph(inputs, tuple(self.eqns), outputs, self.graph.consts)

    def fresh(self, v: Var) -> Var:
        if not v.type.weak:
            return v
        new = self.env[v] = Var(strong_type(v.type))
        return new

    def atom(self, a: Atom) -> Atom:
        if isinstance(a, Var):
            return self.env.get(a, a)
        return Literal(a.type.dtype.type(a.value), strong_type(a.type)) if a.type.weak else a

    def add(self, eqn: Eqn) -> None:
        if not any(a.type.weak for a in (*eqn.inputs, *eqn.outs)) and not isinstance(
            eqn.op, GraphOp
        ):
            if self.env:
                eqn = Eqn(eqn.op, tuple(map(self.atom, eqn.inputs)), eqn.outs, eqn.source)
            self.eqns.append(eqn)
            return
        op, inputs = strong_op(eqn.op), tuple(map(self.atom, eqn.inputs))
        if isinstance(op, ConvertElementType) and inputs[0].type == strong_type(eqn.outs[0].type):
            self.env[eqn.outs[0]] = inputs[0]
            return
        types = op.infer(*(a.type for a in inputs))
        wanted = [self.fresh(v) for v in eqn.outs]
        made = tuple(v if v.type == t else Var(t) for v, t in zip(wanted, types, strict=True))
        self.eqns.append(Eqn(op, inputs, made, eqn.source))
        for v, y in zip(wanted, made, strict=True):
            if v is not y:  # integers that Python divides, say
                self.eqns.append(Eqn(ConvertElementType(v.type.dtype), (y,), (v,), eqn.source))


def strong_op(op: Op) -> Op:
    if isinstance(op, ConvertElementType):
        return replace(op, weak=False) if op.weak else op
    if not isinstance(op, GraphOp):
        return op
    changed: dict[str, Any] = {}
    for f in fields(op):  # type: ignore[arg-type]
        value = getattr(op, f.name)
        if isinstance(value, Graph):
            changed[f.name] = strong(value)
        elif isinstance(value, tuple) and value and all(isinstance(g, Graph) for g in value):
            changed[f.name] = tuple(map(strong, value))
    return replace(op, **changed)  # type: ignore[type-var]
