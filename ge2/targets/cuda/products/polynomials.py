"""Pointwise equations as polynomials, so that a function is the same one however it is written.

The unknowns of a polynomial are values that a graph is given, tanh of polynomials, their maxima with
zero and their sums. Real numbers are added and multiplied: what rounds differently is equal, and
constants are compared by five digits, since programs have them in float32.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final, final

import numpy as np

from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var
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
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim
from ge2.ops.special import LOGISTIC

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
    """What an equation makes of polynomials; None if that is none."""
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
