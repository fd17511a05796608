"""Memory on a GPU: arenas that grow where they lie and are given back; and what happens without."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import OutOfMemoryError
from ge2.dispatch import cache
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.load.gpu import gpu

MB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def there():
    """The extension is there from the first call on."""
    library_call.made_now()


@pytest.fixture
def scratch():
    """That of the GPU, with nothing in it."""
    cache.forget()
    found = gpu(0).scratch
    gc.collect()
    found.release()
    if found.growing is None:
        pytest.skip("this GPU has no addresses apart from memory")
    assert found.nbytes == 0
    return found


def small(x, w):
    h = np.tanh(x @ w)
    h = h / (1 + abs(h.sum(0)))
    return h.sum(0), np.cumsum(h.sum(1))


def large(x):
    y = np.cumsum(x, 0)
    return np.cumsum(y, 1) * 0.5 + np.cumsum(y.T, 0).T


def given(xp, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(
        xp.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((64, 32), (32, 48))
    )


def wide(xp, n=4096):
    """Numbers whose sums are exact, so that NumPy's order of adding is as good as any."""
    return xp.asarray(
        (np.random.default_rng(1).random((n, n), np.float32) < 0.05).astype(np.float32)
    )


def right(f, plain, *arrays):
    found = f(*arrays)
    wanted = plain(*(x.get() for x in arrays))
    for y, w in zip(
        *((z,) if not isinstance(z, tuple) else z for z in (found, wanted)), strict=True
    ):
        np.testing.assert_allclose(y.get(), w, rtol=1e-3, atol=1e-2)


def arena_of(f, *args):
    return f.lower(*args).memory_analysis().arena


def places(scratch):
    """Where the idle arenas of all streams begin."""
    return sorted(arena.data.ptr for idle in scratch.idle.values() for arena in idle)


