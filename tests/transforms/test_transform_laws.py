"""What holds between transforms, whatever the function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge2.transforms import (
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    make_jaxpr,
    value_and_grad,
    vjp,
    vmap,
)
from tests.transforms.functions import FORWARD, FUNCTIONS, N, close, points, slope

every = pytest.mark.parametrize("name", FUNCTIONS)
every_forward = pytest.mark.parametrize("name", FORWARD)
seeds = st.integers(0, 2**32 - 1)


def scalar(f):
    return lambda x: np.sum(np.sin(f(x)))


@every
def test_the_gradient_is_that_of_differences(name, rng):
    f, x, t = scalar(FUNCTIONS[name]), points(rng), points(rng)
    value, gradient = value_and_grad(f)(x)
    close(value, f(x), 1e-12)
    close(gradient @ t, slope(f, x, t), 1e-7)


@every_forward
def test_jvp_is_that_of_differences(name, rng):
    f, x, t = FUNCTIONS[name], points(rng), points(rng)
    y, dy = jvp(f, (x,), (t,))
    close(y, f(x), 1e-12)
    close(dy, slope(f, x, t), 1e-7)


@every_forward
def test_jvp_and_vjp_are_transposes(name, rng):
    f, x, t = FUNCTIONS[name], points(rng), points(rng)
    y, dy = jvp(f, (x,), (t,))
    ct = rng.normal(size=np.shape(y))
    value, pull = vjp(f, x)
    close(value, y)
    close(np.sum(ct * dy), np.sum(pull(ct)[0] * t))


@every
def test_the_gradient_is_linear_in_the_function(name, rng):
    f, g, x = scalar(FUNCTIONS[name]), scalar(FUNCTIONS["layers"]), points(rng)
    close(grad(lambda x: 2.0 * f(x) - 3.0 * g(x))(x), 2.0 * grad(f)(x) - 3.0 * grad(g)(x))


@every
def test_pulling_back_is_linear(name, rng):
    y, pull = vjp(FUNCTIONS[name], points(rng))
    a, b = rng.normal(size=(2, *np.shape(y)))
    close(pull(2.0 * a - b)[0], 2.0 * pull(a)[0] - pull(b)[0])


@pytest.mark.exhaustive
@every_forward
def test_linearize_is_jvp(name, rng):
    f, x, ts = FUNCTIONS[name], points(rng), points(rng, 3)
    y, push = linearize(f, x)
    close(y, f(x), 1e-12)
    for t in ts:
        close(push(t), jvp(f, (x,), (t,))[1])


@every
def test_vmap_is_a_stacked_loop(name, rng):
    f, xs = FUNCTIONS[name], points(rng, 3)
    close(vmap(f)(xs), np.stack([f(x) for x in xs]))
    close(vmap(f, in_axes=1, out_axes=-1)(xs.T), np.stack([f(x) for x in xs], axis=-1))


@every
def test_vmap_of_vmap_is_two_loops(name, rng):
    f, xs = FUNCTIONS[name], points(rng, 2, 3)
    close(vmap(vmap(f))(xs), np.stack([[f(x) for x in row] for row in xs]))


@pytest.mark.exhaustive
@every
def test_vmap_of_grad_is_a_stacked_loop(name, rng):
    g, xs = grad(scalar(FUNCTIONS[name])), points(rng, 3)
    close(vmap(g)(xs), np.stack([g(x) for x in xs]))


@pytest.mark.exhaustive
@every
def test_grad_of_vmap_is_the_gradient_of_the_loop(name, rng):
    f, xs = FUNCTIONS[name], points(rng, 3)
    found = grad(lambda xs: np.sum(np.sin(vmap(f)(xs))))(xs)
    close(found, np.stack([grad(scalar(f))(x) for x in xs]))


@every
def test_vmap_over_no_places(name):
    y = FUNCTIONS[name](np.ones(N))
    assert vmap(FUNCTIONS[name])(np.ones((0, N))).shape == (0, *np.shape(y))


@pytest.mark.exhaustive
@every_forward
def test_jacfwd_is_jacrev(name, rng):
    f, x = FUNCTIONS[name], points(rng)
    forward, reverse = jacfwd(f)(x), jacrev(f)(x)
    assert forward.shape == (*np.shape(f(x)), N)
    close(forward, reverse)


@pytest.mark.exhaustive
@every
def test_the_gradient_of_a_gradient_is_that_of_differences(name, rng):
    g, x, t, ct = grad(scalar(FUNCTIONS[name])), points(rng), points(rng), points(rng)
    close(grad(lambda x: np.sum(g(x) * ct))(x) @ t, slope(lambda x: np.sum(g(x) * ct), x, t), 1e-6)


@pytest.mark.exhaustive
@every
def test_forward_over_reverse_is_reverse_over_reverse(name, rng):
    g, x, t = grad(scalar(FUNCTIONS[name])), points(rng), points(rng)
    close(jvp(g, (x,), (t,))[1], grad(lambda x: g(x) @ t)(x))


@pytest.mark.exhaustive
@every
def test_hessian_is_symmetric_and_that_of_differences(name, rng):
    f, x, t = scalar(FUNCTIONS[name]), points(rng), points(rng)
    h = hessian(f)(x)
    close(h, h.T)
    close(h @ t, slope(grad(f), x, t), 1e-6)


@pytest.mark.exhaustive
@every_forward
def test_reverse_over_forward_and_forward_over_forward(name, rng):
    f, x, t = scalar(FUNCTIONS[name]), points(rng), points(rng)
    along = lambda x: jvp(f, (x,), (t,))[1]  # noqa: E731
    close(grad(along)(x), hessian(f)(x) @ t)
    close(jvp(along, (x,), (t,))[1], t @ hessian(f)(x) @ t)


@every
def test_a_transformed_function_traces_as_it_computes(name, rng):
    f, x = scalar(FUNCTIONS[name]), points(rng)
    close(make_jaxpr(grad(f))(x)(x)[0], grad(f)(x))


@given(seeds, st.sampled_from(sorted(FUNCTIONS)), st.integers(1, 5), st.integers(0, 1))
def test_vmap_over_shared_and_mapped_arguments(seed, name, size, axis):
    rng = np.random.default_rng(seed)
    f, xs, w = FUNCTIONS[name], np.moveaxis(points(rng, size), 0, axis), points(rng)
    g = lambda x, w: f(x * w) + np.sum(w)  # noqa: E731
    want = np.stack([g(x, w) for x in np.moveaxis(xs, axis, 0)])
    close(vmap(g, in_axes=(axis, None))(xs, w), want)


@given(seeds, st.sampled_from(sorted(FUNCTIONS)))
def test_per_example_gradients_add_up_to_the_gradient(seed, name):
    rng = np.random.default_rng(seed)
    xs, w = points(rng, 3), points(rng)
    loss = lambda w, x: np.sum(FUNCTIONS[name](x * np.tanh(w)))  # noqa: E731
    each = vmap(grad(loss), in_axes=(None, 0))(w, xs)
    close(each.sum(0), grad(lambda w: np.sum(vmap(loss, (None, 0))(w, xs)))(w), 1e-8)
