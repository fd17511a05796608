"""Slices before the work whose results they are of, and of what is joined and padded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import add, mul
from typing import final

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, applied, makers_of, without_dead_code
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.graphs import is_join, is_number, stored_rolls
from ge2.ops.graphs.region import Region, is_repeated, readers_of
from ge2.ops.index import Gather, Indexed
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Running
from ge2.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Iota,
    Pad,
    Reshape,
    Slice,
    slice_before_reshape,
)  # fmt: skip
from ge2.passes.context import NOTHING, Context
from ge2.passes.fusion_group import fusible
from ge2.passes.simplify import VIEWS, sums_of_pads
from ge2.passes.simplify import Sweep as Joins

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
# So it is of windows of work that takes few instructions, as differences of products are:
# y = mul a b; d = sub y[1:] y[:-1] -> d = sub (mul a[1:] b[1:]) (mul a[:-1] b[:-1])
# Memory takes longer to write a value and to read it than a GPU to compute it twice.
#
# So it is of parts that take turns along an axis, as the real and the imaginary parts of pairs do, which
# a view as pairs, or as a line again, is no end of:
# y = mul a b; c = y[0::2]; d = y[1::2] -> c = mul a[0::2] b[0::2]; d = mul a[1::2] b[1::2]
#
# So it is where less than half is read of work on lines of any length, and of a gather at places
# that are numbers of the program, as those of windows are:
# i = iota + iota; y = gather x i; a = y[::128] -> i = iota * 128 + iota; a = gather x i


Parts = dict[Slice, Var]  # of a value, by what is sliced
Found = dict[tuple[Var, Slice], tuple[Var, Slice]]  # for a slice of a value what it is a slice of


def slices_first(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with slices before the elementwise work whose results they are of."""
    most, readers, returned = context.tuning.sliced, readers_of(graph), {*graph.outputs}
    made, moved = dict[Var, set[Var]](), set[Var]()

    def moves(x: Var) -> bool:
        """True of what ends, by elementwise work of its own, as a part of a joined array."""
        found = readers.get(x, ())
        if x in returned or len(found) > 1 or not made.get(x, set()) <= moved:
            return False
        if not found:
            return x in made
        (op, (y, *_)) = found[0].op, found[0].outs
        return isinstance(op, Concatenate | Pad) or (isinstance(op, Pointlike) and moves(y))

    padded, worked = sums_of_pads(graph), worked_on(graph)
    whole = {x for x, _ in stored_rolls(graph, fusible).values()}

    @cache
    def windows() -> Windows:
        return Windows(graph, context)  # hardly ever asked

    def may(eqn: Eqn, parts: Parts) -> bool:
        (y,) = eqn.outs
        if y in whole:  # its kernel writes it where its elements belong
            return False
        if isinstance(eqn.op, Reshape):
            return all(is_seen_through(eqn, op) for op in parts)
        if y not in worked or is_little(y, parts):
            return y in worked
        if all(v not in returned and is_repeated(v, readers) for v in parts.values()):
            return False
        covered = is_covered(y, parts)
        if is_covered(y, parts, most) or (covered and are_interleaved(parts)):
            return True
        if covered and (y in padded or all(map(moves, parts.values()))):
            moved.add(y)
            return True
        return context.caps is not None and windows().pay(y, parts)

    found = pushed(graph, may, (*WORK, Reshape), made)
    return found if found is graph else Joins(VIEWS, merging=False).run(found)


def is_seen_through(eqn: Eqn, op: Slice) -> bool:
    """True if a slice of a reshape is one of its operand, with the same axes of more than one element."""
    inner = slice_within(eqn, op, eqn.inputs[0])
    types = [*op.infer(eqn.outs[0].type), *(inner.infer(eqn.inputs[0].type) if inner else ())]
    shapes = [[n for n in t.shape if n != 1] for t in types]
    return inner is not None and shapes[0] == shapes[1]


def are_interleaved(parts: Parts) -> bool:
    """True of several strided slices of one step and shape, as x[0::2] and x[1::2] are."""
    (first, *_) = parts
    shapes, steps = {tuple(v.type.shape) for v in parts.values()}, {op.step for op in parts}
    return len(shapes) == len(steps) == 1 and len(parts) > 1 and max(first.step) > 1


