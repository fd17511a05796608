"""How the vocabulary of lowerings is spelt in CUDA: types, numbers, and which
header defines what.
"""

from __future__ import annotations

import re
import textwrap
from functools import cache

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF
from ge2.codegen.user_kernels import BITS, INTEGER, NAMED, SUFFIX, Spelling, baked, subjects

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
__all__ = ["CUDA", "GATHERED", "HELD", "STORED", "SUFFIX", "baked", "expression", "headers"]
__all__ += ["helpers_of", "number", "retyped", "spelt"]


def helpers_of(text: str, dtype: np.dtype) -> tuple[str, ...]:
    """Returns what stands before kernels with a user's text in them; CUDA's own
    functions are at hand everywhere.
    """
    return (textwrap.dedent(spelt(text, dtype)).strip(),) if text else ()


# Which header defines a function: by its type, by the word it begins with, by
# its name, then by its suffix.
THREADS = re.compile(r"\bge2_(?:warp|block|lane)_\w")
TYPES = re.compile(r"\bge2_c(?:64|128)\b")
# fmt: off
FOLDS = frozenset((
    "indexed", "first", "at", "argmax", "argmin", "compensate", "compensated", "lowest", "highest",
))
# fmt: on
FIRST = {"cast": "cast", "pair": "pair", "random": "random", "index": "index", "sort": "sort"}
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
    word = name.split("_")[0]
    if word in FIRST:
        return FIRST[word]
    subject = subjects().get(name, "basic")
    if name == "complex" or suffix in ("c64", "c128"):
        return "complex" if subject == "basic" else "complex_maths"
    if subject == "special":
        return "special"
    return "fold" if name in FOLDS else KINDS.get(suffix, "integer")
