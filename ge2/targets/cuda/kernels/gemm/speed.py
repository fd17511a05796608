"""What a product by the tensor cores of warps is predicted to take.

The numbers are cautious where nothing was measured, so that a library is not left for a guess.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

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


def mma_seconds(
    axes: Contraction, factors: tuple[Operand, Operand], dtype: np.dtype, tile: MmaTile, caps: Caps
) -> float:
    """Waves of tiles, at that part of the rate that the tile reaches, and a smaller one where
    elements of two bytes are read one by one.
    """
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    batches, tuning = math.prod(x.size for x in axes.batches), caps.chip.tuning.mma
    waves = -(-batches * tiles_of(rows.size, columns.size, tile) // caps.limits.multiprocessors)
    one_by_one = sum(not lying(axes, factors, n, dtype).wide for n in (0, 1))
    part = tile.part * tuning.one_by_one**one_by_one / (1 if dtype.itemsize == 2 else 2)
    done = waves * tile.rows * tile.columns * sums.size
    rate = RATE.get(caps.limits.generation, LEAST) * CLOCK
    return caps.speed.launch + done / (rate * part)
