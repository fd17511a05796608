"""Random programs: the same seed gives the same program, in the types asked for or in float64 throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge2.base.dtypes import BFLOAT16, BOOL, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, FLOATS, INT64
from ge2.ir import Atom, Eqn, Graph, Literal, Op, Var
from ge2.ir.types import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import BY_NAME, ConvertElementType, IntegerPow
from ge2.ops.index import Gather
from ge2.ops.reduce import ArgMax, ReduceMax, ReduceMin, ReduceSum
from ge2.ops.scan import CumSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Rev, Slice, Transpose
from ge2.ops.sort import Sort

INT32 = np.dtype(np.int32)
DTYPES = (FLOAT32, FLOAT32, FLOAT32, FLOAT64, FLOAT16, BFLOAT16, COMPLEX64, INT32, INT64, BOOL)
SIZES = (1, 2, 3, 5, 8, 33)
WIDE = {COMPLEX64: COMPLEX128, **dict.fromkeys(FLOATS, FLOAT64)}
TAME = (
    "tanh",
    "sin",
    "cos",
    "abs",
    "neg",
    "atan",
    "square",
    "sign",
    "rint",
    "is_finite",
)  # never far from one
COMPLEX_TAME = ("neg", "conj", "square", "abs")


class Program:
    """A graph in the making. `wide`: floats are float64, whatever the program says."""

    def __init__(self, seed: int, wide: bool = False) -> None:
        self.rng, self.wide = np.random.default_rng(seed), wide
        self.inputs: list[Var] = []
        self.arrays: list[np.ndarray] = []
        self.eqns: list[Eqn] = []
        self.values: list[Var] = []
        self.nominal: dict[
            Var, np.dtype
        ] = {}  # the type it has where nothing is widened; all choices follow it
        self.exact: set[Var] = set()  # the same in any precision, so that tests on them branch alike

    def dtype(self, dtype: np.dtype) -> np.dtype:
        return WIDE.get(dtype, dtype) if self.wide else dtype

    def apply(self, op: Op, *inputs: Atom) -> Var:
        (type_,) = op.infer(*(a.type for a in inputs))
        out = Var(type_)
        self.nominal[out] = self.inferred(op, inputs)
        self.eqns.append(Eqn(op, inputs, (out,)))
        self.values.append(out)
        if all(isinstance(a, Literal) or a in self.exact for a in inputs) and not isinstance(
            op, type(BY_NAME["tanh"])
        ):
            self.exact.add(out)
        return out

    def inferred(self, op: Op, inputs: tuple[Atom, ...]) -> np.dtype:
        if isinstance(op, ConvertElementType | Iota):
            return self.asked
        nominal = [self.nominal[a] if isinstance(a, Var) else None for a in inputs]
        types = [
            a.type if n is None else ArrayType(a.type.shape, n) for a, n in zip(inputs, nominal, strict=True)
        ]
        known = next((n for n in reversed(nominal) if n is not None and n != BOOL), BOOL)
        types = [ArrayType(t.shape, known) if n is None else t for t, n in zip(types, nominal, strict=True)]
        return op.infer(*types)[0].dtype

    def kind(self, v: Var) -> str:
        """b, i, f or c."""
        dtype = self.nominal[v]
        return "f" if dtype in FLOATS else "i" if dtype.kind in "iu" else dtype.kind

    def number(self, v: Var, value: float) -> Literal:
        return Literal.of(v.type.dtype.type(value))

    def input(self, shape: tuple[int, ...], dtype: np.dtype) -> Var:
        if dtype == BOOL:
            array = self.rng.random(shape) < 0.5
        elif dtype.kind in "iu":
            array = self.rng.integers(-9, 10, shape).astype(dtype)
        else:
            array = self.rng.standard_normal(shape).astype(dtype)  # its values fit the narrow type
            if dtype == COMPLEX64:
                array = (array + 1j * self.rng.standard_normal(shape)).astype(dtype)
        array = self.strided(np.asarray(array).astype(self.dtype(dtype)))
        var = Var(ArrayType(array.shape, array.dtype))
        self.nominal[var] = dtype
        self.inputs.append(var)
        self.arrays.append(array)
        self.values.append(var)
        self.exact.add(var)
        return var

    def strided(self, x: np.ndarray) -> np.ndarray:
        """The same numbers in another layout, at times read-only."""
        layout = self.rng.integers(4)
        if layout == 1:
            x = np.asfortranarray(x)
        if layout == 2 and x.ndim:
            x = np.repeat(x, 2, axis=0)[::2]
        if layout == 3 and x.ndim:
            x = x[::-1].copy()[::-1]
        if self.rng.random() < 0.3:
            x.flags.writeable = False
        return x

    # -- choices

    def pick(self, wanted: Callable[[Var], bool]) -> Var | None:
        fit = [v for v in self.values if wanted(v)]
        return fit[min(int(self.rng.beta(3, 1) * len(fit)), len(fit) - 1)] if fit else None

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(i for i in range(ndim) if self.rng.random() < 0.5)

    def step(self) -> None:
        kinds = (
            self.unary,
            self.binary,
            self.binary,
            self.scalar,
            self.reduce,
            self.reduce,
            self.spread,
            self.view,
            self.cut,
            self.choose,
            self.cast,
            self.other,
        )
        kinds[self.rng.integers(len(kinds))]()

    def name_for(self, v: Var, names: tuple[str, ...]) -> str:
        return names[self.rng.integers(len(names))]

    def unary(self) -> None:
        v = self.pick(lambda v: self.kind(v) != "b")
        if v is None:
            return
        kind = self.kind(v)
        names = COMPLEX_TAME if kind == "c" else ("neg", "abs", "sign") if kind == "i" else TAME
        name = self.name_for(v, names)
        if name in ("sign", "rint") and v not in self.exact and kind == "f":
            name = "tanh"
        if name == "square" and kind != "f":
            name = "neg"
        self.apply(
            BY_NAME[name]
            if self.rng.random() < 0.85 or kind != "f"
            else IntegerPow(int(self.rng.integers(1, 4))),
            v,
        )

    def binary(self) -> None:
        a = self.pick(lambda v: self.kind(v) != "b")
        if a is None:
            return
        b = self.pick(lambda v: self.nominal[v] == self.nominal[a] and v.type.shape in (a.type.shape, ()))
        names = ("add", "sub", "mul") if self.kind(a) in "ci" else ("add", "sub", "mul", "max", "min", "add")
        name = names[self.rng.integers(len(names))]
        assert b is not None
        out = self.apply(BY_NAME[name], *((a, b) if self.rng.random() < 0.5 else (b, a)))
        self.tame(out)

    def tame(self, v: Var) -> None:
        """Keeps numbers small."""
        if self.kind(v) == "i":
            self.apply(BY_NAME["rem"], v, self.number(v, 11))
        elif self.kind(v) == "c":
            self.apply(BY_NAME["mul"], v, self.number(v, 0.3))
        elif self.rng.random() < 0.6:
            self.apply(BY_NAME["tanh"], v)
        else:
            self.apply(BY_NAME["mul"], v, self.number(v, 0.25))

    def scalar(self) -> None:
        v = self.pick(lambda v: self.kind(v) in "fi")
        if v is not None:
            number = int(self.rng.integers(0, 4))
            name = ("add", "mul", "sub", "max")[self.rng.integers(4)]
            self.tame(self.apply(BY_NAME[name], v, self.number(v, number)))

    def reduce(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0 and self.kind(v) != "b" and v.type.size > 0)
        if v is None:
            return
        over = self.axes(v.type.ndim) or (v.type.ndim - 1,)
        kind = (ReduceSum, ReduceSum, ReduceMax, ReduceMin)[self.rng.integers(4)]
        if self.kind(v) == "c":
            kind = ReduceSum
        r = self.apply(kind(over), v)
        if kind is ReduceSum:
            self.tame(r)
            r = self.values[-1]
        if self.rng.random() < 0.6:
            keep = tuple(i for i in range(v.type.ndim) if i not in over)
            back = self.apply(BroadcastInDim(v.type.shape, keep), r)
            self.tame(self.apply(BY_NAME["sub"], v, back))

    def spread(self) -> None:
        v = self.pick(lambda v: v.type.ndim < 3 and v.type.size < 2000)
        if v is None:
            return
        at = int(self.rng.integers(v.type.ndim + 1))
        n = SIZES[self.rng.integers(4)]
        shape = (*v.type.shape[:at], n, *v.type.shape[at:])
        self.apply(BroadcastInDim(shape, tuple(i for i in range(len(shape)) if i != at)), v)

    def view(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        choice = self.rng.integers(4)
        order = tuple(int(i) for i in self.rng.permutation(v.type.ndim))
        if choice == 0:
            self.apply(Transpose(order), v)
        elif choice == 1:
            shape = (v.type.size,) if self.rng.random() < 0.5 else (*v.type.shape[::-1],)
            self.apply(Reshape(shape), v)
        elif choice == 2:
            at = int(self.rng.integers(v.type.ndim + 1))
            self.apply(Reshape((*v.type.shape[:at], 1, *v.type.shape[at:])), v)
        else:
            self.apply(Rev(self.axes(v.type.ndim)), v)

    def cut(self) -> None:
        v = self.pick(lambda v: v.type.ndim > 0)
        if v is None:
            return
        start = tuple(int(self.rng.integers(n + 1)) // 3 for n in v.type.shape)
        step = tuple(int(self.rng.integers(1, 3)) for _ in v.type.shape)
        self.apply(Slice(start, v.type.shape, step), v)

    def choose(self) -> None:
        test = self.pick(lambda v: v in self.exact and self.kind(v) in "fi")
        if test is None:
            return
        mask = self.apply(BY_NAME[("lt", "ge", "ne")[self.rng.integers(3)]], test, self.number(test, 0))
        a = self.pick(lambda v: v.type.shape == test.type.shape and self.kind(v) != "b")
        if a is not None:
            b: Atom = self.number(a, 1) if self.rng.random() < 0.4 else a
            other = self.pick(lambda v: v.type.shape == a.type.shape and self.nominal[v] == self.nominal[a])
            assert other is not None
            self.apply(BY_NAME["where"], mask, *((other, b) if self.rng.random() < 0.5 else (b, other)))

    def cast(self) -> None:
        v = self.pick(lambda v: self.kind(v) != "c")
        if v is None:
            return
        kinds = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
        dtype = kinds[self.rng.integers(4)]
        self.asked = dtype
        out = self.apply(ConvertElementType(self.dtype(dtype)), v)
        if self.kind(v) == "f":
            self.exact.discard(out)

    def other(self) -> None:
        choice = self.rng.integers(8)
        v = self.pick(lambda v: v.type.ndim > 0 and v.type.size > 0)
        if v is None:
            return
        n, axis = v.type.ndim, int(self.rng.integers(v.type.ndim))
        if choice == 0:
            self.apply(Concatenate(axis), v, v)
        elif choice == 1:
            self.apply(Pad(*(tuple(int(i) for i in self.rng.integers(0, 2, n)) for _ in range(3))), v)
        elif choice == 2 and self.kind(v) != "b":
            self.tame(self.apply(CumSum(axis), v))
        elif choice == 3 and self.kind(v) in "fi":
            self.apply(Sort(axis), v)
        elif choice == 4:
            index = self.rng.integers(-v.type.shape[axis], v.type.shape[axis], 4)
            place = self.input((4,), INT64)
            self.arrays[-1] = index
            self.apply(Gather((axis,)), v, place)
        elif choice == 5 and self.kind(v) == "f" and n >= 2:
            self.tame(self.apply(DotGeneral(((n - 1,), (n - 1,))), v, v))
        elif choice == 6 and v in self.exact and self.kind(v) in "fi":
            self.apply(ArgMax(axis), v)
        elif choice == 7 and self.kind(v) == "f":
            self.asked = self.nominal[v]
            count = self.apply(Iota(v.type.shape, axis, v.type.dtype))
            self.tame(self.apply(BY_NAME["mul"], v, count))


def program(seed: int, wide: bool = False) -> tuple[Graph, list[np.ndarray]]:
    """A graph of 5 to 40 operations, and arrays to call it with."""
    p = Program(seed, wide)
    rng = np.random.default_rng(seed + 1)
    for _ in range(rng.integers(1, 4)):
        rank = int(rng.integers(4))
        sizes = tuple(int(SIZES[i]) for i in rng.integers(len(SIZES), size=rank))
        if rng.random() < 0.04 and rank:
            sizes = (0, *sizes[1:])
        p.input(sizes, DTYPES[rng.integers(len(DTYPES))])
    length = int(rng.integers(5, 41))
    while len(p.eqns) < length:
        before = len(p.eqns)
        if p.values and p.values[-1].type.size < 20_000:
            p.step()
        else:
            p.values.pop()
        if len(p.eqns) == before and rng.random() < 0.05:
            break
    count = int(rng.integers(1, 5))
    made = [v for e in p.eqns for v in e.outs][-12:] or p.inputs
    outputs = tuple(made[i] for i in rng.integers(len(made), size=count))
    return Graph(tuple(p.inputs), tuple(p.eqns), outputs), p.arrays


def results(f: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(y) for y in f(*arrays)]
