"""custom_root and custom_linear_solve: derivatives are those of the solution,
whatever the solver did.
"""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.errors import GradientError, NoRuleError
from ge2.lax import cond, custom_linear_solve, custom_root, scan, stop_gradient, while_loop
from tests.transforms.functions import close

M, B = np.array([[3.0, 1.0], [0.5, 2.0]]), np.array([1.0, 2.0])


def cramer(m, b):
    det = m[0, 0] * m[1, 1] - m[0, 1] * m[1, 0]
    return np.stack([m[1, 1] * b[0] - m[0, 1] * b[1], m[0, 0] * b[1] - m[1, 0] * b[0]]) / det


def solver(matvec, b):
    """It finds the matrix out; no derivative flows through what it does."""
    matrix = ge2.vmap(matvec, out_axes=1)(np.eye(2))
    return stop_gradient(cramer(matrix, b))


def solved(m, b):
    return custom_linear_solve(lambda x: m @ x, b, solver, solver)


def newton(f, x):
    for _ in range(8):
        y, dy = ge2.jvp(f, (x,), (np.ones_like(x),))
        x = stop_gradient(x - y / dy)
    return x


def by_division(g, y):
    return y / g(np.ones_like(y))


def cube_root(a):
    return custom_root(lambda x: x**3 - a, 1.0, newton, by_division)


def cubed(f):
    return lambda m, b: (f(m, b) ** 3).sum()


STACKED = np.stack([M, 2 * M])
SOLVES = {
    "value": lambda f: f(M, B),
    "jit": lambda f: ge2.jit(f)(M, B),
    "grad": lambda f: ge2.grad(cubed(f), (0, 1))(M, B),
    "jit of grad": lambda f: ge2.jit(ge2.grad(cubed(f), (0, 1)))(M, B),
    "jvp": lambda f: ge2.jvp(f, (M, B), (M * 2 + 1, B * 3)),
    "jvp by b alone": lambda f: ge2.jvp(lambda b: f(M, b), (B,), (B * 3,)),
    "linearize": lambda f: ge2.linearize(f, M, B)[1](M + 1, B),
    "hessian": lambda f: ge2.hessian(cubed(f), (0, 1))(M, B),
    "forward twice": lambda f: ge2.jacfwd(ge2.jacfwd(f))(M, B),
    "reverse twice": lambda f: ge2.jacrev(ge2.jacrev(cubed(f)))(M, B),
    "vmap by both": lambda f: ge2.vmap(f)(STACKED, STACKED[0]),
    "vmap by the matrix": lambda f: ge2.jit(ge2.vmap(ge2.grad(cubed(f), (0, 1)), (0, None)))(
        STACKED, B
    ),
    "vmap by b": lambda f: ge2.vmap(f, (None, 1))(M, M),
    "grad of vmap": lambda f: ge2.grad(lambda m: ge2.vmap(cubed(f), (None, 0))(m, M).sum())(M),
    "in a branch": lambda f: ge2.jit(
        ge2.grad(lambda m: cond(m[0, 0] > 0, cubed(f), lambda m, b: b.sum(), m, B))
    )(M),
    "in a checkpoint": lambda f: ge2.grad(ge2.checkpoint(cubed(f)))(M, B),
}


@pytest.mark.parametrize("name", SOLVES)
def test_a_linear_solve_is_differentiated_as_its_solution(name):
    for ours, plain in zip(
        *(ge2.tree.leaves(SOLVES[name](f)) for f in (solved, cramer)), strict=True
    ):
        close(ours, plain)


ROOTS = {
    "value": lambda f: f(8.0),
    "jit": lambda f: ge2.jit(f)(8.0),
    "grad": lambda f: ge2.grad(f)(8.0),
    "third": lambda f: ge2.grad(ge2.grad(ge2.grad(f)))(8.0),
    "jvp": lambda f: ge2.jvp(f, (8.0,), (2.0,))[1],
    "forward twice": lambda f: ge2.jacfwd(ge2.jacfwd(f))(8.0),
    "forward over reverse": lambda f: ge2.jacfwd(ge2.grad(f))(8.0),
    "reverse over forward": lambda f: ge2.grad(ge2.jacfwd(f))(8.0),
    "vmap": lambda f: ge2.vmap(f)(np.array([1.0, 8.0])),
    "jit of vmap of grad": lambda f: ge2.jit(ge2.vmap(ge2.grad(f)))(np.array([1.0, 8.0])),
    "grad of vmap": lambda f: ge2.grad(lambda a: ge2.vmap(f)(a).sum())(np.array([1.0, 8.0])),
    "linearize": lambda f: ge2.linearize(f, 8.0)[1](3.0),
}


@pytest.mark.parametrize("name", ROOTS)
def test_a_root_is_differentiated_by_implicit_functions(name):
    close(ROOTS[name](cube_root), ROOTS[name](np.cbrt))


