"""The steps and values of a kernel, value ranges of its integers, and the tuning numbers of its loops."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import FLOAT32, HALF, INT64, accumulator
from ge2.base.record import mutable, record
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Names, Op, Var, makers_of
from ge2.ops.graphs import InRuns, Rolled, Runs
from ge2.ops.graphs.region import Region
from ge2.ops.index import Gather
from ge2.ops.random import Draw
from ge2.ops.reduce import ArgReduce, Reduce, kept
from ge2.ops.shape import BroadcastInDim, Iota, Pad, Transpose

# -------- Ranges of integers that follow from how they were computed: an index which cannot be
# outside needs no look.
# x & 255, x % 256, uint8, np.clip(x, 0, 255) all from 0 to 255, whatever x is


Range = tuple[int, int]  # the least and the greatest value
MOVES: Final = ("broadcast_in_dim", "copy", "reshape", "rev", "slice", "transpose")


@final
class Ranges:
    """The ranges of the integers of a graph, each worked out when it is asked for."""

    __slots__ = ("known", "makers")

    def __init__(self, graph: Graph) -> None:
        self.makers = makers_of(graph)
        self.known: dict[Var, Range] = {}

    def of(self, atom: Atom) -> Range:
        """Returns what an integer or bool is between; every value of its dtype if nothing else is
        known.
        """
        if isinstance(atom, Literal):
            number = int(np.asarray(atom.value).item())
            return number, number
        if atom not in self.known:
            self.known[atom] = every_value(atom.type.dtype)  # of one that depends on itself, too
            self.known[atom] = self.made(atom)
        return self.known[atom]

    def made(self, v: Var) -> Range:
        eqn, every = self.makers.get(v), every_value(v.type.dtype)
        if eqn is None or any(a.type.dtype.kind not in "bui" for a in eqn.inputs):
            return every
        low, high = self.by(eqn, every)
        return (low, high) if every[0] <= low and high <= every[1] else every  # it may have wrapped

    def by(self, eqn: Eqn, every: Range) -> Range:
        name, op = eqn.op.name, eqn.op
        if isinstance(op, Iota):
            return 0, max(eqn.outs[0].type.shape[op.axis] - 1, 0)
        if name in MOVES or name == "convert_element_type":
            return self.of(eqn.inputs[0])
        rule = RULES.get(name)
        return every if rule is None else rule(every, *map(self.of, eqn.inputs))


def every_value(dtype: np.dtype) -> Range:
    """All values of a dtype.

    >>> every_value(np.dtype(np.int8))
    (-128, 127)
    """
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind not in "ui":
        return -(1 << 64), 1 << 64
    found: Any = np.iinfo(dtype)
    return int(found.min), int(found.max)


def masked(every: Range, x: Range, y: Range) -> Range:
    """A mask that is not negative bounds what is left of any number."""
    ends = [high for low, high in (x, y) if low >= 0]
    return (0, min(ends)) if ends else every


def remaining(every: Range, x: Range, y: Range) -> Range:
    """A remainder has the sign of the divisor, as in NumPy; by 0 it is 0."""
    return (0, max(y[1] - 1, 0)) if y[0] >= 0 else every


def shifted(every: Range, x: Range, y: Range) -> Range:
    return (0, x[1] >> y[0]) if x[0] >= 0 and 0 <= y[0] < 64 else every


def scaled(every: Range, x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


RULES: Final[dict[str, Callable[..., Range]]] = {
    "and": masked,
    "rem": remaining,
    "shift_right": shifted,
    "mul": scaled,
    "add": lambda every, x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda every, x, y: (x[0] - y[1], x[1] - y[0]),
    "min": lambda every, x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda every, x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "where": lambda every, c, x, y: (min(x[0], y[0]), max(x[1], y[1])),
}


# -------- Tuning numbers of loops over a space, for any processor. Each target sets its own values.


@final
@record
class Blocks:
    """Sizes of the blocks into which a space is split, so that each stays in cache."""

    cache: int = 1 << 21  # bytes of all arrays of a block, at most: the caches of one core
    smallest: int = 1 << 16  # bytes of one array of a block, at least
    largest: int = 1 << 20  # bytes of one array of a block, at most
    shares: int = 4  # the fewest blocks of a space that is split, so that several threads have work
    whole: int = 1024  # elements: longer steps are multiples, so that blocks begin at cache lines
    parts: int = 64  # the most runs of blocks that threads are given


@final
@record
class Nests:
    """Sizes by which the loops over a space are ordered, nested and tiled."""

    lanes: int = 32  # columns that are reduced together where the rows are reduced
    panel: int = 1024  # the same where nothing else must stay in cache
    cache: int = 1 << 18  # bytes of a panel: a part of the second-level cache of a core
    wide: int = 4096  # the fewest columns by which threads share sums over rows
    tile: int = 32  # elements along each side of a tile, where arrays are transposed to each other
    few: int = 8  # the most elements along an axis that is not tiled
    again: int = 6  # the most operations that are computed again instead of being stored
    element: int = 4  # most bytes of elements that vectors gather from, or spread to, short rows
    near: int = 16  # the most bytes between elements of a vector that are said in the text
    around: int = 3  # the most elements of rows around which vectors go where they are folded
    # bytes of a row from which on vectors go along it, whatever it does (0: always): across rows a
    # sum of float64 is one of all its elements in turn, and of 60 errs by twice what NumPy's does
    rows: int = 256
    vector: int = 64  # bytes: rows of `lanes` or more that are such vectors go along these
    brief: int = 4  # elements of a row that a compiler makes one vector of, if it has functions
    nearest: int = 1 << 14  # bytes: a part of the first-level cache of a core
    # operations for each row of few elements, and for each value that elements read of them, from
    # which on a block of rows has them before it has elements; rows of that block
    alone: tuple[int, int] = (20, 4)
    block: int = 128
    short: int = 16  # the largest inner axis whose size is a constant of the source


# -------- The computation of a kernel, in its own terms: views gone, half types widened, each value
# with its true axes.
# A value depends on some axes of the space. Its array has those; along the others it has size 1,
# and leading ones are left out, so that NumPy's broadcasting does the rest. Its own axes come in
# the order of the space.


# ------------------------------------------------------------------------------------------ blocks
# How an iteration space is cut into blocks that stay in cache.

BLOCKS = Blocks()


@final
@record
class Tiling:
    """Axes `single` are walked one element at a time, then `axis` in steps of
    `step`; the rest are whole.

    The blocks are dealt out in `parts` runs of `run` blocks. Nothing here depends on the number of
    threads, so neither do the results.
    """

    space: Dims
    single: Dims = ()
    axis: int = -1
    step: int = 0
    run: int = 1

    @property
    def cut(self) -> Dims:
        """The axes that are not whole in a block."""
        return self.single if self.axis < 0 else (*self.single, self.axis)

    @property
    def blocks(self) -> int:
        along = 1 if self.axis < 0 else -(-self.space[self.axis] // self.step)
        return along * math.prod(self.space[a] for a in self.single)

    @property
    def parts(self) -> int:
        return -(-self.blocks // self.run)

    @property
    def ragged(self) -> bool:
        """True if the last block along the axis is a smaller one."""
        return self.axis >= 0 and self.space[self.axis] % self.step != 0

    def extent(self, axis: int) -> int:
        """The size of an axis within a full block."""
        return 1 if axis in self.single else self.step if axis == self.axis else self.space[axis]


def tiling(
    space: Dims, whole: Iterable[int], itemsize: int, arrays: int = 2, tuning: Blocks = BLOCKS
) -> Tiling:
    """Cuts the outermost axes that may be cut, until the `arrays` of a block fit in cache."""
    rest = math.prod(space)
    free = [a for a, n in enumerate(space) if a not in whole and n > 1]
    if rest * itemsize * arrays <= tuning.cache or not free:
        return Tiling(space)
    block = max(tuning.cache // arrays, tuning.smallest)
    block = min(block, tuning.largest, rest * itemsize // tuning.shares) // itemsize
    single: list[int] = []
    for axis in free[:-1]:
        if rest // space[axis] <= block:
            break
        single.append(axis)
        rest //= space[axis]
    else:
        axis = free[-1]
    step = min(max(block // (rest // space[axis]), 1), space[axis])
    step -= step % tuning.whole if step > tuning.whole else 0
    blocks = Tiling(space, tuple(single), axis, step).blocks
    return Tiling(space, tuple(single), axis, step, -(-blocks // tuning.parts))


# ----------------------------------------------------------------------------------- kernel values


NONE = -1
SUMS: Final = ("reduce_sum", "reduce_prod", "reduce_sum_exp", "reduce_deviations")


@final
@mutable
class Held:
    """A value in a kernel:

    `LEAF` arrays and numbers are there already, others are made by a Step.
    """

    name: str
    axes: Dims
    dtype: np.dtype
    leaf: Any = None  # a Param, a Literal or an Iota
    last: int = -1  # the last step that reads it
    var: Var | None = None


@final
@record
class Param:
    """An array that a kernel reads or writes whole: a value of the graph, its
    axes in the order of the space.

    `order` transposes it and `shape` then drops or adds axes of size 1; None
    where nothing is to be done.
    """

    name: str
    var: Var
    axes: Dims
    order: Dims | None
    shape: Dims | None


@final
@record
class Placed:
    """The position of the operand of a `pad` or an `in_runs` in the iteration space.

    Its axes are those of the space in `at`, and its element 0 is at `low`. `bounds` has (axis, first
    place, end, size of the axis) for each axis of which it covers a part.
    """

    var: Var | None  # the array; None of a number, which is everywhere the same
    at: Dims
    low: Dims
    bounds: tuple[tuple[int, int, int, int], ...]
    places: tuple[tuple[int, Held], ...] = ()  # the index along an axis, where that is a value

    @property
    def apart(self) -> frozenset[int]:
        """The axes along which it is not where the space is."""
        moved = {a for a, n in zip(self.at, self.low, strict=True) if n and a != NONE}
        return frozenset(moved | {a for a, *_ in self.bounds} | {a for a, _ in self.places})


@final
@mutable
class Step:
    """An equation of a kernel; without `eqn`, its only input is widened to float32."""

    y: Held
    xs: list[Held]
    eqn: Eqn | None
    over: Dims = ()  # the axes it reduces, of those its input has
    repeated: Dims = ()  # axes along which its input only repeats, and that count all the same
    placed: Placed | None = None  # of what lies elsewhere than the space
    runs: Runs = ()  # of the index along an axis

    def scale(self, a: int, b: int, n: int) -> None:
        """Makes places along an axis those along it and the next, of size n, as one."""
        if self.runs and self.y.axes == (a,):
            self.runs = tuple((begin * n, index * n, step) for begin, index, step in self.runs)
        if self.placed is not None:
            self.placed = replace(
                self.placed,
                bounds=tuple(
                    (b, low * n, end * n, size * n) if d == a else (d, low, end, size)
                    for d, low, end, size in self.placed.bounds
                ),
                places=tuple((b if d == a else d, x) for d, x in self.placed.places),
            )


@final
@mutable
class Values:
    """The steps of a region, the arrays it reads, and its results."""

    region: Region
    tiling: Tiling
    names: Names
    steps: list[Step] = field(default_factory=list)
    params: dict[tuple[Var, Dims], Param] = field(default_factory=dict)
    # what is read at indices; its other axes are axes of the space
    tables: dict[tuple[Var, Dims], Param] = field(default_factory=dict)
    padded: list[Var] = field(default_factory=list)  # what pads read
    env: dict[Var, tuple[Held, Dims]] = field(default_factory=dict)  # with the axis of each axis
    loads: dict[tuple[object, Dims], Held] = field(default_factory=dict)
    where: dict[Var, Dims] = field(default_factory=dict)
    # of results that are written elsewhere, the index along each axis along which they are
    landing: dict[Var, tuple[Held, ...]] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return len(self.region.space)

    def run(self) -> Values:
        for eqn, at in zip(self.region.graph.eqns, self.region.axes, strict=True):
            (y,) = eqn.outs
            self.where[y] = tuple(at[i] for i in kept(folded_axes(eqn.op), len(at)))
            if isinstance(eqn.op, Iota):
                self.env[y] = self.count(eqn.op, at), at
            elif eqn.op.is_view:
                self.env[y] = self.read(eqn.inputs[0], view_axes(eqn, at)), at
            elif isinstance(eqn.op, Reduce | ArgReduce):
                self.fold(eqn, at)
            elif isinstance(eqn.op, Gather):
                self.gather(eqn, eqn.op, at)
            elif isinstance(eqn.op, Pad):
                self.pad(eqn, eqn.op, at)
            elif isinstance(eqn.op, InRuns):
                self.in_runs(eqn, eqn.op, at)
            elif isinstance(eqn.op, Rolled):
                self.rolled(eqn, eqn.op, at)
            else:
                self.pointwise(eqn, at)
        for n, step in enumerate(self.steps):
            for x in step.xs:
                x.last = n
        return self

    def pointwise(self, eqn: Eqn, at: Dims) -> None:
        (y,) = eqn.outs
        xs = [self.wide(self.read(a, at if a.type.shape else ())) for a in eqn.inputs]
        axes = {a for x in xs for a in x.axes} if not isinstance(eqn.op, Draw) else {*at} - {NONE}
        self.make(y, Step(self.new(y, tuple(sorted(axes))), xs, eqn))

    def gather(self, eqn: Eqn, op: Gather, at: Dims) -> None:
        """Two steps: where the elements are that the indices name (no value of the graph, so
        without a Var), and the element that is read.
        """
        (y,), (x, *indices) = eqn.outs, eqn.inputs
        assert isinstance(x, Var)
        numbers = [self.read(a, at[: len(a.type.shape)]) for a in indices]
        over = tuple(sorted({a for i in numbers for a in i.axes}))
        place = Held(f"{safe(self.names[y])}_at", over, INT64)
        self.steps.append(Step(place, numbers, eqn))
        rest = iter(at[len(at) - (x.type.ndim - len(op.axes)) :])
        along = tuple(NONE if a in op.axes else next(rest) for a in range(x.type.ndim))
        table = self.load(((x, "table"), along), lambda: self.table(x, along))
        axes = {*over, *table.axes}
        self.make(y, Step(self.new(y, tuple(sorted(axes))), [table, place], eqn))

    def pad(self, eqn: Eqn, op: Pad, at: Dims) -> None:
        """An array of the caller's, or a number, at its place in the space."""
        (y,), (x,) = eqn.outs, eqn.inputs
        assert isinstance(x, Var) and not any(op.inner)
        number = self.env[x][0] if x in self.env else None
        source = number or self.load((("elsewhere", x), at), lambda: self.lying(x, at))
        sizes = zip(at, op.low, x.type.shape, y.type.shape, strict=True)
        bounds = tuple(
            (a, low, low + n, size)
            for a, low, n, size in sizes
            if a != NONE and (low > 0 or low + n < size)
        )
        axes = {*source.axes, *(a for a, *_ in bounds)}
        step = Step(self.new(y, tuple(sorted(axes))), [source], eqn)
        step.placed = Placed(None if number else x, at, op.low, bounds)
        self.make(y, step)

    def in_runs(self, eqn: Eqn, op: InRuns, at: Dims) -> None:
        """An array of the caller's, read in runs: the index along an axis is a value of its own, of
        which there is one for all that are read in the same runs.
        """
        (y,), (x,) = eqn.outs, eqn.inputs
        assert isinstance(x, Var)
        along = tuple(at[axis] if axis >= 0 else NONE for axis, _ in op.axes)
        low = [0] * len(along)
        places: dict[int, Held] = {}
        for d, (a, (_, runs)) in enumerate(zip(along, op.axes, strict=True)):
            if a == NONE or (len(runs) == 1 and runs[0][2]):
                low[d] = -runs[0][1]
            else:
                places[a] = self.load((runs, (a,)), lambda a=a, runs=runs: self.place(y, a, runs))
        source = self.load((("elsewhere", x), along), lambda: self.lying(x, along))
        step = Step(self.new(y, source.axes), [source, *places.values()], eqn)
        step.placed = Placed(x, along, tuple(low), (), tuple(places.items()))
        self.make(y, step)

    def rolled(self, eqn: Eqn, op: Rolled, at: Dims) -> None:
        """A result whose elements belong elsewhere than where the space has them."""
        (y,), (x,) = eqn.outs, eqn.inputs
        found = self.wide(self.read(x, at))
        self.landing[y] = tuple(
            self.load((runs, (at[d],)), lambda d=d, runs=runs: self.place(y, at[d], runs))
            for d, runs in op.runs(y.type.shape)
        )
        self.make(y, Step(self.new(y, found.axes), [found], eqn))

    def place(self, y: Var, axis: int, runs: Runs) -> Held:
        """The index at each place along an axis."""
        # an index, or the place of an element that is made of it, may need 64 bits
        last = max(index for _, index, _ in runs) + self.region.space[axis]
        far = max(math.prod(self.region.space), last) >= 1 << 30
        dtype = INT64 if far else np.dtype(np.int32)
        found = Held(f"{safe(self.names[y])}_along_{axis}", (axis,), dtype)
        self.steps.append(Step(found, [], None, runs=runs))
        return found

    def lying(self, x: Var, at: Dims) -> Held:
        axes = tuple(sorted(a for a in at if a != NONE))
        param = Param(self.name(x), x, axes, None, None)
        self.padded.append(x)
        return Held(param.name, axes, x.type.dtype, param)

    def table(self, x: Var, along: Dims) -> Held:
        axes = tuple(sorted(a for a in along if a != NONE))
        param = self.tables[x, along] = Param(self.name(x), x, axes, None, None)
        return Held(param.name, axes, x.type.dtype, param)

    def fold(self, eqn: Eqn, at: Dims) -> None:
        (y,) = eqn.outs
        x = self.wide(self.read(eqn.inputs[0], at))
        over = {at[i] for i in folded_axes(eqn.op)} - {NONE}
        counts = eqn.op.name in SUMS  # others take no notice of repetition
        repeated = tuple(sorted(over - set(x.axes))) if counts else ()
        axes = tuple(a for a in x.axes if a not in over)
        counted = tuple(sorted(over & {*x.axes, *repeated}))
        self.make(y, Step(self.new(y, axes), [x], eqn, counted, repeated))

    def new(self, y: Var, axes: Dims) -> Held:
        return Held(safe(self.names[y]), axes, accumulator(y.type.dtype), var=y)

    def make(self, y: Var, step: Step) -> None:
        self.steps.append(step)
        self.env[y] = step.y, self.where[y]

    def read(self, atom: Atom, at: Dims) -> Held:
        """A value, seen with these axes."""
        if isinstance(atom, Literal):
            # a size may equal another by chance
            key = atom.key if atom.value in (0, 1) else id(atom)
            return self.load((key, ()), lambda: Held("", (), accumulator(atom.type.dtype), atom))
        found = self.env.get(atom)
        if found is not None:
            assert found[1] == at or isinstance(found[0].leaf, Param), (
                "a value made in a region has one orientation"
            )
            if found[1] == at:
                return found[0]
            return self.input(found[0].leaf.var, at)
        return self.input(atom, at)

    def input(self, var: Var, at: Dims) -> Held:
        return self.load((var, at), lambda: self.array(var, at))

    def load(self, key: tuple[object, Dims], make: Any) -> Held:
        if key not in self.loads:
            self.loads[key] = make()
        return self.loads[key]

    def array(self, var: Var, at: Dims) -> Held:
        param = aligned(self.name(var), var, at, self.region.space)
        self.params[var, at] = param
        return Held(param.name, param.axes, var.type.dtype, param)

    def name(self, var: Var) -> str:
        """The name of an array, with a number where it is read in several ways."""
        seen = sum(v is var for v, _ in (*self.params, *self.tables))
        seen += sum(v is var for v in self.padded)
        return safe(self.names[var]) + (str(seen + 1) if seen else "")

    def wide(self, x: Held) -> Held:
        """The value, half types as float32."""
        if x.dtype not in HALF:
            return x
        key = ("wide", id(x)), ()
        if key not in self.loads:
            self.loads[key] = Held(f"{x.name}_f32", x.axes, FLOAT32)
            self.steps.append(Step(self.loads[key], [x], None))
        return self.loads[key]

    def count(self, op: Iota, at: Dims) -> Held:
        axis = at[op.axis]
        axes = () if axis == NONE else (axis,)
        return self.load((op, axes), lambda: Held("", axes, accumulator(op.dtype), op))


