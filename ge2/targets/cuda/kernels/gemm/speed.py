"""What a product by the tensor cores of warps is predicted to take.

The numbers are cautious where nothing was measured, so that a library is not left for a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.base.record import record
from ge2.codegen.text import Operand
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.products.gemm import Contraction
from ge2.targets.cuda.products.mma import lying
from ge2.targets.cuda.products.tensor_cores import tiles_of
from ge2.targets.cuda.tuning import MmaTile

# multiply-adds of half types with sums in float32 that a multiprocessor does in a clock, by compute
# capability: of data sheets, the least of a generation
RATE: Final = {80: 1024, 87: 1024, 90: 1024, 100: 1024, 103: 1024}
LEAST: Final = 256
CLOCK: Final = 1.4e9  # a second, under load


@final
@record
class Split:
    """A tile, in how many parts sums are shared by blocks, and which factors are copied before."""

    tile: MmaTile
    parts: int = 1
    copies: tuple[int, ...] = ()

    def __str__(self) -> str:
        tile = self.tile
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        copies = ", of copies" if self.copies else ""
        return f"{tile.rows} x {tile.columns} by {tile.high * tile.broad}{parts}{copies}"


def splits(
    axes: Contraction, tile: MmaTile, copies: tuple[int, ...], caps: Caps
) -> Iterator[Split]:
    """A tile with whole sums, and in as many parts as would keep the chip busy, if sums are long."""
    yield Split(tile, 1, copies)
    tuning, chip = caps.chip.tuning.mma, caps.limits.multiprocessors
    parts = min(chip // count(axes, tile), axes.sums[0].size // tuning.long, tuning.parts)
    if parts > 1:
        yield Split(tile, parts, copies)


def count(axes: Contraction, tile: MmaTile) -> int:
    """Returns how many tiles the results of all batches have."""
    (rows,), (columns,) = axes.rows, axes.columns
    return math.prod(x.size for x in axes.batches) * tiles_of(rows.size, columns.size, tile)


def mma_seconds(
    axes: Contraction, factors: tuple[Operand, ...], dtype: np.dtype, split: Split, moved: int,
    caps: Caps,
) -> float:  # fmt: skip
    """Waves of tiles, at that part of the rate that the tile reaches, and a smaller one where
    elements of two bytes are read one by one, or all bytes once, if that takes longer: `moved` of
    each element of the result; and the parts of sums, which are written and read.
    """
    (sums,), tuning, tile = axes.sums, caps.chip.tuning.mma, split.tile
    waves = -(-split.parts * count(axes, tile) // caps.limits.multiprocessors)
    one_by_one = sum(not lying(axes, factors, n, dtype).wide for n in (0, 1))
    part = tile.part * tuning.one_by_one**one_by_one / (1 if dtype.itemsize == 2 else 2)
    done = waves * tile.rows * tile.products * tile.columns * sums.size / split.parts
    multiplied = done / (RATE.get(caps.limits.generation, LEAST) * CLOCK * part)
    elements = math.prod(x.size for x in (*axes.batches, *axes.rows, *axes.columns))
    read = memory_seconds(axes, dtype, moved * elements, tile.products, caps)
    found = caps.speed.launch + max(multiplied, read)
    if split.parts == 1:
        return found
    return found + caps.speed.launch + 2 * split.parts * 4 * elements / caps.speed.cached


def memory_seconds(axes: Contraction, dtype: np.dtype, moved: int, right: int, caps: Caps) -> float:
    """Returns what the left factor and so many right ones take to come from memory once, and so many
    bytes beside them.
    """
    for name, lines, many in ("a", axes.rows, 1), ("b", axes.columns, right):
        every = (x for x in (*axes.batches, *lines, *axes.sums) if getattr(x, name))
        moved += many * math.prod(x.size for x in every) * dtype.itemsize
    speed = caps.speed
    return moved / (speed.cached if moved < speed.cache else speed.moved)
