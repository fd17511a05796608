"""Layouts of arrays: strides and offsets in memory; regions that only move elements; the loops in
which the works of a kernel are; and the storage of its values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.record import mutable, record
from ge2.codegen.axes import Loop, Spec, Work, strides_of
from ge2.codegen.kernel_values import Held, Param, Tiling
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs import Windows
from ge2.ops.graphs.region import Region
from ge2.ops.index import Indexed, spans
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.reduce import kept
from ge2.ops.shape import BroadcastInDim, Identity, Iota, Pad, Reshape, Rev, Slice, Transpose

# -------- The layout of an array within the memory of another: an offset, and a stride for each
# axis.


@final
@record
class Layout:
    """Counted in elements."""

    offset: int
    strides: Dims


def plain(shape: Dims) -> Layout:
    """The layout of an array in C order."""
    return Layout(0, strides_of(shape))


def viewed(eqn: Eqn, x: Layout) -> Layout | None:
    """The layout of the result of a view; None if it needs a copy."""
    op, shape = eqn.op, eqn.inputs[0].type.shape
    if isinstance(op, Identity):
        return x
    if isinstance(op, Transpose):
        return Layout(x.offset, tuple(x.strides[i] for i in op.order))
    if isinstance(op, BroadcastInDim):
        strides = [0] * len(op.shape)
        for d, n, s in zip(op.dims, shape, x.strides, strict=True):
            strides[d] = s if n != 1 or op.shape[d] == 1 else 0
        return Layout(x.offset, tuple(strides))
    if isinstance(op, Windows):
        return Layout(x.offset, op.strides(x.strides))
    if isinstance(op, Slice):
        offset = sum(a * s for a, s in zip(op.start, x.strides, strict=True))
        return Layout(
            x.offset + offset, tuple(a * s for a, s in zip(op.step, x.strides, strict=True))
        )
    if isinstance(op, Rev):
        offset = sum((shape[a] - 1) * x.strides[a] for a in op.axes if shape[a])
        return Layout(
            x.offset + offset, tuple(-s if a in op.axes else s for a, s in enumerate(x.strides))
        )
    assert isinstance(op, Reshape)
    return reshaped(x, shape, op.shape)


def reshaped(x: Layout, old: Dims, new: Dims) -> Layout | None:
    """Axes may be split anywhere, and merged where they are tight."""
    if 0 in old:
        return Layout(x.offset, strides_of(new))
    sizes = [(n, s) for n, s in zip(old, x.strides, strict=True) if n != 1]
    found: list[int] = []
    wanted = list(new)
    while wanted:
        if wanted[0] == 1 or not sizes:
            wanted.pop(0)
            found.append(1)
            continue
        n, stride = sizes.pop(0)
        take = [wanted.pop(0)]
        total = take[0]
        while total != n:
            if total < n:
                take.append(wanted.pop(0))
                total *= take[-1]
            else:
                more, inner = sizes.pop(0)
                if stride != inner * more:
                    return None
                n, stride = n * more, inner
        inner = stride
        strides = []
        for size in reversed(take):
            strides.append(inner)
            inner *= size
        found += reversed(strides)
    return Layout(x.offset, tuple(found))


# -------------------------------------------------------------------------------------------- view
# What a template sees: frozen records of finished decisions, with nothing left to compute.


@final
@record
class Line:
    """A line of code, and what it is for, in the margin."""

    code: str
    comment: str = ""


@final
@record
class Scratch:
    """An array of the kernel's own: of a block, or of the partial results of a reduction."""

    name: str
    shape: Dims
    dtype: np.dtype


@final
@record
class KernelView:
    """A region as a function of NumPy calls."""

    name: str
    kind: str
    graph: str
    tiling: Tiling
    imports: tuple[str, ...]
    extended: tuple[str, ...]  # dtypes from ml_dtypes
    constants: tuple[Line, ...]
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    scratch: tuple[Scratch, ...]  # one set a thread
    partials: tuple[Scratch, ...]  # one set a call
    before: tuple[Line, ...]  # what no block changes
    begin: tuple[Line, ...]  # at the start of each run of blocks
    blocks: tuple[Line, ...]  # the part of each array that is in the block
    body: tuple[Line, ...]
    after: tuple[Line, ...]  # partial results into results
    halves: bool  # whether it sums blocks by adding their halves

    @property
    def looped(self) -> bool:
        return self.tiling.blocks > 1

    @property
    def parameters(self) -> str:
        names = [a.name for a in (*self.inputs, *self.outputs)] + [
            a.name for a in (*self.partials, *self.scratch)
        ]
        return ", ".join([*(["parts"] if self.looped else []), *names])

    @property
    def finished(self) -> str:
        return ", ".join([a.name for a in self.outputs] + [a.name for a in self.partials])