def folded_axes(op: Op) -> Dims:
    """The axes of its input that an operation folds away."""
    if isinstance(op, ArgReduce):
        return (op.axis,)
    return op.axes if isinstance(op, Reduce) else ()


def view_axes(eqn: Eqn, at: Dims) -> Dims:
    """The axes of the input of a view, given those of its result."""
    (x,), op = eqn.inputs, eqn.op
    shape = x.type.shape
    if isinstance(op, BroadcastInDim):
        return tuple(NONE if n == 1 else at[d] for n, d in zip(shape, op.dims, strict=True))
    if isinstance(op, Transpose):
        return tuple(at[op.order.index(i)] for i in range(len(shape)))
    places = iter([a for a, n in zip(at, eqn.outs[0].type.shape, strict=True) if n != 1])
    return tuple(NONE if n == 1 else next(places) for n in shape)


def aligned(name: str, var: Var, at: Dims, space: Dims) -> Param:
    """The parameter of an array with its axes in the order of the space."""
    shape, rank = var.type.shape, len(space)
    real = [d for d, a in enumerate(at) if a != NONE]
    order = tuple(sorted(real, key=lambda d: at[d]))
    axes = tuple(at[d] for d in order)
    wanted = form(axes, space)
    if list(order) == real:
        return Param(name, var, axes, None, None if shape == wanted else wanted)
    full = (*(d for d in range(len(shape)) if d not in real), *order)
    same = len(full) == rank and tuple(shape[d] for d in full) == wanted
    return Param(name, var, axes, full, None if same else wanted)


