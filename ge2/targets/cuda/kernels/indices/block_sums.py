"""Sums at indices in CUDA by blocks that have all sums, or a range of them, in shared memory.

Atomics there round nothing (`fixed.cuh`), and are many times as fast as those of global memory where
updates meet. Each block leaves its sums, rounded once, and a second kernel adds those of all blocks
in their order to what is there; sums of whole numbers are added to the result as they are.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from ge2.base.dtypes import FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.text import Operand, Text
from ge2.ops.index import ScatterAdd
from ge2.targets.cuda.emit.kernel import Fixed
from ge2.targets.cuda.emit.types import HELD
from ge2.targets.cuda.kernels.element_grid import Grid, Spread
from ge2.targets.cuda.kernels.indices.exact_sums import Cells
from ge2.targets.cuda.kernels.indices.updates import Writes, loaded

COLUMNS, MERGING = 32, 256  # elements that a block merges side by side, and its threads


@final
@record
class Collecting:
    """What `templates/cuda/scatter_sums/blocks.cu.jinja` prints."""

    spread: Spread
    held: str
    update: tuple[Text, ...]
    notes: tuple[Text, ...]
    adds: tuple[Text, ...]
    store: tuple[Text, ...]


@final
@record
class Merging:
    """What `templates/cuda/scatter_sums/merge.cu.jinja` prints."""

    spread: Spread
    sums: tuple[tuple[str, str], ...]
    store: tuple[Text, ...]


@final
class BlockSums(Cells):
    """The kernels, `ranges` of the sums of which each has blocks of its own."""

    def __init__(self, writes: Writes) -> None:
        super().__init__(writes)
        chip, tuning = writes.chip, writes.chip.tuning.scatters
        self.floats = self.dtype.kind in "fc" or self.dtype in HALF
        wide = self.double if self.floats else self.dtype.itemsize > 4
        self.words = 1 + wide + self.floats
        room = chip.most // ((self.words + self.floats) * 4)
        self.count = self.rows.count * self.rows.length
        # sums that blocks leave are as many bytes as indices that they read in vain
        even = round(math.sqrt(chip.multiprocessors * self.cells / max(self.count, 1)))
        self.ranges = max(-(-self.cells // room), min(even, tuning.ranges))
        self.range = -(-self.cells // self.ranges)
        self.each = max(tuning.shared_run, -(-self.count // self.most))
        self.chunks = -(-self.count // self.each)
        self.bits = max((self.each - 1).bit_length(), 2)

    @property
    def most(self) -> int:
        """Blocks of a range at most: a multiprocessor has one, and each leaves all of its sums."""
        return max(1, self.writes.chip.multiprocessors // self.ranges)

    def unserved(self) -> str:
        """Why sums are not worth their room in each block; "" if they are."""
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
            Fixed("SOME", tuning.shared_some, "updates of a thread at once"),
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
        view = Collecting(spread, HELD[self.dtype], update, notes, adds, left)
        what = "the updates of a block, added up in shared memory"
        self.writes.add(
            grid, "block sum", view, self.chunks * grid.block, what, "scatter_sums/blocks"
        )
        shared = self.range * (self.words + self.floats) * 4
        kernel = replace(self.writes.kernels[-1], grid=(self.chunks, self.ranges), shared=shared)
        self.writes.kernels[-1] = kernel
        if temp is not None:
            self.merge(temp)

    def at_each(self, line: str) -> tuple[Text, ...]:
        """Does something with an update, or each part of it, if its sum is in this block."""
        lines: list[Text] = []
        for n, part in enumerate(self.parts):
            cell = f"const auto mine = {self.numbered('cells_of[k]', n)} - lowest;"
            test = Text("if (mine >= 0 && mine < range)", body=(Text(line.format(part=part)),))
            lines.append(Text("", body=(Text(cell), test)))
        return tuple(lines)

    def left(self, grid: Grid) -> tuple[Text, ...]:
        """Returns what is left of sum `mine` of a block."""
        if self.floats:
            bits = grid.size("bits", self.bits)
            total = f"ge2_fixed_total<WORDS>(sums + mine * WORDS, tops[mine], {bits})"
            return (Text(f"parts[blockIdx.x * cells + lowest + mine] = {total};"),)
        word = "unsigned long long" if self.words > 1 else "unsigned int"
        spread, to = self.of_result(grid)
        grid.result("x", self.rows.of_x, self.dtype)
        place = Text(f"const {grid.whole} {spread.number} = lowest + mine;")
        there = f"atomicAdd(({word} *)&x[{to}], total);"
        return (
            Text(f"const {word} total = ({word})ge2_fixed_whole<WORDS>(sums + mine * WORDS);"),
            place,
            *spread.places,
            Text("if (total)", body=(Text(there),)),
        )

    def merge(self, parts: Operand) -> None:
        """What there is, and what the blocks have left."""
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
            total = self.stored(f"{there}{part} + ge2_fixed_value(sum{n})")
            lines.append(Text(f"x[{to}]{part} = {total};"))
        view = Merging(spread, tuple(sums), tuple(lines))
        threads = -(-rows.places * rows.length // COLUMNS) * MERGING
        what = "what blocks have left for each element"
        self.writes.add(grid, "merged sum", view, threads, what, "scatter_sums/merge")
