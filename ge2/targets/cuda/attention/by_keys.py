"""Attention of few queries: warps share the keys, and a second kernel merges what they have, in order.

What they do is `templates/cuda/attention/by_keys.cu.jinja` and `merge.cu.jinja`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ops.attention.scores import Scores
from ge2.ops.attention.tiling import Batch, Tiling
from ge2.targets.cuda.attention.kernel import LOG2E, NAMES, steps_of
from ge2.targets.cuda.attention.statements import Statements
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel import CudaKernel, Fixed
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.emit.types import SUFFIX

WARPS: Final = 4  # of a block
UINT8: Final = np.dtype(np.uint8)


@final
@record
class ByKeysView:
    """What `templates/cuda/attention/by_keys.cu.jinja` prints."""

    type: str
    halves: int
    mates: tuple[Text, ...]
    places: tuple[Text, ...]
    head: str
    q_at: str
    k_at: str
    v_at: str
    kept: bool
    guarded: bool
    first: tuple[Text, ...]
    edge: Statements


@final
@record
class MergeView:
    """What `templates/cuda/attention/merge.cu.jinja` prints."""

    mates: tuple[Text, ...]
    places: tuple[Text, ...]
    head: str
    y_at: str
    cast: str
    logs: bool


def is_shared(batch: Batch) -> bool:
    """True of an axis along which keys and values are the same."""
    return not batch.strides[1] and not batch.strides[2]


def rows_of(tiling: Tiling) -> int:
    """The queries of all heads that share keys."""
    return tiling.queries * math.prod(b.size for b in tiling.batches if is_shared(b))


def tiles_of(tiling: Tiling) -> int:
    """Returns how often keys are read: for at most 16 rows each time."""
    return -(-rows_of(tiling) // 16)


@final
class AttentionByKeys:
    """`operands`: queries, keys, values and result; `logs`, where the logarithms of the sums go, if
    they are a result.
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        edge: Statements, chip: Chip, logs: Operand | None, guarded: bool, text: str,
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        self.edge, self.chip, self.logs = edge, chip, logs
        self.guarded, self.text = guarded, text
        self.halves = 1 if rows_of(tiling) <= 8 else 2
        self.places = math.prod(b.size for b in tiling.batches if not is_shared(b))
        self.tiles = -(-rows_of(tiling) // (8 * self.halves))
        self.steps = -(-tiling.width // 32)
        self.stage = (2 * self.steps + 4 * tiling.planes) * 512
        self.stages = 3 if tiling.planes <= 2 else 2

    @property
    def room(self) -> int:
        """Bytes of a warp in shared memory."""
        kept = self.halves * self.steps * 512 if self.tiling.planes > 2 else 0
        return self.stages * self.stage + kept

    @property
    def seen(self) -> tuple[int, int]:
        """The first and the last key that a query may see."""
        band, t = self.scores.band, self.tiling
        first = 0 if band.high is None else min(max(-band.high, 0), t.keys - 1)
        last = t.keys - 1 if band.low is None else max(min(t.queries - 1 - band.low, t.keys - 1), 0)
        return first, max(first, last)

    @property
    def shares(self) -> tuple[int, int]:
        """Returns how many warps share the keys of a tile, and how many keys each has."""
        first, last = self.seen
        tuning, keys = self.chip.tuning.attention, last + 1 - first
        blocks = max(1, self.chip.shared // (WARPS * self.room + 1024))
        wanted = tuning.waves * self.chip.multiprocessors * blocks * WARPS
        count = max(1, min(-(-keys // tuning.share), round(wanted / (self.places * self.tiles))))
        share = -(-keys // (16 * count)) * 16
        return -(-keys // share), share

    def kernels(self) -> Kernels:
        rows = self.places * self.tiles * self.halves * 8 * self.shares[0]
        return Kernels(
            (self.main(), self.merge()), (rows * self.tiling.planes * 64 * 4, rows * 2 * 4)
        )

    def scratch(self, const: bool) -> dict[str, Argument]:
        """Returns what warps leave of their shares."""
        kind, word = ("array", "const ") if const else ("result", "")
        return {
            name: Argument(
                f"{word}float *__restrict__ {name}", kind, (Operand("part", n, (1,)), UINT8)
            )
            for n, name in enumerate(("parts", "totals"))
        }

    def sizes(self) -> dict[str, Argument]:
        t, (count, _) = self.tiling, self.shares
        sizes = (("rows", rows_of(t)), ("queries", t.queries), ("shares", count))
        found = {f"n_{name}": Argument(f"int n_{name}", "size", n) for name, n in sizes}
        number = np.float32(self.scores.factor * LOG2E), FLOAT32
        return {**found, "factor": Argument("float factor", "constant", number)}

    def axes(self, shared: bool) -> tuple[tuple[Text, ...], dict[str, Argument]]:
        """Statements of the places along the axes of batches that are shared, or are not."""
        lines, rest = list[Text](), "mate" if shared else "place"
        sizes = dict[str, Argument]()
        for n, b in reversed([*enumerate(self.tiling.batches)]):
            if is_shared(b) is shared:
                lines.append(Text(f"const int axis{n} = {rest} % n_axis{n};"))
                rest = f"{rest} / n_axis{n}"
                sizes[f"n_axis{n}"] = Argument(f"int n_axis{n}", "size", b.size)
        return tuple(lines), sizes

    def head(self) -> tuple[str, dict[str, Argument]]:
        """The number of a head, by its places."""
        found, sizes = "0", dict[str, Argument]()
        for n, b in enumerate(self.tiling.batches):
            found = f"({found}) * n_axis{n} + axis{n}" if n else "axis0"
            sizes[f"n_axis{n}"] = Argument(f"int n_axis{n}", "size", b.size)
        return found, sizes

    def at(self, n: int) -> tuple[str, dict[str, Argument]]:
        """Returns what is added to an operand for the places along axes of batches, and the sizes
        in it.
        """
        names = [f"axis{i}" for i, _ in enumerate(self.tiling.batches)]
        found, sizes = steps_of(self.tiling, n, NAMES[n], names)
        return "".join(f" + {each}" for each in found), sizes

    def main(self) -> CudaKernel:
        t, (first, last), (count, share) = self.tiling, self.seen, self.shares
        arguments: dict[str, Argument] = {**self.scratch(False), **self.sizes()}
        numbers = {
            "n_keys": t.keys, "n_places": self.places, "n_tiles": self.tiles, "first_key": first,
            "last_key": last, "share": share,
        }  # fmt: skip
        for name, n in numbers.items():
            arguments[name] = Argument(f"int {name}", "size", n)
        for n, name in enumerate(("queries", "keys", "values")):
            declared = f"const uint16_t *__restrict__ {name}"
            arguments[name] = Argument(declared, "array", (self.operands[n], self.dtype))
        (q_at, k_at, v_at), sizes = self.several(range(3))
        (mates, more), (places, others), (head, heads) = (
            self.axes(True),
            self.axes(False),
            self.head(),
        )
        named = {a.name: a for a in self.edge.arguments}
        arguments.update({**sizes, **more, **others, **heads, **named})
        view = ByKeysView(
            "bf16" if self.dtype == BFLOAT16 else "f16", self.halves, mates, places, head, q_at, k_at, v_at,
            t.planes > 2, self.guarded, self.edge.first, self.edge,
        )  # fmt: skip
        fixed = (
            *self.fixed(),
            Fixed("STEPS", self.steps, "pieces of 32 features"),
            Fixed("HALVES", self.halves, "eights of rows"),
            Fixed("WARPS", WARPS, "of a block"),
            Fixed("STAGES", self.stages, "blocks of keys and values in shared memory"),
            Fixed("STAGE", self.stage, "bytes of a block"),
            Fixed("ROOM", self.room, "those of a warp"),
            Fixed("PACK", 2, "neighbours that a thread has"),
        )
        units = self.places * self.tiles * count
        return CudaKernel(
            "attention by keys", self.text, tuple(arguments.values()), (), 32 * WARPS, (-(-units // WARPS),),
            fixed, WARPS * self.room, 2 + self.edge.equations, self.edge.helpers,
            template="cuda/attention/by_keys.cu.jinja", view=view,
        )  # fmt: skip

    def fixed(self) -> tuple[Fixed, ...]:
        return (
            Fixed("WIDTH", self.tiling.width, "features of a head"),
            Fixed("PLANES", self.tiling.planes, "of 64 features"),
        )

    def several(self, which: Sequence[int]) -> tuple[list[str], dict[str, Argument]]:
        found, sizes = list[str](), dict[str, Argument]()
        for n in which:
            at, more = self.at(n)
            found.append(at)
            sizes.update(more)
        return found, sizes

    def merge(self) -> CudaKernel:
        arguments: dict[str, Argument] = {**self.scratch(True), **self.sizes()}
        room = Argument("int n_room", "size", self.tiles * self.halves * 8)
        y = Argument("uint16_t *__restrict__ result", "result", (self.operands[3], self.dtype))
        arguments.update({"n_room": room, "result": y})
        (mates, more), (places, others), (head, heads) = (
            self.axes(True),
            self.axes(False),
            self.head(),
        )
        at, sizes = self.at(3)
        arguments.update({**sizes, **more, **others})
        if self.logs is not None:
            value = self.logs, FLOAT32
            arguments["logs"] = Argument("float *__restrict__ logs", "result", value)
            arguments.update(heads)
        cast = f"ge2_cast_f32_{SUFFIX[self.dtype]}"
        view = MergeView(mates, places, head, at, cast, self.logs is not None)
        threads, most = (
            64 * self.tiling.planes,
            self.shares[0] // self.chip.tuning.attention.in_turn,
        )
        parts = next(n for n in (8, 4, 2, 1) if n == 1 or (n <= most and n * threads <= 1024))
        fixed = (*self.fixed(), Fixed("PARTS", parts, "of the shares"))
        return CudaKernel(
            "attention merge", f"What warps have of\n{self.text}", tuple(arguments.values()), (),
            threads * parts, (self.places * rows_of(self.tiling),), fixed, 0, 4,
            template="cuda/attention/merge.cu.jinja", view=view,
        )  # fmt: skip
