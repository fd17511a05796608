"""Writes that take turns along several axes are joins, along one axis after another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.compile.catalog import interpret
from ge2.passes.fold import with_last_writes
from tests.together import needs_compiler

Function = Callable[..., Any]


def mosaic(x: Any) -> Any:
    """Colours of 2 x 2 pixels, each by a formula of its own."""
    out = np.zeros((*x.shape, 3), np.float32)
    for i, j, k in product(range(2), range(2), range(3)):
        at = slice(i, None, 2), slice(j, None, 2)
        out[(*at, k)] = (x * (k + 2) - i + j)[at]
    return out


def written(steps: tuple[int, ...], order: list[int], x: Any, left: int = 0) -> Any:
    """Each of the parts with such steps, in some order, but for those that are left."""
    out = np.ones_like(x)
    starts = list(product(*map(range, steps)))
    for n in order[: len(order) - left]:
        at = tuple(slice(a, None, s) for a, s in zip(starts[n], steps, strict=True))
        out[at] = x[at] * (n + 2)
    return out


def names(graph: Any) -> list[str]:
    return [e.op.name for e in graph.eqns]


X = np.arange(8 * 12, dtype=np.float32).reshape(8, 12) % 11


@st.composite
def orders(draw: Any) -> tuple[tuple[int, ...], list[int]]:
    steps = draw(st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 3, 4])))
    return steps, draw(st.permutations(range(steps[0] * steps[1])))


@given(orders())
def test_any_grid_is_joined(case: tuple[tuple[int, ...], list[int]]) -> None:
    graph = ge2.make_jaxpr(lambda x: written(*case, x))(X).graph
    found = with_last_writes(graph, True)
    if len(case[1]) > 1:
        assert "update_slice" not in names(found)
    np.testing.assert_array_equal(interpret(found, [X])[0], written(*case, X))


@given(orders())
def test_a_grid_with_gaps_is_not(case: tuple[tuple[int, ...], list[int]]) -> None:
    steps, order = case
    graph = ge2.make_jaxpr(lambda x: written(steps, order, x, 1))(X).graph
    found = with_last_writes(graph, True)
    if min(steps) > 1:
        assert "update_slice" in names(found)
    np.testing.assert_array_equal(interpret(found, [X])[0], written(steps, order, X, 1))


def overlapping(x: Any) -> Any:
    y = np.zeros_like(x)
    y[::2, ::2], y[::2, 1::2], y[1::2] = x[::2, ::2], x[1::2, 1::2], x[::2]
    y[::2, 2:] = 3
    return y


def uneven(x: Any) -> Any:
    y = np.zeros_like(x)
    y[::2, ::2], y[::2, 1::2], y[1::2] = x[::2, ::2], x[1::2, 1::2], x[::2]
    return y


@pytest.mark.parametrize(
    ("function", "joins"), [(mosaic, True), (uneven, True), (overlapping, False)]
)
def test_what_is_joined(function: Function, joins: bool) -> None:
    graph = ge2.make_jaxpr(function)(X).graph
    found = with_last_writes(graph, True)
    assert ("update_slice" not in names(found)) == joins
    np.testing.assert_array_equal(interpret(found, [X])[0], function(X))


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("function", [mosaic, overlapping, uneven])
def test_it_means_the_same(function: Function, executor: str) -> None:
    with config.using(executor=executor):
        np.testing.assert_array_equal(ge2.jit(function)(X), function(X))
