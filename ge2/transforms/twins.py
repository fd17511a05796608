"""Values that are equal to others at some place, which their derivatives ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge2.base.dtypes import INEXACT
from ge2.ir import Atom, Eqn, Var


def twins(eqns: Sequence[Eqn]) -> dict[Eqn, list[Eqn]]:
    """For the equations that make x, where some other asks whether x ==
    max(x): those that make max(x).

    A value that is computed again may differ in its last bit, if it is fused with other
    work than before. So of two values that are equal at some place, either both are
    computed again or the first is kept.
    """
    makers = {v: e for e in eqns for v in e.outs}
    found: dict[Eqn, list[Eqn]] = {}
    for e in eqns:
        if e.op.name in ("eq", "ne") and e.inputs[0].type.dtype in INEXACT:
            a, b = (seen_through(makers, x) for x in e.inputs)
            for x, y in ((a, b), (b, a)):
                source, choice = makers.get(x), makers.get(y)  # type: ignore[arg-type]
                if source is None or choice is None or source is choice:
                    continue
                if x in {
                    seen_through(makers, i) for i in choice.inputs
                } and choice not in found.get(source, ()):
                    found.setdefault(source, []).append(choice)
    return found


def seen_through(makers: Mapping[Var, Eqn], atom: Atom) -> Atom:
    """The value that another is a view of."""
    while isinstance(atom, Var) and (eqn := makers.get(atom)) is not None:
        if not eqn.op.is_view:
            return atom
        atom = eqn.inputs[eqn.outs.index(atom)]
    return atom
