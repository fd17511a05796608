"""The tuning numbers of programs in C, limits of the processor, and the time to compile."""

from __future__ import annotations

from functools import cache
from typing import final

from ge2.base.detect import processor_name
from ge2.base.record import record
from ge2.choice import Speed, speed_of
from ge2.codegen.kernel_values import Blocks, Nests
from ge2.program import CompilePrice

# -------- What programs in C are planned by: numbers that were measured, or are a matter of taste.
# One record for all families and writers. `Caps` holds it beside the limits of the processor, so a
# test can hand in another, by `config.using(tuning=(Tuning(...),))`.


@final
@record
class Regions:
    """Kernels of regions."""

    grain: int = 1 << 21  # simple operations that are worth waking other threads for, some 50 us
    task: int = 1 << 19  # simple operations that a task has at least, some 10 us
    tasks: int = 64  # of a sum that has partial results, at most
    stack: int = 4096  # elements of an array on the stack, at most
    few: int = 8  # rounds of a loop that are not worth a vector
    # rounds of a loop within vectors up to which gcc is told to write it out, and extremes have no
    # branch: gcc 12 makes no vectors, or slow ones, of more
    brief: int = 3
    moved: int = 4  # the same of one that folds nothing
    # operations for each element that is not beside the one before, below which its loop has no
    # vectors: gcc took 1.0 s for two loops over columns of bytes, which were no quicker
    scattered: int = 4
    # floats of a byte that are converted at once: more are unpacked in steps
    bytes_at_once: int = 16
    # operations on wider numbers in a loop with bytes from which on it takes few elements at once:
    crowded: int = 32
    # so many where some numbers have four bytes, and where all have eight
    beside_bytes: tuple[int, int] = (32, 8)
    # elements of a loop over all of an array, and simple operations for each, from which on what
    # vectors leave over has no shorter ones: a quarter of gcc's time
    long: int = 512
    heavy: int = 24
    # elements whose float32 sum is taken before it is added to a float64: NumPy errs as much
    run: int = 256
    # rows whose float32 sums are taken before they are added to float64 ones, where there are as
    # many or more, and so many columns at most
    run_of_rows: int = 64
    columns: int = 1 << 14
    exact_run: int = 128  # as many as NumPy adds before it goes pairwise, in eight sums
    placed: int = 16  # floats up to which the place of an extreme is sought in a loop written out
    screened: int = 32  # elements from which on vectors find an extreme before its place is sought
    sought: int = 2048  # bytes of a run of elements whose extreme vectors find
    halved: int = 1 << 15  # elements of a block of NumPy's whose sum is taken by halves
    masked: int = 600  # elements from which on three integer operations beat a masked copy
    lines: int = 8  # of a loop up to which it is written twice, for several threads and for one
    # elements up to which a copy has no extents in its text: the edges of an image are one kernel,
    # whatever their width, where each took gcc 15 ms
    copied: int = 1 << 14


@final
@record
class Moves:
    """Reading and writing at indices."""

    grain: int = 1 << 16  # elements that are worth waking other threads for
    tile: int = 64  # elements of a row that are moved at a time where they lie apart
    lanes: int = 64  # elements of a row that a thread has at least
    threads: int = 8  # from which on each reads all indices sooner for its part of the places
    own: int = 1 << 18  # bytes of the places that a thread has for itself: they stay in its cache
    per_place: int = 16  # updates of a place that are worth a copy of it
    stretch: int = 1 << 15  # updates that are added up apart from others, at least
    matrix: int = 64  # rows of a matrix that LAPACK's own threads would not share
    lines: int = (
        64  # that share the plan of a Fourier transform, which takes as long as one of them
    )


@final
@record
class Scans:
    """Running sums, products and extremes."""

    chunk: int = 1 << 15  # elements of a line that one thread takes at a time
    lines: int = 32  # from which on threads share lines alone
    columns: int = 256  # lines side by side that are run through together


