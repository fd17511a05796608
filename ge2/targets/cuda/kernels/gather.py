"""Reading and writing rows at indices in CUDA, and what kernels that sum at indices share.

Indices wrap around, as CuPy's, and none reaches foreign memory. Threads lie along what is
contiguous in the result, with up to 16 bytes each where rows allow.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, HALF, accumulator
from ge2.base.record import record
from ge2.choice import Problem, Variant, described
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import merged, windowed
from ge2.codegen.text import Operand, Text, whole
from ge2.ir import ArrayType, Dims
from ge2.ops.index import (
    Gather,
    Indexed,
    RowSums,
    Scatter,
    ScatterAdd,
    ScatterMax,
    ScatterMin,
    ScatterReduce,
    spans,
)
from ge2.ops.reduce import kept
from ge2.passes.take_to_mask import Index
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.region import unrolled
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import HELD, STORED, SUFFIX, expression
from ge2.targets.cuda.kernels import Cuda, Operands, copying, filling
from ge2.targets.cuda.kernels.moves import (
    ALONG,
    OVER,
    Elements,
    Grid,
    Spread,
    added,
    far,
    lettered,
    packed,
    product,
)
from ge2.targets.cuda.limits import WARP, Chip


def index_dims(indices: Sequence[ArrayType]) -> Dims:
    return next((t.shape for t in indices if t.shape), ())


def nowhere(op: Indexed, x: ArrayType, indices: Sequence[ArrayType]) -> str:
    """The reason why there is no element that an index could name."""
    empty = next((a for a in op.axes if not x.shape[a]), None)
    some = math.prod(index_dims(indices))
    return (
        "" if empty is None or not some else f"axis {empty} is empty, so every index lies outside"
    )


@final
class Rows:
    """Indices, and the rows that they name of `x`, which has the indexed axes,
    and of `y`, which has not.

    `y` has the axes of the indices, then the others of `x`.
    """

    def __init__(
        self, op: Indexed, x: ArrayType, indices: Sequence[ArrayType], ins: Operands,
        of: tuple[Operand, Operand], chip: Chip,
    ) -> None:  # fmt: skip
        self.block = chip.tuning.elements.block
        self.op, self.x, self.indices, self.ins, (self.of_x, self.of_y) = op, x, indices, ins, of
        others, shape = kept(op.axes, x.ndim), index_dims(indices)
        rank, rest = len(shape), tuple(n for _, n, _ in spans(op, x.shape))
        strides = (0,) * (rank + len(rest)) if self.of_y.value else self.of_y.strides
        each = [o.strides or (0,) * rank for o in ins]
        self.over, (self.y_over, *self.strides) = merged(shape, strides[:rank], *each)
        along = tuple(self.of_x.strides[a] for a in others)
        self.along, (self.x_along, self.y_along) = merged(rest, along, strides[rank:])
        self.sizes = tuple(x.shape[a] for a in op.axes)
        self.steps = tuple(self.of_x.strides[a] for a in op.axes)
        self.i, self.u = lettered(OVER, len(self.over)), lettered(ALONG, len(self.along))
        self.count, self.length = math.prod(shape), math.prod(rest)
        self.places = math.prod(self.sizes)
        lying = [(t.shape, o.strides) for t, o in zip(indices, ins, strict=True) if t.shape]
        lying += [(x.shape, self.of_x.strides), ((*shape, *rest), strides)]
        self.far = far((self.count * self.length, self.places), *lying)

    @property
    def pack(self) -> int:
        """Neighbours along a row that lie side by side in both arrays, so that
        they may be moved at once.
        """
        if not self.along or self.x_along[-1] != 1 or self.y_along[-1] != 1:
            return 1
        strides = (*self.x_along[:-1], *self.y_along[:-1], *self.steps, *self.y_over)
        return packed(self.x.dtype, self.along[-1], *strides, self.of_x.offset, self.of_y.offset)

    def grid(self) -> Grid:
        return Grid(self.far, self.block)

    def threads(self, grid: Grid, pack: int, along_y: bool = False) -> Spread:
        """A thread for each element of each row, or each pack; side by side
        where y is, if asked.
        """
        axes = list(
            zip(
                [*self.i, *self.u],
                [*self.over, *self.along],
                self.y_over + self.y_along,
                strict=True,
            )
        )
        if along_y and pack == 1:
            axes.sort(key=lambda axis: -abs(axis[2]))
        return grid.spread([letter for letter, _, _ in axes], [n for _, n, _ in axes], pack)

    def wrapped(
        self, grid: Grid, name: str = "at", letters: Sequence[str] | None = None
    ) -> list[Text]:
        """Returns which element of each indexed axis is named, by the index at `letters`:

        `at`, or `at0`, `at1`.
        """
        lines = []
        for k, (t, operand) in enumerate(zip(self.indices, self.ins, strict=True)):
            read = grid.array(f"index{k}", operand, t.dtype)
            if not operand.value:
                place = grid.place(
                    f"index{k}", self.i if letters is None else letters, self.strides[k]
                )
                read = f"index{k}[{place}]"
            size = grid.size(f"size{k}", self.sizes[k])
            code = f"({grid.whole})ge2_index_{SUFFIX[t.dtype]}({read}, {size})"
            lines.append(Text(f"const {grid.whole} {self.at(k, name)} = {code};"))
        return lines

    def at(self, k: int, name: str = "at") -> str:
        return name if len(self.sizes) == 1 else f"{name}{k}"

    def alike(self, name: str) -> str:
        """True if an index that was wrapped under that name names the same row."""
        return " && ".join(f"{self.at(k, name)} == {self.at(k)}" for k in range(len(self.sizes)))

    def place(self, grid: Grid) -> str:
        """The number of the named place, counted in row-major order over the indexed axes."""
        text = self.at(0)
        for k in range(1, len(self.sizes)):
            text = f"{text if k == 1 else f'({text})'} * {grid.size(f'size{k}', self.sizes[k])} + {self.at(k)}"
        return text

    def in_x(self, grid: Grid) -> str:
        terms = [
            self.at(k) if step == 1 else f"{self.at(k)} * {grid.size(f'x_at{k}', step)}"
            for k, step in enumerate(self.steps)
        ]
        return added(*terms, grid.place("x", self.u, self.x_along))

    def in_y(self, grid: Grid, name: str = "y") -> str:
        return added(grid.place(name, self.i, self.y_over), grid.place(name, self.u, self.y_along))


@final
@record
class Gathering:
    """The view that `templates/cuda/gather.cu.jinja` prints."""

    spread: Spread
    indices: tuple[Text, ...]
    to: str
    source: str
    packed: bool


@final
class CudaGather(Cuda):
    name = "gather in CUDA"
    ops = (Gather,)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Gather)
        return nowhere(op, problem.inputs[0], problem.inputs[1:])

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (x, *indices) = problem.op, problem.inputs
        assert isinstance(op, Gather)
        rows = Rows(op, x, indices, ins[1:], (ins[0], outs[0]), caps.chip)
        if not rows.count * rows.length:
            return Kernels(())
        grid, pack = rows.grid(), rows.pack
        grid.array("x", ins[0], x.dtype)
        spread, named = rows.threads(grid, pack, along_y=True), tuple(rows.wrapped(grid))
        grid.result("y", outs[0], x.dtype)
        to, source = rows.in_y(grid), rows.in_x(grid)
        view = Gathering(spread, named, to, source, pack > 1)
        threads = rows.count * rows.length // pack
        return Kernels((grid.kernel("gather", described(problem), view, threads, "gather"),))


@final
class CudaIndex(Cuda):
    """Indices counted from the start of an axis, as int32."""

    name = "index in CUDA"
    ops = (Index,)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Index)
        return (
            ""
            if op.size or not problem.inputs[0].size
            else "every index lies outside of an empty axis"
        )

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ins, outs = problem.arrays
        op, (x,), (to,) = problem.op, problem.inputs, problem.outs
        assert isinstance(op, Index)
        if not x.size:
            return Kernels(())
        laid = (x.shape, ins[0].strides), (x.shape, outs[0].strides)
        grid = Grid(far((x.size, op.size), *laid), caps.chip.tuning.elements.block)
        sizes, (steps, places) = merged(x.shape, ins[0].strides, outs[0].strides)
        letters = lettered(OVER, len(sizes))
        grid.array("x", ins[0], x.dtype)
        spread = grid.spread(letters, sizes)
        grid.result("y", outs[0], to.dtype)
        wrapped = f"ge2_index_{SUFFIX[x.dtype]}(x[{grid.place('x', letters, steps)}], {grid.size('size', op.size)})"
        line = Text(f"y[{grid.place('y', letters, places)}] = (int32_t){wrapped};")
        view = Elements(spread, (line,))
        return Kernels((grid.kernel("index", described(problem), view, x.size),))


@final
@record
class SummingRows:
    """The view that `templates/cuda/scatter_sums/by_rows.cu.jinja` and `by_lines` print."""

    index: str
    held: str
    places: tuple[Text, ...]
    update: str
    place: str
    total: str
    to: str
    stored: str


@final
class CudaRowSums(Cuda):
    """The sums of lines in shared memory. A warp has a row: of lanes that name one element the first
    adds before the next. Lines that lie side by side have a thread each. So the order is that of the
    updates.
    """

    name = "row sums in CUDA"
    ops = (RowSums,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        room = caps is None or self.lines(problem, caps.chip)
        size = problem.outs[0].shape[of_lines(problem)]
        return "" if room else f"a block has no room for the sums of {size} elements"

    def lines(self, problem: Problem, chip: Chip) -> int:
        """The lines of a block: of each it has a sum for each element, and of rows a claim, too."""
        (out,), axis = problem.outs, of_lines(problem)
        held, block = accumulator(out.dtype).itemsize, chip.tuning.elements.block
        if is_row(out.shape, axis):
            return min(chip.most // max(out.shape[axis] * (held + 4), 1), block // WARP)
        room = chip.most // max(out.shape[axis] * held, 1)
        return next((n for n in (block, block // 2, block // 4, WARP) if n <= room), 0)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, (to,)), (updates, index), (out,) = problem.arrays, problem.inputs, problem.outs
        if not out.size:
            return Kernels(())
        axis, lines = of_lines(problem), self.lines(problem, caps.chip)
        held, dtype, by_rows = accumulator(out.dtype), out.dtype, is_row(out.shape, axis)
        lie = [x.strides or (0,) * len(out.shape) for x in (*ins, to)]
        rest = [n for a, n in enumerate(out.shape) if a != axis]
        steps = [tuple(s for a, s in enumerate(x) if a != axis) for x in lie]
        sizes, strides = merged(tuple(rest), *steps)
        spans = zip((updates.shape, index.shape, out.shape), lie, strict=True)
        grid = Grid(far((updates.size, out.size), *spans), lines * WARP if by_rows else lines)
        grid.fixed.append(Fixed("LINES", lines, "of a block"))
        letters, names = lettered(OVER, len(sizes)), ("updates", "index", "y")
        at = [
            added(grid.place(name, letters, s), grid.place(f"{name}_along", [n], (x[axis],)))
            for name, s, x, n in zip(names, strides, lie, ("k", "k", "w"), strict=True)
        ]
        update = loaded(grid.element("updates", ins[0], dtype, at[0]), dtype)
        named = grid.element("index", ins[1], index.dtype, at[1])
        grid.result("y", to, dtype)
        count, size = out.size // out.shape[axis], grid.size("size", out.shape[axis])
        for name, n in (("n", count), ("terms", updates.shape[axis])):
            grid.size(name, n)
        extents = grid.sizes(letters, sizes) if len(letters) > 1 else [""]
        split = grid.split("line", letters, extents) if letters else ()
        sum_of = "sums[place]" if by_rows else "sums[place * LINES]"
        total = expression(ScatterAdd((0,)).merge, [sum_of, "update"], held, held)
        left = stored("sums[w]" if by_rows else "sums[w * LINES]", dtype)
        place = f"(int)ge2_index_{SUFFIX[index.dtype]}({named}, {size})"
        view = SummingRows(grid.whole, HELD[held], tuple(split), update, place, total, at[2], left)
        kind, blocks = "by_rows" if by_rows else "by_lines", -(-count // lines)
        kernel = grid.kernel(
            "row sum", described(problem), view, blocks * grid.block, f"scatter_sums/{kind}"
        )
        shared = lines * out.shape[axis] * (held.itemsize + 4 * by_rows)
        return Kernels((replace(kernel, shared=shared),))


def of_lines(problem: Problem) -> int:
    assert isinstance(problem.op, RowSums)
    return problem.op.axis


def is_row(shape: Dims, axis: int) -> bool:
    """True of lines whose elements lie side by side, and not the lines."""
    return math.prod(shape[axis + 1 :]) == 1


# -------- What kernels that write at indices share: those so far, their arrays, and elements as
# they are added.


@final
@record
class Later:
    """The search of an update for a later one of its place."""

    i: str  # the place of the update along the indices
    count: str
    others: tuple[Text, ...]  # what index `k` names
    alike: str  # whether both name one place


@final
@record
class Scattering:
    """The view that `templates/cuda/scatter.cu.jinja` prints."""

    spread: Spread
    indices: tuple[Text, ...]
    later: Later | None
    last: tuple[str, str] | None  # the number of the place, and of the update
    to: str
    source: str
    update: str
    packed: bool


@final
@record
class Summing:
    """The view that the templates in `templates/cuda/scatter_sums` print; those of one of them are
    last.
    """

    spread: Spread
    begin: tuple[Text, ...]
    updates: tuple[Text, ...]
    store: tuple[Text, ...]
    packed: bool
    held: str = ""  # the type of a sum
    indices: tuple[Text, ...] = ()
    others: tuple[Text, ...] = ()  # what index `k` names
    alike: str = ""
    unlike: str = ""
    i: str = ""
    count: str = ""
    place: str = ""
    neutral: tuple[Text, ...] = ()
    part: tuple[Text, ...] = ()
    head: tuple[Text, ...] = ()
    clear: tuple[Text, ...] = ()
    some: str = ""  # the type of what is read of an update
    reads: tuple[Text, ...] = ()
    factors: tuple[str, ...] = ()  # arrays of what updates are multiplied by as they are added


@final
class Writes:
    """The kernels that updates are written by, and the arrays they have for themselves."""

    def __init__(self, problem: Problem, rows: Rows, updates: ArrayType, chip: Chip) -> None:
        self.problem, self.rows, self.updates, self.chip = problem, rows, updates, chip
        self.op = rows.op
        self.dtype = rows.x.dtype
        self.number = np.dtype(np.int64 if rows.far else np.int32)  # of an update, or of a place
        self.kernels: list[CudaKernel] = []
        self.temps: list[int] = []

    @property
    def few(self) -> bool:
        """True if each index may be compared with all others: they lie along
        an axis, in a cache.
        """
        return self.rows.count <= self.chip.tuning.scatters.few and len(self.rows.i) == 1

    def done(self) -> Kernels:
        return Kernels(tuple(self.kernels), tuple(self.temps))

    def temp(self, count: int, dtype: np.dtype) -> Operand:
        self.temps.append(count * dtype.itemsize)
        return whole("temp", len(self.temps) - 1, (count,))

    def add(
        self, grid: Grid, kind: str, view: Any, threads: int, what: str = "", template: str = "elements"
    ) -> None:  # fmt: skip
        graph = described(self.problem) + (f"\n{what}" if what else "")
        self.kernels.append(grid.kernel(kind, graph, view, threads, template))

    # -- one element of the result a thread

    def moved(
        self, grid: Grid, later: Later | None = None, last: tuple[str, str] | None = None
    ) -> None:
        """Each update takes its place, if it is the last of it."""
        rows = self.rows
        pack = 1 if rows.of_y.value else rows.pack
        place = rows.in_y(grid, "updates")
        update = grid.element("updates", rows.of_y, self.dtype, place)
        spread, indices = rows.threads(grid, pack), tuple(rows.wrapped(grid))
        grid.result("x", rows.of_x, self.dtype)
        to, threads = rows.in_x(grid), rows.count * rows.length // pack
        view = Scattering(spread, indices, later, last, to, place, update, pack > 1)
        self.add(grid, self.problem.op.name, view, threads, template="scatter")

    def last(self) -> Operand:
        """The number of the last update of each place, counted from 1; 0 where there is none."""
        rows, grid = self.rows, self.rows.grid()
        to = ArrayType((rows.places,), self.number)
        found = self.temp(rows.places, self.number)
        self.kernels += filling(to, None, found, self.chip).kernels
        spread, indices = grid.spread(rows.i, rows.over), rows.wrapped(grid)
        grid.result("last", found, self.number)
        place, count = rows.place(grid), product(grid.sizes(rows.i, rows.over))
        line = Text(f"ge2_last<{grid.whole}>(last, {place}, {self.source(grid)}, turn, {count});")
        what = "which update of each place is the last, counted from 1"
        view = Elements(spread, (*indices, line))
        self.add(grid, "last update", view, rows.count, what, "last_update")
        return found

    def source(self, grid: Grid) -> str:
        """The number of an update, from where it is along the axes of the indices."""
        rows, text = self.rows, ""
        for letter, n in zip(rows.i, rows.over, strict=True):
            text = f"({text}) * {grid.size(f'n_{letter}', n)} + {letter}" if text else letter
        return text or "0"


class CudaWriting(Cuda):
    """A copy of `x`, unless the result lies where it is, then the updates."""

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Scatter | ScatterReduce)
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        writes = writes_of(problem, caps.chip)
        return self.ways(writes) if writes.rows.count * writes.rows.length else (NONE,)

    @abstractmethod
    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        """Ways to write updates, of which there are some; the plan of each adds its kernels."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip, x = problem.arrays, caps.chip, problem.inputs[0]
        target = replace(outs[0], strides=strides_of(x.shape))
        first = () if (0, 0) in problem.shared else copying(x, x, ins[0], target, chip).kernels
        writes = writes_of(problem, chip)
        variant.plan(writes)
        found = writes.done()
        return Kernels((*first, *found.kernels), found.temps)


