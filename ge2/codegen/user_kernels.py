"""This module writes parameters and local names around the text of a user kernel, and copies before
and after it.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, Final, Generic, TypeVar, final

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT32, FLOAT64, HALF, INT64, INTEGERS, SHORT
from ge2.base.record import record
from ge2.base.source import pattern
from ge2.codegen.axes import strides_of
from ge2.codegen.text import Argument, Operand, Text, whole
from ge2.ir import ArrayType, Eqn
from ge2.ops import NAMED as NAMED_OPS
from ge2.ops import Bessel, Pointwise, Polygamma
from ge2.ops.user_ops import Foreign, Own

# ---------------------------------------------------------------------------------------- spelling
# How the vocabulary of lowerings is typed: suffixes, numbers to the bit; one
# language is one `Spelling`.
#
# C and CUDA share every function's name and most words. What differs is a field of `Spelling`, and
# which header defines a function, which each language's own module knows.


SUFFIX = SHORT
INTEGER = {d: f"{'u' if d.kind == 'u' else ''}int{8 * d.itemsize}_t" for d in INTEGERS}
BITS = {d: f"uint{8 * d.itemsize}_t" for d in HALF}
BAKED = frozenset((0.0, 0.5, 1.0, 2.0, 3.0))  # numbers that stand in the text, whatever their sign
CALL = pattern(r"ge2_(\w+)(?:<(-?\w+)>)?\(")
LONGEST = sorted(map(re.escape, SHORT.values()), key=len, reverse=True)
NAMED = pattern(rf"\bge2_([a-z0-9]+(?:_[a-z]+[a-z0-9]*)*?)_({'|'.join(LONGEST)})\b")


@cache
def subjects() -> Mapping[str, str]:
    """Returns the header of each function in an operation's expression, by the name that the
    operation gives.
    """
    made = (*NAMED_OPS, Polygamma(1), Bessel(0), Bessel(0, scaled=True))
    texts = [op.lowering for op in made if isinstance(op.lowering, Pointwise)]
    return {name: text.header for text in texts for name, _ in CALL.findall(text.expression)}


@final
@record
class Spelling:
    """The words of one language. Pairs are for float32 and float64, or for false and true."""

    stored: Mapping[np.dtype, str]  # the type of an element of an array
    held: Mapping[np.dtype, str]  # of a value between equations
    truth: tuple[str, str]
    infinity: tuple[str, str]
    nan: tuple[str, str]
    rounded: frozenset[str] = (
        frozenset()
    )  # half types with a function that rounds a float32 to them

    def expression(self, text: str, operands: list[str], dtype: np.dtype, to: np.dtype) -> str:
        """Returns an op's expression with its functions typed by the first operand.

        >>> from ge2.targets.c.emit import C
        >>> C.expression("ge2_integer_pow<3>({0})", ["x"], np.dtype("f4"), np.dtype("f4"))
        'ge2_integer_pow_f32(x, 3)'
        """
        return self.spelt(typed(text, dtype, to), dtype).format(*operands)

    def spelt(self, text: str, dtype: np.dtype) -> str:
        """Returns a user's text with the names of a dtype in it.

        >>> from ge2.targets.c.emit import C
        >>> C.spelt("static $T twice_$t($T x)", np.dtype("f4"))
        'static float twice_f32(float x)'
        """
        return (
            text.replace("$t", SUFFIX[dtype]).replace("$T", self.held[dtype])
            if "$" in text
            else text
        )

    def retyped(self, text: str, eqn: Eqn) -> str:
        """Converts the operand of an equation that changes its dtype: to the same number, or to the
        same bits.
        """
        old, new = eqn.inputs[0].type.dtype, eqn.outs[0].type.dtype
        if eqn.op.name == "bitcast_convert_type":
            return self.bitcast(text, old, new)
        return self.cast(text, FLOAT32 if old in HALF else old, new)

    def cast(self, text: str, dtype: np.dtype, out: np.dtype) -> str:
        """Converts a value to another dtype; a half type is a rounded float32."""
        if out in HALF:
            short = SUFFIX[out]
            if dtype == FLOAT32 and short in self.rounded:
                return f"ge2_rounded_{short}({text})"
            return f"ge2_cast_{short}_f32(ge2_cast_{SUFFIX[dtype]}_{short}({text}))"
        if dtype == BOOL and out not in COMPLEX:
            return f"{text} ? {self.number(1, out)} : {self.number(0, out)}"
        return text if dtype == out else f"ge2_cast_{SUFFIX[dtype]}_{SUFFIX[out]}({text})"

    def bitcast(self, text: str, dtype: np.dtype, out: np.dtype) -> str:
        """Converts a value to another dtype with the same bits; a half type is a float32.

        >>> from ge2.targets.c.emit import C
        >>> C.bitcast("x", np.dtype("f4"), np.dtype("i4"))
        '(int32_t)ge2_bits_f32(x)'
        """
        short, word = SUFFIX[dtype], f"uint{8 * dtype.itemsize}_t"
        named = f"ge2_cast_f32_{short}" if dtype in HALF else f"ge2_bits_{short}"
        bits = f"({word})({text})" if dtype in INTEGERS else f"{named}({text})"
        if out in INTEGERS:
            return f"({INTEGER[out]}){bits}"
        return (
            f"ge2_cast_{SUFFIX[out]}_f32({bits})"
            if out in HALF
            else f"ge2_of_bits_{SUFFIX[out]}({bits})"
        )

    def number(self, value: Any, dtype: np.dtype) -> str:
        """Writes a constant of that type, exact to the bit.

        >>> from ge2.targets.c.emit import C
        >>> C.number(0.1, np.dtype("f4")), C.number(-1, np.dtype("i8")), C.number(np.inf, np.dtype("f8"))
        ('0.1f', 'INT64_C(-1)', '__builtin_inf()')
        """
        if dtype == BOOL:
            return self.truth[bool(value)]
        if dtype in COMPLEX:
            part = np.dtype(f"f{dtype.itemsize // 2}")
            re, im = (self.number(x, part) for x in (complex(value).real, complex(value).imag))
            return f"ge2_complex_{SUFFIX[part]}({re}, {im})"
        if dtype.kind in "iu":
            return integer(int(value), dtype)
        return self.real(value, dtype)

    def real(self, value: Any, dtype: np.dtype) -> str:
        narrow = dtype == FLOAT32 or dtype in HALF
        x: np.floating[Any] = np.float32(value) if narrow else np.float64(value)
        if math.isnan(x):
            return self.nan[not narrow]
        sign = "-" if math.copysign(1.0, x) < 0 else ""
        if math.isinf(x):
            return f"{sign}{self.infinity[not narrow]}"
        text = str(abs(x))
        if "e" not in text and "." not in text:
            text += ".0"
        text += "f" if narrow else ""
        return f"({sign}{text})" if sign else text


def typed(text: str, dtype: np.dtype, to: np.dtype) -> str:
    """Returns an op's expression in which each function has the suffix of its first operand."""
    more = ""
    found = CALL.search(text)
    if found is not None and found[2] not in (None, "T"):
        more = f", {found[2]}"

    def name(match: re.Match[str]) -> str:
        if match[1] == "cast":
            return f"ge2_cast_{SUFFIX[dtype]}_{SUFFIX[to]}("
        return f"ge2_{match[1]}_{SUFFIX[dtype]}("

    text = CALL.sub(name, text)
    return text[:-1] + more + ")" if more else text


