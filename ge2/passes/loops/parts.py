"""Arrays that are added to, written and read by the same parts become these parts, each a value of
its own: scalar replacement of aggregates.

y = add x (pad u at 3); a = slice y at 3; b = slice y at 5
->  a = add (slice x at 3) u; b = slice x at 5

The derivative of a loop that reads an array by parts adds to all of its cotangent in each iteration,
and where the loop writes parts as well, reads one of them and clears it. As parts, what an iteration
adds to is made in one of those before, so that a search for loops finds it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import final

import numpy as np

from ge2.base.record import mutable, record
from ge2.base.source import Source
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
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import ADD
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.ops.graphs.region import readers_of
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import ScatterAdd, UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce
from ge2.ops.shape import BroadcastInDim, Concatenate, Pad, Reshape, Slice
from ge2.passes.context import NOTHING, Context, Moves
from ge2.passes.fusion_group import fusible
from ge2.passes.simplify import simplify
from ge2.passes.slices import located

Span = tuple[int, int]  # along an axis: the first element of a part, and how many it has
Box = tuple[Span, ...]


@final
@record
class Step:
    """A part is written, or added to."""

    eqn: Eqn
    box: Box
    value: Atom
    adds: bool


@final
@mutable
class Chain:
    """An array, and what is done to its parts, one step after another. Of any two parts each axis has
    the same elements or different ones.
    """

    type: ArrayType
    base: Atom | None  # what it was before; None for zeros
    steps: list[Step] = field(default_factory=list)
    spans: list[list[Span]] = field(default_factory=list)  # of each axis, those of parts, in order
    reads: list[tuple[Var, int, Box]] = field(default_factory=list)  # after so many steps
    whole: set[int] = field(default_factory=set)  # after how many steps all of it is read
    # the values that each part has, and after how many steps; None for zeros
    parts: dict[Box, list[tuple[int, Atom | None]]] = field(default_factory=dict)

    def takes(self, box: Box) -> bool:
        return all(map(fits, box, self.spans))

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self.spans = self.spans or [[] for _ in step.box]
        for span, spans in zip(step.box, self.spans, strict=True):
            at = bisect_left(spans, span)
            if spans[at : at + 1] != [span]:
                spans.insert(at, span)


def parts_as_values(graph: Graph, context: Context) -> Graph:
    """The graph with a value for each part of arrays that are added to part by part."""
    if sum(isinstance(e.op, Pad) for e in graph.eqns) < context.tuning.parts:
        return graph
    search = Search(graph)
    chains = chosen(search.chains, context)
    return simplify(Parts(chains, search.makers).of(graph)) if chains else graph


def chosen(chains: Sequence[Chain], context: Context) -> list[Chain]:
    """The chains that are to be parts: those that are added to often, and once there is one of them in
    C, those that are written and read by parts alone, of which that one reads elements.
    """
    most = [c for c in map(read_by_parts, chains) if pays(c, context)]
    if most and context.caps is None and not context.written:
        more = [c for c in chains if len(c.steps) > 1 and len(c.whole) <= 1]
        most += [c for c in more if not any(s.adds for s in c.steps)]
    return most


def pays(chain: Chain, context: Context) -> bool:
    """True if sums of whole arrays go that are more work than to make the array of its parts, which a
    GPU does not do by updates: each would copy it.
    """
    added, boxes = sum(s.adds for s in chain.steps), {s.box for s in chain.steps}
    copied = context.caps is not None and chain.base is not None and bool(chain.whole)
    if copied and 2 * sum(map(size, boxes)) < chain.type.size:
        return False
    few = len(chain.whole) <= 1 or len(chain.whole) * len(boxes) <= added
    return few and added >= context.tuning.parts


def read_by_parts(chain: Chain) -> Chain:
    """The chain, where what reads other parts reads all."""
    whole = {n for _, n, box in chain.reads if not chain.takes(box)}
    chain.reads = [each for each in chain.reads if each[1] not in whole]
    chain.whole |= whole
    return chain


def fits(span: Span, spans: Sequence[Span]) -> bool:
    """True if there are the same elements among those in order, or others."""
    at = bisect_left(spans, span)
    if at < len(spans) and (spans[at] == span or sum(span) > spans[at][0]):
        return spans[at] == span
    return at == 0 or sum(spans[at - 1]) <= span[0]


def box_of(op: Op, shape: Sequence[int]) -> Box | None:
    """The part that an operation takes, writes or pads; `shape`: that of the part."""
    if isinstance(op, Pad):
        plain = not any(op.inner) and min((*op.low, *op.high), default=0) >= 0
        start = op.low
    elif isinstance(op, Slice | UpdateSlice):
        plain, start = all(s == 1 or n == 1 for s, n in zip(op.step, shape, strict=True)), op.start
    else:
        return None
    return tuple(zip(start, shape, strict=True)) if plain and shape and 0 not in shape else None


@final
class Search:
    """The chains of a graph, each of which grows as long as nothing but its last array is changed."""

    def __init__(self, graph: Graph) -> None:
        self.makers = makers_of(graph)
        self.uses = Counter[Atom](a for e in graph.eqns for a in e.inputs if type(a) is Var)
        self.uses.update(a for a in graph.outputs if type(a) is Var)
        self.last = dict[
            Atom, tuple[Chain, int]
        ]()  # the chain of an array, and after how many steps
        self.chains = list[Chain]()
        for eqn in graph.eqns:
            self.take(eqn)
        for a in graph.outputs:
            self.read_whole(a)

    def take(self, eqn: Eqn) -> None:
        (op, inputs), done = (eqn.op, eqn.inputs), -1
        if eqn.op == ADD:
            done = self.sum(eqn)
        elif isinstance(op, UpdateSlice):
            box = box_of(op, inputs[1].type.shape)
            if box is not None:
                self.step(inputs[0], eqn, box, inputs[1], False)
                done = 0
        elif isinstance(op, Pad):
            box = box_of(op, inputs[0].type.shape)
            if box is not None:
                self.begin(eqn, None, Step(eqn, box, inputs[0], False))
        elif isinstance(op, Slice) and inputs[0] in self.last:
            box = box_of(op, eqn.outs[0].type.shape)
            if box is not None:
                chain, count = self.last[inputs[0]]
                chain.reads.append((eqn.outs[0], count, box))
                done = 0
        for i, a in enumerate(inputs):
            if i != done:
                self.read_whole(a)

    def read_whole(self, a: Atom) -> None:
        if a in self.last:
            chain, count = self.last[a]
            chain.whole.add(count)

    def sum(self, eqn: Eqn) -> int:
        """Adds the step of a sum with a part; which operand is the array, -1 if none is."""
        one, other = map(self.padded, eqn.inputs)
        if eqn.outs[0].type.weak or (one is None and other is None):
            return -1
        array, (box, value) = (0, other) if other is not None else (1, one)  # type: ignore[misc]
        if not eqn.inputs[array].type.shape:  # a number, of which there are no parts
            return -1
        self.step(eqn.inputs[array], eqn, box, value, True)
        return array

    def padded(self, a: Atom) -> tuple[Box, Atom] | None:
        """The part of which an array is made, with zeros around it, if a sum alone reads that."""
        eqn = self.makers.get(a)
        if eqn is None or not isinstance(eqn.op, Pad) or self.uses[a] != 1:
            return None
        box = box_of(eqn.op, eqn.inputs[0].type.shape)
        return None if box is None else (box, eqn.inputs[0])

    def step(self, array: Atom, eqn: Eqn, box: Box, value: Atom, adds: bool) -> None:
        chain, count = self.last.get(array, (None, 0))
        step = Step(eqn, box, value, adds)
        if chain is not None and count == len(chain.steps) and chain.takes(box):
            chain.add(step)
            self.last[eqn.outs[0]] = chain, len(chain.steps)
        else:
            self.read_whole(array)
            self.begin(eqn, None if is_zeros(array, self.makers) else array, step)

    def begin(self, eqn: Eqn, base: Atom | None, step: Step) -> None:
        self.chains.append(Chain(eqn.outs[0].type, base))
        self.chains[-1].add(step)
        self.last[eqn.outs[0]] = self.chains[-1], 1


def is_zeros(x: Atom, makers: Mapping[Atom, Eqn]) -> bool:
    while (eqn := makers.get(x)) and isinstance(eqn.op, BroadcastInDim | Reshape):
        (x,) = eqn.inputs
    return isinstance(x, Literal) and not np.asarray(x.value).tobytes().strip(b"\0")


@final
class Parts:
    """The graph with the parts of chains as values."""

    def __init__(self, chains: Sequence[Chain], makers: Mapping[Atom, Eqn]) -> None:
        self.makers = makers
        self.steps = dict[Atom, list[tuple[Chain, int]]]()
        self.reads = dict[Atom, tuple[Chain, int, Box]]()
        for chain in chains:
            for n, step in enumerate(chain.steps, 1):
                self.steps.setdefault(step.eqn.outs[0], []).append((chain, n))
            self.reads.update((y, (chain, n, box)) for y, n, box in chain.reads)
        self.env = dict[Var, Atom]()
        self.eqns = list[Eqn]()
        self.source: Source | None = None

    def of(self, graph: Graph) -> Graph:
        for given in graph.eqns:
            self.source = given.source
            if not any(map(self.replaced, given.outs[:1])):
                self.eqns.append(renamed(self.env, given))
        outputs = rename(self.env, graph.outputs)
        return without_dead_code(Graph(graph.inputs, tuple(self.eqns), outputs, graph.consts))

    def replaced(self, y: Var) -> bool:
        """True if an array is made of values, or is one."""
        if y in self.reads:
            chain, n, box = self.reads[y]
            self.env[y] = self.value(chain, n, box) or self.zeros(chain, box)
            return True
        for chain, n in self.steps.get(y, ()):
            self.step(chain, n)
            if n in chain.whole:
                self.env[y] = self.assembled(chain, n)
        return y in self.steps

    def make(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.eqns, op, *rename(self.env, inputs), source=self.source)

    def step(self, chain: Chain, n: int) -> None:
        """Adds the value that a step gives a part."""
        step = chain.steps[n - 1]
        before = self.value(chain, n - 1, step.box) if step.adds else None
        new: Atom | None = None
        if before is not None:
            new = self.make(ADD, before, step.value)
        elif not is_zeros(step.value, self.makers):
            (new,) = rename(self.env, [step.value])
        chain.parts.setdefault(step.box, []).append((n, new))

    def value(self, chain: Chain, count: int, box: Box) -> Atom | None:
        """A part after so many steps; None if it is zeros."""
        for n, value in reversed(chain.parts.get(box, ())):
            if n <= count:
                return value
        return None if chain.base is None else self.make(cut(box), chain.base)

    def zeros(self, chain: Chain, box: Box) -> Var:
        shape = tuple([n for _, n in box])
        return self.make(BroadcastInDim(shape, ()), Literal.of(chain.type.dtype.type(0)))

    def assembled(self, chain: Chain, count: int) -> Atom:
        """The array after `count` steps, assembled from its parts."""
        touched = [box for box, found in chain.parts.items() if found[0][0] <= count]
        everything = tuple([(0, n) for n in chain.type.shape])
        base = chain.base
        if base is not None and 2 * sum(map(size, touched)) < chain.type.size:
            for box in touched:
                value = self.value(chain, count, box) or self.zeros(chain, box)
                start = tuple([a for a, _ in box])
                base = self.make(UpdateSlice(start, (1,) * len(start)), base, value)
            return base
        values = {box: self.value(chain, count, box) for box in touched}
        if base is None:
            values = {box: value for box, value in values.items() if value is not None}
        return self.joined(chain, values, everything, 0)

    def joined(
        self, chain: Chain, values: Mapping[Box, Atom | None], region: Box, axis: int
    ) -> Atom:
        """The parts of a region side by side, along one axis after the other, and what is between."""
        if region in values:
            return values[region] or self.zeros(chain, region)
        if not values:
            base = chain.base
            return self.zeros(chain, region) if base is None else self.make(cut(region), base)
        groups = dict[Span, dict[Box, Atom | None]]()
        for box, value in values.items():
            groups.setdefault(box[axis], {})[box] = value
        pieces, (at, length) = list[Atom](), region[axis]
        for span in [*sorted(groups), (at + length, 0)]:
            for (start, count), inner in (((at, span[0] - at), {}), (span, groups.get(span, {}))):
                if count:
                    piece = (*region[:axis], (start, count), *region[axis + 1 :])
                    pieces.append(self.joined(chain, inner, piece, axis + 1))
            at = sum(span)
        return pieces[0] if len(pieces) == 1 else self.make(Concatenate(axis), *pieces)


def cut(box: Box) -> Slice:
    start, stop = zip(*[(a, a + n) for a, n in box], strict=True)
    return Slice(start, stop, (1,) * len(box))


def size(box: Box) -> int:
    return math.prod(n for _, n in box)


# -------- A sum of an array and of updates among zeros adds the updates to the array. Of the places only
# the run knows more, as of `x[i]` in a loop: its derivative adds to a row, in C where the array is.
#
# add x (scatter_add zeros u i)  ->  scatter_add x u i
#
# What would be one kernel with the sum stays: it makes the array, or reads it, as it goes.


IN_MEMORY = (ScatterAdd, UpdateSlice, ScanLoop, RepeatLoop, WhileLoop)


def updates_added(graph: Graph) -> Graph:
    """The graph without arrays of zeros with updates that are only added to another."""
    if not any(isinstance(e.op, ScatterAdd) for e in graph.eqns):
        return graph
    found = Updates(graph)
    for eqn in graph.eqns:
        found.take(eqn)
    return without_dead_code(Graph(graph.inputs, tuple(found.eqns), graph.outputs, graph.consts))


@final
class Updates:
    """The equations so far, and which of the arrays that are read once are updates of zeros."""

    def __init__(self, graph: Graph) -> None:
        self.makers, self.readers = makers_of(graph), readers_of(graph)
        self.returned = {*graph.outputs}
        self.found = set[Atom]()
        self.eqns = list[Eqn]()

    def take(self, eqn: Eqn) -> None:
        if eqn.op == ADD and eqn.inputs[0] is not eqn.inputs[1]:
            # the one that was added last is short
            for x, y in (eqn.inputs, eqn.inputs[::-1]):
                if y in self.found and x.type.shape and self.in_memory(eqn, x):
                    self.move(self.chain(y), x, eqn)
                    return
        self.record(eqn)

    def record(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        self.makers.update(dict.fromkeys(eqn.outs, eqn))
        if isinstance(eqn.op, ScatterAdd) and self.begins(eqn.inputs[0]) and self.is_part(eqn):
            self.found.add(eqn.outs[0])

    def begins(self, x: Atom) -> bool:
        return x in self.found or is_zeros(x, self.makers)

    def is_part(self, eqn: Eqn) -> bool:
        """True if a single equation reads what one makes."""
        (y,) = eqn.outs
        return len(self.readers.get(y, ())) == 1 and y not in self.returned

    def chain(self, x: Atom) -> list[Eqn]:
        """The updates that make an array of zeros, the first one first."""
        chain = [self.makers[x]]
        while chain[-1].inputs[0] in self.found:
            chain.append(self.makers[chain[-1].inputs[0]])
        return chain[::-1]

    def move(self, chain: Sequence[Eqn], x: Atom, eqn: Eqn) -> None:
        """Adds the updates to an array, in place of a sum of both."""
        for n, each in enumerate(chain, 1):
            y = eqn.outs[0] if n == len(chain) else Var(x.type)
            self.readers.setdefault(y, [eqn])
            self.record(Eqn(each.op, (x, *each.inputs[1:]), (y,), each.source))
            x = y

    def in_memory(self, eqn: Eqn, x: Atom) -> bool:
        """True if neither an array nor its sum with updates is part of elementwise work."""
        maker, (y,) = self.makers.get(x), eqn.outs
        if x in self.found:
            return True
        made = maker is None or isinstance(maker.op, IN_MEMORY) or is_zeros(x, self.makers)
        return made and all(
            not isinstance(e.op, Pointlike | Reduce)
            or (e.op == ADD and any(self.updates(a) for a in e.inputs if a is not y))
            for e in self.readers.get(y, ())
        )

    def updates(self, x: Atom) -> bool:
        """True of updates of zeros, which may come later."""
        while (eqn := self.makers.get(x)) is not None and isinstance(eqn.op, ScatterAdd):
            x = eqn.inputs[0]
        return is_zeros(x, self.makers)


# -------- Work on interleaved parts is work on each of them, and what else it reads is sliced.
# y = interleave a b; z = add y c -> z = interleave (add a c[0::2]) (add b c[1::2])
#
# A transform takes pairs of elements apart, and puts its results together as pairs again. Who makes
# the parts writes them into the whole, and by a kernel of its own what follows reads that again. Of
# parts it is one kernel with what makes them: the joins are last, the slices of arrays first.


def deinterleave(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph in which elementwise work on interleaved parts is done to each of them."""
    if not any(isinstance(e.op, Concatenate) for e in graph.eqns):
        return graph
    found = Deinterleaved(graph, context.tuning.moves).run()
    return graph if found.eqns == graph.eqns else without_dead_code(found)


