"""A small matrix product in CUDA: a block has a tile of the result and its whole sum.

What a block does is `small.cuh`. Here is decided along which axis each operand is read, and how
wide. No size is in the text, so other sizes compile nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

from ge2.base.dtypes import FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.text import Operand, Text
from ge2.targets.cuda.emit.columnwise import Stage
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import WIDEST
from ge2.targets.cuda.emit.types import HELD, SUFFIX
from ge2.targets.cuda.products.gemm import Along, Contraction
from ge2.targets.cuda.products.matrices import SIDE, Matrices

# Of small.cuh: threads of a block, elements that one access of theirs moves at most, and stages, of
# which each operand has as many bytes, by how it is read.
THREADS = SIDE * SIDE
WIDE = 4
STAGES, ALONG, ACROSS = 5, 4608, 4096


@final
@record
class Read:
    """How an operand is read: whether neighbours in memory are terms of a sum (`along`), else they
    are lines; how many elements at once; and how many elements apart lines, or terms, are.
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
    """Why a product is not one of matrices that are read as they lie; nothing if it is."""
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
class Made:
    """An operand, by number, that is made of another array as its elements are read: what the function is
    called, the type of what is read, and of what is made; how that is called, how it becomes what is
    summed, and the statements.
    """

    operand: int
    name: str
    stored: str
    kept: str
    result: str
    value: str
    lines: tuple[Text, ...]


@final
@record
class Lines:
    """How an operand is read, in CUDA."""

    lines: str
    wide: int
    along: str


@final
@record
class SmallView:
    """What `templates/cuda/product/small.cu.jinja` prints, and that of a product and a region."""

    held: str
    index: str
    a: Lines
    b: Lines
    lifts: tuple[str, str]
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
        itemsize = self.stored["ab".index(name)].itemsize
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
