"""Reads of a few elements of a sort, of elements that an order names, and across small arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT32, FLOAT64, FLOATS, INT64, INTEGERS
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
from ge2.ops.graphs.region import Region, is_loop, readers_of
from ge2.ops.index import Gather
from ge2.ops.reduce import ReduceMax, ReduceMin
from ge2.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Iota,
    Reshape,
    Rev,
    Slice,
    Transpose,
    counts_along,
)
from ge2.ops.sort import ArgSort, BitcastConvertType, Ordering, Sort, TopK, comparable
from ge2.passes.context import NOTHING, Context

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
    sorts = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Sort)}
    long, few = context.tuning.selected

    def most(sort: Eqn) -> int:
        """Returns how many elements of a line are selected at most: a GPU's block selects those of a
        long line one after another, all blocks those of few such lines some at once.
        """
        (x,), caps, (longer, some) = sort.inputs, context.caps, context.tuning.sought
        n = x.type.shape[sort.op.axis]  # type: ignore[attr-defined]
        if caps is None or n <= long:
            return context.tuning.statistics
        return some if n >= longer and 2 * x.type.size < n * caps.multiprocessors else few

    read = read_slices(graph, sorts)
    found = {
        v: ranks
        for v, slices in read.items()
        if (ranks := ranks_of(sorts[v], slices, most(sorts[v])))
    }
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
    read, tuning = read_slices(graph, sorts), context.tuning.ranks
    found = {v: r for v, s in read.items() if (r := few_ranks_of(sorts[v], s, *tuning))}
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


def few_ranks_of(
    eqn: Eqn, slices: Sequence[range], most: int, shortest: int, longest: int
) -> range | None:
    """The first or the last ranks, if slices read a few of these alone: of lines beyond the longest,
    which the folds of each rank would all read from memory, one.
    """
    (x,), axis = eqn.inputs, eqn.op.axis  # type: ignore[attr-defined]
    n, dtype = x.type.shape[axis], x.type.dtype
    if n < shortest or not x.type.size or (dtype not in BITS and dtype not in INTEGERS):
        return None
    begin = min((each.start for each in slices), default=n)
    end = max((each.stop for each in slices), default=0)
    if begin >= end:
        return None
    most = most if n <= longest else min(most, 1)
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


# -------- The first or last of an order are found, and nothing is sorted; what a whole order names is
# what is sorted.
# argsort[axis=1] x, slice 0..50 -> first_ranks[axis=1 k=50] x
# neg x, argsort[axis=1], gather x -> neg x, sort[axis=1], neg


@final
@record
class FirstRanks(Op):
    """The first `k` of each line along `axis` in the order of `argsort`, and their indices as int64.

    `falling`: in the order of `argsort` of the negated line, of floats: the largest first, NaN last.
    """

    k: int
    axis: int
    falling: bool = False
    name = "first_ranks"
    may_alias = False
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if not 0 <= self.k <= x.shape[self.axis] or (self.falling and x.dtype not in FLOATS):
            raise TypeRuleError(f"first_ranks of {self.k} along axis {self.axis} of {x}")
        found = x.with_shape(resized(x.shape, self.axis, self.k))
        return found, found.with_dtype(INT64)

    def reference(self, *arrays: Any) -> Any:
        (x,), axis = arrays, self.axis
        order = np.argsort(
            -comparable(x) if self.falling else comparable(x), axis, kind="stable"
        ).astype(INT64, copy=False)
        at = order[(*(slice(None),) * axis, slice(None, self.k))]
        return np.take_along_axis(np.asarray(x), at, axis), at


def sorted_reads(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with less to sort: of orders of which only the first or the last are read these are
    found, and elements that an order names are sorted themselves.
    """
    if not any(isinstance(e.op, Ordering) for e in graph.eqns):
        return graph
    graph = read_before_turned(graph)
    reads = SortedReads(graph, context)
    if not reads.new:
        return graph
    eqns = [each for e in graph.eqns for each in reads.new.get(e.outs[0] if e.outs else None, (e,))]
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def read_before_turned(graph: Graph) -> Graph:
    """The graph in which a part of an order that is turned around is that of the order, turned."""
    makers, eqns = makers_of(graph), list[Eqn]()
    for eqn in graph.eqns:
        turned = makers.get(eqn.inputs[0]) if isinstance(eqn.op, Slice) else None
        if turned is None or not isinstance(turned.op, Rev):
            eqns.append(eqn)
            continue
        (x,), order = turned.inputs, makers.get(turned.inputs[0])
        if order is None or not isinstance(order.op, Ordering):
            eqns.append(eqn)
            continue
        part = applied(eqns, turned_slice(eqn, turned.op.axes), x, source=eqn.source)
        eqns.append(replace(eqn, op=turned.op, inputs=(part,)))
    found = Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)
    return graph if found.eqns == graph.eqns else without_dead_code(found)


