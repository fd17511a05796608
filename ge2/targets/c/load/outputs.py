"""Memory of results that nobody holds any more serves later calls: fresh memory
costs a fault every 4 KiB.

An array is used again only if this list is the last that knows it: any name, container, view or
buffer of the caller's counts as a reference. Small results are not worth it, and very large ones
are not kept from others.
"""

from __future__ import annotations

import sys
from typing import Any, final
from weakref import getweakrefcount

import numpy as np

from ge2.ir import Dims
from ge2.targets.c.tuning import Results

# KEPT of launcher.c: arrays of each result, of which one may be the argument of the call that makes
# the next
COUNT = 2
COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)() and hasattr(sys, "getrefcount")


def references(arrays: list[Any]) -> int:
    """Returns how often an array counts as referred to that only a local name knows:
    the interpreter decides.
    """
    x = arrays.pop(0)
    return sys.getrefcount(x) if COUNTED else 0


ALONE = references([np.empty(0)])


def worth_keeping(nbytes: int, tuning: Results) -> bool:
    return COUNTED and tuning.least <= nbytes <= tuning.most


@final
class Kept:
    """Makes the arrays of one result."""

    __slots__ = ("arrays", "dtype", "shape")

    def __init__(self, shape: Dims, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.arrays: list[Any] = []

    def __call__(self) -> Any:
        arrays = self.arrays
        for _ in range(len(arrays)):
            try:
                x = arrays.pop(0)  # so that no other thread counts it meanwhile
            except IndexError:
                break
            free = sys.getrefcount(x) == ALONE and not getweakrefcount(x)
            arrays.append(x)
            if free and x.flags.writeable and x.shape == self.shape and x.dtype == self.dtype:
                return x
        x = np.empty(self.shape, self.dtype)
        arrays.append(x)
        del arrays[:-COUNT]
        return x
