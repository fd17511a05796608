"""Matrix products on the tensor cores of warps and of Hopper, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, BYTES, FLOAT16, FLOAT32, FP8, INT8, INT32, UINT8
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.words import FAR, STORED
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products import Along, Contraction
from ge2.targets.cuda.products.made import Made, Making, Source
from ge2.targets.cuda.products.tensor_epilogue import Epilogue
from ge2.targets.cuda.tensor_tuning import MmaTile, Wgmma, WgmmaTile
from ge2.targets.cuda.tuning import Parts

# -------- What kernels of products on tensor cores have in common: which products they are for, how
# batches are told, and the names of sizes.


# the operands as PTX names them, and as the emulator does
TYPES: Final = {BFLOAT16: "bf16", FLOAT16: "f16", FLOAT32: "tf32", INT8: "s8", UINT8: "u8"}
OF_GROUPS: Final = {**TYPES, FP8[0]: "e4m3", FP8[1]: "e5m2"}  # that warp groups multiply


def sums_of(dtype: np.dtype) -> np.dtype:
    """The dtype of the sums of a tile."""
    return INT32 if dtype in BYTES else FLOAT32


def unmatched(axes: Contraction) -> str:
    """The reason why a product is not one of matrices, in rows of C order; "" if it is."""
    if {len(axes.rows), len(axes.columns), len(axes.sums)} != {1}:
        return "its rows, columns or sums are none, or several axes that do not merge"
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    lines = [*axes.batches, rows]
    if columns.y != 1 or any(a.y != b.y * b.size for a, b in pairwise(lines)):
        return "the result lies in another order"
    if max(x.size for x in (rows, columns, sums, *axes.batches)) >= FAR:
        return "it has too many rows, columns or terms"
    return ""


def tiles_of(rows: int, columns: int, tile: MmaTile | WgmmaTile) -> int:
    """Returns how many tiles a result of so many rows and columns has."""
    return -(-rows // tile.rows) * -(-columns // tile.columns)


def tiles_down(axes: Contraction, tile: MmaTile | WgmmaTile) -> int:
    """Returns how many tiles below each other the results of all batches have."""
    (rows,) = axes.rows
    return math.prod(x.size for x in axes.batches) * -(-rows.size // tile.rows)


def waves_of(axes: Contraction, tile: MmaTile | WgmmaTile, multiprocessors: int) -> int:
    """Returns how many tiles a multiprocessor has one after another."""
    (rows,), (columns,) = axes.rows, axes.columns
    batches = math.prod(x.size for x in axes.batches)
    return -(-batches * tiles_of(rows.size, columns.size, tile) // multiprocessors)


def is_astray(axes: Contraction, dtype: np.dtype, tuning: Wgmma) -> bool:
    """True if rows of a factor begin within a sector of memory."""
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    apart = math.gcd(max(rows.a, sums.a), max(columns.b, sums.b))
    return apart * dtype.itemsize % tuning.sector > 0


def least_waste(
    axes: Contraction, multiprocessors: int, tuning: Wgmma, tiles: Sequence[WgmmaTile] = ()
) -> float:
    """Returns how many times as long as its products alone the waves of a product take, in the best
    of the tiles, or of all for one product.
    """
    (sums,) = axes.sums
    elements = math.prod(x.size for x in (*axes.batches, *axes.rows, *axes.columns))
    sizes = (
        waves_of(axes, t, multiprocessors) * t.rows * t.columns * tuning.cost_of(t, sums.size)
        for t in tiles or tuning.tiles
    )
    return min(sizes) * multiprocessors / elements


class TensorCores:
    """A product that `unmatched` has nothing against, or two of one left factor, whose right factors
    lie alike. `after`: what is done with the sums; `dtype`: that of all operands; `makings`: the
    operands that are made of other arrays, of which the factors are arrays that tell how they lie.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, ...], dtype: np.dtype, chip: Chip,
        after: Epilogue, makings: Sequence[Making] = (),
    ) -> None:  # fmt: skip
        self.makings = {x.operand: x for x in makings}
        self.prologues = [x.prologue(chip) for x in makings]
        self.factors, self.dtype, self.chip, self.after = factors, dtype, chip, after
        (self.rows,), (self.columns,), (self.sums,) = axes.rows, axes.columns, axes.sums
        self.batches = axes.batches
        self.count = math.prod(x.size for x in self.batches)
        self.arguments: dict[str, Argument] = {}
        lies = [(axes, "a"), (axes, "b")]
        lies += [(x.axes, "ab"[m.operand]) for m in makings for x in m.sources]
        self.whole = "int64_t" if max(reach(*each) for each in lies) >= FAR else "int"

    @property
    def summed(self) -> str:
        """The type of a sum."""
        return "int" if self.dtype in BYTES else "float"

    @property
    def kind(self) -> str:
        return "contraction" if self.after.text else "product"

    @property
    def text(self) -> str:
        """Returns what the kernel computes, for the comment above it."""
        name = self.after.product
        product = f"{name}[row, column] = sum of left[row, k] * right[k, column] over k"
        if second := self.after.second:
            product += f",\n{second}[row, column] = that of left[row, k] * right2[k, column]"
        after = self.after.text
        if sums := ", ".join(x.name for x in self.after.sums):
            after = f"{after}\nand parts of the sum of each column of {sums}"
        text = f"{product}, and\n{after}" if after else f"{self.dtype.name}: {product}"
        return "\n".join([text, *(x.text for x in self.prologues)])

    @property
    def given(self) -> tuple[Argument, ...]:
        """All arguments."""
        made = (a for x in self.prologues for a in x.arguments)
        return *self.arguments.values(), *made, *self.after.arguments

    @property
    def helpers(self) -> tuple[str, ...]:
        found = [*self.after.helpers, *(h for x in self.prologues for h in x.helpers)]
        return tuple(dict.fromkeys(found))

    @property
    def equations(self) -> int:
        made = sum(len(x.made.lines) for x in self.prologues)
        return 1 + self.after.equations + made

    def size(self, name: str, value: int, type_: str = "int") -> str:
        self.arguments[name] = Argument(f"{type_} {name}", "size", value)
        return name

    def places(self, name: str, which: str, batches: Sequence[Along], batch: list[str]) -> str:
        """Returns where a batch of an array is."""
        found = ""
        for x, place in zip(batches, batch, strict=True):
            if apart := getattr(x, which):
                called = f"{name}_{place if place.isidentifier() else 'batch'}"
                found += f" + {place} * {self.size(called, apart, self.whole)}"
        return found

    def batch(self, whole: str = "place.batch") -> tuple[list[str], list[Text]]:
        """Returns what the place along each axis of batches is called, and what tells it."""
        if len(self.batches) < 2:
            return [whole] * len(self.batches), []
        names, lines, rest = list[str](), list[Text](), whole
        for n, axis in reversed([*enumerate(self.batches)]):
            names.insert(0, f"batch{n}")
            if n:
                extent = self.size(f"n_batch{n}", axis.size)
                lines.append(Text(f"const int batch{n} = {rest} % {extent};"))
                rest = f"({rest}) / {extent}" if " " in rest else f"{rest} / {extent}"
            else:
                lines.append(Text(f"const int batch{n} = {rest};"))
        return names, lines


