"""Reading and writing by index: `x[key]` as NumPy means it, and the functions that take indices.

A key is taken apart once (`Key`): what slices and integers do to the axes is a view, what arrays do is a gather.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, INT64, INTEGERS
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    InPlaceError,
    InputError,
    OutOfBoundsError,
    ShapeError,
)
from ge2.base.source import here
from ge2.ir import ArrayType, Dims, Op, type_of
from ge2.numpy.composite import choose_by, is_traced, known_elements
from ge2.numpy.promotion import array, broadcast, cast, fresh, lift, number, one_axis, reshape
from ge2.ops.index import Gather, Scatter, UpdateSlice
from ge2.ops.shape import Iota, Reshape, Rev, Slice, Transpose

# ------------------------------------------------------------------------------------------------- the key


@dataclass(frozen=True, slots=True)
class Key:
    """An index taken apart.

    First `start`, `stop`, `step` slice each axis, those in `flipped` are reversed, and those in `dropped`, of
    size 1 by then, vanish. Then `arrays` index `axes` of what is left, their own axes going to the place `at` of
    the result. New axes are at `new`.
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
        return tuple([-(-(b - a) // s) for a, b, s in zip(self.start, self.stop, self.step, strict=True)])

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
        """Whether the slices leave anything out."""
        return self.stop != t.shape or any(self.start) or any([s != 1 for s in self.step])


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
            what, where=here(), fix=f"an index from {-n} to {n - 1}" if n else "a test of the size"
        )
    return index + n if index < 0 else index


def expanded(key: tuple[Any, ...], t: ArrayType) -> list[Any]:
    """The parts of a key: None, dots, slices, ints and integer arrays, one of the last three for each axis."""
    parts: list[Any] = []
    for p in key:
        parts.extend(parts_of(p, t, len(key)))
    used = sum(p is not None and p is not Ellipsis for p in parts)
    dots = sum(p is Ellipsis for p in parts)
    if dots > 1:
        raise OutOfBoundsError("an index can only have a single ellipsis ('...')", where=here())
    if used > t.ndim:
        what = f"too many indices for array: array is {t.ndim}-dimensional, but {used} were indexed; its type is {t}"
        raise OutOfBoundsError(what, where=here(), fix="fewer indices")
    rest = [slice(None)] * (t.ndim - used)
    at = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    checked_masks(parts, at, t)
    return [_plain(p) for p in (*parts[: at + 1], *rest, *parts[at + 1 :])]


@dataclass(frozen=True, slots=True)
class Masked:
    """The indices along one axis of the elements that a mask chooses, and the size of the mask there."""

    index: Any
    size: int


def _plain(p: Any) -> Any:
    return p.index if type(p) is Masked else p


def parts_of(p: Any, t: ArrayType, alone: int) -> list[Any]:
    """One part of a key, a mask as one index array for each of its axes."""
    kind = type(p)
    if p is None or p is Ellipsis or kind is slice or kind is int:
        return [p]
    if kind is bool or kind is np.bool_:
        if alone == 1 and p:
            return [None]
        raise InputError(
            f"a single {p} as an index is not supported", where=here(), fix="x[None], or np.where"
        )
    x = lift(p) if kind is not list or len(p) else np.zeros(0, np.intp)
    own = type_of(x)
    if own.dtype == BOOL:
        x = x if (known := known_elements(x)) is None else known
        if is_traced(x):
            what = f"x[mask] has a shape that depends on the values of mask, which is traced {own}"
            raise ConcretizationTypeError(
                what, where=here(), fix="np.where(mask, x, other), or a mask that is no traced value"
            )
        return [Masked(i, n) for i, n in zip(np.nonzero(x), own.shape, strict=True)]
    if own.dtype not in INTEGERS:
        what = f"arrays used as indices must be of integer (or boolean) type; got {own}"
        raise OutOfBoundsError(what, where=here(), fix="index.astype(int)")
    if own.weak and is_traced(x):
        return [cast(x, INT64)]
    return [operator.index(x)] if not own.shape and not is_traced(x) else [x]


def checked_masks(parts: Sequence[Any], at: int, t: ArrayType) -> None:
    """Each mask must have the sizes of the axes it stands for."""
    axis = 0
    for i, p in enumerate(parts):
        if p is Ellipsis:
            axis = t.ndim - sum(q is not None for q in parts[i + 1 :])
            continue
        if type(p) is Masked and p.size != t.shape[axis]:
            what = f"boolean index did not match indexed array along axis {axis}; size of axis is {t.shape[axis]}"
            raise OutOfBoundsError(f"{what} but size of corresponding boolean axis is {p.size}", where=here())
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
        what = f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
        raise OutOfBoundsError(what, where=here(), fix="np.ix_, or index[:, None]") from None
    return tuple([broadcast(x, shape) for x in arrays])


# ---------------------------------------------------------------------------------------------- get and set


def getitem(x: Any, key: Any) -> Any:
    """`x[key]` for any key that NumPy takes.

    Integers that are known are checked here, with NumPy's error; those that are traced when the program runs.

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
    """A key of integers, slices, dots and new axes alone as something that can be looked up; None for others."""
    found: list[Any] = []
    for p in key if type(key) is tuple else (key,):
        kind = type(p)
        if kind is int or p is None or p is Ellipsis:
            found.append(p)
        elif kind is slice:
            bounds = (p.start, p.stop, p.step)
            if not all([b is None or type(b) is int for b in bounds]):
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
    return reshape(turned(Gather(k.axes)(reshape(y, k.kept), *k.arrays), k.order), k.result)


def viewed(x: Any, k: Key) -> Any:
    """What slices leave, dropped axes at size 1."""
    y = Slice(k.start, k.stop, k.step)(x) if k.slices(type_of(x)) else x
    return Rev(k.flipped)(y) if k.flipped else y


def turned(x: Any, order: Dims) -> Any:
    return x if order == tuple(range(len(order))) else Transpose(order)(x)


def setitem(x: Any, key: Any, value: Any) -> Any:
    """A new array: `x` after `x[key] = value`. The value is cast to the dtype of `x`, as in NumPy.

    Where an index array names one place twice, the last value stays. A traced mask takes a value that does not
    depend on how many elements it chooses.

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
    value = fitting(value, k.result, t)
    if not k.arrays:
        value = reshape(value, k.sizes)
        return placed(x, Rev(k.flipped)(value) if k.flipped else value, k)
    rest = [n for i, n in enumerate(k.result) if not is_new(k, i)]
    back = tuple([k.order.index(i) for i in range(len(k.order))])
    value = turned(reshape(value, tuple(rest)), back)
    if not k.slices(t):
        return Scatter(k.axes)(x, value, *k.arrays)
    part = Scatter(k.axes)(reshape(viewed(x, k), k.kept), value, *k.arrays)
    part = reshape(part, k.sizes)
    return placed(x, Rev(k.flipped)(part) if k.flipped else part, k)


def is_new(k: Key, axis: int) -> bool:
    return any(axis == (i if i < k.at or not k.arrays else i + len(k.spread)) for i in k.new)


def placed(x: Any, value: Any, k: Key) -> Any:
    """The array with its slices replaced."""
    if k.sizes == type_of(x).shape and not k.slices(type_of(x)):
        return fresh(value)
    return UpdateSlice(k.start, k.step)(x, value)


def fitting(value: Any, shape: Dims, t: ArrayType) -> Any:
    """The value broadcast to what it is assigned to; leading axes of size 1 are left out, as in NumPy."""
    own = type_of(value).shape
    while len(own) > len(shape) and own[0] == 1:
        own = own[1:]
    fits = len(own) <= len(shape) and all([n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)])
    if not fits:
        what = f"could not broadcast input array from shape {type_of(value).shape} into shape {shape} of {t}"
        raise ShapeError(what, where=here(), fix="x[key] = np.broadcast_to(value, shape), or another index")
    return broadcast(reshape(value, own), shape)


def as_mask(key: Any) -> Any:
    """The key, if it is one traced mask and perhaps dots."""
    keys = [k for k in (key if type(key) is tuple else (key,)) if k is not Ellipsis]
    if len(keys) != 1 or not is_traced(keys[0]) or keys[0].type.dtype != BOOL:
        return None
    return None if type(key) is tuple and key and key[0] is Ellipsis and len(key) > 1 else keys[0]


def masked(x: Any, mask: Any, value: Any) -> Any:
    t, own = type_of(x), type_of(mask)
    left = t.ndim - own.ndim
    if own.shape != t.shape[: own.ndim]:
        raise OutOfBoundsError(
            f"boolean index {own} did not match indexed array {t}", where=here(), fix="a mask of its shape"
        )
    if type_of(value).ndim > left:
        what = f"x[mask] = value: which element of {type_of(value)} goes where depends on the mask, which is traced"
        raise ConcretizationTypeError(what, where=here(), fix="np.where(mask, value, x)")
    return choose_by(reshape(mask, own.shape + (1,) * left), fitting(value, t.shape[own.ndim :], t), x)


# ------------------------------------------------------------------------------------- reading by functions


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """The elements at `indices` along an axis, or of the flattened array, as `numpy.take`.

    `mode` "wrap" and "clip" bring indices inside; with "raise", traced indices are checked when the program runs.
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
            f"take: indices are integers; got {type_of(index)}", where=here(), fix="indices.astype(int)"
        )
    index = brought_inside(
        cast(index, INT64) if type_of(index).dtype == BOOL else index, type_of(x).shape[at], mode
    )
    return getitem(x, (*(slice(None),) * at, index))


def brought_inside(index: Any, n: int, mode: str) -> Any:
    from ge2.numpy.composite import clip
    from ge2.numpy.elementwise import remainder

    if mode not in ("raise", "wrap", "clip"):
        raise ArgumentError(f"mode is 'raise', 'wrap' or 'clip'; got {mode!r}", where=here())
    if mode == "raise" or not n:
        return index
    return remainder(index, n) if mode == "wrap" else clip(index, 0, n - 1)


def along_axis(arr: Any, indices: Any, axis: int | None) -> tuple[Any, int, tuple[Any, ...]]:
    """The array, its axis, and an index for each axis that picks what `indices` says along that one."""
    x, index = array(arr), array(indices)
    if axis is None:
        x, axis = reshape(x, (type_of(x).size,)), 0
    t, own = type_of(x), type_of(index)
    axis = one_axis(axis, t.ndim, x)
    if own.dtype not in INTEGERS:
        raise OutOfBoundsError(
            f"`indices` must be an integer array; got {own}", where=here(), fix="indices.astype(int)"
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
    lines = [counting(shape, i) for i in range(t.ndim)]
    return x, axis, tuple([broadcast(index, shape) if i == axis else lines[i] for i in range(t.ndim)])


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


def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """The slices where the condition holds, as `numpy.compress`; the condition must not be traced."""
    mask = array(condition)
    mask = mask if (known := known_elements(mask)) is None else known
    if is_traced(mask):
        what = f"the shape of compress depends on the values of condition, which is traced {mask.type}"
        raise ConcretizationTypeError(what, where=here(), fix="np.where(mask, x, other)")
    return take(a, np.flatnonzero(mask), axis, out)


def extract(condition: Any, arr: Any) -> Any:
    """The elements where the condition holds, as `numpy.extract`; the condition must not be traced."""
    mask = array(condition)
    return compress(mask if is_traced(mask) else np.ravel(mask), arr)


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """For each element the choice of that number, as `numpy.choose`."""
    from ge2.numpy.shapes import broadcast_arrays, stack

    index, *options = broadcast_arrays(a, *choices)
    index = brought_inside(index, len(options), mode)
    table = stack(options)
    return take_along_axis(table, reshape(index, (1, *type_of(index).shape)), 0)[0]


def one_hot(x: Any, num_classes: int, *, dtype: Any = np.float64, axis: int = -1) -> Any:
    """1 at the place that each integer names along a new axis, 0 elsewhere; an integer outside gives zeros.

    >>> one_hot(np.array([0, 2]), 3)
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    from ge2.numpy.elementwise import equal
    from ge2.numpy.promotion import as_dtype

    index = array(x)
    if type_of(index).dtype not in INTEGERS:
        raise InputError(f"one_hot takes integers; got {type_of(index)}", where=here(), fix="x.astype(int)")
    own = type_of(index).shape
    at = one_axis(axis, len(own) + 1)
    classes = Iota((num_classes,), 0, type_of(index).dtype)()
    places = equal(
        reshape(index, (*own[:at], 1, *own[at:])), reshape(classes, (num_classes, *(1,) * (len(own) - at)))
    )
    return cast(places, as_dtype(dtype))


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """Flat indices as one index for each axis, as `numpy.unravel_index`."""
    from ge2.numpy.elementwise import floor_divide, remainder

    rest, found = array(indices), []
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if not is_traced(rest):
        return np.unravel_index(rest, sizes)
    for n in sizes[::-1]:
        found.append(remainder(rest, n))
        rest = floor_divide(rest, n)
    return tuple(found[::-1])


def ix_(*args: Any) -> tuple[Any, ...]:
    """Index arrays, each along an axis of its own, as `numpy.ix_`."""
    xs = [array(a) for a in args]
    xs = [np.flatnonzero(x) if type_of(x).dtype == BOOL and not is_traced(x) else x for x in xs]
    return tuple(
        [
            reshape(x, tuple([type_of(x).size if j == i else 1 for j in range(len(xs))]))
            for i, x in enumerate(xs)
        ]
    )


# ------------------------------------------------------------------------------------------ writing in place


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
    value = fitting(cast(array(src), t.dtype), t.shape, t)
    write(dst, value if where is True else choose_by(array(where), value, dst), "copyto")


def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Writes `v` at flat indices, in place, as `numpy.put`."""
    t, index, value = type_of(a), array(ind), array(v)
    flat = setitem(reshape(array(a), (t.size,)), brought_inside(index, t.size, mode), value)
    write(a, reshape(flat, t.shape), "put")


def putmask(a: Any, mask: Any, values: Any) -> None:
    """Writes the elements of `values` where the mask holds, in place; `values` must broadcast to `a`."""
    copyto(a, values, where=mask)


def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Writes a number along the main diagonal of a matrix, in place, as `numpy.fill_diagonal`."""
    t = type_of(a)
    if t.ndim != 2 or wrap or type_of(lift(val)).shape:
        raise ArgumentError(
            "fill_diagonal takes a matrix and a number",
            where=here(),
            fix="a[np.arange(n), np.arange(n)] = values",
        )
    n = np.arange(min(t.shape))
    write(a, setitem(a, (n, n), val), "fill_diagonal")
