"""Scalars known beforehand are computed beforehand; a broadcast scalar stays a
scalar in elementwise work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.dtypes import INTEGERS, PYTHON
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Op, Var
from ge2.ops.elementwise import BY_NAME
from ge2.ops.index import Indexed
from ge2.ops.shape import BroadcastInDim, Iota
from ge2.passes.context import Context, Iotas
from ge2.passes.scalars import compute
from ge2.passes.simplify import Rules, Sweep
from ge2.trace.tracer import SNAPSHOT


def fold(graph: Graph) -> Graph:
    return Sweep(RULES, merging=False).run(graph)


def known(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """An equation on literals is a literal."""
    for a in inputs:
        if type(a) is not Literal:
            return None
    if out.shape:
        return None
    try:
        y = compute(op, out, *(held(a) for a in inputs))
    except ArithmeticError:
        return None  # to be raised when it runs
    if out.weak:
        return Literal(y, out) if PYTHON.get(type(y)) == out.dtype else None
    return Literal(out.dtype.type(np.asarray(y)[()]), out)


def held(atom: Atom) -> Any:
    """A literal as a Python number or a 0-d array."""
    assert isinstance(atom, Literal)
    return atom.value if atom.type.weak else np.asarray(atom.value, atom.type.dtype)


def scalar_operands(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """f(broadcast s, x) = f(s, x), and f(broadcast s, broadcast t) = broadcast f(s, t)."""
    if not out.shape:
        return None
    plain = [unbroadcast(sweep, a) for a in inputs]
    if all(a is b for a, b in zip(plain, inputs, strict=True)):
        return None
    if any(a.type.shape for a in plain):
        return sweep.make(op, plain, out)
    return sweep.make(BroadcastInDim(out.shape, ()), (sweep.make(op, plain),), out)


def of_scalar(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A view of a broadcast scalar is a broadcast scalar."""
    scalar = unbroadcast(sweep, inputs[0])
    if scalar is inputs[0] or not out.shape:
        return None
    return sweep.make(BroadcastInDim(out.shape, ()), (scalar,), out)


def filled(sweep: Sweep, op: Op, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A literal in another shape is that literal, repeated once."""
    if type(inputs[0]) is not Literal or not out.shape:
        return None
    return sweep.make(BroadcastInDim(out.shape, ()), inputs, out)


def unbroadcast(sweep: Sweep, atom: Atom) -> Atom:
    """The scalar that a value repeats, or the value."""
    made = sweep.made_by(atom, "broadcast_in_dim") if atom.type.shape else None
    return atom if made is None or made.inputs[0].type.shape else made.inputs[0]


ELEMENTWISE = (*BY_NAME, "convert_element_type", "integer_pow")
RULES: Rules = {
    **dict.fromkeys(ELEMENTWISE, (known, scalar_operands)),
    **dict.fromkeys(("transpose", "rev", "slice", "broadcast_in_dim"), (known, of_scalar)),
    "reshape": (known, of_scalar, filled),
}


# ----------------------------------------------------------------------------------- captured iota
# Captured arrays that only count, as in `z[np.arange(n), y]`, become
# equations, which passes can read.


def iotas(graph: Graph, captured: Sequence[Any]) -> Iotas:
    """The captured arrays that are indices and count 0, 1, 2, ...: the number
    of each input, and the axis.
    """
    indices = {a for e in graph.eqns if isinstance(e.op, Indexed) for a in e.inputs[1:]}
    arrays = [
        (i, x)
        for i, (var, x) in enumerate(zip(graph.inputs, captured, strict=False))
        if var in indices and type(x) is np.ndarray
    ]
    return tuple((i, axis) for i, x in arrays if (axis := counting(x)) is not None)


def counted(graph: Graph, context: Context) -> Graph:
    """The graph with iotas in place of the inputs that are known to count."""
    counts: dict[Var, Eqn] = {}
    for i, axis in context.iotas:
        var = graph.inputs[i]
        op = Iota(var.type.shape, axis, var.type.dtype)
        counts[var] = Eqn(op, (), (Var(var.type),))
    if not counts:
        return graph
    env: dict[Atom, Atom] = {var: eqn.outs[0] for var, eqn in counts.items()}
    eqns = [
        e
        if env.keys().isdisjoint(e.inputs)
        else replace(e, inputs=tuple(env.get(a, a) for a in e.inputs))
        for e in graph.eqns
    ]
    return Graph(graph.inputs, (*counts.values(), *eqns), graph.outputs, graph.consts)


def counting(x: np.ndarray) -> int | None:
    """The only axis of an array, if its elements count along it; None of arrays so large that they
    were not copied when they were captured.

    >>> counting(np.arange(3)[:, None]), counting(np.array([0, 2]))
    (0, None)
    """
    axes = [a for a, n in enumerate(x.shape) if n != 1]
    if x.dtype not in INTEGERS or len(axes) != 1 or x.nbytes > SNAPSHOT:
        return None
    return axes[0] if np.array_equal(x.ravel(), np.arange(x.size)) else None
