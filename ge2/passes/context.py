"""The facts that rewrites of graphs know beside the graph, their numbers, and the function that
runs them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Protocol, cast, final

from ge2.base.compile_times import passed, spent
from ge2.base.config import config
from ge2.base.record import collector_paused, record
from ge2.base.source import warn
from ge2.ir import Graph, Literal, verify
from ge2.ops.attention import Band, Distances
from ge2.trace.stage import LONG

if TYPE_CHECKING:
    from pathlib import Path


# -------- The numbers that rewrites of graphs are planned by: how large regions get, which
# repetitions become loops.
# A pass that reads one of these takes the `Context`, which holds them, so a test can hand in
# others, by `config.using(tuning=(Tuning(...),))`.


@final
@record
class Fusion:
    """Limits on the size of a region."""

    # elements that the whole axes of a region may span, so that a row of them stays in cache
    row: int = 1 << 16
    block: int = 1 << 15  # the same where no axis is left that could be cut
    # elements of a row, and bytes of an array by columns, beyond which what lies about the mean
    # would be read again for it
    row_again: int = 3 << 14
    columns_again: int = 1 << 24
    folding: int = 160  # equations of a region that folds
    members: int = 640  # of one that does not: compilers spill for less than arrays cost
    # equations that an array which is read or stored is as long as: compilers keep its address and
    # stride for the whole loop, and memory has few pages open at once; and one of a half type, whose
    # elements are converted
    array: int = 8
    conversion: int = 18
    endless: int = 4096  # equations that are looked at as one
    easy: int = 4  # instructions of a scalar that may as well be computed for each element
    recomputed: int = (
        1 << 22
    )  # bytes of a value that a later region may make anew: caches hold less
    # columns for each multiprocessor of a GPU that keep it busy if each is whole in a block; and
    # elements that memory moves in the time of two launches: where so many more would be moved by a
    # busy one, several blocks share columns
    columns: int = 16
    many: int = 5 << 19
    shared: int = 1 << 22  # elements from which on they do, however many columns there are
    tail: int = 12  # equations that go on with sums which several blocks share
    # elements of a row that a GPU may read at indices again for each fold of it
    gathered: int = 16
    # elements of an array that a loop may read across its lines, as caches hold them all
    crossed: int = 1 << 12
    seldom: int = 4  # reads of single elements for each costly one, from which on both are together


@final
@record
class LiveRanges:
    """Values that are made again behind the fullest step of a program, not to wait across it."""

    least: int = 1 << 20  # bytes of a value that is worth it
    ample: int = 1 << 30  # bytes of all values together that nobody lacks
    small: int = 16  # an array is small beside one of as many times its bytes
    share: float = 1 / 22  # of the bytes that a program moves, how many more it may


@final
@record
class Repetition:
    """Work that elementwise regions of a GPU would do again for each element along a new axis."""

    elements: int = 1 << 21  # that it is spread to, at least, and times as many as it makes
    times: int = 3
    gain: int = 4  # one in so many parts of its time, at least, that is saved
    access: int = 16  # bytes of neighbours that a thread has
    # instructions of a value that is not worth an array, of a function beyond those that its cost
    # counts, and of an element that is read: one goes with four others
    easy: int = 8
    function: int = 24
    read: int = 4
    # instructions of all lanes in the time of a byte, and bytes that are moved in that of a launch
    instructions: int = 7
    launch: int = 10_000_000


@final
@record
class Results:
    """Regions that compute results of the program, which are moved beside one another."""

    few: int = 4  # for which the order stays
    small: int = 1 << 18  # bytes of all values of one that may be the last of the program
    waiting: int = 1 << 25  # bytes of values that wait for the last of a group
    # elements that are folded into one that is written elsewhere than its place, at most: no other
    # kernel does that with sums of parts
    folded: int = 32
    # elements of a region of pairs, at least, for which points are turned: so many columns of them and
    # points, of which there are so many times fewer elements
    pairs: int = 1 << 20
    columns: int = 4
    neighbours: int = 256
    beside: int = 8


@final
@record
class Rolling:
    """Limits on the straight code that becomes a loop. Of the times only ratios matter."""

    rounds: int = 8  # the fewest that are worth a loop
    equations: int = 48  # the fewest in all
    worth: float = 0.2  # seconds of compiling that are worth looking for a cheaper way
    # equations of elementwise iterations that are no loop on a GPU: 200 steps of three took 21 us in
    # straight code, 358 in a loop
    straight: int = 1 << 13
    # equations in a row by which a repetition is recognised
    grams: tuple[int, ...] = (4, 16)
    periods: int = 6  # candidates that are tried, of each length
    turns: int = 4  # iterations at most after which the same arrays are read again
    turned: int = 1 << 16  # elements of a matrix that is laid in columns before a loop, at most
    calls: int = 100  # of a compiled function, over which its compile time is spread
    cache: int = 1 << 19  # bytes that stay in a core's own cache
    from_cache: float = 4e10  # bytes a second
    from_memory: float = 8e9  # bytes a second
    dispatch: float = 1e-7  # seconds for a call of a kernel
    # seconds in which an equation of straight code is planned for a GPU by what comes after this: of
    # GPT-2's step 0.6 s for 4,900 (12 layers in a loop of 11 rounds take as long as in straight code)
    planning: float = 1e-4
    steps: int = 2000  # calls over which those are spread: a program of large arrays trains
    device_memory: float = 4e12  # bytes a second
    # the part of a round's traffic that a loop on a GPU adds: what would be a view or be written
    # over its argument is copied, what would be fused with the round before is not
    apart: float = 0.05


@final
@record
class Offsets:
    """Limits on straight code that becomes loops over slices whose starts count."""

    # the fewest of a program in which such loops are looked for: a second of planning; and the
    # fewest in which one is that is elementwise work on slices of one size, if it costs less
    equations: int = LONG
    few: int = 1000
    writes: int = 100  # into slices, that it has at least
    worth: int = 600  # equations that a loop stands for, at least
    tries: int = 2  # equations that are compared in vain for each, at most
    rounds: int = 4  # iterations of a loop, at least
    gram: int = 4  # equations in a row by which a repetition is recognised
    periods: int = 16  # distances to equal ones before that are tried
    longest: int = 2000  # equations of an iteration
    alignments: int = 8  # equations, one after another, that are tried as the first
    nests: int = 6  # loops in loops
    widest: int = 256  # elements of an axis of which a part is read: the rest costs as much


@final
@record
class Stacking:
    """Limits on the loops that become scans."""

    deep: int = 16  # operations, one on another, that are done for all rows at once
    returned: int = 3  # results of iterations that may be the caller's, each a copy


@final
@record
class Splitting:
    """Limits on cutting elementwise work along the edges of pads and joined arrays, and on writing
    out folds over windows.
    """

    # elements: a copy of fewer takes less time than the calls of more kernels
    smallest: int = 1 << 14
    exact: int = 3  # cuts of an axis up to which each has its place; of more, edges are lumped
    edge: int = 8  # an edge is at most this part of an axis
    full: int = 2  # axes up to which edges are cut, too: cells that copy nothing, 16 at most
    window: int = 64  # places of a window, at most, of which a fold reads each as a slice
    written: int = 512  # equations that such a fold may become


@final
@record
class Moves:
    """Limits on joined, padded and updated arrays, and rows at indices, that the regions which read
    them make.
    """

    readers: int = 3  # kernels that each read the parts, and compute what is made of them
    small: int = 1 << 18  # elements of a join that is one kernel only to save a launch,
    several: int = 1 << 24  # or two and more
    columns: int = (
        4  # elements of a part along the last axis, at most, of a join that is one kernel
    )
    deep: int = 8  # joins of joins that are seen through
    pads: int = 48  # arrays of a region that lie elsewhere: each is an address and its bounds
    equations: int = 400  # of a region
    again: int = 12  # of what is computed in each of several places
    runs: int = 5  # of indices along an axis: each is a comparison
    row: int = 2  # elements of a row that is read at an index, at least: neighbours read it
    held: int = 16  # and at most, for threads to have them while they are folded
    parts: int = (
        4  # of a join or that take turns, at most, to each of which is done what is to the whole
    )
    turns: int = 16  # parts of parts that take turns, at most
    stride: int = 64  # bytes from an element of such a part to its next, at most
    repeated: int = 192  # equations that are done to parts, at most
    shared: int = 4  # elements of a last axis for which one that an index names is read again


@final
@record
class TinyProducts:
    """Products of matrices that are sums of products of elements on a GPU."""

    largest: int = 8  # rows, columns and terms of a product, at most
    fewest: int = 256  # products side by side: fewer leave the GPU idle in either way
    terms: int = 4  # of a product whose elements take less than to write and to read them,
    large: int = 64  # if they are so many for each row and each column
    smallest: int = 0  # multiplications that such a product has more than


@final
@record
class ShortSums:
    """Sums of few terms that are written out on a GPU."""

    terms: int = 8  # of a sum, at most
    elements: int = 1 << 18  # of all sums, at least: fewer take no longer in memory
    times: int = 8  # as many elements as any array has that they are made of, at least
    equations: int = 64  # that make all terms, at most
    narrow: int = 4  # columns of sums over lines, at most, that are sums of their own,
    line: int = 32  # and elements of a line at least: a warp has it
    lines: int = 512  # along each axis of sums over two, at least, that are taken one after another


@final
@record
class ThreeParts:
    """Products of few rows of float32 by narrow numbers, as those of three parts of bfloat16."""

    rows: int = 32  # of the three parts, at most, and columns, at least
    elements: int = 1 << 22  # narrow numbers, at least, which are worth three products


@final
@record
class ProductsToSums:
    """Products that are reductions on a GPU."""

    # numbers of a matrix that is multiplied by a vector, at least: a library's launch is short
    # beside a loop that takes in smaller ones
    smallest: int = 1 << 14
    few: int = 400  # elements of a result at most, of sums that are long:
    long: int = 2048  # which have so many terms,
    # and are so many terms in all at most, as each is read by many threads; of float64 fewer
    most: int = 1 << 26
    most_double: int = 1 << 24
    columns: int = 4  # that are multiplied one by one, at most, by a matrix that is
    large: int = 1 << 18  # of so many elements, and in sums of
    terms: int = 64  # so many terms, at least
    rows: int = (
        1024  # of a matrix, at least, that read columns one by one where these lie by themselves
    )


@final
@record
class SplitSums:
    """Products of few elements, whose long sums a GPU's library computes in parts."""

    sides: int = 32  # rows and columns of a result at most
    terms: int = 1 << 15  # of a sum, at least
    part: int = 512  # terms of a part, about
    parts: int = 1024  # of a sum, at most


