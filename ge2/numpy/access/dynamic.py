"""Parts of an array of known sizes at starts that may be traced, under their names in `jax.lax`.

A start is clamped, so that the part is inside: it reads and writes what it
touches, and nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, INT64, INTEGERS
from ge2.base.errors import ArgumentError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.indexing import getitem, setitem
from ge2.numpy.access.selecting import take_along_axis
from ge2.numpy.composite import choose_by, stack
from ge2.numpy.promotion import array, broadcast, cast, one_axis, reshape
from ge2.ops import elementwise as ops


def dynamic_slice(operand: Any, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> Any:
    """The part of `operand` of those sizes from `start_indices` on, clamped so that it is inside.

    A negative start counts from the end. As `jax.lax.dynamic_slice`.

    >>> dynamic_slice(np.arange(5), (4,), (3,))
    array([2, 3, 4])
    """
    x = array(operand)
    sizes = tuple([operator.index(n) for n in slice_sizes])
    return reshape(getitem(x, key(x, start_indices, sizes, "dynamic_slice")), sizes)


def dynamic_update_slice(operand: Any, update: Any, start_indices: Sequence[Any]) -> Any:
    """`operand` with `update` in place of the part from `start_indices` on,
    which is clamped to be inside.

    As `jax.lax.dynamic_update_slice`; both have one dtype.

    >>> dynamic_update_slice(np.zeros(4), np.ones(2), (1,))
    array([0., 1., 1., 0.])
    """
    x, u = array(operand), array(update)
    if type_of(x).dtype != type_of(u).dtype:
        what = f"dynamic_update_slice takes arrays of one dtype; got {type_of(x)}, {type_of(u)}"
        raise TypeRuleError(what, where=here(), fix="update.astype(operand.dtype)")
    at = key(x, start_indices, type_of(u).shape, "dynamic_update_slice")
    kept = [n for p, n in zip(at, type_of(u).shape, strict=True) if n != 1 or type(p) is _slice]
    return setitem(x, at, reshape(u, tuple(kept)), unique=True)


def key(x: Any, starts: Sequence[Any], sizes: Dims, name: str) -> tuple[Any, ...]:
    """The index of the part: whole axes and known starts as slices, the others as index arrays."""
    t = type_of(x)
    starts = [getitem(starts, i) for i in range(t.ndim)] if is_traced(starts) else list(starts)
    if not len(starts) == len(sizes) == t.ndim:
        what = f"{name} takes a start and a size for each axis of {t}; got {len(starts)} and {len(sizes)}"
        raise ShapeError(what, where=here())
    if any(not 0 <= n <= m for n, m in zip(sizes, t.shape, strict=True)):
        raise ShapeError(f"{name}: sizes {sizes} do not fit into {t}", where=here())
    places = [place(s, n, m, name) for s, n, m in zip(starts, sizes, t.shape, strict=True)]
    return apart(places, sizes)


def place(start: Any, size: int, n: int, name: str) -> Any:
    """The first index along an axis, a number where it is known."""
    s = array(start)
    if type_of(s).dtype not in INTEGERS or type_of(s).shape:
        what = f"{name} takes integer scalars as starts; got {type_of(s)}"
        raise TypeRuleError(what, where=here(), fix="start.astype(int)")
    if size == n:
        return 0
    if not is_traced(s):
        first = int(s) + n if int(s) < 0 else int(s)
        return min(max(first, 0), n - size)
    s = cast(s, INT64)
    return e.minimum(e.maximum(choose_by(e.less(s, 0), e.add(s, n), s), 0), n - size)


def apart(places: list[Any], sizes: Dims) -> tuple[Any, ...]:
    """Slices where places are known; index arrays, or scalars for single elements, elsewhere.

    Every axis between two index arrays is indexed by one, too: the axes of the result stay in their
    order, those of single elements left out.
    """
    traced = [i for i, p in enumerate(places) if type(p) is not int]
    first, last = (traced[0], traced[-1]) if traced else (0, -1)
    wide = [i for i in range(first, last + 1) if sizes[i] != 1]
    found: list[Any] = []
    for i, (p, n) in enumerate(zip(places, sizes, strict=True)):
        if not first <= i <= last:
            found.append(_slice(p, p + n))
        elif i not in wide:
            found.append(p)
        else:
            found.append(reshape(e.add(np.arange(n), p), tuple([n if i == k else 1 for k in wide])))
    return tuple(found)


def along(x: Any, axis: int) -> tuple[Any, int, ArrayType]:
    x = array(x)
    return x, one_axis(axis, type_of(x).ndim, x), type_of(x)


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Any:
    """The `slice_size` elements from `start_index` on along one axis, clamped to be inside."""
    x, at, t = along(operand, axis)
    sizes = (*t.shape[:at], slice_size, *t.shape[at + 1 :])
    return dynamic_slice(x, [start_index if i == at else 0 for i in range(t.ndim)], sizes)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Any:
    """`operand` with `update` from `start_index` on along one axis, clamped to be inside."""
    x, at, t = along(operand, axis)
    return dynamic_update_slice(x, update, [start_index if i == at else 0 for i in range(t.ndim)])


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Any:
    """The slice at `index` along one axis, clamped to those there are; its axis is kept, at size 1.

    >>> int(dynamic_index_in_dim(np.arange(5), 3, keepdims=False))
    3
    """
    x, at, t = along(operand, axis)
    y = dynamic_slice_in_dim(x, index, 1, at)
    return y if keepdims else reshape(y, (*t.shape[:at], *t.shape[at + 1 :]))


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Any:
    """`operand` with the slice at `index` along one axis replaced; `update` may lack that axis."""
    x, at, t = along(operand, axis)
    u = array(update)
    shape = (*t.shape[:at], 1, *t.shape[at + 1 :])
    return dynamic_update_slice_in_dim(
        x, reshape(u, shape) if type_of(u).ndim < t.ndim else u, index, at
    )


# ------------------------------------------------------------------------------------- known places


def slice(
    operand: Any, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Any = None
) -> Any:
    """The elements from a start before a limit on each axis, every so many of
    them, as `jax.lax.slice`.
    """
    x = array(operand)
    steps = strides or [1] * type_of(x).ndim
    bounds = zip(start_indices, limit_indices, steps, type_of(x).shape, strict=True)
    if any(not 0 <= a <= b <= n or s < 1 for a, b, s, n in bounds):
        raise ShapeError(
            f"slice from {start_indices} to {limit_indices} does not lie in {type_of(x)}",
            where=here(),
        )
    return getitem(x, tuple(map(_slice, start_indices, limit_indices, steps)))


def slice_in_dim(
    operand: Any, start_index: int, limit_index: int, stride: int = 1, axis: int = 0
) -> Any:
    """The elements from a start before a limit along one axis, both as Python's slices count."""
    x, at, _ = along(operand, axis)
    return getitem(x, (*(_slice(None),) * at, _slice(start_index, limit_index, stride)))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The slice at a known index along one axis; its axis is kept, at size 1."""
    x, at, t = along(operand, axis)
    i = operator.index(index)
    y = getitem(x, (*(_slice(None),) * at, i))
    return reshape(y, (*t.shape[:at], 1, *t.shape[at + 1 :])) if keepdims else y


_slice = type(np.s_[:])


# ----------------------------------------------------------------------------------------- choosing


def one_type(name: str, *xs: Any) -> list[Any]:
    """Values of one shape and dtype."""
    values = [array(x) for x in xs]
    if len({(type_of(v).shape, type_of(v).dtype) for v in values}) > 1:
        listed = ", ".join(str(type_of(v)) for v in values)
        raise TypeRuleError(
            f"{name} takes arrays of one shape and dtype; got {listed}",
            where=here(),
            fix="np.where",
        )
    return values


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where the bools of `pred`, or the one, hold, else `on_false`, both of one type."""
    mask = array(pred)
    a, b = one_type("select", on_true, on_false)
    if type_of(mask).dtype != BOOL or type_of(mask).shape not in ((), type_of(a).shape):
        what = f"select takes bools, as many as elements or one; got {type_of(mask)} beside {type_of(a)}"
        raise TypeRuleError(what, where=here(), fix="np.where")
    return ops.WHERE(broadcast(mask, type_of(a).shape), a, b)


