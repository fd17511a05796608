"""Matrix products on Hopper's tensor cores, bare or with the elementwise work on their result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.choice.problem import Problem, Variant
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
    step_by_step,
    unlike,
)
from ge2.targets.cuda.kernels.gemm.library import BlasEpilogue
from ge2.targets.cuda.kernels.products import HOPPER, has_astray, is_longest
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.tensor_cores import (
    is_astray,
    least_waste,
    tiles_down,
    unmatched,
    waves_of,
)
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, stored_alone
from ge2.targets.cuda.products.wgmma import Wgmma, of_operand, stages_of, unfit
from ge2.targets.cuda.tuning import WgmmaTile


def idle(axes: Contraction, caps: Caps, tiles: Sequence[WgmmaTile] = ()) -> str:
    """The reason why a library is thought to be better at a product; "" if none is known."""
    (sums,) = axes.sums
    tuning, chip = caps.chip.tuning.wgmma, caps.limits.multiprocessors
    if sums.size >= tuning.long and least_waste(axes, chip, tuning, tiles) > tuning.idle:
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


def seconds(
    axes: Contraction, dtype: np.dtype, tile: WgmmaTile, after: Epilogue, caps: Caps
) -> float:
    """Returns what waves of tiles take: the products of each, longer if strips leave room for fewer
    stages, and what follows them, as far as no products of the other warp group hide it.
    """
    (sums,), tuning = axes.sums, caps.chip.tuning.wgmma
    size = tile.rows * tile.columns
    added = size * tile.products * sums.size
    lost = max(tile.stages - stages_of(tile, after, caps.chip), 0)
    multiplied = 2 * added * tuning.cost_of(tile, sums.size) / tuning.rate_of(dtype)
    multiplied *= 1 + tuning.lost * lost
    part = tuning.narrow if tile.narrow else 1.0 if after.stores else tuning.packs
    a_byte = size * (tile.drain if after.stores else 1.0) / (tuning.drained * part)
    moved = after.moved if after.stores else after.moved + FLOAT32.itemsize  # which a sum is first
    waves = waves_of(axes, tile, caps.limits.multiprocessors)
    if is_astray(axes, dtype, tuning):
        multiplied, a_byte = multiplied * tuning.sectors, a_byte * tuning.sectors
    # the rate of products was fitted to the whole time of bare ones, which store their sums
    bare = a_byte * min(after.moved, dtype.itemsize)
    return caps.speed.launch + in_turns(waves, multiplied, a_byte * moved) - bare


def in_turns(tiles: int, multiplied: float, left: float) -> float:
    """Returns what two warp groups take that have tiles in turns: one multiplies at a time, and what
    follows products, for `left` seconds, goes on beside those of the other. Nothing is beside what
    follows the last tile, which may be the only one.
    """
    each = -(-tiles // 2)  # tiles that one group has
    late = 0.0 if tiles % 2 else multiplied  # the second group waits for the first one's products
    return max(tiles * multiplied + left, late + each * (multiplied + left))


class WgmmaKernels(OnTensorCores):
    """Kernels of warp groups, whose operands tensor maps copy."""

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation == HOPPER:
            return ""
        return "only GPUs of compute capability 9.0 have these instructions"

    def unsuited(self, product: Product, caps: Caps) -> str:
        return unfit(product.axes, product.factors, product.dtype) or thin(product.axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        return idle(product.axes, caps)

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        """Yields tiles; where sums are long, also with narrow strips, if they leave room for more
        stages.
        """
        tuning, (sums,), dtype = caps.chip.tuning.wgmma, product.axes.sums, product.dtype
        tiles = [*(tuning.tiles if product.second is None else tuning.pairs)]
        if after.stores and after.short and sums.size >= tuning.long:
            wide = [t for t in tiles if t.rows > 64]
            pairs = zip(wide, (replace(t, narrow=True) for t in wide), strict=True)
            tiles += [
                narrow
                for usual, narrow in pairs
                if stages_of(usual, after, caps.chip) < stages_of(narrow, after, caps.chip)
            ]
        for tile in sorted(tiles, key=lambda t: seconds(product.axes, dtype, t, after, caps)):
            yield f"{tile.rows} x {tile.columns}{', narrow strips' if tile.narrow else ''}", tile

    def timed(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> float:
        alone = seconds(product.axes, product.dtype, tile, after, caps)
        return copy_seconds(product, caps) + alone

    def made(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> Kernels:
        axes, factors, dtype = product.axes, product.operands, product.dtype
        return Kernels((Wgmma(axes, factors, dtype, tile, caps.chip, after).kernel(),))

    def sums_of(self, product: Product, tile: WgmmaTile, after: Epilogue) -> int:
        """One for each warp of a group."""
        return 4 * tiles_down(product.axes, tile)


class OfCopies(WgmmaKernels):
    """The same of copies of operands that tensor maps do not copy."""

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def arranged(self, product: Product, tile: WgmmaTile | None) -> Product:
        axes, factors, dtype = product.axes, product.factors, product.dtype
        if unmatched(axes):
            return product
        return copied(product, [n for n in (0, 1) if of_operand(axes, factors, n, dtype)])

    def timed(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> float:
        """Only copies of rows that a library reads slowly were measured, not those that turn."""
        found = super().timed(product, tile, after, caps)
        narrow = any(c.narrow for c in product.copies)
        return found if narrow else found * caps.chip.tuning.mma.doubt

    def unsuited(self, product: Product, caps: Caps) -> str:
        found = self.arranged(product, None)
        if not found.copies:
            return unmatched(product.axes) or "no operand has to be copied"
        axes = found.axes
        return unfit(axes, found.factors, found.dtype) or thin(axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        return ""  # its copies are in the prediction, which decides

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

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return caps is not None and (is_longest(problem, caps) or has_astray(problem, caps))


@final
class GemmWgmmaRegion(WgmmaKernels, Joint):
    name = "wgmma product and region"

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True unless it is predicted to be quicker than the library and a region, or its epilogue, as
        it was measured to be: there, factors of whole families would be wrong more often than the
        order.
        """
        if caps is None:
            return False
        best = next(iter(self.variants(problem, caps)))
        others, library = [step_by_step(problem, caps)], BlasEpilogue()
        if not library.refuses(problem, caps):
            others.append(library.seconds(problem, Variant(), caps))
        return self.seconds(problem, best, caps) > min(others)


@final
class GemmWgmmaOfCopies(OfCopies, StoredBare):
    name = "wgmma product of copies"


@final
class GemmWgmmaRegionOfCopies(OfCopies, Joint):
    name = "wgmma product of copies and region"


@final
class GemmWgmmaPair(WgmmaKernels, Joint):
    """Two products of one left factor, such as those of a gated unit."""

    name, number = "wgmma pair of products and region", 2

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def unsuited(self, product: Product, caps: Caps) -> str:
        if why := unlike(product):
            return why
        axes, (a, b, c), dtype = product.axes, product.operands, product.dtype
        why = unfit(axes, (a, b), dtype) or of_operand(axes, (a, c), 1, dtype)
        return why or thin(axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        return idle(product.axes, caps, caps.chip.tuning.wgmma.pairs)
