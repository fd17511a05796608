"""Equations, inverses, determinants and factors of matrices, as `numpy.linalg` has them."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.linalg._linalg import EighResult, EigResult, QRResult, SlogdetResult, SVDResult

from ge2.base.arrays import BOOL, COMPLEX, FLOAT64, INEXACT
from ge2.base.errors import ArgumentError, InputError, NoRuleError, ShapeError
from ge2.base.source import here
from ge2.ir import ArrayType, Eqn, Graph, Var, is_traced, type_of
from ge2.numpy import elementwise as e
from ge2.numpy import products
from ge2.numpy.access.selecting import take_along_axis
from ge2.numpy.axes import all as every
from ge2.numpy.axes import count_nonzero
from ge2.numpy.axes import max as largest
from ge2.numpy.axes import sum as total
from ge2.numpy.axes.sorting import argsort, sort
from ge2.numpy.composite import concatenate, imag, real, where
from ge2.numpy.creation import eye, zeros
from ge2.numpy.products import matmul
from ge2.numpy.promotion import array, broadcast, cast, common_dtype, reshape
from ge2.numpy.shapes import expand_dims, flip, matrix_transpose, transpose, tril, triu
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import GT
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.linalg import Cholesky, Det, Pinv, SlogDet, Solve
from ge2.ops.linalg.decompositions import Eig, Eigh, Qr, Svd
from ge2.ops.shape import Slice, StopGradient

# -------- Factors of matrices, as `numpy.linalg` has them: qr, eigenvalues, singular values,
# Cholesky.


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


def of_hermitian(x: Any) -> Any:
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
    x = of_hermitian(matrices(a, "cholesky", square=True))
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
    return EighResult(*Eigh(is_lower(UPLO, "eigh"))(of_hermitian(matrices(a, "eigh", square=True))))


def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of Hermitian matrices, rising, as `numpy.linalg.eigvalsh`."""
    lower = is_lower(UPLO, "eigvalsh")
    return Eigh(lower, vectors=False)(of_hermitian(matrices(a, "eigvalsh", square=True)))[0]


def eig(a: Any) -> Any:
    """Eigenvalues and eigenvectors of square matrices, as `numpy.linalg.eig`, but always complex.

    They have derivatives where the eigenvalues differ, for functions that no vector's phase
    changes. There is none of them on a GPU: the matrix goes to the CPU and back.
    """
    x = matrices(a, "eig", square=True)
    return EigResult(*real_if_empty(x, *Eig()(x)))


def eigvals(a: Any) -> Any:
    """Eigenvalues of square matrices, as `numpy.linalg.eigvals`, but always complex."""
    x = matrices(a, "eigvals", square=True)
    return real_if_empty(x, *Eig(vectors=False)(x))[0]


def real_if_empty(x: Any, *found: Any) -> Sequence[Any]:
    """Returns the results, cast to real if x is a real matrix without elements: NumPy finds no
    imaginary part then, and returns real arrays.
    """
    t = type_of(x)
    return found if t.size or t.dtype in COMPLEX else [real(y) for y in found]


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


# -------- Equations, inverses and determinants, as `numpy.linalg` has them.


UNSET: Any = object()


def solve(a: Any, b: Any) -> Any:
    """The x of a @ x = b, as `numpy.linalg.solve`: b is a vector if it has one axis, else matrices.

    Raises numpy.linalg.LinAlgError when the program runs, if a matrix is singular; on a GPU the
    result is not finite then, as CuPy's.

    >>> solve(np.array([[2.0, 0.0], [0.0, 4.0]]), np.array([2.0, 2.0]))
    array([1. , 0.5])
    """
    a, b = matrices(a, "solve", square=True), array(b)
    dtype = common_dtype((a, b))
    a, b = cast(a, dtype), cast(b, dtype)
    if not type_of(b).ndim:
        raise ShapeError("solve: b has no axis", where=here(), fix="b[None]")
    vector = type_of(b).ndim == 1
    b = expand_dims(b, -1) if vector else b
    (n, k), m = type_of(b).shape[-2:], type_of(a).shape[-1]
    if n != m:
        what = f"solve: {type_of(a)} and b of {n} rows do not fit"
        raise ShapeError(what, where=here(), fix=f"b of {m} rows")
    stack = products.common_stack("solve", a, b, type_of(a).shape[:-2], type_of(b).shape[:-2])
    y = Solve()(broadcast(a, (*stack, m, m)), broadcast(b, (*stack, n, k)))
    return reshape(y, type_of(y).shape[:-1]) if vector else y


