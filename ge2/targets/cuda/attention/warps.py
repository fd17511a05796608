"""Attention on the tensor cores of warps, and by warps that share the keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT32, FLOATS
from ge2.base.record import record
from ge2.choice import Variant
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Dims, Graph
from ge2.ops.attention import Band
from ge2.ops.attention.form import Form
from ge2.ops.attention.ops import Batch, Tiling
from ge2.ops.attention.scores import Scores, scores_of
from ge2.ops.pointlike import Pointlike
from ge2.targets.cuda.attention import (
    LOG2E,
    NAMES,
    NOTHING,
    AttentionView,
    Forward,
    SinkOf,
    Statements,
    sink_text,
)
from ge2.targets.cuda.attention.backward import (
    ALL,
    FIRST,
    Backward,
    Four,
    Left,
    Part,
    Total,
    of_first,
)
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import STORED, SUFFIX
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.tensor_tuning import Attention, AttentionMmaTile, AttentionTile

# -------- Attention of few queries: warps share the keys, and a second kernel merges what they
# have, in order.
# What they do is `templates/cuda/attention/by_keys.cu.jinja` and `merge.cu.jinja`.


UINT8: Final = np.dtype(np.uint8)


@final
@record
class ByKeysView:
    """The view that `templates/cuda/attention/by_keys.cu.jinja` prints."""

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
    """The view that `templates/cuda/attention/merge.cu.jinja` prints."""

    mates: tuple[Text, ...]
    places: tuple[Text, ...]
    head: str
    y_at: str
    cast: str
    logs: bool
    sink: str


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


def is_shared(batch: Batch) -> bool:
    """True of an axis along which keys and values are the same."""
    return not batch.strides[1] and not batch.strides[2]


def rows_of(tiling: Tiling) -> int:
    """The queries of all heads that share keys."""
    return tiling.queries * math.prod(b.size for b in tiling.batches if is_shared(b))


def tiles_of(tiling: Tiling) -> int:
    """Returns how often keys are read: for at most 16 rows each time."""
    return -(-rows_of(tiling) // 16)


def spread_of(tiling: Tiling) -> tuple[int, int, int]:
    """Returns how many groups of 8 rows a warp has, the number of batches and heads that do not share keys,
    and the tiles of rows of each.
    """
    halves = 1 if rows_of(tiling) <= 8 else 2
    places = math.prod(b.size for b in tiling.batches if not is_shared(b))
    return halves, places, -(-rows_of(tiling) // (8 * halves))


def room_of_warp(tiling: Tiling) -> tuple[int, int, int, int]:
    """Returns the steps of 32 features, the bytes of a block of keys and values, how many blocks are in shared
    memory, and all bytes of a warp there.
    """
    steps, planes = -(-tiling.width // 32), tiling.planes
    stage, stages = (2 * steps + 4 * planes) * 512, 3 if planes <= 2 else 2
    return (
        steps,
        stage,
        stages,
        stages * stage + (spread_of(tiling)[0] * steps * 512 if planes > 2 else 0),
    )


def seen_keys(tiling: Tiling, band: Band) -> tuple[int, int]:
    """The first and the last key that a query may see."""
    queries, keys = tiling.queries, tiling.keys
    first = 0 if band.high is None else min(max(-band.high, 0), keys - 1)
    last = keys - 1 if band.low is None else max(min(queries - 1 - band.low, keys - 1), 0)
    return first, max(first, last)


def shares_of(tiling: Tiling, band: Band, chip: Chip) -> tuple[int, int]:
    """Returns how many warps share the keys of a tile, and how many keys each has."""
    first, last = seen_keys(tiling, band)
    tuning, keys, (_, places, tiles) = chip.tuning.attention, last + 1 - first, spread_of(tiling)
    blocks = max(1, chip.shared // (tuning.sharers * room_of_warp(tiling)[3] + 1024))
    wanted = tuning.waves * chip.multiprocessors * blocks * tuning.sharers
    count = max(1, min(-(-keys // tuning.share), round(wanted / (places * tiles))))
    share = -(-keys // (16 * count)) * 16
    return -(-keys // share), share


@final
class AttentionByKeys:
    """`operands`: queries, keys, values and result; `logs`, where the logarithms of the sums go, if
    they are a result.
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        edge: Statements, chip: Chip, logs: Operand | None, sink: SinkOf, guarded: bool, text: str,
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        self.edge, self.chip, self.logs, self.sink = edge, chip, logs, sink
        self.guarded, self.text = guarded, text
        self.halves, self.places, self.tiles = spread_of(tiling)
        self.steps, self.stage, self.stages, self.room = room_of_warp(tiling)

    @property
    def seen(self) -> tuple[int, int]:
        return seen_keys(self.tiling, self.scores.band)

    @property
    def shares(self) -> tuple[int, int]:
        return shares_of(self.tiling, self.scores.band, self.chip)

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
        warps = self.chip.tuning.attention.sharers
        fixed = (
            *self.fixed(),
            Fixed("STEPS", self.steps, "pieces of 32 features"),
            Fixed("HALVES", self.halves, "eights of rows"),
            Fixed("WARPS", warps, "of a block"),
            Fixed("STAGES", self.stages, "blocks of keys and values in shared memory"),
            Fixed("STAGE", self.stage, "bytes of a block"),
            Fixed("ROOM", self.room, "those of a warp"),
            Fixed("PACK", 2, "neighbours that a thread has"),
        )
        units = self.places * self.tiles * count
        return CudaKernel(
            "attention by keys", self.text, tuple(arguments.values()), (), 32 * warps, (-(-units // warps),),
            fixed, warps * self.room, 2 + self.edge.equations, self.edge.helpers,
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
        named = [f"axis{i}" for i, _ in enumerate(self.tiling.batches)]
        sink, found = sink_text(self.sink, self.tiling, named)
        arguments.update(found)
        view = MergeView(mates, places, head, at, cast, self.logs is not None, sink)
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


# -------- Kernels of attention, forward and backward, on the tensor cores of warps, or of IEEE
# float32 by multiply-adds.
# What a block does is `templates/cuda/attention/mma.cu.jinja`, `backward_mma.cu.jinja` and
# `attend.cuh`.


WIDEST: Final = 16  # bytes of a copy, of which it may move 8 or 4 as well
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


def is_crowded(tile: AttentionMmaTile, dropped: bool, tuning: Attention) -> bool:
    """True if registers spill beside two results, scores and their cotangents, as NVRTC showed."""
    sampled = tile.high * tile.keys * tile.width > tuning.sampled
    sums = tile.high * (tile.width + tile.keys)
    return sums > tuning.crowded_backward or (dropped and sampled)


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
        sink: SinkOf, guarded: bool, text: str, exact: bool,
    ) -> None:  # fmt: skip
        self.tile, self.room = tile, Room(dtype, tiling.columns, tile, exact)
        super().__init__(
            operands, dtype, tiling, scores, statements, tile.keys, chip, logs, sink, guarded, text
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

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kernels: one for all cotangents where a tile has all keys of a head, and queries are few."""
        t, turned = self.tiling, self.dtype.itemsize == 2 and self.tiling.planes <= 2
        few = t.keys <= self.rows and t.queries <= 4 * self.rows
        rows = any(left.how == "rows" for left in self.lefts)
        return (ALL,) if turned and few and not rows else super().parts

    def kernels(self) -> Kernels:
        made = tuple(self.kernel(n, part) for n, part in enumerate(self.parts))
        both = any(left.how == "both" for left in self.lefts)
        first = self.kernel(0, FIRST) if both and self.parts == (ALL,) else made[0]
        return Kernels((*made, *self.of_both(first)))

    def bias(
        self, left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int]
    ) -> CudaKernel:
        given = {f.name: f.value for f in first.fixed}
        turn = given["LINES_AT"] + 2 * given["BLOCK"]
        stages = 2 if 2 * turn <= self.chip.most else 1
        fixed = (
            *(f for f in first.fixed if f.name not in ("STAGES", "NUMBERS_AT", "APART")),
            Fixed("STAGES", stages, "turns whose operands are in shared memory"),
            Fixed("TURN", turn, "their bytes"),
        )
        made = of_first(left, pair, result, first, sizes, self.text, fixed)
        back = replace(first.view, totals=(Total("total", pair, "at + each"),))
        return replace(
            made, view=replace(made.view, back=back), shared=stages * turn,
            template="cuda/attention/bias_mma.cu.jinja",
        )  # fmt: skip

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
        sloped, dropped = (each is not NOTHING for each in self.statements[part.turned][2:])
        tuning = self.chip.tuning.attention
        while part.second and part.first and tile.keys > 16 and is_crowded(tile, dropped, tuning):
            tile = replace(tile, keys=tile.keys // 2)
        if part.others and sloped:  # which takes registers as well
            tile = replace(tile, keys=min(tile.keys, 32))
        blocks = -(-(t.queries if part.turned else t.keys) // tile.keys)
        tile = replace(tile, stages=min(tile.stages, blocks))
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
        turned = tile.rows * (tile.keys * self.dtype.itemsize + 16) if part.others else 0
        numbers = Fixed(
            "NUMBERS_AT", room.backward + turned, "that of logarithms and sums of lines"
        )
        shared = numbers.value + 4 * 4 * tile.keys * part.turned
        return CudaKernel(
            "attention backward", f"The cotangents of {part.what} of\n{self.text}",
            tuple(self.arguments.values()), (), tile.threads, (self.tiles(part),),
            (*fixed, numbers, *self.fixed(part, tile.keys)), shared, self.equations(part), self.helpers(part),
            template="cuda/attention/backward_mma.cu.jinja", view=view,
        )  # fmt: skip


# -------- Which tiles fit, and what they take.


def is_within(sizes: Dims, most: Iterable[Dims]) -> bool:
    """True if there are no more queries, keys and features than in one of these."""
    return any(all(n <= m for n, m in zip(sizes, each, strict=True)) for each in most)


def sizes_of(found: Tiling) -> Dims:
    """Returns how many queries, keys and features there are."""
    return found.queries, found.keys, found.columns


def seen_part(form: Form) -> float:
    """The part of all keys that queries see."""
    band = scores_of(form).band
    return 0.5 if band.low is not None or band.high is not None else 1.0


def few_seconds(found: Tiling, waits: float, resident: int, moved: float, caps: Caps) -> float:
    """The seconds in which so many tiles of keys come one after the other, as often as a multiprocessor
    has queries to go through them with; or those in which their bytes do.
    """
    waves = -(-found.heads // (resident * caps.limits.multiprocessors))
    return caps.speed.launch + max(waves * waits, moved)


def fitting(tiles: Sequence[AttentionTile], found: Tiling) -> list[AttentionTile]:
    """The tiles for heads that are no narrower, but no more than needed."""
    width = min(t.width for t in tiles if t.width >= found.width)
    return [t for t in tiles if t.width == width]


def tiled(
    tiles: Sequence[AttentionMmaTile], found: Tiling, order: Callable[[AttentionMmaTile], Any]
) -> Iterator[Variant]:
    """The tiles for heads that are no narrower, but no more than needed, in an order."""
    wide = [t for t in tiles if t.width >= found.columns]
    for tile in sorted((t for t in wide if t.width == min(x.width for x in wide)), key=order):
        yield Variant(f"{tile.rows} x {tile.keys} by {tile.warps}", tile)


def is_guarded(scores: Scores, form: Form) -> bool:
    """True if an array of floating numbers is read that may hold the least of them."""
    graph: Graph = scores.edge
    return any(v.type.dtype in FLOATS and v.type.shape for v in form.others) and any(
        isinstance(e.op, Pointlike) for e in graph.eqns
    )
