"""Matrix products on Hopper's tensor cores, bare or with the elementwise work on their result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.choice.problem import Problem
from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.gemm.families import (
    Bare,
    Joint,
    OnTensorCores,
    Product,
    copied,
    copy_seconds,
)
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.tensor_cores import tiles_of, unmatched
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, stored_alone
from ge2.targets.cuda.products.wgmma import Wgmma, of_operand, unfit
from ge2.targets.cuda.tuning import WgmmaTile

HOPPER: Final = 90  # the only generation that has these instructions


def unworthy(axes: Contraction, dtype: np.dtype, caps: Caps) -> str:
    """The reason why a library is thought to be better at a product; "" if none is known."""
    if why := thin(axes, caps):
        return why
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    tuning = caps.chip.tuning.wgmma
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


def thin(axes: Contraction, caps: Caps) -> str:
    """The reason why a product fills no tile; "" if it does."""
    few = caps.chip.tuning.wgmma.thin
    if min(axes.rows[0].size, axes.columns[0].size) < few:
        return f"it has fewer than {few} rows or columns"
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

    def unsuited(self, product: Product, caps: Caps) -> str:
        axes, dtype = product.axes, product.dtype
        return unfit(axes, product.factors, dtype) or unworthy(axes, dtype, caps)

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        tuning, axes, dtype = caps.chip.tuning.wgmma, product.axes, product.dtype
        tiles = tuning.fragments if after.turning == 1 and not after.loads else tuning.others
        for tile in sorted(tiles, key=lambda t: seconds(axes, dtype, t, caps)):
            yield f"{tile.rows} x {tile.columns}", tile

    def timed(self, product: Product, tile: WgmmaTile, caps: Caps) -> float:
        return copy_seconds(product, caps) + seconds(product.axes, product.dtype, tile, caps)

    def made(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> Kernels:
        axes, factors, dtype = product.axes, product.factors, product.dtype
        return Kernels((Wgmma(axes, factors, dtype, tile, caps.chip, after).kernel(),))


class OfCopies(WgmmaKernels):
    """The same of copies of operands that tensor maps do not copy."""

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def arranged(self, product: Product, tile: WgmmaTile | None) -> Product:
        axes, factors, dtype = product.axes, product.factors, product.dtype
        if unmatched(axes):
            return product
        return copied(product, [n for n in (0, 1) if of_operand(axes, factors, n, dtype)])

    def timed(self, product: Product, tile: WgmmaTile, caps: Caps) -> float:
        """Only copies of rows that a library reads slowly were measured, not those that turn."""
        found, narrow = super().timed(product, tile, caps), any(c.narrow for c in product.copies)
        return found if narrow else found * caps.chip.tuning.mma.doubt

    def unsuited(self, product: Product, caps: Caps) -> str:
        found = self.arranged(product, None)
        if not found.copies:
            return unmatched(product.axes) or "no operand has to be copied"
        axes = found.axes
        return unfit(axes, found.factors, found.dtype) or thin(axes, caps)

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        yield from super().tiles(self.arranged(product, None), after, caps)


class StoredBare(Bare):
    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return stored_alone(out, result, row, rows, columns)


@final
class GemmWgmma(WgmmaKernels, StoredBare):
    name = "wgmma product"


@final
class GemmWgmmaRegion(WgmmaKernels, Joint):
    name = "wgmma product and region"


@final
class GemmWgmmaOfCopies(OfCopies, StoredBare):
    name = "wgmma product of copies"


@final
class GemmWgmmaRegionOfCopies(OfCopies, Joint):
    name = "wgmma product of copies and region"
