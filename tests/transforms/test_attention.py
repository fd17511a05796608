"""Attention found in graphs: however it is written, and under every transform."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.arrays import has_tensor_cores
from ge2.base.config import config
from ge2.compile import rewrites as rewrite
from ge2.compile.rewrites import attention
from ge2.ir import Graph, verify, without_dead_code
from ge2.ops.attention.ops import recognised
from ge2.passes.context import NOTHING, Context
from ge2.passes.simplify import inline
from ge2.targets.cuda.limits import H200
from ge2.trace import tidy
from tests.kernels.attention_cases import (
    BF16,
    DECODED,
    FACTORS,
    LAYOUTS,
    PARTS,
    SCORES,
    SINKS,
    SPELLINGS,
    Attention,
    drawn,
    exactly,
    masked,
    more,
    plain,
    scale,
    scores,
    seen,
    softmax,
    with_factor,
    with_weights,
)
from tests.passes.graphs import names

SHAPE, GPU = (2, 2, 9, 64), frozenset(("cuda",))
CASES: dict[str, tuple[Attention, tuple[int, ...], tuple[int, ...]]] = {
    **{f.__name__: (f, SHAPE, SHAPE) for f in SPELLINGS},
    **{name: (f, SHAPE, SHAPE) for name, (f, _) in SCORES.items()},
    **LAYOUTS,
}


KINDS = {"spelling": [f.__name__ for f in SPELLINGS], "score": SCORES, "layout": LAYOUTS}


@pytest.fixture(autouse=True)
def hopper() -> Iterator[None]:
    with config.using(executor="shim"):
        yield


def arguments(name: str, dtype: Any = BF16) -> list[Any]:
    rng, (_, q, k) = np.random.default_rng(0), CASES[name]
    return drawn(rng, q, k, dtype) + (more(rng, name, q, k, dtype) if name in SCORES else [])


def graph_of(function: Callable[..., Any], *xs: Any) -> Graph:
    return ge2.make_jaxpr(function)(*xs).graph


def floating(xs: Any) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if x.dtype == BF16)


def loss(function: Attention) -> Callable[..., Any]:
    def total(*xs: Any) -> Any:
        y = function(*xs)
        y = y if y.dtype == np.float64 else y.astype(np.float32)
        return (y * np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)).sum()

    return total


def near(found: Any, wanted: Any, bound: float = 0.02) -> None:
    """Results of half types, beside those in float64."""
    found = np.asarray(found, np.float64)
    assert found.shape == np.shape(wanted)
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", CASES)
def test_it_is_found_however_it_is_written(name: str) -> None:
    graph = recognised(graph_of(CASES[name][0], *arguments(name)), GPU)
    assert names(graph).count("attention") == 1
    assert not {"exp", "reduce_sum"} & {*names(graph)}


def test_the_sum_of_an_only_query_is_a_number() -> None:
    """Where numbers are no longer repeated before weights are divided by them."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        e = np.exp(k @ q)
        return e / e.sum() @ v

    xs = [
        np.linspace(-1, 1, n).reshape(s).astype(np.float32)
        for n, s in ((8, 8), (40, (5, 8)), (40, (5, 8)))
    ]
    np.testing.assert_allclose(ge2.jit(attention)(*xs), attention(*xs), rtol=1e-5)


@pytest.mark.exhaustive("executor", table="queries that no axis counts")
@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("executor", ["shim", "c"])
def test_a_query_that_no_axis_counts(executor: str, name: str) -> None:
    function, q, k = DECODED[name]
    xs = drawn(np.random.default_rng(0), q, k, BF16)
    graph = verify(recognised(graph_of(function, *xs), GPU))
    assert names(graph).count("attention") == 1 and "exp" not in names(graph)
    slopes = ge2.value_and_grad(loss(function), (0, 1, 2))
    with config.using(executor="reference"):
        wanted, derived = exactly(slopes, *xs)
    with config.using(executor=executor):
        y, found = ge2.jit(slopes)(*xs)
    near(y, wanted)
    for a, b in zip(found, derived, strict=True):
        near(a, b)


