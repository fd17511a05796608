"""Forward kernels of attention: what they have in common, and that of Hopper, its tiles, tensor maps,
and how shared memory is divided.

What a block does is `templates/cuda/attention/wgmma.cu.jinja` and `hopper.cuh`; the statements of
scores are `scores.py`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ops.attention.scores import Scores
from ge2.ops.attention.tiling import Tiling
from ge2.targets.cuda.attention.statements import NOTHING, Statements
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import SUFFIX
from ge2.targets.cuda.kernels.lines.scan_blocks import cleared
from ge2.targets.cuda.launch.arguments import Tiles
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.tuning import AttentionTile

LINE: Final = 128  # bytes of a row of a tile, which is the pattern of its swizzle
LOG2E: Final = 1.4426950408889634
NAMES: Final = ("q", "k", "v", "y")  # of operands


@final
@record
class AttentionView:
    """What `templates/cuda/attention/wgmma.cu.jinja` and `mma.cu.jinja` print."""

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
    wide: tuple[int, ...] = ()


class Forward(ABC):
    """Attention whose operands `tiling` has nothing against.

    `operands`: queries, keys, values and result; `logs`, where the logarithms of the sums go, if
    they are a result. `statements`: of scores where some keys are not seen, where all are, and of
    dropout; `guarded`: an array is added to them.
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: Sequence[Statements], keys: int, chip: Chip, logs: Operand | None, guarded: bool,
        text: str,
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        self.edge, self.whole, self.drop = statements
        self.keys, self.chip = keys, chip
        self.logs, self.guarded, self.text = logs, guarded, text
        self.arguments: dict[str, Argument] = {}

    @abstractmethod
    def kernels(self) -> Kernels:
        """All launches."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Queries of a tile."""

    @property
    def down(self) -> int:
        """Tiles of a head."""
        return -(-self.tiling.queries // self.rows)

    @property
    def together(self) -> int:
        """Heads whose keys and values find room in the L2 cache."""
        each = 2 * self.tiling.keys * self.tiling.width * self.dtype.itemsize
        return in_cache(each, self.chip)

    @abstractmethod
    def mapped(self, n: int, names: Sequence[str]) -> tuple[str, ...]:
        """Returns how an operand is found, among the arguments; what names its place along axes of
        batches, whose places have these names.
        """

    def view(self, few: int = 0, many: int = 0) -> AttentionView:
        """Returns what the template prints, and its arguments."""
        t, band = self.tiling, self.scores.band
        for name, size in (("queries", t.queries), ("keys", t.keys), ("heads", t.heads)):
            self.arguments[f"n_{name}"] = Argument(f"int n_{name}", "size", size)
        names, batch, more = batch_places(t)
        self.arguments.update(more)
        q, k, v, y = (self.mapped(n, names) for n in range(4))
        if self.logs is not None:
            declared = "float *__restrict__ logs"
            self.arguments["logs"] = Argument(declared, "result", (self.logs, FLOAT32))
        number = np.float32(self.scores.factor * LOG2E), FLOAT32
        for each in (self.edge, self.whole, self.drop):
            self.arguments.update({a.name: a for a in each.arguments})
        self.arguments["factor"] = Argument("float factor", "constant", number)
        low, high = band.low is not None, band.high is not None
        # else a tile has no more than one block of which some keys are not seen
        apart = (band.low or 0) % self.keys != 0 or self.rows > self.keys
        branch = high or (low and (apart or self.scores.finite))
        first = (self.edge.first or self.whole.first, self.drop.first)
        drop = None if self.drop is NOTHING else self.drop
        return AttentionView(
            TYPES[self.dtype], SUFFIX[self.dtype], self.keys, t.columns, few, many, t.planes > 2,
            tuple(batch), q, k, v, y, self.logs is not None,
            low, low, high, self.scores.finite, branch, self.guarded,
            tuple(dict.fromkeys((*first[0], *first[1]))), self.edge, self.whole, drop,
        )  # fmt: skip

    @property
    def fixed(self) -> tuple[Fixed, ...]:
        """Numbers of the text that all of these kernels have."""
        band = self.scores.band
        return (
            Fixed("ROWS", self.rows, "queries of a tile"),
            Fixed("KEYS", self.keys, "of a block"),
            Fixed(
                "WIDTH", self.tiling.columns, "features of a head, the last of which may be zeros"
            ),
            Fixed("HEADS", self.together, "whose keys and values are in the L2 cache at a time"),
            Fixed("LOW", band.low or 0, "keys are seen up to so many before a query"),
            Fixed("HIGH", band.high or 0, "and from so many before it"),
            Fixed("PACK", 2, "neighbours that a thread has"),
        )

    @property
    def helpers(self) -> tuple[str, ...]:
        return (*self.edge.helpers, *self.whole.helpers, *self.drop.helpers)


def in_cache(nbytes: int, chip: Chip) -> int:
    """How many heads of so many bytes find room in the L2 cache, whether there are so many or not: a
    larger batch has the same kernel. Times the tiles of a head it is an int.
    """
    return max(1, min(chip.tuning.attention.cache // nbytes, 1 << 14))


@final
class AttentionWgmma(Forward):
    """Attention by warp groups, of which another copies tiles."""

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: Sequence[Statements], tile: AttentionTile, chip: Chip, logs: Operand | None,
        guarded: bool, text: str,
    ) -> None:  # fmt: skip
        if statements[2] is not NOTHING and tile.keys > 64:  # registers are few
            tile = replace(tile, keys=64, stages=2 * tile.stages)
        self.tile = tile
        super().__init__(
            operands, dtype, tiling, scores, statements, tile.keys, chip, logs, guarded, text
        )

    @property
    def rows(self) -> int:
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

    def kernels(self) -> Kernels:
        """Returns what clears the counter of tiles, and the kernel."""
        words = Argument(
            "uint64_t *__restrict__ words", "result", (Operand("part", 0, (1,)), np.dtype(np.uint8))
        )
        return Kernels((cleared(words, 1, 32), self.kernel(words)), (8,))

    def kernel(self, words: Argument) -> CudaKernel:
        view, tile, at = self.view(*self.tile.registers), self.tile, self.lines
        fixed = (
            Fixed("GROUPS", tile.groups, "warp groups, of 64 queries each"),
            Fixed("PLANES", self.tiling.planes, "tiles of 64 features side by side"),
            Fixed("STAGES", tile.stages, "blocks of keys, and of values, in shared memory"),
            Fixed("BLOCK", self.block, "bytes of a block"),
            Fixed("KEYS_AT", at, "their place in shared memory"),
            Fixed("VALUES_AT", at + tile.stages * self.block, "likewise"),
            Fixed(
                "RESULT_AT", 0 if self.in_place else at + 2 * tile.stages * self.block, "likewise"
            ),
            Fixed("BARRIERS", self.barriers, "likewise"),
        )
        grid = (max(1, min(self.tiling.heads * self.down, self.chip.multiprocessors)),)
        shared = self.barriers + 48 + 32 * tile.stages + 16
        return CudaKernel(
            "attention", self.text, (*self.arguments.values(), words), (), 128 * (tile.groups + 1), grid,
            (*fixed, *self.fixed), shared, 2 + self.edge.equations, self.helpers,
            single=True, template="cuda/attention/wgmma.cu.jinja", view=view,
        )  # fmt: skip

    def mapped(self, n: int, names: Sequence[str]) -> tuple[str, ...]:
        """Tensor maps take the places in this order."""
        t, name = self.tiling, f"{NAMES[n]}_tiles"
        length, box = (
            (t.queries, self.rows),
            (t.keys, self.keys),
            (t.keys, self.keys),
            (t.queries, 64),
        )[n]
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


def steps_of(
    tiling: Tiling, n: int, name: str, names: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, Argument]]:
    """Returns what is added to the address of an operand for the places along axes of batches, and
    the sizes in it and from row to row.
    """
    found, sizes = list[str](), dict[str, Argument]()
    for i, (b, place) in enumerate(zip(tiling.batches, names, strict=True)):
        if b.strides[n]:
            found.append(f"{place} * {name}_{i}")
            sizes[f"{name}_{i}"] = Argument(f"int64_t {name}_{i}", "size", b.strides[n])
    sizes[f"{name}_step"] = Argument(f"int {name}_step", "size", tiling.rows[n])
    return tuple(found), sizes


def batch_places(tiling: Tiling) -> tuple[list[str], list[Text], dict[str, Argument]]:
    """Returns what the place along each axis of batches is called, the statements that find it from
    `head`, and the sizes that these read.
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
