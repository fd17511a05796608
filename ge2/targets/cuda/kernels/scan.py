"""Running sums, products and extremes in CUDA, each element read once and written once.

A line is scanned by a few lanes of a warp, by a block, or, where lines are few and long, by many
blocks: each leaves the state of its tile and looks back at those before, merged by 32, again by 32,
and then in order. So the places of elements alone decide what is merged with what, and the bits are
the same each run. Lines that lie side by side are scanned by threads side by side. Sums and
products of float32 are carried in float64, so each result is within a rounding of the true one; the
powers of two of products are counted apart, so that none overflows on the way.

For float32, of n elements: 8 n bytes of memory; for each tile of 18432 elements 16 bytes written
and at most 1.5 KB of the cache read. A tile is in shared memory, 72 KB, so that three blocks are
under way on a multiprocessor. A lane has 36 neighbours there, 9 accesses of 16 bytes: of each
element 3 conversions and 3.3 additions in float64, and of the run 7 shuffles of two words. An H200
has the time for 9 conversions of an element.
"""

from __future__ import annotations

import math
from typing import final

from ge2.choice.problem import Problem, Variant
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Text
from ge2.ir import ArrayType
from ge2.ops.scan import Running
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.region import power, unrolled
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.scan_blocks import Scanned, left_at

START = "{0}::start()"


