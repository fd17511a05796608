"""What things are called in a CUDA kernel: indices, sizes, elements,
numbers; and so its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT32, FLOAT64, HALF
from ge2.codegen.axes import Axes
from ge2.codegen.kernel_values import Held, Param, Placed
from ge2.codegen.parameters import AxesParameters
from ge2.codegen.text import Operand
from ge2.ir import Literal, Var
from ge2.ops.shape import Iota
from ge2.targets.cuda.emit.types import HELD, STORED, SUFFIX, baked, number

LETTERS = "ijlmquwxyz"
NOWHERE: Mapping[int, str] = {}
WIDEST = 16  # bytes of one access
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
    "parts", "row", "rest", "first", "team", "step", "some",
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
        self.lane = -1  # the axis along which a thread has several elements, v of them
        self.far = (
            any(self.spans(p) >= FAR for p in axes.strides) or math.prod(axes.sizes.values()) >= FAR
        )

    @property
    def whole(self) -> str:
        """The type of places in arrays."""
        return "int64_t" if self.far else "int"

    def spans(self, p: Param) -> int:
        """Returns how many elements there are from the first of an array to its last."""
        return sum(abs(s) * (self.axes.sizes[a] - 1) for a, s in self.axes.strides[p].items()) + 1

    # -- parameters

    def size(self, name: str, value: int) -> str:
        return self.argue(name, f"{self.whole} {name}", "size", value)

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
        """Returns what a place among all along some axes is called: as that along the
        axis, if there is but one.
        """
        return self.letters[axes[0]] if len(axes) == 1 else name

    def among(self, axes: Sequence[int], v: str = "") -> str:
        """The place among all along some axes, in C order."""
        text = ""
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

    def at(self, a: int, v: str = "") -> str:
        """The place along an axis."""
        return self.letters[a] + (f" + {v}" if v and a == self.lane else "")

    def back(self, name: str, placed: Placed) -> str:
        """How many elements after that of the space an array's begins, to be taken from its index."""
        assert placed.var is not None
        steps = zip(placed.low, self.operands[placed.var].strides, strict=True)
        before = sum(low * step for low, step in steps)
        return f" - {self.size(f'{name}_back', before)}" if before else ""

    def stride(self, p: Param, a: int) -> str:
        """A stride as it is best said: 1, the sizes of the axes within, or a number of its own."""
        strides = self.axes.strides[p]
        if strides[a] == 1:
            return "1"
        within = [b for b in strides if 0 < strides[b] < strides[a]]
        return self.stride_by(p, a, within, label(p.name))

    def array(self, p: Param) -> str:
        """An input, as a pointer."""
        name, dtype = label(p.name), p.var.type.dtype
        declared = f"const {STORED[dtype]} *__restrict__ {name}"
        return self.argue(name, declared, "array", (self.operands[p.var], dtype))

    def value(self, p: Param) -> str:
        """An input that is a number, handed over as such."""
        name, dtype = label(p.name), p.var.type.dtype
        return self.argue(name, f"{HELD[dtype]} {name}", "value", (self.operands[p.var], dtype))

    def result(self, p: Param) -> str:
        dtype = p.var.type.dtype
        declared = f"{STORED[dtype]} *__restrict__ {p.name}"
        return self.argue(p.name, declared, "result", (self.operands[p.var], dtype))

    def wide(self, p: Param) -> int:
        """Returns how many elements along the lane one access may move: what their
        number and every stride allow.
        """
        strides, dtype = self.axes.strides[p], p.var.type.dtype
        if strides.get(self.lane) != 1:
            return 1
        operand = self.operands[p.var]
        parts = [*(s for a, s in strides.items() if a != self.lane), operand.offset, operand.loose]
        found = WIDEST // dtype.itemsize
        while found > 1 and any(each % found for each in parts):
            found //= 2
        return max(found, 1)

    def pack(self, lying: Sequence[Param], room: int) -> int:
        """Elements of a thread: as many as one access moves of any array, or two of the one with
        the largest elements, if so many bytes hold them. Beside a mask of bools a thread would
        have 128 bytes of float64 otherwise, and of whatever is computed of it.
        """
        sizes = [p.var.type.dtype.itemsize for p in lying]
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