def inv(a: Any) -> Any:
    """The inverse, as `numpy.linalg.inv`; errors as of `solve`."""
    x = matrices(a, "inv", square=True)
    return Solve()(x, units(x))


def units(x: Any) -> Any:
    """An identity matrix for each matrix."""
    t = type_of(x)
    return broadcast(eye(t.shape[-1], dtype=t.dtype), t.shape)


def det(a: Any) -> Any:
    """The determinant, as `numpy.linalg.det`; it has derivatives at singular matrices too."""
    return Det()(matrices(a, "det", square=True))


def slogdet(a: Any) -> Any:
    """The sign of the determinant and the logarithm of its size, as `numpy.linalg.slogdet`."""
    return SlogdetResult(*SlogDet()(matrices(a, "slogdet", square=True)))


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = UNSET) -> Any:
    """The pseudo-inverse, as `numpy.linalg.pinv`; `rcond` and `rtol` are
    numbers known beforehand.
    """
    x = matrices(a, "pinv")
    if rcond is not None and rtol is not UNSET:
        raise ArgumentError(
            "pinv: `rtol` and `rcond` can't be both set.", where=here(), fix="rtol="
        )
    bound = rcond if rcond is not None else 1e-15 if rtol is UNSET else rtol
    if hermitian:  # one triangle is read
        x = of_hermitian(x)
        low = tril(x, -1)
        x = where(eye(type_of(x).shape[-1], dtype=bool), real(x), e.add(low, adjoint(low)))
    return Pinv(known(bound, "pinv", x))(x)


def known(bound: Any, name: str, x: Any) -> float:
    """A tolerance, a number at tracing; None is what rounding makes of the shape."""
    t = type_of(x)
    if bound is None:
        return float(max(t.shape[-2:]) * np.finfo(t.dtype).eps)
    if np.ndim(bound) or is_traced(bound):
        what = f"{name}: a tolerance is a number known beforehand; got {bound!r}"
        raise InputError(what, where=here(), fix="rtol=1e-6")
    return float(bound)


def lstsq(a: Any, b: Any, rcond: Any = None) -> tuple[Any, Any, Any, Any]:
    """The x for which |a @ x - b| is least, sums of squared residuals,
    rank and singular values of a.

    As `numpy.linalg.lstsq`, but residuals depend on shapes alone: there are some if a has more rows
    than columns, also where its rank is less than those.
    """
    a, b = matrices(a, "lstsq"), array(b)
    if (
        type_of(a).ndim != 2
        or type_of(b).ndim not in (1, 2)
        or type_of(a).shape[0] != type_of(b).shape[0]
    ):
        what = f"lstsq takes a matrix and a vector or matrix of as many rows; got {type_of(a)}, {type_of(b)}"
        raise ShapeError(what, where=here(), fix="ge2.vmap over stacks")
    dtype, (m, n) = common_dtype((a, b)), type_of(a).shape
    a, b = cast(a, dtype), cast(b, dtype)
    bound = known(None if rcond is None else rcond, "lstsq", a)
    s = svd(a, compute_uv=False)
    x = products.matmul(Pinv(bound)(a), b)
    rank = cast(total(e.greater(s, e.multiply(largest(s, initial=0), bound))), np.dtype(np.int32))
    if m <= n:
        return x, nothing(type_of(s)), rank, s
    rest = squares(e.subtract(b, products.matmul(a, x)))
    rest = total(rest, 0) if type_of(b).ndim == 2 else reshape(total(rest), (1,))
    return x, rest, rank, s


