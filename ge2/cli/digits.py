"""The main job: a 64-256-256-10 network that learns handwritten digits, as
plain NumPy and again by hand.

`train_step` is what a user writes: NumPy functions on NumPy arrays, which `ge2.jit` compiles whole.
`step_by_hand` is the same step with its derivative worked out on paper, in vectorised NumPy: the
yardstick for time and results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import ge2
from ge2.base.errors import InputError
from ge2.base.gpu import beside
from ge2.base.record import record

Array = np.ndarray[Any, np.dtype[Any]]
Layer = dict[str, Array]
Params = list[Layer]

SIZES = (64, 256, 256, 10)
BATCH = 128
RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


class State(NamedTuple):
    """What a step changes: the parameters, Adam's running means of their
    gradients, the number of steps.
    """

    params: Params
    mean: Params
    square: Params
    steps: int


Step = Callable[[State, Array, Array], tuple[State, Array]]


@record
class Digits:
    """Images f32[n, 64] in 0..1 and their labels i64[n], in two parts with the
    same share of each digit.
    """

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load(seed: int = 0) -> Digits:
    """The 1,797 digits that scikit-learn ships, a fifth of them kept aside for the test."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn", where=error, fix='pip install ".[demo]"'
        ) from None
    images, labels = load_digits(return_X_y=True)
    scaled = (images / 16).astype(np.float32)
    parts = train_test_split(scaled, labels, test_size=0.2, stratify=labels, random_state=seed)
    train_x, test_x, train_y, test_y = map(np.ascontiguousarray, parts)
    return Digits(train_x, train_y, test_x, test_y)


def start(seed: int = 0) -> State:
    """Weights from He's initialisation (arXiv:1502.01852), everything else zero."""
    rng = np.random.default_rng(seed)
    params = [layer(rng, rows, columns) for rows, columns in pairwise(SIZES)]
    return State(params, zeros(params), zeros(params), 0)


def layer(rng: np.random.Generator, rows: int, columns: int) -> Layer:
    scale = np.float32(np.sqrt(2 / rows))
    return {
        "w": rng.standard_normal((rows, columns), np.float32) * scale,
        "b": np.zeros(columns, np.float32),
    }


def zeros(params: Params) -> Params:
    return [{name: np.zeros_like(p) for name, p in layer.items()} for layer in params]


def batches(
    x: Array, y: Array, rng: np.random.Generator, size: int = BATCH
) -> Iterator[tuple[Array, Array]]:
    """One pass over the data in a new order; the last batch is smaller if
    `size` does not divide it.
    """
    order = beside(rng.permutation(len(x)), x)
    for i in range(0, len(x), size):
        yield x[order[i : i + size]], y[order[i : i + size]]


# ------------------------------------------------------------------------------ as a user writes it


def forward(params: Params, x: Array) -> Array:
    *hidden, last = params
    for layer in hidden:
        x = np.maximum(x @ layer["w"] + layer["b"], 0)
    return x @ last["w"] + last["b"]


def cross_entropy(params: Params, x: Array, y: Array) -> Array:
    """The mean over the batch of -log softmax(forward(x))[y]."""
    z = forward(params, x)
    z = z - z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    loss: Array = -np.take_along_axis(log_p, y[:, None], axis=1).mean()
    return loss


def train_step(state: State, x: Array, y: Array) -> tuple[State, Array]:
    """One step of Adam (arXiv:1412.6980): the new state and the loss before it."""
    loss, grads = ge2.value_and_grad(cross_entropy)(state.params, x, y)
    steps = state.steps + 1
    mean = ge2.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state.mean, grads)
    square = ge2.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state.square, grads)
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    params = ge2.tree.map(
        lambda p, m, v: p - rate * m / (np.sqrt(v) + EPSILON), state.params, mean, square
    )
    return State(params, mean, square, steps), loss


def accuracy(params: Params, x: Array, y: Array) -> float:
    return float((forward(params, x).argmax(axis=1) == y).mean())


# ------------------------------------------------------------------------------------------ by hand


def step_by_hand(state: State, x: Array, y: Array) -> tuple[State, Array]:
    """`train_step` without a compiler.

    It reuses arrays where it can: the given state is overwritten.
    """
    loss, grads = loss_and_grads_by_hand(state.params, x, y)
    steps = state.steps + 1
    rate = RATE * (1 - BETA2**steps) ** 0.5 / (1 - BETA1**steps)
    for p, g, m, v in zip(state.params, grads, state.mean, state.square, strict=True):
        for name in p:
            adam_by_hand(p[name], g[name], m[name], v[name], rate)
    return state._replace(steps=steps), loss


def loss_and_grads_by_hand(params: Params, x: Array, y: Array) -> tuple[Array, Params]:
    *hidden, last = params
    seen = [x]
    for layer in hidden:
        z = seen[-1] @ layer["w"]
        z += layer["b"]
        seen.append(np.maximum(z, 0, out=z))
    z = seen[-1] @ last["w"]
    z += last["b"]
    z -= z.max(axis=1, keepdims=True)
    rows = np.arange(len(y), like=y)
    picked = z[rows, y]
    np.exp(z, out=z)
    total = z.sum(axis=1, keepdims=True)
    loss = (np.log(total[:, 0]) - picked).mean()

    z /= total
    z[rows, y] -= 1
    z /= len(y)
    return loss, backward_by_hand(params, seen, z)


def backward_by_hand(params: Params, seen: list[Array], ct: Array) -> Params:
    """All gradients, from `ct`, that of the last layer's output; `seen` holds
    each layer's input.
    """
    grads: Params = []
    for layer, x in zip(reversed(params), reversed(seen), strict=True):
        grads.append({"w": x.T @ ct, "b": ct.sum(axis=0)})
        if len(grads) < len(params):
            ct = ct @ layer["w"].T
            ct *= x > 0
    return grads[::-1]


def adam_by_hand(p: Array, g: Array, m: Array, v: Array, rate: float) -> None:
    m *= BETA1
    m += (1 - BETA1) * g
    g *= g
    g *= 1 - BETA2
    v *= BETA2
    v += g
    step = np.sqrt(v)
    step += EPSILON
    np.divide(m, step, out=step)
    step *= rate
    p -= step
