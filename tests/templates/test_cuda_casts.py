"""Casts in CUDA equal `astype` to the bit, for all pairs of dtypes; NaN
is NaN, whatever its payload.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import FLOAT32, FLOAT64, HALF, INEXACT, INTEGERS, SHORT
from ge2.ops.elementwise import ConvertElementType
from tests.templates.cuda_harness import casts_of, elementwise
from tests.templates.test_casts import PATTERNS, STORED, bits, drawn, fits, samples

Casts = dict[tuple[np.dtype, np.dtype], Any]


@pytest.fixture(scope="module")
def casts(place: str) -> Casts:
    return elementwise({(a, b): f for a in SHORT for b, f in casts_of(a).items()}, place)


@pytest.mark.parametrize("source", SHORT, ids=str)
def test_every_cast_equals_numpy(source: np.dtype, casts: Casts) -> None:
    x = samples(source)
    for target in SHORT:
        part = x[fits(x, target)] if source in INEXACT and target in INTEGERS else x
        with np.errstate(all="ignore"):
            want = ConvertElementType(target).reference(part)
        got = casts[source, target](part)
        np.testing.assert_array_equal(bits(got), bits(want), err_msg=f"to {target}")


def test_a_float_outside_uint32_has_one_answer(casts: Casts) -> None:
    """NumPy has two: one in the body of a loop over an array, which is ours, one in its tail."""
    x = np.repeat([np.nan, np.inf, -np.inf, 5e9, -5e9, 1e30, -3e9], 5)
    want = np.repeat(np.array([1 << 31, 0, 1 << 31, 0, 1 << 31, 0, 1 << 31], np.uint32), 5)
    for source in (FLOAT32, FLOAT64):
        np.testing.assert_array_equal(casts[source, np.dtype(np.uint32)](x.astype(source)), want)


@pytest.mark.parametrize("half", sorted(HALF, key=str), ids=str)
def test_half_types_round_as_numpy(half: np.dtype, casts: Casts) -> None:
    """Every number of the type, every tie between two of them and what lies
    beside it, and random bits.
    """
    every = np.arange(1 << 8 * half.itemsize).astype(STORED[half]).view(half)
    single = every.astype(FLOAT32)
    np.testing.assert_array_equal(bits(casts[half, FLOAT32](every)), bits(single))
    finite = np.sort(single[np.isfinite(single)].astype(FLOAT64))
    ties = (finite[1:] + finite[:-1]) / 2
    near = [ties * (1 + e) for e in (0, 2**-30, -(2**-30), 2**-52, -(2**-52))]
    with np.errstate(all="ignore"):
        for wide in (FLOAT32, FLOAT64):
            around = [np.nextafter(ties.astype(wide), wide.type(to)) for to in (np.inf, -np.inf)]
            x = np.concatenate([t.astype(wide) for t in (*near, *around)] + [drawn(wide, PATTERNS)])
            np.testing.assert_array_equal(bits(casts[wide, half](x)), bits(x.astype(half)))


def test_a_nan_of_float16_keeps_its_sign(casts: Casts) -> None:
    """`copysign` reads it; the conversion of a GPU drops it."""
    x = np.array([0x7E00, 0xFE00, 0x7C01, 0xFC01], np.uint16).view(np.float16)
    y = casts[x.dtype, FLOAT32](x)
    assert np.isnan(y).all()
    np.testing.assert_array_equal(np.signbit(y), [False, True, False, True])
