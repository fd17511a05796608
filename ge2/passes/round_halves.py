"""Half types inside a region, rounded where the program leaves them: a cast or a test is a store.

A region holds equations of half types in float32 and rounds what it stores. Between equations of
one type that is nearer to the truth; a cast to another type, a comparison, `isinf` or an argmax
would show numbers that the type does not have. There the value is rounded first, once for all of
its readers of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ge2.base.dtypes import HALF
from ge2.ir import Atom, Dims, Eqn, Graph, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.shape import Iota


def round_halves(
    graph: Graph, axes: tuple[Dims, ...], inexact: Iterable[Var] = ()
) -> tuple[Graph, tuple[Dims, ...]]:
    """The graph of a region with its roundings, and the axes of each equation.

    `inexact`: inputs that are held in float32 and not rounded yet, such as the sums of a product.
    """
    if not any(v.type.dtype in HALF for e in graph.eqns for v in e.outs) and not inexact:
        return graph, axes
    rounding = Rounding(inexact)
    for eqn, at in zip(graph.eqns, axes, strict=True):
        rounding.take(eqn, at)
    if len(rounding.eqns) == len(graph.eqns):
        return graph, axes
    return Graph(graph.inputs, tuple(rounding.eqns), graph.outputs, graph.consts), tuple(
        rounding.axes
    )


class Rounding:
    """The equations so far, and which of their values are no numbers of their type yet."""

    def __init__(self, inexact: Iterable[Var]) -> None:
        self.eqns: list[Eqn] = []
        self.axes: list[Dims] = []
        self.inexact = set(inexact)
        self.rounded: dict[Var, Var] = {}

    def take(self, eqn: Eqn, at: Dims) -> None:
        dtypes = {v.type.dtype for v in eqn.outs}
        first = eqn.op.jumps
        inputs = tuple(self.operand(a, at) if first or leaves(a, dtypes) else a for a in eqn.inputs)
        eqn = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
        self.add(eqn, at)
        if dtypes & HALF and not self.keeps(eqn):
            self.inexact.update(eqn.outs)

    def add(self, eqn: Eqn, at: Dims) -> None:
        self.eqns.append(eqn)
        self.axes.append(at)

    def keeps(self, eqn: Eqn) -> bool:
        """True if the results are numbers of their type."""
        if eqn.op.retypes or isinstance(eqn.op, Iota):
            return True
        return (eqn.op.exact or eqn.op.is_view) and self.inexact.isdisjoint(eqn.inputs)

    def operand(self, x: Atom, at: Dims) -> Atom:
        """The value as its type has it."""
        if not isinstance(x, Var) or x not in self.inexact:
            return x
        if x not in self.rounded:
            op = ConvertElementType(x.type.dtype)
            y = self.rounded[x] = Var(*op.infer(x.type))
            self.add(Eqn(op, (x,), (y,)), at if x.type.ndim == len(at) else ())
        return self.rounded[x]


def leaves(x: Atom, dtypes: set[np.dtype]) -> bool:
    """True if an operand of a half type is read by an equation of another."""
    return x.type.dtype in HALF and x.type.dtype not in dtypes
