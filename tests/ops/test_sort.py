"""Sorting and searching: stability, NaN, half types, derivatives of ties."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType
from tests.ops.test_elementwise import same


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_nan_comes_last(dtype: np.dtype) -> None:
    x = np.array([np.nan, 2, -np.inf, np.nan, np.inf, -0.0, 0.0], dtype)
    y = ops.Sort(0)(x)
    assert same(y, np.array([-np.inf, -0.0, 0.0, 2, np.inf, np.nan, np.nan], dtype))
    assert ops.ArgSort(0)(x).tolist() == [2, 5, 6, 1, 4, 0, 3]


def test_equal_elements_keep_their_order() -> None:
    x = np.array([[1, 0], [1, 0], [0, 0]])
    assert ops.ArgSort(0)(x).tolist() == [[2, 0], [0, 1], [1, 2]]
    assert ops.ArgSort(0)(np.zeros(100, BFLOAT16)).tolist() == list(range(100))


def test_bool_and_complex() -> None:
    assert ops.Sort(0)(np.array([True, False])).tolist() == [False, True]
    assert ops.Sort(0)(np.array([1 + 1j, 1 - 1j, 0j])).tolist() == [0j, 1 - 1j, 1 + 1j]


@pytest.mark.parametrize("side", ["left", "right"])
def test_searches_are_those_of_numpy(side: str) -> None:
    line, values = np.array([1.0, 2.0, 2.0, 3.0, np.nan]), np.array([[0, 2, 2.5], [3, 4, np.nan]])
    assert np.array_equal(ops.SearchSorted(side)(line, values), np.searchsorted(line, values, side))
    small = line.astype(BFLOAT16), values.astype(BFLOAT16)
    assert np.array_equal(ops.SearchSorted(side)(*small), np.searchsorted(line, values, side))


def test_what_is_refused() -> None:
    f32, f64 = ArrayType((3,), FLOAT32), ArrayType((3,), np.dtype(float))
    with pytest.raises(ShapeError, match="axis 1"):
        ops.Sort(1).infer(f32)
    with pytest.raises(TypeRuleError, match="one dtype"):
        ops.SearchSorted().infer(f32, f64)
    with pytest.raises(TypeRuleError, match="side"):
        ops.SearchSorted("middle").infer(f32, f32)
    with pytest.raises(ShapeError, match="one axis"):
        ops.SearchSorted().infer(ArrayType((2, 3), FLOAT32), f32)