# -------- A matrix product on the tensor cores of warps, of operands that lie anyhow.
# What a block does is `templates/cuda/product/mma.cu.jinja` and `mma.cuh`. Here is decided how each
# operand is read: along which of its axes threads are neighbours, and how much one copy moves.


WIDEST: Final = 16  # bytes of a copy, of which it may move 8 or 4 as well
PLANES: Final = 8  # float32 beside a row of sums in shared memory


@final
@record
class Lying:
    """The layout of an operand: whether `turned`, so that its lines are closer together than the
    terms of a sum, and how many elements one copy moves; 0, if there is no such copy.
    """

    turned: bool
    wide: int


@final
@record
class Raw:
    """The reading of an array that an operand is made of: what a thread holds of it, and the array;
    how many elements at once; whether neighbours and rows of a tile have elements of their own, and
    how far apart those of rows, neighbours, lines and terms are; the place of a batch; and whether
    all terms share its elements, so that they are read `once`.
    """

    name: str
    array: str
    stored: str
    wide: int
    along: bool
    down: bool
    pitch: str
    step: str
    line: str
    term: str
    batch: str
    once: bool


@final
@record
class MadeSide:
    """The making of an operand: its statements, and its arrays."""

    how: Made
    raws: tuple[Raw, ...]


@final
@record
class Side:
    """The reading of an operand, as the template prints it. `made`: if it is made of other arrays."""

    name: str
    stored: str
    wide: int
    turned: bool
    inner: int
    outer: int
    pitch: str
    step: str
    line: str
    term: str
    lines: str
    batch: str
    at: str
    made: MadeSide | None = None


