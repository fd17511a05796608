"""Where the works run: on CuPy's arrays or, at small sizes and to try
them, on NumPy's without a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ge2.base.errors import DeviceError
from ge2.targets.cuda.load import driver, loaded_nvrtc
from ge2.targets.cuda.load.libraries import library


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """Whose arrays there are, what waits until all work is done, and what lets go of memory."""

    xp: Any
    wait: Callable[[], Any]
    release: Callable[[], Any]

    @property
    def is_gpu(self) -> bool:
        return self.xp is not np


CPU = Machine(np, lambda: None, lambda: None)


def has_gpu() -> bool:
    found = driver()
    return bool(found and found.gpus)


def machine(quick: bool) -> Machine:
    """The GPU; without one the CPU for a quick run.

    DeviceError for another: its times would say nothing.
    """
    if has_gpu():
        import cupy

        runtime, pool = cupy.cuda.runtime, cupy.get_default_memory_pool()
        return Machine(cupy, runtime.deviceSynchronize, pool.free_all_blocks)
    if quick:
        return CPU
    raise DeviceError(
        "these benchmarks need a GPU", fix="--quick, which tries them at small sizes anywhere"
    )


def device() -> dict[str, str]:
    """The GPU and what drives it; empty without one."""
    found = driver()
    if not found or not found.gpus:
        return {}
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"]
    return {
        "gpu": name.decode() if isinstance(name, bytes) else str(name),
        "driver": found.version,
        "cuda": dotted(found.cuda),
        "nvrtc": dotted(loaded_nvrtc().version),
        "cublaslt": blas_version(),
        "cupy": str(cupy.__version__),
    }


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def blas_version() -> str:
    ask = ctypes.CDLL(library().path).cublasLtGetVersion
    ask.restype = ctypes.c_size_t
    number = ask()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
