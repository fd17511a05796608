"""Functions to transform: smooth ones of an array (n,) in float64; and
differences to judge them by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.transforms import checkpoint, cond, custom_jvp, custom_vjp, stop_gradient

N = 4
W = np.random.default_rng(7).normal(size=(N, 3)) / 2
INDEX = np.array([[2, 0], [-1, 2]])


@custom_vjp
def cube(x):
    return x * x * x


cube.defvjp(lambda x: (x * x * x, x), lambda x, ct: (3.0 * x * x * ct,))


@custom_jvp
def soft(x):
    return np.log1p(np.exp(x))


@soft.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return soft(x), t / (1.0 + np.exp(-x))


def layers(x):
    return np.tanh(np.tanh(x @ W) @ W.T + x)


def written(x):
    y = np.zeros_like(x)
    y[1:] = np.sin(x[:-1])
    y += x
    for i in range(2):
        y[i] = x[i] ** 2
    y[1:] += y[:-1]
    y *= x
    return y


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: np.sin(x) * x + np.exp(-x * x) / (1.5 + np.cos(x)),
    "powers": lambda x: (x * x + 1.0) ** 1.5 + x**3 - 2.0**x,
    "sum": lambda x: np.sum(np.tanh(x) * x),
    "mean": lambda x: x - np.mean(np.sin(x)),
    "normalize": lambda x: x / np.sqrt(np.sum(x * x) + 1.0),
    "matmul": lambda x: np.tanh(x @ W),
    "layers": layers,
    "outer": lambda x: x[:, None] * np.sin(x)[None, :],
    "where": lambda x: np.where(x > 0.1, x * x, np.exp(x)),
    "maximum": lambda x: np.maximum(x, 0.3 * x * x) + np.max(x * x),
    "softmax": lambda x: np.exp(x - np.max(x)) / np.sum(np.exp(x - np.max(x))),
    "cumsum": lambda x: np.cumsum(np.sin(x)) * x,
    "cumprod": lambda x: np.cumprod(1.0 + 0.3 * x),
    "prod": lambda x: np.prod(1.0 + x * x),
    "sort": lambda x: np.sort(np.sin(3 * x)) * np.arange(1.0, 1.0 + x.shape[0]),
    "gather": lambda x: np.sin(x)[INDEX] * x[0],
    "slices": lambda x: np.concatenate([x[::2] ** 2, x[::-1], x[1:3] * x[0]]),
    "shapes": lambda x: (x.reshape(2, 2).T @ x.reshape(2, 2)).ravel() * x,
    "written": written,
    "cube": lambda x: cube(np.sin(x)) + x,
    "soft": lambda x: soft(x) * soft(2.0 * x),
    "checkpoint": lambda x: checkpoint(layers)(np.sin(x)) * x,
    "cond": lambda x: cond(np.sum(x) > 0.0, lambda z: np.sin(z) * z, lambda z: z * z + z, x),
    "stopped": lambda x: x * np.sin(x) + stop_gradient(np.floor(x)),
}
# a custom_vjp has no forward mode
FORWARD = {name: f for name, f in FUNCTIONS.items() if name != "cube"}


def points(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1.2, 1.2, (*shape, N))


def slope(f: Callable[[Any], Any], x: np.ndarray, t: np.ndarray, step: float = 1e-3) -> Any:
    """The derivative of f at x along t, by differences of order 4."""
    at = lambda n: np.asarray(f(x + n * step * t))  # noqa: E731
    return (at(-2) - 8 * at(-1) + 8 * at(1) - at(2)) / (12 * step)


def close(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
