"""Products on Hopper's tensor cores: in the emulator against NumPy, and compiled for the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
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


def checked(function: Any, xs: Any, family: str, terms: int, roundings: int = 1) -> None:
    """Runs a function by a kernel of the family, whose result is that of NumPy."""
    with config.using(executor="shim", prefer=(BARE, FUSED)):
        lowered = ge2.jit(function).lower(*xs)
        assert family in kinds(lowered)
        judge(ge2.jit(function)(*xs), exactly(function, *xs), terms, roundings)


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
    checked(function, [drawn(rng, s, dtype) for s in shapes], FUSED, 72, ROUNDINGS.get(name, 1))


@pytest.mark.exhaustive("turn")
@pytest.mark.parametrize("shape", [(72, 72, 8), (136, 264, 200), (64, 64, 1032)])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("turn", TURNS)
def test_products_as_they_lie(turn: str, dtype: Any, shape: tuple[int, int, int]) -> None:
    checked(*of_turn(turn, shape, dtype), BARE, shape[2])


def test_float32_rounded_to_tf32() -> None:
    xs, wanted = to_round(136, 88, 72)
    with config.using(executor="shim", prefer=(BARE, FUSED)):
        assert kinds(ge2.jit(rounded).lower(*xs)) == [FUSED]
        judge(ge2.jit(rounded)(*xs), wanted, 72)


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
