"""Vectorization, from graph to graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ge2.base.gc_pause import collector_paused
from ge2.ir import Atom, Axis, Eqn, Flags, Graph, Var, rename
from ge2.ir.op import Derive, GraphOp
from ge2.trace import Trace, Tracer, finish, tidy
from ge2.transforms.constants import embedded
from ge2.transforms.rule_errors import blamed, entries


@collector_paused
def vmap_graph(
    graph: Graph, axes: Sequence[Axis], size: int, derive: Derive, out: Flags | None = None
) -> tuple[Graph, Flags]:
    """The graph over one more axis, which lies at `axes` in the inputs and
    first in the outputs that have it.

    The second result says which outputs those are; `out` forces the axis on some.
    """
    trace = Trace("a batch")
    with trace:
        inputs = [Var(grown(v, a, size)) for v, a in zip(graph.inputs, axes, strict=True)]
        env: dict[Var, tuple[Any, int]] = {}
        names: dict[Var, Atom] = {}
        for old, new, axis in zip(graph.inputs, inputs, axes, strict=True):
            names[old] = new
            if axis is not None:
                env[old] = (Tracer(trace, new), axis)
        for eqn in graph.eqns:
            batch_equation(trace, eqn, env, names, size, derive)
        trace.source = None
        has_axis = tuple(a in env or bool(out and out[i]) for i, a in enumerate(graph.outputs))
        results = [
            to_front(trace, env, names, a, size) if has else rename(names, (a,))[0]
            for a, has in zip(graph.outputs, has_axis, strict=True)
        ]
    closed = finish(trace, inputs, results)
    graph = embedded(closed, "a batching rule")
    return tidy(graph), has_axis


def grown(v: Var, axis: Axis, size: int) -> Any:
    return (
        v.type
        if axis is None
        else v.type.with_shape((*v.type.shape[:axis], size, *v.type.shape[axis:]))
    )


def batch_equation(
    trace: Trace,
    eqn: Eqn,
    env: dict[Var, tuple[Any, int]],
    names: dict[Var, Atom],
    size: int,
    derive: Derive,
) -> None:
    if not any(a in env for a in eqn.inputs):
        trace.eqns.append(Eqn(eqn.op, rename(names, eqn.inputs), eqn.outs, eqn.source))
        return
    trace.source = eqn.source
    xs: list[Any] = []
    axes: list[Axis] = []
    for old, new in zip(eqn.inputs, rename(names, eqn.inputs), strict=True):
        x, axis = env[old] if type(old) is Var and old in env else (Tracer(trace, new), None)
        xs.append(x)
        axes.append(axis)
    op = eqn.op
    with blamed(eqn):
        ys, found = entries(
            op.batch_with(derive, xs, axes, size) if isinstance(op, GraphOp) else op.batch(xs, axes, size),
            2, op, "batch",
        )  # fmt: skip
        for each in (ys, found):
            entries(each, len(eqn.outs), op, "batch")
    for var, y, axis in zip(eqn.outs, ys, found, strict=True):
        if axis is None:
            names[var] = trace.atom(y)
        else:
            env[var] = (trace.lift(y), axis)


def to_front(
    trace: Trace, env: dict[Var, tuple[Any, int]], names: dict[Var, Atom], atom: Atom, size: int
) -> Atom:
    if isinstance(atom, Var) and atom in env:
        y, axis = env[atom]
        return y.move_axis(axis, 0).atom  # type: ignore[no-any-return]
    y = Tracer(trace, rename(names, (atom,))[0])
    return y.spread((size, *y.shape), tuple(range(1, y.ndim + 1))).atom  # type: ignore[no-any-return]
