"""Equations that may end a call with an error after they have begun: an index
out of range, an interrupt.
"""

from __future__ import annotations

from typing import Final

from ge2.ir import Eqn
from ge2.ir.op import GraphOp, Op
from ge2.ops.constant import Constant
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import Elementwise, Pointlike
from ge2.ops.index import Indexed, UpdateSlice
from ge2.ops.loops import RepeatLoop, ScanLoop
from ge2.ops.random import Keyed
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.region import Region
from ge2.ops.scan import Running
from ge2.ops.shape import Barrier, Concatenate, Identity, Iota, Unary
from ge2.ops.sort import Ordering, SearchSorted, TopK
from ge2.ops.while_loop import WhileLoop
from ge2.passes.take_to_mask import Index

# elements that a counted loop goes through, in about a second, to look for interrupts
LONG: Final = 1 << 30
# fmt: off
SAFE: Final = (
    Pointlike, Unary, Identity, Barrier, Concatenate, Iota, Constant, DotGeneral, UpdateSlice, Keyed,
    Reduce, ArgReduce, Running, Ordering, TopK, SearchSorted,
)
# fmt: on


def may_fail(eqn: Eqn, target: str) -> bool:
    """True if an equation may raise an error on the values it is given. On a GPU indices wrap."""
    op = eqn.op
    if op.effect:
        return True
    if target != "cuda" and looks_for_interrupts(op):
        return True
    if isinstance(op, GraphOp):
        return any(may_fail(each, target) for graph in op.graphs() for each in graph.eqns)
    if isinstance(op, Indexed | Index):
        return target != "cuda"
    return not isinstance(op, SAFE) or is_integer_power(op, eqn)


def looks_for_interrupts(op: Op) -> bool:
    """True of a loop without a bound, or of at least a second's work."""
    if isinstance(op, ScanLoop | RepeatLoop):
        return op.length * elements(op) >= LONG
    return isinstance(op, WhileLoop)


def elements(op: GraphOp) -> int:
    """The elements that an iteration of a loop, or a branch, goes through, at most."""
    return sum(of_equation(eqn) for graph in op.graphs() for eqn in graph.eqns)


def of_equation(eqn: Eqn) -> int:
    size = max((a.type.size for a in (*eqn.outs, *eqn.inputs)), default=0)
    if not isinstance(eqn.op, GraphOp) or isinstance(eqn.op, Region):
        return size
    return size + elements(eqn.op) * (
        eqn.op.length if isinstance(eqn.op, ScanLoop | RepeatLoop) else 1
    )


def is_integer_power(op: Op, eqn: Eqn) -> bool:
    """A power of integers, which a negative exponent makes an error."""
    return isinstance(op, Elementwise) and op.name == "pow" and eqn.outs[0].type.dtype.kind in "iu"
