"""Elements inserted, deleted and packed into bits, and polynomials by their coefficients."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ge2.base.arrays import BOOL, COMPLEX, FLOAT64, INEXACT, INT64, INTEGERS, UINT8
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
from ge2.numpy.access import getitem
from ge2.numpy.access.selecting import take
from ge2.numpy.axes import sum as total
from ge2.numpy.axes.scans import convolve
from ge2.numpy.composite import choose_by, concatenate, known_elements, real, stack
from ge2.numpy.creation import as_shape, vander, zeros
from ge2.numpy.linalg import eigvals, inv, lstsq
from ge2.numpy.products import matmul, outer
from ge2.numpy.promotion import (
    array,
    broadcast,
    cast,
    lift,
    one_axis,
    plainly,
    reshape,
)
from ge2.numpy.shapes import atleast_1d, moveaxis, ravel, transpose
from ge2.numpy.shapes import reshape as reshaped
from ge2.ops.index import Gather
from ge2.ops.shape import Concatenate, Pad

# -------- Elements put in, left out, repeated and packed: where they go is known, what they are may
# be traced.


def known_places(name: str, obj: Any) -> Any:
    """Places that the length of a result depends on."""
    if isinstance(obj, slice):
        return obj
    found = known_elements(obj)
    if found is None:
        what = f"the shape of {name} depends on its places, which are traced {type_of(obj)}"
        raise ConcretizationTypeError(what, where=here(), fix="places that are known, or np.where")
    if isinstance(obj, list | tuple) and not found.size:
        return found.astype(int)  # of no numbers, which NumPy has as floats
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
    """The number of bits that are wanted of n: all but so many where the count is negative."""
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


# -------- Polynomials by their coefficients, the highest power first.
# Leading zeros of traced coefficients stay.


def coefficients(p: Any) -> Any:
    x = atleast_1d(array(p))
    if type_of(x).ndim != 1:
        raise ShapeError(f"Polynomial must be 1d only; got {type_of(x)}", where=here())
    return x


def of_one_length(a1: Any, a2: Any) -> list[Any]:
    a, b = coefficients(a1), coefficients(a2)
    n = max(type_of(a).size, type_of(b).size)
    return [Pad((n - type_of(x).size,), (0,), (0,))(x) for x in (a, b)]


@plainly(np.polyadd)
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials, as `numpy.polyadd`."""
    return e.add(*of_one_length(a1, a2))


@plainly(np.polysub)
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials, as `numpy.polysub`."""
    return e.subtract(*of_one_length(a1, a2))


@plainly(np.polymul)
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials, as `numpy.polymul`, but that leading zeros stay."""
    return convolve(coefficients(a1), coefficients(a2))


@plainly(np.polydiv)
def polydiv(u: Any, v: Any) -> tuple[Any, Any]:
    """Quotient and remainder of two polynomials, as `numpy.polydiv`.

    The remainder has as many coefficients as `v` less one; NumPy leaves out those of
    the first that are zero.
    """
    a, b = coefficients(u), coefficients(v)
    dtype = type_of(e.divide(getitem(a, 0), getitem(b, 0))).dtype
    a, b = cast(a, dtype), cast(b, dtype)
    m, n = type_of(a).size - 1, type_of(b).size - 1
    found = []
    for k in range(m - n + 1):
        d = e.divide(getitem(a, k), getitem(b, 0))
        found.append(d)
        rest = e.subtract(getitem(a, slice(k, k + n + 1)), e.multiply(d, b))
        a = concatenate([getitem(a, slice(k)), rest, getitem(a, slice(k + n + 1, None))])
    quotient = stack(found) if found else broadcast(dtype.type(0), (1,))
    return quotient, getitem(a, slice(min(max(m - n + 1, 0), m), None))


@plainly(np.polyder)
def polyder(p: Any, m: int = 1) -> Any:
    """The m-th derivative of a polynomial, as `numpy.polyder`."""
    times = operator.index(m)
    if times < 0:
        raise ArgumentError("Order of derivative must be positive (see polyint)", where=here())
    x = coefficients(p)
    for _ in range(times):
        n = type_of(x).size - 1
        x = e.multiply(getitem(x, slice(None, -1)), np.arange(n, 0, -1))
    return x


