"""Windows that slide along axes, each element of the result read where it stands."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ge2.base.dtypes import INT64
from ge2.base.errors import ArgumentError, InputError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy.plain import plainly
from ge2.numpy.promotion import array, fresh, one_axis
from ge2.numpy.shapes import moveaxis
from ge2.ops.elementwise import ADD
from ge2.ops.index import Gather
from ge2.ops.shape import Iota


@plainly(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """Every window of that shape, its axes last, as `numpy.lib.stride_tricks.sliding_window_view`.

    A window cannot be written: `writeable=True`, whose windows overlap, is an error.
    """
    if writeable:
        raise InputError(
            "sliding_window_view: windows that overlap cannot be written",
            where=here(),
            fix="a copy",
        )
    y = array(x)
    t = type_of(y)
    window, axes = sides(window_shape, axis, t.ndim, y)
    if any(w < 0 for w in window):
        raise ArgumentError(
            f"`window_shape` cannot contain negative values; got {window}", where=here()
        )
    y = fresh(y)
    for size, along in zip(window, axes, strict=True):
        y = slid(y, size, along)
    return y


def sides(window_shape: Any, axis: Any, ndim: int, x: Any) -> tuple[list[int], list[int]]:
    """The sizes of a window and the axes along which it slides."""
    shape = window_shape if isinstance(window_shape, tuple | list) else (window_shape,)
    window = [operator.index(n) for n in shape]
    given = range(ndim) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    axes = [one_axis(a, ndim, x) for a in given]
    if len(window) != len(axes):
        what = f"Must provide window_shape for all axes of x; got {len(window)} sizes and {len(axes)} axes"
        raise ArgumentError(what, where=here(), fix="axis=")
    return window, axes


def slid(x: Any, size: int, axis: int) -> Any:
    """The windows along one axis, which come as the last axis."""
    n = type_of(x).shape[axis] - size + 1
    if n < 1:
        what = f"window shape cannot be larger than input array shape: {size} along axis {axis} of {type_of(x)}"
        raise ArgumentError(what, where=here())
    index = ADD(Iota((n, size), 0, INT64)(), Iota((n, size), 1, INT64)())
    return moveaxis(Gather((axis,))(x, index), (0, 1), (axis, -1))
