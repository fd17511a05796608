"""Reads of a few elements: some of a sort, some columns, strided slices of joined and padded arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT32, FLOAT64, INTEGERS
from ge2.base.errors import TypeRuleError
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
    without_dead_code,
)
from ge2.ops.elementwise import BY_NAME, WHERE, ConvertElementType
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.reduce import ReduceMax, ReduceMin
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice
from ge2.ops.sort import ArgSort, BitcastConvertType, Sort, comparable
from ge2.passes.context import NOTHING, Context

# -------- Reads of a few elements: some of a sort, some columns.


# -------- A sort of which few elements are read becomes a selection of those: a median is no sort.
# sort[axis=0] x, slice 3..5, slice 9..10 -> order_statistics[axis=0 ranks=(3, 4, 9)] x, slice 0..2,
# slice 2..3


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
    tuning, on_gpu = context.tuning, context.caps is not None
    sorts = {
        e.outs[0]: e
        for e in graph.eqns
        if isinstance(e.op, Sort)
        and not (on_gpu and e.inputs[0].type.shape[e.op.axis] > tuning.selected)
    }
    most, read = tuning.statistics, read_slices(graph, sorts)
    found = {v: ranks for v, slices in read.items() if (ranks := ranks_of(sorts[v], slices, most))}
    if not found:
        return graph
    chosen = {v: Var(selection(sorts[v], ranks).infer(v.type)[0]) for v, ranks in found.items()}
    whole: dict[Var, Var] = {}
    for eqn in graph.eqns:  # a slice of all that is chosen is what is chosen
        source = eqn.inputs[0] if eqn.inputs else None
        if isinstance(source, Var) and source in chosen and eqn.outs[0].type == chosen[source].type:
            whole.setdefault(source, eqn.outs[0])
    chosen |= whole
    eqns = []
    for eqn in graph.eqns:
        source = eqn.inputs[0] if eqn.inputs else None
        if eqn.outs and (y := eqn.outs[0]) in found:
            eqn = replace(eqn, op=selection(eqn, found[y]), outs=(chosen[y],))
        elif source in found:
            assert isinstance(source, Var)
            op, axis = eqn.op, sorts[source].op.axis  # type: ignore[attr-defined]
            assert isinstance(op, Slice)
            if eqn.outs[0] is chosen[source]:
                continue
            eqn = replace(eqn, op=moved_to_ranks(op, axis, found[source]), inputs=(chosen[source],))
        eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def read_slices(graph: Graph, sorts: Mapping[Var, Eqn]) -> dict[Var, list[range]]:
    """The ranks that each reader of sorted arrays takes, of those that nothing but slices reads."""
    readers = readers_of(graph) if sorts else {}
    found: dict[Var, list[range]] = {}
    for v, sort in sorts.items():
        axis: int = sort.op.axis  # type: ignore[attr-defined]
        ops = [e.op for e in readers.get(v, ())]
        slices = [op for op in ops if isinstance(op, Slice) and op.step[axis] == 1]
        if len(slices) == len(ops) and v not in graph.outputs:
            found[v] = [range(op.start[axis], op.stop[axis]) for op in slices]
    return found


def ranks_of(eqn: Eqn, slices: Sequence[range], most: int) -> Dims:
    """The ranks that slices of a sorted array read; () if these are many."""
    (x,), axis = eqn.inputs, eqn.op.axis  # type: ignore[attr-defined]
    if x.type.dtype in COMPLEX or any(len(each) > most for each in slices):
        return ()
    found = sorted({rank for each in slices for rank in each})
    return tuple(found) if len(found) <= max(2, min(most, x.type.shape[axis] // 4)) else ()


def selection(eqn: Eqn, ranks: Dims) -> OrderStatistics:
    assert isinstance(eqn.op, Sort)
    return OrderStatistics(eqn.op.axis, ranks)


def moved_to_ranks(op: Slice, axis: int, ranks: Dims) -> Slice:
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


# -------- The first or last few of sorted rows are found by folds of the rows: the nearest three
# are no sort.
# sort x, slice 0..2 -> a = min(keys); i = first place of a; b = min(keys after (a, i)); ...
# Keys are whole numbers in the order of the elements, NaN last. Of each rank the least key that
# comes after that of the rank before, and the first place that has it, are two folds, which a GPU
# does while a row is in registers. Equal elements keep their order, as a stable sort leaves them.


BITS: Final[dict[np.dtype, np.dtype]] = {FLOAT32: np.dtype(np.int32), FLOAT64: np.dtype(np.int64)}
INT32: Final = np.dtype(np.int32)


def few_ranks(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with folds in place of sorts of which few of the first or the last are read."""
    sorts = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Sort | ArgSort)}
    most, rows = context.tuning.ranks
    read = read_slices(graph, sorts)
    found = {v: r for v, s in read.items() if (r := few_ranks_of(sorts[v], s, most, rows))}
    if not found:
        return graph
    ranks: dict[Atom, Ranks] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        source = eqn.inputs[0] if eqn.inputs else None
        if eqn.outs and eqn.outs[0] in found:
            ranks[eqn.outs[0]] = Ranks(eqn, found[eqn.outs[0]])
            eqns += ranks[eqn.outs[0]].eqns
        elif source in ranks:
            eqns += ranks[source].sliced(eqn)
        else:
            eqns.append(eqn)
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def few_ranks_of(eqn: Eqn, slices: Sequence[range], most: int, shortest: int) -> range | None:
    """The first or the last ranks, if slices read a few of these alone."""
    (x,), axis = eqn.inputs, eqn.op.axis  # type: ignore[attr-defined]
    n, dtype = x.type.shape[axis], x.type.dtype
    if n < shortest or not x.type.size or (dtype not in BITS and dtype not in INTEGERS):
        return None
    begin = min((each.start for each in slices), default=n)
    end = max((each.stop for each in slices), default=0)
    if begin >= end:
        return None
    if end <= most:
        return range(end)
    return range(n - 1, begin - 1, -1) if n - begin <= most else None


