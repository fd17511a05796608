"""The tuning numbers of kernels for a GPU: measured ones, and those that are a matter of taste.

A chip's record of limits holds one of `Tuning`, and every planner reads its numbers from there, so
that a test can hand in a chip with others. What follows from a chip's own limits is computed from
them, and what is the same in all of CUDA stands where it is used.
"""

from __future__ import annotations

from typing import final

from ge2.base.record import record
from ge2.program import CompilePrice, Concurrent
from ge2.targets.cuda.tensor_tuning import Attention, Cudnn, Mma, Wgmma


@final
@record
class Rule:
    """The limits of a persistent kernel: elements of a value, operations of a round and of a
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
class RoundTimes:
    """The times that predictions of loops are made of: seconds of a barrier of a block, and of the
    grid, of the sums of a product across blocks, and from one launch to the next, of which the
    second folds or does not; operations in a second of a block and of the grid, and bytes of a matrix
    that a block reads again.
    """

    block_barrier: float = 0.15e-6
    grid_barrier: float = 1.15e-6
    product: float = 1.1e-6
    launch: float = 0.95e-6
    fold_launch: float = 1.4e-6
    block_rate: float = 45e9
    grid_rate: float = 2.5e12
    read_rate: float = 50e9
    launch_product: float = 2  # operations that one of a launched product counts as
    margin: float = 0.9  # of the other's time that is predicted, for launches to be taken


@final
@record
class Persistent:
    """The choice of loops that become one kernel, and the work of one block on them."""

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
    tries: int = 64  # values that turn out to have rows after others were found to have none
    narrowest: int = 32  # threads of a block: a warp
    widest: int = 512  # likewise: each then has 128 registers
    inlined: int = 3  # numbers of a chain that are computed anew wherever the last is read
    whole: int = 256  # elements from which on all threads of the block fold them into one
    matrix: int = 1 << 12  # numbers of a matrix from which on it is worth keeping
    pieces: int = 17  # of four numbers, that a thread has in registers: 68 of the 128
    prediction: RoundTimes = RoundTimes()


@final
@record
class GridKernel:
    """The work of all blocks of a GPU on a loop."""

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
    # and where rows are many: fewer rows are then under way, of which more is in the cache for later
    long_block: int = 1024
    rounds_long: int = 8  # times that these read a row
    # packs of a thread at least where several blocks share a row, and instructions of an element from
    # which on one is enough: of 640,000 that take an arc tangent each, 39 blocks of 1024 had all
    packs: int = 4
    costly: int = 48
    rounds_again_long: int = (
        4  # the same where a row is read again, and small blocks' are not cached
    )
    in_shared: int = 512  # threads of a row in shared memory
    # elements of a row that a thread has at most; where blocks go from row to row, and keep sums
    held: int = 16
    summed: int = 32
    brief: int = 8  # elements of a row that one thread has, where rows are many
    met: int = 4  # elements of a thread whose sums over rows a block merges before it leaves them
    words: int = 64  # registers of a thread that the elements of a row may take, of 255
    crowded: int = 24  # the same of a thread of a block of more than 512, which has 64
    others: int = 12  # registers of a thread besides those of its row
    address: int = 8  # and for each array
    crowd: int = 512  # threads of a multiprocessor that hide each other's waiting
    apart: int = 16 << 10  # bytes of half a multiprocessor left beside rows that are read ahead
    long: int = 1 << 14  # elements from which on blocks share a row, if it is folded alone,
    divided: int = (
        1 << 16
    )  # and if that is a kernel of its own, before what its elements need it for,
    many_divided: int = 1 << 21  # with so many of all rows
    # rows for each row of sums of columns that a block leaves, at least, if all blocks have so many
    # bytes of rows under way
    parted: int = 16
    under_way: int = 8 << 20
    # a block that has all rows
    alone: int = 512  # its threads
    some: int = 8  # elements of a row that a thread of it has
    words_alone: int = 40  # registers of it for elements
    rounds: int = 2  # in which it has gone through all rows,
    rounds_again: int = 6  # if what it folds over them is read again
    meeting: int = 8 << 10  # bytes left of the shared memory in which its warps meet
    # the text
    again: int = 6  # operations that are done again rather than kept, at most
    seldom: int = 64  # packs of a row, of which few have the place that elements are compared with
    led: int = 32  # packs of a row that begins anywhere, from which on they begin at multiples
    in_turn: int = 2  # packs of a row in shared memory that are computed at once
    unrolled: int = 4  # rounds over a row that is not held, whose reads are under way at once
    unrolled_works: int = (
        64  # works up to which a loop is written out for single elements as for packs
    )


@final
@record
class Columns:
    """Kernels whose threads lie along what is kept."""

    block: int = 256  # threads
    deepest: int = 1024  # threads that share the rows of few columns
    row: int = 64  # packs from which on blocks are parts of rows
    blocks: int = 1 << 15  # of a row, at most
    registers: int = 512  # bytes of arrays that a thread may hold, about half of its registers
    kept: int = 256  # bytes of sums, and of what rows have in common, that eight elements may take
    unrolled: int = 4  # rows of which a thread reads at once
    # of so few bytes, of which so few values are computed: 16 bytes of a thread on their way read
    # 2.5 of an H200's 3.7 TB/s
    further: int = 16
    little: int = 4
    simple: int = 4
    # and, in a variant for races, of so many elements: 64 bytes on their way may be too few
    deep: int = 8
    many: int = 1 << 24
    turns: int = 4  # packs of a thread where rows are long and many
    at_once: int = 128  # bytes that it then reads at once, at most
    costly: int = 16  # operations of an element, from which on a thread has one
    early: int = 16  # arrays that are read before rows are
    together: int = 7  # elements of a row that a thread has though no access moves two of them
    rows: int = 8  # that a thread has at least, before others help it
    divided: int = 8  # and before what all of them are divided by is prepared
    # where so many operations are for each of so many pairs of a row and a column: columns of a
    # thread, threads of a multiprocessor that keep it busy, and their registers besides what they keep
    # of columns: in all, and for each array of rows
    each: int = 8
    pairs: int = 1 << 20
    crossed: int = 4
    computing: int = 512
    others: int = 24
    address: int = 3
    short: int = (
        64  # strides there that are in the text: the places of several rows are one address
    )
    # arrays that neighbours read at places near each other are read by whole packs:
    gain: float = 1.5  # where that takes so many times fewer accesses,
    windowed: int = 4  # in rows of so many packs, at least,
    apart: int = 4  # of elements at most so far apart
    # bytes from an element to the next of an array that is read with those between its elements
    alternating: int = 64
    below: int = 4  # elements of packs of which a thread has some below one another, at most,
    windows: int = 320  # if all that is read for them are no more bytes


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
class Requests:
    """Reads that are under way while a region folds its rows or columns."""

    column: int = 32  # threads that one column of a reduction keeps busy
    latency: float = 8e-7  # seconds from the request of bytes to their arrival, under load
    # bytes requested at once: for a row along threads, for a column of narrow blocks, and for one of
    # wide blocks, by the bytes of an element
    of_row: int = 1 << 15
    of_column: int = 1 << 11
    of_wide: int = 1 << 7


@final
@record
class Parts:
    """Kernels that merge what blocks have left."""

    block: int = 256  # threads
    largest: int = 1024  # threads, where parts are many
    at_once: int = 64  # bytes of parts of a result that a thread reads at once
    held: int = 128  # and of all results
    blocks: int = 128  # blocks, at least, as many as a large chip has multiprocessors,
    narrow: int = 8  # while their columns are no fewer: 32 bytes in a row, as memory hands them out
    threads: int = 1 << 18  # that keep a large chip busy: 128 multiprocessors of 2048


@final
@record
class Tiles:
    """Elementwise kernels of arrays that lie across each other."""

    block: int = 256  # threads
    sides: tuple[int, ...] = (64, 32)  # elements of a tile along each side, the best first
    few: int = 8  # elements along an axis that are not worth a tile
    # tiles of several axes: elements of arrays that are worth one, bytes that are read or written one
    # after another at least, and elements of a tile
    large: int = 1 << 16
    run: int = 128
    elements: int = 4096
    pack: int = 8  # elements that one access moves, at most


@final
@record
class Elements:
    """Kernels of a thread an element: moves, gathers, scatters, random bits."""

    block: int = 256  # threads


@final
@record
class Scans:
    """Running sums, products and extremes."""

    block: int = 256  # threads
    bytes: int = 128  # that a thread has at a time
    packs: int = 6  # accesses of a thread at a time
    run: int = 144  # bytes of a thread, where blocks share lines
    lines: int = 4  # for each multiprocessor, from which on no line is shared by blocks
    resident: int = 3  # blocks of a multiprocessor at once
    waiting: int = 6  # the same of lines that wait for those before them
    rows: int = 16  # packs of a thread below each other
    busy: int = 192  # packs of columns for each multiprocessor, from which on none are shared
    strip: int = 128  # columns that blocks share
    # tiles of a strip that are merged before their groups are: of one strip, of many
    group: int = 32
    smallest: int = 4
    alone: int = 128  # threads of a block that shares nothing
    cleared: int = 256  # threads of a block that clears what blocks leave


@final
@record
class Scatters:
    """Updates at indices, and sums of them."""

    few: int = 64  # indices of which each may be compared with all others
    ranked: int = 1 << 13  # updates ordered by counting: 10 us at most on 132 multiprocessors
    window: int = 64  # updates that are summed one after another
    ahead: int = 8  # of which a thread has so many on their way
    # updates that a block puts in order, at most, and blocks of a multiprocessor that are enough: by
    # 32 blocks 65536 took 14 us of an H200 for each digit
    tile: int = 2048
    tiles: int = 2
    # updates that are put in order by one launch for each digit: of more, the counts of all tiles
    # that each block adds up are too many
    in_tiles: int = 1 << 18
    cleared: int = 64  # places of which a thread looks for those that have no update, at most
    clearing: int = 8  # threads of a row that are worth the search: of shorter ones all are cleared
    helpers: int = 8  # threads that look for what is before one update
    # sums that need no order: from so many updates on, up to 2^bits, whose rows are no longer,
    unordered: int = 1 << 11
    bits: int = 24
    short: int = 64
    # and of places that are no more than these for each update
    sparse: int = 2
    ranged: int = 1 << 18  # elements of updates whose range of exponents is looked at
    # copies of sums at most, all of which are at no more addresses: one atomic a clock for each
    copies: int = 32
    addresses: int = 1 << 16
    meeting: int = 8  # updates of a copy of a sum, on average, that are worth a copy
    # sums in the shared memory of blocks: their threads, the updates of a block at least, and in how
    # many ranges the result is cut at most, for each of which blocks read all indices
    shared_block: int = 1024
    shared_run: int = 1024
    shared_some: int = 4  # updates of a thread at once
    # bytes of updates that a thread has in registers, of which one of 1024 has 64
    shared_held: int = 168
    ranges: int = 8
    left: float = 0.33  # times as long as going through an update, for a sum that a block leaves
    # seconds, as 17 sizes took on an H200 (benchmarks/results/gpu-20261129-4.txt), of:
    atomic: float = 0.8e-11  # an element that an atomic of global memory takes in
    place: float = 0.8e-11  # an update whose place is found,
    noted: float = 2.1e-11  # where an exponent is noted before
    shared: float = 1.2e-11  # an element that blocks go through for a range of sums
    # 19 sizes of sums in order (benchmarks/results/gpu-20261130-1.txt): a digit of the place of an
    # update, a turn of them in few launches; an update that is compared with all others; one that is
    # read in the order of places, or a row of them; a window that a place's sum goes on over
    digit: float = 1.8e-11
    turn: float = 3.5e-6
    compared: float = 3e-9
    run: float = 2.2e-11
    row: float = 1.5e-11
    over: float = 1.4e-7
    cleared_bytes: float = 4e12  # of sums, cleared and read, in a second: assumed
    # sums of few places, of which blocks have several: elements of a row at least, as single ones are
    # added exactly as fast; updates of a thread on their way at once, threads of a block at least,
    # and the seconds of a round of those updates (64 places of 64 floats took 130 us for 76 rounds)
    lane_columns: int = 4
    # as many as take these bytes of registers, of all threads, which have two times as many
    lane_ahead: tuple[tuple[int, ...], int] = ((16, 8), 4)
    lane_bytes: int = 1 << 15
    lane_threads: int = 32
    lane_round: tuple[float, float] = (1.1e-6, 5e-8)  # and for each of the updates
    busy: int = 2  # updates of a block for each sum of whole numbers, which it adds to the result


@final
@record
class TopKs:
    """The largest elements of lines, and lines in order."""

    ranked: int = 128  # elements of a line that a warp ranks, each against all others, at most
    long: int = 1 << 16  # elements of a line that is cut, where lines are few
    part: int = 1 << 13  # elements of a part of it at least


@final
@record
class Sorts:
    """Lines in order, or elements of some ranks of them. Instructions are those of a warp, counted in
    SASS.
    """

    block: int = 128  # threads, where lines are in registers
    # keys of a word of a line that one thread puts in order; of more words, or where lanes of a warp
    # share a line, a lane has no more than `keys`
    alone: int = 64
    keys: int = 32
    unrolled: int = 16  # iterations of a walk over elements, each of which then has a register,
    divided: int = 8  # and of one whose places take a division each
    # instructions of a comparator, by the words of a key with its place
    comparator: tuple[int, int, int] = (2, 6, 12)
    key: int = 14  # instructions for a word of a key on its way from memory and back
    pair: int = 6  # instructions for two elements that are compared where lines are ranked
    shared_pair: int = 30  # instructions for a pair in a step in shared memory
    digit: int = 24  # instructions for an element whose digit is counted, or is looked at
    digits: int = 3000  # and for what is done with the counts of the digits of a line
    # a line that one block sorts by its digits: the threads that do, two of whose blocks have room,
    # keys of each at a time, and elements at most; instructions of a warp for keys that are moved by
    # one digit, and those of all warps for a tile of them
    threads: int = 512
    run: int = 6
    longest: int = 1 << 20
    moved: int = 80
    tile: int = 4800
    started: int = 2  # instructions of warps that a multiprocessor starts in a clock
    # elements of a line that all blocks find at once, whose counts shared memory holds; elements of
    # the part of one, which outweigh that the counts are cleared and added up
    ranks: int = 4
    part: int = 1 << 12


@final
@record
class Solves:
    """Small systems of linear equations, of which a warp or a part of it has one each."""

    block: int = 128  # threads at most
    sides: int = 64  # right sides at most, which a thread takes one after another


@final
@record
class Joins:
    """Parts that are put side by side by one kernel, and not copied one by one."""

    parts: int = 4  # at most
    elements: int = 1 << 18  # at most: a launch takes longer


@final
@record
class Products:
    """Products by the library, and which are done by a kernel of ours instead; clocks as
    docs/design/small_products.md counts them.
    """

    algorithms: int = 8  # of the library for one product that are variants
    # bytes that an H200 moves in the time of one call of several: 8 calls each for the products of a
    # state-space layer took 446 us, and 342 with copies of 277 MB and a call each
    call: int = 16 << 20
    slices: int = 16  # threads that share a sum of four terms, or two of float64
    ends: int = 1100  # clocks of a block before its first and after its last product
    stage: int = 210  # for a stage of its sum when it is alone on its multiprocessor,
    shared: int = 135  # and when others are there
    parts: int = 150  # to merge the parts of sums
    # of rows, columns or terms: tensor cores are not filled by fewer
    thin: int = 32
    # predicted clocks up to which ours is taken: the library's least is 5 us or 8,800
    most: int = 7000
    elements: int = 1 << 19  # of an operand or the result, at most
    # rows, columns and terms of many matrices, at most, of which a thread has whole sums; and times of
    # what is counted that they take, by the bytes of the columns that a thread has, of matrices up to
    # some size and of larger ones: on an H200 65536 of 16 x 16 took 60 us of 50, 16384 of 32 x 32 75,
    # of 30 x 30 93 of 44, of 31 x 31 161 of 47, and 65536 of 11 x 11 46 of 24
    whole: int = 32
    easily: int = 16
    short: tuple[tuple[int, float], ...] = ((16, 1.25), (8, 1.6), (4, 1.9))
    wide: tuple[tuple[int, float], ...] = ((16, 1.5), (8, 2.1), (4, 3.3))
    half: float = 1.5  # more for half types: 131072 of 16 x 16 took 89 of 50
    # bytes of a column's terms that are neighbours, of which a thread reads 16 at once, up to which that takes
    # no longer than other columns; and how many times as long it takes at most: 32 x 32 105 us and not 74
    turned: int = 80
    astray: float = 1.5
    rows: int = 4  # that a thread has, at most,
    more_rows: int = (
        8  # and of a multiple of these: 32 x 32 took 74 and not 75 us, 24 x 24 turned 95, not 124
    )
    resident: int = 4  # blocks of a multiprocessor, where threads have one column: 64 registers
    # clocks of a multiprocessor in which the library has a tile of many small matrices, and for each
    # byte of it: on an H200 65536 of 16 x 16 took 170 us, 16384 of 32 x 32 81, 32768 of 16 x 16 in
    # float64 121
    tile: int = 340
    tile_byte: float = 0.14
    # arrays of a region that goes with a product: a thread has an element of each in a register
    # while it multiplies
    arrays: int = 24
    # of operands that are made as they are read: clocks for an operation on the elements of a stage, stages
    # whose reads are under way from the start, and clocks for which each further one waits: estimated
    made: int = 8
    ahead: int = 4
    waits: int = 500
    # seconds of an element of the result that GELU and a bias take of the library, and how many times
    # as long as without them rows of no multiples of 16 bytes take: measured on an H200
    epilogue: float = 0.4e-12
    narrow_epilogue: float = 4.8
    # of the library: times the rate of float32 that tensor cores multiply half types at; the parts of it
    # by the bytes of which rows are a multiple, and the side of a tile of rows of fewer than 16: on an
    # H200 511^3 and 1023^3 took as long as few tiles do
    tensor: int = 10
    aligned: tuple[tuple[int, float], ...] = ((16, 1.0), (8, 0.5), (4, 0.39), (2, 0.27))
    narrow_side: int = 128
    one_by_one: float = 0.2  # of a memory's rate, where elements of two bytes are moved one by one
    # times as long as its bytes take: a region of rows that are no multiples of 16 bytes apart
    scattered: float = 3.0


@final
@record
class MadeOperands:
    """Operands that a multiprocessor makes as it reads them (docs/design/made.md), in a clock: bytes from its
    shared memory, from the L2 cache, as far as bare products have shown, and operations.
    """

    shared: int = 128
    cached: int = 64
    lanes: int = 128
    handled: float = 3.0  # operations that reading, rounding and storing an element takes
    # times the prediction by warps: two of three that were measured took so much longer
    doubt: float = 1.4


@final
@record
class Launches:
    """The submission of launches to a GPU."""

    few: int = 3  # that are no slower one by one than as a graph
    # that another waits for, up to which nobody looks whether one of them waits for the others in turn
    direct: int = 4
    # of a loop that are written down, as parts of the graph around it: one of more takes long to
    # make
    recorded: int = 1 << 14
    # of one kernel, small and independent, from which on they are one launch; and how far back
    # another is looked for
    bundled: int = 4
    rounds: int = 8  # of all threads at once, up to which a launch is small
    window: int = 256
    parameters: int = 32000  # bytes that they may have, as far as the driver takes them


@final
@record
class Tuning:
    """The numbers of each family of kernels.

    `spare`: bytes of shared memory that the driver and a kernel's own small arrays take.
    `slow_double`: times as long as float32 float64 takes, from which on the user is told: 2 where a
    GPU is made for float64, 32 or 64 where it is not.
    """

    elements: Elements = Elements()
    scans: Scans = Scans()
    scatters: Scatters = Scatters()
    top_k: TopKs = TopKs()
    sorts: Sorts = Sorts()
    solves: Solves = Solves()
    joins: Joins = Joins()
    products: Products = Products()
    made: MadeOperands = MadeOperands()
    wgmma: Wgmma = Wgmma()
    mma: Mma = Mma()
    attention: Attention = Attention()
    cudnn: Cudnn = Cudnn()
    launches: Launches = Launches()
    concurrent: Concurrent = Concurrent()
    rowwise: Rowwise = Rowwise()
    columns: Columns = Columns()
    narrow_columns: NarrowColumns = NarrowColumns()
    requests: Requests = Requests()
    parts: Parts = Parts()
    tiles: Tiles = Tiles()
    persistent: Persistent = Persistent()
    grid: GridKernel = GridKernel()
    # of NVRTC, which takes 0.05 s for sums of arrays and 0.2 for rows and running sums
    compile_price: CompilePrice = CompilePrice(kernel_seconds=0.1, share=0.5)
    spare: int = 4 << 10
    slow_double: int = 8
