"""Forward kernels of attention, and the statements of scores and slopes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT32
from ge2.base.record import record
from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Argument, Operand, Text, leaves
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Names, Var, anew, rename
from ge2.ops.attention.form import Form
from ge2.ops.attention.graphs import inputs_of
from ge2.ops.attention.ops import Tiling
from ge2.ops.attention.scores import Scores, narrowed
from ge2.ops.graphs.contraction import round_halves
from ge2.ops.graphs.region import Region
from ge2.ops.random import UINT32, Draw, RandomBits
from ge2.passes.fuse import fuse
from ge2.passes.indices import in_order, orientation
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem, mentions, unrolled
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.views import Stage, cleared
from ge2.targets.cuda.emit.words import STORED, SUFFIX, label
from ge2.targets.cuda.launch import Tiles
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.tensor_tuning import AttentionTile

# -------- Statements of scores, and of their derivative, for a pair of neighbours in registers.


INT32: Final = np.dtype(np.int32)


Places = tuple[tuple[Text, ...], tuple[Text, ...]]


@final
@record
class Pair:
    """A pair of neighbours: its name, its type, how it is read, and the bytes of a number."""

    name: str
    type: str
    read: str
    bytes: int


@final
@record
class Statements:
    """Statements of a block's scores, by where they stand (templates/cuda/attention). `pairs`: arrays
    that have neighbours along the keys; `early`, `late`: statements of rows and keys where these are
    read before all else, and what is left of them then. `more`: the results after the first.
    """

    rows: tuple[Text, ...] = ()
    keys: tuple[Text, ...] = ()
    pairs: tuple[Pair, ...] = ()
    early: Places = ((), ())
    late: Places = ((), ())
    stages: tuple[Stage, ...] = ()
    result: str = "t"
    more: tuple[str, ...] = ()
    first: tuple[Text, ...] = ()
    arguments: tuple[Argument, ...] = ()
    helpers: tuple[str, ...] = ()
    text: str = ""
    equations: int = 0


NOTHING: Final = Statements()
Constants = dict[object, str]


def region_of(graph: Graph) -> tuple[Region, tuple[Var, ...]] | None:
    """The graph as one pointwise region, its sums in float32, and the keys of random bits in it; None
    if it is no such region. Its inputs are those of the graph, in order, then two words of each key.
    """
    start, scores = graph.inputs[0], graph.outputs[0]
    bits = [e for e in graph.eqns if isinstance(e.op, RandomBits)]
    rest = tuple(e for e in graph.eqns if not isinstance(e.op, RandomBits))
    inputs = (*graph.inputs, *(e.outs[0] for e in bits))
    graph = narrowed(Graph(inputs, rest, graph.outputs))
    long = tuple(n for n in scores.type.shape if n != 1)
    env: dict[Atom, Atom] = {v: Var(v.type) for v in graph.inputs}
    eqns, axes = list[Eqn](), list[Dims]()
    for e in fuse(graph).eqns:  # parts that share no more than an input, as one
        op = e.op
        if not isinstance(op, Region) or op.kind != "pointwise" or op.space != long:
            return None
        env.update(zip(op.graph.inputs, rename(env, e.inputs), strict=True))  # type: ignore[arg-type]
        eqns += [anew(env, each) for each in op.graph.eqns]
        axes += op.axes
        env.update(zip(e.outs, rename(env, op.graph.outputs), strict=True))  # type: ignore[arg-type]
    made = {v for e in eqns for v in e.outs}
    outputs = tuple(env.get(v, v) for v in graph.outputs)
    if any(v not in made for v in outputs):
        return None
    inputs = tuple(v for v in rename(env, graph.inputs) if isinstance(v, Var))  # type: ignore[arg-type]
    place = inputs[:1] if start.type.dtype != FLOAT32 else ()
    found = Graph(inputs, tuple(eqns), outputs)
    inner, every = round_halves(found, tuple(axes), place)
    region = Region("pointwise", long, every, inner)
    for e, value in zip(bits, inputs[len(inputs) - len(bits) :], strict=True):
        at = orientation(region, value)
        if at is None or not in_order(at) or e.inputs[0] not in graph.inputs:
            return None
        region = with_draw(region, value, e)
    return region, tuple(e.inputs[0] for e in bits if isinstance(e.inputs[0], Var))


def with_draw(region: Region, value: Var, bits: Eqn) -> Region:
    """The region with bits that are made where they are read, of two words that are its last inputs."""
    words = Var(ArrayType((), UINT32)), Var(ArrayType((), UINT32))
    assert isinstance(bits.op, RandomBits)
    at, inner = orientation(region, value), region.graph
    assert at is not None
    draw = Eqn(Draw(value.type.shape, bits.op.dtype), words, (value,), bits.source)
    inputs = (*(v for v in inner.inputs if v is not value), *words)
    graph = Graph(inputs, (draw, *inner.eqns), inner.outputs)
    return replace(region, axes=(at, *region.axes), graph=graph)


@final
@record
class Written:
    """The operands that statements are written of, and whether a thread has pairs of
    queries, and not of keys. `constants`: the names of numbers in the kernel, to which it adds.
    """

    form: Form
    operands: Mapping[Var, Operand]
    chip: Chip
    constants: Constants
    turned: bool = False


def statements(graph: Graph, of: Written) -> Statements | str:
    """The statements of scores; or the reason why there are none."""
    if graph.outputs == (of.form.product,):
        return NOTHING
    found = region_of(graph)
    if found is None:
        return "scores are not elementwise work on the products"
    return Writer(*found, of, ("t",), of.form.dims).run()


@final
class Writer:
    """The statements of a region, of whose inputs the first, and one after those of scores, are pairs in
    registers of these `names`; then come words of `keys`. `dims`: axes of its results; `mark`: of places and
    sizes in its text.
    """

    def __init__(
        self, region: Region, keys: Sequence[Var], of: Written, names: Sequence[str], dims: Dims,
        mark: str = "",
    ) -> None:  # fmt: skip
        self.region, self.form = region, of.form
        form, inputs = of.form, region.graph.inputs
        count = 1 + len(inputs_of(form))
        held = dict(zip((inputs[0], *inputs[count : count + len(names) - 1]), names, strict=True))
        counts = "n_queries", "n_keys"
        self.rows, self.lines = counts[::-1] if of.turned else counts
        self.row, self.line = (form.key, form.row) if of.turned else (form.row, form.key)
        self.strides = strides_of(form, self.row, self.line)
        known = {v: of.operands[w] for v, w in zip(inputs[1:], inputs_of(form), strict=False)}
        called = Names()
        for n, v in enumerate(inputs[count + len(names) - 1 :]):
            called[v] = f"word{n}"  # other statements of the kernel have no such name
            key = of.operands[keys[n // 2]]
            known[v] = key.part((n % 2,), (1,))
            known[v] = replace(known[v], strides=())
        full = tuple(self.strides)
        known.update({v: Operand("in", 0, full) for v in held})
        for out in region.graph.outputs:
            assert isinstance(out, Var)
            known[out] = Operand("out", 0, tuple(0 if d < 0 else self.strides[d] for d in dims))
        problem = Problem(region, known, called)
        self.held = {p: held[p.var] for p in problem.axes.strides if p.var in held}
        self.sums = next(iter(self.held))
        lane = self.axis(problem, self.line)
        self.lanes = Lanes(problem, frozenset(), of.chip, lane=lane, pack=2)
        places = self.lanes.places
        places.constants = of.constants
        # axes of other statements are joined otherwise, and their sizes are arguments too
        places.letters = {a: f"{letter}{mark}" for a, letter in places.letters.items()}
        self.brief = form.scores.type.dtype == BFLOAT16

    def axis(self, problem: Problem, of: int) -> int:
        """The axis of the region that one of the products is; -1 if it is none."""
        steps = problem.axes.strides[self.sums]
        return next((a for a, step in steps.items() if step == self.strides[of]), -1)

    def run(self) -> Statements | str:
        lanes, said = self.lanes, self.lanes.said
        problem, places = lanes.problem, lanes.places
        row = self.axis(problem, self.row)
        if self.axis(problem, self.line) < 0:  # a thread has pairs along it
            return "queries are one, and scores do not count it"
        said.late.update(problem.outs)
        if self.brief:
            said.be_brief()
        said.packs.update({p: f"{name}.at[v]" for p, name in self.held.items()})
        said.widened.update(self.held)
        read = said.read_in(list(lanes.root.everything()))
        others = [p for p in read if p not in self.held]
        first, rows, keys, pairs = list[Text](), list[Text](), list[Text](), list[Pair]()
        for p in others:
            self.read(p, row, first, rows, keys, pairs)
        stages = tuple(lanes.inside(lanes.root))
        reads, done = [Text(p.read) for p in pairs], [*leaves(stages)]
        here = self.placed(row, rows, keys, [*reads, *done])
        early, late = self.placed(row, [], [], reads), self.placed(row, rows, keys, done)
        names = {out.var: f"{out.name}_at" for out in problem.outs}
        result, *more = (names[v] for v in self.region.graph.outputs if isinstance(v, Var))
        return Statements(
            *here, tuple(pairs), early, late, stages, result, tuple(more), tuple(first),
            tuple(places.arguments.values()), tuple(said.helpers), problem.text,
            len(self.region.graph.eqns),
        )  # fmt: skip

    def placed(
        self, row: int, rows: Sequence[Text], keys: Sequence[Text], others: Sequence[Text]
    ) -> Places:
        """Statements once a query, and once a pair of keys, with the places that they, and others, read."""
        letter, lines = self.lanes.places.letters[self.lanes.lane], [*rows, *keys, *others]
        if mentions(lines, letter):
            keys = [Text(f"const {self.lanes.places.whole} {letter} = key_at;"), *keys]
        place = [*self.places(row)]
        for line in reversed(place):
            if mentions(lines, line.code.split()[2]):
                lines.append(line)
            else:
                place.remove(line)
        return (*place, *rows), tuple(keys)

    def read(
        self, p: Param, row: int, first: list[Text], rows: list[Text], keys: list[Text],
        pairs: list[Pair],
    ) -> None:  # fmt: skip
        """The place where an array is read: once, by query, or by pairs of keys."""
        said, places, lanes = self.lanes.said, self.lanes.places, self.lanes
        stored, name = STORED[p.var.type.dtype], label(p.name)
        steps = {a: s for a, s in lanes.problem.axes.strides[p].items() if s}
        element = f"{places.array(p)}[{places.element(p)}]"
        if not steps:
            first.append(Text(f"const {stored} {name}_at = {places.array(p)}[0];"))
            said.packs[p] = f"{name}_at"
        elif lanes.lane not in steps:
            rows.append(Text(f"const {stored} {name}_at = {element};"))
            said.packs[p] = f"{name}_at"
        elif steps[lanes.lane] == 1:
            wide = 1 if self.form.product.type.shape[self.line] % 2 else min(places.wide(p), 2)
            at = f"{places.array(p)} + {places.element(p)}"
            left = f"{self.lines} - {places.letters[lanes.lane]}"
            read = f"ge2_read_pair<{wide}>({at}, {left})"
            pairs.append(Pair(name, f"ge2_some<{stored}, 2>", read, p.var.type.dtype.itemsize))
            said.packs[p] = f"{name}_at.at[v]"
        else:
            letter = places.letters[lanes.lane]
            keys.append(Text(f"ge2_some<{stored}, 2> {name}_at;"))
            at = places.element(p, "v")
            found = f"{letter} + v < {self.lines} ? {places.array(p)}[{at}] : {stored}()"
            keys.append(unrolled("v", "2", [Text(f"{name}_at.at[v] = {found};")]))
            said.packs[p] = f"{name}_at.at[v]"

    def places(self, row: int) -> list[Text]:
        """Statements: the place of a query along each axis; those beyond the last are as it."""
        places = self.lanes.places
        whole, found = places.whole, list[Text]()
        batch = [a for a in self.lanes.kept if a not in (row, self.lanes.lane)]
        if len(batch) == 1:
            found.append(Text(f"const {whole} {places.letters[batch[0]]} = head;"))
        elif batch:
            found += map(Text, places.split("head", batch))
        if row >= 0:
            found.append(
                Text(f"const {whole} {places.letters[row]} = min(row_at, {self.rows} - 1);")
            )
        return found


def strides_of(form: Form, row: int, line: int) -> list[int]:
    """Strides of products by which only batches may be joined; along `line` they are neighbours."""
    shape = form.product.type.shape
    found = [0] * len(shape)
    found[line] = 1
    found[row] = 2 * shape[line] + 3
    step = (2 * shape[row] + 5) * found[row]
    for a in reversed(form.batch):
        found[a] = step
        step *= shape[a]
    return found


# -------- Forward kernels of attention: what they have in common, and that of Hopper, its tiles,
# tensor maps, and how shared memory is divided.
# What a block does is `templates/cuda/attention/wgmma.cu.jinja` and `hopper.cuh`; the statements of
# scores are `scores.py`'s.


LINE: Final = 128  # bytes of a row of a tile, which is the pattern of its swizzle
LOG2E: Final = 1.4426950408889634
NAMES: Final = ("q", "k", "v", "y")  # of operands
SPARE: Final = 40  # registers of a thread for places, phases and what statements compute


SinkOf = tuple[Operand, np.dtype] | float | None  # what a sink is made of, or a number


def sink_text(
    sink: SinkOf, tiling: Tiling, names: Sequence[str]
) -> tuple[str, dict[str, Argument]]:
    """The logit of a sink of query `row_at`, for powers of 2, where axes of batches have places of these
    `names`, and its arguments; nothing if there is none.
    """
    if sink is None:
        return "", {}
    if isinstance(sink, float):
        value = np.float32(sink * LOG2E), FLOAT32
        return "sink", {"sink": Argument("float sink", "constant", value)}
    operand, dtype = sink
    declared = f"const {STORED[dtype]} *__restrict__ sinks"
    found = {"sinks": Argument(declared, "array", (operand, dtype))}
    steps = [
        (f"sink_{i}", b.strides[4], place)
        for i, (b, place) in enumerate(zip(tiling.batches, names, strict=True))
    ]
    steps = [each for each in (*steps, ("sink_step", tiling.rows[4], "row_at")) if each[1]]
    found.update({name: Argument(f"int64_t {name}", "size", n) for name, n, _ in steps})
    element = f"sinks[{' + '.join(f'{place} * {name}' for name, _, place in steps) or 0}]"
    cast = element if dtype == FLOAT32 else f"ge2_cast_{SUFFIX[dtype]}_f32({element})"
    return f"{cast} * 0x1.715476p+0f", found


@final
@record
class AttentionView:
    """The view that `templates/cuda/attention/wgmma.cu.jinja` and `mma.cu.jinja` print."""

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
    ahead: bool = False
    sink: str = ""


class Forward(ABC):
    """Attention whose operands `tiling` has nothing against.

    `operands`: queries, keys, values and result; `logs`, where the logarithms of the sums go, if
    they are a result. `statements`: of scores where some keys are not seen, where all are, and of
    dropout; `guarded`: an array is added to them; `sink`: what takes weight beside the keys.
    """

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: Sequence[Statements], keys: int, chip: Chip, logs: Operand | None, sink: SinkOf,
        guarded: bool, text: str,
    ) -> None:  # fmt: skip
        self.operands, self.dtype, self.tiling, self.scores = operands, dtype, tiling, scores
        self.edge, self.whole, self.drop = statements
        self.keys, self.chip = keys, chip
        self.logs, self.sink, self.guarded, self.text = logs, sink, guarded, text
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
        sink, more = sink_text(self.sink, t, names)
        self.arguments.update(more)
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
            tuple(dict.fromkeys((*first[0], *first[1]))), self.edge, self.whole, drop, sink=sink,
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
    """The number of heads of so many bytes that fit in the L2 cache, whether there are so many or
    not: a larger batch has the same kernel. Times the tiles of a head it is an int.
    """
    return max(1, min(chip.tuning.attention.cache // nbytes, 1 << 14))


@final
class AttentionWgmma(Forward):
    """Attention by warp groups, of which another copies tiles."""

    def __init__(
        self, operands: Sequence[Operand], dtype: np.dtype, tiling: Tiling, scores: Scores,
        statements: Sequence[Statements], tile: AttentionTile, chip: Chip, logs: Operand | None,
        sink: SinkOf, guarded: bool, text: str,
    ) -> None:  # fmt: skip
        if statements[2] is not NOTHING and tile.keys > 64:  # registers are few
            tile = replace(tile, keys=64, stages=2 * tile.stages)
        self.tile = tile
        super().__init__(
            operands, dtype, tiling, scores, statements, tile.keys, chip, logs, sink, guarded, text
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

    @property
    def reads_ahead(self) -> bool:
        """True if pairs of a block find registers beside its products, the last weights and the result."""
        pairs = sum(2 * p.bytes for p in self.edge.pairs) // 4 * self.tile.keys // 4
        others = self.tile.keys // 2 + self.tile.keys // 4 + self.tiling.columns // 2
        return 0 < pairs <= self.tile.registers[1] - others - SPARE

    def kernels(self) -> Kernels:
        """Returns what clears the counter of tiles, and the kernel."""
        words = Argument(
            "uint64_t *__restrict__ words", "result", (Operand("part", 0, (1,)), np.dtype(np.uint8))
        )
        return Kernels((cleared(words, 1, 32), self.kernel(words)), (8,))

    def kernel(self, words: Argument) -> CudaKernel:
        tile, at = self.tile, self.lines
        view = replace(self.view(*tile.registers), ahead=self.reads_ahead)
        fixed = (
            Fixed("GROUPS", tile.groups, "warp groups, of 64 queries each"),
            Fixed("PLANES", self.tiling.planes, "tiles of 64 features side by side"),
            Fixed("SCORED", -(-self.tiling.width_of(0) // 16) * 16, "features of queries and keys"),
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
        width = t.width_of(n)
        inner = [(length, t.rows[n] or width, box), (width, 1, LINE // 2)]
        shape, strides, boxes = zip(*outer, *inner, strict=True)
        tiles = Tiles(self.dtype, shape, strides, boxes, LINE, 256)
        declared = f"const __grid_constant__ ge2_tensor_map {name}"
        role = "result" if n == 3 else "array"
        self.arguments[name] = Argument(declared, role, (self.operands[n], tiles))
        return tuple(p for _, step, p in reversed(pairs) if step)


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
