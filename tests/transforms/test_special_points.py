"""First, second and mixed derivatives where rules and functions have guards,
against analytic values.
"""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import grad, hessian, jacfwd
from ge2.scipy import special

PI2, LN4 = np.pi**2, np.log(4.0)
BINARY = [np.power, np.float_power, np.hypot, np.arctan2, np.logaddexp, np.logaddexp2]
POWERS = [  # x, y, and x ** y derived by each of the arguments in turn
    (4.0, 0.0, (0, 1), 0.25),
    (4.0, 0.0, (1, 0), 0.25),
    (4.0, 0.0, (0, 0), 0.0),
    (4.0, 0.0, (1, 1), LN4**2),
    (4.0, 0.0, (0, 0, 1), -1 / 16),
    (4.0, 1.0, (0, 0, 1), 0.25),
    (4.0, 1.0, (0, 1, 0), 0.25),
    (4.0, 1.0, (1, 0, 0), 0.25),
    (4.0, 2.0, (0, 1), 4.0 + 8.0 * LN4),
    (4.0, -1.0, (0, 1), (1 - LN4) / 16),
    (0.0, 2.0, (0, 0), 2.0),
    (0.0, 2.0, (0, 1), 0.0),
    (0.0, 2.0, (1, 0), 0.0),
    (0.0, 1.0, (0,), 1.0),
    (0.0, 1.0, (0, 1), 1.0),
    (0.0, 1.0, (1, 0), 1.0),
    (0.0, 3.0, (0, 0, 0), 6.0),
    (0.0, 0.0, (0,), 0.0),
    (0.0, 0.5, (0,), np.inf),
    (0.0, 1.0, (1,), 0.0),
    (0.0, 0.5, (1,), 0.0),
    (-2.0, 3.0, (0, 0), -12.0),
]


@pytest.mark.parametrize(("x", "y", "by", "want"), POWERS)
def test_powers(x, y, by, want):
    def f(x, y):
        return x**y

    for n in by:
        f = grad(f, n)
    np.testing.assert_allclose(f(x, y), want, rtol=1e-12)


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize(
    "at", [(4.0, 0.0), (4.0, 1.0), (2.5, -1.0), (0.0, 2.0), (0.0, 1.0), (0.0, 0.0), (1.0, 1.0)]
)
@pytest.mark.parametrize(
    "f",
    [np.power, np.float_power, np.hypot, np.arctan2, np.logaddexp, np.logaddexp2],
    ids=lambda f: f.__name__,
)
def test_hessians_are_symmetric(f, at):
    h = hessian(lambda v: f(v[0], v[1]))(np.array(at))
    np.testing.assert_allclose(h, h.T, rtol=1e-12, atol=1e-14)


def sinc_derivative(x, order):
    """By the series of sin(pi x) / (pi x)."""
    total, term = 0.0, 1.0
    for k in range(40):
        n = 2 * k
        if n >= order:
            fall = np.prod(np.arange(n, n - order, -1.0)) if order else 1.0
            total += term * fall * x ** (n - order)
        term *= -PI2 / ((n + 2) * (n + 3))
    return total


@pytest.mark.exhaustive
@pytest.mark.parametrize("x", [0.0, -0.0, 1e-300, -1e-5, 0.3, 0.32, -1.0])
def test_sinc(x):
    f = np.sinc
    for order in range(4):
        np.testing.assert_allclose(f(x), sinc_derivative(x, order), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(
            f(np.float64(x)), sinc_derivative(x, order), rtol=1e-9, atol=1e-13
        )
        f = grad(f)
    assert grad(np.sinc)(1e200) == pytest.approx(0.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf, 7.0])
@pytest.mark.parametrize("f", [np.var, np.std], ids=["var", "std"])
def test_moments_of_some_elements(f, hole):
    """What is left out has no derivative, and gives the others none."""
    x, keep = np.array([1.0, hole, 3.0, 4.5]), np.array([True, False, True, True])
    for ddof in (0, 1):

        def some(x):
            return f(x, ddof=ddof, where=keep)  # noqa: B023

        def dense(x):
            return f(x, ddof=ddof)  # noqa: B023

        np.testing.assert_allclose(grad(some)(x)[keep], grad(dense)(x[keep]), rtol=1e-12)
        h = hessian(some)(x)
        np.testing.assert_allclose(h[np.ix_(keep, keep)], hessian(dense)(x[keep]), rtol=1e-12)
        assert not h[1].any() and not h[:, 1].any() and grad(some)(x)[1] == 0


@pytest.mark.parametrize(
    ("f", "g"), [(np.nanvar, np.var), (np.nanstd, np.std), (np.nanmean, np.mean)]
)
def test_moments_of_what_is_no_nan(f, g):
    x = np.array([[1.0, np.nan, 3.0, 4.5], [2.0, 0.5, np.nan, np.nan]])
    keep = ~np.isnan(x)
    found = grad(lambda x: f(x, axis=1).sum())(x)
    want = np.zeros_like(x)
    for row, k, w in zip(x, keep, want, strict=True):
        w[k] = grad(g)(row[k])
    np.testing.assert_allclose(found, want, rtol=1e-12)
    np.testing.assert_allclose(jacfwd(lambda x: f(x, axis=1).sum())(x), want, rtol=1e-12)


