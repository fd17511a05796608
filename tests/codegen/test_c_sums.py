"""Sums in C beside NumPy's pairwise ones: as exact, and the same where there is no exact sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

import ge2
from tests.together import needs_compiler

pytestmark = needs_compiler

total = ge2.jit(lambda x: x.sum(-1))
LARGEST = np.finfo(np.float64).max


@pytest.mark.full_options  # vectors add in several parts, and err less
@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [100, 1000, 10_000, 100_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_a_sum_errs_no_more_than_numpys(dtype, n):
    """By the mean of the squares, which luck changes by less than a fifth."""
    rng, ours, theirs = np.random.default_rng(n), 0.0, 0.0
    for _ in range(200 if n < 100_000 else 60):
        x = rng.standard_normal(n).astype(dtype)
        if x.dtype.kind == "c":
            x += (1j * rng.standard_normal(n)).astype(dtype)
        exact = complex(math.fsum(x.real), math.fsum(x.imag))
        ours += abs(complex(total(x)) - exact) ** 2
        theirs += abs(complex(x.sum()) - exact) ** 2
    assert math.sqrt(ours) <= 1.25 * math.sqrt(theirs)


@pytest.mark.exhaustive("special")
@pytest.mark.parametrize("n", [3, 128, 129, 5000, 300_000])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(
    "special",
    [
        (math.inf,), (-math.inf,), (math.nan,), (math.inf, -math.inf), (LARGEST, LARGEST),
        (-LARGEST, -LARGEST),
    ],
)  # fmt: skip
def test_a_sum_that_is_no_number_is_numpys(special, dtype, n):
    x = np.ones(n, dtype)
    x[n // 2 : n // 2 + len(special)] = special
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(total(x), x.sum())


def test_what_runs_round_away_is_not_lost():
    x = np.ones(1 << 12)
    x[0], x[-1] = 2.0**60, -(2.0**60)
    assert abs(total(x) - (len(x) - 2)) <= 512  # only the two runs with a large number lose theirs


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_sums_of_complex_numbers_are_two_of_real_ones(dtype, rng):
    parts = rng.integers(-999, 1000, (2, 60, 700, 3))
    z = (parts[0] + 1j * parts[1]).astype(dtype)

    def sums(z):
        return z.sum(), z.sum(0), z.sum(1), z.sum(-1), z.sum((0, 2)), (z * 2).sum(1), z.mean(1)

    compiled = ge2.jit(sums)
    for ours, wanted in zip(compiled(z), sums(z), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, wanted, rtol=1e-6 if dtype == np.complex64 else 1e-14)
    assert "reduction(+:" in "".join(map(str, compiled.lower(z).kernels))
    small = (rng.normal(size=100_000) + 1j * rng.normal(size=100_000)).astype(dtype)
    exact = small.astype(np.clongdouble).sum()
    most = 0.03 * np.finfo(dtype).eps * np.abs(small).sum()
    assert abs(ge2.jit(np.sum)(small) - exact) <= most


@pytest.mark.parametrize(
    "shape", [(200, 40), (5000, 7), (64, 3000), (130, 9000), (70, 20, 33), (65, 200, 20, 2)]
)
def test_sums_over_rows_are_of_float32_for_few_rows_alone(shape, rng):
    """Some rows at a time: columns of a panel, sums of which others are made, several at once."""
    x = rng.integers(-99, 100, shape).astype(np.float32)
    gain = rng.integers(-3, 4, shape[-1]).astype(np.float32)

    def sums(x):
        y = x * gain
        centred = x - x.mean(0)
        return (
            x.sum(0),
            y.sum(0),
            y.sum(),
            x.max(0),
            y.sum((0, -1)),
            y.sum(-1),
            np.abs(centred).sum(0),
        )

    compiled = ge2.jit(sums)
    for ours, wanted in zip(compiled(x), sums(x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-6, atol=1e-4)
    kernels = "".join(map(str, compiled.lower(x).kernels))
    assert "_part[" in kernels and "_from + 64" in kernels


def test_long_sums_over_rows_are_as_exact_as_along_them(rng):
    x = rng.standard_normal((300_000, 3), np.float32)
    exact = x.astype(np.float64).sum(0)
    assert (
        np.abs(ge2.jit(lambda x: x.sum(0))(x) - exact).max() <= 0.2 * np.abs(x.sum(0) - exact).max()
    )
    x = rng.random((300_000, 3), np.float32)
    np.testing.assert_allclose(
        ge2.jit(lambda x: x.sum(0))(x), x.astype(np.float64).sum(0), rtol=1e-7
    )