def test_equal_layers_are_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    kept = rewrite.chosen
    monkeypatch.setattr(rewrite, "chosen", lambda *given: asked.append(0) or kept(*given))

    def layers(q: Any, k: Any, v: Any) -> Any:
        for _ in range(3):
            q = plain(q, k, v)
        return q, plain(k, k, v)

    xs = arguments("plain")
    graph = graph_of(lambda *xs: ge2.vjp(layers, *xs)[1]((xs[0], xs[1])), *xs)
    found = names(verify(attention(graph, Context(H200))))
    assert found.count("fused_attention") == found.count("fused_attention_backward") == 4
    assert len(asked) == 4  # forward and backward, of different operands and of equal ones


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=str)
@pytest.mark.parametrize("weights", SINKS, ids=lambda f: f.__name__)
def test_a_sink_however_it_is_written(weights: Callable[[Any, Any], Any], dtype: Any) -> None:
    function, xs = with_weights(weights), [*arguments("plain", dtype), np.array([1, -2], dtype)]
    graph = without_dead_code(verify(recognised(graph_of(function, *xs), GPU)))
    assert names(graph).count("attention") == 1
    assert not {"exp", "concatenate", "pad", "reduce_max"} & {*names(graph)}
    slopes = ge2.value_and_grad(loss(function), (0, 1, 2, 3))
    used, (y, *found) = evaluated(slopes, *xs)
    assert {"attention_saving", "attention_backward"} <= {*used}
    with config.using(executor="reference"):
        wanted, derived = exactly(slopes, *xs)
    near(y, wanted)
    for a, b in zip(found[: 4 if dtype == np.float32 else 3], derived, strict=False):
        near(a, b) if b.any() else np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=str)
@pytest.mark.parametrize("function", [*PARTS, *map(with_factor, FACTORS)], ids=lambda f: f.__name__)
def test_weights_made_of_softmax(function: Attention, dtype: Any) -> None:
    rng, shape = np.random.default_rng(0), (2, 4, 9, 64)
    xs = drawn(rng, shape, shape, dtype)
    graph = without_dead_code(verify(recognised(graph_of(function, *xs), GPU)))
    assert names(graph).count("attention") == 1 + (function.__name__ == "differing")
    assert not {"exp", "reduce_sum", "dot_general"} & {*names(graph)}
    slopes = ge2.grad(loss(function), (0, 1, 2))
    _, (y,) = evaluated(function, *xs)
    used, found = evaluated(slopes, *xs)
    assert {"attention_saving", "attention_backward"} <= {*used}
    with config.using(executor="reference"):
        wanted, derived = exactly(function, *xs), exactly(slopes, *xs)
    near(y, wanted)
    for a, b in zip(found, derived, strict=True):
        near(a, b)


def half_a_softmax(q: Any, k: Any, v: Any) -> Any:
    """One part is no softmax: one product stays one."""
    s = scores(q, k)
    return (softmax(s) + np.tanh(s)) @ v


def weighed_keys(q: Any, k: Any, v: Any) -> Any:
    return (softmax(scores(q, k)) - k[..., None, :, 0] * softmax(scores(k, q))) @ v


