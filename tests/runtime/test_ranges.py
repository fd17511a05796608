"""Ranges of a program in a profiler's time line: balanced, nested as the user's
scopes are, free when off.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.base.errors import DeviceError
from ge2.dispatch import cache
from ge2.targets.cuda.launch.library_call import END, recording
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.load.gpu import CudaDevice
from tests.together import needs_compiler

pytestmark = needs_compiler
X, W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8), np.eye(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def on_the_shim() -> Iterator[None]:
    cache.forget()
    with config.using(executor="shim"):
        yield
    cache.forget()


def paths(events: list[str]) -> list[tuple[str, ...]]:
    """The names around and of each range, in the order in which they begin; each of them ends."""
    open_: list[str] = []
    found = []
    for event in events:
        if event == END:
            open_.pop()
            continue
        open_.append(event.partition(":")[0])
        found.append(tuple(open_))
    assert not open_
    return found


def called(f: Any, *args: Any) -> list[tuple[str, ...]]:
    with config.using(nvtx=True), recording() as events:
        f(*args)
    return paths(events)


def model(x: Any, w: Any) -> Any:
    with ge2.named_scope("encoder"):
        y = x @ w
        with ge2.named_scope("norm"):
            e = np.exp(y - y.max(axis=1, keepdims=True))
            z = e / e.sum(axis=1, keepdims=True)
    return z @ w


def test_scopes_are_around_what_was_traced_in_them() -> None:
    assert called(ge2.jit(model), X, W) == [
        ("encoder",),
        ("encoder", "dot_general"),
        ("encoder", "norm"),
        ("encoder", "norm", "rowwise_1"),
        ("dot_general",),
    ]


def test_names_tell_the_lines() -> None:
    with config.using(nvtx=True), recording() as events:
        ge2.jit(model)(X, W)
    line = model.__code__.co_firstlineno + 2
    assert f"dot_general: test_ranges.py:{line} in model (encoder)" in events


def test_a_region_of_two_scopes_lies_in_neither() -> None:
    def f(x: Any) -> Any:
        with ge2.named_scope("a"):
            with ge2.named_scope("first"):
                x = np.tanh(x)
            with ge2.named_scope("second"):
                return x * 3

    assert called(ge2.jit(f), X) == [("a",), ("a", "pointwise_0")]


def test_rounds_of_a_loop_lie_in_its_range() -> None:
    def body(x: Any) -> Any:
        with ge2.named_scope("round"):
            return np.tanh(x) * 2

    def f(x: Any) -> Any:
        with ge2.named_scope("solver"):
            return lax.fori_loop(0, 2, lambda i, x: body(x), x)

    with config.using(passes_off=("resident",)):
        found = called(ge2.jit(f), X)
    kernels = [path for path in found if path[-1].startswith("pointwise")]
    assert len(kernels) == 2
    assert {path[0] for path in kernels} == {"solver"}
    assert {path[-2] for path in kernels} == {"round"}
    assert all(path.count("solver") == 1 for path in found)


def test_what_fails_leaves_no_range_open() -> None:
    def fail(x: Any) -> None:
        raise ValueError("stop")

    def f(x: Any) -> Any:
        with ge2.named_scope("outer"):
            ge2.debug.callback(fail, x)
            return np.tanh(x)

    with config.using(nvtx=True), recording() as events, pytest.raises(ValueError, match="stop"):
        ge2.jit(f)(X)
    assert paths(events)[0] == ("outer",)


def test_off_it_costs_nothing_and_on_it_takes_effect_at_the_next_call() -> None:
    f = ge2.jit(model)
    plain = f.lower(X, W).as_text("python")
    assert "with " not in plain
    with recording() as events:
        f(X, W)
    assert events == []
    assert len(called(f, X, W)) == 5
    with recording() as events:
        f(X, W)
    assert events == []
    assert f.lower(X, W).as_text("python") == plain
    with config.using(nvtx=True):
        text = f.lower(X, W).as_text("python")
    assert [
        line.strip() for line in text.splitlines() if "small_product" in line and "with" not in line
    ]
    assert text.count("with range_") == 5


def test_equal_graphs_of_other_scopes_have_their_own_names() -> None:
    def named(scope: str) -> Any:
        def f(x: Any) -> Any:
            with ge2.named_scope(scope):
                return np.tanh(x)

        return ge2.jit(f)

    assert called(named("a"), X)[0] == ("a",)
    assert called(named("b"), X)[0] == ("b",)


def test_a_gpu_says_them_to_nvtx() -> None:
    said: list[str] = []
    nvtx = SimpleNamespace(RangePush=said.append, RangePop=lambda: said.append(END))
    gpu: Any = CudaDevice(0, H200, SimpleNamespace(cuda=SimpleNamespace(nvtx=nvtx)))  # type: ignore[arg-type]
    span = gpu.span("a")
    with span, span:
        pass
    assert said == ["a", "a", END, END]
    bare: Any = CudaDevice(0, H200, SimpleNamespace(cuda=SimpleNamespace()))  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="has no NVTX"):
        bare.span("a")
