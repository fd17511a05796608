"""Factors of matrices: QR, eigenvalues, singular values.

Matrices are the last two axes of an array.

Derivatives hold where the factors are smooth: full rank for QR, distinct eigenvalues or singular
values for the vectors; elsewhere they are infinite or NaN. Vectors are determined up to a sign or
phase, of which a function that is differentiated must not depend. Formulas: S. Walter, L. Lehmann,
Algorithmic differentiation of linear algebra functions (2010), for QR; M. Giles (2008) for
symmetric matrices; J. Townsend, Differentiating the singular value decomposition (2016), and for
complex ones Z.-Q. Wan, S.-X. Zhang (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.arrays import COMPLEX, INT64, complex_of, real_part
from ge2.base.errors import NoRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Cotangents, Flags, Value, Values
from ge2.ops.elementwise import COMPLEX_OF, IMAG, real
from ge2.ops.linalg import (
    QUIET,
    Linalg,
    adjoint,
    along_columns,
    along_rows,
    below,
    columns,
    cotangent,
    diagonal_of,
    gradients,
    on_diagonal,
    product,
    read_of,
    rows,
)


def plus(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a + b


def imaginary(x: Value) -> Value:
    """The imaginary part, as an imaginary number."""
    part: Value = IMAG(x)
    return COMPLEX_OF(part.zeros(), part)  # type: ignore[no-any-return]


def over_gaps(x: Value, w: Value) -> Value:
    """x[i, j] / (w[j] - w[i]), and 0 on the diagonal."""
    gaps, diagonal = along_columns(w, x) - along_rows(w, x), rows(x).same(columns(x))
    quotient = x / diagonal.select(gaps.ones(), gaps)
    return diagonal.select(quotient.zeros(), quotient)


# ----------------------------------------------------------------------------------------------- QR


@final
@record
class Qr(Linalg):
    """a = q @ r: a[..., m, n] -> q[..., m, k], r[..., k, n], where k is
    min(m, n), or m if `full`.
    """

    full: bool = False
    name = "qr"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0], square=False)
        *stack, m, n = a.shape
        k = m if self.full else min(m, n)
        return a.with_shape((*stack, m, k)), a.with_shape((*stack, k, n))

    def reference(self, *arrays: Any) -> Any:
        return tuple(np.linalg.qr(arrays[0], "complete" if self.full else "reduced"))

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """With M = r g_r^H - g_q^H q: (g_q + q H) r^-H, where H is Hermitian and below as M is."""
        (g_q, g_r), (q, r), (a,) = gradients(cts), ys, xs
        *_, m, n = a.shape
        if (self.full and m > n) or m < n:
            what = (
                f"qr of {a.type}"
                + (" with all columns of q" if m > n else "")
                + " has no derivative"
            )
            raise NoRuleError(what, fix="np.linalg.qr(a), of at least as many rows as columns")
        inner = plus(
            None if g_r is None else product(r, adjoint(g_r)),
            None if g_q is None else -product(adjoint(g_q), q),
        )
        assert inner is not None
        strict = below(inner)
        middle = product(q, strict + adjoint(strict) + on_diagonal(real(inner).cast(inner.dtype)))
        total = middle if g_q is None else g_q + middle
        return [cotangent(adjoint(QUIET(r, adjoint(total))), a)]


# -------------------------------------------------------------------------------------- eigenvalues


@final
@record
class Eigh(Linalg):
    """Eigenvalues in rising order, real, and if `vectors` eigenvectors, of Hermitian matrices.

    a[..., n, n] -> w[..., n], v[..., n, n]; only the lower triangle is read, or the upper.
    """

    lower: bool = True
    vectors: bool = True
    name = "eigh"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        w = a.with_shape(a.shape[:-1]).with_dtype(real_part(a.dtype))
        return (w, a.with_shape(a.shape)) if self.vectors else (w,)

    def reference(self, *arrays: Any) -> Any:
        side: Any = "L" if self.lower else "U"
        if self.vectors:
            return tuple(np.linalg.eigh(arrays[0], side))
        return (np.linalg.eigvalsh(arrays[0], side),)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """v (diag(g_w) + (v^H g_v) / (w[j] - w[i])) v^H."""
        (a,) = xs
        (g_w, *rest), (w, v) = gradients(cts), ys if self.vectors else Eigh(self.lower)(a)
        g_v = rest[0] if rest else None
        inner = None if g_w is None else diagonal_of(g_w, a)
        if g_v is not None:
            inner = plus(inner, over_gaps(product(adjoint(v), g_v), w))
        assert inner is not None
        g = product(product(v, inner), adjoint(v))
        return [cotangent(read_of((g + adjoint(g)) * 0.5, self.lower), a)]


@final
@record
class Eig(Linalg):
    """Eigenvalues, complex, and if `vectors` eigenvectors of norm 1: a[..., n, n] ->
    w[..., n], v[..., n, n].

    NumPy's are real where no imaginary part is left, of which a type cannot depend.
    """

    vectors: bool = True
    name = "eig"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        v = a.with_shape(a.shape).with_dtype(complex_of(a.dtype))
        return (v.with_shape(a.shape[:-1]), v) if self.vectors else (v.with_shape(a.shape[:-1]),)

    def reference(self, *arrays: Any) -> Any:
        (a,) = arrays
        dtype = complex_of(a.dtype)
        ys = np.linalg.eig(a) if self.vectors else (np.linalg.eigvals(a),)
        return tuple(np.asarray(y).astype(dtype, copy=False) for y in ys)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """v^-H (diag(g_w) + (v^H g_v - v^H v Re diag(v^H g_v)) / conj(w[j] - w[i])) v^H."""
        (a,) = xs
        (g_w, *rest), (w, v) = gradients(cts), ys if self.vectors else Eig()(a)
        g_v, vh = rest[0] if rest else None, adjoint(v)
        inner = None if g_w is None else diagonal_of(g_w, v)
        if g_v is not None:
            turned = product(vh, g_v)
            stretch = on_diagonal(real(turned)).cast(v.dtype)
            inner = plus(inner, over_gaps(turned - product(product(vh, v), stretch), w.conj()))
        assert inner is not None
        return [cotangent(QUIET(vh, product(inner, vh)), a)]


# ---------------------------------------------------------------------------------- singular values


@final
@record
class Svd(Linalg):
    """a = u @ diag(s) @ vh, s falling: a[..., m, n] -> u[..., m, k], s[..., k], vh[..., k, n].

    k is min(m, n), but u and vh are square if `full`. Without `vectors` there is s alone.
    """

    full: bool = False
    vectors: bool = True
    name = "svd"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0], square=False)
        *stack, m, n = a.shape
        k = min(m, n)
        s = a.with_shape((*stack, k)).with_dtype(real_part(a.dtype))
        if not self.vectors:
            return (s,)
        left, right = (m, n) if self.full else (k, k)
        return a.with_shape((*stack, m, left)), s, a.with_shape((*stack, right, n))

    def reference(self, *arrays: Any) -> Any:
        if self.vectors:
            return tuple(np.linalg.svd(arrays[0], full_matrices=self.full))
        return (np.linalg.svd(arrays[0], compute_uv=False),)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (a,), gs = xs, gradients(cts)
        g_u, g_s, g_vh = gs if self.vectors else (None, gs[0], None)
        extra = self.full and a.shape[-1] != a.shape[-2]
        if extra and (g_u is not None or g_vh is not None):
            what = f"svd of {a.type} with all singular vectors has no derivative"
            raise NoRuleError(what, fix="np.linalg.svd(a, full_matrices=False)")
        u, s, vh = Svd()(a) if self.full or not self.vectors else ys
        return [cotangent(svd_gradient(u, s, vh, (g_u, g_s, g_vh)), a)]


def svd_gradient(u: Value, s: Value, vh: Value, gs: Sequence[Value | None]) -> Value:
    """u (inner) v^H, and of g_u and g_vh what stands across u and vh, divided by s."""
    (g_u, g_s, g_vh), v, uh = gs, adjoint(vh), adjoint(u)
    square = product(uh, u)  # of the shape of what goes between u and vh
    size = s.cast(u.dtype)
    inner = None if g_s is None else diagonal_of(g_s, square)
    across: Value | None = None
    if g_u is not None:
        turned = product(uh, g_u)
        inner = plus(
            inner, over_gaps(turned - adjoint(turned), size * size) * along_columns(size, square)
        )
        if u.dtype in COMPLEX:
            inner = plus(inner, on_diagonal(imaginary(turned)) / along_columns(size, square))
        if u.shape[-2] > u.shape[-1]:
            outside = g_u - product(u, turned)
            across = product(outside / along_columns(size, outside), vh)
    if g_vh is not None:
        turned = product(vh, adjoint(g_vh))
        inner = plus(
            inner, along_rows(size, square) * over_gaps(turned - adjoint(turned), size * size)
        )
        if v.shape[-2] > v.shape[-1]:
            outside = g_vh - product(product(g_vh, v), vh)
            across = plus(across, product(u, outside / along_rows(size, outside)))
    assert inner is not None
    total = plus(product(product(u, inner), vh), across)
    assert total is not None
    return total


# -------- Factors of a matrix, and systems solved by them: of passes alone, so without derivatives.


@final
@record
class Lu(Linalg):
    """The factors of a[n, n] as LAPACK's getrf leaves them in memory, by columns: both triangles
    in one, transposed, and the row that each was swapped with, counted from 1.

    LinAlgError for a singular matrix.
    """

    name = "lu"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        return a.with_shape(a.shape), ArrayType(a.shape[:1], INT64)

    def reference(self, *arrays: Any) -> Any:
        lu, n = np.array(arrays[0]), len(arrays[0])
        swaps = np.arange(1, n + 1)
        for i in range(n):
            k = i + int(np.argmax(np.abs(lu[i:, i])))
            lu[[i, k]], swaps[i] = lu[[k, i]], k + 1
            if lu[i, i] == 0:
                raise np.linalg.LinAlgError("Singular matrix")
            lu[i + 1 :, i] /= lu[i, i]
            lu[i + 1 :, i + 1 :] -= np.outer(lu[i + 1 :, i], lu[i, i + 1 :])
        return np.ascontiguousarray(lu.T), swaps


@final
@record
class LuSolve(Linalg):
    """The x of a @ x = b, or of a.T @ x = b, by the factors of a: b[n, k] -> [n, k].

    `triangular`: those are a triangular matrix itself, and a 0 on its diagonal is a LinAlgError.
    """

    transposed: bool = False
    triangular: bool = False
    name = "lu_solve"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        b = self.matrix(types[2], square=False)
        return (b.with_shape(b.shape),)

    def reference(self, *arrays: Any) -> Any:
        lu, swaps, b = arrays[0].T, arrays[1], arrays[2]
        if self.triangular and not np.all(np.diagonal(lu)):
            raise np.linalg.LinAlgError("Singular matrix")
        lower, upper = np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)
        order = np.arange(len(lu))
        for i, k in enumerate(swaps - 1):
            order[[i, k]] = order[[k, i]]
        if not self.transposed:
            return np.linalg.solve(upper, np.linalg.solve(lower, b[order]))
        x = np.empty_like(b)
        x[order] = np.linalg.solve(lower.T, np.linalg.solve(upper.T, b))
        return x
