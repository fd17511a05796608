"""The first or last few of sorted lines, found by folds of the lines, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from tests.passes.test_few_ranks import CASES, LONG_CASES
from tests.passes.test_sorted_reads import lines

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u1"])
@pytest.mark.parametrize("n", [1, 7, 32, 33, 64, 65, 200, 1024])
def test_short_rows_are_sorted_in_registers(
    cp: Any, n: int, dtype: str, rng: np.random.Generator
) -> None:
    """Bits of zeros and of NaN too, rows or columns."""
    x = (rng.standard_normal((777, n)) * 40).astype(dtype)
    if x.dtype.kind == "f":
        special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf], dtype)
        x[rng.random(x.shape) < 0.1] = special[rng.integers(0, 5)]
        x[::7] = special[rng.integers(0, 5, x[::7].shape)]
    for axis, a in ((1, x), (0, np.ascontiguousarray(x.T))):
        given = cp.asarray(a)
        y = ge2.jit(lambda a, axis=axis: np.sort(a, axis))(given).get()
        bits = f"u{a.dtype.itemsize}"
        np.testing.assert_array_equal(y.view(bits), np.sort(a, axis, kind="stable").view(bits))
        order = ge2.jit(lambda a, axis=axis: np.argsort(a, axis, stable=True))(given).get()
        np.testing.assert_array_equal(order, np.argsort(a, axis, kind="stable"))
        middle = ge2.jit(lambda a, axis=axis: np.sort(a, axis).take(n // 2, axis))(given).get()
        np.testing.assert_array_equal(middle, np.sort(a, axis).take(n // 2, axis))


@pytest.mark.parametrize("shape", [(3, 70_001), (64, 1 << 17), (5, 1 << 20)])
def test_softmax_of_long_rows(cp: Any, shape: tuple[int, int], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape, np.float32) * 8
    x[0], x[1, 5], x[2, ::2] = np.sort(x[0]), np.inf, -np.inf

    def total(x: Any) -> Any:
        return np.exp(x - x.max(1, keepdims=True)).sum(1)

    found = ge2.jit(total)(cp.asarray(x)).get()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, total(x.astype(np.float64)), rtol=1e-5)
    assert found.tobytes() == ge2.jit(total)(cp.asarray(x)).get().tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("n", [300, 5000, 70_000])
def test_they_are_those_of_numpy(n: int, dtype: Any) -> None:
    import cupy

    x = lines(dtype, n)
    for function in CASES.values():
        found = ge2.jit(function)(cupy.asarray(x))
        pairs = zip(ge2.tree.leaves(found), ge2.tree.leaves(function(x)), strict=True)
        for y, wanted in pairs:
            np.testing.assert_array_equal(y.get(), wanted)


@pytest.mark.parametrize("shape", [(1, 128_000), (32, 128_000), (150, 70_001)])
@pytest.mark.parametrize("name", LONG_CASES)
def test_a_few_of_long_rows(
    cp: Any, name: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    """Rows of numbers, of many equal ones, of one alone, and with NaN."""
    x = rng.standard_normal(shape, np.float32)
    x[1::4], x[2::8], x[3::16, ::1000] = np.round(x[1::4]), 1.0, np.nan
    found = ge2.jit(LONG_CASES[name])(cp.asarray(x))
    pairs = zip(ge2.tree.leaves(found), ge2.tree.leaves(LONG_CASES[name](x)), strict=True)
    for y, w in pairs:
        np.testing.assert_array_equal(y.get(), w)
