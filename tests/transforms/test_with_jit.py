"""jit changes nothing inside, outside and between transforms: what test_nesting.py cannot draw."""

from __future__ import annotations

import numpy as np

from ge2 import jit
from ge2.transforms import (
    checkpoint,
    cond,
    custom_jvp,
    custom_vjp,
    grad,
    jvp,
    linearize,
    make_jaxpr,
    vjp,
    vmap,
)
from tests.transforms.functions import FUNCTIONS, close, points


def total(f):
    return lambda x: np.sum(np.sin(f(x)))


def test_in_branches_rules_and_checkpoints(rng):
    x, f = points(rng), FUNCTIONS["elementwise"]
    g = lambda x: cond(np.sum(x) > 0, jit(f), jit(checkpoint(jit(np.sin))), x)  # noqa: E731
    close(jit(grad(total(g)))(x), grad(total(g))(x))
    close(grad(total(jit(g)))(-x), grad(total(g))(-x))
    h = custom_vjp(jit(np.sin))
    h.defvjp(jit(lambda x: (np.sin(x), x)), jit(lambda x, ct: (10 * np.cos(x) * ct,)))
    close(jit(grad(lambda x: np.sum(h(x))))(x), 10 * np.cos(x))
    close(vmap(grad(jit(h)))(x), 10 * np.cos(x))
    k = custom_jvp(np.sin)
    k.defjvp(lambda p, t: (np.sin(p[0]), 10 * np.cos(p[0]) * t[0]))
    close(jit(grad(lambda x: np.sum(jit(k)(x))))(x), 10 * np.cos(x))
    close(jit(lambda x: jvp(k, (x,), (x,))[1])(x), 10 * np.cos(x) * x)


def test_python_numbers_and_structures():
    f = jit(lambda p, n: {"y": p["x"] * p["x"] * n, "n": n + 1})
    found = grad(lambda p: f(p, 3)["y"])({"x": 2.0})
    assert found == {"x": 12.0} and type(found["x"]) is float
    y, _ = vjp(jit(lambda x: (x * x, 3)), 2.0)
    assert y == (4.0, 3) and type(y[0]) is float
    g = jit(grad(lambda x: cond(x > 0, lambda x: x * x, lambda x: -x, x)))
    assert (g(3.0), g(-3.0)) == (6.0, -1.0) and type(g(3.0)) is float


def test_a_pullback_may_be_jitted(rng):
    x = points(rng)
    y, pull = vjp(FUNCTIONS["matmul"], x)
    close(jit(pull)(y)[0], pull(y)[0])
    push = linearize(FUNCTIONS["matmul"], x)[1]
    close(jit(push)(x), push(x))


def test_the_text_of_a_jitted_function_under_grad():
    text = str(make_jaxpr(grad(jit(lambda x: np.sum(np.sin(x)))))(np.ones(3)))
    assert "jit" in text