# instructions of equations, each with the places from which on windows of its result begin
Work = dict[tuple[Eqn, tuple[Dims, ...]], int]
Made = tuple[Work, frozenset[Var]]
FOUND = 5  # instructions of a load whose place is compared with ends


@final
class Windows:
    """The cheap work that its windows may as well do themselves: `made` has the work for an element
    of a value, loads among it, and the large arrays in memory that it is made of; None for a value of
    more work than any window may do again.
    """

    def __init__(self, graph: Graph, context: Context) -> None:
        self.context, self.made = context, dict[Var, Made | None]()
        self.readers, self.returned = readers_of(graph), frozenset(graph.outputs)
        self.wanted = set[Var]()  # what windows that pay need as windows
        # where a part of what is joined or padded lies is found out at each place
        self.joined = {y for e in graph.eqns if isinstance(e.op, Concatenate | Pad) for y in e.outs}
        self.cuts, _ = slices_of(graph)
        work = (p for p in enumerate(graph.eqns) if isinstance(p[1].op, (*WORK, Slice)))
        self.makers = {e.outs[0]: (n, e) for n, e in work if not isinstance(e.op, Draw)}

    def look(self, y: Var) -> None:
        """Finds the work for a value, and first for those that it is made of."""
        found, waiting = dict[int, Eqn](), [y]
        while waiting:
            n, eqn = self.makers.pop(waiting.pop(), (-1, None))
            if eqn is not None:
                found[n] = eqn
                waiting += [a for a in eqn.inputs if isinstance(a, Var)]
        for n in sorted(found):
            self.take(found[n])

    def take(self, eqn: Eqn) -> None:
        (y, *_), own = eqn.outs, eqn.op.cost.instructions
        if isinstance(eqn.op, Slice) and eqn.inputs[0] not in self.made:
            own += FOUND if eqn.inputs[0] in self.joined else 1
        made = self.joint(eqn, own)
        if made is not None and sum(made[0].values()) > self.context.tuning.windowed:
            made = None
        if y not in self.cuts or (made and again(made[0], self.cuts[y]) <= self.most(y)):
            self.made[y] = made

    def joint(self, eqn: Eqn, own: int) -> Made | None:
        """The work of an equation and of those that make its operands, each of them once."""
        done: Work = {(eqn, ()): own}
        arrays = frozenset[Var]()
        for x in {*eqn.inputs}:
            if isinstance(x, Var):
                made = self.of(x)
                if made is None:
                    return None
                given = made[0]
                done |= shifted(given, eqn.op.start) if isinstance(eqn.op, Slice) else given
                arrays |= made[1]
        return done, arrays

    def most(self, y: Var) -> int:
        """The instructions for an element that take as long as to write it and to read it again."""
        tuning = self.context.tuning
        large = self.context.caps is not None or 8 * y.type.size > tuning.rolling.cache
        return tuning.windowed if large else tuning.windowed_in_cache

    def fused(self, x: Var) -> bool:
        """True if regions alone read a slice, or it is joined to what they read."""
        found = self.readers.get(x, ())
        return x not in self.returned and all(
            fusible(e) or isinstance(e.op, Concatenate | Pad) for e in found
        )

    def of(self, x: Var) -> Made | None:
        """The work for a value; none for an array that is there."""
        there: Made = {}, frozenset([x] if x.type.size > 1 else [])
        return self.made.get(x, there)

    def pay(self, y: Var, parts: Parts) -> bool:
        """True if the rows that windows read of all arrays are no more than those of one array that is
        written for them.
        """
        self.look(y)
        made = self.made.get(y)
        if made is None or not all(map(self.fused, parts.values())):
            return False
        rows, several = len({op.start[:-1] for op in parts}), len(made[1])
        few = y in self.wanted or again(made[0], parts) <= self.most(y)
        if not few or rows * several > rows + several + 2:
            return False
        self.wanted.update(v for eqn, _ in made[0] for v in eqn.outs)
        return True


def again(work: Work, cuts: Iterable[Slice]) -> int:
    """The instructions for an element of all windows of a value, beyond those for one of the value."""
    union = Work()
    for op in cuts:
        union |= shifted(work, op.start)
    return sum(union.values()) - sum(work.values())


