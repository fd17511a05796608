"""Fourier transforms of arrays that lie in many ways: functions, and shapes of complex or real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def damped(x: Any, steps: int) -> Any:
    y = x
    for _ in range(steps):
        y = np.fft.ifft(np.fft.fft(y) * 0.5) + x
    return y


CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], str]] = {
    "rows": (np.fft.fft, (5, 8), "c8"),
    "rows of 1": (np.fft.fft, (5, 1), "c16"),
    "columns": (lambda x: np.fft.fft(x, axis=0), (5, 8), "c16"),
    "a middle axis": (lambda x: np.fft.fft(x, axis=1), (3, 6, 5), "c16"),
    "a middle axis, the outer longer": (lambda x: np.fft.ifft(x, axis=1), (7, 6, 5), "c8"),
    "matrices": (np.fft.fft2, (3, 5, 8), "c16"),
    "the first two of three": (lambda x: np.fft.ifft2(x, axes=(0, 1)), (5, 8, 3), "c16"),
    "axes apart": (lambda x: np.fft.ifftn(x, axes=(0, 2)), (3, 4, 5), "c16"),
    "four axes": (np.fft.fftn, (2, 3, 4, 5), "c16"),
    "real rows": (np.fft.rfft, (3, 7), "f4"),
    "real rows of 1": (np.fft.rfft, (3, 1), "f8"),
    "real middle axis": (lambda x: np.fft.rfft(x, axis=1), (3, 6, 4), "f8"),
    "real matrices": (np.fft.rfft2, (3, 6, 8), "f4"),
    "to real rows of an odd length": (lambda x: np.fft.irfft(x, 7), (3, 4), "c16"),
    "to real columns": (lambda x: np.fft.irfft(x, axis=0), (4, 5), "c8"),
    "to real matrices": (np.fft.irfft2, (3, 6, 5), "c16"),
    "transposed": (lambda x: np.fft.fft(x.T), (5, 8), "c16"),
    "a part": (lambda x: np.fft.fft(x[1:, ::2] * 2), (6, 8), "c8"),
    "from an odd place on": (lambda x: np.fft.rfft(x[1:]), (33,), "f4"),
    "what is made, and goes on": (lambda x: np.fft.ifft(np.fft.fft(x * 2) * x).real + 1, (4, 16), "c8"),
    "beside another": (lambda x: np.concatenate([np.fft.fft(x), x]), (5, 8), "c16"),
    "of what is read again": (lambda x: np.fft.irfft(x) + np.fft.irfft(x)[::-1] + x.real[0, 0], (4, 5), "c16"),
    "in a loop": (lambda x: damped(x, 3), (4, 8), "c16"),
    "in a loop of any length": (lambda x: damped(x, 40), (4, 8), "c16"),
}  # fmt: skip


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype[0] == "c" else x).astype(dtype)


def close(y: Any, wanted: Any, dtype: str) -> None:
    assert y.shape == wanted.shape and y.dtype == wanted.dtype
    most = 50 * float(np.finfo(dtype).eps) * np.abs(wanted).max()
    np.testing.assert_allclose(y, wanted, rtol=0, atol=most)
