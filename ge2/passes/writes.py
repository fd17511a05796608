"""Zeros that are written by slices are the largest slice, padded, and the others written into that.

So nobody fills what is written anyway: `y = np.zeros_like(x); y[0] = a; y[1:-1] = f(x)` needs zeros
at the last place alone. Slices that have no element in common may be written in any order.

update_slice (update_slice 0 a) b  ->  update_slice (pad b) a
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Var, without_dead_code
from ge2.ops.index import UpdateSlice
from ge2.ops.shape import BroadcastInDim, Pad, Reshape, Slice, Transpose

Box = tuple[range, ...]  # the indices along each axis


def writes(graph: Graph) -> Graph:
    makers = {v: e for e in graph.eqns for v in e.outs}
    zeros = {e.outs[0] for e in graph.eqns if is_zeros(e)}
    if not zeros:
        return graph
    uses = Counter(a for e in graph.eqns for a in e.inputs if isinstance(a, Var))
    uses.update(a for a in graph.outputs if isinstance(a, Var))
    ends = [e for e in graph.eqns if isinstance(e.op, UpdateSlice)]
    between = {x for e in ends if isinstance(x := e.inputs[0], Var) and uses[x] == 1}
    chains = [chain(e, makers, zeros, uses) for e in ends if e.outs[0] not in between]
    new: dict[Eqn, Sequence[Eqn]] = {}
    for each in filter(None, chains):
        new.update(dict.fromkeys(each, ()))
        new[each[-1]] = padded(each)
    if not new:
        return graph
    eqns = tuple(each for e in graph.eqns for each in new.get(e, (e,)))
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def is_zeros(eqn: Eqn) -> bool:
    """True for an array of zeros; those of -0.0 are no padding."""
    if not isinstance(eqn.op, BroadcastInDim) or not isinstance(eqn.inputs[0], Literal):
        return False
    value = complex(eqn.inputs[0].value)
    return value == 0 and math.copysign(1.0, value.real) + math.copysign(1.0, value.imag) == 2


def chain(last: Eqn, makers: Mapping[Var, Eqn], zeros: set[Var], uses: Counter[Var]) -> list[Eqn]:
    """The updates of zeros that end with this one, if one may come first:
    nobody reads what is between.
    """
    found, x = [last], last.inputs[0]
    while x not in zeros:
        maker = makers.get(x) if isinstance(x, Var) and uses[x] == 1 else None
        if maker is None or not isinstance(maker.op, UpdateSlice):
            return []
        found.insert(0, maker)
        x = maker.inputs[0]
    return found if set(found[largest(found)].op.step) == {1} else []  # type: ignore[attr-defined]


def largest(chain: Sequence[Eqn]) -> int:
    """The update that writes most, of those that may come first."""
    boxes = list(map(written_box, chain))
    free = [i for i, mine in enumerate(boxes) if all(disjoint(mine, other) for other in boxes[:i])]
    return max(free, key=lambda i: (chain[i].inputs[1].type.size, -i))


def padded(chain: Sequence[Eqn]) -> list[Eqn]:
    """The same array by padding, then the other updates in their order."""
    at = largest(chain)
    (out,), u = chain[-1].outs, chain[at].inputs[1]
    start, shape = chain[at].op.start, u.type.shape  # type: ignore[attr-defined]
    high = tuple(n - a - m for n, a, m in zip(out.type.shape, start, shape, strict=True))
    others = [e for e in chain if e is not chain[at]]
    made = [Var(out.type) for _ in others] + [out]
    eqns = [Eqn(Pad(start, high, (0,) * len(shape)), (u,), (made[0],), chain[at].source)]
    for e, x, y in zip(others, made, made[1:], strict=False):
        eqns.append(Eqn(e.op, (x, e.inputs[1]), (y,), e.source))
    return eqns


# ---------------------------------------------------------------------------------- parts of arrays


def box(start: Dims, stop: Dims, step: Dims) -> Box:
    return tuple(map(range, start, stop, step))


def written_box(eqn: Eqn) -> Box:
    """The elements that an update of a slice writes."""
    op = eqn.op
    assert isinstance(op, UpdateSlice)
    return box(op.start, op.stop(eqn.inputs[1].type.shape), op.step)


def disjoint(a: Box, b: Box) -> bool:
    """True if two boxes of one array have no element in common, as far as single axes show.

    >>> disjoint((range(0, 1),), (range(1, 9),)), disjoint((range(0, 9, 2),), (range(1, 9, 2),))
    (True, True)
    >>> disjoint((range(0, 5),), (range(4, 9),))
    False
    """
    return any(apart(p, q) for p, q in zip(a, b, strict=True))


def apart(a: range, b: range) -> bool:
    if not a or not b or a[-1] < b[0] or b[-1] < a[0]:
        return True
    return a.step == b.step and (a.start - b.start) % a.step != 0


def read_box(makers: Mapping[Var, Eqn], a: Atom) -> tuple[Atom, Box] | None:
    """The array that a value is a slice of, reshaped or transposed, and the
    elements it is made of.
    """
    maker = makers.get(a) if isinstance(a, Var) else None
    while maker is not None and isinstance(maker.op, Reshape | Transpose):
        a = maker.inputs[0]
        maker = makers.get(a) if isinstance(a, Var) else None
    if maker is None or not isinstance(maker.op, Slice):
        return None
    return maker.inputs[0], box(maker.op.start, maker.op.stop, maker.op.step)


def reads_elsewhere(makers: Mapping[Var, Eqn], eqn: Eqn) -> bool:
    """True if an update writes elements of an array that its other operand, a
    slice of it, has none of.
    """
    x, u = eqn.inputs
    found = read_box(makers, u)
    return found is not None and found[0] is x and disjoint(found[1], written_box(eqn))
