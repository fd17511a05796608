"""Sums on a GPU beside NumPy's: at indices by exact atomics, of products in place of products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.arrays import BFLOAT16


@pytest.mark.parametrize("places", [1, 50, 1000, 20_000, 180_000])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "f2"])
def test_sums_at_indices(xp: Any, places: int, dtype: str, rng: np.random.Generator) -> None:
    """The same bits each time, and nearer than a sum one after another."""
    x = rng.normal(size=places).astype(dtype)
    updates, index = rng.normal(size=100_000).astype(dtype), rng.integers(0, places, 100_000)

    def sums(x: Any, updates: Any, index: Any) -> Any:
        found = x.copy()
        np.add.at(found, index, updates)
        return found

    step, arrays = ge2.jit(sums), [xp.asarray(a) for a in (x, updates, index)]
    kind = "block_sum" if places < 100_000 else "exact_sum"
    assert kind in step.lower(*arrays).as_text("cuda")
    found = step(*arrays).get()
    for _ in range(20):
        assert step(*arrays).get().tobytes() == found.tobytes()
    wide = np.clongdouble if dtype == "c8" else np.longdouble
    wanted = sums(x.astype(wide), updates.astype(wide), index)
    near = 4 * np.finfo(dtype).eps
    # blocks round their sums of float64 once each
    moved = sums(np.abs(x), np.abs(updates), index) if (kind, dtype) == ("block_sum", "f8") else 0
    error = np.abs(found - wanted)
    assert np.all(error <= near * (1 + np.abs(wanted)) + np.finfo(dtype).eps / 2 * moved)


@pytest.mark.parametrize("shape", [(64, 64), (16, 4), (3, 768), (4, 5, 8)])
@pytest.mark.parametrize("dtype", [*map(np.dtype, ("f4", "f8", "f2")), BFLOAT16])
def test_sums_of_few_places(
    xp: Any, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator
) -> None:
    """By threads that have columns of their own: the same bits each time."""
    x, updates = (rng.normal(size=s).astype(dtype) for s in (shape, (30_000, *shape[1:])))
    index = rng.integers(-len(x), len(x), len(updates))

    def sums(x: Any, updates: Any, index: Any) -> Any:
        found = x.copy()
        np.add.at(found, index, updates)
        return found

    step, arrays = ge2.jit(sums), [xp.asarray(a) for a in (x, updates, index)]
    assert "lane_sum" in step.lower(*arrays).as_text("cuda")
    found = step(*arrays).get()
    assert all(step(*arrays).get().tobytes() == found.tobytes() for _ in range(20))
    wide = [a.astype("f8") for a in (x, updates)]
    sizes = sums(*map(np.abs, wide), index)
    near = (
        16 * float(ml_dtypes.finfo(dtype).eps) if dtype.itemsize == 2 else 64 * np.finfo(dtype).eps
    )
    assert np.all(np.abs(found.astype("f8") - sums(*wide, index)) <= near * sizes)


@pytest.mark.parametrize(
    ("shape", "axis"), [((500, 64), 1), ((3, 1024), 1), ((64, 500), 0), ((5, 70, 9), 1)]
)
@pytest.mark.parametrize("names", [1, 7, 300])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_sums_of_lines(
    xp: Any, shape: tuple[int, ...], axis: int, names: int, dtype: str, rng: np.random.Generator
) -> None:
    """Each line by itself, the same bits each time; indices that lie outside wrap around."""
    many = tuple(names if a == axis else n for a, n in enumerate(shape))
    x, updates = (rng.normal(size=s).astype(dtype) for s in (shape, many))
    index = rng.integers(-(2**62), 2**62, many)
    index[..., ::2] %= shape[axis]
    step = ge2.jit(lambda x, u, i: ge2.vjp(lambda x: np.take_along_axis(x, i, axis), x)[1](u)[0])
    arrays = [xp.asarray(a) for a in (x, updates, index)]
    found = step(*arrays).get()
    assert all(step(*arrays).get().tobytes() == found.tobytes() for _ in range(5))
    places = list(np.ogrid[tuple(map(slice, many))])
    places[axis] = index % shape[axis]
    wanted, sizes = np.zeros(shape), np.zeros(shape)
    np.add.at(wanted, tuple(places), updates.astype("f8"))
    np.add.at(sizes, tuple(places), np.abs(updates.astype("f8")))
    assert np.all(np.abs(found - wanted) <= 8 * np.finfo(dtype).eps * sizes)
    taken = ge2.jit(lambda x, i: np.take_along_axis(x, i, axis))(arrays[0], arrays[2]).get()
    np.testing.assert_array_equal(taken, x[tuple(places)])


@pytest.mark.parametrize("way", ["a @ x", "y @ a", "tanh(a @ x + b)", "tanh(y @ a + x)"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype("f2")])
def test_half_types_by_a_vector(
    xp: Any, dtype: np.dtype, way: str, rng: np.random.Generator
) -> None:
    """Summed in float32; what takes few columns is shared by blocks, and the bits stay the same."""

    def product(a: Any, x: Any, y: Any) -> Any:
        found = a @ x if "a @ x" in way else y @ a
        return np.tanh(found / 64 + (y if "a @ x" in way else x)) if "tanh" in way else found

    arrays = [rng.normal(size=s).astype(dtype) for s in ((3000, 776), 776, 3000)]
    step, given = ge2.jit(product), [*map(xp.asarray, arrays)]
    found = step(*given).get()
    assert all(step(*given).get().tobytes() == found.tobytes() for _ in range(5))
    wanted = product(*(a.astype("f8") for a in arrays))
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=2**-7, atol=2**-4)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_that_are_sums(xp: Any, dtype: str, rng: np.random.Generator) -> None:
    def products(a: Any, x: Any, y: Any, hot: Any) -> Any:
        return np.tanh(a @ x), y @ a, hot.T @ a[:, :7], y @ (a @ x)

    arrays = [rng.normal(size=s).astype(dtype) for s in ((3000, 700), 700, 3000, (3000, 5))]
    found = ge2.jit(products)(*map(xp.asarray, arrays))
    near = 1e-4 if dtype == "f4" else 1e-11
    for y, wanted in zip(found, products(*(a.astype("f8") for a in arrays)), strict=True):
        np.testing.assert_allclose(y.get(), wanted, rtol=near, atol=near * 10)
