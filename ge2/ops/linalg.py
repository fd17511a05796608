"""Equations, factors and determinants of matrices, which are the last two axes of an array.

The rules are written for gradients as textbooks have them (dL = Re sum(conj(g) dx)); a cotangent of
ours is the conjugate of that (docs/design/linalg.md), so `gradients` turns it on the way in and
`cotangent` back. Formulas: M. Giles, An extended collection of matrix derivative results (2008); I.
Murray, Differentiation of the Cholesky decomposition (2016); G. Golub, V. Pereyra, The
differentiation of pseudo-inverses (1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT32, FLOAT64, INT64, real_part
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axis, Batched, Cotangents, Flags, Op, Value
from ge2.ops.elementwise import COMPLEX_OF, IMAG, real
from ge2.ops.index import leading

SUPPORTED = frozenset((FLOAT32, FLOAT64, *COMPLEX))


class Linalg(Op):
    """An operation on matrices, one beside the other along the axes before the last two."""

    __slots__ = ()
    may_alias = False

    def matrix(self, x: ArrayType, square: bool = True) -> ArrayType:
        """The type, if it is one of matrices that LAPACK takes."""
        if x.dtype not in SUPPORTED:
            what = f"{self.name} takes float32, float64 and complex matrices; got {x}"
            raise TypeRuleError(what, fix="x.astype(np.float32)")
        if x.ndim < 2:
            raise ShapeError(
                f"{self.name} takes matrices: at least two axes; got {x}", fix="x[None]"
            )
        if square and x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"Last 2 dimensions of the array must be square: {self.name} of {x}")
        return x

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        ys = self(*(leading(x, a, size) for x, a in zip(xs, axes, strict=True)))
        ys = ys if self.several else (ys,)
        return ys, (0,) * len(ys)


# -------------------------------------------------------------------------------- words of matrices


def product(a: Value, b: Value) -> Value:
    """a @ b, of matrices side by side."""
    n = a.ndim
    beside = tuple(range(n - 2))
    return a.dot(b, ((n - 1,), (n - 2,)), (beside, beside))


def transposed(x: Value) -> Value:
    return x.move_axis(x.ndim - 1, x.ndim - 2)


def adjoint(x: Value) -> Value:
    return transposed(x.conj())


def rows(x: Value) -> Value:
    """The number of its row at each place."""
    return x.count(x.shape, x.ndim - 2, INT64)


def columns(x: Value) -> Value:
    return x.count(x.shape, x.ndim - 1, INT64)


def below(x: Value) -> Value:
    """The elements below the diagonal."""
    return (rows(x) > columns(x)).select(x, x.zeros())


def on_diagonal(x: Value) -> Value:
    return rows(x).same(columns(x)).select(x, x.zeros())


def along_rows(v: Value, like: Value) -> Value:
    """v[..., i] at each place [..., i, j]; a number for each matrix at all of its places."""
    return v.spread(like.shape, tuple(range(v.ndim)))


def along_columns(v: Value, like: Value) -> Value:
    """v[..., j] at each place [..., i, j]."""
    return v.spread(like.shape, (*range(like.ndim - 2), like.ndim - 1))


def diagonal_of(v: Value, like: Value) -> Value:
    """The matrices, of the shape and dtype of `like`, with v on the diagonal."""
    return on_diagonal(along_rows(v.cast(like.dtype), like))


def identity(like: Value) -> Value:
    return on_diagonal(like.ones())


def read_of(g: Value, lower: bool = True) -> Value:
    """The gradient by one triangle of Hermitian matrices, from `g`, that by
    all of their elements.
    """
    both = g + adjoint(g)
    if g.dtype in COMPLEX:  # of the diagonal only the real parts are read
        half = real(g).cast(g.dtype)
    else:
        half = g
    inside = below(both) if lower else below_adjoint(both)
    return inside + on_diagonal(half)


def below_adjoint(x: Value) -> Value:
    """The elements above the diagonal."""
    return (rows(x) < columns(x)).select(x, x.zeros())


def gradients(cts: Cotangents) -> list[Value | None]:
    return [None if ct is None else ct.conj() for ct in cts]


def cotangent(g: Value, x: Value) -> Value:
    """The cotangent of `x` that its gradient is, real where `x` is."""
    return (g.conj() if x.dtype in COMPLEX else real(g)).cast(x.dtype)


# ---------------------------------------------------------------------------------------- equations


@final
@record
class Solve(Linalg):
    """The x of a @ x = b: a[..., n, n], b[..., n, k] -> [..., n, k].

    A singular matrix is a LinAlgError, or its x is NaN if `quiet`.
    """

    quiet: bool = False
    name = "solve"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a, b = self.matrix(types[0]), self.matrix(types[1], square=False)
        if a.dtype != b.dtype:
            raise TypeRuleError(
                f"solve takes arrays of one dtype; got {a}, {b}", fix="np.linalg.solve"
            )
        if a.shape[:-1] != b.shape[:-1]:
            raise ShapeError(
                f"solve: {a} and {b} do not fit", fix="b of as many rows as a, and stacks alike"
            )
        return (b.with_shape(b.shape),)

    def reference(self, *arrays: Any) -> Any:
        return each_solved(*arrays) if self.quiet else np.linalg.solve(*arrays)

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        (ct,), (y,), (a, _) = cts, ys, xs
        assert ct is not None
        ct_b = self(transposed(a), ct)
        return [-product(ct_b, transposed(y)) if wanted[0] else None, ct_b if wanted[1] else None]

    def jvp(self, ts: Cotangents, ys: Sequence[Value], xs: Sequence[Value]) -> Cotangents:
        (ta, tb), (y,), (a, _) = ts, ys, xs
        if ta is None:
            return [self(a, tb)]
        moved = product(ta, y)
        return [self(a, -moved if tb is None else tb - moved)]


def each_solved(a: Any, b: Any) -> Any:
    """As `numpy.linalg.solve`, NaN for singular matrices."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        if a.ndim == 2:
            return np.full(b.shape, np.nan, b.dtype)
        return np.stack([each_solved(x, y) for x, y in zip(a, b, strict=True)])


