"""Indices and places: wrapped inside of regions, sums at several of them joined, where parts go,
what is done to joined parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, HALF, INEXACT
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import ADD, WHERE
from ge2.ops.graphs import Makers, are_together, in_shape, repeated_along, reshaped_once
from ge2.ops.graphs.region import Region, is_loop
from ge2.ops.index import Gather, ScatterAdd, ScatterReduce
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Barrier, BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context, Moves, Tuning
from ge2.passes.fusion_group import NONE, dims_of, folding, folds, fusible, picked
from ge2.passes.take_to_mask import INT32, Index

# -------- `x[mask]` is the first element that the mask chooses where the mask does not hold, so that no
# derivative meets a NaN of an element that was not chosen. Where nothing reads those elements, but a
# choice by the same mask that leaves them out, the array is read as it is.
# where m (f (where m x first)) y -> where m (f x) y


def masked_reads(graph: Graph) -> Graph:
    """The graph without choices whose other elements are left out later on."""
    masks = Counter[Atom](e.inputs[0] for e in graph.eqns if e.op is WHERE)
    if max(masks.values(), default=0) < 2:
        return graph
    nowhere = frozenset[Atom]()
    kept = dict.fromkeys(graph.outputs, nowhere)  # masks outside of which nobody reads a value
    instead: dict[Any, Atom] = {}
    for e in reversed(graph.eqns):
        outs = e.outs if isinstance(e.op, Pointlike) else ()
        mine = kept.get(outs[0], nowhere) if outs else nowhere
        for n, a in enumerate(e.inputs):
            alike = bool(outs) and a.type.shape == outs[0].type.shape
            chosen = {e.inputs[0]} if alike and e.op is WHERE and n == 1 else nowhere
            passed = mine | chosen if alike else nowhere
            kept[a] = kept[a] & passed if a in kept else passed
        if e.op is WHERE and e.inputs[0] in mine and e.inputs[1].type == outs[0].type:
            instead[outs[0]] = e.inputs[1]
    for read, a in reversed(instead.items()):  # what is read instead may itself be
        instead[read] = instead.get(a, a)
    eqns = tuple(renamed(instead, e) for e in graph.eqns)
    return without_dead_code(replace(graph, eqns=eqns)) if instead else graph


# -------- Indices that a region compares with counts are counted from the start inside it, where
# they wrap around.
# A target on which an index outside is an error keeps `index`, a kernel that looks at all of them
# first.


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


def indexed(graph: Graph) -> Graph:
    """The graph with `wrap` in its regions in place of `index` before them."""
    made = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Index) and e.op.size}
    if not made:
        return graph
    eqns = [taken(e, made) if is_loop(e.op) else e for e in graph.eqns]
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


def in_order(at: Dims) -> bool:
    real = [a for a in at if a != NONE]
    return real == sorted(real)


# -------- Sums at indices of zeros that are large: their kernel writes all of the result, each element
# once, where zeros would be written, read and written again.


@final
@record
class SumsAt(Op):
    """The updates that meet at each place along `axes` of an array of a shape, added up."""

    axes: Dims
    shape: Dims
    name = "sums_at"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        updates, *indices = types
        return ScatterAdd(self.axes).infer(updates.with_shape(self.shape), updates, *indices)

    def reference(self, *arrays: Any) -> Any:
        zeros = np.zeros(self.shape, arrays[0].dtype)
        return ScatterAdd(self.axes).reference(zeros, *arrays)


def sums_of_zeros(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with such sums in place of those that begin with an array of zeros."""
    least = context.tuning.summed
    makers = makers_of(graph)

    def changed(e: Eqn) -> Eqn:
        x = makers.get(e.inputs[0]) if isinstance(e.op, ScatterAdd) else None
        (out,) = e.outs if x is not None else (None,)
        if x is None or out is None or out.type.size < least or not is_zero(x):
            return e
        op = SumsAt(e.op.axes, out.type.shape)  # type: ignore[attr-defined]
        return replace(e, op=op, inputs=e.inputs[1:])

    eqns = tuple(map(changed, graph.eqns))
    return graph if eqns == graph.eqns else without_dead_code(replace(graph, eqns=eqns))


