"""Kernels that put lines in order, or find some ranks, and that put updates in the order of their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, INEXACT
from ge2.base.record import record
from ge2.choice import Problem, Variant, bytes_of
from ge2.codegen.text import Operand, Text
from ge2.ops.sort import ArgSort, Sort
from ge2.passes.reads import OrderStatistics
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import STORED, SUFFIX
from ge2.targets.cuda.kernels import NOTHING, CudaWays
from ge2.targets.cuda.kernels.gather import Writes
from ge2.targets.cuda.kernels.lines import (
    BLOCK,
    DIGIT,
    LONGEST,
    LargestOfLines,
    Ranking,
    key_name,
    key_of,
)
from ge2.targets.cuda.kernels.moves import Grid, Spread, added
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST, WARP
from ge2.targets.cuda.tuning import Sorts

# -------- Networks of comparators: the same pairs of keys meet whatever the keys are, so each key is
# in a register of its own.


Network = tuple[tuple[int, int], ...]


@cache
def merge_exchange(n: int) -> Network:
    """The comparators that put n keys in order: K. E. Batcher's merge exchange (1968), as in D. E.
    Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M.

    >>> merge_exchange(3), len(merge_exchange(32))
    (((0, 2), (0, 1), (1, 2)), 191)
    """
    found, most = list[tuple[int, int]](), 1 << (n - 1).bit_length() >> 1
    p = most
    while p:
        q, r, apart = most, 0, p
        while True:
            found += [(i, i + apart) for i in range(n - apart) if i & p == r]
            if q == p:
                break
            apart, q, r = q - p, q // 2, p
        p //= 2
    return tuple(found)


@cache
def merged_halves(n: int) -> Network:
    """The comparators that put n keys in order, a power of two, which rise and then fall, or fall
    and then rise: the end of a bitonic merge.

    >>> merged_halves(4)
    ((0, 2), (1, 3), (0, 1), (2, 3))
    """
    parts = (n >> step for step in range(1, n.bit_length()))
    return tuple((i, i + apart) for apart in parts for i in range(n) if not i & apart)


@cache
def pruned(network: Network, wanted: frozenset[int]) -> Network:
    """The comparators on which the keys of the ranks that are wanted depend.

    >>> pruned(merge_exchange(4), frozenset({0}))
    ((0, 2), (1, 3), (0, 1))
    """
    alive, found = set(wanted), list[tuple[int, int]]()
    for pair in reversed(network):
        if not alive.isdisjoint(pair):
            alive.update(pair)
            found.append(pair)
    return tuple(reversed(found))


# -------- Lines in registers, in CUDA. A line of up to 64 keys of a word is one thread's; of longer
# ones, and of keys of more words, several lanes of a warp have 32 each, and merge what they have in
# order by shuffles.
# Of 32 float32 rows of 32 a warp has 1120 instructions, 800 of which are among those of which a
# multiprocessor of an H200 starts two in a clock: 57 us of 2^20 rows, whose bytes take 64 us.


@final
@record
class Walk:
    """The order in which the elements of an array's lines are visited: lines first (`down`), where
    these are side by side, or a line's elements; `flat` if all are one after another. `unrolled`:
    iterations; of a place that takes a division few, or each of them has a register.
    """

    down: bool
    flat: bool
    unrolled: int
    split: tuple[Text, ...]
    place: str


@final
@record
class InRegisters:
    """The view that `templates/cuda/network.cu.jinja` prints."""

    stored: str
    index: str
    word: str
    lines: str
    read: Walk
    write: Walk
    keyed: str
    last: str
    key: str
    odd: str
    value: str
    network: tuple[Text, ...]
    merge: tuple[Text, ...]
    kept: str
    ranks: tuple[int, ...]
    result: str


@final
@record
class Split:
    """The lanes that share a line, and the keys that each has of it, of so many words of 32 bits."""

    lanes: int
    keys: int
    words: int

    @property
    def lines(self) -> int:
        """The lines of a warp."""
        return WARP // self.lanes


def split_of(n: int, dtype: np.dtype, placed: bool, tuning: Sorts) -> Split:
    """The fewest lanes that have registers for a line of `n`; `placed`: keys take places along."""
    size = key_of(dtype).itemsize
    words = max(size // 4, 1) + (placed and size >= 4)
    if n <= (tuning.alone if words == 1 else tuning.keys):
        return Split(1, n, words)
    lanes = 1 << (-(-n // tuning.keys) - 1).bit_length()
    return Split(lanes, 1 << (-(-n // lanes) - 1).bit_length(), words)


@final
class OrderedLines:
    """The kernel that puts short lines in order in registers, or finds elements of some ranks."""

    def __init__(self, lines: LargestOfLines, tuning: Sorts) -> None:
        self.lines, self.op, self.n, self.tuning = lines, lines.op, lines.n, tuning
        self.placed = isinstance(self.op, ArgSort)
        self.split = split_of(self.n, lines.t.dtype, self.placed, tuning)
        self.ranks = self.op.ranks if isinstance(self.op, OrderStatistics) else ()
        self.counts = {"N": self.n, "RANKS": len(self.ranks) or self.n}
        self.suffix = SUFFIX[lines.t.dtype]

    def kernel(self) -> CudaKernel:
        lines, split, block = self.lines, self.split, self.tuning.block
        grid = Grid(lines.far, block)
        grid.fixed += [
            Fixed("N", self.n, "elements of a line"),
            Fixed("RANKS", self.counts["RANKS"], "elements of a line that are wanted"),
            Fixed("LANES", split.lanes, "threads that share a line"),
            Fixed("KEYS", split.keys, "keys of a thread"),
            Fixed("WARPS", block // WARP, "warps of a block"),
        ]
        view = self.view(grid)
        blocks = -(-lines.count // (block // split.lanes))
        return grid.kernel(self.op.name, lines.title, view, blocks * block, "network")

    def view(self, grid: Grid) -> InRegisters:
        lines, split, key = self.lines, self.split, key_name(self.lines.key)
        result = "index" if self.placed else "y"
        grid.array("x", lines.x, lines.t.dtype)
        grid.result(result, lines.outs[0], lines.types[0].dtype)
        keyed = f"ge2_sort_key_{self.suffix}(each)"
        word, last = WORDS[split.words] if self.placed else WORDS[min(split.words, 2)]
        value = f"ge2_sort_value_{self.suffix}(({key})word)"
        settled = isinstance(self.op, Sort) and lines.t.dtype in INEXACT
        return InRegisters(
            STORED[lines.t.dtype], grid.whole, word, grid.size("lines", lines.count),
            self.walk(grid, "x", lines.x_over, lines.step, "N"),
            self.walk(grid, result, lines.to_over[0], lines.steps[0], "RANKS"),
            f"ge2_network_placed({keyed}, t)" if self.placed else f"({word}){keyed}", last, keyed,
            f"ge2_sort_odd_{self.suffix}(each)" if settled else "", "" if self.placed else value,
            comparators(self.network), comparators(self.merge), self.kept, self.ranks, result,
        )  # fmt: skip

    @property
    def network(self) -> Network:
        whole = merge_exchange(self.split.keys)
        return pruned(whole, frozenset(self.ranks)) if self.ranks and not self.merge else whole

    @property
    def merge(self) -> Network:
        return merged_halves(self.split.keys) if self.split.lanes > 1 else ()

    @property
    def kept(self) -> str:
        """The keys of a lane that are wanted, a bit for each."""
        keys = self.split.keys
        wanted = {rank % keys for rank in self.ranks} or range(keys)
        return f"{sum(1 << i for i in wanted):#x}ull"

    def walk(self, grid: Grid, name: str, over: Sequence[int], step: int, count: str) -> Walk:
        """The walk over the lines of an array whose elements are `step` apart."""
        lines, n = self.lines, self.counts[count]
        down = bool(over) and n > 1 and abs(over[-1]) < abs(step)
        whole = down or n & (n - 1) == 0
        unrolled = self.tuning.unrolled if whole else self.tuning.divided
        if step == 1 and tuple(over) in ((), (n,)):
            return Walk(False, True, unrolled, (), f"p * {count} + t")
        split = grid.split("p", lines.letters, grid.sizes(lines.letters, lines.over))
        along = "t" if step == 1 else f"({grid.whole})t * {grid.size(f'{name}_t', step)}"
        place = added(grid.place(name, lines.letters, over), along)
        return Walk(down, False, unrolled, tuple(split), place)


# the type of a key with its place, by its words of 32 bits, and one that comes after all
WORDS: Final = {
    1: ("uint32_t", "UINT32_MAX"),
    2: ("uint64_t", "UINT64_MAX"),
    3: ("ge2_network_pair", "ge2_network_pair{UINT64_MAX, UINT32_MAX}"),
}


def comparators(network: Network) -> tuple[Text, ...]:
    """The statements of a network, a few a line."""
    calls = [f"order({i}, {j});" for i, j in network]
    return tuple(Text(" ".join(calls[i : i + 6])) for i in range(0, len(calls), 6))


# -------- Lines in order, in CUDA: short ones in registers, longer ones by a block in shared
# memory. Lines that are longer still are sorted by CuPy.


REGISTERS, RANKED, SHARED = "in registers", "ranked by a few threads", "a block for each line"
SELECTED = "selected by a block for each line"
BY_ALL = "selected by all blocks, a digit a launch"
DIGITS = "by digits, a block for each line"


@final
class CudaSort(CudaWays):
    name = "sort in CUDA"
    ops = (Sort, ArgSort, OrderStatistics)
    anywhere = True
    ranked = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, Sort | ArgSort | OrderStatistics)
        (t,) = problem.inputs
        n, chip = t.shape[op.axis], ASSUMED if caps is None else caps.chip
        if t.dtype in COMPLEX:
            return "complex numbers are sorted by CuPy"
        lines, alone = t.size // max(n, 1), chip.tuning.top_k.long
        if lines > GRID_MOST[0]:
            return "there are too many lines"
        if isinstance(op, OrderStatistics):
            return "" if n < LONGEST else f"places of {n} elements have more than 31 bits"
        if n > (most := chip.tuning.sorts.longest):
            return f"a block sorts {most} elements, not {n}"
        alone = lines == 1 and n > longest(static_of(caps))
        return f"one line of {n} elements is sorted by all blocks" if alone else ""

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        ins, outs = problem.arrays
        if not problem.outs[0].size:
            return (NOTHING,)
        lines, tuning = LargestOfLines(problem, ins[0], outs, caps.chip), caps.chip.tuning.sorts
        most = longest_in_registers(tuning)
        long = f"a line has {lines.n} elements, more than {most}" if lines.n > most else ""
        found = Variant(REGISTERS, lambda: Kernels((OrderedLines(lines, tuning).kernel(),)), long)
        if isinstance(problem.op, OrderStatistics):
            ranks, most = problem.op.ranks, tuning.ranks
            short = lines.parts(tuning.part) < 2
            idle = "lines are short, or enough for all multiprocessors" if short else ""
            return (
                found,
                Variant(SELECTED, lambda: Kernels((lines.of_ranks(ranks),))),
                Variant(BY_ALL, lambda: lines.of_ranks_by_all(ranks, tuning.part, most), idle),
            )
        return (
            found,
            Variant(RANKED, lambda: Kernels((lines.ranked(),)), lines.long),
            Variant(SHARED, lambda: Kernels((ordered(lines),)), too_long(lines.n, caps)),
            Variant(DIGITS, lambda: by_digits(lines, tuning)),
        )

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """The bytes of the arrays, or the instructions of all lines, whichever takes longer."""
        (t,), op, speed = problem.inputs, problem.op, caps.speed
        assert isinstance(op, Sort | ArgSort | OrderStatistics)
        n, tuning = t.shape[op.axis], caps.chip.tuning.sorts
        counts = {
            REGISTERS: lambda: in_registers(n, t.dtype, op, tuning),
            RANKED: lambda: by_rank(n, t.dtype, tuning),
            SHARED: lambda: in_shared(n, tuning),
            SELECTED: lambda: by_selection(n, op, tuning),
            BY_ALL: lambda: 4.0 * -(-n // WARP) * tuning.digit,
            DIGITS: lambda: in_digits(n, t.dtype, tuning),
        }
        count = counts[variant.name]() if t.size else 0
        lines, chip = t.size / max(n, 1), caps.chip
        busy, launches = chip.multiprocessors, 1
        moved = bytes_of(problem)
        if variant.name in (SELECTED, SHARED, DIGITS):
            busy = min(busy, max(int(lines), 1))
        elif variant.name == BY_ALL:  # random keys are few after two digits
            assert isinstance(op, OrderStatistics)
            turns = -(-len(op.ranks) // tuning.ranks)
            launches, moved = turns * (-(-8 * t.dtype.itemsize // DIGIT) + 3), 3 * turns * moved
        started = busy * tuning.started * caps.limits.clock
        memory = moved / (speed.cached if moved < speed.cache else speed.moved)
        return launches * speed.launch + max(memory, lines * count / started)


def static_of(caps: Caps | None) -> int:
    """Bytes of shared memory that a block has without asking."""
    return ASSUMED.shared_static if caps is None else caps.chip.static


def longest_in_registers(tuning: Sorts) -> int:
    """Elements of a line that a warp has in registers."""
    return WARP * tuning.keys


def in_registers(
    n: int, dtype: np.dtype, op: Sort | ArgSort | OrderStatistics, tuning: Sorts
) -> float:
    """The instructions of a warp for a line in registers."""
    split, ranks = split_of(n, dtype, isinstance(op, ArgSort), tuning), frozenset[int]()
    if isinstance(op, OrderStatistics) and split.lanes == 1:
        ranks = frozenset(op.ranks)
    whole = merge_exchange(split.keys)
    comparators = len(pruned(whole, ranks) if ranks else whole)
    merges = split.lanes.bit_length() - 1
    comparators += merges * len(merged_halves(split.keys)) if merges else 0
    shuffled = merges * (merges + 1) // 2 * split.keys
    each = tuning.comparator[split.words - 1]
    keys = split.keys * tuning.key * split.words
    return (comparators * each + shuffled * (each // 2 + 2 * split.words) + keys) / split.lines


def by_rank(n: int, dtype: np.dtype, tuning: Sorts) -> float:
    """The instructions of a warp for a line whose elements count those before them."""
    team, words = min(WARP, 1 << (n - 1).bit_length()), max(key_of(dtype).itemsize // 4, 1)
    return -(-n // WARP) * (n * tuning.pair + tuning.key * words) * words * team / WARP


def in_shared(n: int, tuning: Sorts) -> float:
    """The instructions of the warps of a block for a line in shared memory."""
    steps = (n - 1).bit_length()
    pairs = max(1 << steps >> 1, BLOCK) // WARP
    return steps * (steps + 1) // 2 * pairs * tuning.shared_pair


def by_selection(n: int, op: Sort | ArgSort | OrderStatistics, tuning: Sorts) -> float:
    """The instructions of the warps of a block that finds some ranks of a line."""
    assert isinstance(op, OrderStatistics)
    return len(op.ranks) * (tuning.digits + 3 * -(-n // WARP) * tuning.digit)


def in_digits(n: int, dtype: np.dtype, tuning: Sorts) -> float:
    """The instructions of the warps of a block that sorts a line by its digits."""
    tiles = -(-n // (tuning.threads * run_of(n, dtype, False, tuning)))
    moved = -(-n // WARP) * tuning.moved + tiles * tuning.tile
    return dtype.itemsize * moved + -(-n // WARP) * tuning.digit


def too_long(n: int, caps: Caps) -> str:
    """The reason why a block has no room for a line in shared memory; "" if it has."""
    most = longest(static_of(caps))
    return f"a line has {n} elements, more than {most}" if n > most else ""


def longest(shared: int) -> int:
    """Elements of a line that a block sorts in so many bytes of shared memory: a power of two, of
    keys of eight bytes and places of two.
    """
    return 1 << (shared // (8 + 2)).bit_length() - 1


def ordered(lines: LargestOfLines) -> CudaKernel:
    """A block for each line."""
    grid, size = Grid(lines.far, BLOCK), 1 << (lines.n - 1).bit_length()
    grid.fixed.append(Fixed("SIZE", size, "elements of a line, and what fills them up"))
    split, begin = lines.split(grid), lines.begin(grid)
    grid.size("n", lines.n)
    keyed, key = lines.keyed("t", grid), key_name(lines.key)
    view = Ranking(key, grid.whole, "blockIdx.x", split, begin, keyed, lines.writes(grid))
    return lines.kernel(grid, lines.op.name, view, lines.count, "sort")


# -------- Longer lines by their digits, a block each: keys go between two arrays, a tile of them in
# order at a time, so that those of one digit are written side by side.
# Of 256 rows of 32000 float32 each digit moves 66 MB, which a cache of 50 MB holds for the most part.


@final
@record
class ByDigits:
    """The view that `templates/cuda/radix.cu.jinja` prints."""

    key: str
    index: str
    split: tuple[Text, ...]
    begin: str
    keyed: str
    element: str
    odd: str
    zero: str
    placed: bool
    value: str
    result: str
    to: str


def run_of(n: int, key: np.dtype, placed: bool, tuning: Sorts) -> int:
    """The keys of a thread at a time: as many as registers hold, if there are so many."""
    most = tuning.run // (2 if placed or key.itemsize > 4 else 1)
    return max(min(most, -(-n // tuning.threads)), 1)


def by_digits(lines: LargestOfLines, tuning: Sorts) -> Kernels:
    placed, key, suffix = isinstance(lines.op, ArgSort), lines.key, SUFFIX[lines.t.dtype]
    grid, run = Grid(lines.far, tuning.threads), run_of(lines.n, key, placed, tuning)
    grid.fixed += [
        Fixed("THREADS", tuning.threads, "of a block"),
        Fixed("RUN", run, "keys of a thread at a time"),
    ]
    split, begin = lines.split(grid), lines.begin(grid)
    grid.size("n", lines.n)
    keyed, element = lines.keyed("t", grid), lines.element("t", grid)
    keys, places = Operand("temp", 0, (1,)), Operand("temp", 1, (1,))
    grid.result("keys", keys, key)
    if placed:
        grid.result("places", places, INT)
    result, name = lines.outs[0], "index" if placed else "y"
    grid.result(name, result, lines.types[0].dtype)
    to = grid.place(name, (*lines.letters, "rank"), (*lines.to_over[0], lines.steps[0]))
    settled = isinstance(lines.op, Sort) and lines.t.dtype in INEXACT
    view = ByDigits(
        key_name(key), grid.whole, split, begin, keyed, element,
        f"ge2_sort_odd_{suffix}({element})" if settled else "", f"ge2_sort_key_{suffix}(0)",
        placed, "place" if placed else f"ge2_sort_value_{suffix}(word)", name, to,
    )  # fmt: skip
    kernel = grid.kernel(lines.op.name, lines.title, view, lines.count * tuning.threads, "radix")
    each, count = tuning.threads * run, 2 * lines.count * lines.n
    warps = tuning.threads // WARP
    room = 1024 * key.itemsize + 2560 + 512 * warps + each * (key.itemsize + 4 * placed) + 16
    temps = (count * key.itemsize, count * INT.itemsize)[: 1 + placed]
    return Kernels((replace(kernel, shared=room),), temps)


# -------- Updates in the order of their places, up to `in_tiles` of them, in few launches: the kernel
# that finds the places counts the lowest digits in each tile, and each digit is one kernel more, whose
# blocks add up the counts of all tiles before their own, and count the next digit of what they move.
# Of 262144 updates of 65536 places each of 128 blocks reads 128 KB of counts, 16 MB in all: of those of
# 64 blocks, half as many, half of the multiprocessors have none.


@final
@record
class Placing:
    """The view that `templates/cuda/scatter_sums/placing.cu.jinja` prints."""

    spread: Spread
    update: tuple[Text, ...]


INT: Final = np.dtype(np.int32)
Pair = tuple[Operand, Operand]
# threads of a block, blocks that are enough, bits of a digit at most
ORDERING, TILES, WIDEST_DIGIT = 1024, 128, 9


@final
class TileOrder:
    """The kernels that put updates in the order of their places; `pairs`: arrays of numbers and places."""

    def __init__(self, writes: Writes, pairs: tuple[Pair, Pair]) -> None:
        self.writes, self.rows, self.pairs = writes, writes.rows, pairs
        bits = max((self.rows.places - 1).bit_length(), 1)
        self.turns = turns_of(bits, self.rows.far)
        self.bits = -(-bits // self.turns)
        self.tile = ORDERING * -(-self.rows.count // (TILES * ORDERING))
        self.tiles = -(-self.rows.count // self.tile)
        self.counts = self.writes.temp(self.turns * self.tiles << self.bits, INT)

    def run(self) -> Pair:
        """Their numbers in the order of their places, and those places."""
        numbers: Operand | None = None
        places = self.placing()
        for turn in range(self.turns):
            self.moving(numbers, places, self.pairs[turn % 2], turn)
            numbers, places = self.pairs[turn % 2]
        assert numbers is not None
        return numbers, places

    def grid(self) -> Grid:
        grid = Grid(self.rows.far, ORDERING)
        grid.fixed += [
            Fixed("BITS", self.bits, "of a digit"),
            Fixed("TILE", self.tile, "updates of a block"),
        ]
        return grid

    def placing(self) -> Operand:
        writes, rows, grid = self.writes, self.rows, self.grid()
        grid.fixed += [
            Fixed("TURNS", self.turns, "digits"),
            Fixed("THREADS", ORDERING, "of a block"),
        ]
        found = writes.temp(rows.count, writes.number)
        spread, indices = grid.spread(rows.i, rows.over), rows.wrapped(grid)
        grid.result("places", found, writes.number)
        grid.result("counts", self.counts, INT)
        line = Text(f"const {grid.whole} place = {rows.place(grid)};")
        what, threads = "where each update goes, and the lowest digits", self.tiles * ORDERING
        view = Placing(spread, (*indices, line))
        writes.add(grid, "placing", view, threads, what, "scatter_sums/placing")
        return found

    def moving(self, numbers: Operand | None, places: Operand, to: Pair, turn: int) -> None:
        grid, number = self.grid(), self.writes.number
        grid.array("places", places, number)
        moved = f"({grid.whole} *)0" if numbers is None else grid.array("numbers", numbers, number)
        n = grid.size("n", self.rows.count)
        for name, operand, dtype in zip(
            ("counts", "order", "sorted"), (self.counts, *to), (INT, number, number), strict=True
        ):
            grid.result(name, operand, dtype)
        last = "true" if turn + 1 == self.turns else "false"
        call = f"places, {moved}, (int){n}, {turn}, counts, order, sorted"
        first = self.bits * turn
        what = (
            f"the updates in the order of bits {first} to {first + self.bits - 1} of their places"
        )
        line = Text(f"ge2_digit_tile_moves<BITS, TILE, {last}>({call});")
        self.writes.add(grid, "digit move", (line,), self.tiles * ORDERING, what)


def placed_in_tiles(writes: Writes, block: int, run: int, counts: Operand) -> Operand:
    """Where each update goes; its kernel also counts the lowest digits in each tile of `run` updates of
    each thread of a block.
    """
    rows, grid = writes.rows, Grid(writes.rows.far, block)
    found = writes.temp(rows.count, writes.number)
    split = grid.split("p", rows.i, grid.sizes(rows.i, rows.over))
    body = (*split, *rows.wrapped(grid), Text(f"return {rows.place(grid)};"))
    grid.result("places", found, writes.number)
    grid.result("counts", counts, writes.number)
    n, whole = grid.size("n", rows.count), grid.whole
    place = Text(f"const auto place = [&]({whole} p)", body=body, end=";")
    count = Text(f"ge2_digit_counts<{run}>(place, places, {n}, ({whole})0, counts);")
    what, threads = "where each update goes, and the lowest digits", -(-rows.count // run)
    writes.add(grid, "placing", (place, count), threads, what)
    return found


def turns_of(bits: int, far: bool) -> int:
    """The digits of numbers of so many bits; of those of 64 shared memory has room for fewer counts."""
    return -(-bits // (WIDEST_DIGIT - far))
