"""Slices with traced bounds whose length is known are NumPy's, read and
written; others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.errors import ShapeError, TracerIntegerConversionError

A = np.random.default_rng(7).normal(size=(6, 7, 5))
IDX = np.array([1, 3])
KEYS: list[Callable[[Any, Any], Any]] = [
    lambda k, j: np.s_[k : k + 3],
    lambda k, j: np.s_[j, k : k + 3],
    lambda k, j: np.s_[k : k + 3, j],
    lambda k, j: np.s_[j, :, k : k + 2],
    lambda k, j: np.s_[1, ::-2, k : k + 2],
    lambda k, j: np.s_[k : k + 2, 1:4, j : j + 2],
    lambda k, j: np.s_[..., k - 1 : k + 1],
    lambda k, j: np.s_[None, k : k + 2, None, j],
    lambda k, j: np.s_[k : k + 2, IDX],
    lambda k, j: np.s_[IDX, :, k : k + 2],
    lambda k, j: np.s_[j, k * 2 : (k + 1) * 2],
    lambda k, j: np.s_[k // 2 : k // 2 + 2],
    lambda k, j: np.s_[k - 6 : k - 4],
    lambda k, j: np.s_[k:k],
    lambda k, j: np.s_[3 - k : 5 - k],
    lambda k, j: np.s_[k - k : k - k + 6],
]


def read(x: Any, k: Any, j: Any) -> list[Any]:
    return [x[key(k, j)] for key in KEYS]


def write(x: Any, k: Any, j: Any) -> list[Any]:
    found = []
    for n, key in enumerate(KEYS):
        y = x.copy()
        at = key(k, j)
        y[at] = np.arange(y[at].size).reshape(y[at].shape) + n
        y[at] *= 2
        found.append(y)
    return found


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", ["c", "blocked"])
@pytest.mark.parametrize("make", [int, np.int32, np.int64])
def test_each_is_that_of_numpy(make: Any, executor: str) -> None:
    with config.using(executor=executor):
        f = ge2.jit(lambda x, k, j: (read(x, k, j), write(x, k, j)))
        for k, j in ((1, 2), (2, 0)):
            found = ge2.tree.leaves(f(A, make(k), make(j)))
            expected = [*read(A, k, j), *write(A, k, j)]
            for y, z in zip(found, expected, strict=True):
                assert y.shape == z.shape
                np.testing.assert_array_equal(y, z)


def test_it_is_a_view_and_parts_that_overlap_are_read_before_they_are_written() -> None:
    def f(x: Any, k: Any) -> Any:
        part = x[k : k + 3]
        part *= 2
        x[0] = 5
        after = part + 1
        np.add.at(x, np.s_[k : k + 2], 10)
        x[k + 1 : k + 3] = x[k : k + 2]
        return after, ge2.numpy.at(x)[k : k + 2].max(20.0)

    x, y = np.arange(8.0), np.arange(8.0)
    for a, b in zip(f(x, 2), ge2.jit(f)(y, 2), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(x, y)


def test_derivatives_batches_and_loops() -> None:
    x = np.arange(6.0)
    np.testing.assert_array_equal(
        ge2.jit(ge2.grad(lambda x, k: (x[k : k + 3] ** 2).sum()))(x, 1), [0, 2, 4, 6, 0, 0]
    )
    batch = ge2.vmap(lambda x, k: x[k : k + 2], (None, 0))(x, np.arange(3))
    np.testing.assert_array_equal(batch, [[0, 1], [1, 2], [2, 3]])

    def smooth(x: Any) -> Any:
        return ge2.lax.fori_loop(0, 4, lambda i, y: y.at[i : i + 2].set(y[i : i + 2].sum()), x)

    y = x.copy()
    for i in range(4):
        y[i : i + 2] = y[i : i + 2].sum()
    np.testing.assert_array_equal(ge2.jit(smooth)(x), y)


@pytest.mark.parametrize("k", [4, -1, -2, -3, -7, 6])
def test_one_that_is_shorter_in_numpy_is_an_index_outside(k: int) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        ge2.jit(lambda x, k: x[k : k + 3])(np.arange(5.0), k)


def test_known_bounds_are_numbers() -> None:
    found = ge2.value_and_grad(lambda x, k: x[k : k + 3].sum())(np.arange(5.0), 4)
    np.testing.assert_array_equal(found[1], [0, 0, 0, 0, 1])  # shorter, as in NumPy


def test_a_slice_of_unknown_length_names_what_to_write() -> None:
    x, refused = np.arange(5.0), TracerIntegerConversionError
    for f in (lambda x, k, m: x[k:m], lambda x, k, m: x[k:], lambda x, k, m: x[k : 2 * k + 1]):
        with pytest.raises(
            refused, match="length of a slice must be known(.|\n)*ge2.lax.dynamic_slice"
        ):
            ge2.jit(f)(x, 1, 2)
    with pytest.raises(refused, match=r"dynamic_slice_in_dim\(np.hamming\(5\), k, 2\)"):
        ge2.jit(lambda k: np.hamming(5)[k : k + 2])(1)
    np.testing.assert_array_equal(ge2.jit(lambda k: np.arange(5.0)[k : k + 2])(1), [1, 2])
    small = np.int8(1)  # whose sum wraps at 127
    with pytest.raises(refused):
        ge2.jit(lambda x, k: x[k : k + np.int8(2)])(x, small)
    with pytest.raises(ShapeError, match="9 elements does not fit into axis 0 of f64"):
        ge2.jit(lambda x, k: x[k : k + 9])(x, 1)
