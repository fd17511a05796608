"""Which kind of kernel a region becomes: threads along what is folded, or along what is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ge2.codegen.loop_nest import is_state
from ge2.codegen.text import Operand
from ge2.ir import Var
from ge2.ops.region import Region
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.rowwise import rows_kernel
from ge2.targets.cuda.emit.transpose_tiles import across
from ge2.targets.cuda.emit.two_stage_reduce import Kernels


def cuda_kernels(region: Region, operands: Mapping[Var, Operand], chip: Chip) -> Kernels | None:
    """The kernels of a region on such a chip; None if it has to be cut in two."""

    def make() -> Problem:
        return Problem(region, operands)

    problem = make()
    over = list(dict.fromkeys(w.over for w in problem.folded))
    if not over:
        return across(problem, chip) or Lanes(problem, frozenset(), chip).run()
    lane = problem.lane
    for whole in sorted(over, key=lambda axes: (-rank(problem, axes), sorted(axes))):
        if lane in whole and (found := rows_kernel(make, whole, chip)) is not None:
            return found
    if len(over) > 1:
        return None
    return Lanes(problem, over[0], chip).run()


def rank(problem: Problem, axes: frozenset[int]) -> int:
    """What speaks for axes as those of a row: what is read inside must be complete; then the most used."""
    read = {x for w in problem.works if w.kind != "store" for x in w.xs}
    whole = any(w.over == axes and (w.y in read or is_state(w.step)) for w in problem.folded)
    return 1000 * whole + Counter(w.over for w in problem.folded)[axes]
