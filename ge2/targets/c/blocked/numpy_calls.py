"""Each elementwise operation as NumPy calls that write to an array already there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, HALF
from ge2.base.formatting import pattern
from ge2.base.record import mutable
from ge2.codegen.kernel_values import held
from ge2.ir import Atom, Eqn, Literal, Op
from ge2.ops.elementwise import ConvertElementType, IntegerPow, Where
from ge2.ops.pointlike import Elementwise, Pointlike, Pointwise
from ge2.ops.sort import BitcastConvertType


@final
@mutable
class Vocabulary:
    """What a kernel takes from NumPy, and its constants, named as they are first used."""

    imports: dict[str, None] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)  # by their text
    extended: dict[str, None] = field(default_factory=dict)

    def use(self, name: str) -> str:
        self.imports[name] = None
        return name

    def constant(self, text: str) -> str:
        return self.constants.setdefault(text, f"c_{len(self.constants)}")

    def dtype(self, name: str) -> str:
        """A dtype as text; those that NumPy does not know come from ml_dtypes."""
        if hasattr(np, name):
            return repr(name)
        self.extended[name] = None
        return name

    def number(self, value: Any, dtype: np.dtype) -> str:
        """A number as an array of no axes, which ufuncs take faster than a Python number."""
        shown = repr(np.asarray(value, held(dtype)).item())
        for word in ("inf", "nan"):
            if word in shown:
                self.use(word)
        return self.constant(f"{self.use('array')}({shown}, {dtype_text(held(dtype))!r})")


def dtype_text(dtype: np.dtype) -> str:
    """
    >>> dtype_text(np.dtype("float32"))
    'float32'
    """
    return dtype.name


Render = Callable[[Eqn, str, Sequence[str], Vocabulary], list[str]]


def as_written(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    """The statements of the operation's own lowering."""
    text: str = eqn.op.lowering.numpy  # type: ignore[union-attr]
    one = words.number(1, eqn.outs[0].type.dtype) if "{one}" in text else ""
    for name in CALLED.findall(text):
        words.use(name)
    return text.format(*xs, y=y, one=one).split("; ")


