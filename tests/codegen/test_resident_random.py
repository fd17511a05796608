"""Loops of random rounds: the kernel gives what the reference does,
with the shim looking for races.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from tests.together import needs_compiler

pytestmark = needs_compiler
ROWS, SEEDS = 5, range(24)
Values = list[Any]


def pick(rng: np.random.Generator, values: Values) -> Any:
    return values[int(rng.integers(len(values)))]


def matrix(rng: np.random.Generator, values: Values) -> Any:
    return pick(rng, [v for v in values if v.ndim == 2])


def halves(x: Any) -> Any:
    return np.concatenate([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], axis=1)


def written(x: Any, y: Any) -> Any:
    z = x + 0 * y
    z[1] = y[0] * 0.5
    z[:, -1] += 0.1
    return z


# Each keeps numbers near 1, so that rounds do not blow up what is rounded differently.
STEPS: tuple[Callable[[Any, Any, Any], Any], ...] = (
    lambda x, y, w: np.tanh(x) + 0.5 * y,
    lambda x, y, w: np.where(x > y, x * 0.5, y),
    lambda x, y, w: x - x.mean(1, keepdims=True),
    lambda x, y, w: np.tanh(x @ w),
    lambda x, y, w: np.tanh(x @ x.T @ y) * 0.5,
    lambda x, y, w: halves(x)[:, ::-1],
    lambda x, y, w: x / (1 + np.abs(y).max()),
    lambda x, y, w: np.broadcast_to(np.tanh(y.sum(0)), x.shape) * x,
    lambda x, y, w: (x.T * 0.5).T + np.arange(x.shape[1], dtype=np.float32) * 0.1,
    lambda x, y, w: np.exp(x - x.max(1, keepdims=True)),
    # not by a sum that is 0 but for rounding, as that of what its mean was taken from
    lambda x, y, w: lax.cond(
        np.abs(y).sum() > y.size * 0.6, lambda x: np.sin(x), lambda x: x * 0.25, x
    ),
    lambda x, y, w: lax.fori_loop(0, 2, lambda i, z: z * 0.5 + y * 0.1, x),
    lambda x, y, w: x.reshape(x.shape[1], x.shape[0]).T * 0.5 + y,
    lambda x, y, w: written(x, y),
    lambda x, y, w: (x > 0).sum(1, keepdims=True).astype(np.float32) * 0.1 + y,
)


def program(seed: int) -> Callable[..., Any]:
    """A scan or a counted loop whose round is a few of the steps, the same ones at each trace."""

    def round(h: Any, g: Any, x: Any, w: Any) -> tuple[Any, Any, Any]:
        rng, values = np.random.default_rng(seed), [h, g, x]
        for _ in range(int(rng.integers(2, 7))):
            step = STEPS[int(rng.integers(len(STEPS)))]
            values.append(step(matrix(rng, values), matrix(rng, values), w))
        return np.tanh(values[-1]), pick(rng, values) * 0.5, pick(rng, values)

    def scanned(h: Any, xs: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            h, g, y = round(*c, x, w)
            return (h, g), (y, h.sum(), g.argmax(1))

        return lax.scan(step, (h, h * 0.5), xs, reverse=bool(seed % 2))

    def counted(h: Any, xs: Any, w: Any) -> Any:
        def step(c: Any) -> Any:
            n, h, g = c
            h, g, _ = round(h, g, xs[1], w)
            return n + 1, h, g

        return lax.while_loop(
            lambda c: (c[0] < 3) & (np.abs(c[1]).max() < 5), step, (np.int32(0), h, h * 0.5)
        )

    return counted if seed % 3 == 0 else scanned


def arguments(seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(100 + seed)
    n = int(pick(rng, [3, 8, 33, 64]))
    h = rng.standard_normal((ROWS, n)).astype(np.float32)
    xs = rng.standard_normal((3, ROWS, n)).astype(np.float32)
    return h, xs, (rng.standard_normal((n, n)) / np.sqrt(n)).astype(np.float32)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_round(seed: int) -> None:
    (h, xs, w), f = arguments(seed), program(seed)
    with config.using(executor="shim", shim_watch=True):
        g = ge2.jit(f)
        found = g(h, xs, w)
        assert "resident_kernel" in " ".join(g.report().kernels)
        again = g(h, xs, w)
    for y, a, x in zip(*map(ge2.tree_util.tree_leaves, (found, again, f(h, xs, w))), strict=True):
        assert np.asarray(y).tobytes() == np.asarray(a).tobytes()
        np.testing.assert_allclose(y, np.asarray(x), rtol=2e-4, atol=2e-4)
