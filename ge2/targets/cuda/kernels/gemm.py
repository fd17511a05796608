"""The common parts of products on tensor cores, the time they are predicted to take, and small solves."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Final, final

import numpy as np

from ge2.base.arrays import BYTES, FLOAT32, FLOAT64, FP8, INT32
from ge2.base.record import record
from ge2.choice import Problem, Variant, described
from ge2.codegen.layout import merged, unspoken
from ge2.codegen.text import Operand, Text
from ge2.ir import ArrayType, Atom, Dims, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import steps_of
from ge2.ops.graphs.region import CONTRACTION, Region
from ge2.ops.linalg import Solve
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import CudaKernel, Fixed
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emit.words import SUFFIX
from ge2.targets.cuda.kernels import NOTHING, Cuda, CudaWays, copying
from ge2.targets.cuda.kernels.moves import OVER, Grid, far, lettered
from ge2.targets.cuda.kernels.products import (
    HALVES,
    copied_seconds,
    library_seconds,
    multiple,
    precision,
    refusal,
    terms_apart,
    too_many,
    unasked,
)
from ge2.targets.cuda.limits import ASSUMED, GRID_MOST, WARP, Chip, Limits
from ge2.targets.cuda.products import Contraction, contraction, tight
from ge2.targets.cuda.products.made import Making
from ge2.targets.cuda.products.tensor_cores import TYPES, lying, sums_of, tiles_of
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, RegionEpilogue
from ge2.targets.cuda.tensor_tuning import MmaTile

# -------- What the families of products on tensor cores have in common: a bare product, and one
# that a region goes on with, by kernels of one or the other kind.


Factors = tuple[Operand, Operand]
ALIGNED: Final = 16  # bytes of which rows of copies are a multiple


@final
@record
class Copy:
    """A factor that is brought to where it lies otherwise; both as arrays of one shape."""

    type: ArrayType
    source: Operand
    target: Operand

    @property
    def narrow(self) -> bool:
        """True if rows of the source are no multiples of 16 bytes apart."""
        steps = [s for s in self.source.strides if abs(s) > 1]
        return any(s * self.type.dtype.itemsize % ALIGNED for s in (*steps, self.source.offset))


@final
@record
class Product:
    """A matrix product of two factors, the strides of its result, and the copies made before; and
    where the right factor of a second product is that has the same left one, if there is one.
    `makings`: factors that the kernel makes of other arrays.
    """

    op: DotGeneral
    types: tuple[ArrayType, ArrayType]
    factors: Factors
    result: Dims
    copies: tuple[Copy, ...] = ()
    second: Operand | None = None
    makings: tuple[Making, ...] = ()

    @property
    def dtype(self) -> np.dtype:
        return self.types[0].dtype

    @property
    def made(self) -> set[int]:
        """The numbers of the operands that the kernel makes."""
        return {x.operand for x in self.makings}

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of all factors."""
        return self.factors if self.second is None else (*self.factors, self.second)

    @property
    def axes(self) -> Contraction:
        a, b = self.factors
        return contraction(self.op, *self.types, (a.strides, b.strides, self.result))


def unable(types: Collection[np.dtype], op: Op, dtype: np.dtype, other: np.dtype) -> str:
    """The reason why tensor cores that multiply such `types` do not multiply such operands; "" if
    they do.
    """
    alike = other == dtype or {dtype, other} in ({*FP8}, BYTES)
    if dtype not in types or not alike:
        return f"it does not multiply {dtype.name} and {other.name}"
    if dtype in FP8:
        return unasked(op)
    assert isinstance(op, DotGeneral)
    if dtype in BYTES and op.out != INT32:
        return f"its sums of {dtype.name} are those of int32"
    if dtype == FLOAT32 and precision(op) != "tf32":
        return "float32 is not to be rounded to tf32"
    return ""


def unlike(pair: Product) -> str:
    """The reason why no kernel has two products whose right factors lie so; "" if one has."""
    (_, b), c = pair.factors, pair.second
    assert c is not None
    return "" if b.strides == c.strides else "the right factors do not lie alike"


