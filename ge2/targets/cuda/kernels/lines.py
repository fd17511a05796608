"""Kernels of the lines of an array along an axis: orders, and the largest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, HALF
from ge2.base.record import record
from ge2.choice import Problem, Variant, described
from ge2.codegen.layout import merged
from ge2.codegen.text import Operand, Text
from ge2.ir import ArrayType
from ge2.ops.reduce import kept
from ge2.ops.sort import ArgSort, Sort, TopK
from ge2.passes.reads import FirstRanks, OrderStatistics
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import SUFFIX
from ge2.targets.cuda.kernels import NOTHING, CudaWays, Operands, filling
from ge2.targets.cuda.kernels.moves import OVER, Grid, far, lettered
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST, Chip
from ge2.targets.cuda.tuning import TopKs

# -------- Kernels of the largest elements of lines, and of short lines whose elements count those
# before them.


# -------- The largest elements of lines in CUDA: a few threads rank a short line, a block selects
# from a long one.
# Lines that are long and few are cut into parts, from whose largest elements those of the line are
# selected.


BLOCK, LARGER = 256, 512  # threads of a block, and of one that has a line of
LONG: Final = 1 << 13  # elements or more
MOST: Final = 512  # GE2_TOP_MOST of top.cuh: elements that a block keeps
LONGEST: Final = 1 << 31  # the elements of a line whose places are int
DIGIT, STATE = 11, 5  # GE2_TOP_BITS; words of what is known of a key between launches
INT: Final = np.dtype(np.int32)
WORD: Final = np.dtype(np.uint64)


@final
class CudaTop(CudaWays):
    name = "top_k in CUDA"
    ops = (TopK, FirstRanks)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, TopK | FirstRanks)
        (t,) = problem.inputs
        n = t.shape[op.axis]
        if t.dtype in COMPLEX:
            return "complex numbers have no order"
        if n > tuning_of(caps).ranked and op.k > MOST:
            return f"a block keeps {MOST} elements, not {op.k}"
        lines = t.size // max(n, 1)
        return (
            "" if n < LONGEST and lines <= GRID_MOST[0] else "there are too many elements, or lines"
        )

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        ins, outs = problem.arrays
        if not problem.outs[0].size:
            return (NOTHING,)
        lines = LargestOfLines(problem, ins[0], outs, caps.chip)
        parts = lines.parts()
        idle = "" if parts == 1 else "lines are long, and too few for all multiprocessors"
        busy = "" if parts > 1 else "lines are short, or enough for all multiprocessors"
        return (
            Variant("ranked by a few threads", lambda: Kernels((lines.ranked(),)), lines.long),
            Variant("a block for each line", lambda: Kernels((lines.selected(1, ()),)), idle),
            Variant(f"in {parts} parts of each line", lambda: in_parts(lines, parts), busy),
        )


def in_parts(lines: LargestOfLines, parts: int) -> Kernels:
    """The largest of each part, and of these the largest of each line."""
    count = lines.count * parts * lines.k
    keys = Operand("temp", 0, (1,)), Operand("temp", 1, (1,))
    kernels = lines.cut(parts, keys), lines.selected(parts, keys)
    return Kernels(kernels, (count * lines.key.itemsize, count * INT.itemsize))


@final
@record
class Ranking:
    """The view that the templates in `templates/cuda/top_k` print."""

    key: str
    index: str
    number: str
    split: tuple[Text, ...]
    begin: str
    keyed: str
    writes: tuple[Text, ...] = ()
    of_parts: bool = False
    block: int = BLOCK
    rank: str = ""  # of number `r`
    turn: int = 0  # of `turns`, of which each knows so many bits more, above those that are left
    turns: int = 0
    bits: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@final
class LargestOfLines:
    """The lines of an array, and where their largest elements and the indices of these go; or
    all elements, the least first, those of some ranks, or the indices of these.
    """

    def __init__(self, problem: Problem, x: Operand, outs: Operands, chip: Chip) -> None:
        (self.t,), self.op, self.title = problem.inputs, problem.op, described(problem)
        assert isinstance(self.op, TopK | FirstRanks | Sort | ArgSort | OrderStatistics)
        self.x, self.outs, self.types, self.chip = x, outs, problem.outs, chip
        axis, self.n = self.op.axis, self.t.shape[self.op.axis]
        self.k = self.op.k if isinstance(self.op, TopK | FirstRanks) else self.n
        others = kept((axis,), self.t.ndim)
        parts = [
            tuple(s[a] for a in others)
            for s in (self.t.shape, x.strides, *(o.strides for o in outs))
        ]
        self.over, (self.x_over, *self.to_over) = merged(*parts)
        self.letters = lettered(OVER, len(self.over))
        self.step, self.steps = x.strides[axis], [o.strides[axis] for o in outs]
        self.count = math.prod(self.over)
        self.key = key_of(self.t.dtype)
        laid = [(t.shape, o.strides) for t, o in zip(problem.outs, outs, strict=True)]
        self.far = far((self.t.size, self.count * BLOCK), (self.t.shape, x.strides), *laid)

    @property
    def long(self) -> str:
        """The reason why a few threads do not rank a line; "" if they do."""
        most = self.chip.tuning.top_k.ranked
        return f"a line has {self.n} elements, more than {most}" if self.n > most else ""

    def parts(self, least: int = 0) -> int:
        """Into how many parts each line is cut, of so many elements at least, so that there is a block
        for each multiprocessor.
        """
        units, tuning = self.chip.multiprocessors, self.chip.tuning.top_k
        if self.n < tuning.long or self.count >= units:
            return 1
        return max(min(-(-2 * units // self.count), self.n // (least or tuning.part)), 1)

    # -- kernels

    def ranked(self) -> CudaKernel:
        """Short lines: each element counts those that come before it."""
        grid = Grid(self.far, BLOCK)
        team = min(32, 1 << (self.n - 1).bit_length())
        width = self.chip.tuning.top_k.ranked if team == 32 else team
        grid.fixed += [
            Fixed("TEAM", team, "threads that share a line"),
            Fixed("WIDTH", width, "elements of a line at most"),
        ]
        grid.size("n", self.n)
        lines = grid.size("lines", self.count)
        split, begin, keyed = self.split(grid), self.begin(grid), self.ranking("t", grid)
        grid.size("k", self.k)
        view = Ranking(
            key_name(self.key), grid.whole, f"p < {lines} ? p : 0", split, begin, keyed, self.writes(grid)
        )  # fmt: skip
        blocks = -(-self.count // (BLOCK // team))
        return self.kernel(grid, self.op.name, view, blocks, "top_k/ranked")

    def selected(self, parts: int, given: Sequence[Operand]) -> CudaKernel:
        """Long lines, a block each; or what is left of them in parts:
        keys, and where they come from.
        """
        n = parts * self.k if given else self.n
        grid = Grid(self.far, block_of(n))
        split, begin = self.split(grid), self.begin(grid)
        grid.size("n", n)
        keyed = "" if given else self.ranking("t", grid)
        for name, operand, dtype in zip(("of_parts", "at"), given, (self.key, INT), strict=False):
            grid.array(name, operand, dtype)
        grid.size("k", self.k)
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x", split, begin, keyed, self.writes(grid), bool(given),
            grid.block,
        )  # fmt: skip
        return self.kernel(grid, self.op.name, view, self.count, "top_k/selected")

    def cut(self, parts: int, to: Sequence[Operand]) -> CudaKernel:
        """The largest of each part, in order, with their indices in the line."""
        grid = Grid(self.far, block_of(self.n // parts))
        for name, value in (("n", self.n), ("parts", parts), ("k", self.k)):
            grid.size(name, value)
        keyed = self.ranking("(begin + t)", grid)
        for name, operand, dtype in zip(("of_parts", "at"), to, (self.key, INT), strict=True):
            grid.result(name, operand, dtype)
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x / parts", self.split(grid), self.begin(grid), keyed,
            block=grid.block,
        )  # fmt: skip
        return self.kernel(
            grid, f"{self.op.name} of parts", view, self.count * parts, "top_k/parts"
        )

    def of_ranks(self, ranks: Sequence[int]) -> CudaKernel:
        """Elements of some ranks of long lines, a block each."""
        grid = self.grid_of(ranks)
        split, begin = self.split(grid), self.begin(grid)
        grid.size("n", self.n)
        keyed, rank = self.ranking("t", grid), self.number_of(ranks, grid)
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x", split, begin, keyed,
            self.write_ranks(grid), False, grid.block, rank,
        )  # fmt: skip
        return self.kernel(grid, self.op.name, view, self.count, "top_k/ranks")

    def grid_of(self, ranks: Sequence[int]) -> Grid:
        grid = Grid(self.far, block_of(self.n))
        grid.fixed.append(Fixed("RANKS", len(ranks), "elements of a line that are wanted"))
        return grid

    def number_of(self, ranks: Sequence[int], grid: Grid) -> str:
        """The rank of number `r`."""
        sizes = [grid.size(f"rank{r}", rank) for r, rank in enumerate(ranks)]
        rank = sizes[-1]
        for r, size in reversed(list(enumerate(sizes[:-1]))):
            rank = f"r == {r} ? (int){size} : {rank}"
        return rank

    def write_ranks(self, grid: Grid, first: int = 0) -> tuple[Text, ...]:
        """Statements that write the element of number `r`, and of so many before."""
        value = f"ge2_sort_value_{SUFFIX[self.t.dtype]}(({key_name(self.key)})~found)"
        grid.result("y", self.outs[0], self.types[0].dtype)
        letter = "place" if first else "r"
        to = grid.place("y", (*self.letters, letter), (*self.to_over[0], self.steps[0]))
        later = (Text(f"const {grid.whole} place = r + {first};"),) if first else ()
        return (*later, Text(f"y[{to}] = {value};"))

    def of_ranks_by_all(self, ranks: Sequence[int], part: int, most: int) -> Kernels:
        """The same of lines that are too few for all multiprocessors: `most` ranks at once, in parts of
        at least `part` elements, a block each.
        """
        kernels, temps = list[CudaKernel](), list[int]()
        for first in range(0, len(ranks), most):
            some = self.of_some_by_all(ranks[first : first + most], part, first)
            kernels += [kernel.shifted(len(temps)) for kernel in some.kernels]
            temps += some.temps
        return Kernels(tuple(kernels), tuple(temps))

    def of_some_by_all(self, ranks: Sequence[int], part: int, first: int) -> Kernels:
        """Elements of some ranks, of which so many come before: a launch for each digit of the keys."""
        size, parts = self.key.itemsize, max(self.parts(part), 1)
        turns = -(-8 * size // DIGIT)
        rooms = (turns << DIGIT) + 1, (turns + 1) * STATE, MOST  # words of counts, states and keys
        counts, states, keys = (self.count * len(ranks) * room for room in rooms)
        words = -(-counts // 2)
        given = tuple(Operand("temp", n, (1,)) for n in range(3))
        clear = filling(ArrayType((words,), WORD), None, given[0], self.chip)
        narrowed = [
            self.narrowed(ranks, parts, turn, turns, given, first) for turn in range(turns + 2)
        ]
        temps = (words * WORD.itemsize, states * WORD.itemsize, keys * size)
        return Kernels((*clear.kernels, *narrowed), temps)

    def narrowed(
        self, ranks: Sequence[int], parts: int, turn: int, turns: int, given: Sequence[Operand],
        first: int,
    ) -> CudaKernel:  # fmt: skip
        """Counts a digit of the keys that may be of these ranks; after all digits it keeps these, and at
        last finds which are.
        """
        grid, bits = self.grid_of(ranks), 8 * self.key.itemsize
        grid.fixed.append(Fixed("TURNS", turns, "digits of a key"))
        split, begin, keyed, rank, last = self.split(grid), "", "", "", turn > turns
        if not last:
            begin, keyed = self.begin(grid), self.ranking("(begin + t)", grid)
            grid.size("n", self.n)
            grid.size("parts", parts)
            grid.result("counts", given[0], INT)
            rank = "" if turn else self.number_of(ranks, grid)
        grid.result("states", given[1], WORD)
        if turn >= turns:
            grid.result("kept", given[2], self.key)
        left = tuple(max(bits - DIGIT * (n + 1), 0) for n in range(turns))
        digits = tuple(min(DIGIT, bits - DIGIT * n) for n in range(turns))
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x" if last else "blockIdx.x / parts", split, begin,
            keyed, self.write_ranks(grid, first) if last else (), False, grid.block, rank, turn, turns, digits, left,
        )  # fmt: skip
        kind, blocks = (self.op.name, 1) if last else (f"{self.op.name} of parts", parts)
        name = "top_k/kept" if last else "top_k/narrowed"
        return self.kernel(grid, kind, view, self.count * blocks, name)

    # -- their lines

    def kernel(
        self, grid: Grid, kind: str, view: Ranking, blocks: int, template: str
    ) -> CudaKernel:
        return grid.kernel(kind, self.title, view, blocks * grid.block, template)

    def split(self, grid: Grid) -> tuple[Text, ...]:
        """Returns where a line is along each axis, by its number."""
        if not self.letters:
            return ()
        return tuple(grid.split("q", self.letters, grid.sizes(self.letters, self.over)))

    def begin(self, grid: Grid) -> str:
        """Returns where a line begins."""
        grid.array("x", self.x, self.t.dtype)
        return grid.place("x", self.letters, self.x_over)

    def keyed(self, t: str, grid: Grid) -> str:
        """The key of element `t` of the line."""
        return f"ge2_sort_key_{SUFFIX[self.t.dtype]}({self.element(t, grid)})"

    def ranking(self, t: str, grid: Grid) -> str:
        """The key of element `t` where the largest key is the first."""
        key = self.keyed(t, grid)
        if isinstance(self.op, FirstRanks) and self.op.falling:
            return f"{key} + 1"  # NaN, of the largest key, is last
        return key if isinstance(self.op, TopK) else f"({key_name(self.key)})~{key}"

    def element(self, t: str, grid: Grid) -> str:
        if self.step == 1:
            return f"x[from + {t}]"
        return f"x[from + ({grid.whole}){t} * {grid.size('x_t', self.step)}]"

    def writes(self, grid: Grid) -> tuple[Text, ...]:
        """An element goes to its rank, and its index `at_line`, by which it is read once more."""
        both = ("y", "index")
        names = {"sort": ("y",), "argsort": ("index",)}.get(self.op.name, both)
        writes = []
        for name, operand, t, over, step in zip(
            names, self.outs, self.types, self.to_over, self.steps, strict=True
        ):
            value = "at_line" if name == "index" else self.element("at_line", grid)
            grid.result(name, operand, t.dtype)
            to = grid.place(name, (*self.letters, "rank"), (*over, step))
            writes.append(Text(f"{name}[{to}] = {value};"))
        return tuple(writes)


def block_of(n: int) -> int:
    """The threads that share a line of n elements."""
    return BLOCK if n < LONG else LARGER


def tuning_of(caps: Caps | None) -> TopKs:
    return ASSUMED.tuning.top_k if caps is None else caps.chip.tuning.top_k


def key_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the keys in whose order elements are; those of half types have 32 bits."""
    size = 4 if dtype in HALF else dtype.itemsize
    return np.dtype(f"u{size}")


def key_name(dtype: np.dtype) -> str:
    return f"uint{8 * dtype.itemsize}_t"
