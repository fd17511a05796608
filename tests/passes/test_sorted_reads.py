"""Of an order whose first or last are read these alone are found, and what it names is sorted itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.passes import TIDY
from ge2.passes.context import TUNING, Context, run
from ge2.passes.fold import counted, iotas
from ge2.passes.reads import sorted_reads
from tests.together import needs_compiler

Function = Callable[[Any], Any]
SHORT = replace(TUNING, first=(512, 64), first_share=(8, 8), ranks=(0, 0, 1 << 16))


def names(function: Function, *arrays: Any) -> list[str]:
    closed = ge2.make_jaxpr(function)(*arrays)
    graph = counted(closed.graph, Context(iotas=iotas(closed.graph, closed.captured)))
    graph = sorted_reads(run(TIDY, graph))
    return [e.op.name for e in graph.eqns]


def order(x: Any) -> Any:
    return np.argsort(x, -1, kind="stable")


def best(x: Any, i: Any) -> Any:
    return np.take_along_axis(x, i, -1), i


FIRST: dict[str, Function] = {
    "least": lambda x: np.sort(x, -1)[:, :5],
    "some of the least": lambda x: (np.sort(x, -1)[:, 1:4], np.sort(x, -1)[1, :5]),
    "largest": lambda x: np.sort(x, -1)[:, -5:],
    "least and largest": lambda x: (np.sort(x, -1)[:, :5], np.sort(x, -1)[:, -7:-1]),
    "places": lambda x: order(x)[:, :5],
    "last places": lambda x: order(x)[:, -4:],
    "least and places": lambda x: best(x, order(x)[:, :5]),
    "largest and places": lambda x: best(x, order(x)[:, -5:]),
    "negated": lambda x: best(x, order(-x)[:, :5]),
    "of rows and columns": lambda x: (
        best(x, order(x)[1:3, :5]) if x.ndim == 1 else order(-x)[1, :4]
    ),
    "negated and named": lambda x: np.take_along_axis(-x, order(-x)[:, :6], -1)[:, 1:],
    "of columns": lambda x: np.take_along_axis(x.T, np.argsort(x.T, 0, kind="stable")[:5], 0),
    "partition": lambda x: np.sort(np.partition(x, -6, -1)[:, -6:], -1),
    "threshold": lambda x: np.where(x < np.sort(x, -1)[:, -5:][:, :1], 0, x),
    "line": lambda x: best(x[0], order(-x[0])[:6]),
    "turned around": lambda x: (np.sort(x, -1)[:, ::-1][:, :5], order(x)[:, ::-1][1:, 1:8]),
}
WHOLE: dict[str, Function] = {
    "all": lambda x: np.take_along_axis(x, order(x), -1),
    "all negated": lambda x: np.take_along_axis(x, order(-x), -1) * 2,
    "all of columns": lambda x: np.take_along_axis(x.T, np.argsort(x.T, 0, kind="stable"), 0),
    "all by indices": lambda x: x[np.arange(x.shape[0])[:, None], order(x)],
    "all of a line": lambda x: x[0][order(x[0])],
}


def lines(dtype: Any, n: int = 80) -> Any:
    """Lines with equal elements, both zeros, infinities and NaN."""
    rng = np.random.default_rng(4)
    x = rng.integers(-20 if np.dtype(dtype).kind != "u" else 0, 20, (5, n)).astype(dtype)
    if x.dtype.kind in "iu":
        x[0, ::3], x[1, :4] = np.iinfo(dtype).max, np.iinfo(dtype).min
        return x
    x[0, :7] = [np.nan, -0.0, 0.0, np.inf, -np.inf, -np.nan, 0.0]
    x[1] = np.nan
    x[2, 3:] = np.inf
    x[3, :] = np.where(x[3] < 0, np.asarray(-0.0, dtype), np.asarray(0.0, dtype))
    return x


DTYPES = (np.float32, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("executor", ["c", "shim"])
def test_they_are_those_of_numpy(executor: str, dtype: Any) -> None:
    x = lines(dtype)
    cases = [*FIRST.values(), *WHOLE.values()]
    with config.using(executor=executor, tuning=(SHORT,)):
        f = ge2.jit(lambda *xs: [g(x) for g, x in zip(cases, xs, strict=True)])
        given = [x.copy() for _ in cases]
        found, kernels = f(*given), str(f.lower(*given).kernels)
    wanted = [function(x if x.dtype.kind != "V" else x.astype(np.float32)) for function in cases]
    for y, w in zip(ge2.tree.leaves(found), ge2.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(y).astype(w.dtype), w)
    assert "gather" not in kernels and "argsort" not in kernels
    assert "first_ranks" in kernels and "top_k" in kernels


@pytest.mark.parametrize("name", [*FIRST, *WHOLE])
def test_what_is_found(name: str) -> None:
    found = names({**FIRST, **WHOLE}[name], np.zeros((5, 2000), np.float16))
    assert not {"gather", "argsort"} & {*found}
    assert ("first_ranks" in found or "top_k" in found) == (name in FIRST)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (order(x), order(x)[:, :5]),  # all of it is a result
        lambda x: order(x)[:, :300],  # many
        lambda x: order(x)[:, 700:730],  # in the middle
        lambda x: order(x)[:, ::100],
        lambda x: order(x[:, :800])[:, :20],  # short lines are sorted in registers
        lambda x: order(x + 1j)[:, :20],
        lambda x: np.take_along_axis(-x * x, order(x), -1),  # another array's elements
        lambda x: np.take_along_axis(x, order(x), 0),  # along another axis
        lambda x: x[0][order(x)],  # of a vector
        lambda x: x.T[order(x[0])],  # whole lines
        lambda x: np.take(x, order(x) % 3, 0),
        lambda x: x[np.arange(2)[:, None], order(x)[:2]],  # of lines of its own
    ],
)
def test_others_are_sorted(function: Function) -> None:
    x = np.random.default_rng(1).standard_normal((3, 2000))
    found = names(function, x)
    assert "argsort" in found and "first_ranks" not in found


def test_one_selection_finds_elements_and_places() -> None:
    x = np.zeros((3, 2000))
    assert names(FIRST["negated"], x) == ["first_ranks", "slice", "slice"]
    assert names(FIRST["negated"], x.astype(int))[:2] == ["neg", "first_ranks"]
    assert names(WHOLE["all negated"], x)[:3] == ["neg", "sort", "neg"]
