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
class Tuning:
    """The numbers of each family of kernels."""

    persistent: Persistent = Persistent()
    grid: GridKernel = GridKernel()
