"""The functions of `numpy.linalg`: norms stand here, factors and equations in
files of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge2.base.arrays import FLOAT64, INEXACT
from ge2.base.errors import ArgumentError, ShapeError
from ge2.base.source import here
from ge2.base.tracebacks import publish
from ge2.ir import type_of
from ge2.numpy import elementwise as e
from ge2.numpy import products, shapes
from ge2.numpy.axes import any as some
from ge2.numpy.axes import max as largest
from ge2.numpy.axes import min as smallest
from ge2.numpy.axes import sum as total
from ge2.numpy.composite import where
from ge2.numpy.linalg.equations import (
    cholesky,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    inv,
    lstsq,
    matrices,
    matrix_power,
    matrix_rank,
    multi_dot,
    pinv,
    qr,
    slogdet,
    solve,
    squares,
    svd,
    svdvals,
    tensorinv,
    tensorsolve,
    units,
)
from ge2.numpy.promotion import Axes, all_axes, array, cast, one_axis, reshape
from ge2.numpy.rare import sharing
from ge2.ops.linalg import Solve

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "inv", "lstsq", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot",
    "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv",
    "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip

LinAlgError = np.linalg.LinAlgError

cross_, outer_ = products.cross, products.outer
matmul, tensordot, vecdot, matrix_transpose = (
    products.matmul,
    products.tensordot,
    products.vecdot,
    shapes.matrix_transpose,
)


def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The vector product of three-vectors along an axis, as `numpy.linalg.cross`."""
    for t in (type_of(array(x1)), type_of(array(x2))):
        if t.shape[one_axis(axis, t.ndim)] != 3:
            what = f"Both input arrays must be (arrays of) 3-dimensional vectors; got {t}"
            raise ShapeError(what, where=here(), fix="np.cross, which takes vectors of 2, too")
    return cross_(x1, x2, axis=axis)


def outer(x1: Any, x2: Any, /) -> Any:
    """The product of every element of one vector with every one of
    another, as `numpy.linalg.outer`.
    """
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


# -------------------------------------------------------------------------------------------- norms


def inexact(x: Any) -> Any:
    x = array(x)
    return x if type_of(x).dtype in INEXACT else cast(x, FLOAT64)


def norm(x: Any, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Any:
    """The norm of a vector or matrix, as `numpy.linalg.norm`.

    >>> norm(np.array([3.0, 4.0]))
    np.float64(5.0)
    """
    x = inexact(x)
    ndim = type_of(x).ndim
    if axis is None and (
        ord is None or (ord in ("f", "fro") and ndim == 2) or (ord == 2 and ndim == 1)
    ):
        return e.sqrt(total(squares(x), None, keepdims=keepdims))
    axes = (
        tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    )
    if len(axes) == 1:
        return of_vectors(x, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return of_matrices(x, ord, axes, keepdims)
    raise ShapeError(
        f"Improper number of dimensions to norm: axes {axes} of {type_of(x)}",
        where=here(),
        fix="axis=",
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
        return extreme(size, ord, axes, keepdims)
    if ord == 0:
        return cast(total(e.not_equal(x, 0), axes, keepdims=keepdims), type_of(size).dtype)
    if ord == 1:
        return total(size, axes, keepdims=keepdims)
    if ord < 0:  # then one element of 0 decides, as its size does
        nothing = e.equal(size, 0)
        y = total(e.power(where(nothing, 1.0, size), ord), axes, keepdims=keepdims)
        return where(some(nothing, axes, keepdims=keepdims), 0.0, e.power(y, 1 / ord))
    y = total(e.power(size, ord), axes, keepdims=keepdims)
    if ord < 1:
        return e.power(y, 1 / ord)
    nothing = e.equal(y, 0)  # where the root has no derivative; that of a length counts as 0
    return where(nothing, 0.0, e.power(where(nothing, 1.0, y), 1 / ord))


def extreme(sizes: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    """The largest of sizes, 0 of none, or for a negative order the smallest."""
    if ord < 0:
        return smallest(sizes, axes, keepdims=keepdims)
    none = {} if type_of(sizes).size else {"initial": 0}
    return largest(sizes, axes, keepdims=keepdims, **none)


def of_matrices(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    row, column = (one_axis(a, type_of(x).ndim, x) for a in axes)
    if row == column:
        raise ShapeError("Duplicate axes given.", where=here())
    if ord in (None, "fro", "f"):
        return e.sqrt(total(squares(x), (row, column), keepdims=keepdims))
    along = {
        1: (row, column),
        -1: (row, column),
        np.inf: (column, row),
        -np.inf: (column, row),
    }.get(ord)
    if along is None:
        if ord in (2, -2, "nuc"):
            return of_singular_values(x, ord, (row, column), keepdims)
        fix = "'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        raise ArgumentError(f"Invalid norm order {ord!r} for matrices.", where=here(), fix=fix)
    sums = total(e.absolute(x), along[0], keepdims=True)
    y = extreme(sums, ord, along[1], True)
    return (
        y
        if keepdims
        else reshape(
            y, tuple([n for i, n in enumerate(type_of(x).shape) if i not in (row, column)])
        )
    )


def of_singular_values(x: Any, ord: Any, axes: tuple[int, int], keepdims: bool) -> Any:
    s = svdvals(shapes.moveaxis(x, axes, (-2, -1)))
    y = total(s, -1) if ord == "nuc" else largest(s, -1, initial=0) if ord == 2 else smallest(s, -1)
    shape = tuple([1 if i in axes else n for i, n in enumerate(type_of(x).shape)])
    return reshape(y, shape) if keepdims else y


def vector_norm(x: Any, /, *, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm over the given axes taken together as one vector, as `numpy.linalg.vector_norm`."""
    return of_vectors(inexact(x), ord, axis, bool(keepdims))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes, as `numpy.linalg.matrix_norm`."""
    return of_matrices(inexact(x), ord, (-2, -1), bool(keepdims))


def cond(x: Any, p: Any = None) -> Any:
    """The condition number in the norm of order p, 2 by default,
    as `numpy.linalg.cond`.
    """
    x = matrices(x, "cond")
    if 0 in type_of(x).shape[-2:]:
        raise ShapeError(
            f"cond is not defined on empty arrays: {type_of(x)}", where=here(), fix="x.size > 0"
        )
    if p in (None, 2, -2):
        s = svdvals(x)
        first, last = s[..., 0], s[..., -1]
        r = e.divide(last, first) if p == -2 else e.divide(first, last)
    else:
        inverse = Solve(quiet=True)(matrices(x, "cond", square=True), units(x))
        r = e.multiply(norm(x, p, (-2, -1)), norm(inverse, p, (-2, -1)))
    undefined = e.logical_not(some(e.isnan(x), (-2, -1)))
    return where(e.logical_and(e.isnan(r), undefined), np.inf, r)


matrix_transpose, diagonal = (
    sharing(matrix_transpose, np.linalg.matrix_transpose),
    sharing(diagonal, np.linalg.diagonal),
)

publish(globals())
