"""The values of a persistent kernel, and the addresses of array elements as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, HALF
from ge2.base.arrays import accumulator as widened
from ge2.base.record import mutable, record
from ge2.codegen.axes import strides_of
from ge2.ir import ArrayType, Dims, Eqn
from ge2.ops.index import Gather, Scatter, ScatterReduce, UpdateSlice, spans
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.random import Draw
from ge2.ops.shape import (
    BroadcastInDim,
    Concatenate,
    Identity,
    Iota,
    Pad,
    Reshape,
    Rev,
    Slice,
    Transpose,
)
from ge2.targets.cuda.emit.words import (
    HELD,
    STORED,
    SUFFIX,
    expression,
    helpers_of,
    number,
    retyped,
)

# -------- Places in arrays as text, and how views turn a place of theirs into one of what they
# view.


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
        return self.flat or joined(self.each(), strides_of(self.shape))


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


# -------- What a persistent kernel computes with: numbers, arrays, views, and what is made where it
# is read.


WRITES = (Scatter, ScatterReduce)
POINTS = (
    Pointlike,
    Gather,
    *WRITES,
    UpdateSlice,
    Concatenate,
    Pad,
    Iota,
)  # each element of a result is one expression


@final
@record
class Number:
    """The same number wherever it is read."""

    text: str
    type: ArrayType


@final
@record
class Array:
    """Elements in memory, `shared` or global: `start` is the place of the
    first, `steps` are strides.

    `alone`: one block of several writes it, so that none reads it again. `stack`: of an element of
    a stack, that stack and the number of the round.
    """

    name: str
    type: ArrayType
    steps: Steps
    start: str = ""
    alone: bool = False
    shared: bool = False
    given: bool = False  # it is there from the start, and never changes
    mine: bool = False  # in registers: each thread of a grid has its own elements
    packed: bool = True  # in C order, from where accesses of 16 bytes may begin
    half: str = ""  # of the two places of a carry: "now", "then"
    stack: tuple[Array, str] | None = None

    def element(self, at: Index, apart: bool = False) -> str:
        """An element; `apart`: from a pointer to the first, which compilers
        keep through an inner loop.
        """
        if self.mine:
            return f"{self.name}[i]"
        place = (
            at.number()
            if self.steps == strides_of(self.type.shape)
            else joined(at.each(), self.steps)
        )
        if apart and self.start and not self.shared:
            return f"({self.name} + {self.start})[{place}]"
        if self.start and place != "0":
            return f"{self.name}[{self.start} + {place}]"
        return f"{self.name}[{self.start or place}]"

    def part(self, number: str) -> Array:
        """Element `number` along the first axis."""
        first = joined((number,), self.steps[:1])
        start = f"{self.start} + {first}" if self.start and first != "0" else self.start or first
        return replace(
            self,
            type=self.type.with_shape(self.type.shape[1:]),
            steps=self.steps[1:],
            start=start,
            stack=(self, number),
        )


@final
@mutable
class Seen:
    """Input `i` of a view, as the view shows it."""

    eqn: Eqn
    i: int
    source: Value
    type: ArrayType


@final
@mutable
class Picked:
    """Element `number` of a stack, along its first axis."""

    source: Value
    number: str
    type: ArrayType


@final
@mutable
class Inline:
    """An element is computed wherever it is read."""

    eqn: Eqn
    operands: Sequence[Value]
    type: ArrayType
    depth: int = 1


@final
@mutable
class Made:
    """A value that a statement makes.

    `homes` are where it is written to; the first that may be read is read.

    `wide`: the threads of a grid share its elements, else each block has all of them.
    """

    name: str
    type: ArrayType
    homes: list[Array] = field(default_factory=list)
    loop: Any = None  # in which its statement is
    wide: bool = False


Value = Number | Array | Seen | Picked | Inline | Made
Read = tuple[Made | Array, bool]  # with whether it is at the own place of what reads


def whole(name: str, type_: ArrayType, start: str = "", shared: bool = False) -> Array:
    """An array in C order."""
    return Array(name, type_, strides_of(type_.shape), start, shared=shared)


def constant(x: Value) -> bool:
    """True if a value is an array that is there from the start, or a view of one."""
    return constant(x.source) if isinstance(x, Seen) else isinstance(x, Array) and x.given


def loaded(x: Array, text: str) -> str:
    """An element as it is held."""
    dtype = x.type.dtype
    if x.mine:
        return text
    if dtype in HALF:
        return f"ge2_cast_{SUFFIX[dtype]}_f32({text})"
    return f"({text} != 0)" if dtype == BOOL else text


def stored(text: str, dtype: np.dtype) -> str:
    """A value as it is stored."""
    return f"ge2_cast_f32_{SUFFIX[dtype]}({text})" if dtype in HALF else text


@final
@mutable
class Reader:
    """Values as text. `made` says how the result of a statement is read."""

    made: Callable[[Made, Index], str]
    # an element, perhaps read before
    ahead: Callable[[Array, Index], str] = lambda x, at: x.element(at)
    helpers: dict[str, None] = field(default_factory=dict)  # of users' expressions

    def element(self, x: Value, at: Index) -> str:
        if isinstance(x, Number):
            return x.text
        if isinstance(x, Array):
            return loaded(x, self.ahead(x, at))
        if isinstance(x, Seen):
            return self.element(x.source, viewed(x.eqn, x.i, at))
        if isinstance(x, Picked):
            return self.element(x.source, Index(x.source.type.shape, "", (x.number, *at.each())))
        return self.made(x, at) if isinstance(x, Made) else self.computed(x.eqn, x.operands, at)

    def computed(self, eqn: Eqn, xs: Sequence[Value], at: Index) -> str:
        """An element of the result of an equation."""
        op: Any = eqn.op
        if isinstance(op, Iota):
            return counted(op, at.each()[op.axis])
        if isinstance(op, Pad):
            return self.padded(op, xs[0], eqn, at)
        if isinstance(op, Concatenate):
            return self.joined(op, xs, at)
        if isinstance(op, Gather):
            return self.gathered(op, xs, at)
        if isinstance(op, WRITES):
            return self.written(op, xs, at)
        if isinstance(op, UpdateSlice):
            return self.updated(op, xs, at)
        if isinstance(op, Draw):
            given = [self.element(x, Index((), "0")) for x in xs]
            place = " + ".join([at.number(), *given[2:]])
            return f"ge2_random_bits_{SUFFIX[op.dtype]}({', '.join(given[:2])}, {place})"
        operands = [self.element(x, at if x.type.shape else Index((), "0")) for x in xs]
        dtype, out = widened(xs[0].type.dtype), eqn.outs[0].type.dtype
        if op.retypes:
            return held_as(retyped(operands[0], eqn))
        if op.edition:
            self.helpers.update(dict.fromkeys(helpers_of(op.lowering.helpers, dtype)))
        text = op.lowering.cuda or op.lowering.expression
        return held_as(expression(text, [*map(held_as, operands)], dtype, widened(out)))

    def padded(self, op: Pad, x: Value, eqn: Eqn, at: Index) -> str:
        dtype = widened(x.type.dtype)
        inside, along = [], []
        for text, low, n, total in zip(
            at.each(), op.low, x.type.shape, eqn.outs[0].type.shape, strict=True
        ):
            place = plus(text, -low) if low <= 0 else f"{text} - {low}"
            along.append(place)
            if low or n != total:
                inside.append(f"(unsigned)({place}) < {n}u")
        found = self.element(x, Index(x.type.shape, "", tuple(along)))
        return f"({' && '.join(inside)} ? {found} : {number(0, dtype)})" if inside else found

    def joined(self, op: Concatenate, xs: Sequence[Value], at: Index) -> str:
        each, begin, text = list(at.each()), 0, ""
        place = each[op.axis]
        for n, x in enumerate(xs):
            each[op.axis] = f"{place} - {begin}" if begin else place
            found = self.element(x, Index(x.type.shape, "", tuple(each)))
            begin += x.type.shape[op.axis]
            text += f"{held(place)} < {begin} ? {found} : " if n < len(xs) - 1 else found
        return f"({text})" if len(xs) > 1 else text

    def gathered(self, op: Gather, xs: Sequence[Value], at: Index) -> str:
        x, *indices = xs
        shape = max((i.type.shape for i in indices), key=len)
        each = at.each()
        place = Index(shape, "", each[: len(shape)])
        rest = iter(each[len(shape) :])
        along = [""] * len(x.type.shape)
        for axis, index in zip(op.axes, indices, strict=True):
            along[axis] = self.place(index, x.type.shape[axis], place)
        return self.element(x, Index(x.type.shape, "", tuple(text or next(rest) for text in along)))

    def place(self, index: Value, size: int, at: Index) -> str:
        """An index, counted from the start of an axis."""
        text = self.element(index, at if index.type.shape else Index((), "0"))
        return f"(int)ge2_index_{SUFFIX[index.type.dtype]}({text}, {size})"

    def written(self, op: Scatter | ScatterReduce, xs: Sequence[Value], at: Index) -> str:
        """An element, or what is written to it, at a single place along each
        axis that is indexed.
        """
        x, updates, *indices = xs
        each = at.each()
        pairs = zip(op.axes, indices, strict=True)
        hit = [
            f"{held(each[a])} == {self.place(i, x.type.shape[a], Index((), '0'))}" for a, i in pairs
        ]
        rest = [text for a, text in enumerate(each) if a not in op.axes]
        others = [n for a, n in enumerate(x.type.shape) if a not in op.axes]
        for i, ((start, n, _), size) in enumerate(
            zip(spans(op, x.type.shape), others, strict=True)
        ):
            rest[i] = f"{rest[i]} - {start}" if start else rest[i]
            if n != size:
                hit.append(f"(unsigned)({rest[i]}) < {n}u")
        old, new = (
            self.element(x, at),
            self.element(updates, Index(updates.type.shape, "", tuple(rest))),
        )
        if isinstance(op, ScatterReduce):
            dtype = widened(x.type.dtype)
            new = expression(op.merge, [old, held_as(new)], dtype, dtype)
        return f"({' && '.join(hit)} ? {new} : {old})"

    def target(self, eqn: Eqn, xs: Sequence[Value], at: Index) -> Index:
        """Returns where an element of updates goes, in what is written in place."""
        op: Any = eqn.op
        shape, each = eqn.inputs[0].type.shape, at.each()
        if isinstance(op, UpdateSlice):
            along = map(plus, each, op.start)
            return Index(shape, "", tuple(along))
        places = {
            a: self.place(i, shape[a], Index((), "0")) for a, i in zip(op.axes, xs[2:], strict=True)
        }
        rest = iter(
            plus(text, start) for text, (start, _, _) in zip(each, spans(op, shape), strict=True)
        )
        return Index(
            shape, "", tuple(places[a] if a in places else next(rest) for a in range(len(shape)))
        )

    def update(self, eqn: Eqn, xs: Sequence[Value], at: Index, into: Array) -> str:
        """Returns what an element is after a write in place."""
        new, dtype = self.element(xs[1], at), widened(into.type.dtype)
        if not isinstance(eqn.op, ScatterReduce):
            return new
        old = loaded(into, into.element(self.target(eqn, xs, at)))
        return expression(eqn.op.merge, [held_as(old), held_as(new)], dtype, dtype)

    def updated(self, op: UpdateSlice, xs: Sequence[Value], at: Index) -> str:
        x, updates = xs
        along, inside = [], []
        for text, start, n, size in zip(
            at.each(), op.start, updates.type.shape, x.type.shape, strict=True
        ):
            along.append(f"{text} - {start}" if start else text)
            if n != size:
                inside.append(f"(unsigned)({along[-1]}) < {n}u")
        new = self.element(updates, Index(updates.type.shape, "", tuple(along)))
        return f"({' && '.join(inside)} ? {new} : {self.element(x, at)})" if inside else new


def held_as(text: str) -> str:
    """A text that may stand in any expression."""
    bracketed = text.startswith(("ge2_", "(")) and closes(text)
    return text if bracketed or held(text) == text else f"({text})"


def closes(text: str) -> bool:
    """True if the first bracket of a text closes at its end."""
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == ")" and not depth:
            return n == len(text) - 1
    return False


def counted(op: Iota, place: str) -> str:
    if op.dtype in HALF:
        short = SUFFIX[op.dtype]
        return f"ge2_cast_{short}_f32(ge2_cast_f32_{short}((float){held(place)}))"
    if op.dtype in COMPLEX:
        return f"ge2_complex_{'f32' if op.dtype.itemsize == 8 else 'f64'}({place}, 0)"
    return f"({HELD[op.dtype]}){held(place)}"


def spoken(eqn: Eqn) -> bool:
    """True if each element of a result is an expression that can be said."""
    op = eqn.op
    if isinstance(op, Pad):
        return not any(op.inner)
    if isinstance(op, UpdateSlice):
        return set(op.step) <= {1}
    if isinstance(op, WRITES):
        even = all(step == 1 for _, _, step in spans(op, eqn.inputs[0].type.shape))
        return even and not any(a.type.shape for a in eqn.inputs[2:])
    return not isinstance(op, Pointlike) or isinstance(op.lowering, Pointwise)


def declared(x: Array, const: bool, promise: str) -> str:
    """A parameter; `const` memory never changes while the kernel runs; `promise`: what is said of it."""
    return f"{'const ' if const else ''}{STORED[x.type.dtype]} *{promise}{x.name}"
