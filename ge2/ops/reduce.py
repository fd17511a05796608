"""Reductions over axes, and cumulative sums, products and extremes."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, final

import numpy as np

from ge2.base.arrays import (
    BOOL,
    COMPLEX64,
    COMPLEX128,
    EXTENDED,
    FLOAT32,
    FLOAT64,
    HALF,
    INEXACT,
    INT64,
    accumulator,
)
from ge2.base.errors import ShapeError, TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Axes, Batched, Cotangents, Dims, Flags, Lowering, Op, Value, Values

# -------- Operations that fold axes away.


@record
class Fold(Lowering):
    """A running state begins at `start`, takes in elements by `lift` and other states by `merge`.

    `{0}` and `{1}` are two states, or in `lift` the element and its index along the folded axes.
    """

    start: str
    merge: str
    lift: str = "{0}"
    state: str = "{0}"  # the type of the state, from the accumulator's type
    read: str = "{0}"  # the result that a state holds
    take: str = ""  # a state that takes in an element for less than a merge
    several: str = ""  # the function that takes in an array of elements for less than one by one
    numbers: int = 1  # that a state consists of


def kept(axes: Dims, ndim: int) -> Dims:
    """The axes that a reduction over `axes` leaves."""
    return tuple(i for i in range(ndim) if i not in axes)


class Reduce(Op):
    """A reduction over `axes`, which leave the shape."""

    __slots__ = ()
    axes: Dims
    ufunc: ClassVar[np.ufunc]
    takes: ClassVar[frozenset[np.dtype] | None] = None
    neutral: ClassVar[float]  # the number that changes no other

    def neutral_of(self, dtype: np.dtype) -> Any:
        """The number of a dtype that changes no other: of integers the ends stand for infinities.

        >>> ReduceMax((0,)).neutral_of(np.dtype(np.int8)), ReduceSum((0,)).neutral_of(np.dtype("f4"))
        (-128, 0)
        """
        if dtype in INEXACT or math.isfinite(self.neutral):
            return self.neutral
        if dtype == BOOL:
            return self.neutral > 0
        return np.iinfo(dtype).max if self.neutral > 0 else np.iinfo(dtype).min

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if tuple(sorted(set(self.axes))) != self.axes or not set(self.axes) <= set(range(x.ndim)):
            raise ShapeError(
                f"{self.name} over axes {self.axes} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        if self.takes is not None and x.dtype not in self.takes:
            fix = "the function of ge2.numpy, which converts"
            raise TypeRuleError(f"{self.name} does not take {x}", fix=fix)
        return (x.with_shape(tuple(x.shape[i] for i in kept(self.axes, x.ndim))),)

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        if x.dtype not in HALF:
            return self.ufunc.reduce(x, axis=self.axes, dtype=x.dtype)
        return self.ufunc.reduce(x.astype(FLOAT32), axis=self.axes).astype(x.dtype)

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        over = type(self)(tuple(a + (a >= axis) for a in self.axes))  # type: ignore[call-arg]
        return (over(x),), (axis - sum(a < axis for a in over.axes),)

    def spread(self, y: Value, x: Value) -> Value:
        """Gives the result `y` the shape of the input `x` again."""
        return y.spread(x.shape, kept(self.axes, x.ndim))


@final
@record
class ReduceSum(Reduce):
    axes: Dims
    name = "reduce_sum"
    ufunc = np.add
    lowering = Fold(start="0", merge="ge2_add({0}, {1})")
    neutral = 0
    linear = True

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        assert cts[0] is not None
        return [self.spread(cts[0], xs[0])]


@final
@record
class ReduceProd(Reduce):
    axes: Dims
    name = "reduce_prod"
    ufunc = np.multiply
    lowering = Fold(start="1", merge="ge2_mul({0}, {1})")
    neutral = 1

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """The products of all the others, by halving: right with zeros
        too, and differentiable again.
        """
        (ct,), (x,) = cts, xs
        assert ct is not None
        order = (*self.axes, *kept(self.axes, x.ndim))
        turned = x.reorder(order)
        rest = turned.shape[len(self.axes) :]
        flat = turned.reshaped((int(np.prod(turned.shape[: len(self.axes)])), *rest))
        others = product_of_others(flat, ct)
        back = tuple(order.index(i) for i in range(x.ndim))
        return [others.reshaped(turned.shape).reorder(back)]


def product_of_others(x: Value, ct: Value) -> Value:
    """`ct` times the product of all elements along axis 0 but the one at each place."""
    n, rest = x.shape[0], x.shape[1:]
    if n == 0:
        return x
    if n == 1:
        return ct.reshaped((1, *rest))
    half, ndim = (n + 1) // 2, x.ndim
    first = x.sliced((0,) * ndim, (half, *rest), (1,) * ndim)
    second = x.sliced((half,) + (0,) * (ndim - 1), x.shape, (1,) * ndim)
    if n % 2:
        one = first.sliced((0,) * ndim, (1, *rest), (1,) * ndim).ones()
        second = second.joined([one], 0)
    others = product_of_others(first * second, ct)
    both = (others * second).joined([others * first], 0)
    return both.sliced((0,) * ndim, x.shape, (1,) * ndim) if n % 2 else both


class Extreme(Reduce):
    """The largest or smallest; equal winners share the cotangent."""

    __slots__ = ()
    exact = True

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        found = super().infer(*types)
        if any(types[0].shape[a] == 0 for a in self.axes):
            what = f"{self.name} over axes {self.axes} of {types[0]}: an empty axis has no extreme"
            raise ShapeError(what, fix="initial=")
        return found

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        (ct,), (y,), (x,) = cts, ys, xs
        assert ct is not None
        wide = accumulator(x.dtype)
        winners = x.same(self.spread(y, x)).cast(wide)  # float16 cannot count beyond 65504
        return [
            (winners * self.spread(ct.cast(wide) / winners.fold_sum(self.axes), x)).cast(x.dtype)
        ]


@final
@record
class ReduceMax(Extreme):
    axes: Dims
    name = "reduce_max"
    ufunc = np.maximum
    lowering = Fold(start="ge2_lowest<T>()", merge="ge2_max({0}, {1})")
    neutral = -math.inf


@final
@record
class ReduceMin(Extreme):
    axes: Dims
    name = "reduce_min"
    ufunc = np.minimum
    lowering = Fold(start="ge2_highest<T>()", merge="ge2_min({0}, {1})")
    neutral = math.inf


# What passes make of two folds, when derivatives are done.


@final
@record
class ReduceSumExp(Reduce):
    """The sum of exp(x - m), where m is the largest element; not a number where m is not finite."""

    axes: Dims
    name = "reduce_sum_exp"
    takes = frozenset((FLOAT32, FLOAT64))
    lowering = Fold(
        "ge2_no_exps<T>()", "ge2_add_exps({0}, {1})", "ge2_exp_of({0})", "ge2_exps<{0}>",
        "ge2_sum_of_exps({0})", several="ge2_take_exps", numbers=3,
    )  # fmt: skip
    neutral = -math.inf

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        with np.errstate(invalid="ignore"):
            return np.exp(x - x.max(self.axes, keepdims=True)).sum(self.axes, dtype=x.dtype)


@final
@record
class ReduceDeviations(Reduce):
    """The sum of (x - m)^2, where m is the mean: one read of x, where m is not known before
    (B. Welford, Note on a method for calculating corrected sums of squares and products, 1962; of
    parts: T. Chan, G. Golub and R. LeVeque, Updating formulae and a pairwise algorithm, 1979).
    """

    axes: Dims
    name = "reduce_deviations"
    takes = frozenset((FLOAT32, FLOAT64))
    lowering = Fold(
        "ge2_no_deviations<T>()", "ge2_add_deviations({0}, {1})", "ge2_deviation_of({0})",
        "ge2_deviations<{0}>", "ge2_sum_of_deviations({0})", "ge2_take_deviation({0}, {1})", "ge2_take_deviations", 4,
    )  # fmt: skip
    neutral = math.nan  # none: there is no number that leaves the mean as it is

    def reference(self, *arrays: Any) -> Any:
        (x,) = arrays
        with np.errstate(invalid="ignore", over="ignore"):
            return np.square(x - x.mean(self.axes, keepdims=True)).sum(self.axes, dtype=x.dtype)


class Logical(Reduce):
    __slots__ = ()
    takes = frozenset((BOOL,))


@final
@record
class ReduceOr(Logical):
    axes: Dims
    name = "reduce_or"
    ufunc = np.logical_or
    lowering = Fold(start="false", merge="{0} | {1}")
    neutral = False


@final
@record
class ReduceAnd(Logical):
    axes: Dims
    name = "reduce_and"
    ufunc = np.logical_and
    lowering = Fold(start="true", merge="{0} & {1}")
    neutral = 1


class ArgReduce(Op):
    """The index of the first extreme along one axis, as int64; a NaN is an extreme, as in NumPy."""

    __slots__ = ()
    may_alias = False
    axis: int
    function: ClassVar[Any]

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if not 0 <= self.axis < x.ndim:
            raise ShapeError(
                f"{self.name} over axis {self.axis} of {x}, which has axes 0 to {x.ndim - 1}"
            )
        if x.shape[self.axis] == 0:
            raise ShapeError(f"{self.name} of {x}: an empty axis has no extreme")
        return (ArrayType(x.shape[: self.axis] + x.shape[self.axis + 1 :], INT64),)

    def reference(self, *arrays: Any) -> Any:
        x = arrays[0].astype(FLOAT32) if arrays[0].dtype in EXTENDED else arrays[0]
        return type(self).function(x, axis=self.axis)

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        (x,), (axis,) = xs, axes
        assert axis is not None
        over = self.axis + (self.axis >= axis)
        return (type(self)(over)(x),), (axis - (over < axis),)  # type: ignore[call-arg]


@final
@record
class ArgMax(ArgReduce):
    axis: int
    name = "argmax"
    function = staticmethod(np.argmax)
    lowering = Fold(
        "ge2_first<T>()",
        "ge2_argmax({0}, {1})",
        "ge2_at({0}, {1})",
        "ge2_indexed<{0}>",
        "{0}.index",
    )


@final
@record
class ArgMin(ArgReduce):
    axis: int
    name = "argmin"
    function = staticmethod(np.argmin)
    lowering = Fold(
        "ge2_first<T>()",
        "ge2_argmin({0}, {1})",
        "ge2_at({0}, {1})",
        "ge2_indexed<{0}>",
        "{0}.index",
    )


# -------- Running sums, products and extremes along an axis.
# The derivatives of products and extremes are linear recurrences, solved by halving in a number of
# steps that grows with the logarithm of the axis; they hold with zeros and ties, and can be
# differentiated again.


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


def recurrence(a: Value, b: Value, axis: int, reverse: bool = False) -> Value:
    """The solution of s[i] = b[i] + a[i - 1] * s[i - 1], s[0] = b[0]; with `reverse` of
    s[i] = b[i] + a[i] * s[i + 1], s[n - 1] = b[n - 1]. `a` is shorter by one.
    """
    from ge2.ops.graphs.associative import solved  # which is made of these operations

    return solved(a, b, axis, reverse)


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
        s = recurrence(factors, self.turned(ct).cast(wide.dtype), self.axis, reverse=True)
        return [self.turned(before * s).cast(x.dtype)]

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        """s[i] = t[i] * (product of all before i) + x[i] * s[i - 1]."""
        (t,), (x,) = ts, xs
        assert t is not None
        if not x.shape[self.axis]:
            return [t]
        wide, before = self.factors(x)
        factors = part(wide, self.axis, 1, x.shape[self.axis])
        s = recurrence(factors, before * self.turned(t).cast(wide.dtype), self.axis)
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
        winners = recurrence(goes_on, won.cast(wide), axis)
        share = ct / winners.same(0).select(winners.ones(), winners)
        owed = recurrence(goes_on, share, axis, reverse=True)
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
