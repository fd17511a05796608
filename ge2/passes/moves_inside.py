"""Regions read the parts of joined, padded and updated arrays where those are.

  p = region (b[1:] - b[:-1]);  j = concatenate p b[-1:];  y = region (j * c)
  ->  y = region (where (i < n - 1) (pad low=-1 b - b) b) * c

A kernel that copies arrays side by side writes what the next one reads, as does each that makes a
part. Inside a region an array that lies elsewhere is a pad of it: an element where there is one, zero
beside it. So shifts, differences at edges, and steps of a stencil are one kernel each.

Regions read the rows that indices name where those are.

  y = gather[axes=0] table i;  s = region (reduce_sum[axes=1] y)
  ->  s = region (reduce_sum[axes=1] (gather[axes=0] table i))

A kernel that writes rows side by side writes as much as it reads, and the next one reads it again.
It is for targets on which an index outside wraps around: where it is an error, a kernel looks at all
of them first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Final, final

import numpy as np

from ge2.base.arrays import HALF
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, makers_of, without_dead_code
from ge2.ops.elementwise import ADD, SUB, WHERE, ConvertElementType
from ge2.ops.graphs import (
    Along,
    InRuns,
    Run,
    array_before_writes,
    is_move,
    is_part,
    less,
    lows,
    seen_axes,
    spread,
    together,
)
from ge2.ops.graphs.region import Region, is_loop, readers_of
from ge2.ops.index import UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.shape import Barrier, BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice
from ge2.passes.context import NOTHING, Context, Moves
from ge2.passes.fusion_group import NONE
from ge2.passes.indices import orientation
from ge2.passes.slices import with_slices_first

TRUE: Final = Literal.of(np.bool_(True))


def moves_inside(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions read parts of joined arrays where those are."""
    return with_slices_first(graph, lambda each: swept(each, context))


def swept(graph: Graph, context: Context) -> Graph:
    if not any(is_move(e) for e in graph.eqns):
        return graph
    graph = seen_outside(untied(graph))
    sweep = Sweep(graph, context.tuning.moves)
    eqns = tuple(map(sweep.rewritten, graph.eqns))
    if not sweep.changed:
        return graph
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def untied(graph: Graph) -> Graph:
    """Drops a barrier's operand that is a join or a pad, or part of one, and whose result is not read:
    the barrier only kept it out of a region that reads its parts now.
    """
    read = {a for e in graph.eqns for a in e.inputs} | {*graph.outputs}
    moves = set[Atom]()
    for e in graph.eqns:
        if is_move(e) or (is_part(e) and e.inputs[0] in moves):
            moves.add(e.outs[0])
    eqns = list[Eqn]()
    for e in graph.eqns:
        if isinstance(e.op, Barrier):
            pairs = zip(e.inputs, e.outs, strict=True)
            kept = [(a, v) for a, v in pairs if v in read or a not in moves]
            if len(kept) < len(e.outs):
                e = replace(e, inputs=tuple(a for a, _ in kept), outs=tuple(v for _, v in kept))
        eqns.append(e)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def seen_outside(graph: Graph) -> Graph:
    """Has regions of one result read arrays as they see them, without the axes of size 1 that others
    have: such an equation means the same for another part of the space.
    """
    eqns = list[Eqn]()
    for e in graph.eqns:
        if isinstance(e.op, Region) and e.op.kind == "pointwise" and len(e.outs) == 1:
            e = without_reshapes(e, eqns)
        eqns.append(e)
    return replace(graph, eqns=tuple(eqns))


