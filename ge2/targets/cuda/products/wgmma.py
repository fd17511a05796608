"""A matrix product on Hopper's tensor cores, with what is done to its elements.

What a block does is `templates/cuda/product/wgmma.cu.jinja` and `hopper.cuh`. Here is decided how
operands lie, by which tensor maps they are copied, and how elements leave: rounded in registers
(`fragments`), or as packs of neighbours that went through shared memory as float32 (`packs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.kernel_parameters import FAR
from ge2.targets.cuda.launch.arguments import Tiles
from ge2.targets.cuda.products.gemm import Along, Contraction
from ge2.targets.cuda.products.wgmma_epilogue import LINE, Epilogue, Strips
from ge2.targets.cuda.tuning import WgmmaTile

THREADS: Final = 384  # two warp groups that multiply, and one that copies
MAPPED: Final = 4  # axes of an operand at most: terms, lines and two of batches
# the operands as PTX names them, and as the emulator does
TYPES: Final = {BFLOAT16: "bf16", FLOAT16: "f16", FLOAT32: "tf32"}


@final
@record
class Matrix:
    """How an operand lies: `turned`, its lines are neighbours in memory and not the terms of a sum;
    `batch`, the places along the axes of batches that it has.
    """

    turned: bool = False
    batch: tuple[str, ...] = ()


@final
@record
class WgmmaView:
    """What `templates/cuda/product/wgmma.cu.jinja` prints."""

    type: str
    columns: int
    terms: int
    a: Matrix
    b: Matrix
    several: bool
    batch: tuple[Text, ...]
    after: Epilogue


def combined(axes: Sequence[Along]) -> bool:
    """Whether the axes of batches are one in the result."""
    return all(a.y == b.y * b.size for a, b in pairwise(axes))


def unfit(axes: Contraction, operands: Sequence[Operand], dtype: np.dtype) -> str:
    """The reason why the operands of a product are not copied by tensor maps; "" if they are."""
    if {len(axes.rows), len(axes.columns), len(axes.sums)} != {1}:
        return "its rows, columns or sums are none, or several axes that do not merge"
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    if columns.y != 1 or not combined([*axes.batches, rows]):
        return "the result lies in another order"
    for name, lines, operand in (("a", rows, operands[0]), ("b", columns, operands[1])):
        steps = [getattr(x, name) for x in axes.batches]
        if why := uncopied(getattr(lines, name), getattr(sums, name), steps, operand, dtype):
            return why
    if max(x.size for x in (rows, columns, sums, *axes.batches)) >= FAR:
        return "it has too many rows, columns or terms"
    return ""


def uncopied(line: int, term: int, steps: Sequence[int], operand: Operand, dtype: np.dtype) -> str:
    """The reason why an operand is not copied by a tensor map; "" if it is."""
    size = dtype.itemsize
    if 1 not in (line, term):
        return "no axis of an operand is contiguous"
    if term != 1 and size != 2:
        return "only terms of two bytes may be apart"
    apart = [line if term == 1 else term, *steps, operand.offset, operand.loose]
    if min(line, term, *steps, 0) < 0 or not line or not term:
        return "an operand goes backwards, or repeats its elements"
    if any(each * size % 16 for each in apart):
        return "rows of an operand are no multiples of 16 bytes apart"
    return "" if 2 + sum(map(bool, steps)) <= MAPPED else "an operand has too many axes"


@final
class Wgmma:
    """A product that `unfit` has nothing against, in tiles of some size.

    `after`: what is done with the sums; `dtype`: that of both operands.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, Operand], dtype: np.dtype, tile: WgmmaTile,
        chip: Chip, after: Epilogue,
    ) -> None:  # fmt: skip
        self.factors, self.dtype, self.tile, self.chip = factors, dtype, tile, chip
        (self.rows,), (self.columns,), (self.sums,) = axes.rows, axes.columns, axes.sums
        self.batches, self.after = axes.batches, after
        self.count = math.prod(x.size for x in self.batches)
        self.terms = LINE // dtype.itemsize
        self.arguments: dict[str, Argument] = {}

    @property
    def stage(self) -> int:
        """Bytes of the tiles of both operands."""
        return (self.tile.rows + self.tile.columns) * LINE

    @property
    def strip(self) -> int:
        """Bytes of a strip of a tile."""
        return self.tile.rows * LINE

    @property
    def room(self) -> int:
        """Bytes of shared memory behind the stages, in which elements leave, of a group."""
        return self.strip * max(self.after.strips, 1)

    @property
    def beside(self) -> int:
        """Bytes of shared memory that are no stages: strips, barriers of arrays, vectors."""
        return 2 * self.room + 2 * 2 * 8 + 2 * self.after.vectors * self.tile.columns

    @property
    def stages(self) -> int:
        """As many as the tile has, or as there is room for."""
        whole = self.chip.most + self.chip.tuning.spare  # it has no other arrays in shared memory
        return min(self.tile.stages, (whole - self.beside) // (self.stage + 2 * 8))

    @property
    def shared(self) -> int:
        return self.stages * (self.stage + 2 * 8) + self.beside

    def kernel(self) -> CudaKernel:
        after, tile, view = self.after, self.tile, self.view()
        barriers = self.shared - self.stages * 16 - 32
        fixed = (
            Fixed("ROWS", tile.rows, "of a tile of the result"),
            Fixed("COLUMNS", tile.columns, "of a tile of the result"),
            Fixed("TERMS", self.terms, "of a sum, that a stage has"),
            Fixed("STAGES", self.stages, "tiles of operands in shared memory"),
            Fixed("STAGE", self.stage, "bytes of a stage"),
            Fixed("BARRIERS", barriers, "their place in shared memory"),
            Fixed("VECTORS", barriers - after.vectors * 2 * tile.columns, "likewise"),
            Fixed("VECTOR", after.vectors, "bytes of a column's vectors"),
            Fixed("ROOM", self.room, "bytes of a group's strips"),
            Fixed("STRIP", self.strip, "bytes of one"),
            Fixed("BUFFERS", after.buffers, "of a strip"),
            Fixed("WIDTH", after.width, "columns of one"),
            Fixed("GROUP", tile.group, "rows of tiles that are taken at a time"),
            Fixed("PACK", after.pack, "neighbours that a thread has"),
        )
        product = f"{after.product}[row, column] = sum of left[row, k] * right[k, column] over k"
        text = f"{product}, and\n{after.text}" if after.text else f"{self.dtype.name}: {product}"
        tiles = self.count * tiles_of(self.rows.size, self.columns.size, tile)
        grid = (max(1, min(tiles, self.chip.multiprocessors)),)
        return CudaKernel(
            "product region" if after.text else "product", text, (*self.arguments.values(), *after.arguments), (),
            THREADS, grid, fixed, self.shared, 1 + after.equations, after.helpers,
            template="cuda/product/wgmma.cu.jinja", view=view,
        )  # fmt: skip

    def view(self) -> WgmmaView:
        extents = ("rows", self.rows.size), ("columns", self.columns.size)
        for name, size in (*extents, ("sums", self.sums.size), ("batches", self.count)):
            self.size(f"n_{name}", size)
        names, batch = self.batch()
        a = self.mapped("left_tiles", 0, self.rows, self.tile.rows, names)
        b = self.mapped("right_tiles", 1, self.columns, self.tile.columns, names)
        for x in self.after.loads:
            self.strips(x, "array")
        for x in self.after.stores:
            self.strips(x, "result")
        kind, several = TYPES[self.dtype], self.count > 1
        return WgmmaView(
            kind, self.tile.columns, self.terms // 4, a, b, several, tuple(batch), self.after
        )

    def size(self, name: str, value: int) -> str:
        self.arguments[name] = Argument(f"int {name}", "size", value)
        return name

    def batch(self) -> tuple[list[str], list[Text]]:
        """What the place along each axis of batches is called, and what tells it."""
        if len(self.batches) < 2:
            return ["place.batch"] * len(self.batches), []
        names, lines, rest = list[str](), list[Text](), "place.batch"
        for n, axis in reversed([*enumerate(self.batches)]):
            names.insert(0, f"batch{n}")
            if n:
                extent = self.size(f"n_batch{n}", axis.size)
                lines.append(Text(f"const int batch{n} = {rest} % {extent};"))
                rest = f"({rest}) / {extent}" if " " in rest else f"{rest} / {extent}"
            else:
                lines.append(Text(f"const int batch{n} = {rest};"))
        return names, lines

    def mapped(self, name: str, n: int, lines: Along, extent: int, batch: list[str]) -> Matrix:
        """The tensor map of an operand among the arguments, and how it lies."""
        which = "ab"[n]
        line, term = getattr(lines, which), getattr(self.sums, which)
        pairs = [(getattr(x, which), x.size, y) for x, y in zip(self.batches, batch, strict=True)]
        outer = [(size, step, 1) for step, size, _ in pairs if step]
        turned = term != 1
        inner = [(lines.size, line, extent), (self.sums.size, term, self.terms)]
        if turned:
            inner = [(self.sums.size, term, self.terms), (lines.size, line, LINE // 2)]
        shape, strides, box = zip(*outer, *inner, strict=True)
        self.map(name, "array", self.factors[n], Tiles(self.dtype, shape, strides, box, LINE, 256))
        return Matrix(turned, tuple(place for step, _, place in reversed(pairs) if step))

    def strips(self, x: Strips, role: str) -> None:
        """The tensor map of an array that lies as the result does, among the arguments."""
        width, row = self.after.width, self.after.width * x.dtype.itemsize
        inner = [(self.rows.size, x.step, self.tile.rows), (self.columns.size, 1, width)]
        outer = [(self.count, x.step * self.rows.size, 1)] if self.count > 1 else []
        shape, strides, box = zip(*outer, *inner, strict=True)
        self.map(f"{x.name}_tiles", role, x.operand, Tiles(x.dtype, shape, strides, box, row))

    def map(self, name: str, kind: str, operand: Operand, tiles: Tiles) -> None:
        declared = f"const __grid_constant__ ge2_tensor_map {name}"
        self.arguments[name] = Argument(declared, kind, (operand, tiles))


def tiles_of(rows: int, columns: int, tile: WgmmaTile) -> int:
    return -(-rows // tile.rows) * -(-columns // tile.columns)
