"""A matrix product on the tensor cores of warps, of operands that lie anyhow.

What a block does is `templates/cuda/product/mma.cu.jinja` and `mma.cuh`. Here is decided how each
operand is read: along which of its axes threads are neighbours, and how much one copy moves.
"""

from __future__ import annotations

import math
from typing import Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import FAR
from ge2.targets.cuda.emit.types import STORED
from ge2.targets.cuda.products.gemm import Along, Contraction
from ge2.targets.cuda.products.tensor_cores import TYPES, TensorCores, tiles_of
from ge2.targets.cuda.products.tensor_epilogue import Epilogue
from ge2.targets.cuda.tuning import MmaTile, Parts

WIDEST: Final = 16  # bytes of a copy, of which it may move 8 or 4 as well
CROWDED: Final = 64  # sums of a thread beside which there is room for elements that are read
PLANES: Final = 8  # float32 beside a row of sums in shared memory


@final
@record
class Lying:
    """How an operand lies: whether `turned`, so that its lines are closer together than the terms of
    a sum, and how many elements one copy moves; 0, if there is no such copy.
    """

    turned: bool
    wide: int


@final
@record
class Side:
    """How an operand is read, as the template prints it."""

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


@final
@record
class MmaView:
    """What `templates/cuda/product/mma.cu.jinja` prints."""

    type: str
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


@final
class Mma(TensorCores):
    """A product that `unmatched` has nothing against, in tiles of some size. `parts`: of each sum,
    that as many blocks have; each part is a result of its own.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, ...], dtype: np.dtype, tile: MmaTile,
        chip: Chip, after: Epilogue, parts: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(axes, factors, dtype, chip, after)
        self.axes, self.tile, self.parts = axes, tile, parts
        self.terms = tile.terms // dtype.itemsize
        self.threads, self.across = 32 * tile.high * tile.broad, tile.products * tile.columns
        far = max(self.reach("a"), self.reach("b")) >= FAR
        self.whole = "int64_t" if far else "int"

    def reach(self, name: str) -> int:
        """Elements of an operand from the first one to the last."""
        every = [self.rows, self.columns, self.sums, *self.batches]
        steps: list[int] = [abs(getattr(x, name)) * (x.size - 1) for x in every]
        return 1 + sum(steps)

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
        crowded = self.threads <= 128 and self.after.equations > self.chip.tuning.mma.crowd
        return CudaKernel(
            self.kind, self.text, (*self.arguments.values(), *self.after.arguments), (),
            self.threads, (max(1, tiles),), fixed, self.shared, 1 + self.after.equations,
            self.after.helpers, template="cuda/product/mma.cu.jinja", view=view,
            resident=2 if crowded else 1,
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
        few = self.tile.rows * self.across // self.threads <= CROWDED
        registers = few or all(self.lying(n).wide for n in (0, 1))
        return self.shared <= self.chip.most and registers

    def shape(self, n: int) -> tuple[int, int]:
        """Neighbours in a row of a tile of an operand, and its rows."""
        lines = (self.tile.rows, self.tile.columns)[n]
        return (lines, self.terms) if self.lying(n).turned else (self.terms, lines)

    def lying(self, n: int) -> Lying:
        """How an operand lies; a second right one may have been given where copies are narrower."""
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
        return MmaView(TYPES[self.dtype], terms, tuple(sides), tuple(batch), part, self.after)

    def side(self, name: str, n: int, along: Along, lines: str, batch: list[str]) -> Side:
        """An operand among the arguments, and how it is read."""
        right = min(n, 1)  # a second one lies as the first does
        which, how, stored = "ab"[right], self.lying(right), STORED[self.dtype]
        declared = f"const {stored} *__restrict__ {name}"
        self.arguments[name] = Argument(declared, "array", (self.factors[n], self.dtype))
        line, term = getattr(along, which), getattr(self.sums, which)
        pitch, step = (term, line) if how.turned else (line, term)
        pitch_at = self.size(f"{name}_pitch", pitch, self.whole)
        step_at = "1" if step == 1 else self.size(f"{name}_step", step, self.whole)
        line_at, term_at = (step_at, pitch_at) if how.turned else (pitch_at, step_at)
        first = "row" if n == 0 else "column"
        places = ""
        for x, place in zip(self.batches, batch, strict=True):
            if apart := getattr(x, which):
                by = self.size(
                    f"{name}_{place if place.isidentifier() else 'batch'}", apart, self.whole
                )
                places += f" + {place} * {by}"
        inner, outer = self.shape(right)
        at = sum(map(self.bytes_of, range(right))) + (n - right) * self.bytes_of(1)
        return Side(
            name, stored, how.wide, how.turned, inner, outer, pitch_at, step_at,
            first if line_at == "1" else f"{first} * {line_at}", term_at, lines,
            places, f" + {at}" if n else "",
        )  # fmt: skip


def part_of(sums: int, parts: int, terms: int) -> int:
    """Terms of a part of a sum: whole stages of so many."""
    return -(-sums // (parts * terms)) * terms


@final
@record
class PartsView:
    """What `templates/cuda/product/parts.cu.jinja` prints."""

    wide: int
    after: Epilogue


def merged(
    axes: Contraction, parts: int, tuning: Parts, after: Epilogue, operand: Operand
) -> CudaKernel:
    """The kernel that adds up the parts of sums, in order, and goes on with them."""
    (rows,), (columns,) = axes.rows, axes.columns
    lines = math.prod(x.size for x in axes.batches) * rows.size
    packs = lines * -(-columns.size // after.pack)
    arguments = (
        Argument("const float *__restrict__ sums", "array", (operand, FLOAT32)),
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
        template="cuda/product/parts.cu.jinja", view=PartsView(wide, after),
    )  # fmt: skip
