"""Names in CUDA kernels: of values and of types; the texts of reductions, and of places along axes."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import BFLOAT16, BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.codegen.axes import Axes, Work
from ge2.codegen.kernel_values import Held, Param, Placed
from ge2.codegen.text import AxesParameters, Operand, Text
from ge2.codegen.user_kernels import BITS, INTEGER, NAMED, SUFFIX, Spelling, baked, subjects
from ge2.ir import Literal, Var
from ge2.ops.reduce import ArgReduce
from ge2.ops.shape import Iota

__all__ = ["CUDA", "GATHERED", "HELD", "STORED", "SUFFIX", "baked", "expression", "headers"]


# -------- How the vocabulary of lowerings is spelt in CUDA: types, numbers, and which header
# defines what.


STORED: dict[np.dtype, str] = {  # the type of an element of an array
    BOOL: "uint8_t", FLOAT32: "float", FLOAT64: "double",
    COMPLEX64: "ge2_c64", COMPLEX128: "ge2_c128", **INTEGER, **BITS,
}  # fmt: skip
HELD = {**STORED, **dict.fromkeys(HALF, "float"), BOOL: "bool"}  # of a value between equations
GATHERED = HELD  # of a state

CUDA = Spelling(
    STORED,
    HELD,
    truth=("false", "true"),
    infinity=("GE2_INFINITY_F32", "GE2_INFINITY_F64"),
    nan=("GE2_NAN_F32", "GE2_NAN_F64"),
)
expression, retyped, spelt, number = CUDA.expression, CUDA.retyped, CUDA.spelt, CUDA.number
__all__ += ["helpers_of", "number", "retyped", "spelt"]


def helpers_of(text: str, dtype: np.dtype) -> tuple[str, ...]:
    """Returns the text of a user's own functions, which precedes the kernels that call them."""
    return (textwrap.dedent(spelt(text, dtype)).strip(),) if text else ()


# Which header defines a function: by its type, by the word it begins with, by
# its name, then by its suffix.
THREADS = re.compile(r"\bge2_(?:warp|block|lane)_\w")
TYPES = re.compile(r"\bge2_c(?:64|128)\b")
# fmt: off
FOLDS = frozenset((
    "indexed", "first", "at", "argmax", "argmin", "argmax_next", "argmin_next", "argmax_begin", "argmin_begin",
    "argmax_step", "argmin_step", "compensate", "compensated", "lowest", "highest",
))
# fmt: on
FIRST = {word: word for word in ("cast", "pair", "random", "index", "sort")} | {"near": "fold"}
STATES = {  # of several numbers, by the functions of their headers
    name.replace("X", one): f"{one}s"
    for one in ("exp", "deviation")
    for name in ("Xs", "no_Xs", "X_of", "add_Xs", "take_X", "take_Xs", "sum_of_Xs")
}
KINDS = {"f32": "float", "f64": "float", "bool": "bool"}


def headers(text: str) -> tuple[str, ...]:
    """The headers that a text needs, by the functions and types it names.

    >>> headers("ge2_add_f32(ge2_tanh_f32(x), ge2_cast_i32_f32(i))")
    ('cast', 'float')
    >>> headers("const ge2_c64 z = x[i] * y[i];"), headers("y[i] = x[i];")
    (('complex',), ('core',))
    """
    found = {header(name, suffix) for name, suffix in NAMED.findall(text)}
    if TYPES.search(text):
        found.add("complex")
    if "ge2_random_" in text:
        found.add("random")
    if THREADS.search(text):
        found.add("warp")
    return tuple(sorted(found or {"core"}))


@cache
def header(name: str, suffix: str) -> str:
    name = name.removeprefix("near_")
    if found := STATES.get(name) or FIRST.get(name.split("_")[0]):
        return found
    subject = subjects().get(name, "basic")
    if name == "complex" or suffix in ("c64", "c128"):
        return "complex" if subject == "basic" else "complex_maths"
    if subject == "special":
        return subject
    return "fold" if name in FOLDS else KINDS.get(suffix, "integer")


