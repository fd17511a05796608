"""Equations, factors and determinants of matrices, which are the last two axes of an array.

The rules are written for gradients as textbooks have them (dL = Re sum(conj(g) dx)); a cotangent of
ours is the conjugate of that (docs/design/linalg.md), so `gradients` turns it on the way in and
`cotangent` back. Formulas: M. Giles, An extended collection of matrix derivative results (2008); I.
Murray, Differentiation of the Cholesky decomposition (2016); G. Golub, V. Pereyra, The
differentiation of pseudo-inverses (1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOAT32, FLOAT64, INT64, real_part
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axes, Batched, Cotangents, Flags, Op, Value, Values
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

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
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

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (y,), (a, _) = cts, ys, xs
        assert ct is not None
        ct_b = self(transposed(a), ct)
        return [-product(ct_b, transposed(y)) if wanted[0] else None, ct_b if wanted[1] else None]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
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
QUIET = Solve(quiet=True)  # for derivatives of what itself is no error for a singular matrix


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

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (g,), (p,), (a,) = gradients(cts), ys, xs
        assert g is not None
        if a.shape[-2] >= a.shape[-1]:
            return [cotangent(pinv_gradient(a, p, g), a)]
        back = pinv_gradient(adjoint(a), adjoint(p), adjoint(g))
        return [cotangent(adjoint(back), a)]


def pinv_gradient(a: Value, p: Value, g: Value) -> Value:
    """(1 - a p) g^H p p^H + p^H p g^H (1 - p a) - p^H g p^H of an a of no fewer rows than columns, in an
    order that makes no matrix of rows by rows.
    """
    ph, gh = adjoint(p), adjoint(g)
    across = product(gh - product(a, product(p, gh)), product(p, ph))
    beside = product(p, gh - product(gh, product(p, a)))
    return across + product(ph, beside - product(g, ph))


# ------------------------------------------------------------------------------------- determinants


def vectors_of(types: Sequence[ArrayType]) -> ArrayType:
    return types[0].with_shape(types[0].shape[:-2])


@final
@record
class Det(Linalg):
    """The determinant: a[..., n, n] -> [...]."""

    name = "det"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        self.matrix(types[0])
        return (vectors_of(types),)

    def reference(self, *arrays: Any) -> Any:
        return np.linalg.det(arrays[0])

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (a,) = cts, xs
        assert ct is not None
        return [along_rows(ct, a) * COFACTORS(a)]


@final
@record
class Cofactors(Linalg):
    """The gradient by a of the k-th derivative of det(a) along e1 to ek: all are [..., n, n].

    For k = 0 these are the cofactors. They are polynomials of a, whatever its rank, and linear in
    each direction; so a cotangent is one more direction, or stands in place of one.
    """

    name = "cofactors"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a = self.matrix(types[0])
        if any(t.with_shape(t.shape) != a.with_shape(a.shape) for t in types):
            raise TypeRuleError(f"cofactors takes matrices of one type; got {types}")
        return (a.with_shape(a.shape),)

    def reference(self, *arrays: Any) -> Any:
        a, *along = arrays
        fine = np.isfinite(sum(along, a)).all((-2, -1), keepdims=True)
        a, *ways = (np.where(fine, x, 0) for x in (a, *along))
        y = None if ways else regular_cofactors(a)
        if y is None:
            y = singular_cofactors(a, ways)
        return np.where(fine, y, np.nan).astype(a.dtype, copy=False)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,) = cts
        assert ct is not None
        places = [(*xs, ct), *((*xs[:i], ct, *xs[i + 1 :]) for i in range(1, len(xs)))]
        return [self(*given) if w else None for given, w in zip(places, wanted, strict=True)]


COFACTORS = Cofactors()


def regular_cofactors(a: Any) -> Any:
    """The determinants times the transposed inverses; None if one of the matrices is so near to a
    singular one that these two do not fit each other.
    """
    try:
        inverse = np.linalg.inv(a)
    except np.linalg.LinAlgError:
        return None
    sizes = [abs(x).sum(-1).max(-1, initial=0) for x in (a, inverse)]
    if not (sizes[0] * sizes[1] * np.finfo(a.dtype).eps ** 0.5 < 1).all():
        return None
    return np.linalg.det(a)[..., None, None] * inverse.swapaxes(-1, -2)


def singular_cofactors(a: Any, along: Sequence[Any]) -> Any:
    """By singular values, of matrices whose rows and columns were made of one size first."""
    powers = []
    for axis in (-1, -2):
        powers.append(np.exp2(np.frexp(abs(a).max(axis, keepdims=True, initial=0))[1]))
        a, *along = (x / powers[-1] for x in (a, *along))
    u, s, vh = np.linalg.svd(a)
    uh, v = (x.conj().swapaxes(-1, -2) for x in (u, vh))
    inner = diagonal_cofactors(s.astype(np.float64), [uh @ e @ v for e in along])
    row, column = (products_without(p.reshape(s.shape), 0) for p in powers)
    turn = np.linalg.det(u) * np.linalg.det(vh)
    size = turn[..., None, None] * row[..., :, None] * column[..., None, :]
    return size * (uh.swapaxes(-1, -2) @ inner @ v.swapaxes(-1, -2))


def diagonal_cofactors(s: Any, along: Sequence[Any]) -> Any:
    """The cofactors of diag(s) along directions: a sum over permutations of as many rows, and of
    the one that is left to the result.
    """
    k, n = len(along), s.shape[-1]
    names, weights = "abcdefghijklm"[: k + 1], products_without(s, k)
    total: Any = 0
    for order in permutations(range(k + 1)):
        sign = (-1) ** sum(i > j for i, j in combinations(order, 2))
        places = [names[m] + names[order[m]] for m in range(k + 1)]
        on_it = order[k] == k  # the diagonal
        path = ",...".join((f"...{names}", *places[:k])) + "->..." + places[k][on_it:]
        y = np.einsum(path, weights, *along, optimize=k > 1)
        total = total + sign * (y[..., None] * np.eye(n) if on_it else y)
    return total


def products_without(s: Any, k: int) -> Any:
    """The product of all s[..., i] but for k + 1 of them, by their numbers [..., i0, ..., ik]; 0
    where two of these are equal.
    """
    n, one = s.shape[-1], np.ones_like(s[..., :1])
    if not k:
        left = np.concatenate([one, s[..., :-1]], -1) if n else s
        right = np.concatenate([one, s[..., :0:-1]], -1) if n else s
        return left.cumprod(-1) * right.cumprod(-1)[..., ::-1]
    unit = np.eye(n, dtype=bool)
    y = products_without(np.where(unit, 1, s[..., None, :]), k - 1)
    for axis in range(1, k + 1):
        equal = unit.reshape(n, *(n if i == axis else 1 for i in range(1, k + 1)))
        y = np.where(equal, 0, y)
    return y


@final
@record
class SlogDet(Linalg):
    """The sign of the determinant and the logarithm of its size: a[..., n, n]
    -> [...], real [...]. A singular matrix has 0 and -inf, and NaN for a gradient.
    """

    name = "slogdet"
    several = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        self.matrix(types[0])
        sign = vectors_of(types)
        return sign, sign.with_dtype(real_part(sign.dtype))

    def reference(self, *arrays: Any) -> Any:
        return tuple(np.linalg.slogdet(arrays[0]))

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
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
    """The transposed inverse times a number for each matrix; NaN where there is none."""
    y: Value = QUIET(transposed(a), diagonal_of(by, a))
    return y


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

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
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