@plainly(np.polyint)
def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th integral of a polynomial, with the constants `k`, as `numpy.polyint`."""
    times = operator.index(m)
    if times < 0:
        raise ArgumentError("Order of integral must be positive (see polyder)", where=here())
    constants = atleast_1d(np.zeros(times) if k is None else array(k))
    if type_of(constants).size == 1 and times > 1:
        constants = broadcast(constants, (times,))
    if type_of(constants).size < times:
        raise ArgumentError("k must be a scalar or a rank-1 array of length 1 or >m.", where=here())
    x = coefficients(p)
    for i in range(times):
        raised = e.divide(x, np.arange(type_of(x).size, 0, -1))
        x = concatenate([raised, getitem(constants, slice(i, i + 1))])
    return x


@plainly(np.poly)
def poly(seq_of_zeros: Any) -> Any:
    """The polynomial that has those zeros, or the eigenvalues of a matrix, as `numpy.poly`; both
    are real, for otherwise the dtype would depend on values.
    """
    found = atleast_1d(array(seq_of_zeros))
    t = type_of(found)
    if t.ndim != 1 and (t.ndim != 2 or t.shape[0] != t.shape[1] or not t.size):
        what = f"input must be 1d or non-empty square 2d array; got {t}"
        raise ShapeError(what, where=here(), fix="x.ravel()")
    if t.dtype in COMPLEX:
        what = f"the dtype of poly depends on whether the zeros, traced {t}, come in pairs"
        raise ConcretizationTypeError(what, where=here(), fix="real zeros")
    if t.ndim == 2:  # eigenvalues of real matrices are real, or come in pairs
        return real(product_of_factors(eigvals(found)))
    return product_of_factors(found if t.dtype in INEXACT else cast(found, FLOAT64))


def product_of_factors(roots: Any) -> Any:
    """The coefficients of the product of all `x - root`."""
    dtype = type_of(roots).dtype
    y: Any = np.ones(1, dtype)
    for i in range(type_of(roots).size):
        root = getitem(roots, slice(i, i + 1))
        y = convolve(y, concatenate([np.ones(1, dtype), e.negative(root)]))
    return y


@plainly(np.roots)
def roots(p: Any) -> Any:
    """The zeros of a polynomial, complex, as `numpy.roots`: the eigenvalues of its companion matrix.

    The first coefficient must not be 0: how many are left does not depend on values. There are
    derivatives where the zeros differ.

    >>> import ge2
    >>> ge2.jit(np.roots)(np.array([1.0, -3.0, 2.0])).real.tolist()
    [2.0, 1.0]
    """
    x = coefficients(p)
    x = x if type_of(x).dtype in INEXACT else cast(x, np.dtype(float))
    n, dtype = type_of(x).size - 1, type_of(x).dtype
    if n < 1:
        return np.array([])
    row = e.divide(e.negative(getitem(x, slice(1, None))), getitem(x, 0))
    return eigvals(concatenate([reshaped(row, (1, n)), np.eye(n - 1, n, dtype=dtype)]))


# ------------------------------------------------------------------------------------------ fitting


@plainly(np.polyfit)
def polyfit(
    x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """The polynomial of that degree that is nearest to points (x, y), as `numpy.polyfit`.

    `deg` must be known. A matrix of less than full rank is not warned of.
    """
    order = operator.index(deg) + 1
    x, y = e.add(array(x), 0.0), e.add(array(y), 0.0)
    checked_points(x, y, order)
    n = type_of(x).size
    left, right = vander(x, order), y
    if w is not None:
        left, right = weighted(left, right, e.add(array(w), 0.0))
    rcond = n * np.finfo(type_of(x).dtype).eps if rcond is None else rcond
    scale = e.sqrt(total(e.square(left), 0))
    left = e.divide(left, scale)
    found, rest, rank, singular = lstsq(left, right, rcond)
    c = transpose(e.divide(transpose(found), scale))
    if full:
        return c, rest, rank, singular, rcond
    return (c, covariance(left, scale, rest, cov, type_of(y).ndim)) if cov else c


def checked_points(x: Any, y: Any, order: int) -> None:
    if order < 1:
        raise ArgumentError("expected deg >= 0", where=here())
    for wrong, what in (
        (type_of(x).ndim != 1, "expected 1D vector for x"),
        (not type_of(x).size, "expected non-empty vector for x"),
        (type_of(y).ndim not in (1, 2), "expected 1D or 2D array for y"),
        (type_of(y).shape[:1] != type_of(x).shape, "expected x and y to have same length"),
    ):
        if wrong:
            raise TypeRuleError(f"{what}; got {type_of(x)}, {type_of(y)}", where=here())


def weighted(left: Any, right: Any, w: Any) -> tuple[Any, Any]:
    if type_of(w).shape != type_of(left).shape[:1]:
        raise TypeRuleError(
            f"expected w and y to have the same length; got {type_of(w)}", where=here()
        )
    column = getitem(w, (slice(None), None))
    return e.multiply(left, column), e.multiply(right, w if type_of(right).ndim == 1 else column)


def covariance(left: Any, scale: Any, rest: Any, cov: Any, ndim: int) -> Any:
    """The covariance of the coefficients, scaled by what the fit leaves unless it is "unscaled"."""
    base = e.divide(inv(matmul(transpose(left), left)), outer(scale, scale))
    if cov == "unscaled":
        factor: Any = 1
    else:
        n, order = type_of(left).shape
        if n <= order:
            what = "the number of data points must exceed order to scale the covariance matrix"
            raise ArgumentError(what, where=here(), fix="cov='unscaled'")
        factor = e.divide(rest, n - order)
    return e.multiply(base if ndim == 1 else getitem(base, (..., None)), factor)
