"""Matrix products on tensor cores of compute capability 8.0 and newer, of operands that lie anyhow:
bare, or with the elementwise work on their result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import Bare, Factors, Joint, OnTensorCores, one
from ge2.targets.cuda.kernels.gemm.speed import Split, mma_seconds, splits
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.mma import Mma, merged
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
    ) -> Iterator[tuple[str, Split]]:
        def fits(tile: MmaTile) -> bool:
            return Mma(axes, factors, dtype, tile, caps.chip, after).shared <= caps.chip.most

        found = [s for t in caps.chip.tuning.mma.tiles if fits(t) for s in splits(axes, t, caps)]
        for split in sorted(found, key=lambda s: mma_seconds(axes, factors, dtype, s, caps)):
            tile, parts = split.tile, f", {split.parts} parts" if split.parts > 1 else ""
            yield f"{tile.rows} x {tile.columns} by {tile.high * tile.broad}{parts}", split

    def timed(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: Split, caps: Caps
    ) -> float:
        return mma_seconds(axes, factors, dtype, tile, caps)

    def made(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: Split, caps: Caps,
        after: Epilogue,
    ) -> Kernels:  # fmt: skip
        kind, parts, chip = tile.tile, tile.parts, caps.chip
        if parts == 1:
            return one(Mma(axes, factors, dtype, kind, chip, after).kernel())
        rows = parts * math.prod(x.size for x in (*axes.batches, *axes.rows))
        columns, kept = axes.columns[0].size, Operand("temp", 0, (1,))
        alone = packs_alone(FLOAT32, kept, columns, rows, columns)
        first = Mma(axes, factors, dtype, kind, chip, alone, parts).kernel()
        second = merged(axes, parts, chip.tuning.parts, after, kept)
        return Kernels((first, second), (rows * columns * 4,))


@final
class GemmMma(MmaKernels, Bare):
    name = "mma product"

    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return packs_alone(out, result, row, rows, columns)


@final
class GemmMmaRegion(MmaKernels, Joint):
    name = "mma product and region"

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        return found.packs(found.stored_at_once())
