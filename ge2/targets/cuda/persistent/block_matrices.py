"""Products by a matrix that does not change from round to round: the threads of the block keep it.

A matrix of 256 x 256 floats is 256 KB: more than a block's registers, or its shared memory, but not
than both. Each number of it is multiplied once a row and round, 65,536 products, which the 128
lanes of a multiprocessor do in 512 clocks. What lies in shared memory comes at 128 bytes a clock:
2,048 clocks for all of it, half for half of it. So as many numbers as fit are in registers, of
whose reading no clock is lost: 68 of the 128 that a thread of 512 has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

from ge2.base.dtypes import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Text
from ge2.ir import Eqn
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.skeleton import Pieces, Stage
from ge2.targets.cuda.persistent.values import Array, Made, Reader, Value, constant
from ge2.targets.cuda.tuning import Persistent

PIECE: Final = 16  # bytes
COLUMNS: Final = 4  # of a team


@final
@record
class Kept:
    """How a matrix of `sums` x `columns` numbers is kept; `pieces` of fours a
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
