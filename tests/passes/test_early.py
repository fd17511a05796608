"""Numbers that several steps need come before them, and all results stay what they were."""

from __future__ import annotations

from typing import Any

import numpy as np

import ge2
from ge2.ir import Graph, Var, verify
from ge2.ops.region import Region
from ge2.passes.early import early
from ge2.passes.pipeline import run_pipeline
from tests.passes.graphs import same

RNG = np.random.default_rng(0)
T = np.float32(3)
W, V = (RNG.standard_normal((n, n)).astype(np.float32) for n in (4, 5))


def fused(f: Any, *xs: Any) -> Graph:
    return run_pipeline(ge2.make_jaxpr(f)(*xs).graph)


def made_early(f: Any, *xs: Any) -> tuple[Graph, Graph]:
    before = fused(f, *xs)
    after = verify(early(before))
    same(after, before, *xs)
    return before, after


def behind(graph: Graph, v: Var) -> set[Var]:
    """All that a value comes from."""
    found = {v}
    for eqn in reversed(graph.eqns):
        if not found.isdisjoint(eqn.outs):
            found.update(a for a in eqn.inputs if isinstance(a, Var))
    return found


def updates(t: Any, w: Any, v: Any) -> Any:
    """The first update needs a product of what the second one needs nothing of."""
    t = t + 1
    rate = 1 - 0.9**t
    return t, (w @ w).cumsum(0) / rate, (v @ v) / rate


def test_an_update_waits_for_no_other():
    before, after = made_early(updates, T, W, V)
    w = before.inputs[1]
    assert w in behind(before, before.outputs[2]), "fusion alone makes it wait"
    w, last = after.inputs[1], after.outputs[2]
    assert w not in behind(after, last)
    first = after.eqns[0]
    assert isinstance(first.op, Region) and first.op.space == () and len(first.outs) == 2


def test_a_number_that_one_step_alone_reads_stays():
    before, after = made_early(lambda t, w: (w @ w) / (1 - 0.9**t), T, W)
    assert after == before


def test_a_number_of_an_array_stays_with_its_sum():
    def f(w: Any, v: Any) -> Any:
        scale = abs(w @ w).sum()
        return w / scale, v @ v / scale

    before, after = made_early(f, W, V)
    assert after == before


def test_a_number_that_is_there_no_earlier_stays():
    def f(w: Any, v: Any) -> Any:
        total = (w @ w).cumsum(0)[-1, -1]
        scale = total * 2 + 1
        return w / scale, v @ v / scale

    before, after = made_early(f, W, V)
    assert after == before


def test_numbers_of_numbers_are_one_region():
    def f(t: Any, w: Any, v: Any) -> Any:
        t = t * 2 + 1
        a, b = np.sqrt(t), 1 / t
        return (w @ w) * a + b, (v @ v) * b - a

    _, after = made_early(f, T, W, V)
    assert sum(isinstance(e.op, Region) and e.op.space == () for e in after.eqns) == 1
