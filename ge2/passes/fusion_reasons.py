"""The reasons why two steps of a program are two: what the fusion pass has against one region of
both.

Nobody pays for it who does not ask: the groups are formed once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import final

from ge2.base.dtypes import HALF
from ge2.ir import Eqn, Graph, GraphOp, Var
from ge2.ops.pointlike import Pointlike
from ge2.passes.context import NOTHING, Context
from ge2.passes.fuse import BETWEEN, fusible, gathered
from ge2.passes.fusion_group import Group, joint, merged, too_large
from ge2.passes.scalars import on_host

HELD = "regions hold elementwise work, views and reductions"
ORDER = "regions are formed in the program's order, and did not fit when these were"


@final
class Reasons:
    """The reasons why a graph's values are not part of one region; the graph is that before regions
    are formed.

    >>> import numpy as np
    >>> from ge2 import make_jaxpr
    >>> graph = make_jaxpr(lambda x: np.tanh(np.sort(x)))(np.ones(9)).graph
    >>> first, second = (eqn.outs for eqn in graph.eqns)
    >>> Reasons(graph).between(first, second)
    'sort is a kernel of its own: regions hold elementwise work, views and reductions'
    """

    def __init__(self, graph: Graph, context: Context = NOTHING) -> None:
        self.fusion = gathered(graph, context)
        self.makers: Mapping[Var, Eqn] = {v: e for e in graph.eqns for v in e.outs}

    def between(self, first: Iterable[Var], second: Iterable[Var]) -> str:
        """The reason why the steps that make these values are two; "" if nothing is known of it."""
        a, b = self.groups(second), self.groups(first)
        lone = [v for v in (*first, *second) if v in self.makers and self.fusion.group(v) is None]
        if lone:
            return single(self.makers[lone[0]])
        pairs = [(one, other) for one in a for other in b if one is not other]
        return next((self.of_groups(*pair) for pair in pairs), "")

    def between_them(self, a: Group, b: Group) -> Iterator[Eqn]:
        """Equations of no group that read from `b` and are read by `a`."""
        for eqn in self.makers.values():
            alone = self.fusion.group(eqn.outs[0]) is None
            read = alone and not a.embed.keys().isdisjoint(eqn.outs)
            if read and not b.made.isdisjoint(self.fusion.bases(eqn)):
                yield eqn

    def groups(self, values: Iterable[Var]) -> list[Group]:
        found = (self.fusion.group(v) for v in values)
        return list(dict.fromkeys(g for g in found if g is not None))

    def of_groups(self, a: Group, b: Group) -> str:
        """The reason that keeps `a`, which runs later, from taking in `b`."""
        found = self.fusion.apart(a, b)
        if found:
            inside = next(self.between_them(a, b), None) if found == BETWEEN else None
            return found if inside is None else f"between them, {single(inside)}"
        names = merged(a, b)
        if names is None:
            return f"{over(b)} and {over(a)} are not one loop"
        axes, _, whole = joint(a, b, names)
        if too_large(axes, whole, self.fusion.tuning):
            return f"{over(b)} would be held whole, which is too long: a sum over it is read inside"
        return ORDER


def over(group: Group) -> str:
    """The space of a group in words."""
    return f"a loop over {'x'.join(map(str, group.axes.values())) or 'one element'}"


def single(eqn: Eqn) -> str:
    """The reason why an equation is in no region."""
    name, op = eqn.op.name, eqn.op
    if op.effect:
        return f"{name} has an effect, whose order is kept"
    if on_host(eqn):
        return f"{name} is computed of Python numbers, by the host"
    if isinstance(op, GraphOp):
        return f"{name} holds a program of its own"
    if isinstance(op, Pointlike) and eqn.outs[0].type.dtype in HALF:
        return f"{name} of {eqn.outs[0].type} is not computed in float32"
    if op.is_view:
        return f"{name} moves elements in a way that axes of a region do not tell"
    if fusible(eqn):
        return f"{name} stands alone here"
    return f"{name} is a kernel of its own: {HELD}"
