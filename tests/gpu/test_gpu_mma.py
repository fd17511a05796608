"""Products by the tensor cores of warps, on a GPU: against NumPy, and the same bits each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.load.gpu import current_gpu
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
    odd,
    on_gpu,
    precision,
    rounded_to_tf32,
    turned,
)

BARE, FUSED = "mma product", "mma product and region"
TILES = ["128 x 256 by 8", "128 x 128 by 8", "128 x 128 by 4", "128 x 64 by 8", "64 x 64 by 4"]
SHAPES = [(64, 64, 64), (199, 265, 71), (456, 776, 328), (458, 774, 330), (1023, 2047, 519)]


@pytest.fixture(autouse=True)
def ampere() -> Any:
    gpu = current_gpu()
    if gpu.limits.generation < 80:
        pytest.skip("these kernels are for compute capability 8.0 and newer")
    with config.using(prefer=(BARE, FUSED)):
        yield gpu.xp


@pytest.mark.exhaustive("activation")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(ampere: Any, activation: str, bias: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    m, n, k = 457, 775, 329
    xs = [drawn(rng, s, dtype) for s in ((m, k), (k, n), BIASES[bias](m, n))]
    on_gpu(ampere, biased(activation), xs, FUSED, k)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(ampere: Any, name: str, dtype: Any, aligned: bool) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    xs = [drawn(rng, s if aligned else odd(s), dtype) for s in shapes]
    on_gpu(ampere, function, xs, FUSED, 73, **precision(name, dtype))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", VIEWS)
def test_operands_that_lie_anyhow(ampere: Any, name: str, dtype: Any) -> None:
    function, shapes = VIEWS[name]
    rng = np.random.default_rng(2)
    family = FUSED if name in JOINT_VIEWS else BARE
    on_gpu(ampere, function, [drawn(rng, s, dtype) for s in shapes], family, 65)


@pytest.mark.exhaustive("tile")
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_products_as_they_lie(
    ampere: Any, turn: str, shape: tuple[int, int, int], tile: str, dtype: Any
) -> None:
    called, xs, exact = turned(turn, shape, dtype, 3)
    with config.using(pins=(Pin(BARE, tile),)):
        on_gpu(ampere, called, xs, BARE, shape[2], exact=exact)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("shape", [(1000, 2056, 520), (1002, 2054, 518), (1001, 2055, 519)])
def test_tiles_with_an_epilogue(ampere: Any, shape: tuple[int, int, int], tile: str) -> None:
    m, n, k = shape
    rng = np.random.default_rng(4)
    xs = [drawn(rng, s, BF16) for s in ((m, k), (k, n), (n,))]
    with config.using(pins=(Pin(FUSED, tile),)):
        on_gpu(ampere, biased("gelu"), xs, FUSED, k)


@pytest.mark.parametrize("name", PARTED)
def test_parts_of_sums(ampere: Any, name: str) -> None:
    function, shapes, tile, family = PARTED[name]
    rng = np.random.default_rng(5)
    with config.using(pins=(Pin(family, tile),)):
        on_gpu(ampere, function, [drawn(rng, s, BF16) for s in shapes], family, 1100)


@pytest.mark.parametrize("tile", ["128 x 256 by 8, of copies", "64 x 64 by 4, of copies"])
def test_copies_of_operands(ampere: Any, tile: str) -> None:
    rng = np.random.default_rng(6)
    xs = [drawn(rng, s, BF16) for s in ((1001, 519), (519, 2055), (2055,))]
    with config.using(pins=(Pin(FUSED, tile),)):
        on_gpu(ampere, biased("gelu"), xs, FUSED, 519)


@pytest.mark.parametrize("shape", [(8, 1024, 4096), (4099, 8, 2048), (16, 70, 72), (777, 3, 1030)])
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_few_rows_or_columns(
    ampere: Any, turn: str, shape: tuple[int, int, int], dtype: Any
) -> None:
    function, first, second = TURNS[turn]
    m, n, k = shape
    rng = np.random.default_rng(4)
    a = drawn(rng, (k, m) if first else (m, k), BF16).astype(dtype)
    b = drawn(rng, (n, k) if second else (k, n), BF16).astype(dtype)

    def exact(a: Any, b: Any) -> Any:
        return np.maximum(function(a, b), 0)

    called = rounded_to_tf32(exact) if dtype == F32 else exact
    on_gpu(ampere, called, (a, b), FUSED, k, exact=exact)


@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        ("32 x 16 by 2", (8192, 8, 2048)), ("32 x 16 by 2", (777, 3, 1030)),
        ("16 x 32 by 2", (8, 8192, 2048)), ("16 x 32 by 2", (3, 777, 1030)),
    ],
)  # fmt: skip
def test_smaller_tiles_of_few_rows_or_columns(
    ampere: Any, tile: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(5)
    xs = [drawn(rng, s, BF16) for s in ((m, k), (k, n), (n,))]
    with config.using(pins=(Pin(FUSED, tile),)):
        on_gpu(ampere, biased("gelu"), xs, FUSED, k)
