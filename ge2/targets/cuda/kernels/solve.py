"""Small systems of linear equations in CUDA: a few threads of a warp solve each in shared memory.

A library's solver takes several launches of its own for a system, and memory, and is called by the
host between two graphs of launches. A system of few rows is solved in the time of one of them.
"""

from __future__ import annotations

import math
from typing import final

from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.base.record import record
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.axes import merged
from ge2.codegen.text import Text
from ge2.ops.linalg import Solve
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import SUFFIX
from ge2.targets.cuda.kernels.generated import NOTHING, CudaWays
from ge2.targets.cuda.kernels.moves import OVER, Grid, far, lettered
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST, WARP, Limits


@final
class CudaSolve(CudaWays):
    name = "small solve in CUDA"
    ops = (Solve,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        b = problem.inputs[1]
        n, k = b.shape[-2:]
        if b.dtype not in (FLOAT32, FLOAT64):
            return "it solves equations of real numbers"
        sides = (ASSUMED if caps is None else caps.limits).tuning.solves.sides
        if n > WARP or k > sides:  # a thread has a row
            return f"it has more than {WARP} rows or {sides} right sides"
        if math.prod(b.shape[:-2]) >= GRID_MOST[0]:
            return "there are too many systems"
        return ""

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        if not problem.outs[0].size:
            return (NOTHING,)
        return (Variant(plan=lambda: Kernels((Systems(problem, caps.limits).kernel(),))),)


@final
@record
class Solving:
    """The view that the template prints."""

    ctype: str
    nan: str
    index: str
    split: tuple[Text, ...]
    begin: tuple[str, str, str]  # of the matrix, its right sides, and the results
    element: tuple[str, str, str]  # in row `i` and column `j`


@final
class Systems:
    """The systems of a problem, and where their elements are."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, b = problem, problem.inputs[1]
        self.block = limits.tuning.solves.block
        # of shared memory, beside the numbers of rows
        self.room = limits.shared_static - 4 * self.block
        self.dtype, (self.n, self.k) = b.dtype, b.shape[-2:]
        (a, right), (y,) = problem.arrays
        self.operands = dict(zip("aby", (a, right, y), strict=True))
        over = [x.strides[:-2] for x in self.operands.values()]
        self.over, self.strides = merged(b.shape[:-2], *over)
        self.letters = lettered(OVER, len(self.over))
        self.count = math.prod(self.over)

    def kernel(self) -> CudaKernel:
        team = 1 << (self.n - 1).bit_length()
        wide = self.n + self.k | 1  # an odd number, so that threads read from all banks
        room = self.n * wide * self.dtype.itemsize
        teams = max(1, min(self.block // team, self.room // room, self.count))
        types = (*self.problem.inputs, *self.problem.outs)
        laid = [(t.shape, x.strides) for t, x in zip(types, self.operands.values(), strict=True)]
        grid = Grid(far((self.count * self.block,), *laid), team * teams)
        grid.fixed += [
            Fixed("TEAM", team, "threads that share a system"),
            Fixed("TEAMS", teams, "systems of a block"),
            Fixed("ROWS", self.n, "of a system"),
            Fixed("SIDES", self.k, "right sides"),
            Fixed("WIDE", wide, "elements from one row to the next"),
        ]
        systems = grid.size("systems", self.count)
        sizes = grid.sizes(self.letters, self.over)
        split = grid.split(f"(p < {systems} ? p : 0)", self.letters, sizes)
        view = Solving(
            "float" if self.dtype == FLOAT32 else "double",
            f"GE2_NAN_{SUFFIX[self.dtype].upper()}", grid.whole, tuple(split) if sizes else (),
            *self.places(grid),
        )  # fmt: skip
        title, blocks = described(self.problem), -(-self.count // teams)
        return grid.kernel("solve", title, view, blocks * grid.block, "linalg/solve")

    def places(self, grid: Grid) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """Returns where each array of a system begins, and its elements from there."""
        begin, element = list[str](), list[str]()
        for (name, x), over in zip(self.operands.items(), self.strides, strict=True):
            (grid.result if name == "y" else grid.array)(name, x, self.dtype)
            begin.append(grid.place(name, self.letters, over))
            at = grid.place(name, ("row", "column"), x.strides[-2:])
            element.append(f"{name}[from_{name} + {at}]")
        return tuple(begin), tuple(element)  # type: ignore[return-value]
