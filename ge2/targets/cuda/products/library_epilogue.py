"""Regions that are exactly what a library of products does with its sums before it stores them.

Its GELU is the form with tanh, and what it keeps of it for the backward pass is the value before the
activation. Of a RELU it keeps bits, which are no array of NumPy's, so that its DRELU is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, final

import numpy as np

from ge2.base.dtypes import FLOAT32, FLOAT64, FP8
from ge2.base.record import record
from ge2.ir import Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.products.polynomials import (
    Polynomial,
    given,
    number,
    polynomials,
    positive,
    tanh,
    unknown,
)

SLOPE: Final = math.sqrt(2 / math.pi)  # of GELU's tanh at zero
CUBE: Final = 0.044715  # the factor of its cube
ONE, HALF_OF, THREE = number(1.0), number(0.5), number(3.0)


@final
@record
class Matched:
    """An epilogue by its name in cublasLt.h, and the values that it reads and writes, by their numbers
    among the inputs and then the results of the region's graph: the `result`, a `vector` along columns
    (a bias, or the gradient of one), and a `matrix` (values before an activation); of products of fp8,
    "SCALED", the scales of both factors.

    Equal regions share it, whose variables are others.
    """

    kind: str
    result: int
    vector: int | None = None
    matrix: int | None = None


@final
@record
class Gelu:
    """The form with tanh: its slope at zero, and the factor of the cube."""

    steep: Polynomial
    cube: Polynomial

    def bent(self, x: Polynomial) -> Polynomial:
        return tanh(self.steep * (x + self.cube * x * x * x))

    def of(self, x: Polynomial) -> Polynomial:
        return HALF_OF * x * (ONE + self.bent(x))

    def slope(self, x: Polynomial) -> Polynomial:
        y, steep = self.bent(x), self.steep * (ONE + THREE * self.cube * x * x)
        return HALF_OF * (ONE + y) + HALF_OF * x * (ONE - y * y) * steep


@lru_cache(4)
def gelus(dtype: np.dtype) -> tuple[Gelu, ...]:
    """The function with its constants, and with those that a half type has of them: in programs of
    half types Python's numbers are rounded, which is no reason to take a worse function.
    """
    exact = SLOPE, CUBE
    ways = dict.fromkeys([exact, tuple(float(np.asarray(x).astype(dtype)) for x in exact)])
    return tuple(Gelu(number(steep), number(cube)) for steep, cube in ways)


@lru_cache(64)
def matched(op: ProductRegion) -> Matched | None:
    """The epilogue that the region behind a product is; None if it is none."""
    graph, y = op.region.graph, op.product.outs[0].type
    outs = [v for v in graph.outputs if isinstance(v, Var)]
    if len(op.products) > 1 or len(outs) < len(graph.outputs) or not 1 <= len(outs) <= 2:
        return None
    dot, (a, b) = op.product.op, (x.type for x in op.product.inputs)
    assert isinstance(dot, DotGeneral)
    many = y.ndim - len(dot.free(a, b)[1])
    rows, vectors = tuple(range(many)), tuple(range(many, y.ndim))
    may_be = {FLOAT32, FLOAT64, y.dtype, *(v.type.dtype for v in outs)}
    found = polynomials(graph, vectors, may_be)
    if any(v not in found for v in outs):
        return None
    columns, made = math.prod(y.shape[many:]), [found[v] for v in outs]
    ways = scaled(op.place, graph) if a.dtype in FP8 else forward(op.place, graph, columns)
    for way in (*ways, *backward(op.place, graph, rows)):
        if (order := in_order(way.makes, made)) is not None:
            return in_numbers(way, graph, [outs[n] for n in order])
    return None


@final
@record
class Way:
    """An epilogue: its results, and what it reads."""

    kind: str
    makes: tuple[Polynomial, ...]
    vector: Var | None = None
    matrix: Var | None = None


def in_numbers(way: Way, graph: Graph, outs: list[Var]) -> Matched:
    """An epilogue whose results are those, in its order."""
    values = [*graph.inputs, *graph.outputs]
    result, *more = (len(graph.inputs) + graph.outputs.index(v) for v in outs)
    vector, matrix = (None if v is None else values.index(v) for v in (way.vector, way.matrix))
    second = next(iter(more), None)
    if matrix is None:
        return Matched(way.kind, result, vector, second)
    return Matched(way.kind, result, second if vector is None else vector, matrix)


def forward(place: Var, graph: Graph, columns: int) -> Iterator[Way]:
    """What a library makes of sums, and of a vector that is added to them."""
    vectors = [
        v for v in graph.inputs if v.type.size == columns > 1 and v.type.ndim < place.type.ndim
    ]
    for vector in (None, *vectors):
        x, bias = given(place), "_BIAS" if vector else ""
        if vector is not None:
            x = x + given(vector)
            yield Way("BIAS", (x,), vector)
        yield Way(f"RELU{bias}", (positive(x),), vector)
        for gelu in gelus(place.type.dtype):
            yield Way(f"GELU{bias}", (gelu.of(x),), vector)
            yield Way(f"GELU_AUX{bias}", (gelu.of(x), x), vector)


def scaled(place: Var, graph: Graph) -> Iterator[Way]:
    """What it makes of sums of fp8: they are multiplied by numbers that are in arrays."""
    numbers = [v for v in graph.inputs if v.type.size == 1 and not v.type.weak]
    for one in numbers:
        x = given(place) * given(one)
        yield Way("SCALED", (x,), one)
        for other in numbers:
            yield Way("SCALED", (x * given(other),), one, other)


def backward(place: Var, graph: Graph, rows: tuple[int, ...]) -> Iterator[Way]:
    """What it makes of a cotangent and the values before an activation."""
    for matrix in graph.inputs:
        if matrix.type.shape != place.type.shape or matrix is place:
            continue
        for gelu in gelus(place.type.dtype):
            y = given(place) * gelu.slope(given(matrix))
            yield Way("DGELU", (y,), None, matrix)
            yield Way("DGELU_BGRAD", (y, unknown("sum", y, rows)), None, matrix)


def in_order(wanted: tuple[Polynomial, ...], found: list[Polynomial]) -> list[int] | None:
    """The numbers of the values that are wanted, among as many; None if they are others."""
    if len(wanted) != len(found):
        return None
    numbers = [next((n for n, y in enumerate(found) if y.same(x)), -1) for x in wanted]
    return numbers if sorted(numbers) == [*range(len(found))] else None
