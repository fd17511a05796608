"""What runs CUDA kernels: a GPU, or the CPU in its place; and its arrays, as
addresses, views and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol, TypeVar, final

import numpy as np

from ge2.base.dtypes import FP8
from ge2.base.record import record
from ge2.targets.cuda.launch.attention import WantedAttention
from ge2.targets.cuda.launch.launches import LaunchList, Run, Straight
from ge2.targets.cuda.launch.library_call import Callee
from ge2.targets.cuda.launch.product import Wanted
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.load.scratch import Scratch

T = TypeVar("T")


class Module(Protocol):
    """A compiled source."""

    def get_function(self, name: str) -> Any:
        """A kernel: `kernel(grid, block, args, shared_mem=bytes)`."""


@final
@record
class Figures:
    """Of a kernel: registers a thread, bytes of shared memory a block, bytes
    spilled; and its occupancy.

    That is the share of the threads that a multiprocessor can hold which are there at once.
    """

    registers: int
    shared: int
    spills: int
    occupancy: float


class Device(Protocol):
    """`xp` is the array module of what kernels read and write: CuPy, or NumPy.

    What is said here is true of a device that is alone, and keeps no scratch.
    """

    __slots__ = ()

    @property
    def limits(self) -> Limits: ...

    @property
    def xp(self) -> ModuleType: ...

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources, so that `module` finds them compiled.

        Several threads may ask at once.
        """

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""

    def module(self, source: str) -> Module:
        """A source, compiled and loaded; equal sources once."""

    def product(self, wanted: Wanted) -> Callee | None:
        """A product of matrices; None if the device's library has none such."""

    def attention(self, wanted: WantedAttention) -> Callee | str:
        """Attention by the device's library; or the reason why there is none."""
        return "the device has no library of attention"

    def launches(self, work: LaunchList) -> Run:
        """Launches that follow each other, as one function."""

    def stream(self) -> Any:
        """That on which launches go."""

    def span(self, name: str) -> AbstractContextManager[None]:
        """A range of that name in the time line of a profiler; it may be
        entered again and again.
        """

    @property
    def number(self) -> int | None:
        """As CuPy counts devices; None of one that is alone."""
        return None

    @property
    def scratch(self) -> Scratch | None:
        """Returns what lends scratch to calls, and memory again that nobody uses."""
        return None

    @property
    def lost(self) -> list[bool]:
        """Not empty where `check` raises."""
        return []

    def check(self) -> None:
        """DeviceError if the device cannot be used any more."""
        return

    def here(self) -> AbstractContextManager[Any]:
        """Makes the device CuPy's current one inside a `with`."""
        return nullcontext()

    def call(self, work: Straight, otherwise: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A program as one call, if that is faster; `otherwise` is the same in Python."""
        return otherwise

    def figures(self, source: str, name: str, threads: int, shared: int) -> Figures | None:
        """Returns what a kernel takes that is launched with so many threads a block and bytes of
        shared memory; None where nobody knows.
        """
        return None


def address(x: Any) -> int:
    """Returns where the first element of an array lies."""
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)


def view(x: Any, offset: int, shape: Sequence[int], dtype: np.dtype, strides: Sequence[int]) -> Any:
    """Part of the memory of an array in C order: offset and strides in bytes."""
    if isinstance(x, np.ndarray):
        whole = np.frombuffer(x, np.uint8) if x.size else np.empty(0, np.uint8)
        held = np.dtype(np.uint8) if dtype in FP8 else dtype  # what `as_strided` would not know
        typed = np.ndarray((), held, whole, offset) if whole.size else np.empty((), held)
        return np.lib.stride_tricks.as_strided(typed, tuple(shape), tuple(strides)).view(dtype)
    return type(x)(tuple(shape), dtype, x.data + offset, tuple(strides))


def kept_as(device: Device, dtype: np.dtype) -> np.dtype:
    """The dtype under which arrays of another lie on a device: CuPy has no fp8, but their bytes."""
    return np.dtype(np.uint8) if dtype in FP8 and device.xp is not np else dtype


def empty(device: Device, shape: Sequence[int], dtype: np.dtype) -> Any:
    """An array of the device whose elements are not known."""
    return surely(device, lambda: device.xp.empty(tuple(shape), kept_as(device, dtype)))


def surely(device: Device, make: Callable[[], T]) -> T:
    """Returns what `make` gives; if there is no memory for it, again when what nobody
    uses was given back.
    """
    return make() if device.scratch is None else device.scratch.surely(make)


def upload(device: Device, x: Any) -> Any:
    """An array of the host on the device, in C order; a copy, so that nobody else changes it."""
    kept = kept_as(device, x.dtype)
    with device.here():  # CuPy's current device may be another
        return surely(
            device, lambda: device.xp.array(x if kept == x.dtype else x.view(kept), order="C")
        )


def put(to: Any, x: Any) -> None:
    """Copies an array of the device into another one of the same type."""
    if x.dtype in FP8:
        to, x = to.view(np.uint8), x.view(np.uint8)
    to[...] = x


def download(x: Any) -> Any:
    """An array of the device on the host; anything else as it is."""
    return x.get() if hasattr(x, "get") else x
