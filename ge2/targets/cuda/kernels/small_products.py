"""Which matrix products are done by a kernel of ours, and not by the
library: the rule, in one place.

The library is made for large tiles with long sums. Of a small product few blocks have a tile then,
the rest of the GPU idles, and those few wait for memory many times. Ours has tiles of 16 x 16, so
many blocks, and waits twice. But it reads each operand once for every 16 rows or columns, and has
no tensor cores: so it is for products that are over before that counts.
docs/design/small_products.md has the reasons.

A layer with a large matrix of weights is the library's whatever the batch is, or a smaller batch
would need other kernels than a larger one.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.matrices import SIDE
from ge2.targets.cuda.products.small import unfit

NAME: Final = "small_products"  # under which it is switched off
SERVED: Final = {
    (FLOAT32, FLOAT32), (FLOAT64, FLOAT64),
    *((half, out) for half in (FLOAT16, BFLOAT16) for out in (half, FLOAT32)),
}  # fmt: skip


def refusal(
    axes: Contraction, dtype: np.dtype, out: np.dtype, rounded: bool, limits: Limits
) -> str:
    """Why the library should do it; nothing if a kernel of ours should.

    `rounded`: float32 may be.
    """
    if NAME in config.passes_off:
        return "small products are switched off"
    tuning = limits.tuning.products
    if (dtype, out) not in SERVED:
        return f"{dtype.name} to {out.name} is none of ours"
    if why := unfit(axes):
        return why
    rows, columns, sums, batches = sizes(axes)
    if batches * max(rows * sums, sums * columns, rows * columns) > tuning.elements:
        return f"a matrix has more than {tuning.elements} elements"
    if (rounded or dtype in HALF) and min(rows, columns, sums) > tuning.thin:
        return "tensor cores have enough to do"
    if (clocks := predicted(axes, dtype, limits)) > tuning.most:
        return f"it would take {clocks} clocks"
    return ""


def sizes(axes: Contraction) -> tuple[int, int, int, int]:
    """Rows, columns, terms of a sum, and how many products there are."""
    groups = axes.rows, axes.columns, axes.sums, axes.batches
    rows, columns, sums, batches = (math.prod(x.size for x in each) for each in groups)
    return rows, columns, sums, batches


def predicted(axes: Contraction, dtype: np.dtype, limits: Limits) -> int:
    """Clocks from the start of the first block to the end of the last."""
    tuning, (rows, columns, sums, batches) = limits.tuning.products, sizes(axes)
    blocks = -(-rows // SIDE) * -(-columns // SIDE) * batches
    stages = -(-sums // (tuning.slices * (2 if dtype == FLOAT64 else 4)))
    each = -(
        -blocks // limits.multiprocessors
    )  # blocks that a multiprocessor has, one after or beside another
    slower = max(limits.double // 2, 1) if dtype == FLOAT64 else 1
    alone, further = tuning.stage * slower, tuning.shared * slower
    return tuning.ends + stages * alone + (each - 1) * (stages * further + tuning.parts)
