"""What kernels for a GPU are planned by: numbers that were measured, or are a matter of taste.

A chip's record of limits holds one of `Tuning`, and every planner reads its numbers from there, so
that a test can hand in a chip with others. What follows from a chip's own limits is computed from
them, and what is the same in all of CUDA stands where it is used.
"""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Rule:
    """What a persistent kernel may take in: elements of a value, operations of a round and of a
    step around loops, and for how many operations a product counts whose operands are read from
    memory, or whose matrix is kept.
    """

    grid: bool  # whether all blocks do it together, and not one
    elements: int
    work: int
    around: int
    product: float = 1
    kept: float = 1


@final
@record
class Persistent:
    """Which loops become one kernel, and how one block does them."""

    # 0.1 us a phase against some 4 us a launch: as long as one or two launches
    block: Rule = Rule(False, 1 << 13, 1 << 17, 1 << 15)
    grid: Rule = Rule(True, 1 << 22, 3 << 23, 1 << 21, product=16, kept=0.5)
    equations: int = 256  # of a kernel, about: compilers take their time for long ones
    room: int = 60 << 10  # bytes of shared memory: every GPU since Turing has them
    live: float = 0.4  # of the L2 cache, which others use too, for values of a grid
    alone: int = 1 << 14  # operations of a round from which on blocks share its rows
    wait: int = 1 << 12  # operations in the time until the lanes that share a sum have it
    kept: int = 5 << 14  # numbers of matrices that the threads of a block may keep
    depth: int = 3  # loops within loops
    narrowest: int = 32  # threads of a block: a warp
    widest: int = 512  # likewise: each then has 128 registers
    inlined: int = 3  # numbers of a chain that are computed anew wherever the last is read
    whole: int = 256  # elements from which on all threads of the block fold them into one
    matrix: int = 1 << 12  # numbers of a matrix from which on it is worth keeping
    pieces: int = 17  # of four numbers, that a thread has in registers: 68 of the 128


@final
@record
class GridKernel:
    """How all blocks of a GPU do a loop together."""

    threads: int = 512  # of a block
    narrow: int = 1 << 10  # elements that each block has for itself
    products: int = 1 << 20  # that lanes do, whose operands are read from memory again and again
    few: int = 1 << 12  # elements, or products, that each block goes through for itself
    unrolled: int = 16  # elements of a thread that may be registers
    words: int = 64  # registers of a thread that hold elements, of the 128 that one of 512 has
    together: int = 4  # elements whose reads are under way at once, where they are no registers
    fold: int = 4  # elements that a thread folds at least, or it is not worth its while
    matrix: int = 1 << 14  # products from which on a matrix is worth keeping
    pieces: int = 16  # of four numbers of a matrix, that a thread of 512 has in registers
    rows: int = 4  # of a block that are multiplied at once
    room: int = 100 << 10  # bytes of shared memory for rows, and for sums on their way
    tile: int = 16  # elements of a tile that a thread has at most
    # products and rows' numbers that a multiprocessor takes in a clock, about
    lanes: tuple[int, int] = (64, 32)


@final
@record
class Rowwise:
    """Kernels whose teams of threads have a row each."""

    block: int = 256  # threads
    largest: int = 1024  # threads of a row that neither registers nor shared memory hold
    in_shared: int = 512  # threads of a row in shared memory
    # elements of a row that a thread has at most; where blocks go from row to row, and keep sums
    held: int = 16
    summed: int = 32
    words: int = 64  # registers of a thread that the elements of a row may take, of 255
    crowded: int = 24  # the same of a thread of a block of more than 512, which has 64
    others: int = 12  # registers of a thread besides those of its row
    address: int = 8  # and for each array
    crowd: int = 512  # threads of a multiprocessor that hide each other's waiting
    apart: int = 16 << 10  # bytes of half a multiprocessor left beside rows that are read ahead
    long: int = 1 << 14  # elements from which on blocks share a row, if it is folded alone
    # a block that has all rows
    alone: int = 512  # its threads
    some: int = 8  # elements of a row that a thread of it has
    words_alone: int = 40  # registers of it for elements
    rounds: int = 2  # in which it has gone through all rows,
    rounds_again: int = 6  # if what it folds over them is read again
    meeting: int = 8 << 10  # bytes left of the shared memory in which its warps meet
    # the text
    seldom: int = 64  # packs of a row, of which few have the place that elements are compared with
    in_turn: int = 2  # packs of a row in shared memory that are computed at once
    unrolled: int = 4  # rounds over a row that is not held, whose reads are under way at once


@final
@record
class Columns:
    """Kernels whose threads lie along what is kept."""

    block: int = 256  # threads
    deepest: int = 1024  # threads that share the rows of few columns
    row: int = 64  # packs from which on blocks are parts of rows
    blocks: int = 1 << 15  # of a row, at most
    registers: int = 512  # bytes of arrays that a thread may hold, about half of its registers
    unrolled: int = 4  # rows of which a thread reads at once
    turns: int = 4  # packs of a thread where rows are long and many
    at_once: int = 128  # bytes that it then reads at once, at most
    costly: int = 16  # operations of an element, from which on a thread has one
    early: int = 16  # arrays that are read before rows are
    rows: int = 8  # that a thread has at least, before others help it


@final
@record
class NarrowColumns:
    """Folds over rows by blocks of a few columns, where wide ones would leave a GPU idle."""

    wide: int = 128  # columns of a block otherwise
    few: int = 16  # rows that are not worth it
    block: int = 256  # threads at least
    largest: int = 1024  # threads
    # up to so many rows, so many threads below each other: any such batch has one text
    short: int = 512
    below: int = 64
    rounds: int = 4  # in which a block has read all rows, if several blocks could share them
    # elements beyond which these do, and beyond which few blocks keep memory busy as well
    large: int = 1 << 20
    at_once: int = 4  # rows that a thread reads at once,
    bytes: int = 128  # if these are no more


@final
@record
class Parts:
    """Kernels that merge what blocks have left."""

    block: int = 256  # threads
    largest: int = 1024  # threads, where parts are many
    at_once: int = 64  # bytes of parts that a thread reads at once


@final
@record
class Tiles:
    """Elementwise kernels of arrays that lie across each other."""

    block: int = 256  # threads
    sides: tuple[int, ...] = (64, 32)  # elements of a tile along each side, the best first
    few: int = 8  # elements along an axis that are not worth a tile
    pack: int = 8  # elements that one access moves, at most


@final
@record
class Tuning:
    """The numbers of each family of kernels."""

    rowwise: Rowwise = Rowwise()
    columns: Columns = Columns()
    narrow_columns: NarrowColumns = NarrowColumns()
    parts: Parts = Parts()
    tiles: Tiles = Tiles()
    persistent: Persistent = Persistent()
    grid: GridKernel = GridKernel()
