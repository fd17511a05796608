"""Loops and branches that all blocks of a grid do together: what NumPy gives;
the shim looks for races.

Grids are small here, and few elements are wide, so that blocks and
threads have to wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.limits import H200
from tests.codegen.agreement import agree, drawn
from tests.codegen.loop_programs import either
from tests.codegen.test_resident_random import SEEDS, arguments, program
from tests.codegen.texts import kernels as kernels_of
from tests.compared import all_close
from tests.fuzz.test_nested_loops import agrees
from tests.small import SMALL_CHIP, SMALL_GRIDS, name_of, planned_by, with_small_grids
from tests.together import needs_compiler

pytestmark = [needs_compiler, pytest.mark.any_executor]  # with which CUDA is compared
SIZES = (7, 96, 97, 2000)  # with 96 threads, of which each may have 16 elements in registers


@pytest.fixture(autouse=True)
def small_grids() -> Iterator[None]:
    """Nothing is for a block, and a grid has 96 or 128 threads."""
    with config.using(tuning=(SMALL_GRIDS,), prefer=("persistent kernel in CUDA",)):
        yield


def on_shim(f: Any, *xs: Any) -> tuple[Any, str, tuple[str, ...]]:
    """The results, the CUDA, and the names of the kernels that were launched."""
    with config.using(executor="shim", shim_watch=True):
        g = ge2.jit(f)
        found = g(*xs)
        again = g(*xs)
        leaves = map(ge2.tree_util.tree_leaves, (found, again))
        assert all(
            np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(*leaves, strict=True)
        )
        names = tuple(name.rpartition("_")[0] for name in g.report().kernels)
        return found, g.lower(*xs).as_text("cuda"), names


def same(f: Any, *xs: Any, rtol: float = 1e-5, kernels: int | None = 1) -> str:
    """The results are those of NumPy, and one kernel of a grid made them; its text."""
    found, source, names = on_shim(f, *xs)
    assert "grid_kernel" in names if kernels is None else names == ("grid_kernel",) * kernels
    agree(found, f(*xs), rtol)
    return source


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS[::2])
def test_a_random_round(seed: int) -> None:
    same(program(seed), *arguments(seed), rtol=2e-4, kernels=None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_a_loop_whose_threads_know_their_own_elements_never_waits_for_other_blocks(n: int) -> None:
    def counted(x: Any) -> Any:
        return lax.while_loop(
            lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 0.9 + 1), (np.int32(0), x)
        )

    assert "ge2_grid_wait" not in same(counted, drawn(n))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_conds_by_sums(n: int) -> None:
    assert same(lambda x: either(x, 4), drawn(n), rtol=1e-4).count("ge2_grid_wait();") == (
        4 if n > 24 else 3
    )


@pytest.mark.exhaustive("reverse")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
def test_neighbours(n: int, reverse: bool) -> None:
    """What another thread has written is read after all have met, and
    overwritten after all have read it.
    """

    def step(c: Any, x: Any) -> Any:
        c = c * 0.5 + (np.roll(c, 1) + np.roll(c, -1)) * 0.25 + x
        return c, (c[::-1] * 2, c[0], c.max())

    source = same(
        lambda x, xs: lax.scan(step, x, xs, reverse=reverse), drawn(n), drawn(4, n, seed=1)
    )
    assert "ge2_grid_wait" in source


def test_folds_over_each_axis() -> None:
    def step(c: Any, _: Any) -> Any:
        some = c.sum(0), c.mean(1), c.max(2), c.sum((0, 1)), c.sum((1, 2)), c.sum((0, 2)), c.sum()
        c = c / (1 + np.abs(c).max((0, 2), keepdims=True)) + some[0] * 0.1 + some[1][:, None] * 0.1
        return c + some[2][:, :, None] * 0.01, (*some, c.argmax(1), c.argmin(), c.argmax(2))

    same(lambda c: lax.scan(step, c, None, length=3), drawn(7, 9, 23), rtol=1e-4)
    same(lambda c: lax.scan(step, c, None, length=3), drawn(2, 50, 3), rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.int16, np.uint8, np.int64]
)
def test_dtypes(dtype: Any) -> None:
    def step(c: Any, x: Any) -> Any:
        c = c + x[::-1]
        return c, (c.sum(), c.max(), c.argmin(), (c > x).any())

    x, xs = (np.abs(drawn(*s) * 9).astype(dtype) for s in ((130,), (3, 130)))
    rtol = {1: 0, 2: 2e-2}.get(np.dtype(dtype).itemsize, 1e-12)
    same(lambda c, xs: lax.scan(step, c, xs), x, xs, rtol=rtol)


def test_carries_of_other_types() -> None:
    def step(c: Any, x: Any) -> Any:
        z, n, flags, wide = c
        z = z[::-1] * 1j + x
        flags = flags ^ (np.abs(x) > 0.5)
        return (z, n + flags.sum(dtype=np.int32), flags, wide * 3 + n), (x.argmax(), flags, z.sum())

    z, flags, wide = (
        drawn(137).astype(np.complex64),
        np.zeros(137, bool),
        np.arange(300, dtype="i8"),
    )
    start = (z, np.zeros((), np.int32), flags, wide)
    same(lambda c, xs: lax.scan(step, c, xs), start, drawn(6, 137), rtol=1e-4)


def test_loops_in_loops_and_branches() -> None:
    def inner(y: Any, k: Any) -> Any:
        return lax.while_loop(
            lambda c: np.abs(c[1]).max() > k,
            lambda c: (c[0] + 1, c[1][::-1] * 0.5 + c[1] * 0.1),
            (np.int32(0), y),
        )

    def step(c: Any, x: Any) -> Any:
        n, y = c
        m, z = inner(y + x, 0.7)
        z = lax.cond(
            m % 2 == 0, lambda z: np.roll(z, 3) + inner(z * 9, 1.0)[1], lambda z: z - z.mean(), z
        )
        return (n + m, z + y * 0.5), (m, z[:20])

    same(
        lambda c, xs: lax.scan(step, c, xs),
        (np.int32(0), drawn(200)),
        drawn(5, 200, seed=2),
        rtol=1e-4,
    )


def test_carries_that_change_places_and_twins() -> None:
    def step(c: Any, x: Any) -> Any:
        a, b, d, kept = c
        y = a[::-1] + x
        return (b, y, y, kept), (a, d[1:] - d[:-1], kept[0])

    same(
        lambda c, xs: lax.scan(step, c, xs),
        (drawn(99), drawn(99, seed=1), drawn(99, seed=2), drawn(9)),
        drawn(5, 99),
    )


def test_decided_by_an_element_that_another_thread_has() -> None:
    def f(x: Any) -> Any:
        y = lax.while_loop(lambda c: c[77] < 4, lambda c: c + np.roll(c, 1) * 0.1 + 0.3, x)
        return lax.cond(y[5] > y[90], lambda y: y * 2, lambda y: -y, y)

    same(f, np.abs(drawn(100)))


def test_stacks_that_are_read_again() -> None:
    def f(x: Any, xs: Any) -> Any:
        last, ys = lax.scan(lambda c, x: (c[::-1] * 0.5 + x, (c * 2, c.sum())), x, xs)
        more, zs = lax.scan(lambda c, y: (c + y[0] * y[1], c[3:]), last, ys, reverse=True)
        return more, zs, ys[0].sum(0), (ys[0] * 2).sum(1), ys[1][::-1]

    same(f, drawn(130), drawn(4, 130, seed=3), rtol=1e-4)


def test_rounds_go_through_what_threads_had_in_registers() -> None:
    def f(x: Any) -> Any:
        y = lax.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, x)
        return lax.scan(lambda c, row: (c * 0.5 + row, c[:3]), y[0], y), y

    same(f, drawn(9, 30))


def test_what_rounds_give_is_carried_on() -> None:
    """The results of a loop's rounds, side by side, are what the loop around it carries."""

    def f(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return lax.scan(lambda h, row: (h * 0.5 + row, row * 0.9 + h), c[0], c)[1], c.sum()

        return lax.scan(step, x, None, length=3)

    same(f, drawn(9, 30))


@pytest.mark.parametrize("seed", [53, 1020, 2048, 4058])
def test_nested_programs(seed: int) -> None:
    """Functions in which something was wrong once."""

    def run(f: Any, xs: list[Any]) -> Any:
        g = ge2.jit(f)
        found = g(*xs), g(*xs)
        assert any("grid_kernel" in name for name in g.report().kernels)
        return found

    with config.using(executor="shim", shim_watch=True, shim_seed=seed % 3):
        agrees(seed, run)


def test_rounds_that_do_nothing() -> None:
    """What is carried stays: there is no loop, which the next one would be a part of."""

    def f(n: Any, x: Any, xs: Any) -> Any:
        m, _ = lax.scan(lambda c, _: (c + 0, None), n, None, length=3)
        return m, lax.scan(lambda c, x: (c * 0.5 + halved(x), c.sum()), x, xs)

    def halved(x: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, x: np.tanh(x) * 0.5, x)

    same(f, np.int32(3), drawn(99), drawn(5))


def test_more_than_registers_have_room_for() -> None:
    def step(c: Any, x: Any) -> Any:
        a, b, d = c
        return (b * 0.5 + x, d - a, a + b * 0.25), a + d

    start = tuple(drawn(1500, seed=n) for n in range(3))
    source = same(lambda c, xs: lax.scan(step, c, xs), start, drawn(3, 1500))
    assert "[12];" in source and ", float *" in source


def test_products() -> None:
    def step(h: Any, x: Any) -> Any:
        y = (h.T @ h) / 40 + x[:, None] * np.arange(11, dtype=np.float32)
        h = np.tanh(h @ y * 0.1)
        return h, (y[2:5].mean(0), h.argmin(1), h[0] @ h[1])

    same(lambda h, xs: lax.scan(step, h, xs), drawn(23, 11), drawn(4, 11), rtol=1e-4)


def test_one_array_given_twice_and_donated() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + y[::-1] + i, x)

    x = drawn(170)
    same(f, x, x)
    with config.using(executor="shim", shim_watch=True):
        g = ge2.jit(f, donate_argnums=0)
        np.testing.assert_allclose(g(x.copy(), x), f(x, x), rtol=1e-5)


