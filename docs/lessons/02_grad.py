"""Lesson 2. A derivative is a function from graph to graph.

Run it: python docs/lessons/02_grad.py
"""

from __future__ import annotations

import numpy as np

import ge2

# `grad` takes a function that returns one number and gives the function of its derivative.


def wave(x):
    return np.sin(x) * np.exp(-x)


slope = ge2.grad(wave)
assert np.isclose(slope(0.5), np.exp(-0.5) * (np.cos(0.5) - np.sin(0.5)))

# It is a program like any other. What the forward part worked out is used again, not computed
# twice.

graph = ge2.make_jaxpr(slope)(np.float64(0.5))
print(graph)
assert str(graph).count(" exp ") == 1

# So it can be differentiated again, as often as you like.

curvature = ge2.grad(ge2.grad(wave))
assert np.isclose(curvature(0.5), -2 * np.exp(-0.5) * np.cos(0.5))

# Arguments are any nest of dicts, lists, tuples and dataclasses; the gradient has the same shape.


def error(model, x, y):
    return ((x @ model["w"] + model["b"] - y) ** 2).mean()


rng = np.random.default_rng(0)
x, y = rng.normal(size=(50, 3)), rng.normal(size=50)
model = {"w": np.zeros(3), "b": np.zeros(())}

value, gradient = ge2.value_and_grad(error)(model, x, y)
assert gradient.keys() == model.keys()
assert gradient["w"].shape == (3,)
assert np.isclose(value, error(model, x, y))

# Derivatives compose with the other transforms in any order. `vmap` of `grad` gives one gradient
# per example, without a loop, and their mean is the gradient of the mean.

each = ge2.vmap(ge2.grad(error), in_axes=(None, 0, 0))(model, x, y)
assert each["w"].shape == (50, 3)
np.testing.assert_allclose(each["w"].mean(axis=0), gradient["w"])

# Forward mode is there too, and the two agree: a directional derivative is a dot product with the
# gradient.

direction = {"w": rng.normal(size=3), "b": rng.normal(size=())}
_, along = ge2.jvp(lambda m: error(m, x, y), (model,), (direction,))
assert np.isclose(along, gradient["w"] @ direction["w"] + gradient["b"] * direction["b"])

# What you want held constant, say so.

held = ge2.grad(lambda x: ge2.lax.stop_gradient(np.sin(x)) * np.exp(-x))
assert np.isclose(held(0.5), -np.sin(0.5) * np.exp(-0.5))

print("the slope of the wave at 0.5 is", slope(0.5))
