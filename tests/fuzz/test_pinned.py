"""Programs that compilers are known to get wrong, each in every executor, beside plain NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import InputError
from ge2.base.source import Ge2Warning

INF, NAN = np.inf, np.nan


@pytest.fixture(params=["c", "blocked", "reference"], autouse=True)
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.using(executor=request.param, threads=2):
        yield request.param


def equal(got: Any, want: Any, rtol: float = 1e-12) -> None:
    for y, w in zip(got, want, strict=True):
        assert np.asarray(y).dtype == np.asarray(w).dtype
        np.testing.assert_allclose(y, w, rtol=rtol, atol=rtol)


def apart(results: Any) -> None:
    for i, y in enumerate(results):
        assert not any(np.shares_memory(y, z) for z in results[i + 1 :])


# --------------------------------------------------------------------------- alpha * (A @ B + bias)


def affine(alpha, a, b, bias):
    return alpha * (a @ b + bias)


@pytest.mark.parametrize(
    "alpha", [0.5, np.float64(0.5), np.array([0.5, -2.0, 3.0])], ids=["weak", "one", "each"]
)
def test_a_scaled_product_under_vmap(alpha, rng):
    a, b, bias = (
        rng.standard_normal((3, 4, 5)),
        rng.standard_normal((3, 5, 2)),
        rng.standard_normal((3, 2)),
    )
    many = 0 if np.ndim(alpha) else None
    got = ge2.jit(ge2.vmap(affine, in_axes=(many, 0, 0, 0)))(alpha, a, b, bias)
    scale = np.reshape(alpha, (-1, 1, 1)) if np.ndim(alpha) else alpha
    equal([got], [scale * (a @ b + bias[:, None])])


def test_a_scaled_product_with_one_operand_shared(rng):
    a, b, bias = rng.standard_normal((3, 4, 5)), rng.standard_normal((5, 2)), rng.standard_normal(2)
    f = ge2.jit(ge2.vmap(affine, in_axes=(None, 0, None, None)))
    equal([f(2.0, a, b, bias)], [2.0 * (a @ b + bias)])
    equal([f(-1.5, a, b, bias)], [-1.5 * (a @ b + bias)])


def test_the_gradient_of_a_scaled_product_under_vmap(rng):
    a, b, bias = (
        rng.standard_normal((3, 4, 5)),
        rng.standard_normal((3, 5, 2)),
        rng.standard_normal((3, 2)),
    )
    alpha = rng.standard_normal(3)
    loss = lambda *xs: (affine(*xs) ** 2).sum()  # noqa: E731
    got = ge2.jit(ge2.vmap(ge2.grad(loss, argnums=(0, 1, 2, 3))))(alpha, a, b, bias)
    scale = alpha[:, None, None]
    inner = a @ b + bias[:, None]
    ct = 2 * scale**2 * inner
    want = (
        (2 * scale * inner**2).sum((1, 2)), ct @ b.swapaxes(1, 2), a.swapaxes(1, 2) @ ct, ct.sum(1),
    )  # fmt: skip
    equal(got, want)


# ---------------------------------------------------------------------- several results of a region


def test_several_results_of_one_region(rng):
    x, w = rng.standard_normal((7, 40)), rng.standard_normal(40)

    def f(x, w):
        y = np.tanh(x * w)
        return y, y > 0, (y * y).sum(1), y.sum(), x, y.T, np.argmax(y, 1), y

    got, want = ge2.jit(f)(x, w), f(x, w)
    equal(got, want)
    apart(got)
    assert not any(np.shares_memory(y, x) for y in got)


def test_results_of_one_region_that_read_one_another(rng):
    x = rng.standard_normal((6, 33)).astype(np.float32)

    def f(x):
        top = x.max(1, keepdims=True)
        e = np.exp(x - top)
        total = e.sum(1, keepdims=True)
        return e / total, np.log(total) + top, x - top, total

    equal(ge2.jit(f)(x), f(x), 1e-5)


# ----------------------------------------------------------------------------------------- donation


def donating(f, *arrays, argnums=0):
    """What f gives for the arrays, some donated; a refusal warns, which is
    not the question here.
    """
    want = f(*(x.copy() for x in arrays))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Ge2Warning)
        got = ge2.jit(f, donate_argnums=argnums)(*arrays)
    got, want = (y if isinstance(y, tuple) else (y,) for y in (got, want))
    equal(got, want)
    apart(got)


def test_an_array_that_is_passed_twice_and_donated(rng):
    x = rng.standard_normal(1000)
    donating(lambda a, b: (a + 1.0, b * a[::-1]), x, x, argnums=(0, 1))


def test_an_array_that_is_passed_twice_and_donated_once(rng):
    x = rng.standard_normal(1000)
    before = x.copy()
    donating(lambda a, b: (a + 1.0) * b[::-1], x, x)
    np.testing.assert_array_equal(x, before)


def test_a_view_of_a_donated_array(rng):
    x = rng.standard_normal((20, 50))
    donating(lambda a, b: (a * 2.0, b + a[0, 0]), x, x[3], argnums=0)


def test_a_donated_view(rng):
    base = rng.standard_normal(100)
    before = base.copy()
    donating(lambda a: a * 2.0, base[10:90])
    np.testing.assert_array_equal(base, before)


@pytest.mark.parametrize("f", [
    lambda a: a + a[::-1],
    lambda a: a - a.sum(),
    lambda a: a[::-1] * 2.0,
    lambda a: a * a[0] + a[-1],
    lambda a: np.cumsum(a) - a,
    lambda a: a[np.arange(999, -1, -1)] + a,
    lambda a: np.concatenate([a[500:], a[:500]]),
    lambda a: a.reshape(10, 100).T.reshape(-1) - a,
    lambda a: (a + 1.0, a.max(), a[::-1] * 2.0),
    lambda a: np.where(a > a.mean(), a, a[::-1]),
    lambda a: np.sort(a) - a,
    lambda a: np.roll(a, 1) + np.roll(a, -1) - 2.0 * a,
])  # fmt: skip
def test_a_result_over_an_input_that_is_read_elsewhere(f, rng):
    donating(f, rng.standard_normal(1000))


def test_a_row_over_which_its_softmax_is_written(rng):
    def softmax(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    donating(softmax, rng.standard_normal((50, 70)))


def test_an_update_of_a_donated_array_that_is_read_again(rng):
    def f(x, at):
        y = x.copy()
        y[at] = x[at[::-1]] * 2.0
        return y, y + x

    donating(f, rng.standard_normal(100), np.arange(0, 100, 7))


def test_donated_arrays_that_trade_places(rng):
    a, b = rng.standard_normal((2, 500))
    donating(lambda a, b: (b * 2.0, a + b, a - b), a, b, argnums=(0, 1))


# ----------------------------------------------------------------------------- what must not vanish


def test_zero_times_what_is_not_finite(rng):
    """`x * 0` is not 0: the products of infinities and NaN with zero are NaN,
    and signs of zeros stay.
    """
    a = np.array([INF, -INF, NAN, 1.0, -0.0, 1e308, -1e308, 5e-324, -2.0])
    b = np.array([INF, INF, 1.0, 1.0, 0.0, -1e308, 1e308, 5e-324, NAN])

    def f(a, b):
        diff = a - b
        return diff * 0.0 * diff, diff * 0 * diff, 0.0 * diff, diff * 0.0 + 0.0, a - a, a * 0.0

    with np.errstate(all="ignore"):
        want = f(a, b)
    got = ge2.jit(f)(a, b)
    for y, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(y, w)
        np.testing.assert_array_equal(np.signbit(y[w == 0]), np.signbit(w[w == 0]))


def test_what_infinities_and_zeros_keep():
    x = np.array([0.0, -0.0, INF, -INF, NAN, 1.5, -2.5], np.float32)

    def f(x):
        return (
            x + 0.0, x - 0.0, -x, 0.0 - x, x * 1.0, x / 1.0, x * -1.0, abs(x), x**1, x**2,
            np.maximum(x, x[0]),
        )  # fmt: skip

    with np.errstate(all="ignore"):
        want = f(x)
    for y, w in zip(ge2.jit(f)(x), want, strict=True):
        np.testing.assert_array_equal(y, w)
        kept = ~np.isnan(w)
        np.testing.assert_array_equal(np.signbit(y)[kept], np.signbit(w)[kept])


# ------------------------------------------------------------------------------------ odd arguments


def test_arguments_in_any_layout(rng):
    x = rng.standard_normal((6, 8)).astype(np.float32)
    f = ge2.jit(lambda x: (np.tanh(x).sum(0), x.T * 2.0))
    want = f(x)
    shifted = np.frombuffer(b"-" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)
    fixed = x.copy()
    fixed.flags.writeable = False
    wide = np.repeat(np.repeat(x, 2, 0), 3, 1)
    for other in (np.asfortranarray(x), wide[::2, ::3], x[::-1].copy()[::-1], shifted, fixed):
        equal(f(other), want, 0)


def test_an_array_of_the_other_byte_order_is_refused_by_name(rng):
    x = rng.standard_normal(5)
    f = ge2.jit(lambda x: x * 2.0)
    f(x)
    for _ in range(2):
        with pytest.raises(InputError, match="bytes are in another order"):
            f(x.astype(">f8"))
