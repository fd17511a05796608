"""Slices before the work whose results they are of; one shape on both sides of a reshape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from operator import mul
from typing import final

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.graphs.region import readers_of
from ge2.ops.index import Gather, Indexed
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Reduce, Running
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context

# -------- Elementwise work of which only columns are read, of few, is done for those columns.
# y = floor x; a = y[:, 0:1]; b = y[:, 1:2] -> a = floor x[:, 0:1]; b = floor x[:, 1:2]
# Coordinates of points are an array of two or three columns, and work on each follows work on all.
# A slice of what a kernel makes is no part of it: the whole is written, and read again in pieces. A
# slice of an array that is there is an index expression. Every element is made by the same
# operations; none is made twice, since the slices have no more elements than the whole. Where slices
# are only indices of rows or of updates, which no region computes, the whole is one kernel, not several.
#
# So it is of wider parts that are joined again in another order, as halves of a vector that is turned
# are: the kernel of what is joined reads them where they are. So it is of sums of padded arrays.
#
# So it is where less than half is read of work on lines of any length, and of a gather at places
# that are numbers of the program, as those of windows are:
# i = iota + iota; y = gather x i; a = y[::128] -> i = iota * 128 + iota; a = gather x i


Parts = dict[Slice, Var]  # of a value, by what is sliced


def slices_first(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with slices before the elementwise work whose results they are of."""
    most, readers, returned = context.tuning.sliced, readers_of(graph), {*graph.outputs}

    def moves(x: Var) -> bool:
        """True of what ends, by elementwise work of its own, as a part of a joined array."""
        found = readers.get(x, ())
        if x in returned or len(found) != 1:
            return x not in readers and x not in returned  # a slice that this pass made
        (e,) = found
        return isinstance(e.op, Concatenate | Pad) or (
            isinstance(e.op, Pointlike) and moves(e.outs[0])
        )

    padded, worked = sums_of_pads(graph), worked_on(graph)

    def may(eqn: Eqn, parts: Parts) -> bool:
        (y,) = eqn.outs
        if y not in worked or is_covered(y, parts, most) or is_little(y, parts):
            return y in worked
        return is_covered(y, parts) and (y in padded or all(map(moves, parts.values())))

    return pushed(graph, may)


def sums_of_pads(graph: Graph) -> set[Atom]:
    """Padded arrays, and sums of nothing else."""
    found: set[Atom] = set()
    for e in graph.eqns:
        if isinstance(e.op, Pad) or (e.op == ADD and found.issuperset(e.inputs)):
            found.update(e.outs)
    return found


def worked_on(graph: Graph) -> set[Atom]:
    """The values that are more than indices of rows or of updates: also as views, or side by side."""
    found: set[Atom] = set(graph.outputs)
    for eqn in reversed(graph.eqns):
        op, x = eqn.op, eqn.inputs[0] if eqn.inputs else None
        if isinstance(op, Indexed) and x is not None and len(op.axes) < x.type.ndim:
            found.update(eqn.inputs[: 1 if isinstance(op, Gather) else 2])
        elif not (op.is_view or isinstance(op, Concatenate)) or eqn.outs[0] in found:
            found.update(eqn.inputs)
    return found