@final
@record
class ProductsOutside:
    """Of products that leave a loop."""

    products: int = 4  # by one matrix, or iterations, from which on a product for all is worth it
    terms: int = 8  # of an element's sum, at least: with fewer the stack is most of the work
    growth: int = 16  # bytes of the stack of results beside those of the elements, at most


@final
@record
class Tuning:
    """The numbers of each pass.

    `columns`: of rows of which one element is read, up to which all are compared with its index;
    `row_sums`: bytes of the sums of a row, and of as many claims, or of those of 32 lines that lie side
    by side, at most, for a GPU to add updates line by line, in shared memory: every chip has as many;
    of that many lines, at least, or of so many updates of each, at most;
    `statistics`: elements of a sorted line up to which they are selected, and nothing is sorted.
    `joined`: parts among zeros whose sum is an array of them side by side; two that are not all of it
    are as well added. `parts`: sums of an array and a part of it that are worth a value for each part.
    `sliced`: columns at most of an array of which single ones are computed. `turned`: elements of a
    region, at least, that reads a small array across, which is turned before it. `windowed`: instructions, at
    most, that are computed again for windows of a value: so many take as long as 8 bytes from memory;
    `windowed_in_cache`: from a cache of the CPU's.
    `scattered`: updates at
    most of several sums at indices that become one. `summed`: elements, at least, of a sum at indices whose
    zeros its own kernel writes. `ranks`: the first or last elements of sorted
    lines, at most, that a GPU folds for, of lines how long, at least: shorter ones are sorted in
    registers; and at most: of longer ones, of which a block's registers hold no line, all folds but
    the first would read them again, and several are selected. `selected`: elements of a sorted line
    of which a GPU selects as many as others do, and how many it selects of a longer one; `sought`:
    elements of lines, too few for a block each, of which all blocks seek so many.
    `narrowed`: whole numbers, at least, that a GPU keeps in 32 bits where they are known to fit.
    `first`: the first or last elements of lines, at most, that are found and not sorted, and of lines
    how long, at least; `first_share`: one of so many elements at most, on a GPU and on the CPU, where
    500 of 32000 took longer in a heap than all of them in order. `made_matrix`: bytes, at least, of a
    matrix that is made in C where it is multiplied by a vector: smaller ones a library reads in a cache.
    `rows`: elements of a row, at least, for an associative scan down the rows to be a loop in C; vectors
    have more than those of fewer if regions combine eight rows after each other.
    """

    fusion: Fusion = Fusion()
    live_ranges: LiveRanges = LiveRanges()
    repetition: Repetition = Repetition()
    three_parts: ThreeParts = ThreeParts()
    results: Results = Results()
    rolling: Rolling = Rolling()
    offsets: Offsets = Offsets()
    stacking: Stacking = Stacking()
    splitting: Splitting = Splitting()
    moves: Moves = Moves()
    tiny_products: TinyProducts = TinyProducts()
    rows: int = 64
    # in C products of up to four terms take less than half as long with what follows them
    thin_products: TinyProducts = TinyProducts(large=2, smallest=4096)
    made_matrix: int = 8 << 20
    short_sums: ShortSums = ShortSums()
    products_to_sums: ProductsToSums = ProductsToSums()
    split_sums: SplitSums = SplitSums()
    products_outside: ProductsOutside = ProductsOutside()
    returned: int = 1 << 16
    columns: int = 1024
    row_sums: tuple[int, int, int] = (48 << 10, 256, 1 << 11)
    statistics: int = 16
    joined: int = 3
    parts: int = 8
    sliced: int = 8
    turned: int = 1 << 24
    windowed: int = 40
    windowed_in_cache: int = 8
    scattered: int = 1 << 24
    summed: int = 1 << 12
    narrowed: int = 1 << 18
    ranks: tuple[int, int, int] = (8, 256, 1 << 16)
    before_writes: int = 64
    selected: tuple[int, int] = (1024, 4)
    sought: tuple[int, int] = (1 << 16, 8)
    first: tuple[int, int] = (512, 1024)
    first_share: tuple[int, int] = (8, 128)


