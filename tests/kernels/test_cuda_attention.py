"""Attention on Hopper's tensor cores: in the emulator against NumPy, and compiled for the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.kernels.attention_cases import (
    BF16,
    F16,
    FAMILY,
    LAYOUTS,
    SCORES,
    SPELLINGS,
    Attention,
    drawn,
    exactly,
    judge,
    kinds,
    more,
    plain,
)


def checked(function: Attention, xs: Any) -> None:
    """Runs a function by the kernel, whose result is that of NumPy."""
    with config.using(executor="shim", prefer=(FAMILY,)):
        compiled = ge2.jit(function)
        assert FAMILY in kinds(compiled.lower(*xs))
        judge(compiled(*xs), exactly(function, *xs), xs[0].dtype)


@pytest.mark.exhaustive("function")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings(function: Attention, dtype: Any) -> None:
    checked(function, drawn(np.random.default_rng(0), (1, 2, 72, 64), (1, 2, 72, 64), dtype))


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, width: int) -> None:
    rng, shape = np.random.default_rng(1), (2, 2, 200, width)
    checked(SCORES[name][0], drawn(rng, shape, shape, BF16) + more(rng, name, shape, shape, BF16))


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, dtype: Any) -> None:
    function, q, k = LAYOUTS[name]
    checked(function, drawn(np.random.default_rng(2), q, k, dtype))


@pytest.mark.parametrize("lengths", [(1, 129), (128, 128), (257, 511)])
def test_lengths(lengths: tuple[int, int]) -> None:
    q, k = ((1, n, 128) for n in lengths)
    checked(plain, drawn(np.random.default_rng(3), q, k, BF16))
