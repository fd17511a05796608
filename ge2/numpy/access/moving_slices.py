"""Slices that begin at a traced place and have a known length: `x[k:k + 3]`, read and written.

They touch what they name and nothing else. One that would be shorter in NumPy, for it
ends outside of the array or on the other side of its end, is an index outside: an
IndexError when the program runs, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import INT64
from ge2.base.errors import ShapeError
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access import indexing
from ge2.numpy.composite import choose_by
from ge2.numpy.promotion import array, cast, lift, reshape
from ge2.ops.shape import Transpose


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
    key = resolved(key)
    return read(array(x), in_tuple(key)) if has_moving(key) else indexing.getitem(x, key)


def setitem(x: Any, key: Any, value: Any, *, unique: bool = False) -> Any:
    """A new array: `x` after `x[key] = value`. The value is cast to the dtype of `x`, as in NumPy.

    Where an index array names one place twice, the last value stays; `unique` says that none does.
    A traced mask takes a value that does not depend on how many elements it chooses.

    >>> setitem(np.zeros(4), slice(1, 3), 7)
    array([0., 7., 7., 0.])
    """
    key = resolved(key)
    if has_moving(key):
        return written(array(x), in_tuple(key), value)
    return indexing.setitem(x, key, value, unique=unique)


def in_tuple(key: Any) -> tuple[Any, ...]:
    return key if type(key) is tuple else (key,)


def resolved(key: Any) -> Any:
    """The key, with what its traced bounds are: numbers that are known, or a `MovingSlice`.

    Raises TracerIntegerConversionError for a slice whose length is not known.
    """
    if type(key) is slice:
        return resolved_slice(key)
    if type(key) is tuple and any(type(p) is slice for p in key):
        return tuple([resolved_slice(p) if type(p) is slice else p for p in key])
    return key


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
    return reshape(turned(indexing.getitem(x, plan.key), plan.order), plan.result)


def written(x: Any, key: tuple[Any, ...], value: Any) -> Any:
    """A new array: `x` after `x[key] = value`, for a key with moving slices."""
    t = type_of(x)
    parts = expanded(key, t)
    if has_arrays(parts):
        first, rest = in_turn(parts)
        return written(x, first, indexing.setitem(read(x, first), rest, value))
    plan = Plan(t, parts)
    fitted = indexing.fitting(array(lift(value)), plan.result, t)
    return indexing.setitem(x, plan.key, turned(reshape(fitted, plan.kept), plan.back), unique=True)


def has_arrays(parts: Sequence[Any]) -> bool:
    """True if something among the parts of a key is an array of indices with axes."""
    plain = (slice, MovingSlice, int, type(None), type(Ellipsis))
    return any(type(p) not in plain and type_of(p).shape for p in parts)


def in_turn(parts: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two keys, one after the other: the moving slices, and the rest."""
    axes = [p for p in parts if p is not None and p is not Ellipsis]
    first = tuple([p if type(p) is MovingSlice else slice(None) for p in axes])
    return first, tuple([slice(None) if type(p) is MovingSlice else p for p in parts])


def turned(x: Any, order: Dims) -> Any:
    return x if order == tuple(range(len(order))) else Transpose(order)(x)
