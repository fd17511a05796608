"""Products on Hopper's tensor cores, on one: against NumPy in float64, and the same bits each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.wgmma_cases import (
    ACTIVATIONS,
    BARE,
    BF16,
    BIASES,
    F16,
    FUSED,
    LAYERS,
    ROUNDINGS,
    TURNS,
    biased,
    drawn,
    exactly,
    judge,
    kinds,
    of_turn,
    rounded,
    to_round,
)

SHAPES = [(64, 64, 64), (200, 264, 72), (456, 776, 328), (1000, 2056, 520), (2048, 2048, 2048)]


@pytest.fixture(autouse=True)
def hopper() -> Any:
    gpu = current_gpu()
    if gpu.limits.generation != 90:
        pytest.skip("these kernels are for compute capability 9.0")
    with config.using(prefer=(BARE, FUSED)):
        yield gpu.xp


def checked(xp: Any, function: Any, xs: Any, family: str, terms: int, roundings: int = 1) -> None:
    given = tuple(map(xp.asarray, xs))
    compiled = ge2.jit(function)
    assert family in kinds(compiled.lower(*given))
    first = compiled(*given)
    found = tuple(map(xp.asnumpy, first)) if isinstance(first, tuple) else xp.asnumpy(first)
    judge(found, exactly(function, *xs), terms, roundings)
    for _ in range(10):
        again = compiled(*given)
        pairs = zip(again, first, strict=True) if isinstance(first, tuple) else [(again, first)]
        assert all(bool((y.view(np.uint8) == x.view(np.uint8)).all()) for y, x in pairs)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(hopper: Any, activation: str, bias: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    m, n, k = 456, 776, 328
    xs = [drawn(rng, s, dtype) for s in ((m, k), (k, n), BIASES[bias](m, n))]
    checked(hopper, biased(activation), xs, FUSED, k)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(hopper: Any, name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    checked(
        hopper, function, [drawn(rng, s, dtype) for s in shapes], FUSED, 72, ROUNDINGS.get(name, 1)
    )


@pytest.mark.parametrize("tile", ["128 x 192", "128 x 128", "64 x 64"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(
    hopper: Any, turn: str, shape: tuple[int, int, int], tile: str
) -> None:
    from ge2.choice.problem import Pin

    with config.using(pins=(Pin(BARE, tile),)):
        checked(hopper, *of_turn(turn, shape, BF16), BARE, shape[2])


@pytest.mark.parametrize("tile", ["128 x 192", "128 x 128", "64 x 64"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_tiles_with_an_epilogue(hopper: Any, activation: str, tile: str) -> None:
    from ge2.choice.problem import Pin

    rng = np.random.default_rng(4)
    xs = [drawn(rng, s, BF16) for s in ((1000, 520), (520, 2056), (2056,))]
    with config.using(pins=(Pin(FUSED, tile),)):
        checked(hopper, biased(activation), xs, FUSED, 520)


def test_float32_rounded_to_tf32(hopper: Any) -> None:
    xs, wanted = to_round(456, 776, 328)
    given = tuple(map(hopper.asarray, xs))
    assert kinds(ge2.jit(rounded).lower(*given)) == [FUSED]
    judge(hopper.asnumpy(ge2.jit(rounded)(*given)), wanted, 328)
