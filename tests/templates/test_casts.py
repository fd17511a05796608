"""Casts in C equal `astype` to the bit, for all pairs of dtypes."""

from __future__ import annotations

import os
import platform

import numpy as np
import pytest

from ge2.base.arrays import (
    BOOL,
    COMPLEX,
    EXTENDED,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HALF,
    INEXACT,
    INTEGERS,
    SHORT,
    real_part,
)
from ge2.ops.elementwise import ConvertElementType
from tests.templates.harness import DTYPES, Loop, elementwise, needs_compiler

pytestmark = needs_compiler
STORED = {d: np.dtype(f"u{d.itemsize}") for d in (BOOL, FLOAT16, *EXTENDED)}
C_TYPES = {dtype: text for text, dtype in DTYPES.items() if text != "int"}
PATTERNS = int(os.environ.get("GE2_TEST_PATTERNS", "300_000"))  # random bits a cast
INTEL = platform.machine() in ("x86_64", "AMD64")


def name_of(source: np.dtype, target: np.dtype) -> str:
    return f"ge2_cast_{SHORT[source]}_{SHORT[target]}"


def c_type(dtype: np.dtype) -> str:
    return C_TYPES[STORED.get(dtype, dtype)]


@pytest.fixture(scope="module")
def casts() -> dict[str, Loop]:
    pairs = [(a, b) for a in SHORT for b in SHORT]
    functions = [(name_of(a, b), [c_type(a)], c_type(b)) for a, b in pairs]
    return elementwise(functions, ["ge2/cast.h"], ["-O2"])  # vectorises them too, in half the time


def cast(casts: dict[str, Loop], x: np.ndarray, target: np.dtype) -> np.ndarray:
    y = casts[name_of(x.dtype, target)](x.view(STORED.get(x.dtype, x.dtype)))
    return y.view(target)


def bits(x: np.ndarray) -> np.ndarray:
    """The bits of all parts, where every NaN is the same."""
    parts = np.ascontiguousarray(x).view(real_part(x.dtype))
    with np.errstate(invalid="ignore"):
        nan = np.isnan(parts)
    return np.where(nan, 1, parts.view(f"u{parts.dtype.itemsize}"))


def drawn(dtype: np.dtype, size: int) -> np.ndarray:
    word = f"u{dtype.itemsize}"
    return (
        np.random.default_rng(dtype.itemsize)
        .integers(0, np.iinfo(word).max, size, word, True)
        .view(dtype)
    )


def integers(dtype: np.dtype) -> np.ndarray:
    """Edges, ties of all float types and their neighbours, any."""
    ties = [a << k | b << j for k in range(64) for j in range(k) for a, b in ((1, 1), (3, 1))]
    near = [s * (v + d) for v in [*range(300), *ties] for d in (-1, 0, 1) for s in (1, -1)]
    word = np.dtype(f"u{dtype.itemsize}")
    edges = np.array([v & np.iinfo(word).max for v in near], word).view(dtype)
    return np.concatenate([edges, drawn(dtype, 1000)])


def floats(dtype: np.dtype) -> np.ndarray:
    """The edges of all integers, special values, numbers near the half types' edges."""
    powers = [
        s * 2.0**k * (1 + e)
        for s in (1, -1)
        for k in range(-30, 66)
        for e in (0, 2**-20, -(2**-20))
    ]
    near = [np.nextafter(dtype.type(v), dtype.type(to)) for v in powers for to in (np.inf, -np.inf)]
    special = [
        0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 65519.99, 65520.0, 463.99, 464.0, 464.1,
        61440.0, 1e38,
    ]  # fmt: skip
    return np.concatenate(
        [
            np.array([*powers, *near, *special], dtype),
            np.random.default_rng(0).uniform(-300, 300, 1000).astype(dtype),
        ]
    )


def samples(dtype: np.dtype) -> np.ndarray:
    if dtype == BOOL:
        return np.array([False, True])
    if dtype in INTEGERS:
        return integers(dtype)
    if dtype in HALF:
        return np.arange(1 << 8 * dtype.itemsize).astype(STORED[dtype]).view(dtype)
    real = floats(real_part(dtype))
    if dtype not in COMPLEX:
        return real
    y = np.zeros(2 * real.size, dtype)
    y.real, y.imag[real.size :] = np.concatenate([real, real[::-1]]), real
    return y


