"""Lines in order, in CUDA: a few threads rank a short one, a block sorts a longer one in shared
memory. Lines that are longer still are sorted by CuPy.
"""

from __future__ import annotations

from typing import final

from ge2.base.dtypes import COMPLEX
from ge2.choice.problem import Problem, Variant
from ge2.ops.sort import ArgSort, Sort
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.element_grid import Grid
from ge2.targets.cuda.kernels.generated import NOTHING, CudaWays
from ge2.targets.cuda.kernels.lines.top_k import BLOCK, Lines, Ranking, key_name
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST


@final
class CudaSort(CudaWays):
    name = "sort in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Sort | ArgSort):
            return f"{op.name} sorts nothing"
        (t,) = problem.inputs
        n = t.shape[op.axis]
        if t.dtype in COMPLEX:
            return "complex numbers are sorted by CuPy"
        most = longest(ASSUMED.shared_static if caps is None else caps.chip.static)
        if n > most:
            return f"a block sorts {most} elements, not {n}"
        return "" if t.size // max(n, 1) <= GRID_MOST[0] else "there are too many lines"

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        ins, outs = problem.arrays
        if not problem.outs[0].size:
            return (NOTHING,)
        lines = Lines(problem, ins[0], outs, caps.chip)
        return (
            Variant("ranked by a few threads", lambda: Kernels((lines.ranked(),)), lines.long),
            Variant("a block for each line", lambda: Kernels((ordered(lines),))),
        )


def longest(shared: int) -> int:
    """Elements of a line that a block sorts in so many bytes of shared memory: a power of two, of
    keys of eight bytes and places of two.
    """
    return 1 << (shared // (8 + 2)).bit_length() - 1


def ordered(lines: Lines) -> CudaKernel:
    """A block for each line."""
    grid, size = Grid(lines.far, BLOCK), 1 << (lines.n - 1).bit_length()
    grid.fixed.append(Fixed("SIZE", size, "elements of a line, and what fills them up"))
    split, begin = lines.split(grid), lines.begin(grid)
    grid.size("n", lines.n)
    keyed, key = lines.keyed("t", grid), key_name(lines.key)
    view = Ranking(key, grid.whole, "blockIdx.x", split, begin, keyed, lines.writes(grid))
    return lines.kernel(grid, lines.op.name, view, lines.count, "sort")
