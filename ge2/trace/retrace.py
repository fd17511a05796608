"""Graphs made smaller without changing what they compute: equal
equations once, unread ones not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOATS
from ge2.base.interpreter import collector_paused
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    GraphOp,
    Literal,
    Op,
    Var,
    type_of,
    without_dead_code,
)
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.trace.tracer import is_traced

# ------------------------------------------------------------------------------------------ strong
# Graphs without Python numbers: what a loop computes again and again is
# computed beside its arrays.


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


# ------------------------------------------------------------------------------------------- exact
# Equations that need not be: what a derivative multiplies by one, negates
# twice, or spreads from a number.
#
# Only what holds for every value, NaN, infinities and signed zeros included. Complex numbers are left
# alone: (inf + 0j) * (1 + 0j) is not inf + 0j.


# the equations kept so far that a rule may ask for: `neg`, and broadcasts of literals
Known = dict[Var, Eqn]
Rule = Callable[[Op, Sequence[Atom], ArrayType, Known], Atom | None]
COMMUTATIVE = frozenset(("add", "mul"))


def is_one(atom: Atom) -> bool:
    return type(atom) is Literal and atom.type.dtype in FLOATS and atom.value == 1


def product(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    a, b = inputs
    if is_one(b) and a.type == out:
        return a
    if is_one(a) and b.type == out:
        return b
    return folded(op, inputs, out, known)


def quotient(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    return inputs[0] if is_one(inputs[1]) and inputs[0].type == out else None


def negation(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    (x,) = inputs
    before = known.get(x) if type(x) is Var else None
    if before is not None and before.op is op:
        return before.inputs[0]
    return folded(op, inputs, out, known)


def folded(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    """The literal that an operation on literals gives, if it is a float."""
    if out.dtype not in FLOATS or any(
        type(a) is not Literal or a.type.dtype in COMPLEX for a in inputs
    ):
        return None
    with np.errstate(all="ignore"):
        y = np.asarray(op.reference(*(np.asarray(a.value, a.type.dtype) for a in inputs)))  # type: ignore[union-attr]
    number: Any = y.item() if out.weak else y.astype(out.dtype, copy=False)[()]
    return Literal(number, out)


RULES: dict[str, Rule] = {
    "mul": product,
    "div": quotient,
    "neg": negation,
    "add": folded,
    "sub": folded,
    "convert_element_type": folded,
}


def remember(eqn: Eqn, known: Known) -> None:
    """Keeps what a later rule may ask for."""
    name = eqn.op.name
    if name == "neg" or (name == "broadcast_in_dim" and type(eqn.inputs[0]) is Literal):
        known[eqn.outs[0]] = eqn


def with_scalars(op: Op, inputs: tuple[Atom, ...], known: Known) -> tuple[Atom, ...]:
    """Elementwise operations read a number that was spread over their shape as the number it is."""
    if op.name not in BY_NAME or len(inputs) < 2:
        return inputs
    plain = tuple([_scalar(a, known) for a in inputs])
    return plain if any(a.type.shape for a in plain) else inputs


def _scalar(atom: Atom, known: Known) -> Atom:
    made = known.get(atom) if type(atom) is Var else None
    return made.inputs[0] if made is not None and made.op.name == "broadcast_in_dim" else atom


# ----------------------------------------------------------------------------------------- retrace


@collector_paused
def tidy(graph: Graph) -> Graph:
    """The graph as every transform leaves it."""
    return without_dead_code(cse(graph))


def cse(graph: Graph) -> Graph:
    """Each equation whose operation and inputs were met before reads the earlier results instead.

    What `exact` knows to be no work at all goes on the way.
    """
    env: dict[Any, Atom] = {}
    seen: dict[Any, tuple[Var, ...]] = {}
    known: Known = {}
    eqns: list[Eqn] = []
    get = env.get
    for eqn in graph.eqns:
        op, inputs = eqn.op, eqn.inputs
        if env:
            inputs = tuple([get(a, a) for a in inputs])
        if known:
            inputs = with_scalars(op, inputs, known)
        rule = RULES.get(op.name)
        if rule is not None and (found := rule(op, inputs, eqn.outs[0].type, known)) is not None:
            env[eqn.outs[0]] = found
            continue
        if not op.effect:
            key = (
                frozenset(inputs)
                if op.name in COMMUTATIVE and eqn.outs[0].type.dtype.kind != "c"
                else inputs
            )
            outs = seen.setdefault((op, key), eqn.outs)
            if outs is not eqn.outs:
                env.update(zip(eqn.outs, outs, strict=True))
                continue
        eqns.append(eqn if inputs == eqn.inputs else Eqn(op, inputs, eqn.outs, eqn.source))
        remember(eqns[-1], known)
    if not env and not known:
        return graph
    return Graph(graph.inputs, tuple(eqns), tuple([get(a, a) for a in graph.outputs]), graph.consts)
