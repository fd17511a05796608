"""The demo's step in JAX, as `ge2.cli.demo` has it; it imports nothing of ours."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SIZES, BATCH = (64, 256, 256, 10), 128
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


class State(NamedTuple):
    params: Any
    mean: Any
    square: Any
    steps: int


def start(seed: int = 0) -> State:
    """The same weights as the demo's."""
    rng = np.random.default_rng(seed)
    params = [
        {"w": weights(rng, rows, columns), "b": jnp.zeros(columns)}
        for rows, columns in pairwise(SIZES)
    ]
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return State(params, zeros(params), zeros(params), 0)


def weights(rng: np.random.Generator, rows: int, columns: int) -> Any:
    scale = np.float32(np.sqrt(2 / rows))
    return jnp.asarray(rng.standard_normal((rows, columns), np.float32) * scale)


def cross_entropy(params: Any, x: Any, y: Any) -> Any:
    *hidden, last = params
    for layer in hidden:
        x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
    log_p = jax.nn.log_softmax(x @ last["w"] + last["b"])
    return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()


def train_step(state: State, x: Any, y: Any) -> tuple[State, Any]:
    loss, grads = jax.value_and_grad(cross_entropy)(state.params, x, y)
    steps = state.steps + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state.mean, grads)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state.square, grads)
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    params = jax.tree.map(
        lambda p, m, v: p - rate * m / (v**0.5 + EPSILON), state.params, mean, square
    )
    return State(params, mean, square, steps), loss
