"""Where the arrays of a call lie: all on the CPU, or all on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.errors import DeviceError
from ge2.base.gpu import gpu_of, on_gpu
from ge2.base.source import here
from ge2.trace.tracer import is_traced


def place_of(arrays: Sequence[Any]) -> int | None:
    """The GPU that some of the arrays lie on; None if there is none."""
    return next((gpu_of(x) for x in arrays if on_gpu(x)), None)


def common_place(title: str, given: Sequence[tuple[str, Any]]) -> int | None:
    """The GPU that all arrays of a call, each with a name, lie on; None for the CPU.

    DeviceError, which names two of them, if some lie elsewhere. NumPy's scalars and
    Python's numbers go anywhere.
    """
    found: dict[int | None, str] = {}
    for name, x in given:
        if on_gpu(x) or (isinstance(x, np.ndarray) and not is_traced(x)):
            found.setdefault(gpu_of(x) if on_gpu(x) else None, name)
    if len(found) > 1:
        (a, first), (b, second), *_ = found.items()
        raise DeviceError(
            f"{title} is given {first} {words(a)} and {second} {words(b)}",
            where=here(),
            fix="cupy.asarray(x) puts an array on the GPU, cupy.asnumpy(x) takes one from there",
        )
    return next(iter(found), None)


def words(place: int | None) -> str:
    return "on the CPU" if place is None else f"on GPU {place}"
