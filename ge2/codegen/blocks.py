"""How an iteration space is cut into blocks that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from ge2.base.record import record
from ge2.ir import Dims

CACHE = 1 << 21  # bytes that the arrays of a block may take together, to stay in a core's caches
LEAST, MOST = 1 << 16, 1 << 20  # bytes of one array of a block
SHARES = 4  # what is cut at all is cut into so many blocks at least, for several threads
ROUND = 1024  # long steps are multiples of this, so that blocks begin at cache lines
PARTS = 64  # the most runs of blocks that are handed to threads


@final
@record
class Tiling:
    """Axes `single` are walked one element at a time, then `axis` in steps of
    `step`; the rest are whole.

    The blocks are handed out in `parts` runs of `run` blocks. Nothing here depends on the number of
    threads, so neither do the results.
    """

    space: Dims
    single: Dims = ()
    axis: int = -1
    step: int = 0
    run: int = 1

    @property
    def cut(self) -> Dims:
        """The axes that are not whole in a block."""
        return self.single if self.axis < 0 else (*self.single, self.axis)

    @property
    def blocks(self) -> int:
        along = 1 if self.axis < 0 else -(-self.space[self.axis] // self.step)
        return along * math.prod(self.space[a] for a in self.single)

    @property
    def parts(self) -> int:
        return -(-self.blocks // self.run)

    @property
    def ragged(self) -> bool:
        """Whether the last block along the axis is a smaller one."""
        return self.axis >= 0 and self.space[self.axis] % self.step != 0

    def extent(self, axis: int) -> int:
        """The size of an axis within a full block."""
        return 1 if axis in self.single else self.step if axis == self.axis else self.space[axis]


def tiling(space: Dims, whole: Iterable[int], itemsize: int, arrays: int = 2) -> Tiling:
    """Cuts the outermost axes that may be cut, until the `arrays` of a block fit in cache."""
    rest = math.prod(space)
    free = [a for a, n in enumerate(space) if a not in whole and n > 1]
    if rest * itemsize * arrays <= CACHE or not free:
        return Tiling(space)
    block = min(max(CACHE // arrays, LEAST), MOST, rest * itemsize // SHARES) // itemsize
    single: list[int] = []
    for axis in free[:-1]:
        if rest // space[axis] <= block:
            break
        single.append(axis)
        rest //= space[axis]
    else:
        axis = free[-1]
    step = min(max(block // (rest // space[axis]), 1), space[axis])
    step -= step % ROUND if step > ROUND else 0
    blocks = Tiling(space, tuple(single), axis, step).blocks
    return Tiling(space, tuple(single), axis, step, -(-blocks // PARTS))
