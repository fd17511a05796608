"""NumPy's sorts of contiguous elements in place, as addresses that C may call without Python's lock.

The table of functions of a dtype is part of NumPy's C interface, and NumPy itself calls these without
the lock. They use the vectors of the processor that NumPy finds. Each is tried before it is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_int,
    c_ssize_t,
    c_void_p,
    cast,
    py_object,
    pythonapi,
)
from functools import cache
from importlib import import_module

import numpy as np

from ge2.base.log import mention

DTYPES = np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64  # as in ge2_services
FUNCTIONS = 365  # of the C interface of NumPy 2: PyDataType_GetArrFuncs
QUICKSORT = 33  # its pointer in a PyArray_ArrFuncs


@cache
def sorts() -> tuple[int, ...]:
    """The address of the sort of each dtype; 0 where none was found.

    >>> len(sorts())
    6
    """
    try:
        capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
        read = pythonapi.PyCapsule_GetPointer
        read.restype, read.argtypes = c_void_p, (py_object, c_char_p)
        interface = cast(read(capsule, None), POINTER(c_void_p))
        table = CFUNCTYPE(c_void_p, py_object)(interface[FUNCTIONS] or 0)
        tables = [cast(table(np.dtype(t)), POINTER(c_void_p)) for t in DTYPES]
        found = tuple(t[QUICKSORT] or 0 for t in tables)
    except (ImportError, AttributeError, ValueError, TypeError):
        mention("NumPy's sorts were not found; loops serve")
        return (0,) * len(DTYPES)
    return tuple(at if works(at, t) else 0 for at, t in zip(found, DTYPES, strict=True))


def works(at: int, dtype: type) -> bool:
    """True if the function at an address sorts elements of the dtype in place."""
    if not at:
        return False
    values: Sequence[int] = [(7 * i) % 31 for i in range(31)]
    line: np.ndarray = np.array(values, dtype)
    sort = CFUNCTYPE(c_int, c_void_p, c_ssize_t, c_void_p)(at)
    return bool(sort(line.ctypes.data, line.size, None) == 0 and line.tolist() == sorted(values))
