"""A sum of arrays that are zero but for parts of their own is those parts side by side.

So it is where each of many parts of an array is read on its own, as a Python loop over
`xs[t]` does: each has a derivative as large as the whole, and their sum took time that
grows with the square of their number.

add (pad a) (pad b) ...  ->  concatenate a b ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, final

from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, Literal, Var, without_dead_code
from ge2.ops.elementwise import ADD
from ge2.ops.shape import BroadcastInDim, Concatenate, Pad

FEWEST: Final = 3  # parts; two are as well added


@final
@record
class Part:
    """What lies from `start` along `axis`, among zeros."""

    value: Atom
    axis: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.value.type.shape[self.axis]


def join(graph: Graph) -> Graph:
    if sum(isinstance(e.op, Pad) for e in graph.eqns) < FEWEST:
        return graph
    makers = {v: e for e in graph.eqns for v in e.outs}
    uses = Counter(a for e in graph.eqns for a in e.inputs if isinstance(a, Var))
    uses.update(a for a in graph.outputs if isinstance(a, Var))
    inner = {
        a
        for e in graph.eqns
        if e.op == ADD
        for a in e.inputs
        if isinstance(a, Var) and uses[a] == 1
    }
    roots = {e.outs[0]: e for e in graph.eqns if e.op == ADD and e.outs[0] not in inner}
    found = {v: made for v, e in roots.items() if (made := joined(e, makers, uses))}
    if not found:
        return graph
    eqns = tuple(
        each for e in graph.eqns for each in (found.get(e.outs[0], [e]) if e.outs else [e])
    )
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def joined(eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var]) -> list[Eqn] | None:
    """The equations that make the sum of its parts; None if it is no such sum."""
    parts, others = list[Part](), list[Atom]()
    for leaf in leaves(eqn, makers, uses):
        part = part_of(leaf, makers)
        if part is None:
            others.append(leaf)
        else:
            parts.append(part)
    if len(parts) < FEWEST or len(others) > 1:
        return None
    parts.sort(key=lambda part: part.start)
    if any(a.axis != b.axis or a.end > b.start for a, b in pairwise(parts)):
        return None
    return side_by_side(eqn, parts, others)


def leaves(eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var]) -> list[Atom]:
    """What a tree of sums adds, where nobody else reads a sum within it."""
    found, waiting = list[Atom](), list(eqn.inputs)
    while waiting:
        a = waiting.pop()
        maker = makers.get(a) if isinstance(a, Var) and uses[a] == 1 else None
        if maker is not None and maker.op == ADD:
            waiting += maker.inputs
        else:
            found.append(a)
    return found


def part_of(a: Atom, makers: Mapping[Var, Eqn]) -> Part | None:
    maker = makers.get(a) if isinstance(a, Var) else None
    if (
        maker is None
        or not isinstance(op := maker.op, Pad)
        or any(op.inner)
        or min(*op.low, *op.high) < 0
    ):
        return None
    axes = [i for i, (low, high) in enumerate(zip(op.low, op.high, strict=True)) if low or high]
    return Part(maker.inputs[0], axes[0], op.low[axes[0]]) if len(axes) == 1 else None


def side_by_side(eqn: Eqn, parts: list[Part], others: list[Atom]) -> list[Eqn]:
    """The parts, zeros between them, and what is added to all of it."""
    (result,), axis, at = eqn.outs, parts[0].axis, 0
    made, pieces = list[Eqn](), list[Atom]()
    for part in [*parts, None]:
        start = result.type.shape[axis] if part is None else part.start
        if start > at:
            shape = list(result.type.shape)
            shape[axis] = start - at
            zeros = Var(result.type.with_shape(tuple(shape)))
            zero = Literal.of(result.type.dtype.type(0))
            made.append(Eqn(BroadcastInDim(zeros.type.shape, ()), (zero,), (zeros,), eqn.source))
            pieces.append(zeros)
        if part is not None:
            pieces.append(part.value)
            at = part.end
    whole = result if not others else Var(result.type)
    made.append(Eqn(Concatenate(axis), tuple(pieces), (whole,), eqn.source))
    return made if not others else [*made, Eqn(ADD, (whole, *others), (result,), eqn.source)]
