"""What things are called in a kernel: loops, sizes, elements of arrays,
constants; and so its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ge2.base.dtypes import HALF
from ge2.codegen.axes import Axes
from ge2.codegen.kernel_values import Held, Param
from ge2.codegen.loop_nest import Home, Loop
from ge2.codegen.parameters import AxesParameters
from ge2.codegen.ranges import Ranges
from ge2.codegen.text import Operand, Text
from ge2.ir import Literal, Var
from ge2.ops.shape import Iota
from ge2.targets.c.emit.skeleton import For, Stage
from ge2.targets.c.emit.types import HELD, STORED, SUFFIX, baked, number

LETTERS = "ijklmuvw"
BLOCKED = ("block", "panel")  # roles of loops that go from block to block
# fmt: off
ORDER = (  # of the parameters, by kind
    "services", "equation", "array", "result", "value", "constant", "size", "partial", "scratch", "threads",
)
RESERVED = frozenset((
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void",
    "volatile", "while", "asm", "typeof", "main", "unix", "linux", "I", "abs", "exp", "log", "sin",
    "cos", "tan", "pow", "sqrt", "floor", "ceil", "chunk", "task", "tasks", "team", "threads", "from",
    "to", "at", "end", "home", "low", "high", "run", "width", "part", "scratch", "n", "k", "p",
    "lib", "arena", "error", "grain", "equation",
))
# fmt: on


def label(name: str) -> str:
    """A name that C, and the loops, have no other use for."""
    return f"{name}_" if name in RESERVED or name in LETTERS else name


@final
class Places(AxesParameters):
    def __init__(
        self, axes: Axes, operands: Mapping[Var, Operand], ranges: Ranges, near: int
    ) -> None:
        super().__init__(axes, operands, [a for spec in axes.specs for a in spec.axes], LETTERS)
        self.ranges, self.near = ranges, near
        self.gathered: dict[tuple[Var, int], str] = {}  # axes that indices are of, by their names
        self.scalars: dict[str, Text] = {}
        self.alike: dict[frozenset[tuple[int, int]], str] = {}  # strides by axis: the first array's
        self.variable = frozenset(n for a, n in axes.sizes.items() if a not in axes.constant)

    # -- parameters

    def size(self, name: str, value: int) -> str:
        return self.argue(name, f"int64_t {name}", "size", value)

    def constant(self, literal: Literal, dtype: np.dtype) -> str:
        value: Any = literal.value
        if baked(value, dtype, self.variable):
            return number(value, dtype)
        return self.passed(literal, dtype, HELD[dtype])

    # -- loops

    def extent(self, a: int) -> str:
        """The size of an axis."""
        n = self.axes.sizes[a]
        if a in self.axes.constant:
            return str(n)
        return self.size(f"n_{self.letters[a]}", n)

    def index(self, a: int) -> str:
        """The place along an axis."""
        letter = self.letters[a]
        return f"({letter}0 + {letter})" if a in self.axes.blocks else letter

    def width(self, a: int) -> str:
        """The size of a block, of which the last may be smaller."""
        return f"{self.letters[a]}_width"

    def over(self, loop: Loop, body: Stage, blocks: bool = False) -> For:
        """A loop over one axis, whole or within its block; with `blocks`,
        over all blocks as one.
        """
        assert loop.spec is not None
        a = loop.spec.axes[0]
        letter = self.letters[a]
        end = self.width(a) if loop.spec.role == "inner" and not blocks else self.extent(a)
        return For(letter, "0", end, (body,), of_block=f"{letter}0" if blocks else "")

    # -- elements of arrays

    def element(self, p: Param) -> str:
        """The index of an element."""
        strides = self.axes.strides[p]
        terms = []
        for a in sorted(strides, key=self.order.index):
            step = self.step(p, a)
            terms.append(self.index(a) if step == "1" else f"{self.index(a)} * {step}")
        return " + ".join(terms) or "0"

    def step(self, p: Param, a: int) -> str:
        """A stride as it is best said: a number where vectors are made of elements near to each other,
        the sizes of the axes within, or a parameter of its own.
        """
        strides = self.axes.strides[p]
        near = a == self.axes.lane and not self.apart(p, a)
        if near or strides[a] in (0, 1):
            return str(strides[a])
        within = [b for b in strides if strides[b] < strides[a]]
        # arrays alike, such as neighbours in a stencil, share an index: the compiler sees that
        name = self.alike.setdefault(frozenset(strides.items()), label(p.name))
        return self.stride_by(p, a, within, name)

    def apart(self, p: Param, a: int) -> bool:
        """True if neighbours along an axis are not near to each other in memory."""
        return abs(self.axes.strides[p].get(a, 0)) * p.var.type.dtype.itemsize > self.near

    def load(self, p: Param) -> str:
        """An element of an input, or a number that was handed over."""
        name = label(p.name)
        operand, dtype = self.operands[p.var], p.var.type.dtype
        if operand.value:
            return self.argue(name, f"{HELD[dtype]} {name}", "value", (operand, dtype))
        if not self.axes.strides[p]:  # read once, before the loops
            self.argue(f"{name}_in", f"const {STORED[dtype]} *{name}_in", "array", (operand, dtype))
            self.scalars[name] = Text(f"const {STORED[dtype]} {name} = {name}_in[0];")
            return name
        self.argue(name, f"const {STORED[dtype]} *{name}", "array", (operand, dtype))
        return f"{name}[{self.element(p)}]"

    def read(self, p: Param, place: str) -> str:
        """An element of an input of which indices name some axes, which begins at a place."""
        name, dtype = label(p.name), p.var.type.dtype
        self.argue(name, f"const {STORED[dtype]} *{name}", "array", (self.operands[p.var], dtype))
        within = self.element(p)
        return f"{name}[{place if within == '0' else f'{place} + {within}'}]"

    def result(self, p: Param) -> str:
        """An element of a result."""
        dtype = p.var.type.dtype
        self.argue(p.name, f"{STORED[dtype]} *{p.name}", "result", (self.operands[p.var], dtype))
        return f"{p.name}[{self.element(p)}]"

    def count(self, op: Iota, x: Held) -> str:
        index = self.index(x.axes[0]) if x.axes else "0"
        if op.dtype in HALF:
            short = SUFFIX[op.dtype]
            return f"ge2_cast_{short}_f32(ge2_cast_f32_{short}((float){index}))"
        return f"({HELD[op.dtype]}){index}"

    # -- arrays that outlive a loop

    def kept(self, home: Home) -> list[tuple[int, bool]]:
        """The axes of such an array, and whether it is made anew for each block of the axis."""
        specs = [loop.spec for loop in home.dims if loop.spec is not None]
        outlived = {a for spec in specs if spec.role in BLOCKED for a in spec.axes}
        return [
            (a, spec.role == "inner" and a not in outlived)
            for spec in specs
            if spec.role not in BLOCKED
            for a in spec.axes
        ]

    def at(self, home: Home) -> str:
        """The index of a value in the array that keeps it."""
        text = ""
        for a, block in self.kept(home):
            letter = self.letters[a] if block else self.index(a)
            size = str(self.axes.blocks[a]) if block else self.extent(a)
            outer = f"({text})" if " " in text else text
            text = f"{outer} * {size} + {letter}" if text else letter
        return f"[{text}]"

    def span(self, home: Home) -> tuple[int, bool, str]:
        """The elements of such an array; whether they are always so many; and that in C."""
        total, fixed, texts = 1, True, []
        for a, block in self.kept(home):
            total *= self.axes.blocks[a] if block else self.axes.sizes[a]
            fixed = fixed and (block or a in self.axes.constant)
            texts.append(str(self.axes.blocks[a]) if block else self.extent(a))
        return total, fixed, " * ".join(texts) or "1"
