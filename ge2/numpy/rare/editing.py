"""Elements put in, left out, repeated and packed: where they go is
known, what they are may be traced.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, INT64, INTEGERS
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    OutOfBoundsError,
    ShapeError,
    TypeRuleError,
)
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.indexing import getitem
from ge2.numpy.access.selecting import take
from ge2.numpy.composite import choose_by, known_elements
from ge2.numpy.creation import as_shape, zeros
from ge2.numpy.joining import concatenate
from ge2.numpy.options import plainly
from ge2.numpy.promotion import array, broadcast, cast, lift, one_axis, reshape
from ge2.numpy.reductions import sum as total
from ge2.numpy.shapes import moveaxis, ravel
from ge2.ops.index import Gather
from ge2.ops.shape import Concatenate, Pad

UINT8 = np.dtype(np.uint8)


def known_places(name: str, obj: Any) -> Any:
    """Places that the length of a result depends on."""
    if isinstance(obj, slice):
        return obj
    found = known_elements(obj)
    if found is None:
        what = f"the shape of {name} depends on its places, which are traced {type_of(obj)}"
        raise ConcretizationTypeError(what, where=here(), fix="places that are known, or np.where")
    return found if found.ndim else found[()]


@plainly(np.delete)
def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Without the elements at those places along an axis, as `numpy.delete`;
    the places must be known.
    """
    x = ravel(arr) if axis is None else array(arr)
    at = one_axis(0 if axis is None else axis, type_of(x).ndim, x)
    n = type_of(x).shape[at]
    try:
        left = np.delete(np.arange(n), known_places("delete", obj))
    except IndexError as error:
        raise OutOfBoundsError(str(error), where=here()) from None
    return take(x, left, at)


@plainly(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """With values put before the given places along an axis, as `numpy.insert`;
    the places must be known.
    """
    x = ravel(arr) if axis is None else array(arr)
    t = type_of(x)
    at = one_axis(0 if axis is None else axis, t.ndim, x)
    v, places = cast(lift(values), t.dtype), known_places("insert", obj)
    single = not isinstance(places, slice) and np.ndim(places) == 0
    v = reshape(v, (1,) * (t.ndim - type_of(v).ndim) + type_of(v).shape)
    v = moveaxis(v, 0, at) if single else v
    indices = np.arange(t.shape[at])[places] if isinstance(places, slice) else np.atleast_1d(places)
    indices = np.flatnonzero(indices) if indices.dtype == BOOL else indices
    count = type_of(v).shape[at] if len(indices) == 1 else len(indices)
    indices = np.repeat(indices, count) if len(indices) == 1 else indices
    try:
        order = np.insert(np.arange(t.shape[at]), indices, np.arange(count) + t.shape[at])
    except IndexError as error:
        raise OutOfBoundsError(str(error), where=here()) from None
    new = broadcast_to_part(v, (*t.shape[:at], count, *t.shape[at + 1 :]))
    return take(concatenate([x, new], at), order, at)


def broadcast_to_part(v: Any, shape: tuple[int, ...]) -> Any:
    own = type_of(v).shape
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(own, shape, strict=True)):
        what = f"could not broadcast values of shape {own} into shape {shape}"
        raise ShapeError(what, where=here(), fix="values of the shape of what is inserted")
    return broadcast(v, shape)


