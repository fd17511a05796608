"""While loops and branches as conditional nodes of captured graphs, and by the host, on a GPU."""

from __future__ import annotations

import ctypes
import os
import warnings

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import KernelError
from ge2.dispatch import cache
from ge2.targets.cuda.launch.library_call import LOOPS, knows
from ge2.targets.cuda.load import LIBRARY
from ge2.targets.cuda.load.gpu import gpu
from tests.gpu.test_gpu_launches import runs

lax = ge2.lax
N = 4096  # rows of arrays that no single block would take
needs_nodes = pytest.mark.skipif(not knows(LOOPS), reason="a driver without conditional nodes")


pytestmark = pytest.mark.usefixtures("library_products", "extension", "anew")


@pytest.fixture
def given(xp):
    rng = np.random.default_rng(0)

    def given(*shape, scale=1.0):
        return xp.asarray((rng.standard_normal(shape) * scale).astype(np.float32))

    return given


def turns(x, w, n):
    """Kernels that do not fuse and a product in each round."""

    def body(c):
        i, y = c
        return i + 1, np.tanh(y @ w) + 0.01 * np.cumsum(y, 0) / (1 + abs(y).max())

    return lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x))


def shrunk(x, limit):
    """A loop that ends by what it computes, with a reduction over a large array in its test."""
    return lax.while_loop(
        lambda c: abs(c[1]).max() > limit, lambda c: (c[0] + 1, c[1] * 0.75), (np.int32(0), x)
    )


def chosen(x, i):
    y = lax.switch(
        i, [lambda x: x + 1, lambda x: np.cumsum(x, 0), lambda x: x * x.mean(), np.tanh], x
    )
    return y, np.cumsum(y, 1)


def in_a_branch(x, n):
    """A loop in a branch in a loop."""

    def shrink(y):
        return lax.while_loop(lambda c: abs(c).max() > 1, lambda c: c * 0.5, np.cumsum(y, 0))

    def body(c):
        i, y = c
        y = lax.cond(i % 2 == 0, shrink, lambda y: y - np.cumsum(y, 1) * 0.1, y)
        return i + 1, y + 0.1

    return lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x))


def in_a_scan(x, limit):
    """Branches and loops in the rounds of a scan."""

    def step(h, row):
        h = lax.cond(row.sum() > 0, lambda h: np.cumsum(h + row), lambda h: h * 0.5 - row, h)
        h = lax.while_loop(lambda c: abs(c).max() > limit, lambda c: c * 0.5, h)
        return h, h

    return lax.scan(step, x[0], x[:12])


def at_once(f, *args):
    """What the host decides, each launch by itself."""
    cache.forget()
    with config.using(capture="off"):
        found = [y.get() for y in ge2.tree.leaves(ge2.jit(f)(*args))]
    cache.forget()
    return found


def held(f, args, times=4):
    """Calls of which the later ones are graphs, and the results of each."""
    with config.using(capture="on"):
        return [[y.get() for y in ge2.tree.leaves(f(*args))] for _ in range(times)]


def has_nodes(f, count=None):
    (run,) = runs(f)
    assert run.trouble is None, run.trouble
    assert run.counts[2] > 0 and (run.choices[0] > 0 if count is None else run.choices[0] == count)
    assert any("conditional nodes" in line for line in f.report().launches)
    assert any("/" in name for name in f.report().kernels)  # those of the lists


