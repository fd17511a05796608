"""The value of a traced value, where it can be known: just what it needs is evaluated, once.

Outside `jit` a trace knows the arrays it was called with, so `if x > 0` works under `grad`. What an
argument of `jit` or a batched argument of `vmap` decides cannot be known; nor may a value that a
derivative flows through be turned into a plain number, for its derivative would be lost.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ge2.base.dtypes import INEXACT, INTEGERS
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    InputError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from ge2.base.gpu import host
from ge2.base.source import here, user_frame
from ge2.ir import Atom, Eqn, Literal, Var, is_traced
from ge2.ir.op import Evaluate

if TYPE_CHECKING:
    from ge2.trace.tracer import Trace, Tracer

AMBIGUOUS = (
    "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
)
# fmt: off
DOING = {
    "bool":   "the truth of {0} was asked for",
    "int":    "{0} was used as a Python int",
    "float":  "{0} was used as a Python number",
    "array":  "NumPy asked for the elements of {0}",
    "format": "{0} was formatted as a number",
    "key":    "{0} was used as a key, or as an element of a set",
}
ERRORS = {
    "bool":  TracerBoolConversionError,
    "int":   TracerIntegerConversionError,
    "array": TracerArrayConversionError,
}
# fmt: on
LOSSY = ("float", "array")  # uses that turn a value into plain numbers, which carry no derivative


class Known:
    """The facts that a trace has learnt of its values: who makes them, which are computed, which a
    derivative reaches.

    Each equation is looked at once, however often a value is asked for.
    """

    __slots__ = ("asked", "flowed", "indexed", "makers", "reached", "settled", "values")

    def __init__(self) -> None:
        self.values: dict[Var, Any] = {}
        self.settled: set[Var] = set()  # those that are the same whatever the arguments
        self.makers: dict[Var, Eqn] = {}
        self.reached: set[Atom] = set()
        self.indexed = self.flowed = self.asked = 0

    def maker(self, trace: Trace, var: Var) -> Eqn | None:
        """The equation that makes a value; None for an input."""
        for eqn in trace.eqns[self.indexed :]:
            self.makers.update(dict.fromkeys(eqn.outs, eqn))
        self.indexed = len(trace.eqns)
        return self.makers.get(var)


def value_of(x: Tracer, use: str) -> Any:
    """The elements of a traced value as an array, or the error that says why they are not known."""
    trace = x.owner
    if not x.usable:
        raise x.escaped()
    atom = x.atom
    if use in LOSSY and x.type.dtype in INEXACT and flows(trace, atom):
        raise ERRORS.get(use, ConcretizationTypeError)(
            f"{DOING[use].format(x.label())}, but a derivative flows through it and would be lost",
            where=here(),
            fix=fix_of(x, use, lost=True),
        )
    return elements(x, x, use)


def elements(value: Any, x: Tracer, use: str) -> Any:
    """The elements of `value`, on which `x` depends, in the trace it belongs to; an array is
    itself.
    """
    if not is_traced(value):
        return value
    trace, atom = value.owner, value.atom
    if isinstance(atom, Literal):
        return atom.value
    known = trace.known
    todo = [atom]
    while todo:
        var = todo[-1]
        if var in known.values:
            todo.pop()
        elif (eqn := known.maker(trace, var)) is None:
            known.values[var] = given(trace, var, x, use)
        elif missing := [a for a in eqn.inputs if isinstance(a, Var) and a not in known.values]:
            todo += missing
        else:
            compute(known, eqn)
    if atom not in known.settled:
        trace.looked = True
    return known.values[atom]


def knowable(value: Any) -> bool:
    """True if the elements of a value may be looked at; what is not traced is known."""
    if not is_traced(value):
        return True
    trace, todo, seen = value.owner, [value.atom], set()
    while todo:
        atom = todo.pop()
        if isinstance(atom, Literal) or atom in trace.known.values or atom in seen:
            continue
        seen.add(atom)
        eqn = trace.known.maker(trace, atom)
        if eqn is not None:
            todo += eqn.inputs
        elif not knowable_input(trace, atom):
            return False
    return True


def knowable_input(trace: Trace, var: Var) -> bool:
    if var in trace.arguments:
        return knowable(trace.arguments[var])
    capture = next((c for c in trace.captures if c.var is var), None)
    return capture is not None and knowable(capture.value)


def compute(known: Known, eqn: Eqn) -> None:
    args = [a.value if isinstance(a, Literal) else known.values[a] for a in eqn.inputs]
    known.values.update(zip(eqn.outs, Evaluate().apply(eqn.op, args), strict=True))
    if all(isinstance(a, Literal) or a in known.settled for a in eqn.inputs):
        known.settled.update(eqn.outs)


def given(trace: Trace, var: Var, x: Tracer, use: str) -> Any:
    """The value of an argument, of a captured array or of a captured value of an outer trace."""
    if var in trace.arguments:
        return elements(trace.arguments[var], x, use)
    capture = next((c for c in trace.captures if c.var is var), None)
    if capture is None:
        refuse(trace, var, x, use)
    if not is_traced(capture.value):
        trace.known.settled.add(var)
    return elements(capture.value, x, use)


def refuse(trace: Trace, var: Var, x: Tracer, use: str) -> NoReturn:
    name = trace.names.get(var, "an argument")
    unknown = f"not known while {trace.title} is traced"
    why = f"that is {unknown}" if x.atom is var else f"it depends on {name}, which is {unknown}"
    what = f"{DOING[use].format(x.label())}, but {trace.reasons.get(var) or why}"
    place, fix = here(), fix_of(x, use, var)
    trace.refused = lambda: ERRORS.get(use, ConcretizationTypeError)(what, where=place, fix=fix)
    raise trace.refused()


def fix_of(x: Tracer, use: str, root: Var | None = None, lost: bool = False) -> str:
    """The code to write instead, which the user's line decides; `root` is the argument asked for.
    `lost`: it is for the sake of a derivative alone that the number may not be had.
    """
    from ge2.base.expression import expression  # here: only errors pay for them
    from ge2.trace.hints import STOPPED, asks_for_number, hint, of_known, static_argument

    trace = x.owner
    if root is not None and not root.type.shape and root.type.dtype in INTEGERS and in_numpy():
        name = trace.names.get(root, "") if trace.kind == "jit" else ""
        return of_known(name if name.isidentifier() else "")
    name = trace.names.get(x.atom, "") if trace.kind == "jit" else ""
    # by a closure, not by the call
    given = any(t.cell.atom is x.atom for _, t in trace.bound.values())
    found = expression()
    label = name if name.isidentifier() and not given else ""
    fix = hint(use, label, found)
    if label and use == "bool" and x.type.weak and x.type.dtype == np.bool_:  # Python's, so a flag
        fix = f"{static_argument(label)}, or {fix}"
    return fix + STOPPED if lost and asks_for_number(found) else fix


def in_numpy() -> bool:
    """True if a function of `ge2.numpy` asks, which the user's line has called."""
    user, frame = user_frame(), sys._getframe(1)
    while frame is not user and frame.f_back is not None:
        if frame.f_globals.get("__name__", "").startswith("ge2.numpy."):
            return True
        frame = frame.f_back
    return False


