"""Transforms of transforms, drawn at random: each against the same nest
built from other transforms.

A gradient is checked against directional derivatives, a batch against a loop, forward against
reverse mode: the two sides share as little as can be.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ge2 import jit
from ge2.transforms import (
    checkpoint,
    cond,
    custom_jvp,
    grad,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    make_jaxpr,
    value_and_grad,
    vjp,
    vmap,
)
from tests.exhaustive import examples
from tests.transforms.functions import FORWARD, N, close, points

BASIS = np.eye(N)


def along(f, x, t):
    return jvp(f, (x,), (t,))[1]


def pulled(f, x, ct):
    return vjp(f, x)[1](ct)[0]


def total(f):
    return lambda x: np.sum(np.sin(f(x)))


def own_rule(f):
    """The function, with a rule that is its derivative."""
    g = custom_jvp(f)
    g.defjvp(lambda primals, tangents: jvp(f, primals, tangents))
    return g


def pair(x):
    return np.stack([x, np.cos(x)])


def looped_gradient(f):
    return lambda x: np.stack([along(total(f), x, e) for e in BASIS])


def looped_jacobian(f):
    return lambda x: np.sum(
        np.stack([along(f, x, e) for e in BASIS], axis=-1) ** 2, axis=tuple(range(len(shape_of(f))))
    )


def shape_of(f):
    return np.shape(f(np.full(N, 0.3)))


def summed(jacobian):
    return lambda f: lambda x: np.sum(jacobian(f)(x) ** 2, axis=tuple(range(len(shape_of(f)))))


def pushed_back(f):
    """The directional derivative from reverse mode alone: what is pulled back
    is linear in the cotangent.
    """
    zero = lambda x: np.zeros(shape_of(f))  # noqa: E731
    return lambda x: pulled(lambda ct: pulled(f, x, ct), zero(x), np.cos(x))


# Each: how the transform makes a function of (n,) from another, and the same by other means.
STEPS = {
    "grad": (lambda f: grad(total(f)), looped_gradient),
    "value_and_grad": (
        lambda f: lambda x: np.multiply(*value_and_grad(total(f))(x)),
        lambda f: lambda x: total(f)(x) * looped_gradient(f)(x),
    ),
    "jvp": (lambda f: lambda x: along(f, x, np.cos(x)), pushed_back),
    "vjp": (lambda f: lambda x: pulled(f, x, np.cos(f(x))), looped_gradient),
    "linearize": (
        lambda f: lambda x: linearize(f, x)[1](np.cos(x)),
        lambda f: lambda x: along(f, x, np.cos(x)),
    ),
    "jacfwd": (summed(jacfwd), looped_jacobian),
    "jacrev": (summed(jacrev), looped_jacobian),
    "vmap": (
        lambda f: lambda x: np.mean(vmap(f)(pair(x)), axis=0),
        lambda f: lambda x: (f(x) + f(np.cos(x))) / 2,
    ),
    "vmap last": (
        lambda f: lambda x: np.mean(vmap(f, in_axes=1, out_axes=-1)(pair(x).T), axis=-1),
        lambda f: lambda x: (f(x) + f(np.cos(x))) / 2,
    ),
    "vmap shared": (
        lambda f: lambda x: vmap(lambda s, x: f(x * s), (0, None))(np.array([1.0, 0.5]), x)[1],
        lambda f: lambda x: f(x * 0.5),
    ),
    "checkpoint": (checkpoint, lambda f: f),
    "jit": (jit, lambda f: f),
    "custom_jvp": (own_rule, lambda f: f),
    "cond": (
        lambda f: lambda x: cond(np.sum(x) > 0.2, f, lambda x: 2.0 * f(x), x),
        lambda f: lambda x: f(x) * np.where(np.sum(x) > 0.2, 1.0, 2.0),
    ),
}


def nested(side, f, steps):
    for step in steps:
        f = STEPS[step][side](f)
    return f


def holds(name, steps, x):
    want = nested(1, FORWARD[name], steps)(x)
    got = nested(0, FORWARD[name], steps)(x)
    scale = max(1.0, float(np.max(np.abs(want))))
    close(np.asarray(got) / scale, np.asarray(want) / scale, 1e-8)


@pytest.mark.exhaustive("steps")
@pytest.mark.parametrize(
    "steps",
    ["linearize", "jacfwd", "jacrev", "vmap, vmap", "grad, vmap", "vmap, grad", "grad, jvp", "jvp, grad", "jvp, jvp"],
)  # fmt: skip
@pytest.mark.parametrize("name", FORWARD)
def test_two_transforms_of_every_function(name, steps, rng):
    holds(name, steps.split(", "), points(rng))


@settings(max_examples=examples(40))
@given(
    st.sampled_from(sorted(FORWARD)),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
@example("softmax", ["cond", "vmap", "grad"], 3)
@example("soft", ["vmap", "checkpoint", "jacrev"], 4)
@example("layers", ["checkpoint", "cond", "linearize"], 5)
@example("elementwise", ["grad", "grad", "grad"], 6)
@example("matmul", ["jit", "jacrev", "jit"], 7)
@example("where", ["jit", "value_and_grad", "jit"], 8)
@example("gather", ["jit", "vmap last", "jit"], 9)
@example("cumprod", ["jit", "grad", "vmap", "grad", "jit"], 10)
@example("sort", ["jit", "linearize", "jit"], 11)
@example("written", ["jit", "grad", "jit", "jvp"], 12)
@example("slices", ["jit", "jacfwd"], 13)
def test_any_nest_of_transforms_is_what_other_transforms_make_of_it(name, steps, seed):
    holds(name, steps, points(np.random.default_rng(seed)) * 0.7)


@settings(max_examples=examples(15))
@given(
    st.sampled_from(sorted(FORWARD)),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=2),
    st.integers(0, 2**32 - 1),
)
def test_the_graph_of_a_nest_computes_what_the_nest_does(name, steps, seed):
    x, f = points(np.random.default_rng(seed)), nested(0, FORWARD[name], steps)
    close(make_jaxpr(f)(x)(x)[0], f(x), 1e-8)
