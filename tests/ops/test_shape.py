"""Movement of elements: parameters that do not fit, and the pieces that other rules lean on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT32
from ge2.base.errors import ShapeError
from ge2.ir import ArrayType


def f32(*shape: int) -> ArrayType:
    return ArrayType(shape, FLOAT32)


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (ops.BroadcastInDim((2, 3), (0,)), [f32(3)], "does not broadcast"),
        (ops.BroadcastInDim((2, 3), (2,)), [f32(3)], "does not broadcast"),
        (ops.BroadcastInDim((3, 3), (1, 0)), [f32(3, 3)], "does not broadcast"),
        (ops.BroadcastInDim((2, 3), (0, 1)), [f32(2)], "does not broadcast"),
        (ops.Transpose((0, 0)), [f32(2, 2)], "no order of the axes"),
        (ops.Reshape((5,)), [f32(2, 3)], "has 6 elements"),
        (ops.Slice((0,), (4,), (1,)), [f32(3)], "lies outside"),
        (ops.Slice((2,), (1,), (1,)), [f32(3)], "lies outside"),
        (ops.Slice((0,), (1,), (0,)), [f32(3)], "lies outside"),
        (ops.Slice((0,), (1,), (1,)), [f32(3, 3)], "one number for each axis"),
        (ops.Rev((1,)), [f32(3)], "axes"),
        (ops.Pad((-2,), (-2,), (0,)), [f32(3)], "has no shape"),
        (ops.Pad((0,), (0,), (-1,)), [f32(3)], "has no shape"),
        (ops.Concatenate(0), [f32(3), f32(3, 1)], "alike in all other axes"),
        (ops.Concatenate(1), [f32(3, 1), f32(2, 1)], "alike in all other axes"),
        (ops.Concatenate(1), [f32(3)], "alike in all other axes"),
        (ops.Iota((2,), 1, FLOAT32), [], "iota along axis 1"),
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit(op: Any, types: list[ArrayType], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(*types)


def test_iota_counts_exactly_as_far_as_its_dtype_does() -> None:
    assert ops.Iota((2, 3), 1, np.dtype("u1"))().tolist() == [[0, 1, 2], [0, 1, 2]]
    assert ops.Iota((3,), 0, BFLOAT16)().astype(float).tolist() == [0, 1, 2]


def test_padding_crops_and_spreads() -> None:
    x = np.array([1, 2, 3])
    assert ops.Pad((1,), (2,), (0,))(x).tolist() == [0, 1, 2, 3, 0, 0]
    assert ops.Pad((-1,), (1,), (2,))(x).tolist() == [0, 0, 2, 0, 0, 3, 0]
    assert ops.Pad((2,), (-4,), (0,))(x).tolist() == [0]
