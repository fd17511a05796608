"""A product of matrices as a device is asked for it, and on the CPU, at the same addresses."""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np

from ge2.base.dtypes import FLOAT32, accumulator
from ge2.base.record import record
from ge2.targets.cuda.products.gemm import Gemm, Matrix


@final
@record
class LibraryEpilogue:
    """What a library does with the sums of a product, by the name in cublasLt.h. It may have further
    arrays, in this order behind the result: a `vector` of an element for each row (a bias, or the
    gradient of one) and a `matrix` of values before an activation, whose columns are `lead` elements
    apart; or, if it is "SCALED", the scales of both factors. Of their addresses it is known that they
    are multiples of so many bytes; 0 if it has none.
    """

    kind: str
    vector: int = 0
    matrix: int = 0
    lead: int = 0


@final
@record
class Wanted:
    """A product of matrices of `dtype`, whose result is of `out`.

    `precision`: None is IEEE; "tf32" and "bf16" let float32 be multiplied so. `aligned`: bytes of
    which the places of the first factor, the other one and the result are multiples. `algorithm`:
    the number of one among those that the library thinks best; `workspace`: the most bytes of
    scratch that it may ask for. `epilogue`: what becomes of sums before they are stored.
    """

    gemm: Gemm
    dtype: np.dtype
    out: np.dtype
    precision: str | None = None
    aligned: tuple[int, int, int] = (16, 16, 16)
    algorithm: int = 0
    workspace: int = 32 << 20
    epilogue: LibraryEpilogue | None = None


@final
@record
class HostProduct:
    """By NumPy: a device that is the CPU has memory that it can read."""

    wanted: Wanted
    by = "NumPy"
    workspace = 0

    def __call__(self, stream: int, *arguments: int) -> None:
        first, other, result, *more = arguments
        g, dtype, out = self.wanted.gemm, self.wanted.dtype, self.wanted.out
        wide = np.result_type(accumulator(dtype), accumulator(out))
        for a, b, y in g.calls:
            left = lying(first + a * dtype.itemsize, dtype, (g.count, g.m, g.k), g.first)
            right = lying(other + b * dtype.itemsize, dtype, (g.count, g.k, g.n), g.other)
            made = lying(result + y * out.itemsize, out, (g.count, g.m, g.n), g.result)
            made[...] = self.finished(np.matmul(left.astype(wide), right.astype(wide)), more)

    def finished(self, sums: Any, more: list[int]) -> Any:
        """The sums of the only product as an epilogue leaves them; the addresses of its arrays."""
        e, out, (_, m, n) = self.wanted.epilogue, self.wanted.out, sums.shape
        if e is None:
            return sums
        if e.kind == "SCALED":
            one = Matrix(False, 1, 0)
            scales = more[: 1 + bool(e.matrix)]
            return math.prod((lying(at, FLOAT32, (1, 1, 1), one) for at in scales), start=sums)
        vector = lying(more[0], out, (1, m, 1), Matrix(False, m, 0)) if e.vector else None
        columns = Matrix(False, e.lead, 0)
        matrix = lying(more[bool(e.vector)], out, (1, m, n), columns) if e.matrix else None
        if e.kind.startswith("DGELU"):
            assert matrix is not None
            made = sums * gelu_slope(matrix.astype(sums.dtype))
            if vector is not None:
                vector[...] = made.sum(axis=2, keepdims=True)
            return made
        found = sums if vector is None else sums + vector.astype(sums.dtype)
        if matrix is not None:
            matrix[...] = found
        if e.kind.startswith("RELU"):
            return np.maximum(found, 0)
        return gelu(found) if e.kind.startswith("GELU") else found


def bent(x: Any) -> Any:
    return np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu(x: Any) -> Any:
    """The form with tanh, as cuBLASLt has it."""
    return 0.5 * x * (1 + bent(x))


def gelu_slope(x: Any) -> Any:
    steep = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + bent(x)) + 0.5 * x * (1 - bent(x) ** 2) * steep


def lying(place: int, dtype: np.dtype, shape: tuple[int, int, int], matrix: Matrix) -> Any:
    """The matrices at an address."""
    from ctypes import c_char

    memory: Any = (c_char * dtype.itemsize).from_address(place)
    one = np.ndarray((1,), dtype, memory)
    apart = (matrix.lead, 1) if matrix.turned else (1, matrix.lead)
    strides = tuple(n * dtype.itemsize for n in (matrix.step, *apart))
    return np.lib.stride_tricks.as_strided(one, shape, strides)
