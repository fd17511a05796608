"""Loops and branches as one kernel on a GPU: what NumPy gives, the same bits
each time, captured or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.dispatch import cache
from ge2.targets.cuda.launch import library_call
from tests.codegen.loop_programs import counted, either, inner_stacks
from tests.codegen.test_resident_random import arguments, program
from tests.gpu.names import kernels_of

TIME, BATCH, WIDTH = 512, 32, 256


def outputs(w: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = np.tanh(x + ge2.numpy.matmul(h, w, precision="tf32"))
        return h, h

    return lax.scan(step, h, xs)[1]


def loss(w: Any, h: Any, xs: Any) -> Any:
    return (outputs(w, h, xs) ** 2).mean()


def by_hand(w: Any, h: Any, xs: Any) -> tuple[Any, Any, Any]:
    """The derivative of the loss in float64, step by step."""
    w, h, xs = (a.astype(np.float64) for a in (w, h, xs))
    hs = [h]
    for x in xs:
        hs.append(np.tanh(x + hs[-1] @ w))
    n, ct, by_w = xs.size, np.zeros_like(h), np.zeros_like(w)
    by_xs = np.empty_like(xs)
    for t in reversed(range(len(xs))):
        by_xs[t] = (ct + 2 * hs[t + 1] / n) * (1 - hs[t + 1] ** 2)
        by_w += hs[t].T @ by_xs[t]
        ct = by_xs[t] @ w.T
    return by_w, ct, by_xs


@pytest.mark.parametrize("capture", ["on", "off"])
@pytest.mark.parametrize(
    ("steps", "batch", "width"),
    [(TIME, BATCH, WIDTH), (65, 7, 128), (33, 300, 64), (5, 3, 96), (9, 264, 256)],
)
def test_the_gradient_of_a_recurrent_net(
    cp: Any, rng: np.random.Generator, steps: int, batch: int, width: int, capture: str
) -> None:
    w = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    h, xs = (
        rng.standard_normal(s).astype(np.float32) for s in ((batch, width), (steps, batch, width))
    )
    with config.using(capture=capture):
        f = ge2.jit(ge2.grad(loss, (0, 1, 2)))
        given = [*map(cp.asarray, (w, h, xs))]
        found = [y.get() for y in f(*given)]
        for _ in range(3):
            again = [y.get() for y in f(*given)]
            assert [y.tobytes() for y in again] == [y.tobytes() for y in found]
    assert kernels_of(f).count("resident_kernel") == 2
    for y, want in zip(found, by_hand(w, h, xs), strict=True):
        # products of whole stacks, the weights' derivative, may be tf32
        np.testing.assert_allclose(y, want, rtol=0, atol=3e-3 * np.abs(want).max())


def test_another_length_and_batch_of_the_gradient_compile_nothing(
    cp: Any, rng: np.random.Generator
) -> None:
    library_call.made_now()
    cache.forget()
    f = ge2.jit(ge2.grad(loss, (0, 1, 2)))
    w = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
    for n, (steps, batch) in enumerate([(TIME, BATCH), (400, BATCH), (TIME, 24), (3, 1), (9, 65)]):
        h, xs = (
            rng.standard_normal(s).astype(np.float32)
            for s in ((batch, WIDTH), (steps, batch, WIDTH))
        )
        given = [*map(cp.asarray, (w, h, xs))]
        found = [y.get() for y in f(*given)]
        report = f.report()
        assert kernels_of(f).count("resident_kernel") == 2
        if 0 < n < 3:
            assert report.traced and not report.compiled, report.how
            assert report.bill.count("memory") == len(report.bill.kernels), str(report.bill)
            assert "0 compiled" in report.how
        of_loops = [each for each in report.bill.kernels if each.name.startswith("resident_kernel")]
        assert n == 0 or {each.how for each in of_loops} == {"memory"}, str(report.bill)
        for _ in range(3):  # captured, where it is
            again = [y.get() for y in f(*given)]
            assert [y.tobytes() for y in again] == [y.tobytes() for y in found]
        for y, want in zip(found, by_hand(w, h, xs), strict=True):
            np.testing.assert_allclose(y, want, rtol=0, atol=3e-3 * np.abs(want).max())


@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_and_rows_of_one_kernel(cp: Any, rng: np.random.Generator, reverse: bool) -> None:
    def net(w: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = np.tanh(h @ w + x)
            return h, h

        return lax.scan(step, h, xs, reverse=reverse)

    f, w = ge2.jit(net), (rng.standard_normal((128, 128)) / 12).astype(np.float32)
    compiled = []
    for rows in (3, 1, 32, 33):
        for steps in (5, 1, 2, 0):
            h, xs = (
                rng.standard_normal(s).astype(np.float32) for s in ((rows, 128), (steps, rows, 128))
            )
            last, ys = (y.get() for y in f(*map(cp.asarray, (w, h, xs))))
            if steps:
                compiled += [
                    each.name for each in f.report().bill.kernels if each.how == "compiled"
                ]
            at, want = h.astype(np.float64), np.empty_like(xs)
            for t in reversed(range(steps)) if reverse else range(steps):
                want[t] = at = np.tanh(at @ w.astype(np.float64) + xs[t])
            np.testing.assert_allclose(last, at, rtol=1e-5, atol=2e-6)
            np.testing.assert_allclose(ys, want, rtol=1e-5, atol=2e-6)
    assert len(compiled) <= 1, compiled


def test_a_loop_in_a_round_of_rows(cp: Any, rng: np.random.Generator) -> None:
    """Each block has its own stack of what the inner loop gives."""
    w, h, xs = (
        rng.standard_normal(s).astype(np.float32) for s in ((128, 128), (70, 128), (40, 70, 128))
    )
    w /= 30
    for y, want in zip(
        ge2.jit(inner_stacks)(*map(cp.asarray, (w, h, xs))), inner_stacks(w, h, xs), strict=True
    ):
        np.testing.assert_allclose(y.get(), want, rtol=1e-4, atol=1e-4)


def test_a_recurrent_net_forwards_is_as_exact_as_float32(cp: Any, rng: np.random.Generator) -> None:
    w = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH).astype(np.float32)
    h, xs = (
        rng.standard_normal(s).astype(np.float32) for s in ((BATCH, WIDTH), (40, BATCH, WIDTH))
    )
    found = ge2.jit(outputs)(*map(cp.asarray, (w, h, xs))).get()
    want, at = [], h.astype(np.float64)
    for x in xs:
        at = np.tanh(x + at @ w.astype(np.float64))
        want.append(at)
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("n", [1, 31, 64, 1023, 6000])
def test_ten_thousand_tiny_steps(cp: Any, rng: np.random.Generator, n: int) -> None:
    x = rng.standard_normal(n).astype(np.float32)
    f = ge2.jit(counted)
    count, y = f(cp.asarray(x))
    assert kernels_of(f) == ["resident_kernel"] and int(count) == 10_000
    want = x.copy()
    for _ in range(10_000):
        want = want * np.float32(0.999) + np.float32(1)
    np.testing.assert_array_equal(y.get(), want)


@pytest.mark.parametrize("n", [1, 64, 1000, 6000])
def test_ten_conds(cp: Any, rng: np.random.Generator, n: int) -> None:
    f = ge2.jit(either)
    for shift in (-3, 0, 5):
        x = rng.standard_normal(n).astype(np.float32) + np.float32(shift)
        np.testing.assert_allclose(f(cp.asarray(x)).get(), either(x), rtol=1e-5, atol=1e-5)
    assert kernels_of(f) == ["resident_kernel"]


@pytest.mark.parametrize("seed", range(24))
def test_random_rounds(cp: Any, seed: int) -> None:
    h, xs, w = arguments(seed)
    f: Callable[..., Any] = program(seed)
    found = ge2.jit(f)(*map(cp.asarray, (h, xs, w)))
    for y, want in zip(*map(ge2.tree_util.tree_leaves, (found, f(h, xs, w))), strict=True):
        np.testing.assert_allclose(y.get(), np.asarray(want), rtol=2e-4, atol=2e-4)


def test_a_donated_carry(cp: Any, rng: np.random.Generator) -> None:
    x = rng.standard_normal(500).astype(np.float32)
    f = ge2.jit(lambda x: lax.fori_loop(0, 9, lambda i, x: x * 0.5 + i, x), donate_argnums=0)
    want, at = x.copy(), cp.asarray(x)
    for _ in range(3):
        at = f(at)
        for i in range(9):
            want = want * np.float32(0.5) + np.float32(i)
    np.testing.assert_allclose(at.get(), want, rtol=1e-6)
