"""Elementwise work of which only columns are read, of few, is done for those columns.

  y = floor x; a = y[:, 0:1]; b = y[:, 1:2]
  ->  a = floor x[:, 0:1]; b = floor x[:, 1:2]

Coordinates of points are an array of two or three columns, and work on each follows work on all. A
slice of what a kernel makes is no part of it: the whole is written, and read again in pieces. A slice
of an array that is there is an index expression. Every element is made by the same operations; none is
made twice, since the slices have no more elements than the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, Slice
from ge2.passes.context import NOTHING, Context

Parts = dict[Slice, Var]  # of a value, by what is sliced


def slices_first(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with slices before the elementwise work whose results they are of."""
    most = context.tuning.sliced
    return pushed(graph, lambda y, parts: is_covered(y, parts, most))


def pushed(graph: Graph, may: Callable[[Var, Parts], bool]) -> Graph:
    """The graph with slices before the elementwise work of which nothing else is read, where they
    `may` be: asked of each of its results, with the slices of that.
    """
    parts, same = slices_of(graph)
    reads = Counter(
        a for e in graph.eqns if not isinstance(e.op, Slice) for a in e.inputs if isinstance(a, Var)
    )
    reads.update(a for a in graph.outputs if isinstance(a, Var))
    gone: set[Var] = set()
    for eqn in reversed(graph.eqns):
        if isinstance(eqn.op, Pointlike | BroadcastInDim) and len(eqn.outs) == 1:
            (y,) = eqn.outs
            if y in parts and not reads[y] and may(y, parts[y]):
                gone.add(y)
                reads.subtract(a for a in eqn.inputs if isinstance(a, Var))
                for op in parts[y]:
                    for x in (same.get(a, a) for a in eqn.inputs):
                        if isinstance(x, Var) and (inner := within(eqn, op, x)) is not None:
                            made = parts.setdefault(x, {})
                            made.setdefault(inner, Var(*inner.infer(x.type)))
    return rebuilt(graph, parts, same, gone) if gone else graph


def slices_of(graph: Graph) -> tuple[dict[Var, Parts], dict[Atom, Atom]]:
    """The slices of each value, equal ones once, and which value is which other."""
    parts: dict[Var, Parts] = {}
    same: dict[Atom, Atom] = {}
    for eqn in graph.eqns:
        x = same.get(eqn.inputs[0], eqn.inputs[0]) if isinstance(eqn.op, Slice) else None
        if isinstance(eqn.op, Slice) and isinstance(x, Var):
            found = parts.setdefault(x, {})
            same[eqn.outs[0]] = found.setdefault(eqn.op, eqn.outs[0])
    return parts, same


def is_covered(y: Var, parts: Parts, most: int) -> bool:
    """True if slices have no more elements than the whole, which has few columns."""
    few = y.type.ndim > 1 and y.type.shape[-1] <= most
    return few and sum(v.type.size for v in parts.values()) <= y.type.size


def within(eqn: Eqn, op: Slice, x: Atom) -> Slice | None:
    """The slice of an operand that a slice of the result is made of; None if it is all of it."""
    if not isinstance(eqn.op, BroadcastInDim):
        return op if x.type.shape else None
    dims = eqn.op.dims
    inner = Slice(*(tuple(each[d] for d in dims) for each in (op.start, op.stop, op.step)))
    return None if inner.infer(x.type) == (x.type,) else inner


def rebuilt(graph: Graph, parts: dict[Var, Parts], same: dict[Atom, Atom], gone: set[Var]) -> Graph:
    """Each slice where its value is made, and elementwise work once for each slice of its result."""
    made: list[Eqn] = []

    def sliced(x: Atom, eqn: Eqn, op: Slice) -> Atom:
        inner = within(eqn, op, x)
        return x if inner is None or not isinstance(x, Var) else parts[x][inner]

    def cut(x: Var, eqn: Eqn | None) -> None:
        """The slices of a value, computed from here on."""
        for op, out in parts.get(x, {}).items():
            if eqn is None or x not in gone:
                made.append(Eqn(op, (x,), (out,), eqn.source if eqn else None))
                continue
            new, inputs = eqn.op, tuple(sliced(same.get(a, a), eqn, op) for a in eqn.inputs)
            if isinstance(new, BroadcastInDim):
                new = BroadcastInDim(out.type.shape, new.dims)
            made.append(Eqn(new, inputs, (out,), eqn.source))

    for x in graph.inputs:
        cut(x, None)
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in same:
            if same[eqn.outs[0]] is not eqn.outs[0]:
                continue
        elif not gone.intersection(eqn.outs):
            made.append(
                Eqn(eqn.op, tuple(same.get(a, a) for a in eqn.inputs), eqn.outs, eqn.source)
            )
        for y in eqn.outs:
            cut(y, eqn)
    outputs = tuple(same.get(a, a) for a in graph.outputs)
    return Graph(graph.inputs, tuple(made), outputs, graph.consts)
