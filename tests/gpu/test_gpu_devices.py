"""Programs on the second GPU of a machine, whichever is current: graphs,
arenas, kept results, loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.load.gpu import cupy, gpu


@pytest.fixture
def cp() -> Any:
    xp = cupy()
    if xp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    assert library_call.made_now() is not None
    return xp


def on(cp: Any, number: int, x: Any) -> Any:
    with cp.cuda.Device(number):
        return cp.asarray(x)


def net(x: Any, w: Any) -> Any:
    h = np.tanh(x @ w)
    return np.cumsum(h.sum(1)), np.cumsum(h, 0) / (1 + abs(h).max())


@pytest.mark.parametrize("current", [0, 1])
def test_both_in_turn(cp: Any, rng: np.random.Generator, current: int) -> None:
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((64, 32), (32, 48)))
    f, want = ge2.jit(net), net(x, w)
    arrays = [(on(cp, n, x), on(cp, n, w)) for n in (0, 1)]
    with cp.cuda.Device(current):
        for _ in range(6):
            for n in (1, 0):
                for y, wanted in zip(f(*arrays[n]), want, strict=True):
                    assert y.device.id == n
                    np.testing.assert_allclose(y.get(), wanted, rtol=1e-4, atol=1e-4)


def test_small_results_of_each_are_its_own(cp: Any) -> None:
    f = ge2.jit(lambda x: x * 2 + 1)
    xs = [on(cp, n, np.full(8, n, np.float32)) for n in (0, 1)]
    for _ in range(20):
        for n in (0, 1):
            y = f(xs[n])
            assert y.device.id == n
            np.testing.assert_array_equal(y.get(), np.full(8, n * 2 + 1))
            del y


def test_state_and_scratch(cp: Any, rng: np.random.Generator) -> None:
    """A donated step on each, with an arena of its own."""

    def step(w: Any, x: Any) -> Any:
        value, g = ge2.value_and_grad(lambda w: (np.tanh(x @ w) ** 2).mean())(w)
        return w - 0.5 * g, value

    f = ge2.jit(step, donate_argnums=0)
    start, x = (rng.standard_normal(s).astype(np.float32) for s in ((64, 64), (32, 64)))
    ends = []
    for n in (0, 1):
        w, data = on(cp, n, start), on(cp, n, x)
        for _ in range(10):
            w, value = f(w, data)
        assert w.device.id == value.device.id == n
        ends.append(w.get())
    np.testing.assert_array_equal(*ends)
    arenas = [{id(a) for idle in gpu(n).scratch.idle.values() for a in idle} for n in (0, 1)]
    assert not arenas[0] & arenas[1]


def test_loops_that_the_gpu_decides(cp: Any, rng: np.random.Generator) -> None:
    def f(x: Any, n: Any) -> Any:
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, np.cumsum(np.tanh(c[1]), 0)), (np.int32(0), x)
        )[1]

    small, large = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8), (512, 256)))
    for x in (small, large):
        g, found = ge2.jit(f), []
        for n in (0, 1):
            given = on(cp, n, x), on(cp, n, np.int32(7))
            for _ in range(3):
                y = g(*given)
            assert y.device.id == n
            found.append(y.get())
        np.testing.assert_array_equal(*found)
