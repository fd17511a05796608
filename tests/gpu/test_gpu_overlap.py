"""Kernels that are launched while those before them end compute what each
does alone, to the bit.
"""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.ops.user_ops import Own
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.launch.library_call import LOOPS, knows
from ge2.targets.cuda.load.gpu import gpu
from tests.gpu.test_gpu_launches import given, net, runs

pytestmark = pytest.mark.usefixtures("anew")
BF16 = np.dtype(ml_dtypes.bfloat16)
REPLAYS = 1000
ROWS, COLUMNS = 300, 260  # more than a few blocks, and no multiple of anything


@pytest.fixture(scope="module", autouse=True)
def there():
    """The extension is there from the first call on; and a GPU whose kernels can wait."""
    assert library_call.made_now() is not None
    if not gpu(0).early:
        pytest.skip(
            "kernels of this GPU, or graphs of this driver, cannot wait for others by themselves"
        )


def is_early(f):
    """Graphs of a function launch kernels early, and the driver takes it."""
    found = runs(f)
    assert all(run.whole is None and run.trouble is None for run in found), [
        (run.whole, run.trouble) for run in found
    ]
    return any(run.early > 0 and run.counts[2] > 0 for run in found)


def drawn(xp, seed, *shape):
    return xp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def equal(found, wanted):
    for y, w in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(y.get(), w.get() if hasattr(w, "get") else w)


def hazards(state, x):
    """Forty rounds of kernels that do not fuse.

    All blocks read a row that the next round writes anew, and sums of what others wrote just
    before; places of the arena are written while their last readers may still be about.
    """
    y, row = state
    for i in range(40):
        s = np.cumsum(y * row, i % 2)
        row = row * 0.5 + 0.05 + s.mean(0) / (1 + abs(s).max())
        y = np.tanh(y - s[::-1] * 0.01) + x * row[::-1]
    return (y, row), s.sum(1)


def start(xp, n=ROWS, m=COLUMNS):
    return (drawn(xp, 1, n, m), drawn(xp, 2, m)), drawn(xp, 3, n, m)


@pytest.mark.parametrize(("n", "m"), [(ROWS, COLUMNS), (7, 5), (64, 2048)])
def test_a_thousand_replays_in_a_row_of_a_chain_with_hazards(xp, n, m):
    """State goes round in place and nobody waits, but now and then to look."""
    looked = []
    for overlap in (False, True):
        cache.forget()
        with config.using(capture="on", overlap=overlap):
            f = ge2.jit(hazards, donate_argnums=0)
            state, x = start(xp, n, m)
            seen = []
            for k in range(REPLAYS):
                state, s = f(state, x)
                if k % 50 == 49:
                    seen.append([y.get() for y in (*state, s)])
            assert is_early(f) == overlap and runs(f)[0].counts[1] == 1
            looked.append(seen)
    for found, wanted in zip(*reversed(looked), strict=True):
        for y, w in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(y, w)
    assert all(np.isfinite(y).all() for y in looked[0][-1])


def test_a_grid_as_large_as_the_gpu_waits_for_tiles_that_copies_write(xp):
    """Sums of columns of a product, on as many threads as there are at once: those of a GPU are no power of
    two. What stands in the arena before is of another product.
    """

    def sums(x, w):
        y = np.tanh(x @ w)
        return y.sum(0), y @ w.T

    x, w = (drawn(xp, 1, 8192, 768).get(), drawn(xp, 2, 768, 3072).get() / 28)
    sets = [tuple(xp.asarray(a.astype(BF16)) for a in (x * k, w)) for k in (1, -0.5, 2)]
    with config.using(overlap=False):
        wanted = [ge2.jit(sums)(*each) for each in sets]
    cache.forget()
    with config.using(capture="on"):
        f = ge2.jit(sums)
        for k in range(30):
            equal(f(*sets[k % 3]), wanted[k % 3])
        assert is_early(f)


def test_it_is_what_the_launches_are_one_by_one(xp):
    state, x = start(xp)
    with config.using(capture="off"):
        wanted = ge2.jit(hazards)(state, x)
    cache.forget()
    with config.using(capture="on"):
        f = ge2.jit(hazards)
        for _ in range(REPLAYS):
            found = f(state, x)
        equal(found, wanted)
        assert is_early(f)


def test_such_graphs_are_patched(xp):
    """More sets of arrays than graphs that are kept."""
    sets = [start(xp) for _ in range(7)]
    sets = [((y + k, row), x * k) for k, ((y, row), x) in enumerate(sets)]
    with config.using(capture="off"):
        wanted = [[y.get() for y in ge2.tree.leaves(ge2.jit(hazards)(*each))] for each in sets]
    cache.forget()
    with config.using(capture="on"):
        f = ge2.jit(hazards)
        for k in range(200):
            found = f(*sets[k % 7])
            if k % 13 == 0:
                equal(found, wanted[k % 7])
        assert is_early(f) and runs(f)[0].counts[2] == 4 and runs(f)[0].counts[3] > 0
        assert runs(f)[0].choices[1] == 0, "the driver refuses to patch them"


def test_numbers_are_patched(xp):
    with config.using(capture="on"):
        f, arrays = ge2.jit(net), given(xp, 2)
        for k in range(20):
            found = f(*arrays, float(k))
            with config.using(overlap=False):
                equal(found, ge2.jit(net)(*arrays, float(k)))
        assert is_early(f)


def test_with_products_of_a_library_between(xp):
    sets = [given(xp, seed) for seed in range(3)]
    with config.using(capture="on", overlap=False):
        whole = ge2.jit(net)
        wanted = [[y.get() for y in whole(*each)] for each in sets]
        assert runs(whole)[0].early == 0
    cache.forget()
    with config.using(capture="on"):
        f = ge2.jit(net)
        for k in range(REPLAYS):
            found = f(*sets[k % 3])
            if k % 29 == 0:
                equal(found, wanted[k % 3])
        assert is_early(f)


