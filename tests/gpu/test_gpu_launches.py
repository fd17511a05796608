"""Programs as captured graphs on a GPU: patched, shared, interrupted, and
always what they are one by one.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from functools import partial

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import KernelError
from ge2.targets.cuda.launch import Address, Launch, LaunchList, TensorMap, Tiles, library_call
from ge2.targets.cuda.load.gpu import gpu
from tests.threads import on_threads

pytestmark = pytest.mark.usefixtures("library_products", "extension", "anew")


def net(x, w, v, k=2.0):
    """Kernels that do not fuse, and products between them."""
    h = np.tanh(x @ w) * k
    h = h / (1 + abs(h.sum(0)))
    g = (h @ v).sum(1) + h.max(1)
    return np.cumsum(g), h.sum(0), g / (1 + (g * g).sum())


def given(xp, seed, n=64):
    rng = np.random.default_rng(seed)
    return tuple(
        xp.asarray(rng.standard_normal(s).astype(np.float32)) for s in ((n, 32), (32, 48), (48, 16))
    )


def plain(arrays, k=2.0):
    return net(*(x.get() for x in arrays), np.float32(k))


def close(found, wanted):
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.get(), w, rtol=2e-4, atol=2e-4)


def runs(f):
    return f._last.executable.launched


def test_a_thousand_replays_are_what_the_first_call_is(xp):
    with config.using(capture="on"):
        f = ge2.jit(net)
        sets = [given(xp, seed) for seed in range(7)]
        with config.using(capture="off"):
            wanted = [[y.get() for y in ge2.jit(net)(*arrays)] for arrays in sets]
        for n in range(1000):
            found = f(*sets[n % 7])
            if n % 13 == 0:
                for y, w in zip(found, wanted[n % 7], strict=True):
                    np.testing.assert_array_equal(y.get(), w)
        (run,) = runs(f)
        calls, one_by_one, graphs, patched = run.counts
        assert (calls, one_by_one, graphs) == (1000, 1, 4)
        assert patched > 0 and run.trouble is None


def test_off_launches_one_by_one(xp):
    with config.using(capture="off"):
        f = ge2.jit(net)
        for seed in range(3):
            close(f(*given(xp, seed)), plain(given(xp, seed)))
        assert runs(f)[0].counts[1:] == (3, 0, 0)


def test_the_same_arrays_need_no_patch(xp):
    with config.using(capture="on"):
        f, arrays = ge2.jit(net), given(xp, 1)
        for _ in range(50):
            found = f(*arrays)
            del found  # and the next results lie where these did
        assert runs(f)[0].counts[2] <= 4 and runs(f)[0].counts[3] == 0


def test_numbers_change_without_a_trace(xp):
    with config.using(capture="on"):
        f, arrays = ge2.jit(net), given(xp, 2)
        for k in range(20):
            close(f(*arrays, float(k)), plain(arrays, k))
        assert len(f._entries) == 1 and runs(f)[0].counts[2] == 1  # which is patched


def test_results_that_are_held_are_never_overwritten(xp):
    with config.using(capture="on"):
        f = ge2.jit(net)
        held = [(f(*given(xp, seed)), seed) for seed in range(12)]
        for found, seed in held:
            close(found, plain(given(xp, seed)))


def test_views_and_unaligned_arrays_are_copied_first(xp):
    with config.using(capture="on"):
        f = ge2.jit(net)
        for seed in range(6):
            x, w, v = given(xp, seed)
            wide = xp.zeros((64, 33), np.float32)
            wide[:, 1:] = x
            shifted = xp.zeros(48 * 16 + 1, np.float32)
            shifted[1:] = v.ravel()
            close(
                f(wide[:, 1:], xp.asfortranarray(w), shifted[1:].reshape(48, 16)), plain((x, w, v))
            )


def test_donated_state_goes_round(xp):
    def step(w, x):
        h = np.tanh(x @ w)
        return w - 0.01 * (x.T @ h) / (1 + abs(h.sum()))

    with config.using(capture="on"):
        f = ge2.jit(step, donate_argnums=0)
        x, w, _ = given(xp, 3)
        mine = w.get()
        for _ in range(30):
            w = f(w, x)
            mine = step(mine, x.get())
        np.testing.assert_allclose(w.get(), mine, rtol=1e-3, atol=1e-3)
        assert runs(f)[0].counts[3] == 0


def test_on_a_stream_of_the_users(xp):
    with config.using(capture="on"):
        f = ge2.jit(net)
        streams = [xp.cuda.Stream(non_blocking=True) for _ in range(3)]
        for n in range(12):
            with streams[n % 3]:
                found = f(*given(xp, n))
                streams[n % 3].synchronize()
                close(found, plain(given(xp, n)))


def test_inside_the_users_own_capture(xp):
    with config.using(capture="on"):
        f, arrays = ge2.jit(net), given(xp, 4)
        for _ in range(3):
            f(*arrays)
        stream = xp.cuda.Stream(non_blocking=True)
        xp.cuda.Device().synchronize()
        with stream:
            f(*arrays)  # its scratch is there, in the pool of the stream
            stream.synchronize()
            stream.begin_capture()
            found = f(*arrays)
            graph = stream.end_capture()
            for x, y in zip(arrays, given(xp, 5), strict=True):
                x[...] = y
            graph.launch(stream=stream)
            stream.synchronize()
            close(found, plain(given(xp, 5)))


def test_threads_call_one_function(xp):
    with config.using(capture="on"):
        f, wrong = ge2.jit(net), []
        f(*given(xp, 0))

        def work(seed):
            stream = xp.cuda.Stream(non_blocking=True)
            with config.using(capture="on"), stream:
                arrays, wanted = given(xp, seed), plain(given(xp, seed))
                for _ in range(100):
                    found = f(*arrays)
                    stream.synchronize()
                    if not np.allclose(found[0].get(), wanted[0], rtol=2e-4, atol=2e-4):
                        wrong.append(seed)

        on_threads(*(partial(work, n) for n in range(4)))
        assert not wrong


def test_ten_thousand_calls_take_no_more_memory(xp):
    """Of CuPy's pool, of the host and, if nobody else is there, of the whole GPU."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    with config.using(capture="on"):
        f, sets = ge2.jit(net), [given(xp, seed) for seed in range(6)]
        for n in range(100):
            f(*sets[n % 6])
        xp.cuda.Device().synchronize()
        gc.collect()
        pool, free = xp.get_default_memory_pool(), xp.cuda.runtime.memGetInfo()[0]
        kept, host = pool.total_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for n in range(10_000):
            f(*sets[n % 6])
        xp.cuda.Device().synchronize()
        assert pool.total_bytes() == kept
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host <= 8 << 10  # KiB
        assert not alone or free - xp.cuda.runtime.memGetInfo()[0] <= 1 << 21


