"""Reverse-mode differentiation, from graph to one joint graph of values and cotangents."""

from __future__ import annotations

from typing import Any

from ge2.base.dtypes import INEXACT, python_type
from ge2.base.errors import VerifyError
from ge2.base.gc_pause import collector_paused
from ge2.ir import Atom, Eqn, Flags, Graph, Literal, Var
from ge2.ir.op import Derive, GraphOp, Op
from ge2.trace import Trace, Tracer, finish, tidy
from ge2.transforms.constants import embedded
from ge2.transforms.rule_errors import blamed, entries
from ge2.transforms.zeros import zero


@collector_paused
def vjp_graph(
    graph: Graph, wanted: Flags, derive: Derive, given: Flags | None = None, unit: bool = False
) -> Graph:
    """The graph of (inputs, cotangents of the given outputs) to (outputs,
    cotangents of the wanted inputs).

    Unless `given` says otherwise, a cotangent is given for every inexact output. With `unit` those
    given are 1, known beforehand, and no inputs.
    """
    given = tuple(a.type.dtype in INEXACT for a in graph.outputs) if given is None else given
    trace = Trace("a derivative")
    with trace:
        active = active_values(graph, wanted) & needed_values(graph, given)
        saved = [with_residuals(trace, e, active, derive) for e in graph.eqns]
        trace.eqns = list(saved)
        cts = Cotangents(trace)
        seeds = [
            cts.seed(out, unit)
            for out, is_given in zip(graph.outputs, given, strict=True)
            if is_given
        ]
        for eqn in reversed(saved):
            if any(v in cts.found for v in eqn.outs):
                pull_back(trace, eqn, cts, active)
        trace.source = None
        grads = [cts.get(v).atom for v, w in zip(graph.inputs, wanted, strict=True) if w]
    inputs = (*graph.inputs, *(s for s in seeds if isinstance(s, Var)))
    closed = finish(trace, inputs, (*graph.outputs, *grads))
    graph = embedded(closed, "a derivative rule")
    return tidy(graph)


def active_values(graph: Graph, wanted: Flags) -> set[Atom]:
    """The values that depend on a wanted input in a way that has a derivative."""
    active: set[Atom] = {
        v for v, w in zip(graph.inputs, wanted, strict=True) if w and v.type.dtype in INEXACT
    }
    for eqn in graph.eqns:
        if not active.isdisjoint(eqn.inputs) and eqn.op.name != "stop_gradient":
            active.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    return active


def needed_values(graph: Graph, given: Flags) -> set[Atom]:
    """The values that a cotangent of a given output flows through; what it
    never reaches needs no rule.
    """
    needed: set[Atom] = {a for a, is_given in zip(graph.outputs, given, strict=True) if is_given}
    for eqn in reversed(graph.eqns):
        if eqn.op.name != "stop_gradient" and any(
            v in needed and v.type.dtype in INEXACT for v in eqn.outs
        ):
            needed.update(eqn.inputs)
    return needed


def with_residuals(trace: Trace, eqn: Eqn, active: set[Atom], derive: Derive) -> Eqn:
    """The equation, also yielding what its derivative reads."""
    if not isinstance(eqn.op, GraphOp) or active.isdisjoint(eqn.outs):
        return eqn
    trace.source = eqn.source
    with blamed(eqn):
        op: Op = eqn.op.saving(tuple(a in active for a in eqn.inputs), derive)
    if op is eqn.op:
        return eqn
    types = op.infer(*(a.type for a in eqn.inputs))
    return Eqn(op, eqn.inputs, (*eqn.outs, *(Var(t) for t in types[len(eqn.outs) :])), eqn.source)


def pull_back(trace: Trace, eqn: Eqn, cts: Cotangents, active: set[Atom]) -> None:
    """Adds to the cotangents of the inputs what those of the results give them."""
    wanted = tuple([a in active for a in eqn.inputs])
    if not any(wanted):
        return
    trace.source = eqn.source
    ys = [Tracer(trace, v) for v in eqn.outs]
    xs = [Tracer(trace, a) for a in eqn.inputs]
    given = [cts.found.pop(v, None) for v in eqn.outs]
    with blamed(eqn):
        found = entries(eqn.op.vjp(given, ys, xs, wanted), len(xs), eqn.op, "vjp")
    for atom, ct, want in zip(eqn.inputs, found, wanted, strict=True):
        if want and ct is not None:
            cts.add(atom, trace.lift(ct), eqn)


class Cotangents:
    """The sums of the cotangents found so far."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.found: dict[Any, Any] = {}

    def seed(self, out: Atom, unit: bool) -> Atom:
        """The cotangent that the derivative begins with."""
        t = out.type
        atom: Atom = (
            Literal(python_type(t.dtype)(1) if t.weak else t.dtype.type(1), t) if unit else Var(t)
        )
        self.add(out, Tracer(self.trace, atom))
        return atom

    def add(self, atom: Atom, ct: Any, eqn: Eqn | None = None) -> None:
        t = ct.type
        if t != atom.type:
            if t.shape != atom.type.shape or t.dtype != atom.type.dtype:
                raise VerifyError(
                    f"the derivative of {eqn and eqn.op} gives {t} for {atom.type}",
                    where=eqn and eqn.source,
                )
            ct = ct.cast(atom.type.dtype, atom.type.weak)
        if isinstance(atom, Var):
            before = self.found.get(atom)
            self.found[atom] = ct if before is None else before + ct

    def get(self, var: Var) -> Any:
        ct = self.found.get(var)
        return self.trace.lift(zero(var.type)) if ct is None else ct
