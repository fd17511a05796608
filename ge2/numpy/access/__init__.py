"""Reading and writing by index: `x[key]` as NumPy means it, and the functions that take indices.

A key is taken apart once (`Key`): what slices and integers do is a
view, what arrays do is a gather.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, INT64, INTEGERS
from ge2.base.errors import ConcretizationTypeError, OutOfBoundsError, ShapeError
from ge2.base.record import record
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, Op, is_traced, type_of
from ge2.numpy.composite import choose_by, known_elements
from ge2.numpy.creation import full
from ge2.numpy.promotion import array, broadcast, cast, fresh, lift, number, reshape
from ge2.numpy.shapes import ordered
from ge2.ops import elementwise as ops
from ge2.ops.index import Gather, Scatter, UpdateSlice
from ge2.ops.reduce import CumSum, ReduceSum
from ge2.ops.shape import Reshape, Rev, Slice

SPARSE = 16  # a number is written by a mask where it goes to one of so many places, or more

# ------------------------------------------------------------------------------------------ the key


@record
class Key:
    """An index taken apart.

    First `start`, `stop`, `step` slice each axis, those in `flipped` are reversed, and those in
    `dropped`, of size 1 by then, vanish. Then `arrays` index `axes` of what is left, and their own
    axes go to the place `at` of the result. New axes are at `new`.
    """

    start: Dims
    stop: Dims
    step: Dims
    flipped: Dims
    dropped: Dims
    axes: Dims
    arrays: tuple[Any, ...]
    at: int
    new: Dims

    @property
    def sizes(self) -> Dims:
        """The shape after slicing."""
        return tuple(
            [-(-(b - a) // s) for a, b, s in zip(self.start, self.stop, self.step, strict=True)]
        )

    @property
    def kept(self) -> Dims:
        """The shape when integers have dropped their axes."""
        return tuple([n for i, n in enumerate(self.sizes) if i not in self.dropped])

    @property
    def spread(self) -> Dims:
        """The shape that the index arrays share."""
        return type_of(self.arrays[0]).shape if self.arrays else ()

    @property
    def gathered(self) -> Dims:
        """The shape after the gather: the arrays' axes, then the others."""
        return (*self.spread, *(n for i, n in enumerate(self.kept) if i not in self.axes))

    @property
    def order(self) -> Dims:
        """The axes of the gather in the order of the result, new axes left out."""
        k = len(self.spread)
        rest = list(range(k, len(self.gathered)))
        place = self.at - sum(i < self.at for i in self.new)
        return (*rest[:place], *range(k), *rest[place:])

    @property
    def result(self) -> Dims:
        """The shape of the result."""
        rest = iter([self.gathered[i] for i in self.order])
        new = {i if i < self.at or not self.arrays else i + len(self.spread) for i in self.new}
        return tuple([1 if i in new else next(rest) for i in range(len(self.gathered) + len(new))])

    def slices(self, t: ArrayType) -> bool:
        """True if the slices leave anything out."""
        return self.stop != t.shape or any(self.start) or any(s != 1 for s in self.step)


def key_of(t: ArrayType, key: Any) -> Key:
    """The key, in terms of the axes of an array of that type; errors are NumPy's."""
    parts = expanded(key if type(key) is tuple else (key,), t)
    start, stop, step, flipped, dropped = [0] * t.ndim, list(t.shape), [1] * t.ndim, [], []
    axes, arrays, new = [], [], []
    axis = at = 0  # of x, and of the result as far as it is made by slices and new axes
    places: list[int] = []  # of what counts as advanced among the parts, and where in the result
    first = 0
    for place, part in enumerate(parts):
        if part is None:
            new.append(at)
            at += 1
            continue
        if part is Ellipsis:  # even dots that stand for no axis keep index arrays apart
            continue
        if type(part) is slice:
            r = range(*part.indices(t.shape[axis]))
            start[axis], stop[axis], step[axis] = ascending(r)
            if r.step < 0 and len(r) > 1:
                flipped.append(axis)
            at += 1
        else:
            first = at if not places else first
            places.append(place)
            if type(part) is int:
                start[axis] = inside(part, axis, t)
                stop[axis] = start[axis] + 1
                dropped.append(axis)
            else:
                axes.append(axis - len(dropped))
                arrays.append(part)
        axis += 1
    apart = bool(arrays) and places[-1] - places[0] + 1 != len(places)
    made = common_index(arrays, [t.shape[i] for i in all_axes_of(axes, dropped)], t)
    where = 0 if apart else first
    slices = (tuple(start), tuple(stop), tuple(step))
    return Key(*slices, tuple(flipped), tuple(dropped), tuple(axes), made, where, tuple(new))


