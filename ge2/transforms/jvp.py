"""Forward-mode differentiation, from graph to the graph of values and tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge2.base.dtypes import INEXACT
from ge2.base.errors import VerifyError
from ge2.base.gc_pause import collector_paused
from ge2.ir import Atom, Eqn, Flags, Graph, Literal, Var, rename
from ge2.ir.op import Derive, GraphOp, Op
from ge2.trace import Trace, Tracer, finish, run, stage, tidy
from ge2.trace.stage import Input
from ge2.transforms.constants import embedded
from ge2.transforms.rule_errors import blamed, entries
from ge2.transforms.vjp import vjp_graph
from ge2.transforms.zeros import zero


@collector_paused
def jvp_graph(graph: Graph, active: Flags, derive: Derive) -> Graph:
    """The graph of (inputs, tangents of the active ones) to (outputs, tangents
    of the inexact outputs).
    """
    trace = Trace("a derivative")
    with trace:
        ts: dict[Any, Any] = {}
        seeds = []
        for v, is_active in zip(graph.inputs, active, strict=True):
            if is_active:
                seeds.append(Var(v.type))
                ts[v] = Tracer(trace, seeds[-1])
        env: dict[Var, Atom] = {}
        for eqn in graph.eqns:
            push_forward(trace, eqn, env, ts, derive)
        trace.source = None
        outputs = rename(env, graph.outputs)
        tangents = [
            tangent(trace, ts, out).atom for out in graph.outputs if out.type.dtype in INEXACT
        ]
    closed = finish(trace, (*graph.inputs, *seeds), (*outputs, *tangents))
    graph = embedded(closed, "a derivative rule")
    return tidy(graph)


def tangent(trace: Trace, ts: dict[Any, Any], out: Atom) -> Any:
    t = None if isinstance(out, Literal) else ts.get(out)
    if t is None:
        return trace.lift(zero(out.type))
    return t


def push_forward(
    trace: Trace, eqn: Eqn, env: dict[Var, Atom], ts: dict[Any, Any], derive: Derive
) -> None:
    """Records the equation, then the tangents of its results."""
    inputs = rename(env, eqn.inputs)
    incoming = [ts.get(a) if isinstance(a, Var) else None for a in eqn.inputs]
    inexact = [v.type.dtype in INEXACT for v in eqn.outs]
    if all(t is None for t in incoming) or not any(inexact) or eqn.op.name == "stop_gradient":
        trace.eqns.append(
            eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
        )
        return
    trace.source = eqn.source
    xs = [Tracer(trace, a) for a in inputs]
    with blamed(eqn):
        if isinstance(eqn.op, GraphOp):
            ys, found = eqn.op.jvp_with(derive, incoming, xs)
            env.update((v, y.atom) for v, y in zip(eqn.outs, ys, strict=True))  # type: ignore[attr-defined]
        else:
            trace.eqns.append(Eqn(eqn.op, inputs, eqn.outs, eqn.source))
            found = pushed(eqn.op, incoming, [Tracer(trace, v) for v in eqn.outs], xs, derive)
    for var, t, real in zip(eqn.outs, found, inexact, strict=True):
        if t is not None and real:
            t = trace.lift(t)
            ts[var] = t if t.type == var.type else conformed(t, var, eqn)


def conformed(t: Any, var: Var, eqn: Eqn) -> Any:
    """A tangent as its value's type, from which it may differ in being a Python number."""
    if t.type.shape != var.type.shape or t.type.dtype != var.type.dtype:
        raise VerifyError(
            f"the forward derivative of {eqn.op} gives {t.type} for {var.type}", where=eqn.source
        )
    return t.cast(var.type.dtype, var.type.weak)


def pushed(
    op: Op, ts: Sequence[Any], ys: Sequence[Any], xs: Sequence[Any], derive: Derive
) -> Sequence[Any]:
    """The tangents of the results: by the rule, by linearity, or by
    transposing the reverse rule.
    """
    if type(op).jvp is not Op.jvp:
        found: Sequence[Any] = entries(op.jvp(ts, ys, xs), len(ys), op, "jvp")
        return found
    if op.linear:
        out = op(*(tangent_or_zero(t, x) for t, x in zip(ts, xs, strict=True)))
        return out if op.several else (out,)
    return transposed(op, ts, ys, xs, derive)


def tangent_or_zero(t: Any, x: Any) -> Any:
    """What a linear operation is applied to; its integers (indices, masks) stay as they are."""
    if t is not None:
        return t
    return zero(x.type) if x.type.dtype in INEXACT else x


def transposed(
    op: Op, ts: Sequence[Any], ys: Sequence[Any], xs: Sequence[Any], derive: Derive
) -> Sequence[Any]:
    """The reverse rule maps cotangents linearly to cotangents; its transpose
    maps tangents to tangents.
    """
    wanted = tuple(t is not None for t in ts)
    inexact = [y.type.dtype in INEXACT for y in ys]

    def reverse(*args: Any) -> list[Any]:
        n, m = len(xs), len(ys)
        given = iter(args[n + m :])
        cts = [next(given) if real else None for real in inexact]
        found = entries(op.vjp(cts, args[n : n + m], args[:n], wanted), n, op, "vjp")
        return [
            zero(args[i].type) if ct is None else ct
            for i, (ct, w) in enumerate(zip(found, wanted, strict=True))
            if w
        ]

    real_ys = [y for y, real in zip(ys, inexact, strict=True) if real]
    types = [v.type for v in (*xs, *ys, *real_ys)]
    title = f"the derivative of {op.name}"
    graph = embedded(stage(reverse, [Input(t) for t in types], title), title)
    linear_in = (False,) * (len(xs) + len(ys)) + (True,) * len(real_ys)
    joint = vjp_graph(graph, linear_in, derive)
    results = run(
        joint, [*xs, *ys, *(zero(y.type) for y in real_ys), *(t for t in ts if t is not None)]
    )
    found = iter(results[len(graph.outputs) :])
    return [next(found) if real else None for real in inexact]