@final
@record
class MmaView:
    """The view that `templates/cuda/product/mma.cu.jinja` prints."""

    type: str
    summed: str
    terms: int
    sides: tuple[Side, ...]
    batch: tuple[Text, ...]
    part: str
    after: Epilogue


def lying(axes: Contraction, factors: tuple[Operand, ...], n: int, dtype: np.dtype) -> Lying:
    """Returns how the operand of that number lies."""
    (lines,), (sums,), name, size = (axes.rows, axes.columns)[n], axes.sums, "ab"[n], dtype.itemsize
    line, term = getattr(lines, name), getattr(sums, name)
    turned = abs(line) < abs(term)
    step, pitch = (line, term) if turned else (term, line)
    x = factors[n]
    apart = [pitch, x.offset, x.loose, *(getattr(each, name) for each in axes.batches)]
    wide = WIDEST // size if step == 1 else 1
    while wide > 1 and any(each % wide for each in apart):
        wide //= 2
    return Lying(turned, wide if wide * size >= 4 else 0)


def warps_down(tile: MmaTile, after: Epilogue) -> int:
    """Returns how many warps have rows of the same columns, as elements leave."""
    return 32 * tile.high * tile.broad // max(32, tile.columns // after.pack)


def reach(axes: Contraction, name: str) -> int:
    """Elements of an operand from the first one to the last."""
    every = [*axes.rows, *axes.columns, *axes.sums, *axes.batches]
    steps: list[int] = [abs(getattr(x, name)) * (x.size - 1) for x in every]
    return 1 + sum(steps)


