"""What loops over a space are planned by, whichever processor runs them: numbers without limits
of their own, which a target hands in.
"""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Blocks:
    """How a space is cut into blocks that stay in cache."""

    cache: int = 1 << 21  # bytes that the arrays of a block may take together: a core's caches
    smallest: int = 1 << 16  # bytes of one array of a block
    largest: int = 1 << 20  # likewise
    shares: int = 4  # what is cut at all is cut into so many at least, for several threads
    whole: int = 1024  # elements: long steps are multiples, so that blocks begin at cache lines
    parts: int = 64  # the most runs of blocks that are handed to threads


@final
@record
class Nests:
    """How loops are nested."""

    lanes: int = 32  # columns that are worked on together where rows are folded
    panel: int = 512  # the same where nothing else must stay in cache
    cache: int = 1 << 18  # bytes of a panel that stay close to a core
    wide: int = 4096  # columns from which on sums over rows are shared out by columns
    tile: int = 32  # elements along the sides of a block where arrays lie across each other
    few: int = 8  # elements that are not worth a tile
    again: int = 6  # operations that are done again rather than kept, at most
    short: int = 16  # the size up to which an inner axis is a constant of the text
