"""Generated CUDA: every family writes the launches of a step, given where its arrays are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from ge2.choice.problem import Family, Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.moves import copied, counted, filled, not_a_copy, view_copied
from ge2.codegen.text import Operand
from ge2.ir import ArrayType
from ge2.ops.graphs.region import Region
from ge2.ops.shape import Iota
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.region_variants import regional, variants
from ge2.targets.cuda.emit.split_region import after_one
from ge2.targets.cuda.emit.two_stage_reduce import Kernels

Operands = Sequence[Operand]


class Cuda(Family[Caps, Kernels]):
    """Kernels in CUDA."""

    target = "cuda"

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """The bytes of all arrays once, or the operations, in one launch."""
        return caps.speed.of(problem)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return False


COLUMN = 32  # threads that one column of a reduction keeps busy
LATENCY = 8e-7  # seconds from the request of bytes to their arrival, under load
# bytes requested at once: for a row along threads, for a column of narrow blocks, and for one of wide
# blocks, by the bytes of an element
OF_ROW, OF_COLUMN, OF_WIDE = 1 << 15, 1 << 11, 1 << 7
NOTHING = Variant("nothing", lambda: Kernels(()))  # where there are no elements


class CudaWays(Cuda):
    """A family of several ways, each a variant whose plan writes its kernels."""

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        found: Kernels = variant.plan()
        return found


def in_flight(problem: Problem, variant: Variant, kept: int, caps: Caps) -> int:
    """Bytes that a fold into so many results has requested at once."""
    if variant.name.startswith("rows"):
        return OF_ROW * kept
    if kept > COLUMN * caps.limits.multiprocessors:
        return kept * OF_WIDE * max(t.dtype.itemsize for t in problem.inputs)
    # narrow blocks have a sector of each row: of smaller elements more columns, so fewer rows at once
    size = max(problem.inputs, key=lambda t: t.size).dtype.itemsize
    return kept * OF_COLUMN * size * size // 16


@final
class CudaRegion(CudaWays):
    name = "region in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, Region):
            return f"{op.name} is not a region"
        return unspoken(op.graph)

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        """True if one sum is gone on with, whose rows, or columns, are few."""
        return isinstance(problem.op, Region) and bool(after_one(problem.op))

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float | None:
        """Returns the time; a fold into few results leaves most of a GPU idle, unless it is done in two:
        then what is between them is written and read.
        """
        op = problem.op
        assert isinstance(op, Region)
        speed, kept = caps.speed, max((t.size for t in problem.outs), default=1)
        if after_one(op):
            if variant.name == "in two":
                return speed.of(problem, launches=3)
            part = in_flight(problem, variant, kept, caps) / (speed.moved * LATENCY)
            return speed.of(problem, passes=max(1 / max(part, 1e-6), 1.0))
        if variant.name == "in two":
            return speed.of(problem, passes=1.5, launches=2)
        if not variant.name.startswith("columns"):
            return speed.of(problem)
        busy = min(1.0, kept * COLUMN / caps.limits.threads)
        return speed.of(problem, passes=1 / max(busy, 1e-6), rate=max(busy, 1e-6))

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        region = problem.op
        assert isinstance(region, Region)
        return variants(region, problem.placed(region.graph), caps.chip)


# ---------------------------------------------------------------------------------- moving elements


def copying(x: ArrayType, to: ArrayType, source: Operand, target: Operand, chip: Chip) -> Kernels:
    """A copy from one array, or part of one, to another of the same shape."""
    return regional(*copied(x, to, source, target), chip)


def filling(to: ArrayType, source: Operand | None, target: Operand, chip: Chip) -> Kernels:
    """One number, or zero, in every element of an array."""
    return regional(*filled(to, source, target), chip)


@final
class CudaCopy(Cuda):
    """A view that has to be a copy."""

    name = "copy in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return not_a_copy(problem.op)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        ((source,), (target,)), (x,), (to,) = problem.arrays, problem.inputs, problem.outs
        return regional(*view_copied(problem.op, x, to, source, target), caps.chip)


@final
class CudaConstant(Cuda):
    """Numbers that count along an axis."""

    name = "iota in CUDA"

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        return "" if isinstance(problem.op, Iota) else f"{problem.op.name} counts nothing"

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        outs, chip = problem.arrays[1], caps.chip
        (to,) = problem.outs
        assert isinstance(problem.op, Iota)
        return regional(*counted(problem.op, to, outs[0]), chip)