NONE: Final = Variant("no updates", lambda writes: None)


def writes_of(problem: Problem, chip: Chip) -> Writes:
    """The updates, of rows of the part of the result that is written to."""
    (ins, outs), op, (x, updates, *indices) = problem.arrays, problem.op, problem.inputs
    assert isinstance(op, Indexed)
    part = windowed(op, x.shape, replace(outs[0], strides=strides_of(x.shape)))
    rows = Rows(op, x, indices, ins[2:], (part, ins[1]), chip)
    return Writes(problem, rows, updates, chip)


@final
class CudaScatter(CudaWriting):
    name = "scatter in CUDA"
    ops = (Scatter,)

    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        count = writes.rows.count
        assert isinstance(writes.op, Scatter)
        several = "" if count == 1 else f"there are {count} updates"
        alike = "" if writes.op.unique else "indices may name a place twice"
        many = "" if writes.few else f"{count} updates are not compared each with all others"
        return (
            Variant("the only update", lambda w: w.moved(w.rows.grid()), several),
            Variant("the only one of each place", lambda w: w.moved(w.rows.grid()), alike),
            Variant("each that finds no later one", self.compared, many),
            Variant("the last of each place", self.found),
        )

    def compared(self, writes: Writes) -> None:
        rows, grid = writes.rows, writes.rows.grid()
        (i,) = rows.i
        count, others = grid.size(f"n_{i}", rows.count), rows.wrapped(grid, "other", ["k"])
        writes.moved(grid, Later(i, count, tuple(others), rows.alike("other")))

    def found(self, writes: Writes) -> None:
        grid, last = writes.rows.grid(), writes.last()
        grid.array("last", last, writes.number)
        writes.moved(grid, last=(writes.rows.place(grid), writes.source(grid)))


