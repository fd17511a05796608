"""Drawn networks under drawn limits: the plan fits, and the gradient is that without a limit.

`GE2_TEST_PROGRAMS=500 pytest --all tests/runtime/test_memory_limit_drawn.py` looks at more of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import MemoryLimitError

pytestmark = pytest.mark.any_executor

PROGRAMS = int(os.environ.get("GE2_TEST_PROGRAMS", 10))
N = 24
KEY = ge2.random.key(7)


def norm(x):
    centred = x - np.mean(x, axis=1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + 1e-3)


def softmax(x):
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def dropped(x, i):
    keep = ge2.random.uniform(ge2.random.fold_in(KEY, i), x.shape) < 0.7
    return np.where(keep, x / 0.7, 0.0)


def written(x):
    y = x * 0.5
    y[2:7] = np.sin(x[:5])
    return y


def gated(x, w):
    z = x @ w
    return x + z / (1.0 + np.exp(-z)) * np.cos(z)


def looped(x, w):
    """Gates in each round, and a branch."""

    def body(h, t):
        z = np.tanh(h @ w + t)
        more = ge2.lax.cond(np.sum(z) > 0, lambda z: np.sin(z @ w) * z, np.cos, z)
        return z / (1.0 + np.exp(-(h @ w))) + more, np.max(z, axis=1)

    h, ys = ge2.lax.scan(body, x, x[:5])
    return h + np.sum(ys, axis=0)[:, None]


SAVING = ge2.checkpoint(looped, policy=ge2.checkpoint_policies.dots_saveable)


# fmt: off
LAYERS: list[Callable[..., Any]] = [
    lambda x, w, i: np.tanh(x @ w), lambda x, w, i: gated(x, w), lambda x, w, i: norm(x),
    lambda x, w, i: softmax(x) * 4.0, lambda x, w, i: dropped(x, i), lambda x, w, i: written(x),
    lambda x, w, i: np.cumsum(x, axis=i % 2) / 5.0, lambda x, w, i: np.sort(x, axis=1),
    lambda x, w, i: np.sin(x.T) + x, lambda x, w, i: np.maximum(x, np.sin(x)) * np.min(x),
    lambda x, w, i: np.concatenate([np.exp(-x[::2] ** 2), x[1::2] * x[::2]]),
    lambda x, w, i: np.sin(x.reshape(-1, 2 * N)).reshape(x.shape),
    lambda x, w, i: np.where(x > 0, x, np.expm1(x)), lambda x, w, i: x[:, ::-1] * np.max(x, axis=0),
    lambda x, w, i: ge2.checkpoint(gated)(x, w), lambda x, w, i: ge2.jit(gated)(x, w),
    lambda x, w, i: ge2.lax.cond(np.sum(x) > 0, lambda x: np.sin(x) * x, lambda x: np.cos(x @ w), x),
    lambda x, w, i: x + np.take_along_axis(x, np.argsort(x, axis=1), 1),
    lambda x, w, i: x * np.mean(np.abs(x)), lambda x, w, i: looped(x, w), lambda x, w, i: SAVING(x, w),
]
# fmt: on


def drawn(seed: int) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    rng = np.random.default_rng(seed)
    chosen = [LAYERS[i] for i in rng.integers(len(LAYERS), size=rng.integers(3, 12))]
    far = [int(rng.integers(n + 1)) for n in range(len(chosen))]  # what else each layer reads

    def loss(w, x):
        values = [x]
        for i, layer in enumerate(chosen):
            values.append(np.tanh(layer(values[-1], w, i) + 0.1 * values[far[i]]))
        return np.mean(values[-1] ** 2)

    w, x = (rng.normal(size=(N, N)) / 5, rng.normal(size=(N, N)))
    dtype = np.float32 if rng.random() < 0.3 else np.float64
    return loss, w.astype(dtype), x.astype(dtype)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_drawn(seed: int):
    loss, w, x = drawn(seed)
    rng = np.random.default_rng(seed + 1)
    executor = "c" if seed % 8 == 0 else "blocked"
    with config.using(executor=executor, threads=1, check=seed % 4 == 1):
        plain = ge2.jit(ge2.grad(loss, argnums=(0, 1)))
        full = plain.lower(w, x).memory_analysis().peak
        limit = int(full * rng.uniform(0.2, 1.0))
        try:
            small = ge2.jit(ge2.grad(loss, argnums=(0, 1)), memory_limit=limit)
            lowered = small.lower(w, x)
            lowered.compile()
        except MemoryLimitError as error:
            limit = int(str(error).rpartition("memory_limit=")[2])
            small = ge2.jit(ge2.grad(loss, argnums=(0, 1)), memory_limit=limit)
            lowered = small.lower(w, x)
        assert lowered.memory_analysis().peak <= limit <= full
        rough = 1e-5 if w.dtype == np.float32 else 1e-12
        for a, b in zip(small(w, x), plain(w, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=rough, atol=rough)
