"""The product of two arrays, summed over the axes they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from string import ascii_letters
from typing import Any, cast, final

import numpy as np

from ge2.base.arrays import (
    BYTES,
    COMPLEX,
    FLOAT32,
    FLOAT64,
    FP8,
    HALF,
    INT64,
    accumulator,
    complex_of,
    real_part,
)
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axis,
    Batched,
    Cotangents,
    Dims,
    Eqn,
    Flags,
    Lowering,
    Op,
    Value,
    Values,
)

PRECISIONS = (None, "highest", "tf32", "bf16", "half", "fp8")


@record
class Contraction(Lowering):
    """A matrix product: any kernel that multiplies matrices may serve."""


@final
@record
class DotGeneral(Op):
    """Axes `contract` are summed over and axes `beside` kept side by side, each as (of a, of b).

    The result has the axes beside, then the free axes of `a`, then those of `b`. Half types are
    accumulated in float32 and rounded once, or not at all if `out` asks for float32. `precision`
    says how float32 may be multiplied: None and "highest" are IEEE, "tf32" and "bf16" let a target
    with such units use them, and "fp8" lets products of fp8 be summed as units of that do it, which keep
    some 14 bits; arrays of fp8, and of bytes, may be of both types, if `out` says of which the result
    is. "half" is of operands of half types: those of its derivatives are rounded to their dtype, too, which a float32
    cotangent would else be multiplied in.
    """

    contract: tuple[Dims, Dims]
    beside: tuple[Dims, Dims] = ((), ())
    precision: str | None = None
    out: np.dtype | None = None
    name = "dot_general"
    may_alias = False
    lowering = Contraction()

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        a, b = types
        mixed = self.out is not None and {a.dtype, b.dtype} in ({*FP8}, BYTES)
        if a.dtype != b.dtype and not mixed:
            what = f"dot_general takes arrays of one dtype; got {a}, {b}"
            raise TypeRuleError(what, fix="np.matmul, which promotes")
        if self.precision not in PRECISIONS:
            raise TypeRuleError(f"precision is one of {PRECISIONS}; got {self.precision!r}")
        for role, (of_a, of_b) in (("contract", self.contract), ("beside", self.beside)):
            left, right = [a.shape[i] for i in of_a], [b.shape[i] for i in of_b]
            if left != right:
                what = f"dot_general: {role} axes {of_a} of {a} have sizes {left}"
                raise ShapeError(f"{what}, but axes {of_b} of {b} have {right}")
        free_a, free_b = self.free(a, b)
        batch = (a.shape[i] for i in self.beside[0])
        shape = (*batch, *(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))
        return (ArrayType(shape, a.dtype if self.out is None else self.out),)

    def reference(self, *arrays: Any) -> Any:
        a, b = arrays
        dtype = a.dtype if self.out is None else self.out
        wide = np.result_type(accumulator(a.dtype), accumulator(dtype))
        left, right, shape = self.matrices(a, b)
        y = np.matmul(left.astype(wide, copy=False), right.astype(wide, copy=False))
        return np.reshape(y, shape).astype(dtype, copy=False)

    def matrices(self, a: Any, b: Any) -> tuple[Any, Any, Dims]:
        """As [batch, m, k] and [batch, k, n], and the shape of their product."""
        free_a, free_b = self.free(a, b)
        beside, rows, columns = sizes(a, self.beside[0]), sizes(a, free_a), sizes(b, free_b)
        m, n, k = math.prod(rows), math.prod(columns), math.prod(sizes(a, self.contract[0]))
        batch = (math.prod(beside),) if beside else ()
        left = np.transpose(a, (*self.beside[0], *free_a, *self.contract[0])).reshape(
            (*batch, m, k)
        )
        right = np.transpose(b, (*self.beside[1], *self.contract[1], *free_b)).reshape(
            (*batch, k, n)
        )
        return left, right, (*beside, *rows, *columns)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (a, b) = cts, xs
        assert ct is not None
        ct = ct.cast(a.dtype) if self.precision == "half" and a.dtype in HALF else ct
        names_a, names_b, names_y = self.spell(a, b)
        ct_a = (
            self.einsum(names_y, names_b, names_a, ct, b.cast(ct.dtype), a.dtype)
            if wanted[0]
            else None
        )
        ct_b = (
            self.einsum(names_y, names_a, names_b, ct, a.cast(ct.dtype), b.dtype)
            if wanted[1]
            else None
        )
        return [ct_a, ct_b]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        (ta, tb), (a, b) = ts, xs
        if ta is None:
            return [self(a, tb)]
        return [self(ta, b) if tb is None else self(ta, b) + self(a, tb)]

    def batch(self, xs: Values, axes: Sequence[Axis], size: int) -> Batched:
        a, b = xs
        names_a, names_b, names_y = (list(names) for names in self.spell(a, b, axes))
        for names, axis in ((names_a, axes[0]), (names_b, axes[1])):
            if axis is not None:
                names.insert(axis, "Z")
        y = self.einsum("".join(names_a), "".join(names_b), "Z" + "".join(names_y), a, b, self.out)
        return (y,), (0,)

    def free(self, a: Any, b: Any) -> tuple[Dims, Dims]:
        free_a = tuple(i for i in range(a.ndim) if i not in self.contract[0] + self.beside[0])
        return free_a, tuple(i for i in range(b.ndim) if i not in self.contract[1] + self.beside[1])

    def spell(self, a: Any, b: Any, axes: Sequence[Axis] = (None, None)) -> tuple[str, str, str]:
        """The operation in the letters of einsum, its own batch axis left out."""
        rank_a, rank_b = (x.ndim - (axis is not None) for x, axis in zip((a, b), axes, strict=True))
        names_a = list(ascii_letters[:rank_a])
        names_b = list(ascii_letters[rank_a : rank_a + rank_b])
        for of_a, of_b in (self.contract, self.beside):
            for i, j in zip(of_a, of_b, strict=True):
                names_b[j] = names_a[i]
        shared, gone = [names_a[i] for i in self.beside[0]], {names_a[i] for i in self.contract[0]}
        own = [n for n in (*names_a, *names_b) if n not in gone and n not in shared]
        return "".join(names_a), "".join(names_b), "".join((*shared, *own))

    def einsum(
        self, names_a: str, names_b: str, names_y: str, a: Value, b: Value, out: np.dtype | None
    ) -> Value:
        """The product in which letters shared by both inputs are batched if
        kept, else summed over.
        """
        shared = [n for n in names_a if n in names_b]
        batch = [n for n in shared if n in names_y]
        contract = [n for n in shared if n not in names_y]
        pairs = [
            (places(names_a, letters), places(names_b, letters)) for letters in (contract, batch)
        ]
        y = a.dot(b, *pairs, precision=self.precision, out=None if out == a.dtype else out)
        got = [*batch, *(n for n in (*names_a, *names_b) if n not in shared)]
        return y.reorder(places(got, names_y))


def is_outer(eqn: Eqn) -> bool:
    """True of products of which each element is one: the derivative of a product of vectors."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.contract[0] or op.precision in ("tf32", "bf16"):
        return False
    return {x.type.dtype for x in (*eqn.inputs, *eqn.outs)} in ({FLOAT32}, {FLOAT64})


