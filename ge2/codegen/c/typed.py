"""How the vocabulary of lowerings is spelt in C: types, suffixes, numbers, and which header defines what."""

from __future__ import annotations

import math
import re
import textwrap
from functools import cache
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF, INTEGERS, SHORT

SUFFIX = SHORT
INTEGER = {d: f"{'u' if d.kind == 'u' else ''}int{8 * d.itemsize}_t" for d in INTEGERS}
BITS = {d: f"uint{8 * d.itemsize}_t" for d in HALF}
STORED: dict[np.dtype, str] = {  # the type of an element of an array
    BOOL: "uint8_t", FLOAT32: "float", FLOAT64: "double",
    COMPLEX64: "float _Complex", COMPLEX128: "double _Complex", **INTEGER, **BITS,
}  # fmt: skip
HELD = {**STORED, **dict.fromkeys(HALF, "float"), BOOL: "_Bool"}  # of a value between equations
GATHERED = {**HELD, BOOL: "uint8_t"}  # of a state: gcc 12 writes vectors of _Bool past their place
MEMBER = {"b": "i", "i": "i", "u": "i", "f": "f", "c": "c"}  # of ge2_number
BAKED = frozenset((0.0, 0.5, 1.0, 2.0, 3.0))  # numbers that stand in the text, whatever their sign
CALL = re.compile(r"ge2_(\w+)(?:<(-?\w+)>)?\(")


def expression(text: str, operands: list[str], dtype: np.dtype, to: np.dtype) -> str:
    """An op's expression with its functions typed by the first operand.

    >>> expression("ge2_integer_pow<3>({0})", ["x"], np.dtype("f4"), np.dtype("f4"))
    'ge2_integer_pow_f32(x, 3)'
    """
    more = ""
    found = CALL.search(text)
    if found is not None and found[2] not in (None, "T"):
        more = f", {found[2]}"

    def typed(match: re.Match[str]) -> str:
        if match[1] == "cast":
            return f"ge2_cast_{SUFFIX[dtype]}_{SUFFIX[to]}("
        return f"ge2_{match[1]}_{SUFFIX[dtype]}("

    text = CALL.sub(typed, text)
    text = text[:-1] + more + ")" if more else text
    return spelt(text, dtype).format(*operands)


def spelt(text: str, dtype: np.dtype) -> str:
    """A user's C with the names of a dtype in it.

    >>> spelt("static $T twice_$t($T x)", np.dtype("f4"))
    'static float twice_f32(float x)'
    """
    return text.replace("$t", SUFFIX[dtype]).replace("$T", HELD[dtype]) if "$" in text else text


def helpers_of(text: str, dtype: np.dtype) -> tuple[str, ...]:
    """What stands before kernels with a user's C in them; C's own functions are at hand there."""
    own = (textwrap.dedent(spelt(text, dtype)).strip(),) if text else ()
    return ("#include <math.h>", *own)


def number(value: Any, dtype: np.dtype) -> str:
    """A constant of that type, to the bit.

    >>> number(0.1, np.dtype("f4")), number(-1, np.dtype("i8")), number(float("inf"), np.dtype("f8"))
    ('0.1f', 'INT64_C(-1)', '__builtin_inf()')
    """
    if dtype == BOOL:
        return "1" if value else "0"
    if dtype in COMPLEX:
        part = np.dtype(f"f{dtype.itemsize // 2}")
        f = "ge2_complex_f32" if dtype.itemsize == 8 else "ge2_complex_f64"
        return f"{f}({number(complex(value).real, part)}, {number(complex(value).imag, part)})"
    if dtype.kind in "iu":
        return integer(int(value), dtype)
    return real(value, dtype)


def integer(value: int, dtype: np.dtype) -> str:
    if dtype.kind == "u":
        return f"UINT64_C({value})" if dtype.itemsize == 8 else f"{value}u"
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"INT64_C({value})" if dtype.itemsize == 8 else f"({value})" if value < 0 else str(value)


