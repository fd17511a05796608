"""What holds of each transform, whatever the function; test_nesting.py has those of several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge2.transforms import (
    grad,
    hessian,
    jvp,
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


@every
def test_vmap_is_a_stacked_loop(name, rng):
    f, xs = FUNCTIONS[name], points(rng, 3)
    close(vmap(f)(xs), np.stack([f(x) for x in xs]))
    close(vmap(f, in_axes=1, out_axes=-1)(xs.T), np.stack([f(x) for x in xs], axis=-1))


@every
def test_vmap_over_no_places(name):
    y = FUNCTIONS[name](np.ones(N))
    assert vmap(FUNCTIONS[name])(np.ones((0, N))).shape == (0, *np.shape(y))


@pytest.mark.exhaustive
@every
def test_the_gradient_of_a_gradient_is_that_of_differences(name, rng):
    g, x, t, ct = grad(scalar(FUNCTIONS[name])), points(rng), points(rng), points(rng)
    close(grad(lambda x: np.sum(g(x) * ct))(x) @ t, slope(lambda x: np.sum(g(x) * ct), x, t), 1e-6)


@pytest.mark.exhaustive
@every
def test_hessian_is_symmetric_and_that_of_differences(name, rng):
    f, x, t = scalar(FUNCTIONS[name]), points(rng), points(rng)
    h = hessian(f)(x)
    close(h, h.T)
    close(h @ t, slope(grad(f), x, t), 1e-6)


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
