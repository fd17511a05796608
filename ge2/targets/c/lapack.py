"""LAPACK's factors of a matrix, and systems solved by them, where NumPy was linked with it.

NumPy's functions factor a matrix anew for each right side; LAPACK's own two are called here.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_char, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, final

import numpy as np

from ge2.base.arrays import INT64
from ge2.base.record import record
from ge2.base.source import mention
from ge2.ir import ArrayType, Eqn
from ge2.passes.factors import Lu, LuSolve
from ge2.targets.c.blas import DTYPES, address, linked

# How vendors spell `dgetrf`, and whether its integers have 64 bits.
SPELLINGS = (
    ("scipy_{}get{}_64_", True),  # OpenBLAS in NumPy's wheels
    ("{}get{}_64_", True),
    ("scipy_{}get{}_", False),
    ("{}get{}_", False),
)


@final
@record
class Lapack:
    """`?getrf` and `?getrs` of each dtype, and the types of their integers in C and in arrays."""

    factor: dict[np.dtype, Any]
    solve: dict[np.dtype, Any]
    size: Any
    swaps: np.dtype

    def factored(self, a: Any) -> tuple[Any, Any]:
        """The factors of a matrix: the results of a `Lu`."""
        lu, swaps, info = a.T.copy(), np.empty(len(a), self.swaps), self.size()
        order, rows = number(self.size, len(a)), number(self.size, max(len(a), 1))
        last = rows, address_of(swaps), byref(info)
        self.factor[a.dtype](order, order, address_of(lu), *last)
        if info.value:
            raise np.linalg.LinAlgError("Singular matrix")
        return lu, swaps.astype(INT64, copy=False)

    def solver(self, b: ArrayType, transposed: bool) -> Callable[..., Any]:
        """What computes a `LuSolve`. Calls are short, so what they share is made once."""
        solve, dtype, info = self.solve[b.dtype], self.swaps, byref(self.size())
        n, k, rows = (number(self.size, each) for each in (*b.shape, max(b.shape[0], 1)))
        mode, one = byref(c_char(b"T" if transposed else b"N")), b.shape[1] == 1

        def solved(lu: Any, swaps: Any, b: Any) -> Any:
            x = b.T.copy()  # LAPACK's matrices lie by columns
            if swaps.dtype is not dtype:
                swaps = swaps.astype(dtype)
            solve(mode, n, k, address_of(lu), rows, address_of(swaps), address_of(x), rows, info, 1)
            return x.T if one else x.T.copy()

        return solved


def address_of(x: Any) -> Any:
    """The address of an array, in a fifth of the time that `x.ctypes` takes where it may be written."""
    try:
        return byref(c_char.from_buffer(x))
    except (TypeError, ValueError):  # read-only, or of no elements
        return x.ctypes.data


@cache
def number(size: Any, n: int) -> Any:
    """An integer by its address, as LAPACK takes all of them, which it only reads."""
    return byref(size(n))


@cache
def lapack() -> Lapack | None:
    """What of LAPACK can be called; None where it is not found.

    >>> found = lapack()
    >>> found is None or sorted(map(str, found.factor))
    ['complex128', 'complex64', 'float32', 'float64']
    """
    for spelling, ilp64 in SPELLINGS:
        found = called(spelling, c_int64 if ilp64 else c_int32)
        if found is not None and works(found):
            mention("factors of matrices by %s", spelling.format("?", "rf"))
            return found
    return None


def called(spelling: str, size: Any) -> Lapack | None:
    """The functions of a name, if each is there."""
    factor, solve = (
        {np.dtype(d): address(linked(), spelling.format(t, name)) for t, d in DTYPES.items()}
        for name in ("rf", "rs")
    )
    if not all((*factor.values(), *solve.values())):
        return None
    where = [c_void_p] * 6
    first, second = CFUNCTYPE(None, *where), CFUNCTYPE(None, *where, *[c_void_p] * 3, c_int64)
    swaps = np.dtype(np.int64 if size is c_int64 else np.int32)
    return Lapack(functions(first, factor), functions(second, solve), size, swaps)


def functions(of: Callable[[int], Any], found: dict[np.dtype, int]) -> dict[np.dtype, Any]:
    return {dtype: of(at) for dtype, at in found.items()}


def works(found: Lapack) -> bool:
    """True if the functions solve small systems, their integers being of that size."""
    a, b = np.array([[0, 2, 0], [4, 1, 0], [0, 0, 8]]), np.array([[4, 2], [6, 9], [8, 16]])
    for dtype in found.factor:
        given, type_ = found.factored(a.astype(dtype)), ArrayType(b.shape, dtype)
        plain, turned = (found.solver(type_, t)(*given, b.astype(dtype)) for t in (False, True))
        if not (np.array_equal(a @ plain, b) and np.array_equal(a.T @ turned, b)):
            return False
    return True


def by_lapack(eqn: Eqn) -> Callable[..., Any] | None:
    """The function that computes an equation by LAPACK; None of other operations."""
    op = eqn.op
    if not isinstance(op, Lu | LuSolve) or (found := lapack()) is None:
        return None
    return found.factored if isinstance(op, Lu) else found.solver(eqn.outs[0].type, op.transposed)