def shifted(work: Work, by: Dims) -> Work:
    """The work at other places: that which is the same there, for two windows, is done once."""
    found = Work()
    for (eqn, way), instructions in work.items():
        if way and len(way[-1]) == len(by):
            way = (*way[:-1], tuple(map(add, way[-1], by)))
        else:
            way = (*way, by)
        found[eqn, way] = instructions
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
    some = any(isinstance(e.op, Running) for e in graph.eqns)
    return pushed(graph, has_the_first, (Running,)) if some else graph


def has_the_first(eqn: Eqn, parts: Parts) -> bool:
    """True of a scan with one slice, which has its results up to some place."""
    op, (cut, *others) = eqn.op, parts
    if not isinstance(op, Running) or others or cut.step[op.axis] != 1:
        return False
    ends = (eqn.outs[0].type.shape[op.axis], cut.stop) if op.reverse else (0, cut.start)
    return ends[0] == ends[1][op.axis]


WORK = (Pointlike, BroadcastInDim, Iota)


def pushed(
    graph: Graph,
    may: Callable[[Eqn, Parts], bool],
    work: tuple[type, ...] = WORK,
    made: dict[Var, set[Var]] | None = None,
) -> Graph:
    """The graph with slices before `work` of which nothing else is read, where they `may` be: asked
    of each equation, with the slices of its result. `made` takes up which results each new slice is for.
    """
    parts, same = slices_of(graph)
    reads = Counter(
        a for e in graph.eqns if not isinstance(e.op, Slice) for a in e.inputs if isinstance(a, Var)
    )
    reads.update(a for a in graph.outputs if isinstance(a, Var))
    gone, found, wanted = set[Var](), Found(), set[tuple[Var, Slice]]()
    origins = {
        out: (x, op) for x, each in parts.items() for op, out in each.items() if out.type.size
    }
    windows = gathers_of_windows(graph, parts)
    for eqn in reversed(graph.eqns):
        if isinstance(eqn.op, work) or windows & {*eqn.outs}:
            (y, *others) = eqn.outs
            if y in parts and not others and not reads[y] and may(eqn, parts[y]):
                gone.add(y)
                reads.subtract(a for a in eqn.inputs if isinstance(a, Var))
                for a in {*eqn.inputs}:
                    if not isinstance(a, Var) or a not in origins or a in parts or reads[a]:
                        continue
                    if origins[a] not in wanted:  # nobody reads it any more
                        parts[origins[a][0]].pop(origins[a][1], None)
                for op in parts[y]:
                    for x in (same.get(a, a) for a in sliced_inputs(eqn)):
                        if isinstance(x, Var) and (inner := slice_within(eqn, op, x)) is not None:
                            base, within = (x, inner) if reads[x] else located(x, inner, origins)
                            found[x, inner] = base, within
                            wanted.add((base, within))
                            of_base = parts.setdefault(base, {})
                            part = of_base.setdefault(within, Var(*within.infer(base.type)))
                            if made is not None:
                                made.setdefault(part, set()).add(y)
    return rebuilt(graph, parts, same, gone, found) if gone else graph


def located(x: Var, op: Slice, origins: dict[Var, tuple[Var, Slice]]) -> tuple[Var, Slice]:
    """The value that a slice of a value is a slice of in the end, and which."""
    if x not in origins:
        return x, op
    base, outer = origins[x]
    counts = op.infer(x.type)[0].shape
    sides = zip(outer.start, outer.step, op.start, counts, strict=True)
    start = tuple(a + s * b if n else a for a, s, b, n in sides)  # nothing is within, too
    step = tuple(map(mul, outer.step, op.step))
    ends = zip(start, counts, step, strict=True)
    return base, Slice(start, tuple(a + (n - 1) * s + 1 if n else a for a, n, s in ends), step)


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
    """The graph with slices before work of whose results less than half is read, or few columns once,
    or whose windows may as well do it themselves: one pass over memory."""
    windows = cache(lambda: Windows(graph, context))

    def may(eqn: Eqn, parts: Parts) -> bool:
        (y,) = eqn.outs
        columns = all(v.type.shape[-1:] == (1,) for v in parts.values())
        once = is_little(y, parts) or (columns and is_covered(y, parts, context.tuning.sliced))
        return once or windows().pay(y, parts)

    return pushed(graph, may)