@pytest.mark.parametrize("seed", range(1, 5))
def test_whatever_the_order_of_threads_and_blocks(seed: int) -> None:
    def step(c: Any, x: Any) -> Any:
        c = np.tanh(c + np.roll(c, 40)) + x - c.reshape(10, -1).sum(0).mean()
        return c, c.max()

    x, xs = drawn(300), drawn(3, 300, seed=1)
    with config.using(executor="shim", shim_watch=True, shim_seed=seed):
        found = ge2.jit(lambda x, xs: lax.scan(step, x, xs))(x, xs)
    all_close(found, lax.scan(step, x, xs), rtol=1e-5, atol=1e-5)


def test_more_blocks_than_there_can_be_at_once_are_refused() -> None:
    device = ShimDevice()
    run = device.module('extern "C" __global__ void none(int n) {}').get_function("none")
    with pytest.raises(
        ge2.errors.InputError, match="5 blocks that wait for each other; the most is 4"
    ):
        run((5,), (32,), (np.int32(1),), enable_cooperative_groups=True)


def test_blocks_that_do_not_meet_are_seen() -> None:
    """The shim tells of an element that another block has written, with no meeting between."""
    source = """
#include "ge2/grid.cuh"
extern "C" __global__ void shifted(float *a, float *b) {
    a[blockIdx.x * 32 + threadIdx.x] = 1;
    WAIT
    b[blockIdx.x * 32 + threadIdx.x] = a[(blockIdx.x * 32 + threadIdx.x + 32) % 96];
}"""
    a, b = np.zeros(96, np.float32), np.zeros(96, np.float32)
    for wait in ("ge2_grid_wait();", "__syncthreads();"):
        run = ShimDevice(watch=True).module(source.replace("WAIT", wait)).get_function("shifted")

        def go(run: Callable[..., Any] = run) -> None:
            run((3,), (32,), (a, b), enable_cooperative_groups=True)

        if "grid" in wait:
            go()
            assert (b == 1).all()
        else:
            with pytest.raises(ge2.errors.KernelError, match="no barrier sets them apart"):
                go()


