"""Small products in CUDA, one by tiles of a block or many by threads, and the work on their elements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, FLOATS, HALF, accumulator
from ge2.base.record import record
from ge2.codegen.text import Operand, Text
from ge2.ir import Var
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.views import Stage
from ge2.targets.cuda.emit.words import HELD, STORED, SUFFIX, WIDEST
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products import SIDE, Along, Contraction, Matrices
from ge2.targets.cuda.products.made import Made, Prologue
from ge2.targets.cuda.tuning import Products

# -------- Small products in CUDA, what is done to their operands and elements, and what no library
# multiplies.


# -------- A small matrix product in CUDA: a block has a tile of the result and its whole sum.
# What a block does is `small.cuh`. Here is decided along which axis each operand is read, and how
# wide. No size is in the text, so other sizes compile nothing.


# Of small.cuh: threads of a block, elements that one access of theirs moves at most, and stages, of
# which each operand has as many bytes, by how it is read.
THREADS = SIDE * SIDE
WIDE = 4
STAGES, ALONG, ACROSS = 5, 4608, 4096


@final
@record
class Read:
    """The layout of an operand: whether neighbours in memory are terms of a sum (`along`), else
    they are lines; how many elements at once; and how many elements apart lines, or terms, are.
    """

    along: bool
    wide: int
    pitch: int


def read(
    line: Along, sums: Along, name: str, operand: Operand, itemsize: int, others: list[Along]
) -> Read:
    """ValueError if neither lines nor terms are neighbours."""
    down, across = getattr(line, name), getattr(sums, name)
    along = across == 1 and sums.size > 1
    if not along and line.size > 1 and down != 1:
        raise ValueError("no axis of an operand is contiguous")
    pitch, extent = (down, sums.size) if along else (across, line.size)
    steps = [pitch, extent, operand.offset, operand.loose, *(getattr(x, name) for x in others)]
    return Read(along, math.gcd(min(WIDE, WIDEST // itemsize), *steps), pitch)


def unfit(axes: Contraction) -> str:
    """The reason why a product is not one of matrices that are read as they lie; nothing if it is."""
    if max(map(len, (axes.rows, axes.columns, axes.sums))) > 1:
        return "its rows, columns or sums are several axes that do not merge"
    for name, lines in (("a", axes.rows), ("b", axes.columns)):
        apart = [getattr(x, name) for each in (lines, axes.sums) for x in each]
        if apart and 1 not in apart and len(apart) > 1:
            return "no axis of an operand is contiguous"
    if not axes.sums:
        return "there is nothing to sum up"
    return ""


@final
@record
class Lines:
    """The reading of an operand, in CUDA."""

    lines: str
    wide: int
    along: str


@final
@record
class SmallView:
    """The view that `templates/cuda/product/small.cu.jinja` prints, and that of a product and a
    region.
    """

    held: str
    index: str
    a: Lines
    b: Lines
    lifts: tuple[str, str]
    row: str = "i"
    column: str = "j"
    y: str = ""
    written: str = ""
    batch: tuple[Text, ...] = ()
    before: tuple[Text, ...] = ()
    rounded: tuple[Text, ...] = ()
    after: tuple[Stage, ...] = ()
    made: tuple[Made, ...] = ()


@final
class Small(Matrices):
    """A product that `unfit` has nothing against. `made`: the operands that are made of others."""

    made: tuple[Made, ...] = ()

    def kernel(self) -> CudaKernel:
        self.declare()
        text = f"{self.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        fixed = Fixed("SIDE", SIDE, "rows and columns of a block")
        view = self.view()
        return CudaKernel(
            "small product", text, tuple(self.arguments.values()), (), THREADS, self.grid, (fixed,),
            self.shared, 1, resident=2, template="cuda/product/small.cu.jinja", view=view,
        )  # fmt: skip

    @property
    def grid(self) -> tuple[int, int]:
        tiles = -(-self.rows.size // SIDE) * -(-self.columns.size // SIDE)
        return tiles, self.deep

    @property
    def shared(self) -> int:
        """Bytes of a ge2_small_room, most of it stages: the parts of a tile are less."""
        return STAGES * sum(ALONG if self.read(name).along else ACROSS for name in "ab")

    def extents(self) -> None:
        self.size("n_rows", self.rows.size)
        self.size("n_columns", self.columns.size)

    def view(self) -> SmallView:
        places, batch = {"a": "", "b": "", "y": ""}, list[Text]()
        self.extents()
        if self.batches:
            self.size("n_batches", self.count)
            places, batch = self.batch()
        y = self.term("y", self.rows, "i", "row") + self.term("y", self.columns, "j", "column")
        y = f"{places['y']}{y}".removeprefix(" + ") or "0"
        return replace(self.product(places), y=y, written=self.written("total"), batch=tuple(batch))

    def product(self, places: dict[str, str]) -> SmallView:
        """The view of a thread's element of a tile."""
        a, b = self.lines("a", places, "row"), self.lines("b", places, "column")
        self.size("n_sums", self.sums.size)
        return SmallView(HELD[self.wide], self.whole, a, b, self.lifts)

    def read(self, name: str) -> Read:
        line, operand = (
            (self.rows, self.operands[0]) if name == "a" else (self.columns, self.operands[1])
        )
        stored = self.stored["ab".index(name)].itemsize
        itemsize = max(stored, self.wide.itemsize)  # a thread has no more of a stage than 16 bytes
        return read(line, self.sums, name, operand, itemsize, self.batches)

    def lines(self, name: str, places: dict[str, str], index: str) -> Lines:
        """Returns where the lines of a tile begin, and the pitch."""
        how, called = self.read(name), self.called[name]
        pitch = self.size(f"{called}_pitch", how.pitch)
        begin = f"{called}{places[name]} + {index}{f' * {pitch}' if how.along else ''}"
        return Lines(f"{begin}, {pitch}", how.wide, "true" if how.along else "false")

    @property
    def lifts(self) -> tuple[str, str]:
        """Returns how an element of either operand becomes what is summed."""
        names = {each.name: each.operand for each in self.made}
        found = [next((name for name, n in names.items() if n == side), "") for side in (0, 1)]
        return found[0] or self.lift(), found[1] or self.lift()

    def lift(self) -> str:
        """The same of an operand that is in memory."""
        if self.dtype in HALF:
            return f"[](uint16_t x) {{ return ge2_cast_{SUFFIX[self.dtype]}_f32(x); }}"
        assert self.dtype == self.wide and self.dtype in (FLOAT32, FLOAT64)
        return "ge2_small_same()"


