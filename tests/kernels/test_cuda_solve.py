"""Small systems of equations in CUDA: as LAPACK solves them, and what is left to a library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.choice import Problem
from ge2.compile.catalog import select
from ge2.ir import ArrayType
from ge2.ops.linalg import Solve

SYSTEMS = [
    ((12, 12), 1, "f8"), ((3, 2, 3, 3), 2, "f4"), ((70, 4, 4), 1, "f8"), ((2, 32, 32), 3, "f4"),
    ((5, 1, 1), 2, "f8"),
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize(("shape", "sides", "dtype"), SYSTEMS)
def test_small_systems(shape: tuple[int, ...], sides: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape).astype(dtype)
    a[..., 0, 0] = 0 if shape[-1] > 1 else 2  # rows have to change places
    b = rng.standard_normal((*shape[:-2], sides, shape[-1])).astype(dtype)

    def f(a: Any, b: Any) -> Any:
        return np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2))

    with ge2.config.using(executor="shim"):
        low = ge2.jit(f).lower(a, b)
        assert "small solve in CUDA" in {c.taken.title for c in low.choices.values()}
        y = ge2.jit(f)(a, b)
    wanted = f(a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(
        y, wanted, rtol=0, atol=1e4 * np.finfo(dtype).eps * abs(wanted).max()
    )


def test_a_singular_matrix_spoils_no_other() -> None:
    a = np.stack([np.eye(2), np.ones((2, 2)), 2 * np.eye(2)])
    with ge2.config.using(executor="shim"):
        y = ge2.jit(np.linalg.solve)(a, np.ones((3, 2, 1)))
    np.testing.assert_array_equal(y[..., 0], [[1, 1], [np.nan] * 2, [0.5, 0.5]])


@pytest.mark.parametrize(
    ("n", "sides", "dtype", "why"),
    [
        (32, 64, "f8", ""), (33, 1, "f8", "more than 32 rows"), (4, 65, "f4", "64 right sides"),
        (4, 1, "c16", "real numbers"),
    ],
)  # fmt: skip
def test_what_is_left_to_a_library(n: int, sides: int, dtype: str, why: str) -> None:
    a, b = (ArrayType((n, m), np.dtype(dtype)) for m in (n, sides))
    choice = str(select(Problem(Solve(), (a, b), (b,), "cuda")))
    assert ("not small solve in CUDA" in choice) == bool(why) and why in choice
