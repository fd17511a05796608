"""Products by the tensor cores of warps: in the emulator against NumPy, and compiled for GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import kernels
from tests.kernels.wgmma_cases import (
    ACTIVATIONS,
    BF16,
    BIASES,
    F16,
    F32,
    JOINT_VIEWS,
    LAYERS,
    PARTED,
    TURNS,
    VIEWS,
    biased,
    drawn,
    emulated,
    odd,
    precision,
    turned,
    with_sum,
)
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

BOTH = BARE, FUSED = "mma product", "mma product and region"
TILES = ["128 x 256 by 8", "128 x 128 by 8", "128 x 128 by 4", "128 x 64 by 8", "64 x 64 by 4"]
SKINNY = ["64 x 16 by 4", "16 x 64 by 4", "32 x 16 by 2", "16 x 32 by 2"]


@needs_compiler
@pytest.mark.exhaustive("bias", "activation", table="biases of tiles")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", BIASES)
def test_activations_and_biases(bias: str, activation: str) -> None:
    rng, dtype = np.random.default_rng(0), F16 if bias in ("row", "full") else BF16
    xs = [drawn(rng, s, dtype) for s in ((69, 35), (35, 71), BIASES[bias](69, 71))]
    emulated(BOTH, biased(activation), xs, FUSED, 35)


@needs_compiler
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_layers(dtype: Any, name: str) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    xs = [drawn(rng, odd(s), dtype) for s in shapes]
    emulated(BOTH, function, xs, FUSED, 73, **precision(name, dtype))


@needs_compiler
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_operands_that_lie_anyhow(dtype: Any, name: str) -> None:
    function, shapes = VIEWS[name]
    rng = np.random.default_rng(2)
    family = FUSED if name in JOINT_VIEWS else BARE
    emulated(BOTH, function, [drawn(rng, s, dtype) for s in shapes], family, 65)


@needs_compiler
@pytest.mark.exhaustive("turn", "dtype", table="turns of tiles")
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("shape", [(133, 87, 71), (72, 90, 34), (16, 64, 264)])
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(turn: str, shape: tuple[int, int, int], dtype: Any) -> None:
    called, xs, exact = turned(turn, shape, dtype, 3)
    emulated(BOTH, called, xs, BARE, shape[2], exact=exact)


@needs_compiler
@pytest.mark.exhaustive("k")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("k", [68, 264])
def test_tiles(k: int, tile: str) -> None:
    """More stages than there are, and fewer; watched, no access meets another that is not ordered."""
    rng = np.random.default_rng(4)
    xs = [drawn(rng, s, BF16) for s in ((130, k), (k, 132), (132,))]
    with config.using(pins=(Pin(FUSED, tile),), shim_watch=True, shim_seed=k):
        emulated(BOTH, lambda a, b, c: with_sum(np.maximum(a @ b + c, 0)), xs, FUSED, k)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PARTED)
def test_parts_of_sums(name: str) -> None:
    """Blocks share the sums of few tiles, and a second kernel adds up what they have."""
    function, shapes, tile, family = PARTED[name]
    rng = np.random.default_rng(5)
    xs = [drawn(rng, s, BF16) for s in shapes]
    with config.using(pins=(Pin(family, tile),), shim_watch=True):
        emulated(BOTH, function, xs, family, 1100)


@needs_nvrtc
@pytest.mark.exhaustive("architecture", share=20)
@pytest.mark.parametrize("shape", [(512, 512, 512), (512, 510, 514), (511, 513, 515)])
@pytest.mark.parametrize("tile", [*TILES, *SKINNY])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sm_89"])
def test_no_spills(architecture: str, tile: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    m, n = (8 if tile in SKINNY[1::2] else m), (8 if tile in SKINNY[::2] else n)
    xs = [np.zeros(s, BF16) for s in ((m, k), (k, n), (n,))]
    with config.using(prefer=BOTH, pins=(Pin(FUSED, tile),)):
        found = kernels(biased("gelu"), *xs, arch=architecture)
    ((kernel, text),) = [each for each in found if "ge2_mma_bf16" in each[1]]
    (usage,) = compiled(text, architecture).kernels
    assert not usage.spills and usage.registers * kernel.block <= 1 << 16


@needs_compiler
@pytest.mark.exhaustive("turn", "dtype", table="turns of tiles")
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("shape", [(3, 134, 600), (130, 8, 600), (16, 70, 72), (70, 2, 1100)])
@pytest.mark.parametrize("turn", TURNS)
def test_few_rows_or_columns(turn: str, shape: tuple[int, int, int], dtype: Any) -> None:
    """Tiles that are as thin, with the work on the result; watched."""
    product, xs, function = turned(turn, shape, dtype, 7)
    with config.using(shim_watch=True):
        emulated(
            BOTH, lambda a, b: np.maximum(product(a, b), 0), xs, FUSED, shape[2],
            exact=lambda a, b: np.maximum(function(a, b), 0),
        )  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    ("tile", "shape"), [("32 x 16 by 2", (134, 3, 600)), ("16 x 32 by 2", (8, 130, 600))]
)
def test_smaller_tiles_of_few_rows_or_columns(tile: str, shape: tuple[int, int, int]) -> None:
    product, xs, function = turned("as they lie", shape, BF16, 8)
    with config.using(pins=(Pin(BARE, tile),), shim_watch=True):
        emulated(BOTH, product, xs, BARE, shape[2], exact=function)
        with config.using(executor="shim", prefer=BOTH):
            (choice,) = ge2.jit(product).lower(*xs).choices.values()
        assert choice.taken.title == f"{BARE}, {tile}"


@needs_compiler
def test_long_sums_lose_digits() -> None:
    """As much as on a GPU, whose tensor cores cut off what float32 does not hold."""
    product, xs, function = turned("second turned", (64, 8, 2048), F32, 4)
    with config.using(pins=(Pin(BARE, "64 x 64 by 4"),)):
        emulated(BOTH, product, xs, BARE, 2048, exact=function)
        found = ge2.jit(product)
        with config.using(executor="shim", prefer=BOTH):
            error = np.abs(found(*xs) - function(*(x.astype(np.float64) for x in xs))).max()
    assert error > 2048**0.5 * 2.0**-18  # of what is rounded to nearest it is 2**-20


@pytest.mark.parametrize("shape", [(8192, 8192, 8), (8, 8192, 8192)])
def test_few_rows_or_columns_wait_for_memory(shape: tuple[int, int, int]) -> None:
    """Whoever multiplies: of a library long sums alone were counted once, which took 4 us."""
    m, k, n = shape
    a, b = (ge2.ShapeDtypeStruct(s, BF16) for s in ((m, k), (k, n)))
    with config.using(executor="shim", tuning=(H200,)):
        (choice,) = ge2.jit(np.matmul).lower(a, b).choices.values()
    speed = choice.caps.speed
    least = m * k * n // min(m, n) * 2 / speed.moved
    assert all(c.predicted > least for c in choice.candidates if c.predicted is not None)
    assert "mma product" in {c.family.name for c in choice.candidates if not c.refusal}


def test_few_terms_are_for_others() -> None:
    rng = np.random.default_rng(6)
    a, b = drawn(rng, (71, 8), BF16), drawn(rng, (8, 87), BF16)
    with config.using(executor="shim", prefer=BOTH):
        assert not {*BOTH} & {
            str(k.choice.family.name) for k in ge2.jit(np.matmul).lower(a, b).kernels
        }
