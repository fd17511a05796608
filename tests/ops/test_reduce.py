"""Reductions: what half types accumulate in, ties, zeros, empty axes and NaN."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType
from tests.ops.test_elementwise import gradient


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_half_types_accumulate_in_float32(dtype: np.dtype) -> None:
    x = np.full(20000, 0.25, dtype)
    assert float(ops.ReduceSum((0,))(x)) == float(np.float32(5000).astype(dtype))
    assert ops.ReduceSum((0,))(x).dtype == dtype


def test_integers_keep_their_dtype_and_wrap() -> None:
    assert int(ops.ReduceSum((0,))(np.array([100, 100], np.int8))) == -56
    assert int(ops.ReduceProd((0,))(np.array([16, 16], np.uint8))) == 0


def test_equal_winners_share() -> None:
    assert gradient(ops.ReduceMax((0,)), [1.0, 3.0, 3.0]) == [[0.0, 0.5, 0.5]]
    assert gradient(ops.ReduceMin((1,)), [[1.0, 1.0], [2.0, 1.0]]) == [[[0.5, 0.5], [0.0, 1.0]]]


def test_more_winners_than_float16_can_count() -> None:
    (found,) = gradient(ops.ReduceMax((0,)), np.zeros(70000, FLOAT16))
    assert found[0] == float(np.float32(1 / 70000).astype(FLOAT16))


def test_products_with_zeros() -> None:
    assert gradient(ops.ReduceProd((0,)), [2.0, 0.0, 3.0]) == [[0.0, 6.0, 0.0]]
    assert gradient(ops.ReduceProd((0,)), [0.0, 0.0, 3.0]) == [[0.0, 0.0, 0.0]]
    assert gradient(ops.ReduceProd((0,)), [2.0, 5.0, 0.0, 3.0, 7.0]) == [
        [0.0, 0.0, 210.0, 0.0, 0.0]
    ]


def test_nan_is_an_extreme() -> None:
    x = np.array([1.0, np.nan, 3.0], FLOAT32)
    assert np.isnan(ops.ReduceMax((0,))(x))
    assert np.isnan(ops.ReduceMin((0,))(x))
    assert int(ops.ArgMax(0)(x)) == 1
    assert int(ops.ArgMin(0)(x.astype(BFLOAT16))) == 1


def test_the_first_of_equal_extremes_is_found() -> None:
    x = np.array([2, 5, 5, 2, 2])
    assert (int(ops.ArgMax(0)(x)), int(ops.ArgMin(0)(x))) == (1, 0)


def test_empty_axes() -> None:
    empty = np.zeros((0, 2))
    assert ops.ReduceSum((0,))(empty).tolist() == [0.0, 0.0]
    assert ops.ReduceProd((0,))(empty).tolist() == [1.0, 1.0]
    for op in (ops.ReduceMax((0,)), ops.ArgMin(0)):
        with pytest.raises(ShapeError, match="empty axis"):
            op.infer(ArrayType((0, 2), FLOAT32))


def test_axes_that_do_not_exist() -> None:
    for axes in ((2,), (1, 0), (0, 0), (-1,)):
        with pytest.raises(ShapeError, match="axes"):
            ops.ReduceSum(axes).infer(ArrayType((2, 3), FLOAT32))
    with pytest.raises(TypeRuleError, match="reduce_or"):
        ops.ReduceOr((0,)).infer(ArrayType((2, 3), FLOAT32))
