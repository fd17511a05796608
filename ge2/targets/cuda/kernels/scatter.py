"""Writing rows at indices in CUDA, and sums at indices in one order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, final

from ge2.base.arrays import HALF, accumulator
from ge2.choice import Problem, Variant
from ge2.codegen.axes import strides_of
from ge2.codegen.layout import merged
from ge2.codegen.text import Operand, Text, guard, whole
from ge2.ir import ArrayType, Op
from ge2.ops.index import ScatterAdd, ScatterReduce, SumsInOrder, UpdateOrder
from ge2.passes.indices import SumsAt
from ge2.passes.take_to_mask import INT32
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import Fixed
from ge2.targets.cuda.emit.region import unrolled
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import HELD, STORED, number
from ge2.targets.cuda.kernels import Cuda, filling
from ge2.targets.cuda.kernels.gather import (
    ATOMIC,
    CudaWriting,
    Rows,
    Summing,
    Writes,
    index_dims,
    loaded,
    many_extremes,
    merge,
    nowhere,
    read_type,
    stored,
    taken_in,
    writes_of,
)
from ge2.targets.cuda.kernels.index_sums import BlockSums, ExactSums, LaneSums, unserved
from ge2.targets.cuda.kernels.moves import Elements, Grid, MadeRows, added, lettered
from ge2.targets.cuda.kernels.sort import Pair, TileOrder, placed_in_tiles, turns_of
from ge2.targets.cuda.limits import Chip

# -------- Sums at indices in CUDA, with one order: that of the indices, and of windows of many;
# extremes likewise, so that zeros have NumPy's sign. `exact_sums` has those that need no order.
# Up to `few` updates are one kernel: the first of a place adds the others. More are put in the
# order of their places. Up to `ranked` updates are ordered by counting for each those before it,
# which is one launch and takes n * n comparisons; more by their digits, three launches for each.
# Then each `window` of updates is summed by itself, and a thread adds up the pieces of one place.


BLOCK, DIGIT = 256, 8  # of order.cuh: threads of a block, bits of a digit
WHERE = "def"  # letters of the indexed axes


@final
class Sums:
    """The kernels that put updates in the order of their places, and add up those of each place;
    `fresh`: nothing is there before. `to`: where the order is wanted.
    """

    made: MadeRows | None = None  # what updates are made of, where they are no array

    def __init__(self, writes: Writes, fresh: bool = False, to: Pair | None = None) -> None:
        assert isinstance(writes.op, ScatterReduce)
        self.to = to
        self.writes, self.rows, self.dtype, self.op = writes, writes.rows, writes.dtype, writes.op
        self.tuning, self.fresh = writes.chip.tuning.scatters, fresh
        self.count = self.rows.count
        self.pack = 1 if self.rows.of_y.value else self.rows.pack
        self.held = HELD[accumulator(self.dtype)]

    def in_order(self, ordered: Callable[[Sums], Pair]) -> None:
        """Puts the numbers of the updates in the order of their places, then sums runs of them."""
        self.summed(*ordered(self))

    def summed(self, order: Operand, places: Operand) -> None:
        """Sums runs of updates whose order is known.

        Each window of them has threads of its own, which leave the sums of the runs that begin and
        end in it; so all read as much, whatever the runs are. A run that goes on over windows is left
        in its first one, `heads`, and in the others, `parts`, which another kernel adds up.
        """
        writes, rows, held = self.writes, self.rows, accumulator(self.dtype)
        windows = -(-self.count // self.tuning.window)
        of_windows = [(n, writes.temp(windows * rows.length, held)) for n in ("parts", "heads")]
        grid = self.grid(places)
        place, split, to = self.named(grid)
        grid.array("updates", rows.of_y, self.dtype)
        grid.array("order", order, writes.number)
        for name, operand in of_windows:
            grid.result(name, operand, held)
        chunks, cleared = self.cleared(grid, to, split, windows)
        part, head = (self.of_window(grid, name, "g") for name, _ in of_windows)
        neutral = number(self.op.neutral_of(held), held)
        view = Summing(
            grid.spread(["g", *rows.u], [windows + chunks, *rows.along], self.pack),
            (*split, *self.there(to)), self.adds(), (*split, *self.left(grid, to)), self.pack > 1,
            self.held, place=place, neutral=self.assigned(f"sum{self.of}", neutral),
            part=self.assigned(part, f"sum{self.of}"), head=self.assigned(head, f"sum{self.of}"),
            clear=cleared, some=read_type(self.dtype, self.pack), reads=self.reads(grid),
            factors=self.made.names if self.made else (),
        )  # fmt: skip
        what = f"sums of updates of one place, {self.tuning.window} of them one after another"
        threads = (windows + chunks) * rows.length // self.pack
        writes.add(grid, "sum by window", view, threads, what, "scatter_sums/windows")
        if windows > 1:
            self.over_windows(self.grid(places), windows - 1, of_windows)

    def over_windows(self, grid: Grid, count: int, kept: Sequence[tuple[str, Operand]]) -> None:
        """Adds up the runs that begin in one of so many windows, and go on."""
        rows, (place, split, to) = self.rows, self.named(grid)
        for name, operand in kept:
            grid.array(name, operand, accumulator(self.dtype))
        head, part = self.of_window(grid, "heads", "g"), self.of_window(grid, "parts", "w")
        view = Summing(
            grid.spread(["g", *rows.u], [count, *rows.along], self.pack),
            self.assigned(f"sum{self.of}", head), (self.added(part),), (*split, *self.left(grid, to)),
            self.pack > 1, self.held, place=place,
        )  # fmt: skip
        what, threads = "sums of places over windows", count * rows.length // self.pack
        self.writes.add(grid, "sum of windows", view, threads, what, "scatter_sums/over_windows")

    # -- the order

    def by_digits(self) -> Pair:
        """The numbers of the updates in the order of their places, and those places."""
        bits = max((self.rows.places - 1).bit_length(), 1)
        if self.count <= self.tuning.in_tiles:
            return TileOrder(self.writes, self.pairs(turns_of(bits, self.rows.far))).run()
        tiles, run = -(-self.count // self.tile), self.tile // BLOCK
        scratch = self.temp(tiles << DIGIT), self.temp(1 << DIGIT)
        found = placed_in_tiles(self.writes, BLOCK, run, scratch[0])
        numbers, pairs = None, self.pairs(-(-bits // DIGIT))
        for turn, shift in enumerate(range(0, bits, DIGIT)):
            self.by_digit((numbers, found), pairs[turn % 2], scratch, shift)
            numbers, found = pairs[turn % 2]
        return pairs[(bits - 1) // DIGIT % 2]

    @property
    def tile(self) -> int:
        """Updates that a block puts in the order of a digit, one after another: few where all
        multiprocessors would not have some.
        """
        each = -(-self.count // (self.tuning.tiles * self.writes.chip.multiprocessors * BLOCK))
        return min(1 << (each - 1).bit_length() << BLOCK.bit_length() - 1, self.tuning.tile)

    def pair(self) -> Pair:
        """Arrays of the numbers of all updates, and of their places."""
        return self.temp(self.count), self.temp(self.count)

    def pairs(self, turns: int) -> tuple[Pair, Pair]:
        """Two of them for turns that write one of them each, the last what is wanted."""
        last = self.to or self.pair()
        other = self.pair() if turns > 1 else last
        return (last, other) if turns % 2 else (other, last)

    def temp(self, count: int) -> Operand:
        return self.writes.temp(count, self.writes.number)

    def places(self) -> Operand:
        writes, rows, grid = self.writes, self.rows, self.rows.grid()
        found = writes.temp(self.count, writes.number)
        spread, indices = grid.spread(rows.i, rows.over), rows.wrapped(grid)
        grid.result("places", found, writes.number)
        line = Text(f"places[{writes.source(grid)}] = {rows.place(grid)};")
        view = Elements(spread, (*indices, line))
        writes.add(grid, "placing", view, self.count, "where each update goes")
        return found

    def ranked(self) -> Pair:
        """The same, by counting for each those before it."""
        places, to = self.places(), self.to or self.pair()
        made = dict(zip(("order", "sorted"), to, strict=True))
        line = "ge2_rank(places, n, order, sorted);"
        what = "the updates in the order of their places"
        threads = self.count * self.tuning.helpers
        self.call("ranking", line, {"places": places}, made, {"n": self.count}, threads, what)
        return to

    def by_digit(
        self, of: tuple[Operand | None, Operand], to: Pair, scratch: Pair, shift: int
    ) -> None:
        """Puts all numbers and places in the order of one more digit; before
        the first, numbers count.
        """
        tiles, given = -(-self.count // self.tile), {"places": of[1]}
        sizes, run, numbers = {"n": self.count, "shift": shift}, self.tile // BLOCK, of[0]
        what = f"the updates in the order of bits {shift} to {shift + DIGIT - 1} of their places"
        place, to_counts = "[&](auto k) { return places[k]; }", {"counts": scratch[0]}
        line = f"ge2_digit_counts<{run}>({place}, ({self.rows.grid().whole} *)0, n, shift, counts);"
        if numbers is not None:  # else they were counted as they were made
            self.call("digit count", line, given, to_counts, sizes, tiles * BLOCK, what)
        line = "ge2_digit_starts(counts, totals, tiles);"
        made = dict(zip(("counts", "totals"), scratch, strict=True))
        self.call("digit start", line, {}, made, {"tiles": tiles}, BLOCK << DIGIT, what)
        given |= {} if numbers is None else {"numbers": numbers}
        moved = "numbers" if numbers is not None else f"({self.rows.grid().whole} *)0"
        line = f"ge2_digit_moves<{run}>(places, {moved}, n, shift, counts, totals, order, sorted);"
        target = dict(zip(("order", "sorted"), to, strict=True))
        self.call("digit move", line, given | made, target, sizes, tiles * BLOCK, what)

    def call(
        self, kind: str, line: str, given: dict[str, Operand], made: dict[str, Operand],
        sizes: dict[str, int], threads: int, what: str,
    ) -> None:  # fmt: skip
        """A kernel that is one call."""
        grid, dtype = Grid(self.rows.far, BLOCK), self.writes.number
        for name, operand in given.items():
            grid.array(name, operand, dtype)
        for name, operand in made.items():
            grid.result(name, operand, dtype)
        for name, value in sizes.items():
            grid.size(name, value)
        self.writes.add(grid, kind, (Text(line),), threads, what)

    # -- the sums

    def named(self, grid: Grid) -> tuple[str, tuple[Text, ...], str]:
        """The name of a place's number, the statements that say where it is, and its place in x."""
        rows = self.rows
        axes, steps = merged(rows.sizes, rows.steps)
        letters = lettered(WHERE, len(axes))
        split = grid.split("place", letters, grid.sizes(letters, axes)) if axes[1:] else ()
        to = added(grid.place("x", letters, steps[0]), grid.place("x", rows.u, rows.x_along))
        return letters[0] if len(letters) == 1 else "place", tuple(split), to

    def rows_each(self, rows: int, most: int) -> int:
        """The number of rows that one thread takes in sequence, a power of two up to `most`, so that
        there are still threads for all multiprocessors.
        """
        chip, threads = self.writes.chip, rows * self.rows.length // self.pack
        many = threads // (chip.multiprocessors * chip.threads)
        return min(1 << max(many.bit_length() - 1, 0), most)

    def cleared(
        self, grid: Grid, to: str, split: Sequence[Text], windows: int
    ) -> tuple[int, tuple[Text, ...]]:
        """The number of chunks of places that further threads search for places without an update, and
        the statements that clear such a place. None are searched in an array that holds values already,
        or whose rows are short: that is cleared as a whole before.
        """
        rows = self.rows
        if self.fresh and rows.length // self.pack < self.tuning.clearing:
            self.writes.kernels += filling(rows.x, None, rows.of_x, self.writes.chip).kernels
        elif self.fresh:
            chunk = self.rows_each(rows.places, self.tuning.cleared)
            what = "places that are looked through for those to clear"
            grid.fixed.append(Fixed("CHUNK", chunk, what))
            grid.size("windows", windows)
            grid.size("places", rows.places)
            zeros: tuple[Text, ...] = (Text(f"x[{to}] = 0;"),)
            if self.pack > 1:
                some = Text(f"const ge2_some<{STORED[self.dtype]}, PACK> nothing = {{}};")
                zeros = some, Text(f"ge2_write<PACK, PACK>(x + {to}, nothing);")
            return -(-rows.places // chunk), (*split, *zeros)
        return 0, ()

    def by_the_first(self) -> None:
        """The first update of a place adds all of them, in one kernel."""
        rows, grid, (i,) = self.rows, self.rows.grid(), self.rows.i
        grid.array("updates", rows.of_y, self.dtype)
        spread, indices = rows.threads(grid, self.pack), tuple(rows.wrapped(grid))
        others, alike = tuple(rows.wrapped(grid, "other", ["k"])), rows.alike("other")
        to, end = rows.in_x(grid), grid.size(f"n_{i}", rows.count)
        view = Summing(
            spread, self.there(to), tuple(self.update(grid, ["k"])), self.left(grid, to), self.pack > 1,
            self.held, indices, others, alike, alike.replace("&&", "||").replace("==", "!="), i, end,
        )  # fmt: skip
        what = "the first update of a place adds all of them"
        threads = self.count * rows.length // self.pack
        self.writes.add(grid, self.op.name, view, threads, what, "scatter_sums/first")

    def there(self, to: str) -> tuple[Text, ...]:
        """The sum begins with what is at a place."""
        if self.fresh:
            return self.assigned(f"sum{self.of}", number(0, accumulator(self.dtype)))
        if self.pack == 1:
            return self.assigned("sum", loaded(f"x[{to}]", self.dtype))
        read = Text(f"const auto x_at = ge2_read<PACK, PACK>(x + {to});")
        return read, *self.assigned("sum[v]", loaded("x_at.at[v]", self.dtype))

    def left(self, grid: Grid, to: str) -> tuple[Text, ...]:
        """Leaves the sum at a place."""
        grid.result("x", self.rows.of_x, self.dtype)
        if self.pack == 1:
            return (Text(f"x[{to}] = {stored('sum', self.dtype)};"),)
        some = Text(f"ge2_some<{STORED[self.dtype]}, PACK> whole;")
        whole = self.assigned("whole.at[v]", stored("sum[v]", self.dtype))
        return some, *whole, Text(f"ge2_write<PACK, PACK>(x + {to}, whole);")

    def grid(self, places: Operand) -> Grid:
        grid, window = self.rows.grid(), self.tuning.window
        grid.fixed.append(Fixed("WINDOW", window, "updates that are summed one after another"))
        grid.array("sorted", places, self.writes.number)
        grid.size("n", self.count)
        return grid

    # -- the elements of a thread

    @property
    def of(self) -> str:
        return "[v]" if self.pack > 1 else ""

    @property
    def v(self) -> str:
        return " + v" if self.pack > 1 else ""

    def each(self, code: str) -> Text:
        """A statement for each neighbour."""
        return unrolled("v", "PACK", [Text(code)]) if self.pack > 1 else Text(code)

    def assigned(self, to: str, value: str) -> tuple[Text, ...]:
        """An assignment, in a loop over the neighbours of a thread."""
        return (self.each(f"{to} = {value};"),)

    def added(self, value: str) -> Text:
        mine, held = f"sum{self.of}", accumulator(self.dtype)
        return self.each(f"{mine} = {merge(self.op, mine, value, held)};")

    def reads(self, grid: Grid) -> tuple[Text, ...]:
        """Reads update number order[k], one of several that are on their way."""
        rows = self.rows
        grid.fixed.append(Fixed("AHEAD", self.tuning.ahead, "updates on their way at once"))
        extents = grid.sizes(rows.i, rows.over) if len(rows.i) > 1 else [""]
        place = self.place(grid, rows.i)
        if self.pack == 1:
            read = grid.element("updates", rows.of_y, self.dtype, place)
        else:
            read = f"ge2_read<PACK, PACK>(updates + {place})"
        split = grid.split("order[k]", rows.i, extents)
        found = self.made.read(grid, rows.i[0]) if self.made else split
        return *found, Text(f"ahead[b] = {read};")

    def adds(self) -> tuple[Text, ...]:
        """Adds an update that was read."""
        update = loaded(f"ahead[b]{'.at[v]' if self.pack > 1 else ''}", self.dtype)
        held = accumulator(self.dtype)
        return (self.added(self.made.times(update, held) if self.made else update),)

    def place(self, grid: Grid, letters: Sequence[str]) -> str:
        """Where the update at those places along the axes of the indices lies."""
        rows = self.rows
        return added(
            grid.place("updates", letters, rows.y_over), grid.place("updates", rows.u, rows.y_along)
        )

    def update(self, grid: Grid, letters: Sequence[str]) -> list[Text]:
        """Adds the update at those places along the axes of the indices."""
        rows, dtype, place = self.rows, self.dtype, self.place(grid, letters)
        if self.pack == 1:
            return [self.added(loaded(grid.element("updates", rows.of_y, dtype, place), dtype))]
        some = Text(f"const auto some = ge2_read<PACK, PACK>(updates + {place});")
        return [some, self.added(loaded("some.at[v]", dtype))]

    def of_window(self, grid: Grid, name: str, w: str) -> str:
        """This thread's element of what is kept of a window."""
        text = w
        for letter, n in zip(self.rows.u, self.rows.along, strict=True):
            text = f"{text if ' ' not in text else f'({text})'} * {grid.size(f'n_{letter}', n)} + {letter}"
        return f"{name}[{text}{self.v}]"


# -------- Writing rows at indices in CUDA, with the same bits each time: which thread comes first
# changes nothing.
# Of several updates of a place the last one is found by an atomic maximum of their numbers; among
# few, each looks for a later one. Sums and extremes of whole numbers are the same in any order, by
# atomics; for others see `block_sums`, `exact_sums` and `scatter_sums`.


BLOCKS, AT_ONCE, EXACT = "in shared memory, by blocks", "as they come", "by parts that are exact"
FIRST, RANKS, DIGITS = (
    "by the first of each place",
    "in the order of their places, by ranks",
    "in the order of their places, by digits",
)
LANES = "in shared memory, by threads that have columns of their own"
OF_CELLS: Final[dict[str, Any]] = {EXACT: ExactSums, BLOCKS: BlockSums, LANES: LaneSums}
LAUNCHES = {BLOCKS: 2, AT_ONCE: 1, EXACT: 5, FIRST: 1, LANES: 2}


def ordering(rows: Rows, way: str, caps: Caps) -> float:
    """The seconds that it takes to put updates in the order of their places."""
    tuning, n = caps.chip.tuning.scatters, rows.count
    bits = max((rows.places - 1).bit_length(), 1)
    if way == RANKS:
        return 2 * caps.speed.launch + n * tuning.compared
    if n <= tuning.in_tiles:
        turns = turns_of(bits, rows.far)
        return (1 + turns) * caps.speed.launch + turns * (tuning.turn + n * tuning.digit)
    digits = -(-bits // DIGIT)
    return (1 + 3 * digits) * caps.speed.launch + digits * n * tuning.digit


def in_order(problem: Problem, rows: Rows, caps: Caps) -> float:
    """The seconds of sums of updates in order, each of which is read somewhere else, and of those that
    go on over windows.
    """
    tuning = caps.chip.tuning.scatters
    apart = tuning.run if rows.length == 1 else tuning.row
    windows = rows.count / (tuning.window * max(rows.places, 1))
    return caps.speed.of(problem, launches=3) + rows.count * apart + windows * tuning.over


class CudaScatterReduce(CudaWriting):
    name = "scatter_reduce in CUDA"
    ops: ClassVar[tuple[type[Op], ...]] = (ScatterReduce,)
    fresh = False  # whether there is nothing before the updates

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Its launches, the bytes of all arrays once, atomics of global memory, and what it takes to
        put updates in order.
        """
        writes = writes_of(problem, caps.chip)
        if variant.name in (RANKS, DIGITS):
            rows = writes.rows
            return ordering(rows, variant.name, caps) + in_order(problem, rows, caps)
        found = caps.speed.of(problem, launches=LAUNCHES[variant.name])
        made = OF_CELLS.get(variant.name)
        return found if made is None else found + float(made(writes).seconds)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True of sums of many floats, which there are several ways to put in order, or to need none."""
        if (
            caps is None
            or problem.outs[0].dtype in ATOMIC
            or not isinstance(problem.op, ScatterAdd)
        ):
            return False
        return writes_of(problem, caps.chip).rows.count >= caps.chip.tuning.scatters.unordered

    def ways(self, writes: Writes) -> tuple[Variant, ...]:
        free = writes.rows.count == 1 or writes.dtype in ATOMIC or many_extremes(writes)
        ordered = "" if free else f"{writes.dtype.name} depends on the order of updates"
        exact = "any order gives the same bits" if free else unserved(writes)
        shared = BlockSums(writes).unserved() if writes.rows.count > 1 else "there is one update"
        no_order, n, ranked = (
            exact if free else "",
            writes.rows.count,
            writes.chip.tuning.scatters.ranked,
        )
        few = "" if writes.few else f"{n} updates are not compared each with all others"
        many = f"each of {n} updates is compared with all others, more than {ranked}"
        return (
            Variant(BLOCKS, lambda w: BlockSums(w, self.fresh).add(), shared),
            Variant(AT_ONCE, self.at_once, ordered),
            Variant(EXACT, lambda w: ExactSums(w, self.fresh).add(), exact),
            Variant(FIRST, lambda w: Sums(w).by_the_first(), no_order or few),
            Variant(
                RANKS,
                lambda w: Sums(w, self.fresh).in_order(Sums.ranked),
                no_order or (many if n > ranked else ""),
            ),
            Variant(DIGITS, lambda w: Sums(w, self.fresh).in_order(Sums.by_digits), no_order),
            Variant(LANES, lambda w: LaneSums(w, self.fresh).add(), LaneSums(writes).unserved()),
        )

    def at_once(self, writes: Writes) -> None:
        """Each update is taken in where it belongs: there is one row of them, or
        the order changes nothing.
        """
        op, rows, grid, dtype = writes.op, writes.rows, writes.rows.grid(), writes.dtype
        assert isinstance(op, ScatterReduce)
        pack = 1 if rows.count == 1 or rows.of_y.value else rows.pack
        place = rows.in_y(grid, "updates")
        update = grid.element("updates", rows.of_y, dtype, place)
        spread, lines = rows.threads(grid, pack), rows.wrapped(grid)
        grid.result("x", rows.of_x, dtype)
        to = rows.in_x(grid)
        if pack > 1:
            lines.append(Text(f"const auto some = ge2_read<PACK, PACK>(updates + {place});"))
            update = "some.at[v]"
        if rows.count == 1:
            total = merge(op, loaded(f"x[{to}]", dtype), loaded(update, dtype), dtype)
            lines.append(Text(f"x[{to}] = {stored(total, dtype)};"))
        else:
            found, array = taken_in(op, dtype, to, update, pack), not rows.of_y.value
            zeros = array and pack == 1 and isinstance(op, ScatterAdd)  # which change nothing
            lines += [guard(update, found)] if zeros else found
        view = Elements(spread, tuple(lines))
        writes.add(grid, op.name, view, rows.count * rows.length // pack)


@final
class CudaSumsAt(CudaScatterReduce):
    """Sums that begin with nothing: kernels that order updates clear what has none, those that merge
    the sums of blocks write all, and for others all is cleared.
    """

    name = "sums at indices in CUDA"
    ops = (SumsAt,)
    fresh = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if problem.outs[0].dtype.kind not in "fc" and problem.outs[0].dtype not in HALF:
            return f"{problem.outs[0].dtype.name} is no floating point number"
        return super().refuses(in_place(problem), caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        return super().seconds(in_place(problem), variant, caps)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return super().is_ranked(in_place(problem), caps)

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        return super().variants(in_place(problem), caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        found, (x,) = super().kernels(in_place(problem), variant, caps), problem.outs
        if variant.name in (RANKS, DIGITS, BLOCKS, EXACT, LANES):
            return found
        target = replace(problem.arrays[1][0], strides=strides_of(x.shape))
        return replace(
            found, kernels=(*filling(x, None, target, caps.chip).kernels, *found.kernels)
        )


def in_place(problem: Problem) -> Problem:
    """Such sums as those of an array that is there already, where the result is."""
    assert isinstance(problem.op, SumsAt)
    ins, outs = problem.arrays
    lie = (*outs, *ins, *outs) if problem.operands else ()
    types, shared = (*problem.outs, *problem.inputs), frozenset({(0, 0)})
    return replace(
        problem, op=ScatterAdd(problem.op.axes), inputs=types, shared=shared, operands=lie
    )


# -------- The order of updates as a value: several sums at the same indices have it once.


@final
class CudaUpdateOrder(Cuda):
    name = "update order in CUDA"
    ops = (UpdateOrder,)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        assert isinstance(problem.op, UpdateOrder)
        x = ArrayType(problem.op.sizes, INT32)
        return nowhere(problem.op.adding, x, problem.inputs)

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        n, ranked = problem.outs[0].size, caps.chip.tuning.scatters.ranked
        many = f"each of {n} updates is compared with all others, more than {ranked}"
        return (
            Variant(RANKS, Sums.ranked, many if n > ranked else ""),
            Variant(DIGITS, Sums.by_digits),
        )

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        return ordering(self.rows(problem, caps.chip), variant.name, caps)

    def rows(self, problem: Problem, chip: Chip) -> Rows:
        """The rows of an array that nobody has, of one element each."""
        (ins, _), op = problem.arrays, problem.op
        assert isinstance(op, UpdateOrder)
        x, over = ArrayType(op.sizes, INT32), index_dims(problem.inputs)
        lie = whole("out", 0, x.shape), whole("in", 0, over)
        return Rows(op.adding, x, problem.inputs, ins, lie, chip)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        if not problem.outs[0].size:
            return Kernels(())
        rows, (order, places) = self.rows(problem, caps.chip), problem.arrays[1]
        writes = Writes(problem, rows, ArrayType(index_dims(problem.inputs), INT32), caps.chip)
        variant.plan(Sums(writes, to=(order, places)))
        return writes.done()


@final
class CudaSumsInOrder(Cuda):
    name = "sums in order in CUDA"
    ops = (SumsInOrder,)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        first = caps.speed.launch  # which clears, most often
        return first + in_order(problem, self.rows(problem, caps.chip), caps)

    def rows(self, problem: Problem, chip: Chip) -> Rows:
        """The rows, by indices that nobody has: the order stands for them."""
        ((of_y, *_), (to,)), op, (x,) = problem.arrays, problem.op, problem.outs
        assert isinstance(op, SumsInOrder)
        indices = [ArrayType(op.over, INT32)] * len(op.axes)
        ins = [whole("in", 1, op.over)] * len(op.axes)
        lie = replace(to, strides=strides_of(x.shape)), of_y
        return Rows(op.adding, x, indices, ins, lie, chip)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        rows, (_, order, places, *made) = self.rows(problem, caps.chip), problem.arrays[0]
        if not rows.count * rows.length:
            return filling(rows.x, None, rows.of_x, caps.chip)
        writes = Writes(problem, rows, problem.inputs[0], caps.chip)
        sums, (table, _, _, *of) = Sums(writes, fresh=True), problem.inputs
        if of:
            given, n = list(zip(of, made, strict=True)), len(of) - problem.op.factors  # type: ignore[attr-defined]
            sums.made = MadeRows(table.shape[0], given[0] if n else None, tuple(given[n:]))
        sums.summed(order, places)
        return writes.done()
