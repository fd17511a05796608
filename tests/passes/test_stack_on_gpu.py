"""A rolled loop over rows of arrays becomes a scan, and sums of its rounds come
after: the same numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.ir import Graph, verify
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.passes import TIDY
from ge2.passes.context import run
from ge2.passes.loops import sums_after
from ge2.passes.loops.absorb_peeled import whole
from ge2.passes.loops.roll import roll
from ge2.passes.loops.rolled_to_scan import stack, stack_all
from tests.compared import all_close

N = 24
XS = np.random.default_rng(0).standard_normal((N, 3, 4)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32) / 4
H = np.zeros((3, 4), np.float32)


def rolled(f: Any, *xs: Any) -> Graph:
    return run((*TIDY, roll), ge2.make_jaxpr(f)(*xs).graph)


def same(f: Any, *xs: Any) -> Graph:
    """The graph with scans in place of repeats, which gives what it gave."""
    before = rolled(f, *xs)
    after = stack_all(run((*TIDY, roll, whole, stack), ge2.make_jaxpr(f)(*xs).graph))
    verify(after)
    all_close(after(*xs), before(*xs), rtol=1e-5, atol=1e-6)
    return after


def count(graph: Graph, op: Any) -> int:
    return sum(isinstance(e.op, op) for e in graph.eqns)


def forwards(w: Any, h: Any, xs: Any) -> Any:
    total = 0.0
    for t in range(N):
        h = np.tanh(h @ w + xs[t])
        total = total + (h * h).mean()
    return total


def backwards(w: Any, h: Any, xs: Any) -> Any:
    found = []
    for t in reversed(range(N)):
        h = np.tanh(h @ w + xs[t])
        found.append(h)
    return np.stack(found[::-1])


def part(w: Any, h: Any, xs: Any) -> Any:
    """Rounds over a part of the array, each with its result returned for itself."""
    found = []
    for t in range(3, N - 2):
        h = np.tanh(h @ w + xs[t])
        found.append(h.reshape(12))
    return found


def drawn_together(w: Any, h: Any, xs: Any) -> Any:
    """Rows that do not follow each other."""
    for t in range(N):
        h = np.tanh(h @ w + xs[t * 7 % N])
    return h


@pytest.mark.parametrize("f", [forwards, backwards, part], ids=lambda f: f.__name__)
def test_a_loop_over_rows_is_a_scan(f: Any) -> None:
    assert count(rolled(f, W, H, XS), RepeatLoop) == 1
    after = same(f, W, H, XS)
    assert count(after, ScanLoop) == 1 and not count(after, RepeatLoop)


def test_other_rows_stay_a_repeat() -> None:
    assert count(rolled(drawn_together, W, H, XS), RepeatLoop) == 1
    assert count(same(drawn_together, W, H, XS), RepeatLoop) == 1


def test_a_stack_of_all_results_is_that_of_the_scan() -> None:
    assert "concatenate" not in {e.op.name for e in same(backwards, W, H, XS).eqns}


def test_the_derivative_has_a_scan_for_each_direction_and_sums_after_it() -> None:
    after = same(ge2.grad(forwards, (0, 1, 2)), W, H, XS)
    loops = [e.op for e in after.eqns if isinstance(e.op, ScanLoop)]
    assert [loop.reverse for loop in loops] == [False, True]
    assert all(loop.carry == 1 for loop in loops), (
        "the weights' derivative is a product after the loop"
    )


def gated(w: Any, u: Any, h: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        z = 1 / (1 + np.exp(-(h @ w + x)))
        h = (1 - z) * h + z * np.tanh((h * z) @ u)
        return h, h

    return (ge2.lax.scan(step, h, xs)[1] ** 2).mean()


def carries(graph: Graph) -> list[int]:
    return [e.op.carry for e in graph.eqns if isinstance(e.op, ScanLoop)]


def test_sums_of_products_come_after_a_scan() -> None:
    before = rolled(ge2.grad(gated, (0, 1)), W, W.T, H, XS)
    after = sums_after(before)
    verify(after)
    assert (carries(before), carries(after)) == ([1, 3], [1, 1])
    all_close(after(W, W.T, H, XS), before(W, W.T, H, XS), rtol=1e-5, atol=1e-7)


def test_sums_whose_factors_would_take_more_than_there_is_stay() -> None:
    def grown(h: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            h, total = c
            wide = np.tanh(h[:, :, None] * np.arange(50, dtype=np.float32)).reshape(3, 200)
            return (h + x, total + wide.T @ wide), None

        return ge2.lax.scan(step, (h, np.zeros((200, 200), np.float32)), xs)[0][1]

    graph = rolled(grown, H, XS)
    assert sums_after(graph) is graph


@pytest.mark.exhaustive
@pytest.mark.parametrize("f", [forwards, backwards, part, drawn_together], ids=lambda f: f.__name__)
def test_on_a_gpu(f: Any) -> None:
    with config.using(executor="shim"):
        found = ge2.jit(f)(W, H, XS)
    for y, w in zip(*map(ge2.tree_util.tree_leaves, (found, f(W, H, XS))), strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-5, atol=1e-6)


def test_sums_over_rows_come_after_so_that_rows_know_nothing_of_each_other():
    def loss(b, w, x):
        def step(h, x):
            h = np.tanh(x + h @ w + b)
            return h, h

        return (lax.scan(step, x[0], x)[1] ** 2).sum()

    args = W[0], W, XS
    graph = ge2.make_jaxpr(ge2.grad(loss))(*args).graph
    before = run((*TIDY, roll, whole, stack, stack_all), graph)
    after = sums_after(before)
    *_, backward = (e.op for e in after.eqns if isinstance(e.op, ScanLoop))
    assert "reduce_sum" not in {e.op.name for e in backward.body.eqns}
    assert "reduce_sum" in {e.op.name for e in after.eqns}
    np.testing.assert_allclose(after(*args), graph(*args), rtol=1e-5)
