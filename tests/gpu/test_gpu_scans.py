"""Scans over many blocks at once, transposes and sorts on a GPU: right,
and the same bits each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2

SIZES = (6143, 6145, 1 << 20, (1 << 24) + 3, (1 << 25) + 5)


@pytest.mark.parametrize("n", SIZES)
def test_a_long_sum_has_the_same_bits_each_time(cp: Any, n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n, np.float32)
    given, scan = cp.asarray(x), ge2.jit(lambda x: np.cumsum(x))
    found, exact = scan(given).get(), np.cumsum(x.astype(np.float64))
    assert np.abs(found - exact).max() <= np.spacing(np.float32(np.abs(exact).max())) * 0.5001
    for _ in range(20):
        assert scan(given).get().tobytes() == found.tobytes()


@pytest.mark.parametrize("dtype", ["i4", "i8", "u1", "c8"])
def test_sums_of_every_width_of_state(cp: Any, dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(0, 3, (3, 200_003)).astype(dtype)
    for axis in (0, 1):
        found = ge2.jit(lambda x, axis=axis: np.cumsum(x, axis, dtype=x.dtype))(cp.asarray(x)).get()
        np.testing.assert_array_equal(found, np.cumsum(x, axis, dtype=x.dtype))


@pytest.mark.parametrize("shape", [(300_001, 5), (70_001, 130), (9, 4001, 33)])
def test_columns(cp: Any, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, axis = rng.integers(-9, 9, shape).astype(np.float32), len(shape) - 2
    scan = ge2.jit(lambda x: (np.cumsum(x, axis), np.maximum.accumulate(x, axis)))
    sums, most = scan(cp.asarray(x))
    np.testing.assert_array_equal(sums.get(), np.cumsum(x, axis))
    np.testing.assert_array_equal(most.get(), np.maximum.accumulate(x, axis))


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c16"])
def test_transposes(cp: Any, dtype: str, rng: np.random.Generator) -> None:
    for shape in ((1025, 2051), (64, 4096), (7, 300, 513)):
        x = rng.integers(0, 99, shape).astype(dtype)
        found = ge2.jit(lambda x: x.swapaxes(-1, -2).copy())(cp.asarray(x)).get()
        np.testing.assert_array_equal(found, x.swapaxes(-1, -2))


def test_sorts_are_stable_with_nan_last(cp: Any, rng: np.random.Generator) -> None:
    x = rng.choice(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1, 2, 3], np.float32), (50, 1000))
    given = cp.asarray(x)
    for axis in (0, 1):
        order = ge2.jit(lambda x, axis=axis: np.argsort(x, axis, stable=True))(given).get()
        np.testing.assert_array_equal(order, np.argsort(x, axis, stable=True))
        found = ge2.jit(lambda x, axis=axis: np.sort(x, axis))(given).get()
        np.testing.assert_array_equal(found, np.sort(x, axis))
    line = np.sort(x[0])
    for side in ("left", "right"):
        places = ge2.jit(lambda a, v, side=side: np.searchsorted(a, v, side))(
            cp.asarray(line), given
        ).get()
        np.testing.assert_array_equal(places, np.searchsorted(line, x, side))
