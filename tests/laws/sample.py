"""One operation to try, and how operands are drawn.

Values keep away from where a derivative jumps (integers, zero, ties), so that differences can be
taken; special values have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge2.base.arrays import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT64,
    short,
)
from ge2.ir import Op

Rng = np.random.Generator
Dims = tuple[int, ...]
Draw = Callable[[Rng, np.dtype], tuple[Any, ...]]

I8, I32, U8, U16, U32, U64 = (np.dtype(d) for d in ("i1", "i4", "u1", "u2", "u4", "u8"))
INTEGERS = (I8, np.dtype("i2"), I32, INT64, U8, U16, U32, U64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
COMPLEXES = (COMPLEX64, COMPLEX128)
KINDS = {"b": (BOOL,), "i": INTEGERS, "f": FLOATS, "c": COMPLEXES}
NUMERIC = (*INTEGERS, *FLOATS, *COMPLEXES)
EVERY = (BOOL, *NUMERIC)
SHAPES: tuple[Dims, ...] = ((2, 3), (), (1,), (0,), (3, 0, 2))


@dataclass(frozen=True)
class Sample:
    """An operation, how its operands are drawn for a dtype, and for which dtypes."""

    op: Op
    draw: Draw
    dtypes: tuple[np.dtype, ...]
    batched: bool = True  # whether it has operands that can be batched
    fixed: tuple[int, ...] = ()  # operands that cannot be differentiated by, whatever their dtype
    forward: bool = True  # whether it has a forward derivative
    reverse: bool = True  # whether it has a reverse one
    constant: bool = False  # whether its derivative is zero by definition

    def __str__(self) -> str:
        return str(self.op)


# ------------------------------------------------------------------------------------------- values


def numbers(
    rng: Rng, shape: Dims, dtype: np.dtype, low: int = 0, high: int = 2, signed: bool = True
) -> Any:
    """Numbers of magnitude `k + u`, k an integer in [low, high), u in [0.15,
    0.85], of both signs.
    """
    if dtype == BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(BOOL)
    if dtype.kind in "iu":
        least = -3 if dtype.kind == "i" and signed else 0
        return np.asarray(rng.integers(least, 5, shape)).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(
            parts(rng, shape, low, high, signed) + 1j * parts(rng, shape, 0, 2, True)
        ).astype(dtype)
    return np.asarray(parts(rng, shape, low, high, signed)).astype(dtype)


def parts(rng: Rng, shape: Dims, low: int, high: int, signed: bool) -> Any:
    size = rng.integers(low, high, shape) + rng.uniform(0.15, 0.85, shape)
    return size * rng.choice([-1.0, 1.0], shape) if signed else size


def positive(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, signed=False)


def unit(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, 0, 1)


def above_one(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, 1, 3, signed=False)


def not_zero(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    x = numbers(rng, shape, dtype)
    return np.where(x == 0, dtype.type(2), x).astype(dtype) if dtype.kind in "iu" else x


def between_powers(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    """Away from the powers of two, where the mantissa jumps."""
    return np.asarray(rng.uniform(1.1, 1.9, shape) * 2.0 ** rng.integers(-3, 4, shape)).astype(
        dtype
    )


def fraction(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, 0, 1, signed=False)


DOMAINS: dict[str, Callable[[Rng, Dims, np.dtype], Any]] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt"), positive),
    **dict.fromkeys(("asin", "acos", "atanh", "log1p", "tan", "erfinv"), unit),
    **dict.fromkeys(("ndtri", "logit"), fraction),
    "acosh": above_one,
    "frexp_mantissa": between_powers,
    "frexp_exponent": between_powers,
    "spacing": between_powers,
    "reciprocal": not_zero,
}


def quotient(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    """a and b with a / b away from integers, where remainders jump."""
    b = not_zero(rng, shape, dtype)
    return (b * numbers(rng, shape, dtype)).astype(dtype), b


def power(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    a, b = positive(rng, shape, dtype), numbers(rng, shape, dtype)
    return a, abs(b).astype(dtype) if dtype.kind == "i" else b


def with_positive(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    return numbers(rng, shape, dtype), positive(rng, shape, dtype)


def shift(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    return numbers(rng, shape, dtype), np.asarray(rng.integers(0, 5, shape)).astype(dtype)


def apart(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    """Which of the two is larger does not change when each is moved a little."""
    a = numbers(rng, shape, dtype)
    return a, a if dtype == BOOL else (a + numbers(rng, shape, dtype, 0, 1)).astype(dtype)


PAIRS: dict[str, Callable[[Rng, Dims, np.dtype], tuple[Any, Any]]] = {
    **dict.fromkeys(("rem", "fmod", "floor_div", "div"), quotient),
    **dict.fromkeys(("max", "min", "fmax", "fmin"), apart),
    **dict.fromkeys(("xlogy", "xlog1py"), with_positive),
    "pow": power,
    "shift_left": shift,
    "shift_right": shift,
}


def pair(name: str, rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    if name in PAIRS:
        return PAIRS[name](rng, shape, dtype)
    return numbers(rng, shape, dtype), numbers(rng, shape, dtype)


def dtype_id(dtype: np.dtype) -> str:
    return short(dtype)
