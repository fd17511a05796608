"""Lesson 1. A function becomes a graph, and a graph is a text.

Run it: python docs/lessons/01_trace.py
"""

from __future__ import annotations

import numpy as np

import ge2

# Here is a function over NumPy arrays. Nothing in it knows of ge2.


def standardise(x):
    centred = x - x.mean(axis=0)
    return centred / np.sqrt((centred**2).mean(axis=0))


x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

# ge2 runs it once on a stand-in for `x` that knows a shape and a dtype but no numbers. What the
# function does to the stand-in is written down: one equation a line, each value with its type.

graph = ge2.make_jaxpr(standardise)(x)
print(graph)

# The text is the graph: it reads back. Bug reports, tests and golden files are made of it.

assert ge2.parse(str(graph)) == graph.graph

# Dtypes are NumPy's: float32 stays float32, float64 stays float64, and a Python number never
# widens an array.

assert standardise(x).dtype == np.float32
assert "f64" not in str(graph)

# Python's own control flow runs while the graph is made, so it leaves no trace of itself: a loop
# is unrolled, and a branch on a shape or a Python number is taken or not.


def power(x, n):
    result = x
    for _ in range(n - 1):
        result = result * x
    return result


cube = ge2.make_jaxpr(lambda x: power(x, 3))(x)
print(cube)
assert str(cube).count("mul") == 2

# A branch on an array's values is another matter: under `jit` they are not known when the graph
# is made. The error says what to write instead.


def clipped(x):
    return x if x.sum() > 0 else -x


try:
    ge2.jit(clipped)(x)
except ge2.errors.TracerBoolConversionError as error:
    print(error)
else:
    raise AssertionError("a branch on a value that is not known went unnoticed")

# `jit` compiles the graph when it first meets a signature (shapes, dtypes, structure), and only
# then. The answer is NumPy's, and so is its type.

fast = ge2.jit(standardise)
y = fast(x)
assert type(y) is np.ndarray
np.testing.assert_allclose(y, standardise(x), rtol=1e-5)