def turned_slice(eqn: Eqn, axes: Dims) -> Slice:
    """A slice of an array that is turned around along some axes as one of the array."""
    op, start, stop = eqn.op, list[int](), list[int]()
    assert isinstance(op, Slice)
    for axis, (n, left) in enumerate(
        zip(eqn.inputs[0].type.shape, eqn.outs[0].type.shape, strict=True)
    ):
        begin, step = op.start[axis], op.step[axis]
        last = begin + step * (left - 1)
        turned = axis in axes and left > 0
        start.append(n - 1 - last if turned else begin)
        stop.append(n - begin if turned else op.stop[axis])
    return Slice(tuple(start), tuple(stop), op.step)


@final
class SortedReads:
    """Replaces sorts whose results are read in part; `new`: the new equations, by the old results."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.tuning, self.on_gpu = context.tuning, context.caps is not None
        self.makers, self.readers = makers_of(graph), readers_of(graph)
        self.results, self.new = frozenset(graph.outputs), dict[Var | None, Sequence[Eqn]]()
        for eqn in graph.eqns:
            if isinstance(eqn.op, Ordering) and eqn.inputs[0].type.dtype not in COMPLEX:
                self.read(eqn, eqn.op.axis)

    def read(self, eqn: Eqn, axis: int) -> None:
        (y,), readers = eqn.outs, self.readers.get(eqn.outs[0], [])
        if y in self.results or not y.type.size:
            return
        slices = [e for e in readers if isinstance(e.op, Slice) and e.op.step[axis] == 1]
        if slices and len(slices) == len(readers):
            self.some(eqn, axis, slices)
        elif (
            readers and isinstance(eqn.op, ArgSort) and all(self.names(e, y, axis) for e in readers)
        ):
            sources = {e.inputs[0] for e in readers}
            if len(sources) == 1 and not sources.isdisjoint((eqn.inputs[0], self.source(eqn))):
                self.whole(eqn, axis, readers)

    # -- all of an order

    def names(self, eqn: Eqn, at: Atom, axis: int) -> bool:
        """True of a gather of the elements that an order of each line, or a part of one, names."""
        op, (x, *indices) = eqn.op, eqn.inputs
        # an order of each line of a matrix may name elements of a vector
        if not isinstance(op, Gather) or op.axes != tuple(range(at.type.ndim)):
            return False
        others = [(d, i) for d, i in enumerate(indices) if d != axis]
        return indices[axis] is at and all(
            counts_along(self.makers, i) == d and i.type.shape[d] == x.type.shape[d]
            for d, i in others
        )

    def source(self, eqn: Eqn) -> Atom:
        """The array that is ordered, or the one that is negated for it."""
        (x,) = eqn.inputs
        made = self.makers.get(x)
        return made.inputs[0] if made is not None and made.op == BY_NAME["neg"] else x

    def whole(self, eqn: Eqn, axis: int, gathers: Sequence[Eqn]) -> None:
        """Reads of `x` by all of its argsort become a sort of `x`; by that of `-x`, a sort of `-x`,
        negated.
        """
        made: list[Eqn] = []
        y = applied(made, Sort(axis), *eqn.inputs, source=eqn.source)
        for n, gather in enumerate(gathers):
            neg = gather.inputs[0] is not eqn.inputs[0]
            op = BY_NAME["neg"] if neg else Reshape(y.type.shape)
            self.new[gather.outs[0]] = (
                *(made if n == 0 else ()),
                Eqn(op, (y,), gather.outs, gather.source),
            )

    # -- the first, or the last

    def some(self, eqn: Eqn, axis: int, slices: Sequence[Eqn]) -> None:
        """Finds the first and the last that are read, if nothing else is."""
        n, (most, shortest) = eqn.inputs[0].type.shape[axis], self.tuning.first
        parts = [range(e.op.start[axis], e.op.stop[axis]) for e in slices]  # type: ignore[attr-defined]
        few = isinstance(eqn.op, Sort) and len({k for r in parts for k in r}) <= 2
        folded = self.on_gpu and few_ranks_of(eqn, parts, *self.tuning.ranks) is not None
        if folded or n < shortest or (few and not (self.on_gpu and n > self.tuning.ranks[-1])):
            return
        most = min(most, n // self.tuning.first_share[not self.on_gpu])
        first = max((r.stop for r in parts if r.stop <= most), default=0)
        last = min((r.start for r in parts if n - r.start <= most), default=n)
        if few and first and last < n:
            return  # the least and the largest, say, which are sought at once
        if all(r.stop <= first or r.start >= last for r in parts):
            found = [First(self, eqn, axis, r) for r in (range(first), range(last, n)) if r]
            self.new[eqn.outs[0]] = [e for each in found for e in each.eqns]
            for part, each in zip(parts, slices, strict=True):
                self.sliced(each, found[0] if part.stop <= first else found[-1])

    def sliced(self, eqn: Eqn, first: First) -> None:
        self.new[eqn.outs[0]] = (first.sliced(eqn),)
        for gather in self.gathers(eqn, first):
            self.new[gather.outs[0]] = (first.gathered(gather, eqn),)

    def gathers(self, eqn: Eqn, first: First) -> list[Eqn]:
        """Those that read the found elements at a slice of the order."""
        (at,) = eqn.outs
        readers = self.readers.get(at, [])
        return [
            e for e in readers if e.inputs[0] in first.elements and self.names(e, at, first.axis)
        ]


@final
class First:
    """The equations that find elements of some ranks, the first or the last, and their places."""

    def __init__(self, reads: SortedReads, eqn: Eqn, axis: int, ranks: range) -> None:
        self.axis, self.begin, self.eqns = axis, ranks.start, list[Eqn]()
        self.sorts, self.op = isinstance(eqn.op, Sort), eqn.op
        (x,), n, k = eqn.inputs, eqn.inputs[0].type.shape[axis], len(ranks)
        source = reads.source(eqn)
        falling = source is not x and source.type.dtype in FLOATS and not self.sorts
        falling = falling and ranks.start == 0
        if ranks.start == 0:
            self.values, self.at = self.found(
                FirstRanks(k, axis, falling), source if falling else x
            )
        else:  # the last of equals come first of all in lines that are turned around
            values, at = self.found(TopK(k, axis), applied(self.eqns, Rev((axis,)), x))
            at = applied(self.eqns, BY_NAME["sub"], number(INT64, n - 1), at)
            self.values, self.at = (applied(self.eqns, Rev((axis,)), v) for v in (values, at))
        # of each array of which an order may name elements
        self.elements: dict[Atom, Var] = {source if falling else x: self.values}
        if source is not x:
            other = applied(self.eqns, BY_NAME["neg"], self.values)
            self.elements[x if falling else source] = other

    def found(self, op: Op, x: Atom) -> tuple[Var, Var]:
        values, at = map(Var, op.infer(x.type))
        self.eqns.append(Eqn(op, (x,), (values, at)))
        return values, at

    def part(self, eqn: Eqn, outs: tuple[Var, ...], whole: Var) -> Eqn:
        """The part of the found elements, or places, that a slice of all has."""
        op, axis = eqn.op, self.axis
        assert isinstance(op, Slice)
        start = resized(op.start, axis, op.start[axis] - self.begin)
        stop = resized(op.stop, axis, op.stop[axis] - self.begin)
        return Eqn(Slice(start, stop, op.step), (whole,), outs, eqn.source)

    def sliced(self, eqn: Eqn) -> Eqn:
        return self.part(eqn, eqn.outs, self.values if self.sorts else self.at)

    def gathered(self, gather: Eqn, eqn: Eqn) -> Eqn:
        return self.part(eqn, gather.outs, self.elements[gather.inputs[0]])


# -------- A small array that is read across is turned beforehand.
# y = region (x - transpose w) where x:[2048,32,512], w:[512,32]  ->  v = transpose w; y = region (x - v)
# Of an array of the size of the space, tiles are turned in shared memory. One that repeats along another
# axis would be read across for each of its repetitions: a sector of memory for each element.

FEW = 8  # times as many elements a space has as an array that is small beside it


def small_turned(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions read small arrays along the axis along which their threads lie."""
    eqns = list[Eqn]()
    for eqn in graph.eqns:
        if is_loop(eqn.op) and math.prod(eqn.op.space) >= context.tuning.turned:
            eqn = with_turned(eqn, eqn.op, eqns)
        eqns.append(eqn)
    return replace(graph, eqns=tuple(eqns)) if len(eqns) > len(graph.eqns) else graph


