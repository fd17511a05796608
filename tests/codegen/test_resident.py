"""Loops and branches as one kernel: what it computes is what NumPy does, at
every size that is awkward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.targets.cuda.emulator import EMULATED
from tests.codegen.agreement import agree, drawn
from tests.codegen.loop_programs import either
from tests.compared import all_close
from tests.small import SMALL_CHIP, name_of
from tests.together import needs_compiler

pytestmark = [needs_compiler, pytest.mark.any_executor]  # with which CUDA is compared
SIZES = (1, 31, 32, 33, 97, 1023)
REAL = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


def on_shim(f: Any, *xs: Any) -> tuple[Any, tuple[str, ...]]:
    """The results, and the names of the kernels that were launched."""
    with config.using(executor="shim", shim_watch=True):
        g = ge2.jit(f)
        found = g(*xs)
        return found, tuple(name.rpartition("_")[0] for name in g.report().kernels)


def same(f: Any, *xs: Any, rtol: float = 1e-5, kernels: int = 1) -> None:
    """The results are those of NumPy, and one resident kernel made them."""
    found, names = on_shim(f, *xs)
    assert names == ("resident_kernel",) * kernels
    agree(found, f(*xs), rtol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_ten_conds_are_one_kernel(n: int) -> None:
    same(either, drawn(n), rtol=1e-4)


@pytest.mark.exhaustive("rounds")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_a_while_loop(n: int, rounds: int) -> None:
    def counted(x: Any) -> Any:
        return lax.while_loop(
            lambda c: c[0] < rounds, lambda c: (c[0] + 1, c[1] * 0.9 + 1), (np.int32(0), x)
        )

    same(counted, drawn(n))


def test_python_numbers_in_a_carry() -> None:
    def counted(x: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.9 + c[0]), (0, x))[
            1
        ]

    same(lambda x: counted(x, 5), drawn(9))
    same(counted, drawn(9), 3)
    same(lambda x: lax.fori_loop(0, 4, lambda i, x: x * 0.5 + i, x), drawn(9))


def test_a_while_loop_that_its_values_end() -> None:
    def halved(x: Any) -> Any:
        return lax.while_loop(lambda x: np.abs(x).max() > 0.1, lambda x: x * 0.5, x)

    same(halved, drawn(100))


@pytest.mark.exhaustive("reverse")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan(n: int, reverse: bool) -> None:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h * 0.5 + x)
        return h, (h * 2, h.sum())

    same(lambda h, xs: lax.scan(step, h, xs, reverse=reverse), drawn(n), drawn(5, n, seed=1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", REAL)
def test_carries_of_half_and_double_types(dtype: Any) -> None:
    def step(h: Any, x: Any) -> Any:
        h = h * h.dtype.type(0.5) + x
        return h, h.sum()

    rtol = {2: 2e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    same(
        lambda h, xs: lax.scan(step, h, xs),
        drawn(33, dtype=dtype),
        drawn(4, 33, dtype=dtype),
        rtol=rtol,
    )


def test_carries_of_other_types() -> None:
    def step(c: Any, x: Any) -> Any:
        z, n, flags, wide = c
        z = z * 1j + x
        flags = flags ^ (np.abs(x) > 0.5)
        return (z, n + flags.sum(dtype=np.int32), flags, wide * 3 + n), (x.argmax(), flags)

    start = (
        drawn(37).astype(np.complex64), np.zeros((), np.int32), np.zeros(37, bool), np.arange(5, dtype="i8"),
    )  # fmt: skip
    same(lambda c, xs: lax.scan(step, c, xs), start, drawn(6, 37))


def test_products_and_views_in_a_round() -> None:
    def step(h: Any, x: Any) -> Any:
        y = (h.T @ h) / 10 + x[::-1, None] * np.arange(7, dtype=np.float32)
        h = np.concatenate([y[:, 1:], y[:, :1] * 0.25], axis=1) / (
            1 + np.abs(y).max(1, keepdims=True)
        )
        return h.reshape(7, 7), (y[2:5].mean(0), h.argmin(1))

    same(lambda h, xs: lax.scan(step, h, xs), drawn(7, 7), drawn(4, 7), rtol=1e-4)


def test_a_carry_that_stays_and_one_that_is_passed_on() -> None:
    def step(c: Any, x: Any) -> Any:
        a, b, kept = c
        return (b, a + x, kept), (a, kept)

    same(lambda c, xs: lax.scan(step, c, xs), (drawn(9), drawn(9, seed=1), drawn(3)), drawn(5, 9))


def test_one_array_given_twice_and_donated() -> None:
    def f(x: Any, y: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + y[::-1] + i, x)

    x = drawn(70)
    same(f, x, x)
    with config.using(executor="shim", shim_watch=True):
        given = x.copy()
        found = ge2.jit(f, donate_argnums=0)(given, x)
    np.testing.assert_allclose(found, f(x, x), rtol=1e-5)


def test_branches_of_several_kinds() -> None:
    def three(i: Any, x: Any, y: Any) -> Any:
        branches = [lambda x, y: (x + 1, y), lambda x, y: (y * 2, x), lambda x, y: (x * y, x - y)]
        return lax.switch(i, branches, x, y)

    for i in (-3, 0, 1, 2, 9):
        same(three, np.int32(i), drawn(65), drawn(65, seed=1))


def test_what_an_inner_loop_has_just_written_is_not_read_ahead() -> None:
    def twice(x: Any) -> Any:
        def rows(_: Any, row: Any) -> Any:
            y = lax.map(lambda e: e * 2, row)
            return (), (y, y)

        return lax.scan(rows, (), x)

    same(twice, drawn(3, 5))


@pytest.mark.parametrize("taken", range(3))
def test_what_decides_keeps_its_place_whichever_branch_is_taken(taken: int) -> None:
    """The first barrier of a branch that is not the first one comes late in the text."""

    def turned(c: Any) -> Any:
        return np.tanh(c) + np.tanh(c)[::-1]

    def chosen(x: Any) -> Any:
        return lax.switch(x.argmax(), [turned] * 3, x)

    def within(x: Any) -> Any:
        def either(c: Any) -> Any:
            return lax.cond((c * 2).argmin() > 3, turned, lambda c: -turned(c), c)

        return lax.switch((x * 0.5).argmax() - 1, [either, either, turned], x)

    x = drawn(8, seed=1)
    x[taken] = 3
    same(chosen, x)
    same(within, x)


def test_loops_within_loops_and_branches() -> None:
    def inner(x: Any) -> Any:
        return lax.while_loop(lambda x: x.max() > 1, lambda x: x * 0.5, x)

    def step(h: Any, x: Any) -> Any:
        h = lax.cond(x.sum() > 0, inner, lambda h: h + 1, h + x)
        return h, lax.fori_loop(0, 3, lambda i, y: y * 0.5 + i, h)

    same(lambda h, xs: lax.scan(step, h, xs), 4 * drawn(33), 3 * drawn(6, 33, seed=1))


def test_elements_at_indices_that_the_loop_counts() -> None:
    def walk(x: Any, next_: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            at, total = c
            rows = ge2.numpy.take(x, at, axis=0)
            return (ge2.numpy.take(next_, at, axis=0), total + rows), at

        return lax.scan(step, (np.int32(3), np.zeros(4, np.float32)), None, length=9)

    same(walk, drawn(17, 4), np.random.default_rng(0).permutation(17).astype(np.int32))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", REAL)
def test_elements_that_rounds_write(dtype: Any) -> None:
    def fill(x: Any, y: Any) -> Any:
        def step(c: Any) -> Any:
            i, x, y = c
            x, z = x.copy(), y.copy()
            x[i] = y[i % 3] * y.dtype.type(2)
            x[-1 - i, 2] += x[i, 1]
            z[1:3] = y[:2] * y.dtype.type(0.5)
            return i + 1, x, z

        return lax.while_loop(lambda c: c[0] < 6, step, (np.int32(0), x, y))

    rtol = {2: 2e-2, 4: 1e-5, 8: 1e-12}[np.dtype(dtype).itemsize]
    same(fill, drawn(7, 4, dtype=dtype), drawn(4, dtype=dtype), rtol=rtol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_a_scan(reverse: bool) -> None:
    def loss(w: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = np.tanh(h @ w + x)
            return h, h

        h, ys = lax.scan(step, h, xs, reverse=reverse)
        return (ys**2).sum() + h.sum()

    xs = drawn(9, 9) / 3, drawn(3, 9), drawn(6, 3, 9, seed=1)
    found, names = on_shim(ge2.grad(loss, (0, 1, 2)), *xs)
    assert "resident_kernel" in names
    all_close(found, ge2.grad(loss, (0, 1, 2))(*xs), rtol=1e-4, atol=1e-5)


# -------------------------------------------------------------------------- rows, and kept matrices


def rnn(w: Any, h: Any, xs: Any, reverse: bool = False) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h @ w + x)
        return h, h

    return lax.scan(step, h, xs, reverse=reverse)


@pytest.mark.exhaustive("sums")
@pytest.mark.parametrize("rows", [2, 7, 31])
@pytest.mark.parametrize(("sums", "reverse"), [(64, False), (96, True), (128, False)])
def test_rows_that_blocks_share(rows: int, sums: int, reverse: bool) -> None:
    w = drawn(sums, sums) / np.float32(np.sqrt(sums))
    same(
        lambda w, h, xs: rnn(w, h, xs, reverse),
        w,
        drawn(rows, sums),
        drawn(3, rows, sums, seed=1),
        rtol=1e-4,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("multiprocessors", [1, 2, 3])
def test_several_rows_of_a_block(multiprocessors: int) -> None:
    w, chip = drawn(64, 64) / 8, replace(EMULATED, multiprocessors=multiprocessors)
    with config.using(tuning=(chip,)):
        same(rnn, w, drawn(6, 64), drawn(3, 6, 64, seed=1), rtol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("columns", [60, 64, 65, 97, 256])
def test_a_matrix_that_is_not_square(columns: int) -> None:
    def step(h: Any, x: Any, w: Any, v: Any) -> Any:
        h = np.tanh((h @ w) @ v + x)
        return h, (h @ w).max(1)

    w, v = drawn(128, columns) / 16, drawn(columns, 128, seed=2) / 16
    same(
        lambda w, v, h, xs: lax.scan(lambda h, x: step(h, x, w, v), h, xs),
        w, v, drawn(2, 128), drawn(3, 2, 128, seed=1), rtol=1e-4,
    )  # fmt: skip


def test_a_matrix_on_the_left_and_a_vector() -> None:
    def f(w: Any, h: Any, xs: Any) -> Any:
        return lax.scan(lambda h, x: ((y := np.tanh(w @ h + x)), y.sum()), h, xs)

    same(f, drawn(128, 128) / 12, drawn(128), drawn(4, 128, seed=1), rtol=1e-4)


def test_rows_with_all_that_rows_may_do() -> None:
    """Biases, masks, counts, softmax by row, parts of rows: nothing of it looks at another row."""

    def f(w: Any, b: Any, mask: Any, h: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            h, n = c
            z = h @ w + b + x * n.astype(np.float32)
            e = np.exp(z - z.max(1, keepdims=True))
            h = np.where(mask, e / e.sum(1, keepdims=True), h[:, ::-1])
            h = (
                np.concatenate([h[:, :10], h[:, 10:] * 0.5], axis=1)
                .reshape(5, 4, 24)
                .reshape(5, 96)
            )
            h = lax.cond(n > 1, lambda h: h * 0.5, lambda h: np.maximum(h, 0), h)
            h = lax.fori_loop(0, 2, lambda i, y: y * 0.5 + h * i, h)
            return (h, n + 1), (h.T, h.argmax(1), z.mean(1), n)

        return lax.scan(step, (h, np.int32(0)), xs)

    mask = np.random.default_rng(3).random((5, 96)) > 0.3
    same(f, drawn(96, 96) / 10, drawn(96), mask, drawn(5, 96), drawn(3, 5, 96, seed=1), rtol=1e-4)


def test_rows_that_know_of_each_other_are_left_alone() -> None:
    def f(w: Any, h: Any, xs: Any) -> Any:
        return lax.scan(lambda h, x: ((y := np.tanh((h - h.mean(0)) @ w + x)), y), h, xs)

    xs = drawn(96, 96) / 10, drawn(20, 96), drawn(3, 20, 96, seed=1)
    found, names = on_shim(f, *xs)
    assert "resident_kernel" not in names
    np.testing.assert_allclose(found[0], f(*xs)[0], rtol=1e-4, atol=1e-5)


def test_the_gradient_by_rows() -> None:
    def loss(w: Any, h: Any, xs: Any) -> Any:
        return (rnn(w, h, xs)[1] ** 2).mean()

    xs = drawn(64, 64) / 8, drawn(5, 64), drawn(4, 5, 64, seed=1)
    found, names = on_shim(ge2.grad(loss, (0, 1, 2)), *xs)
    assert names.count("resident_kernel") == 2
    all_close(found, ge2.grad(loss, (0, 1, 2))(*xs), rtol=1e-4, atol=1e-6)


# ----------------------------------------------------------------------------------------- the rule


def test_a_loop_of_much_work_keeps_its_kernels() -> None:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(h + x)
        return h, h.sum()

    found, names = on_shim(lambda h, xs: lax.scan(step, h, xs), drawn(1 << 15), drawn(2, 1 << 15))
    assert "resident_kernel" not in names
    wanted = lax.scan(step, drawn(1 << 15), drawn(2, 1 << 15))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)


def test_equal_branches_that_follow_each_other_are_a_loop() -> None:
    def many(x: Any) -> Any:
        for _ in range(60):
            x = lax.cond(x.sum() > 0, lambda x: x // 2 - 7, lambda x: x * 3 + 40, x)
        return x

    same(many, np.arange(-3, 6))


def test_many_branches_are_several_kernels() -> None:
    def many(x: Any) -> Any:
        for i in range(60):
            x = lax.cond(x.sum() > 0, lambda x, i=i: x // 2 - i, lambda x: x * 3 + 40, x)
        return x

    found, names = on_shim(many, np.arange(-3, 6))
    assert set(names) == {"resident_kernel"} and 1 < len(names) < 6
    np.testing.assert_array_equal(found, many(np.arange(-3, 6)))


def test_what_is_around_a_loop_is_part_of_it_or_left_alone() -> None:
    def f(x: Any, y: Any) -> Any:
        z = np.exp(x) / 2
        a = lax.fori_loop(0, 4, lambda i, c: c * 0.5 + z, x)
        return a.sum(), z, y.cumsum()

    x, y = drawn(50), drawn(40)
    found, names = on_shim(f, x, y)
    assert names.count("resident_kernel") == 1
    all_close(found, f(x, y), rtol=1e-5, atol=1e-5)


def test_the_pass_may_be_switched_off() -> None:
    with config.using(passes_off=("resident",)):
        assert (
            "resident_kernel"
            not in on_shim(
                lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x), drawn(5)
            )[1]
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "test",
    [
        test_the_gradient_by_rows,
        test_rows_with_all_that_rows_may_do,
        test_a_matrix_on_the_left_and_a_vector,
        *(partial(test_a_matrix_that_is_not_square, columns=n) for n in (64, 97, 256)),
        *(
            partial(test_rows_that_blocks_share, rows=rows, sums=sums, reverse=False)
            for rows in (7, 31, 96)
            for sums in (64, 128, 256)
        ),
    ],
    ids=name_of,
)
def test_on_a_chip_of_forty_multiprocessors_with_99_kb(test: Callable[[], None]) -> None:
    with config.using(tuning=(SMALL_CHIP,)):
        test()
