"""Attention as it is written in NumPy, and its gradient, on a GPU: one kernel on tensor cores, or two
quotients of a row in one kernel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.load.gpu import cupy, current_gpu
from tests.kernels.attention_cases import (
    BF16,
    BOUNDS,
    BY_KEYS,
    DERIVED,
    DERIVED_SCORES,
    F16,
    FAMILY,
    FEW,
    FORWARD,
    LAYOUTS,
    SCORES,
    SPELLINGS,
    WARPS,
    Attention,
    Kind,
    drawn,
    exactly,
    few,
    grouped,
    in_numpy,
    judge,
    judge_slopes,
    masked,
    more,
    plain,
    slopes,
    slopes_of_scores,
)
from tests.kernels.families import kinds

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def attention(q: Any, k: Any, v: Any, mask: str) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    if mask != "none":
        place = np.arange(q.shape[-2])
        seen = place[:, None] >= place
        added = np.where(seen, 0.0, -1e4).astype(q.dtype)
        scores = np.where(seen, scores, -np.inf) if mask == "where" else scores + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("mask", ["none", "where", "add"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [64, 300])
def test_attention_and_its_gradient(
    dtype: str, mask: str, length: int, rng: np.random.Generator
) -> None:
    cp: Any = cupy()
    given = [rng.standard_normal((2, 3, length, 32)).astype(DTYPES[dtype]) for _ in range(4)]

    def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
        return (attention(q, k, v, mask) * w).astype(np.float32).sum()

    found = ge2.jit(ge2.grad(loss, (0, 1, 2)))(*map(cp.asarray, given))
    wide = ge2.grad(loss, (0, 1, 2))(*(x.astype(np.float64) for x in given))
    bound = {"f32": 2e-5, "f16": 2e-2, "bf16": 1.5e-1}[dtype]
    for got, want in zip(found, wide, strict=True):
        assert np.abs(got.get().astype(np.float64) - want).max() <= bound * max(
            1.0, np.abs(want).max()
        )


# ------------------------------------------------------------------------------------- one kernel


@pytest.fixture
def hopper() -> Any:
    gpu = current_gpu()
    if gpu.limits.generation != 90:
        pytest.skip("these kernels are for compute capability 9.0")
    with config.using(prefer=(FAMILY,)):
        yield gpu.xp


def checked(xp: Any, function: Attention, xs: Any, kind: str = "") -> None:
    """The kernel's result is that of NumPy, with the same bits each time."""
    given = tuple(map(xp.asarray, xs))
    made = FORWARD[kind] if kind else Kind(FAMILY, xs[0].dtype)
    with config.using(prefer=(made.family,)):
        compiled = ge2.jit(made.of(function))
        assert made.family in kinds(compiled, *given)
        first = xp.asnumpy(compiled(*given))
        judge(first, exactly(function, *xs), made.bound, in_numpy(function, xs, made))
        for _ in range(10):
            again = xp.asnumpy(compiled(*given))
            assert np.array_equal(again.view(np.uint8), first.view(np.uint8))


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_spellings(hopper: Any, function: Attention, kind: str) -> None:
    shape = (2, 3, 300, 128)
    xs = drawn(np.random.default_rng(0), shape, shape, FORWARD[kind].dtype)
    checked(hopper, function, xs, kind)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", ["wgmma bf16", *WARPS])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", SCORES)
def test_scores(hopper: Any, name: str, width: int, kind: str) -> None:
    rng, shape, dtype = np.random.default_rng(1), (2, 3, 1000, width), FORWARD[kind].dtype
    xs = drawn(rng, shape, shape, dtype) + more(rng, name, shape, shape, dtype)
    checked(hopper, SCORES[name][0], xs, kind)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(hopper: Any, name: str, kind: str) -> None:
    function, q, k = LAYOUTS[name]
    checked(hopper, function, drawn(np.random.default_rng(2), q, k, FORWARD[kind].dtype), kind)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", WARPS)
@pytest.mark.parametrize("width", [4, 20, 24, 64, 80, 128, 192, 256])
def test_tiles_of_warps(hopper: Any, width: int, kind: str) -> None:
    """Each tile that may be taken, of rows that copies bring by 16, 8 or 4 bytes."""
    shape, made = (2, 3, 1000, width), FORWARD[kind]
    xs = drawn(np.random.default_rng(4), shape, shape, made.dtype)
    given = tuple(map(hopper.asarray, xs))
    with config.using(prefer=made.families):
        found = ge2.jit(slopes(made.of(masked(0)))).lower(*given).kernels
    choices = {kernel.choice.family.name: kernel.choice for kernel in found}
    for name in made.families:
        for each in choices[name].candidates:
            if each.family.name == name and not each.refusal:
                with config.using(pins=(Pin(name, each.variant.name),)):
                    checked_back(hopper, masked(0), xs, kind)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 129), (128, 128), (257, 511), (4097, 4097), (2048, 2048)])
