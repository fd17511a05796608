"""Gradients without `jit`, called again with the same shapes, beside HIPS autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import ge2
from benchmarks.options import USUAL, Options
from benchmarks.peers import peer
from benchmarks.record import Faster, Row
from benchmarks.timing import medians

ROUNDS, LAYOUT = 21, "float64, C order"
TIMES, TWO = 5, 2.0


def chain(xp: Any) -> Callable[[Any], Any]:
    """Thirty operations on arrays of one shape."""

    def f(x: Any) -> Any:
        y = x
        for _ in range(TIMES):
            y = xp.sin(y) * 0.5 + xp.cos(y)
            y = xp.tanh(y) + y * 0.1
        return xp.sum(y**TWO)

    return f


def network(xp: Any) -> Callable[[Any], Any]:
    """The loss of three layers over a batch, by a list of weights and biases."""
    inputs, targets = (
        np.linspace(-1, 1, 32 * 8).reshape(32, 8),
        np.linspace(0, 1, 32).reshape(32, 1),
    )

    def f(layers: Any) -> Any:
        y = inputs
        for w, b in layers[:-1]:
            y = xp.tanh(xp.dot(y, w) + b)
        w, b = layers[-1]
        return xp.mean((xp.dot(y, w) + b - targets) ** 2)

    return f


def layers_of(sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(m, n)), rng.normal(size=n)) for m, n in itertools.pairwise(sizes)]


WORK = {
    "eager grad of 30 operations on 3 elements": (chain, np.linspace(0.1, 1.0, 3)),
    "eager grad of 30 operations on 1,000 elements": (chain, np.linspace(0.1, 1.0, 1000)),
    "eager grad of 30 operations on 100,000 elements": (chain, np.linspace(0.1, 1.0, 100_000)),
    "eager grad of a network of three layers": (network, layers_of((8, 16, 16, 1))),
}


def run(options: Options = USUAL) -> list[Row]:
    rows = []
    for name, (make, x) in WORK.items():
        found = {"ge2": call(ge2.grad(make(np)), x)}
        if (autograd := peer("autograd")) is not None:
            found["autograd"] = call(autograd.grad(make(autograd.numpy)), x)
        times = medians(found, options.rounds_or(ROUNDS))
        rows.append(
            Row(name, "seconds", times.pop("ge2"), times, (Faster(1.0, "autograd"),), LAYOUT)
        )
    return rows


def call(gradient: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: gradient(x)
