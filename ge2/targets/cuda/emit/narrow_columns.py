"""Blocks a few columns wide: folds over rows where wide ones would leave most of a GPU idle.

A block has one or a few sectors of memory of each row, and all rows, so that nothing is
left to merge after it. Its threads read some rows at once each. What is small takes as
long as its reads take to arrive once.
"""

from __future__ import annotations

import math
from typing import final

from ge2.base.record import record
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import Fixed
from ge2.targets.cuda.emit.region import Problem, power
from ge2.targets.cuda.emit.two_stage_reduce import part
from ge2.targets.cuda.limits import WARP

SECTOR = 32  # bytes that the cache hands over


@final
@record
class Narrow:
    """Threads side by side and of a block, and rows that a thread reads at once."""

    columns: int
    block: int
    at_once: int

    @property
    def fixed(self) -> list[Fixed]:
        return [
            Fixed(
                "ROWS", self.block // self.columns, "threads below each other, which share the rows"
            ),
            Fixed("AT_ONCE", self.at_once, "rows that a thread reads at once"),
        ]


def narrow(problem: Problem, over: frozenset[int], chip: Chip) -> Narrow | None:
    """The blocks of a region that folds the axes `over`, if narrow ones are better."""
    sizes, tuning = problem.axes.sizes, chip.tuning.narrow_columns
    kept = [a for a in sorted(sizes) if a not in over]
    rows, width = math.prod(sizes[a] for a in over), math.prod(sizes[a] for a in kept)
    # times as many blocks could run as there would be otherwise
    idle = 4 if rows * width > 4 * tuning.large else 2
    if (
        not over
        or not kept
        or rows < tuning.few
        or not 0 < idle * width <= tuning.wide * chip.multiprocessors
    ):
        return None
    read = [
        p
        for p in problem.axes.strides
        if p not in problem.outs and not problem.operands[p.var].value
    ]
    rowed = [p for p in read if any(problem.axes.strides[p].get(a) for a in over)]
    bytes_of = [p.var.type.dtype.itemsize for p in rowed or read] or [4]
    at_once = min(tuning.at_once, 1 << max((tuning.bytes // sum(bytes_of)).bit_length() - 1, 0))
    columns = min(WARP, max(SECTOR // max(bytes_of), power(width // (2 * chip.multiprocessors)), 2))
    parts = [part(problem, w, kept) for w in problem.folded]
    shared = all(p is not None for p in parts)
    if shared and (
        rows * columns > tuning.rounds * tuning.largest * tuning.at_once
        or rows * width > tuning.large
    ):
        return None
    below = tuning.below if rows <= tuning.short else tuning.largest
    return Narrow(columns, min(tuning.largest, max(tuning.block, below * columns)), at_once)