def cast(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    drops = eqn.inputs[0].type.dtype in COMPLEX and eqn.outs[0].type.dtype not in COMPLEX | {BOOL}
    return [f"{words.use('copyto')}({y}, {xs[0]}{'.real' if drops else ''}, casting='unsafe')"]


def bitcast(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    """A half type, held as float32, is rounded to its own bits first."""
    old, new = eqn.inputs[0].type.dtype, words.dtype(dtype_text(eqn.outs[0].type.dtype))
    x = f"{xs[0]}.astype({words.dtype(dtype_text(old))})" if old in HALF else xs[0]
    return [f"{words.use('copyto')}({y}, {x}.view({new}), casting='unsafe')"]


def integer_pow(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    (x,), op = xs, eqn.op
    power: int = op.y  # type: ignore[attr-defined]
    if power in (2, 3, 4, -2):
        first = f"{words.use('square')}({x}, out={y})"
        again = {
            2: [],
            3: [f"{words.use('multiply')}({y}, {x}, out={y})"] if power == 3 else [],
            4: [f"square({y}, out={y})"],
            -2: [f"{words.use('reciprocal')}({y}, out={y})"] if power == -2 else [],
        }
        return [first, *again[power]]
    if power == -1:
        return [f"{words.use('reciprocal')}({x}, out={y})"]
    return [f"{words.use('power')}({x}, {words.number(power, eqn.outs[0].type.dtype)}, out={y})"]


def choose(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
    mask, a, b = xs
    copy = words.use("copyto")
    if zero_or_one(eqn):
        return [f"{copy}({y}, {mask})"]
    return [*([] if y == b else [f"{copy}({y}, {b})"]), f"{copy}({y}, {a}, where={mask})"]


def zero_or_one(eqn: Eqn) -> bool:
    """True if a `where` only makes numbers of a mask."""
    a, b = (a.value if isinstance(a, Literal) else None for a in eqn.inputs[1:])
    return a is not None and b is not None and a == 1 and b == 0 and not np.signbit(np.real(b))


def choose_bits(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, temp: str) -> list[str]:
    """A `where` by integer arithmetic, several times as fast as a
    masked copy: b ^ ((a ^ b) & -mask).
    """
    mask, a, b = xs
    integer = words.use(f"int{8 * eqn.outs[0].type.dtype.itemsize}")
    bits_y, bits_a, bits_b = (f"{x}.view({integer})" for x in (y, a, b))
    whole, minus, both = words.use("copyto"), words.use("subtract"), words.use("bitwise_and")
    at_mask = [
        f"{whole}({temp}, {mask})",
        f"{minus}({words.number(0, np.dtype(integer))}, {temp}, out={temp})",
    ]
    off_mask = [at_mask[0], f"{minus}({temp}, {words.number(1, np.dtype(integer))}, out={temp})"]
    if all_zero(eqn.inputs[2]):
        return [*at_mask, f"{both}({bits_a}, {temp}, out={bits_y})"]
    if all_zero(eqn.inputs[1]):
        return [*off_mask, f"{both}({bits_b}, {temp}, out={bits_y})"]
    differ = words.use("bitwise_xor")
    select, other = (off_mask, bits_a) if y == b else (at_mask, bits_b)
    return [
        *select,
        f"{differ}({bits_a}, {bits_b}, out={bits_y})",
        f"{both}({bits_y}, {temp}, out={bits_y})",
        f"{differ}({bits_y}, {other}, out={bits_y})",
    ]


def all_zero(atom: Atom) -> bool:
    """True if a value is a literal without any bit set."""
    return isinstance(atom, Literal) and not any(np.asarray(atom.value, atom.type.dtype).tobytes())


def wants_temp(eqn: Eqn, elements: int, masked: int) -> np.dtype | None:
    """The integer type in which a `where` of so many elements is better done: of `masked` or
    more.
    """
    dtype = eqn.outs[0].type.dtype
    plain = (
        dtype.kind in "iuf"
        and dtype.itemsize in (4, 8)
        and not any(a.type.weak for a in eqn.inputs)
    )
    if not isinstance(eqn.op, Where) or not plain or elements < masked or zero_or_one(eqn):
        return None
    return np.dtype(f"int{8 * dtype.itemsize}")


WRITERS: dict[type[Op], Render] = {
    Where: choose,
    IntegerPow: integer_pow,
    ConvertElementType: cast,
    BitcastConvertType: bitcast,
}
CALLED = pattern(r"(\w+)\(")
ELSEWHERE = ("copyto", "{y}.")  # beginnings of texts whose results lie apart from their operands


def may_overwrite(op: Op, operand: int) -> bool:
    """True if the result may be written over that operand."""
    if isinstance(op, Where):
        return operand == 2  # the first two are read after the result is begun
    if isinstance(op, IntegerPow):
        return op.y != 3
    return isinstance(op, Pointlike) and not op.retypes and not own_text(op).startswith(ELSEWHERE)


def own_text(op: Pointlike) -> str:
    """Returns what the operation's line says of writing it with NumPy."""
    return op.lowering.numpy if isinstance(op.lowering, Pointwise) else ""


def has_text(op: Op) -> bool:
    """True if the operation can be written as NumPy calls."""
    if type(op) in WRITERS or (isinstance(op, Pointlike) and own_text(op)):
        return True
    return isinstance(op, Elementwise) and known_ufunc(op)


def known_ufunc(op: Elementwise) -> bool:
    name = getattr(op.ufunc, "__name__", "")
    return isinstance(op.ufunc, np.ufunc) and getattr(np, name, None) is op.ufunc


def statements(
    eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, dense: bool = True, temp: str = ""
) -> list[str]:
    """The equation, its result written to `y`; `dense`: that has no gaps between its elements."""
    if temp:
        return choose_bits(eqn, y, xs, words, temp)
    op = eqn.op
    writer = WRITERS.get(type(op))
    if writer is None and isinstance(op, Pointlike) and own_text(op):
        writer = as_written
    if writer is not None:
        return writer(eqn, y, xs, words)
    assert isinstance(op, Elementwise)
    ufunc = op.ufunc.__name__
    if op.dense and not dense:
        return [f"{words.use('copyto')}({y}, {words.use(ufunc)}({', '.join(xs)}))"]
    return [f"{words.use(ufunc)}({', '.join(xs)}, out={y})"]
