"""Elementwise work cut where edges are, windows written out or seen as views, and masks made anew, so
that it fuses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from typing import Any, Final, final

from ge2.base.arrays import HALF
from ge2.ir import (
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    anew,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, MAX, MIN, MUL, ConvertElementType
from ge2.ops.graphs import Windows, is_part
from ge2.ops.graphs.region import readers_of
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context, Splitting
from ge2.passes.linear_algebra import Sums

# -------- Elementwise work on shifted, padded or joined arrays is cut where those are cut.
# y = add (pad low=1 a) (concatenate b c) -> y = concatenate (the first element) (all that reads a
# and b where they are) (the rest)
# A stencil written with `np.roll`, the derivative of one written with slices, or work on the parts
# of `np.concatenate`, reads arrays that have the same elements as others, a few places away. A cell
# between two cuts reads those others; the arrays in between, and the loops that would copy them,
# are gone. Elements at the edges are computed as before, in cells of their own. Every element is
# made of the same numbers by the same operations.


Box = tuple[tuple[int, int], ...]  # of an array: first element and end along each axis
Cuts = tuple[frozenset[int], ...]  # places along each axis, without 0 and the end


def split_edges(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work cut along the edges of pads and of joined arrays."""
    tuning = context.tuning.splitting
    if not any(is_moved(e) and e.outs[0].type.size >= tuning.smallest for e in graph.eqns):
        return graph
    uses = Uses(graph, tuning)
    made = {root: cells for root, members in uses.groups() if (cells := split(root, members, uses))}
    if not made:
        return graph
    eqns = [new for e in graph.eqns for new in (made.get(e.outs[0], (e,)) if e.outs else (e,))]
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def is_moved(eqn: Eqn) -> bool:
    """True of what copies arrays into another: pads with no gaps, and arrays side by side."""
    op = eqn.op
    if isinstance(op, Pad):
        return not any(op.inner) and min(*op.low, *op.high, 0) >= 0
    return isinstance(op, Concatenate)


@final
class Uses:
    """The makers and the readers of each value of a graph."""

    def __init__(self, graph: Graph, tuning: Splitting) -> None:
        self.graph, self.tuning = graph, tuning
        self.makers: dict[Var, Eqn] = {e.outs[0]: e for e in graph.eqns if len(e.outs) == 1}
        self.readers = readers_of(graph)
        self.counts = Counter(a for e in graph.eqns for a in e.inputs if isinstance(a, Var))
        self.results = frozenset(a for a in graph.outputs if isinstance(a, Var))
        self.counts.update(a for a in graph.outputs if isinstance(a, Var))

    def groups(self) -> Iterable[tuple[Var, list[Eqn]]]:
        """Elementwise equations of one shape by the one value of theirs that others read."""
        root: dict[Var, Var] = {}
        found: dict[Var, list[Eqn]] = {}
        for eqn in reversed(self.graph.eqns):
            if not isinstance(eqn.op, Pointlike) or eqn.outs[0].type.size < self.tuning.smallest:
                continue
            (v,) = eqn.outs
            ends = {root.get(e.outs[0]) if same_shape(e, v) else v for e in self.readers.get(v, ())}
            root[v] = ends.pop() or v if len(ends) == 1 and v not in self.results else v
            found.setdefault(root[v], []).append(eqn)
        return ((v, members[::-1]) for v, members in found.items())

    def dead_without(self, members: Sequence[Eqn], leaves: Iterable[Var]) -> list[Var]:
        """The copies that nothing reads once these equations do not."""
        gone, found = set(members), list[Var]()
        waiting = list(leaves)
        while waiting:
            v = waiting.pop()
            maker = self.makers.get(v)
            unread = v not in self.results and all(e in gone for e in self.readers.get(v, ()))
            if maker is None or maker in gone or not unread:
                continue
            if not (is_moved(maker) or is_part(maker)):
                continue
            gone.add(maker)
            found += [v] if is_moved(maker) else []
            waiting += [a for a in maker.inputs if isinstance(a, Var)]
        return found


def same_shape(eqn: Eqn, v: Var) -> bool:
    return isinstance(eqn.op, Pointlike) and eqn.outs[0].type.shape == v.type.shape


