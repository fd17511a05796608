"""Sums at indices in CUDA by atomics that round nothing, so that any order gives the same bits.

Three kernels after one that clears: the largest exponent among the updates of each element of the
result; each update added in parts that are multiples of a unit which follows from it
(`exact.cuh`); what is there and the sum of the parts, rounded once. Elements that many updates
meet at have copies of their sums, which blocks take in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT64, HALF, accumulator
from ge2.codegen.axes import merged
from ge2.codegen.text import Text, guard
from ge2.ir import ArrayType
from ge2.ops.index import ScatterAdd
from ge2.targets.cuda.emit.kernel import Fixed
from ge2.targets.cuda.emit.types import HELD, SUFFIX
from ge2.targets.cuda.kernels.element_grid import Elements, Grid, Spread, added, lettered
from ge2.targets.cuda.kernels.generated import filling
from ge2.targets.cuda.kernels.indices.updates import Writes, loaded

WHERE = "defgh"  # letters of the indexed axes
DOUBLE, INT, WORD = FLOAT64, np.dtype(np.int32), np.dtype(np.int64)


def unserved(writes: Writes) -> str:
    """Why sums at indices are not worth arrays of all elements of the result; "" if they are."""
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
        """What there is, where an update was."""
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
