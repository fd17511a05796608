"""Places in arrays as text, and how views turn a place of theirs into one of what they view."""

from __future__ import annotations

import math
import re
from typing import Any, final

from ge2.base.record import record
from ge2.ir import Dims, Eqn
from ge2.ops.shape import BroadcastInDim, Identity, Reshape, Rev, Slice, Transpose

# between elements along an axis; a text, if sizes are in it that the kernel is handed
Step = int | str
Steps = tuple[Step, ...]
SIMPLE = r"[\w.]+(\[[^\[\]]*\])?|\w*\([^()]*\)"  # names, numbers, elements, calls


@final
@record
class Index:
    """A place in an array of that shape: a number in C order (`flat`), one
    along each axis, or both.
    """

    shape: Dims
    flat: str = ""
    along: tuple[str, ...] | None = None

    def each(self) -> tuple[str, ...]:
        """The place along each axis."""
        if self.along is not None:
            return self.along
        found, inner = [], math.prod(self.shape)
        for i, n in enumerate(self.shape):
            inner //= max(n, 1)
            text = over(self.flat, inner)
            found.append("0" if n == 1 else text if not i else modulo(text, n))
        return tuple(found)

    def number(self) -> str:
        """The place in C order."""
        return self.flat or joined(self.each(), strides(self.shape))


def strides(shape: Dims) -> Dims:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def joined(along: tuple[str, ...], steps: Steps) -> str:
    """
    >>> joined(("i", "j"), (8, 1)), joined(("0", "j + 1"), (8, -2)), joined((), ())
    ('i * 8 + j', '(j + 1) * -2', '0')
    >>> joined(("i", "j"), ("rows * 8", 8))
    'i * (rows * 8) + j * 8'
    """
    terms = [times(i, s) for i, s in zip(along, steps, strict=True) if s and i != "0"]
    return " + ".join(terms) or "0"


def held(text: str) -> str:
    """A text that any operator may follow."""
    return text if re.fullmatch(SIMPLE, text) else f"({text})"


def times(text: str, n: Step) -> str:
    return text if n == 1 else f"{held(text)} * {held(n) if isinstance(n, str) else n}"


def over(text: str, n: int) -> str:
    return text if n == 1 else f"{held(text)} / {n}"


def modulo(text: str, n: int) -> str:
    return f"{held(text)} % {n}"


def plus(text: str, n: int) -> str:
    return text if not n else str(n) if text == "0" else f"{text} + {n}"


def viewed(eqn: Eqn, i: int, at: Index) -> Index:
    """The place in input `i` of a view, given that in its result."""
    op: Any = eqn.op
    shape = eqn.inputs[i].type.shape
    if isinstance(op, Identity):
        return at
    if isinstance(op, Reshape):
        return Index(shape, at.number())
    if isinstance(op, BroadcastInDim) and shape == op.shape:
        return at
    each = at.each()
    if isinstance(op, BroadcastInDim):
        along = tuple("0" if n == 1 else each[d] for d, n in zip(op.dims, shape, strict=True))
    elif isinstance(op, Transpose):
        along = tuple(each[op.order.index(a)] for a in range(len(shape)))
    elif isinstance(op, Slice):
        parts = zip(each, op.start, op.step, strict=True)
        along = tuple(plus(times(text, step), start) for text, start, step in parts)
    else:
        assert isinstance(op, Rev)
        along = tuple(
            f"{n - 1} - {held(text)}" if a in op.axes else text
            for a, (text, n) in enumerate(zip(each, shape, strict=True))
        )
    same = isinstance(op, Slice) and eqn.outs[0].type.shape == shape
    return at if same else Index(shape, "", along)