def all_axes_of(axes: Sequence[int], dropped: Sequence[int]) -> list[int]:
    """The axes as they were before those in `dropped` vanished."""
    found = []
    for axis in axes:
        for d in sorted(dropped):
            axis += d <= axis
        found.append(axis)
    return found


def ascending(r: range) -> tuple[int, int, int]:
    """Start, stop and step of the same numbers, counted upwards."""
    if not len(r):
        return 0, 0, 1
    low, high = (r[0], r[-1]) if r.step > 0 else (r[-1], r[0])
    return low, high + 1, abs(r.step) if len(r) > 1 else 1


def inside(index: int, axis: int, t: ArrayType) -> int:
    n = t.shape[axis]
    if not -n <= index < n:
        what = f"index {index} is out of bounds for axis {axis} with size {n}"
        raise OutOfBoundsError(
            what,
            where=here(),
            fix=f"x[-1] for the last, x[{n - 1}] too" if n else "if x.size: ..., for there is none",
        )
    return index + n if index < 0 else index


def expanded(key: tuple[Any, ...], t: ArrayType) -> list[Any]:
    """The parts of a key:

    None, dots, slices, ints and index arrays, one of the last three for each axis.
    """
    parts: list[Any] = []
    for p in key:
        parts.extend(parts_of(p))
    used = sum(p is not None and p is not Ellipsis for p in parts)
    dots = sum(p is Ellipsis for p in parts)
    if dots > 1:
        raise OutOfBoundsError("an index can only have a single ellipsis ('...')", where=here())
    if used > t.ndim:
        what = f"too many indices for array: array is {t.ndim}-dimensional, but {used} were indexed"
        raise OutOfBoundsError(
            f"{what}; its type is {t}",
            where=here(),
            fix=f"x[{', '.join('0' * t.ndim) or '()'}], an index for each axis at most",
        )
    rest = [slice(None)] * (t.ndim - used)
    at = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    checked_masks(parts, at, t)
    return [_plain(p) for p in (*parts[: at + 1], *rest, *parts[at + 1 :])]


@record
class Masked:
    """The indices along one axis of the elements that a mask chooses,
    and the size of the mask there.
    """

    index: Any
    size: int


def _plain(p: Any) -> Any:
    return p.index if type(p) is Masked else p


def parts_of(p: Any) -> list[Any]:
    """One part of a key, a mask as one index array for each of its axes."""
    kind = type(p)
    if p is None or p is Ellipsis or kind is slice or kind is int:
        return [p]
    if kind is str:
        what = f"an array has no field {p!r}: integers, slices, `...`, None and arrays of integers index it"
        raise OutOfBoundsError(what, where=here(), fix="a dict of arrays as the argument: p['a']")
    x = lift(p)
    if kind in (list, tuple) and not type_of(x).size:
        x = np.zeros(type_of(x).shape, np.intp)  # of no numbers, which NumPy has as floats
    own = type_of(x)
    if own.dtype == BOOL:
        x = x if (known := known_elements(x)) is None else known
        if is_traced(x):
            what = f"x[mask] has a shape that depends on the values of mask, which is traced {own}"
            raise ConcretizationTypeError(
                what,
                where=here(),
                fix="np.where(mask, x, other), or a mask that is no traced value",
            )
        return [Masked(i, n) for i, n in zip(np.nonzero(x), own.shape, strict=True)]
    if own.dtype not in INTEGERS:
        what = f"arrays used as indices must be of integer (or boolean) type; got {own}"
        fix = f"x[{int(p)}]" if type(p) is float and p.is_integer() else "x[i.astype(int)]"
        raise OutOfBoundsError(what, where=here(), fix=fix)
    if own.weak and is_traced(x):
        return [cast(x, INT64)]
    return [operator.index(x)] if not own.shape and not is_traced(x) else [x]


