"""Folds over windows are folds of slices, and mean what they meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view as windows

import ge2
from ge2.ir import verify
from ge2.passes.split_edges import written_windows

X = np.random.default_rng(0).standard_normal((2, 9, 11, 3)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)

WRITTEN = {
    "pooling": lambda x, w: windows(x, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(-1, -2)),
    "padded": lambda x, w: windows(np.pad(x, 1), (2, 4), axis=(1, 2)).min(axis=(-2, -1)),
    "squares": lambda x, w: (windows(x, (2, 4), axis=(1, 2)) ** 2).mean(axis=(-1, -2)),
    "filter": lambda x, w: (windows(x, (3, 3), axis=(1, 2)) * w).sum(axis=(-1, -2)),
    "lines": lambda x, w: windows(x, 5, axis=1).sum(-1) - windows(x, 5, axis=1).prod(-1),
    "deviation": lambda x, w: windows(x, (3, 3), axis=(1, 2)).std(axis=(-1, -2)),
    "turned": lambda x, w: windows(x[0, :, :, 0].T, (2, 2))[1::3, ::2].sum(axis=(2, 3)),
}
LEFT = {
    "one axis of two": lambda x, w: windows(x, (3, 3), axis=(1, 2)).max(-1),
    "places of windows": lambda x, w: windows(x, 3, axis=1).sum(axis=1),
    "half types": lambda x, w: windows(x.astype(ge2.bfloat16), 3, axis=1).sum(-1),
    "long": lambda x, w: windows(x.reshape(-1), 100).sum(-1),
}


def graphs(f: Any) -> tuple[Any, Any]:
    graph = ge2.make_jaxpr(f)(X, W).graph
    return graph, verify(written_windows(graph))


@pytest.mark.parametrize("f", WRITTEN.values(), ids=WRITTEN)
def test_windows_are_slices(f: Any) -> None:
    graph, found = graphs(f)
    assert "gather" not in [e.op.name for e in found.eqns]
    for a, b in zip(found(X, W), graph(X, W), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(ge2.jit(f)(X, W), f(X, W), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("f", LEFT.values(), ids=LEFT)
def test_other_folds_stay(f: Any) -> None:
    graph, found = graphs(f)
    assert "gather" in [e.op.name for e in found.eqns]
    for a, b in zip(found(X, W), graph(X, W), strict=True):
        np.testing.assert_array_equal(a, b)
