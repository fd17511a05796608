"""Kernels of the lines of an array along an axis: running sums, orders, the largest elements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Text
from ge2.ir import ArrayType
from ge2.ops.reduce import Running
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.region import power
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.kernels.generated import NOTHING, CudaWays
from ge2.targets.cuda.kernels.scan_blocks import Access, Scanned
from ge2.targets.cuda.limits import Chip

# -------- Running sums, products and extremes in CUDA, each element read once and written once.
# A line is scanned by a few lanes of a warp, by a block, or, where lines are few and long, by many
# blocks: each leaves the state of its tile and looks back at those before, merged by 32, again by
# 32, and then in order. So the places of elements alone decide what is merged with what, and the
# bits are the same each run. Lines that lie side by side are scanned by threads side by side. Sums
# and products of float32 are carried in float64, so each result is within a rounding of the true
# one; the powers of two of products are counted apart, so that none overflows on the way.
# For float32, of n elements: 8 n bytes of memory; for each tile of 18432 elements 16 bytes written
# and at most 1.5 KB of the cache read. A tile is in shared memory, 72 KB, so that three blocks are
# under way on a multiprocessor. A lane has 36 neighbours there, 9 accesses of 16 bytes: of each
# element 3 conversions and 3.3 additions in float64, and of the run 7 shuffles of two words. An
# H200 has the time for 9 conversions of an element.


@final
class CudaScan(CudaWays):
    name = "scan in CUDA"
    ops = (Running,)

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        (t,), op = problem.inputs, problem.op
        if not t.size:
            return (NOTHING,)
        assert isinstance(op, Running)

        (ins, outs), inner = problem.arrays, math.prod(t.shape[op.axis + 1 :]) > 1

        def made() -> Scanned:
            return (Columns if inner else Lines)(problem, t, ins[0], outs[0], caps.chip)

        return (
            Variant("blocks share lines", lambda: made().run(True), made().whole_lines),
            Variant("whole lines", lambda: made().run(False)),
        )


def unshared(tiles: int, few: bool) -> str:
    """Why blocks do not share lines of so many tiles; "" if they do."""
    if tiles == 1:
        return "a line is one tile"
    return "" if few else "there are lines enough for all multiprocessors"


# -------------------------------------------------------------------------------------------- lines


@final
class Lines(Scanned):
    """Threads side by side along the lines."""

    def __init__(self, problem: Problem, t: ArrayType, x: Operand, y: Operand, chip: Chip) -> None:
        super().__init__(problem, t, x, y, chip)
        axis = self.op.axis
        others = [a for a in range(t.ndim) if a != axis]
        self.over, strides = merged(
            *(tuple(s[a] for a in others) for s in (t.shape, x.strides, y.strides))
        )
        self.strides = strides[0], strides[1]
        self.lines = math.prod(self.over)
        self.wides = {name: self.wide(name, axis) for name in "xy"}
        self.pack = max(*self.wides.values(), 1)
        packs, most = -(-self.n // self.pack), self.at_most(self.tuning.packs, 2)
        self.packs = min(most, -(-packs // 32))
        self.team = min(
            32 if packs <= 32 * self.packs else self.tuning.block, power(-(-packs // self.packs))
        )
        self.tiles = -(-self.n // (self.team * self.packs * self.pack))
        few = self.lines < self.tuning.lines * chip.multiprocessors
        self.whole_lines = unshared(self.tiles, few)

    def run(self, shared: bool) -> Kernels:
        self.fix("PACK", self.pack, "neighbours of one access")
        if shared:
            return self.by_many_blocks()
        self.fix("PACKS", self.packs, "accesses of a thread at a time")
        self.fix("TEAM", self.team, "threads of a line")
        return self.by_teams()

    def accesses(self) -> tuple[Access, Access]:
        x, y = (Access(wide, "1" if wide else self.step(k)) for k, wide in self.wides.items())
        return x, y

    def by_teams(self) -> Kernels:
        height = self.tuning.block // self.team if self.team <= 32 else 1
        if height > 1:
            self.size("lines", self.lines, True)
        places = self.placed(*self.split("line", self.over), *self.pointers(self.strides))
        view = self.view(self.accesses(), places, self.tiles > 1)
        view = replace(view, height=height, kept=self.team > 32)
        grid = -(-self.lines // height)
        return Kernels(
            (
                self.kernel(
                    "lines",
                    view,
                    self.team * height,
                    grid,
                    2 if self.tiles > 1 else self.tuning.resident,
                ),
            )
        )

    def by_many_blocks(self) -> Kernels:
        run = self.odd_run()
        block = self.wide_block(run)
        self.fix("RUN", run, "accesses of a thread, side by side")
        self.fix("TEAM", block, "threads of a block")
        tiles = -(-self.n // (block * run * self.pack))
        words = self.how.words * (tiles + -(-tiles // 32) + -(-tiles // 1024))
        accesses = self.accesses()
        self.tickets(tiles, "line", self.lines)
        places = self.placed(*self.split("line", self.over), *self.pointers(self.strides))
        view = self.view(accesses, places, False)
        view = self.shared_view(view, "line", self.lines, block)
        room = self.room(block, run)
        light = self.how.words <= 2 and self.pack <= 4
        most = self.tuning.waiting if light else self.tuning.resident
        resident = max(1, min(most * self.tuning.block // block, self.chip.shared // room))
        return self.looking_back(
            self.lines, words, "lines_look_back", view, block, tiles, resident, room
        )

    def room(self, block: int, run: int) -> int:
        """Bytes of a tile."""
        return block * run * self.pack * self.dtype.itemsize

    def wide_block(self, run: int) -> int:
        """Larger tiles wait for fewer others, if they are many, and if three of them have room."""
        tiles = self.lines * self.n // (2 * self.tuning.block * run * self.pack)
        few, block = tiles < self.tuning.lines * self.chip.multiprocessors, self.tuning.block
        return block if few or 3 * self.room(2 * block, run) > self.chip.shared else 2 * block

    def odd_run(self) -> int:
        """Returns how many packs in a row a thread has: an odd number, so that lanes meet in no
        bank.
        """
        most = max(self.tuning.run // (self.pack * self.dtype.itemsize), 1)
        return most - 1 + most % 2


# ------------------------------------------------------------------------------------------ columns


@final
class Columns(Scanned):
    """Threads across lines that lie side by side, each along packs of its own."""

    def __init__(self, problem: Problem, t: ArrayType, x: Operand, y: Operand, chip: Chip) -> None:
        super().__init__(problem, t, x, y, chip)
        lane = max((a for a in range(t.ndim) if a != self.op.axis and t.shape[a] > 1), default=-1)
        others = [a for a in range(t.ndim) if a not in (self.op.axis, lane)]
        over, strides = merged(
            *(tuple(s[a] for a in others) for s in (t.shape, x.strides, y.strides))
        )
        self.outer, self.width = over, t.shape[lane]
        self.strides = tuple((*s, o.strides[lane]) for s, o in zip(strides, (x, y), strict=True))
        self.wides = {name: self.wide(name, lane) for name in "xy"}
        self.pack = math.gcd(max(*self.wides.values(), 1), self.width, max(16 // self.how.words, 1))
        self.strip_of = math.prod(over)
        self.in_packs = self.width // self.pack
        self.columns = min(power(self.in_packs), self.tuning.strip // self.pack)
        self.rows = self.at_most(self.tuning.rows, 2)
        height = self.tuning.block // self.columns * self.rows
        self.tiles = -(-self.n // height)
        few = self.strip_of * self.in_packs < chip.multiprocessors * self.tuning.busy
        self.whole_lines = unshared(self.tiles, few)

    def accesses(self) -> tuple[Access, Access]:
        """Returns how rows of x are read, and those of y written."""
        aparts = [
            "1" if self.wides[name] else self.size(f"{name}_apart", strides[-1], True)
            for name, strides in zip("xy", self.strides, strict=True)
        ]
        wides = [min(self.wides[name], self.pack) for name in "xy"]
        x, y = (Access(w, self.step(k), a) for k, w, a in zip("xy", wides, aparts, strict=True))
        return x, y

    def run(self, shared: bool) -> Kernels:
        self.fix("PACK", self.pack, "columns of a thread")
        return self.by_many_blocks() if shared else self.alone()

    def begun(self, number: str, x: Access, y: Access) -> tuple[Text, ...]:
        """Returns where a thread's columns begin."""
        strides = (self.strides[0][:-1], self.strides[1][:-1])
        lines, pointers = self.split(number, self.outer), self.pointers(strides)
        for n, access in enumerate((x, y)):
            more = " + column" if access.apart == "1" else f" + column * {access.apart}"
            pointers[n] = Text(pointers[n].code[:-1] + more + ";")
        return self.placed(*lines, *pointers)

    def alone(self) -> Kernels:
        """A thread for all rows of its columns."""
        if self.outer:
            self.size("packs", self.in_packs, True)
        block = self.tuning.alone
        total = self.strip_of * self.in_packs
        x, y = self.accesses()
        self.size("total", total, True)
        view = self.view((x, y), self.begun("line", x, y), bool(self.outer))
        return Kernels(
            (self.kernel("columns", replace(view, block=block), block, -(-total // block)),)
        )

    def by_many_blocks(self) -> Kernels:
        """Blocks share the rows, each with a tile of a strip."""
        strips, block = -(-self.in_packs // self.columns), self.tuning.block
        self.fix("COLUMNS", self.columns, "threads side by side, of a strip")
        self.fix("ROWS", self.rows, "rows of a thread")
        count = self.strip_of * strips
        # other strips fill the time of waiting
        group = self.tuning.group
        group = max(min(group, power(-(-2 * group // count))), self.tuning.smallest)
        self.fix("GROUP", group, "tiles that are merged before their groups are")
        words = self.how.words * self.columns * self.pack * (self.tiles + -(-self.tiles // group))
        x, y = self.accesses()
        self.size("packs", self.in_packs, True)
        self.size("strips_of_line", strips, True)
        self.tickets(self.tiles, "strip", count)
        view = self.view((x, y), self.begun("line", x, y), False)
        view = replace(view, numbered=True, lined=view.numbered)
        view = self.shared_view(view, "strip", count, block)
        return self.looking_back(
            count, words, "columns_look_back", view, block, self.tiles, self.tuning.resident
        )
