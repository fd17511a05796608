"""Epilogues of products: the work on the sums of a tile, and sums over all rows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT32, FP8, HALF, INT32
from ge2.base.record import computed, record
from ge2.codegen.kernel_values import Param
from ge2.codegen.text import Argument, Operand, Text
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Op, Var
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.region import Region
from ge2.ops.random import Draw
from ge2.ops.reduce import ArgReduce, Reduce, ReduceSum
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit import CudaKernel
from ge2.targets.cuda.emit.columnwise import Lanes
from ge2.targets.cuda.emit.region import Problem
from ge2.targets.cuda.emit.special_reductions import Partials, part
from ge2.targets.cuda.emit.views import Pack, Stage
from ge2.targets.cuda.emit.words import FAR, STORED, SUFFIX, Places, label
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.products import tight

# -------- Sums over all rows of what a region makes of a product's elements, such as gradients of
# biases.
# A kernel of products adds up those of its tiles in float32, as they are before they are rounded,
# and leaves a row of parts for each warp of each tile. A second kernel adds up the parts in order.


FOLDS: Final = Reduce | ArgReduce


@final
@record
class ColumnSum:
    """A sum of columns. `name`: of what is summed, of whose neighbours a thread has `value`; `type` and
    `out`: the types of that and of the result; `operand`: where the result is.

    It holds no equation: texts are kept by all that they are printed of, which variables are not.
    """

    name: str
    value: str
    op: Op
    type: ArrayType
    out: ArrayType
    operand: Operand

    @property
    def parts(self) -> str:
        """The array of parts."""
        return f"{self.name}_parts"

    def argument(self, temp: int) -> Argument:
        """That array as scratch of some number."""
        return Argument(
            f"float *__restrict__ {self.parts}", "result", (Operand("temp", temp, (1,)), FLOAT32)
        )

    def finish(self, count: int, temp: int, chip: Chip) -> tuple[CudaKernel, int]:
        """The kernel that adds up so many parts of each column, and their bytes."""
        shape, v, y = self.type.shape, Var(self.type), Var(self.out)
        axes = tuple(range(len(shape)))
        region = Region("reduce", shape, (axes,), Graph((v,), (Eqn(self.op, (v,), (y,)),), (y,)))
        operands = {v: Operand("in", 0, tight(shape, axes)), y: self.operand}
        problem = Problem(region, operands)
        (fold,) = problem.folded
        assert fold.y is not None
        order = sorted(fold.y.axes)
        found = part(problem, fold, order)
        assert found is not None, "its result is stored and not read"
        places = Places(problem.axes, operands, order)
        partials = Partials(problem, places, [found], count, chip.tuning.parts, first=temp)
        (kernel,), (nbytes,) = partials.kernels(), partials.temps
        return kernel, nbytes


def column_sums(region: Region, columns: int) -> tuple[Eqn, ...] | None:
    """The reductions of a region, if each is a sum over all axes but the last `columns`, of float32
    or half types, that only leaves the region; else None.
    """
    graph, rows = region.graph, tuple(range(len(region.space) - columns))
    found = tuple(e for e in graph.eqns if isinstance(e.op, FOLDS))
    read = {a for e in graph.eqns for a in e.inputs}
    for e in found:
        (x,), (y,) = e.inputs, e.outs
        whole = isinstance(e.op, ReduceSum) and e.op.axes == rows and x.type.shape == region.space
        kept = y in graph.outputs and y not in read
        if not (whole and kept and isinstance(x, Var) and x.type.dtype in (*HALF, FLOAT32)):
            return None
    return found


def without_sums(
    region: Region, sums: tuple[Eqn, ...]
) -> tuple[Region, Mapping[Var, Eqn]]:  # fmt: skip
    """The region with, in place of its sums, what is summed as further results in float32."""
    graph, whole = region.graph, tuple(range(len(region.space)))
    pairs = [(e, at) for e, at in zip(graph.eqns, region.axes, strict=True) if e not in sums]
    outputs = [v for v in graph.outputs if not any(v in e.outs for e in sums)]
    summed = dict[Var, Eqn]()
    for e in sums:
        op = ConvertElementType(FLOAT32)
        v = Var(*op.infer(e.inputs[0].type))
        pairs.append((Eqn(op, e.inputs, (v,)), whole))
        summed[v] = e
    eqns, axes = zip(*pairs, strict=True)
    inner = Graph(graph.inputs, eqns, (*outputs, *summed), graph.consts)
    return Region("pointwise", region.space, axes, inner), summed


def in_place(shape: Dims) -> Operand:
    """A place that nothing is stored at."""
    return Operand("temp", 0, tight(shape, range(len(shape))))


# -------- What is done with the sums of a tile, as kernels on tensor cores print it.
# Two forms: results of up to four bytes, made of the sums, of vectors along rows or columns, and of
# arrays that lie as the results do, are rounded where the sums are, in registers
# (`fragments`: a thread has pairs of neighbours, and tensor maps bring and store strips of 64
# columns). All else goes through shared memory as float32, and a thread has packs of up to eight
# neighbours (`packs`).


LINE: Final = 128  # bytes of a row of a tile, which is the pattern of its swizzle
PAIR: Final = 2  # neighbours of a thread in fragments
EIGHT: Final = 8  # and in packs, at most
SUMS: Final = "t.at[v]"
SECOND: Final = "second.at[v]"  # of a second product of the same rows and columns
# the row of a thread, among those of all batches: in packs, and in fragments
BELOW: Final = "row + below"
AT: Final = {1: "byte_at", 2: "pair_at", 4: "wide_at"}  # a pair of neighbours, by bytes of each
FRAGMENT: Final = "row + row_at"
PAIR_OF_COLUMNS: Final = "columns_at + eight * 8 + lane % 4 * 2"  # the first that a thread has


@final
@record
class Strips:
    """An array of which tensor maps bring or store strips; its rows are `step` elements apart.
    `pair`: two neighbours of a result, in a register if they are rounded; `slot`: its place among
    those of strips.
    """

    name: str
    operand: Operand
    dtype: np.dtype
    step: int
    slot: int = 0
    pair: str = ""

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def stored(self) -> str:
        return STORED[self.dtype]


@final
@record
class Epilogue:
    """Statements, by where they stand (templates/cuda/product/wgmma.cu.jinja).

    `loads`, `stores`: the strips of fragments; packs have none. `vectors`: bytes of a column's
    vectors in shared memory, where they wait for the sums. `product`: what the sums are called in
    `text`, the graph, and `second` those of a second product, if there is one. `rolled`: the
    statements stand there once, for all strips. `moved`: bytes of an element of all results and of
    arrays that are as large. `narrow`: strips have half the columns. `sums`: over all rows, of which
    each warp leaves a part.
    """

    index: str
    letter: str
    pack: int = EIGHT
    first: tuple[Text, ...] = ()
    ahead: tuple[Text, ...] = ()
    vectors: int = 0
    column: tuple[Text, ...] = ()
    place: tuple[Text, ...] = ()
    stages: tuple[Stage, ...] = ()
    loads: tuple[Strips, ...] = ()
    stores: tuple[Strips, ...] = ()
    product: str = "y"
    second: str = ""
    text: str = ""
    arguments: tuple[Argument, ...] = ()
    helpers: tuple[str, ...] = ()
    equations: int = 0
    rolled: bool = False
    moved: int = 0
    narrow: bool = False
    sums: tuple[ColumnSum, ...] = ()

    @property
    def turning(self) -> int:
        """Slots of strips that are brought, where results may lie later; or that of a sole result."""
        return len(self.loads) or (len(self.stores) == 1)

    @property
    def singles(self) -> int:
        """Slots of results alone."""
        return sum(x.slot >= self.turning for x in self.stores)

    @property
    def buffers(self) -> int:
        """Of a slot that turns: with two, the next strip is on its way meanwhile."""
        return 2 if self.turning == 1 and self.singles < 2 else 1

    @property
    def strips(self) -> int:
        """Strips of a group in shared memory at once."""
        return self.turning * self.buffers + self.singles

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of an element that strips have."""
        return tuple(sorted({x.size for x in (*self.loads, *self.stores)}))

    @property
    def short(self) -> bool:
        """True if all strips are of up to two bytes an element."""
        return 4 not in self.sizes

    @property
    def width(self) -> int:
        """Columns of a strip, whose rows are lines of shared memory, or a half of them."""
        return LINE // (2 if self.short else 4) // (2 if self.narrow else 1)

    @property
    def brought(self) -> int:
        """Bytes of a row of all strips that are brought at once."""
        return sum(x.dtype.itemsize * self.width for x in self.loads)

    def room(self, x: Strips) -> str:
        """Returns where the strip of a result is."""
        if x.slot < self.turning:
            return f"strip_at + {x.slot} * BUFFERS * STRIP"
        return f"strips + {self.turning * self.buffers + x.slot - self.turning} * STRIP"