def form(axes: Dims, space: Sequence[int]) -> Dims:
    """The shape of an array that has these axes of the space."""
    return tuple(
        space[a] if a in axes else 1 for a in range(min(axes, default=len(space)), len(space))
    )


def whole_axes(region: Region) -> frozenset[int]:
    """The axes over which a reduction is complete within each block."""
    read = {a for eqn in region.graph.eqns for a in eqn.inputs}
    found: set[int] = set()
    for eqn, at in zip(region.graph.eqns, region.axes, strict=True):
        if isinstance(eqn.op, ArgReduce) or (isinstance(eqn.op, Reduce) and eqn.outs[0] in read):
            found.update(at[i] for i in folded_axes(eqn.op))
    return frozenset(found - {NONE})


def widest(region: Region) -> int:
    """The bytes of the widest number that a region computes."""
    sizes = [accumulator(v.type.dtype).itemsize for e in region.graph.eqns for v in e.outs]
    return max([4, *sizes])


@cache
def safe(name: str) -> str:
    """A name that neither Python nor NumPy has a meaning for.

    >>> safe("h"), safe("is"), safe("add")
    ('h', 'is_', 'add_')
    """
    taken = keyword.iskeyword(name) or name in vars(builtins) or callable(vars(np).get(name))
    return f"{name}_" if taken else name
