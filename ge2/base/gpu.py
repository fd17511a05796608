"""Arrays that lie on a GPU, told by their class: no CUDA is imported to find
that there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from ge2.base.dtypes import FP8

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


def host(x: Any) -> Any:
    """The elements of an array of a GPU as NumPy's, which waits for them;
    anything else as it is.
    """
    return x.get() if on_gpu(x) else x


def beside(x: Any, other: Any) -> Any:
    """NumPy's array on the GPU of `other`, if that lies on one; anything else as it is."""
    if not on_gpu(other) or not hasattr(x, "dtype") or on_gpu(x):
        return x
    cupy = sys.modules[type(other).__module__.partition(".")[0]]
    kept = x.view("u1") if x.dtype in FP8 else x  # CuPy has no fp8, but their bytes
    with other.device:
        return cupy.asarray(kept)


def gpu_of(x: Any) -> int:
    """The number of the GPU that an array lies on."""
    return int(x.data.device_id)  # `x.device` makes an object each time


def gpu_key(x: Any) -> tuple[Any, ...] | None:
    """Shape, dtype and GPU of an array of a class that was met before and lies
    on one; None for all else.
    """
    return (x.shape, x.dtype, x.data.device_id) if _known.get(type(x)) else None


@final
class Look:
    """How many arrays are looked at together: one by one, until an extension does it at once."""

    __slots__ = ("same", "stands")

    def __init__(self) -> None:
        self.same: Callable[[tuple[Any, ...], tuple[Any, ...]], bool] = same
        self.stands: Callable[[Sequence[Any], frozenset[int], tuple[Any, ...]], bool] | None = None


def same(arrays: tuple[Any, ...], keys: tuple[Any, ...]) -> bool:
    """Whether there are as many, and all lie on a GPU, each with that `gpu_key`."""
    if len(arrays) != len(keys):
        return False
    return all(gpu_key(x) == key for x, key in zip(arrays, keys, strict=True))


look: Final = Look()


def look_by(extension: Any) -> None:
    """Has an extension look, which is told of the classes met so far, and of later ones."""
    extension.know(_known)
    look.same, look.stands = extension.same, extension.stands