def split(root: Var, members: Sequence[Eqn], uses: Uses) -> tuple[Eqn, ...]:
    """The equations that make `root` of its cells; none if that is no gain."""
    shape = root.type.shape
    inside = {e.outs[0] for e in members}
    leaves = dict.fromkeys(
        a
        for e in members
        for a in e.inputs
        if isinstance(a, Var) and a not in inside and a.type.shape == shape
    )
    gone = uses.dead_without(members, leaves)
    summed = root not in uses.results and all(
        isinstance(e.op, Reduce) for e in uses.readers.get(root, ())
    )
    tuning, more = uses.tuning, root.type.size if summed else 0
    if sum(v.type.size for v in gone) < tuning.smallest + more:
        return ()
    cuts = union(shape, (cuts_of(v, uses) for v in leaves))
    segments = [segments_of(n, at, tuning) for n, at in zip(shape, cuts, strict=True)]
    if not all(segments) or max(map(len, segments)) == 1:
        return ()
    cells = Cells(uses, inside)
    full = sum(len(s) > 1 for s in segments) <= tuning.full
    full = full and max(map(len, cuts)) <= tuning.exact
    whole = cells.joined(root, segments, (), full)
    last = cells.made[-1]
    assert last.outs == (whole,)
    return (*cells.made[:-1], Eqn(last.op, last.inputs, (root,), members[-1].source))


def union(shape: Dims, found: Iterable[Cuts]) -> Cuts:
    cuts = [set[int]() for _ in shape]
    for each in found:
        for axis, places in zip(cuts, each, strict=True):
            axis |= places
    return tuple(map(frozenset, cuts))


def cuts_of(v: Var, uses: Uses) -> Cuts:
    """The places along each axis at which another array begins, of those that a value's elements
    come from.
    """
    maker, shape = uses.makers.get(v), v.type.shape
    none = tuple(frozenset[int]() for _ in shape)
    if maker is None or not (is_moved(maker) or is_part(maker)):
        return none
    found: Cuts = none
    for x, offset in sources(maker):
        box = tuple((o, o + n) for o, n in zip(offset, x.type.shape, strict=True))
        own = tuple(frozenset(b) for b in box)
        deeper = cuts_of(x, uses) if isinstance(x, Var) else none
        moved = tuple(frozenset(o + p for p in at) for o, at in zip(offset, deeper, strict=True))
        found = union(shape, (found, moved, own))
    return tuple(frozenset(p for p in at if 0 < p < n) for n, at in zip(shape, found, strict=True))


def sources(eqn: Eqn) -> list[tuple[Atom, Dims]]:
    """The values that a copy or a part is made of, and where in it the first element of each is."""
    op: Any = eqn.op
    if isinstance(op, Pad):
        return [(eqn.inputs[0], op.low)]
    if isinstance(op, Slice):
        return [(eqn.inputs[0], tuple(-a for a in op.start))]
    found, at = [], 0
    for x in eqn.inputs:
        found.append((x, tuple(at if d == op.axis else 0 for d in range(x.type.ndim))))
        at += x.type.shape[op.axis]
    return found


