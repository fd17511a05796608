"""Attention as a library is asked for it."""

from __future__ import annotations

from typing import final

import numpy as np

from ge2.base.record import record
from ge2.ops.attention.band import Band

Steps = tuple[int, int, int]  # from batch to batch, head to head and row to row, in elements


@final
@record
class WantedAttention:
    """softmax(factor q k) v of `batches` and `heads`, of which `key_heads` have keys and values of
    their own, side by side; `band`: which keys a query sees.

    `steps`: of queries, keys, values, result and, if they are wanted, the logarithms of its sums; of
    what is `backward` of queries, keys, values, result, its cotangent, the logarithms, and the
    cotangents of queries, keys and values. Features are side by side. `ordered`: sums are to have a
    fixed order. `workspace`: the most bytes of scratch.
    """

    dtype: np.dtype
    batches: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int
    factor: float
    band: Band
    steps: tuple[Steps, ...]
    backward: bool = False
    ordered: bool = True
    workspace: int = 32 << 20

    @property
    def flops(self) -> float:
        """Of the products of queries and keys, and of weights and values, where keys are seen."""
        return 4.0 * self.batches * self.heads * self.width * self.seen

    @property
    def seen(self) -> int:
        """Pairs of a query and a key that it sees."""
        rows = np.arange(self.queries, dtype=np.int64)
        last = self.keys - 1 if self.band.low is None else rows - self.band.low
        first = 0 if self.band.high is None else rows - self.band.high
        count = np.minimum(last, self.keys - 1) - np.maximum(first, 0) + 1
        return int(np.broadcast_to(np.maximum(count, 0), rows.shape).sum())
