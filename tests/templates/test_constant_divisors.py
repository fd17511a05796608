"""Numbers by divisors that stand in the text, in C: NumPy's bits at the ends of each type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.together import needs_compiler

TYPES = [np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "u4", "u8")]
DIVISORS = 1, 2, 3, 5, 7, 64, 100, 127, 1_000_003, 2**31 - 1, 2**62 + 1, 2**63 - 1, -1, -2, -3, -128


def ends(dtype: np.dtype) -> Any:
    """Numbers at the ends of a type and around 0, and drawn ones."""
    info, rng = np.iinfo(dtype), np.random.default_rng(4)
    near = [info.min, info.min + 1, -4, -3, -2, -1, 0, 1, 2, 3, 4, info.max - 1, info.max]
    drawn = rng.integers(info.min, info.max, 100, dtype, endpoint=True)
    return np.concatenate([np.array([n for n in near if n >= info.min], dtype), drawn])


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_quotients_and_remainders(dtype: np.dtype) -> None:
    info = np.iinfo(dtype)
    divisors = [d for d in DIVISORS if info.min <= d <= info.max]

    def all_of(x: Any) -> Any:
        return [(x // d, x % d, np.fmod(x, d), np.divmod(x, d)) for d in divisors]

    x = ends(dtype)
    with config.using(executor="c"), np.errstate(all="ignore"):
        found = ge2.tree.leaves(ge2.jit(all_of)(x))
        wanted = ge2.tree.leaves(all_of(x))
    for y, w in zip(found, wanted, strict=True):
        assert y.dtype == w.dtype
        np.testing.assert_array_equal(y, w)


BITS = {np.dtype("f4"): np.dtype("u4"), np.dtype("f8"): np.dtype("u8")}
BY_FLOATS = 1.0, -1.0, 2.0, 1024.0, 0.5, 3.0, -0.1, 2 * np.pi, 2.0**-60, 2.0**70, np.inf, 0.0


def near_multiples(dtype: np.dtype) -> tuple[Any, Any]:
    """Multiples and their neighbours, pairs whose quotients have few bits and any, and special ones."""
    rng, info = np.random.default_rng(4), np.finfo(dtype)
    y = (rng.normal(size=500) * np.exp(rng.normal(size=500) * 8)).astype(dtype)
    whole = (rng.integers(-1_000_000, 1_000_000, 500) * y).astype(dtype)
    drawn = rng.integers(0, np.iinfo(BITS[dtype]).max, 500, BITS[dtype]).view(dtype)
    last = rng.integers(1, 2 ** (info.nmant + 1), 500).astype(dtype)
    odd = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, info.max, info.tiny, info.smallest_subnormal]
    a, b = (x.ravel() for x in np.meshgrid(np.array(odd, dtype), np.array(odd, dtype)))
    x = [whole, np.nextafter(whole, dtype.type(0)), drawn, np.nextafter(last, dtype.type(0)), a]
    by = [y, y, drawn[::-1], last, b]
    return np.concatenate([*x, last * info.smallest_subnormal]), np.concatenate([*by, drawn])


def remainders(x: Any, y: Any) -> Any:
    return x // y, x % y, np.fmod(x, y), np.divmod(x, y), np.modf(x)


@needs_compiler
@pytest.mark.full_options
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_floats_by_numbers_and_by_arrays(dtype: np.dtype) -> None:
    def all_of(x: Any, y: Any) -> Any:
        return remainders(x, y), [remainders(x, d) for d in BY_FLOATS]

    x, y = near_multiples(dtype)
    with config.using(executor="c"), np.errstate(all="ignore"):
        found = ge2.tree.leaves(ge2.jit(all_of)(x, y))
        wanted = ge2.tree.leaves(all_of(x, y))
    for z, w in zip(found, wanted, strict=True):
        assert z.dtype == w.dtype
        nan = np.isnan(w)
        np.testing.assert_array_equal(np.isnan(z), nan)
        np.testing.assert_array_equal(z[~nan].view(BITS[dtype]), w[~nan].view(BITS[dtype]))