def equal(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_kernel_that_decides_is_loaded():
    """The driver links it; without it all else here would be the host's."""
    assert not knows(LOOPS) or gpu(0).decider


@needs_nodes
@pytest.mark.parametrize("n", [0, 1, 2, 3, 50])
def test_loops_of_any_number_of_rounds(xp, given, n):
    args = given(N, 64), given(64, 64, scale=0.1), xp.asarray(np.int32(n))
    wanted, f = at_once(turns, *args), ge2.jit(turns)
    for found in held(f, args):
        equal(found, wanted)
    assert int(wanted[0]) == n
    has_nodes(f, 2)
    x, w = (a.get() for a in args[:2])
    for _ in range(n if n < 4 else 0):
        x = np.tanh(x @ w) + np.float32(0.01) * np.cumsum(x, 0, dtype=np.float32) / (
            1 + abs(x).max()
        )
    if n < 4:
        np.testing.assert_allclose(wanted[1], x, rtol=5e-3, atol=5e-3)


@needs_nodes
def test_the_number_of_rounds_may_change_from_call_to_call(xp, given):
    """One graph: what decides is read on the device."""
    f, x = ge2.jit(shrunk), given(N, 128)
    top = float(abs(x).max())
    # else it is one kernel of all blocks
    with config.using(capture="on", passes_off=("resident",)):
        for k in [3, 0, 40, 1, 7, 0, 2]:
            limit = np.float32(top * 0.75**k * 1.01)
            rounds, y = f(x, xp.asarray(limit))
            assert int(rounds) == k
            np.testing.assert_allclose(y.get(), x.get() * np.float32(0.75) ** k, rtol=1e-5)
    has_nodes(f, 2)


@needs_nodes
def test_a_long_loop(xp):
    f = ge2.jit(
        lambda n: lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] + c[0]), (np.int64(0), np.int64(0))
        )
    )
    with config.using(capture="on"):
        for n in (100, 9999, 10_000, 3):
            i, total = f(xp.asarray(np.int64(n)))
            assert (int(i), int(total)) == (n, n * (n - 1) // 2)


@needs_nodes
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_an_index_takes_the_nearest_branch(xp, given, dtype):
    f, x = ge2.jit(chosen), given(N, 32)
    wanted = {i: at_once(chosen, x, xp.asarray(np.array(i, "int32"))) for i in range(4)}
    with config.using(capture="on"):
        for i in (0, 1, 2, 3, 4, 100, -1, -100, 2):
            index = np.array(i).astype(dtype)
            found = f(x, xp.asarray(index))
            equal([y.get() for y in found], wanted[min(max(int(index), 0), 3)])
    has_nodes(f, 1)


@needs_nodes
@pytest.mark.parametrize("flag", [False, True])
def test_a_bool_takes_one_of_two(xp, given, flag):
    f = ge2.jit(lambda p, x: lax.cond(p, lambda x: np.cumsum(x, 0), lambda x: x.max(0) - x, x) * 2)
    x = given(N, 32)
    wanted = (np.cumsum(x.get(), 0, dtype=np.float32) if flag else x.get().max(0) - x.get()) * 2
    for (found,) in held(f, (xp.asarray(flag), x)):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@needs_nodes
@pytest.mark.parametrize("f", [in_a_branch, in_a_scan])
def test_loops_and_branches_in_each_other(xp, given, f):
    rows = N if f is in_a_branch else 32  # a branch of large arrays, or many small ones
    args = given(rows, 64), xp.asarray(np.int32(7) if f is in_a_branch else np.float32(2))
    wanted, jitted = at_once(f, *args), ge2.jit(f)
    for found in held(jitted, args, 6):
        equal(found, wanted)
    if f is in_a_branch:
        has_nodes(jitted)
    with config.using(executor="reference"):
        right = ge2.jit(f)(*(a.get() if hasattr(a, "get") else a for a in args))
    for x, y in zip(wanted, ge2.tree.leaves(right), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3)


@needs_nodes
def test_derivatives_go_through_branches(xp, given):
    def f(x, w):
        y = lax.cond(x.sum() > 0, lambda y: np.tanh(y @ w), lambda y: np.cumsum(y @ w, 0) * 0.1, x)
        return (y * y).sum()

    g, w = ge2.jit(ge2.grad(f, argnums=(0, 1))), given(32, 32, scale=0.2)
    for x in (abs(given(256, 32)), -abs(given(256, 32))):
        wanted = at_once(ge2.grad(f, argnums=(0, 1)), x, w)
        for found in held(g, (x, w)):
            equal(found, wanted)


@needs_nodes
def test_pointers_that_change_are_patched_or_the_graph_is_made_anew(xp, given):
    """More sets of arrays than graphs are kept: kernels and products within
    lists get other pointers.
    """
    f, w = ge2.jit(turns), given(64, 64, scale=0.1)
    sets = [(given(N, 64), w, xp.asarray(np.int32(n % 4))) for n in range(9)]
    wanted = [at_once(turns, *args) for args in sets]
    with config.using(capture="on"):
        for n in range(60):
            equal([y.get() for y in f(*sets[n % 9])], wanted[n % 9])
    (run,) = runs(f)
    assert run.trouble is None
    calls, one_by_one, graphs, patched = run.counts
    assert (calls, one_by_one, graphs) == (60, 1, 4)
    assert patched + run.choices[1] > 0


@needs_nodes
def test_a_thousand_replays_are_what_the_host_decides(xp, given):
    args = [(given(256, 32), xp.asarray(np.int32(n))) for n in range(6)]
    wanted = [at_once(in_a_branch, *a) for a in args]
    f = ge2.jit(in_a_branch)
    with config.using(capture="on"):
        for n in range(1000):
            found = f(*args[n % 6])
            if n % 7 == 0:
                equal([y.get() for y in found], wanted[n % 6])
    (run,) = runs(f)
    assert run.trouble is None and run.counts[:2] == (1000, 1)


@needs_nodes
def test_a_donated_carry_goes_round(xp, given):
    def f(x, n):
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, np.cumsum(c[1], 0) * 0.01), (np.int32(0), x)
        )[1]

    g, x = ge2.jit(f, donate_argnums=0), given(512, 64)
    mine, n = x.get(), xp.asarray(np.int32(3))
    with config.using(capture="on"):
        for _ in range(12):
            x = g(x, n)
            for _ in range(3):
                mine = np.cumsum(mine, 0, dtype=np.float32) * np.float32(0.01)
    np.testing.assert_allclose(x.get(), mine, rtol=1e-2, atol=1e-3 * abs(mine).max())


