"""Matrix products on the tensor cores of warps and of Hopper, and the candidate of separate steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, final

import numpy as np

from ge2.base.arrays import AMPERE, BYTES, FLOAT32, FP8, HALF, HOPPER
from ge2.choice import Problem, Variant
from ge2.codegen.text import Operand, whole
from ge2.ir import Atom, Eqn, Op, Var
from ge2.ops.attention.ops import FusedAttention, FusedBackward
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import is_contraction, of_steps, steps_of
from ge2.ops.graphs.region import Resident
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.kernels import Cuda
from ge2.targets.cuda.kernels.gemm import (
    ALIGNED,
    Bare,
    Joint,
    OnTensorCores,
    Product,
    Split,
    copied,
    copy_seconds,
    mma_seconds,
    splits,
    step_by_step,
    unlike,
)
from ge2.targets.cuda.kernels.libraries import BlasEpilogue
from ge2.targets.cuda.kernels.products import (
    CudaSmallProduct,
    has_astray,
    is_longest,
    library_seconds,
    multiple,
)
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.persistent.steps import Steps, one_by_one
from ge2.targets.cuda.products import Contraction
from ge2.targets.cuda.products.tensor_cores import (
    OF_GROUPS,
    Mma,
    is_astray,
    least_waste,
    lying,
    merged,
    sums_of,
    tiles_down,
    unmatched,
    warps_down,
    waves_of,
)
from ge2.targets.cuda.products.tensor_epilogue import (
    Epilogue,
    RegionEpilogue,
    packs_alone,
    stored_alone,
)
from ge2.targets.cuda.products.warp_groups import (
    WarpgroupProduct,
    of_operand,
    stages_of,
    unfit,
)
from ge2.targets.cuda.tensor_tuning import Mma as Tuning
from ge2.targets.cuda.tensor_tuning import MmaTile, WgmmaTile

# -------- Matrix products on tensor cores of compute capability 8.0 and newer, of operands that lie
# anyhow: bare, or with the elementwise work on their result.


class MmaKernels(OnTensorCores):
    """Kernels of warps, whose threads copy the operands."""

    ranked = True

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation >= AMPERE:
            return ""
        return "GPUs older than compute capability 8.0 do not have these instructions"

    def unsuited(self, product: Product, caps: Caps) -> str:
        axes = product.axes
        if why := unmatched(axes):
            return why
        thin = caps.chip.tuning.mma.thin
        return f"it has fewer than {thin} terms" if axes.sums[0].size < thin else ""

    def tiles(self, product: Product, after: Epilogue, caps: Caps) -> Iterator[tuple[str, Split]]:
        axes, narrow = product.axes, () if product.second else narrow_factors(product)
        found = [
            split
            for copies in dict.fromkeys(((), narrow))
            for tile in self.shapes(product, caps.chip.tuning.mma)
            if of_tile(copied(product, copies), tile, after, caps.chip).fits
            for split in splits(axes, tile, copies, caps)
            if split.parts == 1 or not (after.sums or product.second)
        ]
        times = {s: self.timed(self.arranged(product, s), s, after, caps) for s in found}
        for split in sorted(found, key=times.__getitem__):
            yield str(split), split

    def shapes(self, product: Product, tuning: Tuning) -> Iterable[MmaTile]:
        """The tiles, if they fit."""
        return tiles_for(product.axes, tuning, product.dtype)

    def arranged(self, product: Product, tile: Split) -> Product:
        return copied(product, tile.copies)

    def timed(self, product: Product, tile: Split, after: Epilogue, caps: Caps) -> float:
        alone = mma_seconds(product.axes, product.factors, product.dtype, tile, after.moved, caps)
        found = copy_seconds(product, caps) + alone
        if is_skinny(tile.tile, caps.chip.tuning.mma) or product.dtype in BYTES:
            return found
        aligned = not product.copies and not narrow_factors(product)
        doubted = aligned and caps.limits.generation == HOPPER
        return found * caps.chip.tuning.mma.doubt if doubted else found

    def sums_of(self, product: Product, tile: Split, after: Epilogue) -> int:
        """One for each warp, or for those that share the columns of a tile."""
        return tiles_down(product.axes, tile.tile) * warps_down(tile.tile, after)

    def made(self, product: Product, tile: Split, after: Epilogue, caps: Caps) -> Kernels:
        axes, parts, chip = product.axes, tile.parts, caps.chip
        if parts == 1:
            return Kernels((of_tile(product, tile.tile, after, chip).kernel(),))
        rows = parts * math.prod(x.size for x in (*axes.batches, *axes.rows))
        columns, kept = axes.columns[0].size, Operand("temp", len(product.copies), (1,))
        dtype = sums_of(product.dtype)
        alone = packs_alone(dtype, kept, columns, rows, columns)
        first = of_tile(product, tile.tile, alone, chip, parts).kernel()
        second = merged(axes, parts, chip.tuning.parts, after, kept, dtype)
        return Kernels((first, second), (rows * columns * 4,))


def tiles_for(axes: Contraction, tuning: Tuning, dtype: np.dtype) -> tuple[MmaTile, ...]:
    """The tiles for a result: of few rows or columns those that are as thin. Not of few columns of
    float32 until they have run on a GPU again: six of eight cases were beyond a bound there that did
    not count what tensor cores cut off of long sums, as the same six are in the emulator.
    """
    (rows,), (columns,) = axes.rows, axes.columns
    thin = (
        t for t in tuning.skinny
        if rows.size <= t.rows < t.columns
        or (columns.size <= t.columns < t.rows and dtype != FLOAT32)
    )  # fmt: skip
    return tuple(thin) or tuning.tiles


def is_skinny(tile: MmaTile, tuning: Tuning) -> bool:
    """True of the tiles of few rows or columns, and of a pair of those."""
    return tile in tuning.skinny or (tile.pair and tile in halved(tuning.skinny))


def halved(tiles: Iterable[MmaTile]) -> list[MmaTile]:
    """The tiles of pairs: each of two warps beside each other has columns of one product."""
    return [t.halved for t in tiles if t.broad % 2 == 0]


def narrow_factors(product: Product) -> tuple[int, ...]:
    """The factors whose rows are no multiples of 16 bytes apart."""
    axes, factors, dtype = product.axes, product.factors, product.dtype
    wide = [lying(axes, factors, n, dtype).wide * dtype.itemsize for n in (0, 1)]
    return tuple(n for n in (0, 1) if wide[n] < ALIGNED)


def of_tile(product: Product, tile: MmaTile, after: Epilogue, chip: Chip, parts: int = 1) -> Mma:
    axes, operands, makings = product.axes, product.operands, product.makings
    dtypes = product.types[0].dtype, product.types[1].dtype
    return Mma(axes, operands, dtypes, tile, chip, after, parts, makings)


@final
class GemmMma(MmaKernels, Bare):
    name = "mma product"

    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return packs_alone(out, result, row, rows, columns)


class PackedJoint(Joint):
    """The epilogue of a product, by packs."""

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        return found.packs(found.stored_at_once())


@final
class GemmMmaRegion(MmaKernels, PackedJoint):
    name = "mma product and region"


@final
class GemmMmaPair(MmaKernels, PackedJoint):
    """Two products of one left factor, such as those of a gated unit. Tiles have whole sums."""

    name, number = "mma pair of products and region", 2

    def unsuited(self, product: Product, caps: Caps) -> str:
        return super().unsuited(product, caps) or unlike(product)

    def shapes(self, product: Product, tuning: Tuning) -> Iterable[MmaTile]:
        return halved(super().shapes(product, tuning))


# -------- Matrix products on Hopper's tensor cores, bare or with the elementwise work on their
# result.


def idle(axes: Contraction, caps: Caps, tiles: Sequence[WgmmaTile] = ()) -> str:
    """The reason why a library is thought to be better at a product; "" if none is known."""
    (sums,) = axes.sums
    tuning, chip = caps.chip.tuning.wgmma, caps.limits.multiprocessors
    if sums.size >= tuning.long and least_waste(axes, chip, tuning, tiles) > tuning.idle:
        return (
            "its tiles leave a part of the GPU idle, and its sums are long: they are better split"
        )
    return ""


def thin(axes: Contraction, caps: Caps) -> str:
    """The reason why a product fills no tile; "" if it does."""
    few = caps.chip.tuning.wgmma.thin
    if min(axes.rows[0].size, axes.columns[0].size) < few:
        return f"it has fewer than {few} rows or columns"
    return ""


def seconds(
    axes: Contraction, dtype: np.dtype, tile: WgmmaTile, after: Epilogue, caps: Caps,
    lost: int | None = None,
) -> float:  # fmt: skip
    """Returns what waves of tiles take: the products of each, longer if strips, or what else there is,
    leave room for fewer stages (`lost`, if it is known), and what follows them, as far as no products
    of the other warp group hide it.
    """
    (sums,), tuning = axes.sums, caps.chip.tuning.wgmma
    if tile.apart:
        return seconds_apart(axes, dtype, tile, after, caps)
    size = tile.rows * tile.columns
    added = size * tile.products * sums.size
    if lost is None:
        lost = max(tile.stages - stages_of(tile, after, caps.chip), 0)
    multiplied = 2 * added * tuning.cost_of(tile, sums.size) / tuning.rate_of(dtype)
    multiplied *= 1 + tuning.lost * lost
    part = tuning.narrow if tile.narrow else 1.0 if after.stores else tuning.packs
    a_byte = size * (tile.drain if after.stores else 1.0) / (tuning.drained * part)
    moved = after.moved if after.stores else after.moved + FLOAT32.itemsize  # which a sum is first
    waves = waves_of(axes, tile, caps.limits.multiprocessors)
    if is_astray(axes, dtype, tuning):
        multiplied, a_byte = multiplied * tuning.sectors, a_byte * tuning.sectors
    # the rate of products was fitted to the whole time of bare ones, which store their sums
    bare = a_byte * min(after.moved, dtype.itemsize)
    tiles = -(-waves // tile.blocks)  # of a block, beside whose products there are those of others
    found = in_turns(tiles, multiplied * tile.blocks, a_byte * moved) - bare
    return caps.speed.launch + max(found, tiles * tuning.each)


def seconds_apart(
    axes: Contraction, dtype: np.dtype, tile: WgmmaTile, after: Epilogue, caps: Caps
) -> float:
    """The same where both warp groups multiply at once: what follows products is hidden by those of the
    other group, in tiles of their own, or by nothing, and equations count.
    """
    tuning, waves = caps.chip.tuning.wgmma, waves_of(axes, tile, caps.limits.multiprocessors)
    few, size = tuning.few, tile.rows * tile.columns
    lost = max(tile.stages - stages_of(tile, after, caps.chip), 0)
    added = size * tile.products * axes.sums[0].size
    multiplied = 2 * added * tile.cost / tuning.rate_of(dtype) * (1 + few.lost * lost)
    moved = after.moved if after.stores else after.moved + FLOAT32.itemsize
    worth = few.element + moved + few.equation * after.equations
    part = few.narrow if tile.narrow else 1.0 if after.stores else tuning.packs
    left = size * worth / (few.drained * part)
    if is_astray(axes, dtype, tuning):
        multiplied, left = multiplied * tuning.sectors, left * tuning.sectors
    if tile.shared:
        return caps.speed.launch + waves * (multiplied + left / 2)
    return caps.speed.launch + at_once(waves, multiplied, left, few.exclusive)


def at_once(tiles: int, multiplied: float, left: float, exclusive: float) -> float:
    """Returns what two warp groups take that multiply at once: as long as the tensor cores are busy,
    or as one group takes by itself, which is `exclusive` times as long and hides nothing.
    """
    each = -(-tiles // 2)  # tiles that one group has
    return max(tiles * multiplied + left, each * (exclusive * multiplied + left))


def in_turns(tiles: int, multiplied: float, left: float) -> float:
    """Returns what two warp groups take that have tiles in turns: one multiplies at a time, and what
    follows products, for `left` seconds, goes on beside those of the other. Nothing is beside what
    follows the last tile, which may be the only one.
    """
    each = -(-tiles // 2)  # tiles that one group has
    late = 0.0 if tiles % 2 else multiplied  # the second group waits for the first one's products
    return max(tiles * multiplied + left, late + each * (multiplied + left))


def is_brief(axes: Contraction, after: Epilogue, caps: Caps) -> bool:
    """True of matrices of one small tile and of short sums, after which few equations come."""
    tuning, (sums,) = caps.chip.tuning.wgmma, axes.sums
    (rows,), (columns,) = axes.rows, axes.columns
    one = max(rows.size, columns.size) <= tuning.brief.rows and sums.size <= tuning.terms
    room = stages_of(tuning.brief, after, caps.chip) > 1
    return one and room and after.equations <= tuning.unrolled


def named(tile: WgmmaTile) -> str:
    blocks = ", two blocks at once" if tile.blocks > 1 else ""
    return f"{tile.rows} x {tile.columns}{', narrow strips' if tile.narrow else ''}{blocks}"


class WgmmaKernels(OnTensorCores):
    """Kernels of warp groups, whose operands tensor maps copy."""

    types = OF_GROUPS

    def too_old(self, caps: Caps) -> str:
        if caps.limits.generation == HOPPER:
            return ""
        return "only GPUs of compute capability 9.0 have these instructions"

    def unsuited(self, product: Product, caps: Caps) -> str:
        return unfit(product.axes, product.factors, product.dtype) or thin(product.axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        """Of fp8 it is not asked: a library that splits sums has no products of all such arrays."""
        return "" if product.dtype in FP8 else idle(product.axes, caps)

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        """Yields tiles; where sums are long, also with narrow strips, if they leave room for more
        stages.
        """
        tuning, (sums,), dtype = caps.chip.tuning.wgmma, product.axes.sums, product.dtype
        tiles = [*tuning.tiles_of(dtype, product.second is not None)]
        if after.stores and after.short and (sums.size >= tuning.long or tiles[0].apart):
            wide = [t for t in tiles if t.rows > 64]
            pairs = zip(wide, (replace(t, narrow=True) for t in wide), strict=True)
            tiles += [
                narrow
                for usual, narrow in pairs
                if stages_of(usual, after, caps.chip) < stages_of(narrow, after, caps.chip)
            ]
        if product.second is None and dtype in HALF and after.stores:
            tiles += [tuning.brief] * is_brief(product.axes, after, caps)
        for tile in sorted(tiles, key=lambda t: seconds(product.axes, dtype, t, after, caps)):
            yield named(tile), tile

    def timed(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> float:
        alone = seconds(product.axes, product.dtype, tile, after, caps)
        return copy_seconds(product, caps) + alone

    def made(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> Kernels:
        (a, b), chip = product.types, caps.chip
        given = product.axes, product.operands, (a.dtype, b.dtype)
        return Kernels((WarpgroupProduct(*given, tile, chip, after).kernel(),))

    def sums_of(self, product: Product, tile: WgmmaTile, after: Epilogue) -> int:
        """One for each warp of a group, or of both."""
        return 4 * (1 + tile.shared) * tiles_down(product.axes, tile)


class OfCopies(WgmmaKernels):
    """The same of copies of operands that tensor maps do not copy."""

    ranked = True

    def arranged(self, product: Product, tile: WgmmaTile | None) -> Product:
        axes, factors, dtype = product.axes, product.factors, product.dtype
        if unmatched(axes):
            return product
        return copied(product, [n for n in (0, 1) if of_operand(axes, factors, n, dtype)])

    def timed(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> float:
        """Only copies of rows that a library reads slowly were measured, not those that turn; of bytes
        a library takes copies as well.
        """
        found = super().timed(product, tile, after, caps)
        known = product.dtype in BYTES or any(c.narrow for c in product.copies)
        return found if known else found * caps.chip.tuning.mma.doubt

    def unsuited(self, product: Product, caps: Caps) -> str:
        found = self.arranged(product, None)
        if not found.copies:
            return unmatched(product.axes) or "no operand has to be copied"
        axes = found.axes
        return unfit(axes, found.factors, found.dtype) or thin(axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        return ""  # its copies are in the prediction, which decides

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        yield from super().tiles(self.arranged(product, None), after, caps)


class StoredBare(Bare):
    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        return stored_alone(out, result, row, rows, columns)


@final
class GemmWgmma(WgmmaKernels, StoredBare):
    name = "wgmma product"

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        if caps is None:
            return False
        few = problem.inputs[0].dtype in (*FP8, *BYTES)
        return few or is_longest(problem, caps) or has_astray(problem, caps)


@final
class GemmWgmmaRegion(WgmmaKernels, Joint):
    name = "wgmma product and region"

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True unless it is predicted to be quicker than the library and a region, or its epilogue, as
        it was measured to be: there, factors of whole families would be wrong more often than the
        order. Of fp8 steps were measured to take longer than predicted by more than that.
        """
        if caps is None:
            return False
        best = next(iter(self.variants(problem, caps)))
        others, library = [step_by_step(problem, caps)], BlasEpilogue()
        if not library.refusal(problem, caps):
            others.append(library.seconds(problem, Variant(), caps))
        few = self.product(problem).dtype in FP8
        doubt = caps.chip.tuning.wgmma.few.doubt if few else 1.0
        return self.seconds(problem, best, caps) > doubt * min(others)