def rounded(scratch, nbytes):
    granule = scratch.growing.addresses.granule
    return -(-nbytes // granule) * granule


def test_growth_moves_nothing_and_patches_nothing(xp, scratch):
    with config.using(capture="on"):
        f, g, arrays, x = ge2.jit(small), ge2.jit(large), given(xp), wide(xp)
        for _ in range(20):
            right(f, small, *arrays)
        (run,) = f._last.executable.launched
        begin, before = places(scratch), run.counts
        right(g, large, x)
        assert rounded(scratch, arena_of(g, x)) > rounded(scratch, arena_of(f, *arrays))
        for _ in range(20):
            right(f, small, *arrays)
        assert places(scratch) == begin and len(begin) == 1
        calls, one_by_one, graphs, patched = run.counts
        assert (calls, one_by_one, patched) == (before[0] + 20, 1, 0)
        assert graphs <= 4 and run.trouble is None


def test_executables_share_an_arena(xp, scratch):
    f, g, arrays, x = ge2.jit(small), ge2.jit(large), given(xp), wide(xp)
    right(f, small, *arrays)
    right(g, large, x)
    right(f, small, *arrays)
    assert len(places(scratch)) == 1
    assert scratch.nbytes == rounded(scratch, max(arena_of(f, *arrays), arena_of(g, x)))


def test_streams_have_arenas_of_their_own(xp, scratch):
    f, arrays = ge2.jit(small), given(xp)
    streams = [xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    xp.cuda.Device().synchronize()
    for stream in streams * 3:
        with stream:
            right(f, small, *arrays)
            stream.synchronize()
    assert len(set(places(scratch))) == 2
    assert scratch.nbytes == 2 * rounded(scratch, arena_of(f, *arrays))


def test_what_is_released_goes_back_to_the_driver(xp, scratch):
    """And comes back at the same place, so that graphs last."""
    with config.using(capture="on"):
        g, x = ge2.jit(large), wide(xp, 8192)
        for _ in range(10):
            g(x)
        begin, took = places(scratch), scratch.nbytes
        assert took >= 256 * MB
        xp.cuda.Device().synchronize()
        before = xp.cuda.runtime.memGetInfo()[0]
        scratch.release()
        assert scratch.nbytes == 0
        if "PYTEST_XDIST_WORKER" not in os.environ:  # nobody else is there
            assert abs(xp.cuda.runtime.memGetInfo()[0] - before - took) <= 64 * MB
        for _ in range(5):
            y = g(x)
        assert places(scratch) == begin
        assert sum(run.counts[3] for run in g._last.executable.launched) == 0
    np.testing.assert_array_equal(y[:, :5].get(), np.cumsum(np.cumsum(x.get()[:, :5], 0), 1) * 1.5)


def test_clear_caches_gives_it_back(xp, scratch):
    f, arrays = ge2.jit(small), given(xp)
    right(f, small, *arrays)
    assert scratch.nbytes > 0
    ge2.clear_caches()
    assert scratch.nbytes == 0
    right(f, small, *arrays)


def test_a_failed_call_loses_no_arena(xp, scratch):
    f, arrays = ge2.jit(small), given(xp)
    right(f, small, *arrays)
    begin = places(scratch)
    with pytest.raises(Exception, match="stop"):
        ge2.jit(stopped)(*arrays)
    gc.collect()
    right(f, small, *arrays)
    assert places(scratch) == begin


def stopped(x, w):
    """Raises in the middle of a program."""
    h = np.cumsum(np.tanh(x @ w), 0)

    def stop(h):
        raise ValueError("stop")

    h = ge2.pure_callback(stop, ge2.ShapeDtypeStruct(h.shape, h.dtype), h)
    return np.cumsum(h, 1)


def test_a_graph_of_the_users_keeps_its_scratch(xp, scratch):
    """Whatever is released: it may run at any time."""
    f, arrays = ge2.jit(small), given(xp)
    stream = xp.cuda.Stream(non_blocking=True)
    right(f, small, *arrays)
    xp.cuda.Device().synchronize()
    with stream:
        right(f, small, *arrays)
        stream.synchronize()
        stream.begin_capture()
        found = f(*arrays)
        graph = stream.end_capture()
        scratch.release()
        assert scratch.nbytes == 0
        others = [xp.full((64, 64), 7, np.float32) for _ in range(20)]
        for x, y in zip(arrays, given(xp, 5), strict=True):
            x[...] = y
        graph.launch(stream=stream)
        stream.synchronize()
    for y, w in zip(found, small(*(x.get() for x in given(xp, 5))), strict=True):
        np.testing.assert_allclose(y.get(), w, rtol=1e-3, atol=1e-3)
    assert all((x == 7).all() for x in others)


# ------------------------------------------------------------------------------------ out of memory


def test_more_than_there_is(xp, scratch):
    """The driver refuses; what was there works on."""
    f, arrays = ge2.jit(small), given(xp)
    right(f, small, *arrays)
    total = xp.cuda.runtime.memGetInfo()[1]
    for nbytes in (total - 256 * MB, 2 * total):
        with pytest.raises(MemoryError):
            scratch.take(nbytes)
    right(f, small, *arrays)
    assert scratch.nbytes == rounded(scratch, arena_of(f, *arrays))


@contextmanager
def limited(xp, more):
    """CuPy's pool gives only so many bytes more."""
    pool = xp.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.used_bytes() + more)
    try:
        yield
    finally:
        pool.set_limit(size=0)


@pytest.mark.filterwarnings("ignore:large finds no memory")
def test_results_without_memory_are_an_error_with_the_users_lines(xp, scratch):
    g, x = ge2.jit(large), wide(xp)
    g(x)
    with limited(xp, 16 * MB), pytest.raises(OutOfMemoryError) as caught:
        g(x)
    said = str(caught.value)
    assert said.startswith("large finds no memory: a call takes ")
    assert "Out of memory allocating 67,108,864 bytes" in said
    assert "test_gpu_memory.py" in said and "in large" in said
    assert "\n  try  " in said
    right(g, large, x)  # with the limit gone it works


@pytest.mark.filterwarnings("ignore:step finds no memory")
def test_donated_arrays_are_whole_after_an_error(xp, scratch):
    """Results are made before anything is launched."""

    def step(w, x):
        return w - 0.1 * np.tanh(w), np.cumsum(x, 0)

    f = ge2.jit(step, donate_argnums=0)
    w, x = wide(xp, 1024) * 0.7, wide(xp)
    f(w.copy(), x)
    kept = w.get()
    with limited(xp, 16 * MB), pytest.raises(OutOfMemoryError):
        f(w, x)
    np.testing.assert_array_equal(w.get(), kept)
    np.testing.assert_allclose(
        f(w, x)[0].get(), kept - np.float32(0.1) * np.tanh(kept), rtol=1e-5, atol=1e-6
    )


def test_the_checkpoint_that_the_error_names_fits(xp, scratch):
    def deep(w, x):
        for _ in range(12):
            x = np.tanh(x @ w)
        return (x * x).sum()

    def layered(w, x):
        return ge2.grad(deep)(w, x)

    rng = np.random.default_rng(2)
    w, x = (
        xp.asarray((rng.standard_normal((n, 256)) * 0.1).astype(np.float32)) for n in (256, 16384)
    )
    f = ge2.jit(layered)
    plain = f(w, x).get()
    needed = f.lower(w, x).memory_analysis()
    text = f._last.executable.shortage
    fix = text.remedy(needed, int(needed.peak * 0.8))
    assert (
        "memory_limit=" in fix and "as ge2.checkpoint around that would" in fix and "in deep" in fix
    )
    limit = fix.split("memory_limit=")[1].split("'")[1]
    found = ge2.jit(layered, memory_limit=limit)
    np.testing.assert_allclose(found(w, x).get(), plain, rtol=1e-3, atol=1e-3)
    assert found.lower(w, x).memory_analysis().peak < needed.peak * 0.8


def test_the_analysis_is_whole(xp, scratch):
    f, arrays = ge2.jit(small), given(xp)
    low = f.lower(*arrays)
    found = low.memory_analysis()
    assert found.arguments == sum(x.nbytes for x in arrays)
    assert found.outputs == 4 * (48 + 64)
    assert found.arena >= 64 * 48 * 4 and found.peak == found.arena + found.outputs
    assert found.generated_code_size_in_bytes > 1000
    rows = low.memory_timeline().rows
    assert max(row.at + row.nbytes for row in rows if row.at >= 0) <= found.arena
    assert any("in small" in row.line for row in rows)


# ------------------------------------------------------------------------------------- other owners


def test_memory_that_came_by_dlpack_is_not_donated(xp):
    """Whoever it came from sees it still."""
    x = xp.arange(64, dtype=np.float32)
    with pytest.warns(ge2.errors.Ge2Warning, match="its memory is another library's"):
        y = ge2.jit(lambda x: x + 1, donate_argnums=0)(xp.from_dlpack(x))
    np.testing.assert_array_equal(x.get(), np.arange(64))
    np.testing.assert_array_equal(y.get(), np.arange(64) + 1)


class Owner:
    """Memory of torch's that CuPy has."""

    def __init__(self, torch, at):
        self.torch, self.at = torch, at

    def __del__(self):
        self.torch.cuda.caching_allocator_delete(self.at)


def test_a_pool_shared_with_torch(xp, scratch):
    torch = pytest.importorskip("torch")

    def allocate(nbytes):
        number = xp.cuda.Device().id
        at = torch.cuda.caching_allocator_alloc(
            max(nbytes, 1), number, xp.cuda.get_current_stream().ptr
        )
        memory = xp.cuda.UnownedMemory(at, nbytes, Owner(torch, at), number)
        return xp.cuda.MemoryPointer(memory, 0)

    def step(w, x):
        h = np.tanh(x @ w)
        return w - 0.01 * (x.T @ h) / (1 + abs(h.sum()))

    with config.using(capture="on"), xp.cuda.using_allocator(allocate):
        f = ge2.jit(step)  # nothing is donated: torch may see it
        rng = np.random.default_rng(0)
        mine = (rng.standard_normal((64, 64)) * 0.1).astype(np.float32)
        w = xp.asarray(mine)
        for n in range(30):
            x = rng.standard_normal((128, 64)).astype(np.float32)
            # torch's own work in between, in the same pool
            noise = torch.randn(64 + n, 64, device="cuda")
            w = f(w, xp.asarray(x))
            mine = step(mine, x)
            noise = noise * 2 + 1
            del noise
        xp.cuda.Device().synchronize()
        np.testing.assert_allclose(w.get(), mine, rtol=1e-3, atol=1e-3)
        del f, w
        cache.forget()
        gc.collect()


PROGRAM = """
import numpy as np, cupy, ge2
wait = cupy.cuda.Device().synchronize
f = ge2.jit(lambda x: np.cumsum(np.cumsum(x, 0), 1) + np.tanh(x).sum())
x = cupy.ones((512, 512), np.float32)
for _ in range(6):
    y = f(x)
wait()
with cupy.cuda.Stream(non_blocking=True):
    z = f(x)
wait()
print(bool((y == z).all()))
for _ in range(20):
    f(x)
"""


def test_the_process_ends_in_order():
    """With work under way, graphs alive, and arenas of two streams."""
    environment = {**os.environ, "GE2_CAPTURE": "on"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    assert "Error" not in done.stderr and "Traceback" not in done.stderr, done.stderr