@pytest.mark.parametrize("x", [np.inf, -np.inf])
@pytest.mark.parametrize("f", [np.logaddexp, np.logaddexp2], ids=lambda f: f.__name__)
def test_sums_of_infinite_logarithms(f, x):
    """Equal infinities share the derivative, and a smaller operand has none."""
    assert (grad(f)(x, x), grad(f, 1)(x, x)) == (0.5, 0.5)
    for y in (0.0, -x):
        assert (grad(f)(x, y), grad(f, 1)(x, y)) == ((1.0, 0.0) if x > 0 else (0.0, 1.0))
    assert grad(grad(f))(x, x) == 0.0


ZEROS = [
    (
        np.prod,
        [0.0, 2.0, 3.0],
        [6.0, 0.0, 0.0],
        [[0.0, 3.0, 2.0], [3.0, 0.0, 0.0], [2.0, 0.0, 0.0]],
    ),
    (
        np.prod,
        [0.0, 2.0, 0.0],
        [0.0, 0.0, 0.0],
        [[0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]],
    ),
    (
        np.nanprod,
        [0.0, np.nan, 3.0],
        [3.0, 0.0, 0.0],
        [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
    ),
    (
        lambda x: np.cumprod(x).sum(),
        [0.0, 2.0, 0.0],
        [3.0, 0.0, 0.0],
        [[0, 1, 2], [1, 0, 0], [2, 0, 0]],
    ),
    (
        lambda x: np.max(x) ** 2,
        [1.0, 3.0, 3.0],
        [0.0, 3.0, 3.0],
        [[0, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]],
    ),
    (lambda x: np.sum(np.abs(x) ** 3), [0.0, -1.0], [0.0, -3.0], [[0.0, 0.0], [0.0, 6.0]]),
]


TWICE, NONE = 2 * np.eye(2), np.zeros((2, 2))
ORIGIN = [0.0, 0.0]


def number(x):
    return x[0] + 1j * x[1]


# lengths of nothing count as constant; their even powers have all derivatives
ZEROS += [
    (lambda x: np.linalg.norm(x) ** 2, ORIGIN, [0.0, 0.0], TWICE),
    (lambda x: np.linalg.norm(x) * np.linalg.norm(x), ORIGIN, [0.0, 0.0], TWICE),
    (lambda x: np.linalg.norm(x[None]) ** 4, ORIGIN, [0.0, 0.0], NONE),
    (lambda x: np.sqrt(x @ x) ** 2, ORIGIN, [0.0, 0.0], TWICE),
    (lambda x: np.sqrt(3 * np.einsum("i,i", x, x)) ** 2, ORIGIN, [0.0, 0.0], 3 * TWICE),
    (lambda x: np.hypot(x[0], x[1]) ** 2, ORIGIN, [0.0, 0.0], TWICE),
    (lambda x: np.abs(number(x)) ** 2, ORIGIN, [0.0, 0.0], TWICE),
    (lambda x: np.square(np.abs(number(x))), [3.0, 4.0], [6.0, 8.0], TWICE),
    (lambda x: np.abs(number(x)) ** 4, ORIGIN, [0.0, 0.0], NONE),
    (lambda x: np.abs(number(x)) ** 4, [1.0, 1.0], [8.0, 8.0], [[16.0, 8.0], [8.0, 16.0]]),
    (lambda x: np.linalg.norm(x), ORIGIN, [0.0, 0.0], NONE),
    (lambda x: np.linalg.norm(x, 3), ORIGIN, [0.0, 0.0], NONE),
    (lambda x: np.linalg.norm(x, 3) ** 3, [1.0, -1.0], [3.0, -3.0], [[6.0, 0.0], [0.0, 6.0]]),
    (lambda x: np.linalg.norm(x[:, None], axis=1).sum(), [0.0, -2.0], [0.0, -1.0], NONE),
    (lambda x: np.sqrt(x**2 + 1e-300 * x**2).sum(), [0.0, -2.0], [0.0, -1.0], NONE),
    (np.std, [3.0, 3.0], [0.0, 0.0], NONE),
    (lambda x: np.std(x) ** 2, [3.0, 3.0], [0.0, 0.0], [[0.5, -0.5], [-0.5, 0.5]]),
    (np.nanstd, [np.nan, 3.0], [0.0, 0.0], NONE),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("f", "x", "first", "second"), ZEROS)
def test_products_and_ties(f, x, first, second):
    np.testing.assert_allclose(grad(f)(np.array(x)), first, atol=1e-15)
    np.testing.assert_allclose(hessian(f)(np.array(x)), second, atol=1e-15)


ORDERS = {
    "grad of grad": lambda f, i, j: grad(grad(f, i), j),
    "jacfwd of grad": lambda f, i, j: jacfwd(grad(f, i), j),
    "grad of jacfwd": lambda f, i, j: grad(jacfwd(f, i), j),
    "jacfwd of jacfwd": lambda f, i, j: jacfwd(jacfwd(f, i), j),
}
SECOND = [  # f, (x, y), and its Hessian
    (np.power, (0.0, 1.0), [[0.0, 1.0], [1.0, 0.0]]),
    (np.power, (0.0, 2.0), [[2.0, 0.0], [0.0, 0.0]]),
    (np.power, (0.0, 3.0), [[0.0, 0.0], [0.0, 0.0]]),
    (np.power, (-2.0, 3.0), [[-12.0, np.nan], [np.nan, np.nan]]),
    (np.power, (-2.0, 1.0), [[0.0, np.nan], [np.nan, np.nan]]),
    (special.xlogy, (0.0, 2.0), [[0.0, 0.5], [0.5, 0.0]]),
    (special.xlogy, (3.0, 2.0), [[0.0, 0.5], [0.5, -0.75]]),
    (special.xlog1py, (0.0, 1.0), [[0.0, 0.5], [0.5, 0.0]]),
    (special.xlog1py, (0.0, 0.0), [[0.0, 1.0], [1.0, 0.0]]),
    (lambda x, y: np.abs(x * y) ** 2, (0.0, 3.0), [[18.0, 0.0], [0.0, 0.0]]),
    (lambda x, y: np.abs(x) ** 4 + np.abs(y) ** 2, (0.0, 0.0), [[0.0, 0.0], [0.0, 2.0]]),
    (lambda x, y: np.abs(x) * np.abs(x) * y, (0.0, 3.0), [[6.0, 0.0], [0.0, 0.0]]),
    (lambda x, y: np.square(np.abs(x)) + y, (-1.0, 3.0), [[2.0, 0.0], [0.0, 0.0]]),
    (np.hypot, (0.0, 2.0), [[0.5, 0.0], [0.0, 0.0]]),
    (np.hypot, (0.0, 0.0), [[0.0, 0.0], [0.0, 0.0]]),
    (lambda x, y: np.arctan2(x, y), (0.0, 2.0), [[0.0, -0.25], [-0.25, 0.0]]),
    (
        lambda x, y: np.where(x > 0, np.sqrt(np.where(x > 0, x, 1.0)) * y, y**2),
        (0.0, 3.0),
        [[0.0, 0.0], [0.0, 2.0]],
    ),
    (
        lambda x, y: np.where(x > 0, np.log(np.where(x > 0, x, 1.0)), x * y),
        (0.0, 3.0),
        [[0.0, 1.0], [1.0, 0.0]],
    ),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_second_derivatives_in_any_order(order):
    for f, at, want in SECOND:
        with np.errstate(all="ignore"):
            found = [[order(f, i, j)(*at) for j in (0, 1)] for i in (0, 1)]
        np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-14, err_msg=f"{f} at {at}")


def test_a_length_of_nothing_has_no_direction():
    for n in (0, 1):
        assert grad(np.hypot, n)(0.0, 0.0) == jacfwd(np.hypot, n)(0.0, 0.0) == 0.0
        np.testing.assert_allclose(grad(np.hypot, n)(3.0, -4.0), (0.6, -0.8)[n])


ENDS = [  # f, x, and its first and second derivatives there
    (np.cbrt, 0.0, np.inf, -np.inf),
    (np.cbrt, -0.0, np.inf, np.inf),
    (np.cbrt, np.inf, 0.0, 0.0),
    (np.cbrt, 8.0, 1 / 12, -1 / 144),
    (special.logit, 0.0, np.inf, -np.inf),
    (special.logit, 1.0, np.inf, np.inf),
    (special.logit, 0.25, 16 / 3, -128 / 9),
    (special.ndtri, 0.0, np.inf, -np.inf),
    (special.ndtri, 1.0, np.inf, np.inf),
    (special.erfcinv, 0.0, -np.inf, np.inf),
    (special.entr, -1.0, 0.0, 0.0),
    (special.entr, 0.5, np.log(2) - 1, -2.0),
    (special.log_ndtr, -1e4, 1e4 + 1e-4, -1 + 1e-8),
    (special.log_ndtr, -1e10, 1e10, -1.0),
    (special.log_ndtr, 37.0, 2.1200065515246056e-298, -7.84402424064104e-297),
    (special.log_ndtr, 60.0, 0.0, 0.0),
    (special.erfcx, 1e8, -1e-16 / np.sqrt(np.pi), 2e-24 / np.sqrt(np.pi)),
    (special.erfcx, 16.0, -0.002191076697725772, 0.0002723013226369784),
    (lambda x: np.arctan2(x, np.float64(1e-200)), 1e-200, 5e199, -np.inf),
    (lambda x: np.arctan2(x, np.float64(1e100)), -1e100, 5e-101, 5e-201),
    (lambda x: np.arctan2(x, np.float32(1e-25)), np.float32(1e-25), 5e24, -np.inf),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_ends(order):
    for f, x, first, second in ENDS:
        with np.errstate(all="ignore"):
            found = grad(f)(x), jacfwd(f)(x), order(f, 0, 0)(x)
        rtol = 1e-5 if isinstance(x, np.float32) else 1e-11
        np.testing.assert_allclose(found, (first, first, second), rtol=rtol, err_msg=f"{f} at {x}")