def loaded(text: str, dtype: np.dtype) -> str:
    """An element as it is merged with another."""
    return f"ge2_cast_{SUFFIX[dtype]}_f32({text})" if dtype in HALF else text


def stored(text: str, dtype: np.dtype) -> str:
    return f"ge2_cast_f32_{SUFFIX[dtype]}({text})" if dtype in HALF else text


def read_type(dtype: np.dtype, pack: int) -> str:
    """The type of what a thread reads of an update: an element, or neighbours that are a pack."""
    return f"ge2_some<{STORED[dtype]}, PACK>" if pack > 1 else STORED[dtype]


def merge(op: ScatterReduce, a: str, b: str, dtype: np.dtype) -> str:
    """Two elements of one place as one."""
    held = accumulator(dtype)
    return expression(op.merge, [a, b], held, held)


# -------- Elements that one atomic takes in, in any order.


ATOMIC = {  # whole numbers that one instruction takes in
    np.dtype(t): f"unsigned {'int' if np.dtype(t).itemsize == 4 else 'long long'}"
    for t in (np.int32, np.uint32, np.int64, np.uint64)
}
# floats whose extremes are those of their bits: integers of their size, what gives the bits, and
# those of infinity (`extreme.cuh`)
FLOATS = {
    FLOAT32: ("int", "unsigned int", "ge2_bits_f32", "0x7f800000u"),
    FLOAT64: (
        "long long", "unsigned long long", "(unsigned long long)ge2_bits_f64", "0x7ff0000000000000ull",
    ),
}  # fmt: skip
CALLS = {ScatterAdd: "atomicAdd", ScatterMax: "atomicMax", ScatterMin: "atomicMin"}


