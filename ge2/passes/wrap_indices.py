"""Indices that a region compares with counts are counted from the start inside
it, where they wrap around.

A target on which an index outside is an error keeps `index`, a kernel that
looks at all of them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Cotangents,
    Dims,
    Eqn,
    Flags,
    Graph,
    Values,
    Var,
    without_dead_code,
)
from ge2.ops.graphs.region import Region
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.random import Draw, RandomBits
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Reshape, Slice
from ge2.passes.fuse import dims_of
from ge2.passes.fusion_group import NONE
from ge2.passes.take_to_mask import INT32, Index


@final
@record
class Wrap(Pointlike):
    """Integers counted from the start of an axis of `size` elements, around which they wrap."""

    size: int
    name = "wrap"

    @property
    def lowering(self) -> Pointwise:  # type: ignore[override]
        return Pointwise(f"ge2_index<{self.size}>({{0}})")

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        return (ArrayType(x.shape, INT32),)

    def reference(self, *arrays: Any) -> Any:
        return np.mod(arrays[0], self.size).astype(INT32)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [None]


def indexed(graph: Graph) -> Graph:
    """The graph with `wrap` in its regions in place of `index` before them."""
    made = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Index) and e.op.size}
    if not made:
        return graph
    eqns = [taken(e, made) if isinstance(e.op, Region) else e for e in graph.eqns]
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def taken(eqn: Eqn, made: dict[Var, Eqn]) -> Eqn:
    """A region that is given indices as they are."""
    op = eqn.op
    assert isinstance(op, Region)
    for i, (outer, inner) in enumerate(zip(eqn.inputs, op.graph.inputs, strict=True)):
        index = made.get(outer) if isinstance(outer, Var) else None
        at = None if index is None else orientation(op, inner)
        if index is None or at is None:
            continue
        assert isinstance(index.op, Index)
        (source,) = index.inputs
        given, inside = Var(source.type), op.graph
        wrap = Eqn(Wrap(index.op.size), (given,), (inner,), index.source)
        inputs = (*inside.inputs[:i], given, *inside.inputs[i + 1 :])
        whole = Graph(inputs, (wrap, *inside.eqns), inside.outputs, inside.consts)
        op = replace(op, axes=(at, *op.axes), graph=whole)
        eqn = replace(eqn, op=op, inputs=(*eqn.inputs[:i], source, *eqn.inputs[i + 1 :]))
    return eqn


def orientation(region: Region, var: Var) -> Dims | None:
    """The axes of the space that those of an input are, if it is read in one way."""
    found = {
        axes_of(e, at, var)
        for e, at in zip(region.graph.eqns, region.axes, strict=True)
        if var in e.inputs
    }
    return found.pop() if len(found) == 1 else None


def axes_of(eqn: Eqn, at: Dims, var: Var) -> Dims | None:
    if isinstance(eqn.op, Pointlike | Reduce | ArgReduce):
        return at if var.type.shape else ()
    dims = dims_of(eqn.op, var, eqn.outs[0].type.shape)
    return None if dims is None else tuple(NONE if d == NONE else at[d] for d in dims)


# ------------------------------------------------------------------------------------- fuse random
# Random bits that only elementwise regions read are made there, element by
# element, and never stored.
#
# It is for targets that make a number faster than they read one. The bits are
# those of the whole stream.


def drawn(graph: Graph) -> Graph:
    """The graph with `draw` in its regions in place of `random_bits` before them."""
    makers = {
        e.outs[0]: e
        for e in graph.eqns
        if isinstance(e.op, RandomBits) and e.inputs[0].type.ndim == 1
    }
    readers: dict[Atom, list[Eqn]] = {}
    for eqn in graph.eqns:
        for a in {*eqn.inputs} & makers.keys():
            readers.setdefault(a, []).append(eqn)
    inside = {
        v for v in makers if v not in graph.outputs and all(inner(e, v) for e in readers.get(v, ()))
    }
    if not inside:
        return graph
    words: dict[Var, tuple[Var, Var]] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in inside:
            views = [view for n in (0, 1) for view in word(eqn, n)]
            words[eqn.outs[0]] = views[1].outs[0], views[3].outs[0]
            eqns += views
        else:
            for var in (a for a in eqn.inputs if isinstance(a, Var) and a in inside):
                eqn = with_draw(eqn, var, makers[var], words[var])
            eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def word(eqn: Eqn, n: int) -> tuple[Eqn, Eqn]:
    """One word of a key, as views."""
    (key,) = eqn.inputs
    part, number = Slice((n,), (n + 1,), (1,)), Reshape(())
    (one,) = part.infer(key.type)
    (none,) = number.infer(one)
    cut, scalar = Var(one), Var(none)
    return Eqn(part, (key,), (cut,), eqn.source), Eqn(number, (cut,), (scalar,), eqn.source)


def inner(eqn: Eqn, var: Var) -> bool:
    """True if a region reads the value once, in the order in which it is stored."""
    op = eqn.op
    if not isinstance(op, Region) or op.kind != "pointwise" or eqn.inputs.count(var) != 1:
        return False
    at = orientation(op, op.graph.inputs[eqn.inputs.index(var)])
    return at is not None and in_order(at)


def in_order(at: Dims) -> bool:
    real = [a for a in at if a != NONE]
    return real == sorted(real)


def with_draw(eqn: Eqn, var: Var, bits: Eqn, words: tuple[Var, Var]) -> Eqn:
    """A region that is given the words of a key."""
    op, i = eqn.op, eqn.inputs.index(var)
    assert isinstance(op, Region)
    assert isinstance(bits.op, RandomBits)
    inside, given = op.graph, (Var(words[0].type), Var(words[1].type))
    value = inside.inputs[i]
    at = orientation(op, value)
    assert at is not None
    draw = Eqn(Draw(value.type.shape, bits.op.dtype), given, (value,), bits.source)
    inputs = (*inside.inputs[:i], *given, *inside.inputs[i + 1 :])
    whole = Graph(inputs, (draw, *inside.eqns), inside.outputs, inside.consts)
    return replace(
        eqn, op=replace(op, axes=(at, *op.axes), graph=whole),
        inputs=(*eqn.inputs[:i], *words, *eqn.inputs[i + 1 :]),
    )  # fmt: skip
