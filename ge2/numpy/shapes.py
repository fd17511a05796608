"""Functions that move elements: shapes, axes, joining, splitting, padding, repeating, triangles."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.arrays import INT64, INTEGERS
from ge2.base.errors import ArgumentError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import Dims, is_traced, type_of
from ge2.numpy.creation import as_shape, below_diagonal, iota, owned
from ge2.numpy.promotion import (
    Axes,
    all_axes,
    array,
    cast,
    checked_order,
    common_shape,
    fresh,
    integers_in,
    no_scalar,
    one_axis,
    reduced_axes,
)
from ge2.numpy.promotion import broadcast as spread
from ge2.numpy.promotion import reshape as reshaped
from ge2.ops import elementwise as ops
from ge2.ops.index import Gather
from ge2.ops.shape import Concatenate, Iota, Pad, Rev, Slice, Transpose


def by_columns(order: Any, x: Any) -> bool:
    """True where the first index is to change fastest; orders that follow memory are an error."""
    checked_order(order)
    if order in ("K", "A") and type_of(x).ndim > 1:
        what = f"order={order!r} follows the layout in memory, which {type_of(x)} has not yet"
        raise ArgumentError(what, where=here(), fix="order='C', or order='F'")
    return bool(order == "F")


# ------------------------------------------------------------------------------------------- shapes


def reshape(a: Any, /, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """The same elements under another shape, one size of which may be -1, as `numpy.reshape`.

    >>> reshape(np.arange(6), (2, -1))
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    x = no_scalar(a)
    if order == "K":
        raise ArgumentError(
            "order 'K' is not permitted for reshaping", where=here(), fix="order='C'"
        )
    target = complete(x, shape)
    if by_columns(order, x):
        return transpose(reshaped(transpose(x), target[::-1]))
    y = reshaped(x, target)
    return fresh(y) if copy and y is x else y


def partly(sizes: Dims, size: int) -> str:
    """The fix for a shape of another size: its first axis kept where it can be."""
    first = sizes[0] if sizes and sizes[0] > 0 and size % sizes[0] == 0 else 0
    return f"x.reshape({first}, -1)" if first else "x.reshape(-1)"


