"""Columns of points that regions of pairs read along their threads are rows of the points turned."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile import compile_graph
from ge2.compile.pipeline import TUNING
from ge2.compile.steps import turned_columns
from ge2.ops.shape import Transpose
from ge2.targets.cuda.emulator import OfflineDevice, limits_of
from tests.together import needs_compiler

Function = Callable[..., Any]
RESULTS = replace(TUNING.passes.results, pairs=1, neighbours=2, beside=1)
SMALL = replace(TUNING.passes, results=RESULTS)


def squares(x: Any) -> Any:
    """The squares of distances, a coordinate after another."""
    return sum((x[:, c, None] - x[:, c]) ** 2 for c in range(x.shape[1]))


def matern(squares: Any, y: Any) -> Any:
    d = np.sqrt(squares + 1e-3)
    return y @ ((1 + d + d * d / 3) * np.exp(-d)) @ y


def pairs(x: Any, y: Any) -> Any:
    return matern(((x[:, None] - x) ** 2).sum(-1), y)


def forces(x: Any, y: Any) -> Any:
    w = y / (squares(x) + 0.1)
    return np.stack([(w * (x[:, c, None] - x[:, c])).sum(1) for c in range(x.shape[1])], 1)


CASES: dict[str, Function] = {
    "slopes": ge2.grad(lambda x, y: matern(squares(x), y), (0, 1)),
    "slopes of points made before": ge2.grad(lambda x, y: matern(squares(np.tanh(x)), y), (0, 1)),
    "forces": forces,
}


def drawn(n: int, k: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    draw = np.random.default_rng(n)
    return draw.normal(size=(n, k)).astype(dtype), draw.normal(size=n).astype(dtype)


def on_gpu(function: Function, *xs: Any) -> tuple[list[str], Any]:
    specs = [ge2.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
    graph = ge2.make_jaxpr(function)(*specs).graph
    made = compile_graph(graph, name="f", device=OfflineDevice(limits_of("sm_90a")))
    return [str(k) for k in made.kernels], made.program.graph


def test_no_thread_reads_across_rows_of_points() -> None:
    kernels, _ = on_gpu(ge2.grad(pairs, (0, 1)), *drawn(2048, 8))
    assert any("transpose" in k for k in kernels)
    assert not any(re.search(r"\[\(?[ij] \+ v\)? \* ", k) for k in kernels)


@pytest.mark.parametrize(("n", "k"), [(2048, 3), (128, 8), (2048, 1)])
def test_few_columns_and_points_are_left(n: int, k: int) -> None:
    _, graph = on_gpu(ge2.grad(pairs, (0, 1)), *drawn(n, k))
    assert turned_columns(graph) == graph
    assert not any(isinstance(e.op, Transpose) for e in graph.eqns)


@needs_compiler
@pytest.mark.exhaustive("name", "dtype", table="turned columns")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("n", "k", "dtype"), [(33, 5, np.float32), (16, 4, np.float64)])
def test_it_means_the_same(name: str, n: int, k: int, dtype: Any) -> None:
    xs = drawn(n, k, dtype)
    wanted = ge2.jit(CASES[name])(*xs)
    with config.using(executor="emulator", tuning=(SMALL,)):
        made = ge2.jit(lambda *xs: CASES[name](*xs))
        found = made(*xs)
        assert any("transpose" in str(k) for k in made.lower(*xs).kernels)
    one = not isinstance(wanted, tuple)
    for a, b in zip((found,) if one else found, (wanted,) if one else wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-4, 2e-4)