def test_the_tangent_solve_may_be_a_linear_solve():
    def root(a):
        def tangent_solve(g, y):
            return custom_linear_solve(g, y, by_division, by_division)

        return custom_root(lambda x: x**3 - a, 1.0, newton, tangent_solve)

    close(ge2.grad(root)(8.0), ge2.grad(np.cbrt)(8.0))
    close(ge2.grad(ge2.grad(root))(8.0), ge2.grad(ge2.grad(np.cbrt))(8.0))


def test_symmetric_products_need_one_solver():
    f = lambda a: custom_linear_solve(lambda x: a * x, 6.0, by_division, symmetric=True)  # noqa: E731
    assert f(2.0) == 3.0
    close(ge2.grad(f)(2.0), -1.5)
    close(ge2.grad(ge2.grad(f))(2.0), 1.5)
    close(ge2.vmap(ge2.grad(f))(np.array([1.0, 2.0])), [-6.0, -1.5])


def test_trees():
    def f(p):
        def residual(x):
            return {"u": x["u"] - p["a"] * 2.0, "v": x["v"] - x["u"]}

        def solve(f, x):
            u = -f({"u": 0.0, "v": 0.0})["u"]
            return {"u": u, "v": u}

        tangent = lambda g, y: {"u": y["u"], "v": y["v"] + y["u"]}  # noqa: E731
        x = custom_root(residual, {"u": 0.0, "v": 0.0}, solve, tangent)
        return x["u"] * x["v"]

    assert ge2.grad(f)({"a": 3.0})["a"] == 24.0
    pair = lambda a, b: custom_linear_solve(  # noqa: E731
        lambda x: (x[0] * a, x[1] * 2.0), b, lambda f, b: (b[0] / a, b[1] / 2.0), symmetric=True
    )
    da, db = ge2.grad(lambda a, b: sum(pair(a, b)), (0, 1))(4.0, (2.0, 3.0))
    assert (da, db) == (-0.125, (0.25, 0.5))


def test_auxiliary_results_have_no_derivative():
    def root(a):
        return custom_root(
            lambda x: x * x - a,
            1.0,
            lambda f, x: (newton(f, x), {"at": f(x), "n": np.arange(2)}),
            by_division,
            True,
        )

    def x_of(a):
        steps = lambda f, b: (b / f(1.0), {"steps": 3, "b": b})  # noqa: E731
        return custom_linear_solve(lambda x: a * x, 1.0, steps, symmetric=True, has_aux=True)

    def by_two(a):
        steps = lambda f, b: (by_division(f, b), np.array([1, 2]))  # noqa: E731
        return custom_linear_solve(lambda x: a * x, 1.0, steps, steps, has_aux=True)

    assert ge2.grad(by_two, has_aux=True)(2.0)[0] == -0.25
    assert ge2.jit(root)(4.0)[1]["at"] == -3.0
    assert root(4.0)[1]["n"].tolist() == [0, 1]
    close(ge2.grad(root, has_aux=True)(4.0)[0], 0.25)
    value, slope = ge2.jit(ge2.value_and_grad(x_of, has_aux=True))(2.0)
    assert value[1]["steps"] == 3 and slope == -0.25
    assert ge2.grad(lambda a: root(a)[1]["at"])(4.0) == 0.0


def test_a_number_takes_the_dtype_of_the_equation():
    root = lambda a: custom_root(lambda x: x * x - a, 1.0, newton, by_division)  # noqa: E731
    single = np.float32(4.0)
    assert ge2.jit(root)(single).dtype == np.float32 and ge2.grad(root)(single).dtype == np.float32
    half = lambda a: custom_linear_solve(lambda x: a * x, 1.0, by_division, symmetric=True)  # noqa: E731
    assert ge2.jit(half)(single).dtype == np.float32 and ge2.jit(half)(4.0).dtype == np.float64
    assert ge2.jit(lambda a: custom_root(lambda x: x - a, 1, newton, by_division))(2.0) == 2.0


def test_the_guess_has_no_derivative():
    f = lambda guess: custom_root(lambda x: x**3 - 8.0, guess, newton, by_division)  # noqa: E731
    assert ge2.grad(f)(1.0) == 0.0
    assert ge2.jvp(f, (1.0,), (1.0,))[1] == 0.0


def test_reverse_mode_needs_a_transposed_solver():
    f = lambda a: custom_linear_solve(lambda x: a * x, 1.0, by_division)  # noqa: E731
    close(ge2.jvp(f, (2.0,), (1.0,))[1], -0.25)
    with pytest.raises(
        NoRuleError, match="no reverse derivative without a transpose_solve"
    ) as error:
        ge2.grad(f)(2.0)
    assert "test_solves.py" in str(error.value)


