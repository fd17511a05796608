"""Convolution, slopes, polynomials, covariance, membership."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import ge2
import ge2.numpy as gnp
from ge2.base.errors import ShapeError, TypeRuleError
from tests.numpy.agreement import DTYPES, FEW, agree, draw


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["full", "same", "valid", "most"])
def test_convolution(mode: str, rng: np.random.Generator) -> None:
    for n, m in ((5, 3), (3, 6), (4, 4), (1, 1), (7, 2), (0, 2)):
        for dtype in ("i4", "f4", "c8"):
            agree(np.convolve, draw(rng, dtype, (n,)), draw(rng, dtype, (m,)), mode)
            agree(np.correlate, draw(rng, dtype, (n,)), draw(rng, dtype, (m,)), mode)
    agree(np.convolve, np.ones((2, 2)), np.ones(2), mode)


@pytest.mark.exhaustive("mode")
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("taps", [30, 140, 160])  # a sum of slices, blocks with a rest and without
def test_long_filters(mode: str, taps: int, rng: np.random.Generator) -> None:
    x, v = draw(rng, "f8", (200,)), draw(rng, "f8", (taps,))
    agree(np.convolve, x, v, mode)
    agree(np.correlate, x, v, mode)
    v[0], x[70] = np.inf, np.nan  # which spoil the windows that they are in, and no others
    agree(np.convolve, x, v, mode)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["i4", "f4", "c8", "f2"])
def test_long_filters_of_every_kind(dtype: str, rng: np.random.Generator) -> None:
    for n, m in ((129, 129), (133, 131), (140, 300)):
        agree(np.convolve, draw(rng, dtype, (n,)), draw(rng, dtype, (m,)), "same")


def test_derivatives_of_long_filters(rng: np.random.Generator) -> None:
    x, v, ct = (rng.standard_normal(n) for n in (180, 150, 31))
    by_x, by_v = ge2.grad(lambda x, v: (np.convolve(x, v, "valid") * ct).sum(), (0, 1))(x, v)
    np.testing.assert_allclose(by_x, np.convolve(ct, v[::-1]), atol=1e-12)
    np.testing.assert_allclose(by_v, np.correlate(x, ct, "valid")[::-1], atol=1e-12)


def test_slopes(rng: np.random.Generator) -> None:
    for dtype in ("i4", "f4", "f8", "c8"):
        x = draw(rng, dtype, (4, 5))
        for order in (1, 2):
            agree(np.gradient, x, edge_order=order)
            agree(np.gradient, x, 2.0, axis=1, edge_order=order)
            agree(
                np.gradient,
                x,
                0.5,
                np.array([0.0, 1.0, 3.0, 4.0, 8.0]),
                edge_order=order,
                trace=dtype != "f4",
            )
        agree(np.gradient, x[0, :2])
        agree(np.gradient, x[0, :1])
        agree(np.gradient, x, 1.0, 2.0, 3.0)


def test_polynomials(rng: np.random.Generator) -> None:
    for p, x in itertools.product(("i4", "f4", "c8"), repeat=2):
        agree(np.polyval, draw(rng, p, (4,)), draw(rng, x, (2, 3)))
    agree(np.polyval, [1, 2, 3], 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["i4", "f4", "f8", "c16"])
def test_zeros_of_polynomials(dtype: str, rng: np.random.Generator) -> None:
    for n in range(1, 6):
        p = draw(rng, dtype, (n,))
        p[0] = 3
        found = ge2.jit(np.roots)(p)
        want = np.roots(p).astype(found.dtype)  # real where no zero is complex
        rtol = 1e-3 if dtype == "f4" else 1e-9
        np.testing.assert_allclose(np.sort(found), np.sort(want), rtol=rtol, atol=rtol)
    largest = ge2.grad(lambda p: np.sum(np.roots(p).real ** 2))
    np.testing.assert_allclose(largest(np.array([1.0, -5.0, 6.0])), [-38, -10, -2], rtol=1e-9)


def test_covariance(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((3, 8)), rng.standard_normal(8)
    for f in (np.cov, np.corrcoef):
        agree(f, x)
        agree(f, x, y)
        agree(f, y)
        agree(f, x.T, rowvar=False)
        agree(f, x.astype("f4"), dtype="f4")
        agree(f, x + 1j * x[::-1])
    agree(np.cov, x, bias=True)
    agree(np.cov, x, ddof=0)
    times, importance = rng.integers(1, 4, 8), rng.random(8)
    for weights in ({"fweights": times}, {"aweights": importance},
                    {"fweights": times, "aweights": importance}):  # fmt: skip
        for more in ({}, {"ddof": 0}, {"ddof": 2}, {"y": y}):
            agree(np.cov, x, **weights, **more)
            agree(np.cov, x + 1j * x[::-1], **weights, **more)
    for wrong in (times[:7], times / 2):
        with pytest.raises((ShapeError, TypeRuleError), match="weights"):
            gnp.cov(x, fweights=wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_membership_and_partitions(dtype: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, dtype, (3, 4))
    agree(np.isin, x, draw(rng, dtype, (2, 2)))
    agree(np.isin, x, [0, 1], invert=True)
    got = gnp.partition(x, 2)
    np.testing.assert_array_equal(got[:, 2], np.partition(x, 2)[:, 2])
    np.testing.assert_array_equal(np.take_along_axis(x, gnp.argpartition(x, 1), -1), got)


def test_indices_of_extremes_that_are_no_nan() -> None:
    x = np.array([[1.0, np.nan, 3.0], [np.nan, -2.0, 5.0]])
    for f, axis in itertools.product((np.nanargmax, np.nanargmin), (None, 0, 1)):
        agree(f, x, axis)


def test_indices_of_triangles() -> None:
    x = np.ones((3, 4))
    for f in (np.tril_indices_from, np.triu_indices_from):
        agree(f, x, 1)
    agree(np.diag_indices_from, np.ones((3, 3)))


def test_casts() -> None:
    for source, target in itertools.product(FEW, FEW):
        for rule in ("safe", "same_kind", "unsafe"):
            assert gnp.can_cast(source, target, rule) == np.can_cast(source, target, rule)
    assert gnp.can_cast(gnp.bfloat16, "f4") and not gnp.can_cast("f4", gnp.bfloat16)
