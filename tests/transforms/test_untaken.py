"""A branch that is not taken never reaches a derivative, in any order of transformations."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import checkpoint, grad, hessian, jacfwd, jit, jvp, vmap
from ge2.lax import cond, scan, switch, while_loop

W = np.array([[0.5, 1.0], [2.0, 0.25]])
XS = np.array([0.0, -1.0, 4.0, 0.0])


def root_or_exp(x, w):
    return cond(x > 0, lambda x: np.sqrt(x) * np.sum(w), lambda x: np.exp(x) * np.prod(w), x)


def never_taken(x, w):
    """The second branch divides by zero, takes logarithms of it, and
    multiplies by what comes out.
    """

    def bad(x):
        return np.sum(np.log(x - x) * np.sqrt(w - w)) + np.sum((w / x) @ (np.ones(2) / (x - x)))

    return cond(x < 10, lambda x: x * np.sum(w), bad, x)


def by_products(x, w):
    return switch(
        (x > 0).astype(int) + 2 * (x < 0),
        [
            lambda x: np.sum(np.tanh((x * np.ones(2)) @ w)),
            lambda x: np.sum(np.sqrt(x) * np.log(w @ (np.ones(2) / x)) ** 2),
            lambda x: np.sum(np.log(-x) * (w * w)),
        ],
        x,
    )


def in_a_scan(x, w):
    return scan(lambda c, t: (c + root_or_exp(x * t, w), None), 0.0, np.array([1.0, -2.0]))[0]


def of_a_scan(x, w):
    return cond(x > 1, lambda x: scan(lambda c, r: (np.log(c) + r.sum(), None), x, w)[0], np.exp, x)


FUNCTIONS = [root_or_exp, never_taken, by_products, in_a_scan, of_a_scan]


@pytest.mark.exhaustive
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_derivatives_of_a_batch_are_those_of_its_elements(f):
    total, g = (lambda xs, w: vmap(f, (0, None))(xs, w).sum()), grad(f)
    one, second = [g(x, W) for x in XS], np.diag([grad(g)(x, W) for x in XS])
    assert np.isfinite(second).all()
    np.testing.assert_allclose(grad(total)(XS, W), one)
    np.testing.assert_allclose(grad(total, 1)(XS, W), sum(grad(f, 1)(x, W) for x in XS))
    np.testing.assert_allclose(hessian(total)(XS, W), second, atol=1e-12)
    np.testing.assert_allclose(jacfwd(lambda x: grad(total)(x, W))(XS), second, atol=1e-12)
    t = np.array([1.0, -1.0, 0.5, 2.0])
    np.testing.assert_allclose(jvp(lambda xs: vmap(f, (0, None))(xs, W), (XS,), (t,))[1], t * one)


def test_calls_in_branches():
    """Weights that all elements share stay shared inside a call and a checkpoint."""
    inner = checkpoint(lambda x, w: np.sum(np.sqrt(w @ (np.ones(2) / x))))

    def f(x, w):
        return cond(x > 0, lambda x: inner(x, jit(lambda w: w * w)(w)), lambda x: x * w.sum(), x)

    found = jit(grad(lambda w: vmap(f, (0, None))(XS, w).sum()))(W)
    np.testing.assert_allclose(found, sum(grad(f, 1)(x, W) for x in XS))


def test_nested_batches():
    grid = np.array([[0.0, 4.0], [-1.0, 1.0]])

    def total(xs):
        return vmap(vmap(root_or_exp, (0, None)), (0, None))(xs, W).sum()

    want = [[grad(root_or_exp)(x, W) for x in row] for row in grid]
    np.testing.assert_allclose(grad(total)(grid), want)
    np.testing.assert_allclose(jit(grad(total))(grid), want)

    def rows(xs, ws):
        return vmap(lambda x, w: vmap(lambda x: root_or_exp(x, w))(x).sum())(xs, ws).sum()

    want = [sum(grad(root_or_exp, 1)(x, W) for x in row) for row in grid]
    np.testing.assert_allclose(grad(rows, 1)(grid, np.stack([W, W])), want)


def test_elements_whose_loop_is_over():
    def f(x):
        return while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + np.sqrt(4.0 - c[0]), c[1] * 2), (x, x)
        )[1]

    xs, t = np.array([0.0, 4.0, 2.9]), np.ones(3)
    want = [jvp(f, (x,), (1.0,))[1] for x in xs]
    np.testing.assert_allclose(jvp(vmap(f), (xs,), (t,))[1], want)
    np.testing.assert_allclose(vmap(jacfwd(f))(xs), want)
