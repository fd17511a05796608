"""Tensor maps as the emulator reads them: a driver's own are its secret."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ge2.targets.cuda.launch.arguments import MOST_AXES, NBYTES, SWIZZLES, TensorMap


class EmulatedMap(ctypes.Structure):
    """`ge2_shim_tiles` of hopper.cuh: the innermost axis first."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("itemsize", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("sizes", ctypes.c_uint64 * MOST_AXES),
        ("strides", ctypes.c_uint64 * (MOST_AXES - 1)),
        ("box", ctypes.c_uint32 * MOST_AXES),
    )


def encoded(given: TensorMap, address: int) -> Any:
    """The parameter for an address. InputError if a driver would take none such."""
    e, size = given.tiles.encoding(), given.tiles.dtype.itemsize
    swizzle = next(n for n, mode in SWIZZLES.items() if mode == e.swizzle)
    found = EmulatedMap(address, size, e.rank, swizzle, 0, e.sizes, e.strides, e.box)
    memory = np.zeros(NBYTES, np.uint8)
    memory[: ctypes.sizeof(found)] = np.frombuffer(bytes(found), np.uint8)
    return memory.view(f"V{NBYTES}").reshape(())