def test_parts_without_a_kernel_are_one_product() -> None:
    """Types that a kernel may have, of rows that none reads."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((9, 6)).astype(BF16)[:, :5].copy() for _ in range(3)]

    def differing(q: Any, k: Any, v: Any) -> Any:
        return (softmax(q @ k.T) - 0.5 * softmax(k @ q.T)) @ v

    graph = attention(graph_of(differing, *xs), Context(H200))
    assert names(graph).count("dot_general") == 3


def sink_of_scores(q: Any, k: Any, v: Any) -> Any:
    """What is added to the sum is of the scores."""
    e = np.exp(scores(q, k))
    return e / (e.sum(-1, keepdims=True) + np.exp(scores(q, k))[..., :1]) @ v


def sink_less_another_shift(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + np.exp(-s.min(-1, keepdims=True))) @ v


def sink_read_too(q: Any, k: Any, v: Any) -> Any:
    """The weight of what is joined to scores is used."""
    s = scores(q, k)
    w = softmax(np.concatenate([s, s[..., :1] * 0], -1))
    return w[..., :-1] @ v + w[..., -1:]


def weights_too(q: Any, k: Any, v: Any) -> Any:
    w = softmax(scores(q, k))
    return w @ v, w


def two_sums(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(scores(q, k))
    return np.where(seen(e), e, 0) / e.sum(-1, keepdims=True) @ v


def held_scores(q: Any, k: Any, v: Any) -> Any:
    return softmax(ge2.stop_gradient(scores(q, k))) @ v


def held_sum(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(scores(q, k))
    return e / ge2.stop_gradient(e.sum(-1, keepdims=True)) @ v


def over_queries(q: Any, k: Any, v: Any) -> Any:
    e = np.exp(scores(q, k))
    return e / e.sum(-2, keepdims=True) @ v


def another_shift(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / np.exp(s).sum(-1, keepdims=True) @ v


def weights_weighed(q: Any, k: Any, v: Any) -> Any:
    """By an array, which has a cotangent."""
    return (softmax(scores(q, k)) * k[..., None, :, 0]) @ v


def added_rows(q: Any, k: Any, v: Any) -> Any:
    """One query for all rows, which differ by what is added: the sums are of more rows than it has."""
    return softmax(np.tanh(scores(q[..., :1, :], k) + q[..., :1])) @ v


@pytest.mark.parametrize(
    "function",
    [
        weights_too,
        two_sums,
        held_scores,
        held_sum,
        half_a_softmax,
        weighed_keys,
        sink_of_scores,
        sink_less_another_shift,
        sink_read_too,
        over_queries,
        another_shift,
        weights_weighed,
        added_rows,
    ],
)
def test_what_is_no_attention_is_left(function: Attention) -> None:
    graph = graph_of(function, *arguments("plain"))
    assert recognised(graph, GPU) is graph


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, np.float64])
def test_types_without_a_kernel_are_left(dtype: Any) -> None:
    graph = graph_of(plain, *arguments("plain", dtype))
    assert recognised(graph, GPU) is graph


def test_elsewhere_nothing_is_looked_for() -> None:
    with config.using(executor="c"):
        graph = graph_of(ge2.grad(loss(plain)), *arguments("plain"))
    assert not any(name.startswith("attention") for name in names(graph))


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind]])
def test_gradients(kind: str, name: str) -> None:
    xs = arguments(name)
    slopes = ge2.grad(loss(CASES[name][0]), floating(xs))
    graph = graph_of(slopes, *xs)
    assert {"attention_saving", "attention_backward"} <= {*names(graph)}
    captured = ge2.make_jaxpr(slopes)(*xs)
    found = captured.graph(*captured.captured, *xs)
    with config.using(executor="reference"):
        wanted = exactly(slopes, *xs)
    for y, w in zip(found, wanted, strict=True):
        near(y, w)


@pytest.mark.exhaustive("kind")
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind]])
def test_without_a_kernel_it_is_the_program_that_it_was(kind: str, name: str) -> None:
    """Of the same operations, some in another order, and to the bit."""
    xs = arguments(name)
    slopes = ge2.value_and_grad(loss(CASES[name][0]), floating(xs))
    closed = ge2.make_jaxpr(slopes)(*xs)
    with config.using(passes_off=("attention",)):
        wanted = ge2.make_jaxpr(slopes)(*xs)
    graph = inline(attention(closed.graph, NOTHING))
    assert sorted(names(tidy(graph))) == sorted(names(tidy(wanted.graph)))
    found = graph(*closed.captured, *xs)
    for y, w in zip(found, wanted.graph(*wanted.captured, *xs), strict=True):
        assert np.asarray(y).tobytes() == np.asarray(w).tobytes()


@pytest.mark.parametrize("capability", ["100", "90", "80", "75", ""])
def test_it_is_looked_for_where_a_gpu_has_the_kernels(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("cupy")
    device = SimpleNamespace(**({"compute_capability": capability} if capability else {}))
    runtime = SimpleNamespace(getDeviceCount=lambda: 1)
    module.cuda = SimpleNamespace(Device=lambda n: device, runtime=runtime)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", module)
    with config.using(executor="c"):
        graph = graph_of(ge2.grad(loss(plain)), *arguments("plain"))
    assert ("attention_backward" in names(graph)) == (capability in ("100", "90", "80"))


def test_another_module_where_one_lay_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(getDeviceCount=lambda: 1)
    for capability in ["90"] * 20 + ["75"] * 20:
        module, device = (ModuleType("cupy"), SimpleNamespace(compute_capability=capability))
        module.cuda = SimpleNamespace(Device=lambda n, of=device: of, runtime=runtime)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cupy", module)
        with config.using(executor="c"):
            assert has_tensor_cores() == (capability == "90")
        monkeypatch.undo()
        del module


def evaluated(function: Callable[..., Any], *xs: Any) -> tuple[list[str], list[Any]]:
    """The operations of a function's graph, and what they compute."""
    closed = ge2.make_jaxpr(function)(*xs)
    return names(closed.graph), closed.graph(*closed.captured, *xs)


