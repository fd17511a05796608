"""The indices of the extremes of an array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import INEXACT
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy.composite import choose_by, no_out
from ge2.numpy.indexing import checked_index
from ge2.numpy.promotion import array, one_axis, reshape
from ge2.numpy.reductions import UNSET, all, finish
from ge2.ops import elementwise as ops
from ge2.ops.reduce import ArgMax, ArgMin


def truth(keepdims: Any) -> bool:
    """NumPy takes any value here."""
    return keepdims is not UNSET and bool(keepdims)


def arg_extreme(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    def function(a: Any, axis: int | None = None, out: Any = None, *, keepdims: Any = False) -> Any:
        no_out(name, out)
        x = array(a)
        shape = type_of(x).shape
        axis = None if not shape and axis in (0, -1) else axis
        axes = tuple(range(len(shape))) if axis is None else (one_axis(axis, len(shape), x),)
        x = reshape(x, (math.prod(shape),)) if axis is None else x
        at = 0 if axis is None else axes[0]
        if type_of(x).shape[at] == 0:
            raise ShapeError(
                f"attempt to get {name} of an empty sequence: {type_of(x)}",
                where=here(),
                fix="a test of x.size",
            )
        return finish(op(at)(x), shape, axes, truth(keepdims))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The index of the first {name[3:]}imum along an axis, or of the flattened array.

    A NaN is an extreme, as in `numpy.{name}`.
    """
    return function


argmax, argmin = arg_extreme("argmax", ArgMax), arg_extreme("argmin", ArgMin)


def indices_unless(failed: Any, found: Any, n: int) -> Any:
    """The indices, below n; an error where `failed` holds, at once if that is
    known, else when it runs.
    """
    if not hasattr(failed, "type"):
        if np.any(failed):
            raise ArgumentError(
                "All-NaN slice encountered", where=here(), fix="np.isnan(x).all(axis)"
            )
        return found
    return checked_index(choose_by(failed, n, found), n)


def nan_index(function: Callable[..., Any], name: str, unit: float) -> Callable[..., Any]:
    def nan_function(
        a: Any, axis: int | None = None, out: Any = None, *, keepdims: Any = False
    ) -> Any:
        x = array(a)
        if type_of(x).dtype in INEXACT:
            nan = ops.IS_NAN(x)
            empty = all(nan, axis, keepdims=truth(keepdims))
            x = choose_by(nan, type_of(x).dtype.type(unit), x)
            found = function(x, axis, out, keepdims=keepdims)
            n = (
                type_of(x).size
                if axis is None
                else type_of(x).shape[one_axis(axis, type_of(x).ndim)]
            )
            return indices_unless(empty, found, n)
        return function(x, axis, out, keepdims=keepdims)

    nan_function.__name__ = nan_function.__qualname__ = name
    nan_function.__doc__ = f"""`{function.__name__}` of the elements that are not NaN.

    Where all are NaN it is an error, of traced arrays when the program runs: an IndexError (on a GPU, 0).
    """
    return nan_function


nanargmax, nanargmin = (
    nan_index(argmax, "nanargmax", -np.inf),
    nan_index(argmin, "nanargmin", np.inf),
)
