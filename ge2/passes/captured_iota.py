"""Captured arrays that only count, as in `z[np.arange(n), y]`, become equations, which passes can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ge2.base.dtypes import INTEGERS
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.index import Indexed
from ge2.ops.shape import Iota

MOST = 1 << 20  # bytes of an array that is looked at; larger ones were not copied when they were captured


def counted(graph: Graph, captured: Sequence[Any]) -> Graph:
    """The graph with counts in place of captured indices that are 0, 1, 2, ... along one axis."""
    indices = {a for e in graph.eqns if isinstance(e.op, Indexed) for a in e.inputs[1:]}
    counts: dict[Var, Eqn] = {}
    for var, value in zip(graph.inputs, captured, strict=False):
        axis = counting(value) if var in indices and type(value) is np.ndarray else None
        if axis is not None:
            op = Iota(var.type.shape, axis, var.type.dtype)
            counts[var] = Eqn(op, (), (Var(var.type),))
    if not counts:
        return graph
    env: dict[Atom, Atom] = {var: eqn.outs[0] for var, eqn in counts.items()}
    eqns = [
        e if env.keys().isdisjoint(e.inputs) else replace(e, inputs=tuple(env.get(a, a) for a in e.inputs))
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
