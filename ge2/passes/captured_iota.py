"""Captured arrays that only count, as in `z[np.arange(n), y]`, become
equations, which passes can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.dtypes import INTEGERS
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.index import Indexed
from ge2.ops.shape import Iota
from ge2.passes.context import Context, Iotas

# bytes of an array that is looked at; larger ones were not copied when they were captured
MOST = 1 << 20


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
    """The only axis of an array, if its elements count along it.

    >>> counting(np.arange(3)[:, None]), counting(np.array([0, 2]))
    (0, None)
    """
    axes = [a for a, n in enumerate(x.shape) if n != 1]
    if x.dtype not in INTEGERS or len(axes) != 1 or x.nbytes > MOST:
        return None
    return axes[0] if np.array_equal(x.ravel(), np.arange(x.size)) else None