def checked_masks(parts: Sequence[Any], at: int, t: ArrayType) -> None:
    """Each mask must have the sizes of the axes it stands for, or be empty there, as in NumPy."""
    axis = 0
    for i, p in enumerate(parts):
        if p is Ellipsis:
            axis = t.ndim - sum(q is not None for q in parts[i + 1 :])
            continue
        if type(p) is Masked and p.size not in (0, t.shape[axis]):
            what = f"boolean index did not match indexed array along axis {axis}"
            what += f"; size of axis is {t.shape[axis]}"
            raise OutOfBoundsError(
                f"{what} but size of corresponding boolean axis is {p.size}", where=here()
            )
        axis += p is not None


def common_index(arrays: Sequence[Any], sizes: Sequence[int], t: ArrayType) -> tuple[Any, ...]:
    """The index arrays in one shape; those whose values are known are checked against the axes."""
    for x, n in zip(arrays, sizes, strict=True):
        if not is_traced(x) and x.size:
            for i in (int(x.min()), int(x.max())):
                if not -n <= i < n:
                    what = f"index {i} is out of bounds for axis with size {n} of {t}"
                    raise OutOfBoundsError(what, where=here(), fix=f"indices from {-n} to {n - 1}")
    if len(arrays) < 2:
        return tuple(arrays)
    try:
        shape = np.broadcast_shapes(*[type_of(x).shape for x in arrays])
    except ValueError:
        shapes = " ".join([str(type_of(x).shape).replace(" ", "") for x in arrays])
        what = (
            f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        )
        raise OutOfBoundsError(what, where=here(), fix="np.ix_, or index[:, None]") from None
    return tuple([broadcast(x, shape) for x in arrays])


# -------------------------------------------------------------------------------------- get and set


def checked_index(index: Any, n: int) -> Any:
    """The indices, none of which may be outside `n`: an IndexError when the
    program runs, on the CPU.
    """
    return ops.ADD(index, getitem(full((n,), 0, INT64), (index,)))


def getitem(x: Any, key: Any) -> Any:
    """`x[key]` for any key that NumPy takes.

    Integers that are known are checked here, with NumPy's error; those that are
    traced when the program runs.

    >>> getitem(np.arange(6).reshape(2, 3), (slice(None), [0, 2]))
    array([[0, 2],
           [3, 5]])
    """
    x = array(x)
    token = static(key)
    if token is None:
        return read(x, key_of(type_of(x), key))
    for op in steps(type_of(x), token):
        x = op(x)
    return x


def static(key: Any) -> tuple[Any, ...] | None:
    """A key of integers, slices, dots and new axes alone as something to look
    up; None for others.
    """
    found: list[Any] = []
    for p in key if type(key) is tuple else (key,):
        kind = type(p)
        if kind is int or p is None or p is Ellipsis:
            found.append(p)
        elif kind is slice:
            bounds = (p.start, p.stop, p.step)
            if not all(b is None or type(b) is int for b in bounds):
                return None
            found.append(bounds)
        else:
            return None
    return tuple(found)


