"""Regions read the rows that indices name where those are.

  y = gather[axes=0] table i;  s = region (reduce_sum[axes=1] y)
  ->  s = region (reduce_sum[axes=1] (gather[axes=0] table i))

A kernel that writes rows side by side writes as much as it reads, and the next one reads it again.
It is for targets on which an index outside wraps around: where it is an error, a kernel looks at all
of them first.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from ge2.ir import Atom, Dims, Eqn, Graph, Var, without_dead_code
from ge2.ops.graphs.region import Region, is_loop
from ge2.ops.index import Gather
from ge2.passes.context import NOTHING, Context
from ge2.passes.fusion_group import NONE, folding, folds
from ge2.passes.indices import orientation


def rows_inside(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions read rows at indices themselves, where each is read once."""
    shortest = context.tuning.moves.row
    made = {e.outs[0]: e for e in graph.eqns if is_of_rows(e, shortest)}
    if not made:
        return graph
    reads = Counter(a for e in graph.eqns for a in e.inputs)
    reads.update(graph.outputs)
    once = {v: e for v, e in made.items() if reads[v] == 1}
    eqns = tuple(taken(e, once) if is_loop(e.op) else e for e in graph.eqns)
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def is_of_rows(eqn: Eqn, shortest: int) -> bool:
    """True if indices along one axis name rows that lie side by side, and are not short."""
    op = eqn.op
    if not isinstance(op, Gather) or len(op.axes) != 1:
        return False
    (axis,), (x, index) = op.axes, eqn.inputs
    if not (isinstance(x, Var) and isinstance(index, Var) and index.type.shape):
        return False
    shape, whole = x.type.shape, index.type.dtype.kind in "iu"
    long = axis < len(shape) - 1 and shape[-1] >= shortest
    return whole and long and bool(eqn.outs[0].type.size and x.type.size)


def taken(eqn: Eqn, made: dict[Var, Eqn]) -> Eqn:
    """A region that reads rows itself."""
    for outer in eqn.inputs:
        gather, op = made.get(outer) if isinstance(outer, Var) else None, eqn.op
        assert isinstance(op, Region)
        if gather is not None:
            inner = op.graph.inputs[eqn.inputs.index(outer)]
            at = orientation(op, inner)
            if at is not None and reads_once(op, inner, at) and folds_rows(op, at[-1]):
                eqn = with_gather(eqn, inner, gather, at)
    return eqn


def reads_once(region: Region, value: Var, at: Dims) -> bool:
    """True if a region goes once through an array that has all of its axes, and the same last one: what
    repeats is read for each element.
    """
    real = [a for a in at if a != NONE]
    everywhere = math.prod(region.space[a] for a in real) == math.prod(region.space)
    return everywhere and at[-1] == max(real) and not is_read_again(region, value)


def is_read_again(region: Region, value: Var) -> bool:
    """True if what is folded is needed where elements of a value are."""
    elements, late = set[Atom]([value]), set[Atom]()
    for e in region.graph.eqns:
        of_elements, after = not elements.isdisjoint(e.inputs), not late.isdisjoint(e.inputs)
        if of_elements and after:
            return True
        if after or folds(e.op):
            late.update(e.outs)
        elif of_elements:
            elements.update(e.outs)
    return False


def folds_rows(region: Region, lane: int) -> bool:
    """True if nothing that is folded along rows is folded across them, too: threads that go on from row
    to row would look for the row of each element.
    """
    for e, axes in zip(region.graph.eqns, region.axes, strict=True):
        over = folding(e.op, axes)[0] if folds(e.op) else frozenset[int]()
        if lane in over and any(region.space[a] > 1 for a in over - {lane}):
            return False
    return True


def with_gather(eqn: Eqn, value: Var, gather: Eqn, at: Dims) -> Eqn:
    """A region in which an input is read at indices."""
    op = eqn.op
    assert isinstance(op, Region)
    inside, names = op.graph, dict[Atom, Var]()
    for outer, inner in zip(eqn.inputs, inside.inputs, strict=True):
        if inner is not value:
            names.setdefault(outer, inner)
    read = tuple(names.setdefault(a, Var(a.type)) for a in gather.inputs)
    pairs = [(o, i) for o, i in zip(eqn.inputs, inside.inputs, strict=True) if i is not value]
    pairs += [(o, i) for o, i in names.items() if i not in inside.inputs]
    eqns = Eqn(gather.op, read, (value,), gather.source), *inside.eqns
    whole = Graph(tuple(i for _, i in pairs), eqns, inside.outputs, inside.consts)
    op = replace(op, axes=(at, *op.axes), graph=whole)
    return replace(eqn, op=op, inputs=tuple(o for o, _ in pairs), choice=None)
