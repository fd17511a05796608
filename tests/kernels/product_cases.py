"""Products of small and large matrices, by kernels of ours and by a library, beside float64."""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np

from ge2.base.arrays import COMPLEX, HALF

BF16, F16, F32, F64 = np.dtype(ml_dtypes.bfloat16), *map(np.dtype, ("f2", "f4", "f8"))
DTYPES: Final = [BF16, F16, F32, F64]
DIGITS: Final[Any] = {F32: 2.0**-24, F64: 2.0**-53, F16: 2.0**-11, BF16: 2.0**-8}
PARTS: Final = {np.dtype("c8"): F32, np.dtype("c16"): F64}
TURNS: Final[dict[str, Any]] = {
    "as they are": lambda a, b: a @ b,
    "the first": lambda a, b: np.swapaxes(a, -1, -2) @ b,
    "the second": lambda a, b: a @ np.swapaxes(b, -1, -2),
    "both": lambda a, b: np.swapaxes(a, -1, -2) @ np.swapaxes(b, -1, -2),
}


def normal(dtype: Any, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def turned(turn: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Arrays that are `a` and `b` once they are turned."""
    x = a if turn in ("as they are", "the second") else np.swapaxes(a, -1, -2).copy()
    return x, b if turn in ("as they are", "the first") else np.swapaxes(b, -1, -2).copy()


def wide(x: Any) -> Any:
    return x.astype(np.complex128 if x.dtype in COMPLEX else np.float64)


def judge(found: Any, a: Any, b: Any, out: np.dtype) -> None:
    """`found` is a @ b: summed in float32 or wider, rounded once; errors grow
    with the root of the terms.
    """
    assert found.dtype == out
    if out.kind in "iub":
        np.testing.assert_array_equal(found, a @ b)
        return
    want, most = wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b))
    dtype = PARTS.get(a.dtype, a.dtype)
    bound = 4 * math.sqrt(a.shape[-1]) * DIGITS[F32 if dtype in HALF else dtype] * most
    if out in HALF:
        bound = bound + DIGITS[out] * abs(want) + 2.0**-24
    assert found.shape == want.shape
    assert (abs(wide(found) - want) <= bound + 1e-300).all()
