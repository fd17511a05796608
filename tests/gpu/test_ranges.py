"""NVTX on a GPU: what is launched inside ranges gives what it gives without them."""

from __future__ import annotations

import numpy as np

import ge2
from ge2.base.config import config


def model(x, w):
    with ge2.named_scope("layer"):
        return np.tanh(x @ w).sum(axis=1)


def test_ranges_change_nothing():
    import cupy as cp

    x, w = cp.ones((64, 32), np.float32), cp.ones((32, 16), np.float32)
    f = ge2.jit(model)
    plain = f(x, w)
    with config.using(nvtx=True):
        text = f.lower(x, w).as_text("python")
        np.testing.assert_array_equal(f(x, w).get(), plain.get())
    assert "with range_" in text
