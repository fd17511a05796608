"""Products by a matrix that the blocks of a grid keep from round to round, in the
registers of their threads.

A matrix of 1024 x 1024 floats is 4 MB: 32 KB of registers for each of 128 blocks are as much as 32
columns. So a block has 32 columns of the result, and of 32 rows eight; the other operand, those
rows of it, comes from the L2 cache into shared memory in each round. In all loops over as many
elements as the result has, each thread then has those of the block's tile: what it makes of the
result, and carries on, is its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, final

from ge2.base.dtypes import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.ir import Eqn
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.skeleton import BARRIER, Pieces, Stage
from ge2.targets.cuda.persistent.values import Array, Made, Reader, Value, constant
from ge2.targets.cuda.tuning import GridKernel


@final
@record
class Tile:
    """Of `rows` x `columns` elements each block has `high` x `wide`."""

    rows: int
    columns: int
    high: int
    wide: int

    @property
    def across(self) -> int:
        """Blocks side by side."""
        return -(-self.columns // self.wide)

    @property
    def size(self) -> int:
        return self.high * self.wide

    @property
    def name(self) -> str:
        return f"tile_{self.rows}x{self.columns}"

    @property
    def guard(self) -> str:
        """True if a place in the tile, and in the whole, is one."""
        return f"spot < {self.size} && row < {self.rows} && column < {self.columns}"

    def head(self) -> list[Text]:
        """Returns where the block's tile begins."""
        n = self.name
        return [
            Text(
                f"const int {n}_row = (int)blockIdx.x / {self.across} * {self.high};",
                "of the block's tile",
            ),
            Text(f"const int {n}_column = (int)blockIdx.x % {self.across} * {self.wide};"),
        ]

    def own(self, threads: int) -> Text:
        """The place of a thread's only element, or some other one where it has none."""
        spot = "thread" if self.size >= threads else f"min(thread, {self.size - 1})"
        row = f"min({self.name}_row + {spot} / {self.wide}, {self.rows - 1})"
        column = f"min({self.name}_column + {spot} % {self.wide}, {self.columns - 1})"
        return Text(f"const int {self.name}_own = {row} * {self.columns} + {column};")

    def place(self, named: bool) -> list[Text]:
        """A thread's element i; with its place in the whole, if that is named."""
        e = [Text(f"const int e = row * {self.columns} + column;")] if named else []
        return [
            Text("const int spot = thread + i * THREADS;"),
            Text(f"const int row = {self.name}_row + spot / {self.wide};"),
            Text(f"const int column = {self.name}_column + spot % {self.wide};"),
            *e,
        ]