def test_a_scan_is_one_graph(xp):
    def rnn(w, xs, h):
        def step(h, x):
            h = np.tanh(x + h @ w)
            return h, h

        h, ys = ge2.lax.scan(step, h, xs)
        return (ys * ys).sum() + h.sum()

    rng = np.random.default_rng(0)
    w, xs, h = (
        (rng.standard_normal(s) * 0.2).astype(np.float32) for s in ((32, 32), (50, 8, 32), (8, 32))
    )
    with config.using(capture="on"):
        f = ge2.jit(ge2.grad(rnn, argnums=(0, 1, 2)))
        wanted = ge2.jit(ge2.grad(rnn, argnums=(0, 1, 2)))(w, xs, h)
        arrays = tuple(map(xp.asarray, (w, xs, h)))
        for _ in range(5):
            for y, z in zip(f(*arrays), wanted, strict=True):
                np.testing.assert_allclose(y.get(), z, rtol=1e-3, atol=1e-4)
        assert sum(run.counts[2] > 0 for run in runs(f)) == 1


class Interrupted(BaseException):
    """What a signal raises, wherever Python is."""


def interrupt(*_):
    raise Interrupted


def test_an_interrupt_leaves_nothing_half_done(xp):
    """Signals that arrive at any moment of many calls."""
    before, met = signal.signal(signal.SIGALRM, interrupt), 0
    with config.using(capture="on"):
        f, arrays, wanted = ge2.jit(net), given(xp, 6), plain(given(xp, 6))
        f(*arrays)
        for n in range(1, 40):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * n)
                for _ in range(200):
                    f(*arrays)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                met += 1
            close(f(*arrays), wanted)
    signal.signal(signal.SIGALRM, before)
    assert met > 0


def test_a_kernel_that_cannot_be_launched_is_told_of(xp):
    """A grid that no GPU has, in a list of launches of our own."""
    source = 'extern "C" __global__ void nothing(float *a_out) { a_out[0] = 1.0f; }'
    kernel = gpu(0).module(source).get_function("nothing")
    wrong = Launch(kernel, (1, 70000), (32,), 0, (np.uint64(0),), "nothing_0", "model.py:7")
    run = gpu(0).launches(LaunchList((wrong,), (), (), frozenset(), lambda x: x, False))
    with pytest.raises(
        KernelError,
        match=r"cuLaunchKernel fails with CUDA_ERROR_\w+ \(\d+\) in nothing_0\n  at   model.py:7",
    ):
        run()


