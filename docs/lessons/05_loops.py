"""Lesson 5. A loop is an operation that holds the graph of one round.

Run it: python docs/lessons/05_loops.py
"""

from __future__ import annotations

import numpy as np

import ge2
from ge2 import lax

# A loop over time carries a state from one step to the next, and may return something at each.


def step(h, x):
    h = np.tanh(0.9 * h + x)
    return h, h.sum()


def states(h, xs):
    return lax.scan(step, h, xs)


h, xs = np.zeros(4), np.linspace(-1.0, 1.0, 12).reshape(3, 4)
last, sums = ge2.jit(states)(h, xs)
print("the last state", last.round(3), "and a sum at each step", sums.round(3))

# Its derivative is a scan in the other order. What a step saves for it is stacked; the elements are
# read again.


def loss(h, xs):
    return (lax.scan(step, h, xs)[0] ** 2).sum()


graph = str(ge2.make_jaxpr(ge2.grad(loss))(h, xs))
assert graph.count("= scan_saving[") == graph.count("= scan[") == 1
print(graph)

# In C a round is a function, and the loop around it moves pointers. Nothing of Python is inside.

text = ge2.jit(states).lower(h, xs).as_text("c")
print(text[text.find("static int scan_0") :])

# How often a while loop goes round depends on what it computes: it has forward derivatives only.


def root(a):
    return lax.while_loop(lambda x: abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)


y, slope = ge2.jvp(root, (2.0,), (1.0,))
assert np.isclose(y, 2**0.5)
assert np.isclose(slope, 0.5 / 2**0.5)
np.testing.assert_allclose(ge2.jit(ge2.vmap(root))(np.array([1.0, 4.0, 9.0])), [1, 2, 3])

# A Python loop of equal rounds is found in the graph, and compiled as one loop: here 24 layers.


def network(layers, x):
    for w, b in layers:
        x = np.tanh(x @ w + b)
    return x.sum()


rng = np.random.default_rng(0)
layers = [(rng.standard_normal((4, 4)) / 2, np.zeros(4)) for _ in range(24)]
compiled = ge2.jit(network).lower(layers, np.ones((2, 4)))
found = str(compiled.as_text())
assert "repeat[" in found
print(
    "24 layers are",
    found.count("repeat["),
    "loop of",
    found.split("length=")[1].split()[0],
    "rounds",
)