TUNING = Tuning()


# -------- The facts that a rewrite may know beside the graph.


class Caps(Protocol):
    """Limits of a GPU.

    `double`: how many times as long as float32 a multiply-add of float64 takes. `l2`: bytes of its
    cache.
    """

    @property
    def multiprocessors(self) -> int: ...
    @property
    def l2(self) -> int: ...
    @property
    def double(self) -> int: ...


# inputs that count along an axis, that repeat a number, masks that are bands, and distances: pairs
# (input, axis, number, band or distances)
Iotas = tuple[tuple[int, int | Literal | Band | Distances], ...]


@final
@record
class Context:
    """The chip, where a graph is for one, and what the caller knows of the graph's inputs.

    `written`: the inputs that the first outputs are the last contents of. `iotas`: the inputs that
    count along an axis, repeat a number or are bands. `body`: true of the graph of a loop or a branch that the
    code of its target calls, which takes arrays alone. `tuning`: the numbers that passes read.
    `gathers`: true if a region may read an array at indices that are computed in it. `tails`: true
    if it may go on with its sums, though they are of more than a block has. `outer`: true of the graph
    of a whole program, whose results its caller keeps.
    """

    caps: Caps | None = None
    written: tuple[int, ...] = ()
    iotas: Iotas = ()
    body: bool = False
    tuning: Tuning = TUNING
    gathers: bool = False
    tails: bool = False
    outer: bool = False


