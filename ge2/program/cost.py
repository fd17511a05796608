"""The work and the traffic of a step, counted from its types: to be compared with a machine's
speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from ge2.base.record import record
from ge2.codegen.layout import Layout
from ge2.ir import Atom, Eqn, GraphOp, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.control import Cond, CondSaving
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop, ScanSaving
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.scan import Running
from ge2.ops.user_ops import Own

CHOICES = (Cond, CondSaving)
COUNTED = (ScanLoop, ScanSaving, RepeatLoop)


@final
@record
class Cost:
    """Operations on elements (a product and a sum count each), transcendental
    ones apart; bytes of arrays.
    """

    flops: int = 0
    transcendentals: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.read + other.read,
            self.written + other.written,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            self.flops * times,
            self.transcendentals * times,
            self.read * times,
            self.written * times,
        )

    @property
    def operations(self) -> int:
        return self.flops + self.transcendentals


def cost(eqn: Eqn, nbytes: Callable[[Atom], int] | None = None) -> Cost:
    """The cost of a step of a program; `nbytes` says what of an array it reads, if not all."""
    found = computing(eqn)
    sizes = nbytes or array_bytes
    return found + Cost(
        0, 0, sum(map(sizes, dict.fromkeys(eqn.inputs))), sum(map(array_bytes, eqn.outs))
    )


def array_bytes(atom: Atom) -> int:
    return atom.type.nbytes if isinstance(atom, Var) and not atom.type.weak else 0


def bytes_behind(layouts: Mapping[Var, Layout], atom: Atom) -> int:
    """The bytes behind a view: elements that repeat are there once."""
    layout = layouts.get(atom) if isinstance(atom, Var) else None
    if layout is None:
        return array_bytes(atom)
    shape = atom.type.shape
    return atom.type.dtype.itemsize * math.prod(
        n for n, s in zip(shape, layout.strides, strict=True) if s
    )


def computing(eqn: Eqn) -> Cost:
    """The operations of an equation. Those that only move elements have none."""
    op: Any = eqn.op
    if isinstance(op, CHOICES):
        return max((total(branch.eqns) for branch in op.branches), key=lambda c: c.operations)
    if isinstance(op, COUNTED):
        return total(op.body.eqns) * op.length
    if isinstance(op, GraphOp):  # of a while loop one iteration: how many there are is not known
        return total(e for graph in op.graphs() for e in graph.eqns)
    if not eqn.outs:
        return Cost()
    out, inputs = eqn.outs[0].type, eqn.inputs
    if isinstance(op, DotGeneral):
        a = inputs[0].type
        return Cost(2 * out.size * volume(a.shape, op.contract[0]))
    if isinstance(op, Own):
        return Cost(op.operations(*(a.type for a in inputs)))
    if isinstance(op, Pointlike):
        elements = 0 if op.retypes or out.weak else out.size
        return Cost(0, elements) if op.cost.transcendental else Cost(elements)
    if isinstance(op, Reduce | ArgReduce | Running):
        return Cost(inputs[0].type.size)
    return Cost()


def total(eqns: Iterable[Eqn]) -> Cost:
    return sum(map(computing, eqns), Cost())


def volume(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[a] for a in axes)
