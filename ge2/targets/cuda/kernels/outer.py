"""Products of float32 whose result is most of what is moved, in CUDA."""

from __future__ import annotations

from typing import Final, final

from ge2.base.arrays import FLOAT32
from ge2.choice.problem import Problem, Variant, described
from ge2.codegen.text import Text
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.moves import Grid
from ge2.targets.cuda.kernels.products import axes_of, multiple, precision, refusal
from ge2.targets.cuda.products.tensor_cores import unmatched

# of outer.cuh: rows and columns of a block, and its threads
OUTER_SIDE: Final = 128
OUTER_THREADS: Final = 256


@final
class CudaOuterProduct(Cuda):
    """A product of float32 with few terms and a large result, in the library's place: that has it in
    tiles for many terms, and takes twice as long as the result to be written.
    """

    name = "outer product in CUDA"
    ops = (DotGeneral,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        if caps is None or not problem.settled:
            return "it is not known how the operands lie"
        types = {*(t.dtype for t in (*problem.inputs, *problem.outs))}
        if types != {FLOAT32} or precision(problem.op) is not None:
            return "it multiplies float32 that is not rounded"
        tuning, axes = caps.chip.tuning.products, axes_of(problem)
        if why := "there are several products" if axes.batches else unmatched(axes):
            return why
        if axes.sums[0].size > tuning.outer or problem.outs[0].size < tuning.large:
            return f"it has more than {tuning.outer} terms, or fewer than {tuning.large} elements"
        whole = not axes.columns[0].size % 4 and multiple(problem.outs, problem.arrays[1]) == 16
        return "" if whole else "rows of the result are no multiples of 16 bytes"

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        return caps.speed.of(problem, rate=caps.chip.tuning.products.outer_rate)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return caps is not None and not caps.is_measured

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        axes, grid = axes_of(problem), Grid(True, OUTER_THREADS)
        ((a, b), (y,)), (rows,), (columns,), (sums,) = (
            problem.arrays,
            axes.rows,
            axes.columns,
            axes.sums,
        )
        for name, x in (("a", a), ("b", b)):
            grid.array(name, x, FLOAT32)
        grid.result("y", y, FLOAT32)
        steps = {"a_row": rows.a, "a_term": sums.a, "b_term": sums.b, "b_column": columns.b}
        sizes = {"y_row": rows.y, "rows": rows.size, "columns": columns.size, "terms": sums.size}
        for name, n in {**steps, **sizes}.items():
            grid.size(name, n)
        along = ", ".join(str(s == 1).lower() for s in (sums.a, sums.b))
        call = "blockIdx.x, a, a_row, a_term, b, b_term, b_column, y, y_row, rows, columns, terms"
        blocks = -(-rows.size // OUTER_SIDE) * -(-columns.size // OUTER_SIDE)
        body = (Text(f"ge2_outer_product<{along}>({call});"),)
        title = described(problem)
        return Kernels((grid.kernel("outer product", title, body, blocks * OUTER_THREADS),))
