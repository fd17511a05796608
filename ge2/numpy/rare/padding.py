"""Padding: with numbers, with the array's own elements by slices of it, with what its ends give."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import FLOAT64, INEXACT, INTEGERS
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.ir import Dims, type_of
from ge2.numpy import reductions
from ge2.numpy.access.selecting import take
from ge2.numpy.axes.sorting import median
from ge2.numpy.composite import round as rounded
from ge2.numpy.creation import linspace
from ge2.numpy.joining import concatenate
from ge2.numpy.promotion import array, broadcast, cast, fresh, one_axis, reshape
from ge2.numpy.shapes import flip, part
from ge2.ops.elementwise import ADD, SUB
from ge2.ops.shape import Pad

__all__ = ["pad"]

STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": reductions.max, "mean": reductions.mean, "median": median, "minimum": reductions.min,
}  # fmt: skip
ODD = {"reflect": 1, "symmetric": 0}  # by how many elements the mirror is inside
OWN = ("edge", "wrap", *ODD)
KEYWORDS = {  # the keyword of each mode
    "constant": "constant_values", "linear_ramp": "end_values", "empty": "", "edge": "", "wrap": "",
    **dict.fromkeys(ODD, "reflect_type"), **dict.fromkeys(STATISTICS, "stat_length"),
}  # fmt: skip
FEW = 16  # slices, beyond which a gather is better


def pad(array_: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """Padded by numbers or, in the other modes, by what its own elements give, as `numpy.pad`.

    >>> pad(np.arange(3), (1, 2), "edge")
    array([0, 0, 1, 2, 2, 2])
    """
    x = array(array_)
    sides = widths(pad_width, type_of(x).ndim, x)
    if mode not in KEYWORDS:
        what = f"pad: mode {mode!r} is not supported"
        raise ArgumentError(what, where=here(), fix=", ".join(KEYWORDS))
    option = kwargs.pop(KEYWORDS[mode], None)
    if kwargs:
        what = f"unsupported keyword arguments for mode {mode!r}: {', '.join(sorted(kwargs))}"
        fix = f"{KEYWORDS[mode]}=" if KEYWORDS[mode] else "np.pad(x, n)"
        raise ArgumentError(what, where=here(), fix=fix)
    if not any(map(any, sides)):
        return fresh(x)
    if mode in ("constant", "empty"):
        return constant(x, sides, 0 if option is None else option)
    for axis, side in enumerate(sides):
        if any(side) and not type_of(x).shape[axis]:
            what = (
                f"can't extend empty axis {axis} of {type_of(x)} using modes other than 'constant'"
            )
            raise ShapeError(what, where=here(), fix="mode='constant'")
    if mode in OWN:
        return mirrored(x, sides, ODD[mode]) if option == "odd" else of_own(x, sides, mode)
    return of_ends(x, sides, mode, option)


def widths(pad_width: Any, ndim: int, x: Any) -> list[tuple[int, int]]:
    """The widths before and after each axis."""
    if isinstance(pad_width, dict):
        given = {one_axis(a, ndim, x): w for a, w in pad_width.items()}
        pad_width = [given.get(i, (0, 0)) for i in range(ndim)]
        pad_width = [w if isinstance(w, tuple | list) else (w, w) for w in pad_width]
    try:
        found = [
            (operator.index(a), operator.index(b))
            for a, b in np.broadcast_to(pad_width, (ndim, 2)).tolist()
        ]
    except ValueError:
        what = f"pad_width {pad_width!r} does not broadcast to ({ndim}, 2), a pair for each axis of {type_of(x)}"
        raise ShapeError(what, where=here(), fix="((before, after), ...)") from None
    if any(a < 0 or b < 0 for a, b in found):
        raise ShapeError(
            f"index can't contain negative values: pad_width {pad_width!r}",
            where=here(),
            fix="a slice to crop",
        )
    return found


def constant(x: Any, sides: list[tuple[int, int]], values: Any) -> Any:
    if type(values) in (int, float) and values == 0:
        low, high = zip(*sides, strict=True)
        return Pad(low, high, (0,) * len(sides))(x)
    for axis, (side, value) in enumerate(zip(sides, _values(values, len(sides)), strict=True)):
        around = [_filled(x, axis, n, v) for n, v in zip(side, value, strict=True)]
        x = concatenate([around[0], x, around[1]], axis) if any(side) else x
    return x


def _values(values: Any, ndim: int) -> list[tuple[Any, Any]]:
    """A pair of numbers for each axis."""
    if not isinstance(values, tuple | list) and type_of(array(values)).ndim == 0:
        return [(values, values)] * ndim
    pairs = [tuple(v) if isinstance(v, tuple | list | np.ndarray) else v for v in values]
    if not any(isinstance(v, tuple) for v in pairs):
        pairs = [tuple(pairs)]
    pairs = [v if len(v) == 2 else v * 2 for v in pairs]
    return pairs * ndim if len(pairs) == 1 else pairs


def _filled(x: Any, axis: int, n: int, value: Any) -> Any:
    t = type_of(x)
    return broadcast(cast(array(value), t.dtype), (*t.shape[:axis], n, *t.shape[axis + 1 :]))


def of_own(x: Any, sides: list[tuple[int, int]], mode: Any) -> Any:
    for axis, side in enumerate(sides):
        if not any(side):
            continue
        index = np.pad(np.arange(type_of(x).shape[axis]), side, mode)
        pieces = runs(index)
        if len(pieces) > FEW:
            x = take(x, index, axis)
        else:
            x = concatenate([_run(x, axis, *piece) for piece in pieces], axis)
    return x


def mirrored(x: Any, sides: list[tuple[int, int]], inside: int) -> Any:
    """Point reflections in the elements at the ends: twice the end,
    minus the elements from there on.
    """
    for axis, (before, after) in enumerate(sides):
        if type_of(x).shape[axis] == 1 and inside:
            edges = [(before, after) if i == axis else (0, 0) for i in range(len(sides))]
            x = of_own(x, edges, "edge")
            continue
        while before or after:
            n = type_of(x).shape[axis] - inside
            low, high = min(before, n), min(after, n)
            around = [
                turned_over(x, axis, low, inside, 0),
                x,
                turned_over(x, axis, high, inside, 1),
            ]
            x = concatenate(around, axis)
            before, after = before - low, after - high
    return x


def turned_over(x: Any, axis: int, count: int, inside: int, end: int) -> Any:
    """So many elements beyond an end: the first (0) or the last (1)."""
    size = type_of(x).shape[axis]
    first = size - inside - count if end else inside
    near = _run(x, axis, first + count - 1, count, -1)
    edge = part(x, axis, size - 1, size) if end else part(x, axis, 0, 1)
    return SUB(broadcast(ADD(edge, edge), type_of(near).shape), near)


def runs(index: Any) -> list[tuple[int, int, int]]:
    """The index as runs that rise, fall or stay: (first, length, step)."""
    found: list[tuple[int, int, int]] = []
    for i in index.tolist():
        if found:
            first, length, step = found[-1]
            if (length == 1 and i - first in (-1, 0, 1)) or i == first + length * step:
                found[-1] = (first, length + 1, i - first if length == 1 else step)
                continue
        found.append((i, 1, 1))
    return found


def _run(x: Any, axis: int, first: int, length: int, step: int) -> Any:
    if step == 0:
        one: Dims = type_of(x).shape
        return broadcast(part(x, axis, first, first + 1), (*one[:axis], length, *one[axis + 1 :]))
    low = first if step > 0 else first - length + 1
    return part(x, axis, low, low + length, step)


# ------------------------------------------------------------------------------ by what the ends give


def of_ends(x: Any, sides: list[tuple[int, int]], mode: str, option: Any) -> Any:
    """An axis after another, so that corners are made of what was padded before."""
    ndim = len(sides)
    given: list[Any]
    if mode in STATISTICS:
        given = lengths(option, ndim, x)
    else:
        given = _values(0 if option is None else option, ndim)
    for axis, (side, pair) in enumerate(zip(sides, given, strict=True)):
        if not any(side):
            continue
        around = []
        for end, (n, value) in enumerate(zip(side, pair, strict=True)):
            if mode in STATISTICS:
                around.append(statistic(x, axis, n, value, end, mode))
            else:
                around.append(ramp(x, axis, n, value, end))
        x = concatenate([around[0], x, around[1]], axis)
    return x


def lengths(stat_length: Any, ndim: int, x: Any) -> list[Any]:
    """From how many elements at both ends of each axis; None: from all."""
    found = np.broadcast_to(np.asarray(stat_length, object), (ndim, 2)).tolist()
    found = [[n if n is None else operator.index(n) for n in pair] for pair in found]
    if any(n is not None and n < 0 for pair in found for n in pair):
        what = f"index can't contain negative values: stat_length {stat_length!r} of {type_of(x)}"
        raise ShapeError(what, where=here(), fix="stat_length=None, which takes all elements")
    return found


def statistic(x: Any, axis: int, n: int, length: int | None, end: int, mode: str) -> Any:
    """So often that of the elements at an end: the first (0) or the last (1)."""
    t, size = type_of(x), type_of(x).shape[axis]
    length = size if length is None else min(length, size)
    if not length and mode in ("maximum", "minimum"):
        raise ArgumentError(
            "stat_length of 0 yields no value for padding", where=here(), fix="stat_length=1"
        )
    near = part(x, axis, size - length, size) if end else part(x, axis, 0, length)
    y = STATISTICS[mode](near, axis, keepdims=True)
    y = cast(rounded(y) if t.dtype in INTEGERS else y, t.dtype)
    return broadcast(y, (*t.shape[:axis], n, *t.shape[axis + 1 :]))


def ramp(x: Any, axis: int, n: int, value: Any, end: int) -> Any:
    """So many elements from a number to the element at an end: the first (0) or the last (1)."""
    t, value = type_of(x), array(value)
    value = value if type_of(value).dtype in INEXACT else cast(value, FLOAT64)
    size = t.shape[axis]
    edge = part(x, axis, size - 1, size) if end else part(x, axis, 0, 1)
    edge = reshape(edge, (*t.shape[:axis], *t.shape[axis + 1 :]))
    y = linspace(value, edge, n, endpoint=False, dtype=t.dtype, axis=axis)
    return flip(y, axis) if end else y
