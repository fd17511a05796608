"""Products on Hopper's tensor cores, on one: against NumPy in float64, and the same bits each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.families import kinds
from tests.kernels.wgmma_cases import (
    ACTIVATIONS,
    BF16,
    BIASES,
    F16,
    F32,
    JOINT_VIEWS,
    LAYERS,
    TURNS,
    VIEWS,
    biased,
    drawn,
    exactly,
    judge,
    odd,
    on_gpu,
    precision,
    turned,
)

BARE, FUSED = "wgmma product", "wgmma product and region"
COPIED = "wgmma product of copies", "wgmma product of copies and region"
SHAPES = [(64, 64, 64), (200, 264, 72), (456, 776, 328), (1000, 2056, 520), (2048, 2048, 2048)]


@pytest.fixture(autouse=True)
def hopper() -> Any:
    gpu = current_gpu()
    if gpu.limits.generation != 90:
        pytest.skip("these kernels are for compute capability 9.0")
    with config.using(prefer=(BARE, FUSED)):
        yield gpu.xp


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(hopper: Any, activation: str, bias: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    m, n, k = 456, 776, 328
    xs = [drawn(rng, s, dtype) for s in ((m, k), (k, n), BIASES[bias](m, n))]
    on_gpu(hopper, biased(activation), xs, FUSED, k)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(hopper: Any, name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    xs = [drawn(rng, s, dtype) for s in shapes]
    on_gpu(hopper, function, xs, FUSED, 72, **precision(name, dtype))


@pytest.mark.parametrize("tile", ["128 x 192", "128 x 128", "64 x 64"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(
    hopper: Any, turn: str, shape: tuple[int, int, int], tile: str
) -> None:
    from ge2.choice import Pin

    function, xs, _ = turned(turn, shape, BF16, 2)
    with config.using(pins=(Pin(BARE, tile),)):
        on_gpu(hopper, function, xs, BARE, shape[2])


@pytest.mark.parametrize("tile", ["128 x 192", "128 x 128", "64 x 64"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_tiles_with_an_epilogue(hopper: Any, activation: str, tile: str) -> None:
    from ge2.choice import Pin

    rng = np.random.default_rng(4)
    xs = [drawn(rng, s, BF16) for s in ((1000, 520), (520, 2056), (2056,))]
    with config.using(pins=(Pin(FUSED, tile),)):
        on_gpu(hopper, biased(activation), xs, FUSED, 520)


@pytest.mark.parametrize("tile", ["128 x 192, narrow strips", "128 x 128, narrow strips"])
def test_narrow_strips(hopper: Any, tile: str) -> None:
    from ge2.choice import Pin

    rng = np.random.default_rng(7)
    xs = [drawn(rng, s, BF16) for s in ((2040, 2056), (2056, 4088), (2040, 4088), (2040, 4088))]
    with config.using(pins=(Pin(FUSED, tile),)):
        function = LAYERS["three results of two arrays"][0]
        lowered = ge2.jit(function).lower(*map(hopper.asarray, xs))
        assert [k.choice.taken.title for k in lowered.kernels] == [f"{FUSED}, {tile}"]
        on_gpu(hopper, function, xs, FUSED, 2056)


def test_float32_rounded_to_tf32(hopper: Any) -> None:
    rng = np.random.default_rng(3)
    a, b = (drawn(rng, s, BF16).astype(F32) for s in ((456, 328), (776, 328)))
    c = drawn(rng, (776,), F32)

    def layer(a: Any, b: Any, c: Any) -> Any:
        return np.maximum(ge2.numpy.matmul(a, b.T, precision="tf32") + c, 0)

    given = tuple(map(hopper.asarray, (a, b, c)))
    assert kinds(ge2.jit(layer), *given) == [FUSED]
    wanted = np.maximum(exactly(lambda a, b: a @ b.T, a, b) + c, 0)
    judge(hopper.asnumpy(ge2.jit(layer)(*given)), wanted, 328)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", [*VIEWS, *LAYERS])
def test_copies_of_operands(hopper: Any, name: str, dtype: Any) -> None:
    function, shapes = {**LAYERS, **VIEWS}[name]
    if name in LAYERS:
        shapes = tuple(map(odd, shapes))
    rng = np.random.default_rng(5)
    family = FUSED if name == "heads" else COPIED[name in LAYERS or name in JOINT_VIEWS]
    with config.using(prefer=COPIED):
        xs = [drawn(rng, s, dtype) for s in shapes]
        on_gpu(hopper, function, xs, family, 73, **precision(name, dtype))


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_products_of_copies(hopper: Any, turn: str, dtype: Any) -> None:
    called, xs, exact = turned(turn, (1001, 2055, 519), dtype, 6)
    with config.using(prefer=COPIED):
        on_gpu(hopper, called, xs, COPIED[0], 519, exact=exact)