@final
class Mma(TensorCores):
    """A product that `unmatched` has nothing against, in tiles of some size. `dtypes`: of the left and the right
    operand, which are others of bytes alone. `parts`: of each sum, that as many blocks have; each part is
    a result of its own.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, ...], dtypes: tuple[np.dtype, np.dtype],
        tile: MmaTile, chip: Chip, after: Epilogue, parts: int = 1, makings: Sequence[Making] = (),
    ) -> None:  # fmt: skip
        super().__init__(axes, factors, dtypes[0], chip, after, makings)
        self.dtypes = dtypes
        self.axes, self.tile, self.parts = axes, tile, parts
        self.terms = tile.terms // self.dtype.itemsize
        self.threads, self.across = 32 * tile.high * tile.broad, tile.products * tile.columns

    def kernel(self) -> CudaKernel:
        tile, view = self.tile, self.view()
        fixed = (
            Fixed("ROWS", tile.rows, "of a tile of the result"),
            Fixed("COLUMNS", tile.columns, "of a tile of the result"),
            Fixed("TERMS", self.terms, "of a sum, that a stage has"),
            Fixed("PARTS", tile.terms // 32, "of these, that fragments have"),
            Fixed("STAGES", tile.stages, "tiles of operands in shared memory"),
            Fixed("STAGE", self.stage, "bytes of a stage"),
            Fixed("THREADS", self.threads, "of a block"),
            Fixed("ACROSS", tile.broad, "warps beside each other"),
            Fixed("HIGH", tile.rows // tile.high // 16, "times 16 rows that a warp has"),
            Fixed("BROAD", self.across // tile.broad // 16, "times 16 columns of it"),
            Fixed("GROUP", tile.group, "rows of tiles that are taken at a time"),
            Fixed("PACK", self.after.pack, "neighbours that a thread has"),
        )
        tiles = self.parts * self.count * tiles_of(self.rows.size, self.columns.size, tile)
        many = bool(self.makings) or self.after.equations > self.chip.tuning.mma.crowd
        crowded = self.threads <= 128 and many
        return CudaKernel(
            self.kind, self.text, self.given, (), self.threads, (max(1, tiles),), fixed,
            self.shared, self.equations, self.helpers, template="cuda/product/mma.cu.jinja",
            view=view, resident=max(tile.blocks, 1 + crowded),
        )  # fmt: skip

    @property
    def stage(self) -> int:
        """Bytes of the tiles of all operands."""
        return self.bytes_of(0) + self.tile.products * self.bytes_of(1)

    @property
    def shared(self) -> int:
        """Bytes of the stages, in whose place the sums are then."""
        tile = self.tile
        return max(tile.stages * self.stage, tile.rows * (self.across + PLANES) * 4)

    @property
    def fits(self) -> bool:
        """True if shared memory holds its stages, and registers hold its sums beside fragments and
        elements that are read one by one.
        """
        tuning = self.chip.tuning.mma
        few = self.tile.rows * self.across // self.threads <= tuning.crowded
        held = [math.prod(self.shape(n)) for n in (0, 1) if not self.lying(n).wide]
        held = [] if self.makings else held
        registers = few or not (held or self.makings)
        return (
            self.shared <= self.chip.most and registers and sum(held) <= tuning.held * self.threads
        )

    def shape(self, n: int) -> tuple[int, int]:
        """Neighbours in a row of a tile of an operand, and its rows."""
        lines = (self.tile.rows, self.tile.columns)[n]
        return (lines, self.terms) if self.lying(n).turned else (self.terms, lines)

    def lying(self, n: int) -> Lying:
        """The layout of an operand; a second right one may have been given where copies are
        narrower. What is made is stored by 16 bytes.
        """
        if n in self.makings:
            return Lying(self.makings[n].turned, WIDEST // self.dtype.itemsize)
        ways = [lying(self.axes, self.factors, n, self.dtype)]
        if n == 1 and self.tile.pair:
            ways.append(lying(self.axes, (self.factors[0], self.factors[2]), n, self.dtype))
        return min(ways, key=lambda x: x.wide)

    def bytes_of(self, n: int) -> int:
        """As `ge2_mma_pitch` has it."""
        (inner, outer), size = self.shape(n), self.dtype.itemsize
        return outer * (inner * size + (32 if self.lying(n).turned and size == 4 else 16))

    def view(self) -> MmaView:
        extents = ("rows", self.rows.size), ("columns", self.columns.size)
        for name, size in (*extents, ("sums", self.sums.size)):
            self.size(f"n_{name}", size)
        part, whole = "", "place.batch"
        if self.parts > 1:
            self.size("n_terms", part_of(self.sums.size, self.parts, self.terms))
            many = self.count > 1 and self.size("n_batches", self.count)
            part = f"{whole} / {many}" if many else whole
            whole = f"({whole} % {many})" if many else whole
        names, batch = self.batch(whole)
        across = self.columns, "n_columns - column", names
        sides = [
            self.side("left", 0, self.rows, "n_rows - row", names),
            self.side("right", 1, *across),
        ]
        if self.tile.pair:
            sides.append(self.side("right2", 2, *across))
        terms = 32 // self.dtype.itemsize
        left, right = (TYPES[x] for x in self.dtypes)
        type_ = f"{left}_{right}" if self.dtype in BYTES else left
        return MmaView(type_, self.summed, terms, tuple(sides), tuple(batch), part, self.after)

    def side(self, name: str, n: int, along: Along, lines: str, batch: list[str]) -> Side:
        """An operand among the arguments, and how it is read."""
        right = min(n, 1)  # a second one lies as the first does
        which, how, dtype = "ab"[right], self.lying(right), self.dtypes[right]
        if n in self.makings:
            return self.made_side(name, n, lines, batch)
        stored = STORED[dtype]
        declared = f"const {stored} *__restrict__ {name}"
        self.arguments[name] = Argument(declared, "array", (self.factors[n], dtype))
        line, term = getattr(along, which), getattr(self.sums, which)
        pitch, step = (term, line) if how.turned else (line, term)
        pitch_at = self.size(f"{name}_pitch", pitch, self.whole)
        step_at = "1" if step == 1 else self.size(f"{name}_step", step, self.whole)
        line_at, term_at = (step_at, pitch_at) if how.turned else (pitch_at, step_at)
        first = "row" if n == 0 else "column"
        places = self.places(name, which, self.batches, batch)
        inner, outer = self.shape(right)
        at = sum(map(self.bytes_of, range(right))) + (n - right) * self.bytes_of(1)
        return Side(
            name, stored, how.wide, how.turned, inner, outer, pitch_at, step_at,
            first if line_at == "1" else f"{first} * {line_at}", term_at, lines,
            places, f" + {at}" if n else "",
        )  # fmt: skip

    def made_side(self, name: str, n: int, lines: str, batch: list[str]) -> Side:
        """An operand that is made of arrays among the arguments, and how they are read."""
        making, how, (inner, outer) = self.makings[n], self.lying(n), self.shape(n)
        made, several = making.prologue(self.chip).made, len(making.sources) > 1
        raws = tuple(
            self.raw(f"{name}{i if several else ''}", x.name, source, n, batch)
            for i, (x, source) in enumerate(zip(made.elements, making.sources, strict=True))
        )
        at = f" + {self.bytes_of(0)}" if n else ""
        return Side(
            name, STORED[self.dtype], how.wide, how.turned, inner, outer, "", "", "", "", lines, "", at,
            MadeSide(made, raws),
        )  # fmt: skip

    def raw(self, name: str, element: str, x: Source, n: int, batch: list[str]) -> Raw:
        which, stored, turned = "ab"[n], STORED[x.dtype], self.lying(n).turned
        (lines,), (sums,) = (x.axes.rows, x.axes.columns)[n], x.axes.sums
        declared = f"const {stored} *__restrict__ {name}"
        self.arguments[name] = Argument(declared, "array", (x.operand, x.dtype))
        line, term = getattr(lines, which), getattr(sums, which)
        line_at, term_at = (
            self.size(f"{name}_{word}", by, self.whole) if by not in (0, 1) else str(by)
            for word, by in (("line", line), ("term", term))
        )
        inner, down = (lines.size, term) if turned else (sums.size, line)
        along, down_at = (line, term_at) if turned else (term, line_at)
        steps = [inner, down, x.operand.offset, x.operand.loose]
        steps += [getattr(each, which) for each in x.axes.batches]
        most = WIDEST // max(self.dtype.itemsize, x.dtype.itemsize)
        wide = math.gcd(most, *steps) if along == 1 else 1
        return Raw(
            f"{('left', 'right')[n]}_{element}", name, stored, wide, bool(along), bool(down), down_at,
            line_at if turned else term_at, f"{('row', 'column')[n]} * {line_at}", term_at,
            self.places(name, which, x.axes.batches, batch), not term,
        )  # fmt: skip


def part_of(sums: int, parts: int, terms: int) -> int:
    """Terms of a part of a sum: whole stages of so many."""
    return -(-sums // (parts * terms)) * terms


@final
@record
class PartsView:
    """The view that `templates/cuda/product/parts.cu.jinja` prints."""

    summed: str
    wide: int
    after: Epilogue


def merged(
    axes: Contraction, parts: int, tuning: Parts, after: Epilogue, operand: Operand, dtype: np.dtype
) -> CudaKernel:
    """The kernel that adds up the parts of sums of a dtype, in order, and goes on with them."""
    (rows,), (columns,) = axes.rows, axes.columns
    lines = math.prod(x.size for x in axes.batches) * rows.size
    packs, summed = lines * -(-columns.size // after.pack), STORED[dtype]
    arguments = (
        Argument(f"const {summed} *__restrict__ sums", "array", (operand, dtype)),
        *(
            Argument(f"int {name}", "size", value)
            for name, value in (("n_rows", lines), ("n_columns", columns.size), ("n_parts", parts))
        ),
        *after.arguments,
    )
    name = after.product
    text = f"{name}[row, column] = sum of the parts of the sum" + (
        f", and\n{after.text}" if after.text else ""
    )
    fixed = (Fixed("PACK", after.pack, "neighbours that a thread has"),)
    wide = math.gcd(4, columns.size, after.pack)
    return CudaKernel(
        "merged product", text, arguments, (), tuning.block, (-(-packs // tuning.block),), fixed,
        equations=1 + after.equations, helpers=after.helpers,
        template="cuda/product/parts.cu.jinja", view=PartsView(summed, wide, after),
    )  # fmt: skip
