"""A product by the device's library with what the library itself does to its sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import final

import numpy as np

from ge2.base.dtypes import BFLOAT16, FLOAT16, FLOAT32, FP8
from ge2.base.errors import CompileError
from ge2.choice.problem import Problem, Variant
from ge2.codegen.layout import unspoken
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Dims, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.two_stage_reduce import Kernels, LibraryLaunch
from ge2.targets.cuda.kernels.generated import Cuda, copying
from ge2.targets.cuda.kernels.products import (
    Matrices,
    alignment,
    library_seconds,
    matrices,
    multiple,
    rounds,
)
from ge2.targets.cuda.launch.product import LibraryEpilogue
from ge2.targets.cuda.products.gemm import tight
from ge2.targets.cuda.products.library_epilogue import Matched, matched

BY_LIBRARY = {
    (BFLOAT16, BFLOAT16), (BFLOAT16, FLOAT32), (FLOAT16, FLOAT16), (FLOAT16, FLOAT32), (FLOAT32, FLOAT32),
}  # fmt: skip
ROWS_OF = 8  # elements of which the rows of values before an activation are a multiple


@final
class BlasEpilogue(Cuda):
    """A product and a region that is exactly one of the library's epilogues."""

    name, kin = "product by BLAS and its epilogue", "launches, step by step"
    over = False  # of which the library says nothing

    def refuses(self, problem: Problem, caps: Caps | None) -> str:
        op = problem.op
        if not isinstance(op, ProductRegion):
            return f"{op.name} is not a product and a region"
        if op.prologues:
            return "operands of the product are made of others"
        if why := unspoken(op.region.graph):
            return why
        if (found := matched(op)) is None:
            return "what comes after the product is none of the library's epilogues"
        if why := untyped(op, found):
            return why
        if caps is None or not problem.settled:
            return ""
        return misplaced(problem, found, caps)

    def seconds(self, problem: Problem, variant: Variant, caps: Caps) -> float:
        """What the bare product takes, and for each element what was measured of GELU and a bias; far
        longer where rows are no multiples of 16 bytes apart. Other arrays are moved beside it.
        """
        op, tuning, given = problem.op, caps.chip.tuning.products, problem.arrays[0]
        assert isinstance(op, ProductRegion)
        product, result = Problem.of(op.product, problem.target), op.rest.outs[0].type
        placed = dict(zip(op.graph.inputs, given, strict=True))
        factors = [placed[x] for x in op.product.inputs if isinstance(x, Var)]
        row = result.shape[-1] * result.dtype.itemsize
        bytes_ = math.gcd(16, row, multiple(product.inputs, factors))
        found = library_seconds(product, caps, bytes_)
        if rounds(product) and bytes_ < 16:
            found *= tuning.narrow_epilogue
        others = (*op.rest.inputs, *op.rest.outs[1:])
        more = sum(v.type.nbytes for v in others) - product.outs[0].nbytes
        found += result.size * tuning.epilogue + more / caps.speed.moved
        return found * (1 + 0.01 * (variant.plan or 0))

    def is_ranked(self, problem: Problem, caps: Caps | None) -> bool:
        return True

    def variants(self, problem: Problem, caps: Caps) -> Iterator[Variant]:
        """Returns what the library thinks best, then its further algorithms for the product."""
        yield Variant()
        for n in range(1, caps.chip.tuning.products.algorithms):
            asked = asked_of(problem, caps, n)
            if asked is None or caps.product(asked.wanted) is None:
                return
            yield Variant(f"algorithm {n + 1}", n)

    def kernels(self, problem: Problem, variant: Variant, caps: Caps) -> Kernels:
        """The launch. CompileError if the library turns out to have no such product, which only the
        device says: the next candidate serves then.
        """
        op = problem.op
        assert isinstance(op, ProductRegion)
        asked, found = asked_of(problem, caps, variant.plan or 0), matched(op)
        call = asked and caps.product(asked.wanted)
        if asked is None or found is None or call is None:
            raise CompileError(f"the library has no such product: {self.name}", fix="ge2.explain")
        kernels = [
            each
            for t, source, target in asked.copies
            for each in copying(t, t, source, target, caps.chip).kernels
        ]
        values, lies = (*op.region.graph.inputs, *op.region.graph.outputs), operands_of(problem)
        a, out = op.product.inputs[0].type.dtype, values[found.result].type.dtype
        more = [n for n in (found.vector, found.matrix) if n is not None]
        operands = [*zip(asked.operands, (a, a, out), strict=True)]
        operands += [(lies[n], values[n].type.dtype) for n in more]
        first = len(op.region.graph.inputs)  # of the results
        written = {2, *(3 + i for i, n in enumerate(more) if n >= first)}
        temps = tuple(t.nbytes for t, _, _ in asked.copies)
        launch = LibraryLaunch(call, tuple(operands), frozenset(written))
        return Kernels(tuple(kernels), temps, launch)


