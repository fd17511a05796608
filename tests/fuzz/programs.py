"""Random programs: a seed gives the same program in the types asked for, in float64 for every
float, and in float32 for float64.

A value is *exact* where all runs have the same number, to the bit. What jumps (tests, casts to
integers, arguments of extremes) is done to exact values alone, so that the run in float64 tells how
large an error is, not which branch was taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge2 import ops
from ge2.base.arrays import (
    BFLOAT16,
    BOOL,
    COMPLEX,
    COMPLEX64,
    COMPLEX128,
    EXTENDED,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    FP8,
    INT64,
    INTEGERS,
    SHORT,
)
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var
from ge2.ir.types import ArrayType
from ge2.ops.elementwise import BY_NAME

INT32 = np.dtype(np.int32)
COMMON = (FLOAT32, FLOAT32, FLOAT32, FLOAT64, FLOAT16, BFLOAT16, COMPLEX64, INT32, INT64, BOOL)
EVERY = tuple(SHORT)
SIZES = (1, 2, 3, 5, 8, 33)
WIDE = {COMPLEX64: COMPLEX128, **dict.fromkeys(FLOATS, FLOAT64)}
NARROW = {COMPLEX128: COMPLEX64, FLOAT64: FLOAT32}
LARGEST = 20_000  # elements of a value
# Never far from one, and smooth.
TAME = (
    "tanh", "sin", "cos", "abs", "neg", "atan", "square", "erf_free", "is_finite", "positive",
    "asinh",
)  # fmt: skip
TAME = tuple(name for name in TAME if name in BY_NAME)
FIXED = ("sign", "rint", "floor", "ceil", "trunc", "abs", "neg")  # of exact numbers, exact numbers
COMPLEX_TAME = ("neg", "conj", "square", "abs", "real", "imag")
INTEGER_UNARY = (
    "neg", "abs", "sign", "not", "population_count", "square", "is_finite", "logical_not", "floor",
)  # fmt: skip
INTEGER_BINARY = (
    "add", "sub", "mul", "floor_div", "rem", "fmod", "max", "min", "and", "or", "xor", "shift_left",
    "shift_right", "gcd", "lcm", "eq", "lt", "ge",
)  # fmt: skip
BOOL_BINARY = ("add", "mul", "max", "min", "and", "or", "xor", "eq", "lt", "ne")
FLOAT_BINARY = ("add", "sub", "mul", "max", "min", "add", "hypot", "fmax", "div", "atan2")
EXTREMES = (ops.ReduceMax, ops.ReduceMin)
MOVES = (
    ops.BroadcastInDim, ops.Transpose, ops.Reshape, ops.Slice, ops.Rev, ops.Pad, ops.Concatenate, ops.Gather,
    ops.Scatter, ops.ScatterMax, ops.ScatterMin, ops.UpdateSlice, ops.Sort, ops.ReduceMax, ops.ReduceMin,
    ops.CumMax, ops.CumMin, ops.Where,
    ops.ArgMax, ops.ArgMin, ops.ArgSort, ops.SearchSorted, ops.Barrier, ops.Iota,
)  # fmt: skip
KEEP = frozenset(
    ("neg", "abs", "sign", "max", "min", "floor", "ceil", "trunc", "rint", "fmax", "positive")
)


@dataclass(frozen=True)
class Made:
    """A program, arguments, which of them are donated, and for each
    result how coarse its numbers are.
    """

    graph: Graph
    arrays: list[Any]
    donated: tuple[bool, ...]


class Program:
    """A graph in the making.

    `instead`: dtypes that take the place of those that the program says.
    """

    def __init__(self, seed: int, instead: Mapping[np.dtype, np.dtype]) -> None:
        self.rng, self.instead = np.random.default_rng(seed), instead
        self.dtypes = COMMON if self.rng.random() < 0.6 else EVERY
        self.inputs: list[Var] = []
        self.arrays: list[Any] = []
        self.eqns: list[Eqn] = []
        self.values: list[Var] = []
        self.numbers: list[Var] = []  # Python's
        self.nominal: dict[Var, np.dtype] = {}  # where nothing is widened; all choices follow it
        self.exact: set[Var] = set()

    # -- equations

    def dtype(self, dtype: np.dtype) -> np.dtype:
        return self.instead.get(dtype, dtype)

    def apply(self, op: Op, *inputs: Atom, asked: np.dtype | None = None) -> Var:
        """`asked`: the dtype that the operation is told, where nothing is widened."""
        (type_,) = op.infer(*(a.type for a in inputs))
        out = Var(type_)
        self.nominal[out] = asked if asked is not None else self.inferred(op, inputs)
        self.eqns.append(Eqn(op, inputs, (out,)))
        (self.numbers if type_.weak else self.values).append(out)
        if self.stays_exact(op, inputs, out):
            self.exact.add(out)
        return out

    def stays_exact(self, op: Op, inputs: tuple[Atom, ...], out: Var) -> bool:
        if not all(isinstance(a, Literal) or a in self.exact for a in inputs):
            return False
        if isinstance(op, ops.ConvertElementType):  # a float of another type may be another number
            return self.kind(out) in "bi" or self.nominal[inputs[0]] == BOOL
        return self.kind(out) in "bi" or isinstance(op, MOVES) or op.name in KEEP

    def inferred(self, op: Op, inputs: tuple[Atom, ...]) -> np.dtype:
        nominal = [self.nominal[a] if isinstance(a, Var) else None for a in inputs]
        known = next((n for n in reversed(nominal) if n is not None and n != BOOL), BOOL)
        types = [ArrayType(a.type.shape, n or known) for a, n in zip(inputs, nominal, strict=True)]
        return op.infer(*types)[0].dtype

    def kind(self, v: Atom) -> str:
        """b, i, f or c."""
        assert isinstance(v, Var)
        dtype = self.nominal[v]
        return "f" if dtype in FLOATS else "i" if dtype.kind in "iu" else dtype.kind

    def number(self, v: Var, value: float) -> Literal:
        return Literal.of(v.type.dtype.type(value))

    def named(self, name: str, *inputs: Atom) -> Var:
        return self.apply(BY_NAME[name], *inputs)

    def convert(self, v: Var, dtype: np.dtype) -> Var:
        """A cast that no two runs can do differently."""
        if self.nominal[v] == dtype:
            return v
        if self.kind(v) == "i" and dtype not in INTEGERS and dtype != BOOL:
            v = self.named("rem", v, self.number(v, 11))
        # what negative numbers become is nobody's promise
        if self.kind(v) in "fc" and dtype.kind == "u":
            v = self.named("abs", v)
        return self.apply(ops.ConvertElementType(self.dtype(dtype)), v, asked=dtype)

    # -- inputs

    def input(self, shape: tuple[int, ...], dtype: np.dtype) -> Var:
        return self.given(self.strided(self.random(shape, dtype).astype(self.dtype(dtype))), dtype)

    def given(self, array: Any, dtype: np.dtype) -> Var:
        var = Var(ArrayType(array.shape, array.dtype))
        self.nominal[var] = dtype
        self.inputs.append(var)
        self.arrays.append(array)
        self.values.append(var)
        self.exact.add(var)
        return var

    def random(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Its values fit the narrow type, and float32."""
        if dtype == BOOL:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            if self.rng.random() < 0.3:
                extremes = np.array([info.min, info.max, 0, 1, info.max // 3], dtype)
                return np.asarray(self.rng.choice(extremes, shape))
            return np.asarray(self.rng.integers(max(-9, info.min), 10, shape)).astype(dtype)
        x = np.asarray(self.rng.standard_normal(shape))
        if dtype in COMPLEX:
            x = x + 1j * self.rng.standard_normal(shape)
        return np.asarray(x.astype(NARROW.get(dtype, dtype)).astype(dtype))

    def strided(self, x: Any) -> Any:
        """The same numbers in another layout, at times read-only."""
        layout = self.rng.integers(5)
        if layout == 1 and x.ndim:
            x = np.asfortranarray(x)
        if layout == 2 and x.ndim:
            x = np.repeat(x, 2, axis=0)[::2]
        if layout == 3 and x.ndim:
            x = x[::-1].copy()[::-1]
        if layout == 4 and x.size:  # not aligned
            x = np.frombuffer(b"-" + x.tobytes(), x.dtype, offset=1).reshape(x.shape)
        if self.rng.random() < 0.3:
            x.flags.writeable = False
        return x

    def python_number(self) -> None:
        """An argument that is a number of Python, of few bits."""
        dtype = (FLOAT64, INT64)[self.rng.integers(2)]
        value = (-1.5, -1.0, 0.25, 0.5, 1.5, 3.0)[self.rng.integers(6)]
        var = Var(ArrayType((), dtype, weak=True))
        self.nominal[var] = dtype
        self.inputs.append(var)
        self.arrays.append(int(value) if dtype == INT64 else value)
        self.numbers.append(var)
        self.exact.add(var)

    # -- choices

    def pick(self, wanted: Callable[[Var], bool]) -> Var | None:
        fit = [v for v in self.values if wanted(v)]
        return fit[min(int(self.rng.beta(3, 1) * len(fit)), len(fit) - 1)] if fit else None

    def one_of(self, choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(i for i in range(ndim) if self.rng.random() < 0.5)

    def step(self) -> None:
        steps = (
            self.unary, self.binary, self.binary, self.binary, self.scalar, self.reduce, self.reduce,
            self.spread, self.view, self.cut, self.choose, self.cast,
            self.other, self.other, self.index, self.product,
        )  # fmt: skip
        self.one_of(steps)()

    def partner(self, a: Var) -> Var:
        """Another value of the same dtype and shape, or a scalar; made so if that is simple."""
        b = self.pick(lambda v: self.fits(v, a)) if self.rng.random() < 0.7 else None
        if b is None:
            b = self.pick(
                lambda v: self.nominal[v] == self.nominal[a] and v.type.shape in (a.type.shape, ())
            )
        assert b is not None
        b = self.convert(b, self.nominal[a])
        if b.type.shape in (a.type.shape, ()):
            return b
        missing = a.type.ndim - b.type.ndim
        along = [i for i, n in enumerate(b.type.shape) if n == a.type.shape[missing + i]]
        if len(along) < b.type.ndim:
            b = self.apply(ops.Reshape(tuple(b.type.shape[i] for i in along)), b)
        return self.apply(ops.BroadcastInDim(a.type.shape, tuple(missing + i for i in along)), b)

    def fits(self, v: Var, a: Var) -> bool:
        if self.kind(v) in "fc" and self.kind(a) in "bi" and v not in self.exact:
            return False
        if self.kind(v) == "c" and self.kind(a) == "f":
            return False
        rank = v.type.ndim
        sides = (
            zip(v.type.shape, a.type.shape[a.type.ndim - rank :], strict=True)
            if rank <= a.type.ndim
            else None
        )
        return sides is not None and all(n == m or n == 1 for n, m in sides)

    # -- elementwise

    def unary(self) -> None:
        v = self.pick(lambda v: True)
        if v is None:
            return
        kind = self.kind(v)
        if kind == "b":
            self.named(self.one_of(("not", "logical_not", "is_nan")), v)
        elif kind == "i":
            self.named(self.one_of(INTEGER_UNARY), v)
        elif kind == "c":
            self.tame(self.named(self.one_of(COMPLEX_TAME), v))
        elif v in self.exact and self.rng.random() < 0.4:
            self.named(self.one_of(FIXED), v)
        elif self.rng.random() < 0.15:
            self.tame(self.apply(ops.IntegerPow(int(self.rng.integers(1, 4))), v))
        else:
            self.tame(self.named(self.one_of(TAME), v))

    def binary(self) -> None:
        a = self.pick(lambda v: True)
        if a is None:
            return
        b, kind = self.partner(a), self.kind(a)
        if kind in "bi":
            name = self.one_of(BOOL_BINARY if kind == "b" else INTEGER_BINARY)
        else:
            name = self.one_of(("add", "sub", "mul") if kind == "c" else FLOAT_BINARY)
        if name == "div":  # by what is not near zero
            self.tame(
                self.named("div", a, self.named("add", self.named("abs", b), self.number(a, 0.5)))
            )
        elif name == "atan2":  # away from where it jumps
            self.tame(
                self.named(name, a, self.named("add", self.named("abs", b), self.number(a, 0.5)))
            )
        else:
            self.tame(self.named(name, *((a, b) if self.rng.random() < 0.5 else (b, a))))

    def tame(self, v: Var) -> Var:
        """Keeps numbers small; integers may wrap."""
        kind = self.kind(v)
        if kind == "b" or (kind == "i" and self.rng.random() < 0.7):
            return v
        if kind == "i":
            return self.named("rem", v, self.number(v, 11))
        if kind == "c":
            return self.named("mul", v, self.number(v, 0.3))
        return (
            self.named("tanh", v)
            if self.rng.random() < 0.2
            else self.named("mul", v, self.number(v, 0.25))
        )

    def scalar(self) -> None:
        """A number of the program, or one of Python's that it is given."""
        v = self.pick(lambda v: self.kind(v) in "fi")
        if v is None:
            return
        a: Atom = self.number(v, int(self.rng.integers(0, 4)))
        if self.numbers and self.rng.random() < 0.6:
            a = self.one_of(self.numbers)
            if self.rng.random() < 0.3:
                a = self.apply(BY_NAME["mul"], a, a)
            if self.kind(v) == "i" and self.kind(a) == "f":
                return
            dtype = self.nominal[v]
            a = self.apply(ops.ConvertElementType(self.dtype(dtype)), a, asked=dtype)
            if self.kind(v) == "i" and dtype.kind == "u":
                a = self.number(v, 2)
        self.tame(self.named(self.one_of(("add", "mul", "sub", "max")), v, a))

    def choose(self) -> None:
        test = self.pick(lambda v: v in self.exact and self.kind(v) in "fib")
        if test is None:
            return
        mask = test
        if self.kind(test) != "b":
            mask = self.named(self.one_of(("lt", "ge", "ne")), test, self.number(test, 0))
        a = self.pick(lambda v: v.type.shape == test.type.shape)
        if a is None:
            return
        b: Atom = self.number(a, 1) if self.rng.random() < 0.4 else a
        other = self.partner(a)
        self.named("where", mask, *((other, b) if self.rng.random() < 0.5 else (b, other)))

    def cast(self) -> None:
        dtype = self.one_of(self.dtypes)
        narrow = dtype in INTEGERS or dtype == BOOL
        v = self.pick(lambda v: not (narrow and self.kind(v) in "fc") or v in self.exact)
        if v is not None:
            self.convert(v, dtype)

    # -- over axes

    def reduce(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and v.type.size > 0)
        if v is None:
            return
        over, kind = self.axes(v.type.ndim) or (v.type.ndim - 1,), self.kind(v)
        sums = (ops.ReduceSum, ops.ReduceSum, ops.ReduceProd)
        choice = self.one_of(
            {"b": (ops.ReduceOr, ops.ReduceAnd), "c": sums}.get(kind, (*sums, *EXTREMES))
        )
        count = math.prod(v.type.shape[a] for a in over)
        if choice is ops.ReduceProd and kind in "fc" and count > 8:
            choice = ops.ReduceSum
        if choice is ops.ReduceSum and self.nominal[v] in FP8 and count > 50:
            choice = ops.ReduceMax
        if choice is ops.ReduceProd and kind in "fc":
            v = self.named("mul", v, self.number(v, 0.5))
        r = self.apply(choice(over), v)
        r = self.tame(r) if choice in sums else r
        if self.rng.random() < 0.6 and kind != "b":
            keep = tuple(i for i in range(v.type.ndim) if i not in over)
            back = self.apply(ops.BroadcastInDim(v.type.shape, keep), r)
            self.tame(self.named("sub", v, back))

    def spread(self) -> None:
        v = self.pick(lambda v: v.type.ndim < 3 and v.type.size < 2000)
        if v is None:
            return
        at = int(self.rng.integers(v.type.ndim + 1))
        shape = (*v.type.shape[:at], SIZES[self.rng.integers(4)], *v.type.shape[at:])
        self.apply(ops.BroadcastInDim(shape, tuple(i for i in range(len(shape)) if i != at)), v)

    def view(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        choice, at = self.rng.integers(5), int(self.rng.integers(v.type.ndim + 1))
        if choice == 0:
            self.apply(ops.Transpose(tuple(int(i) for i in self.rng.permutation(v.type.ndim))), v)
        elif choice == 1:
            shape = (v.type.size,) if self.rng.random() < 0.5 else (*v.type.shape[::-1],)
            self.apply(ops.Reshape(shape), v)
        elif choice == 2:
            self.apply(ops.Reshape((*v.type.shape[:at], 1, *v.type.shape[at:])), v)
        elif choice == 3:
            self.apply(ops.Rev(self.axes(v.type.ndim)), v)
        elif self.nominal[v] not in EXTENDED:
            self.apply(ops.Barrier(), v)

    def cut(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        start = tuple(int(self.rng.integers(n + 1)) // 3 for n in v.type.shape)
        stop = tuple(int(self.rng.integers(a, n + 1)) if self.rng.random() < 0.3 else n
                     for a, n in zip(start, v.type.shape, strict=True))  # fmt: skip
        step = tuple(int(self.rng.integers(1, 4)) for _ in v.type.shape)
        self.apply(ops.Slice(start, stop, step), v)

    def other(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and v.type.size > 0)
        if v is None:
            return
        n, axis, kind = v.type.ndim, int(self.rng.integers(v.type.ndim)), self.kind(v)
        choice = self.rng.integers(8)
        if choice == 0:
            self.apply(ops.Concatenate(axis), v, self.partner_along(v))
        elif choice == 1:
            cut = [-1 if m > 2 else 0 for m in v.type.shape]
            low, high = (tuple(int(i) for i in self.rng.integers(cut, 3)) for _ in range(2))
            self.apply(ops.Pad(low, high, tuple(int(i) for i in self.rng.integers(0, 2, n))), v)
        elif choice in (2, 3):
            self.scan(v, axis)
        elif choice == 4 and (kind in "bi" or v in self.exact):
            self.apply(self.one_of((ops.ArgMax, ops.ArgMin, ops.ArgSort))(axis), v)
        elif choice == 5 and kind in "fi":
            self.apply(ops.Sort(axis), v)
        elif choice == 6 and kind in "fi":
            dtype = self.nominal[v]
            count = self.apply(ops.Iota(v.type.shape, axis, v.type.dtype), asked=dtype)
            self.tame(self.named("mul", self.tame(v), count))
        elif choice == 7 and n == 1 and v in self.exact and kind in "fi":
            values = self.pick(lambda u: u in self.exact and self.nominal[u] == self.nominal[v])
            assert values is not None
            self.apply(
                ops.SearchSorted(self.one_of(("left", "right"))), self.apply(ops.Sort(0), v), values
            )

    def partner_along(self, v: Var) -> Var:
        other = self.pick(
            lambda u: u.type.shape == v.type.shape and self.nominal[u] == self.nominal[v]
        )
        assert other is not None
        return other

    def scan(self, v: Var, axis: int) -> None:
        kind, back = self.kind(v), bool(self.rng.integers(2))
        if kind == "b" or (kind in "if" and self.rng.random() < 0.4):
            self.apply(self.one_of((ops.CumMax, ops.CumMin))(axis, back), v)
        elif kind == "i" or v.type.shape[axis] <= 8:
            v = v if kind == "i" else self.named("mul", v, self.number(v, 0.5))
            self.tame(self.apply(self.one_of((ops.CumProd, ops.CumSum))(axis, back), v))
        elif self.nominal[v] not in FP8:
            self.tame(self.apply(ops.CumSum(axis, back), v))

    # -- indices, products

    def places(self, n: int, shape: tuple[int, ...]) -> Var:
        dtype = self.one_of((INT64, INT64, INT32, np.dtype(np.uint8), np.dtype(np.int8)))
        low = 0 if dtype.kind == "u" else -n
        return self.given(np.asarray(self.rng.integers(low, n, shape)).astype(dtype), dtype)

    def index(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and 0 < v.type.size < 4000)
        if v is None:
            return
        axes = self.axes(v.type.ndim) or (0,)
        shape = self.one_of(((4,), (), (2, 3), (7,), (0,), (1,)))
        choice = self.rng.integers(4)
        if choice == 3:
            self.update(v)
            return
        indices = [self.places(v.type.shape[a], shape) for a in axes]
        if choice == 0:
            sizes = [v.type.shape[a] for a in axes]
            self.apply(ops.Gather(axes), v, *map(self.computed, indices, sizes))
            return
        rest = tuple(n for a, n in enumerate(v.type.shape) if a not in axes)
        dtype = FLOAT32 if self.kind(v) in "fc" else self.nominal[v]
        updates = self.convert(self.input((*shape, *rest), dtype), self.nominal[v])
        merges: tuple[Op, ...] = (ops.ScatterAdd(axes),)
        if self.kind(v) != "c":  # whose order depends on the last bits
            merges = (*merges, ops.ScatterMax(axes), ops.ScatterMin(axes))
        merge = merges[len(self.eqns) % len(merges)]
        self.tame(self.apply(ops.Scatter(axes) if choice == 1 else merge, v, updates, *indices))

    def computed(self, i: Var, n: int) -> Var:
        """The same indices, most of them by an equation: a region may read at these."""
        if i.type.dtype.kind == "u" or len(self.eqns) % 4 == 0:
            return i
        out = Var(i.type)
        self.eqns.append(Eqn(BY_NAME["max"], (i, self.number(i, -n)), (out,)))
        self.nominal[out] = self.nominal[i]
        return out

    def update(self, v: Var) -> None:
        start = tuple(int(self.rng.integers(n)) for n in v.type.shape)
        step = tuple(int(self.rng.integers(1, 3)) for _ in start)
        room = [(n - a + s - 1) // s for n, a, s in zip(v.type.shape, start, step, strict=True)]
        u = self.input(tuple(int(self.rng.integers(m + 1)) for m in room), self.nominal[v])
        self.apply(ops.UpdateSlice(start, step), v, u)

    def product(self) -> None:
        """With a batch or without, operands as they lie or transposed."""
        a = self.pick(
            lambda v: v.type.ndim >= 1 and v.type.size < 3000 and self.nominal[v] not in FP8
        )
        if a is None or self.kind(a) == "b":
            return
        contract = int(self.rng.integers(a.type.ndim))
        batch = tuple(i for i in range(a.type.ndim) if i != contract and self.rng.random() < 0.3)
        free = int(self.rng.integers(1, 5))
        sizes = [*(a.type.shape[i] for i in batch), a.type.shape[contract], free]
        order = self.rng.permutation(len(sizes))
        b = self.input(tuple(sizes[i] for i in order), self.nominal[a])
        at = {int(i): n for n, i in enumerate(order)}
        beside = (batch, tuple(at[i] for i in range(len(batch))))
        y = self.apply(ops.DotGeneral(((contract,), (at[len(batch)],)), beside), a, b)
        if self.rng.random() < 0.3 and a.type.ndim >= 2 and self.kind(a) == "f":
            last = a.type.ndim - 1
            y = self.apply(ops.DotGeneral(((last,), (last,))), a, a)
        self.tame(y)


def build(seed: int, instead: Mapping[np.dtype, np.dtype] | None = None) -> Made:
    """A graph of 5 to 40 operations, and arguments to call it with."""
    p, rng = Program(seed, instead or {}), np.random.default_rng(seed + 1)
    for _ in range(rng.integers(1, 4)):
        rank = int(rng.integers(4))
        sizes = tuple(int(SIZES[i]) for i in rng.integers(len(SIZES), size=rank))
        if rng.random() < 0.06 and rank:
            sizes = (*sizes[:-1], 0) if rng.random() < 0.5 else (0, *sizes[1:])
        p.input(sizes, p.one_of(p.dtypes))
    for _ in range(rng.integers(3)):
        p.python_number()
    length = int(rng.integers(5, 41))
    for _ in range(3 * length):
        if len(p.eqns) >= length:
            break
        p.values = [v for v in p.values if v.type.size < LARGEST]
        if not p.values:  # all has grown too large to go on from
            break
        p.step()
    return finished(p, rng)


def finished(p: Program, rng: np.random.Generator) -> Made:
    """Returns some of what nothing else reads, and at times anything, an input
    too, or one value twice.
    """
    read = {a for e in p.eqns for a in e.inputs}
    ends = [v for e in p.eqns for v in e.outs if v not in read] or list(p.inputs)
    outputs = [ends[i] for i in rng.permutation(len(ends))[: rng.integers(1, 4)]]
    anything = [*p.inputs, *(v for e in p.eqns for v in e.outs)]
    if rng.random() < 0.25:
        outputs.append(anything[rng.integers(len(anything))])
    if rng.random() < 0.2:
        outputs.append(outputs[rng.integers(len(outputs))])
    donated = tuple(bool(rng.random() < 0.5) and isinstance(x, np.ndarray) for x in p.arrays)
    return Made(Graph(tuple(p.inputs), tuple(p.eqns), tuple(outputs)), p.arrays, donated)
