"""Sums at indices by blocks or by exact atomics, and what kernels that write at indices share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT64, HALF, accumulator
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.axes import merged, strides_of
from ge2.codegen.layout import windowed
from ge2.codegen.text import Operand, Text, guard, whole
from ge2.ir import ArrayType
from ge2.ops.index import Indexed, Scatter, ScatterAdd, ScatterReduce
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import HELD, SUFFIX, expression
from ge2.targets.cuda.kernels.gather import Rows, nowhere
from ge2.targets.cuda.kernels.generated import Cuda, copying, filling
from ge2.targets.cuda.kernels.moves import Elements, Grid, Spread, added, lettered
from ge2.targets.cuda.limits import Chip

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
    indices: tuple[Text, ...] = ()
    others: tuple[Text, ...] = ()  # what index `k` names
    alike: str = ""
    unlike: str = ""
    i: str = ""
    count: str = ""
    place: str = ""
    split: tuple[Text, ...] = ()
    more: tuple[Text, ...] = ()
    chunks: str = ""
    clear: tuple[Text, ...] = ()
    some: str = ""  # the type of what is read of an update
    reads: tuple[Text, ...] = ()


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
        line = Text(f"atomicMax(&last[{rows.place(grid)}], {self.source(grid)} + 1);")
        self.add(
            grid,
            "last update",
            Elements(spread, (*indices, line)),
            rows.count,
            "which update of each place is the last, counted from 1",
        )
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
        several = "" if count == 1 else f"there are {count} updates"
        many = "" if writes.few else f"{count} updates are not compared each with all others"
        return (
            Variant("the only update", lambda w: w.moved(w.rows.grid()), several),
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


def merge(op: ScatterReduce, a: str, b: str, dtype: np.dtype) -> str:
    """Two elements of one place as one."""
    held = accumulator(dtype)
    return expression(op.merge, [a, b], held, held)


# -------- Sums at indices in CUDA by atomics that round nothing, so that any order gives the same
# bits.
# Three kernels after one that clears: the largest exponent among the updates of each element of the
# result; each update added in parts that are multiples of a unit which follows from it
# (`exact.cuh`); what is there and the sum of the parts, rounded once. Elements that many updates
# meet at have copies of their sums, which blocks take in turn.


WHERE = "defgh"  # letters of the indexed axes
DOUBLE, INT, WORD = FLOAT64, np.dtype(np.int32), np.dtype(np.int64)


def unserved(writes: Writes) -> str:
    """The reason why sums at indices are not worth arrays of all elements of the result; "" if they
    are.
    """
    rows, tuning, dtype = writes.rows, writes.chip.tuning.scatters, writes.rows.x.dtype
    if not isinstance(writes.op, ScatterAdd):
        return "an extreme is no sum"
    if dtype.kind not in "fc" and dtype not in HALF:
        return f"{dtype.name} is no floating point number"
    if rows.count < tuning.unordered:
        return f"there are {rows.count} updates, fewer than {tuning.unordered}"
    if rows.count * rows.length > 1 << tuning.bits:
        return f"more than 2^{tuning.bits} elements are added"
    if rows.length > tuning.short:
        return f"rows have {rows.length} elements, more than {tuning.short}"
    return "" if rows.places <= rows.count * tuning.sparse else "updates are few for the places"


class Cells:
    """The sums of a result: one for each element, two for one that is complex."""

    def __init__(self, writes: Writes) -> None:
        self.writes, self.rows, self.dtype = writes, writes.rows, writes.dtype
        held = accumulator(self.dtype)
        self.parts = (".re", ".im") if held in COMPLEX else ("",)
        self.double = held.itemsize // len(self.parts) == DOUBLE.itemsize
        self.cells = self.rows.places * self.rows.length * len(self.parts)

    def begun(self, grid: Grid) -> list[Text]:
        """Statements: an update, and the number of the element that it is for."""
        rows = self.rows
        update = grid.element("updates", rows.of_y, self.dtype, rows.in_y(grid, "updates"))
        indices, cell = rows.wrapped(grid), rows.place(grid)
        for letter, n in zip(rows.u, rows.along, strict=True):
            size = grid.size(f"n_{letter}", n)
            cell = f"{cell if ' ' not in cell else f'({cell})'} * {size} + {letter}"
        return [
            *indices,
            Text(f"const {grid.whole} cell = {cell};"),
            Text(f"const {HELD[self.dtype]} update = {loaded(update, self.dtype)};"),
        ]

    def of_result(self, grid: Grid) -> tuple[Spread, str]:
        """A thread for each element of the result, and where that is."""
        rows = self.rows
        sizes, steps = merged(rows.sizes, rows.steps)
        letters = lettered(WHERE, len(sizes))
        spread = grid.spread([*letters, *rows.u], [*sizes, *rows.along])
        to = added(grid.place("x", letters, steps[0]), grid.place("x", rows.u, rows.x_along))
        return spread if spread.number else replace(spread, number="p", count="1"), to

    def numbered(self, cell: str, n: int) -> str:
        """The number of the sum of part `n` of an element."""
        if len(self.parts) == 1:
            return cell
        return f"{cell} * 2 + {n}" if n else f"{cell} * 2"

    def stored(self, text: str) -> str:
        """A double as an element of the result, or as a part of one."""
        if self.dtype in HALF:
            return f"ge2_cast_f64_{SUFFIX[self.dtype]}({text})"
        return text if self.double else f"(float)({text})"


@final
class ExactSums(Cells):
    """The kernels that add updates by atomics."""

    def __init__(self, writes: Writes) -> None:
        super().__init__(writes)
        self.folds = 2 if self.double else 1
        self.bits = max((self.rows.count - 1).bit_length(), 2)
        self.copies = self.copied()
        count = self.copies * self.cells * self.folds
        self.words = writes.temp(count + -(-self.cells // 2), WORD)
        self.tops = replace(self.words, offset=2 * count)

    def copied(self) -> int:
        """Copies of the sums: so many that few updates meet, and that most of them take some."""
        tuning, updates = self.writes.chip.tuning.scatters, self.rows.count * self.rows.length
        most = min(tuning.addresses // self.cells, updates // (self.cells * tuning.meeting))
        return 1 << (max(min(most, tuning.copies), 1).bit_length() - 1)

    def add(self) -> None:
        words = self.writes.temps[self.words.index] // WORD.itemsize
        clear = filling(ArrayType((words,), WORD), None, self.words, self.writes.chip)
        self.writes.kernels += clear.kernels
        self.note()
        self.collect()
        self.finish()

    def note(self) -> None:
        grid = self.rows.grid()
        begin = self.begun(grid)
        grid.result("tops", self.tops, INT)
        self.each(grid, "exponent", begin, "ge2_exact_note(tops + {cell}, {x});")

    def collect(self) -> None:
        grid = self.rows.grid()
        begin = self.begun(grid)
        grid.array("tops", self.tops, INT)
        grid.result("sums", self.words, DOUBLE)
        bits, folds = grid.size("bits", self.bits), self.fixed(grid)
        copies, cells = grid.size("copies", self.copies), grid.size("cells", self.cells)
        copy = Text(f"const {grid.whole} copy = blockIdx.x % {copies} * {cells};")
        to = f"sums + (copy + {{cell}}) * {folds}, tops[{{cell}}]"
        line = f"ge2_exact_add<{folds}>({to}, {bits}, {{x}});"
        self.each(grid, "exact sum", [*begin, copy], line)

    def finish(self) -> None:
        """The sums where an update was."""
        rows, grid, dtype = self.rows, self.rows.grid(), self.dtype
        spread, to = self.of_result(grid)
        grid.array("tops", self.tops, INT)
        grid.array("sums", self.words, DOUBLE)
        folds, copies = self.fixed(grid), grid.size("copies", self.copies)
        cells = grid.size("cells", self.cells)
        grid.result("x", rows.of_x, dtype)
        there = loaded(f"x[{to}]", dtype)
        lines: list[Text] = []
        for n, part in enumerate(self.parts):
            cell = self.numbered(spread.number, n)
            at = f"({cell})" if " " in cell else cell
            apart = f"{copies}, {cells} * {folds}"
            total = f"ge2_exact_total<{folds}>(sums + {at} * {folds}, tops[{cell}], {apart})"
            line = f"x[{to}]{part} = {self.stored(f'{there}{part} + {total}')};"
            lines.append(guard(f"tops[{cell}]", [Text(line)]))
        what = "the sums of each element"
        threads = self.rows.places * self.rows.length
        self.writes.add(grid, "finish", Elements(spread, tuple(lines)), threads, what)

    # -- one update

    def each(self, grid: Grid, kind: str, begin: Sequence[Text], line: str) -> None:
        """Does something with each update, with both parts of one that is complex."""
        rows = self.rows
        lines = [
            Text(line.format(cell=self.numbered("cell", n), x=f"update{part}"))
            for n, part in enumerate(self.parts)
        ]
        view = Elements(rows.threads(grid, 1), (*begin, *lines))
        self.writes.add(grid, kind, view, rows.count * rows.length, f"{kind} of each element")

    def fixed(self, grid: Grid) -> str:
        grid.fixed.append(Fixed("FOLDS", self.folds, "parts that an update is cut into"))
        return "FOLDS"


# -------- Sums at indices in CUDA by blocks that have all sums, or a range of them, in shared
# memory.
# Atomics there round nothing (`fixed.cuh`), and are many times as fast as those of global memory
# where updates meet. Each block leaves its sums, rounded once, and a second kernel adds those of
# all blocks in their order to what is there; sums of whole numbers are added to the result as they
# are.


COLUMNS, MERGING = 32, 256  # elements that a block merges side by side, and its threads


@final
@record
class Cell:
    """The number of an update's sum, or of that of one part of it, and a statement for where it is
    in the block.
    """

    number: str
    done: Text


@final
@record
class Collecting:
    """The view that `templates/cuda/scatter_sums/blocks.cu.jinja` prints."""

    spread: Spread
    held: str
    once: bool
    update: tuple[Text, ...]
    notes: tuple[Cell, ...]
    adds: tuple[Cell, ...]
    store: tuple[Text, ...]
    whole: str  # the type of sums that are whole numbers; "" of floats


@final
@record
class Merging:
    """The view that `templates/cuda/scatter_sums/merge.cu.jinja` prints."""

    spread: Spread
    sums: tuple[tuple[str, str], ...]
    store: tuple[Text, ...]


@final
class BlockSums(Cells):
    """The kernels, `ranges` of the sums of which each has blocks of its own; `fresh`: there is
    nothing before the updates, so sums of floats are written, and not added.
    """

    def __init__(self, writes: Writes, fresh: bool = False) -> None:
        super().__init__(writes)
        self.fresh = fresh
        chip, tuning = writes.chip, writes.chip.tuning.scatters
        self.floats = self.dtype.kind in "fc" or self.dtype in HALF
        wide = self.double if self.floats else self.dtype.itemsize > 4
        self.words = 1 + wide + self.floats
        room = chip.most // ((self.words + self.floats) * 4)
        self.count = self.rows.count * self.rows.length
        # sums that blocks leave take as long as updates that they go through in vain
        ratio = tuning.left * self.cells / max(self.count, 1)
        even = round(math.sqrt(chip.multiprocessors * ratio))
        self.ranges = max(-(-self.cells // room), min(even, tuning.ranges))
        self.range = -(-self.cells // self.ranges)
        self.each = max(tuning.shared_run, -(-self.count // self.most))
        self.chunks = -(-self.count // self.each)
        self.bits = max((self.each - 1).bit_length(), 2)

    @property
    def most(self) -> int:
        """Blocks of a range at most: a multiprocessor has one, and each leaves all of its sums."""
        return max(1, self.writes.chip.multiprocessors // self.ranges)

    @property
    def at_once(self) -> int:
        """Updates that each thread of a block has in registers, between the two times that updates
        of floats are gone through; 0 if they are too many.
        """
        tuning = self.writes.chip.tuning.scatters
        size = INT.itemsize * len(self.parts) + accumulator(self.dtype).itemsize
        found = -(-self.each // tuning.shared_block)
        return found if self.floats and found * size <= tuning.shared_held else 0

    def unserved(self) -> str:
        """The reason why sums are not worth their room in each block; "" if they are."""
        tuning, dtype = self.writes.chip.tuning.scatters, self.dtype
        if not isinstance(self.writes.op, ScatterAdd):
            return "an extreme is no sum"
        if not self.floats and (dtype.kind not in "iu" or dtype.itemsize < 4):
            return f"no sums of {dtype.name} are kept there"
        if self.rows.count < tuning.unordered:
            return f"there are {self.rows.count} updates, fewer than {tuning.unordered}"
        if self.ranges > tuning.ranges:
            return f"the sums are {self.ranges} times what a block has room for"
        if not self.floats and self.cells * self.most * tuning.busy > self.count:
            return "updates are few for the places"
        few = self.count * tuning.sparse < self.cells
        return "updates are few for the places" if few else ""

    def add(self) -> None:
        temp = self.writes.temp(self.chunks * self.cells, FLOAT64) if self.floats else None
        tuning = self.writes.chip.tuning.scatters
        grid = Grid(self.rows.far, tuning.shared_block)
        grid.fixed += [
            Fixed("BLOCK", grid.block, "threads"),
            Fixed("SOME", self.at_once or tuning.shared_some, "updates of a thread at once"),
            Fixed("WORDS", self.words, "of a sum, of 32 bits"),
            Fixed("ROOM", self.words + self.floats, "words that a sum takes"),
        ]
        spread = self.rows.threads(grid, 1)
        for name, size in (("range", self.range), ("each", self.each), ("cells", self.cells)):
            grid.size(name, size)
        update, left = tuple(self.begun(grid)), self.left(grid)
        notes = self.at_each("ge2_fixed_note(tops + mine, some[k]{part});") if self.floats else ()
        more = f"ge2_fixed_{'add' if self.floats else 'more'}<WORDS>(sums + mine * WORDS, "
        value = (
            f"tops[mine], {grid.size('bits', self.bits)}, some[k]"
            if self.floats
            else "(uint64_t)some[k]"
        )
        adds = self.at_each(f"{more}{value}{{part}});")
        if temp is not None:
            grid.result("parts", temp, FLOAT64)
        view = Collecting(
            spread, HELD[self.dtype], self.at_once > 0, update, notes, adds, left, self.word
        )
        what = "the updates of a block, added up in shared memory"
        self.writes.add(
            grid, "block sum", view, self.chunks * grid.block, what, "scatter_sums/blocks"
        )
        shared = self.range * (self.words + self.floats) * 4
        kernel = replace(self.writes.kernels[-1], grid=(self.chunks, self.ranges), shared=shared)
        self.writes.kernels[-1] = kernel
        if temp is not None:
            self.merge(temp)

    def at_each(self, line: str) -> tuple[Cell, ...]:
        """The statement for an update, or each part of it, if its sum is in this block."""
        return tuple(
            Cell(self.numbered("cells_of[k]", n), Text(line.format(part=part)))
            for n, part in enumerate(self.parts)
        )

    def left(self, grid: Grid) -> tuple[Text, ...]:
        """Returns what is left of sum `mine` of a block."""
        if self.floats:
            bits = grid.size("bits", self.bits)
            total = f"ge2_fixed_total<WORDS>(sums + mine * WORDS, tops[mine], {bits})"
            return (Text(f"parts[blockIdx.x * cells + lowest + mine] = {total};"),)
        spread, to = self.of_result(grid)
        grid.result("x", self.rows.of_x, self.dtype)
        place = Text(f"const {grid.whole} {spread.number} = lowest + mine;")
        return (place, *spread.places, Text(f"{self.word} *const there = ({self.word} *)&x[{to}];"))

    @property
    def word(self) -> str:
        """The type of sums that are whole numbers; "" of floats."""
        if self.floats:
            return ""
        return "unsigned long long" if self.words > 1 else "unsigned int"

    def merge(self, parts: Operand) -> None:
        """The sum of what is there and of what the blocks have left."""
        rows, dtype, grid = self.rows, self.dtype, Grid(self.rows.far, MERGING)
        grid.fixed += [
            Fixed("COLUMNS", COLUMNS, "elements side by side in a block"),
            Fixed("ROWS", MERGING // COLUMNS, "threads that share the parts of one"),
        ]
        spread, to = self.of_result(grid)
        grid.array("parts", parts, FLOAT64)
        grid.size("parts_left", self.chunks)
        grid.size("cells", self.cells)
        grid.result("x", rows.of_x, dtype)
        there = loaded(f"x[{to}]", dtype)
        sums, lines = [], []
        for n, part in enumerate(self.parts):
            sums.append((f"sum{n}", self.numbered(spread.number, n)))
            before = "0.0" if self.fresh else f"{there}{part}"
            total = self.stored(f"{before} + ge2_fixed_value(sum{n})")
            lines.append(Text(f"x[{to}]{part} = {total};"))
        view = Merging(spread, tuple(sums), tuple(lines))
        threads = -(-rows.places * rows.length // COLUMNS) * MERGING
        what = "what blocks have left for each element"
        self.writes.add(grid, "merged sum", view, threads, what, "scatter_sums/merge")
