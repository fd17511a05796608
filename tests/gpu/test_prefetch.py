"""Batches on a GPU ahead of time: right while what reads them is still waiting to run."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import ge2
from ge2.targets.cuda.load.gpu import cupy


def test_batches_are_on_the_gpu_and_right_while_work_is_queued():
    rng = np.random.default_rng(0)
    hosts = [rng.normal(size=(1000, 1000)).astype(np.float32) for _ in range(30)]
    step = ge2.jit(lambda w, x: np.tanh(w @ x).sum())
    w, found = cupy().eye(1000, dtype=np.float32), []
    items = ({"x": x, "half": x[0].astype(ml_dtypes.bfloat16), "n": 3} for x in hosts)
    for batch in ge2.io.prefetch(items, size=3):
        assert type(batch["x"]).__module__.startswith("cupy")
        assert batch["n"] == 3
        found.append(step(w, batch["x"]))
    expected = [np.tanh(x).sum() for x in hosts]
    np.testing.assert_allclose([float(y) for y in found], expected, rtol=1e-3, atol=1e-1)
