"""Lengths before they are differentiated: absolute values, `hypot`, roots of sums of squares.

A length has no derivative where it is 0; it counts as 0 there, in every order. Its even powers have
all derivatives, which the chain rule would lose: they are computed from its square.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOATS
from ge2.base.source import Source
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var, rename
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import (
    ABS,
    ADD,
    DIV,
    EQ,
    HYPOT,
    IMAG,
    MAX,
    MUL,
    POSITIVE,
    REAL_PART,
    SQRT,
    SQUARE,
    WHERE,
    ConvertElementType,
    IntegerPow,
)
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim, Reshape, Transpose
from ge2.trace import tidy

LENGTHS: Final = (ABS, HYPOT, SQRT)
MOVES: Final = (ReduceSum, BroadcastInDim, Reshape, Transpose, ConvertElementType)


def smooth(graph: Graph) -> Graph:
    """The graph with even powers of lengths as powers of squares, and lengths of 0 held constant."""
    if not any(e.op in LENGTHS for e in graph.eqns):
        return graph
    return Smoothing(tidy(graph)).graph()  # tidy: equal values are one


@final
class Smoothing:
    """The equations so far, and what is known of their results."""

    def __init__(self, graph: Graph) -> None:
        self.given = graph
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.sums: set[Atom] = set()  # sums of squares of real numbers, by a positive number
        self.positive: set[Atom] = set()  # numbers that are not negative
        self.squares: dict[Atom, tuple[Atom, ...]] = {}  # a length: whose squares add up to its own
        self.roots: dict[Atom, Atom] = {}  # a length: its square
        self.source: Source | None = None

    def graph(self) -> Graph:
        for eqn in self.given.eqns:
            self.source = eqn.source
            inputs = rename(self.env, eqn.inputs)
            eqn = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
            if len(eqn.outs) != 1 or not self.power(eqn):
                self.eqns.append(eqn)
                self.learn(eqn)
        g = self.given
        return Graph(g.inputs, tuple(self.eqns), rename(self.env, g.outputs), g.consts)

    def made(self, op: Op, *inputs: Atom) -> Atom:
        out = Var(op.infer(*(a.type for a in inputs))[0])
        self.eqns.append(Eqn(op, inputs, (out,), self.source))
        return out

    def power(self, eqn: Eqn) -> bool:
        """Puts an even power of a length as one of its square; False for another equation."""
        times, base = even_power(eqn)
        parts = self.squares.get(base)
        if not times or (parts is None and base not in self.roots):
            return False
        if parts is not None and len(parts) == 1:  # of an absolute value: the sign is no matter
            self.eqns.append(Eqn(eqn.op, parts * len(eqn.inputs), eqn.outs, eqn.source))
            self.learn(eqn)
            return True
        square = self.roots.get(base)
        if square is None:
            assert parts is not None
            square = self.roots[base] = self.made(ADD, *(self.made(SQUARE, p) for p in parts))
        op: Op = POSITIVE if times == 1 else IntegerPow(times)
        self.eqns.append(Eqn(op, (square,), eqn.outs, eqn.source))
        return True

    def learn(self, eqn: Eqn) -> None:
        """Records what the equation makes known."""
        op, (out, *more) = eqn.op, eqn.outs
        if more or not eqn.inputs:
            return
        a = eqn.inputs[0]
        if is_sum(eqn, self.sums, self.positive):
            self.sums.add(out)
        bounded = op is MAX and any(map(is_positive, eqn.inputs))
        if bounded or (isinstance(op, MOVES) and a in self.positive):
            self.positive.add(out)
        if op is ABS and a.type.dtype in COMPLEX:
            self.squares[out] = self.made(REAL_PART, a), self.made(IMAG, a)
        elif (op is ABS and a.type == out.type) or op is HYPOT:
            self.squares[out] = eqn.inputs
        elif op is SQRT and a in self.sums and a.type == out.type:
            self.hold(eqn, a)
        elif isinstance(op, ConvertElementType) and a in self.squares:  # of a Python number, say
            self.squares[out] = tuple(self.made(op, p) for p in self.squares[a])
        elif isinstance(op, ConvertElementType) and a in self.roots:
            self.roots[out] = self.made(op, self.roots[a])

    def hold(self, eqn: Eqn, total: Atom) -> None:
        """Puts a root of 0 as the number 0, which has no derivative."""
        self.eqns.pop()
        (out,) = eqn.outs
        nothing, one = (number(total, n) for n in (0, 1))
        none = self.made(EQ, total, nothing)
        root = self.made(SQRT, self.made(WHERE, none, one, total))
        self.eqns.append(Eqn(WHERE, (none, nothing, root), eqn.outs, eqn.source))
        self.roots[out] = total


def number(like: Atom, value: int) -> Literal:
    t = like.type
    return Literal.of(float(value) if t.weak else t.dtype.type(value))


def even_power(eqn: Eqn) -> tuple[int, Atom]:
    """Half the exponent and the base of an even power that is positive; 0 for another equation."""
    op, a = eqn.op, eqn.inputs[0] if eqn.inputs else eqn.outs[0]
    if op is SQUARE or (op is MUL and a is eqn.inputs[1]):
        return 1, a
    if isinstance(op, IntegerPow) and op.y > 0 and op.y % 2 == 0:
        return op.y // 2, a
    return 0, a


def is_positive(x: Atom) -> bool:
    return (
        isinstance(x, Literal)
        and x.type.dtype not in COMPLEX
        and bool(np.greater_equal(x.value, 0))
    )


def is_no_number(x: Atom) -> bool:
    """True for 0 and NaN."""
    return isinstance(x, Literal) and bool(x.value == 0 or x.value != x.value)


def is_sum(eqn: Eqn, sums: set[Atom], positive: set[Atom]) -> bool:
    """True if the result is a sum of squares of real numbers, by a positive number."""
    op, a = eqn.op, eqn.inputs[0]
    if eqn.outs[0].type.dtype not in FLOATS:
        return False
    if even_power(eqn)[0] == 1:
        return True
    if isinstance(op, DotGeneral):
        (mine, theirs), beside = op.contract, op.beside
        whole = len(mine) + len(beside[0]) == len(a.type.shape)
        return a is eqn.inputs[1] and mine == theirs and beside[0] == beside[1] and whole
    if isinstance(op, MOVES):
        return a in sums
    if op is ADD:
        return all(x in sums for x in eqn.inputs)
    if op is WHERE:
        return all(x in sums or is_no_number(x) for x in eqn.inputs[1:])
    if op is not MUL and op is not DIV:
        return False
    total, by = eqn.inputs if a in sums or op is DIV else eqn.inputs[::-1]
    return total in sums and (by in positive or is_positive(by))
