"""What the statements of a resident kernel read, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

from ge2.ir import Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.reduce import ArgReduce, kept
from ge2.targets.cuda.persistent.index_text import Index
from ge2.targets.cuda.persistent.nodes import E, Statement
from ge2.targets.cuda.persistent.values import (
    POINTS,
    Array,
    Made,
    Number,
    Picked,
    Reader,
    Value,
    whole,
)


@final
class Readers:
    """Who reads each value of a graph, and how often."""

    def __init__(self, graph: Graph) -> None:
        self.found: dict[Var, list[Eqn]] = {}
        for eqn in graph.eqns:
            for a in eqn.inputs:
                if isinstance(a, Var):
                    self.found.setdefault(a, []).append(eqn)

    def count(self, v: Var) -> int:
        return len(self.found.get(v, ()))

    def of(self, v: Var) -> Eqn:
        """The only one."""
        return self.found[v][0]


def readers(graph: Graph) -> Readers:
    return Readers(graph)


def placed(pair: Array, side: str) -> Array:
    """One of the two places of a carry."""
    n = pair.type.size
    return whole(pair.name, pair.type, side if n == 1 else f"{side} * {n}", shared=True)


def part(x: Value, number: str) -> Value:
    """An element of a stack."""
    if isinstance(x, Array) and not x.mine:
        return x.part(number)
    return x if isinstance(x, Number) else Picked(x, number, x.type.with_shape(x.type.shape[1:]))


def folded_axes(eqn: Eqn) -> tuple[int, ...]:
    op: Any = eqn.op
    return (op.axis,) if isinstance(op, ArgReduce) else op.axes


def taken(eqn: Eqn, e: str, k: str) -> Index:
    """The place in what is folded, of element `k` of those that become element `e`."""
    (x,), axes = eqn.inputs, folded_axes(eqn)
    shape = x.type.shape
    left = kept(axes, len(shape))
    count = math.prod(shape[a] for a in axes)
    if axes == tuple(range(len(left), len(shape))):
        flat = k if not left or math.prod(shape[a] for a in left) == 1 else f"{e} * {count} + {k}"
        return Index(shape, flat)
    inner = Index(tuple(shape[a] for a in axes), k).each()
    outer = Index(tuple(shape[a] for a in left), e).each()
    along = [""] * len(shape)
    for a, text in (*zip(axes, inner, strict=True), *zip(left, outer, strict=True)):
        along[a] = text
    return Index(shape, "", tuple(along))


def multiplied(eqn: Eqn, e: str, k: str) -> tuple[Index, Index]:
    """The places in both operands of a product."""
    op, (a, b), (y,) = eqn.op, (x.type for x in eqn.inputs), eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a, b)
    each = Index(y.type.shape, e).each()
    beside, rest = each[: len(op.beside[0])], each[len(op.beside[0]) :]
    sums = Index(tuple(a.shape[i] for i in op.contract[0]), k).each()
    found = []
    for n, (t, free) in enumerate(((a, free_a), (b, free_b))):
        own = rest[: len(free_a)] if n == 0 else rest[len(free_a) :]
        pairs = (*zip(op.beside[n], beside, strict=True), *zip(op.contract[n], sums, strict=True))
        at: Mapping[int, str] = dict((*pairs, *zip(free, own, strict=True)))
        found.append(Index(t.shape, "", tuple(at[i] for i in range(t.ndim))))
    return found[0], found[1]


Read = tuple[Made | Array, bool]  # with whether it is at the own place of what reads


def reads(s: Statement) -> list[Read]:
    """The results of statements, and the arrays, that a statement reads, and
    whether at its own place.
    """
    found: list[Read] = []

    def made(x: Made, at: Index) -> str:
        found.append((x, at.flat == E))
        return "0"

    def array(x: Array, at: Index) -> str:
        found.append((x, at.flat == E))
        return "0"

    reader = Reader(made, array)
    if s.parts is not None and s.key is not None and s.key.stage == "finish":
        return [(s.xs[0], False)]  # type: ignore[list-item]
    if s.into is not None and s.eqn is not None:
        reader.target(s.eqn, s.xs, Index(s.y.type.shape, E))
        reader.element(s.xs[1], Index(s.y.type.shape, E))
    elif s.eqn is None:
        reader.element(s.xs[0], Index(s.y.type.shape, E))
    elif isinstance(s.eqn.op, POINTS):
        reader.computed(s.eqn, s.xs, Index(s.y.type.shape, E))
    else:
        own = E if s.key is not None and s.key.stage == "whole" else "k"
        for x in s.xs:
            reader.element(x, Index(x.type.shape, own))
    return found


def read_by_all(x: Value) -> list[Made | Array]:
    """Returns what all threads read who look at a number."""
    found: list[Made | Array] = []

    def note(x: Made | Array, _: Index) -> str:
        found.append(x)
        return "0"

    Reader(note, note).element(x, Index(x.type.shape, "0"))
    return found
