"""Integers by divisors that stand in the text, in C: NumPy's bits at the ends of each type."""

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