def repeated_updates(graph: Graph) -> Graph:
    """The graph in which updates that are all one number are that number, as counts have them."""
    makers = makers_of(graph)

    def changed(e: Eqn) -> Eqn:
        at = 0 if isinstance(e.op, SumsAt) else 1
        x = makers.get(e.inputs[at]) if isinstance(e.op, ScatterReduce | SumsAt) else None
        number = x.inputs[0] if x is not None and isinstance(x.op, BroadcastInDim) else None
        if not isinstance(number, Literal) or number.type.weak:
            return e
        return replace(e, inputs=(*e.inputs[:at], number, *e.inputs[at + 1 :]))

    eqns = tuple(map(changed, graph.eqns))
    return graph if eqns == graph.eqns else without_dead_code(replace(graph, eqns=eqns))


def is_zero(e: Eqn) -> bool:
    """True of what makes an array of floating-point zeros, none of which is negative."""
    x = e.inputs[0] if isinstance(e.op, BroadcastInDim) else None
    if not isinstance(x, Literal) or x.type.dtype not in (FLOAT32, FLOAT64, *HALF):
        return False
    value = float(x.value)  # type: ignore[arg-type]
    return value == 0 and math.copysign(1.0, value) > 0


# -------- Sums at indices of padded updates are sums of what is padded, and padded where no indices are.
# u = pad[low=(1, 2) inner=(3, 0)] v; s = scatter_add 0 u i -> s = pad[low=(2)] (scatter_add 0 v i[1::4])
# Zeros add nothing, and the derivative of windows in steps has them between all that is added.


def unpadded_updates(graph: Graph) -> Graph:
    """The graph with no zeros of pads added at indices that are the same in every call."""
    if not any(isinstance(e.op, ScatterAdd) for e in graph.eqns):
        return graph
    makers, fixed, eqns = dict[Atom, Eqn](), set[Atom](), list[Eqn]()
    for e in graph.eqns:
        given = {a for a in e.inputs if isinstance(a, Var)}
        if isinstance(e.op, Iota | Pointlike) and given <= fixed:
            fixed.update(e.outs)
        known = isinstance(e.op, ScatterAdd) and fixed >= {*e.inputs[2:]}
        found = unpadded(e, makers) if known else []
        eqns += found or [e]
        makers.update((v, made) for made in found or [e] for v in made.outs)
    if len(eqns) == len(graph.eqns):
        return graph
    return without_dead_code(replace(graph, eqns=tuple(eqns)))


def unpadded(e: Eqn, makers: Mapping[Atom, Eqn]) -> list[Eqn]:
    """Such a sum in place of one of padded updates; none for another."""
    op, (zeros, updates, *indices), (y,) = e.op, e.inputs, e.outs
    order, x, base = tuple(range(updates.type.ndim)), updates, makers.get(zeros)
    while (maker := makers.get(x)) is not None and isinstance(maker.op, Transpose):
        order, x = tuple(maker.op.order[a] for a in order), maker.inputs[0]
    known = base is not None and is_zero(base) and len({i.type.ndim for i in indices}) == 1
    if maker is None or not isinstance(maker.op, Pad) or not known or op.window:  # type: ignore[attr-defined]
        return []
    pad, v, n = maker.op, maker.inputs[0], indices[0].type.ndim
    if min(*pad.low, *pad.high) < 0 or not v.type.size:
        return []
    axes = [(v.type.shape[a], pad.low[a], pad.high[a], pad.inner[a]) for a in order]
    spans = [(low, low + (size - 1) * (gap + 1) + 1, gap + 1) for size, low, _, gap in axes[:n]]
    rest = dict(zip((a for a in range(y.type.ndim) if a not in op.axes), axes[n:], strict=True))  # type: ignore[attr-defined]
    shape, *sides = zip(
        *(rest.get(a, (y.type.shape[a], 0, 0, 0)) for a in range(y.type.ndim)), strict=True
    )
    made = list[Eqn]()
    places = [applied(made, Slice(*zip(*spans, strict=True)), i) for i in indices] if n else indices
    start = applied(made, BroadcastInDim(shape, ()), Literal.of(y.type.dtype.type(0)))
    total = applied(made, op, start, applied(made, Transpose(order), v), *places, source=e.source)
    applied(made, Pad(*sides), total, source=e.source)
    return [*made[:-1], Eqn(made[-1].op, made[-1].inputs, e.outs, e.source)]


# -------- Sums at indices one after another become one, of all their updates.
# s = scatter_add x u i; t = scatter_add s v j -> t = scatter_add x (u, v) (i, j) s = scatter_add 0
# u i; t = add x s -> t = scatter_add (add x 0.0) u i
# Each is a kernel or two that have an array of all places to themselves; a charge that is spread
# over eight neighbours is eight of them, and as many additions of arrays. What makes the updates
# writes them side by side.


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


