"""Indices in CUDA wrap around, and keys of numbers have the order in which NumPy sorts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.arrays import COMPLEX, HALF, INTEGERS, SHORT
from tests.templates.cuda_harness import Function, elementwise
from tests.templates.test_casts import samples

I64, U64 = np.dtype(np.int64), np.dtype(np.uint64)
DTYPES = sorted(set(SHORT) - COMPLEX, key=str)


@pytest.fixture(scope="module")
def loops(place: str) -> dict[tuple[str, np.dtype], Any]:
    listed = {("key", d): Function(f"ge2_sort_key_{SHORT[d]}({{0}})", (d,), U64) for d in DTYPES}
    for d in INTEGERS:
        listed["index", d] = Function(f"ge2_index_{SHORT[d]}({{0}}, {{1}})", (d, I64), I64)
    return elementwise(listed, place)


@pytest.mark.parametrize("dtype", sorted(INTEGERS, key=str), ids=str)
def test_indices_wrap_around(dtype: np.dtype, loops: dict[tuple[str, np.dtype], Any]) -> None:
    info = np.iinfo(dtype)
    near = [i for i in range(-40, 41) if info.min <= i <= info.max]
    i = np.array([*near, info.min, info.min + 1, info.max, info.max - 1, info.max // 2], dtype)
    for size in (1, 2, 7, 10, 31, 2**31, 2**40):
        want = [int(k) % size for k in i.tolist()]
        np.testing.assert_array_equal(loops["index", dtype](i, np.int64(size)), want, f"of {size}")
    np.testing.assert_array_equal(loops["index", dtype](i, np.int64(0)), np.zeros(i.size))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keys_have_the_order_of_numpy(
    dtype: np.dtype, loops: dict[tuple[str, np.dtype], Any]
) -> None:
    x = np.random.default_rng(3).permutation(np.tile(samples(dtype), 2))  # equals keep their order
    key = loops["key", dtype](x)
    order = x.astype(np.float32) if dtype in HALF else x
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            np.argsort(key, kind="stable"), np.argsort(order, kind="stable")
        )