def test_forward_mode_takes_the_plain_graph() -> None:
    xs, ts = arguments("plain"), arguments("plain")[::-1]
    used, (y, t) = evaluated(lambda *a: ge2.jvp(plain, a, tuple(ts)), *xs)
    assert "attention_saving" not in used
    wide = [np.asarray(x, np.float64) for x in (*xs, *ts)]
    value, tangent = ge2.jvp(plain, tuple(wide[:3]), tuple(wide[3:]))
    near(y, value)
    near(t, tangent)


def test_second_derivatives_take_the_plain_graph() -> None:
    xs = arguments("plain")

    def bent(*a: Any) -> Any:
        g = ge2.grad(loss(plain))(*a)
        return (g * g if g.dtype == np.float64 else (g * g).astype(np.float32)).sum()

    _, (found,) = evaluated(ge2.grad(bent), *xs)
    near(found, exactly(ge2.grad(bent), *xs), 0.05)


def test_batches_of_gradients_take_the_plain_graph() -> None:
    xs = arguments("plain")
    slopes = ge2.vmap(ge2.grad(loss(plain)), (0, 0, 0))
    used, (found,) = evaluated(slopes, *xs)
    assert "attention_saving" not in used
    near(found, exactly(slopes, *xs))


def test_gradients_of_batches() -> None:
    xs = arguments("plain")
    slopes = ge2.grad(loss(ge2.vmap(masked(0))), (0, 1, 2))
    used, found = evaluated(slopes, *xs)
    assert "attention_backward" in used
    for y, w in zip(found, exactly(slopes, *xs), strict=True):
        near(y, w)


def layers(checkpoint: bool) -> Attention:
    body = ge2.checkpoint(plain) if checkpoint else plain

    def run(q: Any, k: Any, v: Any) -> Any:
        y, _ = lax.scan(lambda x, w: (body(x, k * w, v), None), q, np.ones((3, 1), q.dtype))
        return y

    return run


@pytest.mark.parametrize("checkpoint", [False, True])
def test_layers_in_a_loop(checkpoint: bool) -> None:
    xs = arguments("plain")
    slopes = ge2.grad(loss(layers(checkpoint)), (0, 1, 2))
    closed = ge2.make_jaxpr(slopes)(*xs)
    assert "attention_backward" in str(closed.graph)
    for y, w in zip(closed.graph(*closed.captured, *xs), exactly(slopes, *xs), strict=True):
        near(y, w, 0.05)


def test_checkpoint() -> None:
    xs = arguments("plain")
    slopes = ge2.grad(loss(ge2.checkpoint(masked(0))), (0, 1, 2))
    closed = ge2.make_jaxpr(slopes)(*xs)
    assert "attention_backward" in str(closed.graph)
    for y, w in zip(closed.graph(*closed.captured, *xs), exactly(slopes, *xs), strict=True):
        near(y, w)


def test_a_number_that_scales_queries_has_a_gradient() -> None:
    def scaled(q: Any, k: Any, v: Any, by: Any) -> Any:
        return softmax((q * by) @ np.swapaxes(k, -1, -2)) @ v

    xs = [*arguments("plain"), np.asarray(scale(np.empty(64)), BF16)]
    slopes = ge2.grad(loss(scaled), (0, 3))
    used, found = evaluated(slopes, *xs)
    assert "attention_backward" in used
    for y, w in zip(found, exactly(slopes, *xs), strict=True):
        near(y, w, 0.05)