TAKES_MAP = """
struct __align__(64) Map { unsigned long long words[16]; };
extern "C" __global__ void take(const __grid_constant__ Map map, unsigned long long *words_out) {
    words_out[threadIdx.x] = map.words[threadIdx.x];
}"""


@pytest.mark.parametrize("capture", ["on", "off"])
def test_a_tensor_map_is_that_of_the_address(xp, capture):
    """As a kernel is given it: in a graph, after patches, and one by one."""
    if gpu(0).limits.generation < 90:
        pytest.skip("a GPU without tensor maps")
    tiles = Tiles(np.dtype(np.float16), (64, 128), (256, 1), (64, 64), swizzle=128)
    kernel = gpu(0).module(TAKES_MAP).get_function("take")
    given = TensorMap(Address("x", 512), tiles), Address("words")
    launch = Launch(kernel, (1,), (16,), 0, given, "take", "model.py:7")
    work = LaunchList((launch,), ("x", "words"), (), frozenset(), lambda x: x, True)
    with config.using(capture=capture):
        run = gpu(0).launches(work)
    kept = [xp.zeros((70, 256), np.float16) for _ in range(7)]
    for n in range(21):
        x, words = kept[n % 7], xp.zeros(16, np.uint64)
        run(x, words)
        exact = given[0].encoded(x.data.ptr + 512).tobytes()
        assert words.get().tobytes() == exact


def test_a_cubin_is_loaded_by_a_path_too(xp):
    from ge2.targets.cuda.load import arena
    from ge2.targets.cuda.load.nvrtc import compile

    source = 'extern "C" __global__ void twice(float *a_out) { a_out[threadIdx.x] *= 2.0f; }'
    binary = compile(source, gpu(0).limits.architecture)
    with gpu(0).here():
        module = arena.by_path(gpu(0), binary.cubin, binary.key)
        x = xp.arange(4, dtype=np.float32)
        module.get_function("twice")((1,), (4,), (x,))
    np.testing.assert_array_equal(x.get(), [0, 2, 4, 6])
    assert arena.by_path(gpu(0), binary.cubin, binary.key) is module


def test_after_a_fork_a_gpu_is_an_error(xp):
    """CUDA does not survive a fork; the child says so instead of dying."""
    f, arrays = ge2.jit(net), given(xp, 8)
    close(f(*arrays), plain(arrays))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            f(*arrays)
            os.write(write, b"no error")
        except Exception as error:  # noqa: BLE001 whatever it is, the child says it
            os.write(write, f"{type(error).__name__}: {error}".encode()[:4000])
        os._exit(0)
    os.close(write)
    said = b""
    while part := os.read(read, 4096):
        said += part
    os.waitpid(child, 0)
    assert b"DeviceError" in said and b"fork" in said
    close(f(*arrays), plain(arrays))


def test_arrays_are_seen_as_they_lie(xp):
    """Without it a call is right, and slower: so this CuPy's arrays must be known."""
    assert library_call.made_now().learn(library_call.examples(xp))
    xs = (
        xp.ones((3, 5), np.float32),
        xp.ones((), np.int64),
        xp.ones((2, 0, 4)),
        xp.ones((4, 6))[::2, 1:],
    )
    assert library_call.made_now().same(xs, tuple((x.shape, x.dtype, x.device.id) for x in xs))
    assert not library_call.made_now().same(xs[:1], (((5, 3), np.dtype("f4"), 0),))


def test_small_results_are_used_again(xp):
    f = ge2.jit(lambda x: (x * 2 + 1, x.sum()))
    x = xp.arange(8, dtype=np.float32)
    for _ in range(5):
        f(x)
    held = [f(x) for _ in range(20)]
    places = [y.data.ptr for pair in held for y in pair]
    assert len(set(places)) == len(places)
    for y, total in held:
        np.testing.assert_array_equal(y.get(), np.arange(8) * 2 + 1)
        assert total.item() == 28
    kept = held[3][0][2:]
    del held, y, total
    for n in range(20):
        f(x + n)
    np.testing.assert_array_equal(kept.get(), np.arange(2, 8) * 2 + 1)
