"""Arrays made by indexing, and padding."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOAT64, INEXACT, INT64, INTEGERS
from ge2.base.errors import ArgumentError, InputError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Dims, type_of
from ge2.numpy import axes as reductions
from ge2.numpy.access.selecting import take
from ge2.numpy.axes.sorting import median
from ge2.numpy.composite import concatenate, stack
from ge2.numpy.composite import round as rounded
from ge2.numpy.creation import arange, linspace
from ge2.numpy.promotion import (
    any_traced,
    array,
    broadcast,
    cast,
    common_dtype,
    fresh,
    in_trace,
    lift,
    no_scalar,
    one_axis,
    plainly,
    reshape,
)
from ge2.numpy.shapes import broadcast_to, flip, moveaxis, part, transpose
from ge2.ops.elementwise import ADD, SUB
from ge2.ops.index import Gather
from ge2.ops.shape import Iota, Pad

__all__ = ["pad"]


# -------- Arrays made by indexing:
# `r_`, `c_`, `mgrid` and `ogrid`; and the elements of an array, counted.


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


@plainly(np.lib.stride_tricks.as_strided)
def as_strided(
    x: Any, shape: Any = None, strides: Any = None, subok: bool = False, writeable: bool = True
) -> Any:
    """Elements of an array in C order, by distances in bytes, as `numpy.lib.stride_tricks.as_strided`.

    What is outside of the array is an ArgumentError, and the result cannot be written.
    """
    y = array(x)
    t = type_of(y)
    own, item = steps_of(t.shape), t.dtype.itemsize
    sizes = t.shape if shape is None else tuple([operator.index(n) for n in shape])
    given = own if strides is None else [operator.index(s) / item for s in strides]
    steps = [int(s) for s in given]
    reach = sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    if min(steps, default=0) < 0 or reach >= t.size or steps != list(given):
        what = f"as_strided reads from {t} what is outside of it, or between its elements"
        raise ArgumentError(what, where=here(), fix="strides of x.strides, and a shape that fits")
    return strided(fresh(y), own, sizes, steps)


def steps_of(shape: Dims) -> list[int]:
    """The strides of an array in C order, in elements."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def strided(x: Any, own: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Any:
    """The elements of `x`, whose steps are its `own`: each axis of the result walks along one of its."""
    shape = type_of(x).shape
    along: list[list[int]] = [[] for _ in shape]  # for each axis of `x` those that walk along it
    left = [n - 1 for n in shape]
    for a in sorted(range(len(sizes)), key=lambda a: -steps[a]):
        if sizes[a] != 1 and steps[a]:
            for d, step in enumerate(own):
                if steps[a] % step == 0 and (sizes[a] - 1) * (steps[a] // step) <= left[d]:
                    left[d] -= (sizes[a] - 1) * (steps[a] // step)
                    along[d].append(a)
                    break
            else:  # from one line into the next
                return strided(reshape(x, (math.prod(shape),)), [1], sizes, steps)
    for d in reversed(range(len(shape))):
        walks = tuple([sizes[a] for a in along[d]])
        parts = [
            Iota(walks, i, INT64)() * (steps[a] // own[d]) for i, a in enumerate(along[d])
        ] or [np.int64(0)]
        index = reduce(ADD, parts)
        x = moveaxis(x, d + sum(map(len, along[d + 1 :])), 0)
        x = Gather((0,))(x, index)
    order = [a for axes in along for a in axes]
    x = transpose(x, sorted(range(len(order)), key=order.__getitem__))
    x = reshape(x, tuple([n if a in order else 1 for a, n in enumerate(sizes)]))
    return broadcast_to(x, tuple(sizes))


# -------- Padding: with numbers, with the array's own elements by slices of it, with what its ends
# give.


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
    x = no_scalar(array_)
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
