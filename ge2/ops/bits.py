"""The bits of an element as an element of another dtype of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axis, Batched, Cotangents, Flags, Value
from ge2.ir.op import SIMPLE
from ge2.ops.elementwise import Pointlike


@final
@record
class BitcastConvertType(Pointlike):
    """The same bits in another dtype of that size; integers and floats.

    Bits have no derivative: what is made of them counts as a constant.
    """

    dtype: np.dtype
    name = "bitcast_convert_type"
    cost = SIMPLE
    retypes = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype.itemsize != self.dtype.itemsize or {x.dtype, self.dtype} & {BOOL, *COMPLEX}:
            what = f"bitcast_convert_type takes integers or floats of the size of {self.dtype}; got {x}"
            raise TypeRuleError(what, fix="x.view(dtype)")
        return (ArrayType(x.shape, self.dtype),)

    def reference(self, *arrays: Any) -> Any:
        x = arrays[0] if hasattr(arrays[0], "dtype") else np.asarray(arrays[0])
        return x.view(self.dtype)

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        return [None]

    def jvp(self, ts: Cotangents, ys: Sequence[Value], xs: Sequence[Value]) -> Cotangents:
        return [None]

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        return (self(*xs),), axes