@final
class CudaScan(Cuda):
    name = "scan in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Running) else f"{problem.op.name} runs along no axis"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        (t,) = problem.inputs
        if not t.size:
            return Kernels(())
        op, (x, y) = problem.op, (ins[0], outs[0])
        assert isinstance(op, Running)
        inner = math.prod(t.shape[op.axis + 1 :]) > 1
        return (Columns if inner else Lines)(problem, t, x, y, chip).run()


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
        self.shared = self.tiles > 1 and self.lines < self.tuning.lines * chip.multiprocessors

    def run(self) -> Kernels:
        self.fix("PACK", self.pack, "neighbours of one access")
        if self.shared:
            return self.by_many_blocks()
        self.fix("PACKS", self.packs, "accesses of a thread at a time")
        self.fix("TEAM", self.team, "threads of a line")
        return self.by_teams()

    def tile(self, first: str, carry: str, n: str) -> list[Text]:
        """The scan of a tile; `carry` is what stands before it, once its own state is known."""
        how, steps = (
            self.how.name,
            {k: "1" if wide else self.step(k) for k, wide in self.wides.items()},
        )
        read = f"<{how}, TEAM, PACKS, PACK, {self.wides['x']}, {self.reverse}>(from, {first}, {n}, {steps['x']})"
        write = f"<{how}, TEAM, PACKS, PACK, {self.wides['y']}, {self.reverse}>"
        given = f"({'room' if self.team > 32 else 'mine'}, carry, before, to, {first}, {n}, {steps['y']})"
        room = f"__shared__ ge2_room<{self.stored}, PACK, PACKS, TEAM> room;"
        whole = f"ge2_scan_tile<{how}, TEAM, PACKS, {self.reverse}>(mine, before)"
        return [
            Text(f"const auto mine = ge2_scan_read{read};"),
            Text(f"{how}::State before[PACKS];"),
            Text(f"const {how}::State whole = {whole};" if carry != START else f"{whole};"),
            *([Text(room), Text("ge2_scan_keep(room, mine);")] if self.team > 32 else []),
            *([Text(f"const {how}::State carry = {carry.format(how)};")] if carry else []),
            Text(f"ge2_scan_write{write}{given};"),
        ]

    def by_teams(self) -> Kernels:
        height = self.tuning.block // self.team if self.team <= 32 else 1
        body, n = [Text("const int64_t line = blockIdx.x;")], "n"
        if height > 1:
            body = [
                Text(
                    f"const int64_t number = (int64_t)blockIdx.x * {height} + threadIdx.x / TEAM;"
                ),
                Text(f"const bool here = number < {self.size('lines', self.lines, True)};"),
                Text("const int64_t line = here ? number : 0;"),
                Text(f"const {self.whole} count = here ? n : 0;"),
            ]
            n = "count"
        body += [*self.split("line", self.over), *self.pointers(self.strides)]
        if self.tiles == 1:
            body += self.tile(f"({self.whole})0", START, n)
        else:
            how = self.how.name
            loop = f"for ({self.whole} first = 0; first * PACK < n; first += TEAM * PACKS)"
            each = [*self.tile("first", "", n), Text(f"carry = {how}::merge(carry, whole);")]
            body += [Text(f"{how}::State carry = {how}::start();"), Text(loop, body=tuple(each))]
        grid = -(-self.lines // height)
        return Kernels(
            (
                self.kernel(
                    body, self.team * height, grid, 2 if self.tiles > 1 else self.tuning.resident
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
        how, wide, reverse = self.how.name, self.wides, self.reverse
        steps = {k: "1" if w else self.step(k) for k, w in wide.items()}
        sizes = f"{how}, TEAM, RUN, PACK"
        onwards = f"{how}::merge(carry, before), to, first, n, {steps['y']}"
        body = [
            *self.ticket(tiles, "line", self.lines),
            Text(f"const {self.whole} first = {self.tile_number} * (TEAM * RUN);"),
            *self.split("line", self.over),
            *self.pointers(self.strides),
            left_at("line", self.lines),
            Text("extern __shared__ __align__(16) unsigned char bytes[];"),
            Text(f"auto &room = *(ge2_room<{self.stored}, PACK, RUN, TEAM> *)bytes;"),
            Text(
                f"ge2_scan_fill<{sizes}, {wide['x']}, {reverse}>(room, from, first, n, {steps['x']});"
            ),
            Text(f"{how}::State whole;"),
            Text(f"const {how}::State before = ge2_scan_runs<{sizes}, {reverse}>(room, whole);"),
            Text(
                f"const {how}::State carry = ge2_look_back<{how}, TEAM>(left, tile, tiles, whole);"
            ),
            Text(f"ge2_scan_finish<{sizes}, {wide['y']}, {reverse}>(room, {onwards});"),
        ]
        room = self.room(block, run)
        light = self.how.words <= 2 and self.pack <= 4
        most = self.tuning.waiting if light else self.tuning.resident
        resident = max(1, min(most * self.tuning.block // block, self.chip.shared // room))
        return self.looking_back(self.lines, words, body, block, tiles, resident, room)

    def room(self, block: int, run: int) -> int:
        """Bytes of a tile."""
        return block * run * self.pack * self.dtype.itemsize

    def wide_block(self, run: int) -> int:
        """Larger tiles wait for fewer others, if they are many, and if three of them have room."""
        tiles = self.lines * self.n // (2 * self.tuning.block * run * self.pack)
        few, block = tiles < self.tuning.lines * self.chip.multiprocessors, self.tuning.block
        return block if few or 3 * self.room(2 * block, run) > self.chip.shared else 2 * block

    def odd_run(self) -> int:
        """How many packs in a row a thread has: an odd number, so that lanes meet in no bank."""
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
        self.shared = (
            self.tiles > 1
            and self.strip_of * self.in_packs < chip.multiprocessors * self.tuning.busy
        )

    def given(self, name: str) -> tuple[str, str]:
        """The width of an access, and how far neighbours are apart."""
        stride = self.strides["xy".index(name)][-1]
        if self.wides[name]:
            return str(min(self.wides[name], self.pack)), "1"
        return "0", self.size(f"{name}_apart", stride, True)

    def run(self) -> Kernels:
        self.fix("PACK", self.pack, "columns of a thread")
        return self.by_many_blocks() if self.shared else self.alone()

    def begun(self, number: str, column: str) -> list[Text]:
        """Where a thread's columns begin."""
        strides = (self.strides[0][:-1], self.strides[1][:-1])
        lines, pointers = self.split(number, self.outer), self.pointers(strides)
        for n, name in enumerate("xy"):
            _, apart = self.given(name)
            more = f" + {column}" if apart == "1" else f" + {column} * {apart}"
            pointers[n] = Text(pointers[n].code[:-1] + more + ";")
        return [*lines, *pointers]

    def functions(self) -> tuple[str, str]:
        """The reading of a row, and its writing."""
        (wx, ax), (wy, ay), how = self.given("x"), self.given("y"), self.how.name
        steps = self.step("x"), self.step("y")
        read = f"ge2_scan_row<{how}, PACK, {wx}, {self.reverse}>(from, {{0}}, n, {steps[0]}, {ax})"
        write = f"ge2_scan_on<{how}, PACK, {wy}, {self.reverse}>(states, {{1}}, to, {{0}}, n, {steps[1]}, {ay});"
        return read, write

    def alone(self) -> Kernels:
        """A thread for all rows of its columns."""
        how, packs = self.how.name, self.size("packs", self.in_packs, True)
        read, write = self.functions()
        total = self.strip_of * self.in_packs
        body = [
            Text(f"const int64_t p = (int64_t)blockIdx.x * {self.tuning.alone} + threadIdx.x;"),
            Text(f"if (p >= {self.size('total', total, True)}) return;"),
            Text(f"const int64_t column = p % {packs} * PACK, line = p / {packs};"),
            *self.begun("line", "column"),
            Text(f"{how}::State states[PACK];"),
            unrolled("v", "PACK", [Text(f"states[v] = {how}::start();")]),
            Text(
                f"for ({self.whole} row = 0; row < n; row++)",
                body=(
                    Text(f"const auto mine = {read.format('row')};"),
                    Text(write.format("row", "mine")),
                ),
                pragma="#pragma unroll 8",
            ),
        ]
        if not self.outer:
            body[2] = Text("const int64_t column = p * PACK;")
            self.arguments.pop("packs")
        return Kernels((self.kernel(body, self.tuning.alone, -(-total // self.tuning.alone)),))

    def by_many_blocks(self) -> Kernels:
        """Blocks share the rows, each with a tile of a strip."""
        how, strips = self.how.name, -(-self.in_packs // self.columns)
        read, write = self.functions()
        self.fix("COLUMNS", self.columns, "threads side by side, of a strip")
        self.fix("ROWS", self.rows, "rows of a thread")
        count = self.strip_of * strips
        # other strips fill the time of waiting
        group = self.tuning.group
        group = max(min(group, power(-(-2 * group // count))), self.tuning.smallest)
        self.fix("GROUP", group, "tiles that are merged before their groups are")
        packs = self.size("packs", self.in_packs, True)
        words = self.how.words * self.columns * self.pack * (self.tiles + -(-self.tiles // group))
        per = self.size("strips_of_line", strips, True)
        height = "threadIdx.x / COLUMNS * ROWS"
        row = f"const {self.whole} first = {self.tile_number} * ({self.tuning.block} / COLUMNS * ROWS) + {height};"
        body = [
            *self.ticket(self.tiles, "strip", count),
            Text(f"const int64_t pack = strip % {per} * COLUMNS + threadIdx.x % COLUMNS;"),
            Text(f"const int64_t line = strip / {per};"),
            Text(f"const bool here = pack < {packs};"),
            Text("const int64_t column = here ? pack * PACK : 0;"),
            Text(row),
            *self.begun("line", "column"),
            Text(f"ge2_packs<{self.stored}, PACK, ROWS> mine;"),
            unrolled("i", "ROWS", [
                Text("if (here && first + i < n)", body=(Text(f"mine.of[i] = {read.format('first + i')};"),)),
                Text("else", body=(unrolled("v", "PACK", [Text(f"mine.of[i].at[v] = {how}::none();")]),)),
            ]),
            Text(f"{how}::State states[PACK];"),
            left_at("strip", count),
            Text(f"ge2_scan_strip<{how}, {self.tuning.block}, COLUMNS, ROWS, GROUP>(mine, states, left, tile, tiles);"),
            unrolled("i", "ROWS", [
                Text("if (here && first + i < n)", body=(Text(write.format("first + i", "mine.of[i]")),)),
            ]),
        ]  # fmt: skip
        return self.looking_back(
            count, words, body, self.tuning.block, self.tiles, self.tuning.resident
        )