def unspoken(graph: Graph) -> str:
    """The reason why an equation has no expression in C and CUDA; "" if each has one."""
    for op in (eqn.op for eqn in graph.eqns):
        if isinstance(op, Pointlike) and not (op.retypes or isinstance(op.lowering, Pointwise)):
            return f"{op.name} has no expression"
    return ""


# -------- Regions that only move elements, with where their arrays are: copies, fills, counts, and
# the parts that joined arrays, pads and updates are copied in.


Moved = tuple[Region, dict[Var, Operand]]


def copied(x: ArrayType, to: ArrayType, source: Operand, target: Operand) -> Moved:
    """A copy from one array, or part of one, to another of the same shape."""
    a, b = Var(x), Var(to)
    eqn = Eqn(ConvertElementType(to.dtype), (a,), (b,))
    region = Region("pointwise", to.shape, (tuple(range(to.ndim)),), Graph((a,), (eqn,), (b,)))
    return region, {a: source, b: target}


def filled(to: ArrayType, source: Operand | None, target: Operand, known: int = 0) -> Moved:
    """One number in every element of an array: that of a source, or one that is known."""
    number = Var(ArrayType((), to.dtype))
    a = number if source is not None else Literal.of(to.dtype.type(known))
    b, c, at = Var(to), Var(to), tuple(range(to.ndim))
    eqns = (
        Eqn(BroadcastInDim(to.shape, ()), (a,), (b,)),
        Eqn(ConvertElementType(to.dtype), (b,), (c,)),
    )
    inputs, given = ((), {}) if source is None else ((number,), {number: source})
    return Region("pointwise", to.shape, (at, at), Graph(inputs, eqns, (c,))), {**given, c: target}


def view_copied(op: Op, x: ArrayType, to: ArrayType, source: Operand, target: Operand) -> Moved:
    """A view of an array, or of a number, as a copy."""
    if source.value:
        return filled(to, source, target)
    found = viewed(Eqn(op, (Var(x),), (Var(to),)), Layout(source.offset, source.strides))
    if found is not None:
        seen = replace(source, offset=found.offset, strides=found.strides)
        return copied(to, to, seen, target)
    # the same order in another shape
    lies = reshaped(Layout(target.offset, target.strides), to.shape, x.shape)
    assert lies is not None, "it is no part of an array whose axes are apart"
    return copied(x, x, source, replace(target, offset=lies.offset, strides=lies.strides))


def joined(
    axis: int,
    xs: Sequence[ArrayType],
    sources: Sequence[Operand],
    target: Operand,
    there: Collection[int],
) -> list[Moved]:
    """Copies of arrays to their places beside each other, but for those that were made `there`."""
    found, at = list[Moved](), 0
    for i, (x, source) in enumerate(zip(xs, sources, strict=True)):
        start = tuple(at if a == axis else 0 for a in range(x.ndim))
        at += x.shape[axis]
        if x.size and i not in there:
            found.append(copied(x, x, source, target.part(start, (1,) * x.ndim)))
    return found


def zeros_around(to: ArrayType, target: Operand, low: Dims, shape: Dims) -> list[Moved]:
    """Zeros in an array, but for a box in it."""
    ones = (1,) * to.ndim
    return [
        filled(to.with_shape(part), None, target.part(start, ones))
        for start, part in around(low, shape, to.shape)
    ]


def copied_around(
    x: ArrayType, low: Dims, shape: Dims, step: Dims, source: Operand, target: Operand
) -> list[Moved]:
    """Copies of an array to where another of its shape is, but for a box in it, or each so many
    elements of a box.
    """
    ends = zip(low, shape, step, strict=True)
    spans = tuple((n - 1) * by + 1 if n else 0 for _, n, by in ends)
    ones, found = (1,) * x.ndim, list[Moved]()

    def copy(start: Dims, size: Dims, by: Dims) -> None:
        part = x.with_shape(size)
        found.append(copied(part, part, source.part(start, by), target.part(start, by)))

    for start, size in around(low, spans, x.shape):
        copy(start, size, ones)
    for a, by in enumerate(step):  # what lies between the elements, of those along the axes before
        for gap in range(1, by if shape[a] > 1 else 1):
            start = (*low[:a], low[a] + gap, *low[a + 1 :])
            size = (*shape[:a], shape[a] - 1, *spans[a + 1 :])
            copy(start, size, (*step[: a + 1], *ones[a + 1 :]))
    return found


