"""Backward kernels of attention."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.arrays import FLOAT32
from ge2.base.record import record
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import Graph, Var
from ge2.ops.attention.graphs import inputs_of
from ge2.ops.attention.ops import Tiling
from ge2.ops.attention.scores import Scores
from ge2.targets.cuda.attention import (
    LINE,
    LOG2E,
    NOTHING,
    Statements,
    Writer,
    Written,
    batch_places,
    in_cache,
    region_of,
)
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.views import cleared
from ge2.targets.cuda.emit.words import STORED, SUFFIX
from ge2.targets.cuda.launch import Tiles
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.tensor_tuning import AttentionTile


def drop_statements(of: Written) -> Statements | str:
    """The statements of dropout, by which weights are multiplied; or the reason why there are none."""
    form, weights = of.form, of.form.values.inputs[of.form.side]
    if form.soft is None:
        return NOTHING
    graph = Graph((form.soft, *inputs_of(form)), form.dropping, (weights,))
    found = region_of(graph) if form.weights == tuple(sorted(form.weights)) else None
    if found is None:
        return "dropout is not elementwise work on the weights, in order"
    return Writer(*found, of, ("t",), form.weights, "1").run()


def slope_statements(graph: Graph, of: Written) -> Statements | str:
    """The statements of the derivative of scores (ops/attention/graphs.py); or the reason why there
    are none.
    """
    (*_, ct), outputs = graph.inputs, tuple(dict.fromkeys(graph.outputs))
    made = tuple(v for v in outputs if v is not ct)
    if any(not isinstance(v, Var) or v in graph.inputs for v in made):
        return "a cotangent of what scores are made of is no elementwise work"
    found = replace(NOTHING, result="slope")
    if made:
        region = region_of(Graph(graph.inputs, graph.eqns, made))
        if region is None:
            return "the derivative of scores is not elementwise work on the products"
        axes = tuple(range(of.form.rank))
        written = Writer(*region, of, ("t", "slope"), axes, "2").run()
        if isinstance(written, str):
            return written
        found = written
    names = dict(zip(made, (found.result, *found.more), strict=False))
    first, *more = ("slope" if v is ct else names[v] for v in graph.outputs)
    return replace(found, result=first, more=tuple(more))


# -------- The kernel of the cotangent of an array of each query and key, which adds up over batches
# and heads.
# What a block does is `templates/cuda/attention/bias.cu.jinja`.


@final
@record
class Left:
    """The partial cotangents of an array: along "rows", "keys" or "both", their type, the size of
    each axis of batches with whether the array has it, and in how many parts the others are added up.
    """

    how: str
    dtype: np.dtype
    batch: tuple[tuple[int, bool], ...]
    parts: int


@final
@record
class BiasView:
    """The view that `templates/cuda/attention/bias.cu.jinja` prints; `back`: a `BackwardView`."""

    back: object
    pair: str
    stored: str
    cast: str
    head: tuple[Text, ...]


def bias_kernel(
    left: Left,
    pair: str,
    result: Argument,
    first: CudaKernel,
    sizes: tuple[int, int],
    text: str,
    chip: Chip,
) -> CudaKernel:
    """That of Hopper."""
    fixed = {f.name: f for f in first.fixed}
    names = ("ROWS", "LINES", "GROUPS", "PLANES")
    rows, lines, groups, planes = (fixed[name].value for name in names)
    row = planes * 128
    block = 2 * (rows + lines) * row
    stages = max(1, min(4, min(chip.tuning.attention.bias, chip.most) // block))
    numbers = (
        *(fixed[name] for name in (*names, "WIDTH", "LOW", "HIGH", "PACK")),
        Fixed("STAGES", stages, "turns whose operands are in shared memory"),
        Fixed("BLOCK", block, "their bytes"),
        Fixed("OTHERS", rows * row, "the place of the result's cotangents in them"),
        Fixed("LINES_AT", 2 * rows * row, "that of keys"),
        Fixed("LINE_OTHERS", (2 * rows + lines) * row, "that of values"),
        Fixed("BARRIERS", stages * block, "behind all tiles"),
    )
    made = of_first(left, pair, result, first, sizes, text, numbers)
    return replace(
        made, block=128 * (groups + 1), shared=stages * block + 16 * stages, single=True,
        template="cuda/attention/bias.cu.jinja",
    )  # fmt: skip


def of_first(
    left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int], text: str,
    fixed: tuple[Fixed, ...],
) -> CudaKernel:  # fmt: skip
    """The kernel whose rows are queries, with this result in place of its own; `sizes`: queries and
    keys.
    """
    numbers = {f.name: f.value for f in fixed}
    kept, shared = (
        math.prod(n for n, mine in left.batch if mine is which) for which in (True, False)
    )
    head, more = head_of(left)
    turns = Argument("int n_turns", "size", shared // left.parts)
    places = Argument("int n_places", "size", kept)
    own = "words", "first_tiles", "first_array", "scale"
    given = {a.name: a for a in first.arguments if a.name not in own}
    given.update({"left": result, "n_turns": turns, "n_places": places, **more})
    cast = f"ge2_cast_f32_{SUFFIX[left.dtype]}" if left.dtype != FLOAT32 else ""
    tiles = -(-sizes[0] // numbers["ROWS"]) * -(-sizes[1] // numbers["LINES"])
    return replace(
        first, kind="attention bias", graph=f"The cotangent of an array of queries and keys in\n{text}",
        arguments=tuple(given.values()), grid=(kept * tiles * left.parts,), fixed=fixed, equations=12,
        view=BiasView(first.view, pair, STORED[left.dtype], cast, head),
    )  # fmt: skip


def head_of(left: Left) -> tuple[tuple[Text, ...], dict[str, Argument]]:
    """Statements of the number of a head, of the place among those that the array has, and the turn;
    a place beyond these has the next part of the turns.
    """
    sizes = {
        f"n_axis{n}": Argument(f"int n_axis{n}", "size", size)
        for n, (size, _) in enumerate(left.batch)
    }
    terms, rest, lines = "0", {True: "place", False: "(first_turn + turn)"}, list[Text]()
    for n, (_, mine) in reversed([*enumerate(left.batch)]):
        lines.append(Text(f"const int axis{n} = {rest[mine]} % n_axis{n};"))
        rest[mine] = f"{rest[mine]} / n_axis{n}"
    for n, _ in enumerate(left.batch):
        terms = f"({terms}) * n_axis{n} + axis{n}" if n else f"axis{n}"
    return (*lines, Text(f"const int head = {terms};")), sizes


# -------- The backward kernels of attention: one has tiles of queries, the other tiles of keys.
# Both compute scores again, from queries, keys and the logarithms of the sums, and add up in a
# fixed order. What a block does is, on Hopper, `templates/cuda/attention/backward.cu.jinja`.


# of scores in any block, in one whose keys are all seen, of their derivative, and of dropout
Four = tuple[Statements, ...]


@final
@record
class Total:
    """The sum of each row beside the products: a pair of cotangents, and where it goes; `at`:
    in which of the sums of a thread.
    """

    name: str
    pair: str
    at: str = "half"


@final
@record
class Part:
    """The work of a kernel: on tiles of queries, or of keys (`turned`); the cotangents of these,
    of values, and of queries where a tile has all keys (`others`).
    """

    turned: bool
    first: bool
    second: bool
    what: str
    others: bool = False

    @property
    def operands(self) -> tuple[int, int, int, int]:
        """The numbers of those that have rows, and of those that have lines."""
        return (1, 2, 0, 3) if self.turned else (0, 3, 1, 2)


OF_KEYS: Final = (1, 2, 7, 8)  # the operands that have rows of keys
TILES: Final = ("rows", "row_others", "lines", "line_others")
FIRST: Final = Part(False, True, False, "queries")
BOTH_OF_KEYS: Final = Part(True, True, True, "keys and values")
FIRST_OF_KEYS: Final = Part(True, True, False, "keys")
SECOND_OF_KEYS: Final = Part(True, False, True, "values")
ALL: Final = Part(True, True, True, "queries, keys and values", others=True)


@final
@record
class BackwardView:
    """The view that `templates/cuda/attention/backward.cu.jinja` and `backward_mma.cu.jinja` print."""

    type: str
    short: str
    lines: int
    width: int
    few: int
    many: int
    number: int
    part: Part
    in_place: bool
    batch: tuple[Text, ...]
    places: tuple[tuple[str, ...], ...]
    goes: tuple[tuple[str, ...], ...]
    reversed: bool
    low: bool
    high: bool
    branch: bool
    rows_at: tuple[Text, ...]
    first: tuple[Text, ...]
    edge: Statements
    whole: Statements
    slopes: Statements | None
    drop: Statements | None
    totals: tuple[Total, ...]
    wide: tuple[int, ...] = ()


class Backward(ABC):
    """`operands`: queries, keys, values, the result's cotangent, logarithms, sums, and the cotangents
    of queries, keys and values, these by batch and head, and what is left of others,
    `lefts` (ops/attention/graphs.py).
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: tuple[Four, Four], lefts: tuple[Left, ...], rows: int, chip: Chip, text: str,
    ) -> None:  # fmt: skip
        self.lefts, self.rows = lefts, rows
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        self.statements, self.chip, self.text = statements, chip, text
        self.arguments: dict[str, Argument] = {}

    @property
    def parts(self) -> tuple[Part, ...]:
        """Sums of wide heads find registers one by one."""
        wide = self.tiling.planes > 2
        return (FIRST, FIRST_OF_KEYS, SECOND_OF_KEYS) if wide else (FIRST, BOTH_OF_KEYS)

    @abstractmethod
    def kernels(self) -> Kernels:
        """All launches."""

    @abstractmethod
    def mapped(self, name: str, n: int, rows: int, names: Sequence[str]) -> tuple[str, ...]:
        """Returns how an operand, of which tiles have so many rows, is found, among the arguments;
        what names its place along axes of batches, whose places have these names.
        """

    @abstractmethod
    def left(self, name: str, n: int, names: Sequence[str]) -> tuple[str, ...]:
        """Returns how a result is found, among the arguments; its place as that of an operand."""

    def view(
        self, number: int, part: Part, lines: int, few: int = 0, many: int = 0
    ) -> BackwardView:
        """Returns what the template prints, and its arguments. `lines`: of a block."""
        t, band, turned = self.tiling, self.scores.band, part.turned
        edge, whole, slopes, drop = every = self.statements[turned]
        for name, size in (("queries", t.queries), ("keys", t.keys), ("heads", t.heads)):
            self.arguments[f"n_{name}"] = Argument(f"int n_{name}", "size", size)
        names, batch, more = batch_places(t)
        self.arguments.update(more)
        places = tuple(
            self.mapped(name, n, self.rows if i < 2 else lines, names)
            for i, (n, name) in enumerate(zip(part.operands, TILES, strict=True))
        )
        for n, name in ((4, "logs"), (5, "sums")):
            declared = f"const float *__restrict__ {name}"
            self.arguments[name] = Argument(declared, "array", (self.operands[n], FLOAT32))
        rows_at = tuple(self.line(n, name, names) for n, name in ((4, "logs"), (5, "sums")))
        goes: tuple[tuple[str, ...], ...] = ()
        if part.first:
            goes += (self.left("first", 7 if turned else 6, names),)
        if part.second:
            goes += (self.left("second", 8, names),)
        if part.others:
            goes += (self.left("third", 6, names),)
        totals = self.totals(turned, slopes) if part.first else ()
        self.arguments.update({a.name: a for s in every for a in s.arguments})
        for name, value in (("factor", self.scores.factor * LOG2E), ("scale", self.scores.factor)):
            constant = np.float32(value), FLOAT32
            self.arguments[name] = Argument(f"float {name}", "constant", constant)
        low, high = band.low is not None, band.high is not None
        ends = high if turned else low  # what bounds the last lines
        return BackwardView(
            TYPES[self.dtype], SUFFIX[self.dtype], lines, t.columns, few, many, number, part,
            t.planes > 2, tuple(batch), places, goes, ends and not turned, low, high, edge != whole, rows_at,
            tuple(dict.fromkeys((*edge.first, *whole.first, *slopes.first, *drop.first))), edge, whole,
            None if slopes is NOTHING else slopes, None if drop is NOTHING else drop, totals,
        )  # fmt: skip

    def fixed(self, part: Part, lines: int) -> tuple[Fixed, ...]:
        """Numbers of the text that all of these kernels have."""
        t, band = self.tiling, self.scores.band
        each = 2 * (t.queries if part.turned else t.keys) * t.width * self.dtype.itemsize
        together = in_cache(each, self.chip)
        return (
            Fixed("ROWS", self.rows, "of a tile"),
            Fixed("LINES", lines, "of a block"),
            Fixed("WIDTH", t.columns, "features of a head, the last of which may be zeros"),
            Fixed("HEADS", together, "whose lines are in the L2 cache at a time"),
            Fixed("LOW", band.low or 0, "keys are seen up to so many before a query"),
            Fixed("HIGH", band.high or 0, "and from so many before it"),
            Fixed("PACK", 2, "neighbours that a thread has"),
        )

    def tiles(self, part: Part) -> int:
        """Tiles of rows of all heads."""
        length = self.tiling.keys if part.turned else self.tiling.queries
        return max(1, self.tiling.heads * -(-length // self.rows))

    def helpers(self, part: Part) -> tuple[str, ...]:
        return tuple(dict.fromkeys(h for s in self.statements[part.turned] for h in s.helpers))

    def equations(self, part: Part) -> int:
        edge, _, slopes, _ = self.statements[part.turned]
        return 8 + edge.equations + slopes.equations

    def totals(self, turned: bool, slopes: Statements) -> tuple[Total, ...]:
        """Returns what rows add up of others, which goes to results among the arguments."""
        found = list[Total]()
        for n, (left, pair) in enumerate(zip(self.lefts, slopes.more, strict=True)):
            if left.how == ("keys" if turned else "rows"):
                name = f"total{n}"
                value = self.operands[9 + n], FLOAT32
                declared = f"float *__restrict__ {name}s"
                self.arguments[f"{name}s"] = Argument(declared, "result", value)
                found.append(Total(name, pair))
        return tuple(found)

    def line(self, n: int, name: str, names: Sequence[str]) -> Text:
        """The statement of where numbers of the queries of a head begin."""
        t, terms = self.tiling, [name]
        for i, (b, place) in enumerate(zip(t.batches, names, strict=True)):
            size = f"{name}_{i}"
            self.arguments[size] = Argument(f"int64_t {size}", "size", b.strides[n])
            terms.append(f"{place} * {size}")
        self.arguments[f"{name}_step"] = Argument(f"int {name}_step", "size", t.rows[n])
        return Text(f"const float *const {name}_at = {' + '.join(terms)};")

    def of_both(self, first: CudaKernel) -> Iterator[CudaKernel]:
        """The kernels of arrays of queries and keys; `first`: that whose rows are queries."""
        slopes, t = self.statements[False][2], self.tiling
        for n, (left, pair) in enumerate(zip(self.lefts, slopes.more, strict=True)):
            if left.how == "both":
                value = self.operands[9 + n], left.dtype
                result = Argument(f"{STORED[left.dtype]} *__restrict__ left", "result", value)
                yield self.bias(left, pair, result, first, (t.queries, t.keys))

    @abstractmethod
    def bias(
        self, left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int]
    ) -> CudaKernel:
        """The kernel of one of these; `pair`: what is added up, `sizes`: queries and keys."""


@final
class AttentionBackward(Backward):
    """By warp groups, of which another copies tiles."""

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: tuple[Four, Four], lefts: tuple[Left, ...], tile: AttentionTile, chip: Chip,
        text: str,
    ) -> None:  # fmt: skip
        self.tile = tile
        super().__init__(
            operands, dtype, tiling, scores, statements, lefts, 64 * tile.groups, chip, text
        )

    def kernels(self) -> Kernels:
        """Returns what clears the counters of tiles, both kernels, and those of arrays of queries
        and keys.
        """
        part = Operand("part", 0, (1,)), np.dtype(np.uint8)
        words = Argument("uint64_t *__restrict__ words", "result", part)
        first, *more = (self.kernel(words, n, part) for n, part in enumerate(self.parts))
        return Kernels((cleared(words, 2, 32), first, *more, *self.of_both(first)), (16,))

    def bias(
        self, left: Left, pair: str, result: Argument, first: CudaKernel, sizes: tuple[int, int]
    ) -> CudaKernel:
        return bias_kernel(left, pair, result, first, sizes, self.text, self.chip)

    def kernel(self, words: Argument, number: int, part: Part) -> CudaKernel:
        _, _, slopes, drop = self.statements[part.turned]
        tile, t = self.tile, self.tiling
        few = (t.planes == 2 and slopes is not NOTHING) + (t.planes <= 2 and drop is not NOTHING)
        if part.turned and few:  # registers are
            tile = replace(tile, keys=tile.keys >> few, stages=tile.stages << few)
        self.arguments = {"words": words}
        view = self.view(number, part, tile.keys, *tile.registers)
        block, own, in_place = (
            tile.keys * t.planes * LINE,
            self.rows * t.planes * LINE,
            t.planes > 2,
        )
        after = 2 * own + 2 * tile.stages * block
        end = after if in_place else after + own
        shared = end + 48 + 32 * tile.stages + 16
        fixed = (
            Fixed("GROUPS", tile.groups, "warp groups, of 64 rows each"),
            Fixed("PLANES", t.planes, "tiles of 64 features side by side"),
            Fixed("STAGES", tile.stages, "blocks of lines in shared memory"),
            Fixed("BLOCK", block, "bytes of a block"),
            Fixed("LINES_AT", 2 * own, "their place in shared memory"),
            Fixed("OTHERS_AT", 2 * own + tile.stages * block, "likewise"),
            Fixed("RESULT_AT", 0 if in_place else after, "likewise"),
            Fixed("BARRIERS", end, "likewise"),
            Fixed("NUMBERS_AT", shared, "that of the logarithms and sums of blocks"),
        )
        shared += 8 * tile.keys * tile.stages * part.turned
        grid = (min(self.tiles(part), self.chip.multiprocessors),)
        return CudaKernel(
            "attention backward", f"The cotangents of {part.what} of\n{self.text}",
            tuple(self.arguments.values()), (), 128 * (tile.groups + 1), grid,
            (*fixed, *self.fixed(part, tile.keys)), shared, self.equations(part),
            self.helpers(part), single=True, template="cuda/attention/backward.cu.jinja", view=view,
        )  # fmt: skip

    def mapped(self, name: str, n: int, rows: int, names: Sequence[str]) -> tuple[str, ...]:
        """Tensor maps take the places in this order."""
        return self.map(name, n, rows, names, "array")

    def left(self, name: str, n: int, names: Sequence[str]) -> tuple[str, ...]:
        return self.map(name, n, 64, names, "result")

    def map(self, name: str, n: int, rows: int, names: Sequence[str], kind: str) -> tuple[str, ...]:
        name += "_tiles"
        t, length = self.tiling, (self.tiling.queries, self.tiling.keys)[n in OF_KEYS]
        pairs = [(b.size, b.strides[n], p) for b, p in zip(t.batches, names, strict=True)]
        outer = [(size, step, 1) for size, step, _ in pairs if step]
        width = t.width_of(n)
        inner = [(length, t.rows[n] or width, rows), (width, 1, LINE // 2)]
        shape, strides, boxes = zip(*outer, *inner, strict=True)
        tiles = Tiles(self.dtype, shape, strides, boxes, LINE, 256)
        declared = f"const __grid_constant__ ge2_tensor_map {name}"
        self.arguments[name] = Argument(declared, kind, (self.operands[n], tiles))
        return tuple(p for _, step, p in reversed(pairs) if step)
