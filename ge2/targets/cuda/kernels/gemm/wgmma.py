"""Matrix products on Hopper's tensor cores, bare or with the elementwise work on their result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import Bare, Factors, Joint, OnTensorCores, one
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.tensor_cores import tiles_of
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, stored_alone
from ge2.targets.cuda.products.wgmma import Wgmma, unfit
from ge2.targets.cuda.tuning import WgmmaTile

HOPPER: Final = 90  # the only generation that has these instructions


def unworthy(axes: Contraction, dtype: np.dtype, caps: Caps) -> str:
    """The reason why a library is thought to be better at a product; "" if none is known."""
    (rows,), (columns,), (sums,), tuning = (
        axes.rows,
        axes.columns,
        axes.sums,
        caps.chip.tuning.wgmma,
    )
    if min(rows.size, columns.size) < tuning.thin:
        return f"it has fewer than {tuning.thin} rows or columns"
    best = min(seconds(axes, dtype, tile, caps) for tile in tuning.fragments) - caps.speed.launch
    batches, rate = math.prod(x.size for x in axes.batches), rate_of(dtype, caps)
    whole = (
        2 * batches * rows.size * columns.size * sums.size / (rate * caps.limits.multiprocessors)
    )
    if sums.size >= tuning.long and best > tuning.idle * whole:
        return (
            "its tiles leave a part of the GPU idle, and its sums are long: they are better split"
        )
    return ""


def rate_of(dtype: np.dtype, caps: Caps) -> float:
    """Operations of a multiprocessor in a second."""
    tuning = caps.chip.tuning.wgmma
    return tuning.clock * (tuning.rate if dtype.itemsize == 2 else tuning.rate // 2)


def seconds(axes: Contraction, dtype: np.dtype, tile: WgmmaTile, caps: Caps) -> float:
    """What waves of tiles take."""
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    batches = math.prod(x.size for x in axes.batches)
    waves = -(-batches * tiles_of(rows.size, columns.size, tile) // caps.limits.multiprocessors)
    done = 2 * waves * tile.rows * tile.columns * sums.size * tile.cost
    return caps.speed.launch + done / rate_of(dtype, caps)


class WgmmaKernels(OnTensorCores):
    """Kernels of warp groups, whose operands tensor maps copy."""

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation == HOPPER:
            return ""
        return "only GPUs of compute capability 9.0 have these instructions"

    def unsuited(self, axes: Contraction, factors: Factors, dtype: np.dtype, caps: Caps) -> str:
        return unfit(axes, factors, dtype) or unworthy(axes, dtype, caps)

    def tiles(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        tuning = caps.chip.tuning.wgmma
        tiles = tuning.fragments if after.turning == 1 and not after.loads else tuning.others
        for tile in sorted(tiles, key=lambda t: seconds(axes, dtype, t, caps)):
            yield f"{tile.rows} x {tile.columns}", tile

    def timed(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: WgmmaTile, caps: Caps
    ) -> float:
        return seconds(axes, dtype, tile, caps)

    def made(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: WgmmaTile, caps: Caps,
        after: Epilogue,
    ) -> Kernels:  # fmt: skip
        return one(Wgmma(axes, factors, dtype, tile, caps.chip, after).kernel())


@final
class GemmWgmma(WgmmaKernels, Bare):
    name = "wgmma product"

    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return stored_alone(out, result, row, rows, columns)


@final
class GemmWgmmaRegion(WgmmaKernels, Joint):
    name = "wgmma product and region"
