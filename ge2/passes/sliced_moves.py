"""Strided slices of joined and padded arrays are joined and padded strided slices.

  p = concatenate 0 x 0;  p[0::2], p[1::2]  ->  concatenate 0 x[1::2], concatenate x[0::2] 0

Regions read pads and joins where their parts are, an element after another; a strided slice of an array
that is there is an address. So pooling with a stride copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import final

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.shape import BroadcastInDim, Concatenate, Pad, Slice


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
        self.makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
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
        (type_,) = op.infer(*(a.type for a in inputs))
        y = Var(type_)
        self.eqns.append(Eqn(op, inputs, (y,)))
        return y

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
