"""Small folds on a GPU: warps that meet once, blocks a sector wide, and a
block that has all rows.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from tests.codegen.test_cuda_small import (
    by_rows,
    masked,
    normal_columns,
    several,
    standardised,
    trained,
    with_state,
    worked_out,
)

BF16 = ml_dtypes.bfloat16


def agree(cp: Any, f: Any, *xs: Any) -> None:
    """As NumPy in float64; and the same bits in each of many calls, most of
    which replay a graph.
    """
    compiled, given = ge2.jit(f), [cp.asarray(x) for x in xs]
    found = [[y.get() for y in ge2.tree.leaves(compiled(*given))] for _ in range(20)]
    bits = [[y.tobytes() for y in each] for each in found]
    assert all(each == bits[0] for each in bits)
    for y, w in zip(found[0], ge2.tree.leaves(f(*(x.astype(np.float64) for x in xs))), strict=True):
        scale = float(np.abs(np.asarray(w, np.float64)).max(initial=1))
        np.testing.assert_allclose(y.astype(np.float64), w, rtol=2e-5, atol=2e-5 * scale)


@pytest.mark.parametrize(
    "shape", [(16, 1), (130, 9), (128, 256), (192, 1024), (256, 1024), (2100, 500)]
)
@pytest.mark.parametrize("f", [masked, with_state, standardised, several, by_rows])
def test_folds_over_rows(cp: Any, f: Any, shape: tuple[int, int], rng: np.random.Generator) -> None:
    agree(cp, f, *(rng.normal(size=shape).astype(np.float32) for _ in range(2)))


@pytest.mark.parametrize("shape", [(2, 2), (64, 16), (129, 20), (33, 100)])
def test_sums_of_rows_and_columns(
    cp: Any, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    agree(cp, normal_columns, (rng.random(shape) + 0.5).astype(np.float32))


@pytest.mark.parametrize("shape", [(1, 2), (128, 10), (192, 10), (256, 10), (1000, 10), (70, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, BF16], ids=lambda d: d.__name__)
def test_a_loss_and_its_gradients(
    cp: Any, shape: tuple[int, int], dtype: Any, rng: np.random.Generator
) -> None:
    z, b = rng.normal(size=shape).astype(dtype), rng.normal(size=shape[1]).astype(np.float32)
    y = rng.integers(0, shape[1], shape[0])
    compiled, given = ge2.jit(trained), [cp.asarray(x) for x in (z, b, y)]
    found = [[x.get() for x in compiled(*given)] for _ in range(20)]
    assert all([x.tobytes() for x in each] == [x.tobytes() for x in found[0]] for each in found)
    rough = {np.float32: 2e-6, np.float64: 1e-6, BF16: 1e-2}[dtype]
    for i, (x, w) in enumerate(zip(found[0], worked_out(z, b, y), strict=True)):
        np.testing.assert_allclose(
            x.astype(np.float64), w, rtol=rough if i == 1 else 2e-5, atol=2e-7
        )
