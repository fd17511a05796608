"""How the vocabulary of lowerings is spelt in C: types, numbers handed over,
which header has what.
"""

from __future__ import annotations

import textwrap
from functools import cache

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF
from ge2.codegen.user_kernels import BITS, INTEGER, NAMED, SUFFIX, Spelling, baked, subjects

STORED: dict[np.dtype, str] = {  # the type of an element of an array
    BOOL: "uint8_t", FLOAT32: "float", FLOAT64: "double",
    COMPLEX64: "float _Complex", COMPLEX128: "double _Complex", **INTEGER, **BITS,
}  # fmt: skip
HELD = {**STORED, **dict.fromkeys(HALF, "float"), BOOL: "_Bool"}  # of a value between equations
GATHERED = {**HELD, BOOL: "uint8_t"}  # of a state: gcc 12 writes vectors of _Bool past their place
MEMBER = {"b": "i", "i": "i", "u": "i", "f": "f", "c": "c"}  # of ge2_number

C = Spelling(
    STORED,
    HELD,
    truth=("0", "1"),
    infinity=("__builtin_inff()", "__builtin_inf()"),
    nan=('__builtin_nanf("")', '__builtin_nan("")'),
)
expression, retyped, spelt, number = C.expression, C.retyped, C.spelt, C.number
__all__ = [
    "GATHERED",
    "HELD",
    "STORED",
    "SUFFIX",
    "C",
    "argument",
    "baked",
    "expression",
    "headers",
]
__all__ += ["helpers_of", "number", "retyped", "spelt"]


def helpers_of(text: str, dtype: np.dtype) -> tuple[str, ...]:
    """Returns what stands before kernels with a user's C in them; C's own functions are at hand
    there.
    """
    own = (textwrap.dedent(spelt(text, dtype)).strip(),) if text else ()
    return ("#include <math.h>", *own)


def argument(index: str, dtype: np.dtype) -> str:
    """A number that the caller handed over, as a value of that type."""
    if dtype in COMPLEX:
        f = "f32" if dtype.itemsize == 8 else "f64"
        return f"ge2_complex_{f}({index}.c[0], {index}.c[1])"
    if dtype in HALF:
        return f"(float){index}.f"
    return f"({HELD[dtype]}){index}.{MEMBER[dtype.kind]}"


# Which header defines a function: by the kind of the type it is named after, then by the function.
FLOAT_HEADERS = {  # by the subject that an operation names
    "exp": "float_exp", "log": "float_log", "trig": "float_trig", "power": "float_power",
    "erf": "special", "special": "special",
}  # fmt: skip
BY_SIGN = {"ge2_random_": "random", "ge2_panel_": "panels", "ge2_slivers": "panels"}
BY_FIRST = {  # the first word of a name
    **dict.fromkeys(("search", "sort", "top", "turned"), "sort"), "lines": "sort_lines",
    "select": "select", "transpose": "transpose", "index": "index", "random": "random",
}  # fmt: skip
BY_ANGLE = frozenset(("sin", "cos", "tan"))  # float64: functions that are called, a header each
FOLDS = frozenset(("indexed", "first", "at", "argmax", "argmin", "compensate", "compensated"))


def headers(text: str) -> tuple[str, ...]:
    """The headers that a text needs, by the functions it names.

    >>> headers("ge2_add_f32(ge2_tanh_f32(x), ge2_cast_i32_f32(i))")
    ('cast', 'float_basic', 'float_exp')
    """
    found = {header(name, suffix) for name, suffix in NAMED.findall(text)}
    named = {header for sign, header in BY_SIGN.items() if sign in text}
    return tuple(sorted(found | named))


@cache
def header(name: str, suffix: str) -> str:
    if name.startswith("cast_") or name == "cast":
        return "cast"
    if name.startswith("attend_"):
        return "attend"
    if name in FOLDS and suffix in ("c64", "c128"):
        return "complex"
    if name in FOLDS or name in ("lowest", "highest", "simd_max", "simd_min"):
        return "fold"
    if name.startswith("sort_value"):
        return "select"
    if (first := name.split("_")[0]) in BY_FIRST:
        return BY_FIRST[first]
    if suffix == "f64" and name in BY_ANGLE:
        return f"float_{name}"
    if suffix in ("f32", "f64"):
        return (
            "complex"
            if name == "complex"
            else FLOAT_HEADERS.get(subjects().get(name, ""), "float_basic")
        )
    if suffix in ("c64", "c128"):
        return "complex"
    return "bool" if suffix == "bool" else "integer"
