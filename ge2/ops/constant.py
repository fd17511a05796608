"""An array as part of a graph, bytes and all: what a rule of the user's made for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.record import record
from ge2.ir import ArrayType, Axis, Batched, Cotangents, Dims, Flags, Op, Value


@final
@record
class Constant(Op):
    """The elements as `data`, their bytes in C order, in hexadecimal digits."""

    shape: Dims
    dtype: np.dtype
    data: str
    name = "constant"

    @staticmethod
    def of(array: Any) -> Constant:
        x = np.asarray(array)
        # x: so that it is a word in any case
        return Constant(x.shape, x.dtype, "x" + x.tobytes().hex())

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return (ArrayType(self.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        return np.frombuffer(bytes.fromhex(self.data[1:]), self.dtype).reshape(self.shape).copy()

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        return []

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return (self(),), (None,)
