"""The product of two arrays, summed over the axes they share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from string import ascii_letters
from typing import Any, Final, cast, final

import numpy as np

from ge2.base.arrays import (
    BYTES,
    COMPLEX,
    FLOAT32,
    FLOAT64,
    FLOATS,
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
    Atom,
    Axis,
    Batched,
    Cotangents,
    Dims,
    Eqn,
    Flags,
    Graph,
    Lowering,
    Op,
    Value,
    Values,
    Var,
    applied,
    without_dead_code,
)
from ge2.ops.elementwise import ADD, DIV, MUL, NEG, SUB, ConvertElementType
from ge2.ops.shape import BroadcastInDim, Reshape, Slice, Transpose

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


# -------- Products of what is made of several arrays, as work on the products of each.


Paired = tuple[Dims, Dims, Dims, Dims]  # contract and beside, of weights and of values


SAME: Final = (DotGeneral, ConvertElementType, Transpose)  # of which a product of one array is


@final
class Parts:
    """The product of weights and values, where weights are sums, differences and parts of others, each
    times a number of its row: as such work on the products of others. `weights`: what those may be;
    `leaves`: their products; `eqns`: what makes them and the result.
    """

    def __init__(self, makers: Mapping[Atom, Eqn], weights: Set[Atom], dot: Eqn, side: int) -> None:
        self.makers, self.weights, self.dot, self.side = makers, weights, dot, side
        self.eqns, self.leaves = list[Eqn](), list[Var]()
        self.known: dict[tuple[object, ...], Atom] = {}

    def run(self) -> bool:
        """True if it is the product of more than what it was."""
        op, side, dot = self.dot.op, self.side, self.dot
        assert isinstance(op, DotGeneral)
        self.precision, self.out = op.precision, op.out
        axes = op.contract[side], op.contract[1 - side], op.beside[side], op.beside[1 - side]
        a, v = dot.inputs[side], dot.inputs[1 - side]
        y = self.product(a, axes, v) if len(axes[0]) == 1 else None
        if y is None or all(isinstance(e.op, SAME) for e in self.eqns):
            return False
        first, mine = len(axes[2]), a.type.ndim - 1 - len(axes[2])
        last = y.type.ndim
        if side:
            order = (*range(first), *range(first + mine, last), *range(first, first + mine))
            y = self.add(Transpose(order), y)
        y = self.add(ConvertElementType(dot.outs[0].type.dtype), y)
        self.eqns[-1] = replace(self.eqns[-1], outs=dot.outs)
        return True

    def add(self, op: Op, *inputs: Atom) -> Var:
        """The result of an operation, the same for the same."""
        key = op, *inputs
        if key not in self.known or isinstance(op, ConvertElementType):
            self.known[key] = applied(self.eqns, op, *inputs, source=self.dot.source)
        return cast(Var, self.known[key])

    def product(self, a: Atom, axes: Paired, v: Atom) -> Atom | None:
        """The product, in the type of the weights: axes beside, free ones of the weights, those of v."""
        e = self.makers.get(a)
        if e is None or a not in self.weights:
            return None
        key = "product", a, axes, v
        if key not in self.known:
            found = self.made(e, a, axes, v)
            if found is None:
                return None
            self.known[key] = found
        return self.known[key]

    def made(self, e: Eqn, a: Atom, axes: Paired, v: Atom) -> Atom | None:
        op, x = e.op, e.inputs
        mine = [n in self.weights for n in x]
        if isinstance(op, ConvertElementType) and op.dtype in FLOATS:
            y = self.product(x[0], axes, v)
            return y if y is None or y.type.dtype == op.dtype else self.add(op, y)
        if op in (ADD, SUB, NEG) and all(mine):
            ys = [self.product(each, axes, v) for each in x]
            return None if None in ys else self.add(op, *cast(list[Atom], ys))
        if (op is MUL and sum(mine) == 1) or (op is DIV and mine == [True, False]):
            n = mine.index(True)
            number = self.of_row(x[1 - n], a.type.ndim, axes, v)
            y = None if number is None else self.product(x[n], axes, v)
            if y is None or number is None:
                return self.leaf(a, axes, v)
            by = self.repeated(*number, y.type.shape)
            return self.add(op, *((y, by) if n == 0 else (by, y)))
        if isinstance(op, Transpose):
            return self.turned(op, x[0], axes, v)
        if isinstance(op, Slice):
            return self.sliced(op, x[0], axes, v) or self.leaf(a, axes, v)
        if isinstance(op, Reshape):
            return self.reshaped(x[0], a.type.shape, axes, v) or self.leaf(a, axes, v)
        return self.leaf(a, axes, v)

    def leaf(self, a: Atom, axes: Paired, v: Atom) -> Atom:
        over, v_over, beside, v_beside = axes
        dtype, own = v.type.dtype, a.type.dtype
        given = a if own == dtype else self.add(ConvertElementType(dtype), a)
        op = DotGeneral((over, v_over), (beside, v_beside), self.precision, self.out)
        y = self.add(op, given, v)
        self.leaves += [] if y in self.leaves else [y]
        return y if y.type.dtype == own else self.add(ConvertElementType(own), y)

    def place(self, axis: int, rank: int, axes: Paired) -> int:
        """The axis of the product that one of the weights is."""
        over, _, beside, _ = axes
        free = [n for n in range(rank) if n not in (*over, *beside)]
        return beside.index(axis) if axis in beside else len(beside) + free.index(axis)

    def of_row(self, a: Atom, rank: int, axes: Paired, v: Atom) -> tuple[Atom, Dims] | None:
        """An array that repeats along the keys, and the axes of the product that its own are."""
        if not a.type.shape:
            return a, ()
        e = self.makers.get(a)
        if e is None or not isinstance(e.op, BroadcastInDim) or axes[0][0] in e.op.dims:
            return None
        places = tuple(self.place(n, rank, axes) for n in e.op.dims)
        return (e.inputs[0], places) if places == tuple(sorted(places)) else None

    def repeated(self, a: Atom, places: Dims, shape: Dims) -> Atom:
        return self.add(BroadcastInDim(shape, places), a) if a.type.shape else a

    def turned(self, op: Transpose, x: Atom, axes: Paired, v: Atom) -> Atom | None:
        over, v_over, beside, v_beside = axes
        inner = (
            tuple(op.order[n] for n in over),
            v_over,
            tuple(op.order[n] for n in beside),
            v_beside,
        )
        y, rank = self.product(x, inner, v), len(op.order)
        if y is None:
            return None
        wanted = [*beside, *(n for n in range(rank) if n not in (*over, *beside))]
        order = [self.place(op.order[n], rank, inner) for n in wanted]
        return self.add(Transpose((*order, *range(len(order), y.type.ndim))), y)

    def sliced(self, op: Slice, x: Atom, axes: Paired, v: Atom) -> Atom | None:
        """A part of the weights along one axis: that part of the product, if v is repeated to all."""
        shape = x.type.shape
        parts = zip(op.start, op.stop, op.step, shape, strict=True)
        cut = [n for n, part in enumerate(parts) if part[:3] != (0, part[3], 1)]
        if len(cut) != 1 or cut[0] in axes[0]:
            return None
        (p,) = cut
        start, step, size = op.start[p], op.step[p], op.infer(x.type)[0].shape[p]
        if p in axes[2]:
            n, t = axes[3][axes[2].index(p)], v.type.shape
            times = shape[p] // size
            if times * size != shape[p] or (step != times and (step != 1 or start % size)):
                return None
            whole = (size, times) if step == times > 1 else (times, size)
            dims = (*range(n), n + (step == 1), *range(n + 2, len(t) + 1))
            v = self.add(BroadcastInDim((*t[:n], *whole, *t[n + 1 :]), dims), v)
            v = self.add(Reshape((*t[:n], shape[p], *t[n + 1 :])), v)
        y = self.product(x, axes, v)
        if y is None:
            return None
        at, stops = self.place(p, len(shape), axes), list(y.type.shape)
        starts, steps = [0] * len(stops), [1] * len(stops)
        starts[at], stops[at], steps[at] = start, op.stop[p], step
        return self.add(Slice(tuple(starts), tuple(stops), tuple(steps)), y)

    def reshaped(self, x: Atom, shape: Dims, axes: Paired, v: Atom) -> Atom | None:
        """Weights that lose axes of size 1, or one of whose axes is split."""
        old = x.type.shape
        to, places = {}, iter(enumerate(old))
        for n, size in enumerate(shape):  # the axis of x that each is
            to[n] = next((m for m, k in places if k == size or k != 1), -1)
            if to[n] < 0 or old[to[n]] != size:
                return self.split(x, shape, axes, v)
        if any(k != 1 for _, k in places):
            return None
        over, v_over, beside, v_beside = axes
        inner = tuple(to[n] for n in over), v_over, tuple(to[n] for n in beside), v_beside
        y = self.product(x, inner, v)
        lost = [m for m in range(len(old)) if m not in to.values()]
        if y is None:
            return None
        gone = {self.place(m, len(old), inner) for m in lost}
        return self.add(Reshape(tuple(k for n, k in enumerate(y.type.shape) if n not in gone)), y)

    def split(self, x: Atom, shape: Dims, axes: Paired, v: Atom) -> Atom | None:
        """Weights one of whose axes is several, of which values may have some: they are repeated."""
        old, over, v_over, beside, v_beside = x.type.shape, *axes
        more = len(shape) - len(old)
        p = next((n for n, k in enumerate(old) if k != shape[n]), -1)
        group = range(p, p + more + 1)
        if more < 1 or p < 0 or (*old[:p], *shape[p : p + more + 1], *old[p + 1 :]) != shape:
            return None
        if math.prod(shape[n] for n in group) != old[p] or over[0] in group:
            return None
        back = {n: n if n < p else p if n in group else n - more for n in range(len(shape))}
        mine = [n for n in group if n in beside]
        rest = [n for n in beside if n not in group]
        if mine:
            own = [v_beside[beside.index(n)] for n in mine]
            others = [n for n in range(v.type.ndim) if n not in own]
            v = self.add(Transpose((*own, *others)), v)
            sizes, left = tuple(shape[n] for n in group), v.type.shape[len(own) :]
            dims = (*(n - p for n in mine), *range(len(group), len(group) + len(left)))
            v = self.add(BroadcastInDim((*sizes, *left), dims), v)
            v = self.add(Reshape((old[p], *left)), v)
            there = {n: 1 + others.index(n) for n in others}
            v_over = tuple(there[n] for n in v_over)
            v_rest = tuple(there[v_beside[beside.index(n)]] for n in rest)
            inner = (back[over[0]],), v_over, (p, *(back[n] for n in rest)), (0, *v_rest)
        else:
            inner = (back[over[0]],), v_over, tuple(back[n] for n in beside), v_beside
        y = self.product(x, inner, v)
        if y is None:
            return None
        at = self.place(p, len(old), inner)
        sizes = tuple(shape[n] for n in group)
        y = self.add(Reshape((*y.type.shape[:at], *sizes, *y.type.shape[at + 1 :])), y)
        # its axes now: of each axis of the weights, then those of v alone
        free = [n for n in range(len(old)) if n not in (*inner[0], *inner[2])]
        ahead = [each for m in (*inner[2], *free) for each in back if back[each] == m]
        wanted = [*beside, *(n for n in range(len(shape)) if n not in (*over, *beside))]
        order = (*(ahead.index(n) for n in wanted), *range(len(ahead), y.type.ndim))
        return self.add(Transpose(order), y)


def products_of_parts(
    graph: Graph, weights: Set[Atom], whole: Set[Var]
) -> tuple[Graph, dict[Var, list[Var]]]:
    """The graph in which products of weights that are sums and parts of others are work on products of
    these; and these products, of each product but the `whole` ones.
    """
    makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
    eqns, found = list[Eqn](), dict[Var, list[Var]]()
    for e in graph.eqns:
        sides = [n for n, a in enumerate(e.inputs) if a in weights]
        if isinstance(e.op, DotGeneral) and len(sides) == 1 and e.outs[0] not in whole:
            some = Parts(makers, weights, e, sides[0])
            if some.run():
                eqns += some.eqns
                found[e.outs[0]] = some.leaves
                continue
        eqns.append(e)
    if not found:
        return graph, found
    graph = without_dead_code(replace(graph, eqns=tuple(eqns)))
    live = {v for e in graph.eqns for v in e.outs}
    return graph, {y: [v for v in leaves if v in live] for y, leaves in found.items()}