NOTHING = Context()


# -------------------------------------------------------------------------------------------- dump
# What a compilation made, as files, where the setting `dump` names a folder.


_taken: Counter[tuple[str, str]] = Counter()  # (folder, name): how many programs had it


def dump(name: str, text: Graph | str) -> None:
    """Writes a text to the folder, if there is one; a folder that cannot be
    written to stops nothing.
    """
    if not name.startswith("-"):  # a program without a name of its own is part of another

        def write(path: Path) -> None:
            path.write_text(f"{text}\n", encoding="utf-8")

        dump_file(name, write)


def dump_file(name: str, write: Callable[[Path], None]) -> None:
    """Has a file of the folder written, if there is one."""
    if not config.dump:
        return
    from pathlib import Path  # which imports much

    try:
        folder = Path(config.dump)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    except OSError as error:
        warn(
            f"nothing is dumped: {error}",
            fix="GE2_DUMP=a folder that can be written to",
            once="dump",
        )


def label(title: str) -> str:
    """The begin of the names of a program's files: its title, and a number from its second program
    on.

    >>> with config.using(dump="some folder"):
    ...     label("<lambda>"), label("<lambda>"), label("Model.loss")
    ('lambda', 'lambda.2', 'Model.loss')
    """
    if not config.dump:
        return ""
    name = re.sub(r"[^\w.]", "", title) or "f"
    _taken[config.dump, name] += 1
    number = _taken[config.dump, name]
    return name if number == 1 else f"{name}.{number}"