def multiples(of: int, parts: Sequence[int]) -> bool:
    return not any(each % of for each in parts)


def stored_alone(out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
    """The sums as they are, in rows that lie `row` elements apart: in fragments if it can be."""
    if multiples(16 // out.itemsize, [row, result.offset, result.loose]):
        pair = f"ge2_rounded_pair_{SUFFIX[out]}(t)" if out in HALF else "t"
        stores = (Strips("y", result, out, row, pair=pair),)
        return Epilogue("int", "j", PAIR, stores=stores, moved=out.itemsize)
    found = packs_alone(out, result, row, rows, columns)
    return found if found.pack == PAIR else replace(found, pack=EIGHT)


def packs_alone(out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
    """The same, in packs that one access stores."""
    wide = 16 // out.itemsize
    while wide > 1 and not multiples(wide, [row, result.offset, result.loose, columns]):
        wide //= 2
    index, stored = "int64_t" if rows * row >= FAR else "int", STORED[out]
    value = f"ge2_cast_f32_{SUFFIX[out]}({SUMS})" if out in HALF else SUMS
    place = f"y + ({index})(place.batch * n_rows + {BELOW}) * y_row + j"
    stage = Pack(
        4, (Text(f"ge2_some<{stored}, PACK> y_at;"),), (Text(f"y_at.at[v] = {value};"),),
        (Text(f"ge2_write<PACK, {wide}>({place}, y_at, n_columns - j);"),),
    )  # fmt: skip
    arguments = (
        Argument(f"{stored} *__restrict__ y", "result", (result, out)),
        Argument(f"{index} y_row", "size", row),
    )
    return Epilogue(
        index, "j", max(wide, PAIR), stages=(stage,), arguments=arguments, moved=out.itemsize
    )


@final
class RegionEpilogue:
    """A region that goes on with sums, which are its values `products`, one or two; `columns`: how
    many of their last axes are columns.
    """

    def __init__(
        self,
        region: Region,
        products: Sequence[Var],
        operands: Mapping[Var, Operand],
        columns: int,
        chip: Chip,
    ) -> None:
        self.products, self.columns, self.chip = products, columns, chip
        self.product = products[0]
        shape, sums = self.product.type.shape, column_sums(region, columns)
        self.foreign, self.of_bfloat16 = (
            sums is None,
            all(a.type.dtype in (BFLOAT16, *FP8) for a in region.graph.outputs),
        )
        self.region, self.summed = without_sums(region, sums) if sums else (region, {})
        tile = Operand("in", 0, apart(shape, columns))
        self.operands = {**operands, **dict.fromkeys(products, tile)}
        self.operands.update((v, in_place(shape)) for v in self.summed)
        self.stored = [a for a in self.region.graph.outputs if a not in self.summed]
        self.packed: dict[int, Epilogue] = {}  # that several variants and families ask for

    @computed
    def eight(self) -> Lanes:
        """The lanes of whole packs, which are looked at and not written."""
        return self.lanes(EIGHT)

    def refused(self) -> str:
        """The reason why no kernel has it; "" if one does."""
        if self.foreign:
            return "what comes after it is folded, and not to sums of columns"
        lanes = self.eight
        shape = self.product.type.shape
        size = int(np.prod(shape[len(shape) - self.columns :]))
        if lanes.lane < 0 or lanes.problem.axes.sizes[lanes.lane] != size:
            return "what comes after it tells its columns apart"
        return ""

    def lanes(self, pack: int) -> Lanes:
        problem = Problem(self.region, self.operands)
        strides = next(s for p, s in problem.axes.strides.items() if p.var is self.product)
        lane = next((a for a, step in strides.items() if step == 1), -1)
        return Lanes(problem, frozenset(), self.chip, lane=lane, pack=pack)

    @computed
    def form(self) -> Epilogue:
        """In fragments if it can be, else in packs."""
        if self.in_strips(self.eight):
            return self.fragments()
        pairs = self.stored_at_once() == PAIR or self.words(self.eight) > self.chip.tuning.mma.words
        return self.packs(PAIR if pairs else EIGHT)

    def words(self, lanes: Lanes) -> int:
        """The words that a thread has at once of arrays, if it has packs of them."""
        arrays = (p.var for p in self.read(lanes) if self.along(lanes, p) == "both")
        return sum(a.type.dtype.itemsize for a in (*arrays, *self.stored)) * lanes.pack // 4

    def in_strips(self, lanes: Lanes) -> bool:
        """True if tensor maps bring and store all that are not vectors."""
        region, tuning, outs = self.region, self.chip.tuning.wgmma, self.stored
        if len(region.graph.eqns) > tuning.short:
            return False
        if any(isinstance(e.op, Draw) for e in region.graph.eqns):
            return False
        others = [(self.along(lanes, p), p) for p in self.read(lanes)]
        kept = sum(p.var.type.dtype.itemsize for kind, p in others if kind == "column")
        whole = [p for kind, p in others if kind == "both"]
        arrays = [p.var for p in whole]
        results = [v for v in outs if isinstance(v, Var) and v in self.operands]
        taken = {v.type.dtype for v in (*arrays, *results)} <= {*HALF, FLOAT32, INT32}
        if kept > tuning.vectors or not results or len(results) < len(outs) or not taken:
            return False
        slots, _ = slots_of([v.type.dtype for v in arrays], [v.type.dtype for v in results])
        whole += self.params(lanes, results)
        return slots <= tuning.strips and all(self.in_rows(lanes, p) for p in whole)

    def in_rows(self, lanes: Lanes, p: Param) -> bool:
        """True if the rows of an array lie one after another, as tensor maps take it, and are those
        of the product: an array that the region turns or reverses may have its shape all the same.
        """
        shape, x, v = self.product.type.shape, self.operands[p.var], p.var
        viewed = {a for e in self.region.graph.eqns if e.op.is_view for a in (*e.inputs, *e.outs)}
        if v.type.shape != shape or v in viewed or p.axes != tuple(range(len(shape))):
            return False
        outer = len(shape) - self.columns
        within = tuple(x.strides[outer:]) == tight(shape[outer:], range(self.columns))
        one = all(x.strides[a] == x.strides[a + 1] * shape[a + 1] for a in range(outer - 1))
        size = 16 // v.type.dtype.itemsize
        one = one and self.step(x) > 0  # rows that go backwards no tensor map takes
        return within and one and multiples(size, [self.step(x), x.offset, x.loose])

    def step(self, x: Operand) -> int:
        """The elements from one row of an array to the next."""
        return x.strides[len(self.product.type.shape) - self.columns - 1]

    def along(self, lanes: Lanes, p: Param) -> str:
        """Returns what an array changes along: "" nothing, "column", "row", or "both"."""
        strides = lanes.problem.axes.strides[p]
        column = bool(strides.get(lanes.lane))
        row = any(step for a, step in strides.items() if a != lanes.lane)
        if column and strides[lanes.lane] != 1:
            return "both"
        return "both" if column and row else "column" if column else "row" if row else ""

    def counted(self, lanes: Lanes) -> set[int]:
        """The axes along which elements depend on their place itself."""
        works = lanes.root.everything()
        return {a for w in works for x in w.xs if isinstance(x.leaf, Iota) for a in x.axes}

    # -- the text

    def fragments(self) -> Epilogue:
        lanes = self.lanes(PAIR)
        results = self.params(lanes, self.stored)
        said = lanes.said
        said.late.update(results)
        first = self.read_once(lanes)
        kept, ahead, column, vectors = self.kept_vectors(lanes)
        rows, row, loads = list[Text](), list[Text](), list[Strips]()
        for p in self.read(lanes):
            along, stored, name = self.along(lanes, p), STORED[p.var.type.dtype], label(p.name)
            if along == "row":
                found = f"{FRAGMENT} < n_rows ? {lanes.places.array(p)}[{lanes.places.element(p)}]"
                rows = rows or self.place(lanes, FRAGMENT)
                row.append(Text(f"const {stored} {name}_at = {found} : {stored}();"))
                said.packs[p] = f"{name}_at"
            elif along == "both":
                at = AT[p.var.type.dtype.itemsize]
                there = f"strip + {len(loads)} * BUFFERS * STRIP + {at}"
                pair = f"*(const ge2_some<{stored}, PACK> *)({there})"
                row.append(Text(f"const auto {name}_at = {pair};"))
                said.packs[p] = f"{name}_at.at[v]"
                x = self.operands[p.var]
                loads.append(Strips(name, x, p.var.type.dtype, self.step(x), len(loads)))
        counted = self.counted(lanes)
        if counted - {lanes.lane}:
            rows = rows or self.place(lanes, FRAGMENT)
        if lanes.lane in counted:
            rows.append(Text(f"const int {lanes.places.letters[lanes.lane]} = {PAIR_OF_COLUMNS};"))
        _, slots = slots_of([x.dtype for x in loads], [p.var.type.dtype for p in results])
        stores = [self.leaving(p.name, p.var, slot) for p, slot in zip(results, slots, strict=True)]
        made = self.made(lanes, PAIR, (*first, *kept), column, (*rows, *row))
        return replace(
            made, ahead=tuple(ahead), vectors=vectors, loads=tuple(loads), stores=tuple(stores),
            rolled=made.equations > self.chip.tuning.wgmma.unrolled,
        )  # fmt: skip

    def leaving(self, name: str, v: Var, slot: int) -> Strips:
        x, dtype = self.operands[v], v.type.dtype
        pair = f"{name}_at"
        if dtype in HALF:
            pair = f"ge2_rounded_pair_{SUFFIX[dtype]}({pair})"
        return Strips(name, x, dtype, self.step(x), slot, pair)

    def stored_at_once(self) -> int:
        """Neighbours that one access stores of any result, if it stores two or more."""
        results = self.params(self.eight, self.stored)
        return max(PAIR, min([EIGHT, *map(self.eight.places.wide, results)]))

    def packs(self, pack: int) -> Epilogue:
        if pack not in self.packed:
            lanes = self.lanes(pack)
            first = self.read_once(lanes)
            column = self.read_by_column(lanes)
            self.packed[pack] = self.made(lanes, pack, first, column, self.place(lanes, BELOW))
        return self.packed[pack]

    def made(
        self, lanes: Lanes, pack: int, first: Sequence[Text], column: Sequence[Text],
        place: Sequence[Text],
    ) -> Epilogue:  # fmt: skip
        said, problem = lanes.said, lanes.problem
        summed = self.params(lanes, self.summed)
        said.late.update(summed)
        stages = tuple(lanes.inside(lanes.root))
        sums = (
            ColumnSum(
                p.name.removesuffix("_out"),
                f"{p.name}_at",
                e.op,
                e.inputs[0].type,
                e.outs[0].type,
                self.operands[e.outs[0]],
            )
            for p, e in zip(summed, self.summed.values(), strict=True)
        )
        arrays = [p.var for p in self.read(lanes) if self.along(lanes, p) == "both"]
        results = [v for v in self.stored if isinstance(v, Var)]
        return Epilogue(
            lanes.places.whole, lanes.places.letters[lanes.lane], pack, tuple(first),
            column=tuple(column), place=tuple(place), stages=stages, text=problem.text,
            product=problem.names[self.product],
            second=problem.names[self.products[1]] if self.products[1:] else "", helpers=tuple(said.helpers),
            arguments=tuple(lanes.places.arguments.values()),
            equations=len(self.region.graph.eqns),
            moved=sum(v.type.dtype.itemsize for v in (*arrays, *results)), sums=tuple(sums),
        )  # fmt: skip

    def params(self, lanes: Lanes, results: Iterable[Atom]) -> list[Param]:
        """Returns what results are called."""
        return [next(p for p in lanes.problem.outs if p.var is v) for v in results]

    def read(self, lanes: Lanes) -> list[Param]:
        """The arrays that are read beside the sums."""
        read = lanes.said.read_in(list(lanes.root.everything()))
        return [p for p in read if p.var not in self.products]

    def read_once(self, lanes: Lanes) -> list[Text]:
        """Returns what all elements share; and the sums are known by their name."""
        said, places = lanes.said, lanes.places
        if self.of_bfloat16:
            said.be_brief()
        elif all(a.type.dtype in HALF or a in self.summed for a in self.region.graph.outputs):
            said.contract()
        for v, place in zip(self.products, (SUMS, SECOND), strict=False):
            sums = next(p for p in lanes.problem.axes.strides if p.var is v)
            said.packs[sums] = place
            said.widened.add(sums)  # it never was stored
        found = list[Text]()
        for p in self.read(lanes):
            if self.along(lanes, p) == "":
                stored, name = STORED[p.var.type.dtype], label(p.name)
                found.append(Text(f"const {stored} {name}_at = {places.array(p)}[0];"))
                said.packs[p] = f"{name}_at"
        return found

    def read_by_column(self, lanes: Lanes) -> list[Text]:
        """The vectors along columns, read into packs before a thread goes through its rows."""
        said, places, letter = lanes.said, lanes.places, lanes.places.letters[lanes.lane]
        found = list[Text]()
        for p in self.read(lanes):
            if self.along(lanes, p) == "column":
                at, name = f"{places.array(p)} + {places.element(p)}", label(p.name)
                wide = min(places.wide(p), lanes.pack)
                some = f"ge2_read<PACK, {wide}>({at}, n_columns - {letter})"
                found.append(Text(f"const auto {name}_at = {some};"))
                said.packs[p] = f"{name}_at.at[v]"
        return found

    def kept_vectors(self, lanes: Lanes) -> tuple[list[Text], list[Text], list[Text], int]:
        """The vectors along columns, brought to shared memory before the products: where each is
        kept, how it comes there, how pairs are read from there, and the bytes of a column.
        """
        said, places, letter = lanes.said, lanes.places, lanes.places.letters[lanes.lane]
        kept, ahead, column, nbytes = list[Text](), list[Text](), list[Text](), 0
        vectors = [p for p in self.read(lanes) if self.along(lanes, p) == "column"]
        for p in sorted(vectors, key=lambda p: -p.var.type.dtype.itemsize):
            stored, name = STORED[p.var.type.dtype], label(p.name)
            place = f"room + VECTORS + (group * VECTOR + {nbytes}) * COLUMNS"
            kept.append(Text(f"{stored} *const {name}_kept = ({stored} *)({place});"))
            kept.append(Text(f"ge2_some<{stored}, PACK> {name}_at[8];"))
            element = f"{places.array(p)}[{places.element(p)}]"
            found = f"{letter} < n_columns ? {element} : {stored}()"
            ahead.append(Text(f"{name}_kept[each] = {found};"))
            pair = f"*(const ge2_some<{stored}, PACK> *)&{name}_kept[{letter} - column]"
            column.append(Text(f"{name}_at[eight] = {pair};"))
            said.packs[p] = f"{name}_at[eight].at[v]"
            nbytes += p.var.type.dtype.itemsize
        return kept, ahead, column, nbytes

    def place(self, lanes: Lanes, row: str) -> list[Text]:
        """Statements: the place of a row along each axis but that of columns."""
        places, outer = lanes.places, lanes.kept[:-1]
        line = places.linear(outer, "line")
        whole = places.whole
        batched = f"({whole})place.batch * n_rows + {row}"
        return [
            Text(f"const {whole} {line} = {batched};"), *map(Text, places.split(line, outer))
        ]  # fmt: skip


def slots_of(loads: Sequence[np.dtype], stores: Sequence[np.dtype]) -> tuple[int, list[int]]:
    """Returns how many strips there are, and the slot of each result: that of an array of as many
    bytes, which is read when the result is there, or one of its own.
    """
    free = {n: x.itemsize for n, x in enumerate(loads)}
    found, count = list[int](), len(loads)
    for out in stores:
        slot = next((n for n, size in free.items() if size == out.itemsize), count)
        count += slot == count
        free.pop(slot, None)
        found.append(slot)
    return count, found


def apart(shape: Dims, columns: int) -> Dims:
    """Strides by which nobody takes rows and columns for one axis."""
    outer = len(shape) - columns
    within = tight(shape[outer:], range(columns))
    size = int(np.prod(shape[outer:]))
    rows = tight(shape[:outer], range(outer))
    return (*(step * (2 * size + 1) for step in rows), *within)
