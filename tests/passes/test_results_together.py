"""Results of the whole program are computed beside one another, small ones at its end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

import ge2
from ge2.base.config import config
from ge2.compile.pipeline import rewritten
from ge2.compile.steps import results_together
from ge2.ir import Graph, verify
from ge2.ops.graphs.region import Region
from ge2.passes.context import Context, Results, Tuning
from ge2.targets.cuda.limits import H200

SIZES = 64, 65, 66, 67, 68


def chain(xs: Any, y: Any) -> Any:
    """Sorts, each of which is followed by a small result of its own."""
    found = []
    for x in xs:
        y = np.sort(np.cos(y))
        found.append(np.tanh(x) * y[: len(x)])
    return found, y


def arguments(count: int = len(SIZES)) -> Any:
    rng = np.random.default_rng(3)
    xs = [rng.normal(size=n).astype("f4") for n in SIZES[:count]]
    return xs, rng.normal(size=4096).astype("f4")


def regions(graph: Graph) -> list[bool]:
    """Of each equation, whether it is a region that makes a small result."""
    small = [(n,) for n in SIZES]
    return [isinstance(e.op, Region) and e.outs[0].type.shape in small for e in graph.eqns]


def lowered(f: Any, *args: Any) -> Graph:
    return rewritten(ge2.make_jaxpr(f)(*args).graph, "cuda")


def test_small_results_are_last() -> None:
    found = regions(lowered(chain, *arguments()))
    assert sum(found) == len(SIZES) == sum(found[-len(SIZES) :])
    with config.using(passes_off=("results_together",)):
        assert not all(regions(lowered(chain, *arguments()))[-len(SIZES) :])


def test_what_is_few_or_large_or_read_again_stays_where_it_is() -> None:
    def again(xs: Any, y: Any) -> Any:
        found, y = chain(xs, y)
        return [np.sort(x) for x in found], y

    with config.using(passes_off=("results_together",)):
        few, read = lowered(chain, *arguments(3)), lowered(again, *arguments())
    for graph in few, read:
        assert results_together(graph) == graph


def updates(count: int) -> Graph:
    """Products that are not alike, each with a large update of its own."""
    rng = np.random.default_rng(3)
    ws = [rng.normal(size=(300, 400 - n)).astype("f4") for n in range(count)]

    def steps(ws: Any, x: Any) -> Any:
        found = []
        for w in ws:
            y = np.sort(x @ w, axis=1)
            found.append(w - 0.1 * np.tanh(x.T @ y))
            x = y[:, :300]
        return found

    return lowered(steps, ws, rng.normal(size=(9, 300)).astype("f4"))


def test_large_results_wait_for_each_other_where_few_bytes_do() -> None:
    size = 300 * 400 * 4  # bytes of a gradient
    with config.using(passes_off=("results_together",)):
        graph = updates(9)
    order = [e for e in graph.eqns if isinstance(e.op, Region) and e.outs[0] in graph.outputs]
    for waiting, sizes in ((100 * size, [9]), (4 * size, [4, 4, 1]), (3 * size, [1] * 9)):
        tuning = Tuning(results=Results(waiting=waiting))
        found = results_together(graph, Context(tuning=tuning))
        verify(found)
        places = [n for n, e in enumerate(found.eqns) if e in order]
        assert [found.eqns[n] for n in places] == order
        runs = [1]
        for one, other in pairwise(places):
            if other == one + 1:
                runs[-1] += 1
            else:
                runs.append(1)
        assert runs == sizes


def test_results_are_the_same_bits() -> None:
    args = arguments()
    with config.using(executor="shim", tuning=(H200,)):
        found = ge2.tree.leaves(ge2.jit(chain)(*args))
        with config.using(passes_off=("results_together",)):
            apart = ge2.tree.leaves(ge2.jit(lambda *xs: chain(*xs))(*args))
    for y, z in zip(found, apart, strict=True):
        np.testing.assert_array_equal(y, z)
