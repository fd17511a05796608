"""Each elementwise operation as NumPy calls that write to an array already there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, HALF
from ge2.base.record import mutable
from ge2.codegen.kernel_values import held
from ge2.ir import Atom, Eqn, Literal, Op
from ge2.ops.elementwise import Elementwise
from ge2.ops.reduce import ArgReduce, Reduce


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


def simple(text: str) -> Render:
    """Statements with {y} for the result and {0}, {1}, ... for the operands, one after another by `;`."""
    names = [word for word in ("copyto", "sqrt", "divide", "frexp") if word in text]

    def render(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary) -> list[str]:
        one = words.number(1, eqn.outs[0].type.dtype) if "{one}" in text else ""
        for name in names:
            words.use(name)
        return text.format(*xs, y=y, one=one).split("; ")

    return render


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
    """Whether a `where` only makes numbers of a mask."""
    a, b = (a.value if isinstance(a, Literal) else None for a in eqn.inputs[1:])
    return a is not None and b is not None and a == 1 and b == 0 and not np.signbit(np.real(b))


def choose_bits(eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, temp: str) -> list[str]:
    """A `where` by integer arithmetic, several times as fast as a masked copy: b ^ ((a ^ b) & -mask)."""
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
    """Whether a value is a literal without any bit set."""
    return isinstance(atom, Literal) and not any(np.asarray(atom.value, atom.type.dtype).tobytes())


def wants_temp(eqn: Eqn, elements: int) -> np.dtype | None:
    """The integer type in which a `where` of so many elements is better done."""
    dtype = eqn.outs[0].type.dtype
    plain = dtype.kind in "iuf" and dtype.itemsize in (4, 8) and not any(a.type.weak for a in eqn.inputs)
    if eqn.op.name != "where" or not plain or elements < MANY or zero_or_one(eqn):
        return None
    return np.dtype(f"int{8 * dtype.itemsize}")


# fmt: off
SPECIAL: dict[str, Render] = {
    "rsqrt":          simple("sqrt({0}, out={y}); divide({one}, {y}, out={y})"),
    "real":           simple("copyto({y}, {0}.real)"),
    "imag":           simple("copyto({y}, {0}.imag)"),
    "frexp_mantissa": simple("copyto({y}, frexp({0})[0])"),
    "frexp_exponent": simple("copyto({y}, frexp({0})[1])"),
    "complex":        simple("{y}.real = {0}; {y}.imag = {1}"),
    "where":          choose,
    "integer_pow":    integer_pow,
    "convert_element_type": cast,
    "bitcast_convert_type": bitcast,
}
# fmt: on
MANY = 600  # from so many elements on, three integer operations beat a masked copy
ONLY_THIRD = frozenset(("where",))  # the first two operands are read after the result is begun
NEVER = frozenset((
    "complex", "real", "imag", "frexp_mantissa", "frexp_exponent", "convert_element_type",
    "bitcast_convert_type",
))  # fmt: skip

# NumPy's loops for these go wrong where both the input and the output are strided (seen in 2.4.6).
FRAGILE = frozenset(("neg", "is_nan", "is_inf", "is_finite", "sign_bit"))


def may_overwrite(op: Op, operand: int) -> bool:
    """Whether the result may be written over that operand."""
    if op.name in ONLY_THIRD:
        return operand == 2
    if isinstance(op, Reduce | ArgReduce):
        return False
    return op.name not in NEVER and not (op.name == "integer_pow" and getattr(op, "y", 0) == 3)


def has_text(op: Op) -> bool:
    """Whether the operation can be written as NumPy calls."""
    return op.name in SPECIAL or op.name == "ldexp" or (isinstance(op, Elementwise) and known_ufunc(op))


def known_ufunc(op: Elementwise) -> bool:
    name = getattr(op.ufunc, "__name__", "")
    return isinstance(op.ufunc, np.ufunc) and getattr(np, name, None) is op.ufunc


def statements(
    eqn: Eqn, y: str, xs: Sequence[str], words: Vocabulary, dense: bool = True, temp: str = ""
) -> list[str]:
    """The equation, its result written to `y`; `dense`: that has no gaps between its elements."""
    if temp:
        return choose_bits(eqn, y, xs, words, temp)
    special = SPECIAL.get(eqn.op.name)
    if special is not None:
        return special(eqn, y, xs, words)
    ufunc = "ldexp" if eqn.op.name == "ldexp" else eqn.op.ufunc.__name__  # type: ignore[attr-defined]
    if eqn.op.name in FRAGILE and not dense:
        return [f"{words.use('copyto')}({y}, {words.use(ufunc)}({', '.join(xs)}))"]
    return [f"{words.use(ufunc)}({', '.join(xs)}, out={y})"]
