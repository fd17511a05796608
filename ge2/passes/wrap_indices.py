"""Indices that a region compares with counts are counted from the start inside
it, where they wrap around.

A target on which an index outside is an error keeps `index`, a kernel that
looks at all of them first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.ir import ArrayType, Cotangents, Dims, Eqn, Flags, Graph, Value, Var, without_dead_code
from ge2.ops.elementwise import Pointlike, Pointwise
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.region import Region
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

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
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
    """Which axes of the space those of an input are, if it is read in one way."""
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
