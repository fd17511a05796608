"""Reverse-mode differentiation, from graph to one joint graph of values and cotangents."""

from __future__ import annotations

from typing import Any

from ge2.base.dtypes import INEXACT
from ge2.base.errors import VerifyError
from ge2.base.pause import collector_paused
from ge2.ir import Atom, Eqn, Flags, Graph, Var
from ge2.ir.op import Derive, GraphOp, Op
from ge2.trace import Trace, Tracer, finish, tidy


@collector_paused
def vjp_graph(graph: Graph, wanted: Flags, derive: Derive, given: Flags | None = None) -> Graph:
    """The graph of (inputs, cotangents of the given outputs) to (outputs, cotangents of the wanted inputs).

    Unless `given` says otherwise, a cotangent is given for every inexact output.
    """
    given = tuple(a.type.dtype in INEXACT for a in graph.outputs) if given is None else given
    trace = Trace("a derivative")
    with trace:
        active = active_values(graph, wanted)
        saved = [with_residuals(e, active, derive) for e in graph.eqns]
        trace.eqns = list(saved)
        cts, seeds = Cotangent(trace), []
        for out, is_given in zip(graph.outputs, given, strict=True):
            if is_given:
                seeds.append(Var(out.type))
                cts.add(out, Tracer(trace, seeds[-1]))
        for eqn in reversed(saved):
            if any(v in cts.found for v in eqn.outs):
                pull_back(trace, eqn, cts, active)
        trace.source = None
        grads = [cts.get(v).atom for v, w in zip(graph.inputs, wanted, strict=True) if w]
    closed = finish(trace, (*graph.inputs, *seeds), (*graph.outputs, *grads))
    if closed.captured:
        raise VerifyError("a derivative rule used a value from outside its equation", where=closed.graph)
    return tidy(closed.graph)


def active_values(graph: Graph, wanted: Flags) -> set[Atom]:
    """The values that depend on a wanted input in a way that has a derivative."""
    active: set[Atom] = {v for v, w in zip(graph.inputs, wanted, strict=True) if w and v.type.dtype in INEXACT}
    for eqn in graph.eqns:
        if not active.isdisjoint(eqn.inputs) and eqn.op.name != "stop_gradient":
            active.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    return active


def with_residuals(eqn: Eqn, active: set[Atom], derive: Derive) -> Eqn:
    """The equation, also yielding what its derivative reads."""
    if not isinstance(eqn.op, GraphOp) or active.isdisjoint(eqn.outs):
        return eqn
    op: Op = eqn.op.saving(tuple(a in active for a in eqn.inputs), derive)
    if op is eqn.op:
        return eqn
    types = op.infer(*(a.type for a in eqn.inputs))
    return Eqn(op, eqn.inputs, (*eqn.outs, *(Var(t) for t in types[len(eqn.outs) :])), eqn.source)


def pull_back(trace: Trace, eqn: Eqn, cts: Cotangent, active: set[Atom]) -> None:
    wanted = tuple([a in active for a in eqn.inputs])
    if not any(wanted):
        return
    trace.source = eqn.source
    ys = [Tracer(trace, v) for v in eqn.outs]
    xs = [Tracer(trace, a) for a in eqn.inputs]
    found = eqn.op.vjp([cts.found.pop(v, None) for v in eqn.outs], ys, xs, wanted)  # type: ignore[arg-type]
    for atom, ct, want in zip(eqn.inputs, found, wanted, strict=True):
        if want and ct is not None:
            cts.add(atom, ct, eqn)


class Cotangent:
    """The sums of the cotangents found so far."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.found: dict[Any, Any] = {}

    def add(self, atom: Atom, ct: Any, eqn: Eqn | None = None) -> None:
        if ct.type != atom.type:
            if ct.type.shape != atom.type.shape or ct.type.dtype != atom.type.dtype:
                raise VerifyError(f"the derivative of {eqn and eqn.op} gives {ct.type} for {atom.type}", where=eqn and eqn.source)
            ct = ct.cast(atom.type.dtype, atom.type.weak)
        if isinstance(atom, Var):
            before = self.found.get(atom)
            self.found[atom] = ct if before is None else before + ct

    def get(self, var: Var) -> Any:
        ct = self.found.get(var)
        return Tracer(self.trace, var).zeros() if ct is None and not var.type.weak else self.weak_zero(var) if ct is None else ct

    def weak_zero(self, var: Var) -> Tracer:
        return self.trace.lift(var.type.dtype.type(0)).cast(var.type.dtype, weak=True)  # type: ignore[no-any-return]