def slice_within(eqn: Eqn, op: Slice, x: Atom) -> Slice | None:
    """The slice of an operand that a slice of the result is made of; None if it is all of it."""
    if isinstance(eqn.op, Gather):
        n = x.type.ndim
        return Slice(op.start[:n], op.stop[:n], op.step[:n])
    if isinstance(eqn.op, Reshape):
        return slice_before_reshape(op, x.type.shape, eqn.outs[0].type.shape)
    if not isinstance(eqn.op, BroadcastInDim):
        return op if x.type.shape else None
    dims = eqn.op.dims
    inner = Slice(*(tuple(each[d] for d in dims) for each in (op.start, op.stop, op.step)))
    return None if inner.infer(x.type) == (x.type,) else inner


def counted(iota: Iota, op: Slice, out: Var, eqn: Eqn) -> list[Eqn]:
    """A slice of 0, 1, ... along an axis: the numbers `start + step * i`."""
    made, axis = list[Eqn](), iota.axis
    lines = applied(made, Iota(out.type.shape, axis, iota.dtype), source=eqn.source)
    if (op.start[axis], op.step[axis]) != (0, 1):
        start, step = (Literal.of(iota.dtype.type(n[axis])) for n in (op.start, op.step))
        steps = applied(made, MUL, lines, step, source=eqn.source)
        applied(made, ADD, steps, start, source=eqn.source)
    return [*made[:-1], replace(made[-1], outs=(out,))]


def sliced_work(eqn: Eqn, op: Slice, inputs: tuple[Atom, ...], out: Var) -> list[Eqn]:
    """The work of an equation on slices of its operands."""
    if isinstance(eqn.op, Iota):
        return counted(eqn.op, op, out, eqn)
    new = Reshape(out.type.shape) if isinstance(eqn.op, Reshape) else eqn.op
    if isinstance(new, BroadcastInDim):
        new = BroadcastInDim(out.type.shape, new.dims)
    return [Eqn(new, inputs, (out,), eqn.source)]


def rebuilt(
    graph: Graph, parts: dict[Var, Parts], same: dict[Atom, Atom], gone: set[Var], found: Found
) -> Graph:
    """Each slice where its value is made, and elementwise work once for each slice of its result."""
    made: list[Eqn] = []

    def sliced(x: Atom, eqn: Eqn, op: Slice) -> Atom:
        inner = slice_within(eqn, op, x)
        if inner is None or not isinstance(x, Var):
            return x
        base, within = found[x, inner]
        return parts[base][within]

    def cut(x: Var, eqn: Eqn | None) -> None:
        """The slices of a value, computed from here on."""
        for op, out in parts.get(x, {}).items():
            if eqn is None or x not in gone:
                made.append(Eqn(op, (x,), (out,), eqn.source if eqn else None))
                continue
            wanted = sliced_inputs(eqn)
            inputs = [same.get(a, a) for a in eqn.inputs[: len(eqn.inputs) - len(wanted)]]
            inputs += [sliced(same.get(a, a), eqn, op) for a in wanted]
            made.extend(sliced_work(eqn, op, tuple(inputs), out))

    for x in graph.inputs:
        cut(x, None)
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in same:
            if same[eqn.outs[0]] is not eqn.outs[0]:
                continue
        elif not gone.intersection(eqn.outs):
            inputs = tuple(same.get(a, a) for a in eqn.inputs)
            made.append(Eqn(eqn.op, inputs, eqn.outs, eqn.source))
        for y in eqn.outs:
            cut(y, eqn)
    outputs = tuple(same.get(a, a) for a in graph.outputs)
    return Graph(graph.inputs, tuple(made), outputs, graph.consts)


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
            self.sliced[x] = moves and all(map(self.slices, readers))
        return self.sliced[x]

    def slices(self, e: Eqn) -> bool:
        return isinstance(e.op, Slice) or (is_join(e) and self.is_sliced(e.outs[0]))

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
