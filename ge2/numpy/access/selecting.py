"""Functions that take indices, and slices that begin at a traced offset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, INT64, INTEGERS, can_cast
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    InPlaceError,
    InputError,
    OutOfBoundsError,
    ShapeError,
)
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, is_traced, type_of
from ge2.numpy import access as indexing
from ge2.numpy import elementwise as e
from ge2.numpy.access import checked_index, common_index, fitting
from ge2.numpy.access import getitem as getitem_at
from ge2.numpy.access import setitem as setitem_at
from ge2.numpy.composite import choose_by, clip, flatnonzero, known_elements, no_out, nonzero, stack
from ge2.numpy.creation import owned
from ge2.numpy.elementwise import equal, floor_divide, less, remainder
from ge2.numpy.promotion import (
    any_traced,
    array,
    as_dtype,
    broadcast,
    cast,
    check_casting,
    common_dtype,
    in_trace,
    is_sequence,
    lift,
    one_axis,
    reshape,
)
from ge2.numpy.shapes import broadcast_arrays, ordered, ravel
from ge2.ops.index import Gather, Scatter
from ge2.ops.reduce import ArgMax, CumSum
from ge2.ops.shape import Iota

# -------- Functions that take indices: what they read, and what they write in place.


def take(
    a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise"
) -> Any:
    """The elements at `indices` along an axis, or of the flattened array, as `numpy.take`.

    `mode` "wrap" and "clip" bring indices inside; with "raise", traced ones are checked in the run.
    """
    if out is not None:
        raise InputError("take: out= is not supported", where=here(), fix="y = np.take(x, i)")
    x, index = array(a), array(indices)
    if type_of(index).size == 0 and type_of(index).dtype not in INTEGERS:
        index = cast(index, INT64)
    x = reshape(x, (type_of(x).size,)) if axis is None else x
    at = one_axis(0 if axis is None else axis, type_of(x).ndim, x)
    if type_of(index).dtype not in INTEGERS | {BOOL}:
        raise InputError(
            f"take: indices are integers; got {type_of(index)}",
            where=here(),
            fix="indices.astype(int)",
        )
    index = brought_inside(
        cast(index, INT64) if type_of(index).dtype == BOOL else index, type_of(x).shape[at], mode
    )
    return getitem_at(x, (*(slice(None),) * at, index))


def brought_inside(index: Any, n: int, mode: str) -> Any:
    if mode not in ("raise", "wrap", "clip"):
        raise ArgumentError(f"mode is 'raise', 'wrap' or 'clip'; got {mode!r}", where=here())
    if mode == "raise" or not n:
        return index
    return remainder(index, n) if mode == "wrap" else clip(index, 0, n - 1)


def along_axis(arr: Any, indices: Any, axis: int | None) -> tuple[Any, int, tuple[Any, ...]]:
    """The array, its axis, and an index for each axis that picks what
    `indices` says along that one.
    """
    x, index = array(arr), array(indices)
    if axis is None:
        x, axis = reshape(x, (type_of(x).size,)), 0
    t, own = type_of(x), type_of(index)
    axis = one_axis(axis, t.ndim, x)
    if own.dtype not in INTEGERS:
        raise OutOfBoundsError(
            f"`indices` must be an integer array; got {own}",
            where=here(),
            fix="indices.astype(int)",
        )
    if own.ndim != t.ndim:
        raise ShapeError(
            f"`indices` and `arr` must have the same number of dimensions; got {own}, {t}",
            where=here(),
            fix="indices[:, None]",
        )
    wanted = tuple([1 if i == axis else n for i, n in enumerate(t.shape)])
    try:
        shape = np.broadcast_shapes(own.shape, wanted)
    except ValueError:
        raise OutOfBoundsError(
            f"`indices`, {own}, do not broadcast against {t} along axis {axis}", where=here()
        ) from None
    lines = [
        counting(shape, i) if n == shape[i] else broadcast(np.int64(0), shape)
        for i, n in enumerate(t.shape)
    ]
    return (
        x,
        axis,
        tuple([broadcast(index, shape) if i == axis else lines[i] for i in range(t.ndim)]),
    )


def counting(shape: Dims, axis: int) -> Any:
    return Iota(shape, axis, INT64)()


def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    """For each line along an axis the elements at its own indices, as `numpy.take_along_axis`."""
    x, axis, places = along_axis(arr, indices, axis)
    check_known(places[axis], axis, type_of(x))
    return Gather(tuple(range(type_of(x).ndim)))(x, *places)


def check_known(index: Any, axis: int, t: ArrayType) -> None:
    if not is_traced(index):
        common_index([index], [t.shape[axis]], t)


REPEATED = "x[np.searchsorted(np.cumsum(repeats), np.arange(n), 'right')], whose length n is known"


def repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    """Each element so many times in a row, as `numpy.repeat`; the numbers must not be traced."""
    times = known_elements(repeats)
    if times is None:
        what = f"the length of repeat would depend on repeats, which is traced {type_of(repeats)}"
        raise ConcretizationTypeError(what, where=here(), fix=REPEATED)
    if times.size and times.min() < 0:
        what = f"repeats may not contain negative values; got {repeats!r:.40}"
        raise ArgumentError(what, where=here(), fix="np.maximum(repeats, 0)")
    x = ravel(a) if axis is None else array(a)
    axis = one_axis(0 if axis is None else axis, type_of(x).ndim, x)
    shape = type_of(x).shape
    if times.size == 1:
        before, n, after = shape[:axis], int(times.item()), shape[axis + 1 :]
        wide = broadcast(
            reshape(x, (*before, shape[axis], 1, *after)), (*before, shape[axis], n, *after)
        )
        return owned(reshape(wide, (*before, shape[axis] * n, *after)))
    if times.shape != (shape[axis],):
        raise ShapeError(
            f"operands could not be broadcast: repeats {type_of(times)}, axis {axis} of {type_of(x)}",
            where=here(),
        )
    return take(x, np.repeat(np.arange(shape[axis]), times), axis)


def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """The slices where the condition holds, as `numpy.compress`; of a
    traced one, to be reduced or written.
    """
    mask = array(condition)
    mask = mask if (known := known_elements(mask)) is None else known
    if is_traced(mask):
        no_out("compress", out)
        x = in_trace(ravel(a) if axis is None else array(a), "an array from outside")
        before = one_axis(axis or 0, x.ndim, x)
        return x[(*(slice(None),) * before, *nonzero(mask))]
    return take(a, np.flatnonzero(mask), axis, out)


def extract(condition: Any, arr: Any) -> Any:
    """The elements where the condition holds, as `numpy.extract`; of a
    traced one, to be reduced or written.
    """
    return compress(ravel(condition), arr)


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """For each element the choice of that number, as `numpy.choose`."""
    no_out("choose", out)
    found = [lift(c) for c in choices]
    dtype = common_dtype(found)  # before numbers of Python's are arrays, which have dtypes
    index, *options = broadcast_arrays(a, *(cast(c, dtype) for c in found))
    index = cast(index, INT64) if type_of(index).dtype == BOOL else index
    index = brought_inside(index, len(options), mode)
    table = stack(options)
    return take_along_axis(table, reshape(index, (1, *type_of(index).shape)), 0)[0]


def one_hot(x: Any, num_classes: int, *, dtype: Any = np.float64, axis: int = -1) -> Any:
    """1 at the place that each integer names along a new axis, 0 elsewhere; an
    integer outside gives zeros.

    >>> one_hot(np.array([0, 2]), 3)
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    index = array(x)
    if type_of(index).dtype not in INTEGERS:
        raise InputError(
            f"one_hot takes integers; got {type_of(index)}", where=here(), fix="x.astype(int)"
        )
    own = type_of(index).shape
    at = one_axis(axis, len(own) + 1)
    classes = Iota((num_classes,), 0, type_of(index).dtype)()
    places = equal(
        reshape(index, (*own[:at], 1, *own[at:])),
        reshape(classes, (num_classes, *(1,) * (len(own) - at))),
    )
    return cast(places, as_dtype(dtype))


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """Flat indices as one index for each axis, as `numpy.unravel_index`.

    One outside is an error: of traced indices when the program runs, an
    IndexError; on a GPU it wraps.
    """
    rest, found = array(indices), []
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not is_traced(rest):
        return np.unravel_index(rest, sizes, order)  # type: ignore[call-overload,no-any-return]
    if order not in ("C", "F"):
        what = f"only 'C' or 'F' order is permitted; got {order!r}"
        raise ArgumentError(what, where=here(), fix="order='C'")
    if type_of(rest).dtype not in INTEGERS:
        raise InputError(
            f"only int indices permitted; got {type_of(rest)}", where=here(), fix=".astype(int)"
        )
    total = math.prod(sizes)
    rest = cast(rest, INT64)
    rest = checked_index(choose_by(less(rest, 0), total, rest), total)
    for n in sizes if order == "F" else sizes[::-1]:
        found.append(remainder(rest, n))
        rest = floor_divide(rest, n)
    return tuple(found if order == "F" else found[::-1])


