"""The largest elements of lines in CUDA: a few threads rank a short line, a block
selects from a long one.

Lines that are long and few are cut into parts, from whose largest elements
those of the line are selected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.dtypes import COMPLEX, HALF
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Text
from ge2.ops.reduce import kept
from ge2.ops.sort import TopK
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import SUFFIX
from ge2.targets.cuda.kernels.element_grid import BLOCK, OVER, Grid, far, lettered
from ge2.targets.cuda.kernels.generated import Cuda, Operands

SHORT: Final = 128  # elements of a line that a warp ranks, each against all others
MOST: Final = 512  # GE2_TOP_MOST of top.cuh: elements that a block keeps
LONGEST: Final = 1 << 31  # the elements of a line whose places are int
LINES: Final = (1 << 31) - 1  # blocks of a grid
INT: Final = np.dtype(np.int32)


@final
class CudaTop(Cuda):
    name = "top_k in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, TopK):
            return f"{op.name} finds no largest elements"
        (t,) = problem.inputs
        n = t.shape[op.axis]
        if t.dtype in COMPLEX:
            return "complex numbers have no order"
        if n > SHORT and op.k > MOST:
            return f"a block keeps {MOST} elements, not {op.k}"
        lines = t.size // max(n, 1)
        return "" if n < LONGEST and lines <= LINES else "there are too many elements, or lines"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        (ins, outs), chip = problem.arrays, caps.chip
        if not problem.outs[0].size:
            return Kernels(())
        lines = Lines(problem, ins[0], outs)
        if lines.n <= SHORT:
            return Kernels((lines.ranked(),))
        parts = lines.parts(chip)
        if parts == 1:
            return Kernels((lines.selected(1, ()),))
        count = lines.count * parts * lines.k
        keys = Operand("temp", 0, (1,)), Operand("temp", 1, (1,))
        kernels = lines.cut(parts, keys), lines.selected(parts, keys)
        return Kernels(kernels, (count * lines.key.itemsize, count * INT.itemsize))


@final
class Lines:
    """The lines of an array, and where their largest elements and the indices of these go."""

    def __init__(self, problem: Problem, x: Operand, outs: Operands) -> None:
        (self.t,), self.op, self.title = problem.inputs, problem.op, described(problem)
        assert isinstance(self.op, TopK)
        self.x, self.outs, self.types = x, outs, problem.outs
        axis, self.k, self.n = self.op.axis, self.op.k, self.t.shape[self.op.axis]
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

    def parts(self, chip: Chip) -> int:
        """Into how many parts each line is cut, so that there is a block for
        each multiprocessor.
        """
        units, tuning = chip.multiprocessors, chip.tuning.top_k
        if self.n < tuning.long or self.count >= units:
            return 1
        return max(min(-(-2 * units // self.count), self.n // tuning.part), 1)

    # -- kernels

    def ranked(self) -> CudaKernel:
        """Short lines: each element counts those that come before it."""
        grid = Grid(self.far)
        team = min(32, 1 << (self.n - 1).bit_length())
        width = SHORT if team == 32 else team
        grid.fixed += [
            Fixed("TEAM", team, "threads that share a line"),
            Fixed("WIDTH", width, "elements of a line at most"),
        ]
        n, lines = grid.size("n", self.n), grid.size("lines", self.count)
        key = key_name(self.key)
        body = [
            Text(f"__shared__ {key} all[{BLOCK} / TEAM][WIDTH];"),
            Text(
                f"const {grid.whole} p = ({grid.whole})blockIdx.x * ({BLOCK} / TEAM) + threadIdx.x / TEAM;"
            ),
            Text("const int lane = threadIdx.x % TEAM;"),
            Text(f"{key} *line = all[threadIdx.x / TEAM];"),
            *self.split(grid, f"p < {lines} ? p : 0"),
            self.read(grid),
            Text(f"for (int t = lane; t < {n}; t += TEAM) line[t] = {self.keyed('t', grid)};"),
            Text("__syncwarp();"),
            Text(f"if (p >= {lines}) return;"),
            *self.ranking("TEAM", f"line, (int){n}, {self.kept(grid)}, lane", "t", "t", grid),
        ]
        return self.kernel(grid, "top_k", body, -(-self.count // (BLOCK // team)))

    def selected(self, parts: int, given: Sequence[Operand]) -> CudaKernel:
        """Long lines, a block each; or what is left of them in parts:
        keys, and where they come from.
        """
        grid = Grid(self.far)
        body = [*self.room(grid), *self.split(grid, "blockIdx.x"), self.read(grid)]
        if not given:
            n, at, code = grid.size("n", self.n), "places[t]", self.keyed("t", grid)
        else:
            n = grid.size("n", parts * self.k)
            keys, where = (
                grid.array(name, operand, dtype)
                for name, operand, dtype in zip(
                    ("of_parts", "at"), given, (self.key, INT), strict=True
                )
            )
            body.append(Text(f"const {grid.whole} first = ({grid.whole})blockIdx.x * {n};"))
            code, at = f"{keys}[first + t]", f"{where}[first + places[t]]"
        k = self.kept(grid)
        body += [
            Text(f"const auto key = [&](int t) {{ return {code}; }};"),
            Text(f"ge2_top_select(keys, places, (int){n}, {k}, key);"),
            *self.ranking(f"{BLOCK}", f"keys, {k}, {k}, threadIdx.x", "places[t]", at, grid),
        ]
        return self.kernel(grid, "top_k", body, self.count)

    def cut(self, parts: int, to: Sequence[Operand]) -> CudaKernel:
        """The largest of each part, in order, with their indices in the line."""
        grid = Grid(self.far)
        n, count, k = grid.size("n", self.n), grid.size("parts", parts), self.kept(grid)
        code = self.keyed("(begin + t)", grid)
        found, where = (
            grid.result(name, operand, dtype)
            for name, operand, dtype in zip(("of_parts", "at"), to, (self.key, INT), strict=True)
        )
        body = [
            *self.room(grid),
            *self.split(grid, f"blockIdx.x / {count}"),
            self.read(grid),
            Text(f"const int64_t part = blockIdx.x % {count};"),
            Text(
                f"const int begin = (int)(part * {n} / {count}), end = (int)((part + 1) * {n} / {count});"
            ),
            Text(f"const auto key = [&](int t) {{ return {code}; }};"),
            Text(f"ge2_top_select(keys, places, end - begin, {k}, key);"),
            Text(f"const {grid.whole} first = ({grid.whole})blockIdx.x * {k};"),
            Text("const auto place = [&](int t) { return places[t]; };"),
            Text(
                f"ge2_top_rank<{BLOCK}>(keys, {k}, {k}, threadIdx.x, place, [&](int rank, int t)",
                body=(
                    Text(f"{found}[first + rank] = keys[t];"),
                    Text(f"{where}[first + rank] = begin + places[t];"),
                ),
                end=");",
            ),
        ]
        return self.kernel(grid, "top_k of parts", body, self.count * parts)

    # -- their lines

    def kernel(self, grid: Grid, kind: str, body: Sequence[Text], blocks: int) -> CudaKernel:
        return grid.kernel(kind, self.title, body, blocks * BLOCK)

    def kept(self, grid: Grid) -> str:
        return f"(int){grid.size('k', self.k)}"

    def room(self, grid: Grid) -> list[Text]:
        """Shared memory for what a block keeps."""
        codes = f"{key_name(self.key)} keys[GE2_TOP_MOST]", "int places[GE2_TOP_MOST]"
        return [Text(f"__shared__ {code};") for code in codes]

    def split(self, grid: Grid, number: str) -> list[Text]:
        """Where a line is along each axis, by its number."""
        if not self.letters:
            return []
        found = [Text(f"const {grid.whole} q = {number};")]
        return found + grid.split("q", self.letters, grid.sizes(self.letters, self.over))

    def read(self, grid: Grid) -> Text:
        """Where a line begins, in elements of the line."""
        grid.array("x", self.x, self.t.dtype)
        return Text(f"const {grid.whole} from = {grid.place('x', self.letters, self.x_over)};")

    def keyed(self, t: str, grid: Grid) -> str:
        """The key of element `t` of the line."""
        return f"ge2_sort_key_{SUFFIX[self.t.dtype]}({self.element(t, grid)})"

    def element(self, t: str, grid: Grid) -> str:
        if self.step == 1:
            return f"x[from + {t}]"
        return f"x[from + ({grid.whole}){t} * {grid.size('x_t', self.step)}]"

    def ranking(self, lanes: str, given: str, place: str, at: str, grid: Grid) -> list[Text]:
        """Each of the keys to its rank: the element, and its index `at`, by
        which it is read once more.
        """
        writes, values = [], (self.element("at_line", grid), "at_line")
        for name, operand, t, over, step, value in zip(
            ("y", "index"), self.outs, self.types, self.to_over, self.steps, values, strict=True
        ):
            grid.result(name, operand, t.dtype)
            to = grid.place(name, (*self.letters, "rank"), (*over, step))
            writes.append(Text(f"{name}[{to}] = {value};"))
        return [
            Text(f"const auto place = [&](int t) {{ return {place}; }};"),
            Text(
                f"ge2_top_rank<{lanes}>({given}, place, [&](int rank, int t)",
                body=(Text(f"const int at_line = {at};"), *writes),
                end=");",
            ),
        ]


def key_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the keys in whose order elements are; half types go by float32."""
    size = 4 if dtype in HALF else dtype.itemsize
    return np.dtype(f"u{size}")


def key_name(dtype: np.dtype) -> str:
    return f"uint{8 * dtype.itemsize}_t"
