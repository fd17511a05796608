"""Functional updates by index (`x.at[i].set(v)`), and slices of static sizes at traced starts."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import BOOL, INT64, INTEGERS, can_cast
from ge2.base.errors import ArgumentError, NoRuleError, ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import ArrayType, Dims, is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access import (
    as_mask,
    at_places,
    fitting,
    getitem,
    key_of,
    masked_by,
    setitem,
)
from ge2.numpy.access.selecting import getitem as item
from ge2.numpy.access.selecting import has_moving, resolved, take_along_axis, with_axes
from ge2.numpy.access.selecting import setitem as with_item
from ge2.numpy.composite import choose_by, known_elements, stack
from ge2.numpy.promotion import array, broadcast, cast, fresh, one_axis, reshape, resolve
from ge2.ops import elementwise as ops
from ge2.ops.graphs.associative import prefixes
from ge2.ops.index import Gather, Scatter, ScatterAdd, ScatterMax, ScatterMin
from ge2.ops.sort import ArgSort

# -------- Binary functions applied at indices that may meet: every value that falls to one element
# counts.
# Sums and extremes are operations. Another function that is associative is taken in steps of
# doubling distance over the values sorted by their element; any other needs indices that are known,
# and is applied once for the first value of each element, once for the second, and so on.


Function = Callable[..., Any]

ASSOCIATIVE = frozenset(
    (np.add, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.logical_and, np.logical_or,
     np.logical_xor, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.gcd, np.lcm, np.logaddexp,
     np.logaddexp2, np.hypot)
)  # fmt: skip
# (x - a) - b = x - (a + b)
INVERSE: dict[np.ufunc, np.ufunc] = {np.subtract: np.add, np.divide: np.multiply}
# values for one element, each its own equations, up to which functions are applied in turn
ROUNDS = 64


def combined(ufunc: np.ufunc, x: Any, key: Any, *values: Any) -> Any:
    """A new array: `x` after `ufunc.at(x, key, *values)`, in the dtype of `x`."""
    x, value = array(x), tuple([array(v) for v in values])
    dtypes = resolve(ufunc, tuple([type_of(v).dtype for v in (x, *value)]))
    truncated = truncates(ufunc, type_of(x).dtype, *dtypes[-2:])
    if value and not truncated and ufunc not in LOGICAL:
        value = (cast(value[0], type_of(x).dtype),)
    mask = as_mask(key)
    if mask is not None:
        return masked_by(x, mask, lambda part, *v: applied(ufunc, part, *v), *value)
    shape = type_of(x).shape
    x, key = with_axes(x, resolved(key))
    k = None if has_moving(key) else key_of(type_of(x), key)
    if k is None or not k.arrays:
        return reshape(with_item(x, key, applied(ufunc, item(x, key), *value)), shape)
    first = fitting(value[0], k.result, type_of(x)) if value else None
    return reshape(at_places(x, k, first, lambda axes: at_axes(ufunc, axes, truncated)), shape)


def truncates(ufunc: np.ufunc, own: np.dtype, inner: np.dtype, made: np.dtype) -> bool:
    """True if a result may lose something when it is cast to the dtype
    of the array, as each one is.
    """
    wraps = ufunc in (np.add, np.subtract, np.multiply) or made == np.dtype(bool)
    return not can_cast(made, own, "same_kind") or (own in INTEGERS and inner != own and not wraps)


SIGNS: dict[np.ufunc, Function] = {np.add: lambda x: x, np.subtract: e.negative}
EXTREMES = {np.maximum: ScatterMax, np.minimum: ScatterMin}
LOGICAL = frozenset((np.logical_and, np.logical_or, np.logical_xor))


def applied(ufunc: np.ufunc, x: Any, *values: Any) -> Any:
    return cast(e.UFUNCS[ufunc](x, *values), type_of(x).dtype)


def at_axes(ufunc: np.ufunc, axes: Dims, truncated: bool) -> Function:
    """A function that writes `ufunc` of elements and updates along axes: (x,
    updates, *indices) -> new x.
    """

    def write(x: Any, updates: Any, *indices: Any) -> Any:
        if ufunc in SIGNS and type_of(x).dtype != np.dtype(bool) and not truncated:
            return ScatterAdd(axes)(x, SIGNS[ufunc](updates), *indices)
        if ufunc in EXTREMES and not truncated:
            return EXTREMES[ufunc](axes)(x, updates, *indices)
        count = multiplicity(x, axes, indices)
        if count == 1:
            return once(ufunc, x, axes, updates, indices)
        if not truncated and (ufunc in ASSOCIATIVE or ufunc in INVERSE):
            return in_steps(ufunc, x, axes, updates, indices)
        if count is None or count > ROUNDS:
            raise unordered(ufunc, type_of(x).dtype if truncated else None)
        return in_turn(ufunc, x, axes, updates, indices)

    return write


def unordered(ufunc: np.ufunc, dtype: np.dtype | None) -> NoRuleError:
    what = f"{ufunc.__name__}.at where indices may meet (traced, or more than {ROUNDS} for one element)"
    if dtype is not None:
        fix = f"x = x.astype(float) first, or values of {dtype}"
        return NoRuleError(f"{what}, each result cast to {dtype}", where=here(), fix=fix)
    return NoRuleError(
        what,
        where=here(),
        fix="x[i] = f(x[i], y) if they are distinct, or ge2.lax.fori_loop over them",
    )


def multiplicity(x: Any, axes: Dims, indices: Sequence[Any]) -> int | None:
    """The most indices that name one element; None where they are traced."""
    if math.prod(type_of(indices[0]).shape) < 2:
        return 1
    flat = known_places(x, axes, indices)
    return None if flat is None else int(np.unique(flat, return_counts=True)[1].max())


def known_places(x: Any, axes: Dims, indices: Sequence[Any]) -> Any:
    indices = [known_elements(i) for i in indices]
    if any(i is None for i in indices):
        return None
    sizes = [type_of(x).shape[a] for a in axes]
    return np.ravel_multi_index(
        [np.where(i < 0, i + n, i) for i, n in zip(indices, sizes, strict=True)], sizes
    )


def once(ufunc: np.ufunc, x: Any, axes: Dims, updates: Any, indices: Sequence[Any]) -> Any:
    """The function applied at distinct indices."""
    at = Gather(axes)(x, *indices)
    new = applied(ufunc, at) if updates is None else applied(ufunc, at, updates)
    return Scatter(axes)(x, new, *indices)


def in_turn(ufunc: np.ufunc, x: Any, axes: Dims, updates: Any, indices: Sequence[Any]) -> Any:
    """The first update of each element, then the second, and so on; the indices are known."""
    flat = known_places(x, axes, indices).ravel()
    order = np.argsort(flat, kind="stable")
    _, start, counts = np.unique(flat[order], return_index=True, return_counts=True)
    turn = np.empty(len(flat), np.intp)
    turn[order] = np.arange(len(flat)) - np.repeat(start, counts)
    rows = None if updates is None else in_rows(updates, indices)
    for n in range(turn.max() + 1):
        chosen = np.flatnonzero(turn == n)
        part = None if rows is None else getitem(rows, chosen)
        x = once(ufunc, x, axes, part, [i.ravel()[chosen] for i in indices])
    return x


def in_rows(updates: Any, indices: Sequence[Any]) -> Any:
    """The updates with the axes of the indices as one."""
    shape, spread = type_of(updates).shape, type_of(indices[0]).shape
    return reshape(updates, (math.prod(spread), *shape[len(spread) :]))


def in_steps(ufunc: np.ufunc, x: Any, axes: Dims, updates: Any, indices: Sequence[Any]) -> Any:
    """All updates of an element combined, by a scan over them in the order of their elements."""
    sizes = [type_of(x).shape[a] for a in axes]
    lines = [from_start(i, n) for i, n in zip(indices, sizes, strict=True)]
    place = lines[0]
    for line, n in zip(lines[1:], sizes[1:], strict=True):
        place = e.add(e.multiply(place, n), line)
    order = ArgSort(0)(place)
    place, lines = getitem(place, order), [getitem(line, order) for line in lines]
    rows = segmented(INVERSE.get(ufunc, ufunc), getitem(in_rows(updates, indices), order), place)
    # of equal places the last, which has them all, is written
    return once(ufunc, x, axes, rows, lines)


def from_start(index: Any, n: int) -> Any:
    """The index as int64, counted from the first element."""
    index = cast(array(index), INT64)
    size = type_of(index).size
    return reshape(choose_by(e.less(index, 0), e.add(index, n), index), (size,))


def segmented(ufunc: np.ufunc, rows: Any, place: Any = None) -> Any:
    """Each row combined with those before it, as far as their places are equal."""
    t = type_of(rows)
    if place is None:
        (found,) = prefixes(lambda a, b: [cast(e.UFUNCS[ufunc](a, b), t.dtype)], rows)
        return fresh(found)

    def pair(early: Any, a: Any, late: Any, b: Any) -> list[Any]:
        return [late, choose_by(e.equal(early, late), cast(e.UFUNCS[ufunc](a, b), t.dtype), b)]

    rest = (1,) * (t.ndim - 1)
    places = broadcast(reshape(place, (t.shape[0], *rest)), t.shape)
    return fresh(prefixes(pair, places, rows)[1])


# ---------------------------------------------------------------------------------------------- at
# `x.at[i].add(v)`: a new array that differs at some places, as JAX writes it.


@final
@hides_methods
@record
class At:
    """An array about to be indexed."""

    x: Any

    def __getitem__(self, key: Any) -> Place:
        return Place(self.x, key)


@final
@hides_methods
@record
class Place:
    """Some places of an array; each method gives a new array of its dtype, and writes nothing.

    Indices that meet are all counted by `add`, `subtract`, `multiply`, `divide`, `min`
    and `max`; of several for `set` the last stays. An index outside is an IndexError,
    of a traced one when it runs.
    """

    x: Any
    key: Any

    def get(self) -> Any:
        """The elements, `x[key]`."""
        return item(self.x, self.key)

    def set(self, values: Any) -> Any:
        """The array with those values there."""
        return with_item(self.x, self.key, values)

    def add(self, values: Any) -> Any:
        """The array with those values added there."""
        return combined(np.add, self.x, self.key, values)

    def subtract(self, values: Any) -> Any:
        """The array with those values subtracted there."""
        return combined(np.subtract, self.x, self.key, values)

    def multiply(self, values: Any) -> Any:
        """The array multiplied by those values there."""
        return combined(np.multiply, self.x, self.key, values)

    mul = multiply

    def divide(self, values: Any) -> Any:
        """The array divided by those values there."""
        return combined(np.divide, self.x, self.key, values)

    def power(self, values: Any) -> Any:
        """The array to those powers there; the indices are distinct, or known."""
        return combined(np.power, self.x, self.key, values)

    def min(self, values: Any) -> Any:
        """The smaller of the array and those values there."""
        return combined(np.minimum, self.x, self.key, values)

    def max(self, values: Any) -> Any:
        """The larger of the array and those values there."""
        return combined(np.maximum, self.x, self.key, values)

    def apply(self, function: Callable[[Any], Any]) -> Any:
        """The array with a function of the elements there, once where indices meet."""
        mask = as_mask(self.key)
        if mask is not None:
            x, own = array(self.x), type_of(mask)
            wide = mask.reshaped((*own.shape, *(1,) * (type_of(x).ndim - own.ndim)))
            return choose_by(wide, cast(array(function(x)), type_of(x).dtype), x)
        return with_item(self.x, self.key, function(item(self.x, self.key)))


def at(x: Any) -> At:
    """`at(x)[i].add(v)` is a new array that is `x` but for those places, of
    plain and of traced arrays.

    Traced arrays have it as `x.at[i]`, as JAX's do. The methods are `get`, `set`, `add`,
    `subtract`, `multiply`, `divide`, `power`, `min`, `max` and `apply`; see `Place`.

    >>> at(np.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(array(x))


# -------- Parts of an array of known sizes at starts that may be traced, under their names in
# `jax.lax`.
# A start is clamped, so that the part is inside: it reads and writes what it touches, and nothing
# else.


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