def with_turned(eqn: Eqn, op: Region, before: list[Eqn]) -> Eqn:
    """A region that reads small arrays as it has turned them; `before` takes the equations that do."""
    graph, lane = op.graph, len(op.space) - 1
    outer: dict[Atom, Atom] = dict(zip(graph.inputs, eqn.inputs, strict=True))
    turned: dict[Var, Atom] = {}
    for e, at in zip(graph.eqns, op.axes, strict=True):
        if not isinstance(e.op, Transpose) or (x := e.inputs[0]) not in outer:
            continue
        few = FEW * x.type.size <= math.prod(op.space)
        if few and lane in at and at[e.op.order.index(x.type.ndim - 1)] != lane:
            turned[e.outs[0]] = made_of(e, x, outer[x], before)
    if not turned:
        return eqn
    kept = [n for n, e in enumerate(graph.eqns) if e.outs[0] not in turned]
    read = {a for n in kept for a in graph.eqns[n].inputs}
    pairs = [(v, outer[v]) for v in graph.inputs if v in read] + [*turned.items()]
    inner = Graph(tuple(v for v, _ in pairs), tuple(graph.eqns[n] for n in kept), graph.outputs)
    made = replace(op, graph=inner, axes=tuple(op.axes[n] for n in kept))
    return replace(eqn, op=made, inputs=tuple(a for _, a in pairs))


def made_of(eqn: Eqn, inner: Atom, outer: Atom, before: list[Eqn]) -> Var:
    """The result of a transpose, as a region of its own makes it."""
    (y,) = eqn.outs
    assert isinstance(inner, Var)
    u, v = Var(y.type), Var(y.type)
    eqns = (eqn, Eqn(ConvertElementType(y.type.dtype), (y,), (u,), eqn.source))
    axes = tuple(range(y.type.ndim))
    graph = Graph((inner,), eqns, (u,))
    before.append(
        Eqn(Region("pointwise", y.type.shape, (axes, axes), graph), (outer,), (v,), eqn.source)
    )
    return v
