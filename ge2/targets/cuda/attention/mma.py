"""Kernels of attention, forward and backward, on the tensor cores of warps, or of IEEE float32 by
multiply-adds.

What a block does is `templates/cuda/attention/mma.cu.jinja`, `backward_mma.cu.jinja` and `attend.cuh`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.record import record
from ge2.codegen.text import Argument, Operand
from ge2.ops.attention.scores import Scores
from ge2.ops.attention.tiling import Tiling
from ge2.targets.cuda.attention.backward import Backward, Four, Part, Total
from ge2.targets.cuda.attention.bias import Left, of_first
from ge2.targets.cuda.attention.kernel import NAMES, AttentionView, Forward, steps_of
from ge2.targets.cuda.attention.statements import NOTHING, Statements
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import STORED
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.tuning import AttentionMmaTile

WIDEST: Final = 16  # bytes of a copy, of which it may move 8 or 4 as well
CROWDED: Final = 160  # sums of a thread, of which a half are of results
DRAWN: Final = 2048  # features of a head times lines of a thread's rows that have random bits
ARRAYS: Final = ("queries", "keys", "values", "result")


@final
@record
class Room:
    """Bytes of shared memory: from row to row of a tile, and what tiles of rows, of lines, and factors on
    their way take. `exact`: float32 is not rounded, and its factors go through shared memory.
    """

    dtype: np.dtype
    columns: int
    tile: AttentionMmaTile
    exact: bool

    @property
    def pitch(self) -> int:
        """As `ge2_attend_pitch` has it."""
        return self.columns * self.dtype.itemsize + 16

    @property
    def rows(self) -> int:
        return self.tile.rows * self.pitch

    @property
    def lines(self) -> int:
        return self.tile.keys * self.pitch

    @property
    def apart(self) -> int:
        return self.tile.rows * (self.tile.keys + 4) * 4 if self.exact else 0

    @property
    def forward(self) -> int:
        return self.rows + 2 * self.lines + self.apart

    @property
    def backward(self) -> int:
        return 2 * self.rows + 2 * self.tile.stages * self.lines + self.apart


def is_crowded(tile: AttentionMmaTile, dropped: bool) -> bool:
    """True if registers spill beside two results, scores and their cotangents, as NVRTC showed."""
    drawn = tile.high * tile.keys * tile.width > DRAWN
    return tile.high * (tile.width + tile.keys) > CROWDED or (dropped and drawn)


def kind_of(dtype: np.dtype, exact: bool) -> str:
    """The numbers that are multiplied, as `attend.cuh` names them."""
    return "f32" if exact else TYPES[dtype]


def wide_of(operand: Operand, tiling: Tiling, n: int, dtype: np.dtype) -> int:
    """Elements that one copy of an operand moves; 0 if rows are no multiples of 4 bytes apart."""
    steps = (*(b.strides[n] for b in tiling.batches), tiling.rows[n], tiling.width)
    wide = math.gcd(WIDEST // dtype.itemsize, operand.offset, operand.loose, *steps)
    return wide if wide * dtype.itemsize >= 4 else 0


@final
class AttentionMma(Forward):
    """Attention by warps, which copy their operands. `exact`: float32 is not rounded."""

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: Sequence[Statements], tile: AttentionMmaTile, chip: Chip, logs: Operand | None,
        guarded: bool, text: str, exact: bool,
    ) -> None:  # fmt: skip
        self.tile, self.room = tile, Room(dtype, tiling.columns, tile, exact)
        super().__init__(
            operands, dtype, tiling, scores, statements, tile.keys, chip, logs, guarded, text
        )

    @property
    def rows(self) -> int:
        return self.tile.rows

    def mapped(self, n: int, names: Sequence[str]) -> tuple[str, ...]:
        terms, sizes = steps_of(self.tiling, n, NAMES[n], names)
        role, word = ("result", "") if n == 3 else ("array", "const ")
        declared = f"{word}{STORED[self.dtype]} *__restrict__ {ARRAYS[n]}"
        self.arguments[ARRAYS[n]] = Argument(declared, role, (self.operands[n], self.dtype))
        self.arguments.update(sizes)
        return terms

    def kernels(self) -> Kernels:
        return Kernels((self.kernel(),))

    def kernel(self) -> CudaKernel:
        view, tile, room, t = self.view(), self.tile, self.room, self.tiling
        self.arguments["n_features"] = Argument("int n_features", "size", t.width)
        fixed = (
            Fixed("THREADS", tile.threads, "of a block"),
            Fixed("SIXTEENS", tile.high, "times 16 queries that a warp has"),
            Fixed("PITCH", room.pitch, "bytes from row to row of a tile"),
            Fixed("KEYS_AT", room.rows, "their place in shared memory"),
            Fixed("VALUES_AT", room.rows + room.lines, "likewise"),
            Fixed("APART", room.forward - room.apart, "the place of factors on their way"),
        )
        return CudaKernel(
            "attention", self.text, tuple(self.arguments.values()), (), tile.threads,
            (max(1, t.heads * self.down),), (*fixed, *self.fixed), room.forward, 2 + self.edge.equations,
            self.helpers, template="cuda/attention/mma.cu.jinja", view=view,
        )  # fmt: skip

    def view(self, few: int = 0, many: int = 0) -> AttentionView:
        wide = tuple(wide_of(x, self.tiling, n, self.dtype) for n, x in enumerate(self.operands))
        found = super().view(few, many)
        return replace(found, type=kind_of(self.dtype, self.room.exact), wide=wide)


@final
class AttentionMmaBackward(Backward):
    """By warps, which copy their operands. `exact`: float32 is not rounded."""

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: tuple[Four, Four], lefts: tuple[Left, ...], tile: AttentionMmaTile, chip: Chip,
        text: str, exact: bool,
    ) -> None:  # fmt: skip
        self.tile, self.room = tile, Room(dtype, tiling.columns, tile, exact)
        super().__init__(operands, dtype, tiling, scores, statements, lefts, tile.rows, chip, text)

    def kernels(self) -> Kernels:
        first, *more = (self.kernel(n, part) for n, part in enumerate(self.parts))
        return Kernels((first, *more, *self.of_both(first)))

    def bias(
        self, left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int]
    ) -> CudaKernel:
        made = of_first(left, pair, result, first, sizes, self.text, first.fixed)
        back = replace(first.view, totals=(Total("total", pair, "at + each"),))
        return replace(
            made, view=replace(made.view, back=back), template="cuda/attention/bias_mma.cu.jinja"
        )

    def mapped(self, name: str, n: int, rows: int, names: Sequence[str]) -> tuple[str, ...]:
        terms, sizes = steps_of(self.tiling, n, name, names)
        declared = f"const {STORED[self.dtype]} *__restrict__ {name}_array"
        array = Argument(declared, "array", (self.operands[n], self.dtype))
        self.arguments.update({f"{name}_array": array, **sizes})
        return terms

    def left(self, name: str, n: int, names: Sequence[str]) -> tuple[str, ...]:
        terms, sizes = steps_of(self.tiling, n, name, names)
        declared = f"{STORED[self.dtype]} *__restrict__ {name}_array"
        array = Argument(declared, "result", (self.operands[n], self.dtype))
        self.arguments.update({f"{name}_array": array, **sizes})
        return terms

    def kernel(self, number: int, part: Part) -> CudaKernel:
        tile, t, exact = self.tile, self.tiling, self.room.exact
        dropped = self.statements[part.turned][3] is not NOTHING
        while part.second and part.first and tile.keys > 16 and is_crowded(tile, dropped):
            tile = replace(tile, keys=tile.keys // 2)
        room = Room(self.dtype, t.columns, tile, exact)
        self.arguments = {"n_features": Argument("int n_features", "size", t.width)}
        wide = [wide_of(self.operands[n], t, n, self.dtype) for n in part.operands]
        results = math.gcd(*(wide_of(self.operands[n], t, n, self.dtype) for n in (6, 7, 8)))
        kind = kind_of(self.dtype, exact)
        view = self.view(number, part, tile.keys)
        slopes = view.slopes or replace(NOTHING, result="slope")
        view = replace(view, type=kind, wide=(*wide, results), slopes=slopes)
        fixed = (
            Fixed("THREADS", tile.threads, "of a block"),
            Fixed("SIXTEENS", tile.high, "times 16 rows that a warp has"),
            Fixed("PITCH", room.pitch, "bytes from row to row of a tile"),
            Fixed("STAGES", tile.stages, "blocks of lines in shared memory"),
            Fixed("BLOCK", room.lines, "bytes of a block"),
            Fixed("LINES_AT", 2 * room.rows, "their place in shared memory"),
            Fixed("APART", room.backward - room.apart, "the place of factors on their way"),
        )
        return CudaKernel(
            "attention backward", f"The cotangents of {part.what} of\n{self.text}",
            tuple(self.arguments.values()), (), tile.threads, (self.tiles(part),),
            (*fixed, *self.fixed(part, tile.keys)), room.backward, self.equations(part), self.helpers(part),
            template="cuda/attention/backward_mma.cu.jinja", view=view,
        )  # fmt: skip
