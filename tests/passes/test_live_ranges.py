"""What waits across the fullest step is made again behind it: fewer bytes at once, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.compile.live_ranges import Order, split_live_ranges
from ge2.compile.pipeline import TUNING, rewritten
from ge2.compile.recompute import recompute
from ge2.compile.rewrites.products import half_results
from ge2.ir import Graph, verify
from ge2.passes import TIDY
from ge2.passes.context import Context, LiveRanges, run
from ge2.passes.fuse import fuse
from tests.fuzz.networks import build
from tests.passes.graphs import same
from tests.together import needs_compiler

BF16 = np.dtype(ml_dtypes.bfloat16)
FUSION = replace(TUNING.passes.fusion, recomputed=1)


def tuned(**limits: Any) -> Context:
    """As for a program whose small arrays are large."""
    ranges = LiveRanges(**{"least": 1, "ample": 0, "share": 1.0, **limits})
    return Context(tuning=replace(TUNING.passes, fusion=FUSION, live_ranges=ranges))


EAGER = tuned()


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * (x * x * x))))


def norm(x: Any, gain: Any, shift: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * gain + shift


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return (0.3 * np.random.default_rng(5).normal(size=shape)).astype(dtype)


ROWS, WIDTH, LAYERS = 32, 16, 3
LAYER = ((WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH))


def network(x: Any, y: Any, *params: Any) -> Any:
    """Layers of a transformer without attention, and a table of many words."""
    *layers, words = params
    for n in range(0, len(layers), len(LAYER)):
        gain, shift, up, bias, down = layers[n : n + len(LAYER)]
        x = x + gelu(norm(x, gain, shift) @ up + bias) @ down
    return ge2.nn.cross_entropy(x @ words, y)


def arrays() -> tuple[Any, ...]:
    labels = np.arange(ROWS, dtype=np.int32)
    return drawn(ROWS, WIDTH), labels, *(drawn(*s) for s in LAYER * LAYERS), drawn(WIDTH, 8 * ROWS)


def step(*given: Any, policy: str = "bf16") -> Any:
    f = ge2.autocast(network, policy) if policy else network
    loss, slopes = ge2.value_and_grad(f, argnums=tuple(range(2, len(given))))(*given)
    return loss, [p - 0.1 * g for p, g in zip(given[2:], slopes, strict=True)]


def regions(f: Callable[..., Any], *given: Any) -> Graph:
    tidy = half_results(run(TIDY, ge2.make_jaxpr(f)(*given).graph))
    return fuse(recompute(tidy, EAGER), EAGER)


def most(graph: Graph) -> int:
    return Order(graph).fullest()[1]


def test_of_a_network_neither_activations_nor_norms_wait() -> None:
    before = regions(step, *arrays())
    after = verify(split_live_ranges(before, EAGER))
    same(before, after, *arrays())
    wide, row = ROWS * 4 * WIDTH * BF16.itemsize, ROWS * WIDTH * BF16.itemsize
    assert most(before) - most(after) >= (LAYERS - 1) * (wide + row)
    assert len(after.eqns) == len(before.eqns) + 2 * LAYERS + 1  # the casts of weights


def test_what_a_region_has_already_is_not_computed_twice_in_it() -> None:
    after = split_live_ranges(regions(step, *arrays()), EAGER)
    for eqn in after.eqns:
        if eqn.op.name == "region":
            inner = eqn.op.graph.eqns
            assert len({(e.op, e.inputs) for e in inner}) == len(inner)


def test_no_more_is_moved_than_the_share_and_nothing_where_there_is_room() -> None:
    before = regions(step, *arrays())
    moved = Order(before).traffic()
    for share in (0.02, 0.1):
        after = verify(split_live_ranges(before, tuned(share=share)))
        assert moved < Order(after).traffic() <= (1 + 2 * share) * moved
        same(before, after, *arrays())
    assert split_live_ranges(before, tuned(ample=1 << 30)) is before
    assert split_live_ranges(before, replace(EAGER, body=True)) is before


def test_a_region_that_needs_the_late_reader_makes_nothing_for_it() -> None:
    def circular(x: Any, w: Any, v: Any, big: Any) -> Any:
        a = x @ w
        y = np.tanh(a)
        wide = np.exp(y @ big)  # much at once
        late = y @ (wide @ big.T).T @ v
        return late, a * late.sum(-1, keepdims=True)  # reads a, and what reads y

    given = drawn(24, 16), drawn(16, 16), drawn(24, 16), drawn(16, 256)
    before = regions(circular, *given)
    same(before, verify(split_live_ranges(before, EAGER)), *given)


@pytest.mark.parametrize("seed", range(8))
def test_networks_are_the_same(seed: int) -> None:
    made = build(seed)
    before = fuse(recompute(run(TIDY, made.graph), EAGER), EAGER)
    same(before, verify(split_live_ranges(before, EAGER)), *made.arrays)


@needs_compiler
def test_kernels_of_what_is_made_again_give_the_same_bits() -> None:
    """In float32, of which an emulated GPU has no tensor cores to use."""
    found, counts = [], []
    for off in ((), ("split_live_ranges",)):
        with ge2.config.using(executor="shim", tuning=(EAGER.tuning,), passes_off=off):
            f = ge2.jit(partial(step, policy=""))
            found.append(ge2.tree.leaves(f(*arrays())))
            graph = f.lower(*arrays()).executable.program.graph
        counts.append(sum(len(e.outs) for e in graph.eqns))
    assert counts[0] > counts[1]
    for x, y in zip(*found, strict=True):
        np.testing.assert_array_equal(x, y)


def test_it_is_in_the_pipeline_of_a_gpu() -> None:
    graph = ge2.make_jaxpr(step)(*arrays()).graph
    assert rewritten(graph, "cuda", EAGER) != rewritten(graph, "cuda", tuned(ample=1 << 30))


def test_what_is_the_sum_of_half_types_does_not_wait_itself() -> None:
    """Of two layers' sums one waits; the other is made of it and of a product in half as many bytes."""
    before = regions(step, *arrays())
    after = verify(split_live_ranges(before, EAGER))

    def waiting(graph: Graph, dtype: np.dtype) -> int:
        order = Order(graph)
        end, _ = order.fullest()
        found = [
            v for n, e in enumerate(order.eqns) if order.keys[n] < end for v in e.outs
            if v.type.shape == (ROWS, WIDTH) and v.type.dtype == dtype and order.last(v) > end
        ]  # fmt: skip
        return len(found)

    single = np.dtype(np.float32)
    assert waiting(before, single) - waiting(after, single) == LAYERS // 2
    assert waiting(after, BF16) <= waiting(before, BF16)  # norms' results went


def test_what_waits_for_the_whole_program_is_not_made_again() -> None:
    """A value that is returned is in memory in any case; one of three parts saves nothing."""

    def returned(x: Any, y: Any, z: Any, w: Any, big: Any) -> Any:
        a = (x @ w).astype(BF16) + (y @ w).astype(BF16) + (z @ w).astype(BF16)
        a = a.astype(np.float32) * 2
        wide = np.exp(a @ big)  # much at once
        return np.sin(a) * (wide @ big.T), a

    given = *(drawn(24, 16) for _ in range(3)), drawn(16, 16), drawn(16, 256)
    before = regions(returned, *given)
    same(before, verify(split_live_ranges(before, EAGER)), *given)