def ix_(*args: Any) -> tuple[Any, ...]:
    """Index arrays, each along an axis of its own, as `numpy.ix_`."""
    xs = [array(a) for a in args]
    if wrong := [type_of(x) for x in xs if type_of(x).ndim != 1]:
        raise ArgumentError(
            f"Cross index must be 1 dimensional; got {wrong[0]}", where=here(), fix="x.ravel()"
        )
    xs = [flatnonzero(x) if type_of(x).dtype == BOOL else x for x in xs]
    return tuple(
        [
            reshape(x, tuple([type_of(x).size if j == i else 1 for j in range(len(xs))]))
            for i, x in enumerate(xs)
        ]
    )


def write(target: Any, new: Any, name: str) -> None:
    """Gives an array new contents, if it can take them."""
    if is_traced(new) and not is_traced(target):
        raise InPlaceError(
            f"numpy.{name} was asked to write a traced value into a real array",
            where=here(),
            fix="ge2.numpy.full for np.full; np.zeros_like(x) for an array that can be written",
        )
    target[...] = new


def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    """Writes `values` at the indices of each line, in place, as `numpy.put_along_axis`."""
    x, axis, places = along_axis(arr, indices, axis)
    t = type_of(x)
    value = fitting(cast(array(values), t.dtype), type_of(places[axis]).shape, t)
    new = Scatter(tuple(range(t.ndim)))(x, value, *places)
    write(arr, reshape(new, type_of(arr).shape), "put_along_axis")


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Writes `src` into `dst` where the mask holds, in place, as `numpy.copyto`."""
    t = type_of(dst)
    check_casting(src, t.dtype, casting)
    value = fitting(cast(array(src), t.dtype), t.shape, t)
    write(dst, value if where is True else choose_by(array(where), value, dst), "copyto")


def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Writes the elements of `v`, over again, at flat indices, in place, as `numpy.put`."""
    t, index, line = type_of(a), ravel(array(ind)), ravel(array(v))
    if type_of(line).size and type_of(index).size:
        line = over_again(line, type_of(index).size)
        flat = setitem_at(reshape(array(a), (t.size,)), brought_inside(index, t.size, mode), line)
        write(a, reshape(flat, t.shape), "put")


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Writes the elements of `values`, over again, where the mask holds, in
    place, as `numpy.putmask`.
    """
    t, on, line = type_of(a), array(mask), ravel(values)
    if type_of(on).size != t.size:
        raise ShapeError(
            f"putmask: mask and data must be the same size; got {type_of(on)}, {t}", where=here()
        )
    if type_of(line).size:
        line = safely(values, line, t.dtype)
        one = type_of(line).size == 1
        full = reshape(line, ()) if one else reshape(over_again(line, t.size), t.shape)
        write(a, choose_by(reshape(on, t.shape), full, a), "putmask")


def over_again(line: Any, n: int) -> Any:
    """The first n elements of a line, which begins again where it ends."""
    size = type_of(line).size
    return getitem_at(line, np.arange(n) % size) if n != size else line


def safely(given: Any, values: Any, dtype: np.dtype) -> Any:
    """Values in a dtype; those of an array that would lose something are an error, as in NumPy."""
    own = type_of(values).dtype
    if not hasattr(given, "dtype") and not any_traced(given):
        np.array(given, dtype)  # OverflowError for Python's numbers that the dtype does not hold
    if hasattr(given, "dtype") and not can_cast(own, dtype, "safe"):
        what = f"Cannot cast array data from {own} to {dtype} according to the rule 'safe'"
        raise InputError(what, where=here(), fix=f"values.astype('{dtype}')")
    return cast(values, dtype)


def place(arr: Any, mask: Any, vals: Any) -> None:
    """Writes the first of `vals`, repeated, where the mask holds, in place, as `numpy.place`."""
    t, v = type_of(arr), ravel(array(vals))
    held = cast(ravel(array(mask)), BOOL)
    if type_of(held).size != t.size or not type_of(v).size:
        what = f"place: a mask {type_of(held)} and values {type_of(v)} do not fit {t}"
        fix = "a mask of as many elements as the array, and at least one value"
        raise ShapeError(what, where=here(), fix=fix)
    number = CumSum(0)(cast(held, INT64))  # of each place among those where the mask holds, from 1
    values = take(safely(vals, v, t.dtype), remainder(number - 1, type_of(v).size))
    write(arr, choose_by(reshape(held, t.shape), reshape(values, t.shape), arr), "place")


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Writes a number, or an array's elements over again, along the main diagonal, in place, as
    `numpy.fill_diagonal`.
    """
    shape = type_of(a).shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) > 1):
        what = f"fill_diagonal takes a matrix, or an array of equal sides; got {type_of(a)}"
        raise ShapeError(what, where=here(), fix="a[np.arange(n), np.arange(n)] = values")
    step = sum(math.prod(shape[1 + i :]) for i in range(len(shape)))
    end = shape[1] ** 2 if len(shape) == 2 and not wrap else None
    places = np.arange(math.prod(shape))[:end:step]
    if type_of(lift(val)).shape:
        line = ravel(val)
        val = getitem_at(line, np.arange(places.size) % type_of(line).size)
    write(a, setitem_at(a, np.unravel_index(places, shape), val), "fill_diagonal")


