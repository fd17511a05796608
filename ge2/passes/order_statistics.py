"""A sort of which few elements are read becomes a selection of those: a median is no sort.

sort[axis=0] x, slice 3..5, slice 9..10  ->  order_statistics[axis=0 ranks=(3, 4, 9)] x, slice 0..2, slice 2..3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.dtypes import COMPLEX
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Dims, Eqn, Graph, Op, Var
from ge2.ops.shape import Slice
from ge2.ops.sort import Sort, comparable
from ge2.passes.context import NOTHING, Context


@final
@record
class OrderStatistics(Op):
    """The elements that have the given ranks, in rising order, in each line along `axis`.

    Order is that of `sort`. Of -0.0 and 0.0, which are equal, it may be either.
    """

    axis: int
    ranks: Dims
    name = "order_statistics"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        n = x.shape[self.axis]
        if list(self.ranks) != sorted({*self.ranks} & {*range(n)}):
            raise TypeRuleError(f"ranks rise from 0 to {n - 1} along axis {self.axis} of {x}")
        return (x.with_shape(resized(x.shape, self.axis, len(self.ranks))),)

    def reference(self, *arrays: Any) -> Any:
        x = comparable(arrays[0])
        found = np.partition(x, self.ranks, self.axis).take(self.ranks, self.axis)
        return found.astype(arrays[0].dtype, copy=False)


def order_statistics(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with selections in place of sorts of which few elements are read."""
    sorts = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Sort)}
    if not sorts:
        return graph
    readers: dict[Var, list[Eqn | None]] = {v: [] for v in sorts}
    for eqn in graph.eqns:
        for a in eqn.inputs:
            if isinstance(a, Var) and a in readers:
                readers[a].append(eqn)
    for v in graph.outputs:
        if isinstance(v, Var) and v in readers:
            readers[v].append(None)
    most = context.tuning.statistics
    found = {v: ranks for v, e in sorts.items() if (ranks := ranks_of(e, readers[v], most))}
    if not found:
        return graph
    chosen = {v: Var(selection(sorts[v], ranks).infer(v.type)[0]) for v, ranks in found.items()}
    eqns = []
    for eqn in graph.eqns:
        source = eqn.inputs[0] if eqn.inputs else None
        if eqn.outs and (y := eqn.outs[0]) in found:
            eqn = replace(eqn, op=selection(eqn, found[y]), outs=(chosen[y],))
        elif isinstance(source, Var) and source in found:
            op, axis = eqn.op, sorts[source].op.axis  # type: ignore[attr-defined]
            assert isinstance(op, Slice)
            eqn = replace(eqn, op=moved(op, axis, found[source]), inputs=(chosen[source],))
        eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def ranks_of(eqn: Eqn, readers: Sequence[Eqn | None], most: int) -> Dims:
    """The ranks that slices of a sorted array read; () where it is read otherwise, or much of it."""
    op, (x,) = eqn.op, eqn.inputs
    assert isinstance(op, Sort)
    axis, found = op.axis, set[int]()
    for reader in readers:
        if reader is None or not isinstance(reader.op, Slice) or reader.op.step[axis] != 1:
            return ()
        start, stop = reader.op.start[axis], reader.op.stop[axis]
        if stop - start > most:
            return ()
        found.update(range(start, stop))
    few = len(found) <= max(2, min(most, x.type.shape[axis] // 4))
    return tuple(sorted(found)) if few and x.type.dtype not in COMPLEX else ()


def selection(eqn: Eqn, ranks: Dims) -> OrderStatistics:
    assert isinstance(eqn.op, Sort)
    return OrderStatistics(eqn.op.axis, ranks)


def moved(op: Slice, axis: int, ranks: Dims) -> Slice:
    """A slice of the sorted array as one of what has the ranks alone."""
    start, stop = op.start[axis], op.stop[axis]
    first = ranks.index(start) if stop > start else 0
    return replace(
        op,
        start=resized(op.start, axis, first),
        stop=resized(op.stop, axis, first + stop - start),
    )


def resized(sizes: Dims, axis: int, size: int) -> Dims:
    return (*sizes[:axis], size, *sizes[axis + 1 :])
