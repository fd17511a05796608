"""Sorts of which few elements are read: which become selections, and what these find."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.catalog import interpret
from ge2.passes.reads import order_statistics
from tests.passes.graphs import graph
from tests.together import needs_compiler

MEDIAN = """{ lambda ; x:f32[3,17]. let
    s:f32[3,17] = sort[axis=1] x
    m:f32[3,2] = slice[start=(0, 4) step=(1, 1) stop=(3, 6)] s
    t:f32[2,1] = slice[start=(0, 16) step=(1, 1) stop=(2, 17)] s
  in (m, t) }
"""


def test_slices_of_few_ranks_need_no_sort(rng: np.random.Generator) -> None:
    before, x = graph(MEDIAN), rng.standard_normal((3, 17)).astype("f4")
    after = order_statistics(before)
    assert [e.op.name for e in after.eqns] == ["order_statistics", "slice", "slice"]
    for one, two in zip(interpret(before, (x,)), interpret(after, (x,)), strict=True):
        np.testing.assert_array_equal(one, two)


READ = "m:f32[3,2] = slice[start=(0, 4) step=(1, 1) stop=(3, 6)] s"


@pytest.mark.parametrize(
    "other",
    [
        READ.replace("(1, 1)", "(1, 2)").replace("6)", "8)"),
        READ.replace("[3,2]", "[3,8]").replace("(0, 4)", "(0, 0)").replace("6)", "8)"),
        "m:f32[3,17] = exp s",
    ],
)
def test_what_is_read_otherwise_is_sorted(other: str) -> None:
    before = graph(MEDIAN.replace(READ, other))
    assert order_statistics(before) == before


def arrays(n: int, dtype: Any, rng: np.random.Generator) -> list[Any]:
    """Drawn numbers, many equals, and what is special to the dtype."""
    if np.dtype(dtype).kind in "iu":
        ends = np.iinfo(dtype)
        drawn = rng.integers(ends.min, ends.max, n, dtype=dtype, endpoint=True)
        return [drawn, rng.integers(0, 3, n).astype(dtype)]
    special = rng.standard_normal(n)
    special[::3], special[1::7], special[2::5], special[3::6] = 0.0, -0.0, np.inf, -np.inf
    spread = 10.0 ** rng.uniform(-7, 4, n)
    nan = np.where(np.arange(n) == n // 2, np.nan, spread)
    return [each.astype(dtype) for each in (special, spread, nan, np.sort(spread))]


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["i1", "u8", "f2", ml_dtypes.bfloat16, "f4", "f8"])
def test_selections_are_the_elements_of_sorted_lines(dtype: Any, rng: np.random.Generator) -> None:
    def chosen(x: Any) -> Any:
        line, n = np.sort(x, axis=0), len(x)
        return line[n // 3 : n // 3 + 2], line[n // 2], line[:1], line[-1:]

    f = ge2.jit(chosen)
    for n in (30, 3001):
        for x in arrays(n, dtype, rng):
            given = np.stack([x, x[::-1], np.roll(x, 5)], axis=1)
            wide = given.astype("f4") if np.dtype(dtype).kind == "V" else given
            for y, right in zip(f(given), chosen(wide), strict=True):
                np.testing.assert_array_equal(y.astype(right.dtype), right)
    assert "order_statistics" in str(f.lower(given).kernels)


@needs_compiler
@pytest.mark.parametrize("executor", ["c", "shim"])
def test_quantiles_select_the_elements_beside_them(executor: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((37, 33))
    with config.using(executor=executor):
        f = ge2.jit(lambda x: np.percentile(x, 30, axis=1))
        np.testing.assert_allclose(f(x), np.percentile(x, 30, axis=1), rtol=1e-12)
        kernels = str(f.lower(x).kernels)
    assert "order_statistics" in kernels
    assert "gather" not in kernels
