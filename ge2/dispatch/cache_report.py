"""The cache report: the signatures that a function was traced for, and why each needed a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT32, FLOATS, NUMBERS, real_part, short
from ge2.base.config import KEYED
from ge2.base.errors import ArgumentError, WideningError
from ge2.base.record import record
from ge2.base.source import Printed, Source, counted, here
from ge2.base.treedef import Structure, named, root_text, same_data
from ge2.dispatch.closures.capture import Token
from ge2.dispatch.signature import Same, Static, is_static, key_text
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var

if TYPE_CHECKING:
    from ge2.dispatch.cache import Entry
    from ge2.dispatch.signature import Key


READ = "what the function reads besides its arguments"


@final
@record
class Signature:
    """The signature by which a call is found, the names of its leaves, and how often there was one."""

    key: Key
    names: tuple[str, ...]
    hits: int

    def __str__(self) -> str:
        """As the user would write it: `x: f32[3], n: a Python int`."""
        return signature_text(self.names, self.key.leaves)


def signature(entry: Entry) -> Signature:
    return Signature(entry.key, tuple(entry.names), entry.hits)


@final
@record
class Difference:
    """A field in which two signatures differ, and what would make it the same."""

    text: str
    fix: str
    weight: int = 1  # how far it sets two signatures apart


@final
@record
class Line:
    """A remembered signature; `nearest` is the number of the one before it that it is most like."""

    signature: str
    hits: int
    differs: tuple[str, ...]
    nearest: int | None = None
    suggestions: tuple[str, ...] = ()


@final
@record
class CacheReport(Printed):
    """The signatures that a function was traced for.

    Printed, a list with the reason for each trace, and a remedy.
    """

    title: str
    entries: tuple[Line, ...]

    def __str__(self) -> str:
        calls = sum(e.hits for e in self.entries)
        lines = [
            f"{self.title}: {counted(len(self.entries), 'signature')}, {counted(calls, 'call')}"
        ]
        for number, e in enumerate(self.entries, 1):
            lines.append(f"{number:4}. {counted(e.hits, 'call'):9}  {e.signature}")
            if e.nearest is not None:
                lines += [f"{'':17}unlike {e.nearest + 1} in {text}" for text in e.differs]
                lines += [f"{'':17}try {text}" for text in e.suggestions]
        return "\n".join(lines)


def cache_report(
    title: str, signatures: Sequence[Signature], labels: Sequence[str] = ()
) -> CacheReport:
    """The report; `labels` are the names of what the function reads besides its arguments."""
    return CacheReport(
        title, tuple(line(signatures[:n], each, labels) for n, each in enumerate(signatures))
    )


def line(before: Sequence[Signature], new: Signature, labels: Sequence[str]) -> Line:
    found = [differences(old, new, labels) for old in before]
    if not found:
        return Line(str(new), new.hits, ())
    nearest = min(range(len(found)), key=lambda n: (sum(d.weight for d in found[n]), -n))
    differs = found[nearest]
    fixes = tuple(dict.fromkeys(d.fix for d in differs if d.fix))
    return Line(str(new), new.hits, tuple(d.text for d in differs), nearest, fixes)


def why(title: str, before: Sequence[Signature], entry: Entry) -> tuple[str, str]:
    """A new entry's signature, and why it is new."""
    new = signature(entry)
    reason = "; ".join(line(before, new, ()).differs)
    return f"{title}({new})", reason or "it is called for the first time"


def signature_text(names: Sequence[str], keys: Sequence[Any]) -> str:
    texts = [f"{name}: {key_text(key)}" for name, key in zip(names, keys, strict=True)]
    return (
        ", ".join(texts)
        if len(texts) <= 8
        else ", ".join([*texts[:8], f"and {len(texts) - 8} more"])
    )


# -------------------------------------------------------------------------------------- differences


def differences(old: Signature, new: Signature, labels: Sequence[str] = ()) -> list[Difference]:
    """The differences between two signatures, in words."""
    a, b = old.key, new.key
    found = argument_differences(old, new)
    if a.closure != b.closure:
        found += closure_differences(a.closure, b.closure, labels)
    if a.settings != b.settings:
        found.append(settings_difference(a.settings, b.settings))
    if a.donated != b.donated:
        fix = "an array that owns its memory, is writable, and is no other argument, at every call"
        found.append(Difference("what could be donated", fix))
    if a.structure == b.structure and a.order != b.order:
        what = "the order of the keys of a dict, which the function sees"
        found.append(Difference(what, "dicts whose keys are set in one order at every call"))
    if a.scalars != b.scalars:
        what = "which arguments are NumPy's scalars, and which are arrays of no axes"
        found.append(Difference(what, "np.asarray(i) at every call, or np.int64(i) at every call"))
    contents = "the contents of an array that the trace looked at"
    return found or [
        Difference(contents, "np.where or ge2.lax.cond in place of `if`, or a static argument")
    ]


def argument_differences(old: Signature, new: Signature) -> list[Difference]:
    a, b = old.key, new.key
    if a.structure == b.structure:
        leaves = zip(new.names, a.leaves, b.leaves, strict=True)
        return [leaf_difference(name, x, y) for name, x, y in leaves if x != y]
    more, fewer = ([n for n in p.names if n not in q.names] for p, q in ((new, old), (old, new)))
    if more or fewer:
        known = dict(zip(old.names, a.leaves, strict=True))
        pairs = [(n, known[n], y) for n, y in zip(new.names, b.leaves, strict=True) if n in known]
        given = [(more, "given"), (fewer, "left out")]
        words = " and ".join(f"{', '.join(names)}, {verb}" for names, verb in given if names)
        fix = f"{', '.join(more + fewer)} at every call, or at none: a default is a constant"
        first = Difference(words, fix, 3 * len(more + fewer))
        return [first, *(leaf_difference(n, x, y) for n, x, y in pairs if x != y)]
    if (pair := data_apart(a.structure, b.structure)) is not None:
        return [data_difference(*pair)]
    text = f"the structure of the arguments: {a.structure} against {b.structure}"
    return [
        Difference(
            text, "the same containers, and arguments by position or by name, at every call", 3
        )
    ]


