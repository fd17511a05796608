"""Arrays that a thread's neighbours read at several places near each other, as whole packs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.emulator import EMULATED
from ge2.targets.cuda.limits import H200, Limits
from ge2.targets.cuda.load.nvrtc import compile
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

F = Any
BF16 = ml_dtypes.bfloat16


def tuned(chip: Limits, **numbers: float) -> Limits:
    columns = replace(chip.tuning.columns, **numbers)
    return replace(chip, tuning=replace(chip.tuning, columns=columns))


APART = tuned(EMULATED, gain=1e9)
WHOLE = tuned(EMULATED, costly=1 << 30)  # however few elements there are, a thread has a pack
FEW = replace(EMULATED, multiprocessors=1, threads_per_multiprocessor=8)
ROWS = tuned(FEW, costly=1 << 30, row=8)  # blocks lie along rows, with several below one another


def padded(x: F) -> F:
    p = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(3, 2)])
    n = x.shape[-1]
    return sum(p[..., k : k + n] * (k + 1) for k in range(6))


def longer(x: F) -> F:
    p = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(4, 4)], constant_values=3)
    return sum(p[..., k : k + x.shape[-1] + 1] for k in range(8))


def inner(x: F) -> F:
    n = x.shape[-1] - 14
    return sum(x[..., k : k + n] for k in range(15))


def torus(x: F) -> F:
    return np.roll(x, 1, -1) - np.roll(x, -1, -1) * 2 + np.roll(x, 3, 0) + x


def life(x: F) -> F:
    around = [np.roll(x, (i, j), (0, -1)) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return sum(around) - around[4] * 3


def edges(x: F) -> F:
    p = np.pad(x, 1, mode="edge")
    middle = (slice(1, -1),) * (x.ndim - 1)
    return p[(*middle, slice(2, None))] * 2 - p[(*middle, slice(0, -2))]


def nearer(x: F) -> F:
    """One element stands for those beyond the edge, of more places the farther a read is."""
    p = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(5, 5)], mode="edge")
    n = x.shape[-1]
    return sum(p[..., k : k + n] * (k + 1) for k in (4, 1, 0, 6, 10, 9))


def far(x: F) -> F:
    return np.roll(x, 17, -1) + np.roll(x, 18, -1) - x


def several(x: F) -> F:
    y = x[::-1] * 1
    return np.roll(x, 1, -1) * np.roll(y, -1, -1) + np.roll(y, 2, -1) - np.roll(x, -3, -1)


def written(x: F) -> F:
    y = x * 1
    y[..., 1:-2] = x[..., :-3] + x[..., 2:-1] - x[..., 3:]
    return y * 3


def folded(x: F) -> F:
    d = np.roll(x, 1, -1) - np.roll(x, -2, -1) + x
    return d.sum(0)


FUNCTIONS = [padded, longer, inner, torus, life, edges, nearer, far, several, written, folded]
SHAPES = [(5, 64), (3, 2, 96), (7, 65), (4, 130), (1, 257), (6, 4, 160)]


def on(chip: Limits) -> AbstractContextManager[None]:
    return config.using(executor="shim", tuning=(chip,))


def compared(function: F, *arrays: F, chip: Limits = WHOLE) -> None:
    """Kernels with windows and those without, which are compiled together, have the bits of NumPy."""
    programs = []
    with together_in_cuda():
        for each in (chip, APART):
            with on(each):
                programs.append(ge2.jit(function).lower(*arrays).compile())
        with on(chip):
            found = programs[0](*arrays)
        with on(APART):
            apart = programs[1](*arrays)
    for a, b, c in zip(*map(ge2.tree.leaves, (found, apart, function(*arrays))), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(np.asarray(a), c)


def is_windowed(function: F, *arrays: F, chip: Limits = WHOLE) -> bool:
    return any("_window" in text for _, text in kernels(function, *arrays, chip=chip))


def numbers(shape: tuple[int, ...], dtype: F, seed: int = 3) -> F:
    return np.random.default_rng(seed).integers(0, 7, shape).astype(dtype)


def blurred(x: F) -> F:
    p = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    n, m = x.shape[:2]
    return sum(p[i : i + n, j : j + m] * (i + j) for i in range(3) for j in range(3))


def turned(x: F) -> F:
    return np.roll(x, 1, 1) * 2 - np.roll(x, -2, 1) + np.roll(x, 1, 0)


def weighed(x: F) -> F:
    """The elements of a pixel are not alike."""
    return np.roll(x, 1, 1) * np.arange(x.shape[2]).astype(x.dtype) + x


def held(x: F) -> F:
    p = np.pad(x, ((0, 0), (1, 1), (0, 0)), mode="edge")
    return p[:, 2:] - p[:, :-2]


def gathered(x: F) -> F:
    return (np.roll(x, 1, 1) - x).sum(0), np.roll(x, 2, 1).sum(2)


def pooled(x: F) -> F:
    p = np.pad(x, [(1, 1)] * x.ndim)
    n, m = x.shape[0], (x.shape[-1] - 1) // 2
    rows = [p[i : i + n, ..., k : k + 2 * m - 1 : 2] for i in range(3) for k in range(3)]
    middle = (slice(None), *[slice(1, -1)] * (x.ndim - 2))
    return sum(r[middle] * (i + 1) for i, r in enumerate(rows))


def every_third(x: F) -> F:
    n = (x.shape[-1] - 4) // 3
    return sum(x[..., k : k + 3 * n - 2 : 3] * (k + 1) for k in range(4))


def reversed_edges(x: F) -> F:
    p = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 3)], mode="edge")
    n = x.shape[-1] // 2
    return p[..., 0 : 2 * n : 2] * 2 - p[..., 3 : 3 + 2 * n - 1 : 2] + p[..., 1 : 2 * n : 2]


STRIDED = [pooled, every_third, reversed_edges]


PIXELS = [blurred, turned, weighed, held, gathered]
DTYPES = [np.float32, np.uint8, BF16, np.float64]
TABLES = [
    (FUNCTIONS, SHAPES, DTYPES),
    (STRIDED, [(5, 64), (3, 2, 96), (7, 65), (2, 258), (1, 257)], DTYPES),
    (PIXELS, [(5, 32, 3), (4, 40, 4), (3, 50, 2), (6, 24, 5)], DTYPES[:3]),
]


@needs_compiler
@pytest.mark.exhaustive("chip", "dtype", table="windows", share=20)
@pytest.mark.parametrize("chip", [WHOLE, ROWS], ids=["whole", "rows"])
@pytest.mark.parametrize(
    ("function", "shape", "dtype"),
    [case for table in TABLES for case in product(*table)],
    ids=lambda x: x.__name__ if callable(x) else str(x),
)
def test_bits_do_not_change(function: F, shape: tuple[int, ...], dtype: F, chip: Limits) -> None:
    compared(function, numbers(shape, dtype), chip=chip)


def test_pools_with_a_stride_are_one_kernel() -> None:
    ((_, text),) = kernels(pooled, numbers((6, 128), np.float32), chip=WHOLE)
    assert "2 * v" in text


@pytest.mark.parametrize("beside", [4, 30])
def test_strided_slices_that_find_no_room_are_of_one_pad(beside: int) -> None:
    """It is written once, and not a part for each of them, some of which may be zeros alone."""

    def many(x: F) -> F:
        p = np.pad(x, [(beside, beside)] * 2)
        return sum(p[i : i + 6 : 2, k : k + 60 : 2] for i in range(9) for k in range(9))

    with config.using(executor="shim"):
        lowered = ge2.jit(many).lower(numbers((6, 64), np.float32))
    assert len(lowered.kernels) < 10


@pytest.mark.parametrize("function", [blurred, turned])
def test_rows_of_pixels_are_one_axis(function: F) -> None:
    ((_, text),) = kernels(function, numbers((5, 32, 3), np.float32), chip=WHOLE)
    assert "n_l" not in text


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_reads_near_each_other_are_windows(function: F) -> None:
    assert is_windowed(function, numbers((5, 64), np.float32))
    assert is_windowed(function, numbers((2, 3, 4, 128), BF16))


def test_rows_that_begin_anywhere_are_written_by_warps() -> None:
    ((_, text),) = kernels(longer, numbers((70, 256), np.float32), chip=ROWS)
    assert "ge2_write_row<PACK, 1, 256>" in text


@pytest.mark.parametrize("function", [torus, longer, far])
def test_packs_are_below_one_another_where_they_share_rows(function: F) -> None:
    ((_, text),) = kernels(function, numbers((70, 512), np.float32), chip=ROWS)
    assert ("TURNS" in text) == (function is torus)


def random_reads(x: F, rng: np.random.Generator) -> F:
    """Sums of what lies around: rolls, pads of each kind, slices and strides."""
    found, (n, m), kind, mode = x * 1, x.shape, 0, 0
    for turn in range(int(rng.integers(2, 6))):
        by, down = int(rng.integers(-9, 10)), int(rng.integers(-2, 3))
        if turn == 0 or rng.integers(2):  # else another of the last one's kind
            kind, mode = int(rng.integers(5)), int(rng.integers(3))
        if kind == 0:
            y = np.roll(x, (down, by), (0, 1))
        elif kind == 1:
            modes = [{"mode": "edge"}, {"mode": "wrap"}, {"constant_values": 2}]
            p = np.pad(x, 9, **modes[mode])
            y = p[9 + down : 9 + down + n, 9 + by : 9 + by + m]
        elif kind == 2:
            y = np.pad(x[:, 10 + by : m - 10 + by], ((0, 0), (10, 10)))
        elif kind == 3:
            y = np.pad(x, ((2, 2), (9, m + 20)))[2 + down :, 9 + by :: 2][:n, :m]
        else:
            y = x * 1
            y[:, 10:-10] = x[:, 10 + by : m - 10 + by]
        found = found + y * int(rng.integers(1, 4))
    return found


@needs_compiler
@pytest.mark.exhaustive("chip", table="windows")
@pytest.mark.parametrize("chip", [WHOLE, ROWS], ids=["whole", "rows"])
@pytest.mark.parametrize("seed", range(24))
def test_random_reads(seed: int, chip: Limits) -> None:
    def function(x: F) -> F:
        return random_reads(x, np.random.default_rng(seed))

    shape = [(6, 64), (5, 131), (9, 300), (3, 98)][seed % 4]
    dtype = [np.float32, np.uint8, np.int64, BF16, np.float64][seed % 5]
    compared(function, numbers(shape, dtype, seed) % 3, chip=chip)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("function", [padded, inner, torus, edges, every_third, written, blurred])
def test_gradients(function: F) -> None:
    shape = (4, 32, 3) if function is blurred else (6, 96)
    x = numbers(shape, np.float64)
    gradient = ge2.grad(lambda x: (function(x) ** 2).sum())
    with config.using(executor="shim", tuning=(WHOLE,)):
        found = ge2.jit(gradient)(x)
    with config.using(executor="reference"):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(ge2.jit(gradient)(x)))


@needs_nvrtc
@pytest.mark.exhaustive("dtype", table="registers of windows")
@pytest.mark.parametrize("function", [longer, torus, life, pooled, inner], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.uint8])
def test_windows_are_registers(function: F, dtype: F) -> None:
    for _, text in kernels(function, numbers((70, 512), dtype), chip=replace(H200, tuning=ROWS.tuning)):  # fmt: skip
        (used,) = compile(text, "sm_90a").kernels
        assert (used.stack, used.spills) == (0, 0)