# -------- Runs rewrites of graphs: timed, dumped, switched off by name, verified.
# The pipelines, one a target, stand in `ge2/compile/pipeline.py`.


Alone = Callable[[Graph], Graph]
Informed = Callable[[Graph, Context], Graph]
Pass = Alone | Informed


@collector_paused
def run(
    passes: Sequence[Pass], graph: Graph, context: Context = NOTHING, name: str = "", first: int = 1
) -> Graph:
    """The graph after each of the passes that is not switched off; in check
    mode each result is verified.

    What the setting `dump` asks for is written under that name, if there is one; `first` is the
    number of the first pass among its files.
    """
    for _, found in stages(passes, graph, context, name, first):
        graph = found
    return graph


def stages(
    passes: Sequence[Pass], graph: Graph, context: Context = NOTHING, name: str = "", first: int = 1
) -> Iterator[tuple[str, Graph]]:
    """The name of each pass that is not switched off, with the graph after it."""
    if first == 1:
        dump(f"{name}-0-traced.txt", graph)
        if config.check:
            verify(graph)
    for number, step in enumerate(passes, first):
        if step.__name__ not in config.passes_off:
            graph = run_pass(step, graph, context, f"{name}-{number}")
            yield step.__name__, graph


def run_pass(step: Pass, graph: Graph, context: Context, label: str) -> Graph:
    """The graph after a pass: counted, dumped under the label, and verified."""
    with spent("passes"):
        began, before = perf_counter(), graph
        graph = (
            cast(Informed, step)(graph, context) if is_informed(step) else cast(Alone, step)(graph)
        )
        passed(step.__name__, perf_counter() - began)
        dump(f"{label}-{step.__name__}.txt", graph)
        if config.check and graph is not before:
            verify(graph, before)
    return graph


def is_informed(step: Pass) -> bool:
    """True for a pass that takes the context as its second argument.

    >>> from ge2.passes.simplify import simplify, strong
    >>> is_informed(strong), is_informed(simplify)
    (True, False)
    """
    return cast(FunctionType, step).__code__.co_argcount == 2