@lru_cache(maxsize=4096)
def steps(t: ArrayType, token: tuple[Any, ...]) -> tuple[Op, ...]:
    """The operations that such a key comes to."""
    k = key_of(t, tuple([slice(*p) if type(p) is tuple else p for p in token]))
    found: list[Op] = [Slice(k.start, k.stop, k.step)] if k.slices(t) else []
    found += [Rev(k.flipped)] if k.flipped else []
    return (*found, Reshape(k.result)) if k.result != k.sizes else tuple(found)


def read(x: Any, k: Key) -> Any:
    y = viewed(x, k)
    if not k.arrays:
        return reshape(y, k.result)
    return reshape(ordered(Gather(k.axes)(reshape(y, k.kept), *k.arrays), k.order), k.result)


def viewed(x: Any, k: Key) -> Any:
    """The elements that slices leave, dropped axes at size 1."""
    y = Slice(k.start, k.stop, k.step)(x) if k.slices(type_of(x)) else x
    return Rev(k.flipped)(y) if k.flipped else y


def setitem(x: Any, key: Any, value: Any, *, unique: bool = False) -> Any:
    """A new array: `x` after `x[key] = value`. The value is cast to the dtype of `x`, as in NumPy.

    Where an index array names one place twice, the last value stays; `unique` says that none does.
    A traced mask takes a value that does not depend on how many elements it chooses.

    >>> setitem(np.zeros(4), slice(1, 3), 7)
    array([0., 7., 7., 0.])
    """
    x = array(x)
    t = type_of(x)
    value = lift(value)
    value = number(value, t.dtype) if not hasattr(value, "dtype") else cast(value, t.dtype)
    mask = as_mask(key)
    if mask is not None:
        return masked(x, mask, value)
    k = key_of(type_of(x), key)
    if type_of(value).size == 1 and (known := mask_of(k, t)) is not None:
        return choose_by(known, fitting(value, (), t), x)
    value = fitting(value, k.result, t)
    if not k.arrays:
        value = reshape(value, k.sizes)
        return placed(x, Rev(k.flipped)(value) if k.flipped else value, k)
    return at_places(x, k, value, Scatter, unique)


def at_places(
    x: Any, k: Key, value: Any, write: Callable[[Dims], Callable[..., Any]], unique: bool = False
) -> Any:
    """`write(axes)(x, value, *indices)` for a key with index arrays; a value of None stays None."""
    t = type_of(x)
    if value is not None:
        rest = [n for i, n in enumerate(k.result) if not is_new(k, i)]
        back = tuple([k.order.index(i) for i in range(len(k.order))])
        value = ordered(reshape(value, tuple(rest)), back)
    if write is Scatter:
        return written_part(x, k, value, unique)
    if not k.slices(t) and not k.flipped and not k.dropped:
        return write(k.axes)(x, value, *k.arrays)
    part = write(k.axes)(reshape(viewed(x, k), k.kept), value, *k.arrays)
    part = reshape(part, k.sizes)
    return placed(x, Rev(k.flipped)(part) if k.flipped else part, k)


def written_part(x: Any, k: Key, value: Any, unique: bool) -> Any:
    """The array with a value at index arrays beside slices and integers, which
    touches no other element.
    """
    if not k.slices(type_of(x)) and not k.flipped and not k.dropped:
        return Scatter(k.axes, unique=unique)(x, value, *k.arrays)
    t, axes = type_of(x), tuple(all_axes_of(k.axes, k.dropped))
    rest = [a for a in range(t.ndim) if a not in axes]
    window = tuple([(k.start[a], k.sizes[a], k.step[a]) for a in rest])
    value = reshape(value, (*k.spread, *(k.sizes[a] for a in rest)))
    flipped = tuple([len(k.spread) + rest.index(a) for a in k.flipped])
    return Scatter(axes, window, unique)(x, Rev(flipped)(value) if flipped else value, *k.arrays)


def is_new(k: Key, axis: int) -> bool:
    return any(axis == (i if i < k.at or not k.arrays else i + len(k.spread)) for i in k.new)


