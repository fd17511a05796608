"""Indexing:

NumPy's wrapping and checks, duplicates, half types, derivatives of writes that meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from ge2 import ops
from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.ir import ArrayType
from ge2.test_util.laws import graph_of, pulled, types_of
from tests.exhaustive import examples


@st.composite
def selections(draw: Any) -> tuple[Any, tuple[int, ...], list[Any]]:
    """An array, sorted axes of it, and an index for each, some of them scalars or negative."""
    shape = draw(array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    common = draw(array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    dtype = draw(st.sampled_from(["i1", "i4", "i8"]))
    indices = []
    for a in axes:
        where = () if draw(st.booleans()) else common
        indices.append(np.asarray(rng.integers(-shape[a], shape[a], where)).astype(dtype))
    return rng.standard_normal(shape), axes, indices


def in_front(x: Any, axes: tuple[int, ...]) -> Any:
    return np.moveaxis(x, axes, range(len(axes)))


@settings(max_examples=examples(100))
@given(selections())
def test_reading_and_writing_are_those_of_numpy(
    case: tuple[Any, tuple[int, ...], list[Any]],
) -> None:
    """Of several writes to one place the last wins."""
    x, axes, indices = case
    at = tuple(np.broadcast_arrays(*indices))
    want = in_front(x, axes)[at]
    assert np.array_equal(ops.Gather(axes)(x, *indices), want)
    order = np.random.default_rng(1).permutation(want.size)
    updates = order.reshape(want.shape) * 0.5 - 2
    for ufunc, op in (
        (np.add, ops.ScatterAdd),
        (np.maximum, ops.ScatterMax),
        (np.minimum, ops.ScatterMin),
    ):
        written = x.copy()
        ufunc.at(in_front(written, axes), at, updates)
        assert np.allclose(op(axes)(x, updates, *indices), written, rtol=1e-14)
    written = x.copy()
    for place in np.ndindex(at[0].shape):
        in_front(written, axes)[tuple(i[place] for i in at)] = updates[place]
    assert np.array_equal(ops.Scatter(axes)(x, updates, *indices), written)


@pytest.mark.parametrize("bad", [4, -5, 2**40])
@pytest.mark.parametrize("form", ["scalar", "array", "two"])
def test_what_lies_outside_is_an_index_error(bad: int, form: str) -> None:
    x = np.zeros((4, 3))
    index = np.array(bad) if form == "scalar" else np.array([0, bad])
    axes, indices = ((0, 1), (index, np.array(0))) if form == "two" else ((0,), (index,))
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds for axis 0 with size 4"):
        ops.Gather(axes)(x, *indices)
    updates = np.zeros((*index.shape, 3)[: index.ndim + 2 - len(axes)])
    for op in (ops.ScatterAdd(axes), ops.Scatter(axes)):
        with pytest.raises(
            IndexError, match=f"index {bad} is out of bounds for axis 0 with size 4"
        ):
            op(x, updates, *indices)


def test_unsigned_indices_reach_the_end() -> None:
    assert ops.Gather((0,))(np.arange(300), np.array([255], np.uint8)).tolist() == [255]
    assert ops.ScatterAdd((0,))(np.zeros(3), np.ones(2), np.array([2, 2], np.uint64)).tolist() == [
        0,
        0,
        2,
    ]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_half_types_are_added_in_float32(dtype: np.dtype) -> None:
    x = ops.ScatterAdd((0,))(np.ones(1, dtype), np.full(4096, 0.25, dtype), np.zeros(4096, int))
    assert x.dtype == dtype
    assert float(x[0]) == float(np.float32(1025).astype(dtype))


def test_bools_are_added_as_numpy_adds_them() -> None:
    got = ops.ScatterAdd((0,))(np.zeros(3, bool), np.array([True, True]), np.array([1, 1]))
    assert got.tolist() == [False, True, False]


def test_an_overwritten_update_is_owed_nothing() -> None:
    x, updates, index = np.zeros((3, 2)), np.ones((3, 2)), np.array([1, 0, 1])
    joint = pulled(graph_of(ops.Scatter((0,)), types_of((x, updates, index))), (True, True, False))
    ct = np.arange(1.0, 7.0).reshape(3, 2)
    _, ct_x, ct_updates = joint(x, updates, index, ct)
    assert ct_x.tolist() == [[0, 0], [0, 0], [5, 6]]
    assert ct_updates.tolist() == [[0, 0], [1, 2], [3, 4]]


def test_equal_extremes_share_the_cotangent() -> None:
    """Of a place with its updates; a place that no update met keeps its own, NaN or not."""
    x = np.array([2.0, 5.0, 1.0, np.nan])
    updates, index = np.array([2.0, 2.0, 1.0, 3.0, 3.0]), np.array([0, 0, 0, 1, 2])
    ct = np.array([9.0, 4.0, 6.0, 8.0])
    joint = pulled(
        graph_of(ops.ScatterMax((0,)), types_of((x, updates, index))), (True, True, False)
    )
    y, ct_x, ct_updates = joint(x, updates, index, ct)
    np.testing.assert_array_equal(y, [2, 5, 3, np.nan])
    assert ct_x.tolist() == [3, 4, 0, 8]
    assert ct_updates.tolist() == [3, 3, 0, 0, 6]


def test_types_that_do_not_fit() -> None:
    x, i = ArrayType((4, 3), FLOAT32), ArrayType((2,), np.dtype(np.int64))
    with pytest.raises(TypeRuleError, match=r"integer indices; got bool\[2\]"):
        ops.Gather((0,)).infer(x, ArrayType((2,), np.dtype(bool)))
    with pytest.raises(ShapeError, match="one index for each"):
        ops.Gather((0, 1)).infer(x, i)
    with pytest.raises(ShapeError, match="one shape, or scalars"):
        ops.Gather((0, 1)).infer(x, i, ArrayType((3,), np.dtype(np.int64)))
    for axes in ((), (2,), (1, 0), (0, 0), (-1,)):
        with pytest.raises(ShapeError, match="axes"):
            ops.Gather(axes).infer(x, *(i for _ in axes))
    with pytest.raises(ShapeError, match=r"takes updates f32\[2,3\]; got f32\[3\]"):
        ops.ScatterAdd((0,)).infer(x, ArrayType((3,), FLOAT32), i)


def test_update_slice() -> None:
    x = np.zeros((3, 4))
    y = ops.UpdateSlice((1, 0), (1, 3))(x, np.ones((2, 2)))
    assert y.tolist() == [[0, 0, 0, 0], [1, 0, 0, 1], [1, 0, 0, 1]]
    assert not x.any()
    with pytest.raises(ShapeError, match="outside"):
        ops.UpdateSlice((1, 0), (2, 1)).infer(*types_of((x, np.ones((2, 2)))))
