"""Sums of exponentials beside the maximum of long rows are found in the pass that finds that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.base.record import record
from ge2.ir import (
    Atom,
    Cotangents,
    Dims,
    Eqn,
    Flags,
    Graph,
    Literal,
    Values,
    Var,
    without_dead_code,
)
from ge2.ops.elementwise import BY_NAME, WHERE
from ge2.ops.reduce import Fold, Reduce, ReduceMax, ReduceSum
from ge2.ops.shape import BroadcastInDim
from ge2.passes.context import NOTHING, Context

# -------- m = reduce_max x; s = reduce_sum (exp (x - m)) -> m = reduce_max x; s = reduce_sum_exp x
# A row that is too long to stay where it was read would be read once for its maximum and again for
# the sum. Both are folds of x, done at once: the sum is kept relative to an element that is not
# much less than the largest so far, and is turned to a larger one where it comes to be (M. Milakov
# and N. Gimelshein, Online normalizer calculation for softmax, 2018).


@final
@record
class ReduceSumExp(Reduce):
    """The sum of exp(x - m), where m is the largest element; not a number where m is not finite."""

    axes: Dims
    name = "reduce_sum_exp"
    takes = frozenset((FLOAT32, FLOAT64))
    lowering = Fold(
        "ge2_no_exps<T>()", "ge2_add_exps({0}, {1})", "ge2_exp_of({0})", "ge2_exps<{0}>",
        "ge2_sum_of_exps({0})",
    )  # fmt: skip
    neutral = -math.inf

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        with np.errstate(invalid="ignore"):
            return np.exp(x - x.max(self.axes, keepdims=True)).sum(self.axes, dtype=x.dtype)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        raise AssertionError("it is made when derivatives are done")


EXP, SUB, FINITE = BY_NAME["exp"], BY_NAME["sub"], BY_NAME["is_finite"]


def online_sums(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with sums of exp(x - max x) over long rows as folds of x alone."""
    long = context.tuning.fusion.row
    makers = {e.outs[0]: e for e in graph.eqns if len(e.outs) == 1}
    found = {
        e.outs[0]: parts
        for e in graph.eqns
        if isinstance(e.op, ReduceSum) and (parts := shifted(e, makers, long))
    }
    if not found:
        return graph
    beside: dict[Var, list[Eqn]] = {}
    for e in graph.eqns:
        if e.outs and (parts := found.get(e.outs[0])):
            beside.setdefault(parts[1], []).extend(summed(e, *parts))
    eqns = list[Eqn]()
    for e in graph.eqns:
        if not e.outs or e.outs[0] not in found:
            eqns.append(e)
            eqns += beside.get(e.outs[0], ()) if e.outs else ()
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def shifted(eqn: Eqn, makers: Mapping[Any, Eqn], long: int) -> tuple[Atom, Var, bool] | None:
    """x, its maximum, and whether 0 stands for one that is not finite, where an equation sums
    exp(x - max x).
    """
    (e,) = eqn.inputs
    if math.prod(e.type.shape[a] for a in eqn.op.axes) <= long:  # type: ignore[attr-defined]
        return None
    apart = operands(makers, e, EXP)
    pair = operands(makers, apart[0], SUB) if apart else ()
    if not pair or (seen := unspread(makers, *pair)) is None:
        return None
    x, (m, dims) = pair[0], seen
    plain = finite_or_zero(makers, m)
    most = makers.get(m if plain is None else plain)
    kept = tuple(a for a in range(x.type.ndim) if a not in eqn.op.axes)  # type: ignore[attr-defined]
    same = most is not None and most.op == ReduceMax(eqn.op.axes)  # type: ignore[attr-defined]
    if most is None or not same or most.inputs[0] is not x or dims != kept:
        return None
    return x, most.outs[0], plain is not None


def unspread(makers: Mapping[Any, Eqn], x: Atom, a: Atom) -> tuple[Atom, Dims] | None:
    """What is repeated to the shape of x, and along which axes it lies."""
    if not a.type.shape and x.type.shape:
        return a, ()
    eqn = makers.get(a)
    if eqn is None or not isinstance(eqn.op, BroadcastInDim):
        return None
    return eqn.inputs[0], eqn.op.dims


def operands(makers: Mapping[Any, Eqn], a: Atom, op: Any) -> tuple[Atom, ...]:
    """The operands of the equation that makes a value, if it is of this operation."""
    eqn = makers.get(a)
    return eqn.inputs if eqn is not None and eqn.op == op else ()


def finite_or_zero(makers: Mapping[Any, Eqn], a: Atom) -> Atom | None:
    """m, of a value that is where(isfinite(m), m, 0)."""
    where = operands(makers, a, WHERE)
    if len(where) != 3 or not (isinstance(where[2], Literal) and where[2].value == 0):
        return None
    return where[1] if operands(makers, where[0], FINITE) == (where[1],) else None


def summed(eqn: Eqn, x: Atom, m: Var, zero: bool) -> list[Eqn]:
    """The equations of the sum. Where 0 stood for a maximum that is not finite, it is exp(m)."""
    op = ReduceSumExp(eqn.op.axes)  # type: ignore[attr-defined]
    if not zero:
        return [replace(eqn, op=op, inputs=(x,))]
    made = [Eqn(op, (x,), (Var(eqn.outs[0].type),), eqn.source)]
    for other, inputs in ((FINITE, (m,)), (EXP, (m,))):
        made.append(Eqn(other, inputs, tuple(map(Var, other.infer(m.type))), eqn.source))
    s, test, exp = (each.outs[0] for each in made)
    return [*made, replace(eqn, op=WHERE, inputs=(test, s, exp))]