class OnTensorCores(Cuda):
    """Kernels of one kind, whose variants are tiles. `types`: of operands that they multiply."""

    types: ClassVar[Mapping[np.dtype, str]] = TYPES

    @abstractmethod
    def too_old(self, caps: Caps) -> str:
        """The reason why a chip does not have the instructions; "" if it does."""

    @abstractmethod
    def unsuited(self, product: Product, caps: Caps) -> str:
        """The reason why a product of operands that lie so is for others; "" if it is not."""

    def unworthy(self, product: Product, caps: Caps) -> str:
        """The reason why others are thought to be better at it; "" if none is known."""
        return ""

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        known = caps is not None and problem.settled
        return self.unworthy(self.product(problem), caps) if known and caps is not None else ""

    @abstractmethod
    def tiles(self, product: Product, after: Epilogue, caps: Caps) -> Iterator[tuple[str, Any]]:
        """The tiles that a product may be done in, by name, the quickest first."""

    @abstractmethod
    def timed(self, product: Product, tile: Any, after: Epilogue, caps: Caps) -> float:
        """The predicted seconds of an arranged product in such tiles, its copies among them."""

    @abstractmethod
    def made(self, product: Product, tile: Any, after: Epilogue, caps: Caps) -> Kernels:
        """The kernels."""

    @abstractmethod
    def sums_of(self, product: Product, tile: Any, after: Epilogue) -> int:
        """Returns how many parts of a sum of columns warps leave."""

    @abstractmethod
    def product(self, problem: Problem) -> Product:
        """The product of a problem."""

    @abstractmethod
    def after(self, problem: Problem, caps: Caps) -> Epilogue:
        """Returns what is done with its sums."""

    def arranged(self, product: Product, tile: Any) -> Product:
        """The product of factors that lie as the kernels take them: of copies, it may be."""
        return product

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        for name, tile in self.tiles(self.product(problem), self.after(problem, caps), caps):
            yield Variant(name, tile)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        tile, product = variant.plan, self.product(problem)
        return self.timed(self.arranged(product, tile), tile, self.after(problem, caps), caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        # where arrays are, and which numbers are no arrays, may be known since the variant was taken
        tile, after = variant.plan, self.after(problem, caps)
        product = self.arranged(self.product(problem), tile)
        first = [
            kernel
            for c in product.copies
            for kernel in copying(c.type, c.type, c.source, c.target, caps.chip).kernels
        ]
        temps, finishing = [*map(room, product.copies)], list[CudaKernel]()
        for each in after.sums:
            parts = self.sums_of(product, tile, after)
            argument = each.argument(len(temps))
            kernel, nbytes = each.finish(parts, len(temps), caps.chip)
            after = replace(after, arguments=(*after.arguments, argument))
            finishing.append(kernel)
            temps.append(nbytes)
        made = self.made(product, tile, after, caps)
        return Kernels((*first, *made.kernels, *finishing), (*temps, *made.temps))


class Bare(OnTensorCores):
    """A bare product."""

    ops = (DotGeneral,)

    @abstractmethod
    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        """Returns how the sums leave as they are, in rows that lie `row` elements apart."""

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        if caps is None or not problem.settled:
            return "it is not known how the operands lie"
        (a, b), (y,) = problem.inputs, problem.outs
        if why := self.too_old(caps) or unable(self.types, problem.op, a.dtype, b.dtype):
            return why
        sums = sums_of(a.dtype)
        if y.dtype not in ((*HALVES, sums) if a.dtype in FP8 else (a.dtype, sums)):
            return f"it does not sum to {y.dtype.name}"
        if not (a.size and b.size):
            return "there is nothing to multiply"
        return self.unsuited(self.product(problem), caps)

    def product(self, problem: Problem) -> Product:
        (a, b), ((left, right), (result,)) = problem.inputs, problem.arrays
        assert isinstance(problem.op, DotGeneral)
        return Product(problem.op, (a, b), (left, right), result.strides)

    def after(self, problem: Problem, caps: Caps) -> Epilogue:
        axes, (result,) = self.product(problem).axes, problem.arrays[1]
        (rows,), (columns,) = axes.rows, axes.columns
        lines = math.prod(x.size for x in axes.batches) * rows.size
        return self.stored(problem.outs[0].dtype, result, rows.y, lines, columns.size)


class Joint(OnTensorCores):
    """A product, or `number` of them, that a region goes on with, its sums never rounded between."""

    ops, kinds = (Region,), (CONTRACTION,)
    number: ClassVar[int] = 1

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        """The form in which elements leave."""
        return found.form

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = steps_of(problem.op)
        if why := unspoken(op.region.graph) or too_many(op, caps):
            return why
        left, right = (x.type.dtype for x in op.product.inputs)
        why = self.too_old(caps) if caps else ""
        if why := why or unable(self.types, op.product.op, left, right):
            return why
        if caps is None or not problem.settled:
            return ""
        why = self.unsuited(self.product(problem), caps)
        return why or epilogue_of(problem, caps.chip).refused()

    def serves(self, op: Op) -> bool:
        return super().serves(op) and len(steps_of(op).products) == self.number and self.makes(op)

    def makes(self, op: Op) -> bool:
        """True if the family has operands that are made as those of the product are: not at all."""
        return not steps_of(op).prologues

    def placed(self, problem: Problem) -> dict[Atom, Operand]:
        """The layouts of the operands of the product."""
        return dict[Atom, Operand](problem.placed(steps_of(problem.op).graph).items())

    def product(self, problem: Problem) -> Product:
        """Its result is taken to be in C order."""
        op, given = steps_of(problem.op), self.placed(problem)
        (a, b), y = op.product.inputs, op.product.outs[0].type
        assert isinstance(a, Var) and isinstance(b, Var)
        order = tight(y.shape, range(y.ndim))
        others = [given[x] for e in op.products[1:] if isinstance(x := e.inputs[1], Var)]
        return Product(
            op.dot, (a.type, b.type), (given[a], given[b]), order, second=next(iter(others), None)
        )  # fmt: skip

    def after(self, problem: Problem, caps: Caps) -> Epilogue:
        return self.epilogue(epilogue_of(problem, caps.chip))


def epilogue_of(problem: Problem, chip: Chip) -> RegionEpilogue:
    """The region, whose values are where the problem says."""
    op = steps_of(problem.op)
    a, b = (x.type for x in op.product.inputs)
    columns, operands = len(op.dot.free(a, b)[1]), op.around(problem.placed(op.graph))
    values = (*op.region.graph.inputs, *op.rest.outs)
    places = tuple([values.index(v) for v in op.places])
    return epilogue_at(op.region, places, tuple(map(operands.get, values)), columns, chip)


@lru_cache(64)
def epilogue_at(
    region: Region, products: Dims, operands: tuple[Operand | None, ...], columns: int, chip: Chip
) -> RegionEpilogue:
    """Several families ask for it, and so do products that differ in their factors alone. Values are
    told by their numbers among the region's inputs and outputs.
    """
    values = region.graph.inputs + tuple(v for v in region.graph.outputs if isinstance(v, Var))
    known = {v: x for v, x in zip(values, operands, strict=True) if x is not None}
    return RegionEpilogue(region, [values[n] for n in products], known, columns, chip)


def step_by_step(problem: Problem, caps: Caps) -> float:
    """Returns what the library takes for a product and copies that it needs, and a kernel for the bytes
    of the region.
    """
    op = steps_of(problem.op)
    product, rest = (Problem.of(each, problem.target) for each in (op.product, op.rest))
    given = dict(zip(op.graph.inputs, problem.arrays[0], strict=True))
    (y,), factors = product.outs, [given[x] for x in op.product.inputs if isinstance(x, Var)]
    row = math.gcd(16, y.shape[-1] * y.dtype.itemsize)
    bytes_ = math.gcd(row, multiple(product.inputs, factors))
    passes = 1.0 if row == 16 else caps.limits.tuning.products.scattered
    # what the one kernel keeps of the product is written once: by the product itself
    kept = y.nbytes / caps.speed.moved if op.kept else 0.0
    copies = copied_seconds(terms_apart(product, [x.strides for x in factors]), caps)
    alone = library_seconds(product, caps, bytes_) + copies
    return alone + caps.speed.of(rest, passes=passes) - kept


# ------------------------------------------------------------------------------------------ copies


def room(copy: Copy) -> int:
    """The bytes of a copy, rows and what is between them."""
    pairs = zip(copy.type.shape, copy.target.strides, strict=True)
    elements = 1 + sum((n - 1) * step for n, step in pairs)
    return elements * copy.type.dtype.itemsize


def copy_seconds(product: Product, caps: Caps) -> float:
    """Returns what copies take: elements of two bytes, of rows that lie anyhow, come one by one."""
    return copied_seconds([each.type for each in product.copies], caps)


def copied(product: Product, which: Collection[int]) -> Product:
    """The product of copies of some of its factors, whose rows are multiples of 16 bytes apart."""
    factors, copies = list(product.factors), list[Copy]()
    free = product.op.free(*product.types)
    for n in which:
        groups = product.op.beside[n], free[n], product.op.contract[n]
        copy = spaced(product.types[n], product.factors[n], groups, len(copies))
        copies.append(copy)
        factors[n] = copy.target
    return replace(product, factors=(factors[0], factors[1]), copies=tuple(copies))


def spaced(t: ArrayType, source: Operand, groups: tuple[Dims, Dims, Dims], index: int) -> Copy:
    """A copy of a factor, of axes of batches, lines and terms: neighbours stay lines if they are and
    have two bytes, and are terms otherwise. What repeats along a batch repeats in the copy.
    """
    beside, lines, terms = groups
    size, strides = t.dtype.itemsize, source.strides
    apart = [min((abs(strides[a]) for a in axes if t.shape[a] > 1), default=0) for axes in groups]
    inner, outer = (lines, terms) if size == 2 and apart[1] < apart[2] else (terms, lines)
    once = tuple(1 if a in beside and not strides[a] else n for a, n in enumerate(t.shape))
    found, step = dict[int, int](), 1
    for axes in (inner, outer, beside):
        for a in reversed(axes):
            found[a] = step
            step *= once[a]
        if axes is inner:
            step = -(-step * size // ALIGNED) * ALIGNED // size
    for a in beside:
        found[a] = found[a] if once[a] == t.shape[a] else 0
    kept = tuple(found[a] for a in range(len(t.shape)))
    return Copy(replace(t, shape=once), source, Operand("temp", index, kept))


# -------- What a product by the tensor cores of warps is predicted to take.
# The numbers are cautious where nothing was measured, so that a library is not left for a guess.


@final
@record
class Split:
    """A tile, in how many parts sums are shared by blocks, and which factors are copied before."""

    tile: MmaTile
    parts: int = 1
    copies: tuple[int, ...] = ()

    def __str__(self) -> str:
        tile = self.tile
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        copies = ", of copies" if self.copies else ""
        return f"{tile.rows} x {tile.columns} by {tile.high * tile.broad}{parts}{copies}"


def splits(
    axes: Contraction, tile: MmaTile, copies: tuple[int, ...], caps: Caps
) -> Iterator[Split]:
    """A tile with whole sums, and in as many parts as would keep the chip busy, if sums are long: no
    more than it has room for, unless blocks wait by turns.
    """
    yield Split(tile, 1, copies)
    tuning, tiles = caps.chip.tuning.mma, count(axes, tile)
    room = tile.blocks * caps.limits.multiprocessors
    most = -(-room // tiles) if tile.blocks > 1 else room // tiles
    parts = min(most, axes.sums[0].size // tuning.long, tuning.parts)
    if parts > 1:
        yield Split(tile, parts, copies)


def count(axes: Contraction, tile: MmaTile) -> int:
    """Returns how many tiles the results of all batches have."""
    (rows,), (columns,) = axes.rows, axes.columns
    return math.prod(x.size for x in axes.batches) * tiles_of(rows.size, columns.size, tile)


def mma_seconds(
    axes: Contraction, factors: tuple[Operand, ...], dtype: np.dtype, split: Split, moved: int,
    caps: Caps, beyond: int = 0,
) -> float:  # fmt: skip
    """Waves of tiles, at that part of the rate that the tile reaches, and a smaller one where
    elements of two bytes or one are read one by one, or all bytes once, if that takes longer: `moved` of
    each element of the result, and so many `beyond` factors, or fewer; and the parts of sums, which
    are written and read.
    """
    (sums,), tuning, tile = axes.sums, caps.chip.tuning.mma, split.tile
    waves = -(-split.parts * count(axes, tile) // caps.limits.multiprocessors)
    one_by_one = sum(not lying(axes, factors, n, dtype).wide for n in (0, 1))
    part = tile.part * tuning.one_by_one**one_by_one * 2 / dtype.itemsize
    done = waves * tile.rows * tile.products * tile.columns * sums.size / split.parts
    multiplied = done / (tuning.rate(caps.limits.generation) * caps.limits.clock * part)
    elements = math.prod(x.size for x in (*axes.batches, *axes.rows, *axes.columns))
    read = memory_seconds(axes, dtype, moved * elements + beyond, tile.products, caps)
    found = caps.speed.launch + max(multiplied, read)
    if split.parts == 1:
        return found
    return found + caps.speed.launch + 2 * split.parts * 4 * elements / caps.speed.cached


def memory_seconds(axes: Contraction, dtype: np.dtype, moved: int, right: int, caps: Caps) -> float:
    """Returns what the left factor and so many right ones take to come from memory once, and so many
    bytes beside them.
    """
    for name, lines, many in ("a", axes.rows, 1), ("b", axes.columns, right):
        every = (x for x in (*axes.batches, *lines, *axes.sums) if getattr(x, name))
        moved += many * math.prod(x.size for x in every) * dtype.itemsize
    speed = caps.speed
    return moved / (speed.cached if moved < speed.cache else speed.moved)


# -------- Small systems of linear equations: a few threads of a warp solve each in shared memory.
# A library's solver takes several launches of its own for a system, and memory, and is called by the
# host between two graphs of launches. A system of few rows is solved in the time of one of them.


@final
class CudaSolve(CudaWays):
    name = "small solve in CUDA"
    ops = (Solve,)
    anywhere = True

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        b = problem.inputs[1]
        n, k = b.shape[-2:]
        if b.dtype not in (FLOAT32, FLOAT64):
            return "it solves equations of real numbers"
        sides = (ASSUMED if caps is None else caps.limits).tuning.solves.sides
        if n > WARP or k > sides:  # a thread has a row
            return f"it has more than {WARP} rows or {sides} right sides"
        if math.prod(b.shape[:-2]) >= GRID_MOST[0]:
            return "there are too many systems"
        return ""

    def variants(self, problem: Problem, caps: Caps) -> tuple[Variant, ...]:
        if not problem.outs[0].size:
            return (NOTHING,)
        return (Variant(plan=lambda: Kernels((Systems(problem, caps.limits).kernel(),))),)


@final
@record
class Solving:
    """The view that the template prints."""

    ctype: str
    nan: str
    index: str
    split: tuple[Text, ...]
    begin: tuple[str, str, str]  # of the matrix, its right sides, and the results
    element: tuple[str, str, str]  # in row `i` and column `j`


@final
class Systems:
    """The systems of a problem, and where their elements are."""

    def __init__(self, problem: Problem, limits: Limits) -> None:
        self.problem, b = problem, problem.inputs[1]
        self.block = limits.tuning.solves.block
        # of shared memory, beside the numbers of rows
        self.room = limits.shared_static - 4 * self.block
        self.dtype, (self.n, self.k) = b.dtype, b.shape[-2:]
        (a, right), (y,) = problem.arrays
        self.operands = dict(zip("aby", (a, right, y), strict=True))
        over = [x.strides[:-2] for x in self.operands.values()]
        self.over, self.strides = merged(b.shape[:-2], *over)
        self.letters = lettered(OVER, len(self.over))
        self.count = math.prod(self.over)

    def kernel(self) -> CudaKernel:
        team = 1 << (self.n - 1).bit_length()
        wide = self.n + self.k | 1  # an odd number, so that threads read from all banks
        room = self.n * wide * self.dtype.itemsize
        teams = max(1, min(self.block // team, self.room // room, self.count))
        types = (*self.problem.inputs, *self.problem.outs)
        laid = [(t.shape, x.strides) for t, x in zip(types, self.operands.values(), strict=True)]
        grid = Grid(far((self.count * self.block,), *laid), team * teams)
        grid.fixed += [
            Fixed("TEAM", team, "threads that share a system"),
            Fixed("TEAMS", teams, "systems of a block"),
            Fixed("ROWS", self.n, "of a system"),
            Fixed("SIDES", self.k, "right sides"),
            Fixed("WIDE", wide, "elements from one row to the next"),
        ]
        systems = grid.size("systems", self.count)
        sizes = grid.sizes(self.letters, self.over)
        split = grid.split(f"(p < {systems} ? p : 0)", self.letters, sizes)
        view = Solving(
            "float" if self.dtype == FLOAT32 else "double",
            f"GE2_NAN_{SUFFIX[self.dtype].upper()}", grid.whole, tuple(split) if sizes else (),
            *self.places(grid),
        )  # fmt: skip
        title, blocks = described(self.problem), -(-self.count // teams)
        return grid.kernel("solve", title, view, blocks * grid.block, "linalg/solve")

    def places(self, grid: Grid) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """Returns where each array of a system begins, and its elements from there."""
        begin, element = list[str](), list[str]()
        for (name, x), over in zip(self.operands.items(), self.strides, strict=True):
            (grid.result if name == "y" else grid.array)(name, x, self.dtype)
            begin.append(grid.place(name, self.letters, over))
            at = grid.place(name, ("row", "column"), x.strides[-2:])
            element.append(f"{name}[from_{name} + {at}]")
        return tuple(begin), tuple(element)  # type: ignore[return-value]
