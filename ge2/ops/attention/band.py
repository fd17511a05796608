"""Masks that are bands: which keys a query sees, by how far the one is from the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import numpy as np

from ge2.base.dtypes import BOOL, FLOATS
from ge2.base.record import record
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Op, Var, renamed
from ge2.ops.elementwise import ADD, AND, LE, WHERE
from ge2.ops.shape import Iota, Reshape

INT32: Final = np.dtype(np.int32)


@final
@record
class Band:
    """Keys j of query i are seen where low <= i - j <= high, as far as either is known. An array that
    is added to scores has 0 there, and `fill` elsewhere.
    """

    low: int | None = None
    high: int | None = None
    fill: float | None = None

    def both(self, other: Band) -> Band:
        """The band where both hold."""
        lows = [x for x in (self.low, other.low) if x is not None]
        highs = [x for x in (self.high, other.high) if x is not None]
        return Band(max(lows, default=None), min(highs, default=None))


def band_of(x: np.ndarray) -> Band | None:
    """The band that a mask of two long axes is, to the last element; None if it is none.

    >>> band_of(np.tri(4, dtype=bool)), band_of(np.triu(np.full((1, 3, 3), -np.inf), 1))
    (Band(low=0, high=None, fill=None), Band(low=0, high=None, fill=-inf))
    """
    long = tuple(n for n in x.shape if n != 1)
    if len(long) != 2 or x.shape[-2:] != long or x.dtype not in (BOOL, *FLOATS):
        return None
    x = x.reshape(long)
    if x.size > 1 and not np.array_equal(x[1:, 1:], x[:-1, :-1]):
        return None
    along = np.concatenate([x[0, :0:-1], x[:, 0]])  # by i - j, from 1 - keys on
    fill = None
    if x.dtype != BOOL:
        least = along.min()
        if not least < 0 or not np.all((along == 0) | (along == least)):
            return None
        along, fill = along == 0, float(least)
    seen = np.flatnonzero(along)
    if not seen.size or seen[-1] - seen[0] + 1 != seen.size or seen.size == along.size:
        return None
    first = 1 - long[1]
    low = None if seen[0] == 0 else int(seen[0]) + first
    high = None if seen[-1] == along.size - 1 else int(seen[-1]) + first
    return Band(low, high, fill)


def equations(band: Band, t: ArrayType) -> tuple[Eqn, ...]:
    """The equations of a mask of a type; the last makes it."""
    shape, eqns = t.shape[-2:], list[Eqn]()

    def made(op: Op, *inputs: Atom) -> Var:
        out = Var(*op.infer(*(a.type for a in inputs)))
        eqns.append(Eqn(op, inputs, (out,)))
        return out

    i, j = made(Iota(shape, 0, INT32)), made(Iota(shape, 1, INT32))
    parts = list[Var]()
    if band.low is not None:
        parts.append(made(LE, made(ADD, j, Literal.of(np.int32(band.low))), i))
    if band.high is not None:
        parts.append(made(LE, i, made(ADD, j, Literal.of(np.int32(band.high)))))
    mask = parts[0] if len(parts) == 1 else made(AND, *parts)
    if band.fill is not None:
        zero, fill = (Literal.of(t.dtype.type(n)) for n in (0, band.fill))
        mask = made(WHERE, mask, zero, fill)
    if t.shape != shape:
        mask = made(Reshape(t.shape), mask)
    return tuple(eqns)


def with_bands(graph: Graph, bands: Mapping[int, Band]) -> Graph:
    """The graph without the inputs that are bands, which it computes."""
    env: dict[Atom, Atom] = {}
    eqns = list[Eqn]()
    for n, band in bands.items():
        made = equations(band, graph.inputs[n].type)
        eqns += made
        env[graph.inputs[n]] = made[-1].outs[0]
    eqns += [renamed(env, e) for e in graph.eqns]
    inputs = tuple(v for n, v in enumerate(graph.inputs) if n not in bands)
    return Graph(inputs, tuple(eqns), tuple(env.get(a, a) for a in graph.outputs))
