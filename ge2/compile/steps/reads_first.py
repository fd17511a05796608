"""Reads of a value before the write over it, which needs no copy of the value then.

update_slice x y; gather x i  ->  gather x i; update_slice x y

A write into a part of an array is made where the array is if nobody reads the array later. A loop's
body reads elements after a write in the order of the user's lines, or of derivatives: each
iteration would copy all of what it carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

from ge2.compile.steps.writes import is_view
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.graphs.region import Region
from ge2.program.program import WRITES

MOST: Final = 64  # equations that are moved before a write, at most: their results wait meanwhile


def reads_first(graph: Graph) -> Graph:
    if not any(isinstance(e.op, WRITES) for e in graph.eqns):
        return graph
    order = Order(graph)
    for eqn in graph.eqns:
        if isinstance(eqn.op, WRITES) and type(eqn.inputs[0]) is Var:
            order.clear(eqn, eqn.inputs[0])
    if not order.before:
        return graph
    return Graph(graph.inputs, tuple(order.eqns()), graph.outputs, graph.consts)


@final
class Order:
    """Equations that are to come before others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.at = {e: i for i, e in enumerate(graph.eqns)}
        self.makers = {v: e for e in graph.eqns for v in e.outs}
        self.users: dict[Atom, list[Eqn]] = {}
        for e in graph.eqns:
            for a in dict.fromkeys(a for a in e.inputs if type(a) is Var):
                self.users.setdefault(a, []).append(e)
        self.returned = {a for a in graph.outputs if type(a) is Var}
        self.before: dict[Eqn, Sequence[Eqn]] = {}

    def clear(self, write: Eqn, x: Var) -> None:
        """Lists what reads x after a write over it, if all of that may come before the write."""
        if x in self.returned:
            return
        late = [e for e in self.readers(x) if self.at[e] > self.at[write]]
        moved: set[Eqn] = set()
        if not late or not all(self.gather(e, write, moved) for e in late):
            return
        results = {v for e in moved if not is_view(e) for v in e.outs}
        if sum(v.type.nbytes for v in results) < x.type.nbytes:
            self.before[write] = sorted(moved, key=self.at.__getitem__)

    def readers(self, x: Var) -> Iterator[Eqn]:
        """The equations that read a value or a view of it."""
        for e in self.users.get(x, ()):
            yield e
            if is_view(e):
                for v in e.outs:
                    yield from self.readers(v)

    def gather(self, eqn: Eqn, write: Eqn, moved: set[Eqn]) -> bool:
        """Adds an equation, and what it needs, to those that are moved before a write; False if one
        of them may not be.
        """
        if self.at[eqn] < self.at[write] or eqn in moved:
            return True
        runs = bool(eqn.op.graphs()) and not isinstance(eqn.op, Region)  # a loop, a branch
        fixed = eqn is write or isinstance(eqn.op, WRITES) or runs or bool(eqn.op.effect)
        kept = is_view(eqn) and not self.returned.isdisjoint(eqn.outs)
        if fixed or kept or len(moved) == MOST:
            return False
        moved.add(eqn)
        makers = [self.makers[a] for a in eqn.inputs if type(a) is Var and a in self.makers]
        return all(self.gather(e, write, moved) for e in makers)

    def eqns(self) -> Iterator[Eqn]:
        done: set[Eqn] = set()
        for eqn in self.graph.eqns:
            for e in (*self.before.get(eqn, ()), eqn):
                if e not in done:
                    done.add(e)
                    yield e
