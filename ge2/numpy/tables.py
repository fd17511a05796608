"""From NumPy's own function objects to the functions of this package: what a traced value answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

import numpy as np

from ge2.base.errors import NoRuleError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import linalg, reductions, scans
from ge2.numpy.elementwise import UFUNCS
from ge2.numpy.promotion import Axes, array, reshape

Function = Callable[..., Any]


def functions(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[Function, Function]:
    """NumPy's functions of those names, and those of `numpy.linalg`, each with ours."""
    table: dict[Function, Function] = {}
    for name in names:
        theirs = getattr(np, name, None)
        if callable(theirs) and not isinstance(theirs, np.ufunc | type):
            table[theirs] = namespace[name]
    for name in linalg.__all__:
        table[getattr(np.linalg, name)] = getattr(linalg, name)
    return table


# ------------------------------------------------------------------------------------------ shared memory

# Functions whose result shares memory with what they were given; a traced value is told, so that a later
# change in place is seen by both.
SHARING = (
    "transpose", "permute_dims", "swapaxes", "moveaxis", "rollaxis", "matrix_transpose", "reshape", "ravel",
    "squeeze", "expand_dims", "atleast_1d", "atleast_2d", "atleast_3d", "flip", "fliplr", "flipud", "rot90",
    "real", "imag", "broadcast_to", "broadcast_arrays", "diagonal", "diag", "einsum",
    "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack",
)  # fmt: skip


def sharing(ours: Function, theirs: Function) -> Function:
    """The function, telling a traced argument what NumPy's function makes of its memory."""

    @wraps(ours)
    def function(*args: Any, **more: Any) -> Any:
        y = ours(*args, **more)
        for x in (*args, *more.values()):
            told = getattr(x, "shared_by", None)
            if told is not None:
                return told(theirs, args, more, y)
        return y

    return function


# -------------------------------------------------------------------------------------- methods of ufuncs


def reducing(f: Function, unset: Any = None) -> Function:
    """`ufunc.reduce`: as the function, but over the first axis unless told otherwise."""

    def reduce(
        a: Any, axis: Axes = 0, dtype: Any = None, out: Any = None, keepdims: bool = False,
        initial: Any = reductions.UNSET, where: Any = True,
    ) -> Any:  # fmt: skip
        more = {"dtype": dtype} if dtype is not None else {}
        if initial is not reductions.UNSET:
            more["initial"] = initial
        return f(a, axis, out=out, keepdims=keepdims, where=where, **more)

    return reduce


def outer(ufunc: np.ufunc) -> Function:
    def of_all_pairs(a: Any, b: Any, /, **more: Any) -> Any:
        a, b = array(a), array(b)
        apart = reshape(a, (*type_of(a).shape, *(1,) * type_of(b).ndim))
        return UFUNCS[ufunc](apart, b, **more)

    return of_all_pairs


METHODS: dict[tuple[np.ufunc, str], Function] = {
    (np.add, "reduce"): reducing(reductions.sum),
    (np.multiply, "reduce"): reducing(reductions.prod),
    (np.maximum, "reduce"): reducing(reductions.max),
    (np.minimum, "reduce"): reducing(reductions.min),
    (np.logical_and, "reduce"): reducing(reductions.all),
    (np.logical_or, "reduce"): reducing(reductions.any),
    (np.add, "accumulate"): scans.accumulating(scans.cumsum),
    (np.multiply, "accumulate"): scans.accumulating(scans.cumprod),
    (np.maximum, "accumulate"): scans.accumulating(scans.cummax),
    (np.minimum, "accumulate"): scans.accumulating(scans.cummin),
}


def ufunc_method(ufunc: np.ufunc, method: str) -> Function:
    """What `ufunc.method` means for traced values; where nothing, an error that says what to write."""
    if method == "outer" and ufunc.nin == 2 and ufunc.signature is None:
        return outer(ufunc)
    found = METHODS.get((ufunc, method))
    if found is not None:
        return found
    fixes = {
        "at": "x[i] += y for distinct i",
        "reduceat": "a reduction of each slice",
        "reduce": "np.add.reduce and its like",
    }
    name = f"numpy.{ufunc.__name__}.{method}"
    raise NoRuleError(
        f"{name} is not among the functions that ge2 traces", where=here(), fix=fixes.get(method, "np.cumsum")
    )