def integer(value: int, dtype: np.dtype) -> str:
    if dtype.kind == "u":
        return f"UINT64_C({value})" if dtype.itemsize == 8 else f"{value}u"
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"INT64_C({value})" if dtype.itemsize == 8 else f"({value})" if value < 0 else str(value)


def baked(value: Any, dtype: np.dtype, sizes: frozenset[int]) -> bool:
    """Returns True if a constant is written into the text.

    Others are arguments, and so are sizes: a mean over another batch divides by another
    number and is the same text.
    """
    if dtype == BOOL or dtype in COMPLEX:
        return True
    if dtype.kind in "iu":
        value = int(value)  # whose least has an absolute value
    if value != value or abs(value) == math.inf:
        return True
    if value == int(value) and abs(int(value)) in sizes and abs(value) > 1:
        return False
    return dtype.kind in "iu" or abs(float(value)) in BAKED


# ------------------------------------------------------------------------------------ user kernels


K = TypeVar("K")  # kernels of a language
Copy = Callable[[ArrayType, ArrayType, Operand, Operand], Sequence[K]]
Operands = Sequence[Operand]
Types = tuple[ArrayType, ...]
OWN_FROM: Final = (
    1 << 16
)  # arrays around a kernel of ge2 are counted from here, then behind its own