def rows_inside(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions read rows at indices themselves, where each is read once, or by a few
    that would read more of them as an array.
    """
    tuning = context.tuning
    made: dict[Atom, Eqn] = {e.outs[0]: e for e in graph.eqns if is_of_rows(e, tuning.moves.row)}
    if not made:
        return graph
    readers = dict[Atom, list[tuple[Eqn, Atom]]]()
    for e in graph.eqns:  # a barrier's results are its inputs, which it keeps nobody from
        if isinstance(e.op, Barrier):
            made.update((y, made[x]) for x, y in zip(e.inputs, e.outs, strict=True) if x in made)
            continue
        for a in made.keys() & {*e.inputs}:
            readers.setdefault(made[a].outs[0], []).append((e, a))
    inside = {
        v for v, each in readers.items()
        if is_cheap(made[v], len(each), tuning)
        and all(takes_rows(e, a, made[v], tuning.moves) for e, a in each)
    }.difference(made[a].outs[0] for a in graph.outputs if a in made)  # fmt: skip
    made = {a: e for a, e in made.items() if e.outs[0] in inside}
    eqns = (with_rows(e, made) for e in graph.eqns)
    whole = tuple(e for e in eqns if e.outs or not isinstance(e.op, Barrier))
    return without_dead_code(Graph(graph.inputs, whole, graph.outputs, graph.consts))


def is_cheap(gather: Eqn, count: int, tuning: Tuning) -> bool:
    """True if so many kernels may each read at the indices: one, or of an array that caches have
    some, if they read fewer bytes than those of the elements, which are neither written nor read.
    """
    (x, *indices), (y,) = gather.inputs, gather.outs
    fewer = count * sum(i.type.nbytes for i in indices) <= (count + 1) * y.type.nbytes
    cached = x.type.nbytes <= tuning.fusion.recomputed
    return count == 1 or (count <= tuning.moves.readers and cached and fewer)


def is_of_rows(eqn: Eqn, shortest: int) -> bool:
    """True if indices along one axis name rows that lie side by side, of `shortest` elements or more,
    or if each index names one element.
    """
    op = eqn.op
    if isinstance(op, Gather) and picked(eqn) and not op.window:
        return all(isinstance(a, Var) and a.type.shape for a in eqn.inputs)
    if not isinstance(op, Gather) or len(op.axes) != 1:
        return False
    (axis,), (x, index) = op.axes, eqn.inputs
    if not (isinstance(x, Var) and isinstance(index, Var) and index.type.shape):
        return False
    shape, whole = x.type.shape, index.type.dtype.kind in "iu"
    long = axis < len(shape) - 1 and shape[-1] >= shortest
    return whole and long and bool(eqn.outs[0].type.size and x.type.size)


def takes_rows(eqn: Eqn, outer: Atom, gather: Eqn, tuning: Moves) -> bool:
    """True of a region that may read rows itself; threads have short ones in registers."""
    op = eqn.op
    if not is_loop(op):
        return False
    assert isinstance(op, Region)
    inner = op.graph.inputs[eqn.inputs.index(outer)]
    at, short = orientation(op, inner), tuning.shared if picked(gather) else 1
    if at is None or not reads_once(op, inner, at, tuning.held, short):
        return False
    return folds_rows(op, at[-1])


def with_rows(eqn: Eqn, made: Mapping[Atom, Eqn]) -> Eqn:
    """A region that reads the rows itself; a barrier that lets them pass."""
    if isinstance(eqn.op, Barrier):
        left = [p for p in zip(eqn.inputs, eqn.outs, strict=True) if p[0] not in made]
        return replace(eqn, inputs=tuple(x for x, _ in left), outs=tuple(y for _, y in left))
    for outer in eqn.inputs if is_loop(eqn.op) else ():
        if outer in made:
            op = eqn.op
            assert isinstance(op, Region)
            inner = op.graph.inputs[eqn.inputs.index(outer)]
            at = orientation(op, inner)
            assert at is not None
            eqn = with_gather(eqn, inner, made[outer], at)
    return eqn


def reads_once(region: Region, value: Var, at: Dims, held: int, shared: int = 1) -> bool:
    """True if a region goes once through an array that has all of its axes, and the same last one: what
    repeats is read for each element, but along a last axis of at most `shared` by one warp at once.
    """
    real = [a for a in at if a != NONE]
    if not real:
        return False  # one element is no row
    space = region.space[:-1] if region.space[-1] <= shared else region.space
    everywhere = math.prod(region.space[a] for a in real) >= math.prod(space)
    row = frozenset({at[-1]} if region.space[at[-1]] <= held else ())
    return everywhere and at[-1] == max(real) and not is_read_again(region, value, row)


def is_read_again(region: Region, value: Var, row: frozenset[int]) -> bool:
    """True if what is folded is needed where elements of a value are; threads still have those of a
    row that is folded along these axes.
    """
    elements, late = set[Atom]([value]), set[Atom]()
    for e, axes in zip(region.graph.eqns, region.axes, strict=True):
        of_elements, after = not elements.isdisjoint(e.inputs), not late.isdisjoint(e.inputs)
        if of_elements and after:
            return True
        if after or (folds(e.op) and folding(e.op, axes)[0] != row):
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


# ------------------------------------------------------------------- what is done to joined parts

# a, b = x * c - y * s, x * s + y * c;  cast (concatenate a b) -> concatenate (cast a) (cast b)
#
# Parts that are made together, such as turned halves of vectors, are results of one kernel, which
# writes them to their places, but by a kernel of its own what follows would read them again.


def parts_done(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph in which parts that are made together have done to them what is done to the whole."""
    if not any(isinstance(e.op, Concatenate) for e in graph.eqns):
        return graph
    reads = Counter([*(a for e in graph.eqns for a in e.inputs), *graph.outputs])
    makers, eqns = makers_of(graph), list[Eqn]()
    for eqn in graph.eqns:
        chain = joined_before(eqn, makers, reads, context.tuning.moves.parts)
        made = done_to_parts(eqn, chain, makers) if chain else [reshaped_once(eqn, makers)]
        makers |= {e.outs[0]: e for e in made if chain}
        reads.update(e.outs[0] for e in made[:-1])
        eqns += made
    found = Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)
    return graph if found.eqns == graph.eqns else without_dead_code(found)