def complete(x: Any, shape: Any) -> Dims:
    """The shape with -1 worked out."""
    t = type_of(x)
    sizes = tuple([operator.index(n) for n in integers_in(shape)])
    rest = math.prod([n for n in sizes if n != -1])
    known = sizes.count(-1) == 0
    if (
        sizes.count(-1) > 1
        or (known and rest != t.size)
        or (not known and (rest == 0 or t.size % rest))
    ):
        raise ShapeError(
            f"cannot reshape {t}, which has {t.size} elements, into shape {sizes}",
            where=here(),
            fix=partly(sizes, t.size),
        )
    return tuple([t.size // rest if n == -1 else n for n in sizes])


def ravel(a: Any, order: str = "C") -> Any:
    """The elements in a row, as `numpy.ravel`; orders "A" and "K" of one axis alone."""
    x = no_scalar(a)
    return reshape(x, type_of(x).size, "F" if by_columns(order, x) else "C")


def squeeze(a: Any, axis: Axes = None) -> Any:
    """Without axes of size 1, or without the given ones, as `numpy.squeeze`."""
    x = no_scalar(a)
    shape = type_of(x).shape
    axes = (
        [i for i, n in enumerate(shape) if n == 1]
        if axis is None
        else reduced_axes(axis, len(shape), x)
    )
    if builtins.any(shape[i] != 1 for i in axes):
        what = "cannot select an axis to squeeze out which has size not equal to one"
        what += f": axis {axis} of {type_of(x)}"
        raise ShapeError(what, where=here(), fix="x[..., 0] to take one of several")
    return reshaped(x, tuple([n for i, n in enumerate(shape) if i not in axes]))


def expand_dims(a: Any, axis: int | Sequence[int]) -> Any:
    """With new axes of size 1 at those places of the result, as `numpy.expand_dims`."""
    x = no_scalar(a)
    new: list[Any] = list(axis) if isinstance(axis, tuple | list) else [axis]
    rest = iter(type_of(x).shape)
    ndim = type_of(x).ndim + len(new)
    axes = all_axes(tuple(new), ndim)
    return reshaped(x, tuple([1 if i in axes else next(rest) for i in range(ndim)]))


def broadcast_to(array_: Any, shape: Any, subok: bool = False) -> Any:
    """Repeated along new axes and axes of size 1, as `numpy.broadcast_to`."""
    x, target = no_scalar(array_), as_shape(shape)
    own = type_of(x).shape
    new = len(target) - len(own)
    if new < 0 or builtins.any(n not in (1, m) for n, m in zip(own, target[new:], strict=True)):
        raise ShapeError(
            f"{type_of(x)} does not broadcast to shape {target}",
            where=here(),
            fix="x[..., None] for a new axis of size 1",
        )
    return spread(x, target)


def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[Any, ...]:
    """All arguments in the one shape they broadcast to."""
    xs = [no_scalar(x) for x in args]
    shape = common_shape("broadcast_arrays", xs)
    return tuple([spread(x, shape) for x in xs])


def broadcast_shapes(*args: Any) -> Dims:
    """The shape that arrays of those shapes broadcast to."""
    return np.broadcast_shapes(*args)


def at_least(ndim: int, arys: tuple[Any, ...], before: Sequence[int]) -> Any:
    """Each array with at least so many axes; `before[n]` of the new ones come
    first in an array of n axes.
    """

    def one(x: Any) -> Any:
        shape = type_of(x := no_scalar(x)).shape
        new = builtins.max(ndim - len(shape), 0)
        first = builtins.min(before[builtins.min(len(shape), len(before) - 1)], new)
        return reshaped(x, (1,) * first + shape + (1,) * (new - first))

    return one(arys[0]) if len(arys) == 1 else tuple([one(x) for x in arys])


def atleast_1d(*arys: Any) -> Any:
    """Arrays of at least one axis, as `numpy.atleast_1d`."""
    return at_least(1, arys, (1, 0))


def atleast_2d(*arys: Any) -> Any:
    """Arrays of at least two axes, as `numpy.atleast_2d`."""
    return at_least(2, arys, (2, 1, 0))


def atleast_3d(*arys: Any) -> Any:
    """Arrays of at least three axes, as `numpy.atleast_3d`: a row becomes (1,
    n, 1), a matrix (m, n, 1).
    """
    return at_least(3, arys, (3, 1, 0))


# --------------------------------------------------------------------------------------------- axes


def transpose(a: Any, axes: Any = None) -> Any:
    """The axes in another order, or reversed, as `numpy.transpose`."""
    x = no_scalar(a)
    ndim = type_of(x).ndim
    if axes is None:
        return ordered(x, tuple(range(ndim))[::-1])
    axes = integers_in(axes)
    if len(axes) != ndim:
        raise ShapeError(
            f"axes don't match array: {tuple(axes)} and {type_of(x)}",
            where=here(),
            fix=f"{ndim} axes",
        )
    order = tuple([one_axis(i, ndim, x) for i in axes])
    if len(set(order)) != ndim:
        raise ShapeError(
            f"repeated axis in transpose: {tuple(axes)}", where=here(), fix="each axis once"
        )
    return ordered(x, order)


def ordered(x: Any, order: Dims) -> Any:
    return x if order == tuple(range(len(order))) else Transpose(order)(x)


permute_dims = transpose


def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    x = no_scalar(x)
    if type_of(x).ndim < 2:
        what = (
            f"Input array must be at least 2-dimensional, but it is {type_of(x).ndim}: {type_of(x)}"
        )
        raise ShapeError(what, where=here(), fix="x[None]")
    return swapaxes(x, -1, -2)


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """Two axes exchanged, as `numpy.swapaxes`."""
    x = no_scalar(a)
    ndim = type_of(x).ndim
    i, j = one_axis(axis1, ndim, x), one_axis(axis2, ndim, x)
    order = list(range(ndim))
    order[i], order[j] = j, i
    return ordered(x, tuple(order))


def moveaxis(a: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes moved to other places, the others in their order, as `numpy.moveaxis`."""
    x = no_scalar(a)
    ndim = type_of(x).ndim
    sources, targets = (
        [one_axis(i, ndim, x) for i in integers_in(axis)] for axis in (source, destination)
    )
    if (
        len(set(sources)) != len(sources)
        or len(set(targets)) != len(targets)
        or len(sources) != len(targets)
    ):
        what = (
            "`source` and `destination` arguments must have the same number of elements, none twice"
        )
        raise ShapeError(f"{what}; got {source}, {destination}", where=here())
    order = [i for i in range(ndim) if i not in sources]
    for target, i in sorted(zip(targets, sources, strict=True)):
        order.insert(target, i)
    return ordered(x, tuple(order))


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """The axis moved before another, as `numpy.rollaxis`; `moveaxis` is easier to read."""
    x = no_scalar(a)
    ndim = type_of(x).ndim
    axis = one_axis(axis, ndim, x)
    start = start + ndim if start < 0 else start
    return moveaxis(x, axis, start - 1 if axis < start else start)


def flip(m: Any, axis: Axes = None) -> Any:
    """In reverse along the given axes, as `numpy.flip`."""
    x = array(m)
    axes = all_axes(axis, type_of(x).ndim, x)
    return Rev(axes)(x) if axes else x


def fliplr(m: Any) -> Any:
    """In reverse along axis 1."""
    return flip(m, 1)


def flipud(m: Any) -> Any:
    """In reverse along axis 0."""
    return flip(m, 0)


def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """Turned by k quarters in the plane of two axes, as `numpy.rot90`."""
    x = no_scalar(m)
    i, j = (one_axis(a, type_of(x).ndim, x) for a in axes)
    if i == j:
        raise ShapeError(f"Axes={tuple(axes)} must be different", where=here())
    if k % 4 == 2:
        return flip(x, (i, j))
    if k % 4 == 0:
        return x
    return swapaxes(flip(x, j), i, j) if k % 4 == 1 else flip(swapaxes(x, i, j), j)


def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Elements that leave at one end come back at the other, as `numpy.roll`;
    shifts may be traced integers.

    >>> roll(np.arange(5), 2)
    array([3, 4, 0, 1, 2])
    """
    x = no_scalar(a)
    shape = type_of(x).shape
    if axis is None:
        return reshaped(roll(ravel(x), shift, 0), shape)
    y = fresh(x)
    for by, along in shifts_of(shift, axis):
        i = one_axis(along, len(shape), x)
        if not shape[i]:
            continue
        if is_traced(by):
            y = rolled_by(y, by, i)
        elif by % shape[i]:
            at = shape[i] - by % shape[i]
            y = Concatenate(i)(part(y, i, at, shape[i]), part(y, i, 0, at))
    return y


def shifts_of(shift: Any, axis: Any) -> list[tuple[Any, int]]:
    """Each shift with its axis; one of either goes with all of the other."""
    if not is_traced(shift) and not isinstance(shift, tuple | list):
        shift = np.asarray(shift).tolist()
    shifts = [*shift] if isinstance(shift, tuple | list) or type_of(shift).shape else [shift]
    axes = np.atleast_1d(axis).tolist()
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        what = f"roll takes a shift for each axis; got {len(shifts)} shifts for {len(axes)} axes"
        raise ShapeError(what, where=here(), fix="one shift for all axes")
    count = builtins.max(len(shifts), len(axes)) if shifts and axes else 0
    return [(integer_shift(shifts[i % len(shifts)]), axes[i % len(axes)]) for i in range(count)]


def integer_shift(by: Any) -> Any:
    """A shift as a Python integer, or a traced one."""
    if not is_traced(by):
        return int(by)
    if type_of(by).shape or type_of(by).dtype not in INTEGERS:
        raise TypeRuleError(
            f"roll takes integers as shifts; got {type_of(by)}", where=here(), fix="by.astype(int)"
        )
    return by


def rolled_by(x: Any, by: Any, axis: int) -> Any:
    """The elements along an axis from `by` places before their own; below 0 an
    index counts from the end.
    """
    shape = type_of(x).shape
    if type_of(by).weak or type_of(by).dtype != INT64:
        by = cast(by, INT64)
    from_first = Iota((shape[axis],), 0, INT64)() - by % shape[axis]
    rows = Gather((axis,))(x, from_first)
    return moveaxis(rows, 0, axis)


def part(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """Some of the elements along one axis; a negative step runs from `stop - 1` down to `start`."""
    shape = type_of(x).shape
    if step < 0:
        return part(Rev((axis,))(x), axis, shape[axis] - stop, shape[axis] - start, -step)
    starts = tuple([start if i == axis else 0 for i in range(len(shape))])
    stops = tuple([stop if i == axis else n for i, n in enumerate(shape)])
    return Slice(starts, stops, tuple([step if i == axis else 1 for i in range(len(shape))]))(x)


def between(start: int, stop: int, size: int) -> tuple[int, int]:
    """The bounds of a slice as Python understands them."""
    a, b, _ = slice(start, stop).indices(size)
    return a, builtins.max(a, b)


# ---------------------------------------------------------------------------------------- repeating


def tile(A: Any, reps: Any) -> Any:
    """The array repeated side by side along each axis, as `numpy.tile`."""
    x = no_scalar(A)
    times = as_shape(reps)
    shape = (1,) * (len(times) - type_of(x).ndim) + type_of(x).shape
    times = (1,) * (len(shape) - len(times)) + times
    if builtins.all(n == 1 for n in times):
        return reshaped(fresh(x), shape)
    apart = reshaped(x, tuple([k for n in shape for k in (1, n)]))
    wide = spread(apart, tuple([k for r, n in zip(times, shape, strict=True) for k in (r, n)]))
    return owned(reshaped(wide, tuple([r * n for r, n in zip(times, shape, strict=True)])))


def meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[Any, ...]:
    """A grid from its axes, as `numpy.meshgrid`."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(
            f"Valid values for `indexing` are 'xy' and 'ij'; got {indexing!r}", where=here()
        )
    ndim = len(xi)
    places = [1, 0, *range(2, ndim)] if indexing == "xy" and ndim > 1 else list(range(ndim))
    lines = [ravel(x) for x in xi]
    grids = tuple(
        [
            reshaped(x, tuple([type_of(x).size if j == i else 1 for j in range(ndim)]))
            for i, x in zip(places, lines, strict=True)
        ]
    )
    if not sparse:
        grids = broadcast_arrays(*grids)
    return tuple([fresh(g) for g in grids]) if copy else grids


# ---------------------------------------------------------------------------------------- triangles


def tril(m: Any, k: Any = 0) -> Any:
    """Zeros above the k-th diagonal of the last two axes, as `numpy.tril`; k may be traced."""
    return triangle(m, k, lower=True)


def triu(m: Any, k: Any = 0) -> Any:
    """Zeros below the k-th diagonal of the last two axes, as `numpy.triu`; k may be traced."""
    return triangle(m, k, lower=False)


def triangle(m: Any, k: Any, lower: bool) -> Any:
    x = no_scalar(m)
    t = type_of(x)
    if not t.shape:
        what = f"{'tril' if lower else 'triu'} takes a matrix, or a vector that is each of its rows; got {t}"
        raise ShapeError(what, where=here(), fix="np.atleast_2d(x)")
    n = t.shape[-1]
    mask = below_diagonal(t.shape[-2:] if t.ndim > 1 else (n, n), k, strictly=not lower)
    x = spread(x, (n, n)) if t.ndim == 1 else x
    mask, zero = spread(mask, type_of(x).shape), t.dtype.type(0)
    return ops.WHERE(mask, x, zero) if lower else ops.WHERE(mask, zero, x)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements with equal indices on two axes, as the last axis, as `numpy.diagonal`."""
    x = no_scalar(a)
    ndim = type_of(x).ndim
    if ndim < 2:
        raise ShapeError(
            f"diag requires an array of at least two dimensions; got {type_of(x)}",
            where=here(),
            fix="np.diag",
        )
    i, j = one_axis(axis1, ndim, x), one_axis(axis2, ndim, x)
    if i == j:
        raise ShapeError("axis1 and axis2 cannot be the same", where=here())
    return _diagonal(moveaxis(x, (i, j), (-2, -1)), offset)


def _diagonal(x: Any, offset: int) -> Any:
    """Of the last two axes: every (n + 1)-th element of the rows laid end to end."""
    *rest, m, n = type_of(x).shape
    length = builtins.max(builtins.min(m + builtins.min(offset, 0), n - builtins.max(offset, 0)), 0)
    flat = reshaped(x, (*rest, m * n))
    first = offset if offset >= 0 else -offset * n
    if not length:
        return part(flat, len(rest), 0, 0)
    return part(flat, len(rest), first, first + (length - 1) * (n + 1) + 1, n + 1)


def diag(v: Any, k: int = 0) -> Any:
    """The k-th diagonal of a matrix, or the matrix with that diagonal, as `numpy.diag`."""
    x = no_scalar(v)
    t = type_of(x)
    if t.ndim == 2:
        return diagonal(x, k)
    if t.ndim != 1:
        raise ShapeError(f"Input must be 1- or 2-d; got {t}", where=here())
    size = t.size + builtins.abs(k)
    on = ops.EQ(
        ops.ADD(iota((size, size), 0, np.dtype(np.int32)), np.int32(k)),
        iota((size, size), 1, np.dtype(np.int32)),
    )
    rows = Pad((builtins.max(-k, 0),), (builtins.max(k, 0),), (0,))(x)  # an element a row
    return ops.WHERE(on, spread(reshaped(rows, (size, 1)), (size, size)), t.dtype.type(0))


def diagflat(v: Any, k: int = 0) -> Any:
    """The matrix with the flattened elements on its k-th diagonal."""
    return diag(ravel(v), k)