@final
@record
class Sorts:
    """Sorting, and searching in what is sorted."""

    cost: int = 16  # moves of an element that sorting or seeking one is worth
    selecting: int = 6  # the same of an element of a line of which a few are selected
    few: int = 64  # keys of a line that count those before them: GE2_FEW_KEYS of select.h
    heap: int = 8  # times as long as what is kept of it in a heap a line is to be
    searches: int = 16  # values that are sought at a time


@final
@record
class Draws:
    """Random bits."""

    # elements that a thread makes at a time; a multiple of those of a block of the generator
    piece: int = 1 << 13
    cost: int = 4  # moves of an element that making one is worth


@final
@record
class Products:
    """Products of matrices in loops; GE2_THIN of product.h bounds them, too."""

    thin: int = 1 << 20  # multiplications from which on BLAS's threads are worth waking
    # multiplications of each of many products whose loops are written for its sizes, as the rows of
    # small ones are vectors; of complex numbers
    few: int = 1 << 12
    few_complex: int = 1 << 9
    many: int = 1 << 18  # multiplications of them all that are worth waking other threads for
    # by panels; BLAS is as quick where products are larger and no side is short
    high: int = 384  # bytes of a column of the rows that a task has: with its terms, half of 256 KB
    task: int = 1 << 17  # multiplications of a task, at least
    wake: int = 1 << 20  # multiplications of them all that are worth waking other threads for
    pack: int = 1 << 15  # elements that a thread packs at a time
    results: int = 1 << 11  # fewer of them than so many are no rows for panels where sums are long
    batched: int = 1 << 21  # multiplications of each of several products, at most
    packed: int = 1 << 18  # multiplications of one product, at least, or
    apart: int = (
        1 << 15
    )  # where BLAS packs none but of rows in one piece, of tall ones that are not
    short: int = 64  # its columns or terms, at most, or
    medium: int = 1 << 29  # multiplications times bytes of a number, at most, with
    tall: int = 128  # rows, at least, for each of which a part of packing B is paid
    # few rows, at most GE2_LINE_ROWS, times lines of so many elements: BLAS would copy those first
    lines: int = 32
    line: int = 64  # and at least so many of them
    # the same where terms lie beside each other: so few rows, and so many bytes of lines, but for
    # few columns that fill a vector of so many bytes: panels are quicker
    dots: int = 16
    # and so many terms, whose sums are added across a vector, but for so few rows
    terms: int = 256
    short_dots: int = 4
    far: int = 1 << 19
    row: int = 32  # bytes of a vector, with which loops over few terms store rows
    vector: int = 64
    # with what is done to its elements: bytes of a product that need no part of it at a time, and
    # of the part that stays in a second cache, or in a first one where products are small
    near: int = 1 << 17
    panel: int = 1 << 18
    first: int = 1 << 13


@final
@record
class Attention:
    """Kernels of attention."""

    # queries, and keys, of a block: its scores are 16 KB of float32, half of a first cache
    blocks: tuple[int, ...] = (64, 32)
    score: int = 60  # operations that a score is worth beside its products
    # tasks that few heads are cut into, of so many blocks of keys at least: each has sums of its own
    tasks: int = 8
    least: int = 4
    turned: int = 3  # operations that a number of a key is worth where a block of queries turns it
    rate: float = 1.1  # of its products, to that of the library's large ones
    apart: int = 40  # operations that a score is worth in regions of rows


@final
@record
class Loops:
    """Loops and branches as parts of the C that is around them."""

    # elements that a round makes up to which sizes are written out: it is made for them alone
    small: int = 1 << 12
    # simple operations, some 400 us, of a region that threads share also if it makes nothing anew
    shared: int = 1 << 24
    fused: int = 24  # steps of such a round up to which its kernels become part of it
    # elements that a round goes through that are worth a call of it, where several loops have it
    worth: int = 1 << 7
    nested: int = 4  # nested loops and branches from which on one is a function
    local: int = 256  # bytes of an array up to which it is a variable of that function
    # bytes of a carry that stays in cache lines of its own: what is stored there is read at once
    carry: int = 256
    known: int = 64  # bytes up to which the size of a copy is written out
    rounds: int = 16  # that a while loop is taken to have, to tell whether a call is long
    # elements that a counted loop goes through, in about a second, to look for interrupts
    long: int = 1 << 30
    # a mask: of short iterations, one in so many looks whether there was an interrupt
    often: int = (1 << 10) - 1