def real(value: Any, dtype: np.dtype) -> str:
    narrow = dtype == FLOAT32 or dtype in HALF
    x: np.floating[Any] = np.float32(value) if narrow else np.float64(value)
    f = "f" if narrow else ""
    if math.isnan(x):
        return f'__builtin_nan{f}("")'
    sign = "-" if math.copysign(1.0, x) < 0 else ""
    if math.isinf(x):
        return f"{sign}__builtin_inf{f}()"
    text = str(abs(x))
    if "e" not in text and "." not in text:
        text += ".0"
    return f"({sign}{text}{f})" if sign else f"{text}{f}"


def baked(value: Any, dtype: np.dtype, sizes: frozenset[int]) -> bool:
    """Whether a constant stands in the text. Others are arguments, and so are sizes: a mean over another
    batch divides by another number and is the same text."""
    if dtype == BOOL or dtype in COMPLEX:
        return True
    if value != value or abs(value) == math.inf:
        return True
    if value == int(value) and abs(int(value)) in sizes and abs(value) > 1:
        return False
    return dtype.kind in "iu" or abs(float(value)) in BAKED


def argument(index: str, dtype: np.dtype) -> str:
    """A number that the caller handed over, as a value of that type."""
    if dtype in COMPLEX:
        f = "f32" if dtype.itemsize == 8 else "f64"
        return f"ge2_complex_{f}({index}.c[0], {index}.c[1])"
    if dtype in HALF:
        return f"(float){index}.f"
    return f"({HELD[dtype]}){index}.{MEMBER[dtype.kind]}"


# Which header defines a function: by the kind of the type it is named after, then by the function.
EXPONENTIALS = ("exp", "exp2", "expm1", "sinh", "cosh", "tanh", "logaddexp", "logaddexp2")
LOGARITHMS = ("log", "log2", "log10", "log1p", "asinh", "acosh", "atanh")
ANGLES = ("sin", "cos", "tan", "asin", "acos", "atan", "atan2")
POWERS = ("pow", "cbrt", "hypot", "erf", "erfc")
FLOAT_HEADERS = {
    **dict.fromkeys(EXPONENTIALS, "float_exp"), **dict.fromkeys(LOGARITHMS, "float_log"),
    **dict.fromkeys(ANGLES, "float_trig"), **dict.fromkeys(POWERS, "float_power"),
}  # fmt: skip
FOLDS = frozenset(("indexed", "first", "at", "argmax", "argmin", "compensate", "compensated"))
LONGEST = sorted(map(re.escape, SHORT.values()), key=len, reverse=True)
NAMED = re.compile(rf"\bge2_([a-z0-9]+(?:_[a-z]+[a-z0-9]*)*?)_({'|'.join(LONGEST)})\b")


def headers(text: str) -> tuple[str, ...]:
    """The headers that a text needs, by the functions it names.

    >>> headers("ge2_add_f32(ge2_tanh_f32(x), ge2_cast_i32_f32(i))")
    ('cast', 'float_basic', 'float_exp')
    """
    found = {header(name, suffix) for name, suffix in NAMED.findall(text)}
    return tuple(sorted({*found, "random"} if "ge2_random_" in text else found))


@cache
def header(name: str, suffix: str) -> str:
    if name.startswith("cast_") or name == "cast":
        return "cast"
    if name in FOLDS and suffix in ("c64", "c128"):
        return "complex"
    if name in FOLDS or name in ("lowest", "highest", "simd_max", "simd_min"):
        return "fold"
    if name.startswith("random"):
        return "random"
    if name.split("_")[0] in ("index", "search", "sort"):
        return "sort" if name[0] == "s" else "index"
    if suffix in ("f32", "f64"):
        return "complex" if name == "complex" else FLOAT_HEADERS.get(name, "float_basic")
    if suffix in ("c64", "c128"):
        return "complex"
    return "bool" if suffix == "bool" else "integer"
