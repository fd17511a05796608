"""Writing rows at indices in CUDA, with the same bits each time: which thread comes first changes nothing.

Of several updates of a place the last one is found by an atomic maximum of their numbers. Sums of floating
numbers have one order: the updates are put in the order of their places, each piece of WINDOW of them is
summed by itself, and a thread adds up the pieces of one place. Whole numbers add up alike in any order, by
atomics. Up to RANKED updates are ordered by counting for each those before it, which is one launch and takes
n * n comparisons, 10 us at the most on 132 multiprocessors; more by their digits, three launches for each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import HALF, accumulator
from ge2.codegen.c.axes import strides_of
from ge2.codegen.c.text import Operand, Text, whole
from ge2.codegen.cuda.kernel import CudaKernel, Fixed
from ge2.codegen.cuda.partial import Kernels
from ge2.codegen.cuda.typed import HELD, SUFFIX, expression, number
from ge2.codegen.cuda.writer import unrolled
from ge2.ir import ArrayType
from ge2.kernels.cuda import Cuda, Operands, copying, filling
from ge2.kernels.cuda_grid import BLOCK, Grid, added, lettered
from ge2.kernels.cuda_indexing import Rows, nowhere
from ge2.kernels.kernel import Problem
from ge2.kernels.loops import described, merged
from ge2.ops.index import Indexed, Scatter, ScatterAdd

RANKED = 1 << 13  # updates that are ordered by counting
WINDOW = 64  # updates that are summed one after another
DIGIT, TILE = 8, 2048  # bits of a digit, and updates that a block puts in the order of one
WHERE = "defgh"  # letters of the indexed axes
HELPERS = 8  # threads that look for what is before one update
ATOMIC = {  # whole numbers that one instruction adds
    np.dtype(t): f"unsigned {'int' if np.dtype(t).itemsize == 4 else 'long long'}"
    for t in (np.int32, np.uint32, np.int64, np.uint64)
}
NOTHING = {"f": -0.0, "c": complex(-0.0, -0.0)}  # what changes nothing that it is added to, by kind


class CudaWriting(Cuda):
    """A copy of `x`, unless the result lies where it is, then the updates."""

    def kernels(self, problem: Problem, ins: Operands, outs: Operands, units: int) -> Kernels:
        op, (x, updates, *indices) = problem.op, problem.inputs
        assert isinstance(op, Indexed)
        target = replace(outs[0], strides=strides_of(x.shape))
        first = () if (0, 0) in problem.shared else copying(x, x, ins[0], target, units).kernels
        rows = Rows(op, x, indices, ins[2:], (target, ins[1]))
        if not rows.count * rows.length:
            return Kernels(first)
        found = self.write(Writes(problem, rows, updates))
        return Kernels((*first, *found.kernels), found.temps)

    @abstractmethod
    def write(self, writes: Writes) -> Kernels:
        """The kernels that write the updates; there are some."""


@final
class Writes:
    """The kernels that updates are written by, and the arrays they have for themselves."""

    def __init__(self, problem: Problem, rows: Rows, updates: ArrayType) -> None:
        self.problem, self.rows, self.updates, self.dtype = problem, rows, updates, rows.x.dtype
        self.number = np.dtype(np.int64 if rows.far else np.int32)  # of an update, or of a place
        self.kernels: list[CudaKernel] = []
        self.temps: list[int] = []

    def done(self) -> Kernels:
        return Kernels(tuple(self.kernels), tuple(self.temps))

    def temp(self, count: int, dtype: np.dtype) -> Operand:
        self.temps.append(count * dtype.itemsize)
        return whole("temp", len(self.temps) - 1, (count,))

    def add(self, grid: Grid, kind: str, body: Sequence[Text], threads: int, what: str = "") -> None:
        graph = described(self.problem) + (f"\n{what}" if what else "")
        self.kernels.append(grid.kernel(kind, graph, body, threads))

    # -- one element of the result a thread

    def moved(self, grid: Grid, before: Sequence[Text] = (), pack: int = 0) -> None:
        """Each update takes its place; `before`: lines after which it is known whether it does."""
        rows = self.rows
        pack = 1 if rows.of_y.value else pack or rows.pack
        place = rows.in_y(grid, "updates")
        update = grid.element("updates", rows.of_y, self.dtype, place)
        lines = [*rows.threads(grid, pack), *rows.wrapped(grid), *before]
        grid.result("x", rows.of_x, self.dtype)
        to = rows.in_x(grid)
        move = f"ge2_write<PACK, PACK>(x + {to}, ge2_read<PACK, PACK>(updates + {place}));"
        lines.append(Text(move if pack > 1 else f"x[{to}] = {update};"))
        self.add(grid, self.problem.op.name, lines, rows.count * rows.length // pack)

    def last(self) -> Operand:
        """The number of the last update of each place, -1 where there is none."""
        rows, grid = self.rows, self.rows.grid()
        to = ArrayType((rows.places,), self.number)
        found = self.temp(rows.places, self.number)
        self.kernels += filling(to, None, found, 1).kernels
        lines = [*grid.spread(rows.i, rows.over), *rows.wrapped(grid)]
        grid.result("last", found, self.number)
        lines.append(Text(f"atomicMax(&last[{rows.place(grid)}], {self.source(grid)} + 1);"))
        self.add(
            grid, "last update", lines, rows.count, "which update of each place is the last, counted from 1"
        )
        return found

    def source(self, grid: Grid) -> str:
        """The number of an update, from where it is along the axes of the indices."""
        rows, text = self.rows, ""
        for letter, n in zip(rows.i, rows.over, strict=True):
            text = f"({text}) * {grid.size(f'n_{letter}', n)} + {letter}" if text else letter
        return text or "0"


@final
class CudaScatter(CudaWriting):
    name = "scatter in CUDA"

    def refuses(self, problem: Problem) -> str:
        op = problem.op
        if not isinstance(op, Scatter):
            return f"{op.name} writes nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def write(self, writes: Writes) -> Kernels:
        rows, grid = writes.rows, writes.rows.grid()
        if rows.count == 1:
            writes.moved(grid)
            return writes.done()
        last = writes.last()
        grid.array("last", last, writes.number)
        test = f"if (last[{rows.place(grid)}] != {writes.source(grid)} + 1) return;"
        writes.moved(grid, [Text(test)])
        return writes.done()


@final
class CudaScatterAdd(CudaWriting):
    name = "scatter_add in CUDA"

    def refuses(self, problem: Problem) -> str:
        op = problem.op
        if not isinstance(op, ScatterAdd):
            return f"{op.name} adds nothing at indices"
        return nowhere(op, problem.inputs[0], problem.inputs[2:])

    def write(self, writes: Writes) -> Kernels:
        if writes.rows.count == 1 or writes.dtype in ATOMIC:
            self.at_once(writes)
        else:
            Sums(writes).add()
        return writes.done()

    def at_once(self, writes: Writes) -> None:
        """Each update is added where it belongs: there is one row of them, or the order changes nothing."""
        rows, grid, dtype = writes.rows, writes.rows.grid(), writes.dtype
        update = grid.element("updates", rows.of_y, dtype, rows.in_y(grid, "updates"))
        lines = [*rows.threads(grid, 1), *rows.wrapped(grid)]
        grid.result("x", rows.of_x, dtype)
        to = f"x[{rows.in_x(grid)}]"
        if rows.count == 1:
            lines.append(
                Text(f"{to} = {stored(plus(loaded(to, dtype), loaded(update, dtype), dtype), dtype)};")
            )
        else:
            word = ATOMIC[dtype]
            lines.append(Text(f"atomicAdd(({word} *)&{to}, ({word}){update});"))
        writes.add(grid, "scatter_add", lines, rows.count * rows.length)


@final
class Sums:
    """The kernels that put updates in the order of their places, and add up those of each place."""

    def __init__(self, writes: Writes) -> None:
        self.writes, self.rows, self.dtype = writes, writes.rows, writes.dtype
        self.count = self.rows.count
        self.pack = 1 if self.rows.of_y.value else self.rows.pack
        self.held = HELD[accumulator(self.dtype)]

    def add(self) -> None:
        order, places = self.ordered()
        parts = self.pieces(order, places) if self.count > WINDOW else None
        self.sums(order, places, parts)

    # -- the order

    def ordered(self) -> tuple[Operand, Operand]:
        """The numbers of the updates in the order of their places, and those places."""
        found = self.places()
        if self.count <= RANKED:
            return self.ranked(found)
        tiles, bits = -(-self.count // TILE), max((self.rows.places - 1).bit_length(), 1)
        scratch, pairs = (self.temp(tiles << DIGIT), self.temp(1 << DIGIT)), (self.pair(), self.pair())
        numbers: Operand | None = None
        for turn, shift in enumerate(range(0, bits, DIGIT)):
            self.by_digit((numbers, found), pairs[turn % 2], scratch, shift)
            numbers, found = pairs[turn % 2]
        return pairs[(bits - 1) // DIGIT % 2]

    def pair(self) -> tuple[Operand, Operand]:
        """Arrays of the numbers of all updates, and of their places."""
        return self.temp(self.count), self.temp(self.count)

    def temp(self, count: int) -> Operand:
        return self.writes.temp(count, self.writes.number)

    def places(self) -> Operand:
        writes, rows, grid = self.writes, self.rows, self.rows.grid()
        found = writes.temp(self.count, writes.number)
        lines = [*grid.spread(rows.i, rows.over), *rows.wrapped(grid)]
        grid.result("places", found, writes.number)
        lines.append(Text(f"places[{writes.source(grid)}] = {rows.place(grid)};"))
        writes.add(grid, "placing", lines, self.count, "where each update goes")
        return found

    def ranked(self, places: Operand) -> tuple[Operand, Operand]:
        to = self.pair()
        made, what = (
            dict(zip(("order", "sorted"), to, strict=True)),
            "the updates in the order of their places",
        )
        line = "ge2_rank(places, n, order, sorted);"
        self.call("ranking", line, {"places": places}, made, {"n": self.count}, self.count * HELPERS, what)
        return to

    def by_digit(
        self,
        of: tuple[Operand | None, Operand],
        to: tuple[Operand, Operand],
        scratch: tuple[Operand, Operand],
        shift: int,
    ) -> None:
        """Puts all numbers and places in the order of one more digit; before the first, numbers count."""
        n, tiles, bits = self.count, -(-self.count // TILE), {"shift": shift}
        what = f"the updates in the order of bits {shift} to {shift + DIGIT - 1} of their places"
        numbers, places = of
        given = {"places": places}
        line = "ge2_digit_counts(places, n, shift, counts);"
        self.call("digit count", line, given, {"counts": scratch[0]}, {"n": n, **bits}, tiles * BLOCK, what)
        line, made = (
            "ge2_digit_starts(counts, totals, tiles);",
            dict(zip(("counts", "totals"), scratch, strict=True)),
        )
        self.call("digit start", line, {}, made, {"tiles": tiles}, BLOCK << DIGIT, what)
        given |= {} if numbers is None else {"numbers": numbers}
        moved = "numbers" if numbers is not None else f"({self.rows.grid().whole} *)0"
        line = f"ge2_digit_moves(places, {moved}, n, shift, counts, totals, order, sorted);"
        target = dict(zip(("order", "sorted"), to, strict=True))
        self.call("digit move", line, given | made, target, {"n": n, **bits}, tiles * BLOCK, what)

    def call(
        self, kind: str, line: str, given: dict[str, Operand], made: dict[str, Operand],
        sizes: dict[str, int], threads: int, what: str,
    ) -> None:  # fmt: skip
        """A kernel that is one call."""
        grid, dtype = self.rows.grid(), self.writes.number
        for name, operand in given.items():
            grid.array(name, operand, dtype)
        for name, operand in made.items():
            grid.result(name, operand, dtype)
        for name, value in sizes.items():
            grid.size(name, value)
        self.writes.add(grid, kind, [Text(line)], threads, what)

    # -- the sums

    def pieces(self, order: Operand, places: Operand) -> Operand:
        """The sum of the run that begins before a window and goes on in it; the others need none."""
        writes, rows, held, grid = self.writes, self.rows, accumulator(self.dtype), self.grid(order, places)
        windows = -(-self.count // WINDOW)
        parts = writes.temp(windows * rows.length, held)
        int_, n = grid.whole, grid.size("n", self.count)
        lines = [
            *grid.spread(["w", *rows.u], [windows - 1, *rows.along], self.pack),
            Text(f"const {int_} s = (w + 1) * WINDOW;"),
            Text("if (sorted[s - 1] != sorted[s]) return;"),
            Text(f"const {int_} end = ge2_run_end<WINDOW>(sorted, s, {n});"),
            *self.begun(number(NOTHING.get(held.kind, 0), held)),
            self.loop(grid, f"{int_} k = s; k < end; k++", self.updates(grid)),
        ]
        grid.result("parts", parts, held)
        lines.append(self.each(f"parts[{self.part(grid, 'w')}{self.v}] = sum{self.of};"))
        threads = (windows - 1) * rows.length // self.pack
        writes.add(
            grid, "partial sum", lines, threads, f"sums of updates of one place that are more than {WINDOW}"
        )
        return parts

    def sums(self, order: Operand, places: Operand, parts: Operand | None) -> None:
        """What there is at a place, and all that is to be added to it."""
        rows, dtype, grid = self.rows, self.dtype, self.grid(order, places)
        int_, n = grid.whole, grid.size("n", self.count)
        grid.fixed = [f for f in grid.fixed if parts is not None or f.name == "WINDOW"]
        axes, steps = merged(rows.sizes, rows.steps)
        letters = lettered(WHERE, len(axes))
        place = letters[0] if len(letters) == 1 else "place"
        lines = [
            *grid.spread(["s", *rows.u], [self.count, *rows.along], self.pack),
            Text(f"const {int_} {place} = sorted[s];"),
            Text(f"if (s && sorted[s - 1] == {place}) return;"),
            Text(f"const {int_} end = ge2_run_end<WINDOW>(sorted, s, {n});"),
        ]
        if len(letters) > 1:
            lines += grid.split("place", letters, grid.sizes(letters, axes))
        to = added(grid.place("x", letters, steps[0]), grid.place("x", rows.u, rows.x_along))
        x = f"x[{to}]"
        if self.pack > 1:
            x = "x_at.at[v]"
            lines.append(Text(f"auto x_at = ge2_read<PACK, PACK>(x + {to});"))
        lines += [
            *self.begun(loaded(x, dtype)),
            self.loop(grid, f"{int_} k = s; k < end; k++", self.updates(grid)),
        ]
        if parts is not None:
            grid.array("parts", parts, accumulator(dtype))
            more = (
                f"{int_} w = s / WINDOW; (w + 1) * WINDOW < {n} && sorted[(w + 1) * WINDOW] == {place}; w++"
            )
            line = self.added(f"parts[{self.part(grid, 'w')}{self.v}]")
            lines.append(self.loop(grid, more, [line]))
        grid.result("x", rows.of_x, dtype)
        lines.append(self.each(f"{x} = {stored(f'sum{self.of}', dtype)};"))
        if self.pack > 1:
            lines.append(Text(f"ge2_write<PACK, PACK>(x + {to}, x_at);"))
        self.writes.add(
            grid, "sum by place", lines, self.count * rows.length // self.pack, "the sums of each place"
        )

    def grid(self, order: Operand, places: Operand) -> Grid:
        grid, rows = self.rows.grid(), self.rows
        grid.fixed.append(Fixed("WINDOW", WINDOW, "updates that are summed one after another"))
        grid.array("updates", rows.of_y, self.dtype)
        grid.array("order", order, self.writes.number)
        grid.array("sorted", places, self.writes.number)
        return grid

    # -- the elements of a thread

    @property
    def of(self) -> str:
        return "[v]" if self.pack > 1 else ""

    @property
    def v(self) -> str:
        return " + v" if self.pack > 1 else ""

    def each(self, code: str) -> Text:
        """A statement for each neighbour."""
        return unrolled("v", "PACK", [Text(code)]) if self.pack > 1 else Text(code)

    def begun(self, start: str) -> list[Text]:
        if self.pack == 1:
            return [Text(f"{self.held} sum = {start};")]
        return [Text(f"{self.held} sum[PACK];"), self.each(f"sum[v] = {start};")]

    def added(self, value: str) -> Text:
        mine, held = f"sum{self.of}", accumulator(self.dtype)
        return self.each(f"{mine} = {plus(mine, value, held)};")

    def updates(self, grid: Grid) -> list[Text]:
        """Adds update number order[k]."""
        rows, dtype = self.rows, self.dtype
        lines = grid.split("order[k]", rows.i, grid.sizes(rows.i, rows.over) if len(rows.i) > 1 else [""])
        place = rows.in_y(grid, "updates")
        if self.pack == 1:
            update = grid.element("updates", rows.of_y, dtype, place)
            return [*lines, self.added(loaded(update, dtype))]
        some = Text(f"const auto some = ge2_read<PACK, PACK>(updates + {place});")
        return [*lines, some, self.added(loaded("some.at[v]", dtype))]

    def loop(self, grid: Grid, head: str, body: Sequence[Text]) -> Text:
        return Text(f"for ({head})", body=tuple(body), pragma="#pragma unroll 4")

    def part(self, grid: Grid, w: str) -> str:
        """Where the part of a window begins, for this thread."""
        text = w
        for letter, n in zip(self.rows.u, self.rows.along, strict=True):
            text = f"{text if ' ' not in text else f'({text})'} * {grid.size(f'n_{letter}', n)} + {letter}"
        return text


def loaded(text: str, dtype: np.dtype) -> str:
    """An element as it is added."""
    return f"ge2_cast_{SUFFIX[dtype]}_f32({text})" if dtype in HALF else text


def stored(text: str, dtype: np.dtype) -> str:
    return f"ge2_cast_f32_{SUFFIX[dtype]}({text})" if dtype in HALF else text


def plus(a: str, b: str, dtype: np.dtype) -> str:
    held = accumulator(dtype)
    return expression("ge2_add({0}, {1})", [a, b], held, held)
