"""The dtypes that ge2 knows, their short names, and how they promote: as in NumPy, half types all
of one rank.

bfloat16 and the fp8 types come from `ml_dtypes`; NumPy does not know their kind, so every question
about a dtype is asked here.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FP8 = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
COMPLEX64, COMPLEX128 = np.dtype(np.complex64), np.dtype(np.complex128)
BOOL, INT64 = np.dtype(np.bool_), np.dtype(np.int64)

SHORT: dict[np.dtype, str] = {
    BOOL: "bool",
    **{np.dtype(f"i{n}"): f"i{8 * n}" for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): f"u{8 * n}" for n in (1, 2, 4, 8)},
    FLOAT16: "f16", FLOAT32: "f32", FLOAT64: "f64", BFLOAT16: "bf16",
    FP8[0]: "f8_e4m3fn", FP8[1]: "f8_e5m2",
    COMPLEX64: "c64", COMPLEX128: "c128",
}  # fmt: skip
LONG = {short: dtype for dtype, short in SHORT.items()}

EXTENDED = frozenset((BFLOAT16, *FP8))  # those NumPy knows no kind of
HALF = frozenset((FLOAT16, *EXTENDED))
FLOATS = frozenset((FLOAT32, FLOAT64, *HALF))
COMPLEX: frozenset[np.dtype] = frozenset((COMPLEX64, COMPLEX128))
INEXACT = FLOATS | COMPLEX
INTEGERS: frozenset[np.dtype] = frozenset(d for d in SHORT if d.kind in "iu")

PYTHON: dict[type, np.dtype] = {bool: BOOL, int: INT64, float: FLOAT64, complex: COMPLEX128}
NUMBERS = (bool, int, float, complex)


def known(dtype: np.dtype) -> bool:
    """True if ge2 computes with arrays of this dtype; byte order other than the machine's does not
    count.
    """
    return dtype in SHORT and dtype.isnative


def short(dtype: np.dtype) -> str:
    """
    >>> short(np.dtype("float32"))
    'f32'
    """
    return SHORT.get(dtype) or dtype.name


def python_type(dtype: np.dtype) -> type:
    """The Python number that a weak value of this dtype is."""
    if dtype == BOOL:
        return bool
    return int if dtype in INTEGERS else complex if dtype in COMPLEX else float


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums and products of `dtype` are accumulated: float32 for half types."""
    return FLOAT32 if dtype in HALF else dtype


def real_part(dtype: np.dtype) -> np.dtype:
    """The dtype of `abs` of a complex dtype; any other dtype is its own."""
    return {COMPLEX64: FLOAT32, COMPLEX128: FLOAT64}.get(dtype, dtype)


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts hold `dtype`."""
    if dtype in COMPLEX:
        return dtype
    return COMPLEX128 if dtype == FLOAT64 or dtype in INTEGERS else COMPLEX64


@cache
def promote(a: np.dtype, b: np.dtype) -> np.dtype:
    """The dtype that holds both, as `np.promote_types`; bfloat16 and fp8 promote as float16 does.

    >>> promote(BFLOAT16, FLOAT16)
    dtype('float32')
    """
    if a == b:
        return a
    if (a in EXTENDED and b in HALF) or (b in EXTENDED and a in HALF):
        return FLOAT32
    plain = np.promote_types(FLOAT16 if a in EXTENDED else a, FLOAT16 if b in EXTENDED else b)
    if plain == FLOAT16:
        return a if a in HALF else b
    return plain


@cache
def with_number(dtype: np.dtype, number: type) -> np.dtype:
    """The dtype of an array of `dtype` beside a weak Python number (NEP 50).

    >>> with_number(np.dtype("int8"), float)
    dtype('float64')
    """
    if dtype in EXTENDED:
        return COMPLEX64 if number is complex else dtype
    return np.result_type(dtype, number(0))


@cache
def can_cast(source: np.dtype, target: np.dtype, casting: str) -> bool:
    """`np.can_cast`, with half types of the same rank as float16."""
    if source == target:
        return True
    a, b = (FLOAT16 if d in EXTENDED else d for d in (source, target))
    if a == b:
        return casting in ("same_kind", "unsafe")
    return np.can_cast(a, b, casting)  # type: ignore[arg-type]
