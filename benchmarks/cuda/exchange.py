"""Arrays handed to the peers and taken back: the same memory; bfloat16 of the
CPU through its bits.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.cuda.work import BF16


def to_jax(jax: ModuleType, x: Any) -> Any:
    return jax.numpy.asarray(x) if isinstance(x, np.ndarray) else jax.dlpack.from_dlpack(x)


def to_torch(torch: ModuleType, x: Any) -> Any:
    if isinstance(x, np.ndarray) and x.dtype == BF16:
        return torch.from_dlpack(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(x)


def back(xp: Any, y: Any) -> Any:
    """The array of a library as one of `xp`'s."""
    if isinstance(y, xp.ndarray):
        return y
    if hasattr(y, "detach"):
        y = y.detach()
        if xp is np and str(y.dtype) == "torch.bfloat16":
            return y.view(import_module("torch").int16).numpy().view(BF16)
    return np.asarray(y) if xp is np else xp.from_dlpack(y)


def leaves(result: Any) -> list[Any]:
    if isinstance(result, tuple | list):
        return [leaf for each in result for leaf in leaves(each)]
    return [result]
