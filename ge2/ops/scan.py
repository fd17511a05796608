"""Running sums, products and extremes along an axis.

The derivatives of products and extremes are linear recurrences, solved by halving in a
number of steps that grows with the logarithm of the axis; they hold with zeros and
ties, and can be differentiated again.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.dtypes import BOOL, COMPLEX64, COMPLEX128, FLOAT32, FLOAT64, HALF, accumulator
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import (
    ArrayType,
    Axes,
    Batched,
    Cotangents,
    Flags,
    Lowering,
    Op,
    Value,
    Values,
)


@record
class Scan(Lowering):
    """A running state begins at `start` and takes in element `{1}` by
    `merge`; each state is a result.
    """

    start: str
    merge: str


class Running(Op):
    """All partial results along `axis`, from its start or, with `reverse`, from its end."""

    __slots__ = ()
    may_alias = False
    axis: int
    reverse: bool
    ufunc: ClassVar[np.ufunc]

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if not 0 <= self.axis < x.ndim:
            raise ShapeError(
                f"{self.name} along axis {self.axis} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        if x.dtype == BOOL and self.ufunc in (np.add, np.multiply):
            raise TypeRuleError(f"{self.name} does not take {x}", fix="x.astype(int)")
        return (x.with_shape(x.shape),)

    def reference(self, *arrays: Any) -> Any:
        x = arrays[0].astype(accumulator(arrays[0].dtype), copy=False)
        if self.reverse:
            x = np.flip(x, self.axis)
        y = self.ufunc.accumulate(x, self.axis, dtype=x.dtype)
        return (np.flip(y, self.axis) if self.reverse else y).astype(arrays[0].dtype, copy=False)

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        along = self.axis + (self.axis >= axis)
        return (type(self)(along, self.reverse)(x),), (axis,)  # type: ignore[call-arg]

    def turned(self, x: Value) -> Value:
        """In the direction in which the results were made."""
        return x.reversed_along((self.axis,)) if self.reverse else x

    @abstractmethod
    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents: ...


def part(x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
    """x[start:stop:step] along one axis."""
    before, after = (0,) * axis, (0,) * (x.ndim - axis - 1)
    stops = (*x.shape[:axis], stop, *x.shape[axis + 1 :])
    ones = (1,) * x.ndim
    return x.sliced((*before, start, *after), stops, (*ones[:axis], step, *ones[axis + 1 :]))


def interleaved(even: Value, odd: Value, axis: int) -> Value:
    """even[0], odd[0], even[1], odd[1], ... for two of one shape."""
    shape = even.shape
    paired = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    both = even.reshaped(paired).joined([odd.reshaped(paired)], axis + 1)
    return both.reshaped((*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]))


def recurrence(a: Value, b: Value, axis: int) -> Value:
    """The solution of s[i] = b[i] + a[i] * s[i + 1], s[n - 1] = b[n - 1]; `a` is shorter by one.

    By halving: first the even places, each pair of steps taken as one,
    then the odd places from those.
    """
    n = b.shape[axis]
    if n < 2:
        return b
    odds, evens = n // 2, n - n // 2
    a0, a1 = part(a, axis, 0, n - 1, 2), part(a, axis, 1, n - 1, 2)
    b0, b1 = part(b, axis, 0, n, 2), part(b, axis, 1, n, 2)
    two_steps = part(b0, axis, 0, odds) + a0 * b1
    if odds < evens:
        two_steps = two_steps.joined([part(b0, axis, odds, evens)], axis)
    even = recurrence(part(a0, axis, 0, evens - 1) * a1, two_steps, axis)
    odd = part(b1, axis, 0, evens - 1) + a1 * part(even, axis, 1, evens)
    if odds < evens:
        return interleaved(part(even, axis, 0, odds), odd, axis).joined(
            [part(even, axis, odds, evens)], axis
        )
    return interleaved(even, odd.joined([part(b1, axis, evens - 1, evens)], axis), axis)


def forward(a: Value, b: Value, axis: int) -> Value:
    """The solution of s[i] = b[i] + a[i - 1] * s[i - 1], s[0] = b[0]."""
    back = (axis,)
    return recurrence(a.reversed_along(back), b.reversed_along(back), axis).reversed_along(back)


@final
@record
class CumSum(Running):
    axis: int
    reverse: bool = False
    name = "cumsum"
    ufunc = np.add
    lowering = Scan("0", "ge2_add({0}, {1})")
    linear = True

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        return [CumSum(self.axis, not self.reverse)(cts[0])]


@final
@record
class CumProd(Running):
    axis: int
    reverse: bool = False
    name = "cumprod"
    ufunc = np.multiply
    lowering = Scan("1", "ge2_mul({0}, {1})")

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """ct_x[i] = (product of all before i) * s[i], where s[i] = ct[i] + x[i + 1] * s[i + 1]."""
        (ct,), (x,) = cts, xs
        assert ct is not None
        if not x.shape[self.axis]:
            return [ct]
        wide, before = self.factors(x)
        factors = part(wide, self.axis, 1, x.shape[self.axis])
        s = recurrence(factors, self.turned(ct).cast(wide.dtype), self.axis)
        return [self.turned(before * s).cast(x.dtype)]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        """s[i] = t[i] * (product of all before i) + x[i] * s[i - 1]."""
        (t,), (x,) = ts, xs
        assert t is not None
        if not x.shape[self.axis]:
            return [t]
        wide, before = self.factors(x)
        factors = part(wide, self.axis, 1, x.shape[self.axis])
        s = forward(factors, before * self.turned(t).cast(wide.dtype), self.axis)
        return [self.turned(s).cast(x.dtype)]

    def factors(self, x: Value) -> tuple[Value, Value]:
        """The factors, and at each place the product of those before it, half types in float32."""
        wide = self.turned(x).cast(accumulator(x.dtype))
        n = x.shape[self.axis]
        products = CumProd(self.axis)(part(wide, self.axis, 0, n - 1))
        return wide, part(wide, self.axis, 0, 1).ones().joined([products], self.axis)


class RunningExtreme(Running):
    """The largest or smallest so far; equal winners share the cotangent."""

    __slots__ = ()

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """Results that are equal form runs; each result is owed to the
        winners so far of its run.
        """
        (ct,), (y,), (x,) = cts, ys, xs
        assert ct is not None
        axis, n, wide = self.axis, x.shape[self.axis], accumulator(x.dtype)
        if n < 2:
            return [ct]
        x, y, ct = self.turned(x), self.turned(y), self.turned(ct).cast(wide)
        won = x.same(y)
        # the run of i has i + 1 too
        goes_on = part(y, axis, 0, n - 1).same(part(y, axis, 1, n)).cast(wide)
        winners = forward(goes_on, won.cast(wide), axis)
        owed = recurrence(goes_on, ct / winners.same(0).select(winners.ones(), winners), axis)
        return [self.turned(won.select(owed, owed.zeros())).cast(xs[0].dtype)]


@final
@record
class CumMax(RunningExtreme):
    axis: int
    reverse: bool = False
    name = "cummax"
    ufunc = np.maximum
    lowering = Scan("ge2_lowest<T>()", "ge2_max({0}, {1})")


@final
@record
class CumMin(RunningExtreme):
    axis: int
    reverse: bool = False
    name = "cummin"
    ufunc = np.minimum
    lowering = Scan("ge2_highest<T>()", "ge2_min({0}, {1})")


def state_of(op: Running, dtype: np.dtype) -> np.dtype:
    """The type in which a scan is carried."""
    if isinstance(op, CumMax | CumMin):
        return accumulator(dtype)
    return (
        FLOAT64
        if dtype in HALF or dtype == FLOAT32
        else COMPLEX128
        if dtype == COMPLEX64
        else dtype
    )
