"""Algebra that is exact in floating point, common subexpressions, dead code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ge2.base.dtypes import BOOL, COMPLEX, FLOATS, can_cast
from ge2.ir import ArrayType, Atom, Graph
from ge2.ops.control import CALLS as PLAIN
from ge2.ops.custom import CUSTOM
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.ops.index import Scatter, spans
from ge2.ops.policy import inlined
from ge2.ops.shape import BroadcastInDim, Reshape, Transpose
from ge2.ops.solves import SOLVES
from ge2.passes.context import Context
from ge2.passes.sweep import Rule, Rules, Sweep, number
from ge2.trace.retrace import strong as on_arrays

ADD, SUB = BY_NAME["add"], BY_NAME["sub"]


def simplify(graph: Graph) -> Graph:
    return Sweep(RULES).run(graph)


# --------------------------------------------------------------------------------- neutral elements


def neutral(value: float, side: str, minus: bool = False, floats: bool = True) -> Rule:
    """`x op value = x` (side "right"), or `value op x = x` too ("either");
    `minus`: -value for floats.
    """

    def rule(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
        a, b = inputs
        if is_number(b, value, minus, floats) and a.type == out:
            return a
        if side == "either" and is_number(a, value, minus, floats) and b.type == out:
            return b
        return None

    return rule


def is_number(atom: Atom, value: float, minus: bool, floats: bool) -> bool:
    x = number(atom)
    if x is None or x != value or atom.type.dtype in COMPLEX:  # (inf + 0j) * (1 + 0j) has a NaN
        return False
    if atom.type.dtype not in FLOATS:
        return True
    return floats and (value != 0 or (math.copysign(1.0, float(x)) < 0) == minus)


# ----------------------------------------------------------------------------------- the same again


def same(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Operations that pass their input on."""
    return inputs[0] if inputs[0].type == out else None


def double(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Operations that undo themselves: --x, ~~x, conj conj x."""
    inner = sweep.made_by(inputs[0], op.name)
    return None if inner is None else inner.inputs[0]


def plus_minus(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """x + -y = x - y, and -y + x = x - y."""
    a, b = inputs
    for x, other in ((a, b), (b, a)):
        negated = sweep.made_by(other, "neg")
        if negated is not None:
            return sweep.make(SUB, (x, negated.inputs[0]), out)
    return None


def minus_minus(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """x - -y = x + y."""
    negated = sweep.made_by(inputs[1], "neg")
    return None if negated is None else sweep.make(ADD, (inputs[0], negated.inputs[0]), out)


def either_way(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """where(mask, x, x) = x, and a mask known beforehand."""
    mask, a, b = inputs
    if a == b:
        return a if a.type == out else None
    held = number(mask)
    chosen = mask if held is None else a if held else b
    return chosen if held is not None and chosen.type == out else None


def first_power(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    return inputs[0] if op.y == 1 else None


def converted(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A conversion of a lossless conversion between floats is one conversion."""
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    if inner is None or out.dtype not in FLOATS or x.type.dtype not in FLOATS or out.weak:
        return None
    (source,) = inner.inputs
    exact = source.type.dtype in FLOATS or source.type.dtype == BOOL
    if not exact or source.type.weak or not can_cast(source.type.dtype, x.type.dtype, "safe"):
        return None
    return sweep.make(ConvertElementType(out.dtype), (source,), out)


# -------------------------------------------------------------------------------------------- views


def broadcast(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    if inner is None:
        return None
    made: Any = inner.op
    return sweep.make(
        BroadcastInDim(op.shape, tuple(op.dims[d] for d in made.dims)), inner.inputs, out
    )


def transposed(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    if op.order == tuple(range(len(op.order))):
        return inputs[0]
    inner = sweep.made_by(inputs[0], op.name)
    if inner is None:
        return None
    made: Any = inner.op
    return sweep.make(Transpose(tuple(made.order[i] for i in op.order)), inner.inputs, out)


def reshaped(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    (x,) = inputs
    if x.type == out:
        return x
    inner = sweep.made_by(x, op.name)
    return None if inner is None else sweep.make(Reshape(op.shape), inner.inputs, out)


def over_nothing(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A reduction or reversal over no axes."""
    return inputs[0] if not op.axes and inputs[0].type == out else None


def alone(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """What joins or cuts, and here does neither."""
    return inputs[0] if len(inputs) == 1 and inputs[0].type == out else None


def unpadded(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    return None if any((*op.low, *op.high, *op.inner)) else inputs[0]


def written_in_part(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """A part that is written at indices and put back: the whole is written
    there, and nowhere else.
    """
    put = sweep.made_by(inputs[1], "scatter")
    cut = None if put is None else sweep.made_by(put.inputs[0], "slice")
    if put is None or cut is None or cut.inputs[0] != inputs[0] or cut.op.start != op.start:  # type: ignore[attr-defined]
        return None
    (part,), scatter, rest = [a.type.shape for a in cut.outs], put.op, list[tuple[int, int, int]]()
    if cut.op.step != op.step or any(part[a] != out.shape[a] for a in scatter.axes):  # type: ignore[attr-defined]
        return None
    others = [a for a in range(len(part)) if a not in scatter.axes]  # type: ignore[attr-defined]
    for a, (start, n, step) in zip(others, spans(scatter, part), strict=True):  # type: ignore[arg-type]
        rest.append((op.start[a] + start * op.step[a], n, step * op.step[a]))
    write = Scatter(scatter.axes, tuple(rest), scatter.unique)  # type: ignore[attr-defined]
    return sweep.make(write, (inputs[0], *put.inputs[1:]), out)


# fmt: off
RULES: Rules = {
    # x + 0.0 is not exact for -0.0, x + -0.0 is
    "add": (neutral(0, "either", minus=True), plus_minus),
    "sub": (neutral(0, "right"), minus_minus),
    "mul": (neutral(1, "either"),),
    "div": (neutral(1, "right"),),
    "floor_div": (neutral(1, "right", floats=False),),
    "or":  (neutral(0, "either"),),
    "xor": (neutral(0, "either"),),
    "shift_left":  (neutral(0, "right"),),
    "shift_right": (neutral(0, "right"),),
    "neg": (double,),
    "not": (double,),
    "conj": (double,),
    "positive": (same,),
    "stop_gradient": (same,),
    "name": (same,),
    "where": (either_way,),
    "integer_pow": (first_power,),
    "convert_element_type": (converted,),
    "broadcast_in_dim": (broadcast,),
    "transpose": (transposed,),
    "reshape": (reshaped,),
    "slice": (same,),
    "pad": (unpadded,),
    "rev": (over_nothing,),
    # not reduce_sum: NumPy adds 0.0, which makes 0.0 of -0.0
    "reduce_prod": (over_nothing,),
    "reduce_max": (over_nothing,), "reduce_min": (over_nothing,),
    "reduce_or": (over_nothing,), "reduce_and": (over_nothing,),
    "concatenate": (alone,),
    "update_slice": (written_in_part,),
}
# fmt: on


# ------------------------------------------------------------------------------------------ inline
# Calls are replaced by what they call.


# Operations whose first graph is what they compute; their other graphs served
# derivatives, which are done.
CALLS = (*PLAIN, *CUSTOM, *SOLVES)


def inline(graph: Graph) -> Graph:
    return inlined(graph, CALLS)


# ------------------------------------------------------------------------------------------ strong
# The first rewrite of a loop's body or of a branch: arrays in place of Python numbers.


def strong(graph: Graph, context: Context) -> Graph:
    """The graph on arrays alone, if it is a body: code that calls it again
    and again passes arrays.
    """
    return on_arrays(graph) if context.body else graph