# -------- A matrix product in CUDA, for what no library multiplies: integers, and operands that lie
# anyhow.
# A block has a tile of the result. For each tile of rows and one of columns its threads bring both
# to shared memory, then each sums what meets in its element.


TILE = SIDE


@final
@record
class TilesView:
    """The view that `templates/cuda/product/tiles.cu.jinja` prints."""

    held: str
    index: str
    a: str
    b: str
    y: str
    zero: str
    none: str
    added: str
    merged: str
    written: str
    batch: tuple[Text, ...]


@final
class Tiles(Matrices):
    """`a`, `b`, `y`: where the operands and the result lie, and their dtypes."""

    @property
    def held(self) -> str:
        return HELD[self.wide]

    def kernel(self) -> CudaKernel:
        tiles = -(-self.rows.size // TILE) * -(-self.columns.size // TILE)
        self.declare()
        view = self.view()
        text = f"{self.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        fixed = Fixed("TILE", TILE, "rows, columns and terms that a block has at once")
        return CudaKernel(
            "product", text, tuple(self.arguments.values()), (), TILE * TILE,
            (tiles, self.deep), (fixed,), 0, 1, template="cuda/product/tiles.cu.jinja", view=view,
        )  # fmt: skip

    def view(self) -> TilesView:
        self.size("n_rows", self.rows.size)
        self.size("n_columns", self.columns.size)
        places, split = {"a": "", "b": "", "y": ""}, list[Text]()
        if self.batches:
            self.size("n_batches", self.count)
            places, split = self.batch()
        return self.tile(places, tuple(split))

    def at(self, name: str, place: str, *terms: str) -> str:
        return f"{name}[{(''.join(terms) + place).removeprefix(' + ') or '0'}]"

    def tile(self, places: dict[str, str], batch: tuple[Text, ...]) -> TilesView:
        self.size("n_sums", self.sums.size)
        terms = {
            "row": self.rows,
            "column": self.columns,
            "(k + x)": self.sums,
            "(k + y_)": self.sums,
        }

        def place(name: str, *indices: str) -> str:
            parts = (self.term(name, terms[i], i, i.strip("(+ xy_)")) for i in indices)
            return self.at(name, places[name], *parts)

        a, b, y = (
            place("a", "row", "(k + x)"),
            place("b", "(k + y_)", "column"),
            place("y", "row", "column"),
        )
        zero = "{0, 0}" if self.wide in COMPLEX else "false" if self.wide == BOOL else "0"
        none = f"{self.held}{zero}" if self.wide in COMPLEX else f"({self.held}){zero}"
        return TilesView(
            self.held, self.whole, self.read(a), self.read(b), y, zero, none,
            self.added("some", "left[y_][t]", "right[t][x]"), self.merged("total", "some"),
            self.written("total"), batch,
        )  # fmt: skip

    # -- numbers

    def read(self, element: str) -> str:
        """An element as it is summed."""
        if self.dtype == BOOL:
            return f"{element} != 0"
        held = accumulator(self.dtype)
        value = f"ge2_cast_{SUFFIX[self.dtype]}_f32({element})" if self.dtype in HALF else element
        return value if held == self.wide else f"({self.held}){value}"

    def added(self, total: str, a: str, b: str) -> str:
        if self.wide == BOOL:
            return f"{total} || ({a} && {b})"
        if self.wide in FLOATS:
            return f"{'fma' if self.wide.itemsize == 8 else 'fmaf'}({a}, {b}, {total})"
        short = SUFFIX[self.wide]
        return f"ge2_add_{short}({total}, ge2_mul_{short}({a}, {b}))"

    def merged(self, a: str, b: str) -> str:
        if self.wide == BOOL:
            return f"{a} || {b}"
        return f"{a} + {b}" if self.wide in FLOATS else f"ge2_add_{SUFFIX[self.wide]}({a}, {b})"


# -------- A small product whose threads go on with what is done to its elements: each has one in a
# register.


NAMES = ("left", "right", "y")


def apart(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a product such that nobody takes rows, columns and batches for one axis.

    >>> apart((5, 3, 4)), apart((3, 4))
    ((36, 9, 1), (9, 1))
    """
    *outer, rows, columns = shape
    strides, step = [1, 2 * columns + 1], (2 * columns + 1) * (rows + 1)
    for n in reversed(outer):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


@final
class SmallRegion:
    """`product`: the value of the region that is the product; `operands` are
    those of the others.
    """

    def __init__(
        self,
        small: Small,
        region: Region,
        product: Var,
        operands: Mapping[Var, Operand],
        chip: Chip,
        made: tuple[Prologue, ...] = (),
        pack: int = 1,
    ) -> None:
        self.small, self.made = small, made
        small.made = tuple(each.made for each in made)
        for each in made:
            dtypes = [*small.stored]
            dtypes[each.made.operand] = each.made.elements[0].dtype
            small.stored = dtypes[0], dtypes[1]
        lies = Operand("in", 0, apart(product.type.shape))
        self.problem = Problem(region, {**operands, product: lies})
        lane = product.type.ndim - 1
        self.lanes = Lanes(self.problem, frozenset(), chip, lane=lane, pack=pack)
        self.product = next(p for p in self.problem.axes.strides if p.var is product)

    def kernel(self) -> CudaKernel:
        small, problem, lanes = self.small, self.problem, self.lanes
        before, after = self.read_before(), lanes.inside(lanes.root)
        small.declare("ab")
        small.extents()
        places, batch, row, column = self.batches()
        view = replace(
            small.product(places), batch=tuple(batch), row=row, column=column, before=tuple(before),
            rounded=tuple(self.rounded()), after=tuple(after), made=small.made,
        )  # fmt: skip
        more = {a.name: a for each in self.made for a in each.arguments}
        arguments = {**small.arguments, **lanes.places.arguments, **more}
        fixed = Fixed("SIDE", SIDE, "rows and columns of a block")
        return CudaKernel(
            "contraction", self.text, tuple(arguments.values()), (), THREADS,
            small.grid, (fixed,), small.shared, 1 + len(problem.region.graph.eqns), self.helpers,
            resident=2, template="cuda/product/region.cu.jinja", view=view,
        )  # fmt: skip

    def batches(self) -> tuple[dict[str, str], list[Text], str, str]:
        """Returns where product `z` begins in both factors, the statements that tell its place along
        each axis, and what the row and the column of an element are called.
        """
        places, lines = {"a": "", "b": ""}, list[Text]()
        *outer, row, column = self.lanes.kept
        if outer:
            self.small.size("n_batches", self.small.count)
            places, lines = self.small.batch("ab")
            lines += map(Text, self.lanes.places.split("z", outer))
        letters = self.lanes.places.letters
        return places, lines, letters[row], letters[column]

    @property
    def text(self) -> str:
        """The computation in words."""
        product = (
            f"{self.product.name}[row, column] = sum of left[row, k] * right[k, column] over k, and"
        )
        return "\n".join([product, self.problem.text, *(each.text for each in self.made)])

    @property
    def helpers(self) -> tuple[str, ...]:
        """The CUDA of users that a kernel needs before it, once its statements are there."""
        made = (h for each in self.made for h in each.helpers)
        return tuple(dict.fromkeys([*self.lanes.said.helpers, *made]))

    def read_before(self) -> list[Text]:
        """Returns what the thread needs besides the product, on its way while that is summed."""
        said, found = self.lanes.said, []
        for p in said.read_in(list(self.lanes.root.everything())):
            if p is self.product:
                continue
            stored = STORED[p.var.type.dtype]
            read = f"here ? {said.load(p)} : {stored}()"
            found.append(Text(f"const {stored} {p.name}_at = {read};"))
            said.packs[p] = f"{p.name}_at"
        said.packs[self.product] = "total"
        said.widened.add(self.product)  # it never was stored
        return found

    def rounded(self, total: str = "total") -> list[Text]:
        """The product as it would be, had it been stored."""
        dtype = self.product.var.type.dtype
        if dtype not in HALF:
            return []
        short, each = SUFFIX[dtype], "for (int v = 0; v < PACK; v++) " if "[v]" in total else ""
        return [Text(f"{each}{total} = ge2_cast_{short}_f32(ge2_cast_f32_{short}({total}));")]


# -------- Many products of matrices so small that a thread has whole sums, and the work on their
# elements.


# The sizes of a matrix are in the text, so that its sums are no loops; how many there are is not.


@final
@record
class ManyView:
    """The view that `templates/cuda/product/many.cu.jinja` prints."""

    held: str
    index: str
    a: Lines
    b: Lines
    lifts: tuple[str, str]
    batch: tuple[Text, ...] = ()
    row: str = "i"
    column: str = "j"
    stores: tuple[Text, ...] = ()
    rounded: tuple[Text, ...] = ()
    after: tuple[Stage, ...] = ()


def pack_of(columns: int, dtype: np.dtype) -> int:
    """Columns that a thread has of matrices of so many, whose sums are of a dtype."""
    return math.gcd(columns, WIDEST // dtype.itemsize)


def lines_of(rows: int, right_turned: bool, tuning: Products) -> int:
    """Rows that a thread has of matrices of so many: as many as there are registers for, if no thread
    has fewer, or of right factors whose terms are neighbours, which are read from more lines of memory.
    """
    many = rows % tuning.more_rows == 0 or (right_turned and rows > 2 * tuning.more_rows)
    return min(rows, tuning.more_rows if many else tuning.rows)


def threads_of(rows: int, columns: int, count: int, lines: int, pack: int) -> int:
    """Threads that `count` products have, of which each has `lines` rows of `pack` columns, at most."""
    return count * (columns // pack) * -(-rows // lines)


@final
class Many:
    """Products as `Small` has them, each by threads of its own."""

    def __init__(self, small: Small) -> None:
        self.small, self.pack = small, pack_of(small.columns.size, small.wide)

    def kernel(self) -> CudaKernel:
        """The kernel of the products alone."""
        small = self.small
        small.declare()
        small.size("n_batches", small.count)
        places, batch = small.batch()
        view = replace(self.sums(places), batch=tuple(batch), stores=self.stores(places["y"]))
        text = f"{small.dtype.name}: y[row, column] = sum of a[row, k] * b[k, column] over k"
        return self.made("small product", text, view)

    def stores(self, place: str) -> tuple[Text, ...]:
        """The statements that store a thread's elements of a row, side by side at once."""
        small, pack = self.small, self.pack
        y = place + small.term("y", small.rows, "i", "row")
        steps = [x.y for x in (small.rows, *small.batches)]
        operand, stored = small.operands[2], STORED[small.out]
        wide = math.gcd(pack, operand.offset, operand.loose, *steps) if small.columns.y == 1 else 1
        column = small.term("y", small.columns, "(j + v)", "column")
        to = f"{y}{column}".removeprefix(" + ") or "0"
        if wide < pack:
            each = f"y[{to}] = {small.written('total.at[v]')};"
            return (Text(f"for (int v = 0; v < PACK; v++) {each}"),)
        first = f"{y} + j".removeprefix(" + ")
        return (
            Text(f"ge2_some<{stored}, PACK> y_at;"),
            Text(f"for (int v = 0; v < PACK; v++) y_at.at[v] = {small.written('total.at[v]')};"),
            Text(f"*(ge2_some<{stored}, PACK> *)(y + ({first})) = y_at;"),
        )

    def sums(self, places: dict[str, str]) -> ManyView:
        """The sums of a product that begins at these places of the factors."""
        small = self.small
        a, b = small.lines("a", places, "row"), small.lines("b", places, "column")
        return ManyView(HELD[small.wide], small.whole, a, b, small.lifts)

    def made(
        self,
        kind: str,
        text: str,
        view: ManyView,
        equations: int = 1,
        helpers: tuple[str, ...] = (),
    ) -> CudaKernel:
        small = self.small
        rows, columns = small.rows.size, small.columns.size
        tuning = small.chip.tuning.products
        lines = lines_of(rows, small.sums.b == 1, tuning)
        fixed = (
            Fixed("ROWS", rows, "of a matrix"),
            Fixed("COLUMNS", columns, "of a matrix"),
            Fixed("SUMS", small.sums.size, "terms of a sum"),
            Fixed("LINES", lines, "rows that a thread has"),
            Fixed("PACK", self.pack, "columns that it has"),
        )
        threads = threads_of(rows, columns, small.count, lines, self.pack)
        grid = (-(-threads // THREADS), 1)
        return CudaKernel(
            kind, text, tuple(small.arguments.values()), (), THREADS, grid, fixed, 0, equations,
            helpers, resident=tuning.resident // min(self.pack, 2), template="cuda/product/many.cu.jinja", view=view,
        )  # fmt: skip


@final
class ManyRegion:
    """Products and the region that goes on with them. `product`: its value in the region; `operands`
    are those of the others.
    """

    def __init__(
        self,
        small: Small,
        region: Region,
        product: Var,
        operands: Mapping[Var, Operand],
        chip: Chip,
    ) -> None:
        self.many = Many(small)
        self.region = SmallRegion(small, region, product, operands, chip, pack=self.many.pack)

    def kernel(self) -> CudaKernel:
        region, many = self.region, self.many
        lanes, small = region.lanes, many.small
        lanes.said.packs[region.product] = "total.at[v]" if many.pack > 1 else "total.at[0]"
        lanes.said.widened.add(region.product)  # it never was stored
        after = lanes.inside(lanes.root, 8)
        small.declare("ab")
        places, batch, row, column = region.batches()
        view = replace(
            many.sums(places), batch=tuple(batch), row=row, column=column,
            rounded=tuple(region.rounded("total.at[v]")), after=tuple(after),
        )  # fmt: skip
        small.arguments.update(lanes.places.arguments)
        equations = 1 + len(region.problem.region.graph.eqns)
        return many.made("contraction", region.text, view, equations, region.helpers)