# -------- What things are called in a CUDA kernel: indices, sizes, elements, numbers; and so its
# parameters.


LETTERS = "ijlmquwxyz"
NOWHERE: Mapping[int, str] = {}
WIDEST = 16  # bytes of one access
SHORT = 8  # elements of a last axis that is one with that before, though arrays are moved along it
FAR = (1 << 31) - (1 << 27)  # elements from which on a place, and a step beyond, needs 64 bits
# fmt: off
RESERVED = frozenset((
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
    "compl", "const", "constexpr", "continue", "decltype", "default", "delete", "do", "double", "else",
    "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline",
    "int", "long", "mutable", "namespace", "new", "noexcept", "not", "nullptr", "operator", "or",
    "private", "protected", "public", "register", "return", "short", "signed", "sizeof", "static",
    "struct", "switch", "template", "this", "throw", "true", "try", "typedef", "typeid", "typename",
    "union", "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "abs",
    "acos", "asin", "atan", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1",
    "floor", "fma", "fmax", "fmin", "fmod", "hypot", "ldexp", "log", "log10", "log1p", "log2", "max",
    "min", "pow", "rint", "round", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "by", "here", "k", "v", "t",
    "n", "p", "s", "r", "u", "at", "e", "from", "to", "mine", "slot", "turn", "room", "fetch", "part",
    "parts", "row", "rest", "first", "team", "step", "some", "lead",
))
# fmt: on


def label(name: str) -> str:
    """A name that C++, CUDA and the loops have no other use for."""
    return f"{name}_" if name in RESERVED or name in LETTERS else name


