"""Tuning numbers of loops over a space, for any processor. Each target sets its own values."""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Blocks:
    """Sizes of the blocks into which a space is split, so that each stays in cache."""

    cache: int = 1 << 21  # bytes of all arrays of a block, at most: the caches of one core
    smallest: int = 1 << 16  # bytes of one array of a block, at least
    largest: int = 1 << 20  # bytes of one array of a block, at most
    shares: int = 4  # the fewest blocks of a space that is split, so that several threads have work
    whole: int = 1024  # elements: longer steps are multiples, so that blocks begin at cache lines
    parts: int = 64  # the most runs of blocks that threads are given


@final
@record
class Nests:
    """Sizes by which the loops over a space are ordered, nested and tiled."""

    lanes: int = 32  # columns that are reduced together where the rows are reduced
    panel: int = 512  # the same where nothing else must stay in cache
    cache: int = 1 << 18  # bytes of a panel: a part of the second-level cache of a core
    wide: int = 4096  # the fewest columns by which threads share sums over rows
    tile: int = 32  # elements along each side of a tile, where arrays are transposed to each other
    few: int = 8  # the most elements along an axis that is not tiled
    again: int = 6  # the most operations that are computed again instead of being stored
    element: int = (
        4  # the most bytes of elements that vectors gather from, or spread to, short rows
    )
    near: int = 16  # the most bytes between elements of a vector that are said in the text
    short: int = 16  # the largest inner axis whose size is a constant of the source
