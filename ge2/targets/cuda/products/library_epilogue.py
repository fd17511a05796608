"""The epilogues of a library, recognised by polynomials of their equations."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, FP8
from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import (
    ADD,
    DIV,
    MAX,
    MUL,
    NEG,
    SQUARE,
    SUB,
    TANH,
    ConvertElementType,
    IntegerPow,
)
from ge2.ops.graphs.contraction import steps_of
from ge2.ops.graphs.region import Region
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim
from ge2.ops.special import LOGISTIC

# -------- Pointwise equations as polynomials, so that a function is the same one however it is
# written.
# The unknowns of a polynomial are values that a graph is given, tanh of polynomials, their maxima
# with zero and their sums. Real numbers are added and multiplied: what rounds differently is equal,
# and constants are compared by five digits, since programs have them in float32.


MOST: Final = 64  # terms: no function that is looked for has as many
Powers = frozenset[tuple[Hashable, int]]  # unknowns, each with its power


@final
@record
class Polynomial:
    """A sum of products of unknowns, each with its factor."""

    terms: frozenset[tuple[Powers, float]]

    @staticmethod
    def of(terms: Mapping[Powers, float]) -> Polynomial:
        return Polynomial(frozenset((p, c) for p, c in terms.items() if c))

    @property
    def constant(self) -> float | None:
        """The number that it is; None if it has unknowns."""
        found = dict(self.terms)
        return found.get(frozenset(), 0.0) if not found.keys() - {frozenset()} else None

    def __add__(self, other: Polynomial) -> Polynomial:
        found = defaultdict[Powers, float](float)
        for powers, factor in (*self.terms, *other.terms):
            found[powers] += factor
        return Polynomial.of(found)

    def __mul__(self, other: Polynomial) -> Polynomial:
        found = defaultdict[Powers, float](float)
        for p, c in self.terms:
            for q, d in other.terms:
                both = Counter(dict(p))
                both.update(dict(q))
                found[frozenset(both.items())] += c * d
        return Polynomial.of(found)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + number(-1.0) * other

    @property
    def rounded(self) -> Polynomial:
        """The same with factors of five digits, in polynomials within it as well."""
        return Polynomial(
            frozenset(
                (frozenset((rounded(x), n) for x, n in powers), float(f"{factor:.5g}"))
                for powers, factor in self.terms
            )
        )

    def same(self, other: Polynomial) -> bool:
        return self.rounded == other.rounded


def rounded(unknown: Any) -> Hashable:
    name, inner, *rest = unknown
    return (name, inner.rounded if isinstance(inner, Polynomial) else inner, *rest)


def number(value: float) -> Polynomial:
    return Polynomial.of({frozenset(): float(value)})


def unknown(name: str, of: Hashable, *more: Hashable) -> Polynomial:
    return Polynomial.of({frozenset({((name, of, *more), 1)}): 1.0})


def given(v: Var) -> Polynomial:
    """The elements of an array."""
    return unknown("array", v)


def tanh(x: Polynomial) -> Polynomial:
    return unknown("tanh", x)


def positive(x: Polynomial) -> Polynomial:
    """The maximum with zero."""
    return unknown("positive", x)


def logistic(x: Polynomial) -> Polynomial:
    half = number(0.5)
    return half + half * tanh(half * x)


def product(x: Polynomial, y: Polynomial) -> Polynomial | None:
    return x * y if len(x.terms) * len(y.terms) <= MOST**2 // 4 else None


def power(x: Polynomial, n: int) -> Polynomial | None:
    """A power with a small exponent."""
    found: Polynomial | None = x if 1 <= n <= 4 else None
    for _ in range(n - 1):
        found = found and product(found, x)
    return found


def quotient(x: Polynomial, y: Polynomial) -> Polynomial | None:
    return x * number(1 / y.constant) if y.constant else None


def maximum(x: Polynomial, y: Polynomial) -> Polynomial | None:
    if y.constant == 0.0:
        return positive(x)
    return positive(y) if x.constant == 0.0 else None


RULES: Final[dict[Op, Callable[..., Polynomial | None]]] = {
    ADD: lambda x, y: x + y,
    SUB: lambda x, y: x - y,
    MUL: product,
    NEG: lambda x: number(-1.0) * x,
    SQUARE: lambda x: product(x, x),
    DIV: quotient,
    MAX: maximum,
    TANH: tanh,
    LOGISTIC: logistic,
}


def polynomials(
    graph: Graph, vectors: Collection[int], may_be: Collection[np.dtype]
) -> dict[Var, Polynomial]:
    """The values of a graph that are polynomials. `vectors`: axes along which an input that is a
    vector may be broadcast; `may_be`: dtypes to which values may be rounded, or not.
    """
    found = {v: given(v) for v in graph.inputs}
    for e in graph.eqns:
        values = [value_of(a, found) for a in e.inputs]
        known = [x for x in values if x is not None]
        made = made_of(e, known, vectors, may_be) if len(known) == len(values) else None
        if made is not None and len(made.terms) <= MOST:
            found[e.outs[0]] = made
    return found


def value_of(a: Atom, found: Mapping[Var, Polynomial]) -> Polynomial | None:
    if not isinstance(a, Literal):
        return found.get(a)
    real = np.isrealobj(a.value) and np.isfinite(float(a.value))  # type: ignore[arg-type]
    return number(float(a.value)) if real else None  # type: ignore[arg-type]


def made_of(
    e: Eqn, values: Iterable[Polynomial], vectors: Collection[int], may_be: Collection[np.dtype]
) -> Polynomial | None:
    """The polynomial that an equation makes of others; None if that is none."""
    values = [*values]
    if not values:
        return None  # such as counts along an axis
    first = values[0]
    if (rule := RULES.get(e.op)) is not None:
        return rule(*values)
    if isinstance(e.op, IntegerPow):
        return power(first, e.op.y)
    if isinstance(e.op, ConvertElementType):
        return first if e.op.dtype in may_be else None
    if isinstance(e.op, BroadcastInDim):
        (x,) = e.inputs
        wide = tuple(d for d, n in zip(e.op.dims, x.type.shape, strict=True) if n != 1)
        whole = wide == tuple(d for d in vectors if e.op.shape[d] != 1)
        return first if x.type.size == 1 or whole else None
    return unknown("sum", first, e.op.axes) if isinstance(e.op, ReduceSum) else None


# -------- Regions that are exactly what a library of products does with its sums before it stores
# them.
# Its GELU is the form with tanh, and what it keeps of it for the backward pass is the value before
# the activation. Of a RELU it keeps bits, which are no array of NumPy's, so that its DRELU is
# nobody's.


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
def matched(whole: Region) -> Matched | None:
    """The epilogue that what is behind a product is, in a contraction; None if it is none."""
    op = steps_of(whole)
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
    ways = scaled(op.places[0], graph) if a.dtype in FP8 else forward(op.places[0], graph, columns)
    for way in (*ways, *backward(op.places[0], graph, rows)):
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
    """The results of a library: of sums, and of a vector that is added to them."""
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
    """The same of sums of fp8, which are multiplied by numbers that are in arrays."""
    numbers = [v for v in graph.inputs if v.type.size == 1 and not v.type.weak]
    for one in numbers:
        x = given(place) * given(one)
        yield Way("SCALED", (x,), one)
        for other in numbers:
            yield Way("SCALED", (x * given(other),), one, other)


def backward(place: Var, graph: Graph, rows: tuple[int, ...]) -> Iterator[Way]:
    """The same of a cotangent and the values before an activation."""
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
