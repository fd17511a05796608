"""The rules by which products of small matrices are done by kernels of ours, and their times."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF, HOPPER
from ge2.base.config import config
from ge2.choice import Problem, bytes_of
from ge2.ir import ArrayType
from ge2.ops.graphs.contraction import is_contraction
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.limits import WARP, Limits
from ge2.targets.cuda.products import SIDE, Contraction
from ge2.targets.cuda.products.small import lines_of, pack_of, threads_of, unfit

# -------- Which matrix products are done by a kernel of ours, and not by the library: the rule, in
# one place.
# The library is made for large tiles with long sums. Of a small product few blocks have a tile
# then, the rest of the GPU idles, and those few wait for memory many times. Ours has tiles of 16 x
# 16, so many blocks, and waits twice. But it reads each operand once for every 16 rows or columns,
# and has no tensor cores: so it is for products that are over before that counts.
# docs/design/small_products.md has the reasons.
# A layer with a large matrix of weights is the library's whatever the batch is, or a smaller batch
# would need other kernels than a larger one.


NAME: Final = "small_products"  # under which it is switched off
SERVED: Final = {
    (FLOAT32, FLOAT32), (FLOAT64, FLOAT64),
    *((half, out) for half in (FLOAT16, BFLOAT16) for out in (half, FLOAT32)),
}  # fmt: skip


def why_not_small(
    axes: Contraction, dtype: np.dtype, out: np.dtype, rounded: bool, limits: Limits
) -> str:
    """The reason why the library should do it; nothing if a kernel of ours should.

    `rounded`: float32 may be.
    """
    if why := unserved(axes, dtype, out):
        return why
    tuning = limits.tuning.products
    rows, columns, sums, batches = sizes(axes)
    if batches * max(rows * sums, sums * columns, rows * columns) > tuning.elements:
        return f"a matrix has more than {tuning.elements} elements"
    if (rounded or dtype in HALF) and min(rows, columns, sums) > tuning.thin:
        return "tensor cores have enough to do"
    if (clocks := predicted(axes, dtype, limits)) > tuning.most:
        return f"it would take {clocks} clocks"
    return ""


def unserved(axes: Contraction, dtype: np.dtype, out: np.dtype) -> str:
    """The reason why no kernel of ours for small products takes it, of any sizes; nothing if one
    does.
    """
    if NAME in config.passes_off:
        return "small products are switched off"
    if (dtype, out) not in SERVED:
        return f"{dtype.name} to {out.name} is none of ours"
    return unfit(axes)


def why_not_many(
    problem: Problem, a: ArrayType, y: ArrayType, axes: Contraction, caps: Caps
) -> str:
    """The reason why products of `a` to `y`, or those and what follows them, are not of matrices so
    small that a thread has whole sums; nothing if they are.
    """
    if why := unserved(axes, a.dtype, y.dtype):
        return why
    tuning, (rows, columns, sums, batches) = caps.limits.tuning.products, sizes(axes)
    if batches < 2:
        return "it is one product"
    if max(rows, columns, sums) > tuning.whole:
        return f"a matrix has more than {tuning.whole} rows, columns or terms"
    hopper = caps.limits.generation == HOPPER
    if hopper and a.dtype in HALF and min(rows, columns, sums) >= tuning.thin:
        return "tensor cores have enough to do"
    if many_seconds(problem, axes, caps) > library_of_many(problem, y, axes, caps):
        return "the library is thought to be faster"
    return ""


def many_seconds(problem: Problem, axes: Contraction, caps: Caps) -> float:
    """Returns what many products take by a kernel of ours: bytes at the rate of memory, or loads
    and operations of threads, and what such a count is short of, as was measured.
    """
    limits, (rows, columns, sums, batches) = caps.limits, sizes(axes)
    tuning = limits.tuning.products
    wide = FLOAT64 if any(t.dtype == FLOAT64 for t in problem.inputs) else FLOAT32
    turned = axes.sums[0].b == 1
    pack, lines = pack_of(columns, wide), lines_of(rows, turned, tuning)
    warps = threads_of(rows, columns, batches, lines, pack) / WARP
    slower = max(limits.double, 2) if wide == FLOAT64 else 1
    # of four terms a thread has a load for each row, and four for its columns; a multiprocessor has a load
    # in a clock, and four warps' sums
    loads, added = sums * (lines + 4) / 4 + lines, sums * lines * pack * slower / 4
    busy = warps * max(loads, added) / limits.multiprocessors / limits.clock
    speed, moved = caps.speed, bytes_of(problem)
    memory = moved / (speed.cached if moved < speed.cache else speed.moved)
    small = max(rows, columns, sums) <= tuning.easily
    times = dict(tuning.short if small else tuning.wide)[pack * wide.itemsize]
    if problem.inputs[0].dtype in HALF:
        times *= tuning.half
    if turned:
        times *= min(max(sums * wide.itemsize / tuning.turned, 1.0), tuning.astray)
    return speed.launch + times * max(memory, busy)


def library_of_many(problem: Problem, y: ArrayType, axes: Contraction, caps: Caps) -> float:
    """Returns what a library takes for many products, which has a tile for each, however small; and
    what a kernel after it takes that reads the result.
    """
    speed, limits, after = caps.speed, caps.limits, is_contraction(problem.op)
    rows, columns, _, batches = sizes(axes)
    tuning = limits.tuning.products
    tile = tuning.tile + tuning.tile_byte * rows * columns * y.dtype.itemsize
    passes = 2 * y.nbytes if after else 0
    memory = (bytes_of(problem) + passes) / speed.moved
    tiled = batches * tile / (limits.multiprocessors * limits.clock) + passes / speed.moved
    return max(memory, tiled, least_seconds(caps)) + (speed.launch if after else 0)


def is_of_many(axes: Contraction, limits: Limits) -> bool:
    """True of several products of matrices that are smaller than a library's tiles."""
    rows, columns, _, batches = sizes(axes)
    return batches > 1 and max(rows, columns) <= limits.tuning.products.whole


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


def least_seconds(caps: Caps) -> float:
    """Returns what a product in tiles takes of any sizes: as the rule of small products has it."""
    return caps.speed.launch + caps.limits.tuning.products.most / caps.limits.clock
