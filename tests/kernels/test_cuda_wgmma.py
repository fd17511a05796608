"""Products on Hopper's tensor cores: in the emulator against NumPy, and compiled for the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.kernels.wgmma_cases import (
    ACTIVATIONS,
    BF16,
    BIASES,
    F16,
    F32,
    LAYERS,
    TURNS,
    biased,
    drawn,
    emulated,
    exactly,
    judge,
    kinds,
    precision,
)

BARE, FUSED = "wgmma product", "wgmma product and region"


def checked(function: Any, xs: Any, family: str, terms: int, **precision: Any) -> None:
    emulated((BARE, FUSED), function, xs, family, terms, **precision)


@pytest.mark.exhaustive("activation")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(activation: str, bias: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    xs = [drawn(rng, s, dtype) for s in ((136, 72), (72, 88), BIASES[bias](136, 88))]
    checked(biased(activation), xs, FUSED, 72)


@pytest.mark.exhaustive("name")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    checked(function, [drawn(rng, s, dtype) for s in shapes], FUSED, 72, **precision(name, dtype))


@pytest.mark.exhaustive("turn")
@pytest.mark.parametrize("shape", [(72, 72, 8), (136, 264, 200), (64, 64, 1032)])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(turn: str, dtype: Any, shape: tuple[int, int, int]) -> None:
    function, first, second = TURNS[turn]
    m, n, k = shape
    rng = np.random.default_rng(2)
    a = drawn(rng, (k, m) if first else (m, k), dtype)
    b = drawn(rng, (n, k) if second else (k, n), dtype)
    checked(function, (a, b), BARE, k)


def test_float32_rounded_to_tf32() -> None:
    rng = np.random.default_rng(3)
    a, b = (drawn(rng, s, BF16).astype(F32) for s in ((136, 72), (88, 72)))
    c = drawn(rng, (88,), F32)

    def layer(a: Any, b: Any, c: Any) -> Any:
        matmul = ge2.numpy.matmul(a, b.T, precision="tf32")
        return np.maximum(matmul + c, 0)

    with config.using(executor="shim", prefer=(BARE, FUSED)):
        assert kinds(ge2.jit(layer).lower(a, b, c)) == [FUSED]
        judge(ge2.jit(layer)(a, b, c), np.maximum(exactly(lambda a, b: a @ b.T, a, b) + c, 0), 72)


@pytest.mark.parametrize(
    ("first", "second"), [((1, 72), (72, 80)), ((136, 72), (72, 1)), ((136, 1), (1, 80))]
)
def test_one_row_column_or_term_is_for_others(first: Any, second: Any) -> None:
    rng = np.random.default_rng(5)
    a, b = drawn(rng, first, BF16), drawn(rng, second, BF16)
    for function in (lambda a, b: a @ b, lambda a, b: np.tanh(a @ b)):
        with config.using(executor="shim", prefer=(BARE, FUSED)):
            assert not {BARE, FUSED} & {*kinds(ge2.jit(function).lower(a, b))}
            judge(ge2.jit(function)(a, b), exactly(function, a, b), first[1], roundings=2)
