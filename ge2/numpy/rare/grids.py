"""Arrays made by indexing:

`r_`, `c_`, `mgrid` and `ogrid`; and the elements of an array, counted.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from ge2.base.dtypes import INT64
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import type_of
from ge2.numpy.creation import arange, linspace
from ge2.numpy.joining import concatenate, stack
from ge2.numpy.options import any_traced, in_trace, plainly
from ge2.numpy.promotion import array, cast, common_dtype, fresh, lift, one_axis, reshape
from ge2.numpy.shapes import broadcast_to, moveaxis
from ge2.ops.elementwise import ADD
from ge2.ops.index import Gather
from ge2.ops.shape import Iota


def parts_of(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def has_traced(key: Any) -> bool:
    """True if an index, or a bound of a slice in it, is traced."""
    return any(
        any_traced((p.start, p.stop, p.step) if isinstance(p, slice) else p) for p in parts_of(key)
    )


def line(s: slice) -> Any:
    """The numbers of a slice: as `arange`, or as `linspace` where the step is imaginary."""
    start = 0 if s.start is None else s.start
    if isinstance(s.step, complex):
        return linspace(start, s.stop, int(abs(s.step)))
    return arange(start, s.stop, 1 if s.step is None else s.step)


# ---------------------------------------------------------------------------------------- r_ and c_


@final
@hides_methods
class Joined:
    """`np.r_` and `np.c_`, for values that may be traced."""

    __slots__ = ("axis", "name", "ndmin", "place", "theirs")

    def __init__(
        self, theirs: Any, name: str, axis: int = 0, ndmin: int = 1, place: int = -1
    ) -> None:
        self.theirs, self.name, self.axis, self.ndmin, self.place = theirs, name, axis, ndmin, place

    def __repr__(self) -> str:
        return f"<ge2.numpy.{self.name}>"

    def __getitem__(self, key: Any) -> Any:
        if not has_traced(key):
            return in_trace(self.theirs[key])
        items = parts_of(key)
        axis, ndmin, place = self.axis, self.ndmin, self.place
        if isinstance(items[0], str):
            axis, ndmin, place = directions(items[0], axis, ndmin, place)
            items = items[1:]
        values = [line(i) if isinstance(i, slice) else lift(i) for i in items]
        dtype = common_dtype(values)
        return concatenate([axes_added(cast(array(v), dtype), ndmin, place) for v in values], axis)


def directions(text: str, axis: int, ndmin: int, place: int) -> tuple[int, int, int]:
    """Axis, least number of axes and where the array's own go, of a string such as "0,2,0"."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        what = f"{text!r} asks np.r_ for a matrix, which ge2 has none of"
        raise ArgumentError(
            what, where=here(), fix="'axis,ndmin,trans1d' of three integers"
        ) from None
    own = [axis, ndmin, place]
    a, b, c = [*found, *own[len(found) :]][:3]
    return a, b, c


def axes_added(x: Any, ndmin: int, place: int) -> Any:
    """The array with at least `ndmin` axes, its own from `place` on."""
    new = ndmin - type_of(x).ndim
    if new <= 0:
        return x
    own = type_of(x).shape
    x = reshape(x, (*(1,) * new, *own))
    if not own:
        return x
    start = place + (new + 1 if place < 0 else 0)
    return moveaxis(x, tuple(range(new, ndmin)), tuple(range(start, start + len(own))))


r_ = Joined(np.r_, "r_")
c_ = Joined(np.c_, "c_", -1, 2, 0)


# -------------------------------------------------------------------------------------------- grids


@final
@hides_methods
class Grid:
    """`np.mgrid` and `np.ogrid`; the ends of a slice with an imaginary step may be traced."""

    __slots__ = ("name", "sparse", "theirs")

    def __init__(self, theirs: Any, name: str, sparse: bool) -> None:
        self.theirs, self.name, self.sparse = theirs, name, sparse

    def __repr__(self) -> str:
        return f"<ge2.numpy.{self.name}>"

    def __getitem__(self, key: Any) -> Any:
        if not has_traced(key):
            return in_trace(self.theirs[key])
        if isinstance(key, slice):
            return line(key)
        lines = [line(s) for s in key]
        dtype = common_dtype(lines)
        n = len(lines)
        lines = [
            reshape(cast(x, dtype), (*(1,) * i, type_of(x).size, *(1,) * (n - i - 1)))
            for i, x in enumerate(sized(lines))
        ]
        return tuple(lines) if self.sparse else dense(lines)


def sized(lines: list[Any]) -> list[Any]:
    for x in lines:
        if type_of(x).ndim != 1:
            raise ShapeError(f"the ends of a grid are numbers; got {type_of(x)}", where=here())
    return lines


def dense(lines: list[Any]) -> Any:
    shape = np.broadcast_shapes(*[type_of(x).shape for x in lines])
    return stack([broadcast_to(x, shape) for x in lines])


mgrid, ogrid = Grid(np.mgrid, "mgrid", False), Grid(np.ogrid, "ogrid", True)


# ----------------------------------------------------------------------------------------- elements


@final
@hides_methods
class ndenumerate:
    """The indices and elements of an array, as `numpy.ndenumerate`.

    >>> [(i, float(x)) for i, x in ndenumerate(np.eye(2))][:2]
    [((0, 0), 1.0), ((0, 1), 0.0)]
    """

    def __init__(self, arr: Any) -> None:
        self.arr = array(arr)
        self.places = np.ndindex(*type_of(self.arr).shape)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], Any]]:
        return self

    def __next__(self) -> tuple[tuple[int, ...], Any]:
        place = next(self.places)
        return place, self.arr[place]


# ----------------------------------------------------------------------------------------- windows
# Windows that slide along axes, each element of the result read where it stands.


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
