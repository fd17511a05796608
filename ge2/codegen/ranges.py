"""Ranges of integers that follow from how they were computed: an index which cannot be outside needs
no look.

    x & 255, x % 256, uint8, np.clip(x, 0, 255)    all from 0 to 255, whatever x is
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import numpy as np

from ge2.ir import Atom, Eqn, Graph, Literal, Var
from ge2.ops.shape import Iota

Range = tuple[int, int]  # the least and the greatest value
MOVES: Final = ("broadcast_in_dim", "copy", "reshape", "rev", "slice", "transpose")


@final
class Ranges:
    """The ranges of the integers of a graph, each worked out when it is asked for."""

    __slots__ = ("known", "makers")

    def __init__(self, graph: Graph) -> None:
        self.makers = {v: eqn for eqn in graph.eqns for v in eqn.outs}
        self.known: dict[Var, Range] = {}

    def of(self, atom: Atom) -> Range:
        """Returns what an integer or bool is between; every value of its dtype if nothing else is
        known.
        """
        if isinstance(atom, Literal):
            number = int(np.asarray(atom.value).item())
            return number, number
        if atom not in self.known:
            self.known[atom] = every_value(atom.type.dtype)  # of one that depends on itself, too
            self.known[atom] = self.made(atom)
        return self.known[atom]

    def made(self, v: Var) -> Range:
        eqn, every = self.makers.get(v), every_value(v.type.dtype)
        if eqn is None or any(a.type.dtype.kind not in "bui" for a in eqn.inputs):
            return every
        low, high = self.by(eqn, every)
        return (low, high) if every[0] <= low and high <= every[1] else every  # it may have wrapped

    def by(self, eqn: Eqn, every: Range) -> Range:
        name, op = eqn.op.name, eqn.op
        if isinstance(op, Iota):
            return 0, max(eqn.outs[0].type.shape[op.axis] - 1, 0)
        if name in MOVES or name == "convert_element_type":
            return self.of(eqn.inputs[0])
        rule = RULES.get(name)
        return every if rule is None else rule(every, *map(self.of, eqn.inputs))


def every_value(dtype: np.dtype) -> Range:
    """All values of a dtype.

    >>> every_value(np.dtype(np.int8))
    (-128, 127)
    """
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind not in "ui":
        return -(1 << 64), 1 << 64
    found: Any = np.iinfo(dtype)
    return int(found.min), int(found.max)


def masked(every: Range, x: Range, y: Range) -> Range:
    """A mask that is not negative bounds what is left of any number."""
    ends = [high for low, high in (x, y) if low >= 0]
    return (0, min(ends)) if ends else every


def remaining(every: Range, x: Range, y: Range) -> Range:
    """A remainder has the sign of the divisor, as in NumPy; by 0 it is 0."""
    return (0, max(y[1] - 1, 0)) if y[0] >= 0 else every


def shifted(every: Range, x: Range, y: Range) -> Range:
    return (0, x[1] >> y[0]) if x[0] >= 0 and 0 <= y[0] < 64 else every


def scaled(every: Range, x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    return min(ends), max(ends)


RULES: Final[dict[str, Callable[..., Range]]] = {
    "and": masked,
    "rem": remaining,
    "shift_right": shifted,
    "mul": scaled,
    "add": lambda every, x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda every, x, y: (x[0] - y[1], x[1] - y[0]),
    "min": lambda every, x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda every, x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "where": lambda every, c, x, y: (min(x[0], y[0]), max(x[1], y[1])),
}
