"""Attention as it is written in NumPy, and its gradient, on a GPU: two
quotients of a row in one kernel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.targets.cuda.load.gpu import cupy

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def attention(q: Any, k: Any, v: Any, mask: str) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    if mask != "none":
        place = np.arange(q.shape[-2])
        seen = place[:, None] >= place
        added = np.where(seen, 0.0, -1e4).astype(q.dtype)
        scores = np.where(seen, scores, -np.inf) if mask == "where" else scores + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("mask", ["none", "where", "add"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [64, 300])
def test_attention_and_its_gradient(
    dtype: str, mask: str, length: int, rng: np.random.Generator
) -> None:
    cp: Any = cupy()
    given = [rng.standard_normal((2, 3, length, 32)).astype(DTYPES[dtype]) for _ in range(4)]

    def loss(q: Any, k: Any, v: Any, w: Any) -> Any:
        return (attention(q, k, v, mask) * w).astype(np.float32).sum()

    found = ge2.jit(ge2.grad(loss, (0, 1, 2)))(*map(cp.asarray, given))
    wide = ge2.grad(loss, (0, 1, 2))(*(x.astype(np.float64) for x in given))
    bound = {"f32": 2e-5, "f16": 2e-2, "bf16": 1.5e-1}[dtype]
    for got, want in zip(found, wide, strict=True):
        assert np.abs(got.get().astype(np.float64) - want).max() <= bound * max(
            1.0, np.abs(want).max()
        )
