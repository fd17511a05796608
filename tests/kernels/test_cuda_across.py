"""Elementwise kernels of arrays that lie across each other, on the CPU, a fiber a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.arrays import SHORT
from ge2.base.config import config
from tests.kernels.programs import alike, needs_compiler, numbers

pytestmark = needs_compiler


def ran(f: Callable[..., Any], *arrays: Any, tiled: bool = True) -> Any:
    """What a function gives on the shim, and whether a kernel of it has tiles, as it should."""
    with config.using(executor="shim", shim_seed=int(arrays[0].size)):
        jitted = ge2.jit(f)
        found = jitted(*arrays)
        assert ("ge2_tile" in jitted.lower(*arrays).as_text("cuda")) == tiled
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(8, 8), (31, 33), (64, 64), (65, 130), (12, 1023), (257, 96)])
def test_a_transpose_is_copied(shape: tuple[int, int], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    alike(ran(lambda x: x.T.copy(), x), x.T)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", list(SHORT), ids=str)
def test_every_dtype(dtype: np.dtype, rng: np.random.Generator) -> None:
    for shape in ((70, 96), (33, 41)):
        x = numbers(rng, shape, dtype, small=True)
        np.testing.assert_array_equal(ran(lambda x: x.T.copy(), x).tobytes(), x.T.tobytes())


def test_axes_outside_of_tiles(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 20, 2, 35)).astype(np.float32)
    for order in ((0, 3, 2, 1), (3, 0, 2, 1), (2, 3, 0, 1), (1, 3, 2, 0)):
        alike(
            ran(lambda x, order=order: x.transpose(order).copy(), x, tiled=order[-1] == 1),
            x.transpose(order),
        )


def test_several_arrays_some_of_them_across(rng: np.random.Generator) -> None:
    x, z = rng.standard_normal((2, 40, 70)).astype(np.float32)
    y, row = (
        rng.standard_normal((70, 40)).astype(np.float32),
        rng.standard_normal(40).astype(np.float32),
    )
    alike(ran(lambda x, y, z, row: (x.T * y + z.T) * row, x, y, z, row), (x.T * y + z.T) * row)
    two = ran(lambda x, y: (x.T + y, x.T * y), x, y)
    alike(two[0], x.T + y)
    alike(two[1], x.T * y)
    mixed = ran(lambda x, y: x.T.astype(np.float64) + y.astype(np.float16), x, y)
    alike(mixed, x.T.astype(np.float64) + y.astype(np.float16))


def test_a_square_and_its_transpose(rng: np.random.Generator) -> None:
    x = rng.standard_normal((67, 67)).astype(np.float32)
    alike(ran(lambda x: x + x.T, x), x + x.T)


def test_what_is_written_across(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 40, 70)).astype(np.float32)
    alike(ran(lambda x, y: (x * y + 1).T, x, y), (x * y + 1).T)


def test_parts_of_arrays(rng: np.random.Generator) -> None:
    x = rng.standard_normal((90, 77)).astype(np.float32)
    alike(ran(lambda x: x[3:, 2:].T + 1, x), x[3:, 2:].T + 1)
    alike(ran(lambda x: x[::2, 1:].T * 2, x), x[::2, 1:].T * 2)
    alike(ran(lambda x: x[::-1].T * 2, x), x[::-1].T * 2)


def test_few_columns_have_no_tiles(rng: np.random.Generator) -> None:
    x = rng.standard_normal((300, 3)).astype(np.float32)
    alike(ran(lambda x: x.T + 1, x, tiled=False), x.T + 1)
