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


def triangle(x: Any, size: int = 4, least: int = 0) -> Any:
    """Small matrices, an element of all of them at once, of which those above the diagonal stay zero."""
    y = np.zeros((len(x), size, size), np.float32)
    for i in range(least, size):
        for j in range(i + 1):
            y[:, i, j] = x[:, i + j] * 2
    return y


def corner(x: Any) -> Any:
    return triangle(x, least=3)


@pytest.mark.parametrize(
    ("function", "joins"),
    [(mosaic, True), (uneven, True), (overlapping, False), (triangle, True), (corner, False)],
)
def test_what_is_joined(function: Function, joins: bool) -> None:
    graph = ge2.make_jaxpr(function)(X).graph
    found = with_last_writes(graph, True)
    assert ("update_slice" not in names(found)) == joins
    np.testing.assert_array_equal(interpret(found, [X])[0], function(X))


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "emulator"])
@pytest.mark.parametrize("function", [mosaic, overlapping, uneven, triangle, corner])
def test_it_means_the_same(function: Function, executor: str) -> None:
    with config.using(executor=executor):
        np.testing.assert_array_equal(ge2.jit(function)(X), function(X))


def cholesky(a: Any) -> Any:
    """The factor of one small matrix, row after row, and the determinant's logarithm."""
    n = len(a)
    y = np.zeros_like(a)
    for j in range(n):
        y[j, j] = np.sqrt(a[j, j] - (y[j, :j] ** 2).sum())
        for i in range(j + 1, n):
            y[i, j] = (a[i, j] - (y[i, :j] * y[j, :j]).sum()) / y[j, j]
    return y, np.log(np.diagonal(y)).sum()


@needs_compiler
def test_small_matrices_that_are_written_by_elements_are_numbers_of_a_thread() -> None:
    """Of a batch the factors took a kernel an element, each of which waited for the writes before."""
    a = np.random.default_rng(0).normal(size=(50, 5, 5)).astype(np.float32)
    a = a @ a.swapaxes(1, 2) + np.eye(5, dtype=np.float32)
    with config.using(executor="emulator"):
        f = ge2.jit(ge2.vmap(cholesky))
        found, logarithms = f(a)
        kernels = f.lower(a).kernels
    np.testing.assert_allclose(found, np.linalg.cholesky(a), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(2 * logarithms, np.linalg.slogdet(a)[1], rtol=1e-4)
    assert sum("sqrt" in k.computes for k in kernels) == 1 and len(kernels) <= 8