def without_reshapes(eqn: Eqn, before: list[Eqn]) -> Eqn:
    """A region without reshapes of its smaller inputs; `before` takes those."""
    op, names = eqn.op, dict[Atom, Var]()
    assert isinstance(op, Region)
    inner = op.graph.inputs
    outer: dict[Atom, Atom] = dict(zip(inner, eqn.inputs, strict=True))
    reads = Counter(a for e in op.graph.eqns for a in e.inputs)
    for e in op.graph.eqns:
        x = e.inputs[0] if isinstance(e.op, Reshape) else None
        if x in outer and reads[x] == 1 and x.type.size < math.prod(op.space) and is_repeated(e):
            names[x] = Var(e.outs[0].type)
            before.append(replace(e, inputs=(outer[x],), outs=(names[x],)))
    if not names:
        return eqn
    kept = [n for n, e in enumerate(op.graph.eqns) if not any(a in names for a in e.inputs)]
    env = {e.outs[0]: e.inputs[0] for e in op.graph.eqns if any(a in names for a in e.inputs)}
    given = tuple(next((v for v, a in env.items() if a is x), x) for x in inner)
    graph = replace(op.graph, inputs=given, eqns=tuple(op.graph.eqns[n] for n in kept))
    made = replace(op, graph=graph, axes=tuple(op.axes[n] for n in kept))
    return replace(eqn, op=made, inputs=tuple(names.get(x, outer[x]) for x in inner))


def is_plain(eqn: Eqn) -> bool:
    """True of elementwise work whose arrays all have its shape, or repeat along axes of it."""
    op = eqn.op
    if not isinstance(op, Region) or op.kind != "pointwise" or len(eqn.outs) != 1:
        return False
    return all(is_movable(e, op.graph) for e in op.graph.eqns)


def is_movable(eqn: Eqn, graph: Graph) -> bool:
    """True if it means the same for another part of the space."""
    op, (y,) = eqn.op, eqn.outs
    shape = graph.outputs[0].type.shape
    if isinstance(op, Iota):
        return y.type.shape == shape and op.dtype not in HALF
    if isinstance(op, BroadcastInDim):
        return y.type.shape == shape and (
            isinstance(eqn.inputs[0], Literal) or eqn.inputs[0] in graph.inputs
        )
    if isinstance(op, Reshape):
        return y.type.shape == shape and is_repeated(eqn) and eqn.inputs[0] in graph.inputs
    if not isinstance(op, Pointlike) or isinstance(op, Draw):
        return False
    return {v.type.shape for v in (*eqn.inputs, y)} <= {shape, ()}


def is_repeated(eqn: Eqn) -> bool:
    """True of a number or an array seen with axes more or less, along which it repeats."""
    op, (x, *_) = eqn.op, eqn.inputs or (None,)
    if isinstance(op, BroadcastInDim):
        return True
    if not isinstance(op, Reshape) or x is None:
        return False
    longer = [[n for n in v.type.shape if n != 1] for v in (x, *eqn.outs)]
    return longer[0] == longer[1]


def is_seen_through(eqn: Eqn) -> bool:
    """True of a view whose elements a region reads where they are."""
    return is_part(eqn) or is_repeated(eqn)