def placed(x: Any, value: Any, k: Key) -> Any:
    """The array with its slices replaced."""
    if not k.slices(type_of(x)):
        return fresh(value)
    return UpdateSlice(k.start, k.step)(x, value)


def fitting(value: Any, shape: Dims, t: ArrayType) -> Any:
    """The value broadcast to what it is assigned to; leading axes of
    size 1 are left out, as in NumPy.
    """
    own = type_of(value).shape
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    fits = len(own) <= len(shape) and all(
        n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)
    )
    if not fits:
        what = f"could not broadcast input array from shape {type_of(value).shape} into shape {shape} of {t}"
        raise ShapeError(
            what, where=here(), fix="x[key] = np.broadcast_to(value, shape), or another index"
        )
    return broadcast(reshape(value, own), shape)


def as_mask(key: Any) -> Any:
    """The key, if it is one traced mask and perhaps dots."""
    keys = [k for k in (key if type(key) is tuple else (key,)) if k is not Ellipsis]
    if len(keys) != 1 or not is_traced(keys[0]) or keys[0].type.dtype != BOOL:
        return None
    if not keys[0].type.size:  # it is known
        return None
    return None if type(key) is tuple and key and key[0] is Ellipsis and len(key) > 1 else keys[0]


def mask_of(k: Key, t: ArrayType) -> np.ndarray | None:
    """The mask of places that are known, along the axes that a key's index arrays name; None if there
    are other parts in the key, or so few places that a write of each is less work.
    """
    if not k.arrays or any(map(is_traced, k.arrays)) or k.slices(t) or k.flipped or k.dropped:
        return None
    sizes = [n if a in k.axes else 1 for a, n in enumerate(t.shape)]
    if math.prod(k.spread) * SPARSE < math.prod(sizes):
        return None
    mask = np.zeros([t.shape[a] for a in k.axes], bool)
    mask[k.arrays] = True
    return mask.reshape(sizes)


def masked(x: Any, mask: Any, value: Any) -> Any:
    """The array with a value, or the n-th of a row of values at the n-th
    element of the mask, written.
    """
    return masked_by(x, mask, lambda part, new: new, value)


def masked_by(x: Any, mask: Any, f: Callable[..., Any], *values: Any) -> Any:
    """The array with `f` of its elements, and of values, where a traced mask holds.

    Values with one axis more than `x` has beside the mask's are taken in turn. If there are not as
    many as the mask chooses, or one, it is an IndexError when the program runs (on a GPU, which
    checks no index, the elements are wrong).
    """
    t, own = type_of(x), type_of(mask)
    left = t.shape[own.ndim :]
    if own.shape != t.shape[: own.ndim]:
        what = f"boolean index {own} did not match indexed array {t}"
        raise OutOfBoundsError(what, where=here(), fix="a mask of its shape")
    chosen = [
        taken_in_turn(v, mask, left) if type_of(v).ndim > len(left) else fitting(v, left, t)
        for v in values
    ]
    return choose_by(reshape(mask, own.shape + (1,) * len(left)), f(x, *chosen), x)


def taken_in_turn(value: Any, mask: Any, left: Dims) -> Any:
    """For each place where a mask holds the value that is written there, the
    n-th at the n-th of them.

    Unless there is one value, or one for each, an index leaves the values,
    which is found when it is read.
    """
    own = type_of(mask)
    n = type_of(value).shape[0]
    value = fitting(value, (n, *left), type_of(value))
    flat = reshape(mask, (own.size,))
    number = CumSum(0)(cast(flat, INT64))
    wrong = ops.NE(ReduceSum((0,))(cast(flat, INT64)), np.int64(n))
    at = ops.WHERE(flat, ops.SUB(number, np.int64(1)), np.int64(0))
    at = (
        broadcast(np.int64(0), (own.size,))
        if n == 1
        else ops.WHERE(broadcast(wrong, (own.size,)), np.int64(n), at)
    )
    return reshape(Gather((0,))(value, at), (*own.shape, *left))
