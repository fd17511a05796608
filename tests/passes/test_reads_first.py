"""Reads come before the write over what they read, where they can."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.compile.steps import reads_first
from tests.passes.graphs import alike, names

X, V, AT = np.arange(20.0).reshape(5, 4), np.ones(4), np.int64(2)


def read_first(f, *args):
    """The operations of a function after the pass, which computes the same."""
    return names(alike(reads_first, f, *args))


def test_an_element_is_read_before_the_write():
    def f(x, v, i):
        y = x.at[i].set(v)
        return y, x[i, 0] + 1

    found = read_first(f, X, V, AT)
    assert found.index("gather") < found.index("scatter") < found.index("add")


def test_a_sum_of_all_is_computed_before_the_write():
    found = read_first(lambda x, v, i: (x.at[i].set(v), x.sum()), X, V, AT)
    assert found.index("reduce_sum") < found.index("scatter")


@pytest.mark.parametrize(
    "f",
    [
        lambda x, v, i: (lambda y: (y, x[y[i, 0].astype(int)]))(
            x.at[i].set(v)
        ),  # by what is written
        lambda x, v, i: (x.at[i].set(v), x),  # returned, so it is copied anyway
        lambda x, v, i: (x.at[i].set(v), x * 2),  # as large as the copy
        lambda x, v, i: (x.at[i].set(v), x.at[i].set(v + 1)),  # writes, both
        lambda x, v, i: (x.at[i].set(v), lax.cond(i > 0, lambda x: x[0], lambda x: x[1], x)),
    ],
)
def test_what_may_not_move_stays(f):
    closed = ge2.make_jaxpr(f)(X, V, AT)
    assert [e.op.name for e in closed.graph.eqns] == read_first(f, X, V, AT)


@pytest.mark.any_executor
def test_loops_that_read_after_they_write():
    def kept(x):
        return lax.scan(lambda x, i: (x.at[i].set(V * i), x[i, 0]), x, np.arange(5))

    def chosen(x):  # by branches that close over what they write
        def body(i, x):
            return lax.cond(x[i, 1] > 6, lambda: x.at[i, 0].set(V[0]), lambda: x)

        return lax.fori_loop(0, 5, body, x)

    y, old = ge2.jit(kept)(X)
    np.testing.assert_array_equal(old, X[:, 0])
    np.testing.assert_array_equal(y, np.arange(5.0)[:, None] * V)
    want = X.copy()
    want[X[:, 1] > 6, 0] = 1
    np.testing.assert_array_equal(ge2.jit(chosen)(X), want)
    slope = ge2.grad(lambda v: lax.fori_loop(0, 4, lambda i, x: x.at[i, 3].set(v[i]), X).sum())
    np.testing.assert_array_equal(ge2.jit(slope)(V), np.ones(4))
