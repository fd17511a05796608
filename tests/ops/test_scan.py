"""Scans: accumulation of half types, and derivatives with zeros, infinities and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT16
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType
from ge2.test_util.laws import differences, graph_of, like, paired, pulled, types_of
from tests.ops.test_elementwise import gradient


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_half_types_accumulate_in_float32(dtype: np.dtype) -> None:
    y = ops.CumSum(0)(np.full(5000, 0.25, dtype))
    want = np.cumsum(np.full(5000, 0.25, np.float32)).astype(dtype)
    assert y.dtype == dtype
    assert np.array_equal(y, want)


def test_both_directions() -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    assert ops.CumSum(1, reverse=True)(x).tolist() == [[6, 5, 3], [15, 11, 6]]
    assert ops.CumProd(0)(x).tolist() == [[1, 2, 3], [4, 10, 18]]
    assert ops.CumMax(1, reverse=True)(x[:, ::-1].copy()).tolist() == [[3, 2, 1], [6, 5, 4]]
    assert ops.CumMin(0, reverse=True)(-x).tolist() == [[-4, -5, -6], [-4, -5, -6]]
    assert ops.CumSum(0)(x).dtype == np.int8


def test_nan_goes_on() -> None:
    x = np.array([1.0, np.nan, 3.0])
    assert np.isnan(ops.CumMax(0)(x)).tolist() == [False, True, True]
    assert np.isnan(ops.CumMin(0)(x.astype(BFLOAT16))).tolist() == [False, True, True]


def naive(x: Any) -> Any:
    """The gradient of sum(cumprod(x)), one product at a time."""
    n = len(x)
    return [sum(np.prod(np.delete(x[: j + 1], i)) for j in range(i, n)) for i in range(n)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("zeros", [0, 1, 2, 13])
def test_products_with_zeros(n: int, zeros: int, rng: np.random.Generator) -> None:
    x = rng.uniform(0.5, 2, n)
    x[rng.permutation(n)[:zeros]] = 0
    assert np.allclose(gradient(ops.CumProd(0), x)[0], naive(x), rtol=1e-12)
    assert np.allclose(
        gradient(ops.CumProd(0, True), x[::-1].copy())[0][::-1], naive(x), rtol=1e-12
    )


def test_products_with_zeros_twice(rng: np.random.Generator) -> None:
    x = np.array([0.5, 0.0, 2.0, 0.0, 3.0, 1.5])
    joint = pulled(graph_of(ops.CumProd(0), types_of([x])), (True,))
    ct, w, v = (rng.standard_normal(6) for _ in range(3))
    twice = pulled(joint, (True, False))
    found = twice(x, ct, np.zeros(6), w)[-1]
    want = paired([w], differences(lambda a: joint(a, ct)[1:], [x], [True], [v]))
    assert np.isclose(paired([found], [v]), want, rtol=1e-9)


def test_an_infinity_stays_where_it_belongs() -> None:
    found = gradient(ops.CumProd(0), [np.inf, 2.0, 3.0])[0]
    assert found == [9.0, np.inf, np.inf]
    assert gradient(ops.CumProd(0), [2.0, 3.0, np.inf])[0][2] == 6.0


def test_equal_winners_share() -> None:
    assert gradient(ops.CumMax(0), [1.0, 1.0, 0.0, 2.0]) == [[1 + 0.5 + 0.5, 0.5 + 0.5, 0.0, 1.0]]
    assert gradient(ops.CumMin(0, reverse=True), [3.0, 1.0, 1.0]) == [
        [0.0, 0.5 + 0.5, 1 + 0.5 + 0.5]
    ]


def test_what_is_refused() -> None:
    with pytest.raises(ShapeError, match="axis 1"):
        ops.CumSum(1).infer(ArrayType((3,), FLOAT16))
    with pytest.raises(TypeRuleError, match=r"cumsum does not take bool\[3\]"):
        ops.CumSum(0).infer(ArrayType((3,), np.dtype(bool)))


def test_long_products_cost_few_equations() -> None:
    graph = pulled(graph_of(ops.CumProd(0), [ArrayType((100_000,), np.dtype(float))]), (True,))
    assert len(graph.eqns) < 500
    x, ct = np.linspace(0.999, 1.001, 100_000), like(np.random.default_rng(0), np.zeros(100_000))
    got = graph(x, ct)[-1]
    y = np.cumprod(x)
    want = np.cumsum((ct * y)[::-1])[::-1] / x
    assert np.allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max())
