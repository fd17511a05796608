"""Sums at indices one after another become one, of all their updates.

  s = scatter_add x u i; t = scatter_add s v j        ->  t = scatter_add x (u, v) (i, j)
  s = scatter_add 0 u i; t = add x s                  ->  t = scatter_add (add x 0.0) u i

Each is a kernel or two that have an array of all places to themselves; a charge that is spread over
eight neighbours is eight of them, and as many additions of arrays. What makes the updates writes them
side by side.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import final

from ge2.base.dtypes import INEXACT
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.elementwise import ADD
from ge2.ops.index import ScatterAdd
from ge2.ops.shape import BroadcastInDim, Concatenate
from ge2.passes.context import NOTHING, Context


def join_scatters(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with one sum at indices for several."""
    if sum(isinstance(e.op, ScatterAdd) for e in graph.eqns) < 2:
        return graph
    sweep = Sweep(graph, context.tuning.scattered)
    for eqn in graph.eqns:
        sweep.take(eqn)
    if not sweep.joined:
        return graph
    return without_dead_code(Graph(graph.inputs, tuple(sweep.made), graph.outputs, graph.consts))


@final
class Sweep:
    """The equations so far, and the maker of each value."""

    def __init__(self, graph: Graph, most: int) -> None:
        self.most, self.joined = most, False
        self.made: list[Eqn] = []
        self.makers: dict[Atom, Eqn] = {}
        self.reads: Counter[Atom] = Counter(
            a for e in graph.eqns for a in e.inputs if isinstance(a, Var)
        )
        self.reads.update(a for a in graph.outputs if isinstance(a, Var))

    def take(self, eqn: Eqn) -> None:
        """Adds an equation, or what it becomes."""
        if eqn.op is ADD:
            eqn = self.added(eqn)
        if isinstance(eqn.op, ScatterAdd):
            eqn = self.after_another(eqn)
        self.record(eqn)

    def record(self, eqn: Eqn) -> None:
        self.made.append(eqn)
        self.makers.update(dict.fromkeys(eqn.outs, eqn))

    def make(self, op: Op, inputs: tuple[Atom, ...], like: Eqn) -> Var:
        out = Var(*op.infer(*(x.type for x in inputs)))
        self.record(Eqn(op, inputs, (out,), like.source))
        return out

    def added(self, eqn: Eqn) -> Eqn:
        """An array and sums at indices of zeros, as sums at indices of that array."""
        (out,) = eqn.outs
        for x, s in (eqn.inputs, eqn.inputs[::-1]):
            found = self.makers.get(s)
            if self.is_zero(x) and found is not None and self.reads[s] == 1 and self.is_sum(s):
                # none of its elements is -0.0, which 0.0 would make 0.0
                return replace(found, outs=(out,)) if s.type == out.type else eqn
            if found is None or not isinstance(found.op, ScatterAdd) or self.reads[s] != 1:
                continue
            if not self.is_zero(found.inputs[0]) or x.type != out.type:
                continue
            # a zero that nothing is added to is 0.0 then, not -0.0
            start = x if self.is_sum(x) else self.make(ADD, (x, zero(x)), eqn)
            self.reads[start] += start is not x
            return Eqn(found.op, (start, *found.inputs[1:]), (out,), eqn.source)
        return eqn

    def after_another(self, eqn: Eqn) -> Eqn:
        """Sums at indices and those before them, if nothing else reads these, as one."""
        x, updates, *indices = eqn.inputs
        first = self.makers.get(x)
        if first is None or first.op != eqn.op or self.reads[x] != 1:
            return eqn
        pairs = list(zip(first.inputs[1:], (updates, *indices), strict=True))
        if (
            not all(self.side_by_side(a, b) for a, b in pairs)
            or len({a.type.shape[0] for a, _ in pairs}) > 1
        ):
            return eqn
        if sum(a.type.size for a in (first.inputs[1], updates)) > self.most:
            return eqn
        self.joined = True
        both = (self.make(Concatenate(0), (*self.parts(a), b), eqn) for a, b in pairs)
        return Eqn(eqn.op, (first.inputs[0], *both), eqn.outs, eqn.source)

    def side_by_side(self, a: Atom, b: Atom) -> bool:
        """True of arrays along whose first axis they are joined, and which are no number that repeats."""
        alike = a.type.dtype == b.type.dtype and a.type.shape[1:] == b.type.shape[1:]
        spread = any(isinstance(self.op_of(x), BroadcastInDim) for x in (a, b))
        return alike and a.type.ndim > 0 < b.type.ndim and not spread

    def parts(self, a: Atom) -> tuple[Atom, ...]:
        """The arrays that `a` joins, if nothing else reads it; else `a` alone."""
        found = self.makers.get(a)
        return (
            found.inputs
            if found is not None and found.op == Concatenate(0) and a not in self.reads
            else (a,)
        )

    def op_of(self, a: Atom) -> Op | None:
        found = self.makers.get(a)
        return None if found is None else found.op

    def is_zero(self, a: Atom) -> bool:
        """True of zeros, none of which is -0.0."""
        found = self.makers.get(a)
        if found is not None and isinstance(found.op, BroadcastInDim):
            a = found.inputs[0]
        return isinstance(a, Literal) and not a.value and not str(a.value).startswith("-")

    def is_sum(self, x: Atom) -> bool:
        """True of sums at indices of what has no -0.0, and of whole numbers."""
        found = self.makers.get(x)
        if x.type.dtype not in INEXACT:
            return True
        if found is None:
            return False
        if isinstance(found.op, ScatterAdd):
            return self.is_sum(found.inputs[0])
        return self.is_zero(x) or (found.op is ADD and any(map(self.is_zero, found.inputs)))


def zero(x: Atom) -> Literal:
    """0.0, of the type of an array's elements."""
    return Literal(x.type.dtype.type(0), x.type.with_shape(()))