def select_n(which: Any, *cases: Any) -> Any:
    """For each element the case of that number, clamped to those there are; True is the second.

    >>> select_n(np.array([True, False]), np.zeros(2), np.ones(2))
    array([1., 0.])
    """
    if not cases:
        raise ArgumentError("select_n needs at least one case", where=here())
    values, index = one_type("select_n", *cases), array(which)
    t, shape = type_of(index), type_of(values[0]).shape
    if t.dtype != BOOL and t.dtype not in INTEGERS:
        raise TypeRuleError(
            f"select_n takes bools or integers; got {t}", where=here(), fix="which.astype(int)"
        )
    if t.dtype == BOOL and len(values) > 2:
        raise TypeRuleError(
            f"select_n of bools takes two cases at most; got {len(values)}", where=here()
        )
    if t.shape not in ((), shape):
        raise ShapeError(
            f"select_n: {t} is no scalar, nor of the shape {shape} of the cases", where=here()
        )
    number = e.minimum(e.maximum(cast(index, INT64), 0), len(values) - 1)
    if len(values) == 2:
        return ops.WHERE(broadcast(e.equal(number, 1), shape), values[1], values[0])
    return getitem(take_along_axis(stack(values), broadcast(number, (1, *shape)), 0), 0)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` held between two bounds of its dtype, each of its shape or a
    scalar, as `jax.lax.clamp`.
    """
    value = array(x)
    t = type_of(value)
    bounds = [cast(array(b), t.dtype) if type(b) in (int, float) else array(b) for b in (min, max)]
    if any(type_of(b).dtype != t.dtype or type_of(b).shape not in ((), t.shape) for b in bounds):
        listed = ", ".join(str(type_of(b)) for b in bounds)
        raise TypeRuleError(
            f"clamp of {t} takes bounds of its type or scalars; got {listed}",
            where=here(),
            fix="np.clip",
        )
    low, high = [broadcast(b, t.shape) for b in bounds]
    return ops.MIN(ops.MAX(value, low), high)
