"""Each pass of a target alone can be left out, and the program still means what it did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax, random
from ge2.base.config import config
from ge2.compile import how_to_make, stand_in
from ge2.compile.pipeline import pipeline_of
from ge2.ir import Graph, GraphOp, verify
from ge2.passes.context import TUNING, Context, stages
from tests.together import needs_compiler

F32 = np.float32
X = np.random.default_rng(0).standard_normal((6, 4)).astype(F32)
W = np.random.default_rng(1).standard_normal((4, 8)).astype(F32)
BIG = np.zeros((128, 128), F32)
INDEX = np.array([3, 0, -1, 2, 1, 0])


def rounds(x: Any) -> Any:
    """A loop whose state begins with a literal."""

    def body(s: tuple[Any, Any], row: Any) -> Any:
        total, n = s
        return (total * 0.5 + row, n + 1), row.sum() * n

    return lax.scan(body, (np.zeros(4, F32), 1), x)


def branched(x: Any, n: Any) -> Any:
    """A branch that computes with a Python number."""
    return lax.cond(x.sum() > 0, lambda x: x * (n * 2 + 1), lambda x: x - n, x)


def filled(x: Any) -> Any:
    """Zeros that are written by slices."""
    y = np.zeros_like(x)
    y[0] = x[0]
    y[1:5] = x[2:] * 2
    return y


def picked(x: Any, i: Any) -> Any:
    return np.exp(x - x.max(1, keepdims=True)).sum(1) - x[np.arange(6), i]


def compared(x: Any, i: Any) -> Any:
    return np.take_along_axis(x * 2, i[:, None], 1)[:, 0] - x.max(1)


def written(x: Any, i: Any) -> Any:
    """Arguments that change in place; what is read of them is older than what is written."""
    first = x[1:3] * 2
    x[i[0]] = 1.5
    x[i[1]] = x[4] + first[0]
    i[:] = i[::-1].copy()
    return first


def read_later(x: Any) -> Any:
    """A row of what a loop carries that is read after the write of another."""
    return lax.scan(lambda x, i: (x.at[i].set(1.5), x[i, 0]), x, np.arange(6))


def swapped(x: Any, y: Any) -> Any:
    old = x.copy()
    x[:] = y
    y[:] = old
    return x.sum()


def dropped(x: Any) -> Any:
    return np.where(random.bits(random.key(3), (6, 4)) > 1 << 31, x, 0)


def exclusive(x: Any) -> Any:
    return np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, 0)[:-1]])


def layer(x: Any, w: Any) -> Any:
    return np.tanh(x @ w + 1)


def twice(x: Any) -> Any:
    y = x + 1
    return y, y, x, x.T


def turned(x: Any) -> Any:
    a, b = x[:, :2] * 1.5, x[:, 2:]
    return np.concatenate([a - b, a + b], -1) * 2.0


def paired(x: Any) -> Any:
    a, b = x[:, ::2], x[:, 1::2]
    return np.stack([a - b, a + b], -1).reshape(x.shape) * x


def read_by_numbers(x: Any, numbers: Any) -> Any:
    """The derivative of a loop that reads rows whose numbers only the run knows."""

    def loss(x: Any) -> Any:
        return np.sum(lax.scan(lambda h, i: (np.tanh(h * x[i]), h), x[0], numbers)[1])

    return ge2.grad(loss)(x)


PROGRAMS: dict[str, dict[str, tuple[Any, ...]]] = {
    "c": {
        "strong": (branched, X, 3), "counted": (picked, X, INDEX), "writes": (filled, X),
        "grounded": (rounds, X), "with_copies": (swapped, X, X + 1), "views_first": (written, X, INDEX),
        "checked_early": (written, X, INDEX), "reads_first": (read_later, X), "scans_of_slices": (exclusive, X),
        "updates_added": (read_by_numbers, X, INDEX),
    },
    "shim": {
        "counted": (picked, X, INDEX), "contractions": (layer, X, W), "indexed": (compared, X, INDEX),
        "drawn": (dropped, X), "resident": (rounds, X), "views_first": (written, X, INDEX),
        "reads_first": (read_later, X), "scans_of_slices": (exclusive, X),
        "results_apart": (twice, BIG), "parts_done": (turned, X), "deinterleave": (paired, X),
    },
}  # fmt: skip
CASES = [(executor, name) for executor, each in PROGRAMS.items() for name in each]


def changes(f: Any, xs: Any, name: str) -> bool:
    """True if the pass changes the graph of the program, or one that a loop in it holds."""
    with config.using(executor="reference"):
        entry = ge2.jit(f).trace(*xs).entry
    how = how_to_make("f", stand_in(), writes=entry.writes, iotas=entry.iotas())
    bodies = [g for e in entry.graph.eqns if isinstance(e.op, GraphOp) for g in e.op.graphs()]
    given = [(entry.graph, how.context), *((g, Context(body=True)) for g in bodies)]
    return any(changed(graph, context, how.target, name) for graph, context in given)


def changed(graph: Graph, context: Context, target: str, name: str) -> bool:
    for step, after in stages(pipeline_of(target), graph, context):
        verify(after)
        if step == name:
            return after != graph
        graph = after
    raise AssertionError(f"there is no {name}")


def copies(xs: Any) -> list[Any]:
    return [x.copy() if isinstance(x, np.ndarray) else x for x in xs]


@needs_compiler
@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize(("executor", "name"), CASES, ids=map(": ".join, CASES))
def test_a_pass_can_be_left_out(executor: str, name: str) -> None:
    f, *xs = PROGRAMS[executor][name]
    want = copies(xs)
    with config.using(disable_jit=True):
        wanted = ge2.tree.leaves(f(*want)) + want
    with config.using(executor=executor):
        assert changes(f, xs, name)
    for off in ((), (name,)):
        own = copies(xs)
        with config.using(executor=executor, passes_off=off):
            found = ge2.tree.leaves(ge2.jit(f)(*own)) + own
        for y, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-6)


def test_what_is_a_copy_already_is_not_copied_again() -> None:
    def shuffled(x: Any) -> Any:
        return x.reshape(2, 3, 4).transpose(1, 2, 0).reshape(3, 8)

    with config.using(executor="emulator", tuning=(replace(TUNING, returned=1),)):
        f = ge2.jit(shuffled)
        np.testing.assert_array_equal(f(X), shuffled(X))
        assert len(f.lower(X).kernels) == 1


@pytest.mark.parametrize("executor", ["c", "emulator"])
def test_nobody_else_has_the_memory_of_a_result(executor: str) -> None:
    with config.using(executor=executor, tuning=(replace(TUNING, returned=1),)):
        results = ge2.jit(lambda x: (y := x + 1, y, x, x.T, x[1:], y.T, y.reshape(3, 8)))(X)
    y = X + 1
    for n, (found, wanted) in enumerate(
        zip(results, (y, y, X, X.T, X[1:], y.T, y.reshape(3, 8)), strict=True)
    ):
        assert np.array_equal(found, wanted)
        assert not any(np.shares_memory(found, other) for other in (X, *results[:n]))
