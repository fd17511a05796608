"""Regions make what they read of others, if that moves fewer bytes, and it is the same to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.compile import compile_graph
from ge2.compile.pipeline import TUNING
from ge2.compile.recompute import computed_once, recompute
from ge2.ir import Graph, verify
from ge2.ops.graphs.region import Region
from ge2.passes import TIDY
from ge2.passes.context import Context, run
from ge2.passes.folds import online_sums
from ge2.passes.fuse import fuse
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.fuzz.networks import build
from tests.passes.graphs import same

PASSES = TUNING.passes
SMALL = Context(tuning=replace(PASSES, fusion=replace(PASSES.fusion, recomputed=1)))
BF16 = np.dtype(ml_dtypes.bfloat16)


def fused(graph: Graph) -> tuple[Graph, Graph]:
    """The regions of a graph, and those after the pass."""
    tidy = run(TIDY, graph)
    return fuse(tidy), fuse(verify(recompute(tidy, SMALL)))


def slopes(f: Callable[..., Any], *arrays: Any) -> tuple[Graph, Graph]:
    """Of a loss, so that what is read late is read after all that is read early."""

    def loss(*xs: Any) -> Any:
        return (f(*xs).astype(np.float32) ** 2).sum()

    graph = ge2.make_jaxpr(ge2.value_and_grad(loss, tuple(range(len(arrays)))))(*arrays).graph
    return fused(graph)


def between(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """What one region writes for another."""
    read = {a for e in graph.eqns if e.op.name == "region" for a in e.inputs}
    return sorted(
        (str(v.type.dtype), v.type.shape)
        for e in graph.eqns if e.op.name == "region" for v in e.outs if v in read
    )  # fmt: skip


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * (x * x * x))))


def norm(x: Any, gain: Any) -> Any:
    apart = x - x.mean(-1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * gain


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_of_an_activation_between_products_its_argument_is_kept(dtype: Any) -> None:
    x, w, v = (drawn(*s, dtype=dtype) for s in ((24, 16), (16, 40), (40, 8)))
    before, after = slopes(lambda x, w, v: gelu(x @ w) @ v, x, w, v)
    assert len(between(before)) > 1
    kept = between(after)
    assert len(kept) <= 1 and all(shape == (24, 40) for _, shape in kept)
    same(before, after, x, w, v)


def test_of_a_norm_the_numbers_of_a_row_are_kept() -> None:
    x, gain, w = drawn(24, 64), drawn(64), drawn(64, 8)
    before, after = slopes(lambda x, gain, w: norm(x, gain) @ w, x, gain, w)
    assert (str(x.dtype), x.shape) in between(before)
    assert {shape for _, shape in between(after)} <= {(24,), (24, 1)}
    same(before, after, x, gain, w)


def test_where_a_value_is_the_largest_is_asked_once() -> None:
    """Made twice it may differ in its last bit, and then no element is the largest."""
    x, w = drawn(24, 64), drawn(24, 8)
    before, after = slopes(lambda x, w: (np.tanh(x) * 1.1).max(-1) @ w, x, w)
    asked = [
        i
        for e in after.eqns
        if isinstance(e.op, Region)
        for i in e.op.graph.eqns
        if i.op.name == "eq"
    ]
    assert len(asked) == 1 and between(after) < between(before)
    same(before, after, x, w)


def test_of_long_rows_what_is_read_as_it_is_may_be_compared_again() -> None:
    """Where a logit is the largest of its row is a comparison of what is in memory: no mask waits for
    the derivative, nor do the logits in more bits.
    """

    def loss(x: Any, y: Any) -> Any:
        x = x.astype(np.float32)
        m = x.max(-1, keepdims=True)
        sums = np.log(np.exp(x - m).sum(-1, keepdims=True)) + m
        return (sums - np.take_along_axis(x, y, -1)).mean()

    shaped = ge2.ShapeDtypeStruct
    logits, labels = shaped((2048, 128256), BF16), shaped((2048, 1), np.int32)
    graph = run(TIDY, ge2.make_jaxpr(ge2.value_and_grad(loss))(logits, labels).graph)
    after = fuse(verify(recompute(online_sums(graph), Context(tuning=PASSES))))
    assert {shape for _, shape in between(after)} <= {(2048,), (2048, 1)}


def test_results_stay_and_small_values_are_read() -> None:
    x, w = drawn(24, 16), drawn(16, 16)
    graph = ge2.make_jaxpr(lambda x, w: (y := np.tanh(x), (y * 2) @ w, y - 1))(x, w).graph
    found = run(TIDY, graph)
    assert recompute(found, SMALL) is recompute(found) is found


def test_nothing_is_fused_where_no_value_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(TIDY, ge2.make_jaxpr(ge2.grad(lambda x: np.tanh(x).sum()))(drawn(24, 16)).graph)
    monkeypatch.setattr("ge2.compile.recompute.fuse", None)
    assert recompute(found) is found


@pytest.mark.parametrize("seed", range(6))
def test_networks_are_the_same(seed: int) -> None:
    made = build(seed)
    before, after = fused(made.graph)
    same(before, after, *made.arrays)


def depthwise(x: Any, w: Any, y: Any) -> Any:
    n, m = x.shape[1:3]
    p, z = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), 0.0
    for i in range(3):
        for j in range(3):
            z = z + p[:, i : i + n, j : j + m] * w[i, j]
    return (z / (1 + np.exp(-z)) * y).sum()


def test_sums_of_products_that_are_made_again_are_one_kernel() -> None:
    """Each product is made where it is summed; one reads the slope once for all nine."""
    shapes = (4, 64, 64, 128), (3, 3, 128), (4, 64, 64, 128)
    specs = [ge2.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    graph = ge2.make_jaxpr(ge2.grad(depthwise, (0, 1)))(*specs).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    sums = [str(k).count("= reduce_sum[") for k in made.kernels]
    assert max(sums) >= 9
    assert sum(map(bool, sums)) <= 2


EAGER = replace(PASSES, repetition=replace(PASSES.repetition, elements=1, launch=0))


BINS = np.arange(9)


def votes(gy: Any, gx: Any, bins: Any) -> Any:
    """A share of nine bins for the angle of each pixel."""
    b = np.floor(np.arctan2(gy, gx) * 3.0 + 9.0).astype(np.int32) % 9
    return np.where(b[..., None] == bins, np.hypot(gx, gy)[..., None], 0)


def test_costly_work_is_stored_before_it_is_repeated_along_a_new_axis() -> None:
    ys, xs = drawn(24, 16), drawn(24, 16) + 1
    found = run(TIDY, ge2.make_jaxpr(votes)(ys, xs, BINS).graph)
    before, after = fuse(found), fuse(verify(computed_once(found, Context(tuning=EAGER))))
    written = [v.type for e in after.eqns if e.op.name == "barrier" for v in e.inputs]
    assert {(str(t.dtype), t.size) for t in written} == {("float32", 384), ("int32", 384)}
    same(before, after, ys, xs, BINS)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[..., None] * np.arange(9, dtype=np.float32),  # nothing is made
        lambda x: (x * 2.0)[..., None] * np.arange(9, dtype=np.float32),  # little is
        lambda x: np.tanh(x) + np.tanh(x.sum()),  # nothing is repeated
        lambda x: np.exp(x)[:, None] * np.ones((24, 2, 16), np.float32),  # or not often
    ],
)
def test_cheap_work_and_what_is_not_repeated_are_not_stored(f: Any) -> None:
    found = run(TIDY, ge2.make_jaxpr(f)(drawn(24, 16)).graph)
    assert computed_once(found, Context(tuning=EAGER)) is found


def test_a_few_elements_are_computed_again() -> None:
    """A launch takes longer."""
    found = run(TIDY, ge2.make_jaxpr(votes)(drawn(24, 16), drawn(24, 16), BINS).graph)
    assert computed_once(found) is found


def test_bins_of_angles_are_summed_without_an_array_of_all_votes() -> None:
    """What is stored is seen with other axes: sums over cells make the votes."""
    spec = ge2.ShapeDtypeStruct((16, 512, 512), np.float32)

    def cells(gy: Any, gx: Any) -> Any:
        return votes(gy, gx, BINS).reshape(16, 64, 8, 64, 8, 9).sum((2, 4))

    graph = ge2.make_jaxpr(cells)(spec, spec).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    assert len(made.kernels) == 2 and max(k.written for k in made.kernels) < spec.size * 9


def digits(x: Any, w: Any) -> Any:
    """Of digits in bytes: the numbers, and a check of those at even and at odd places."""
    wide = (x - np.uint8(48)).astype(np.int64)
    return (wide * w).sum(1), wide[:, ::2].sum(1) + 3 * wide[:, 1::2].sum(1)


def forces(x: Any) -> Any:
    """Differences that go to both of their ends, as the derivative of springs does."""
    d = np.exp(x[1:] - x[:-1])
    return np.pad(d, ((1, 0), (0, 0))) + np.pad(-d, ((0, 1), (0, 0))), d.sum()


@pytest.mark.parametrize(
    ("f", "arrays", "written"),
    [
        (digits, ((np.uint8, 400, 12), (np.int64, 12)), 8 * 2 * 400),
        (forces, ((np.float32, 401, 12),), 4 * (400 * 12 + 401 * 12 + 1)),
    ],
)
def test_what_views_read_is_made_there_of_what_is_narrower_or_stored_anyway(
    f: Any, arrays: Any, written: int
) -> None:
    """Slices that take it apart, and a pad of its negative: it was stored for them."""
    xs = [(48 + 9 * np.random.default_rng(3).random(shape)).astype(t) for t, *shape in arrays]
    xs = [x / 100 if x.dtype == np.float32 else x for x in xs]
    with ge2.config.using(executor="emulator", tuning=(SMALL.tuning,)):
        graph = ge2.make_jaxpr(f)(*xs).graph
        kernels = compile_graph(graph, device=OfflineDevice(limits_of("sm_90a"))).kernels
        found = ge2.jit(f)(*xs)
    assert sum(k.written for k in kernels) <= 1.1 * written
    for y, want in zip(found, f(*xs), strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