def flows(trace: Trace, atom: Atom) -> bool:
    """True if a derivative flows from an active input, of this trace or one around it, into `atom`."""
    known = trace.known
    reached = known.reached
    if not known.flowed:
        reached.update(trace.active)
        reached.update(v for v, given in trace.arguments.items() if flows_into(given))
        known.flowed = 1
    reached.update(c.var for c in trace.captures[known.asked :] if flows_into(c.value))
    known.asked = len(trace.captures)
    for eqn in trace.eqns[known.flowed - 1 :]:
        if eqn.op.name != "stop_gradient" and not reached.isdisjoint(eqn.inputs):
            reached.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    known.flowed = len(trace.eqns) + 1
    return atom in reached


def flows_into(value: Any) -> bool:
    return is_traced(value) and value.type.dtype in INEXACT and flows(value.owner, value.cell.atom)


def hash_of(x: Tracer) -> int:
    """The hash of the number that a traced scalar is known to be; an array has none, as in NumPy."""
    if x.cell.is_array or x.type.shape:
        raise InputError(
            f"unhashable: {x.label()} is no key of a dict",
            where=here(),
            fix="id(x), a name or a number as the key",
        )
    return hash(number(x, "key"))


def number(x: Tracer, use: str) -> Any:
    """The value as a Python number; TypeError, as in NumPy, unless it has one element."""
    if x.type.size != 1:
        if use == "bool":
            what = AMBIGUOUS if x.type.size else "The truth value of an empty array is ambiguous."
            raise ArgumentError(f"{what}: a traced {x.type}", where=here(), fix=fix_of(x, "bools"))
        raise TypeError(
            f"only arrays of one element become Python numbers; this is a traced {x.type}"
        )
    return np.asarray(host(value_of(x, use))).item()