def scans_of_slices(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with slices before scans of which nothing but the first results is read: a sum up to
    each element, that one not among them, is made where it is joined to a zero.
    """
    if not any(isinstance(e.op, Running) for e in graph.eqns):
        return graph
    return pushed(graph, has_the_first, (Running,))


def has_the_first(eqn: Eqn, parts: Parts) -> bool:
    """True of a scan with one slice, which has its results up to some place."""
    op, (cut, *others) = eqn.op, parts
    if not isinstance(op, Running) or others or cut.step[op.axis] != 1:
        return False
    ends = (eqn.outs[0].type.shape[op.axis], cut.stop) if op.reverse else (0, cut.start)
    return ends[0] == ends[1][op.axis]


WORK = (Pointlike, BroadcastInDim, Iota)


def pushed(graph: Graph, may: Callable[[Eqn, Parts], bool], work: tuple[type, ...] = WORK) -> Graph:
    """The graph with slices before `work` of which nothing else is read, where they `may` be: asked
    of each equation, with the slices of its result.
    """
    parts, same = slices_of(graph)
    reads = Counter(
        a for e in graph.eqns if not isinstance(e.op, Slice) for a in e.inputs if isinstance(a, Var)
    )
    reads.update(a for a in graph.outputs if isinstance(a, Var))
    gone: set[Var] = set()
    windows = gathers_of_windows(graph, parts)
    for eqn in reversed(graph.eqns):
        if isinstance(eqn.op, work) or windows & {*eqn.outs}:
            (y, *others) = eqn.outs
            if y in parts and not others and not reads[y] and may(eqn, parts[y]):
                gone.add(y)
                reads.subtract(a for a in eqn.inputs if isinstance(a, Var))
                for op in parts[y]:
                    for x in (same.get(a, a) for a in sliced_inputs(eqn)):
                        if isinstance(x, Var) and (inner := slice_within(eqn, op, x)) is not None:
                            made = parts.setdefault(x, {})
                            made.setdefault(inner, Var(*inner.infer(x.type)))
    return rebuilt(graph, parts, same, gone) if gone else graph


def slices_of(graph: Graph) -> tuple[dict[Var, Parts], dict[Atom, Atom]]:
    """The slices of each value, equal ones once, and which value is which other."""
    parts: dict[Var, Parts] = {}
    same: dict[Atom, Atom] = {}
    for eqn in graph.eqns:
        x = same.get(eqn.inputs[0], eqn.inputs[0]) if isinstance(eqn.op, Slice) else None
        if isinstance(eqn.op, Slice) and isinstance(x, Var):
            found = parts.setdefault(x, {})
            same[eqn.outs[0]] = found.setdefault(eqn.op, eqn.outs[0])
    return parts, same


def gathers_of_windows(graph: Graph, parts: dict[Var, Parts]) -> set[Var]:
    """The results of gathers that are sliced along their indices alone, which no argument decides:
    those are inside, and leaving some out leaves out no error.
    """
    numbers: set[Atom] = set()  # values that are the same in every call
    found: set[Var] = set()
    for eqn in graph.eqns:
        made = isinstance(eqn.op, WORK)
        if made and all(isinstance(a, Literal) or a in numbers for a in eqn.inputs):
            numbers.update(eqn.outs)
        elif isinstance(eqn.op, Gather) and eqn.outs[0] in parts and numbers >= {*eqn.inputs[1:]}:
            ndim, shape = eqn.inputs[1].type.ndim, eqn.outs[0].type.shape
            whole = {(0, 1, n) for n in shape[ndim:]}
            slices = ([*zip(p.start, p.step, p.stop, strict=True)] for p in parts[eqn.outs[0]])
            if all({*each[ndim:]} <= whole for each in slices):
                found.add(eqn.outs[0])
    return found


def sliced_inputs(eqn: Eqn) -> Sequence[Atom]:
    """The operands of which a slice of the result is made of slices."""
    return eqn.inputs[1:] if isinstance(eqn.op, Gather) else eqn.inputs


def is_covered(y: Var, parts: Parts, most: int | None = None) -> bool:
    """True if slices have no more elements than the whole, which has few columns."""
    few = y.type.ndim > 1 and (most is None or y.type.shape[-1] <= most)
    return few and sum(v.type.size for v in parts.values()) <= y.type.size


def is_little(y: Var, parts: Parts) -> bool:
    """True if slices have less than half of the elements of the whole."""
    return 2 * sum(v.type.size for v in parts.values()) < y.type.size


def little_first(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with slices before work of whose results less than half is read."""
    return pushed(graph, lambda e, parts: is_little(e.outs[0], parts))


def slice_within(eqn: Eqn, op: Slice, x: Atom) -> Slice | None:
    """The slice of an operand that a slice of the result is made of; None if it is all of it."""
    if isinstance(eqn.op, Gather):
        n = x.type.ndim
        return Slice(op.start[:n], op.stop[:n], op.step[:n])
    if not isinstance(eqn.op, BroadcastInDim):
        return op if x.type.shape else None
    dims = eqn.op.dims
    inner = Slice(*(tuple(each[d] for d in dims) for each in (op.start, op.stop, op.step)))
    return None if inner.infer(x.type) == (x.type,) else inner


def counted(iota: Iota, op: Slice, out: Var, eqn: Eqn) -> list[Eqn]:
    """A slice of 0, 1, ... along an axis: the numbers `start + step * i`."""
    t, axis = out.type, iota.axis
    lines = Iota(t.shape, axis, iota.dtype)
    if (op.start[axis], op.step[axis]) == (0, 1):
        return [Eqn(lines, (), (out,), eqn.source)]
    start, step = (Literal.of(iota.dtype.type(n[axis])) for n in (op.start, op.step))
    numbers, steps = Var(t), Var(t)
    return [
        Eqn(lines, (), (numbers,), eqn.source),
        Eqn(MUL, (numbers, step), (steps,), eqn.source),
        Eqn(ADD, (steps, start), (out,), eqn.source),
    ]


def sliced_work(eqn: Eqn, op: Slice, inputs: tuple[Atom, ...], out: Var) -> list[Eqn]:
    """The work of an equation on slices of its operands."""
    if isinstance(eqn.op, Iota):
        return counted(eqn.op, op, out, eqn)
    new = eqn.op
    if isinstance(new, BroadcastInDim):
        new = BroadcastInDim(out.type.shape, new.dims)
    return [Eqn(new, inputs, (out,), eqn.source)]


def rebuilt(graph: Graph, parts: dict[Var, Parts], same: dict[Atom, Atom], gone: set[Var]) -> Graph:
    """Each slice where its value is made, and elementwise work once for each slice of its result."""
    made: list[Eqn] = []

    def sliced(x: Atom, eqn: Eqn, op: Slice) -> Atom:
        inner = slice_within(eqn, op, x)
        return x if inner is None or not isinstance(x, Var) else parts[x][inner]

    def cut(x: Var, eqn: Eqn | None) -> None:
        """The slices of a value, computed from here on."""
        for op, out in parts.get(x, {}).items():
            if eqn is None or x not in gone:
                made.append(Eqn(op, (x,), (out,), eqn.source if eqn else None))
                continue
            wanted = sliced_inputs(eqn)
            rest = eqn.inputs[: len(eqn.inputs) - len(wanted)]
            inputs = [same.get(a, a) for a in rest]
            inputs += [sliced(same.get(a, a), eqn, op) for a in wanted]
            made.extend(sliced_work(eqn, op, tuple(inputs), out))

    for x in graph.inputs:
        cut(x, None)
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in same:
            if same[eqn.outs[0]] is not eqn.outs[0]:
                continue
        elif not gone.intersection(eqn.outs):
            made.append(
                Eqn(eqn.op, tuple(same.get(a, a) for a in eqn.inputs), eqn.outs, eqn.source)
            )
        for y in eqn.outs:
            cut(y, eqn)
    outputs = tuple(same.get(a, a) for a in graph.outputs)
    return Graph(graph.inputs, tuple(made), outputs, graph.consts)


# -------- Elementwise work and reductions on both sides of a reshape have the axes of both.
# y = reshape[8, 32, 65536] (f x); m = reduce_sum[axes=2] y; z = reshape[8, 512, 4096] (y - m) * w
# ->  y = f reshape[8, 32, 16, 4096] x; m = reduce_sum[axes=(2, 3)] y; z = (y - m) * w
# A region has one space, so a reshape in the middle of a layer is an array that one kernel writes and
# the next one reads, though nothing is moved: groups of channels, heads, patches. With the axes of both
# sides everywhere it is one loop, and the reshapes are at its ends, where they are free. Where the axes
# of one side are cut so are those of the other, and all that are linked to them, axis by axis.


Linking = tuple[Atom, int, int]  # an array that is read, an axis of it, and which axis that is


def same_axes(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph without reshapes between elementwise work and reductions."""
    if not any(isinstance(e.op, Reshape) and is_cut(e) for e in graph.eqns):
        return graph
    linked = Linked(graph)
    return Recut(linked).graph() if linked.wanted else graph


def is_cut(eqn: Eqn) -> bool:
    """True of a reshape that does more than to add and to drop axes of size 1."""
    x, y = eqn.inputs[0].type, eqn.outs[0].type
    return [n for n in x.shape if n != 1] != [n for n in y.shape if n != 1]


def links(eqn: Eqn) -> list[Linking] | None:
    """The axes of an equation's operands among those of its result, or, of a reduction, of what it
    reads; None of what is not done element by element.
    """
    op, (y, *others) = eqn.op, eqn.outs
    arrays = [a for a in eqn.inputs if a.type.shape]
    if others or op.effect or not y.type.size or not all(a.type.size for a in arrays):
        return None
    if isinstance(op, BroadcastInDim):
        return [(x, a, d) for x in arrays for a, d in enumerate(op.dims)]
    if isinstance(op, Transpose):
        return [(x, a, d) for x in arrays for d, a in enumerate(op.order)]
    if isinstance(op, Reduce) or (isinstance(op, Pointlike) and not isinstance(op, Draw)):
        return [(x, d, d) for x in arrays for d in range(x.type.ndim)]
    return None


def after_products(graph: Graph) -> set[Atom]:
    """The results of products, and of elementwise work on them, which is done by the same kernel."""
    found, reduced = set[Atom](), set[Atom]()
    for e in graph.eqns:
        if isinstance(e.op, Reduce) or not reduced.isdisjoint(e.inputs):
            reduced.update(e.outs)
        elif isinstance(e.op, DotGeneral) or (
            isinstance(e.op, Pointlike) and not found.isdisjoint(e.inputs)
        ):
            found.update(e.outs)
    return found


def blocks(x: Dims, y: Dims) -> Iterator[tuple[Dims, Dims]]:
    """The axes of two shapes that have the same elements, as few at a time as may be.

    >>> list(blocks((8, 512, 64, 64), (8, 32, 65536)))
    [((0,), (0,)), ((1, 2, 3), (1, 2))]
    """
    ends = [
        dict[int, int](),
        dict[int, int](),
    ]  # of each shape: after how many elements an axis ends
    for shape, found in zip((x, y), ends, strict=True):
        for d, n in enumerate(accumulate(shape, mul)):
            if shape[d] != 1:
                found[n] = d
    before = (-1, -1)
    for n in ends[0]:
        if n in ends[1]:
            after = ends[0][n], ends[1][n]
            a, b = (
                tuple(d for d in range(i + 1, j + 1) if shape[d] != 1)
                for shape, i, j in zip((x, y), before, after, strict=True)
            )
            yield a, b
            before = after


def factors(n: int, cuts: Iterable[int]) -> Dims:
    """The sizes that an axis is cut into; `cuts`: the elements behind each cut.

    >>> factors(65536, {4096, 64})
    (16, 64, 64)
    """
    return tuple(a // b for a, b in pairwise([n, *sorted(cuts, reverse=True), 1])) if cuts else (n,)


@final
class Linked:
    """The axes that are alike throughout a graph, and where they are cut; `wanted`: values that are
    linked by a reshape between one piece of work and another.
    """

    def __init__(self, graph: Graph) -> None:
        self.given = graph
        self.parents: dict[Hashable, Hashable] = {}
        self.cuts: dict[Hashable, set[int]] = {}
        self.inside: set[Atom] = set()  # what work makes, and views of that
        self.reshapes: list[Eqn] = []
        self.outside: list[tuple[Linking, Eqn]] = []  # what is read of what comes from elsewhere
        late = after_products(graph)
        for eqn in graph.eqns:
            if late.isdisjoint(eqn.outs):
                self.take(eqn)
        for (x, a, d), eqn in self.outside:  # one loop reads it with the same axes everywhere
            (y,) = eqn.outs
            self.join((x, self.first(y), a), (y, within_of(eqn), d))
        while self.spread():
            pass
        self.wanted = self.between()

    def first(self, x: Hashable) -> Hashable:
        while x in self.parents:
            x = self.parents[x]
        return x

    def join(self, a: Hashable, b: Hashable) -> None:
        a, b = self.first(a), self.first(b)
        if a != b:
            self.parents[a] = b

    def take(self, eqn: Eqn) -> None:
        """Links what an equation makes to what it reads, if work has made that."""
        found = links(eqn)
        within = not self.inside.isdisjoint(eqn.inputs)
        if isinstance(eqn.op, Reshape) and within:
            self.reshapes.append(eqn)
            self.join(eqn.inputs[0], eqn.outs[0])
        elif found is None or (eqn.op.is_view and not within):
            return
        (y,) = eqn.outs
        self.inside.add(y)
        if isinstance(eqn.op, Reduce):
            rest = [a for a in range(eqn.inputs[0].type.ndim) if a not in eqn.op.axes]
            for d, a in enumerate(rest):
                self.join((y, "of", d), (y, "in", a))
        for x, a, d in found or ():
            if x.type.shape[a] == 1:
                continue
            if x in self.inside:
                self.join(x, y)
                self.join((x, "of", a), (y, within_of(eqn), d))
            else:
                self.outside.append(((x, a, d), eqn))

    def spread(self) -> bool:
        """Cuts both sides of each reshape where one is cut, but for those that cannot be so; True if
        there were new places.
        """
        before = sum(map(len, self.cuts.values()))
        self.reshapes = [e for e in self.reshapes if self.carried(e)]
        return sum(map(len, self.cuts.values())) > before

    def carried(self, eqn: Eqn) -> bool:
        """False if both sides of a reshape cannot be cut into the same axes."""
        values, found = (eqn.inputs[0], eqn.outs[0]), dict[Hashable, set[int]]()
        for block in blocks(*(v.type.shape for v in values)):
            each = [self.places(v, axes) for v, axes in zip(values, block, strict=True)]
            all_of_it = set[int]().union(*(places for side in each for _, _, _, places in side))
            for node, n, behind, _ in (axis for side in each for axis in side):
                inner = {p // behind for p in all_of_it if behind < p < behind * n}
                exact = all(p % behind == 0 for p in all_of_it if behind < p < behind * n)
                new = found.setdefault(node, {*self.cuts.get(node, ())})
                new |= inner
                if not exact or any(a % b for a, b in pairwise([n, *sorted(new, reverse=True)])):
                    return False
        self.cuts.update(found)
        return True

    def places(self, v: Atom, axes: Dims) -> list[tuple[Hashable, int, int, set[int]]]:
        """Axes of a value that are side by side: which each is, its size, the elements behind it, and
        those behind its end and all of its cuts.
        """
        found, behind = list[tuple[Hashable, int, int, set[int]]](), 1
        for a in reversed(axes):
            n, node = v.type.shape[a], self.first((v, "of", a))
            cuts = {behind * c for c in self.cuts.get(node, ())}
            found.append((node, n, behind, {behind, *cuts}))
            behind *= n
        return found

    def between(self) -> set[Hashable]:
        """The linked values of which some are made by work, reshaped, and read by work."""
        read: set[Atom] = set()
        for eqn in reversed(self.given.eqns):
            made = self.inside.intersection(eqn.outs)
            if made and (not eqn.op.is_view or made & read):
                read.update(eqn.inputs)
        return {self.first(e.outs[0]) for e in self.reshapes if is_cut(e) and e.outs[0] in read}

    def axes_of(self, v: Atom, which: str = "of", ndim: int = -1) -> list[Hashable]:
        count = v.type.ndim if ndim < 0 else ndim
        return [self.first((v, which, d)) for d in range(count)]


def within_of(eqn: Eqn) -> str:
    """Which axes an equation works over: those of its result, or those of what it reduces."""
    return "in" if isinstance(eqn.op, Reduce) else "of"


@final
class Recut:
    """The equations so far, with the values that are wanted so in the axes that they are cut into."""

    def __init__(self, linked: Linked) -> None:
        self.linked, self.given = linked, linked.given
        self.eqns: list[Eqn] = []
        self.new: dict[Atom, Var] = {}  # the value of other axes that stands for one
        self.seen: dict[tuple[Atom, Dims], Atom] = {}

    def graph(self) -> Graph:
        for eqn in self.given.eqns:
            if eqn.outs and eqn.outs[0] in self.linked.inside and self.is_wanted(eqn.outs[0]):
                self.take(eqn)
            else:
                self.eqns.append(replace(eqn, inputs=tuple(map(self.plain, eqn.inputs))))
        outputs = tuple(map(self.plain, self.given.outputs))
        return replace(self.given, eqns=tuple(self.eqns), outputs=outputs)

    def is_wanted(self, v: Atom) -> bool:
        return self.linked.first(v) in self.linked.wanted

    def plain(self, v: Atom) -> Atom:
        """The value in the axes that it had."""
        return self.in_shape(self.new[v], v.type.shape) if v in self.new else v

    def in_shape(self, x: Atom, shape: Dims) -> Atom:
        if x.type.shape == shape:
            return x
        if (x, shape) not in self.seen:
            op = Reshape(shape)
            out = Var(*op.infer(x.type))
            self.eqns.append(Eqn(op, (x,), (out,)))
            self.seen[x, shape] = out
        return self.seen[x, shape]

    def cut(self, v: Atom, nodes: Sequence[Hashable]) -> list[Dims]:
        """The sizes of each axis of a value, given which they are."""
        cuts = self.linked.cuts
        pairs = zip(v.type.shape, nodes, strict=True)
        return [factors(n, cuts.get(node, ())) if n != 1 else (1,) for n, node in pairs]

    def take(self, eqn: Eqn) -> None:
        (y,) = eqn.outs
        shape = joined(self.cut(y, self.linked.axes_of(y)))
        if isinstance(eqn.op, Reshape):
            x = eqn.inputs[0]
            out = self.in_shape(self.new.get(x, x), shape)
            if isinstance(out, Var):
                self.new[y] = out
            return
        inputs, op = tuple(self.operands(eqn)), self.op(eqn, shape)
        out = y if shape == y.type.shape else Var(*op.infer(*(a.type for a in inputs)))
        self.eqns.append(replace(eqn, op=op, inputs=inputs, outs=(out,)))
        self.new[y] = out

    def domain(self, eqn: Eqn) -> list[Dims]:
        """The sizes of each axis that an equation works over."""
        (y,) = eqn.outs
        if not isinstance(eqn.op, Reduce):
            return self.cut(y, self.linked.axes_of(y))
        x = eqn.inputs[0]
        return self.cut(x, self.linked.axes_of(y, "in", x.type.ndim))

    def operands(self, eqn: Eqn) -> Iterator[Atom]:
        sizes, found = self.domain(eqn), dict[Atom, dict[int, Dims]]()
        for x, a, d in links(eqn) or ():
            found.setdefault(x, {})[a] = sizes[d] if x.type.shape[a] != 1 else (1,)
        for x in eqn.inputs:
            cut = found.get(x)
            here = self.new.get(x, x)
            yield here if cut is None else self.in_shape(here, joined(cut[a] for a in sorted(cut)))

    def op(self, eqn: Eqn, shape: Dims) -> Op:
        """The operation over the axes that those of an equation are cut into."""
        op, sizes = eqn.op, self.domain(eqn)
        into = spans(sizes)
        if isinstance(op, Reduce):
            return replace(op, axes=joined(into[a] for a in op.axes))  # type: ignore[type-var]
        if isinstance(op, BroadcastInDim):
            pairs = zip(eqn.inputs[0].type.shape, op.dims, strict=True)
            return BroadcastInDim(
                shape, joined(into[d] if n != 1 else into[d][:1] for n, d in pairs)
            )
        if isinstance(op, Transpose):
            read = spans([sizes[op.order.index(a)] for a in range(len(sizes))])
            return Transpose(joined(read[a] for a in op.order))
        return eqn.op


def spans(sizes: Sequence[Dims]) -> list[Dims]:
    """The axes that each axis is cut into, one after another.

    >>> spans([(8,), (32, 16), (64,)])
    [(0,), (1, 2), (3,)]
    """
    return [tuple(range(a, b)) for a, b in pairwise([0, *accumulate(map(len, sizes))])]


def joined(parts: Iterable[Dims]) -> Dims:
    return tuple(chain.from_iterable(parts))