def taken_in(op: ScatterReduce, dtype: np.dtype, to: str, update: str, pack: int) -> list[Text]:
    """The statements that take in an update, or PACK neighbours of a row, where they belong."""
    v, largest = " + v" if pack > 1 else "", str(isinstance(op, ScatterMax)).lower()
    if dtype in FLOATS:
        signed, word, bits, infinity = FLOATS[dtype]
        at = f"({word} *)(x + {to})"
        given = f"{at}{v}, {bits}({update}), {infinity}, there.at[{'v' if v else 0}]"
        code = f"ge2_extreme<{largest}, {signed}, {word}>({given});"
        lines = [Text(f"const auto there = ge2_extremes_at<{'PACK' if v else 1}>({at});")]
    else:  # sums of signed numbers wrap as unsigned ones
        signs, lines = dtype.kind == "i" and not isinstance(op, ScatterAdd), []
        word = ATOMIC[dtype].removeprefix("unsigned ") if signs else ATOMIC[dtype]
        code = f"{CALLS[type(op)]}(({word} *)(x + {to}{v}), ({word}){update});"
    return [*lines, unrolled("v", "PACK", [Text(code)]) if v else Text(code)]


def many_extremes(writes: Writes) -> bool:
    """True of extremes of floats that are worth more than the signs of zeros: of zeros that meet at
    a place the larger or smaller is taken, not the first.
    """
    many = writes.rows.count >= writes.chip.tuning.scatters.unordered
    return many and writes.dtype in FLOATS and isinstance(writes.op, ScatterMax | ScatterMin)
