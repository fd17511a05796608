"""Attention on Hopper's tensor cores: in the emulator against NumPy, and compiled for the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.kernels.attention_cases import (
    BACKWARD,
    BF16,
    BY_KEYS,
    DERIVED,
    DERIVED_SCORES,
    F16,
    FAMILY,
    FEW,
    LAYOUTS,
    SCORES,
    SPELLINGS,
    Attention,
    drawn,
    exactly,
    few,
    judge,
    judge_slopes,
    kinds,
    masked,
    more,
    plain,
    slopes,
    slopes_of_scores,
)


def checked(function: Attention, xs: Any) -> None:
    """Runs a function by the kernel, whose result is that of NumPy."""
    with config.using(executor="shim", prefer=(FAMILY,)):
        compiled = ge2.jit(function)
        assert FAMILY in kinds(compiled.lower(*xs))
        judge(compiled(*xs), exactly(function, *xs), xs[0].dtype)


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings(function: Attention, dtype: Any) -> None:
    checked(function, drawn(np.random.default_rng(0), (1, 2, 72, 64), (1, 2, 72, 64), dtype))


@pytest.mark.exhaustive("width")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, width: int) -> None:
    rng, shape = np.random.default_rng(1), (2, 2, 200, width)
    checked(SCORES[name][0], drawn(rng, shape, shape, BF16) + more(rng, name, shape, shape, BF16))


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, dtype: Any) -> None:
    function, q, k = LAYOUTS[name]
    checked(function, drawn(np.random.default_rng(2), q, k, dtype))


@pytest.mark.exhaustive("width")
@pytest.mark.parametrize("width", [128])
@pytest.mark.parametrize("lengths", [(1, 129), (128, 128), (257, 511)])
def test_lengths(lengths: tuple[int, int], width: int) -> None:
    q, k = ((1, n, width) for n in lengths)
    checked(plain, drawn(np.random.default_rng(3), q, k, BF16))


def test_queries_that_see_no_key_are_not_numbers() -> None:
    """The first 150 of 200; one tile has no block of keys, another has some."""
    xs = drawn(np.random.default_rng(4), (1, 200, 64), (1, 200, 64), BF16)
    checked(masked(150), xs)
    checked(masked(150, None, -1e9), xs)  # they see all alike


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", FEW)
def test_few_queries(name: str, dtype: Any) -> None:
    """Warps share the keys."""
    function, xs = few(np.random.default_rng(9), name, dtype)
    with config.using(executor="shim"):
        compiled = ge2.jit(function)
        assert BY_KEYS in kinds(compiled.lower(*xs))
        judge(compiled(*xs), exactly(function, *xs), dtype)


def test_few_queries_have_a_gradient() -> None:
    """The backward kernels read the logarithms of what warps have summed."""
    xs = drawn(np.random.default_rng(9), (1, 2, 3, 64), (1, 2, 72, 64), BF16)
    with config.using(executor="shim", prefer=(BACKWARD,)):
        compiled = ge2.jit(slopes(plain))
        assert {BY_KEYS, BACKWARD} <= {*kinds(compiled.lower(*xs))}
        judge_slopes(compiled(*xs), exactly(slopes(plain), *xs))


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", DERIVED)
def test_gradients(name: str, dtype: Any) -> None:
    function, q, k = DERIVED[name]
    xs = drawn(np.random.default_rng(5), q, k, dtype)
    with config.using(executor="shim", prefer=(FAMILY, BACKWARD)):
        compiled = ge2.jit(slopes(function))
        assert {FAMILY, BACKWARD} <= {*kinds(compiled.lower(*xs))}
        judge_slopes(compiled(*xs), exactly(slopes(function), *xs))


@pytest.mark.exhaustive("width")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", DERIVED_SCORES)
def test_gradients_of_scores(name: str, width: int) -> None:
    """By what scores are made of, too."""
    gradient, xs = slopes_of_scores(np.random.default_rng(6), name, (2, 2, 72, width), BF16)
    with config.using(executor="shim", prefer=(FAMILY, BACKWARD)):
        compiled = ge2.jit(gradient)
        assert {FAMILY, BACKWARD} <= {*kinds(compiled.lower(*xs))}
        judge_slopes(compiled(*xs), exactly(gradient, *xs))


@pytest.mark.exhaustive("width")
@pytest.mark.parametrize("width", [16, 80, 96, 192, 256])
def test_widths(width: int) -> None:
    """Forward, and backward; the last features of a tile are zeros, and wide heads have their sums one by one."""
    xs = drawn(np.random.default_rng(8), (1, 72, width), (1, 72, width), BF16)
    with config.using(executor="shim", prefer=(FAMILY, BACKWARD)):
        compiled = ge2.jit(slopes(masked(0)))
        assert {FAMILY, BACKWARD} <= {*kinds(compiled.lower(*xs))}
        judge_slopes(compiled(*xs), exactly(slopes(masked(0)), *xs))


def test_queries_that_see_no_key_have_no_slope() -> None:
    """All keys count alike for the first of them; what they do comes from no score."""
    xs = drawn(np.random.default_rng(7), (1, 72, 64), (1, 72, 64), BF16)
    with config.using(executor="shim", prefer=(FAMILY, BACKWARD)):
        queries, *_ = ge2.jit(slopes(masked(3, None, -3e4)))(*xs)
    assert not np.asarray(queries, np.float64)[:, :3].any()
