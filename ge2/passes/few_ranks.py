"""The first or last few of sorted rows are found by folds of the rows: the nearest three are no sort.

  sort x, slice 0..2  ->  a = min(keys);  i = first place of a;  b = min(keys after (a, i));  ...

Keys are whole numbers in the order of the elements, NaN last. Of each rank the least key that comes after
that of the rank before, and the first place that has it, are two folds, which a GPU does while a row
is in registers. Equal elements keep their order, as a stable sort leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32, FLOAT64, INTEGERS
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.elementwise import BY_NAME, WHERE, ConvertElementType
from ge2.ops.reduce import ReduceMax, ReduceMin
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Reshape, Slice
from ge2.ops.sort import ArgSort, BitcastConvertType, Sort
from ge2.passes.context import NOTHING, Context

BITS: Final[dict[np.dtype, np.dtype]] = {FLOAT32: np.dtype(np.int32), FLOAT64: np.dtype(np.int64)}
INT32: Final = np.dtype(np.int32)


def few_ranks(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with folds in place of sorts of which few of the first or the last are read."""
    sorts = {e.outs[0]: e for e in graph.eqns if isinstance(e.op, Sort | ArgSort)}
    if not sorts:
        return graph
    readers: dict[Atom, list[Eqn | None]] = {v: [] for v in sorts}
    for eqn in graph.eqns:
        for a in dict.fromkeys(eqn.inputs):
            if a in readers:
                readers[a].append(eqn)
    for v in graph.outputs:
        if v in readers:
            readers[v].append(None)
    most, rows = context.tuning.ranks
    found = {v: r for v, e in sorts.items() if (r := ranks_of(e, readers[v], most, rows))}
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


def ranks_of(eqn: Eqn, readers: Sequence[Eqn | None], most: int, shortest: int) -> range | None:
    """The first or the last ranks, if slices read a few of these alone."""
    (x,), axis = eqn.inputs, eqn.op.axis  # type: ignore[attr-defined]
    n, dtype = x.type.shape[axis], x.type.dtype
    if n < shortest or not x.type.size or (dtype not in BITS and dtype not in INTEGERS):
        return None
    begin, end = n, 0
    for reader in readers:
        if reader is None or not isinstance(reader.op, Slice) or reader.op.step[axis] != 1:
            return None
        begin, end = min(begin, reader.op.start[axis]), max(end, reader.op.stop[axis])
    if not readers or begin >= end:
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
        (type_,) = op.infer(*(a.type for a in inputs))
        y = Var(type_)
        self.eqns.append(Eqn(op, inputs, (y,), self.eqn.source))
        return y

    def do(self, name: str, *inputs: Atom) -> Var:
        return self.make(BY_NAME[name], *inputs)

    def whole(self, x: Var) -> Var:
        """What a fold found, along its axis again."""
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
        start, stop = changed(op.start, axis, 0), changed(op.stop, axis, end - begin)
        return [*eqns, Eqn(Slice(start, stop, op.step), (whole,), eqn.outs, eqn.source)]


def number(dtype: np.dtype, value: Any) -> Literal:
    return Literal.of(dtype.type(value))


def changed(sizes: Dims, axis: int, size: int) -> Dims:
    return (*sizes[:axis], size, *sizes[axis + 1 :])
