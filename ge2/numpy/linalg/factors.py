"""Factors of matrices, as `numpy.linalg` has them: qr, eigenvalues, singular values, Cholesky."""

from __future__ import annotations

from typing import Any

from numpy.linalg._linalg import EighResult, EigResult, QRResult, SVDResult

from ge2.base.dtypes import COMPLEX, FLOAT64, INEXACT
from ge2.base.errors import ArgumentError, NoRuleError, ShapeError
from ge2.base.source import here
from ge2.ir import ArrayType, is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy.access.selecting import take_along_axis
from ge2.numpy.axes.sorting import argsort, sort
from ge2.numpy.composite import where
from ge2.numpy.creation import zeros
from ge2.numpy.joining import concatenate
from ge2.numpy.products import matmul
from ge2.numpy.promotion import array, cast
from ge2.numpy.shapes import expand_dims, flip, matrix_transpose, triu
from ge2.ops.linalg import Cholesky
from ge2.ops.linalg.decompositions import Eig, Eigh, Qr, Svd
from ge2.ops.shape import Slice, StopGradient

# NumPy's own: no others to learn


def matrices(a: Any, name: str, square: bool = False) -> Any:
    """The argument as matrices of a dtype that LAPACK takes."""
    x = array(a)
    t = type_of(x)
    if t.ndim < 2:
        what = (
            f"{name}: {t.ndim}-dimensional array given. Array must be at least two-dimensional: {t}"
        )
        raise ShapeError(what, where=here(), fix="x[None], x[:, None]")
    if square and t.shape[-1] != t.shape[-2]:
        what = f"{name}: Last 2 dimensions of the array must be square: {t}"
        raise ShapeError(what, where=here(), fix="a matrix of as many rows as columns")
    return x if t.dtype in INEXACT else cast(x, FLOAT64)


def adjoint(x: Any) -> Any:
    y = matrix_transpose(x)
    return e.conjugate(y) if type_of(y).dtype in COMPLEX else y


def parts(x: Any, rows: slice, columns: slice) -> Any:
    """x[..., rows, columns] for slices with an end or none."""
    shape = type_of(x).shape
    ends = [
        (s.start or 0, n if s.stop is None else s.stop)
        for s, n in zip((rows, columns), shape[-2:], strict=True)
    ]
    start = (*(0,) * (len(shape) - 2), *(first for first, _ in ends))
    return Slice(start, (*shape[:-2], *(stop for _, stop in ends)), (1,) * len(shape))(x)


def hermitian(x: Any) -> Any:
    """The same matrices; their derivative is shared by the elements beside and across the diagonal.

    Of a Hermitian matrix only one triangle is read. So that its gradient is Hermitian
    too, as elsewhere in the field, the derivative is that of its Hermitian part, while
    the values are those that were given.
    """
    if not is_traced(x):
        return x
    stop = StopGradient()
    part = e.multiply(e.add(x, adjoint(x)), 0.5)
    nothing = e.subtract(part, stop(part))
    return e.add(stop(x), where(e.isfinite(nothing), nothing, 0))


# ------------------------------------------------------------------------------------- Cholesky, QR