# --------------------------------------------------------------------------- matrices that are kept


@pytest.fixture
def kept() -> Iterator[None]:
    """Small matrices are kept, too."""
    with config.using(tuning=(planned_by(SMALL_GRIDS, "grid", matrix=1),)):
        yield


def net(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h @ w + x)
        return h, h

    return lax.scan(step, h, xs)


@pytest.mark.exhaustive("steps")
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("rows", "width"), [(5, 16), (1, 32), (8, 48), (13, 64)])
def test_a_recurrent_net(kept: None, rows: int, width: int, steps: int) -> None:
    w = drawn(width, width) / np.float32(np.sqrt(width))
    source = same(net, w, drawn(rows, width), drawn(steps, rows, width, seed=1))
    # one in a round
    assert "ge2_spread_product" in source and source.count("ge2_grid_wait();") == 1


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_the_gradient_of_a_recurrent_net(kept: None, form: str) -> None:
    def loss(w: Any, h: Any, xs: Any) -> Any:
        if form == "scan":
            return (net(w, h, xs)[1] ** 2).mean()
        total = 0.0
        for t in range(xs.shape[0]):
            h = np.tanh(h @ w + xs[t])
            total = total + (h * h).mean()
        return total / xs.shape[0]

    w, h, xs = drawn(32, 32) / 6, drawn(7, 32), drawn(24, 7, 32, seed=1)
    found, source, names = on_shim(ge2.grad(loss, (0, 1, 2)), w, h, xs)
    assert "grid_kernel" in names and source.count("ge2_spread_product<") == 2
    all_close(found, ge2.grad(loss, (0, 1, 2))(w, h, xs), rtol=1e-4, atol=1e-6)


