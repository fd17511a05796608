"""Binary functions applied at indices that may meet: every value that falls to one element counts.

Sums and extremes are operations. Another function that is associative is taken in steps of
doubling distance over the values sorted by their element; any other needs indices that are known,
and is applied once for the first value of each element, once for the second, and so on.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import INT64, INTEGERS, can_cast
from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.base.source import here
from ge2.base.tracebacks import hides_methods
from ge2.ir import Dims, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.indexing import as_mask, at_places, fitting, getitem, key_of, masked_by
from ge2.numpy.access.selecting import getitem as item
from ge2.numpy.access.selecting import has_moving, resolved, setitem
from ge2.numpy.access.selecting import setitem as with_item
from ge2.numpy.composite import choose_by, known_elements
from ge2.numpy.promotion import array, cast, fresh, reshape, resolve
from ge2.ops.index import Gather, Scatter, ScatterAdd, ScatterMax, ScatterMin
from ge2.ops.shape import Concatenate
from ge2.ops.sort import ArgSort

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
    key = resolved(key)
    k = None if has_moving(key) else key_of(type_of(x), key)
    if k is None or not k.arrays:
        return with_item(x, key, applied(ufunc, item(x, key), *value))
    first = fitting(value[0], k.result, type_of(x)) if value else None
    return at_places(x, k, first, lambda axes: at_axes(ufunc, axes, truncated))


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
    n, rest = type_of(rows).shape[0], (1,) * (type_of(rows).ndim - 1)
    step = 1
    while step < n:
        early, late = (
            getitem(rows, builtins.slice(None, -step)),
            getitem(rows, builtins.slice(step, None)),
        )
        new = cast(e.UFUNCS[ufunc](early, late), type_of(rows).dtype)
        if place is not None:
            same = e.equal(
                getitem(place, builtins.slice(None, -step)),
                getitem(place, builtins.slice(step, None)),
            )
            new = choose_by(reshape(same, (n - step, *rest)), new, late)
        rows = Concatenate(0)(getitem(rows, builtins.slice(None, step)), new)
        step *= 2
    return fresh(rows)


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
        return setitem(self.x, self.key, values)

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
        return setitem(self.x, self.key, function(item(self.x, self.key)))


def at(x: Any) -> At:
    """`at(x)[i].add(v)` is a new array that is `x` but for those places, of
    plain and of traced arrays.

    Traced arrays have it as `x.at[i]`, as JAX's do. The methods are `get`, `set`, `add`,
    `subtract`, `multiply`, `divide`, `power`, `min`, `max` and `apply`; see `Place`.

    >>> at(np.zeros(3))[[0, 0, 2]].add(1.0)
    array([2., 0., 1.])
    """
    return At(array(x))
