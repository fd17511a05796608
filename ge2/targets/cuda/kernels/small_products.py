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
from typing import Final, Protocol

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.matrices import SIDE
from ge2.targets.cuda.products.small import unfit

NAME: Final = "small_products"  # under which it is switched off
SERVED: Final = {
    (FLOAT32, FLOAT32), (FLOAT64, FLOAT64),
    *((half, out) for half in (FLOAT16, BFLOAT16) for out in (half, FLOAT32)),
}  # fmt: skip
SLICES: Final = 16
# Clocks, as docs/design/small_products.md counts them: of a block before its first and
# after its last product, for a stage of its sum when it is alone on its multiprocessor
# and when others are there.
ENDS: Final = 1100
STAGE: Final = 210
SHARED: Final = 135
PARTS: Final = 150
THIN: Final = 32  # of rows, columns or terms: tensor cores are not filled by fewer
# predicted clocks up to which ours is taken: the library's least is 5 us or 8,800
MOST: Final = 7000
ELEMENTS: Final = 1 << 19  # of an operand or the result, at most


class Limits(Protocol):
    """What there is of a GPU.

    `double`: how many times as long as float32 a multiply-add of float64 takes.
    """

    @property
    def multiprocessors(self) -> int: ...
    @property
    def double(self) -> int: ...


def refusal(
    axes: Contraction, dtype: np.dtype, out: np.dtype, rounded: bool, limits: Limits
) -> str:
    """Why the library should do it; nothing if a kernel of ours should.

    `rounded`: float32 may be.
    """
    if NAME in config.passes_off:
        return "small products are switched off"
    if (dtype, out) not in SERVED:
        return f"{dtype.name} to {out.name} is none of ours"
    if why := unfit(axes):
        return why
    rows, columns, sums, batches = sizes(axes)
    if batches * max(rows * sums, sums * columns, rows * columns) > ELEMENTS:
        return f"a matrix has more than {ELEMENTS} elements"
    if (rounded or dtype in HALF) and min(rows, columns, sums) > THIN:
        return "tensor cores have enough to do"
    if (clocks := predicted(axes, dtype, limits)) > MOST:
        return f"it would take {clocks} clocks"
    return ""


def sizes(axes: Contraction) -> tuple[int, int, int, int]:
    """Rows, columns, terms of a sum, and how many products there are."""
    groups = axes.rows, axes.columns, axes.sums, axes.batches
    rows, columns, sums, batches = (math.prod(x.size for x in each) for each in groups)
    return rows, columns, sums, batches


def predicted(axes: Contraction, dtype: np.dtype, limits: Limits) -> int:
    """Clocks from the start of the first block to the end of the last."""
    rows, columns, sums, batches = sizes(axes)
    blocks = -(-rows // SIDE) * -(-columns // SIDE) * batches
    stages = -(-sums // (SLICES * (2 if dtype == FLOAT64 else 4)))
    each = -(
        -blocks // limits.multiprocessors
    )  # blocks that a multiprocessor has, one after or beside another
    slower = max(limits.double // 2, 1) if dtype == FLOAT64 else 1
    alone, further = STAGE * slower, SHARED * slower
    return ENDS + stages * alone + (each - 1) * (stages * further + PARTS)
