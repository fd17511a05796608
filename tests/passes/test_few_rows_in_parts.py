"""Few rows of float32 by many bytes, or numbers of bfloat16, as three parts of bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.compile.rewrites.products import narrow_operands
from ge2.ir import verify
from ge2.passes.context import ThreeParts
from tests.passes.graphs import names

BF16 = np.dtype(ml_dtypes.bfloat16)


SMALL = ThreeParts(elements=1)


def values(w: Any, v: Any) -> Any:
    return w @ v.astype(np.float32)


def keys(w: Any, v: Any) -> Any:
    return np.einsum("bqd,bkd->bkq", w, v.astype(np.float32))


def drawn(function: Any, dtype: Any, rows: int = 4, columns: int = 40) -> list[Any]:
    rng, summed = np.random.default_rng(0), 72
    shape = (2, summed, columns) if function is values else (2, columns, summed)
    v = rng.integers(-128, 128, shape) if dtype != BF16 else rng.standard_normal(shape)
    w = np.exp(4 * rng.standard_normal((2, rows, summed)))
    return [w.astype(np.float32), v.astype(dtype)]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, BF16], ids=str)
@pytest.mark.parametrize("function", [values, keys])
def test_no_bit_is_lost(function: Any, dtype: Any) -> None:
    xs = drawn(function, dtype)
    xs[1] = np.abs(xs[1]) if dtype == BF16 else xs[1] // 2 + 64  # so that sums cancel nothing
    graph = ge2.make_jaxpr(function)(*xs).graph
    found = verify(narrow_operands(graph, SMALL))
    assert names(found).count("dot_general") == 1 and "concatenate" in names(found)
    (dot,) = (e for e in found.eqns if e.op.name == "dot_general")
    assert {a.type.dtype for a in dot.inputs} == {BF16}
    wanted = function(xs[0].astype(np.float64), xs[1].astype(np.float64))
    np.testing.assert_allclose(found(*xs)[0], wanted, rtol=1e-6)


def test_weights_that_are_infinite() -> None:
    xs = drawn(values, np.int8)
    xs[0][0, 0, 0], xs[0][1, 2, 3], xs[1][:] = np.inf, np.nan, np.abs(xs[1] // 2) + 1
    found = narrow_operands(ge2.make_jaxpr(values)(*xs).graph, SMALL)
    np.testing.assert_allclose(found(*xs)[0], values(*xs), rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(11, 40, np.int8), (7, 40, np.int8), (4, 8, np.int8), (4, 40, np.float16)],
)
def test_what_stays(rows: int, columns: int, dtype: Any) -> None:
    graph = ge2.make_jaxpr(values)(*drawn(values, dtype, rows, columns)).graph
    assert narrow_operands(graph, SMALL) is graph