def linear(matvec, b=1.0):
    return lambda a: custom_linear_solve(lambda x: matvec(a, x), b, lambda f, b: b, symmetric=True)


WRONG = {
    "not linear: its derivative": linear(lambda a, x: a * x * x),
    "not linear: add": linear(lambda a, x: a * x + 1.0),
    r"is f64\[2\], but b of custom_linear_solve is f64\[\]": linear(lambda a, x: np.stack([x, x])),
    r"b of custom_linear_solve holds floating arrays; got i64": linear(lambda a, x: x, 1),
    r"not linear: its derivative depends on where it is taken": lambda a: custom_root(
        lambda x: x - a, 1.0, newton, lambda g, y: y * y
    ),
    r"is f64\[\], but initial_guess of custom_root is f64\[3\]": lambda a: custom_root(
        lambda x: x - a, np.ones(3), lambda f, x: x[0], by_division
    ),
    "initial_guess of custom_root and the solution of .* differ": lambda a: custom_root(
        lambda x: x - a, 1.0, lambda f, x: (x,), by_division
    ),
    r"initial_guess of custom_root holds floating arrays; got i64": lambda a: custom_root(
        lambda x: x - a, np.arange(3), newton, by_division
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_refused(says):
    with pytest.raises(GradientError, match=says) as error:
        ge2.grad(lambda a: np.sum(WRONG[says](a)))(2.0)
    assert "test_solves.py" in str(error.value)


UNLIKE = {
    r"result of .* is f64\[2\], but the argument of .* is f64\[\]": lambda x: np.stack([x, x]),
    r"result of .* is f32\[\], but the argument of .* is f64\[\]": lambda x: np.float32(x),
    "the argument of .* and the result of .* differ": lambda x: (x,),
}


@pytest.mark.parametrize("says", UNLIKE)
def test_what_is_refused_where_no_derivative_is_asked_for(says):
    f, one = UNLIKE[says], np.float64(1.0)
    for solve in (lambda f, x: x, lambda f, x: (f(x), x)[1]):  # a solver need not call it
        with pytest.raises(GradientError, match=says):
            custom_root(f, one, solve, by_division)
        with pytest.raises(GradientError, match=says):
            custom_linear_solve(f, one, solve, symmetric=True)


# --------------------------------------------------------------------------------------- with loops


def until_it_stands(f, x):
    def step(state):
        x, _ = state
        y, dy = ge2.jvp(f, (x,), (np.ones_like(x),))
        return x - y / dy, y

    return while_loop(lambda s: abs(s[1]) > 1e-12, step, (x, f(x) * 0.0 + 1.0))[0]


def test_a_root_by_a_while_loop_has_a_reverse_derivative():
    root = lambda a: custom_root(lambda x: x**3 - a, 1.0, until_it_stands, by_division)  # noqa: E731
    close(ge2.grad(root)(8.0), ge2.grad(np.cbrt)(8.0))
    close(ge2.jit(ge2.grad(ge2.grad(root)))(8.0), ge2.grad(ge2.grad(np.cbrt))(8.0))
    close(
        ge2.jit(ge2.vmap(ge2.grad(root)))(np.array([1.0, 8.0])),
        ge2.vmap(ge2.grad(np.cbrt))(np.array([1.0, 8.0])),
    )
    thrice = lambda f: lambda a: scan(lambda c, _: (f(c), None), a, None, length=3)[0]  # noqa: E731
    close(ge2.jit(ge2.grad(thrice(root)))(8.0), ge2.grad(thrice(np.cbrt))(8.0))


def test_conjugate_gradients_by_a_while_loop(rng):
    def solve(matvec, b):
        def step(state):
            x, r, p = state
            q = matvec(p)
            alpha = (r @ r) / (p @ q)
            s = r - alpha * q
            return x + alpha * p, s, s + (s @ s) / (r @ r) * p

        return while_loop(lambda s: s[1] @ s[1] > 1e-26, step, (b * 0.0, b, b))[0]

    root, b = rng.normal(size=(4, 4)), rng.normal(size=4)
    m = root @ root.T + np.eye(4)
    x_of = lambda m, b: custom_linear_solve(lambda x: m @ x, b, solve, symmetric=True)  # noqa: E731
    inverse = np.linalg.inv(m)
    close(ge2.jit(x_of)(m, b), inverse @ b)
    dm, db = ge2.jit(ge2.grad(lambda m, b: x_of(m, b).sum(), (0, 1)))(m, b)
    close(db, inverse.sum(0))
    close(dm, -np.outer(inverse.sum(0), inverse @ b))
    close(
        ge2.vmap(x_of, (None, 1))(m, np.stack([b, 2 * b], 1)),
        np.stack([inverse @ b, 2 * inverse @ b]),
    )
