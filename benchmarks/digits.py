"""A whole training step of the demo, beside the same step by hand and in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ge2
from benchmarks.peers import peer
from benchmarks.record import Row
from benchmarks.timing import medians
from ge2.cli import digits
from ge2.cli.digits import BATCH, BETA1, BETA2, EPSILON, RATE, SIZES


def run(quick: bool = False) -> list[Row]:
    data = digits.load()
    x, y = data.train_x[:BATCH], data.train_y[:BATCH]
    candidates = {
        "ge2": stepper(ge2.jit(digits.train_step), x, y),
        "numpy": stepper(digits.step_by_hand, x, y),
        **jax_candidate(x, y),
    }
    times = medians(candidates, rounds=3 if quick else 41)
    sizes = {"network": list(SIZES), "batch": BATCH}
    return [Row("the demo's step", "seconds", times.pop("ge2"), times, None, "float32", sizes)]


def stepper(step: digits.Step, x: Any, y: Any) -> Callable[[], object]:
    state = digits.start()

    def go() -> object:
        nonlocal state
        state, loss = step(state, x, y)
        return loss

    return go


def jax_candidate(x: Any, y: Any) -> dict[str, Callable[[], object]]:
    jax = peer("jax")
    if jax is None:
        return {}
    step = jax.jit(partial(train_step, jax))
    go = stepper(step, jax.numpy.asarray(x), jax.numpy.asarray(y))
    return {"jax": lambda: go().block_until_ready()}  # type: ignore[attr-defined]


def cross_entropy(jax: Any, params: Any, x: Any, y: Any) -> Any:
    jnp = jax.numpy
    *hidden, last = params
    for layer in hidden:
        x = jnp.maximum(x @ layer["w"] + layer["b"], 0)
    log_p = jax.nn.log_softmax(x @ last["w"] + last["b"])
    return -jnp.take_along_axis(log_p, y[:, None], axis=1).mean()


def train_step(jax: Any, state: Any, x: Any, y: Any) -> Any:
    """`ge2.cli.digits.train_step`, in JAX."""
    loss, grads = jax.value_and_grad(partial(cross_entropy, jax))(state.params, x, y)
    steps = state.steps + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state.mean, grads)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state.square, grads)
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (v**0.5 + EPSILON), state.params, mean, square)
    return digits.State(params, mean, square, steps), loss
