"""What the families of products on tensor cores have in common: a bare product, and one that a
region goes on with, by kernels of one or the other kind.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

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
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.emit.two_stage_reduce import Kernels
from ge2.targets.cuda.kernels.generated import Cuda
from ge2.targets.cuda.kernels.products import axes_of, precision, refusal
from ge2.targets.cuda.products.gemm import Contraction, contraction, tight
from ge2.targets.cuda.products.tensor_cores import TYPES
from ge2.targets.cuda.products.tensor_epilogue import Epilogue, RegionEpilogue

Factors = tuple[Operand, Operand]


def unable(op: Op, dtype: np.dtype, other: np.dtype) -> str:
    """The reason why tensor cores do not multiply such operands; "" if they do."""
    if dtype not in TYPES or other != dtype:
        return f"it does not multiply {dtype.name} and {other.name}"
    if dtype == FLOAT32 and precision(op) != "tf32":
        return "float32 is not to be rounded to tf32"
    return ""


class OnTensorCores(Cuda):
    """Kernels of one kind, whose variants are tiles."""

    @abstractmethod
    def unsuited(self, axes: Contraction, factors: Factors, dtype: np.dtype, caps: Caps) -> str:
        """The reason why operands that lie so are for others; "" if they are not."""

    @abstractmethod
    def too_old(self, caps: Caps) -> str:
        """The reason why a chip does not have the instructions; "" if it does."""

    @abstractmethod
    def tiles(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, after: Epilogue, caps: Caps
    ) -> Iterator[tuple[str, Any]]:
        """The tiles that a product may be done in, by name, the quickest first."""

    @abstractmethod
    def timed(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: Any, caps: Caps
    ) -> float:
        """The predicted seconds of a product in such tiles."""

    @abstractmethod
    def made(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, tile: Any, caps: Caps,
        after: Epilogue,
    ) -> Kernels:  # fmt: skip
        """The kernels."""

    def offered(
        self, axes: Contraction, factors: Factors, dtype: np.dtype, after: Epilogue, caps: Caps
    ) -> Iterator[Variant]:
        for name, tile in self.tiles(axes, factors, dtype, after, caps):
            yield Variant(name, (tile, after))


class Bare(OnTensorCores):
    """A bare product."""

    @abstractmethod
    def stored(self, out: np.dtype, result: Operand, row: int, rows: int, columns: int) -> Epilogue:
        """How the sums leave as they are, in rows that lie `row` elements apart."""

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        if reason := refusal(problem):
            return reason
        if caps is None or not problem.settled:
            return "it is not known how the operands lie"
        (a, b), (y,) = problem.inputs, problem.outs
        if why := self.too_old(caps) or unable(problem.op, a.dtype, b.dtype):
            return why
        if y.dtype not in (a.dtype, FLOAT32):
            return f"it does not sum to {y.dtype.name}"
        if not (a.size and b.size):
            return "there is nothing to multiply"
        return self.unsuited(*self.matrices(problem), caps)

    def matrices(self, problem: Problem) -> tuple[Contraction, Factors, np.dtype]:
        left, right = problem.arrays[0]
        return axes_of(problem), (left, right), problem.inputs[0].dtype

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        axes, factors, dtype = self.matrices(problem)
        (rows,), (columns,), (result,) = axes.rows, axes.columns, problem.arrays[1]
        lines = math.prod(x.size for x in axes.batches) * rows.size
        after = self.stored(problem.outs[0].dtype, result, rows.y, lines, columns.size)
        yield from self.offered(axes, factors, dtype, after, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        return self.timed(*self.matrices(problem), variant.plan[0], caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        tile, after = variant.plan
        return self.made(*self.matrices(problem), tile, caps, after)


class Joint(OnTensorCores):
    """A product that a region goes on with, its sums never rounded between."""

    def epilogue(self, found: RegionEpilogue) -> Epilogue:
        """The form in which elements leave."""
        return found.of()

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ProductRegion):
            return f"{op.name} is not a product and a region"
        if why := next((why for e in op.region.graph.eqns if (why := unspoken(e))), ""):
            return why
        left, right = (x.type.dtype for x in op.product.inputs)
        if why := (self.too_old(caps) if caps else "") or unable(op.product.op, left, right):
            return why
        if caps is None or not problem.settled:
            return ""
        why = self.unsuited(*matrices_of(problem, op), caps)
        return why or epilogue_of(problem, op, caps.chip).refused()

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        op = problem.op
        assert isinstance(op, ProductRegion)
        after = self.epilogue(epilogue_of(problem, op, caps.chip))
        yield from self.offered(*matrices_of(problem, op), after, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        op = problem.op
        assert isinstance(op, ProductRegion)
        return self.timed(*matrices_of(problem, op), variant.plan[0], caps)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        op, (tile, after) = problem.op, variant.plan
        assert isinstance(op, ProductRegion)
        return self.made(*matrices_of(problem, op), tile, caps, after)


def one(kernel: CudaKernel) -> Kernels:
    return Kernels((kernel,))


def matrices_of(problem: Problem, op: ProductRegion) -> tuple[Contraction, Factors, np.dtype]:
    """The axes of the product, whose result is taken to be in C order, its factors and their
    dtype.
    """
    given = dict(zip(op.graph.inputs, problem.arrays[0], strict=True))
    (a, b), y, dot = op.product.inputs, op.product.outs[0].type, op.product.op
    assert isinstance(dot, DotGeneral) and isinstance(a, Var) and isinstance(b, Var)
    factors = given[a], given[b]
    lie = factors[0].strides, factors[1].strides, tight(y.shape, range(y.ndim))
    return contraction(dot, a.type, b.type, lie), factors, a.type.dtype


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
