"""Small results of the whole program are computed at its end, beside one another."""

from __future__ import annotations

from typing import Any

import numpy as np

import ge2
from ge2.base.config import config
from ge2.compile.pipeline import rewritten
from ge2.ir import Graph
from ge2.ops.graphs.region import Region
from ge2.passes.small_results_last import small_results_last
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
    with config.using(passes_off=("small_results_last",)):
        assert not all(regions(lowered(chain, *arguments()))[-len(SIZES) :])


def test_what_is_few_or_large_or_read_again_stays_where_it_is() -> None:
    def again(xs: Any, y: Any) -> Any:
        found, y = chain(xs, y)
        return [np.sort(x) for x in found], y

    with config.using(passes_off=("small_results_last",)):
        few, read = lowered(chain, *arguments(3)), lowered(again, *arguments())
        large = lowered(lambda xs, y: chain([y + len(x) for x in xs], y), *arguments())
    for graph in few, read, large:
        assert small_results_last(graph) == graph


def test_results_are_the_same_bits() -> None:
    args = arguments()
    with config.using(executor="shim", tuning=(H200,)):
        found = ge2.tree.leaves(ge2.jit(chain)(*args))
        with config.using(passes_off=("small_results_last",)):
            apart = ge2.tree.leaves(ge2.jit(lambda *xs: chain(*xs))(*args))
    for y, z in zip(found, apart, strict=True):
        np.testing.assert_array_equal(y, z)
