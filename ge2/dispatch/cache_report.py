"""What a jitted function was traced for, and what would have spared a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from ge2.base.config import KEYED
from ge2.base.display import Printed
from ge2.base.dtypes import NUMBERS
from ge2.base.formatting import counted
from ge2.base.record import record
from ge2.dispatch.closures.capture import Token
from ge2.dispatch.signature import Same, Static, is_static, key_text
from ge2.ir import ArrayType

if TYPE_CHECKING:
    from ge2.dispatch.cache import Entry
    from ge2.dispatch.key import Key

READ = "what the function reads besides its arguments"


@final
@record
class Signature:
    """What a call is found by, what its leaves are called, and how often there was one."""

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
    """What a function was traced for.

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
    """What differs between two signatures, in words."""
    a, b = old.key, new.key
    found = argument_differences(old, new)
    if a.closure != b.closure:
        found += closure_differences(a.closure, b.closure, labels)
    if a.settings != b.settings:
        found.append(settings_difference(a.settings, b.settings))
    if a.donated != b.donated:
        fix = "an array that owns its memory, is writable, and is no other argument, at every call"
        found.append(Difference("what could be donated", fix))
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
    text = f"the structure of the arguments: {a.structure} against {b.structure}"
    return [
        Difference(
            text, "the same containers, and arguments by position or by name, at every call", 3
        )
    ]


def leaf_difference(name: str, x: Any, y: Any) -> Difference:
    both = isinstance(x, tuple) and isinstance(y, tuple) and x[0] != y[0] and x[1] != y[1]
    text = f"{name}: {key_text(x)} against {key_text(y)}"
    return Difference(text, leaf_fix(name, x, y), 2 if both else 1)


def leaf_fix(name: str, x: Any, y: Any) -> str:
    """What would make the two one signature."""
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
    """Which names outside the function are bound to something else."""
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
        f"{name}={x!r} against {y!r}" for name, x, y in zip(KEYED, a, b, strict=True) if x != y
    ]
    return Difference(f"the settings: {', '.join(changed)}", "the same settings at every call")