@final
@dataclass
class Ranks:
    """The equations that find elements of some ranks, the first or the last ones, in this order."""

    eqn: Eqn
    ranks: range
    eqns: list[Eqn] = field(default_factory=list)
    found: dict[int, Var] = field(default_factory=dict)  # of a rank, along an axis of one element

    def __post_init__(self) -> None:
        self.sorts = isinstance(self.eqn.op, Sort)
        self.axis: int = self.eqn.op.axis  # type: ignore[attr-defined]
        (x,) = self.eqn.inputs
        self.shape = x.type.shape
        self.last = self.ranks.step < 0
        self.find(x)

    def make(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.eqns, op, *inputs, source=self.eqn.source)

    def do(self, name: str, *inputs: Atom) -> Var:
        return self.make(BY_NAME[name], *inputs)

    def whole(self, x: Var) -> Var:
        """The result of a reduction, along its axis again."""
        rest = tuple(d for d in range(len(self.shape)) if d != self.axis)
        return self.make(BroadcastInDim(self.shape, rest), x)

    def find(self, x: Atom) -> None:
        keys = self.keys(x)
        dtype, fold = keys.type.dtype, (ReduceMax if self.last else ReduceMin)((self.axis,))
        limits = np.iinfo(dtype)
        beyond = number(dtype, limits.min if self.last else limits.max)
        places = self.make(Iota(self.shape, self.axis, INT32))
        nowhere = number(INT32, -1 if self.last else self.shape[self.axis])
        beside = "gt" if self.last else "lt"
        left: Var | None = None  # the elements that come after those that were found
        for n, rank in enumerate(self.ranks):
            among = keys if left is None else self.make(WHERE, left, keys, beyond)
            key = self.make(fold, among)
            if n < len(self.ranks) - 1 or not self.sorts:
                here = self.do("eq", keys, self.whole(key))
                here = here if left is None else self.do("and", here, left)
                place = self.make(fold, self.make(WHERE, here, places, nowhere))
                after = self.do("and", here, self.do(beside, self.whole(place), places))
                left = self.do("or", self.do(beside, self.whole(key), keys), after)
            self.found[rank] = self.along(self.value(key) if self.sorts else self.index(place))

    def keys(self, x: Atom) -> Var | Atom:
        """Whole numbers in the order of the elements: NaN last, and 0.0 for -0.0."""
        dtype = x.type.dtype
        if dtype not in BITS:
            return x
        bits = BITS[dtype]
        most = number(bits, int(np.iinfo(bits.type).max))
        same = self.do("add", x, number(dtype, 0))
        key = self.turned(self.make(BitcastConvertType(bits), same))
        return self.make(WHERE, self.do("ne", x, x), most, key)

    def turned(self, x: Var) -> Var:
        """Bits of floats in the order of numbers, and back: below 0 all but the sign are the others."""
        most = number(x.type.dtype, int(np.iinfo(x.type.dtype).max))
        below = self.do("lt", x, number(x.type.dtype, 0))
        return self.make(WHERE, below, self.do("xor", x, most), x)

    def value(self, key: Var) -> Var:
        dtype = self.eqn.outs[0].type.dtype
        return self.make(BitcastConvertType(dtype), self.turned(key)) if dtype in BITS else key

    def index(self, place: Var) -> Var:
        return self.make(ConvertElementType(self.eqn.outs[0].type.dtype, False), place)

    def along(self, x: Var) -> Var:
        shape = (*self.shape[: self.axis], 1, *self.shape[self.axis + 1 :])
        return self.make(Reshape(shape), x)

    def sliced(self, eqn: Eqn) -> list[Eqn]:
        """A slice of what is sorted as one of the elements of its ranks."""
        op, axis = eqn.op, self.axis
        assert isinstance(op, Slice)
        begin, end = op.start[axis], op.stop[axis]
        parts = [self.found[rank] for rank in range(begin, end)]
        made = len(self.eqns)
        whole = parts[0] if len(parts) == 1 else self.make(Concatenate(axis), *parts)
        eqns, self.eqns = self.eqns[made:], self.eqns[:made]
        start, stop = resized(op.start, axis, 0), resized(op.stop, axis, end - begin)
        return [*eqns, Eqn(Slice(start, stop, op.step), (whole,), eqn.outs, eqn.source)]