def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """L of a = L @ L^H, lower; or the upper U of a = U^H @ U, as `numpy.linalg.cholesky`.

    One triangle is read. Raises numpy.linalg.LinAlgError when the program runs, if a is not
    positive definite; on a GPU the result is NaN, as CuPy's.

    >>> import numpy as np
    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    x = hermitian(matrices(a, "cholesky", square=True))
    return adjoint(Cholesky()(adjoint(x))) if upper else Cholesky()(x)


def qr(a: Any, mode: str = "reduced") -> Any:
    """a = q @ r with orthonormal q and upper r, as `numpy.linalg.qr`; modes
    reduced, complete and r.

    Differentiable where the columns, or of wide matrices the first ones, are independent.
    """
    x = matrices(a, "qr")
    m, n = type_of(x).shape[-2:]
    if mode == "raw":
        raise NoRuleError("qr: mode='raw' is LAPACK's own form", where=here(), fix="mode='reduced'")
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"qr: Unrecognized mode '{mode}'", where=here(), fix="mode='reduced'")
    if m < n and is_traced(x):
        q, r = wide_qr(x, m)
    else:
        q, r = Qr(mode == "complete")(x)
    return triu(r) if mode == "r" else QRResult(q, r)


def wide_qr(x: Any, m: int) -> tuple[Any, Any]:
    """Of more columns than rows: q is that of the first ones, so that it has a derivative."""
    q, r = Qr()(parts(x, slice(None), slice(0, m)))
    return q, concatenate([r, matmul(adjoint(q), parts(x, slice(None), slice(m, None)))], axis=-1)


# -------------------------------------------------------------------------------------- eigenvalues


def is_lower(UPLO: str, name: str) -> bool:
    if str(UPLO).upper() not in ("L", "U"):
        raise ArgumentError(
            f"{name}: UPLO argument must be 'L' or 'U'", where=here(), fix="UPLO='L'"
        )
    return str(UPLO).upper() == "L"


def eigh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues, rising, and eigenvectors of Hermitian matrices, as `numpy.linalg.eigh`.

    One triangle is read. The vectors have a derivative where the eigenvalues differ.
    """
    return EighResult(*Eigh(is_lower(UPLO, "eigh"))(hermitian(matrices(a, "eigh", square=True))))


def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of Hermitian matrices, rising, as `numpy.linalg.eigvalsh`."""
    lower = is_lower(UPLO, "eigvalsh")
    return Eigh(lower, vectors=False)(hermitian(matrices(a, "eigvalsh", square=True)))[0]


def eig(a: Any) -> Any:
    """Eigenvalues and eigenvectors of square matrices, as `numpy.linalg.eig`, but always complex.

    They have derivatives where the eigenvalues differ, for functions that no vector's phase
    changes. There is none of them on a GPU: the matrix goes to the CPU and back.
    """
    return EigResult(*Eig()(matrices(a, "eig", square=True)))


def eigvals(a: Any) -> Any:
    """Eigenvalues of square matrices, as `numpy.linalg.eigvals`, but always complex."""
    return Eig(vectors=False)(matrices(a, "eigvals", square=True))[0]


# ---------------------------------------------------------------------------------- singular values


def svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    """a = u @ diag(s) @ vh with s falling, as `numpy.linalg.svd`.

    The vectors have derivatives where the singular values differ and are not 0; those of a matrix
    that is not square only with `full_matrices=False`.
    """
    if hermitian:
        return hermitian_svd(a, compute_uv)
    x = matrices(a, "svd")
    if not compute_uv:
        return Svd(vectors=False)(x)[0]
    m, n = type_of(x).shape[-2:]
    return SVDResult(*Svd(bool(full_matrices) and m != n)(x))


def hermitian_svd(a: Any, compute_uv: bool) -> Any:
    """By eigenvalues, whose signs go to the right vectors."""
    if not compute_uv:
        return flip(sort(e.absolute(eigvalsh(a)), -1), -1)
    w, v = eigh(a)
    order = flip(argsort(e.absolute(w), -1), -1)
    w, v = take_along_axis(w, order, -1), take_along_axis(v, expand_dims(order, -2), -1)
    sign = expand_dims(e.copysign(1.0, w), -2)
    return SVDResult(v, e.absolute(w), adjoint(e.multiply(v, cast(sign, type_of(w).dtype))))


def svdvals(x: Any, /) -> Any:
    """Singular values, falling, as `numpy.linalg.svdvals`."""
    return svd(x, compute_uv=False)


def nothing(t: ArrayType) -> Any:
    """An empty array of that dtype."""
    return zeros((0,), dtype=t.dtype)
