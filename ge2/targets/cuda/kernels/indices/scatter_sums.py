"""Sums at indices in CUDA, with one order: that of the indices, and of windows
of them where they are many; extremes likewise, so that zeros have NumPy's sign. `exact_sums` has
those that need no order.

Up to `few` updates are one kernel: the first of a place adds the others. More are put in the order of
their places. Up to `ranked` updates are ordered by counting for each those before it, which is one
launch and takes n * n comparisons; more by their digits,
three launches for each. Then each `window` of updates is summed by itself, and a thread adds up
the pieces of one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from ge2.base.dtypes import accumulator
from ge2.base.record import record
from ge2.codegen.axes import merged
from ge2.codegen.text import Operand, Text
from ge2.ops.index import ScatterReduce
from ge2.targets.cuda.emit.kernel import Fixed
from ge2.targets.cuda.emit.region import unrolled
from ge2.targets.cuda.emit.types import HELD, number
from ge2.targets.cuda.kernels.element_grid import Elements, Grid, Spread, added, lettered
from ge2.targets.cuda.kernels.indices.updates import Writes, loaded, merge, stored

# Of order.cuh: threads of a block, bits of a digit, and updates that a block puts in the order of one
BLOCK, DIGIT, TILE = 256, 8, 2048
WHERE = "defgh"  # letters of the indexed axes


@final
@record
class Summing:
    """What the templates in `templates/cuda/scatter_sums` print; those of one of them are last."""

    spread: Spread
    begin: tuple[Text, ...]
    updates: tuple[Text, ...]
    store: tuple[Text, ...]
    packed: bool
    indices: tuple[Text, ...] = ()
    others: tuple[Text, ...] = ()  # what index `k` names
    alike: str = ""
    unlike: str = ""
    i: str = ""
    count: str = ""
    place: str = ""
    split: tuple[Text, ...] = ()
    more: tuple[Text, ...] = ()


@final
class Sums:
    """The kernels that put updates in the order of their places, and add up those of each place."""

    def __init__(self, writes: Writes) -> None:
        assert isinstance(writes.op, ScatterReduce)
        self.writes, self.rows, self.dtype, self.op = writes, writes.rows, writes.dtype, writes.op
        self.tuning = writes.chip.tuning.scatters
        self.count = self.rows.count
        self.pack = 1 if self.rows.of_y.value else self.rows.pack
        self.held = HELD[accumulator(self.dtype)]

    def in_order(self, ordered: Callable[[Sums, Operand], tuple[Operand, Operand]]) -> None:
        """Puts the numbers of the updates in the order of their places, then sums runs of them."""
        order, places = ordered(self, self.places())
        parts = self.pieces(order, places) if self.count > self.tuning.window else None
        self.sums(order, places, parts)

    # -- the order

    def by_digits(self, found: Operand) -> tuple[Operand, Operand]:
        """The numbers of the updates in the order of their places, and those places."""
        tiles, bits = -(-self.count // TILE), max((self.rows.places - 1).bit_length(), 1)
        scratch, pairs = (
            (self.temp(tiles << DIGIT), self.temp(1 << DIGIT)),
            (self.pair(), self.pair()),
        )
        numbers: Operand | None = None
        for turn, shift in enumerate(range(0, bits, DIGIT)):
            self.by_digit((numbers, found), pairs[turn % 2], scratch, shift)
            numbers, found = pairs[turn % 2]
        return pairs[(bits - 1) // DIGIT % 2]

    def pair(self) -> tuple[Operand, Operand]:
        """Arrays of the numbers of all updates, and of their places."""
        return self.temp(self.count), self.temp(self.count)

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

    def ranked(self, places: Operand) -> tuple[Operand, Operand]:
        """The same, by counting for each those before it."""
        to = self.pair()
        made, what = (
            dict(zip(("order", "sorted"), to, strict=True)),
            "the updates in the order of their places",
        )
        line = "ge2_rank(places, n, order, sorted);"
        self.call(
            "ranking",
            line,
            {"places": places},
            made,
            {"n": self.count},
            self.count * self.tuning.helpers,
            what,
        )
        return to

    def by_digit(
        self,
        of: tuple[Operand | None, Operand],
        to: tuple[Operand, Operand],
        scratch: tuple[Operand, Operand],
        shift: int,
    ) -> None:
        """Puts all numbers and places in the order of one more digit; before
        the first, numbers count.
        """
        n, tiles, bits = self.count, -(-self.count // TILE), {"shift": shift}
        what = f"the updates in the order of bits {shift} to {shift + DIGIT - 1} of their places"
        numbers, places = of
        given = {"places": places}
        line = "ge2_digit_counts(places, n, shift, counts);"
        self.call(
            "digit count",
            line,
            given,
            {"counts": scratch[0]},
            {"n": n, **bits},
            tiles * BLOCK,
            what,
        )
        line, made = (
            "ge2_digit_starts(counts, totals, tiles);",
            dict(zip(("counts", "totals"), scratch, strict=True)),
        )
        self.call("digit start", line, {}, made, {"tiles": tiles}, BLOCK << DIGIT, what)
        given |= {} if numbers is None else {"numbers": numbers}
        moved = "numbers" if numbers is not None else f"({self.rows.grid().whole} *)0"
        line = f"ge2_digit_moves(places, {moved}, n, shift, counts, totals, order, sorted);"
        target = dict(zip(("order", "sorted"), to, strict=True))
        self.call("digit move", line, given | made, target, {"n": n, **bits}, tiles * BLOCK, what)

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

    def pieces(self, order: Operand, places: Operand) -> Operand:
        """The sum of the run that begins before a window and goes on in it;
        the others need none.
        """
        writes, rows, held, grid = (
            self.writes,
            self.rows,
            accumulator(self.dtype),
            self.grid(order, places),
        )
        windows = -(-self.count // self.tuning.window)
        parts = writes.temp(windows * rows.length, held)
        grid.size("n", self.count)
        spread = grid.spread(["w", *rows.u], [windows - 1, *rows.along], self.pack)
        begin, updates = self.begun(number(self.op.neutral_of(held), held)), self.updates(grid)
        grid.result("parts", parts, held)
        store = self.each(f"parts[{self.part(grid, 'w')}{self.v}] = sum{self.of};")
        view = Summing(spread, begin, updates, (store,), self.pack > 1)
        threads = (windows - 1) * rows.length // self.pack
        writes.add(
            grid,
            "partial sum",
            view,
            threads,
            f"sums of updates of one place that are more than {self.tuning.window}",
            "scatter_sums/parts",
        )
        return parts

    def sums(self, order: Operand, places: Operand, parts: Operand | None) -> None:
        """What there is at a place, and all that is to be added to it."""
        rows, dtype, grid = self.rows, self.dtype, self.grid(order, places)
        grid.size("n", self.count)
        axes, steps = merged(rows.sizes, rows.steps)
        letters = lettered(WHERE, len(axes))
        spread = grid.spread(["s", *rows.u], [self.count, *rows.along], self.pack)
        split = grid.split("place", letters, grid.sizes(letters, axes)) if axes[1:] else ()
        to = added(grid.place("x", letters, steps[0]), grid.place("x", rows.u, rows.x_along))
        updates, more = self.updates(grid), tuple[Text, ...]()
        if parts is not None:
            grid.array("parts", parts, accumulator(dtype))
            more = (self.added(f"parts[{self.part(grid, 'w')}{self.v}]"),)
        view = Summing(
            spread, self.there(to), updates, self.left(grid, to), self.pack > 1,
            place=letters[0] if len(letters) == 1 else "place", split=tuple(split), more=more,
        )  # fmt: skip
        self.writes.add(
            grid,
            "sum by place",
            view,
            self.count * rows.length // self.pack,
            "the sums of each place",
            "scatter_sums/places",
        )

    def by_the_first(self) -> None:
        """The first update of a place adds all of them, in one kernel."""
        rows, grid, (i,) = self.rows, self.rows.grid(), self.rows.i
        grid.array("updates", rows.of_y, self.dtype)
        spread, indices = rows.threads(grid, self.pack), tuple(rows.wrapped(grid))
        others, alike = tuple(rows.wrapped(grid, "other", ["k"])), rows.alike("other")
        to, end = rows.in_x(grid), grid.size(f"n_{i}", rows.count)
        view = Summing(
            spread, self.there(to), tuple(self.update(grid, ["k"])), self.left(grid, to), self.pack > 1,
            indices, others, alike, alike.replace("&&", "||").replace("==", "!="), i, end,
        )  # fmt: skip
        what = "the first update of a place adds all of them"
        threads = self.count * rows.length // self.pack
        self.writes.add(grid, self.op.name, view, threads, what, "scatter_sums/first")

    def there(self, to: str) -> tuple[Text, ...]:
        """Begins with what is at a place."""
        if self.pack == 1:
            return self.begun(loaded(f"x[{to}]", self.dtype))
        read = Text(f"auto x_at = ge2_read<PACK, PACK>(x + {to});")
        return (read, *self.begun(loaded("x_at.at[v]", self.dtype)))

    def left(self, grid: Grid, to: str) -> tuple[Text, ...]:
        """Leaves the sum at a place."""
        grid.result("x", self.rows.of_x, self.dtype)
        if self.pack == 1:
            return (Text(f"x[{to}] = {stored('sum', self.dtype)};"),)
        write = Text(f"ge2_write<PACK, PACK>(x + {to}, x_at);")
        return self.each(f"x_at.at[v] = {stored('sum[v]', self.dtype)};"), write

    def grid(self, order: Operand, places: Operand) -> Grid:
        grid, rows = self.rows.grid(), self.rows
        grid.fixed.append(
            Fixed("WINDOW", self.tuning.window, "updates that are summed one after another")
        )
        grid.array("updates", rows.of_y, self.dtype)
        grid.array("order", order, self.writes.number)
        grid.array("sorted", places, self.writes.number)
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

    def begun(self, start: str) -> tuple[Text, ...]:
        if self.pack == 1:
            return (Text(f"{self.held} sum = {start};"),)
        return Text(f"{self.held} sum[PACK];"), self.each(f"sum[v] = {start};")

    def added(self, value: str) -> Text:
        mine, held = f"sum{self.of}", accumulator(self.dtype)
        return self.each(f"{mine} = {merge(self.op, mine, value, held)};")

    def updates(self, grid: Grid) -> tuple[Text, ...]:
        """Adds update number order[k]."""
        rows = self.rows
        extents = grid.sizes(rows.i, rows.over) if len(rows.i) > 1 else [""]
        return (*grid.split("order[k]", rows.i, extents), *self.update(grid, rows.i))

    def update(self, grid: Grid, letters: Sequence[str]) -> list[Text]:
        """Adds the update at those places along the axes of the indices."""
        rows, dtype = self.rows, self.dtype
        place = added(
            grid.place("updates", letters, rows.y_over), grid.place("updates", rows.u, rows.y_along)
        )
        if self.pack == 1:
            return [self.added(loaded(grid.element("updates", rows.of_y, dtype, place), dtype))]
        some = Text(f"const auto some = ge2_read<PACK, PACK>(updates + {place});")
        return [some, self.added(loaded("some.at[v]", dtype))]

    def part(self, grid: Grid, w: str) -> str:
        """Returns where the part of a window begins, for this thread."""
        text = w
        for letter, n in zip(self.rows.u, self.rows.along, strict=True):
            text = f"{text if ' ' not in text else f'({text})'} * {grid.size(f'n_{letter}', n)} + {letter}"
        return text