SOLVE = Solve()


@final
@record
class Pinv(Linalg):
    """The pseudo-inverse, singular values of at most `rtol` times the largest taken for 0.

    a[..., m, n] -> [..., n, m]. Its derivative is that where the rank stays the same.
    """

    rtol: float
    name = "pinv"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0], square=False)
        return (a.with_shape((*a.shape[:-2], a.shape[-1], a.shape[-2])),)

    def reference(self, *arrays: Any) -> Any:
        return np.linalg.pinv(arrays[0], self.rtol)

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        (g,), (p,), (a,) = gradients(cts), ys, xs
        assert g is not None
        ap, pa, ph, gh = product(a, p), product(p, a), adjoint(p), adjoint(g)
        first = product(ph, product(g, ph))
        second = product(product(identity(ap) - ap, gh), product(p, ph))
        third = product(product(ph, p), product(gh, identity(pa) - pa))
        return [cotangent(second + third - first, a)]


# ------------------------------------------------------------------------------------- determinants


def vectors_of(types: Sequence[ArrayType]) -> ArrayType:
    return types[0].with_shape(types[0].shape[:-2])


@final
@record
class Det(Linalg):
    """The determinant: a[..., n, n] -> [...]. Its derivative needs the inverse."""

    name = "det"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        self.matrix(types[0])
        return (vectors_of(types),)

    def reference(self, *arrays: Any) -> Any:
        return np.linalg.det(arrays[0])

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        (ct,), (y,), (a,) = cts, ys, xs
        assert ct is not None
        return [SOLVE(transposed(a), diagonal_of(ct * y, a))]


@final
@record
class SlogDet(Linalg):
    """The sign of the determinant and the logarithm of its size: a[..., n, n]
    -> [...], real [...].
    """

    name = "slogdet"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        self.matrix(types[0])
        sign = vectors_of(types)
        return sign, sign.with_dtype(real_part(sign.dtype))

    def reference(self, *arrays: Any) -> Any:
        return tuple(np.linalg.slogdet(arrays[0]))

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        (turn, grow), (sign, _), (a,) = cts, ys, xs
        if a.dtype not in COMPLEX:
            return [None if grow is None else inverse_times(a, grow)]
        total: Value | None = None if grow is None else grow.cast(a.dtype)
        if turn is not None:  # of sign = exp(i t): its tangent is i sign times that of t
            around = -IMAG(turn * sign)
            turned: Value = COMPLEX_OF(around.zeros(), -around)
            total = turned if total is None else total + turned
        return [None if total is None else inverse_times(a, total)]


def inverse_times(a: Value, by: Value) -> Value:
    """The transposed inverse times a number for each matrix."""
    return SOLVE(transposed(a), diagonal_of(by, a))  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------- Cholesky


@final
@record
class Cholesky(Linalg):
    """The lower L of a = L @ L^H, of which only the lower triangle is read.

    LinAlgError if there is none.
    """

    name = "cholesky"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        return (a.with_shape(a.shape),)

    def reference(self, *arrays: Any) -> Any:
        return np.linalg.cholesky(arrays[0])

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        """S = L^-H P(L^H g) L^-1, where P takes what is below the
        diagonal and half of what is on it.
        """
        (g,), (y,), (a,) = gradients(cts), ys, xs
        assert g is not None
        inner = product(adjoint(y), g)
        half = below(inner) + on_diagonal(inner) * 0.5
        across = adjoint(y)
        s = SOLVE(across, adjoint(SOLVE(across, half)))
        whole = (s + adjoint(s)) * 0.5
        return [cotangent(read_of(whole), a)]