@final
class Sweep:
    """The maker and the readers of each value; `inside`: the moves whose readers all take them in."""

    def __init__(self, graph: Graph, tuning: Moves) -> None:
        self.tuning, self.changed = tuning, False
        self.makers = makers_of(graph)
        self.readers = readers_of(graph)
        self.reads: Counter[Atom] = Counter(a for e in graph.eqns for a in e.inputs)
        self.reads.update(graph.outputs)
        self.results = frozenset(graph.outputs)
        self.inside: set[Atom] = set()
        self.at: dict[Atom, set[tuple[object, Dims]]] = {}  # the places of a move in who reads it
        self.depth: dict[Atom | None, int] = {}  # how many moves of moves it is part of
        self.own: set[Atom] = set()  # moves that are regions of their own
        for eqn in reversed([e for e in graph.eqns if is_move(e)]):
            self.settle(eqn)

    def settle(self, eqn: Eqn) -> None:
        """Decides whether a move is done by who reads it, or by a region of its own."""
        (y,) = eqn.outs
        found, tuning = self.taking(y), self.tuning
        if len(eqn.inputs) > tuning.pads or any(map(self.turned, eqn.inputs)):
            return
        deep = 1 + max((self.depth.get(self.taker(e), 0) for e in found or ()), default=0)
        few = found is not None and 0 < len(set(map(id, found))) <= tuning.readers
        if found is not None and few and deep <= tuning.deep:
            self.inside.add(y)
            self.at[y] = self.places(y)
            self.depth[y] = deep
        elif self.pays(eqn):
            self.own.add(y)

    def pays(self, eqn: Eqn) -> bool:
        """True if a region of its own that computes the parts, or sees through them, takes less time
        than kernels that write each part where it belongs.
        """
        if isinstance(eqn.op, UpdateSlice):
            x, u = eqn.inputs
            return 2 * u.type.size >= x.type.size and self.expands(u)
        if any(map(self.moved, eqn.inputs)):
            return True
        # else it saves launches alone: parts are written, in wide accesses, where they belong,
        # but for columns of a few elements that are side by side
        op = eqn.op
        more = [n for n in (*op.low, *op.high) if n] if isinstance(op, Pad) else eqn.inputs[1:]
        most = self.tuning.several if len(more) > 1 else self.tuning.small
        given = eqn.inputs[0] not in self.makers  # a copy of 2^27 elements took 492 us, this 300
        framed = isinstance(op, Pad) and (given or len(more) > 1)
        small = eqn.outs[0].type.size <= most or self.are_columns(eqn)
        return framed or (small and any(self.expands(x) or self.repeats(x) for x in eqn.inputs))

    def are_columns(self, eqn: Eqn) -> bool:
        """True of a join of narrow parts along the last axis."""
        op, (y,) = eqn.op, eqn.outs
        if not isinstance(op, Concatenate) or op.axis != y.type.ndim - 1:
            return False
        return max(x.type.shape[-1] for x in eqn.inputs) <= self.tuning.columns

    def turned(self, x: Atom) -> bool:
        """True of a part that is seen in another form: what makes it writes it so where it belongs,
        and it would have to be copied otherwise.
        """
        eqn = self.makers.get(x)
        if eqn is None or not eqn.op.is_view or isinstance(eqn.op, Iota):
            return False
        seen = is_seen_through(eqn) or isinstance(eqn.op, Slice)
        return self.turned(eqn.inputs[0]) if seen else True

    def repeats(self, x: Atom) -> bool:
        """True of a number that is repeated."""
        eqn = self.makers.get(x)
        return eqn is not None and isinstance(eqn.op, BroadcastInDim) and not eqn.op.dims

    def taking(self, y: Atom) -> list[Eqn] | None:
        """The regions that read a move, or parts of it, and can do it; None if others do, too."""
        if y in self.results:
            return None
        found: list[Eqn] = []
        for reader in self.readers.get(y, ()):
            (out, *_) = reader.outs or (None,)
            if out is not None and is_seen_through(reader):
                inner = self.taking(out)
                if inner is None:
                    return None
                found += inner
            elif out in self.inside | self.own or self.seen(reader, y) is not None:
                found.append(reader)
            else:
                return None
        return found

    def seen(self, eqn: Eqn, y: Atom) -> Dims | None:
        """The axes of the space that those of an input of a region are; None if there are none."""
        op = eqn.op
        if not is_loop(op) or eqn.inputs.count(y) != 1:
            return None
        return orientation(op, op.graph.inputs[eqn.inputs.index(y)])

    def moved(self, x: Atom) -> bool:
        """True of a move, or a view of one, that its readers do."""
        eqn = self.makers.get(x)
        if eqn is None:
            return False
        return self.moved(eqn.inputs[0]) if is_seen_through(eqn) else x in self.inside

    def located(self, x: Atom, axes: tuple[Along, ...]) -> tuple[Atom, tuple[Along, ...]] | None:
        """The one array of which elements of a value are, and where along its axes; None if they are
        of several, or are computed.
        """
        eqn = self.makers.get(x)
        if eqn is None:
            return x, axes
        op = eqn.op
        if is_part(eqn):
            start = op.start  # type: ignore[attr-defined]
            return self.located(eqn.inputs[0], tuple(map(Along.moved, axes, start)))
        if is_repeated(eqn):
            return (
                self.located(eqn.inputs[0], seen_axes(eqn, axes))
                if eqn.inputs[0].type.shape
                else None
            )
        if x not in self.inside:
            return None if self.expands(x) else (x, axes)
        return self.joined(eqn, op.axis, axes) if isinstance(op, Concatenate) else None

    def joined(
        self, eqn: Eqn, axis: int, axes: tuple[Along, ...]
    ) -> tuple[Atom, tuple[Along, ...]] | None:
        """The array of all parts of a join, if it is one."""
        begin, sources, found = 0, list[Atom](), list[tuple[Along, tuple[Along, ...]]]()
        for x in eqn.inputs:
            end = begin + x.type.shape[axis]
            if part := axes[axis].within(begin, end):
                one = self.located(x, (*axes[:axis], part, *axes[axis + 1 :]))
                if one is None:
                    return None
                sources.append(one[0])
                found.append((part, one[1]))
            begin = end
        if len(set(map(id, sources))) != 1:
            return None
        spreads = zip(*(spread(*each) for each in found), strict=True)
        whole = [together(axes[axis].axis, along) for along in spreads]
        return None if None in whole else (sources[0], tuple(filter(None, whole)))

    def expands(self, x: Atom) -> bool:
        """True of what is computed for its only reader, so that this may as well compute it."""
        eqn = self.makers.get(x)
        if eqn is None or self.reads[x] != 1:
            return False
        if is_part(eqn) or (isinstance(eqn.op, Reshape) and is_repeated(eqn)):
            return self.expands(eqn.inputs[0])
        return is_plain(eqn) and self.few_times(eqn)

    def few_times(self, eqn: Eqn) -> bool:
        """True if what a region computes is computed once, or takes no longer than to read it."""
        assert isinstance(eqn.op, Region)
        times = max(len(self.at.get(self.taker(eqn) or eqn.outs[0], ())), 1)
        return times == 1 or times * len(eqn.op.graph.eqns) <= self.tuning.again

    def places(self, y: Atom) -> set[tuple[object, Dims]]:
        """The results for which a value is read, and where its first element lies in each."""
        found = set[tuple[object, Dims]]()
        for e in self.readers.get(y, ()):
            out = e.outs[0]
            if is_loop(e.op) and self.taker(e) is None:
                found.add((out, (0,) * y.type.ndim))
                continue
            own = {(out, (0,) * out.type.ndim)} if out in self.own else None
            for root, at in own or self.at.get(out) or self.places(out):
                if len(at) != y.type.ndim:  # a reshape lies between: the place begins anew
                    root, at = (root, at), (0,) * y.type.ndim
                found.update((root, tuple(map(add, at, low))) for low in lows(e, y, len(at)))
        return found

    def taker(self, eqn: Eqn) -> Atom | None:
        """The move that an equation is, or whose parts alone it makes."""
        while not is_move(eqn) and eqn.outs and self.reads[eqn.outs[0]] == 1:
            readers = self.readers.get(eqn.outs[0])
            if not readers or not (is_plain(eqn) or is_seen_through(eqn)):
                return None
            (eqn,) = readers
            if not (is_move(eqn) or is_seen_through(eqn)):
                return None
        return eqn.outs[0] if is_move(eqn) else None

    def rewritten(self, eqn: Eqn) -> Eqn:
        op = eqn.op
        if eqn.outs and eqn.outs[0] in self.own:
            shape = eqn.outs[0].type.shape
            at = tuple(NONE if n == 1 else d for d, n in enumerate(shape))
            inside = Inside(self)
            result = inside.moved(eqn, (0,) * len(shape), shape, at)
            last = inside.eqns[-1].op if inside.eqns else None
            if isinstance(last, BroadcastInDim):  # a view, of which a region stores nothing
                result = inside.made(ConvertElementType(result.type.dtype), (result,), at)
            return self.made(eqn, "pointwise", shape, inside, (result,)) or eqn
        if not is_loop(op):
            return eqn
        for y in dict.fromkeys(eqn.inputs):
            if self.moved(y):
                eqn = self.taken(eqn, y)
        return eqn

    def taken(self, eqn: Eqn, y: Atom) -> Eqn:
        """A region that does a move itself; as it was where that is too much."""
        op = eqn.op
        assert isinstance(op, Region)
        at = self.seen(eqn, y)
        if at is None:
            return eqn
        i, inner = eqn.inputs.index(y), op.graph.inputs
        inside = Inside(self)
        inside.read(eqn.inputs[:i] + eqn.inputs[i + 1 :], inner[:i] + inner[i + 1 :])
        found, old = inside.placed(y, (0,) * y.type.ndim, y.type.shape, at), inner[i]
        for each, axes in zip(op.graph.eqns, op.axes, strict=True):
            inputs = tuple(found if a is old else a for a in each.inputs)
            inside.add(replace(each, inputs=inputs), axes)
        return self.made(eqn, op.kind, op.space, inside, op.graph.outputs) or eqn

    def made(
        self, eqn: Eqn, kind: str, space: Dims, inside: Inside, outputs: Sequence[Atom]
    ) -> Eqn | None:
        """The equation of a region of such equations; None of too many."""
        tuning = self.tuning
        if inside.pads > tuning.pads or len(inside.eqns) > tuning.equations:
            return None
        if any(a in inside.given.values() for a in outputs):
            return None  # nothing was to be done
        self.changed = True
        graph = Graph(tuple(inside.given.values()), tuple(inside.eqns), tuple(outputs))
        op = Region(kind, space, tuple(inside.axes), graph)
        return replace(eqn, op=op, inputs=tuple(inside.given), choice=None)