Woven = tuple[tuple[Atom, ...], int]  # parts, and the axis along which they take turns


class Deinterleaved:
    """`woven`: arrays of interleaved parts; `origins`: what slices are of, `sliced`: the slices by that."""

    def __init__(self, graph: Graph, tuning: Moves) -> None:
        self.graph, self.makers, self.readers = graph, makers_of(graph), readers_of(graph)
        self.tuning, self.results = tuning, frozenset(graph.outputs)
        self.eqns, self.made, self.same = list[Eqn](), 0, dict[Atom, Atom]()
        self.woven = dict[Atom, Woven]()
        self.origins, self.sliced = dict[Var, tuple[Var, Slice]](), dict[tuple[Var, Slice], Var]()

    def run(self) -> Graph:
        for old in self.graph.eqns:
            eqn = replace(old, inputs=tuple(self.same.get(a, a) for a in old.inputs))
            if self.takes_part(eqn):
                self.take(eqn)
            elif self.is_split(eqn):
                y = self.work(eqn.op, eqn.inputs, eqn)
                self.eqns[-1] = replace(self.eqns[-1], outs=eqn.outs)
                self.woven[eqn.outs[0]] = self.woven[y]
            else:
                self.eqns.append(eqn)
                self.find(eqn)
        outputs = tuple(self.same.get(a, a) for a in self.graph.outputs)
        return replace(self.graph, eqns=tuple(self.eqns), outputs=outputs)

    # -- where parts are

    def find(self, eqn: Eqn) -> None:
        """Notes what an equation is a slice of, or that its result is of interleaved parts."""
        x, (y, *_) = next(iter(eqn.inputs), None), eqn.outs or (None,)
        if isinstance(eqn.op, Slice) and isinstance(x, Var) and y:
            self.origins[y] = located(x, eqn.op, self.origins)
            self.sliced.setdefault(self.origins[y], y)
        join = self.makers.get(x) if isinstance(eqn.op, Reshape) else None
        if join is None or not isinstance(join.op, Concatenate) or not y or not y.type.size:
            return
        d, n, apart = join.op.axis - 1, len(join.inputs), join.outs[0].type.shape
        if d < 0 or apart[d + 1] != n or not 1 < n <= self.tuning.parts or apart[d] == 1:
            return
        if y.type.shape != (*apart[:d], apart[d] * n, *apart[d + 2 :]):
            return
        shape = (*apart[: d + 1], *apart[d + 2 :])
        parts = tuple(self.shaped(x, shape, eqn) for x in join.inputs)
        count = sum(map(self.count, parts))
        near = d + 1 < len(shape) or count * y.type.dtype.itemsize <= self.tuning.stride
        if near and count <= self.tuning.turns:
            self.woven[y] = parts, d

    def shaped(self, x: Atom, shape: Dims, eqn: Eqn) -> Atom:
        """A part without the axis along which it was joined to others."""
        made = self.makers.get(x)
        if made is not None and isinstance(made.op, Reshape) and made.inputs[0].type.shape == shape:
            return self.same.get(made.inputs[0], made.inputs[0])
        return applied(self.eqns, Reshape(shape), x, source=eqn.source)

    def count(self, x: Atom) -> int:
        """The number of parts that are parts of no other."""
        return sum(map(self.count, self.woven[x][0])) if x in self.woven else 1

    # -- which work is split

    def takes_part(self, eqn: Eqn) -> bool:
        """True of a slice that has elements of one of the interleaved parts alone."""
        op = eqn.op
        if not isinstance(op, Slice) or eqn.inputs[0] not in self.woven:
            return False
        parts, d = self.woven[eqn.inputs[0]]
        return eqn.outs[0].type.size > 0 and op.step[d] % len(parts) == 0

    def is_split(self, eqn: Eqn) -> bool:
        """True of work on parts, if such alone reads their array, and needs no other array whole."""
        found = [a for a in eqn.inputs if a in self.woven]
        many = self.made > self.tuning.repeated
        if not found or many or not is_work(eqn) or found[0] in self.results:
            return False
        readers = self.readers.get(found[0], ())
        if not all(is_work(e) or self.takes_part(e) for e in readers):
            return False
        small = eqn.outs[0].type.dtype.itemsize <= max(a.type.dtype.itemsize for a in found)
        return small and all(a in self.woven or self.may_cut(a, readers) for a in eqn.inputs)

    def may_cut(self, x: Atom, readers: Sequence[Eqn]) -> bool:
        """True of what is in memory, and of what is read by readers of the parts alone."""
        made = self.makers.get(x)
        if made is None or not x.type.shape or not fusible(made):
            return True
        return x not in self.results and all(e in readers for e in self.readers.get(x, ()))

    # -- the work on parts

    def take(self, eqn: Eqn) -> None:
        """The slice of a part, or all of it."""
        op, (y,), (parts, d) = eqn.op, eqn.outs, self.woven[eqn.inputs[0]]
        assert isinstance(op, Slice)
        start, step, n = [*op.start], [*op.step], len(parts)
        part, start[d], step[d] = parts[start[d] % n], start[d] // n, step[d] // n
        sizes = zip(start, step, y.type.shape, strict=True)
        cut = Slice(tuple(start), tuple(a + s * (m - 1) + 1 for a, s, m in sizes), tuple(step))
        if cut.infer(part.type) == (part.type,):
            self.same[y] = part
        else:
            self.eqns.append(replace(eqn, op=cut, inputs=(part,)))
            self.find(self.eqns[-1])

    def work(self, op: Op, inputs: Sequence[Atom], eqn: Eqn) -> Var:
        """The result of an operation, done to parts where an operand has such."""
        parts, d = next((self.woven[a] for a in inputs if a in self.woven), ((), 0))
        if not parts:
            self.made += 1
            return applied(self.eqns, op, *inputs, source=eqn.source)
        outs = list[Var]()
        for i in range(len(parts)):
            some = [self.part(a, d, len(parts), i, eqn) for a in inputs]
            outs.append(self.work(op, some, eqn))
        shape = outs[0].type.shape
        apart = Reshape((*shape[: d + 1], 1, *shape[d + 1 :]))
        seen = [applied(self.eqns, apart, v, source=eqn.source) for v in outs]
        both = applied(self.eqns, Concatenate(d + 1), *seen, source=eqn.source)
        whole = Reshape((*shape[:d], shape[d] * len(outs), *shape[d + 1 :]))
        y = applied(self.eqns, whole, both, source=eqn.source)
        self.woven[y] = tuple(outs), d
        return y

    def part(self, x: Atom, d: int, n: int, i: int, eqn: Eqn) -> Atom:
        """Each n-th element of an operand along an axis, from the i-th on."""
        if not isinstance(x, Var) or not x.type.shape:
            return x
        parts, axis = self.woven.get(x, ((), d))
        if (len(parts), axis) == (n, d):
            return parts[i]
        start, stop, step = [0] * x.type.ndim, [*x.type.shape], [1] * x.type.ndim
        start[d], stop[d], step[d] = i, stop[d] - n + i + 1, n
        place = located(x, Slice(tuple(start), tuple(stop), tuple(step)), self.origins)
        if place not in self.sliced:
            self.sliced[place] = applied(self.eqns, place[1], place[0], source=eqn.source)
            self.origins[self.sliced[place]] = place
        return self.sliced[place]


def is_work(eqn: Eqn) -> bool:
    """True of elementwise work all of whose arrays have one shape."""
    shapes = {a.type.shape for a in eqn.inputs} - {()}
    one = len(eqn.outs) == 1 and shapes == {eqn.outs[0].type.shape}
    return one and isinstance(eqn.op, Pointlike) and fusible(eqn)
