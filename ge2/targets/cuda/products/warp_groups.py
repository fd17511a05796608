"""Matrix products on Hopper's tensor cores, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.words import STORED
from ge2.targets.cuda.launch import Tiles
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products import Along, Contraction
from ge2.targets.cuda.products.made import Made, Making, Source
from ge2.targets.cuda.products.tensor_cores import OF_GROUPS, TensorCores, tiles_of, unmatched
from ge2.targets.cuda.products.tensor_epilogue import LINE, Epilogue, Strips
from ge2.targets.cuda.tensor_tuning import WgmmaTile

# -------- A matrix product on Hopper's tensor cores, with what is done to its elements.
# What a block does is `templates/cuda/product/wgmma.cu.jinja` and `hopper.cuh`. Here is decided how
# operands lie, by which tensor maps they are copied, and how elements leave: rounded in registers
# (`fragments`), or as packs of neighbours that went through shared memory as float32 (`packs`).


THREADS: Final = 384  # two warp groups that multiply, and one that copies
FEW: Final = 16  # terms of a box of elements of four bytes, whose rows lie in banks of their own
STAGES: Final = "tiles of operands in shared memory", "of operands' tiles that a group has"
OF_TILE: Final = "of a tile of the result", "of half a tile of the result"
MAPPED: Final = 4  # axes of an operand at most: terms, lines and two of batches


@final
@record
class Matrix:
    """The layout of an operand: `turned`, its lines are neighbours in memory and not the terms of a
    sum; `batch`, the places along the axes of batches that it has.
    """

    turned: bool = False
    batch: tuple[str, ...] = ()


@final
@record
class Brought:
    """An array of as many elements as the left operand, which is made of it: the name of an element
    and its stored type, the tensor map, where its tile is in a stage, boxes of it, elements of a row
    and bytes of one; and the places of axes of batches.
    """

    name: str
    stored: str
    map: str
    at: int
    boxes: int
    terms: int
    row: int
    batch: tuple[str, ...]


@final
@record
class Spread:
    """An array whose elements lines or terms share: the name of an element and its stored type, what
    it is called, elements from one line and from one term to the next, "" for none, and the place of
    a batch.
    """

    name: str
    stored: str
    array: str
    line: str
    term: str
    batch: str


@final
@record
class MadeLeft:
    """The making of a left operand: a row of its tiles has so many bytes. `ragged`: the
    last terms of a sum are fewer than a stage has; `crossed`: some lanes read later terms first, so
    that no two meet in a bank; `ahead`: of how many fragments products go on meanwhile.
    """

    how: Made
    brought: tuple[Brought, ...]
    spread: tuple[Spread, ...]
    bytes: int
    ragged: bool
    crossed: bool
    ahead: int


@final
@record
class WgmmaView:
    """The view that `templates/cuda/product/wgmma.cu.jinja` prints."""

    type: str
    right: str
    summed: str
    columns: int
    terms: int
    a: Matrix
    b: Matrix
    apart: bool
    shared: bool
    pair: bool
    several: bool
    batch: tuple[Text, ...]
    after: Epilogue
    made: MadeLeft | None = None


def unmade_by_groups(makings: Sequence[Making], dtype: np.dtype) -> str:
    """The reason why warp groups do not make such operands; "" if they do."""
    if dtype.itemsize != 2:
        return "warp groups make operands of two bytes an element"
    for x in makings:
        if x.operand:
            return "the right operand is made, which warp groups take from shared memory"
        for source in x.brought:
            (rows,), (sums,), size = source.axes.rows, source.axes.sums, source.dtype.itemsize
            steps = [each.a for each in source.axes.batches]
            if sums.a != 1 or size > 4:
                return (
                    "lines of what an operand is made of are neighbours, or its elements too long"
                )
            if why := uncopied(rows.a, sums.a, steps, source.operand, source.dtype):
                return why
    return ""


def left_of(makings: Sequence[Making]) -> int:
    """Bytes of a row of the tiles that a left operand is made of, or of its own."""
    terms = LINE // 2
    return sum(x.dtype.itemsize * terms for m in makings for x in m.brought) or LINE


def unfit(axes: Contraction, operands: Sequence[Operand], dtype: np.dtype) -> str:
    """The reason why the operands of a product are not copied by tensor maps; "" if they are."""
    return unmatched(axes) or next(
        (why for n in (0, 1) if (why := of_operand(axes, operands, n, dtype))), ""
    )


def of_operand(axes: Contraction, operands: Sequence[Operand], n: int, dtype: np.dtype) -> str:
    """The reason of one of them."""
    name, (lines,), (sums,) = "ab"[n], (axes.rows, axes.columns)[n], axes.sums
    steps = [getattr(x, name) for x in axes.batches]
    return uncopied(getattr(lines, name), getattr(sums, name), steps, operands[n], dtype)


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


def rings_of(tile: WgmmaTile) -> int:
    """Rings of stages: one for both warp groups, unless they multiply at once in tiles of their own."""
    return 2 if tile.apart and not tile.shared else 1


def stage_of(tile: WgmmaTile, left: int = LINE) -> int:
    """Bytes of the tiles of all operands; `left`: those of a row of the left one's."""
    return tile.rows * left + tile.products * tile.columns * LINE