def squares(x: Any) -> Any:
    """|x|^2, real."""
    if type_of(x).dtype in COMPLEX:
        return e.add(e.square(real(x)), e.square(imag(x)))
    return e.square(x)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """The number of singular values above a bound, int64, as `numpy.linalg.matrix_rank`."""
    if rtol is not None and tol is not None:
        raise ArgumentError(
            "matrix_rank: `tol` and `rtol` can't be both set.", where=here(), fix="rtol="
        )
    x = array(A)
    if type_of(x).ndim < 2:
        return cast(e.logical_not(every(e.equal(x, 0))), np.dtype(np.int64))
    s = svd(x, compute_uv=False, hermitian=hermitian)
    if tol is None:
        relative = max(type_of(x).shape[-2:]) * np.finfo(type_of(s).dtype).eps
        scale = expand_dims(array(rtol), -1) if rtol is not None else float(relative)
        bound = e.multiply(largest(s, -1, keepdims=True, initial=0), scale)
    else:
        bound = expand_dims(array(tol), -1)
    return count_nonzero(e.greater(s, bound), axis=-1)


# --------------------------------------------------------------------------------------- of tensors


def tensorsolve(a: Any, b: Any, axes: Sequence[int] | None = None) -> Any:
    """The x of tensordot(a, x, x.ndim) = b, as `numpy.linalg.tensorsolve`."""
    a, b = array(a), array(b)
    ndim = type_of(a).ndim
    if axes is not None:
        order = [i for i in range(ndim) if i not in axes]
        for k in axes:
            order.insert(ndim, k)
        a = transpose(a, order)
    shape = type_of(a).shape[-(ndim - type_of(b).ndim) :]
    n = math.prod(shape)
    if math.prod(type_of(a).shape) != n**2:
        what = f"tensorsolve: {type_of(a)} is no square matrix from {shape} to {type_of(b).shape}"
        raise ShapeError(what, where=here(), fix="prod(a.shape[b.ndim:]) == prod(a.shape[:b.ndim])")
    return reshape(solve(reshape(a, (n, n)), reshape(b, (n,))), shape)


