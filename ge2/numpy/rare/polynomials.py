"""Polynomials by their coefficients, the highest power first.

Leading zeros of traced coefficients stay.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, INEXACT, complex_of
from ge2.base.errors import ArgumentError, ConcretizationTypeError, ShapeError, TypeRuleError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.indexing import getitem
from ge2.numpy.creation import vander
from ge2.numpy.joining import concatenate, stack
from ge2.numpy.linalg import eigvals, inv, lstsq
from ge2.numpy.options import plainly
from ge2.numpy.products import matmul, outer
from ge2.numpy.promotion import array, broadcast, cast, common_dtype
from ge2.numpy.reductions import sum as total
from ge2.numpy.shapes import atleast_1d, reshape, transpose
from ge2.numpy.signals import convolve
from ge2.ops.shape import Pad


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
    """The polynomial that has those real zeros, as `numpy.poly`; a matrix's is an error."""
    zeros = atleast_1d(array(seq_of_zeros))
    if type_of(zeros).ndim != 1:
        what = f"poly of {type_of(zeros)} asks for eigenvalues"
        raise ShapeError(what, where=here(), fix="np.poly(np.linalg.eigvalsh(x))")
    if type_of(zeros).dtype in COMPLEX:
        what = f"the dtype of poly depends on whether the zeros, traced {type_of(zeros)}, come in pairs"
        raise ConcretizationTypeError(what, where=here(), fix="real zeros")
    dtype = type_of(zeros).dtype if type_of(zeros).dtype in INEXACT else np.dtype(float)
    x: Any = np.ones(1, common_dtype((zeros, np.ones(1, dtype))))
    x = cast(x, dtype)
    for i in range(type_of(zeros).size):
        zero = cast(getitem(zeros, slice(i, i + 1)), dtype)
        x = convolve(x, concatenate([np.ones(1, dtype), e.negative(zero)]))
    return x


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
    n, dtype = max(type_of(x).size - 1, 0), type_of(x).dtype
    if not n:
        return np.array([], complex_of(dtype))
    row = e.divide(e.negative(getitem(x, slice(1, None))), getitem(x, 0))
    return eigvals(concatenate([reshape(row, (1, n)), np.eye(n - 1, n, dtype=dtype)]))


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
