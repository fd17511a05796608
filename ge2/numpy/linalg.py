"""Norms and powers of matrices, and the names that `numpy.linalg` has for products."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT64, INEXACT
from ge2.base.errors import ArgumentError, NoRuleError, ShapeError
from ge2.base.source import here
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy import products, shapes
from ge2.numpy.composite import imag, real
from ge2.numpy.creation import eye
from ge2.numpy.promotion import Axes, all_axes, array, broadcast, cast, one_axis, reshape
from ge2.numpy.reductions import max as largest
from ge2.numpy.reductions import min as smallest
from ge2.numpy.reductions import sum as total

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "matrix_transpose", "multi_dot", "norm",
    "outer", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

cross_, outer_ = products.cross, products.outer
matmul, tensordot, vecdot, matrix_transpose = (
    products.matmul,
    products.tensordot,
    products.vecdot,
    shapes.matrix_transpose,
)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The vector product of three-vectors along an axis, as `numpy.linalg.cross`."""
    return cross_(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """The product of every element of one vector with every one of another, as `numpy.linalg.outer`."""
    a, b = array(x1), array(x2)
    if type_of(a).ndim != 1 or type_of(b).ndim != 1:
        what = f"Input arrays must be one-dimensional, but they are {type_of(a)} and {type_of(b)}."
        raise ShapeError(what, where=here(), fix="np.outer, which flattens")
    return outer_(a, b)


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonal of the last two axes, as `numpy.linalg.diagonal`."""
    return shapes.diagonal(x, offset, -2, -1)


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of the diagonal of the last two axes, as `numpy.linalg.trace`."""
    return products.trace(x, offset, -2, -1, dtype)


def multi_dot(arrays: Any, *, out: Any = None, precision: str | None = None) -> Any:
    """The product of matrices, from left to right; the order does not change as it does in `numpy.linalg`."""
    if out is not None or len(arrays) < 2:
        raise ArgumentError("multi_dot takes at least two arrays, and no out=", where=here())
    y = arrays[0]
    for x in arrays[1:]:
        y = products.dot(y, x, precision=precision)
    return y


def matrix_power(a: Any, n: Any) -> Any:
    """A square matrix to an integer power of at least 0, by squaring, as `numpy.linalg.matrix_power`."""
    x, n = array(a), operator.index(n)
    if type_of(x).ndim < 2 or type_of(x).shape[-1] != type_of(x).shape[-2]:
        raise ShapeError(f"Last 2 dimensions of the array must be square: {type_of(x)}", where=here())
    if n < 0:
        raise NoRuleError(
            "matrix_power of a negative exponent needs the inverse",
            where=here(),
            fix="an exponent of at least 0",
        )
    y = broadcast(eye(type_of(x).shape[-1], dtype=type_of(x).dtype), type_of(x).shape) if n == 0 else None
    while n:
        y = (x if y is None else products.matmul(y, x)) if n & 1 else y
        n >>= 1
        x = products.matmul(x, x) if n else x
    return y


# ----------------------------------------------------------------------------------------------------- norms


def inexact(x: Any) -> Any:
    x = array(x)
    return x if type_of(x).dtype in INEXACT else cast(x, FLOAT64)


def squares(x: Any) -> Any:
    """|x|^2, real."""
    if type_of(x).dtype in COMPLEX:
        return e.add(e.square(real(x)), e.square(imag(x)))
    return e.square(x)


def norm(x: Any, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:
    """The norm of a vector or matrix, as `numpy.linalg.norm`; not the orders that need singular values.

    >>> norm(np.array([3.0, 4.0]))
    np.float64(5.0)
    """
    x = inexact(x)
    ndim = type_of(x).ndim
    if axis is None and (ord is None or (ord in ("f", "fro") and ndim == 2) or (ord == 2 and ndim == 1)):
        return e.sqrt(total(squares(x), None, keepdims=keepdims))
    axes = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    if len(axes) == 1:
        return of_vectors(x, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return of_matrices(x, ord, axes, keepdims)
    raise ShapeError(
        f"Improper number of dimensions to norm: axes {axes} of {type_of(x)}", where=here(), fix="axis="
    )


def of_vectors(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    """The norm over axes taken together as one vector."""
    axes = all_axes(axes, type_of(x).ndim, x)
    if isinstance(ord, str):
        raise ArgumentError(f"Invalid norm order '{ord}' for vectors", where=here(), fix="a number")
    if ord == 2:
        return e.sqrt(total(squares(x), axes, keepdims=keepdims))
    size = e.absolute(x)
    if ord in (np.inf, -np.inf):
        return (largest if ord > 0 else smallest)(size, axes, keepdims=keepdims)
    if ord == 0:
        return cast(total(e.not_equal(x, 0), axes, keepdims=keepdims), type_of(size).dtype)
    if ord == 1:
        return total(size, axes, keepdims=keepdims)
    return e.power(total(e.power(size, ord), axes, keepdims=keepdims), 1 / ord)


def of_matrices(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    row, column = (one_axis(a, type_of(x).ndim, x) for a in axes)
    if row == column:
        raise ShapeError("Duplicate axes given.", where=here())
    if ord in (None, "fro", "f"):
        return e.sqrt(total(squares(x), (row, column), keepdims=keepdims))
    along = {1: (row, column), -1: (row, column), np.inf: (column, row), -np.inf: (column, row)}.get(ord)
    if along is None:
        if ord in (2, -2, "nuc"):
            raise NoRuleError(
                f"the matrix norm of order {ord!r} needs singular values",
                where=here(),
                fix="ord='fro', 1 or inf",
            )
        raise ArgumentError(
            f"Invalid norm order {ord!r} for matrices.", where=here(), fix="'fro', 1, -1, inf or -inf"
        )
    sums = total(e.absolute(x), along[0], keepdims=True)
    y = (largest if ord > 0 else smallest)(sums, along[1], keepdims=True)
    return (
        y
        if keepdims
        else reshape(y, tuple([n for i, n in enumerate(type_of(x).shape) if i not in (row, column)]))
    )


def vector_norm(x: Any, /, *, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm over the given axes taken together as one vector, as `numpy.linalg.vector_norm`."""
    return of_vectors(inexact(x), ord, axis, keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes, as `numpy.linalg.matrix_norm`."""
    return of_matrices(inexact(x), ord, (-2, -1), keepdims)


def __dir__() -> list[str]:
    return __all__