def tensorinv(a: Any, ind: int = 2) -> Any:
    """The inverse by `tensordot` over the first `ind` axes, as `numpy.linalg.tensorinv`."""
    x = array(a)
    shape = type_of(x).shape
    if ind < 1:
        raise ArgumentError("tensorinv: Invalid ind argument.", where=here(), fix="ind=2")
    n = math.prod(shape[ind:])
    y = inv(reshape(x, (n, math.prod(shape) // max(n, 1))))
    return reshape(y, (*shape[ind:], *shape[:ind]))


# ----------------------------------------------------------------------------------------- products


def matrix_power(a: Any, n: Any) -> Any:
    """A square matrix to an integer power, by squaring, as `numpy.linalg.matrix_power`."""
    x, n = array(a), operator.index(n)
    t = type_of(x)
    if t.ndim < 2 or t.shape[-1] != t.shape[-2]:
        what = f"Last 2 dimensions of the array must be square: {t}"
        raise ShapeError(what, where=here(), fix="a matrix of as many rows as columns")
    if n < 0:
        x, n = inv(x), -n
    if n == 0:
        return units(x)
    y = None
    while n:
        y = (x if y is None else products.matmul(y, x)) if n & 1 else y
        n >>= 1
        x = products.matmul(x, x) if n else x
    return y


def multi_dot(arrays: Sequence[Any], *, out: Any = None, precision: str | None = None) -> Any:
    """The product of matrices, in the order of fewest multiplications, as `numpy.linalg.multi_dot`.

    The first and the last may be vectors.
    """
    if out is not None or len(arrays) < 2:
        raise ArgumentError("multi_dot takes at least two arrays, and no out=", where=here())
    xs = [array(x) for x in arrays]
    vectors = [type_of(x).ndim == 1 for x in (xs[0], xs[-1])]
    xs[0] = expand_dims(xs[0], 0) if vectors[0] else xs[0]
    xs[-1] = expand_dims(xs[-1], 1) if vectors[1] else xs[-1]
    for x in xs:
        if type_of(x).ndim != 2:
            raise ShapeError(
                f"multi_dot takes matrices; got {type_of(x)}", where=here(), fix="np.matmul"
            )
    y = chained(
        xs, cheapest([*(type_of(x).shape[0] for x in xs), type_of(xs[-1]).shape[1]]), precision
    )
    return reshape(
        y, tuple(n for n, gone in zip(type_of(y).shape, vectors, strict=True) if not gone)
    )


def cheapest(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """After which matrix the product of those from i to j is split, by (i, j)."""
    count = len(sizes) - 1
    cost: dict[tuple[int, int], int] = {(i, i): 0 for i in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], split[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return split


def chained(xs: Sequence[Any], split: dict[tuple[int, int], int], precision: str | None) -> Any:
    def part(i: int, j: int) -> Any:
        if i == j:
            return xs[i]
        k = split[i, j]
        return products.dot(part(i, k), part(k + 1, j), precision=precision)

    return part(0, len(xs) - 1)


# -------- The exponential of matrices, which `scipy.linalg` has.


PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip
NEAR = 5.371920351148152  # the norm up to which that approximant is exact to rounding
SQUARINGS = 24


def expm(A: Any) -> Any:
    """The exponential of matrices, by N. Higham's *The scaling and squaring method for the matrix
    exponential revisited* (2005): an approximant of order 13, squared as often as the norm asks,
    up to one of 9e7.
    """
    x = matrices(A, "expm", square=True)
    size = largest(total(abs(x), axis=-2), axis=-1)
    ratio = where(size > NEAR, size, NEAR) / NEAR
    count = e.ceil(e.log2(ratio))  # a whole number, so without a derivative
    y = approximant(x * e.exp2(-count)[..., None, None])
    if type_of(y).ndim == 2:
        return squared(count, y)
    for i in range(SQUARINGS):
        used = (count > i)[..., None, None]
        part = where(used, y, 0)  # what is not squared may not overflow
        y = where(used, part @ part, y)
    return y


def squared(count: Any, y: Any) -> Any:
    """A matrix squared so often, by a loop in which the other products are not computed."""
    t, number = type_of(y), type_of(count)
    x, z, n, i, used = Var(t), Var(t), Var(number), Var(number), Var(ArrayType((), BOOL))
    product = Eqn(DotGeneral(((1,), (0,))), (x, x), (z,))
    choice = Cond((Graph((x,), (), (x,)), Graph((x,), (product,), (z,))))
    body = Graph((n, x, i), (Eqn(GT, (n, i), (used,)), Eqn(choice, (used, x), (z,))), (z,))
    loop = ScanLoop(body, consts=1, carry=1, length=SQUARINGS)
    return loop(count, y, np.arange(SQUARINGS, dtype=number.dtype))[0]


def approximant(x: Any) -> Any:
    b, unit = PADE, eye(type_of(x).shape[-1], dtype=type_of(x).dtype)
    x2 = x @ x
    x4 = x2 @ x2
    x6 = x4 @ x2
    high = x6 @ (b[13] * x6 + b[11] * x4 + b[9] * x2)
    odd = x @ (high + b[7] * x6 + b[5] * x4 + b[3] * x2 + b[1] * unit)
    high = x6 @ (b[12] * x6 + b[10] * x4 + b[8] * x2)
    even = high + b[6] * x6 + b[4] * x4 + b[2] * x2 + b[0] * unit
    return solve(even - odd, even + odd)
