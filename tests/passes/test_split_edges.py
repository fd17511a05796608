"""Elementwise work on shifted, padded and joined arrays is cut along their edges."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.compile.catalog import interpret
from ge2.ir import Graph, verify
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import Concatenate, Pad
from ge2.passes.split_edges import is_moved, split_edges
from tests.together import needs_compiler

LARGE = ((150, 130), (20000,), (30, 28, 26))


def copies(graph: Graph) -> int:
    """The elements that pads copy, and joins of what is not computed for them."""
    makers = {v: e for e in graph.eqns for v in e.outs}

    def copied(e):
        made = (makers[a].op for a in e.inputs if a in makers)
        return not any(isinstance(op, Pointlike | Concatenate) for op in made)

    found = [e for e in graph.eqns if isinstance(e.op, Pad)]
    found += [e for e in graph.eqns if isinstance(e.op, Concatenate) and copied(e)]
    return sum(e.outs[0].type.size for e in found)


def bits(x: np.ndarray) -> bytes:
    return np.ascontiguousarray(x).tobytes()


class Drawn:
    """A program of shifts, pads, joins, slices and elementwise work, of one array shape."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.shape = LARGE[seed % len(LARGE)]

    def __call__(self, x, y):
        rng = np.random.default_rng(self.seed)
        values = [x, y]
        for _ in range(rng.integers(3, 9)):
            a = values[rng.integers(len(values))]
            values.append(self.step(rng, a, values[rng.integers(len(values))]))
        return values[-1] * 2 - values[-2], values[-2]

    def step(self, rng, a, b):
        axis = int(rng.integers(a.ndim))
        n = a.shape[axis]
        k = int(rng.integers(1, 4))
        first = [slice(None)] * a.ndim
        last = [slice(None)] * a.ndim
        first[axis], last[axis] = slice(0, n - k), slice(k, n)
        match rng.integers(7):
            case 0:
                return np.roll(a, k - 2, axis) + b
            case 1:
                width = [(0, 0)] * a.ndim
                width[axis] = (k, 0) if rng.integers(2) else (0, k)
                return np.pad(a[tuple(first)] * b[tuple(last)], width) - b
            case 2:
                return np.concatenate(
                    [b[tuple(last)], a[tuple(first)][tuple(_until(axis, a, k))]], axis
                )
            case 3:
                return np.where(a > b, np.roll(b, 1, axis), a)
            case 4:
                return np.roll(np.roll(a, 1, 0), -k, axis) * b
            case 5:
                return a + np.broadcast_to(b[0] * 2, a.shape)
            case _:
                return np.maximum(a, b) * 0.5


def _until(axis, a, k):
    found = [slice(None)] * a.ndim
    found[axis] = slice(0, k)
    return found


def arguments(shape):
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-3, 4, shape).astype(np.float64) for _ in range(2))
    x.flat[::97], y.flat[::89] = -0.0, np.nan
    return x, y


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(60))
def test_the_same_bits(seed):
    f = Drawn(seed)
    x, y = arguments(f.shape)
    before = ge2.make_jaxpr(f)(x, y).graph
    after = verify(split_edges(before))
    for got, want in zip(interpret(after, [x, y]), interpret(before, [x, y]), strict=True):
        assert bits(got) == bits(want)


def test_most_of_them_are_split():
    graphs = (ge2.make_jaxpr(f)(*arguments(f.shape)).graph for f in map(Drawn, range(60)))
    assert sum(split_edges(graph) is not graph for graph in graphs) > 40


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("seed", range(0, 60, 12))
def test_the_same_in_c(seed):
    f = Drawn(seed)
    x, y = arguments(f.shape)
    with ge2.config.using(executor="c"):
        found = ge2.jit(f)(x, y)
    for got, want in zip(found, f(x, y), strict=True):
        np.testing.assert_array_equal(got, want)


def stencil(u):
    return np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - 4 * u


def energy(u):
    return (
        (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]) ** 2
    ).sum()


def test_a_stencil_of_shifts_copies_nothing():
    graph = ge2.make_jaxpr(stencil)(np.ones((200, 150))).graph
    assert copies(graph) >= 4 * 200 * 150
    assert copies(split_edges(graph)) == 0


def test_the_derivative_of_a_stencil_copies_edges_alone():
    graph = ge2.make_jaxpr(ge2.grad(energy))(np.ones((200, 150))).graph
    assert copies(graph) == 5 * 200 * 150
    assert copies(split_edges(graph)) <= 5 * 2 * 2 * (200 + 150)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.pad(x, 1).sum(),  # a sum reads it where it lies
        lambda x: np.concatenate([x, x]),
        lambda x: np.roll(x[:10], 1, 0) * 2,  # small
        lambda x: np.roll(x, 60, 0) * x + np.roll(x, 70, 0) + np.roll(x, 80, 0) + np.roll(x, 90, 0),
    ],
)
def test_what_is_left_alone(f):
    graph = ge2.make_jaxpr(f)(np.ones((200, 150))).graph
    assert split_edges(graph) is graph


def test_a_copy_that_others_read_stays():
    def f(x):
        y = np.roll(x, 1, 0)
        return y * 2.0, y

    graph = ge2.make_jaxpr(f)(np.ones((200, 150))).graph
    assert any(is_moved(e) for e in split_edges(graph).eqns)
    assert split_edges(graph) is graph