@pytest.mark.parametrize("width", [64, 128])
def test_lengths(hopper: Any, lengths: tuple[int, int], width: int, causal: bool) -> None:
    q, k = ((2, 16 if n < 2048 else 3, n, width) for n in lengths)
    q, k = (q[0], min(q[1], k[1]), *q[2:]), (k[0], min(q[1], k[1]), *k[2:])
    function = SCORES["causal"][0] if causal else plain
    checked(hopper, function, drawn(np.random.default_rng(3), q, k, BF16))


@pytest.mark.parametrize("tile", ["192 x 128", "128 x 128"])
@pytest.mark.parametrize("name", ["causal", "window", "alibi"])
def test_tiles(hopper: Any, name: str, tile: str) -> None:
    rng, shape = np.random.default_rng(4), (2, 3, 1000, 64)
    xs = drawn(rng, shape, shape, BF16) + more(rng, name, shape, shape, BF16)
    with config.using(pins=(Pin(FAMILY, tile),)):
        checked(hopper, SCORES[name][0], xs)


def checked_back(
    xp: Any, function: Attention, xs: Any, kind: str = "", wanted: tuple[int, ...] = (0, 1, 2)
) -> None:
    """The kernels' gradient is that of NumPy, with the same bits each time."""
    given = tuple(map(xp.asarray, xs))
    made = FORWARD[kind] if kind else Kind(FAMILY, xs[0].dtype)
    with config.using(prefer=made.families):
        compiled = ge2.jit(slopes(made.of(function), wanted))
        assert {*made.families} <= {*kinds(compiled, *given)}
        first = [xp.asnumpy(y) for y in compiled(*given)]
        judge_slopes(first, exactly(slopes(function, wanted), *xs), made.slope_bound)
        for _ in range(10):
            for y, x in zip(compiled(*given), first, strict=True):
                assert np.array_equal(xp.asnumpy(y).view(np.uint8), x.view(np.uint8))


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", FORWARD)
@pytest.mark.parametrize("name", DERIVED)
def test_gradients(hopper: Any, name: str, kind: str) -> None:
    function, q, k = DERIVED[name]
    xs = drawn(np.random.default_rng(5), q, k, FORWARD[kind].dtype)
    checked_back(hopper, function, xs, kind)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", ["wgmma bf16", "mma bf16", "mma tf32"])
@pytest.mark.parametrize("lengths", [(2, 129), (128, 128), (257, 511), (1000, 1000), (2048, 2048)])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_gradients_of_lengths(
    hopper: Any, mask: str, width: int, lengths: tuple[int, int], kind: str
) -> None:
    q, k = ((2, 3, n, width) for n in lengths)
    function = {"none": plain, "causal": masked(0), "window": masked(-20, 300)}[mask]
    xs = drawn(np.random.default_rng(6), q, k, FORWARD[kind].dtype)
    checked_back(hopper, function, xs, kind)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", ["wgmma bf16", *WARPS])
@pytest.mark.parametrize("length", [200, 1000])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("name", DERIVED_SCORES)
def test_gradients_of_scores(hopper: Any, name: str, width: int, length: int, kind: str) -> None:
    rng, shape = np.random.default_rng(7), (2, 3, length, width)
    wanted, xs = slopes_of_scores(rng, name, shape, FORWARD[kind].dtype)
    checked_back(hopper, SCORES[name][0], xs, kind, wanted)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize("kind", ["wgmma bf16", *WARPS])
@pytest.mark.parametrize("width", [16, 24, 32, 80, 96, 160, 192, 256])
@pytest.mark.parametrize("name", ["causal", "soft cap", "bias of each head"])
def test_widths(hopper: Any, name: str, width: int, kind: str) -> None:
    rng, shape, dtype = np.random.default_rng(8), (2, 3, 300, width), FORWARD[kind].dtype
    wanted, xs = slopes_of_scores(rng, name, shape, dtype)
    checked(hopper, SCORES[name][0], xs, kind)
    checked_back(hopper, SCORES[name][0], xs, kind, wanted)


def checked_by_keys(xp: Any, function: Attention, xs: Any) -> None:
    """The result of few queries is that of NumPy, with the same bits each time."""
    given, compiled = tuple(map(xp.asarray, xs)), ge2.jit(function)
    with config.using(prefer=(BY_KEYS,)):
        assert BY_KEYS in kinds(compiled, *given)
        first = xp.asnumpy(compiled(*given))
        judge(first, exactly(function, *xs), BOUNDS[xs[0].dtype])
        for _ in range(10):
            again = xp.asnumpy(compiled(*given))
            assert np.array_equal(again.view(np.uint8), first.view(np.uint8))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", FEW)
def test_few_queries(hopper: Any, name: str, dtype: Any) -> None:
    checked_by_keys(hopper, *few(np.random.default_rng(9), name, dtype))


@pytest.mark.parametrize("width", [64, 80, 128, 256])
@pytest.mark.parametrize("length", [17, 1000, 8192])
def test_decoding(hopper: Any, length: int, width: int) -> None:
    rng = np.random.default_rng(10)
    checked_by_keys(hopper, grouped, drawn(rng, (3, 32, 1, width), (3, 8, length, width), BF16))
