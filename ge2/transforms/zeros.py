"""Zeros of a type, and the zero that stands for the derivative by an integer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.dtypes import python_type
from ge2.ir import ArrayType, Dims
from ge2.ops.shape import BroadcastInDim

# the dtype of the derivative by an integer: it has no bytes
float0 = np.dtype([("float0", np.void, 0)])


def zero(t: ArrayType) -> Any:
    """Zeros of the type, in the current meaning; a Python number if it is weak."""
    return python_type(t.dtype)(0) if t.weak else BroadcastInDim(t.shape, ())(t.dtype.type(0))


def empty(shape: Dims) -> Any:
    return np.zeros(shape, float0)


def is_float0(x: Any) -> bool:
    return getattr(x, "dtype", None) == float0
