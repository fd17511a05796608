"""Attention by cuDNN on a GPU, and its gradient, beside NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.load.gpu import current_gpu
from ge2.targets.cuda.load.libraries import frontend
from tests.kernels.attention_cases import (
    BACKWARD,
    BF16,
    BOUNDS,
    F16,
    FAMILY,
    LAYOUTS,
    Attention,
    Kind,
    drawn,
    exactly,
    in_numpy,
    judge,
    judge_slopes,
    masked,
    plain,
    repeated,
    slopes,
    split_heads,
    time_first,
)

OURS, THEIRS = "cudnn attention", "cudnn attention backward"
ANY_ORDER = "cudnn attention backward in any order"
SCRATCH = 4096  # megabytes: sums in order take an array of the scores on Hopper
SCORES = {
    "all keys": plain,
    "causal": masked(0),
    "window": masked(0, 100),
    "window on both sides": masked(-9, 100),
    "some keys ahead": masked(-20),
}
LENGTHS = [(128, 128), (200, 200), (257, 511), (1000, 1000), (2048, 2048)]


@pytest.fixture
def gpu() -> Iterator[Any]:
    if isinstance(reason := frontend(), str):
        pytest.skip(reason)
    with config.using(workspace=SCRATCH):
        yield current_gpu().xp


def taken(compiled: Any, *xs: Any) -> set[str]:
    return {choice.family.name for choice in compiled.lower(*xs).choices.values()}


def alike(xp: Any, y: Any, x: Any) -> bool:
    return np.array_equal(xp.asnumpy(y).view(np.uint8), x.view(np.uint8))


def checked(xp: Any, function: Attention, xs: Any, capture: str = "auto") -> None:
    """The result is NumPy's, with the same bits each time."""
    given, kind = tuple(map(xp.asarray, xs)), Kind(OURS, xs[0].dtype)
    with config.using(prefer=(OURS,), capture=capture):
        compiled = ge2.jit(function)
        assert OURS in taken(compiled, *given)
        first = xp.asnumpy(compiled(*given))
        judge(first, exactly(function, *xs), BOUNDS[xs[0].dtype], in_numpy(function, xs, kind))
        for _ in range(6):
            assert alike(xp, compiled(*given), first)


def checked_back(
    xp: Any, function: Attention, xs: Any, families: tuple[str, ...] = (OURS, THEIRS),
    capture: str = "auto",
) -> None:  # fmt: skip
    """The gradient is NumPy's, with the same bits each time if sums are in order."""
    given, ordered = tuple(map(xp.asarray, xs)), ANY_ORDER not in families
    with config.using(prefer=families, capture=capture, deterministic=ordered):
        compiled = ge2.jit(slopes(function))
        assert {*families} <= taken(compiled, *given)
        first = [xp.asnumpy(y) for y in compiled(*given)]
        judge_slopes(first, exactly(slopes(function), *xs))
        for _ in range(6):
            found = compiled(*given)
            assert not ordered or all(map(alike, (xp,) * 3, found, first))
    judge_slopes([xp.asnumpy(y) for y in found], exactly(slopes(function), *xs))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", SCORES)
def test_scores(gpu: Any, name: str, width: int, dtype: Any) -> None:
    shape = (2, 3, 1000, width)
    checked(gpu, SCORES[name], drawn(np.random.default_rng(1), shape, shape, dtype))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths(gpu: Any, lengths: tuple[int, int], causal: bool) -> None:
    q, k = ((2, 3, n, 128) for n in lengths)
    function = masked(0) if causal else plain
    checked(gpu, function, drawn(np.random.default_rng(2), q, k, BF16))


@pytest.mark.parametrize("width", [8, 40, 80, 96, 256])
def test_widths(gpu: Any, width: int) -> None:
    shape = (2, 3, 300, width)
    checked(gpu, masked(0), drawn(np.random.default_rng(3), shape, shape, BF16))


@pytest.mark.parametrize("name", sorted({*LAYOUTS} - {"one query", "three axes of batches"}))
def test_layouts(gpu: Any, name: str) -> None:
    function, q, k = LAYOUTS[name]
    checked(gpu, function, drawn(np.random.default_rng(4), q, k, BF16))


@pytest.mark.parametrize("families", [(OURS, THEIRS), (OURS, ANY_ORDER)])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", SCORES)
def test_gradients(gpu: Any, name: str, width: int, families: tuple[str, ...]) -> None:
    shape = (2, 3, 500, width)
    xs = drawn(np.random.default_rng(5), shape, shape, BF16)
    checked_back(gpu, SCORES[name], xs, families)


@pytest.mark.parametrize("families", [(OURS, THEIRS), (OURS, ANY_ORDER)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients_of_lengths(
    gpu: Any, lengths: tuple[int, int], families: tuple[str, ...]
) -> None:
    q, k = ((1, 2, n, 128) for n in lengths)
    checked_back(gpu, masked(0), drawn(np.random.default_rng(6), q, k, F16), families)


def test_gradients_of_layouts(gpu: Any) -> None:
    """Time before heads, heads that share keys, and heads that are parts of rows."""
    rng = np.random.default_rng(7)
    for function, q, k in (
        (time_first, (2, 200, 3, 64), (2, 200, 3, 64)),
        (repeated, (2, 6, 200, 64), (2, 2, 200, 64)),
        (split_heads, (2, 200, 192), (2, 200, 192)),
    ):
        checked_back(gpu, function, drawn(rng, q, k, BF16))


@pytest.mark.parametrize("capture", ["on", "off"])
def test_capture(gpu: Any, capture: str) -> None:
    """The same in a captured graph and without one; each other call has other arrays."""
    shape = (2, 4, 512, 64)
    for seed in (8, 9):
        xs = drawn(np.random.default_rng(seed), shape, shape, BF16)
        checked(gpu, masked(0), xs, capture)
        checked_back(gpu, masked(0), xs, (OURS, THEIRS), capture)
        checked_back(gpu, masked(0), xs, (OURS, ANY_ORDER), capture)


@pytest.mark.parametrize("families", [(FAMILY, THEIRS), (OURS, BACKWARD)])
def test_ours_and_theirs_have_the_same_logarithms(gpu: Any, families: tuple[str, ...]) -> None:
    if current_gpu().limits.generation != 90:
        pytest.skip("our kernels are for compute capability 9.0")
    shape = (2, 3, 500, 128)
    checked_back(gpu, masked(0), drawn(np.random.default_rng(10), shape, shape, BF16), families)