def around(low: Dims, shape: Dims, whole: Dims) -> list[tuple[Dims, Dims]]:
    """Start and shape of the parts of an array beside a box: before and after it along each axis,
    within what the box spans of the axes before it.

    >>> around((1, 0), (2, 3), (4, 3))
    [((0, 0), (1, 3)), ((3, 0), (1, 3))]
    """
    found = list[tuple[Dims, Dims]]()
    start, size = [0] * len(whole), list(whole)
    for a, (first, n, total) in enumerate(zip(low, shape, whole, strict=True)):
        for at, count in ((0, first), (first + n, total - first - n)):
            start[a], size[a] = at, count
            if math.prod(size):
                found.append((tuple(start), tuple(size)))
        start[a], size[a] = first, n
    return found


def counted(op: Iota, to: ArrayType, target: Operand) -> Moved:
    """Numbers that count along an axis."""
    a, b, at = Var(to), Var(to), tuple(range(to.ndim))
    eqns = (Eqn(op, (), (a,)), Eqn(ConvertElementType(to.dtype), (a,), (b,)))
    return Region("pointwise", to.shape, (at, at), Graph((), eqns, (b,))), {b: target}


def is_copy(op: Op) -> bool:
    """True if an operation copies its one input under other indices."""
    return op.is_view and not op.several