@plainly(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    """The elements over again until they fill a shape, as `numpy.resize`."""
    shape, line = as_shape(new_shape), ravel(a)
    size, n = math.prod(shape), type_of(line).size
    if not size or not n:
        return zeros(shape, type_of(line).dtype)
    return reshape(getitem(line, np.arange(size) % n), shape)


# --------------------------------------------------------------------------------------------- bits


def bit_order(bitorder: Any) -> Any:
    if bitorder not in ("big", "little"):
        raise ArgumentError(
            f"'order' must be either 'little' or 'big'; got {bitorder!r}", where=here()
        )
    powers = np.arange(8)
    return (1 << (powers if bitorder == "little" else powers[::-1])).astype(np.uint8)


def in_line(a: Any, axis: int | None) -> tuple[Any, int]:
    x = ravel(a) if axis is None else array(a)
    return x, one_axis(0 if axis is None else axis, type_of(x).ndim, x)


def along(weights: Any, at: int, ndim: int) -> Any:
    """The weights along an axis that comes after `at`."""
    return weights.reshape((8, *(1,) * (ndim - at - 1)))


@plainly(np.packbits)
def packbits(a: Any, /, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements, zero or not, as the bits of one uint8, as `numpy.packbits`."""
    weights = bit_order(bitorder)
    x, at = in_line(a, axis)
    t = type_of(x)
    if t.dtype not in INTEGERS | {BOOL}:
        what = f"Expected an input array of integer or boolean data type; got {t}"
        raise TypeRuleError(what, where=here(), fix="x != 0")
    none, lack = (0,) * t.ndim, -t.shape[at] % 8
    x = Pad(none, (*none[:at], lack, *none[at + 1 :]), none)(x)
    shape = (*t.shape[:at], (t.shape[at] + lack) // 8, 8, *t.shape[at + 1 :])
    bits = e.multiply(cast(e.truth(reshape(x, shape)), UINT8), along(weights, at, t.ndim))
    return total(bits, axis=at + 1, dtype=UINT8)


@plainly(np.unpackbits)
def unpackbits(a: Any, /, axis: int | None = None, count: Any = None, bitorder: str = "big") -> Any:
    """The bits of each uint8 as eight of 0 or 1, as `numpy.unpackbits`."""
    weights = bit_order(bitorder)
    x, at = in_line(a, axis)
    t = type_of(x)
    if t.dtype != UINT8:
        what = f"Expected an input array of unsigned byte data type; got {t}"
        raise TypeRuleError(what, where=here(), fix="x.astype(np.uint8)")
    wanted = counted(8 * t.shape[at], count)
    x = getitem(x, (*(slice(None),) * at, slice(0, -(-wanted // 8))))
    *before, n = type_of(x).shape[: at + 1]
    after = t.shape[at + 1 :]
    places = reshape(x, (*before, n, 1, *after))
    bits = cast(e.not_equal(e.bitwise_and(places, along(weights, at, t.ndim)), 0), UINT8)
    return lengthened(reshape(bits, (*before, 8 * n, *after)), at, wanted)


def counted(n: int, count: Any) -> int:
    """How many bits are wanted of n: all but so many where the count is negative."""
    wanted = n if count is None else operator.index(count)
    if wanted < -n:
        raise ArgumentError(f"-ve count larger than number of elements: {wanted}", where=here())
    return wanted + n if wanted < 0 else wanted


def lengthened(bits: Any, at: int, wanted: int) -> Any:
    """The first so many along an axis, zeros where there are fewer."""
    shape = type_of(bits).shape
    if wanted <= shape[at]:
        return getitem(bits, (*(slice(None),) * at, slice(0, wanted)))
    return Concatenate(at)(bits, zeros((*shape[:at], wanted - shape[at], *shape[at + 1 :]), UINT8))


@plainly(np.ravel_multi_index)
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """One flat index for an index along each axis, as `numpy.ravel_multi_index`.

    An index outside is, with mode "raise", an IndexError when the program runs.
    """
    sizes = as_shape(dims)
    modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
    if order not in ("C", "F"):
        raise ArgumentError(f"order is 'C' or 'F'; got {order!r}", where=here())
    lines = [array(x) for x in multi_index]
    if not len(lines) == len(sizes) == len(modes):
        what = f"parameter multi_index must be a sequence of length {len(sizes)}"
        raise ArgumentError(what, where=here())
    inner = [brought_in(x, n, m) for x, n, m in zip(lines, sizes, modes, strict=True)]
    pairs = list(zip(inner, sizes, strict=True))
    total: Any = np.int64(0)
    for x, n in pairs if order == "C" else pairs[::-1]:
        total = e.add(e.multiply(total, n), x)
    return total


def brought_in(x: Any, n: int, mode: str) -> Any:
    """The index inside an axis of that size."""
    if type_of(x).dtype not in INTEGERS:
        raise TypeRuleError(
            f"only int indices permitted; got {type_of(x)}", where=here(), fix="x.astype(int)"
        )
    x = cast(x, INT64)
    if mode == "clip":
        return e.minimum(e.maximum(x, 0), n - 1)
    if mode == "wrap":
        return e.remainder(x, n)
    if mode != "raise":
        raise ArgumentError(
            f"clipmode must be one of 'clip', 'raise', or 'wrap'; got {mode!r}", where=here()
        )
    return Gather((0,))(np.arange(n), choose_by(e.less(x, 0), np.int64(n), x))
