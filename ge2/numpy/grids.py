"""Arrays made by indexing:

`r_`, `c_`, `mgrid` and `ogrid`; and the elements of an array, counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import type_of
from ge2.numpy.creation import arange, linspace
from ge2.numpy.joining import concatenate, stack
from ge2.numpy.plain import any_traced, in_trace
from ge2.numpy.promotion import array, cast, common_dtype, lift, reshape
from ge2.numpy.shapes import broadcast_to, moveaxis


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