def number(dtype: np.dtype, value: Any) -> Literal:
    return Literal.of(dtype.type(value))


# -------- Strided slices of joined and padded arrays are joined and padded strided slices.
# p = concatenate 0 x 0; p[0::2], p[1::2] -> concatenate 0 x[1::2], concatenate x[0::2] 0
# Regions read pads and joins where their parts are, an element after another; a strided slice of an
# array that is there is an address. So pooling with a stride copies nothing.


def with_slices_first(graph: Graph, inside: Callable[[Graph], Graph]) -> Graph:
    """The graph as a pass leaves it that puts joins and pads `inside` regions, those of strided slices
    if all of them find room there.
    """
    found, sliced = inside(graph), sliced_moves(graph)
    if sliced is graph:
        return found
    other = inside(sliced)
    return other if kernels(other) <= kernels(found) else found


def kernels(graph: Graph) -> int:
    """The regions of a graph, the joins that are left, and numbers that are repeated."""
    return sum(is_join(e) or isinstance(e.op, Region) or is_number(e) for e in graph.eqns)


def sliced_moves(graph: Graph) -> Graph:
    """The graph with joins and pads of strided slices in place of strided slices of those, where
    nothing but slices reads them, and nothing but regions reads these.
    """
    sweep = Sweep(graph)
    found = [e for e in graph.eqns if sweep.is_found(e)]
    if not found:
        return graph
    eqns = tuple(each for e in graph.eqns for each in sweep.rewritten(e))
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