def fits(x: np.ndarray, target: np.dtype) -> np.ndarray:
    """Where all of NumPy's loops agree on a float as an integer: on
    x86-64 but for uint32 everywhere.
    """
    if INTEL and target != np.uint32:
        return np.ones(x.shape, bool)
    with np.errstate(invalid="ignore"):
        real = x.real.astype(np.float64)
        return (real > (-(2.0**31) if INTEL else -1)) & (real < np.iinfo(target).max)


@pytest.mark.parametrize("source", SHORT, ids=str)
def test_every_cast_equals_numpy(source: np.dtype, casts: dict[str, Loop]) -> None:
    x = samples(source)
    for target in SHORT:
        part = x[fits(x, target)] if source in INEXACT and target in INTEGERS else x
        with np.errstate(all="ignore"):
            want = ConvertElementType(target).reference(part)
        np.testing.assert_array_equal(
            bits(cast(casts, part, target)), bits(want), err_msg=f"to {target}"
        )


def test_a_float_outside_uint32_has_one_answer(casts: dict[str, Loop]) -> None:
    """NumPy has two: one in the body of a loop over an array, which is ours, one in its tail."""
    x = np.repeat([np.nan, np.inf, -np.inf, 5e9, -5e9, 1e30, -3e9], 5)
    want = np.repeat(np.array([1 << 31, 0, 1 << 31, 0, 1 << 31, 0, 1 << 31], np.uint32), 5)
    for source in (FLOAT32, FLOAT64):
        np.testing.assert_array_equal(cast(casts, x.astype(source), np.dtype(np.uint32)), want)


@pytest.mark.parametrize("half", sorted(HALF, key=str), ids=str)
def test_half_types_round_as_numpy_to_the_payload_of_nan(
    half: np.dtype, casts: dict[str, Loop]
) -> None:
    every = np.arange(1 << 8 * half.itemsize).astype(STORED[half]).view(half)
    single = every.astype(FLOAT32)
    np.testing.assert_array_equal(
        cast(casts, every, FLOAT32).view(np.uint32), single.view(np.uint32)
    )
    finite = np.sort(single[np.isfinite(single)].astype(FLOAT64))
    ties = (finite[1:] + finite[:-1]) / 2
    near = [ties * (1 + e) for e in (0, 2**-30, -(2**-30), 2**-52, -(2**-52))]
    with np.errstate(all="ignore"):
        for wide in (FLOAT32, FLOAT64):
            around = [np.nextafter(ties.astype(wide), wide.type(to)) for to in (np.inf, -np.inf)]
            x = np.concatenate([t.astype(wide) for t in (*near, *around)] + [drawn(wide, PATTERNS)])
            want = x.astype(half).view(STORED[half])
            np.testing.assert_array_equal(cast(casts, x, half).view(STORED[half]), want)


@pytest.mark.parametrize("flags", [[], ["-march=haswell"] if INTEL else ["-O1"]], ids=" ".join)
def test_float16_by_instructions(flags: list[str]) -> None:
    """Ties, their neighbours and any bits, NaN among them."""
    down, round_ = "ge2_cast_f32_f16", "ge2_rounded_f16"
    functions = [(down, ["float"], "uint16_t"), (round_, ["float"], "float")]
    loops = elementwise(functions, ["ge2/float16.h"], flags)
    whole = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (whole[1:] + whole[:-1]) / 2
    near = [np.nextafter(ties, np.float32(to)) for to in (0, np.inf)]
    edges = np.linspace(65_500, 65_550, 101, dtype=np.float32)
    x = np.concatenate([ties, *near, -ties, edges, drawn(FLOAT32, PATTERNS)])
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    for first in range(9):  # and with any rest of a vector
        y = loops[down](x[first:])
        np.testing.assert_array_equal(y, half[first:].view(np.uint16))
    np.testing.assert_array_equal(bits(loops[round_](x)), bits(half.astype(np.float32)))
