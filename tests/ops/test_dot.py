"""Products: accumulation, asked-for result dtypes, and axes that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType

MATRIX = ops.DotGeneral(((1,), (0,)))


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_half_types_accumulate_in_float32_and_round_once(
    dtype: np.dtype, rng: np.random.Generator
) -> None:
    a, b = (rng.uniform(0, 1, s).astype(dtype) for s in ((3, 4096), (4096, 5)))
    wide = np.matmul(a.astype(FLOAT32), b.astype(FLOAT32))
    assert np.array_equal(MATRIX(a, b), wide.astype(dtype))
    kept = ops.DotGeneral(((1,), (0,)), out=FLOAT32)(a, b)
    assert kept.dtype == FLOAT32
    assert np.array_equal(kept, wide)


def test_a_wider_result_is_accumulated_wide() -> None:
    a = np.array([[1.0, 2.0**-30]], FLOAT32)
    b = np.array([[2.0**-30], [1.0]], FLOAT32)
    assert ops.DotGeneral(((1,), (0,)), out=FLOAT64)(a, b)[0, 0] == 2.0**-29


def test_integers_and_bools_keep_their_dtype() -> None:
    x = np.full((2, 2), 100, np.int8)
    assert MATRIX(x, x).tolist() == [[32, 32], [32, 32]]
    assert MATRIX(np.eye(2, dtype=bool), np.ones((2, 1), bool)).tolist() == [[True], [True]]


def test_what_does_not_fit() -> None:
    f32 = lambda *shape: ArrayType(shape, FLOAT32)  # noqa: E731
    with pytest.raises(ShapeError, match=r"contract axes \(1,\) of f32\[2,3\] have sizes \[3\]"):
        MATRIX.infer(f32(2, 3), f32(2, 3))
    with pytest.raises(TypeRuleError, match="one dtype"):
        MATRIX.infer(f32(2, 3), ArrayType((3, 2), FLOAT64))
    with pytest.raises(TypeRuleError, match="precision is one of"):
        ops.DotGeneral(((1,), (0,)), precision="fast").infer(f32(2, 3), f32(3, 2))