def strip_of(tile: WgmmaTile) -> int:
    """Bytes of a strip of a tile."""
    return tile.lines * LINE // (2 if tile.narrow else 1)


def room_of(tile: WgmmaTile, after: Epilogue) -> int:
    """Bytes of shared memory behind the stages, in which elements leave, of a group."""
    return strip_of(tile) * max(after.strips, 1 if after.stores else tile.products)


def beside(tile: WgmmaTile, after: Epilogue) -> int:
    """Bytes of shared memory that are no stages: strips, barriers of arrays, vectors."""
    return 2 * room_of(tile, after) + 2 * 2 * 8 + 2 * after.vectors * tile.columns


def stages_of(tile: WgmmaTile, after: Epilogue, chip: Chip, left: int = LINE) -> int:
    """As many as the tile has, one more beside narrow strips, or as there is room for, of a group that
    has its own.
    """
    whole = chip.most + chip.tuning.spare  # it has no other arrays in shared memory
    most = tile.stages + tile.narrow
    each = rings_of(tile) * (stage_of(tile, left) + 2 * 8)
    return min(most, (whole // tile.blocks - beside(tile, after)) // each)


@final
class WarpgroupProduct(TensorCores):
    """A product that `unfit` has nothing against, in tiles of some size. `dtypes`: of the left and the
    right operand, which are others of fp8 and of bytes alone.
    """

    def __init__(
        self, axes: Contraction, factors: tuple[Operand, ...], dtypes: tuple[np.dtype, np.dtype],
        tile: WgmmaTile, chip: Chip, after: Epilogue, makings: Sequence[Making] = (),
    ) -> None:  # fmt: skip
        after = replace(after, narrow=tile.narrow)
        super().__init__(axes, factors, dtypes[0], chip, after, makings)
        self.dtypes, self.left = dtypes, left_of(makings)
        self.tile, self.terms = tile, LINE // self.dtype.itemsize

    def kernel(self) -> CudaKernel:
        after, tile, view = self.after, self.tile, self.view()
        stage, strip, room = stage_of(tile, self.left), strip_of(tile), room_of(tile, self.after)
        stages = stages_of(tile, after, self.chip, self.left)
        whole = rings_of(tile) * stages
        shared = whole * (stage + 2 * 8) + beside(tile, after)
        barriers = shared - whole * 16 - 32
        fixed = (
            Fixed("ROWS", tile.lines, OF_TILE[tile.shared]),
            Fixed("COLUMNS", tile.columns, "of a tile of the result"),
            Fixed("TERMS", self.terms, "of a sum, that a stage has"),
            Fixed("STAGES", stages, STAGES[rings_of(tile) - 1]),
            Fixed("STAGE", stage, "bytes of a stage"),
            Fixed("BARRIERS", barriers, "their place in shared memory"),
            Fixed("VECTORS", barriers - after.vectors * 2 * tile.columns, "likewise"),
            Fixed("VECTOR", after.vectors, "bytes of a column's vectors"),
            Fixed("ROOM", room, "bytes of a group's strips"),
            Fixed("STRIP", strip, "bytes of one"),
            Fixed("BUFFERS", after.buffers, "of a strip"),
            Fixed("WIDTH", after.width, "columns of one"),
            Fixed("GROUP", tile.group, "rows of tiles that are taken at a time"),
            Fixed("PACK", after.pack, "neighbours that a thread has"),
        )
        tiles = self.count * tiles_of(self.rows.size, self.columns.size, tile)
        grid = (max(1, min(tiles, tile.blocks * self.chip.multiprocessors)),)
        return CudaKernel(
            self.kind, self.text, self.given, (), THREADS, grid, fixed, shared, self.equations, self.helpers,
            resident=tile.blocks, template="cuda/product/wgmma.cu.jinja", view=view,
        )  # fmt: skip

    def view(self) -> WgmmaView:
        extents = ("rows", self.rows.size), ("columns", self.columns.size)
        for name, size in (*extents, ("sums", self.sums.size), ("batches", self.count)):
            self.size(f"n_{name}", size)
        names, batch = self.batch()
        made = self.made_left(names)
        a = Matrix() if made else self.mapped("left_tiles", 0, self.rows, self.tile.rows, names)
        b = self.mapped("right_tiles", 1, self.columns, self.tile.columns, names)
        if self.tile.pair:
            self.mapped("right2_tiles", 2, self.columns, self.tile.columns, names)
        for x in self.after.loads:
            self.strips(x, "array")
        for x in self.after.stores:
            self.strips(x, "result")
        (left, right), several = (OF_GROUPS[x] for x in self.dtypes), self.count > 1
        return WgmmaView(
            left, right, self.summed, self.tile.products * self.tile.columns, self.terms // 4, a, b,
            self.tile.apart, self.tile.shared, self.tile.pair, several, tuple(batch), self.after, made,
        )  # fmt: skip

    def made_left(self, batch: list[str]) -> MadeLeft | None:
        """The making of the left operand, if it is made, of arrays among the arguments."""
        if not self.makings:
            return None
        making, how = self.makings[0], self.prologues[0].made
        brought, spread, at = list[Brought](), list[Spread](), 0
        for n, (x, source) in enumerate(zip(how.elements, making.sources, strict=True)):
            if source in making.brought:
                brought.append(self.brought(f"left{n}_tiles", x.name, source, at, batch))
                at += self.tile.rows * self.terms * x.dtype.itemsize
            else:
                spread.append(self.spread(f"left{n}", x.name, source, batch))
        ragged = self.sums.size % self.terms > 0
        crossed = any(x.dtype.itemsize == 4 for x in making.brought)
        roomy = self.tile.rows * self.tile.columns <= self.chip.tuning.wgmma.crowded
        ahead = 2 if roomy and making.straight else 1
        return MadeLeft(
            how, tuple(brought), tuple(spread), self.left, ragged, crossed, ahead
        )  # fmt: skip

    def brought(self, map: str, name: str, x: Source, at: int, batch: list[str]) -> Brought:
        (rows,), dtype = x.axes.rows, x.dtype
        terms = FEW if dtype.itemsize == 4 else self.terms
        pairs = [(each.a, each.size, y) for each, y in zip(x.axes.batches, batch, strict=True)]
        outer = [(size, step, 1) for step, size, _ in pairs if step]
        inner = [(rows.size, rows.a, self.tile.rows), (self.sums.size, 1, terms)]
        shape, strides, box = zip(*outer, *inner, strict=True)
        row = terms * dtype.itemsize
        self.map(map, "array", x.operand, Tiles(dtype, shape, strides, box, row, 256))
        places = tuple(place for step, _, place in reversed(pairs) if step)
        stored = STORED[dtype]
        return Brought(f"left_{name}", stored, map, at, self.terms // terms, terms, row, places)

    def spread(self, array: str, name: str, x: Source, batch: list[str]) -> Spread:
        (rows,), (sums,), stored = x.axes.rows, x.axes.sums, STORED[x.dtype]
        declared = f"const {stored} *__restrict__ {array}"
        self.arguments[array] = Argument(declared, "array", (x.operand, x.dtype))
        line, term = (
            self.size(f"{array}_{word}", by) if by not in (0, 1) else str(by or "")
            for word, by in (("line", rows.a), ("term", sums.a))
        )
        return Spread(
            f"left_{name}",
            stored,
            array,
            line,
            term,
            self.places(array, "a", x.axes.batches, batch),
        )

    def mapped(self, name: str, n: int, lines: Along, extent: int, batch: list[str]) -> Matrix:
        """The tensor map of an operand among the arguments, and how it lies."""
        which = "abb"[n]
        line, term = getattr(lines, which), getattr(self.sums, which)
        pairs = [(getattr(x, which), x.size, y) for x, y in zip(self.batches, batch, strict=True)]
        outer = [(size, step, 1) for step, size, _ in pairs if step]
        turned = term != 1
        inner = [(lines.size, line, extent), (self.sums.size, term, self.terms)]
        if turned:
            inner = [(self.sums.size, term, self.terms), (lines.size, line, LINE // 2)]
        shape, strides, box = zip(*outer, *inner, strict=True)
        tiles = Tiles(self.dtypes[n > 0], shape, strides, box, LINE, 256)
        self.map(name, "array", self.factors[n], tiles)
        return Matrix(turned, tuple(place for step, _, place in reversed(pairs) if step))

    def strips(self, x: Strips, role: str) -> None:
        """The tensor map of an array that lies as the result does, among the arguments."""
        width, row = self.after.width, self.after.width * x.dtype.itemsize
        inner = [(self.rows.size, x.step, self.tile.lines), (self.columns.size, 1, width)]
        outer = [(self.count, x.step * self.rows.size, 1)] if self.count > 1 else []
        shape, strides, box = zip(*outer, *inner, strict=True)
        self.map(f"{x.name}_tiles", role, x.operand, Tiles(x.dtype, shape, strides, box, row))

    def map(self, name: str, kind: str, operand: Operand, tiles: Tiles) -> None:
        declared = f"const __grid_constant__ ge2_tensor_map {name}"
        self.arguments[name] = Argument(declared, kind, (operand, tiles))