def nested(x, w, n):
    """Chains in a loop's rounds, in a branch of each, before it and after it."""

    def body(c):
        i, y = c
        y = lax.cond(
            i % 2 == 0, lambda y: np.cumsum(y, 0) * 0.1, lambda y: y - np.cumsum(y, 1) * 0.1, y
        )
        y = np.tanh(y + w) / (1 + abs(y).max())
        return i + 1, y + np.cumsum(y, 1).mean(0)

    x = np.cumsum(x, 0) / (1 + abs(x).max())
    _, y = lax.while_loop(lambda c: c[0] < n, body, (np.int32(0), x))
    return np.cumsum(y / (1 + abs(y).max()), 1), y.sum(0)


@pytest.mark.skipif(not knows(LOOPS), reason="a driver without conditional nodes")
def test_in_the_lists_of_loops_and_branches_and_around_them(xp):
    x, w = drawn(xp, 1, 4096, 64), drawn(xp, 2, 64)
    for n in (0, 1, 9):
        rounds, got = xp.asarray(np.int32(n)), []
        for capture, overlap in (("off", False), ("on", False), ("on", True)):
            cache.forget()
            with config.using(capture=capture, overlap=overlap):
                f = ge2.jit(nested)
                for _ in range(100 if capture == "on" else 1):
                    found = f(x, w, rounds)
                got.append([y.get() for y in found])
                if capture == "on":
                    assert is_early(f) == overlap and runs(f)[0].choices[0] > 0
        for each in got[1:]:
            for y, want in zip(each, got[0], strict=True):
                np.testing.assert_array_equal(y, want)


def test_beside_kernels_that_a_gpu_does_not_hold_at_once(xp):
    """Which do not wait by themselves: all else waits for them, and they for it."""

    def mixed(x, y):
        for _ in range(6):
            x = np.tanh(x) + np.cumsum(y)[3]
            y = np.cumsum(y * x[:1000]) / (1 + abs(y).max())
        return x, y

    arrays, got = (drawn(xp, 1, 1 << 22), drawn(xp, 2, 1000)), []
    for overlap in (False, True):
        cache.forget()
        with config.using(capture="on", overlap=overlap):
            f = ge2.jit(mixed)
            for _ in range(50):
                found = f(*arrays)
            got.append([y.get() for y in found])
            assert is_early(f) == overlap
    for y, w in zip(*got, strict=True):
        np.testing.assert_array_equal(y, w)


def test_a_scan_written_down_as_launches(xp):
    def turns(w, xs, h):
        def step(h, x):
            h = np.tanh(x + h @ w) + 0.01 * np.cumsum(h, 1)
            return h, h.sum(0)

        return lax.scan(step, h, xs)

    w, xs, h = drawn(xp, 1, 64, 64) * 0.1, drawn(xp, 2, 60, 900, 64), drawn(xp, 3, 900, 64)
    got = []
    for overlap in (False, True):
        cache.forget()
        with config.using(capture="on", overlap=overlap):
            f = ge2.jit(turns)
            for _ in range(30):
                found = f(w, xs, h)
            got.append([y.get() for y in ge2.tree.leaves(found)])
            assert any(run.early > 0 for run in runs(f)) == overlap
    for y, w in zip(*got, strict=True):
        np.testing.assert_array_equal(y, w)


def test_on_several_streams_at_once(xp):
    """Chains of which each fills the GPU with kernels that wait."""
    state, x = start(xp)
    with config.using(capture="on", overlap=False):
        wanted = [y.get() for y in ge2.tree.leaves(ge2.jit(hazards)(state, x))]
    cache.forget()
    with config.using(capture="on"):
        f = ge2.jit(hazards)
        streams, last = [xp.cuda.Stream(non_blocking=True) for _ in range(4)], {}
        xp.cuda.Device().synchronize()
        for k in range(400):
            with streams[k % 4]:
                last[k % 4] = f(state, x)
        xp.cuda.Device().synchronize()
        for found in last.values():
            equal(found, wanted)
        assert is_early(f)


def test_a_training_step_is_the_same_to_the_bit(xp):
    from benchmarks.cuda.programs import adamw, mlp_data, stepper
    from benchmarks.cuda.programs import start as begun

    losses = []
    for overlap in (False, True):
        cache.forget()
        with config.using(capture="on", overlap=overlap):
            f = ge2.jit(partial(adamw, ge2, np), donate_argnums=0)
            step = stepper(
                f, begun(np.random.default_rng(1), xp.asarray), *map(xp.asarray, mlp_data())
            )
            found = [step() for _ in range(300)]
            losses.append([float(y) for y in found])
            assert is_early(f) == overlap
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]


def test_kernels_of_a_users_wait_for_all_and_all_for_them(xp):
    @ge2.extend.op
    class Halved(ge2.extend.Op):
        name = "test_gpu_overlap_halved"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x * 0.5

        cuda = "y[thread] = x[thread] * 0.5f;"

    assert issubclass(Halved, Own)

    def f(x):
        for i in range(12):
            x = Halved()(np.cumsum(x, i % 2)) / (1 + abs(x).max())
            x = x + np.cumsum(x[::-1], 1 - i % 2) * 0.01
        return x

    x = drawn(xp, 4, 120, 90)
    with config.using(capture="off"):
        wanted = ge2.jit(f)(x).get()
    cache.forget()
    with config.using(capture="on"):
        g = ge2.jit(f)
        for _ in range(200):
            found = g(x)
        np.testing.assert_array_equal(found.get(), wanted)
        assert is_early(g)