def data_apart(a: Structure, b: Structure) -> tuple[Structure, Structure] | None:
    """The first nodes of two structures that differ in nothing but their static data."""
    if a.kind is not b.kind or len(a.children) != len(b.children):
        return None
    if not same_data(a, b):
        return a, b
    pairs = (data_apart(*pair) for pair in zip(a.children, b.children, strict=True))
    return next((pair for pair in pairs if pair is not None), None)


def data_difference(a: Structure, b: Structure) -> Difference:
    text = f"what is static in {named(a)}: {root_text(a)} against {root_text(b)}"
    data = a.aux if isinstance(a.aux, tuple) else (a.aux,)
    others = b.aux if isinstance(b.aux, tuple) else (b.aux,)
    found = next((x for x, y in zip(data, others, strict=False) if x is not y and x != y), None)
    if isinstance(found, FunctionType):
        name = found.__qualname__.rpartition(".")[2]
        fix = (
            f"{name} defined once, and not anew for each call: functions are told apart by identity"
        )
        return Difference(text, fix, 2)
    return Difference(
        text, "few different values of what is static: each is a program of its own", 2
    )


def leaf_difference(name: str, x: Any, y: Any) -> Difference:
    both = isinstance(x, tuple) and isinstance(y, tuple) and x[0] != y[0] and x[1] != y[1]
    text = f"{name}: {key_text(x)} against {key_text(y)}"
    return Difference(text, leaf_fix(name, x, y), 2 if both else 1)


def leaf_fix(name: str, x: Any, y: Any) -> str:
    """The change that would make the two one signature."""
    if is_static(x) or is_static(y):
        return static_fix(name, x, y)
    if isinstance(x, type) and isinstance(y, type):
        return f"float({name}) at every call: int and float are two signatures"
    if isinstance(x, type) or isinstance(y, type):
        return f"np.asarray({name}) at every call, or always a Python number"
    (shape, dtype, *gpu), (other_shape, other_dtype, *other_gpu) = x, y
    if gpu != other_gpu:
        return f"{name} on the same device at every call"
    if shape == other_shape:
        return f"{name}.astype(np.{dtype}) before the call"
    if dtype != other_dtype:
        return f"{name} of one shape and dtype: {ArrayType(shape, dtype)}"
    if len(shape) != len(other_shape):
        return f"{name}.reshape to {len(shape)} axes, or ge2.vmap for one more"
    axes = [i for i, (n, m) in enumerate(zip(shape, other_shape, strict=True)) if n != m]
    along = f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"
    return f"padding {name} along {along} to a few sizes, such as powers of two, with a mask for the rest"


def static_fix(name: str, x: Any, y: Any) -> str:
    values = [k.value for k in (x, y) if isinstance(k, Static)]
    if len(values) == 2 and all(type(v) in NUMBERS for v in values):
        return f"leaving {name} out of static_argnums: then its value is an argument like any other"
    if isinstance(x, Same) and isinstance(y, Same):
        return f"the same object for {name} at every call: it is told apart by identity"
    return f"few different values of {name}: each is a program of its own"


def closure_differences(a: Any, b: Any, labels: Sequence[str]) -> list[Difference]:
    """The names outside the function that are bound to something else."""
    x, y = still_parts(a), still_parts(b)
    if not len(x) == len(y) == len(labels):
        return [Difference(READ, "")]
    pairs = zip(labels, x, y, strict=True)
    found = [(name, p, q) for name, p, q in pairs if p != q and None not in (p, q)]
    if not found:
        return [Difference(READ, "arrays of the same shapes, in the same containers")]
    return [
        Difference(f"{name}, {READ}: {key_text(p)} against {key_text(q)}", f"{name} as an argument")
        for name, p, q in found
    ]


def still_parts(closure: Any) -> tuple[Any, ...]:
    """The keys of what is bound to a closure's names; None for an array or a container."""
    token = closure[0] if isinstance(closure, tuple) and closure else closure
    return token.parts if isinstance(token, Token) else ()


def settings_difference(a: tuple[Any, ...], b: tuple[Any, ...]) -> Difference:
    changed = [
        f"{name}={x!r} against {y!r}" for name, x, y in zip(KEYED, a, b, strict=False) if x != y
    ] or ["kernels were registered since"]  # `Config.renew`, whose number comes last
    return Difference(f"the settings: {', '.join(changed)}", "the same settings at every call")


# ---------------------------------------------------------------------------------------- widening
# Values that become wider than they have to be: the line at which float32 became float64.
#
# NumPy 2 gives `np.sqrt(2 / np.pi)` the dtype float64, and an array of float32 multiplied by it is
# one of float64 from there on: right, slow, and seldom meant.


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
    narrow: ArrayType | None  # the widest floating input less wide than that; None if it has none
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
        inner = [w for g in eqn.op.graphs() for w in widenings(g, bits)]
        yield from inner
        wide = next((v.type for v in eqn.outs if width(v.type) > bits), None)
        if wide is None or inner or any(width(a.type) > bits for a in eqn.inputs if type(a) is Var):
            continue
        yield widening(graph, eqn, wide)


def widening(graph: Graph, eqn: Eqn, wide: ArrayType) -> Widening:
    floating = [a.type for a in eqn.inputs if 0 < width(a.type) < width(wide)]
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
