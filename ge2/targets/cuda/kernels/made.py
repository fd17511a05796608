"""Products on tensor cores that make their operands of other arrays, and the other candidate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final, final

from ge2.base.arrays import FLOAT32
from ge2.choice import Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Operand
from ge2.ir import Atom, Eqn, Op, Var
from ge2.ops.graphs.contraction import ProductSteps, is_contraction, of_steps, steps_of
from ge2.ops.graphs.region import Region
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.kernels.gemm import Joint, Product, Split, count, mma_seconds, splits
from ge2.targets.cuda.kernels.products import (
    CudaSmallContraction,
    CudaSmallProduct,
    small_seconds,
)
from ge2.targets.cuda.kernels.tensor_cores import (
    Apart,
    MmaKernels,
    PackedJoint,
    WgmmaKernels,
    named,
    of_tile,
    quickest,
    seconds,
    thin,
)
from ge2.targets.cuda.products import Contraction, contraction, tight
from ge2.targets.cuda.products.made import Making, Source, elements, operations, unmade
from ge2.targets.cuda.products.tensor_cores import unmatched
from ge2.targets.cuda.products.tensor_epilogue import Epilogue
from ge2.targets.cuda.products.warp_groups import (
    WarpgroupProduct,
    left_of,
    of_operand,
    stages_of,
    unmade_by_groups,
)
from ge2.targets.cuda.tensor_tuning import Mma, MmaTile, WgmmaTile

SMALL: Final = "it is a small product"

# ------------------------------------------------------------------------------- how operands lie


@lru_cache(16)
def makings_of(problem: Problem) -> tuple[Making, ...] | str:
    """The making of operands, of arrays whose places the problem knows; or the reason why no kernel
    does it.
    """
    op = steps_of(problem.op)
    given, found = problem.placed(op.graph), list[Making]()
    for e in op.prologues:
        if why := unmade(e):
            return why
        making = making_of(op, e, given)
        if isinstance(making, str):
            return making
        found.append(making)
    return tuple(found)


def making_of(op: ProductSteps, eqn: Eqn, given: dict[Var, Operand]) -> Making | str:
    """The same of one operand."""
    number = [*op.product.inputs].index(eqn.outs[0])
    numbers = tuple((n, given[v]) for n, v in enumerate(eqn.inputs) if given[v].value)  # type: ignore[index]
    each = elements(eqn, numbers)
    if each is None:
        return "an operand is made of an array that lies otherwise"
    sources = list[Source]()
    for x in each:
        v = eqn.inputs[x.input]
        assert isinstance(v, Var)
        lies = replace(given[v], strides=x.strides(given[v]))
        axes = axes_of(op, number, lies, given)
        if unmatched(axes):
            return "an operand is made of an array whose lines and terms do not lie apart"
        sources.append(Source(lies, v.type.dtype, axes))
    if len({sizes(x.axes) for x in sources}) > 1:
        return "an operand is made of arrays whose batches are not alike"
    whole = [n for n, x in enumerate(sources) if x.is_whole(number)]
    if not whole:
        return "an operand is made of no array of as many elements"
    main = max(whole, key=lambda n: sources[n].dtype.itemsize)
    return Making(number, eqn, tuple(sources), main, numbers)


def sizes(axes: Contraction) -> tuple[int, ...]:
    return tuple(x.size for x in (*axes.rows, *axes.columns, *axes.sums, *axes.batches))


def axes_of(
    op: ProductSteps, number: int, lies: Operand, given: Mapping[Var, Operand]
) -> Contraction:
    """The axes of the product, were an operand in that place; the other where it is, or, if it is
    made as well, in C order, as the result.
    """
    (a, b), y = op.product.inputs, op.product.outs[0].type
    assert isinstance(a, Var) and isinstance(b, Var)
    left, right = (
        given[x].strides if x in given else tight(x.type.shape, range(x.type.ndim)) for x in (a, b)
    )
    placed = (left, lies.strides) if number else (lies.strides, right)
    return contraction(op.dot, a.type, b.type, (*placed, tight(y.shape, range(y.ndim))))


# -------------------------------------------------------------------------------------- the family


class OfMade(Joint):
    """A product and a region, of operands that are made as they are read."""

    ranked = True

    def hesitates(self, problem: Problem, caps: Caps | None) -> str:
        if caps is not None and problem.settled and is_small(problem, caps):
            return SMALL
        return super().hesitates(problem, caps)

    def makes(self, op: Op) -> bool:
        return bool(steps_of(op).prologues)

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = steps_of(problem.op)
        if any(why := unspoken(e.op.graph) for e in op.prologues if isinstance(e.op, Region)):
            return why
        found = makings_of(problem) if problem.settled else ()
        if isinstance(found, str):
            return found
        apart = found and sizes(found[0].sources[0].axes) != sizes(self.product(problem).axes)
        if apart:
            return "an operand is made of arrays whose batches are not the product's"
        return super().refuses(problem, caps)

    def placed(self, problem: Problem) -> dict[Atom, Operand]:
        """Operands that are made lie as the arrays that tell how."""
        op, found = steps_of(problem.op), super().placed(problem)
        for x in self.makings(problem):
            found[op.product.inputs[x.operand]] = x.sources[x.main].operand
        return found

    def makings(self, problem: Problem) -> tuple[Making, ...]:
        found = makings_of(problem)
        assert not isinstance(found, str), "it was not refused"
        return found

    def product(self, problem: Problem) -> Product:
        return replace(super().product(problem), makings=self.makings(problem))


@final
class GemmMmaMade(OfMade, MmaKernels, PackedJoint):
    """By the tensor cores of warps: threads make elements on their way to shared memory."""

    name, kin = "mma product of operands that it makes", "mma product and region"

    def tiles(self, product: Product, after: Epilogue, caps: Caps) -> Iterator[tuple[str, Split]]:
        tuning = caps.chip.tuning.mma
        found = [
            split
            for tile in made_tiles(product, tuning)
            if of_tile(product, tile, after, caps.chip).fits
            for split in splits(product.axes, tile, (), caps)
            if split.parts == 1 or not after.sums
        ]
        for split in sorted(found, key=lambda s: self.timed(product, s, after, caps)):
            yield str(split), split

    def timed(self, product: Product, tile: Split, after: Epilogue, caps: Caps) -> float:
        """Elements are made again for each tile beside or below another, while tensor cores wait for
        those that issue it: as long as it takes comes on top.
        """
        axes, makings = product.axes, product.makings
        beyond = sum(x.read - x.eqn.outs[0].type.nbytes for x in makings)
        given = axes, product.factors, product.dtype, tile, after.moved, caps
        found = mma_seconds(*given, beyond) + sum(
            making_seconds(axes, x, tile, caps) for x in makings
        )
        return found * caps.chip.tuning.made.doubt


def made_tiles(product: Product, tuning: Mma) -> tuple[MmaTile, ...]:
    """The tiles; and for few lines of one operand, where the other is made, those that wait for memory,
    in place of others of their size.
    """
    (rows,), (columns,) = product.axes.rows, product.axes.columns
    named = {str(Split(t)): t for t in tuning.tiles}
    if 1 in product.made:
        named.update({str(Split(t)): t for t in tuning.waiting if rows.size <= t.rows})
    elif product.dtype != FLOAT32:  # as `tiles_for` has it
        turned = (t.turned for t in tuning.waiting)
        named.update({str(Split(t)): t for t in turned if columns.size <= t.columns})
    return tuple(named.values())


def making_seconds(axes: Contraction, making: Making, split: Split, caps: Caps) -> float:
    """The time to make all tiles of an operand; and for its arrays to come from memory once,
    beyond what the operand itself would, and from caches each time.
    """
    (y,), (sums,), tile = making.eqn.outs, axes.sums, split.tile
    handled = caps.chip.tuning.made.handled * len(making.sources)
    lines = (tile.rows, tile.columns)[making.operand]
    done = operations(making.eqn, caps.speed.functions) + handled
    made = count(axes, tile) * lines * sums.size
    computed = made * done / caps.speed.single
    return max(computed, made * making.read / max(y.type.size, 1) / caps.speed.cached)


@final
class GemmWgmmaMade(OfMade, WgmmaKernels):
    """By those of Hopper: threads make elements of the left operand on their way to registers."""

    name, kin = "wgmma product of operands that it makes", "wgmma product and region"

    def unsuited(self, product: Product, caps: Caps) -> str:
        axes, dtype = product.axes, product.dtype
        why = unmatched(axes) or unmade_by_groups(product.makings, dtype)
        return why or of_operand(axes, product.factors, 1, dtype) or thin(axes, caps)

    def unworthy(self, product: Product, caps: Caps) -> str:
        return ""  # others have none of these ahead of them

    def tiles(
        self, product: Product, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, WgmmaTile]]:
        left, chip, (making,) = left_of(product.makings), caps.chip, product.makings
        spread = len(making.sources) > len(making.brought)
        most = chip.tuning.wgmma.crowded if spread else math.inf
        tiles = [t for t in chip.tuning.wgmma.tiles if t.rows * t.columns <= most]
        if after.stores and after.short:
            wide = [t for t in tiles if t.rows > 64]
            tiles += [replace(t, narrow=True) for t in wide]
        fit = [t for t in tiles if stages_of(t, after, chip, left) > 1]
        for tile in sorted(fit, key=lambda t: self.timed(product, t, after, caps)):
            yield named(tile), tile

    def timed(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> float:
        """The time of products, or of the reads and the work that fragments are made by, if that is
        longer.
        """
        wide, left = replace(tile, narrow=False), left_of(product.makings)
        # no less than by wide strips and as many stages: narrow ones take longer, if anything
        lost = tile.stages - min(tile.stages, stages_of(tile, after, caps.chip, left))
        alone = seconds(product.axes, product.dtype, wide, after, caps, lost)
        return alone * longer(product, tile, caps)

    def made(self, product: Product, tile: WgmmaTile, after: Epilogue, caps: Caps) -> Kernels:
        axes, factors, dtype, chip = product.axes, product.operands, product.dtype, caps.chip
        given = axes, factors, (dtype, dtype), tile, chip, after
        made = WarpgroupProduct(*given, product.makings)
        return Kernels((made.kernel(),))


def longer(product: Product, tile: WgmmaTile, caps: Caps) -> float:
    """The time of a stage as a multiple of that of products alone: clocks for an element of the
    left operand, of products, shared memory and the cache, which overlap, and of lanes, which do
    not: those who make operands issue the products. Fitted on an H200 (docs/design/made.md).
    """
    (making,), size, tuning = product.makings, product.dtype.itemsize, caps.chip.tuning
    bytes_ = sum(x.dtype.itemsize for x in making.brought)
    done = operations(making.eqn, caps.speed.functions) + tuning.made.handled * len(making.brought)
    done += len(making.sources) - len(making.brought)
    fed = max((bytes_ + tile.columns * size / 64) / tuning.made.shared,  # each 64 rows read all of the right one
              (bytes_ + tile.columns * size / tile.rows) / tuning.made.cached)  # fmt: skip
    clocks = tuning.wgmma.rate / (2 * tile.columns)  # in which an element is multiplied
    return max(1.0, fed * clocks) + done / tuning.made.lanes * clocks


class Before(Apart):
    """The regions that make operands of a product, then the product and what follows it."""

    joining = ("resident", "prologue")

    def serves(self, op: Op) -> bool:
        return is_contraction(op) and bool(steps_of(op).prologues)


@final
class MadeBefore(Before):
    """The same of a small product."""

    name, kin = "operands that are made before", "small product and region in CUDA"
    code = "made before"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        small = caps is None or is_small(problem, caps)
        return "" if small else "the product is not small"

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        op = steps_of(problem.op)
        first = sum(caps.speed.of(Problem.of(e, problem.target)) for e in op.prologues)
        return first + small_seconds(without(problem, op), caps)


@final
class MadeFirst(Before):
    """The same of a large one. `in_part`: of operands' makers only the last step could be part of the
    product, and the others are there in any case.
    """

    name, kin = "operands in memory, then the product", "wgmma product and region"
    code = "made first"

    def __init__(self, in_part: bool = False) -> None:
        self.in_part = in_part

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return SMALL if caps is not None and is_small(problem, caps) else ""

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        op = steps_of(problem.op)
        first = sum(self.first(e, caps) for e in op.prologues)
        product, small = without(problem, op), CudaSmallProduct()
        if not small.refusal(product, caps):
            return first + small.seconds(product, Variant(), caps)
        return first + quickest(product, caps)

    def first(self, eqn: Eqn, caps: Caps) -> float:
        """The time to make an operand; beyond what the earlier steps take alone, for which
        it writes the operand and reads little more.
        """
        (y,) = eqn.outs
        return (
            y.type.nbytes / caps.speed.moved
            if self.in_part
            else caps.speed.of(Problem.of(eqn, "cuda"))
        )


@lru_cache(16)
def is_small(problem: Problem, caps: Caps) -> bool:
    """True if the product and what follows it are a small product's, were its operands there."""
    op = steps_of(problem.op)
    if op.product.outs[0].type.ndim > 2:
        return False
    product = without(problem, op)
    return not CudaSmallContraction().refusal(product, caps)


def without(problem: Problem, op: ProductSteps) -> Problem:
    """The problem of the product and what follows it, whose operands are there."""
    given = problem.placed(op.graph)
    made = {e.outs[0] for e in op.prologues}

    def operand(role: str, i: int, a: Atom) -> Operand:
        assert isinstance(a, Var)
        order = tight(a.type.shape, range(a.type.ndim))
        return Operand(role, i, order) if a in made or a not in given else given[a]

    if op.is_bare:
        product = replace(op.product, outs=op.rest.outs)
        return Problem.of(product, problem.target, operand)
    return Problem.of(of_steps((*op.products, op.rest)), problem.target, operand)
