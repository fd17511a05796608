"""Products of fp8, as users write them: of arrays in float32 that are cast inside the program, since
a GPU has no arrays of fp8 for NumPy's users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import ml_dtypes
import numpy as np

import ge2
from tests.kernels.wgmma_cases import BF16, F16, F32

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
BARE, SCALED = "product by BLAS", "product by BLAS and its epilogue"
Case = tuple[Callable[..., Any], str, int, Any]


def wide(x: Any, y: Any) -> Any:
    return x.astype(F32) @ y.astype(F32)


# each of a, b and two scales; the family that multiplies fp8, the scales, the type of the result
CASES: Final[dict[str, Case]] = {
    "bfloat16": (lambda a, b, s, t: a.astype(BF16) @ b.astype(BF16), BARE, 0, BF16),
    "float16": (lambda a, b, s, t: a.astype(F16) @ b.astype(F16), BARE, 0, F16),
    "turned": (lambda a, b, s, t: a.T.astype(BF16).T @ b.astype(BF16), BARE, 0, BF16),
    "a scale": (lambda a, b, s, t: (wide(a, b) * s).astype(BF16), SCALED, 1, BF16),
    "two scales": (lambda a, b, s, t: (t * (s * wide(a, b))).astype(F16), SCALED, 2, F16),
    "a product of scales": (lambda a, b, s, t: (wide(a, b) * (s * t)).astype(BF16), SCALED, 2, BF16),
    "float32 that is asked": (
        lambda a, b, s, t: ge2.numpy.matmul(a.astype(F32), b.astype(F32), precision="fp8"),
        BARE, 0, F32,
    ),
}  # fmt: skip


def quantised(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of factors that are rounded to fp8."""
    return lambda x, y, s, t: function(x.astype(E4M3), y.astype(E4M3), s, t)


def exact(x: Any, y: Any, s: Any, t: Any, scales: int) -> Any:
    """The result in float64."""
    left, right = x.astype(E4M3).astype("f8"), y.astype(E4M3).astype("f8")
    return left @ right * (1.0, float(s), float(s) * float(t))[scales]
