"""Matrix products on tensor cores of compute capability 8.0 and newer, of operands that lie anyhow:
bare, or with the elementwise work on their result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.base.gpu import AMPERE
from ge2.choice.problem import Problem
from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import (
    ALIGNED,
    Bare,
    Joint,
    OnTensorCores,
    Product,
    copied,
    copy_seconds,
    unlike,
)
from ge2.targets.cuda.kernels.gemm.speed import Split, mma_seconds, splits
from ge2.targets.cuda.kernels.products import HOPPER
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.mma import Mma, lying, merged, warps_down
from ge2.targets.cuda.products.tensor_cores import tiles_down, unmatched
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, RegionEpilogue, packs_alone
from ge2.targets.cuda.tuning import Mma as Tuning
from ge2.targets.cuda.tuning import MmaTile


class MmaKernels(OnTensorCores):
    """Kernels of warps, whose threads copy the operands."""

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation >= AMPERE:
            return ""
        return "GPUs older than compute capability 8.0 do not have these instructions"

    def unsuited(self, product: Product, caps: Caps) -> str:
        axes = product.axes
        if why := unmatched(axes):
            return why
        thin = caps.chip.tuning.mma.thin
        return f"it has fewer than {thin} terms" if axes.sums[0].size < thin else ""

    def tiles(self, product: Product, after: Epilogue, caps: Caps) -> Iterator[tuple[str, Split]]:
        axes, narrow = product.axes, () if product.second else narrow_factors(product)
        found = [
            split
            for copies in dict.fromkeys(((), narrow))
            for tile in self.shapes(product, caps.chip.tuning.mma)
            if of_tile(copied(product, copies), tile, after, caps.chip).fits
            for split in splits(axes, tile, copies, caps)
            if split.parts == 1 or not (after.sums or product.second)
        ]
        times = {s: self.timed(self.arranged(product, s), s, after, caps) for s in found}
        for split in sorted(found, key=times.__getitem__):
            yield str(split), split

    def shapes(self, product: Product, tuning: Tuning) -> Iterable[MmaTile]:
        """The tiles, if they fit."""
        return tiles_for(product.axes, tuning, product.dtype)

    def arranged(self, product: Product, tile: Split) -> Product:
        return copied(product, tile.copies)

    def timed(self, product: Product, tile: Split, after: Epilogue, caps: Caps) -> float:
        alone = mma_seconds(product.axes, product.factors, product.dtype, tile, after.moved, caps)
        found = copy_seconds(product, caps) + alone
        if is_skinny(tile.tile, caps.chip.tuning.mma):
            return found
        aligned = not product.copies and not narrow_factors(product)
        doubted = aligned and caps.limits.generation == HOPPER
        return found * caps.chip.tuning.mma.doubt if doubted else found

    def sums_of(self, product: Product, tile: Split, after: Epilogue) -> int:
        """One for each warp, or for those that share the columns of a tile."""
        return tiles_down(product.axes, tile.tile) * warps_down(tile.tile, after)

    def made(self, product: Product, tile: Split, after: Epilogue, caps: Caps) -> Kernels:
        axes, parts, chip = product.axes, tile.parts, caps.chip
        if parts == 1:
            return Kernels((of_tile(product, tile.tile, after, chip).kernel(),))
        rows = parts * math.prod(x.size for x in (*axes.batches, *axes.rows))
        columns, kept = axes.columns[0].size, Operand("temp", len(product.copies), (1,))
        alone = packs_alone(FLOAT32, kept, columns, rows, columns)
        first = of_tile(product, tile.tile, alone, chip, parts).kernel()
        second = merged(axes, parts, chip.tuning.parts, after, kept)
        return Kernels((first, second), (rows * columns * 4,))


def tiles_for(axes: Contraction, tuning: Tuning, dtype: np.dtype) -> tuple[MmaTile, ...]:
    """The tiles for a result: of few rows or columns those that are as thin. Not of few columns of
    float32 until they have run on a GPU again: six of eight cases were beyond a bound there that did
    not count what tensor cores cut off of long sums, as the same six are in the emulator.
    """
    (rows,), (columns,) = axes.rows, axes.columns
    thin = (
        t for t in tuning.skinny
        if rows.size <= t.rows < t.columns
        or (columns.size <= t.columns < t.rows and dtype != FLOAT32)
    )  # fmt: skip
    return tuple(thin) or tuning.tiles


def is_skinny(tile: MmaTile, tuning: Tuning) -> bool:
    """True of the tiles of few rows or columns, and of a pair of those."""
    return tile in tuning.skinny or (tile.pair and tile in halved(tuning.skinny))


def halved(tiles: Iterable[MmaTile]) -> list[MmaTile]:
    """The tiles of pairs: each of two warps beside each other has columns of one product."""
    return [t.halved for t in tiles if t.broad % 2 == 0]


def narrow_factors(product: Product) -> tuple[int, ...]:
    """The factors whose rows are no multiples of 16 bytes apart."""
    axes, factors, dtype = product.axes, product.factors, product.dtype
    wide = [lying(axes, factors, n, dtype).wide * dtype.itemsize for n in (0, 1)]
    return tuple(n for n in (0, 1) if wide[n] < ALIGNED)


def of_tile(product: Product, tile: MmaTile, after: Epilogue, chip: Chip, parts: int = 1) -> Mma:
    return Mma(product.axes, product.operands, product.dtype, tile, chip, after, parts)


@final
class GemmMma(MmaKernels, Bare):
    name = "mma product"

    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return packs_alone(out, result, row, rows, columns)


class PackedJoint(Joint):
    """What follows a product, by packs."""

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        return found.packs(found.stored_at_once())


@final
class GemmMmaRegion(MmaKernels, PackedJoint):
    name = "mma product and region"


@final
class GemmMmaPair(MmaKernels, PackedJoint):
    """Two products of one left factor, such as those of a gated unit. Tiles have whole sums."""

    name, number = "mma pair of products and region", 2

    def unsuited(self, product: Product, caps: Caps) -> str:
        return super().unsuited(product, caps) or unlike(product)

    def shapes(self, product: Product, tuning: Tuning) -> Iterable[MmaTile]:
        return halved(super().shapes(product, tuning))
