"""Parameters and local names around the text of a user's kernel, and copies before and after it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, final

import numpy as np

from ge2.base.dtypes import BOOL, FLOAT32, FLOAT64, HALF, INT64
from ge2.codegen.axes import strides_of
from ge2.codegen.spelling import Spelling
from ge2.codegen.text import Argument, Operand, Text, whole
from ge2.ir import ArrayType
from ge2.ops.user_ops import Own

K = TypeVar("K")  # kernels of a language
Copy = Callable[[ArrayType, ArrayType, Operand, Operand], Sequence[K]]
Operands = Sequence[Operand]
Types = tuple[ArrayType, ...]


@final
class Around(Generic[K]):
    """What stands around a user's text: parameters, the names beside them,
    copies before and behind.
    """

    def __init__(
        self, op: Own, types: tuple[Types, Types], operands: tuple[Operands, Operands],
        words: Spelling, copy: Copy[K], more: str = "",
    ) -> None:  # fmt: skip
        (inputs, results), (ins, outs) = types, operands
        self.op, self.words, self.copy, self.more = op, words, copy, more
        self.dtype: np.dtype = held((*inputs, *results)[0]).dtype  # what $t stands for
        self.arguments: list[Argument] = []
        self.lines: list[Text] = []
        self.before: list[K] = []
        self.after: list[K] = []
        self.temps: list[int] = []
        for name, t, operand in zip(names_of(self.op, len(ins)), inputs, ins, strict=True):
            self.given(name, t, operand)
        self.results = [f"y{i}" for i in range(len(outs))] if self.op.several else ["y"]
        for name, t, operand in zip(self.results, results, outs, strict=True):
            self.made(name, t, operand)
        for f in fields(self.op):  # type: ignore[arg-type]
            self.parameter(f.name, getattr(self.op, f.name))

    def body(self, text: str) -> Text:
        """The user's own lines, in braces: their names may be any."""
        lines = textwrap.dedent(self.words.spelt(text, self.dtype)).strip("\n").splitlines()
        return Text("", body=tuple(map(Text, lines)) or (Text(";"),))

    def add(self, declaration: str, kind: str, value: Any) -> None:
        self.arguments.append(Argument(declaration, kind, value))

    def line(self, code: str) -> None:
        self.lines.append(Text(code))

    def given(self, name: str, t: ArrayType, operand: Operand) -> None:
        """An operand: as it lies, or a copy in C order (half types as float32), or a number."""
        wide = held(t)
        ctype = self.words.stored[wide.dtype]
        if operand.value:
            self.add(f"{self.words.held[t.dtype]} {name}_given", "value", (operand, t.dtype))
            self.line(f"const {ctype} {name}_value = {name}_given;")
            self.line(f"const {ctype} *const {name} = &{name}_value;")
        else:
            if wide != t or (operand.strides != strides_of(t.shape) and t.size > 1):
                temp = self.temp(wide)
                self.before += self.copy(t, wide, operand, temp)
                operand = temp
            self.add(f"const {ctype} *{self.more}{name}", "array", (operand, wide.dtype))
        self.described(name, wide)

    def made(self, name: str, t: ArrayType, operand: Operand) -> None:
        """A result: where it lies, or beside it as float32, to be rounded after."""
        wide = held(t)
        target = operand if wide == t else self.temp(wide)
        if wide != t:
            self.after += self.copy(wide, t, target, operand)
        self.add(
            f"{self.words.stored[wide.dtype]} *{self.more}{name}", "result", (target, wide.dtype)
        )
        self.described(name, wide)

    def temp(self, t: ArrayType) -> Operand:
        self.temps.append(t.nbytes)
        return whole("temp", len(self.temps) - 1, t.shape)

    def described(self, name: str, t: ArrayType) -> None:
        """The names beside an array: the type of its elements, its sizes."""
        sizes = [f"{name}_n{i}" for i in range(t.ndim)]
        for size, n in zip(sizes, t.shape, strict=True):
            self.add(f"int64_t {size}", "size", n)
        for code in (
            f"typedef {self.words.stored[t.dtype]} {name}_t;",
            f"const int64_t {name}_shape[] = {{{', '.join(sizes) or '1'}}};",
            f"const int64_t {name}_ndim = {t.ndim}, {name}_size = {' * '.join(sizes) or '1'};",
            f"(void){name}, (void){name}_shape, (void){name}_ndim, (void){name}_size;",
            f"(void)sizeof({name}_t);",
        ):
            self.line(code)

    def parameter(self, name: str, value: Any) -> None:
        """A field that is a number, or a tuple of integers."""
        if isinstance(value, bool | int | float):
            dtype = (
                BOOL if isinstance(value, bool) else INT64 if isinstance(value, int) else FLOAT64
            )
            ctype = {BOOL: "int", INT64: "int64_t", FLOAT64: "double"}[dtype]
            self.line(f"const {ctype} {name} = {self.words.number(value, dtype)};")
        elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
            listed = ", ".join(self.words.number(v, INT64) for v in value)
            self.line(f"const int64_t {name}[] = {{{listed}}};")
        else:
            return
        self.line(f"(void){name};")


def held(t: ArrayType) -> ArrayType:
    """The type in which a user's text meets an array: half types as float32."""
    return t.with_dtype(FLOAT32) if t.dtype in HALF else t


def names_of(op: Own, count: int) -> list[str]:
    """What the operands are called in C."""
    fixed = [name for name in op.operands if not name.startswith("*")]
    more = next((name[1:] for name in op.operands if name.startswith("*")), "x")
    return [*fixed, *(f"{more}{i}" for i in range(count - len(fixed)))][:count]