@final
class Around(Generic[K]):
    """The text around a user kernel: parameters, local names, and copies before and after it."""

    def __init__(
        self, op: Own, types: tuple[Types, Types], operands: tuple[Operands, Operands],
        words: Spelling, copy: Copy[K], more: str = "", wide: bool = True, first: int = 0,
    ) -> None:  # fmt: skip
        """`wide` passes half types as float32; `first` is the number of the first array that
        belongs to the kernel alone.
        """
        (inputs, results), (ins, outs) = types, operands
        self.op, self.words, self.copy, self.more = op, words, copy, more
        self.wide, self.first = wide, first
        self.places: list[tuple[Operand, np.dtype]] = []  # of operands, then of results
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
        """Writes the user's lines in braces, so that their names may be any."""
        lines = textwrap.dedent(self.words.spelt(text, self.dtype)).strip("\n").splitlines()
        return Text("", body=tuple(map(Text, lines)) or (Text(";"),))

    def by_template(self, own: Foreign, problem: Any, caps: Any, helpers_of: Any) -> Any:
        """Writes the kernels of ge2 with a template of the user's, for operands in C order, between
        the copies around them.
        """
        assert own.stock is not None
        found: Any = own.stock(replace(problem, operands=tuple(x for x, _ in self.places)), caps)
        helpers = helpers_of(own.helpers, self.dtype)
        inner = (replace(k, helpers=(*k.helpers, *helpers)) for k in found.kernels)
        moved = tuple(
            replace(k, arguments=renumbered(k.arguments, OWN_FROM, len(found.temps)))
            for k in (*self.before, *inner)
        )
        return replace(found, kernels=moved, temps=(*found.temps, *self.temps))

    def add(self, declaration: str, kind: str, value: Any) -> None:
        self.arguments.append(Argument(declaration, kind, value))

    def line(self, code: str) -> None:
        self.lines.append(Text(code))

    def given(self, name: str, t: ArrayType, operand: Operand) -> None:
        """Writes an operand: the array itself, a copy in C order (half types as float32), or a
        number.
        """
        wide = held(t) if self.wide else t
        ctype = self.words.stored[wide.dtype]
        if operand.value:
            self.add(f"{self.words.held[t.dtype]} {name}_given", "value", (operand, t.dtype))
            self.line(f"const {ctype} {name}_value = {name}_given;")
            self.line(f"const {ctype} *const {name} = &{name}_value;")
        else:
            across = operand.strides != strides_of(t.shape) and t.size > 1
            if wide != t or across or (operand.loose and not self.wide):
                temp = self.temp(wide)
                self.before += self.copy(t, wide, operand, temp)
                operand = temp
            self.add(f"const {ctype} *{self.more}{name}", "array", (operand, wide.dtype))
        self.places.append((operand, wide.dtype))
        self.described(name, wide)

    def made(self, name: str, t: ArrayType, operand: Operand) -> None:
        """Writes a result: into its array, or into a float32 buffer that is rounded afterwards."""
        wide = held(t) if self.wide else t
        target = operand if wide == t else self.temp(wide)
        self.places.append((target, wide.dtype))
        if wide != t:
            self.after += self.copy(wide, t, target, operand)
        self.add(
            f"{self.words.stored[wide.dtype]} *{self.more}{name}", "result", (target, wide.dtype)
        )
        self.described(name, wide)

    def temp(self, t: ArrayType) -> Operand:
        self.temps.append(t.nbytes)
        return whole("temp", self.first + len(self.temps) - 1, t.shape)

    def room(self, nbytes: int) -> None:
        """Reserves bytes for the text's own use, as `workspace`."""
        if nbytes:
            operand = self.temp(ArrayType((nbytes,), np.dtype(np.uint8)))
            self.add("unsigned char *workspace", "result", (operand, np.dtype(np.uint8)))

    def described(self, name: str, t: ArrayType) -> None:
        """Writes the names for an array: the type of its elements, its sizes."""
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
        """Writes a field that is a number, or a tuple of integers."""
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


def renumbered(arguments: Sequence[Argument], first: int, to: int) -> tuple[Argument, ...]:
    """Renumbers arguments: the arrays of a kernel's own, from `first` on, are counted from
    `to`.
    """

    def moved(a: Argument) -> Argument:
        operand = a.value[0] if a.kind in ("array", "result") else None
        if not isinstance(operand, Operand) or operand.role != "temp" or operand.index < first:
            return a
        return replace(a, value=(replace(operand, index=operand.index - first + to), a.value[1]))

    return tuple(map(moved, arguments))


def held(t: ArrayType) -> ArrayType:
    """Returns the type of an array in a user's text: float32 for half types."""
    return t.with_dtype(FLOAT32) if t.dtype in HALF else t


def names_of(op: Own, count: int) -> list[str]:
    """Returns the names of the operands in C."""
    fixed = [name for name in op.operands if not name.startswith("*")]
    more = next((name[1:] for name in op.operands if name.startswith("*")), "x")
    return [*fixed, *(f"{more}{i}" for i in range(count - len(fixed)))][:count]
