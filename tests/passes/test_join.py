"""Sums of padded parts become the parts side by side, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.compile.pipeline import rewritten
from ge2.passes.take_to_mask import join
from tests.passes.graphs import alike, names

rng = np.random.default_rng(0)
X = rng.standard_normal((8, 3))


def joined(f, *args):
    """The names of the operations after the pass, which must mean the same."""
    return names(alike(join, f, *args, rtol=1e-14))


def reading(*parts):
    """A function that reads each part of its argument on its own."""

    def f(x):
        return sum((x[part] ** (i + 2)).sum() for i, part in enumerate(parts))

    return ge2.grad(f)


def test_rows_that_are_read_one_by_one():
    names = joined(reading(*range(8)), X)
    assert names.count("concatenate") == 1
    assert "pad" not in names


def test_parts_in_any_order_and_with_gaps():
    names = joined(reading(slice(5, 7), slice(0, 1), slice(2, 4)), X)
    assert names.count("concatenate") == 1
    assert "pad" not in names


def test_rows_that_are_read_twice():
    names = joined(reading(0, 1, 1, 2, 0, 3), X)
    assert (names.count("concatenate"), names.count("pad")) == (1, 0)


def test_columns():
    names = joined(reading(*((slice(None), slice(i, i + 1)) for i in range(3))), X)
    assert names.count("concatenate") == 1


def test_two_parts_that_are_all_of_it():
    assert joined(reading(slice(4, 8), slice(0, 4)), X).count("concatenate") == 1


def test_two_parts_and_something_else_are_added():
    def f(x):
        return (x[:4] ** 2).sum() + (x[4:] ** 3).sum() + np.sin(x).sum()

    assert "concatenate" not in joined(ge2.grad(f), X)


def test_something_else_is_added_too():
    def f(x):
        return sum((x[t] ** (t + 2)).sum() for t in range(8)) + np.sin(x).sum()

    names = joined(ge2.grad(f), X)
    assert (names.count("concatenate"), names.count("pad")) == (1, 0)


@pytest.mark.parametrize(
    "parts",
    [
        (slice(0, 4), slice(3, 6), slice(6, 8)),  # which overlap
        (slice(0, 4), slice(5, 8)),  # few
        (slice(0, 8, 2), slice(1, 8, 2), slice(0, 1)),  # with steps
        (0, (slice(None), slice(0, 1)), 1),  # along two axes
    ],
)
def test_what_is_not_side_by_side_stays(parts):
    assert "concatenate" not in joined(reading(*parts), X)


def test_a_sum_that_somebody_else_reads_stays():
    def f(x):
        a, b, c, d = (np.pad(x[i], ((i * 2, 6 - i * 2), (0, 0))) for i in range(4))
        part = a + b
        return part + c + d, part

    assert "concatenate" not in joined(f, X.reshape(4, 2, 3))


def test_a_python_loop_over_computed_steps_is_rolled():
    """Parts of what is made are read in rounds that are one loop, and so are their derivatives."""

    def loss(by_x, by_h, xs, h):
        inputs, total = xs @ by_x, 0.0
        for t in range(xs.shape[0]):
            h = np.tanh(inputs[t] + h @ by_h)
            total = total + (h * h).mean()
        return total

    shapes = (4, 4), (4, 4), (24, 2, 4), (2, 4)
    args = [rng.standard_normal(shape) for shape in shapes]
    closed = ge2.make_jaxpr(ge2.grad(loss, argnums=(0, 1, 2)))(*args)
    names = [e.op.name for e in rewritten(closed.graph, "reference").eqns]
    assert names.count("scan") == 2
    for executor in ("c", "blocked"):
        with ge2.config.using(executor=executor):
            found = ge2.jit(ge2.grad(loss, argnums=(0, 1, 2)))(*args)
        with ge2.disable_jit():
            wanted = ge2.grad(loss, argnums=(0, 1, 2))(*args)
        for y, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-10, atol=1e-12)
