"""Kernels that read the parts of joined, padded and updated arrays where those are, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config

pytestmark = pytest.mark.gpu


def stencil(x: Any, y: Any) -> Any:
    last = x.ndim - 1
    w = np.roll(x, 1, last) + np.roll(y, -1, 0) - np.concatenate([x[:1] * 2, y[1:] - y[:-1]])
    p = np.pad(w, [(1, 2)] * x.ndim)[tuple(slice(2, n + 2) for n in x.shape)]
    z = p * 1
    z[1:] = (w[:-1] + p[1:]) * 3
    return w, z, (z * w).sum(0), np.pad(w, 1, mode="edge")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.complex64])
@pytest.mark.parametrize("shape", [(5, 7), (1000, 1003), (300_007,), (33, 64, 130)])
def test_regions_read_moved_arrays(dtype: Any, shape: tuple[int, ...]) -> None:
    import cupy

    rng = np.random.default_rng(3)
    x, y = (cupy.asarray(rng.integers(-3, 4, shape).astype(dtype)) for _ in range(2))
    found = ge2.jit(stencil)(x, y)
    with config.using(passes_off=("moves_inside",)):
        wanted = ge2.jit(stencil)(x, y)
    for a, b, c in zip(found, wanted, stencil(x.get(), y.get()), strict=True):
        np.testing.assert_array_equal(a.get(), b.get())
        np.testing.assert_allclose(a.get(), c, rtol=1e-5)
