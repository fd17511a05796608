"""A product of matrices as a device is asked for it, and on the CPU, at the same addresses."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ge2.base.dtypes import accumulator
from ge2.base.record import record
from ge2.targets.cuda.products.gemm import Gemm, Matrix


@final
@record
class Wanted:
    """A product of matrices of `dtype`, whose result is of `out`.

    `precision`: None is IEEE; "tf32" and "bf16" let float32 be multiplied so. `aligned`: bytes of
    which the places of the first factor, the other one and the result are multiples. `algorithm`:
    the number of one among those that the library thinks best; `workspace`: the most bytes of
    scratch that it may ask for.
    """

    gemm: Gemm
    dtype: np.dtype
    out: np.dtype
    precision: str | None = None
    aligned: tuple[int, int, int] = (16, 16, 16)
    algorithm: int = 0
    workspace: int = 32 << 20


@final
@record
class HostProduct:
    """By NumPy: a device that is the CPU has memory that it can read."""

    wanted: Wanted
    by = "NumPy"
    workspace = 0

    def __call__(self, stream: int, *arguments: int) -> None:
        first, other, result, *_ = arguments
        g, dtype, out = self.wanted.gemm, self.wanted.dtype, self.wanted.out
        wide = np.result_type(accumulator(dtype), accumulator(out))
        for a, b, y in g.calls:
            left = lying(first + a * dtype.itemsize, dtype, (g.count, g.m, g.k), g.first)
            right = lying(other + b * dtype.itemsize, dtype, (g.count, g.k, g.n), g.other)
            made = lying(result + y * out.itemsize, out, (g.count, g.m, g.n), g.result)
            made[...] = np.matmul(left.astype(wide), right.astype(wide))


def lying(place: int, dtype: np.dtype, shape: tuple[int, int, int], matrix: Matrix) -> Any:
    """The matrices at an address."""
    from ctypes import c_char

    memory: Any = (c_char * dtype.itemsize).from_address(place)
    one = np.ndarray((1,), dtype, memory)
    apart = (matrix.lead, 1) if matrix.turned else (1, matrix.lead)
    strides = tuple(n * dtype.itemsize for n in (matrix.step, *apart))
    return np.lib.stride_tricks.as_strided(one, shape, strides)