@final
@record
class Spread:
    """How a matrix of `sums` x columns numbers is kept by blocks that have a tile each.

    `first`: whether the other operand is the first one. `teams` of a block's
    threads have four columns each.
    """

    name: str
    eqn: Eqn
    matrix: Value
    other: Array | Made
    first: bool
    sums: int
    tile: Tile
    threads: int
    tuning: GridKernel

    @property
    def teams(self) -> int:
        return self.tile.wide // 4

    @property
    def slices(self) -> int:
        return self.threads // self.teams

    @property
    def warps(self) -> int:
        """Of a team."""
        return max(self.slices // 32, 1)

    @property
    def pieces(self) -> int:
        return self.sums // self.slices

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, for rows and for parts of sums."""
        return 4 * (self.tile.high * self.sums + self.warps * self.tile.size)

    @property
    def parts(self) -> str:
        return f"tile_room + {self.tile.high * self.sums}"

    def loading(self, reader: Reader) -> list[Stage]:
        """The stages that read the matrix, before all rounds."""
        t, n = self.tile, self.name
        at = ("sum + i", "column")
        op: Any = self.eqn.op
        (axis,) = op.contract[1 if self.first else 0]
        element = reader.element(
            self.matrix, Index(self.matrix.type.shape, "", at if axis == 0 else at[::-1])
        )
        column = f"min({t.name}_column + thread / {self.slices} * 4 + n % 4, {t.columns - 1})"
        sum_ = f"4 * (thread % {self.slices} + {self.slices} * (n / 4))"
        places = Text(f"const int column = {column};"), Text(f"const int sum = {sum_};")
        return [
            Text(f"ge2_kept<{self.pieces}> {n};", "of the block's columns, what a thread has"),
            Pieces(self.pieces, places, f"{n}.piece[n]", element),
        ]

    @property
    def operand(self) -> Array:
        """The other operand where all blocks read rows of it, in packs."""
        homes = self.other.homes if isinstance(self.other, Made) else [self.other]
        return next(h for h in homes if h.packed and not h.mine)

    def lines(self) -> list[Stage]:
        """The lines of a round: the operand's rows, then the parts of all sums."""
        x = self.operand
        operand = f"{x.name} + {x.start}" if x.start else x.name
        t, rows = self.tile, min(self.tuning.rows, self.tile.high)
        given = f"{self.sums}, {self.slices}, {t.high}, {rows}, THREADS"
        left = f"min({t.high}, {t.rows} - {t.name}_row)"
        first = f"{operand} + {t.name}_row * {self.sums}"
        return [
            Text(f"ge2_spread_rows<{self.sums}, THREADS>(tile_room, {first}, {left});"),
            BARRIER,
            Text(f"ge2_spread_product<{given}>({self.name}, tile_room, {self.parts});"),
            BARRIER,
        ]

    def result(self) -> str:
        return f"ge2_spread_result<{self.warps}, {self.tile.size}>({self.parts}, spot)"


def spread(
    name: str, eqn: Eqn, xs: Sequence[Value], blocks: int, tuning: GridKernel, known: Tile | None
) -> Spread | None:
    """Returns how the blocks of a grid keep a product's matrix; by a tile that is `known`, if there
    is one.

    None if they do not: if it is none of a matrix that is there from the start, or
    there is no room for it.
    """
    op, a = eqn.op, eqn.inputs[0].type
    assert isinstance(op, DotGeneral)
    plain = len(op.contract[0]) == 1 and not op.beside[0] and op.out in (None, FLOAT32)
    if not plain or a.dtype != FLOAT32:
        return None
    # the matrix is the second operand: its columns are the last axis of the result
    (matrix, other) = xs[::-1]
    if not constant(matrix) or not isinstance(other, Array | Made) or constant(other):
        return None
    if isinstance(other, Array) and not other.packed:
        return None
    (axis,), (along,) = op.contract[1], op.contract[0]
    shape, given = matrix.type.shape, other.type.shape
    if along != len(given) - 1 or len(shape) != 2:
        return None
    sums, columns, rows = shape[axis], shape[1 - axis], math.prod(given[:-1])
    if sums * columns * rows < tuning.matrix:
        return None
    found = [known] if known else tiles(rows, columns, blocks, tuning)
    fits = [
        Spread(name, eqn, matrix, other, True, sums, tile, tuning.threads, tuning) for tile in found
    ]
    return min((each for each in fits if fitting(each, blocks)), key=cost, default=None)


def tiles(rows: int, columns: int, blocks: int, tuning: GridKernel) -> Iterator[Tile]:
    """Tiles that so many blocks can have."""
    teams = 1
    while teams * 4 <= tuning.threads:
        wide = 4 * teams
        across = -(-columns // wide)
        if across <= blocks:
            high = -(-rows // min(rows, blocks // across))
            at_once = min(tuning.rows, 1 << (high - 1).bit_length())
            yield Tile(rows, columns, -(-high // at_once) * at_once, wide)
        teams *= 2


def fitting(k: Spread, blocks: int) -> bool:
    """True if threads come out even, and have room."""
    t, most = k.tile, k.tuning
    even = k.threads % k.teams == 0 and k.slices >= 4 and k.sums % (4 * k.slices) == 0
    there = t.across * -(-t.rows // t.high) <= blocks and (t.rows, t.columns) == (
        math.prod(k.other.type.shape[:-1]), k.eqn.outs[0].type.shape[-1],
    )  # fmt: skip
    little = k.pieces <= most.pieces and k.nbytes <= most.room and t.size <= most.tile * k.threads
    return even and there and little


def cost(k: Spread) -> float:
    """Clocks of a block in a round, about."""
    products, numbers = k.tile.size * k.sums, k.tile.high * k.sums
    return products / k.tuning.lanes[0] + numbers / k.tuning.lanes[1]
