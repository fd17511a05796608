"""Kernels of the largest elements of lines, and of short lines whose elements count those before them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, HALF
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Text
from ge2.ops.reduce import kept
from ge2.ops.sort import ArgSort, Sort, TopK
from ge2.passes.reads import OrderStatistics
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import SUFFIX
from ge2.targets.cuda.kernels.generated import NOTHING, CudaWays, Operands
from ge2.targets.cuda.kernels.moves import OVER, Grid, far, lettered
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST, Chip
from ge2.targets.cuda.tuning import TopKs

# -------- The largest elements of lines in CUDA: a few threads rank a short line, a block selects
# from a long one.
# Lines that are long and few are cut into parts, from whose largest elements those of the line are
# selected.


BLOCK: Final = 256  # GE2_TOP_BLOCK of top.cuh: threads of a block
MOST: Final = 512  # GE2_TOP_MOST of top.cuh: elements that a block keeps
LONGEST: Final = 1 << 31  # the elements of a line whose places are int
INT: Final = np.dtype(np.int32)


@final
class CudaTop(CudaWays):
    name = "top_k in CUDA"
    ops = (TopK,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        assert isinstance(op, TopK)
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
    """What the templates in `templates/cuda/top_k` print."""

    key: str
    index: str
    number: str
    split: tuple[Text, ...]
    begin: str
    keyed: str
    writes: tuple[Text, ...] = ()
    of_parts: bool = False
    block: int = BLOCK


@final
class LargestOfLines:
    """The lines of an array, and where their largest elements and the indices of these go; or
    all elements, the least first, those of some ranks, or the indices of these.
    """

    def __init__(self, problem: Problem, x: Operand, outs: Operands, chip: Chip) -> None:
        (self.t,), self.op, self.title = problem.inputs, problem.op, described(problem)
        assert isinstance(self.op, TopK | Sort | ArgSort | OrderStatistics)
        self.x, self.outs, self.types, self.chip = x, outs, problem.outs, chip
        axis, self.n = self.op.axis, self.t.shape[self.op.axis]
        self.k = self.op.k if isinstance(self.op, TopK) else self.n
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
        """Why a few threads do not rank a line; "" if they do."""
        most = self.chip.tuning.top_k.ranked
        return f"a line has {self.n} elements, more than {most}" if self.n > most else ""

    def parts(self) -> int:
        """Into how many parts each line is cut, so that there is a block for
        each multiprocessor.
        """
        units, tuning = self.chip.multiprocessors, self.chip.tuning.top_k
        if self.n < tuning.long or self.count >= units:
            return 1
        return max(min(-(-2 * units // self.count), self.n // tuning.part), 1)

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
        split, begin, keyed = self.split(grid), self.begin(grid), self.keyed("t", grid)
        grid.size("k", self.k)
        if not isinstance(self.op, TopK):  # the largest of these keys is the least
            keyed = f"({key_name(self.key)})~{keyed}"
        view = Ranking(
            key_name(self.key), grid.whole, f"p < {lines} ? p : 0", split, begin, keyed, self.writes(grid)
        )  # fmt: skip
        blocks = -(-self.count // (BLOCK // team))
        return self.kernel(grid, self.op.name, view, blocks, "top_k/ranked")

    def selected(self, parts: int, given: Sequence[Operand]) -> CudaKernel:
        """Long lines, a block each; or what is left of them in parts:
        keys, and where they come from.
        """
        grid = Grid(self.far, BLOCK)
        split, begin = self.split(grid), self.begin(grid)
        grid.size("n", parts * self.k if given else self.n)
        keyed = "" if given else self.keyed("t", grid)
        for name, operand, dtype in zip(("of_parts", "at"), given, (self.key, INT), strict=False):
            grid.array(name, operand, dtype)
        grid.size("k", self.k)
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x", split, begin, keyed, self.writes(grid), bool(given)
        )  # fmt: skip
        return self.kernel(grid, "top_k", view, self.count, "top_k/selected")

    def cut(self, parts: int, to: Sequence[Operand]) -> CudaKernel:
        """The largest of each part, in order, with their indices in the line."""
        grid = Grid(self.far, BLOCK)
        for name, value in (("n", self.n), ("parts", parts), ("k", self.k)):
            grid.size(name, value)
        keyed = self.keyed("(begin + t)", grid)
        for name, operand, dtype in zip(("of_parts", "at"), to, (self.key, INT), strict=True):
            grid.result(name, operand, dtype)
        view = Ranking(
            key_name(self.key), grid.whole, "blockIdx.x / parts", self.split(grid), self.begin(grid), keyed
        )  # fmt: skip
        return self.kernel(grid, "top_k of parts", view, self.count * parts, "top_k/parts")

    # -- their lines

    def kernel(
        self, grid: Grid, kind: str, view: Ranking, blocks: int, template: str
    ) -> CudaKernel:
        return grid.kernel(kind, self.title, view, blocks * BLOCK, template)

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

    def element(self, t: str, grid: Grid) -> str:
        if self.step == 1:
            return f"x[from + {t}]"
        return f"x[from + ({grid.whole}){t} * {grid.size('x_t', self.step)}]"

    def writes(self, grid: Grid) -> tuple[Text, ...]:
        """An element goes to its rank, and its index `at_line`, by which it is read once more."""
        names = {"top_k": ("y", "index"), "sort": ("y",), "argsort": ("index",)}[self.op.name]
        writes = []
        for name, operand, t, over, step in zip(
            names, self.outs, self.types, self.to_over, self.steps, strict=True
        ):
            value = "at_line" if name == "index" else self.element("at_line", grid)
            grid.result(name, operand, t.dtype)
            to = grid.place(name, (*self.letters, "rank"), (*over, step))
            writes.append(Text(f"{name}[{to}] = {value};"))
        return tuple(writes)


def tuning_of(caps: Caps | None) -> TopKs:
    return ASSUMED.tuning.top_k if caps is None else caps.chip.tuning.top_k


def key_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the keys in whose order elements are; those of half types have 32 bits."""
    size = 4 if dtype in HALF else dtype.itemsize
    return np.dtype(f"u{size}")


def key_name(dtype: np.dtype) -> str:
    return f"uint{8 * dtype.itemsize}_t"