def untyped(op: ProductRegion, found: Matched) -> str:
    """The reason why the library has no such epilogue of these types; "" if it may have."""
    graph = op.region.graph
    values = (*graph.inputs, *graph.outputs)
    left, right = (x.type.dtype for x in op.product.inputs)
    out, more = (
        values[found.result].type.dtype,
        [n for n in (found.vector, found.matrix) if n is not None],
    )
    if left in FP8:
        scales = found.kind == "SCALED" and all(values[n].type.dtype == FLOAT32 for n in more)
        return "" if scales else "sums of fp8 are only scaled, by numbers in float32"
    if left != right or (left, out) not in BY_LIBRARY:
        return f"the library has no epilogue of {left.name} to {out.name}"
    if "GELU" in found.kind and (coarse := coarsely(out, graph.outputs[0].type.shape)):
        return f"the library's GELU has a tanh that is too coarse {coarse}"
    same = all(values[n].type.dtype == out for n in more)
    return "" if same else f"its further arrays are not all {out.name}"


def coarsely(dtype: np.dtype, shape: Dims) -> str:
    """Of which values the library's tanh is further off than their own rounding: on an H200 by 2 units
    of float16 near 0, and of bfloat16 by 5 in rows of no whole 16 bytes.
    """
    if dtype != BFLOAT16:
        return f"for {dtype.name}"
    return "in rows of no whole 16 bytes" if shape[-1] % 8 else ""


def operands_of(problem: Problem) -> dict[int, Operand]:
    """Where the inputs and then the results of the region are, but for the product, by number."""
    op = problem.op
    assert isinstance(op, ProductRegion)
    given = problem.placed(op.graph)
    places = (*op.rest.inputs, *op.rest.outs)
    return {n: given[v] for n, v in enumerate(places) if isinstance(v, Var) and v in given}


def misplaced(problem: Problem, found: Matched, caps: Caps) -> str:
    """The reason why arrays lie as the library takes none; "" if it does."""
    op = problem.op
    assert isinstance(op, ProductRegion)
    lies, y = operands_of(problem), op.product.outs[0].type
    values = (*op.region.graph.inputs, *op.region.graph.outputs)
    if any(x.value for x in lies.values()):
        return "a number that it reads is in no array"
    if found.vector is not None:
        t = values[found.vector].type
        if not in_order(t, lies[found.vector]):
            return "the elements of its vector are not neighbours"
    n = found.matrix
    if n is not None and found.kind != "SCALED" and lead_of(y, lies[n], columns_of(op)) % ROWS_OF:
        return f"rows of its matrix are no multiples of {ROWS_OF} elements apart"
    asked = asked_of(problem, caps, 0)
    return "" if asked is not None else "BLAS takes no matrices that lie so, in one call"


def columns_of(op: ProductRegion) -> int:
    """The elements of a row of the result."""
    dot, (a, b) = op.product.op, (x.type for x in op.product.inputs)
    assert isinstance(dot, DotGeneral)
    return math.prod(b.shape[axis] for axis in dot.free(a, b)[1])


def in_order(t: ArrayType, x: Operand) -> bool:
    order = tight(t.shape, range(t.ndim))
    return all(n == 1 or s == w for n, s, w in zip(t.shape, x.strides, order, strict=True))


def lead_of(t: ArrayType, x: Operand, columns: int) -> int:
    """Elements from a row of a matrix to the next; an odd number if they do not lie so."""
    if t.ndim == 2 and x.strides[1] == 1 and x.strides[0] >= columns:
        return x.strides[0]
    return columns if in_order(t, x) else 1


def asked_of(problem: Problem, caps: Caps, algorithm: int) -> Matrices | None:
    """The product as the library is asked for it; None if it takes several calls, or results that
    are rows are no columns of the library's.
    """
    op = problem.op
    assert isinstance(op, ProductRegion)
    found, given, lies = matched(op), problem.placed(op.graph), operands_of(problem)
    if found is None:
        return None
    factors = [given[x] for x in op.product.inputs if isinstance(x, Var)]
    out = (*op.region.graph.inputs, *op.region.graph.outputs)[found.result].type
    types = tuple(x.type for x in op.product.inputs)
    inner = Problem(
        op.product.op, types, (out,), problem.target, operands=(*factors, lies[found.result])
    )
    asked = matrices(inner, caps, algorithm)
    columns = columns_of(op)
    if asked is None or not one_by_columns(asked, columns):
        return None
    n, scaled = found.matrix, found.kind == "SCALED"
    lead = 0 if n is None or scaled else lead_of(out, lies[n], columns)
    vector, matrix = (aligned(each, lies, out.dtype) for each in (found.vector, n))
    epilogue = LibraryEpilogue(found.kind, vector, matrix, lead)
    return replace(asked, wanted=replace(asked.wanted, epilogue=epilogue))


def one_by_columns(asked: Matrices, columns: int) -> bool:
    """True of one product whose columns, for the library, are our rows: so its vectors are ours."""
    g = asked.wanted.gemm
    return len(g.calls) == g.count == 1 and g.second and g.m == columns


def aligned(n: int | None, lies: dict[int, Operand], dtype: np.dtype) -> int:
    return 0 if n is None else math.gcd(16, alignment(lies[n], dtype.itemsize))