def joined_before(eqn: Eqn, makers: Makers, reads: Counter[Any], most: int) -> tuple[Eqn, ...]:
    """The join of at most so many parts, and its reshapes, whose elements alone are read; or none."""
    repeats = [a for a in eqn.inputs if repeated_along(a, makers)]
    arrays = [a for a in eqn.inputs if not isinstance(a, Literal) and a not in repeats]
    if not isinstance(eqn.op, Pointlike) or not fusible(eqn) or len(arrays) != 1:
        return ()
    x: Atom = arrays[0]
    y, chain = eqn.outs[0].type, tuple[Eqn, ...]()
    if y.shape != x.type.shape or y.dtype.itemsize > x.type.dtype.itemsize:
        return ()
    while reads[x] == 1 and (made := makers.get(x)) and isinstance(made.op, Reshape | Concatenate):
        chain, x = (made, *chain), made.inputs[0]
        if isinstance(made.op, Concatenate):
            joined = made.outs[0].type  # of which rows have whole rows of a repeated array
            last = made.op.axis == joined.ndim - 1 and joined.size
            fits = not repeats or (last and y.shape[-1] % joined.shape[-1] == 0)
            return chain if fits and are_together(made.inputs, makers, most) else ()
    return ()


def done_to_parts(eqn: Eqn, chain: tuple[Eqn, ...], makers: Makers) -> list[Eqn]:
    """The equation of each joined part, the join of their results, and its reshapes."""
    made, outs, (join, *_), y = list[Eqn](), list[Var](), chain, eqn.outs[0].type
    parts, size = join.inputs, join.inputs[0].type.shape[-1]
    others = {a: e for a in eqn.inputs if (e := repeated_along(a, makers)) is not None}
    shape = tuple(n for n in parts[0].type.shape if n != 1)  # what a join needs of axes comes back
    moves = [move.op for move in chain]
    if others:
        shape = (*y.shape[:-1], y.shape[-1] // len(parts))
        moves = [Concatenate(len(shape)), Reshape(y.shape)]
    known: dict[Atom, Atom] = {}
    for part in parts:
        given = list[Atom]()
        for a in eqn.inputs:
            if a in others:
                repeat = replace(others[a].op, shape=shape)  # type: ignore[type-var]
                given.append(applied(made, repeat, *others[a].inputs, source=eqn.source))
            else:
                mine = in_shape(part, shape, makers, made, known)
                given.append(a if isinstance(a, Literal) else mine)
        out = applied(made, eqn.op, *given, source=eqn.source)
        back = (*shape[:-1], shape[-1] // size, size) if others else part.type.shape
        outs.append(in_shape(out, back, {}, made, {}))
    for move in moves:
        outs = [applied(made, move, *outs, source=eqn.source)]
    return [*made[:-1], replace(made[-1], outs=eqn.outs)]
