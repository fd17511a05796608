"""Samples of the operations on matrices, and of Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2 import ops
from ge2.base.arrays import FLOAT32, FLOAT64
from ge2.ir import Op
from tests.laws.sample import COMPLEXES, Dims, Rng, Sample, numbers

REAL = (FLOAT32, FLOAT64)
LAPACK = (*REAL, *COMPLEXES)
Draw = Callable[[Rng, Dims, np.dtype], Any]


def gaussian(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    x = rng.standard_normal(shape)
    return np.asarray(x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x)


def unitary(rng: Rng, n: int, dtype: np.dtype) -> Any:
    return np.linalg.qr(gaussian(rng, (n, n), dtype))[0]


def each(make: Callable[[Rng, int, int, np.dtype], Any]) -> Draw:
    """Matrices beside one another, each by itself."""

    def draw(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
        y = np.empty(shape, np.complex128 if dtype.kind == "c" else np.float64)
        for i in np.ndindex(shape[:-2]):
            y[i] = make(rng, *shape[-2:], dtype)
        return y.astype(dtype)

    return draw


@each
def regular(rng: Rng, m: int, n: int, dtype: np.dtype) -> Any:
    """Singular values 1, 1.6, 2.2, ..., far from one another and from 0."""
    k = min(m, n)
    s = 1 + 0.6 * np.arange(k)
    return unitary(rng, m, dtype)[:, :k] * s @ unitary(rng, n, dtype)[:k]


@each
def definite(rng: Rng, m: int, n: int, dtype: np.dtype) -> Any:
    """Hermitian, with eigenvalues 1, 1.6, ...; what nobody reads, above the diagonal, is noise."""
    v = unitary(rng, n, dtype)
    x = v * (1 + 0.6 * np.arange(n)) @ v.conj().T
    return np.tril(x) + np.triu(gaussian(rng, (n, n), dtype), 1)


def definite_above(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return np.ascontiguousarray(np.swapaxes(definite(rng, shape, dtype), -1, -2).conj())


@each
def with_real_eigenvalues(rng: Rng, m: int, n: int, dtype: np.dtype) -> Any:
    p = unitary(rng, n, dtype) + 0.2 * np.triu(np.ones((n, n)))
    return p * (1 + 0.8 * np.arange(n)) @ np.linalg.inv(p)


def sampled(op: Op, draw: Draw, *shapes: Dims, dtypes: Any = LAPACK, **more: Any) -> list[Sample]:
    return [Sample(op, lambda rng, d, s=s: (draw(rng, s, d),), dtypes, **more) for s in shapes]


SQUARE: tuple[Dims, ...] = ((3, 3), (1, 1), (0, 0))


def equations() -> dict[str, list[Sample]]:
    pairs: list[tuple[Dims, Dims]] = [
        ((3, 3), (3, 2)), ((2, 2, 2), (2, 2, 1)), ((1, 1), (1, 1)), ((0, 0), (0, 2)), ((2, 2), (2, 0)),
    ]  # fmt: skip

    def solve(s: Dims, t: Dims, quiet: bool = False) -> Sample:
        return Sample(
            ops.Solve(quiet), lambda rng, d: (regular(rng, s, d), numbers(rng, t, d)), LAPACK
        )

    return {
        "solve": [*(solve(*p) for p in pairs), solve((2, 2), (2, 2), quiet=True)],
        "pinv": sampled(ops.Pinv(1e-6), regular, (3, 2), (2, 3), (0, 2)),
        "det": sampled(ops.Det(), regular, *SQUARE),
        "cofactors": [
            Sample(
                ops.Cofactors(),
                lambda rng, d, s=s, k=k: (*(numbers(rng, s, d) for _ in range(k)),),
                LAPACK,
            )
            for s, k in (((3, 3), 1), ((3, 3), 2), ((2, 3, 3), 3), ((1, 1), 2), ((0, 0), 2))
        ],
        "slogdet": sampled(ops.SlogDet(), regular, *SQUARE),
        "cholesky": sampled(ops.Cholesky(), definite, *SQUARE),
    }


def decompositions() -> dict[str, list[Sample]]:
    shapes: tuple[Dims, ...] = ((3, 3), (4, 2), (2, 0))
    values = [
        *sampled(ops.Svd(vectors=False), regular, (3, 2), (2, 3), (0, 2)),
        *sampled(ops.Svd(True, False), regular, (3, 2)),
    ]
    return {
        "qr": sampled(ops.Qr(), regular, *shapes) + sampled(ops.Qr(True), regular, (1, 1)),
        "eigh": [
            *sampled(ops.Eigh(), definite, *SQUARE, dtypes=REAL),
            *sampled(ops.Eigh(lower=False), definite_above, (3, 3), dtypes=REAL),
            *sampled(ops.Eigh(vectors=False), definite, (3, 3)),
        ],
        "eig": [
            *sampled(ops.Eig(), with_real_eigenvalues, *SQUARE, dtypes=REAL),
            *sampled(ops.Eig(False), with_real_eigenvalues, (3, 3)),
        ],
        "svd": [*sampled(ops.Svd(), regular, *shapes, (2, 3), dtypes=REAL), *values],
    }


def transforms() -> dict[str, list[Sample]]:
    lines: list[tuple[Dims, int]] = [((4,), 0), ((2, 5), 1), ((3, 2), 0), ((1,), 0), ((0, 3), 1)]
    planes: list[tuple[Dims, Dims]] = [((2, 3), (0, 1)), ((2, 3), ()), ((2, 2, 3), (2, 0))]
    along = [(s, (a,)) for s, a in lines]
    return {
        "fft": [
            sample
            for s, axes in (*along, *planes)
            for inverse in (False, True)
            for sample in sampled(ops.Fft(axes, inverse), numbers, s, dtypes=COMPLEXES)
        ],
        "rfft": [x for s, a in lines for x in sampled(ops.Rfft(a), numbers, s, dtypes=REAL)],
        "irfft": [
            sample
            for s, a in lines
            for n in (2 * s[a] - 1, 2 * s[a] - 2)
            if n > 0
            for sample in sampled(ops.Irfft(a, n), numbers, s, dtypes=COMPLEXES)
        ],
    }