@needs_nodes
def test_on_streams_of_the_users(xp, given):
    f, args = ge2.jit(turns), (given(N, 64), given(64, 64, scale=0.1), xp.asarray(np.int32(5)))
    wanted = at_once(turns, *args)
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(3)]
    xp.cuda.Device().synchronize()
    with config.using(capture="on"):
        for n in range(12):
            with streams[n % 3]:
                found = f(*args)
                streams[n % 3].synchronize()
                equal([y.get() for y in found], wanted)


def test_inside_the_users_own_capture_it_is_an_error(xp, given):
    f, args = ge2.jit(turns), (given(N, 64), given(64, 64, scale=0.1), xp.asarray(np.int32(5)))
    wanted = at_once(turns, *args)
    with config.using(capture="on"):
        for _ in range(3):
            f(*args)
        stream = xp.cuda.Stream(non_blocking=True)
        xp.cuda.Device().synchronize()
        with stream:
            f(*args)
            stream.synchronize()
            stream.begin_capture()
            try:
                with pytest.raises(
                    KernelError,
                    match=r"(?s)while goes on by a number on the GPU.*test_gpu_cond.*outside",
                ):
                    f(*args)
            finally:
                stream.end_capture()
            equal([y.get() for y in f(*args)], wanted)


def test_the_host_decides_where_nothing_is_captured(xp, given):
    """One by one by the extension, and from Python where there is none."""
    args = given(N, 64), given(64, 64, scale=0.1), xp.asarray(np.int32(5))
    x = ge2.jit(turns)
    with config.using(capture="off"):
        first = [y.get() for y in x(*args)]
        equal([y.get() for y in x(*args)], first)
        (run,) = runs(x)
        assert run.counts == (2, 2, 0, 0) and run.trouble is None
    cache.forget()
    with config.using(cc="none"), warnings.catch_warnings():
        # which may be said here
        warnings.filterwarnings("ignore", message="C kernels are not compiled")
        y = ge2.jit(turns)
        for _ in range(2):
            equal([z.get() for z in y(*args)], first)
        assert runs(y)[0].counts is None


def test_a_driver_that_does_not_load_the_kernel(xp, given, monkeypatch):
    """The graph is given up, with the reason, and the host decides."""
    args = given(N, 64), given(64, 64, scale=0.1), xp.asarray(np.int32(5))
    wanted = at_once(turns, *args)
    monkeypatch.setattr(gpu(0), "_decider", [None])
    f = ge2.jit(turns)
    for found in held(f, args):
        equal(found, wanted)
    (run,) = runs(f)
    assert "a conditional node fails with CUDA_ERROR_NOT_SUPPORTED (801)" in str(run.trouble)
    assert any("by the host" in line for line in f.report().launches)


def test_the_driver_has_what_is_asked_of_it():
    """By its own version: names that the extension looks for."""
    library = ctypes.CDLL(LIBRARY)
    for name in ("cuGraphConditionalHandleCreate", "cuGraphAddNode_v2"):
        assert hasattr(library, name) or not knows(LOOPS)


@needs_nodes
def test_ten_thousand_calls_take_no_more_memory(xp, given):
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    f, args = ge2.jit(in_a_branch), [(given(64, 32), xp.asarray(np.int32(n % 3))) for n in range(6)]
    with config.using(capture="on"):
        for n in range(200):
            f(*args[n % 6])
        xp.cuda.Device().synchronize()
        pool = xp.get_default_memory_pool()
        kept, free = pool.total_bytes(), xp.cuda.runtime.memGetInfo()[0]
        for n in range(10_000):
            f(*args[n % 6])
        xp.cuda.Device().synchronize()
        assert pool.total_bytes() == kept
        assert not alone or free - xp.cuda.runtime.memGetInfo()[0] <= 1 << 22