def sizes(x: Any, axes: Dims) -> Dims:
    return tuple(x.shape[i] for i in axes)


def places(names: Sequence[str], letters: Iterable[str]) -> Dims:
    return tuple(names.index(n) for n in letters)


# --------------------------------------------------------------------------------------------- fft
# Discrete Fourier transforms without a factor: complex to complex, real to
# complex, complex to real.
#
# They are linear: their tangents are themselves, and their cotangents the same sums over
# the other index. The norms, lengths and shapes of `numpy.fft` are the business of
# functions made of these (ge2/numpy/fft.py).


def check_axis(op: Op, x: ArrayType, axis: int) -> None:
    if not 0 <= axis < x.ndim or not x.shape[axis]:
        raise ShapeError(
            f"{op.name} along axis {axis} of {x}", fix="an axis of at least one element"
        )


def resized(x: ArrayType, axis: int, n: int, dtype: np.dtype) -> ArrayType:
    return ArrayType((*x.shape[:axis], n, *x.shape[axis + 1 :]), dtype)


@final
@record
class Fft(Op):
    """y[k] = sum over n of x[n] exp(-2 pi i k n / N) along each axis; if
    `inverse`, exp(2 pi i k n / N).
    """

    axes: Dims
    inverse: bool = False
    name = "fft"
    may_alias = False
    linear = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in COMPLEX:
            raise TypeRuleError(f"fft takes complex arrays; got {x}", fix="np.fft.fft, which casts")
        for axis in self.axes:
            check_axis(self, x, axis)
        return (x.with_shape(x.shape),)

    def reference(self, *arrays: Any) -> Any:
        return self.by(np, *arrays)

    def by(self, xp: Any, x: Any) -> Any:
        """The transform by the functions of an array module."""
        if not x.size or not self.axes:
            return x.copy()
        if self.inverse:
            return xp.fft.ifftn(x, axes=self.axes, norm="forward")
        return xp.fft.fftn(x, axes=self.axes)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [self(cts[0])]  # the matrix is symmetric

    def batch(self, xs: Values, axes: Sequence[Axis], size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        return (Fft(tuple(a + (a >= axis) for a in self.axes), self.inverse)(x),), (axis,)


class OfAxis(Op):
    """A transform between real numbers along an axis and their frequencies."""

    __slots__ = ()
    axis: int
    may_alias = False
    linear = True

    def reference(self, *arrays: Any) -> Any:
        return self.by(np, *arrays)

    def by(self, xp: Any, x: Any) -> Any:
        """The transform by the functions of an array module."""
        if x.size:
            return self.transformed(xp.fft, x)
        (y,) = self.infer(ArrayType(x.shape, x.dtype))
        return xp.zeros(y.shape, y.dtype)

    @abstractmethod
    def transformed(self, fft: Any, x: Any) -> Any:
        """The transform by the functions of a module such as `numpy.fft`."""

    def batch(self, xs: Values, axes: Sequence[Axis], size: int) -> Batched:
        (x,), (axis,), op = xs, axes, cast(Any, self)
        assert axis is not None
        return (replace(op, axis=self.axis + (self.axis >= axis))(x),), (axis,)


def weighted(x: Value, axis: int, n: int, inner: float) -> Value:
    """`x` times `inner`, but where a frequency of n real numbers is its own mirror image:

    0, and n / 2.
    """
    at = x.count(x.shape, axis, INT64)
    once = at.same(0) if n % 2 else at.same(0).pointwise("or", at.same(n // 2))
    return once.select(x, x * inner)


@final
@record
class Rfft(OfAxis):
    """The first N // 2 + 1 results of `fft` of N real numbers along an
    axis; the others mirror them.
    """

    axis: int
    name = "rfft"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in (FLOAT32, FLOAT64):
            what = f"rfft takes arrays of float32 or float64; got {x}"
            raise TypeRuleError(what, fix="np.fft.rfft, which casts")
        check_axis(self, x, self.axis)
        return (resized(x, self.axis, x.shape[self.axis] // 2 + 1, complex_of(x.dtype)),)

    def transformed(self, fft: Any, x: Any) -> Any:
        return fft.rfft(x, axis=self.axis)

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """The real part of the sum over k of ct[k] exp(-2 pi i k n / N), as the
        inverse of its conjugate.
        """
        (ct,), n = cts, xs[0].shape[self.axis]
        assert ct is not None
        return [Irfft(self.axis, n)(weighted(ct.conj(), self.axis, n, 0.5))]


@final
@record
class Irfft(OfAxis):
    """The `n` real numbers that are n times those of which `rfft` makes this, along an axis.

    Imaginary parts of what must be real, the first and for even n the last, are not read.
    """

    axis: int
    n: int
    name = "irfft"

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in COMPLEX:
            raise TypeRuleError(
                f"irfft takes complex arrays; got {x}", fix="np.fft.irfft, which casts"
            )
        check_axis(self, x, self.axis)
        if self.n < 1 or x.shape[self.axis] != self.n // 2 + 1:
            what = f"irfft of {x} along axis {self.axis} to {self.n} numbers"
            raise ShapeError(what, fix=f"an axis of {self.n // 2 + 1}")
        return (resized(x, self.axis, self.n, real_part(x.dtype)),)

    def transformed(self, fft: Any, x: Any) -> Any:
        return fft.irfft(x, self.n, self.axis, norm="forward")

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,) = cts
        return [weighted(Rfft(self.axis)(ct).conj(), self.axis, self.n, 2.0)]
