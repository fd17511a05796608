"""Slices, and reshapes, before the work whose results they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import final

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Var, makers_of, rename
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.graphs.region import readers_of
from ge2.ops.index import Gather, Indexed
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw
from ge2.ops.reduce import Running
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.fusion_group import dims_of, fusible

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


# ----------------------------------------------------------------------------------- reshapes first
# y = where m x 0; z = reshape[n // 256, 256] y; s = sum z
# ->  z = where (reshape m) (reshape x) 0; s = sum z
# Work and what reads it with its axes cut or joined are no loop over the same axes, so the one wrote
# what the other reads. Arrays in memory have other axes for nothing.


def reshapes_first(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with reshapes before the elementwise work that is read through them alone."""
    if not any(isinstance(e.op, Reshape) and regroups(e) for e in graph.eqns):
        return graph
    shapes = Shapes(graph)
    return shapes.rebuilt() if shapes.wanted else graph


def regroups(eqn: Eqn) -> bool:
    """True of a reshape that cuts or joins axes."""
    (x,), (y,) = eqn.inputs, eqn.outs
    return dims_of(eqn.op, x, y.type.shape) is None and y.type.size > 0 and not y.type.weak


def cuts(old: Dims, new: Dims) -> list[Dims] | None:
    """The axes of a shape that each axis of another is cut into; None if they are joined."""
    found, at = list[Dims](), 0
    for n in old:
        start, size = at, 1
        while size < n and at < len(new):
            size *= new[at]
            at += 1
        if size != n:
            return None
        found.append(tuple(range(start, at)))
    return found


@final
class Shapes:
    """The values of elementwise work that all who read them want in another shape."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers, self.readers = graph, makers_of(graph), readers_of(graph)
        self.returned, self.wanted = {*graph.outputs}, dict[Var, Dims]()
        for eqn in reversed(graph.eqns):
            if self.is_work(eqn) and (shape := self.read_as(eqn.outs[0])):
                self.wanted[eqn.outs[0]] = shape
        while lost := [y for y in self.wanted if not self.fits(y)]:
            for y in lost:
                del self.wanted[y]

    def is_work(self, eqn: Eqn) -> bool:
        if isinstance(eqn.op, BroadcastInDim):
            return not eqn.outs[0].type.weak
        return isinstance(eqn.op, Pointlike) and not isinstance(eqn.op, Draw) and fusible(eqn)

    def read_as(self, y: Var) -> Dims:
        """The one shape that a value is read in by elementwise work and reductions; () if there is none."""
        found = {*self.shapes_of(y)}
        return found.pop() if len(found) == 1 and y not in self.returned else ()

    def shapes_of(self, y: Var) -> Iterator[Dims]:
        for e in self.readers.get(y, ()):
            (out, *_) = e.outs
            if isinstance(e.op, Reshape) and regroups(e):
                yield out.type.shape if any(map(fusible, self.readers.get(out, ()))) else ()
            else:
                yield self.wanted.get(out, ()) if isinstance(e.op, Pointlike) else ()

    def fits(self, y: Var) -> bool:
        """True if its readers agree, and what it is made of is in memory, or is such work as well."""
        eqn, shape = self.makers[y], self.wanted[y]
        if self.read_as(y) != shape:
            return False
        if isinstance(eqn.op, BroadcastInDim):
            (x,) = eqn.inputs
            return not x.type.shape or (
                cuts(y.type.shape, shape) is not None and self.in_memory(x, x.type.shape)
            )
        return all(
            not a.type.shape or a in self.wanted or self.in_memory(a, shape) for a in eqn.inputs
        )

    def in_memory(self, a: Atom, shape: Dims) -> bool:
        """True of an array that no region makes, and that has this shape without a copy."""
        eqn, apart = self.makers.get(a), False
        while eqn is not None and isinstance(eqn.op, Slice | Transpose | Reshape | BroadcastInDim):
            if isinstance(eqn.op, BroadcastInDim):
                return False
            apart |= not isinstance(eqn.op, Reshape)
            eqn = self.makers.get(eqn.inputs[0])
        if eqn is not None and (fusible(eqn) or isinstance(eqn.op, Iota)):
            return False
        return not apart or cuts(a.type.shape, shape) is not None

    def rebuilt(self) -> Graph:
        made, same, seen = list[Eqn](), dict[Var, Atom](), dict[tuple[Atom, Dims], Var]()

        def view(a: Atom, shape: Dims) -> Atom:
            if not a.type.shape or a.type.shape == shape:
                return a
            if (a, shape) not in seen:
                seen[a, shape] = Var(a.type.with_shape(shape))
                made.append(Eqn(Reshape(shape), (a,), (seen[a, shape],), eqn.source))
            return seen[a, shape]

        for eqn in self.graph.eqns:
            (y, *_) = eqn.outs or (None,)
            if y is None or y not in self.wanted:
                x = eqn.inputs[0] if isinstance(eqn.op, Reshape) else None
                if y is not None and (x, y.type.shape) in seen and x in self.wanted:
                    same[y] = seen[x, y.type.shape]
                else:
                    inputs = rename(same, eqn.inputs)
                    made.append(Eqn(eqn.op, inputs, eqn.outs, eqn.source))
                continue
            shape, given = self.wanted[y], rename(same, eqn.inputs)
            out = seen[y, shape] = Var(y.type.with_shape(shape))
            if isinstance(eqn.op, BroadcastInDim):
                made.append(self.broadcast(eqn, given[0], shape, out, view))
            else:
                made.append(Eqn(eqn.op, tuple(view(a, shape) for a in given), (out,), eqn.source))
        outputs = rename(same, self.graph.outputs)
        return Graph(self.graph.inputs, tuple(made), outputs, self.graph.consts)

    def broadcast(
        self, eqn: Eqn, x: Atom, shape: Dims, out: Var, view: Callable[[Atom, Dims], Atom]
    ) -> Eqn:
        """What repeats along axes, with those axes cut."""
        op, parts = eqn.op, cuts(eqn.outs[0].type.shape, shape)
        assert isinstance(op, BroadcastInDim)
        axes = [(n, parts[d]) for n, d in zip(x.type.shape, op.dims, strict=True)] if parts else []
        sizes = tuple(1 if n == 1 else shape[a] for n, each in axes for a in each)
        dims = tuple(a for _, each in axes for a in each)
        return Eqn(BroadcastInDim(shape, dims), (view(x, sizes),), (out,), eqn.source)
