"""The forward kernel of attention on Hopper: tiles, tensor maps, and how shared memory is divided.

What a block does is `templates/cuda/attention/wgmma.cu.jinja` and `hopper.cuh`; the statements of
scores are `scores.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ops.attention.tiling import Tiling
from ge2.targets.cuda.attention.scores import Scores
from ge2.targets.cuda.attention.statements import NOTHING, Statements
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import SUFFIX
from ge2.targets.cuda.kernels.lines.scan_blocks import cleared
from ge2.targets.cuda.launch.arguments import Tiles
from ge2.targets.cuda.tuning import AttentionTile

LINE: Final = 128  # bytes of a row of a tile, which is the pattern of its swizzle
LOG2E: Final = 1.4426950408889634


@final
@record
class AttentionView:
    """What `templates/cuda/attention/wgmma.cu.jinja` prints."""

    type: str
    short: str
    keys: int
    width: int
    few: int
    many: int
    in_place: bool
    batch: tuple[Text, ...]
    q: tuple[str, ...]
    k: tuple[str, ...]
    v: tuple[str, ...]
    y: tuple[str, ...]
    logs: bool
    reversed: bool
    low: bool
    high: bool
    finite: bool
    branch: bool
    guarded: bool
    first: tuple[Text, ...]
    edge: Statements
    whole: Statements
    drop: Statements | None


@final
class AttentionWgmma:
    """Attention whose operands `tiling` has nothing against.

    `operands`: queries, keys, values and result; `logs`, where the logarithms of the sums go, if
    they are a result. `edge`, `whole`: statements of scores; `guarded`: an array is added to them.
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        edge: Statements, whole: Statements, drop: Statements, tile: AttentionTile, chip: Chip,
        logs: Operand | None, guarded: bool, text: str,
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        if drop is not NOTHING and tile.keys > 64:  # registers are few
            tile = replace(tile, keys=64, stages=2 * tile.stages)
        self.edge, self.whole, self.drop, self.tile, self.chip = edge, whole, drop, tile, chip
        self.logs, self.guarded, self.text = logs, guarded, text
        self.arguments: dict[str, Argument] = {}

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return 64 * self.tile.groups

    @property
    def block(self) -> int:
        """Bytes of a block of keys, or values."""
        return self.tile.keys * self.tiling.planes * LINE

    @property
    def lines(self) -> int:
        """Bytes of the queries of a tile, and of its result."""
        return self.rows * self.tiling.planes * LINE

    @property
    def in_place(self) -> bool:
        """True if the result takes the place of the queries in shared memory."""
        return self.tiling.planes > 2

    @property
    def barriers(self) -> int:
        """The place of the barriers in shared memory, behind all tiles."""
        return (1 if self.in_place else 2) * self.lines + 2 * self.tile.stages * self.block

    @property
    def down(self) -> int:
        """Tiles of a head."""
        return -(-self.tiling.queries // self.rows)

    @property
    def together(self) -> int:
        """Heads whose keys and values find room in the L2 cache."""
        each = 2 * self.tiling.keys * self.tiling.width * 2
        return max(1, min(self.tiling.heads, self.chip.tuning.attention.cache // each))

    def kernels(self) -> Kernels:
        """What clears the counter of tiles, and the kernel."""
        words = Argument(
            "uint64_t *__restrict__ words", "result", (Operand("part", 0, (1,)), np.dtype(np.uint8))
        )
        return Kernels((cleared(words, 1, 32), self.kernel(words)), (8,))

    def kernel(self, words: Argument) -> CudaKernel:
        view, tile, low, high = self.view(), self.tile, self.scores.band.low, self.scores.band.high
        self.arguments["words"] = words
        named = [*self.edge.arguments, *self.whole.arguments, *self.drop.arguments]
        arguments = {**self.arguments, **{a.name: a for a in named}}
        factor = Argument(
            "float factor", "constant", (np.float32(self.scores.factor * LOG2E), FLOAT32)
        )
        arguments["factor"] = factor
        at = self.lines
        fixed = (
            Fixed("GROUPS", tile.groups, "warp groups, of 64 queries each"),
            Fixed("ROWS", self.rows, "queries of a tile"),
            Fixed("KEYS", tile.keys, "of a block"),
            Fixed(
                "WIDTH", self.tiling.columns, "features of a head, the last of which may be zeros"
            ),
            Fixed("PLANES", self.tiling.planes, "tiles of 64 features side by side"),
            Fixed("STAGES", tile.stages, "blocks of keys, and of values, in shared memory"),
            Fixed("BLOCK", self.block, "bytes of a block"),
            Fixed("KEYS_AT", at, "their place in shared memory"),
            Fixed("VALUES_AT", at + tile.stages * self.block, "likewise"),
            Fixed(
                "RESULT_AT", 0 if self.in_place else at + 2 * tile.stages * self.block, "likewise"
            ),
            Fixed("BARRIERS", self.barriers, "likewise"),
            Fixed("HEADS", self.together, "whose keys and values are in the L2 cache at a time"),
            Fixed("LOW", low or 0, "keys are seen up to so many before a query"),
            Fixed("HIGH", high or 0, "and from so many before it"),
            Fixed("PACK", 2, "neighbours that a thread has"),
        )
        grid = (max(1, min(self.tiling.heads * self.down, self.chip.multiprocessors)),)
        shared = self.barriers + 48 + 32 * tile.stages + 16
        return CudaKernel(
            "attention", self.text, tuple(arguments.values()), (), 128 * (tile.groups + 1), grid, fixed,
            shared, 2 + self.edge.equations, (*self.edge.helpers, *self.whole.helpers, *self.drop.helpers),
            single=True, template="cuda/attention/wgmma.cu.jinja", view=view,
        )  # fmt: skip

    def view(self) -> AttentionView:
        t, tile, band = self.tiling, self.tile, self.scores.band
        for name, size in (("queries", t.queries), ("keys", t.keys), ("heads", t.heads)):
            self.arguments[f"n_{name}"] = Argument(f"int n_{name}", "size", size)
        names, batch, more = batch_places(t)
        self.arguments.update(more)
        names_of = (("q", self.rows), ("k", tile.keys), ("v", tile.keys), ("y", 64))
        lengths = t.queries, t.keys, t.keys, t.queries
        q, k, v, y = (
            self.mapped(f"{letter}_tiles", n, lengths[n], box, names)
            for n, (letter, box) in enumerate(names_of)
        )
        if self.logs is not None:
            declared = "float *__restrict__ logs"
            self.arguments["logs"] = Argument(declared, "result", (self.logs, FLOAT32))
        low, high = band.low is not None, band.high is not None
        # else a tile has no more than one block of which some keys are not seen
        apart = (band.low or 0) % tile.keys != 0 or self.rows > tile.keys
        branch = high or (low and (apart or self.scores.finite))
        kind, short = "bf16" if self.dtype == BFLOAT16 else "f16", SUFFIX[self.dtype]
        few, many = self.tile.registers
        first = (self.edge.first or self.whole.first, self.drop.first)
        drop = None if self.drop is NOTHING else self.drop
        return AttentionView(
            kind, short, tile.keys, t.columns, few, many, self.in_place, tuple(batch), q, k, v, y,
            self.logs is not None,
            low, low, high, self.scores.finite, branch, self.guarded,
            tuple(dict.fromkeys((*first[0], *first[1]))), self.edge, self.whole, drop,
        )  # fmt: skip

    def mapped(
        self, name: str, n: int, length: int, box: int, names: Sequence[str]
    ) -> tuple[str, ...]:
        """The tensor map of an operand among the arguments; the places that name its tiles."""
        t = self.tiling
        pairs = [(b.size, b.strides[n], p) for b, p in zip(t.batches, names, strict=True)]
        outer = [(size, step, 1) for size, step, _ in pairs if step]
        row = t.rows[n] or t.width
        inner = [(length, row, box), (t.width, 1, LINE // 2)]
        shape, strides, boxes = zip(*outer, *inner, strict=True)
        tiles = Tiles(self.dtype, shape, strides, boxes, LINE, 256)
        declared = f"const __grid_constant__ ge2_tensor_map {name}"
        role = "result" if n == 3 else "array"
        self.arguments[name] = Argument(declared, role, (self.operands[n], tiles))
        return tuple(p for _, step, p in reversed(pairs) if step)


def batch_places(tiling: Tiling) -> tuple[list[str], list[Text], dict[str, Argument]]:
    """What the place along each axis of batches is called, the statements that find it from `head`,
    and the sizes that these read.
    """
    batches, sizes = tiling.batches, dict[str, Argument]()
    if len(batches) < 2:
        return ["head"] * len(batches), [], sizes
    names, lines, rest = list[str](), list[Text](), "head"
    for n, b in reversed([*enumerate(batches)]):
        names.insert(0, f"batch{n}")
        if n:
            sizes[f"n_batch{n}"] = Argument(f"int n_batch{n}", "size", b.size)
            lines.append(Text(f"const int batch{n} = {rest} % n_batch{n};"))
            rest = f"{rest} / n_batch{n}"
        else:
            lines.append(Text(f"const int batch{n} = {rest};"))
    return names, lines, sizes