@final
@dataclass
class Inside:
    """The equations of a region as they are made."""

    sweep: Sweep
    given: dict[Atom, Var] = field(default_factory=dict)  # what the region reads
    eqns: list[Eqn] = field(default_factory=list)
    axes: list[Dims] = field(default_factory=list)
    pads: int = 0
    known: dict[object, Atom] = field(default_factory=dict)  # what was placed before

    def read(self, outer: Sequence[Atom], inner: Sequence[Var]) -> None:
        """Takes in the inputs of a region, which may be known by another name."""
        for a, v in zip(outer, inner, strict=True):
            self.given.setdefault(a, v)

    def add(self, eqn: Eqn, at: Dims) -> None:
        self.eqns.append(eqn)
        self.axes.append(at)

    def made(self, op: Op, inputs: Sequence[Atom], at: Dims, source: object = None) -> Var:
        (type_,) = op.infer(*(a.type for a in inputs))
        y = Var(type_)
        self.add(Eqn(op, tuple(inputs), (y,), source), at)  # type: ignore[arg-type]
        return y

    def placed(self, x: Atom, low: Dims, shape: Dims, at: Dims) -> Atom:
        """A value whose first element lies at `low` of an array of a shape; around it is anything."""
        key = x, low, shape, at
        if key not in self.known:
            self.known[key] = self.found(x, low, shape, at)
        return self.known[key]

    def found(self, x: Atom, low: Dims, shape: Dims, at: Dims) -> Atom:
        eqn = self.sweep.makers.get(x)
        if eqn is not None and is_part(eqn):
            return self.placed(eqn.inputs[0], less(low, eqn.op.start), shape, at)  # type: ignore[attr-defined]
        if eqn is not None and x in self.sweep.inside:
            return self.in_runs(x, low, shape, at) or self.moved(eqn, low, shape, at)
        if eqn is not None and is_repeated(eqn):
            return self.viewed(eqn, low, shape, at)
        if eqn is not None and self.sweep.expands(x):
            return self.computed(eqn, low, shape, at)
        return self.array(x, low, shape, at)

    def given_as(self, x: Atom) -> Atom:
        """The name in the region of a value of the caller's."""
        if isinstance(x, Literal):
            return x
        return self.given.setdefault(x, Var(x.type))

    def array(self, x: Atom, low: Dims, shape: Dims, at: Dims) -> Atom:
        """An array of the caller's, at its place."""
        inner = self.given_as(x)
        if x.type.shape == shape and not any(low):
            return inner
        self.pads += 1
        high = less(shape, tuple(map(sum, zip(low, x.type.shape, strict=True))))
        return self.made(Pad(low, high, (0,) * len(low)), (inner,), at)

    def moved(self, eqn: Eqn, low: Dims, shape: Dims, at: Dims) -> Atom:
        """The result of a move, at its place."""
        op = eqn.op
        if isinstance(op, Concatenate):
            return self.joined(eqn, op.axis, low, shape, at)
        if isinstance(op, UpdateSlice):
            x, u = array_before_writes(eqn, self.sweep.makers, self.sweep.inside), eqn.inputs[1]
            here = less(low, tuple(-n for n in op.start))
            return self.chosen(u, here, lambda: self.placed(x, low, shape, at), shape, at)
        assert isinstance(op, Pad)
        (x,), zero = eqn.inputs, Literal.of(eqn.outs[0].type.dtype.type(0))
        return self.chosen(x, less(low, tuple(-n for n in op.low)), lambda: zero, shape, at)

    def joined(self, eqn: Eqn, axis: int, low: Dims, shape: Dims, at: Dims) -> Atom:
        """The parts one after another: each is that of the places before its end."""
        begin, ends = low[axis], list[tuple[Atom, Dims, int]]()
        for x in eqn.inputs:
            end = begin + x.type.shape[axis]
            if end > 0 and begin < shape[axis] and end > begin:
                ends.append((x, (*low[:axis], begin, *low[axis + 1 :]), end))
            begin = end
        x, place, _ = ends.pop()
        found = self.placed(x, place, shape, at)
        for x, place, end in reversed(ends):
            mask = self.mask((0,) * len(shape), (*shape[:axis], end, *shape[axis + 1 :]), shape, at)
            found = self.made(WHERE, (mask, self.placed(x, place, shape, at), found), at)
        return found

    def chosen(self, x: Atom, low: Dims, other: Callable[[], Atom], shape: Dims, at: Dims) -> Atom:
        """An array where it lies, and something else where it does not."""
        begin = tuple(max(n, 0) for n in low)
        ends = zip(low, x.type.shape, shape, strict=True)
        end = tuple(min(n + size, most) for n, size, most in ends)
        if any(a >= b for a, b in zip(begin, end, strict=True)):
            found = other()
            return found if found.type.shape else self.made(BroadcastInDim(shape, ()), (found,), at)
        here = self.placed(x, low, shape, at)
        if not any(begin) and end == shape:
            return here
        return self.made(WHERE, (self.mask(begin, end, shape, at), here, other()), at)

    def mask(self, begin: Dims, end: Dims, shape: Dims, at: Dims) -> Atom:
        """True at the places from `begin` on and before `end`."""
        true = self.made(BroadcastInDim(less(end, begin), ()), (TRUE,), at)
        return self.made(Pad(begin, less(shape, end), (0,) * len(shape)), (true,), at)

    def computed(self, eqn: Eqn, low: Dims, shape: Dims, at: Dims) -> Atom:
        """The result of a region, at its place."""
        op = eqn.op
        assert isinstance(op, Region)
        outer: dict[Atom, Atom] = dict(zip(op.graph.inputs, eqn.inputs, strict=True))
        env: dict[Atom, Atom] = {}

        def value(a: Atom) -> Atom:
            if a not in outer:
                return env.get(a, a)
            return (
                self.placed(outer[a], low, shape, at) if a.type.shape else self.given_as(outer[a])
            )

        for e in op.graph.eqns:
            if isinstance(e.op, Iota):
                found: Atom = self.made(replace(e.op, shape=shape), (), at)
                by = Literal.of(e.op.dtype.type(abs(low[e.op.axis])))
                moved = SUB if low[e.op.axis] > 0 else ADD
                found = self.made(moved, (found, by), at) if low[e.op.axis] else found
            elif isinstance(e.op, BroadcastInDim):
                found = self.repeated(e.op, outer.get(e.inputs[0], e.inputs[0]), low, shape, at)
            elif isinstance(e.op, Reshape):
                seen = replace(e, inputs=(outer[e.inputs[0]],))
                found = self.viewed(seen, low, shape, at)
            else:
                own = at if e.outs[0].type.shape else ()  # a number is computed once
                found = self.made(e.op, tuple(map(value, e.inputs)), own, e.source)
            env[e.outs[0]] = found
        return value(op.graph.outputs[0])

    def in_runs(self, x: Atom, low: Dims, shape: Dims, at: Dims) -> Atom | None:
        """A value whose every element is one of one array, read at indices; None where it is not."""
        sizes = zip(low, x.type.shape, shape, strict=True)
        if any(n > 0 or n + size < most for n, size, most in sizes):
            return None
        here = tuple(
            Along(d, (Run(0, size, -n, 1),))
            for d, (n, size) in enumerate(zip(low, shape, strict=True))
        )
        found = self.sweep.located(x, here)
        if found is None:
            return None
        source, axes = found
        if any(len(each.runs) > self.sweep.tuning.runs for each in axes):
            return None
        read = [each.axis for each in axes if each.axis >= 0]
        if read != sorted(set(read)):  # along a diagonal, or with axes in another order
            return None
        op = InRuns(
            tuple(shape[a] for a in read),
            tuple((read.index(e.axis) if e.axis >= 0 else -1, e.indices) for e in axes),
        )
        self.pads += 1
        y = self.made(op, (self.given_as(source),), tuple(at[a] for a in read))
        if len(read) == len(shape):
            return y
        return self.made(BroadcastInDim(shape, tuple(read)), (y,), at)

    def viewed(self, eqn: Eqn, low: Dims, shape: Dims, at: Dims) -> Atom:
        """An array that is seen with axes more or less, at its place."""
        op, (x,) = eqn.op, eqn.inputs
        if isinstance(op, BroadcastInDim):
            return self.repeated(op, x, low, shape, at)
        ours = [d for d, n in enumerate(eqn.outs[0].type.shape) if n != 1]
        rest = iter(ours)
        axes = [-1 if n == 1 else next(rest) for n in x.type.shape]
        own = [tuple(each[d] if d >= 0 else one for d in axes)
               for each, one in ((low, 0), (shape, 1), (at, NONE))]  # fmt: skip
        found = self.placed(x, *own)
        kept = tuple(shape[d] for d in ours)
        if found.type.shape != kept:
            found = self.made(Reshape(kept), (found,), tuple(at[d] for d in ours))
        if kept == shape:
            return found
        return self.made(BroadcastInDim(shape, tuple(ours)), (found,), at)

    def repeated(self, op: BroadcastInDim, x: Atom, low: Dims, shape: Dims, at: Dims) -> Atom:
        """An array that repeats along axes, at its place."""
        if x.type.shape:
            own = [tuple(each[d] for d in op.dims) for each in (low, shape, at)]
            x = self.placed(x, *own)
        else:
            x = self.given_as(x)
        return self.made(BroadcastInDim(shape, op.dims), (x,), at)