def test_gates_and_what_blocks_carry_in_registers(kept: None) -> None:
    def step(c: Any, x: Any) -> Any:
        h, s, (w, u) = *c, (np.asarray(W), np.asarray(U))
        z = 1 / (1 + np.exp(-(h @ w + x)))
        s = s * z + np.tanh(h @ u) * (1 - z)
        return (np.tanh(s), s), s[:, ::-1]

    W, U = drawn(32, 32) / 6, drawn(32, 32, seed=5) / 6
    source = same(
        lambda h, xs: lax.scan(step, (h, h * 2), xs), drawn(7, 32), drawn(4, 7, 32), rtol=1e-4
    )
    assert source.count("ge2_spread_product<") == 2


def test_the_matrix_seen_from_its_other_side(kept: None) -> None:
    def f(w: Any, h: Any, xs: Any) -> Any:
        return lax.scan(lambda h, x: (np.tanh(h @ w.T) + x, h.sum(1)), h, xs, reverse=True)

    assert "ge2_spread_product" in same(f, drawn(48, 48) / 7, drawn(6, 48), drawn(3, 6, 48))


@pytest.mark.exhaustive("sums")
@pytest.mark.parametrize(("high", "rows"), [(1, 1), (2, 2), (8, 4)])
@pytest.mark.parametrize(("sums", "slices"), [(16, 4), (64, 16), (256, 64)])
def test_the_product_of_a_block(sums: int, slices: int, high: int, rows: int) -> None:
    """Lanes of part of a warp, of one and of two have a sum together."""
    threads, wide = 128, 128 // slices * 4
    warps = max(slices // 32, 1)
    source = f"""
#include "ge2/spread.cuh"
extern "C" __global__ void product(const float *x, const float *w, float *y) {{
    __shared__ __align__(16) float room[{high * sums} + {warps * high * wide}];
    ge2_kept<{sums // slices}> kept;
    for (int n = 0; n < {sums // slices}; n++)
        for (int i = 0; i < 4; i++)
            kept.piece[n].at[i] = w[(4 * (threadIdx.x % {slices} + {slices} * (n / 4)) + i) * {wide}
                                    + threadIdx.x / {slices} * 4 + n % 4];
    ge2_spread_rows<{sums}, {threads}>(room, x, {high});
    __syncthreads();
    ge2_spread_product<{sums}, {slices}, {high}, {rows}, {threads}>(kept, room, room + {high * sums});
    __syncthreads();
    for (int n = threadIdx.x; n < {high * wide}; n += {threads})
        y[n] = ge2_spread_result<{warps}, {high * wide}>(room + {high * sums}, n);
}}"""
    x, w, y = drawn(high, sums), drawn(sums, wide, seed=1), np.zeros((high, wide), np.float32)
    ShimDevice(watch=True).module(source).get_function("product")((1,), (threads,), (x, w, y))
    np.testing.assert_allclose(y, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)


def test_rows_that_lie_in_a_larger_result_are_read_from_elsewhere(kept: None) -> None:
    """Results that are joined are written right into the whole, whose rows are
    longer, and begin anywhere.
    """

    def f(w: Any, h: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            d = np.tanh(c + x)
            return d @ w, d

        last, ds = lax.scan(step, h, xs)
        return last, np.concatenate([xs[:, :, :3], ds], axis=2), np.concatenate([xs[:1, :, :], ds])

    same(f, drawn(32, 32) / 6, drawn(7, 32), drawn(4, 7, 32, seed=1), kernels=None)


def test_a_gpu_with_too_few_blocks_multiplies_by_lanes() -> None:
    with config.using(tuning=(planned_by(SMALL_GRIDS, "grid", matrix=1, room=0),)):
        source = same(net, drawn(48, 48) / 7, drawn(5, 48), drawn(3, 5, 48, seed=1))
    assert "ge2_spread_product" not in source


# -------------------------------------------------------- a chip of 40 multiprocessors, with 99 KB

OF_THEIR_OWN = (
    test_folds_over_each_axis, test_carries_of_other_types, test_loops_in_loops_and_branches,
    test_carries_that_change_places_and_twins, test_decided_by_an_element_that_another_thread_has,
    test_stacks_that_are_read_again, test_rounds_that_do_nothing, test_products,
    test_one_array_given_twice_and_donated,
)  # fmt: skip
OF_A_SIZE = (test_conds_by_sums, partial(test_neighbours, reverse=True))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "test",
    [
        *OF_THEIR_OWN,
        *(partial(each, n=n) for each in OF_A_SIZE for n in SIZES),
        *(partial(test_a_random_round, seed=seed) for seed in SEEDS[::2]),
    ],
    ids=name_of,
)
def test_by_forty_blocks(test: Callable[[], None]) -> None:
    with config.using(tuning=(with_small_grids(SMALL_CHIP),)):
        test()


def test_a_matrix_is_kept_by_forty_blocks() -> None:
    with config.using(tuning=(planned_by(with_small_grids(SMALL_CHIP), "grid", matrix=1),)):
        source = same(net, drawn(64, 64) / 8, drawn(13, 64), drawn(3, 13, 64, seed=1))
    assert "ge2_spread_product" in source


def beside(w: Any, h: Any, c: Any, xs: Any) -> Any:
    """A recurrent net, and a few elements beside it that each block has for itself."""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        h = np.tanh(h @ w + x)
        return (h, np.roll(c, 1) * 0.5 + np.roll(c, -1)), h

    return lax.scan(step, (h, c), xs)


@pytest.mark.parametrize("rows", [64, 128, 320])
def test_no_kernel_asks_for_more_than_there_is_on_a_chip(rows: int) -> None:
    """Of 320 rows blocks of a small chip would keep 106 KB: once they asked for as much, since an
    H200's would keep 36.
    """
    shapes = ((384, 384), (rows, 384), (1000,), (3, rows, 384))
    xs = [np.zeros(shape, np.float32) for shape in shapes]
    for chip in (H200, SMALL_CHIP):
        for kernel, _ in kernels_of(beside, *xs, chip=chip):
            assert kernel.shared <= chip.shared_optin, kernel.kind
            assert not kernel.together or math.prod(kernel.grid) <= chip.multiprocessors
