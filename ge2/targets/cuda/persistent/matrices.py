"""Products by a matrix that a block, or a grid of blocks, keeps from iteration to iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from ge2.base.arrays import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.ir import Eqn
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.persistent.nodes import BARRIER, Pieces, Stage
from ge2.targets.cuda.persistent.values import Array, Index, Made, Reader, Value, constant
from ge2.targets.cuda.tuning import GridKernel, Persistent

# -------- Products by a matrix that does not change from round to round: the threads of the block
# keep it.
# A matrix of 256 x 256 floats is 256 KB: more than a block's registers, or its shared memory, but
# not than both. Each number of it is multiplied once a row and round, 65,536 products, which the
# 128 lanes of a multiprocessor do in 512 clocks. What lies in shared memory comes at 128 bytes a
# clock: 2,048 clocks for all of it, half for half of it. So as many numbers as fit are in
# registers, of whose reading no clock is lost: 68 of the 128 that a thread of 512 has.


PIECE: Final = 16  # bytes
COLUMNS: Final = 4  # of a team


@final
@record
class Kept:
    """A matrix of `sums` x `columns` numbers as it is kept; `pieces` of fours a
    thread, `own` in registers.

    `first`: whether the other operand, `rows` rows of it, is the first one.
    """

    name: str
    eqn: Eqn
    matrix: Value
    other: Array | Made
    first: bool
    rows: int
    sums: int
    columns: int
    slices: int
    own: int
    threads: int  # of the block

    @property
    def chunks(self) -> int:
        return self.sums // (4 * self.slices)

    @property
    def rest(self) -> int:
        """Pieces of a thread that lie in shared memory."""
        return self.chunks * COLUMNS - self.own

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self.rest * self.threads * PIECE


def keeping(
    name: str, eqn: Eqn, xs: Sequence[Value], registers: int, room: int, tuning: Persistent
) -> Kept | None:
    """Returns how a product's matrix is kept, given pieces that are left in registers
    and bytes of shared memory.
    """
    op, a = eqn.op, eqn.inputs[0].type
    assert isinstance(op, DotGeneral)
    plain = len(op.contract[0]) == 1 and not op.beside[0] and op.out in (None, FLOAT32)
    if not plain or a.dtype != FLOAT32:
        return None
    for n, (matrix, other) in enumerate((xs, xs[::-1])):
        if constant(matrix) and isinstance(other, Array | Made) and not constant(other):
            found = kept_by(name, eqn, n, matrix, other, registers, tuning)
            return found if found is not None and found.nbytes <= room else None
    return None


def kept_by(
    name: str,
    eqn: Eqn,
    n: int,
    matrix: Value,
    other: Array | Made,
    registers: int,
    tuning: Persistent,
) -> Kept | None:
    """`n` tells which operand the matrix is."""
    op: Any = eqn.op
    (axis,), (along,) = op.contract[n], op.contract[1 - n]
    shape, given = matrix.type.shape, other.type.shape
    in_order = along == len(given) - 1 and len(shape) == 2
    if not in_order or (isinstance(other, Array) and not other.shared):
        return None
    sums, columns, rows = shape[axis], shape[1 - axis], math.prod(given[:-1])
    slices = slices_of(sums, columns, tuning.widest)
    if sums * columns < tuning.matrix or not slices:
        return None
    pieces = sums // (4 * slices) * COLUMNS
    own = min(registers, pieces)
    if not own:
        return None
    return Kept(name, eqn, matrix, other, bool(n), rows, sums, columns, slices, own, tuning.widest)


def slices_of(sums: int, columns: int, threads: int) -> int:
    """Lanes that share the sums of four columns: as many as leave no thread
    idle; 0 if they come out uneven.

    >>> [slices_of(*shape, 512) for shape in ((256, 256), (128, 128), (128, 384), (250, 256))]
    [8, 16, 4, 0]
    """
    teams = -(-columns // COLUMNS)
    for slices in (32, 16, 8, 4):
        if slices * teams <= threads and sums % (4 * slices) == 0:
            return slices
    return 0


def loading(k: Kept, reader: Reader) -> list[Stage]:
    """The stages that read the matrix, before all rounds."""
    team, column = f"thread / {k.slices} * {COLUMNS}", f"{k.name}_n % {COLUMNS}"
    last = k.columns - 1
    inside = f"{team} + {column}"
    if k.columns % COLUMNS or k.threads // k.slices * COLUMNS > k.columns:
        inside = f"min({inside}, {last})"
    sums = f"4 * (thread % {k.slices} + {k.slices} * ({k.name}_n / {COLUMNS}))"
    at = ("sum + i", "column")
    op: Any = k.eqn.op
    (axis,) = op.contract[0 if not k.first else 1]
    place = Index(k.matrix.type.shape, "", at if axis == 0 else at[::-1])
    element = reader.element(k.matrix, place)

    def piece(count: int, start: int, to: str) -> Pieces:
        number = Text(f"const int {k.name}_n = n{f' + {start}' if start else ''};")
        return Pieces(
            count, (number, Text(f"const int column = {inside}, sum = {sums};")), to, element
        )

    words = f"of {k.chunks * COLUMNS} fours that a thread has, in registers"
    lines: list[Stage] = [
        Text(f"ge2_kept<{k.own}> {k.name};", words),
        piece(k.own, 0, f"{k.name}.piece[n]"),
    ]
    if k.rest:
        lines.append(piece(k.rest, k.own, f"{k.name}_rest[n * THREADS + thread]"))
    return [*lines, Text(f"const int {k.name}_column = {column_of(k)};")]


def column_of(k: Kept) -> str:
    return f"thread / {k.slices} * {COLUMNS} + ge2_kept_column<{k.slices}>()"


def exact(k: Kept) -> bool:
    """True if each column has a team, and each team columns."""
    return k.threads // k.slices * COLUMNS == k.columns


def place(k: Kept, row: str) -> str:
    """The place of a thread's column in the result."""
    column = f"{k.name}_column" if exact(k) else f"min({k.name}_column, {k.columns - 1})"
    if k.rows == 1:
        return column
    return f"{row} * {k.columns} + {column}" if k.first else f"{column} * {k.rows} + {row}"


def product(k: Kept, y: str, operand: str) -> list[Text]:
    """The lines of a row: the sums of all slices."""
    given = f"{k.name}, {k.name}_rest" if k.rest else f"{k.name}, nullptr"
    called = f"ge2_kept_product<{k.chunks}, {k.slices}, THREADS>({given}, {operand}, {y}_sums);"
    return [Text(f"float {y}_sums[{COLUMNS}] = {{}};"), Text(called)]


def writer(k: Kept) -> str:
    """Returns what a thread that writes a column has in common with no other."""
    inside = "" if exact(k) else f" && {k.name}_column < {k.columns}"
    return (
        f"thread % {k.slices // 4} == 0{inside}"
        if k.slices > 4
        else inside.removeprefix(" && ") or "true"
    )


# -------- Products by a matrix that the blocks of a grid keep from round to round, in the registers
# of their threads.
# A matrix of 1024 x 1024 floats is 4 MB: 32 KB of registers for each of 128 blocks are as much as
# 32 columns. So a block has 32 columns of the result, and of 32 rows eight; the other operand,
# those rows of it, comes from the L2 cache into shared memory in each round. In all loops over as
# many elements as the result has, each thread then has those of the block's tile: what it makes of
# the result, and carries on, is its own.


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
    """A matrix of `sums` x columns numbers as it is kept by blocks that have a tile each.

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
