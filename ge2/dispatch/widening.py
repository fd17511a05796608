"""Values that become wider than they have to be: the line at which float32 became float64.

NumPy 2 gives `np.sqrt(2 / np.pi)` the dtype float64, and an array of float32 multiplied by it is
one of float64 from there on: right, slow, and seldom meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT32, FLOATS, real_part, short
from ge2.base.errors import ArgumentError, WideningError
from ge2.base.record import record
from ge2.base.source import Source, here
from ge2.ir import ArrayType, Atom, Eqn, Graph, GraphOp, Literal, Var

WIDTHS: Final = {
    **{dtype: 8 * dtype.itemsize for dtype in FLOATS},
    **{dtype: 4 * dtype.itemsize for dtype in COMPLEX},
}


def widest_dtype(widest: Any) -> np.dtype | None:
    """The floating dtype that the user's `widest` names. ArgumentError if it names none.

    >>> widest_dtype("float32"), widest_dtype(None)
    (dtype('float32'), None)
    """
    if widest is None:
        return None
    try:
        dtype = real_part(np.dtype(widest))
    except TypeError:
        dtype = np.dtype(object)
    if dtype not in FLOATS:
        what = f"widest={widest!r} is no floating dtype"
        raise ArgumentError(what, where=here(), fix='widest="float32"')
    return dtype


def width(t: ArrayType) -> int:
    """Bits of a real part; 0 for integers and for Python numbers, which take
    the dtype of what they meet.
    """
    return 0 if t.weak else WIDTHS.get(t.dtype, 0)


@final
@record
class Widening:
    """An equation whose result is wider than its inputs, and what made it so."""

    eqn: Eqn
    wide: ArrayType
    narrow: ArrayType | None  # the widest floating input; None if it has none
    reader: Eqn | None  # the equation that a conversion was made for
    partner: Atom | None  # what the converted value goes with there

    @property
    def where(self) -> Source | None:
        return self.eqn.source or (self.reader.source if self.reader else None)

    def text(self, names: dict[Atom, str]) -> str:
        """Sentence naming the two types and the cause."""
        before = (
            f"{self.narrow} becomes {short(self.wide.dtype)}"
            if self.narrow
            else f"{self.wide} is made"
        )
        if self.reader is None or self.partner is None:
            return f"{before} by {self.eqn.op.name}"
        return f"{before} to go with {described(self.partner, names)} in {self.reader.op.name}"

    def fix(self, names: dict[Atom, str], limit: np.dtype) -> str:
        if isinstance(self.partner, Literal):
            return f"float(...) of the constant, which has no dtype of its own, or np.{limit}(...)"
        if self.partner is not None and self.partner in names:
            return f"{names[self.partner]}.astype(np.{limit}) before the call"
        return f".astype(np.{limit}), or dtype=np.{limit} where it is made"


def described(atom: Atom, names: dict[Atom, str]) -> str:
    if isinstance(atom, Literal):
        return f"the constant {atom.value} ({short(atom.type.dtype)})"
    return f"{names[atom]} ({atom.type})" if atom in names else str(atom.type)


def widenings(graph: Graph, bits: int) -> Iterator[Widening]:
    """The equations, inner graphs included, that make floating values of more
    than `bits` of none such.
    """
    for eqn in graph.eqns:
        inner = [w for g in inner_graphs(eqn) for w in widenings(g, bits)]
        yield from inner
        wide = next((v.type for v in eqn.outs if width(v.type) > bits), None)
        if wide is None or inner or any(width(a.type) > bits for a in eqn.inputs if type(a) is Var):
            continue
        yield widening(graph, eqn, wide)


def inner_graphs(eqn: Eqn) -> tuple[Graph, ...]:
    return tuple(eqn.op.graphs()) if isinstance(eqn.op, GraphOp) else ()


def widening(graph: Graph, eqn: Eqn, wide: ArrayType) -> Widening:
    floating = [a.type for a in eqn.inputs if width(a.type)]
    narrow = max(floating, key=width, default=None)
    if narrow is None:
        return Widening(eqn, wide, None, None, None)
    if eqn.op.name != "convert_element_type":
        partner = next((a for a in eqn.inputs if width(a.type) >= width(wide)), None)
        return Widening(eqn, wide, narrow, eqn if partner else None, partner)
    reader = next((e for e in graph.eqns if eqn.outs[0] in e.inputs), None)
    others = [a for a in reader.inputs if a is not eqn.outs[0]] if reader else []
    partner = next((a for a in others if width(a.type) >= width(wide)), None)
    return Widening(eqn, wide, narrow, reader, partner)


def named_inputs(graph: Graph, names: Sequence[str]) -> dict[Atom, str]:
    """The last inputs of the graph by name; those before them are arrays that the trace met."""
    return dict(zip(graph.inputs[len(graph.inputs) - len(names) :], names, strict=True))


def widened(graph: Graph, names: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each line at which values of 32 bits or fewer become float64 or complex128."""
    known = named_inputs(graph, names)
    found = [w for w in widenings(graph, WIDTHS[FLOAT32]) if w.narrow is not None]
    causes = without_consequences(graph, found)
    return tuple(dict.fromkeys(f"{w.text(known)}, at {w.where}" for w in causes))


def without_consequences(graph: Graph, found: Sequence[Widening]) -> Iterator[Widening]:
    """The widenings that are not consequences of an earlier one."""
    first = {w.eqn: w for w in found}
    spread: set[Atom] = set()
    for eqn in graph.eqns:
        made = first.pop(eqn, None)
        if made is not None and made.partner not in spread:
            yield made
        if made is not None or not spread.isdisjoint(eqn.inputs):
            spread.update(v for v in eqn.outs if width(v.type) > WIDTHS[FLOAT32])
    yield from first.values()  # of inner graphs


def refuse_wider(graph: Graph, limit: np.dtype, title: str, names: Sequence[str]) -> None:
    """WideningError if a value of the graph is wider than `limit`."""
    bits, known = WIDTHS[limit], named_inputs(graph, names)
    head = f"{title} is to hold nothing wider than {limit}"
    for var in graph.inputs:
        if width(var.type) > bits:
            name = known.get(var, "an array made while it is traced")
            reader = next((e.source for e in graph.eqns if var in e.inputs), None)
            fix = f"{known[var]}.astype(np.{limit})" if var in known else f"dtype=np.{limit}"
            raise WideningError(f"{head}: {name} is {var.type}", where=reader or here(), fix=fix)
    for found in widenings(graph, bits):
        what = f"{head}: {found.text(known)}"
        raise WideningError(what, where=found.where, fix=found.fix(known, limit))