@final
@record
class Files:
    """The C file of a program, and the price of compiling it."""

    table: int = 1 << 14  # bytes of an array up to which it stands in the file as a constant
    # statements from which on it is worth two compilers, half of it each, and as many of them as a
    # loop takes gcc; kernels that it has then: some 170 ms, of which another compiler saves 40 and
    # costs 50 of processor time, for its start, headers, and functions of products that both call
    large: int = 640
    loop: int = 40
    many: int = 6
    parts: int = 16  # at most
    calls: int = 32  # of kernels in a function, from which on they are worth loops
    iterations: int = 3  # the fewest of such a loop
    periods: int = 4  # candidates that are tried at a time
    price: CompilePrice = CompilePrice(kernel_seconds=0.03)  # at -O3
    call_seconds: float = 0.004  # for a call of one, which is inlined
    quick: float = 0.35  # the part of that time that a compiler needs at -O1
    heavy: int = 1 << 15  # elements from which on the interpreter's lock is worth giving up


@final
@record
class Results:
    """Memory of results that later calls use again, once nobody holds them."""

    least: int = 1 << 16  # bytes of a result: of fewer, fresh memory costs a few page faults
    most: int = 1 << 28  # bytes: more are not kept from other programs


@final
@record
class Variants:
    """The variants that are measured beside the usual one."""

    least: int = 1 << 12  # elements of a problem from which on it is worth measuring more than one
    sooner: int = 8  # times less work than usual, of which threads take a part
    tiles: tuple[int, ...] = (16, 64)  # elements along each side, in place of `Nests.tile`
    loops: int = 1 << 18  # multiplications of one product up to which loops are tried beside BLAS


@final
@record
class Tuning:
    """The numbers of each family and writer.

    `shared`: elements of a space of NumPy's from which on several threads are worth their trouble.
    """

    blocks: Blocks = Blocks()
    nests: Nests = Nests()
    regions: Regions = Regions()
    moves: Moves = Moves()
    scans: Scans = Scans()
    sorts: Sorts = Sorts()
    draws: Draws = Draws()
    products: Products = Products()
    attention: Attention = Attention()
    loops: Loops = Loops()
    files: Files = Files()
    results: Results = Results()
    variants: Variants = Variants()
    shared: int = 1 << 17


TUNING = Tuning()


# -------- Limits of this machine's processor for generated C.


@final
@record
class Caps:
    """`threads`: those that a kernel may share its work among. `blas`: C can call NumPy's BLAS.
    `tuning`: the numbers that are no limits. `narrow`: that BLAS has vectors of half the length that
    ours have, so it takes twice as long. `unpacked`: multiplications of a product up to which BLAS
    packs no operand, if the rows of the right one lie in one piece.
    """

    threads: int
    blas: bool = True
    tuning: Tuning = Tuning()
    narrow: bool = False
    unpacked: int = 0

    @property
    def kind(self) -> str:
        """The device as the record of measurements names it."""
        return kind_of(self.threads)

    @property
    def usual(self) -> Speed:
        """The speed of a processor that was not probed: of a server's some years ago."""
        n = max(self.threads, 1)
        return Speed(
            moved=8e9 + 4e9 * n, cached=4e10 * n, cache=1 << 20, single=3e10 * n, double=1.5e10 * n,
            products=8e10 * n, launch=1e-6 if n == 1 else 5e-6, functions=8,
        )  # fmt: skip

    @property
    def speed(self) -> Speed:
        return speed_of(self.kind, self.usual)

    @property
    def driver(self) -> str:
        """The compiler."""
        from ge2.base.detect import toolchain

        found = toolchain()
        return "" if found is None else found.version

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        import numpy as np

        return (("numpy", np.__version__),)


@cache
def kind_of(threads: int) -> str:
    return f"{processor_name()}, {max(threads, 1)} threads"
