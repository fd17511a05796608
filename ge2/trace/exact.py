"""Equations that need not be: what a derivative multiplies by one, negates
twice, or spreads from a number.

Only what holds for every value, NaN, infinities and signed zeros included. Complex numbers are left
alone: (inf + 0j) * (1 + 0j) is not inf + 0j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOATS
from ge2.ir import ArrayType, Atom, Eqn, Literal, Op, Var
from ge2.ops.elementwise import BY_NAME

# the equations kept so far that a rule may ask for: `neg`, and broadcasts of literals
Known = dict[Var, Eqn]
Rule = Callable[[Op, Sequence[Atom], ArrayType, Known], Atom | None]
COMMUTATIVE = frozenset(("add", "mul"))


def is_one(atom: Atom) -> bool:
    return type(atom) is Literal and atom.type.dtype in FLOATS and atom.value == 1


def product(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    a, b = inputs
    if is_one(b) and a.type == out:
        return a
    if is_one(a) and b.type == out:
        return b
    return folded(op, inputs, out, known)


def quotient(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    return inputs[0] if is_one(inputs[1]) and inputs[0].type == out else None


def negation(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    (x,) = inputs
    before = known.get(x) if type(x) is Var else None
    if before is not None and before.op is op:
        return before.inputs[0]
    return folded(op, inputs, out, known)


def folded(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    """The literal that an operation on literals gives, if it is a float."""
    if out.dtype not in FLOATS or any(
        type(a) is not Literal or a.type.dtype in COMPLEX for a in inputs
    ):
        return None
    with np.errstate(all="ignore"):
        y = np.asarray(op.reference(*(np.asarray(a.value, a.type.dtype) for a in inputs)))  # type: ignore[union-attr]
    number: Any = y.item() if out.weak else y.astype(out.dtype, copy=False)[()]
    return Literal(number, out)


RULES: dict[str, Rule] = {
    "mul": product,
    "div": quotient,
    "neg": negation,
    "add": folded,
    "sub": folded,
    "convert_element_type": folded,
}


def remember(eqn: Eqn, known: Known) -> None:
    """Keeps what a later rule may ask for."""
    name = eqn.op.name
    if name == "neg" or (name == "broadcast_in_dim" and type(eqn.inputs[0]) is Literal):
        known[eqn.outs[0]] = eqn


def with_scalars(op: Op, inputs: tuple[Atom, ...], known: Known) -> tuple[Atom, ...]:
    """Elementwise operations read a number that was spread over their shape as the number it is."""
    if op.name not in BY_NAME or len(inputs) < 2:
        return inputs
    plain = tuple([_scalar(a, known) for a in inputs])
    return plain if any(a.type.shape for a in plain) else inputs


def _scalar(atom: Atom, known: Known) -> Atom:
    made = known.get(atom) if type(atom) is Var else None
    return made.inputs[0] if made is not None and made.op.name == "broadcast_in_dim" else atom