def inside(op: Pad, shape: Dims, out: Dims) -> tuple[Dims, Dims, Dims, Dims]:
    """The part of a result that elements of `x` become: start and step in the result, the first of
    `x`, and how many.
    """
    found = []
    for n, low, gap, size in zip(shape, op.low, op.inner, out, strict=True):
        step = gap + 1
        first = -(low // step) if low < 0 else 0  # the first that is not cut off
        start = low + first * step
        last = min(n - 1, (size - 1 - low) // step)
        found.append((start, step, first, max(last - first + 1, 0)))
    starts, steps, firsts, counts = zip(*found, strict=True) if found else ((), (), (), ())
    return starts, steps, firsts, counts


def windowed(op: Indexed, shape: Dims, x: Operand) -> Operand:
    """The part of an array that is written to, as an array of its own."""
    start, step = [0] * len(shape), [1] * len(shape)
    for axis, (first, _, each) in zip(kept(op.axes, len(shape)), spans(op, shape), strict=True):
        start[axis], step[axis] = first, each
    return x.part(tuple(start), tuple(step))


def merged(shape: Dims, *strides: Dims) -> tuple[Dims, tuple[Dims, ...]]:
    """Sizes and strides with the axes joined that all arrays treat as one;
    those of one element are left out.

    >>> merged((2, 3, 4), (12, 4, 1), (0, 0, 1))
    ((6, 4), ((4, 1), (0, 1)))
    >>> merged((2, 3, 1), (3, 1, 1), (6, 2, 9))
    ((6,), ((1,), (2,)))
    """
    axes: list[tuple[int, ...]] = []
    for n, *steps in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        if axes and all(
            outer == inner * n for outer, inner in zip(axes[-1][1:], steps, strict=True)
        ):
            axes[-1] = (axes[-1][0] * n, *steps)
        else:
            axes.append((n, *steps))
    sizes, *joined = zip(*axes, strict=True) if axes else [()] * (1 + len(strides))
    return sizes, tuple(joined)


def is_small_copy(region: Region, most: int) -> bool:
    """True if a region only moves its elements, of which there are at most so many."""
    graph = region.graph
    moves = all(
        isinstance(e.op, ConvertElementType) and e.inputs[0].type.dtype == e.outs[0].type.dtype
        for e in graph.eqns
    )
    return moves and math.prod(region.space) <= most


# -------- The loops that a region becomes: every equation finds its loop, and every value the loops
# it must outlive.
# The axes are nested in one order. At each axis the equations that run along it fall into stages:
# what reads the result of a reduction over the axis comes in a later loop than the reduction. A
# value made in one loop and read in another is kept in an array, unless it is cheaper to make again.


def nest(
    works: Sequence[Work], specs: Sequence[Spec], again: int, around: Spec | None = None
) -> Loop:
    """The tree of loops. What costs no more than `again` operations is made again rather than kept.

    All of it is in the loop `around`, also what does not run along its axes: a GPU's threads.
    """
    root = Loop(None, None)
    if around is not None:
        root.children.append(Loop(around, root))
    inner = root if around is None else root.children[0]
    assert isinstance(inner, Loop)
    build(list(works), list(specs), inner, Kernel(list(works), again))
    return root


@final
@record
class Kernel:
    """All works of a kernel, those included that are found on the way."""

    works: list[Work]
    again: int


def build(works: list[Work], specs: list[Spec], parent: Loop, kernel: Kernel) -> None:
    """Puts works into loops below `parent`."""
    if not works:
        return
    if not specs:
        # last, since a result may share the memory of an input
        stores = [w for w in works if w.kind == "store"]
        parent.children += [*(w for w in works if w.kind != "store"), *stores]
        for w in works:
            w.home = parent
        return
    spec, rest = specs[0], specs[1:]
    inside = {w for w in works if not w.axes.isdisjoint(spec.axes)}
    if not inside:
        build(works, rest, parent, kernel)
        return
    deeper = {w for w in inside if any(not w.axes.isdisjoint(s.axes) for s in rest)}
    stages = Stages(works, inside, frozenset(spec.axes), kernel, deeper if spec.split else None)
    for within, outside in stages.run():
        build(outside, rest, parent, kernel)
        if within:
            loop = Loop(spec, parent)
            parent.children.append(loop)
            build(within, rest, loop, kernel)


class Stages:
    """The stages of works at one axis."""

    def __init__(
        self,
        works: list[Work],
        inside: set[Work],
        axes: frozenset[int],
        kernel: Kernel,
        within: set[Work] | None,
    ) -> None:
        self.works, self.inside, self.axes, self.kernel = works, inside, axes, kernel
        self.within = (
            within  # those in loops within, if these have stages of their own: the odd ones
        )
        self.maker: dict[Held, Work] = {w.y: w for w in works if w.y is not None}
        self.stage: dict[Work, int] = {}
        self.readers: dict[Held, list[Work]] = {}
        self.origin: dict[Held, Held] = {}  # of values that are made again

    def run(self) -> list[tuple[list[Work], list[Work]]]:
        for w in self.works:
            self.stage[w] = self.in_turn(w, max((self.after(x) for x in w.xs), default=0))
        if self.within is not None:  # results may share the memory of inputs
            last = max(self.stage.values()) | 1
            self.stage.update((w, last) for w in self.inside if w.kind == "store")
        if not any(self.stage.values()):
            return [self.split(self.works)]
        self.read()
        self.move_to_readers()
        self.again()
        count = 1 + max(self.stage.values())
        ordered = sorted(self.works, key=lambda w: w.order)
        return [self.split([w for w in ordered if self.stage[w] == t]) for t in range(count)]

    def split(self, works: list[Work]) -> tuple[list[Work], list[Work]]:
        """Returns the works inside the loop over the axis, and those outside it."""
        inside = [w for w in works if w in self.inside]
        return inside, [w for w in works if w not in self.inside]

    def after(self, x: Held) -> int:
        """The first stage in which a value can be read."""
        maker = self.maker.get(x)
        if maker is None:
            return 0
        folded = maker in self.inside and not maker.over.isdisjoint(self.axes)
        return self.stage[maker] + folded

    def in_turn(self, w: Work, stage: int) -> int:
        """The first stage from that one on for a work, if loops within have every second one."""
        if self.within is None or w not in self.inside:
            return stage
        return stage + (stage % 2 != (w in self.within))

    def read(self) -> None:
        self.readers = {}
        for w in self.works:
            for x in w.xs:
                self.readers.setdefault(x, []).append(w)

    def move_to_readers(self) -> None:
        """Moves what is read only later to where it is read."""
        for w in reversed(self.works):
            if w.kind == "compute" and w.y in self.readers:
                latest = min(self.stage[r] for r in self.readers[w.y])
                alone = self.within is not None and w in self.inside and w not in self.within
                self.stage[w] = max(self.stage[w], latest - (alone and latest % 2))

    def again(self) -> None:
        """Makes cheap values again in each stage that reads them."""
        made: dict[int, dict[Held, Held]] = {}
        for w in list(self.works):
            if w.kind != "compute" or w not in self.inside or w.y is None:
                continue
            stages = {self.stage[r] for r in self.readers.get(w.y, ())} - {self.stage[w]}
            for t in sorted(stages):
                if self.is_cheap(w, t):
                    self.copy(w, t, made.setdefault(t, {}))
            self.read()
        self.drop()

    def drop(self) -> None:
        """Leaves out what nothing reads any more, here or in other loops."""
        while True:
            read = {x for w in self.kernel.works for x in w.xs}
            unread = [w for w in self.works if w.kind == "compute" and w.y not in read]
            if not unread:
                return
            for w in unread:
                self.works.remove(w)
                self.kernel.works.remove(w)

    def free(self, x: Held, t: int) -> bool:
        """True if stage `t` has a value at no price."""
        maker = self.maker.get(x)
        if maker is None or maker not in self.inside or maker.kind != "compute":
            return True
        if self.stage[maker] == t:
            return True
        later = any(self.stage[r] > self.stage[maker] for r in self.readers.get(x, ()))
        return later and maker.cost > self.kernel.again  # it is kept anyway

    def is_cheap(self, w: Work, t: int) -> bool:
        """True if it is worth making a value again in stage `t`, with all that is not there."""
        needed, waiting, found = {w}, [w], w.cost
        while waiting and found <= self.kernel.again:
            for x in waiting.pop().xs:
                maker = self.maker.get(x)
                if maker is not None and maker not in needed and not self.free(x, t):
                    needed.add(maker)  # once, however many ways lead to it
                    waiting.append(maker)
                    found += maker.cost
        return found <= self.kernel.again

    def copy(self, w: Work, t: int, made: dict[Held, Held]) -> Held:
        """The work once more in stage `t`; the readers there take the new value."""
        assert w.y is not None
        origin = self.origin.get(w.y, w.y)
        if origin in made:
            return self.taken(w.y, made[origin], t)
        xs = [x if self.free(x, t) else self.copy(self.maker[x], t, made) for x in w.xs]
        y = Held(w.y.name, w.y.axes, w.y.dtype, var=w.y.var)
        new = Work("compute", w.order, y, xs, w.step, w.axes, converting=w.converting)
        made[origin], self.origin[y] = y, origin
        self.works.append(new)
        self.kernel.works.append(new)
        self.inside.add(new)
        self.maker[y], self.stage[new] = new, t
        return self.taken(w.y, y, t)

    def taken(self, old: Held, y: Held, t: int) -> Held:
        """Has the readers in stage `t` take `y` for the old value."""
        for r in self.readers.get(old, ()):
            if self.stage[r] == t:
                r.xs = [y if x is old else x for x in r.xs]
        return y


# -------- The storage of values, by the loops that they outlive.


@final
@mutable
class Home:
    """The storage of a value: a local variable of loop `scope`, or an array over the loops `dims`."""

    scope: Loop
    dims: tuple[Loop, ...] = ()
    first: Loop | None = None  # of a reduction: the outermost loop that it folds


def homes(root: Loop) -> dict[Held, Home]:
    """The storage of each value, for all that read it."""
    works = list(root.everything())
    readers: dict[Held, list[Work]] = {}
    for w in works:
        for x in w.xs:
            readers.setdefault(x, []).append(w)
    return {w.y: home(w, readers.get(w.y, [])) for w in works if w.y is not None}


def home(w: Work, readers: Sequence[Work]) -> Home:
    assert w.home is not None and w.y is not None
    path, axes = w.home.path, set(w.y.axes)
    first = None
    if w.kind == "fold":
        first = next(
            (loop for loop in path if loop.spec and not w.over.isdisjoint(loop.spec.axes)), None
        )
    outer = path if first is None else path[: path.index(first)]
    shared = outer
    for r in readers:
        assert r.home is not None
        shared = common(shared, r.home.path)
    crossing = [loop for loop in outer if loop not in shared]
    below = [] if first is None else path[path.index(first) + 1 :]
    dims = [
        loop for loop in (*crossing, *below) if loop.spec and not axes.isdisjoint(loop.spec.axes)
    ]
    return Home(shared[-1], tuple(dims), first)


def common(a: Sequence[Loop], b: Sequence[Loop]) -> list[Loop]:
    found = []
    for x, y in zip(a, b, strict=False):
        if x is not y:
            break
        found.append(x)
    return found
