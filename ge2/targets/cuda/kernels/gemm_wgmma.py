"""Matrix products on Hopper's tensor cores, bare or with the elementwise work on their result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32
from ge2.choice.problem import Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Operand
from ge2.ir import Atom, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import axes_of, precision, refusal
from ge2.targets.cuda.products.gemm import Contraction, contraction, tight
from ge2.targets.cuda.products.wgmma import TYPES, Wgmma, tiles_of, unfit
from ge2.targets.cuda.products.wgmma_epilogue import Epilogue, RegionEpilogue, stored_alone
from ge2.targets.cuda.tuning import WgmmaTile

HOPPER: Final = 90  # the only generation that has these instructions


def unable(op: Op, dtype: np.dtype, other: np.dtype, caps: Caps | None) -> str:
    """The reason why a chip does not multiply such operands so; "" if it does."""
    if caps is not None and caps.limits.generation != HOPPER:
        return "only GPUs of compute capability 9.0 have these instructions"
    if dtype not in TYPES or other != dtype:
        return f"it does not multiply {dtype.name} and {other.name}"
    if dtype == FLOAT32 and precision(op) != "tf32":
        return "float32 is not to be rounded to tf32"
    return ""


def unworthy(axes: Contraction, dtype: np.dtype, caps: Caps) -> str:
    """The reason why a library is thought to be better at a product; "" if none is known."""
    (rows,), (columns,), (sums,), tuning = (
        axes.rows,
        axes.columns,
        axes.sums,
        caps.chip.tuning.wgmma,
    )
    if min(rows.size, columns.size) < tuning.thin:
        return f"it has fewer than {tuning.thin} rows or columns"
    best = min(seconds(axes, dtype, tile, caps) for tile in tuning.fragments) - caps.speed.launch
    batches, rate = math.prod(x.size for x in axes.batches), rate_of(dtype, caps)
    whole = (
        2 * batches * rows.size * columns.size * sums.size / (rate * caps.limits.multiprocessors)
    )
    if sums.size >= tuning.long and best > tuning.idle * whole:
        return (
            "its tiles leave a part of the GPU idle, and its sums are long: they are better split"
        )
    return ""


def rate_of(dtype: np.dtype, caps: Caps) -> float:
    """Operations of a multiprocessor in a second."""
    tuning = caps.chip.tuning.wgmma
    return tuning.clock * (tuning.rate if dtype.itemsize == 2 else tuning.rate // 2)


def seconds(axes: Contraction, dtype: np.dtype, tile: WgmmaTile, caps: Caps) -> float:
    """What waves of tiles take."""
    (rows,), (columns,), (sums,) = axes.rows, axes.columns, axes.sums
    batches = math.prod(x.size for x in axes.batches)
    waves = -(-batches * tiles_of(rows.size, columns.size, tile) // caps.limits.multiprocessors)
    done = 2 * waves * tile.rows * tile.columns * sums.size * tile.cost
    return caps.speed.launch + done / rate_of(dtype, caps)


def variants(axes: Contraction, dtype: np.dtype, after: Epilogue, caps: Caps) -> Iterator[Variant]:
    """A variant a tile, the quickest first."""
    tuning = caps.chip.tuning.wgmma
    tiles = tuning.fragments if after.turning == 1 and not after.loads else tuning.others
    for tile in sorted(tiles, key=lambda t: seconds(axes, dtype, t, caps)):
        yield Variant(f"{tile.rows} x {tile.columns}", (tile, after))


@final
class GemmWgmma(Cuda):
    """A bare product."""

    name = "wgmma product"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        if caps is None or not problem.settled:
            return "it is not known how the operands lie"
        (a, b), (y,) = problem.inputs, problem.outs
        if why := unable(problem.op, a.dtype, b.dtype, caps):
            return why
        if y.dtype not in (a.dtype, FLOAT32):
            return f"it does not sum to {y.dtype.name}"
        if not (a.size and b.size):
            return "there is nothing to multiply"
        axes = axes_of(problem)
        return unfit(axes, problem.arrays[0], a.dtype) or unworthy(axes, a.dtype, caps)

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        axes, (result,) = axes_of(problem), problem.arrays[1]
        batches = math.prod(x.size for x in axes.batches)
        rows, columns = axes.rows[0], axes.columns[0]
        lines = batches * rows.size
        after = stored_alone(problem.outs[0].dtype, result, rows.y, lines, columns.size)
        yield from variants(axes, problem.inputs[0].dtype, after, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        return seconds(axes_of(problem), problem.inputs[0].dtype, variant.plan[0], caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        tile, after = variant.plan
        dtype = problem.inputs[0].dtype
        factors = problem.arrays[0][0], problem.arrays[0][1]
        return Kernels((Wgmma(axes_of(problem), factors, dtype, tile, caps.chip, after).kernel(),))


@final
class GemmWgmmaRegion(Cuda):
    """A product that a region goes on with, its sums never rounded between."""

    name = "wgmma product and region"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ProductRegion):
            return f"{op.name} is not a product and a region"
        if why := next((why for e in op.region.graph.eqns if (why := unspoken(e))), ""):
            return why
        left, right = (x.type.dtype for x in op.product.inputs)
        if why := unable(op.product.op, left, right, caps):
            return why
        if caps is None or not problem.settled:
            return ""
        axes, factors = product_of(problem, op)
        if why := unfit(axes, factors, left) or unworthy(axes, left, caps):
            return why
        return epilogue_of(problem, op, caps.chip).refused()

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        op = problem.op
        assert isinstance(op, ProductRegion)
        axes, _ = product_of(problem, op)
        after = epilogue_of(problem, op, caps.chip).of()
        yield from variants(axes, op.product.inputs[0].type.dtype, after, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        op = problem.op
        assert isinstance(op, ProductRegion)
        axes, _ = product_of(problem, op)
        return seconds(axes, op.product.inputs[0].type.dtype, variant.plan[0], caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op, (tile, after) = problem.op, variant.plan
        assert isinstance(op, ProductRegion)
        axes, factors = product_of(problem, op)
        dtype = op.product.inputs[0].type.dtype
        return Kernels((Wgmma(axes, factors, dtype, tile, caps.chip, after).kernel(),))


def product_of(problem: Problem, op: ProductRegion) -> tuple[Contraction, tuple[Operand, Operand]]:
    """The axes of the product, whose result is taken to be in C order, and its factors."""
    given = dict(zip(op.graph.inputs, problem.arrays[0], strict=True))
    (a, b), y, dot = op.product.inputs, op.product.outs[0].type, op.product.op
    assert isinstance(dot, DotGeneral) and isinstance(a, Var) and isinstance(b, Var)
    factors = given[a], given[b]
    order = tight(y.shape, range(y.ndim))
    return contraction(
        dot, a.type, b.type, (factors[0].strides, factors[1].strides, order)
    ), factors


def epilogue_of(problem: Problem, op: ProductRegion, chip: Chip) -> RegionEpilogue:
    """The region, whose values are where the problem says."""
    ins, outs = problem.arrays
    given: dict[Atom, Operand] = dict(zip(op.graph.inputs, ins, strict=True))
    given.update(zip(op.graph.outputs, outs, strict=True))
    inner, rest, dot = op.region.graph, op.rest, op.product.op
    assert isinstance(dot, DotGeneral)
    pairs = zip((*inner.inputs, *inner.outputs), (*rest.inputs, *rest.outs), strict=True)
    operands = {v: given[a] for v, a in pairs if isinstance(v, Var) and a in given}
    a, b = (x.type for x in op.product.inputs)
    return RegionEpilogue(op.region, op.place, operands, len(dot.free(a, b)[1]), chip)
