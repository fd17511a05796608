"""What rounds of a scan only gather is computed after it: sums of products,
and stacks of a carry.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.ir import Var
from tests.passes.graphs import names
from tests.passes.test_trim import trimmed

rng = np.random.default_rng(0)
passed = partial(trimmed, rtol=1e-12, atol=1e-12)
LENGTHS = (1, 2, 7)


def drawn(n, *shape):
    return rng.standard_normal((n, *shape))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("reverse", [False, True])
def test_products_of_elements_are_one_product(n, reverse):
    def f(w, xs, ys):
        return lax.scan(lambda c, e: (c + e[0].T @ e[1], None), w, (xs, ys), reverse=reverse)[0]

    graph, loops = passed(f, drawn(3, 4), drawn(n, 5, 3), drawn(n, 5, 4))
    assert not loops and "dot_general" in names(graph)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_gradient_of_a_recurrent_weight(n):
    """No round adds to an array of the weight's size, and none copies the
    state that it began with.
    """

    def loss(w, h, xs):
        def step(h, x):
            h = np.tanh(h @ w + x)
            return h, h

        return (lax.scan(step, h, xs)[1] ** 2).sum()

    graph, loops = passed(
        ge2.grad(loss, argnums=(0, 1, 2)), drawn(4, 4), drawn(3, 4), drawn(n, 3, 4)
    )
    forward, backward = loops
    assert [forward.carry, backward.carry] == [1, 1]
    assert len(forward.body.outputs) == 2  # the state, and all states
    assert "concatenate" in names(graph)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_a_carry_that_is_stacked_before_and_after(n, reverse):
    def f(h, xs):
        def step(h, x):
            y = h * 0.5 + x
            return y, (h, y, h * 2)

        return lax.scan(step, h, xs, reverse=reverse)[1]

    graph, (loop,) = passed(f, drawn(3), drawn(n, 3))
    assert len(loop.body.outputs) == 3
    assert "concatenate" in names(graph)


def test_two_products_side_by_side_and_one_of_a_batch():
    def f(xs, ys):
        start = np.zeros((2, 3, 4)), np.zeros((3, 3))

        def step(carry, e):
            a, b = carry
            x, y = e
            return (a + np.matmul(x.swapaxes(1, 2), y), x[0].T @ x[1] + b), None

        return lax.scan(step, start, (xs, ys))[0]

    graph, _ = passed(f, drawn(6, 2, 5, 3), drawn(6, 2, 5, 4))
    # parts of elements, as the second takes, are not stacked
    assert names(graph).count("dot_general") == 1


@pytest.mark.parametrize(
    "f",
    [
        # the sum so far is read
        lambda w, xs: lax.scan(lambda c, x: (c + x.T @ x, c.sum()), w, xs),
        lambda w, xs: lax.scan(lambda c, x: (c + x.T @ x, c), w, xs),  # and stacked
        lambda w, xs: lax.scan(lambda c, x: (c * 0.5 + x.T @ x, None), w, xs),
        lambda w, xs: lax.scan(lambda c, x: (c + np.tanh(x.T @ x), None), w, xs),
        lambda w, xs: lax.scan(
            lambda c, x: (c + (x * 2).T @ x, None), w, xs
        ),  # which would have to be stacked
        lambda w, xs: lax.scan(lambda c, x: (c + w @ c, None), w, xs),
    ],
)
def test_what_is_no_sum_of_stacked_products_stays(f):
    _, (loop,) = passed(f, drawn(3, 3), drawn(5, 3, 3))
    assert loop.carry == 1


def test_half_types_are_rounded_once():
    """The sum of all rounds is accumulated in float32, as a product is."""
    x = np.full((64, 1, 1), 1 / 3, np.float16)

    def f(w, xs):
        return lax.scan(lambda c, x: (c + x @ x, None), w, xs)[0]

    found = ge2.jit(f)(np.zeros((1, 1), np.float16), x)
    exact = 64 * float(x[0, 0, 0]) ** 2
    assert abs(float(found[0, 0]) - exact) <= np.spacing(np.float16(exact))


def test_no_rounds_at_all():
    def f(w, xs):
        def step(c, x):
            return (c[0] + x.T @ x, x[0]), c[1]

        return lax.scan(step, (w, w[0]), xs)

    found = ge2.jit(f)(drawn(3, 3), np.zeros((0, 3, 3)))
    assert found[1].shape == (0, 3)


def defined(graph):
    """Every value is made before it is read."""
    known = set(graph.inputs)
    for eqn in graph.eqns:
        assert {a for a in eqn.inputs if isinstance(a, Var)} <= known
        known |= set(eqn.outs)
    return graph


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("chain", [2, 3])
def test_carries_that_follow_each_other(chain, reverse):
    """Each is the one before it a round earlier, and all are stacked."""

    def f(first, xs):
        def step(carry, x):
            new = np.tanh(carry[-1] * 0.5 + x)
            return (*carry[1:], new), (*carry, new)

        return lax.scan(step, tuple(first + i for i in range(chain)), xs, reverse=reverse)[1]

    graph, (loop,) = passed(f, drawn(3), drawn(5, 3))
    defined(graph)
    assert len(loop.body.outputs) == chain + 1


def test_a_stack_that_is_shifted_where_nobody_else_reads_it():
    w = rng.standard_normal((3, 3)) * 0.3

    def f(a, b, xs):
        def body(s, x):
            a, b = s
            n = np.tanh(a @ w + x)
            return (b, n), (a, b, n)

        _, (ra, rb, rn) = lax.scan(body, (a, b), xs)

        def other(c, y):
            y, z = y
            return (c[0] + z, c[1] * 2 + y), None  # nobody reads c[1]

        (s, _), _ = lax.scan(other, (np.zeros_like(a), np.zeros_like(a)), (rb, xs))
        return ra, rn, s

    args = drawn(2, 3), drawn(2, 3), drawn(40, 2, 3)
    defined(passed(f, *args)[0])
    with ge2.disable_jit():
        wanted = f(*args)
    for y, z in zip(ge2.jit(f)(*args), wanted, strict=True):
        np.testing.assert_allclose(y, z, rtol=1e-12)


def test_a_product_of_a_stack_that_is_shifted():
    def f(w, h, xs):
        def step(c, x):
            s, u = c
            n = np.tanh(u * 0.5 + x)
            return (s + u.T @ n, n), (u, n)

        return lax.scan(step, (w, h), xs)

    graph, (loop,) = passed(f, drawn(3, 3), drawn(2, 3), drawn(6, 2, 3))
    defined(graph)
    assert loop.carry == 1
