"""Matrix products on tensor cores of compute capability 8.0 and newer, of operands that lie anyhow:
bare, or with the elementwise work on their result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import Bare, Factors, Joint, OnTensorCores, one
from ge2.targets.cuda.kernels.gemm.speed import mma_seconds
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.mma import Mma
from ge2.targets.cuda.products.tensor_cores import unmatched
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, RegionEpilogue, packs_alone
from ge2.targets.cuda.tuning import MmaTile

AMPERE: Final = (
    80  # the first generation that has these instructions, and copies beside the threads
)


class MmaKernels(OnTensorCores):
    """Kernels of warps, whose threads copy the operands."""

    def is_ranked(self, caps: Caps | None) -> bool:
        return True

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation >= AMPERE:
            return ""
        return "GPUs older than compute capability 8.0 do not have these instructions"

    def unsuited(self, axes: Contraction, factors: Factors, dtype: np.dtype, caps: Caps) -> str:
        if why := unmatched(axes):
            return why
        thin = caps.chip.tuning.mma.thin
        if min(axes.rows[0].size, axes.columns[0].size, axes.sums[0].size) < thin:
            return f"it has fewer than {thin} rows, columns or terms"
        return ""

    def tiles(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, MmaTile]]:
        def fits(tile: MmaTile) -> bool:
            return Mma(axes, factors, dtype, tile, caps.chip, after).shared <= caps.chip.most

        tiles = filter(fits, caps.chip.tuning.mma.tiles)
        for tile in sorted(tiles, key=lambda t: mma_seconds(axes, factors, dtype, t, caps)):
            yield f"{tile.rows} x {tile.columns} by {tile.high * tile.broad}", tile

    def timed(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: MmaTile, caps: Caps
    ) -> float:
        return mma_seconds(axes, factors, dtype, tile, caps)

    def made(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: MmaTile, caps: Caps,
        after: Epilogue,
    ) -> Kernels:  # fmt: skip
        return one(Mma(axes, factors, dtype, tile, caps.chip, after).kernel())


@final
class GemmMma(MmaKernels, Bare):
    name = "mma product"

    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return packs_alone(out, result, row, rows, columns)


@final
class GemmMmaRegion(MmaKernels, Joint):
    name = "mma product and region"

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        return found.packs()