@final
class Places(AxesParameters):
    """`constant`: axes whose sizes are in the text; `far`: whether places need 64 bits."""

    def __init__(self, axes: Axes, operands: Mapping[Var, Operand], order: Sequence[int]) -> None:
        super().__init__(axes, operands, order, LETTERS)
        self.constant: frozenset[int] = frozenset()
        self.short = 1  # strides up to which they are in the text
        self.lane = -1  # the axis along which a thread has several elements, v of them
        # arrays whose rows begin anywhere, all as far behind a multiple of so many elements, at which
        # packs begin: other arrays are then read one by one
        self.alike: frozenset[Param] = frozenset()
        self.multiple = 0
        # neighbours whose elements few accesses move, with those of arrays that alternate with theirs
        self.alternate: Mapping[Param, int] = {}
        self.far = (
            any(self.spans(p) >= FAR for p in axes.strides) or math.prod(axes.sizes.values()) >= FAR
        )

    @property
    def whole(self) -> str:
        """The type of places in arrays."""
        return "int64_t" if self.far else "int"

    def spans(self, p: Param) -> int:
        """Returns how many elements there are from the first of an array to its last, of those in the
        space, or of all where that is more: of a shifted array the space may have a part.
        """
        sizes, own = self.axes.sizes, self.operands[p.var].strides
        here = sum(abs(s) * (sizes[a] - 1) for a, s in self.axes.strides[p].items())
        whole = sum(abs(s) * (n - 1) for s, n in zip(own, p.var.type.shape, strict=False))
        return max(here, whole) + 1

    # -- parameters

    def size(self, name: str, value: int) -> str:
        return self.add_argument(name, f"{self.whole} {name}", "size", value)

    def number(self, literal: Literal, dtype: np.dtype) -> str:
        value: Any = literal.value
        sizes = frozenset(n for a, n in self.axes.sizes.items() if a not in self.constant)
        if baked(value, dtype, sizes) or self.follows(value, dtype):
            return number(value, dtype)
        return self.passed(literal, dtype, HELD[dtype])

    def follows(self, value: Any, dtype: np.dtype) -> bool:
        """True if a number is a size that is in the text, or one over it: the
        compiler divides by these.
        """
        if dtype not in (FLOAT32, FLOAT64) or not self.constant:
            return False
        n = math.prod(self.axes.sizes[a] for a in self.constant)
        return n > 0 and dtype.type(value) in (dtype.type(n), dtype.type(1 / n))

    # -- axes

    def extent(self, a: int) -> str:
        n = self.axes.sizes[a]
        return str(n) if a in self.constant else self.size(f"n_{self.letters[a]}", n)

    def linear(self, axes: Sequence[int], name: str) -> str:
        """Returns what a place among all along some axes is called: as that along a single one."""
        return self.letters[axes[0]] if len(axes) == 1 else name

    def among(self, axes: Sequence[int], v: str = "", before: str = "") -> str:
        """The place among all along some axes, in C order, after those `before`, which are others'."""
        text = "" if before == "0" else before
        for a in axes:
            index = self.at(a, v)
            text = (
                f"{f'({text})' if ' ' in text else text} * {self.extent(a)} + {index}"
                if text
                else index
            )
        return text or "0"

    def split(self, linear: str, axes: Sequence[int]) -> list[str]:
        """Statements that tell the place along each axis from a place among all."""
        if not axes or self.letters[axes[0]] == linear:
            return []
        found, rest = [], linear
        for n, a in enumerate(reversed(axes)):
            letter = self.letters[a]
            if n == len(axes) - 1:
                found.append(f"const {self.whole} {letter} = {rest};")
            else:
                extent = self.extent(a)
                found.append(f"const {self.whole} {letter} = {rest} % {extent};")
                over = f"{rest} / {extent}"
                rest = over if " " not in rest else f"({rest}) / {extent}"
        return found

    # -- elements of arrays

    def element(self, p: Param, v: str = "", known: Mapping[int, str] = NOWHERE) -> str:
        """The index of an element; `v` is added along the lane. `known`: places along axes."""
        terms = []
        for a in sorted(self.axes.strides[p], key=self.order.index):
            stride = self.axes.strides[p][a]
            if not stride:
                continue
            index = known.get(a) or self.at(a, v)
            step = self.stride(p, a)
            terms.append(
                index
                if step == "1"
                else f"({index}) * {step}"
                if " " in index
                else f"{index} * {step}"
            )
        return " + ".join(terms) or "0"

    def row(self, p: Param, known: Mapping[int, str] = NOWHERE) -> str:
        """The first element of a result along the lane."""
        text = self.element(p, "", {**known, self.lane: "0"}).removesuffix(" + 0")
        return self.result(p) if text == "0" else f"{self.result(p)} + {text}"

    def at(self, a: int, v: str = "") -> str:
        """The place along an axis."""
        return self.letters[a] + (f" + {v}" if v and a == self.lane else "")

    def back(self, name: str, placed: Placed) -> str:
        """The offset of an array's first element in the space, to be subtracted from its index."""
        assert placed.var is not None
        steps = zip(placed.low, self.operands[placed.var].strides, strict=True)
        before = sum(low * step for low, step in steps)
        return f" - {self.size(f'{name}_back', before)}" if before else ""

    def stride(self, p: Param, a: int) -> str:
        """A stride as it is best said: 1, the sizes of the axes within, or a number of its own."""
        strides = self.axes.strides[p]
        if 0 < strides[a] <= self.short:
            return str(strides[a])
        within = [b for b in strides if 0 < strides[b] < strides[a]]
        return self.stride_by(p, a, within, label(p.name))

    def array(self, p: Param) -> str:
        """An input, as a pointer."""
        name, dtype = label(p.name), p.var.type.dtype
        declared = f"const {STORED[dtype]} *__restrict__ {name}"
        return self.add_argument(name, declared, "array", (self.operands[p.var], dtype))

    def value(self, p: Param) -> str:
        """An input that is a number, handed over as such."""
        name, dtype = label(p.name), p.var.type.dtype
        return self.add_argument(
            name, f"{HELD[dtype]} {name}", "value", (self.operands[p.var], dtype)
        )

    def result(self, p: Param) -> str:
        dtype = p.var.type.dtype
        declared = f"{STORED[dtype]} *__restrict__ {p.name}"
        return self.add_argument(p.name, declared, "result", (self.operands[p.var], dtype))

    def wide(self, p: Param, rows: Sequence[int] = ()) -> int:
        """Returns how many elements along the lane one access may move: what their
        number and every stride allow, those also of rows that are read at indices.
        """
        strides, dtype = self.axes.strides[p], p.var.type.dtype
        if strides.get(self.lane) != 1:
            return self.alternate.get(p, 1)
        if self.multiple:
            return min(self.multiple, WIDEST // dtype.itemsize) if p in self.alike else 1
        operand = self.operands[p.var]
        steps = (s for a, s in strides.items() if a != self.lane)
        parts = [*steps, *rows, operand.offset, operand.loose]
        found = WIDEST // dtype.itemsize
        while found > 1 and any(each % found for each in parts):
            found //= 2
        return max(found, 1)

    def pack(self, lying: Sequence[Param], room: int) -> int:
        """Elements of a thread: as many as one access moves of any array, or two of the one with
        the largest elements, if so many bytes hold them. Beside a mask of bools a thread would
        have 128 bytes of float64 otherwise, and of whatever is computed of it.
        """
        # neighbours of one that alternates with others are apart, and theirs are moved with them
        steps = (self.axes.strides[p][self.lane] if p in self.alternate else 1 for p in lying)
        sizes = [p.var.type.dtype.itemsize * step for p, step in zip(lying, steps, strict=True)]
        most = min(room // max(sum(sizes), 1), 2 * WIDEST // max(sizes, default=1))
        return min(max(map(self.wide, lying), default=1), 1 << max(most.bit_length() - 1, 0))

    def count(self, op: Iota, x: Held, v: str) -> str:
        index = "0"
        if x.axes:
            (a,) = x.axes
            index = self.at(a, v)
            index = f"({index})" if " " in index else index
        if op.dtype in HALF:
            short = SUFFIX[op.dtype]
            return f"ge2_cast_{short}_f32(ge2_cast_f32_{short}((float){index}))"
        if op.dtype in COMPLEX:
            part = "f32" if op.dtype.itemsize == 8 else "f64"
            return f"ge2_complex_{part}({index}, 0)"
        return f"({HELD[op.dtype]}){index}"


# -------- Reductions in CUDA: the state that gathers a result, how it begins, takes in a value, and
# is merged, which `templates/cuda/reduce.cu.jinja` prints.


@final
@record
class State:
    """A state as it begins; with a `count`, an array of so many."""

    type: str
    name: str
    start: str
    count: str = ""
    index: str = "e"
    kind: ClassVar = "state"


@final
@record
class Gather:
    """A thread's share of a reduction: elements k from `first` to `end` by `step` are taken in."""

    first: str
    end: str
    step: int
    taken: tuple[Text, ...]
    kind: ClassVar = "gather"


@final
@record
class Merge:
    """States of several threads become one, by a `function` that is handed how two of them do."""

    value: str
    function: str
    type: str
    merged: str
    in_place: bool = False  # the value is an array of states
    kind: ClassVar = "merge"


@final
@record
class Each:
    """The same for each of `count` states, in a loop that the compiler writes out."""

    index: str
    count: str
    body: tuple[Stage, ...]
    kind: ClassVar = "each"

    @property
    def braces(self) -> bool:
        """True if it encloses more than one statement."""
        return len(self.body) > 1 or (isinstance(self.body[0], Text) and bool(self.body[0].body))


Stage = Text | State | Gather | Merge | Each


def op_of(w: Work) -> Any:
    assert w.step is not None and w.step.eqn is not None
    return w.step.eqn.op


def state_of(w: Work) -> str:
    """Returns what the state of a reduction is called: `b_sum`, `c_argmax`."""
    assert w.y is not None
    return f"{w.y.name}_{str(op_of(w).name).removeprefix('reduce_')}"


def dtype_of(w: Work) -> np.dtype:
    return w.xs[0].dtype


def indexed(w: Work) -> bool:
    """True if the state has an index beside the value."""
    return isinstance(op_of(w), ArgReduce)


def near(w: Work, text: str) -> str:
    """The text of a state, its functions those of indices that are an int, where no index of what is
    looked at takes more.
    """
    op = op_of(w)
    assert w.step is not None and w.step.eqn is not None
    fits = indexed(w) and w.step.eqn.inputs[0].type.shape[op.axis] < FAR
    return text.replace("ge2_", "ge2_near_", 1) if fits else text


def is_number(w: Work) -> bool:
    """True if the state is a number."""
    return bool(op_of(w).lowering.state == "{0}")


def state_type(w: Work) -> str:
    dtype, state = dtype_of(w), op_of(w).lowering.state
    return (
        GATHERED[dtype] if is_number(w) else near(w, f"{state.partition('<')[0]}_{SUFFIX[dtype]}")
    )


def state_bytes(w: Work) -> int:
    size = dtype_of(w).itemsize
    return max(16, size + 8) if indexed(w) else size * op_of(w).lowering.numbers


def start(w: Work) -> str:
    return near(w, start_of(op_of(w), dtype_of(w)))


def start_of(op: Any, dtype: np.dtype) -> str:
    """Returns what the state of a reduction is of nothing at all."""
    text = op.lowering.start
    if "(" in text:
        return expression(text, [], dtype, dtype)
    return {"false": "false", "true": "true"}.get(text) or number(int(text), dtype)


def begun(w: Work, count: str = "", index: str = "e") -> State:
    """The state of a reduction, or those of `count` elements, before anything is gathered."""
    return State(state_type(w), state_of(w), start(w), count, index)


def merged_text(w: Work, mine: str, other: str) -> str:
    """One state of two."""
    dtype = dtype_of(w)
    return expression(near(w, op_of(w).lowering.merge), [mine, other], dtype, dtype)


def taken_in(w: Work, mine: str, value: str, index: str) -> str:
    """The statement that takes a value into a state; `index` is its place along the axis."""
    dtype = dtype_of(w)
    if indexed(w):
        of = near(w, f"ge2_{op_of(w).name}_next({{0}}, {{1}}, {{2}})")
        return f"{mine} = {expression(of, [mine, value, index], dtype, dtype)};"
    lowering = op_of(w).lowering
    if lowering.take:
        return f"{mine} = {expression(lowering.take, [mine, value], dtype, dtype)};"
    if not is_number(w):
        value = expression(lowering.lift, [value, index], dtype, dtype)
    return f"{mine} = {merged_text(w, mine, value)};"


def next_taken(w: Work, mine: str, value: str, index: str) -> str:
    """The state with a value whose place is behind those of all before."""
    of = near(w, f"ge2_{op_of(w).name}_step_{SUFFIX[dtype_of(w)]}")
    return f"{of}({mine}, {value}, {index})"


def start_at(w: Work, places: str) -> str:
    """The state that such values are taken into; `places`: the first, and the end of all."""
    return near(w, f"ge2_{op_of(w).name}_begin_{SUFFIX[dtype_of(w)]}") + f"({places})"


def takes_several(w: Work, row: Sequence[int]) -> bool:
    """True if a state over a row takes in several elements for less than one by one."""
    return not indexed(w) and bool(op_of(w).lowering.several) and w.over <= set(row)


def neighbours(w: Work, name: str) -> Text:
    """The elements that a state takes in at once."""
    return Text(f"{GATHERED[dtype_of(w)]} {name}[PACK];")


def taken_together(w: Work, name: str) -> Text:
    """The statement that takes them in."""
    mine, several = state_of(w), op_of(w).lowering.several
    return Text(f"{mine} = {several}_{SUFFIX[dtype_of(w)]}({mine}, {name});")


def merge(w: Work, value: str, function: str, in_place: bool = False) -> Merge:
    """The merging of a state with those of other threads."""
    return Merge(value, function, state_type(w), merge_of(w), in_place)


def merge_of(w: Work) -> str:
    return merged_text(w, "mine", "other")


def read(w: Work, text: str) -> str:
    """The result that a state holds."""
    assert w.y is not None
    if not is_number(w):
        dtype = dtype_of(w)
        return expression(op_of(w).lowering.read, [text], dtype, dtype)
    return text if dtype_of(w) == w.y.dtype else f"({HELD[w.y.dtype]}){text}"


# -------- Elements of packs, which are neighbours that a thread has.


OF_PACK = ".at[v]"  # the element of a pack that is current
IN_PACK = re.compile(r"(.+)\.at\[((?:\d+ \* )?v(?: [+-] \d+)?)\]")


def widened(dtype: Any, text: str) -> str:
    """An element of a half type as float32; one of a pack, or of several, by its pair."""
    if dtype == BFLOAT16 and (found := IN_PACK.fullmatch(text)):
        return f"ge2_pair_at_bf16({found[1]}, {found[2]})"
    return f"ge2_cast_{SUFFIX[dtype]}_f32({text})"


def power(n: int) -> int:
    """The least power of two that is not less.

    >>> power(1), power(5), power(32)
    (1, 8, 32)
    """
    return 1 << max(n - 1, 0).bit_length()


@final
@dataclass
class Marks:
    """Names of places along axes. Along the lane a thread has `pack` neighbours, whose first is at a
    multiple of that, so one comparison does for many of them.
    """

    places: Places
    pack: int
    names: dict[int, dict[int, str]] = field(default_factory=dict)

    def name(self, n: int, axis: int = -1) -> str:
        """The name of a place along an axis, or along the lane: equal ones have one, so that what is
        asked of them is asked once.
        """
        a = axis if axis >= 0 else self.places.lane
        names = self.names.setdefault(a, {})
        name = names.setdefault(n, f"{self.places.letters[a]}_at{len(names)}")
        return self.places.size(name, n)

    def upwards(self, n: int) -> int:
        """The first multiple of a pack that is not less."""
        return -(-n // self.pack) * self.pack

    @property
    def end(self) -> int:
        """The place after the last pack."""
        return self.upwards(self.places.axes.sizes[self.places.lane])

    def below(self, end: int) -> str:
        """True of the elements whose place is before one; "" if all are."""
        return self.compared(end, "<", lambda n: n >= self.end)

    def at_least(self, begin: int) -> str:
        """True of the elements whose place is not before one; "" if none is."""
        return self.compared(begin, ">=", lambda n: n <= 0)

    def compared(self, n: int, sign: str, holds: Callable[[int], bool]) -> str:
        """The comparison of all elements of a pack: those before the n-th, and those from it on."""
        packs, rest = divmod(n, self.pack)
        ends = (packs + 1) * self.pack, packs * self.pack
        before, after = (self.pack_test(end, sign, holds(end)) for end in ends)
        if not rest or before == after:
            return "" if after == "true" else after
        near, far = (before, after) if sign == "<" else (after, before)
        first = f"v {sign} {rest}"
        if near == "true":
            return first if far == "false" else f"({first} || {far})"
        return f"({first} && {near})" if far == "false" else f"({first} ? {near} : {far})"

    def pack_test(self, n: int, sign: str, holds: bool) -> str:
        fails = n <= 0 if sign == "<" else n >= self.end
        letter = self.places.letters[self.places.lane]
        return "true" if holds else "false" if fails else f"{letter} {sign} {self.name(n)}"
