"""Linear algebra and Fourier transforms of CuPy's arrays: libraries' functions, the rules of ge2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.targets.cuda.load.gpu import cupy
from tests.kernels.transform_cases import CASES, close, drawn

SQUARE = np.array([[4.0, 1, 0.5], [1, 3, -1], [0.5, -1, 5]])
TALL = np.array([[1.0, 2], [0.5, -1], [3, 1], [0, 2]])
LINE = np.array([1.0, -2, 0.5, 4, 3, -1])


def rebuilt(w: Any, v: Any) -> Any:
    """The matrix of eigenvalues and eigenvectors, whatever the signs of these."""
    return v * w**2 @ np.swapaxes(v, 0, 1)


def product(u: Any, s: Any, vh: Any) -> Any:
    return u * s**2 @ vh


FUNCTIONS = {
    "solve": (lambda a: np.linalg.solve(a, a[0]).sum(), SQUARE),
    "inv": (lambda a: np.linalg.inv(a)[0, 1], SQUARE),
    "det": (np.linalg.det, SQUARE),
    "det of rank 2": (lambda a: np.linalg.det(a - a[0]), SQUARE),
    "det, second order": (lambda a: ge2.grad(np.linalg.det)(a)[0, 1], SQUARE),
    "slogdet": (lambda a: np.linalg.slogdet(a)[1], SQUARE),
    "cholesky": (lambda a: np.linalg.cholesky(a)[2].sum(), SQUARE),
    "eigh": (lambda a: (np.linalg.eigh(a)[0] ** 2).sum(), SQUARE),
    "eigenvectors": (lambda a: rebuilt(*np.linalg.eigh(a))[0, 1], SQUARE),
    "qr": (lambda a: np.abs(np.linalg.qr(a)[1]).sum(), TALL),
    "svd": (lambda a: np.linalg.svd(a, full_matrices=False)[1].sum(), TALL),
    "singular vectors": (lambda a: product(*np.linalg.svd(a, full_matrices=False))[1, 1], TALL),
    "pinv": (lambda a: np.linalg.pinv(a)[0].sum(), TALL),
    "norm": (np.linalg.norm, TALL),
    "fft": (lambda x: (np.abs(np.fft.fft(x)) ** 3).sum(), LINE),
    "rfft": (lambda x: (np.abs(np.fft.rfft(x, 8)) ** 3).sum(), LINE),
    "ifft2": (lambda x: (np.abs(np.fft.ifft2(x)) ** 3).sum(), TALL),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_the_host(name: str) -> None:
    cp: Any = cupy()
    f, x = FUNCTIONS[name]
    both = ge2.jit(ge2.value_and_grad(f))
    value, gradient = both(cp.asarray(x))
    assert isinstance(gradient, cp.ndarray)
    want = ge2.value_and_grad(f)(x)
    np.testing.assert_allclose(value.get(), want[0], rtol=1e-10)
    np.testing.assert_allclose(gradient.get(), want[1], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_transforms_of_arrays_that_lie_in_many_ways(name: str) -> None:
    f, shape, dtype = CASES[name]
    x = drawn(shape, dtype)
    given, step = cupy().asarray(x), ge2.jit(f)
    for _ in range(3):  # the third is a captured graph
        close(step(given).get(), f(x), dtype)
    np.testing.assert_array_equal(given.get(), x)


def test_transforms_are_launches_of_one_graph() -> None:
    """None of them is a call of CuPy's, which would make arrays and end the graph."""
    x = cupy().asarray(drawn((16, 16), "c8"))
    step = ge2.jit(lambda x: np.fft.ifft2(np.fft.fft2(x) * 2).real)
    step(x)
    assert "CuPy" not in str(step.report())
