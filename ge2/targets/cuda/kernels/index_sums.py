"""Sums at indices that atomics add without rounding, of global memory or of that of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT64, HALF, accumulator
from ge2.base.record import record
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import merged
from ge2.codegen.text import Operand, Text, guard
from ge2.ir import ArrayType
from ge2.ops.index import ScatterAdd
from ge2.targets.cuda.emit import Fixed
from ge2.targets.cuda.emit.region import unrolled
from ge2.targets.cuda.emit.words import HELD, STORED, SUFFIX, number
from ge2.targets.cuda.kernels import filling
from ge2.targets.cuda.kernels.gather import Writes, loaded, merge, read_type
from ge2.targets.cuda.kernels.moves import Elements, Grid, Spread, added, lettered

# -------- Sums at indices in CUDA by atomics that round nothing, so that any order gives the same
# bits.
# Three kernels after one that clears: the largest exponent among the updates of each element of the
# result; each update added in parts that are multiples of a unit which follows from it
# (`exact.cuh`); what is there and the sum of the parts, rounded once. Elements that many updates
# meet at have copies of their sums, which blocks take in turn.
# Of many updates in float32 or less the range of all exponents is looked at first: where two parts
# of one unit for all have every digit of each update, no element needs an exponent of its own, and
# its kernel ends at once.


WHERE = "def"  # letters of the indexed axes
DOUBLE, INT, WORD = FLOAT64, np.dtype(np.int32), np.dtype(np.int64)
# threads of a block that looks at the range of exponents, updates of each at least, and blocks of a
# multiprocessor: all that it has room for
LOOKING, AT_LEAST, SOME = 256, 8, 8


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
    """The sums of a result: one for each element, two for one that is complex. `fresh`: nothing is
    there before. `chunks`: the blocks that leave sums of their own.
    """

    chunks = 0

    def __init__(self, writes: Writes, fresh: bool) -> None:
        self.writes, self.rows, self.dtype, self.fresh = writes, writes.rows, writes.dtype, fresh
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


@final
@record
class Noting:
    """The view that `templates/cuda/scatter_sums/notes.cu.jinja` prints."""

    idle: str
    spread: Spread
    statements: tuple[Text, ...]


@final
class ExactSums(Cells):
    """The kernels that add updates by atomics; `fresh`: nothing is there before."""

    def __init__(self, writes: Writes, fresh: bool = False) -> None:
        super().__init__(writes, fresh)
        self.ranged = self.is_ranged()
        # One unit does not tell which elements had an update: their sums are -0.0 no more.
        self.marked = self.ranged and not fresh
        self.folds = 2 if self.double or self.ranged else 1
        self.bits = max((self.rows.count - 1).bit_length(), 2)
        self.copies = self.copied()
        count = self.copies * self.cells * self.folds
        self.words = writes.temp(count + -(-self.cells // 2) + self.ranged, WORD)
        self.tops = replace(self.words, offset=2 * count + 2 * self.ranged)
        self.range = replace(self.words, offset=2 * count)

    @property
    def seconds(self) -> float:
        """Atomics, an exponent for each place where there may be one, and what they are added to, which
        is cleared and read.
        """
        rows, tuning = self.rows, self.writes.chip.tuning.scatters
        elements = rows.count * rows.length * len(self.parts)
        atomics = elements * tuning.atomic * (2 if self.double else 1)
        places = rows.count * (tuning.place if self.ranged else tuning.noted)
        sums = 2 * self.copies * self.cells * self.folds * DOUBLE.itemsize
        return atomics + places + sums / tuning.cleared_bytes

    def is_ranged(self) -> bool:
        """True if one unit may do for all elements: updates are many numbers of up to 24 bits that lie
        one after another.
        """
        updates = self.writes.updates
        many = updates.size >= self.writes.chip.tuning.scatters.ranged
        flat = self.rows.of_y.strides == strides_of(updates.shape)
        return many and flat and not self.double and len(self.parts) == 1

    def copied(self) -> int:
        """Copies of the sums: so many that few updates meet, and that most of them take some."""
        tuning, updates = self.writes.chip.tuning.scatters, self.rows.count * self.rows.length
        most = min(tuning.addresses // self.cells, updates // (self.cells * tuning.meeting))
        return 1 << (max(min(most, tuning.copies), 1).bit_length() - 1)

    def add(self) -> None:
        words = self.writes.temps[self.words.index] // WORD.itemsize
        empty = np.iinfo(WORD).min if self.marked else 0
        clear = filling(ArrayType((words,), WORD), None, self.words, self.writes.chip, empty)
        self.writes.kernels += clear.kernels
        if self.ranged:
            self.look()
        self.note()
        self.collect()
        self.finish()

    def look(self) -> None:
        """The range of the exponents of all updates, by blocks that go through a part of them each."""
        writes, grid = self.writes, Grid(self.rows.far, LOOKING)
        updates, count = writes.updates, grid.size("n", writes.updates.size)
        grid.array("updates", self.rows.of_y, updates.dtype)
        grid.result("range", self.range, INT)
        number = f"(double){loaded('x', updates.dtype)}"
        line = f"[]({STORED[updates.dtype]} x) {{ return {number}; }}"
        this = f"({grid.whole})blockIdx.x, ({grid.whole})gridDim.x"  # which a bundle has by member
        text = Text(f"ge2_exact_range(updates, {count}, range, {this}, {line});")
        blocks = min(-(-updates.size // (LOOKING * AT_LEAST)), SOME * writes.chip.multiprocessors)
        what = "the range of the exponents of all updates"
        writes.add(grid, "exponents", (text,), blocks * LOOKING, what)

    def fits(self, grid: Grid) -> str:
        """A condition in CUDA: the updates have a range of exponents for which all elements share a unit."""
        grid.array("range", self.range, INT)
        return f"ge2_exact_fits(range, {grid.size('bits', self.bits)})"

    def one(self, grid: Grid) -> list[Text]:
        """A statement: whether one unit does for all, where it may."""
        return [Text(f"const bool one = {self.fits(grid)};")] if self.ranged else []

    def top(self, cell: str) -> str:
        """The exponent that the unit of an element follows from."""
        return f"one ? range[0] : tops[{cell}]" if self.ranged else f"tops[{cell}]"

    def note(self) -> None:
        grid = self.rows.grid()
        begin, noted = self.begun(grid), "ge2_exact_note(tops + {cell}, {x});"
        grid.result("tops", self.tops, INT)
        if not self.ranged:
            self.each(grid, "exponent", begin, noted)
            return
        rows, (note,) = self.rows, self.of_each(noted)
        view = Noting(self.fits(grid), rows.threads(grid, 1), (*begin, note))
        blocks = SOME * self.writes.chip.multiprocessors
        threads = min(rows.count * rows.length, blocks * grid.block)
        what = "exponent of each element, where one unit does not do"
        self.writes.add(grid, "exponent", view, threads, what, "scatter_sums/notes")

    def collect(self) -> None:
        grid = self.rows.grid()
        begin = [*self.one(grid), *self.begun(grid)]
        grid.array("tops", self.tops, INT)
        grid.result("sums", self.words, DOUBLE)
        bits, folds = grid.size("bits", self.bits), self.fixed(grid)
        copies, cells = grid.size("copies", self.copies), grid.size("cells", self.cells)
        copy = Text(f"const {grid.whole} copy = blockIdx.x % {copies} * {cells};")
        to = f"sums + (copy + {{cell}}) * {folds}, {self.top('{cell}')}"
        kind = f"{folds}, true" if self.marked else folds
        line = f"ge2_exact_add<{kind}>({to}, {bits}, {{x}});"
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
        lines = self.one(grid)
        for n, part in enumerate(self.parts):
            cell = self.numbered(spread.number, n)
            at = f"({cell})" if " " in cell else cell
            apart = f"{copies}, {cells} * {folds}"
            total = f"ge2_exact_total<{folds}>(sums + {at} * {folds}, {self.top(cell)}, {apart})"
            if self.fresh:
                lines.append(Text(f"x[{to}]{part} = {self.stored(total)};"))
                continue
            some = f"tops[{cell}]"
            if self.marked:
                lines.append(Text(f"const double sum = {total};"))
                some, total = "__double_as_longlong(sum) != INT64_MIN", "sum"
            line = f"x[{to}]{part} = {self.stored(f'{there}{part} + {total}')};"
            lines.append(guard(some, [Text(line)]))
        what = "the sums of each element"
        threads = self.rows.places * self.rows.length
        self.writes.add(grid, "finish", Elements(spread, tuple(lines)), threads, what)

    # -- one update

    def each(self, grid: Grid, kind: str, begin: Sequence[Text], line: str) -> None:
        """Does something with each update, with both parts of one that is complex."""
        rows = self.rows
        view = Elements(rows.threads(grid, 1), (*begin, *self.of_each(line)))
        self.writes.add(grid, kind, view, rows.count * rows.length, f"{kind} of each element")

    def of_each(self, line: str) -> list[Text]:
        """A statement for each part of an update; zeros, as masks make them, add nothing to zeros."""
        found = list[Text]()
        for n, x in enumerate(f"update{part}" for part in self.parts):
            code = line.format(cell=self.numbered("cell", n), x=x)
            found.append(guard(f"{x} != 0", code) if self.fresh else Text(code))
        return found

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
        super().__init__(writes, fresh)
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
    def seconds(self) -> float:
        """Each range goes through all updates."""
        return self.count * len(self.parts) * self.ranges * self.writes.chip.tuning.scatters.shared

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


# -------- Sums at indices in CUDA by threads that have columns of their own, in shared memory.
# Where places are few, a block has all sums several times: the threads of a lane go through updates
# one after another, each adding to its columns of the lane's own sums, in the order of updates. So
# each update is read once, and no two threads meet.


@final
@record
class Lanes:
    """The view that `templates/cuda/scatter_sums/lanes.cu.jinja` prints."""

    index: str
    held: str
    some: str
    reads: tuple[Text, ...]
    adds: tuple[Text, ...]
    total: str
    start: str


@final
class LaneSums(Cells):
    """The kernels: `lanes` of a block, each of `team` threads that have `pack` columns each."""

    def __init__(self, writes: Writes, fresh: bool = False) -> None:
        super().__init__(writes, fresh)
        chip, rows, self.tuning = writes.chip, self.rows, writes.chip.tuning.scatters
        self.held, self.pack = accumulator(self.dtype), 1 if rows.of_y.value else rows.pack
        self.team = rows.length // self.pack
        room = chip.most // max(self.cells * self.held.itemsize, 1)
        self.lanes = min(room, self.tuning.shared_block // max(self.team, 1))
        each = max(self.lanes * rows.length * self.held.itemsize, 1)
        some, fewest = self.tuning.lane_ahead
        self.ahead = next((n for n in some if n * each <= self.tuning.lane_bytes), fewest)
        rounds = -(-rows.count // max(self.lanes * self.ahead, 1))
        self.chunks = max(min(chip.multiprocessors, rounds), 1)
        self.each = -(-rows.count // self.chunks)

    def unserved(self) -> str:
        """The reason why threads cannot have columns of their own; "" if they can."""
        if not isinstance(self.writes.op, ScatterAdd):
            return "an extreme is no sum"
        if self.held.kind != "f":
            return f"{self.dtype.name} has no sums that depend on the order of updates"
        if len(self.rows.along) != 1 or self.rows.length < self.tuning.lane_columns:
            return f"updates are no rows of {self.tuning.lane_columns} elements one after another"
        if self.lanes * self.team < self.tuning.lane_threads:
            return f"a block has room for the sums of {self.lanes} updates at once"
        few = self.rows.count < self.tuning.unordered
        return f"there are fewer than {self.tuning.unordered} updates" if few else ""

    @property
    def seconds(self) -> float:
        """Rounds of updates on their way at once, beyond their bytes, and the sums that blocks leave."""
        rate, (begin, more) = self.tuning.cleared_bytes, self.tuning.lane_round
        rounds = -(-self.each // (self.lanes * self.ahead))
        left = 2 * self.chunks * self.cells * FLOAT64.itemsize
        late = rounds * (begin + self.ahead * more) - self.writes.updates.nbytes / rate
        return max(late, 0.0) + left / rate

    def add(self) -> None:
        writes, rows = self.writes, self.rows
        block = self.lanes * self.team
        grid = Grid(rows.far, block)
        grid.fixed += [
            Fixed("BLOCK", block, "threads"),
            Fixed("LANES", self.lanes, "updates that are added at once, to sums of their own"),
            Fixed("TEAM", self.team, "threads of an update"),
            Fixed("PACK", self.pack, "columns of a thread"),
            Fixed("AHEAD", self.ahead, "updates of a thread on their way at once"),
        ]
        grid.size("n", rows.count), grid.size("each", self.each), grid.size("cells", self.cells)
        temp = writes.temp(self.chunks * self.cells, FLOAT64)
        total = self.sum("total", "sums[lane * cells + w]")
        reads, adds = self.reads(grid), self.adds(grid)
        view = Lanes(
            grid.whole,
            HELD[self.held],
            read_type(self.dtype, self.pack),
            reads,
            adds,
            total,
            number(-0.0, self.held),
        )
        grid.result("parts", temp, FLOAT64)
        what = "the updates of a block, by threads that have columns of their own"
        writes.add(grid, "lane sum", view, self.chunks * block, what, "scatter_sums/lanes")
        shared = self.lanes * self.cells * self.held.itemsize
        writes.kernels[-1] = replace(writes.kernels[-1], shared=shared)
        self.merge(temp)

    def reads(self, grid: Grid) -> tuple[Text, ...]:
        """Reads update `k`: its columns, and where its sums are."""
        rows = self.rows
        column = grid.place("updates_along", ["column"], rows.y_along)
        lies = added(grid.place("updates", rows.i, rows.y_over), column)
        read = grid.element("updates", rows.of_y, self.dtype, lies)
        if self.pack > 1:
            read = f"ge2_read<PACK, PACK>(updates + {lies})"
        extents = grid.sizes(rows.i, rows.over) if len(rows.i) > 1 else [""]
        named, row = tuple(rows.wrapped(grid)), grid.size("n_u", rows.length)
        place = rows.place(grid) if len(rows.sizes) == 1 else f"({rows.place(grid)})"
        return (
            *grid.split("k", rows.i, extents),
            *named,
            Text(f"to[b] = next + b * LANES < last ? {place} * {row} : -1;"),
            Text(f"ahead[b] = {read};"),
        )

    def adds(self, grid: Grid) -> tuple[Text, ...]:
        """Adds what was read to the sums of its place."""
        if self.pack == 1:
            value = loaded("some[b]", self.dtype)
            return (Text(f"mine[at[b]] = {self.sum('mine[at[b]]', value)};"),)
        wide = min(self.pack, WORD.itemsize * 2 // self.held.itemsize)
        grid.fixed.append(Fixed("WIDE", wide, "sums of one access"))
        line = f"now.at[v] = {self.sum('now.at[v]', loaded('some[b].at[v]', self.dtype))};"
        return (
            Text("auto now = ge2_read<PACK, WIDE>(mine + at[b]);"),
            unrolled("v", "PACK", [Text(line)]),
            Text("ge2_write<PACK, WIDE>(mine + at[b], now);"),
        )

    def sum(self, a: str, b: str) -> str:
        return merge(ScatterAdd((0,)), a, b, self.held)
