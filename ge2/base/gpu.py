"""Arrays that lie on a GPU, told by their class: no CUDA is imported to find that there are none."""

from __future__ import annotations

from typing import Any

_known: dict[type, bool] = {}


def on_gpu(x: Any) -> bool:
    """Whether it is an array of CuPy's.

    >>> on_gpu(3.0)
    False
    """
    cls = type(x)
    found = _known.get(cls)
    if found is None:
        names = [(c.__module__.partition(".")[0], c.__name__) for c in cls.__mro__]
        found = _known[cls] = ("cupy", "ndarray") in names
    return found


def gpu_of(x: Any) -> int:
    """The number of the GPU that an array lies on."""
    return int(x.device.id)