def segments_of(n: int, cuts: frozenset[int], tuning: Splitting) -> list[tuple[int, int]]:
    """An axis in parts. Of more than a few cuts those near an end are one
    edge; none if there are others.
    """
    places = sorted(cuts)
    if len(places) > tuning.exact:
        low = max((c for c in places if c <= n // tuning.edge), default=0)
        high = min((c for c in places if c >= n - n // tuning.edge), default=n)
        if any(low < c < high for c in places):
            return []
        places = [c for c in (low, high) if 0 < c < n]
    ends = [0, *places, n]
    return list(pairwise(ends))


@final
class Cells:
    """Makes values of parts of an array, without what copies them from others."""

    def __init__(self, uses: Uses, inside: set[Var]) -> None:
        self.uses, self.inside = uses, inside
        self.made: list[Eqn] = []
        self.known: dict[tuple[Atom, Box], Atom] = {}

    # A part may be a scalar in the place of an array of equal elements.

    def joined(
        self, root: Var, segments: Sequence[Sequence[tuple[int, int]]], box: Box, full: bool
    ) -> Atom:
        """The part of `root` that `box` says of the first axes, in its cells."""
        axis, shape = len(box), root.type.shape
        if axis == len(segments):
            return self.filled(self.part(root, box), box)
        parts = []
        for start, stop in segments[axis]:
            cell = (*box, (start, stop))
            edge = 2 * (stop - start) < shape[axis]
            rest = tuple((0, n) for n in shape[axis + 1 :])
            parts.append(
                self.filled(self.part(root, (*cell, *rest)), (*cell, *rest))
                if edge and not full and len(segments[axis]) > 1
                else self.joined(root, segments, cell, full)
            )
        if len(parts) == 1:
            return parts[0]
        return self.emit(Concatenate(axis), *parts)

    def filled(self, part: Atom, box: Box) -> Atom:
        """A part as an array."""
        shape = tuple(stop - start for start, stop in box)
        return part if part.type.shape == shape else self.emit(BroadcastInDim(shape, ()), part)

    def emit(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.made, op, *inputs, source=self.source)

    source = None

    def part(self, v: Atom, box: Box, alone: bool = True) -> Atom:
        """The elements of a value in a box; `alone` if nobody else reads the value."""
        if not isinstance(v, Var) or not v.type.shape:
            return v
        key = (v, box)
        if key not in self.known:
            self.known[key] = self.new_part(v, box, alone)
        return self.known[key]

    def new_part(self, v: Var, box: Box, alone: bool) -> Atom:
        maker = self.uses.makers.get(v)
        whole = box == tuple((0, n) for n in v.type.shape)
        if maker is not None and v in self.inside:
            return self.computed(maker, box, True)
        alone = alone and self.uses.counts[v] == 1
        if maker is not None and is_moved(maker) and (alone or not whole):
            return self.moved(maker, box, alone)
        if whole:
            return v
        if maker is not None and is_part(maker):
            assert isinstance(maker.op, Slice)
            return self.part(maker.inputs[0], shifted(box, maker.op.start), alone)
        if maker is not None and isinstance(maker.op, BroadcastInDim):
            return self.broadcast(maker, box)
        if maker is not None and alone and isinstance(maker.op, Pointlike):
            return self.computed(maker, box, alone)
        return self.sliced(v, box)

    def computed(self, maker: Eqn, box: Box, alone: bool) -> Var:
        shape = maker.outs[0].type.shape
        inputs = [self.part(a, box, alone) if a.type.shape == shape else a for a in maker.inputs]
        return self.emit_at(maker, maker.op, *inputs)

    def emit_at(self, maker: Eqn, op: Op, *inputs: Atom) -> Var:
        """An equation in the place of another, whose line of the user's it keeps."""
        made = self.emit(op, *inputs)
        self.made[-1] = Eqn(op, inputs, (made,), maker.source)
        return made

    def sliced(self, v: Var, box: Box) -> Var:
        start, stop = zip(*box, strict=True)
        return self.emit_at(self.uses.makers.get(v, NOBODY), Slice(start, stop, (1,) * len(box)), v)

    def broadcast(self, maker: Eqn, box: Box) -> Atom:
        op = maker.op
        assert isinstance(op, BroadcastInDim)
        shape = tuple(stop - start for start, stop in box)
        (x,) = maker.inputs
        if not x.type.shape and not x.type.weak:
            return x
        return self.emit_at(
            maker,
            BroadcastInDim(shape, op.dims),
            self.part(x, tuple(box[d] for d in op.dims), False),
        )

    def moved(self, maker: Eqn, box: Box, alone: bool) -> Atom:
        """Of a pad, or of arrays side by side: of each the part that is in the box."""
        found = []
        for x, offset in sources(maker):
            bounds = zip(box, offset, x.type.shape, strict=True)
            part = tuple((max(a - o, 0), min(b - o, n)) for (a, b), o, n in bounds)
            if all(a < b for a, b in part):
                found.append((self.part(x, part, alone), part, offset))
        if isinstance(maker.op, Pad):
            return self.padded(maker, box, *found[0]) if found else zero_of(maker)
        parts = [self.filled(x, part) for x, part, _ in found]
        return found[0][0] if len(parts) == 1 else self.emit_at(maker, maker.op, *parts)

    def padded(self, maker: Eqn, box: Box, x: Atom, part: Box, offset: Dims) -> Atom:
        sides = list(zip(part, offset, box, strict=True))
        low = tuple(a + o - start for (a, _), o, (start, _) in sides)
        high = tuple(stop - b - o for (_, b), o, (_, stop) in sides)
        if not any((*low, *high)):
            return x
        return self.emit_at(maker, Pad(low, high, (0,) * len(box)), self.filled(x, part))


def zero_of(maker: Eqn) -> Literal:
    return Literal.of(maker.outs[0].type.dtype.type(0))


NOBODY: Final = Eqn(Slice((), (), ()), (), ())  # in place of what makes an input of the graph


def shifted(box: Box, by: Dims) -> Box:
    return tuple((a + d, b + d) for (a, b), d in zip(box, by, strict=True))


# -------- Folds over windows are folds of slices.
# w = gather x (iota + iota); y = reduce_max[axes=1] w -> y = max (max x[0:n] x[1:n+1]) x[2:n+2]
# Windows are a gather: each element is written once for each window that has it, and read again. Of
# few places a window is as many slices, which one kernel reads where they are: pooling, local sums,
# filters by `sliding_window_view`.


# a place along an axis: a number, and a step along each axis of what reads it that it follows
Form = tuple[int, tuple[tuple[int, int], ...]]


def written_windows(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose folds over windows of few places read them as slices, and whose other windows
    are views.
    """
    if not any(type(e.op) is Gather and len(e.op.axes) == 1 for e in graph.eqns):
        return graph
    windows, eqns = Windowed(graph), list[Eqn]()
    for e in graph.eqns:
        eqns += windows.written(e, context.tuning.splitting, context.caps is not None)
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


class Unfit(Exception):
    """Raised where a value at a place is no slice of an array."""


@final
class Windowed:
    """Values at places along some axes, which they then lack; `met`: whether windows were read."""

    def __init__(self, graph: Graph) -> None:
        self.makers = makers_of(graph)
        self.eqns, self.made = list[Eqn](), dict[tuple[Atom, tuple[tuple[int, int], ...]], Atom]()
        self.met = False

    def written(self, e: Eqn, tuning: Splitting, turns: bool) -> list[Eqn]:
        """Equations in place of one: a product with one column is a fold, too; operands of others are
        turned as they are taken, if it `turns` them.
        """
        if isinstance(e.op, Reduce):
            return self.folded(e, tuning) or [e]
        if isinstance(e.op, DotGeneral) and e.op.contract[0]:
            sizes = [x.type.size for x in e.inputs]
            terms = math.prod(e.inputs[0].type.shape[a] for a in e.op.contract[0])
            if terms <= tuning.window and e.outs[0].type.size * terms == max(sizes):
                sums = Sums(e, self.makers, stored=False).eqns()
                self.makers.update((v, each) for each in sums for v in each.outs)
                found = [self.folded(o, tuning) if isinstance(o.op, Reduce) else [o] for o in sums]
                if None not in found:
                    return [o for each in found for o in each or ()]
        if turns and isinstance(e.op, DotGeneral):
            return self.multiplied(e)
        return [self.viewed(e) or e]

    def folded(self, e: Eqn, tuning: Splitting) -> list[Eqn] | None:
        """A fold over places of windows written out; None of others."""
        op, (x,), (y,) = e.op, e.inputs, e.outs
        assert isinstance(op, Reduce)
        step = FOLDS.get(type(op))
        places = [x.type.shape[a] for a in op.axes]
        rounds = x.type.dtype in HALF and step in (ADD, MUL)  # a sum of those is of float32
        if step is None or rounds or not 1 < math.prod(places) <= tuning.window or not y.type.size:
            return None
        self.eqns, self.met = [], False
        self.made.clear()
        try:
            terms = list[Atom]()
            for place in product(*map(range, places)):
                terms.append(self.at(x, dict(zip(op.axes, place, strict=True))))
                # one place reads windows if any does
                if not self.met or len(self.eqns) > tuning.written:
                    return None
        except Unfit:
            return None
        total = terms[0]
        for term in terms[1:]:
            total = applied(self.eqns, step, total, term, source=e.source)
        *before, last = self.eqns
        return [*before, Eqn(last.op, last.inputs, e.outs, e.source)]

    def at(self, x: Atom, fixed: dict[int, int]) -> Atom:
        key = x, tuple(sorted(fixed.items()))
        if not fixed:
            return x
        if key not in self.made:
            self.made[key] = self.part(x, fixed)
        return self.made[key]

    def part(self, x: Atom, fixed: dict[int, int]) -> Atom:
        rest = [a for a in range(x.type.ndim) if a not in fixed]
        forms: list[Form] = [
            (fixed[a], ()) if a in fixed else (0, ((a, 1),)) for a in range(x.type.ndim)
        ]
        source, met = self.behind(x, forms)
        eqn = self.makers.get(x)
        if source is x and eqn is not None and len(eqn.outs) == 1:
            op = eqn.op
            if isinstance(op, BroadcastInDim):
                return self.repeated(eqn, fixed, rest)
            if isinstance(op, Pointlike) and not isinstance(op, Draw):
                inputs = [self.at(a, fixed) if a.type.shape else a for a in eqn.inputs]
                return applied(self.eqns, op, *inputs, source=eqn.source)
        self.met |= met > 0
        return self.cut(source, forms, rest, x)

    def repeated(self, eqn: Eqn, fixed: dict[int, int], rest: list[int]) -> Atom:
        (x,), (y,), op = eqn.inputs, eqn.outs, eqn.op
        assert isinstance(op, BroadcastInDim)
        lost = {a: fixed[d] for a, d in enumerate(op.dims) if d in fixed}
        inner = self.at(x, {a: n if x.type.shape[a] > 1 else 0 for a, n in lost.items()})
        dims = tuple(rest.index(d) for d in op.dims if d not in fixed)
        shape = tuple(y.type.shape[a] for a in rest)
        return applied(self.eqns, BroadcastInDim(shape, dims), inner, source=eqn.source)

    def behind(self, x: Atom, forms: list[Form]) -> tuple[Atom, int]:
        """The array whose elements a value has, behind views and windows, with `forms` as the places
        along its axes; and how many windows there were.
        """
        met = 0
        while (eqn := self.makers.get(x)) is not None:
            op, found = eqn.op, list(forms)
            if isinstance(op, Transpose):
                for d, a in enumerate(op.order):
                    found[a] = forms[d]
            elif isinstance(op, Slice):
                found = [
                    (op.start[a] + n * op.step[a], tuple((b, s * op.step[a]) for b, s in along))
                    for a, (n, along) in enumerate(forms)
                ]
            elif self.is_window(eqn):
                (first, along), (offset, other), *others = forms
                found = list(others)
                found.insert(op.axes[0], (first + offset, along + other))  # type: ignore[attr-defined]
                met += 1
            else:
                break
            forms[:], x = found, eqn.inputs[0]
        return x, met

    def is_window(self, eqn: Eqn) -> bool:
        """True of a gather along one axis at places of it that count up along both of their axes."""
        if type(eqn.op) is not Gather or len(eqn.op.axes) != 1 or eqn.inputs[1].type.ndim != 2:
            return False
        x, places = (a.type for a in eqn.inputs)
        index = self.makers.get(eqn.inputs[1])
        outside = sum(places.shape) - 1 > x.shape[eqn.op.axes[0]] or places.dtype.itemsize < 4
        if index is None or index.op != ADD or outside:
            return False
        ends = [self.makers.get(a) for a in index.inputs]
        return {e.op.axis for e in ends if e and isinstance(e.op, Iota)} == {0, 1}

    def viewed(self, eqn: Eqn) -> Eqn | None:
        """A gather of windows as a view; None of other equations."""
        if not self.is_window(eqn) or not eqn.outs[0].type.size:
            return None
        (x, index), (axis,) = eqn.inputs, eqn.op.axes  # type: ignore[attr-defined]
        count, size = index.type.shape
        return Eqn(Windows(axis, (count, size)), (x,), eqn.outs, eqn.source)

    def multiplied(self, e: Eqn) -> list[Eqn]:
        """A product whose operands that are windows are copied as it takes them: rows and terms each
        merge, and no copy of the copy is needed.
        """
        assert isinstance(e.op, DotGeneral)
        inputs, made = list[Atom](), list[Eqn]()
        for i, v in enumerate(e.inputs):
            forms: list[Form] = [(0, ((a, 1),)) for a in range(v.type.ndim)]
            if self.behind(v, forms)[1] and v.type.size:
                order = by_product(e.op, i, v.type.ndim, forms[-1])
                turned = applied(made, Transpose(order), v, source=e.source)
                copy = ConvertElementType(v.type.dtype, False)
                found = applied(made, copy, turned, source=e.source)
                back = Transpose(tuple(order.index(a) for a in range(len(order))))
                v = applied(made, back, found, source=e.source)
            inputs.append(v)
        return [*made, Eqn(e.op, tuple(inputs), e.outs, e.source)] if made else [e]

    def cut(self, x: Atom, forms: list[Form], rest: list[int], of: Atom) -> Atom:
        """The slice of an array at those places, with the axes `rest` of what reads it."""
        if any(len(along) > 1 for _, along in forms):
            raise Unfit  # windows that are no part of a fold
        free = [a for _, along in forms for a, _ in along]
        if sorted(free) != rest:
            raise Unfit
        start, step = tuple(n for n, _ in forms), tuple(sum(s for _, s in a) or 1 for _, a in forms)
        shape = tuple(math.prod(of.type.shape[a] for a, _ in along) for _, along in forms)
        ends = zip(start, step, shape, strict=True)
        part = Slice(start, tuple(a + (n - 1) * s + 1 for a, s, n in ends), step)
        found = applied(self.eqns, part, x)
        found = applied(self.eqns, Reshape(tuple(of.type.shape[a] for a in free)), found)
        if free == rest:
            return found
        return applied(self.eqns, Transpose(tuple(free.index(a) for a in rest)), found)


FOLDS: Final = {ReduceSum: ADD, ReduceProd: MUL, ReduceMax: MAX, ReduceMin: MIN}


def by_product(op: DotGeneral, i: int, ndim: int, last: Form) -> Dims:
    """The axes of operand `i` as a product takes them, neighbours in memory last."""
    beside, summed = op.beside[i], op.contract[i]
    free = tuple(a for a in range(ndim) if a not in beside and a not in summed)
    near = {a for a, _ in last[1][:1]}
    if near & {*free}:
        return (*beside, *summed, *free)
    return (
        *beside,
        *free,
        *(a for a in summed if a not in near),
        *(a for a in summed if a in near),
    )


# -------- Masks that are made of indices alone are made anew for each reader: one that is read as
# it lies and, beside a transposed array, across its lines would split a region in two.


SHORT = 8  # equations that make such a mask, at most


def masks_apart(graph: Graph, takes: Callable[[Eqn], bool], context: Context) -> Graph:
    """The graph with a copy of such equations for each but the first reader, of those that a region
    takes, where an array is transposed; not on a GPU.
    """
    counts = [e for e in graph.eqns if isinstance(e.op, Iota)]
    turned = context.caps is None and any(isinstance(e.op, Transpose) for e in graph.eqns)
    if not (counts and turned):
        return graph
    chains: dict[Atom, tuple[Eqn, ...]] = {e.outs[0]: (e,) for e in counts}
    read, eqns = set[Atom](), list[Eqn]()
    for eqn in graph.eqns:
        chain = (*dict.fromkeys(e for a in eqn.inputs for e in chains.get(a, ())), eqn)
        known = all(a in chains or isinstance(a, Literal) for a in eqn.inputs)
        if known and takes(eqn) and isinstance(eqn.op, Pointlike) and 1 < len(chain) <= SHORT:
            chains[eqn.outs[0]] = chain
        elif takes(eqn):
            masks = [a for a in eqn.inputs if len(chains.get(a, ())) > 1]
            again = dict[Any, Atom]()
            for made in dict.fromkeys(e for a in masks if a in read for e in chains[a]):
                eqns.append(anew(again, made))
            read.update(masks)
            eqn = renamed(again, eqn)
        eqns.append(eqn)
    return replace(graph, eqns=tuple(eqns))


def crossing(eqns: Sequence[Eqn], bases: Callable[[Eqn], Sequence[Var]]) -> list[int]:
    """The bytes that are made by equations before each of these, and read by it or later ones."""
    made, last = dict[Var, int](), dict[Var, int]()
    for at, eqn in enumerate(eqns):
        last.update((var, at) for var in bases(eqn) if var in made)
        made.update(dict.fromkeys(eqn.outs, at))
    changes = [0] * (len(eqns) + 1)
    for var, at in last.items():
        changes[made[var] + 1] += var.type.nbytes
        changes[at + 1] -= var.type.nbytes
    return list(accumulate(changes[:-1]))
