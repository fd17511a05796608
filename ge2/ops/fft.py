"""Discrete Fourier transforms without a factor: complex to complex, real to
complex, complex to real.

They are linear: their tangents are themselves, and their cotangents the same sums over
the other index. The norms, lengths and shapes of `numpy.fft` are the business of
functions made of these (ge2/numpy/fft.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ge2.base.dtypes import COMPLEX, FLOAT32, FLOAT64, INT64, complex_of, real_part
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axis, Batched, Cotangents, Dims, Flags, Op, Value


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

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        return [self(cts[0])]  # the matrix is symmetric

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        return (Fft(tuple(a + (a >= axis) for a in self.axes), self.inverse)(x),), (axis,)


def weighted(x: Value, axis: int, n: int, inner: float) -> Value:
    """`x` times `inner`, but where a frequency of n real numbers is its own mirror image:

    0, and n / 2.
    """
    at = x.count(x.shape, axis, INT64)
    once = at.same(0) if n % 2 else at.same(0).pointwise("or", at.same(n // 2))
    return once.select(x, x * inner)


@final
@record
class Rfft(Op):
    """The first N // 2 + 1 results of `fft` of N real numbers along an
    axis; the others mirror them.
    """

    axis: int
    name = "rfft"
    may_alias = False
    linear = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in (FLOAT32, FLOAT64):
            what = f"rfft takes arrays of float32 or float64; got {x}"
            raise TypeRuleError(what, fix="np.fft.rfft, which casts")
        check_axis(self, x, self.axis)
        return (resized(x, self.axis, x.shape[self.axis] // 2 + 1, complex_of(x.dtype)),)

    def reference(self, *arrays: Any) -> Any:
        return self.by(np, *arrays)

    def by(self, xp: Any, x: Any) -> Any:
        """The transform by the functions of an array module."""
        if not x.size:
            (y,) = self.infer(ArrayType(x.shape, x.dtype))
            return xp.zeros(y.shape, y.dtype)
        return xp.fft.rfft(x, axis=self.axis)

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        """The real part of the sum over k of ct[k] exp(-2 pi i k n / N), as the
        inverse of its conjugate.
        """
        (ct,), n = cts, xs[0].shape[self.axis]
        assert ct is not None
        return [Irfft(self.axis, n)(weighted(ct.conj(), self.axis, n, 0.5))]

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        return (Rfft(self.axis + (self.axis >= axis))(x),), (axis,)


@final
@record
class Irfft(Op):
    """The `n` real numbers that are n times those of which `rfft` makes this, along an axis.

    Imaginary parts of what must be real, the first and for even n the last, are not read.
    """

    axis: int
    n: int
    name = "irfft"
    may_alias = False
    linear = True

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

    def reference(self, *arrays: Any) -> Any:
        return self.by(np, *arrays)

    def by(self, xp: Any, x: Any) -> Any:
        """The transform by the functions of an array module."""
        if not x.size:
            (y,) = self.infer(ArrayType(x.shape, x.dtype))
            return xp.zeros(y.shape, y.dtype)
        return xp.fft.irfft(x, self.n, self.axis, norm="forward")

    def vjp(
        self, cts: Cotangents, ys: Sequence[Value], xs: Sequence[Value], wanted: Flags
    ) -> Cotangents:
        (ct,) = cts
        return [weighted(Rfft(self.axis)(ct).conj(), self.axis, self.n, 2.0)]

    def batch(self, xs: Sequence[Value], axes: Sequence[Axis], size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        return (Irfft(self.axis + (self.axis >= axis), self.n)(x),), (axis,)