@final
@dataclass
class Cut:
    """The elements `start + step * q` of an array, for each q of a shape."""

    x: Atom
    start: Dims
    step: Dims
    shape: Dims

    def along(self, axis: int, begin: int, end: int) -> tuple[int, int]:
        """The places whose elements lie from `begin` on and before `end` along an axis."""
        s, t = self.start[axis], self.step[axis]
        return max(0, -((s - begin) // t)), min(self.shape[axis], -((s - end) // t))

    def within(self, x: Atom, low: Dims, first: Dims, last: Dims) -> Cut:
        """The part of it that has places from `first` on and before `last`, of an array that begins
        at `low`.
        """
        moved = zip(self.start, self.step, first, low, strict=True)
        start = tuple(s + t * q - n for s, t, q, n in moved)
        return Cut(x, start, self.step, tuple(b - a for a, b in zip(first, last, strict=True)))


@final
class Sweep:
    """Equations of cuts, as they are made; `eqns` are those of the current one."""

    def __init__(self, graph: Graph) -> None:
        self.makers = makers_of(graph)
        self.readers, self.results = readers_of(graph), frozenset(graph.outputs)
        self.sliced: dict[Atom, bool] = {}
        self.eqns: list[Eqn] = []

    def is_found(self, eqn: Eqn) -> bool:
        """True of a strided slice that regions read, of what is only sliced."""
        op = eqn.op
        if not isinstance(op, Slice) or set(op.step) <= {1} or not eqn.outs[0].type.size:
            return False
        readers = self.readers.get(eqn.outs[0], [])
        inside = all(isinstance(e.op, Region) for e in readers)
        return inside and eqn.outs[0] not in self.results and self.is_sliced(eqn.inputs[0])

    def is_sliced(self, x: Atom) -> bool:
        """True of a join or a pad of which nothing but slices reads anything."""
        if x not in self.sliced:
            eqn, readers = self.makers.get(x), self.readers.get(x, [])
            moves = eqn is not None and is_join(eqn) and x not in self.results
            self.sliced[x] = moves and all(
                isinstance(e.op, Slice) or (is_join(e) and self.is_sliced(e.outs[0]))
                for e in readers
            )
        return self.sliced[x]

    def rewritten(self, eqn: Eqn) -> Iterator[Eqn]:
        if not self.is_found(eqn):
            yield eqn
            return
        op, (y,) = eqn.op, eqn.outs
        assert isinstance(op, Slice)
        self.eqns = []
        self.cut(Cut(eqn.inputs[0], op.start, op.step, y.type.shape))
        *before, last = self.eqns
        yield from before
        yield replace(last, outs=(y,))

    def cut(self, cut: Cut) -> Atom:
        eqn = self.makers.get(cut.x)
        if eqn is not None and isinstance(eqn.op, Concatenate) and self.is_sliced(cut.x):
            return self.joined(eqn, eqn.op.axis, cut)
        if eqn is not None and isinstance(eqn.op, Pad) and self.is_sliced(cut.x):
            return self.padded(eqn, eqn.op, cut)
        if eqn is not None and is_number(eqn):
            return self.made(BroadcastInDim(cut.shape, ()), *eqn.inputs)
        ends = zip(cut.start, cut.step, cut.shape, strict=True)
        stop = tuple(s + t * (n - 1) + 1 for s, t, n in ends)
        return self.made(Slice(cut.start, stop, cut.step), cut.x)

    def made(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.eqns, op, *inputs)

    def joined(self, eqn: Eqn, axis: int, cut: Cut) -> Atom:
        """The parts of a join that a cut has elements of."""
        begin, found = 0, list[Cut]()
        for x in eqn.inputs:
            end = begin + x.type.shape[axis]
            first, last = cut.along(axis, begin, end)
            if first < last:
                low, none = ([0] * len(cut.shape) for _ in range(2))
                upto = [*cut.shape]
                low[axis], none[axis], upto[axis] = begin, first, last
                found.append(cut.within(x, tuple(low), tuple(none), tuple(upto)))
            begin = end
        parts = [self.cut(each) for each in found]
        return parts[0] if len(parts) == 1 else self.made(Concatenate(axis), *parts)

    def padded(self, eqn: Eqn, op: Pad, cut: Cut) -> Atom:
        """The elements of a pad that a cut has, and zeros around them."""
        (x,) = eqn.inputs
        sizes = enumerate(zip(op.low, x.type.shape, strict=True))
        spans = [cut.along(d, low, low + n) for d, (low, n) in sizes]
        if any(first >= last for first, last in spans):
            zero = Literal.of(x.type.dtype.type(0))
            return self.made(BroadcastInDim(cut.shape, ()), zero)
        first, last = tuple(a for a, _ in spans), tuple(b for _, b in spans)
        inner = self.cut(cut.within(x, op.low, first, last))
        high = tuple(n - b for n, b in zip(cut.shape, last, strict=True))
        if not any((*first, *high)):
            return inner
        return self.made(Pad(first, high, (0,) * len(first)), inner)


def is_join(eqn: Eqn) -> bool:
    op = eqn.op
    plain = bool(eqn.outs) and bool(eqn.outs[0].type.size) and not eqn.outs[0].type.weak
    return plain and (isinstance(op, Concatenate) or (isinstance(op, Pad) and not any(op.inner)))


def is_number(eqn: Eqn) -> bool:
    """True of a number that is repeated."""
    return isinstance(eqn.op, BroadcastInDim) and not eqn.op.dims
