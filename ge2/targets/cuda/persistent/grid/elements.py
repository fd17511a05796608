"""What a resident kernel is that all blocks of a grid do together: who has
which elements, and where.

Values of few elements each block computes for itself, in its shared memory. Of a wide one each
thread has some elements, the same ones in all loops of the size: those that no other thread reads
stay in its registers, others lie in global memory, which the L2 cache holds.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, final

import numpy as np

from ge2.base.record import mutable, record
from ge2.codegen.kernel_values import held
from ge2.ir import ArrayType, Eqn, Graph
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.persistent.grid.matrices import Tile
from ge2.targets.cuda.persistent.nodes import Key, Unwritten
from ge2.targets.cuda.persistent.reads import folded_axes
from ge2.targets.cuda.persistent.size import everything, wide
from ge2.targets.cuda.persistent.values import Array
from ge2.targets.cuda.tuning import GridKernel


@final
@record
class Grid:
    """So many blocks of so many threads, all on the GPU at once.

    `tiles`: how blocks share so many elements, where a product says so; else threads take turns.
    `trial`: it is to be seen whether such a kernel is worth its while.
    """

    blocks: int
    threads: int
    tiles: dict[int, Tile]
    tuning: GridKernel
    trial: bool = False

    @staticmethod
    def of(graph: Graph, chip: Chip, trial: bool = False) -> Grid:
        """As many blocks as a graph keeps busy, of those that the chip has room for."""
        tuning = chip.tuning.grid
        blocks = blocks_for(widest(graph), tuning.threads, chip.together)
        return Grid(blocks, tuning.threads, {}, tuning, trial)

    @property
    def size(self) -> int:
        return self.blocks * self.threads

    def each(self, n: int) -> int:
        """Returns how many of n elements a thread has."""
        return -(-self.tiles[n].size // self.threads) if n in self.tiles else -(-n // self.size)


def words(dtype: np.dtype) -> int:
    """Registers of an element."""
    return max(held(dtype).itemsize // 4, 1)


@final
@mutable
class Homes:
    """Where wide values lie.

    `foreign`: names of those of which a thread reads what another one has.

    Which those are is known when all is planned: `late` says that there are
    more, and to plan again.
    """

    grid: Grid
    foreign: set[str]
    left: int  # registers of a thread for such values
    own: dict[str, Array] = field(default_factory=dict)  # in registers
    late: bool = False

    def fits(self, name: str, type_: ArrayType, times: int = 1) -> bool:
        """True if a value may be in registers; then so many of them are taken."""
        each = self.grid.each(type_.size)
        taken = times * each * words(type_.dtype)
        if name in self.foreign or each > self.grid.tuning.unrolled or taken > self.left:
            return False
        self.left -= taken
        return True

    def registers(self, name: str, type_: ArrayType) -> Array:
        found = self.own[name] = Array(name, type_, (), mine=True)
        return found

    def told(self, x: Array) -> None:
        """Notes that other threads than its own read an array, or write it."""
        if x.mine and x.name not in self.foreign:
            self.foreign.add(x.name)
            self.late = True


@final
@record
class Stages:
    """A fold of which `count` parts for each result come first, by
    `first`, and are folded by `then`.
    """

    first: Key
    count: int
    then: Key


def trailing(eqn: Eqn) -> bool:
    """True if a fold is over the last axes, so that elements that become one lie side by side."""
    axes, n = folded_axes(eqn), len(eqn.inputs[0].type.shape)
    return sorted(axes) == list(range(n - len(axes), n))


def lanes(size: int, folded: int, grid: Grid, side_by_side: bool) -> int:
    """Threads of a warp that share a result."""
    if not side_by_side:
        return 1  # neighbours read what lies side by side if each has a result
    free, useful = max(grid.size // size, 1), max(folded // grid.tuning.fold, 1)
    return min(32, 1 << (free.bit_length() - 1), 1 << (useful.bit_length() - 1))


def staged(eqn: Eqn, grid: Grid, team: Any, wide: bool) -> Key | Stages | None:
    """Returns how all threads of a grid fold, if that is not for a block: at once, or by stages.

    `team(size, folded)`: the threads of a block that share one of `size`
    results that each block has.
    """
    (x,), (y,) = eqn.inputs, eqn.outs
    size, folded = y.type.size, x.type.size // max(y.type.size, 1)
    if not wide and x.type.size <= grid.tuning.few:
        return None
    if size == 1:
        return Stages(
            Key(folded, wide=True, stage="whole"), grid.blocks, Key(1, team(1, grid.blocks))
        )
    side_by_side = trailing(eqn)
    each = lanes(size, folded, grid, side_by_side)
    count = max(min(grid.size // (size * each), folded // (grid.tuning.fold * each)), 1)
    count = min(count, grid.blocks)
    if wide and count == 1:
        return Key(size, each, wide=True)
    then = Key(size, 1, wide=True, stage="finish") if wide else Key(size, team(size, count))
    return Stages(Key(count * size, each, wide=True, stage="chunk"), count, then)


def shared_products(eqn: Eqn, folded: int, grid: Grid, wide: bool) -> Key | None:
    """Returns how all threads of a grid multiply; None if each block does it for itself."""
    size = eqn.outs[0].type.size
    if not wide and size * folded <= grid.tuning.few:
        return None
    if grid.trial and size * folded > grid.tuning.products:
        raise Unwritten("a product for a library")
    return Key(size, lanes(size, folded, grid, True), wide=True)


def blocks_for(widest: int, threads: int, most: int) -> int:
    """Blocks for so many elements: fewer meet sooner.

    >>> blocks_for(1 << 20, 512, 132), blocks_for(5000, 512, 132)
    (132, 10)
    """
    return max(min(most, math.ceil(widest / threads)), 1)


def widest(graph: Graph) -> int:
    """The most threads that a step of a graph keeps busy."""
    return max(map(wide, everything(graph)), default=1)
