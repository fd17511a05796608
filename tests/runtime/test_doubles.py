"""What computes in float64 is told of on a GPU that has few units for it, and on no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2 import lax
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.ir import Graph
from ge2.targets.cuda.emulator import ShimDevice
from ge2.targets.cuda.limits import H200, double_ratio
from tests.together import needs_compiler

pytestmark = needs_compiler
GEFORCE = replace(H200, name="GeForce", double=64)
X = np.ones((16, 16))
F32 = X.astype(np.float32)


def graph_of(f: Any, *args: Any) -> Graph:
    graph: Graph = ge2.make_jaxpr(f)(*args).graph
    return graph


def on(limits: Any, f: Any, *args: Any) -> Executable:
    return compile_graph(graph_of(f, *args), device=ShimDevice(limits))


def line_of(f: Any) -> str:
    return f"test_doubles.py:{f.__code__.co_firstlineno + 1} in {f.__name__}"


def tanh(x: Any) -> Any:
    return np.tanh(x) * 2.0


def layer(x: Any) -> Any:
    return np.tanh(x @ x)


def loop(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() < 10, lambda c: np.tanh(c) + c, x)


def test_a_kernel_is_told_of_with_the_users_line() -> None:
    found = on(GEFORCE, tanh, X)
    words = (
        f"computes in float64 at {line_of(tanh)}, which GeForce does at 1/64 of the rate of float32"
    )
    assert found.slow == (f"pointwise_0 {words}",)
    (kernel,) = found.kernels
    assert kernel.slow == words
    assert str(found.kernels).splitlines()[-1] == f"pointwise_0 {words}"
    assert f"It {words}." in " ".join(str(kernel).split())


def test_so_is_a_product_and_the_round_of_a_loop() -> None:
    kernel, product = on(GEFORCE, layer, X).slow
    assert product.startswith(f"a matrix product computes in float64 at {line_of(layer)}")
    assert kernel.startswith("pointwise_0 ")
    (words,) = on(GEFORCE, loop, X).slow
    assert words.startswith("resident_kernel_0 ")
    with config.using(passes_off=("resident",)):
        assert any("/pointwise_0 computes" in words for words in on(GEFORCE, loop, X).slow)


def test_complex_numbers_of_float64_are_float64() -> None:
    assert on(GEFORCE, lambda z: z * z + 1, X.astype(np.complex128)).slow
    assert not on(GEFORCE, lambda z: z * z + 1, X.astype(np.complex64)).slow


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (tanh, F32),
        (lambda x: x.T.copy(), X),
        (lambda x: x.astype(np.float32) * 2, X),
        (lambda x: x * 3, np.ones(7, np.int64)),
    ],
    ids=["float32", "moved", "narrowed", "integers"],
)
def test_nothing_is_said_of_what_computes_in_no_float64(f: Any, x: Any) -> None:
    found = on(GEFORCE, f, x)
    assert found.slow == ()
    assert not any(kernel.slow for kernel in found.kernels)


def test_nothing_is_said_where_float64_is_fast() -> None:
    assert on(H200, layer, X).slow == ()
    assert ge2.jit(layer).lower(X).executable.slow == ()


def test_the_report_says_it() -> None:
    f = ge2.jit(tanh)
    with config.using(executor="shim", tuning=(GEFORCE,)):
        f(X)
    assert f"pointwise_0 computes in float64 at {line_of(tanh)}" in str(f.report())


def test_ratios_are_those_of_the_architectures() -> None:
    assert [double_ratio(a) for a in ("sm_80", "sm_90a", "sm_100", "sm_100f")] == [2, 2, 2, 2]
    assert [double_ratio(a) for a in ("sm_75", "sm_86", "sm_103", "sm_120", "sm_999")] == [
        32, 64, 64, 64, 64,
    ]  # fmt: skip
