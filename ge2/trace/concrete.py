"""The value of a traced value, where it can be known: just what it needs is evaluated, once.

Outside `jit` a trace knows the arrays it was called with, so `if x > 0` works under `grad`. What an argument
of `jit` or a batched argument of `vmap` decides cannot be known; nor may a value that a derivative flows
through be turned into a plain number, for its derivative would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import ConcretizationTypeError, TracerArrayConversionError, TracerBoolConversionError, TracerIntegerConversionError
from ge2.base.source import here
from ge2.ir import Eqn, Literal, Var
from ge2.ir.op import Evaluate

if TYPE_CHECKING:
    from ge2.trace.tracer import Trace, Tracer

FIXES = {
    "bool": "np.where(condition, a, b), or ge2.lax.cond(condition, f, g, x)",
    "int": "pass it as a static argument (static_argnums=), or index with arrays",
    "float": "keep it an array: np.sin(x) for math.sin(x), x.astype(np.float32) for np.float32(x)",
    "array": "the function of ge2.numpy of that name; np.stack([...]) to build an array of traced values",
    "format": "print(x) shows its type; return it to see its value",
}
ERRORS = {
    "bool": TracerBoolConversionError,
    "int": TracerIntegerConversionError,
    "array": TracerArrayConversionError,
}
DOING = {
    "bool": "the truth of {0} was asked for",
    "int": "{0} was used as a Python int",
    "float": "{0} was used as a Python number",
    "array": "NumPy was given {0}, which has no elements yet",
    "format": "{0} was formatted as a number",
}


def value_of(x: Tracer, use: str) -> Any:
    """The elements of a traced value as an array, or the error that says why they are not known."""
    trace = x.trace
    if not trace.open:
        raise x.escaped()
    if use in ("float", "array") and x.type.dtype in INEXACT and flows(trace, x.atom):
        raise ERRORS.get(use, ConcretizationTypeError)(
            f"{DOING[use].format(x.label())}, but a derivative flows through it and would be lost",
            where=here(),
            fix=f"ge2.lax.stop_gradient(x) if that is meant; else {FIXES[use]}",
        )
    trace.looked = True
    return _evaluate(trace, x, use)


def _evaluate(trace: Trace, x: Tracer, use: str) -> Any:
    atom = x.atom
    if isinstance(atom, Literal):
        return atom.value
    maker = {v: e for e in trace.eqns for v in e.outs}
    todo: list[Var] = [atom]
    while todo:
        var = todo[-1]
        if var in trace.values:
            todo.pop()
        elif (eqn := maker.get(var)) is None:
            trace.values[var] = _outer(trace, var, x, use)
        elif missing := [a for a in eqn.inputs if isinstance(a, Var) and a not in trace.values]:
            todo += missing
        else:
            _compute(trace, eqn)
    return trace.values[atom]


def _compute(trace: Trace, eqn: Eqn) -> None:
    args = [a.value if isinstance(a, Literal) else trace.values[a] for a in eqn.inputs]
    trace.values.update(zip(eqn.outs, Evaluate().apply(eqn.op, args), strict=True))


def _outer(trace: Trace, var: Var, x: Tracer, use: str) -> Any:
    """The value of a captured array or of a captured value of an outer trace."""
    for capture in trace.captured.values():
        if capture.var is var:
            inner = capture.value
            return value_of(inner, "bool" if use in ("float", "array") else use) if hasattr(inner, "trace") else inner
    _refuse(trace, var, x, use)


def _refuse(trace: Trace, var: Var, x: Tracer, use: str) -> NoReturn:
    name = trace.names.get(var, "an argument")
    reason = trace.reasons.get(var) or f"it depends on {name}, which is not known while {trace.title} is traced"
    what = DOING[use].format(x.label())
    raise ERRORS.get(use, ConcretizationTypeError)(f"{what}, but {reason}", where=here(), fix=FIXES[use])


def flows(trace: Trace, atom: Any) -> bool:
    """Whether a derivative flows from an active input, of this trace or one around it, into `atom`."""
    reached = {a for a in trace.active}
    for capture in trace.captured.values():
        inner = capture.value
        if hasattr(inner, "trace") and inner.type.dtype in INEXACT and flows(inner.trace, inner.cell.atom):
            reached.add(capture.var)
    for eqn in trace.eqns:
        if eqn.op.name != "stop_gradient" and not reached.isdisjoint(eqn.inputs):
            reached.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    return atom in reached


def number(x: Tracer, use: str) -> Any:
    """The value as a Python number; TypeError, as in NumPy, unless it has one element."""
    if x.type.size != 1:
        if use == "bool":
            raise ValueError("The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()")
        raise TypeError(f"only arrays of one element become Python numbers; this is a traced {x.type}")
    return np.asarray(value_of(x, use)).item()
