"""Loops and branches that all blocks do together, on a GPU: what NumPy gives,
the same bits each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from tests.codegen.loop_programs import counted, either
from tests.gpu.names import kernels_of
from tests.gpu.test_gpu_resident import by_hand, outputs
from tests.threads import on_threads

N = 1 << 20
REPLAYS = 1000


def long(x: Any) -> Any:
    return counted(x, 1000)[1]


def neighbours(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        c = c * 0.5 + (np.roll(c, 1) + np.roll(c, -1)) * 0.25
        return c, c[::-4096]

    return lax.scan(step, x, None, length=50)


def folds(x: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        c = c / (1 + np.abs(c).max(0)) + c.mean(1, keepdims=True) * 0.1
        return c, (c.sum(), c.argmax(1), c.min(0))

    return lax.scan(step, x.reshape(-1, 256), None, length=20)


def ended(x: Any) -> Any:
    """Ended by what is computed, with a branch in each round."""

    def step(c: Any) -> Any:
        n, y = c
        y = lax.cond(y.sum() > 0, lambda y: y * 0.7 - 0.01, lambda y: np.roll(y, 5) * 0.8, y)
        return n + 1, y

    return lax.while_loop(lambda c: np.abs(c[1]).max() > 0.1, step, (np.int32(0), x))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "long": long, "either": either, "neighbours": neighbours, "folds": folds, "ended": ended,
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    return [y.get() if hasattr(y, "get") else np.asarray(y) for y in ge2.tree_util.tree_leaves(x)]


def bits(x: Any) -> list[bytes]:
    return [y.tobytes() for y in leaves(x)]


@pytest.mark.parametrize("capture", ["on", "off"])
@pytest.mark.parametrize("n", [1 << 14, 200_192, N])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(cp: Any, rng: np.random.Generator, name: str, n: int, capture: str) -> None:
    f, x = PROGRAMS[name], rng.standard_normal(n).astype(np.float32)
    with config.using(capture=capture, prefer=("persistent kernel in CUDA",)):
        g = ge2.jit(f)
        y = g(cp.asarray(x))
        assert "grid_kernel" in kernels_of(g)
        for _ in range(3):
            assert bits(g(cp.asarray(x))) == bits(y)
    for a, b in zip(leaves(y), leaves(f(x)), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if b.dtype.kind != "f":
            assert (a == b).mean() > 0.99  # places of the largest may differ where two are as large
        else:
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_thousand_replays_give_the_same_bits(
    cp: Any, rng: np.random.Generator, name: str
) -> None:
    f, x = ge2.jit(PROGRAMS[name]), cp.asarray(rng.standard_normal(1 << 16).astype(np.float32))
    first = bits(f(x))
    again = [f(x) for _ in range(20)]
    for _ in range(REPLAYS // 20):
        for n in range(20):
            again[n] = f(x)
        assert all(bits(y) == first for y in again)


def test_other_arrays_patch_the_graph(cp: Any, rng: np.random.Generator) -> None:
    """A cooperative kernel stays one when its pointers change."""
    with config.using(capture="on"):
        f = ge2.jit(lambda x: (either(x), neighbours(x)[0]))
        hosts = [
            rng.standard_normal(N // 4).astype(np.float32) + np.float32(n % 3 - 1) for n in range(8)
        ]
        xs = [cp.asarray(x) for x in hosts]
        want = [bits(f(x)) for x in xs]
        for _ in range(5):
            assert [bits(f(x)) for x in xs] == want
    for x, h in zip(xs, hosts, strict=True):
        for a, b in zip(leaves(f(x)), (either(h), neighbours(h)[0]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_two_streams_at_once(cp: Any, rng: np.random.Generator) -> None:
    """Two grids of which neither fits beside the other: each waits for its own blocks alone."""
    f, x = ge2.jit(either), cp.asarray(rng.standard_normal(N).astype(np.float32))
    g = ge2.jit(neighbours)
    want, other = bits(f(x)), bits(g(x))
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    found: list[tuple[int, Any]] = []
    for _ in range(50):
        for n, stream in enumerate(streams):
            with stream:
                found.append((n % 2, (f, g)[n % 2](x)))
        if len(found) >= 40:
            for stream in streams:
                stream.synchronize()
            assert all(bits(y) == (want, other)[n] for n, y in found)
            found.clear()


def test_two_threads_at_once(cp: Any, rng: np.random.Generator) -> None:
    f, x = ge2.jit(either), cp.asarray(rng.standard_normal(N // 2).astype(np.float32))
    want, wrong = bits(f(x)), []

    def work() -> None:
        with cp.cuda.Stream(non_blocking=True) as stream:
            for _ in range(100):
                y = f(x)
                stream.synchronize()
                if bits(y) != want:
                    wrong.append(y)

    on_threads(*[work] * 4)
    assert not wrong


def test_beside_other_work_on_the_gpu(cp: Any, rng: np.random.Generator) -> None:
    """Blocks that wait for each other get their places while others have some of the GPU."""
    f, x = ge2.jit(either), cp.asarray(rng.standard_normal(N).astype(np.float32))
    want, a = bits(f(x)), cp.ones((2048, 2048), cp.float32)
    busy, own = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    for _ in range(30):
        with busy:
            for _ in range(5):
                a = a * 0.5 + cp.tanh(a)
        with own:
            y = f(x)
        own.synchronize()
        assert bits(y) == want
    busy.synchronize()


def test_a_capture_of_the_users(cp: Any, rng: np.random.Generator) -> None:
    f, host = ge2.jit(either), rng.standard_normal(N // 2).astype(np.float32)
    x = cp.asarray(host)
    f(x)
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        y = f(x)
        graph = stream.end_capture()
        for shift in (0, 2, -2):
            x[...] = cp.asarray(host) + np.float32(shift)
            graph.launch(stream)
            stream.synchronize()
            np.testing.assert_allclose(
                y.get(), either(host + np.float32(shift)), rtol=1e-3, atol=1e-3
            )


def test_in_a_loop_that_is_no_grid(cp: Any, rng: np.random.Generator) -> None:
    """Among the launches of a loop, and in the lists of a branch that a graph decides."""

    def f(x: Any) -> Any:
        def step(c: Any) -> Any:
            n, y = c
            return n + 1, np.cumsum(either(y)) * 1e-4

        return lax.while_loop(lambda c: c[0] < 5, step, (np.int32(0), x))[1]

    x = rng.standard_normal(1 << 16).astype(np.float32)
    with config.using(capture="on"):
        g = ge2.jit(f)
        first = bits(g(cp.asarray(x)))
        assert all(bits(g(cp.asarray(x))) == first for _ in range(10))
    with config.using(passes_off=("resident",)):
        want = ge2.jit(f)(cp.asarray(x)).get()
    np.testing.assert_allclose(g(cp.asarray(x)).get(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("capture", ["on", "off"])
@pytest.mark.parametrize(
    ("steps", "batch", "width"),
    [(512, 32, 1024), (40, 50, 768), (9, 4, 2048), (33, 128, 512), (7, 33, 1000)],
)
def test_a_wide_recurrent_net(
    cp: Any, rng: np.random.Generator, steps: int, batch: int, width: int, capture: str
) -> None:
    """Forwards as exact as float32, where the width is one for a grid; else, and in the
    gradient, a product may be tf32.
    """
    w = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    h, xs = (
        rng.standard_normal(s).astype(np.float32) for s in ((batch, width), (steps, batch, width))
    )
    want, at = np.empty(xs.shape), h.astype(np.float64)
    for t, x in enumerate(xs):
        want[t] = at = np.tanh(x + at @ w.astype(np.float64))
    with config.using(capture=capture):
        f, given = ge2.jit(outputs), [*map(cp.asarray, (w, h, xs))]
        first = f(*given)
        by_grid = kernels_of(f) == ["grid_kernel"]
        assert by_grid == (width % 64 == 0)
        rtol, atol = (1e-4, 2e-5) if by_grid else (0, 5e-3)
        np.testing.assert_allclose(first.get()[:8], want[:8], rtol=rtol, atol=atol)
        assert all(bits(f(*given)) == bits(first) for _ in range(5))
        g = ge2.jit(ge2.grad(lambda *given: (outputs(*given)[:8] ** 2).mean(), (0, 1, 2)))
        found = [y.get() for y in g(*given)]
        assert [y.get().tobytes() for y in g(*given)] == [y.tobytes() for y in found]
    for y, right in zip(found, by_hand(w, h, xs[:8]), strict=True):
        y = y[:8] if y.ndim == 3 else y
        np.testing.assert_allclose(y, right, rtol=0, atol=3e-3 * np.abs(right).max())


def test_a_second_gpu(cp: Any, rng: np.random.Generator) -> None:
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU")
    f, x = ge2.jit(either), rng.standard_normal(N).astype(np.float32)
    with cp.cuda.Device(0):
        want = bits(f(cp.asarray(x)))
    with cp.cuda.Device(1):
        y = cp.asarray(x)
        assert all(bits(f(y)) == want for _ in range(5))


def test_what_blocks_write_is_read_behind_their_barrier_beside_what_never_changes(cp: Any) -> None:
    """The compiler made one load of either, which it took for one of the input, and moved it."""

    def field(ex: Any, ey: Any, hz: Any, edge: Any) -> None:
        for t in range(edge.shape[0]):
            ey[0, :] = edge[t]
            ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
            ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
            hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])

    rng = np.random.default_rng(0)
    given = [*(rng.random((400, 450)) for _ in range(3)), np.arange(12.0)]
    want = [x.copy() for x in given]
    field(*want)
    jitted = ge2.jit(field)
    for _ in range(8):
        found = [cp.asarray(x) for x in given]
        jitted(*found)
        for x, y in zip(found, want, strict=True):
            np.testing.assert_array_equal(x.get(), y)
    assert any("grid" in name for name in jitted.report().kernels)