# ------------------------------------------------------------------------------------------ chosen
# Elements where a mask holds, for functions that are computed of all of them.


def harmless(x: Any, mask: Any) -> Any:
    """The array, everywhere else the first element that the mask chooses.

    A function of it makes no NaN, nor has an infinite derivative, but where the mask holds.
    """
    t, own = type_of(x), type_of(mask)
    if not own.size or not t.size:
        return x
    left = t.shape[own.ndim :]
    first = Gather((0,))(reshape(x, (own.size, *left)), ArgMax(0)(reshape(mask, (own.size,))))
    whole = reshape(mask, (*own.shape, *(1,) * len(left)))
    return choose_by(whole, x, fitting(first, t.shape, t))


# -------- Slices that begin at a traced place and have a known length: `x[k:k + 3]`, read and
# written.
# They touch what they name and nothing else. One that would be shorter in NumPy, for it ends
# outside of the array or on the other side of its end, is an index outside: an IndexError when the
# program runs, on the CPU.


@final
class MovingSlice:
    """`start:start + size` of one axis, with a traced start. Equal to that of the same value."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start, self.size = start, size

    def __eq__(self, other: object) -> bool:
        same = type(other) is MovingSlice and other.size == self.size
        return same and other.start.atom is self.start.atom  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.start.atom, self.size))

    def index(self, axis: int, t: ArrayType) -> Any:
        """The indices along an axis."""
        n, size = t.shape[axis], self.size
        if size > n:
            what = f"a slice of {size} elements does not fit into axis {axis} of {t}"
            raise ShapeError(what, where=here(), fix=f"a slice of at most {n}")
        first = cast(self.start, INT64)
        ends_after_0 = e.logical_and(e.less(first, 0), e.greater_equal(e.add(first, size), 0))
        return e.add(choose_by(ends_after_0, n, first), np.arange(size))


def getitem(x: Any, key: Any) -> Any:
    """`x[key]` for any key that NumPy takes; a slice with traced bounds is to have a known length.

    Integers that are known are checked here, with NumPy's error; those that are
    traced when the program runs.

    >>> getitem(np.arange(6).reshape(2, 3), (slice(None), [0, 2]))
    array([[0, 2],
           [3, 5]])
    """
    x, key = with_axes(array(x), resolved(key))
    return read(x, in_tuple(key)) if has_moving(key) else indexing.getitem(x, key)


def setitem(x: Any, key: Any, value: Any, *, unique: bool = False) -> Any:
    """A new array: `x` after `x[key] = value`. The value is cast to the dtype of `x`, as in NumPy.

    Where an index array names one place twice, the last value stays; `unique` says that none does.
    A traced mask takes a value that does not depend on how many elements it chooses.

    >>> setitem(np.zeros(4), slice(1, 3), 7)
    array([0., 7., 7., 0.])
    """
    t = type_of(x := array(x))
    x, key = with_axes(x, resolved(key))
    if has_moving(key):
        return reshape(written(x, in_tuple(key), value), t.shape)
    return reshape(indexing.setitem(x, key, value, unique=unique), t.shape)


def with_axes(x: Any, key: Any) -> tuple[Any, Any]:
    """The array with an axis of size 1 for each `True` or `False` of the key, which indexes it.

    As in NumPy such a mask stands for no axis, and counts among the index arrays.
    """
    parts = in_tuple(key)
    found = [truth(p) for p in parts]
    if all(b is None for b in found):
        return x, key
    t, used = type_of(x), [axes_of(p) for p in parts]
    expanded(tuple([p for p, b in zip(parts, found, strict=True) if b is None]), t)  # for errors
    dots = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    shape, indices = list(t.shape), list(parts)
    for i in reversed(range(len(parts))):
        if (on := found[i]) is not None:
            shape.insert(sum(used[:i]) if i < dots else t.ndim - sum(used[i:]), 1)
            indices[i] = np.zeros(int(on), np.intp)
    return reshape(x, tuple(shape)), tuple(indices)


def truth(p: Any) -> bool | None:
    """The value of a part of a key that is one boolean, without axes, and known; else None."""
    if isinstance(p, bool | np.bool_):
        return bool(p)
    if not is_array(p) or type(p) in (list, tuple) or type_of(p).shape or type_of(p).dtype != BOOL:
        return None
    return None if (known := known_elements(p)) is None else bool(known)


def is_array(p: Any) -> bool:
    return p is not None and type(p) not in (Ellipsis.__class__, slice, MovingSlice, int, str)


def axes_of(p: Any) -> int:
    """The number of axes that a part of a key stands for; a mask stands for its own."""
    if not is_array(p):
        return int(p is not None and p is not Ellipsis)
    own = type_of(lift(p))
    return own.ndim if own.dtype == BOOL else 1


def in_tuple(key: Any) -> tuple[Any, ...]:
    return key if type(key) is tuple else (key,)


def resolved(key: Any) -> Any:
    """The key, with what its traced bounds are: numbers that are known, or a `MovingSlice`.

    Raises TracerIntegerConversionError for a slice whose length is not known.
    """
    return tuple(map(resolved_part, key)) if isinstance(key, tuple) else resolved_part(key)


def resolved_part(part: Any) -> Any:
    """A part of a key; a sequence of any kind is a list of indices."""
    if type(part) is slice:
        return resolved_slice(part)
    return list(part) if is_sequence(part) else part


def resolved_slice(part: slice) -> Any:
    for bound in (part.start, part.stop, part.step):
        if hasattr(bound, "moving_slice"):
            return bound.moving_slice(part)
    return part


def has_moving(key: Any) -> bool:
    """True if a part of the key is a `MovingSlice`."""
    return any(type(p) is MovingSlice for p in in_tuple(key))


def expanded(key: tuple[Any, ...], t: ArrayType) -> list[Any]:
    """The parts of a key, with a slice for each axis that it does not name."""
    stand_ins = [slice(None) if type(p) is MovingSlice else p for p in key]
    moving = {id(s): p for s, p in zip(stand_ins, key, strict=True) if s is not p}
    return [moving.get(id(p), p) for p in indexing.expanded(tuple(stand_ins), t)]


class Plan:
    """A key of slices, moving slices and scalars, as one gather and the axes
    that its result has to be in.
    """

    def __init__(self, t: ArrayType, parts: Sequence[Any]) -> None:
        self.parts = [p for p in parts if p is not Ellipsis]
        axes = [p for p in self.parts if p is not None]
        moving = [i for i, p in enumerate(axes) if type(p) is MovingSlice]
        self.key = tuple([along(p, i, t, moving) for i, p in enumerate(axes)])
        chosen = [i for i, p in enumerate(axes) if type(p) is not slice]
        kept = [i for i, p in enumerate(axes) if type(p) in (slice, MovingSlice)]
        apart = chosen[-1] - chosen[0] + 1 != len(chosen)
        # as NumPy orders them
        made = [*moving, *(i for i in kept if i not in moving)] if apart else kept
        self.order = tuple([made.index(i) for i in kept])
        self.back = tuple([kept.index(i) for i in made])
        sizes = {i: size_of(axes[i], t.shape[i]) for i in kept}
        self.kept = tuple([sizes[i] for i in kept])
        rest = iter(self.kept)
        shaped = [p for p in self.parts if p is None or type(p) in (slice, MovingSlice)]
        self.result = tuple([1 if p is None else next(rest) for p in shaped])


def along(part: Any, axis: int, t: ArrayType, moving: Sequence[int]) -> Any:
    """A part of the key of the gather; the indices of moving slices have an axis each."""
    if type(part) is not MovingSlice:
        return part
    shape = tuple([part.size if i == axis else 1 for i in moving])
    return reshape(part.index(axis, t), shape)


def size_of(part: Any, n: int) -> int:
    return part.size if type(part) is MovingSlice else len(range(*part.indices(n)))


def read(x: Any, key: tuple[Any, ...]) -> Any:
    """`x[key]` for a key with moving slices."""
    t = type_of(x)
    parts = expanded(key, t)
    if has_arrays(parts):
        first, rest = in_turn(parts)
        return indexing.getitem(read(x, first), rest)
    plan = Plan(t, parts)
    return reshape(ordered(indexing.getitem(x, plan.key), plan.order), plan.result)


def written(x: Any, key: tuple[Any, ...], value: Any) -> Any:
    """A new array: `x` after `x[key] = value`, for a key with moving slices."""
    t = type_of(x)
    parts = expanded(key, t)
    if has_arrays(parts):
        first, rest = in_turn(parts)
        return written(x, first, indexing.setitem(read(x, first), rest, value))
    plan = Plan(t, parts)
    fitted = indexing.fitting(array(lift(value)), plan.result, t)
    return indexing.setitem(
        x, plan.key, ordered(reshape(fitted, plan.kept), plan.back), unique=True
    )


def has_arrays(parts: Sequence[Any]) -> bool:
    """True if something among the parts of a key is an array of indices with axes."""
    plain = (slice, MovingSlice, int, type(None), type(Ellipsis))
    return any(type(p) not in plain and type_of(p).shape for p in parts)


def in_turn(parts: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two keys, one after the other: the moving slices, and the rest."""
    axes = [p for p in parts if p is not None and p is not Ellipsis]
    first = tuple([p if type(p) is MovingSlice else slice(None) for p in axes])
    return first, tuple([slice(None) if type(p) is MovingSlice else p for p in parts])