@final
class GemmWgmmaOfCopies(OfCopies, StoredBare):
    name = "wgmma product of copies"


@final
class GemmWgmmaRegionOfCopies(OfCopies, Joint):
    name = "wgmma product of copies and region"


@final
class GemmWgmmaPair(WgmmaKernels, Joint):
    """Two products of one left factor, such as those of a gated unit."""

    name, number = "wgmma pair of products and region", 2
    ranked = True

    def unsuited(self, product: Product, caps: Caps) -> str:
        if why := unlike(product):
            return why
        axes, (a, b, c), dtype = product.axes, product.operands, product.dtype
        why = unfit(axes, (a, b), dtype) or of_operand(axes, (a, c), 1, dtype)
        return why or thin(axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        tiles = caps.chip.tuning.wgmma.tiles_of(product.dtype, True)
        return idle(product.axes, caps, tiles)


# -------- The other candidate where several steps could be one kernel.


class Apart(Cuda):
    """The steps of a problem one by one, each with a choice of its own."""

    name = "launches, step by step"
    in_steps = True
    code = "step by step"
    # passes, and parts of them, that make one kernel of the steps
    joining: ClassVar[tuple[str, ...]] = ("resident", "epilogue")
    ranked = True

    def serves(self, op: Op) -> bool:
        if isinstance(op, Resident):
            return False
        return not is_contraction(op) or len(steps_of(op).before) == 1

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """Of products and what is between them: the library's products, and the bytes of regions."""
        op = problem.op
        if isinstance(op, FusedAttention | FusedBackward):
            products = ((e.op, e) for e in op.jaxpr.eqns if isinstance(e.op, DotGeneral))
            once = {(dot.beside, dot.contract, e.inputs): e for dot, e in products}
            return sum(product_and_rest(e, caps) for e in once.values())
        if not is_contraction(op):
            return caps.speed.of(problem)
        return step_by_step(problem, caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        return Kernels(())


@final
class LoopApart(Apart):
    """Loops and branches, and what is around them, as launches. It has a name of its own, since its
    predictions are of other numbers than those of products, and so are the times that were measured.
    """

    name = "launches, iteration by iteration"

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps  # of the pass that asks for predictions

    def serves(self, op: Op) -> bool:
        return isinstance(op, Resident)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        op, tuning = problem.op, caps.chip.tuning
        if self.steps is None or not isinstance(op, Resident):
            return None
        return one_by_one(op, tuning.launches.recorded, tuning.persistent, self.steps)


@final
class OneByOne(Apart):
    """A product, and another of the same left factor with the region that reads both."""

    name = "one product after the other"
    code = "one by one"
    joining = ("resident", "pairs")

    def serves(self, op: Op) -> bool:
        return is_contraction(op) and len(steps_of(op).products) == 2

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """Of both, as they would be chosen."""
        op = steps_of(problem.op)
        given = problem.placed(op.graph)
        first, second = op.products
        (y,) = first.outs
        problems = [problem_of(e, given) for e in (first, of_steps((second, op.rest)))]
        kept = y.type.nbytes / caps.speed.moved if op.places[0] in op.kept else 0.0
        return sum(quickest(each, caps) for each in problems) - kept


def problem_of(eqn: Eqn, given: Mapping[Var, Operand]) -> Problem:
    """The problem of an equation whose arrays lie as is given, and in C order where nothing is."""

    def operand(role: str, i: int, a: Atom) -> Operand:
        found = given.get(a) if isinstance(a, Var) else None
        return found or whole(role, i, a.type.shape)

    return Problem.of(eqn, "cuda", operand)


def quickest(problem: Problem, caps: Caps) -> float:
    """Returns what a product takes by warp groups, which come before a library; else by the quicker of
    the library and warps.
    """
    joint = is_contraction(problem.op)
    bare: tuple[OnTensorCores, ...] = GemmWgmma(), GemmWgmmaOfCopies(), GemmMma()
    families = (GemmWgmmaRegion(), GemmWgmmaRegionOfCopies(), GemmMmaRegion()) if joint else bare
    first, *others = ([*timed(family, problem, caps)] for family in families)
    if first:
        return min(first)
    if joint:
        library = Apart().seconds(problem, Variant(), caps) or 0.0
    else:
        library = library_seconds(problem, caps, multiple(problem.inputs, problem.arrays[0]))
    return min([library, *(each for some in others for each in some)])


def timed(family: OnTensorCores, problem: Problem, caps: Caps) -> Iterator[float]:
    """The seconds of all variants of a family, if it serves a problem."""
    if not family.refusal(problem, caps):
        yield from (family.seconds(problem, v, caps) for v in family.variants(problem, caps))


def product_and_rest(eqn: Eqn, caps: Caps) -> float:
    """A product by the library, or by a kernel for small ones; and its largest array, which a region
    writes or reads: half of one that does both.
    """
    problem, small = problem_of(eqn, {}), CudaSmallProduct()
    served = not small.refuses(problem, caps)
    alone = small.seconds(problem, Variant(), caps) if served else library_seconds(problem, caps)
    largest = max(a.type.nbytes for a in (*eqn.inputs, *eqn.outs))
    moved = caps.speed.cached if largest < caps.speed.cache else caps.speed.moved
    return alone + caps.speed.launch / 2 + largest / moved
