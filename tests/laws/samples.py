"""For every operation: parameters to try, and operands that it takes.

A sample draws its operands for a dtype. Values keep away from where a derivative jumps (integers, zero,
ties), so that differences can be taken; special values have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import ge2
from ge2 import ops
from ge2.base.dtypes import BFLOAT16, BOOL, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT64, short
from ge2.ir import ArrayType, Graph, Op, parse
from ge2.ir.op import GraphOp
from ge2.ops import elementwise as el
from ge2.ops.effects import HOLE, METHODS, host
from ge2.transforms.derive import DERIVE

Rng = np.random.Generator
Dims = tuple[int, ...]
Draw = Callable[[Rng, np.dtype], tuple[Any, ...]]

I8, I32, U8, U16, U32, U64 = (np.dtype(d) for d in ("i1", "i4", "u1", "u2", "u4", "u8"))
INTEGERS = (I8, np.dtype("i2"), I32, INT64, U8, U16, U32, U64)
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
COMPLEXES = (COMPLEX64, COMPLEX128)
KINDS = {"b": (BOOL,), "i": INTEGERS, "f": FLOATS, "c": COMPLEXES}
NUMERIC = (*INTEGERS, *FLOATS, *COMPLEXES)
EVERY = (BOOL, *NUMERIC)
SHAPES: tuple[Dims, ...] = ((2, 3), (), (1,), (0,), (3, 0, 2))


@dataclass(frozen=True)
class Sample:
    """An operation, how its operands are drawn for a dtype, and for which dtypes."""

    op: Op
    draw: Draw
    dtypes: tuple[np.dtype, ...]
    batched: bool = True  # whether it has operands that can be batched
    fixed: tuple[int, ...] = ()  # operands that cannot be differentiated by, whatever their dtype
    forward: bool = True  # whether it has a forward derivative
    reverse: bool = True  # whether it has a reverse one
    constant: bool = False  # whether its derivative is zero by definition

    def __str__(self) -> str:
        return str(self.op)


# ------------------------------------------------------------------------------------------------- values


def numbers(rng: Rng, shape: Dims, dtype: np.dtype, low: int = 0, high: int = 2, signed: bool = True) -> Any:
    """Numbers of magnitude `k + u`, k an integer in [low, high), u in [0.15, 0.85], of both signs."""
    if dtype == BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(BOOL)
    if dtype.kind in "iu":
        least = -3 if dtype.kind == "i" and signed else 0
        return np.asarray(rng.integers(least, 5, shape)).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(parts(rng, shape, low, high, signed) + 1j * parts(rng, shape, 0, 2, True)).astype(
            dtype
        )
    return np.asarray(parts(rng, shape, low, high, signed)).astype(dtype)


def parts(rng: Rng, shape: Dims, low: int, high: int, signed: bool) -> Any:
    size = rng.integers(low, high, shape) + rng.uniform(0.15, 0.85, shape)
    return size * rng.choice([-1.0, 1.0], shape) if signed else size


def positive(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, signed=False)


def unit(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, 0, 1)


def above_one(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    return numbers(rng, shape, dtype, 1, 3, signed=False)


def not_zero(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    x = numbers(rng, shape, dtype)
    return np.where(x == 0, dtype.type(2), x).astype(dtype) if dtype.kind in "iu" else x


def between_powers(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    """Away from the powers of two, where the mantissa jumps."""
    return np.asarray(rng.uniform(1.1, 1.9, shape) * 2.0 ** rng.integers(-3, 4, shape)).astype(dtype)


DOMAINS: dict[str, Callable[[Rng, Dims, np.dtype], Any]] = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt"), positive),
    **dict.fromkeys(("asin", "acos", "atanh", "log1p", "tan"), unit),
    "acosh": above_one,
    "frexp_mantissa": between_powers,
    "frexp_exponent": between_powers,
    "spacing": between_powers,
    "reciprocal": not_zero,
}


def quotient(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    """a and b with a / b away from integers, where remainders jump."""
    b = not_zero(rng, shape, dtype)
    return (b * numbers(rng, shape, dtype)).astype(dtype), b


def power(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    a, b = positive(rng, shape, dtype), numbers(rng, shape, dtype)
    return a, abs(b).astype(dtype) if dtype.kind == "i" else b


def shift(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    return numbers(rng, shape, dtype), np.asarray(rng.integers(0, 5, shape)).astype(dtype)


def apart(rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    """Which of the two is larger does not change when each is moved a little."""
    a = numbers(rng, shape, dtype)
    return a, a if dtype == BOOL else (a + numbers(rng, shape, dtype, 0, 1)).astype(dtype)


PAIRS: dict[str, Callable[[Rng, Dims, np.dtype], tuple[Any, Any]]] = {
    **dict.fromkeys(("rem", "fmod", "floor_div", "div"), quotient),
    **dict.fromkeys(("max", "min", "fmax", "fmin"), apart),
    "pow": power,
    "shift_left": shift,
    "shift_right": shift,
}


def pair(name: str, rng: Rng, shape: Dims, dtype: np.dtype) -> tuple[Any, Any]:
    if name in PAIRS:
        return PAIRS[name](rng, shape, dtype)
    return numbers(rng, shape, dtype), numbers(rng, shape, dtype)


# -------------------------------------------------------------------------------------------- elementwise


def elementwise(op: el.Elementwise) -> Iterator[Sample]:
    dtypes = tuple(d for k in op.takes for d in KINDS[k])
    for shape in SHAPES:
        if len(op.partials) == 1:
            domain = DOMAINS.get(op.name, numbers)
            yield Sample(op, lambda rng, d, s=shape, f=domain: (f(rng, s, d),), dtypes)
        else:
            yield Sample(op, lambda rng, d, s=shape: pair(op.name, rng, s, d), dtypes)
    if len(op.partials) == 2:
        yield Sample(op, lambda rng, d: first_scalar(*pair(op.name, rng, (3,), d)), dtypes)
        yield Sample(op, lambda rng, d: first_scalar(*pair(op.name, rng, (3,), d)[::-1])[::-1], dtypes)


def first_scalar(a: Any, b: Any) -> tuple[Any, Any]:
    return a[0], np.full_like(b, b[0])


def of(op: Op, *shapes: Dims, dtypes: tuple[np.dtype, ...] = EVERY, **more: Any) -> Sample:
    """Operands of these shapes, all of the drawn dtype."""
    return Sample(op, lambda rng, d: tuple(numbers(rng, s, d) for s in shapes), dtypes, **more)


def other_elementwise() -> dict[str, list[Sample]]:
    def where(s: Dims, t: Dims, u: Dims) -> Sample:
        return Sample(
            ops.Where(), lambda rng, d: (numbers(rng, s, BOOL), numbers(rng, t, d), numbers(rng, u, d)), EVERY
        )

    def ldexp(s: Dims, t: Dims) -> Sample:
        return Sample(ops.Ldexp(), lambda rng, d: (numbers(rng, s, d), numbers(rng, t, I32)), FLOATS)

    real = (FLOAT32, FLOAT64)
    integer_powers = [of(ops.IntegerPow(y), (2, 3), dtypes=NUMERIC) for y in (0, 1, 2, 3, 7)]
    negative = [of(ops.IntegerPow(y), (4,), dtypes=(*FLOATS, *COMPLEXES)) for y in (-1, -2, -5)]
    return {
        "complex": [
            of(ops.Complex(), *s, dtypes=real)
            for s in [((2, 3), (2, 3)), ((), (2,)), ((2,), ()), ((0,), (0,))]
        ],
        "where": [
            where((2, 3), (2, 3), (2, 3)),
            where((), (2,), (2,)),
            where((3,), (), (3,)),
            where((3,), (3,), ()),
            where((0,), (0,), ()),
        ],
        "ldexp": [ldexp((2, 3), (2, 3)), ldexp((), (3,)), ldexp((3,), ()), ldexp((0,), (0,))],
        "integer_pow": [*integer_powers, *negative, of(ops.IntegerPow(2), (0,), dtypes=NUMERIC)],
        "convert_element_type": [
            of(ops.ConvertElementType(d), s)
            for d in (FLOAT64, FLOAT32, BFLOAT16, COMPLEX128, INT64, BOOL, U8)
            for s in ((2, 3), (0,))
        ]
        + [of(ops.ConvertElementType(d, weak=True), ()) for d in (FLOAT64, INT64)],
    }


# ------------------------------------------------------------------------------- reductions, shape, products


def reductions() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    axes = [
        ((2, 3), (0,)),
        ((2, 3), (1,)),
        ((2, 3, 2), (0, 2)),
        ((3, 4), (0, 1)),
        ((), ()),
        ((1,), (0,)),
        ((0, 2), (1,)),
    ]
    for cls in (ops.ReduceSum, ops.ReduceProd, ops.ReduceMax, ops.ReduceMin):
        extreme = cls in (ops.ReduceMax, ops.ReduceMin)
        empty = [] if extreme else [((0, 2), (0,)), ((2, 0), (0, 1))]
        found[cls.name] = [of(cls(a), s) for s, a in [*axes, *empty]]
    for cls in (ops.ReduceOr, ops.ReduceAnd):
        found[cls.name] = [of(cls(a), s, dtypes=(BOOL,)) for s, a in [*axes, ((0, 2), (0,))]]
    for cls in (ops.ArgMax, ops.ArgMin):
        found[cls.name] = [of(cls(a), s) for s, a in [((2, 3), 0), ((2, 3), 1), ((4,), 0), ((0, 2), 1)]]
    return found


def shapes() -> dict[str, list[Sample]]:
    broadcast = [
        ((), (2, 3), ()),
        ((3,), (2, 3), (1,)),
        ((2,), (2, 3), (0,)),
        ((2, 0), (2, 4, 0), (0, 2)),
        ((2,), (0, 2), (1,)),
    ]
    slices = [
        ((5, 4), (1, 0), (4, 3), (2, 1)),
        ((5,), (4,), (5,), (3,)),
        ((3,), (1,), (1,), (1,)),
        ((0,), (0,), (0,), (1,)),
        ((), (), (), ()),
    ]
    pads = [
        ((2, 3), (1, 0), (0, 2), (0, 1)),
        ((3,), (-1,), (2,), (0,)),
        ((4,), (-1,), (-1,), (2,)),
        ((3,), (-2,), (-1,), (0,)),
        ((0,), (1,), (1,), (2,)),
        ((), (), (), ()),
        ((1,), (-3,), (4,), (0,)),
        ((3,), (2,), (-4,), (1,)),
    ]
    joins = [(0, (2, 3), (1, 3)), (1, (2, 1), (2, 0), (2, 2)), (0, (3,)), (0, (0,), (2,))]
    return {
        "broadcast_in_dim": [of(ops.BroadcastInDim(t, d), s) for s, t, d in broadcast],
        "transpose": [
            of(ops.Transpose(o), s)
            for s, o in [((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((), ()), ((0, 2), (1, 0))]
        ],
        "reshape": [
            of(ops.Reshape(t), s)
            for s, t in [((2, 3), (3, 2)), ((4,), (2, 1, 2)), ((1,), ()), ((), (1, 1)), ((0, 3), (0,))]
        ],
        "slice": [of(ops.Slice(*p), s) for s, *p in slices],
        "rev": [of(ops.Rev(a), s) for s, a in [((2, 3), (1,)), ((2, 3), (0, 1)), ((0,), (0,)), ((3,), ())]],
        "pad": [of(ops.Pad(*p), s) for s, *p in pads],
        "concatenate": [of(ops.Concatenate(a), *s) for a, *s in joins],
        "iota": [
            Sample(ops.Iota(s, a, d), lambda rng, _: (), (FLOAT64,), batched=False)
            for s, a, d in [
                ((4,), 0, INT64),
                ((2, 3), 1, FLOAT32),
                ((3, 2), 0, BFLOAT16),
                ((0,), 0, U8),
                ((2, 2), 0, COMPLEX64),
            ]
        ],
        "stop_gradient": [
            of(ops.StopGradient(), (2, 3), constant=True),
            of(ops.StopGradient(), (), constant=True),
        ],
        "barrier": [of(ops.Barrier(), (2, 3), (4,)), of(ops.Barrier(), ())],
    }


def products() -> dict[str, list[Sample]]:
    cases: list[tuple[Dims, Dims, Any, Any]] = [
        ((2, 3), (3, 4), ((1,), (0,)), ((), ())),
        ((3,), (3,), ((0,), (0,)), ((), ())),
        ((2, 3, 4), (4, 2, 5), ((2,), (0,)), ((0,), (1,))),
        ((2, 3, 4), (3, 4, 2), ((1, 2), (0, 1)), ((), ())),
        ((2, 3), (4,), ((), ()), ((), ())),
        ((3, 2), (2, 3), ((), ()), ((0, 1), (1, 0))),
        ((2, 0), (0, 3), ((1,), (0,)), ((), ())),
        ((0, 3), (3, 2), ((1,), (0,)), ((), ())),
        ((), (2,), ((), ()), ((), ())),
    ]
    plain = [of(ops.DotGeneral(c, b), s, t) for s, t, c, b in cases]
    wider = ops.DotGeneral(((1,), (0,)), out=FLOAT32, precision="highest")
    return {"dot_general": [*plain, of(wider, (2, 3), (3, 4), dtypes=(FLOAT16, BFLOAT16, FLOAT32))]}


# ---------------------------------------------------------------------------------- indices, scans, sorting


def indices(rng: Rng, shape: Dims, size: int, dtype: np.dtype = INT64) -> Any:
    return np.asarray(rng.integers(-size if dtype.kind == "i" else 0, max(size, 1), shape)).astype(dtype)


def indexing() -> dict[str, list[Sample]]:
    cases: list[tuple[Dims, Dims, tuple[Dims, ...], np.dtype]] = [
        ((4, 3), (0,), ((2, 3),), INT64),
        ((4, 3), (1,), ((5,),), I32),
        ((4, 3, 2), (0, 2), ((3,), (3,)), INT64),
        ((4, 3), (0, 1), ((6,), ()), I8),
        ((4, 3), (0,), ((),), U64),
        ((4,), (0,), ((0,),), INT64),
        ((3, 0), (0,), ((2,),), INT64),
        ((1,), (0,), ((3,),), U8),
    ]

    def sample(
        cls: Any, s: Dims, axes: Dims, i: tuple[Dims, ...], di: np.dtype, distinct: bool = False
    ) -> Sample:
        selected = (*max(i, key=len), *(n for a, n in enumerate(s) if a not in axes))

        def draw(rng: Rng, d: np.dtype) -> tuple[Any, ...]:
            x, updates = numbers(rng, s, d), numbers(rng, selected, d)
            where = [indices(rng, t, s[a], di) for a, t in zip(axes, i, strict=True)]
            return (x, *where) if cls is ops.Gather else (x, updates, *where)

        return Sample(cls(axes), draw, EVERY)

    slices: list[tuple[Dims, Dims, Dims, Dims]] = [
        ((4, 3), (2, 2), (1, 0), (2, 1)),
        ((5,), (2,), (0,), (3,)),
        ((3,), (0,), (3,), (1,)),
        ((), (), (), ()),
        ((2,), (2,), (0,), (1,)),
    ]
    return {
        **{c.name: [sample(c, *case) for case in cases] for c in (ops.Gather, ops.ScatterAdd, ops.Scatter)},
        "update_slice": [of(ops.UpdateSlice(a, b), s, t) for s, t, a, b in slices],
    }


def distinct(rng: Rng, shape: Dims, dtype: np.dtype) -> Any:
    """Values that keep their order when each is moved a little."""
    if dtype == BOOL:
        return numbers(rng, shape, dtype)
    n = int(np.prod(shape, dtype=int))
    x = rng.permutation(n) * 0.25 - n / 8 + 0.1
    return (
        (x.reshape(shape) * (4 if dtype.kind in "iu" else 1))
        .astype(I32 if dtype.kind == "u" else dtype)
        .astype(dtype)
    )


def scans() -> dict[str, list[Sample]]:
    cases: list[tuple[Dims, int, bool]] = [
        ((5,), 0, False),
        ((5,), 0, True),
        ((3, 4), 0, False),
        ((2, 6), 1, True),
        ((7, 2), 0, True),
        ((1,), 0, False),
        ((2,), 0, False),
        ((0,), 0, False),
        ((2, 0), 0, True),
        ((3, 2, 2), 1, False),
    ]
    found = {c.name: [of(c(a, r), s, dtypes=NUMERIC) for s, a, r in cases] for c in (ops.CumSum, ops.CumProd)}
    for c in (ops.CumMax, ops.CumMin):
        found[c.name] = [
            Sample(c(a, r), lambda rng, d, s=s: (distinct(rng, s, d),), EVERY) for s, a, r in cases
        ]
    return found


def sorting() -> dict[str, list[Sample]]:
    cases: list[tuple[Dims, int]] = [
        ((5,), 0),
        ((3, 4), 0),
        ((3, 4), 1),
        ((2, 3, 2), 1),
        ((1,), 0),
        ((0,), 0),
        ((2, 0), 0),
    ]
    searches: list[tuple[int, Dims, Dims]] = [
        (0, (5,), (2, 3)),
        (0, (0,), (2,)),
        (0, (4,), ()),
        (1, (2, 4), (2, 3)),
        (1, (2, 4), (2,)),
        (2, (2, 1, 3), (2, 1, 2)),
        (0, (3,), (0,)),
    ]

    def search(side: str, beside: int, s: Dims, t: Dims) -> Sample:
        return Sample(
            ops.SearchSorted(side, beside),
            lambda rng, d: (np.sort(distinct(rng, s, as_known(d)), -1).astype(d), numbers(rng, t, d)),
            EVERY,
        )

    return {
        **{
            c.name: [Sample(c(a), lambda rng, d, s=s: (distinct(rng, s, d),), EVERY) for s, a in cases]
            for c in (ops.Sort, ops.ArgSort)
        },
        "searchsorted": [search(side, *case) for side in ("left", "right") for case in searches],
    }


def as_known(dtype: np.dtype) -> np.dtype:
    return FLOAT32 if dtype == BFLOAT16 else dtype


def random() -> dict[str, list[Sample]]:
    def words(rng: Rng, *shape: int) -> Any:
        return np.asarray(rng.integers(0, 2**32, shape, dtype=np.uint32))

    bits = [
        ((), U32, ()),
        ((5,), U32, ()),
        ((3, 5), U64, ()),
        ((7,), U8, (2,)),
        ((2, 3), U16, (2, 1)),
        ((0,), U32, ()),
        ((9,), U64, (0,)),
    ]
    folds: list[tuple[Dims, Dims]] = [((), ()), ((), (3,)), ((2,), (2, 3)), ((2,), (2,)), ((), (0,))]
    return {
        "random_bits": [
            Sample(ops.RandomBits(s, t), lambda rng, _, k=k: (words(rng, *k, 2),), (U32,)) for s, t, k in bits
        ],
        "random_fold": [
            Sample(ops.RandomFold(p), lambda rng, _, k=k, s=s: (words(rng, *k, 2), words(rng, *s)), (U32,))
            for p in (1, 2)
            for k, s in folds
        ],
    }


# ------------------------------------------------------------------------------------------------ control


def graph(text: str) -> Graph:
    return parse(text, ops.TABLE)


SINES = """{ lambda ; a:f64[3] b:f64[3] n:i64[]. let
    c:f64[3] = sin a
    d:f64[3] = mul c b
    e:f64[3] = mul d d
    m:i64[] = add n 1:i64[]
  in (e, c, m) }"""
COSINES = """{ lambda ; a:f64[3] b:f64[3] n:i64[]. let
    c:f64[3] = cos a
    d:f64[3] = mul b 2.0:f64[]
  in (c, d, n) }"""
SQUARE = "{ lambda ; x:f64[3] y:f64[]. let z:f64[3] = mul x x  w:f64[3] = mul z y in (w,) }"
FORWARD = "{ lambda ; x:f64[3] y:f64[]. let z:f64[3] = mul x x  w:f64[3] = mul z y in (w, x, y) }"
BACKWARD = """{ lambda ; x:f64[3] y:f64[] ct:f64[3]. let
    a:f64[3] = mul x 2.0:f64[]
    b:f64[3] = mul a y
    c:f64[3] = mul b ct
    d:f64[3] = mul x x
    e:f64[3] = mul d ct
    f:f64[] = reduce_sum[axes=(0,)] e
  in (c, f) }"""
RULE = """{ lambda ; x:f64[3] y:f64[] tx:f64[3] ty:f64[]. let
    z:f64[3] = mul x x
    w:f64[3] = mul z y
    a:f64[3] = mul x 2.0:f64[]
    b:f64[3] = mul a y
    c:f64[3] = mul b tx
    d:f64[3] = mul z ty
    e:f64[3] = add c d
  in (w, e) }"""


ROUND = """{ lambda ; w:f64[3] h:f64[3] n:i64[] x:f64[3]. let
    a:f64[3] = mul h w
    b:f64[3] = add a x
    c:f64[3] = sin b
    m:i64[] = add n 1:i64[]
    d:f64[3] = mul c h
  in (c, m, d, x) }"""
STILL = "{ lambda ; k:i64[] h:f64[3] n:i64[]. let on:bool[] = lt n k in (on,) }"
TURN = """{ lambda ; w:f64[3] h:f64[3] n:i64[]. let
    a:f64[3] = mul h w
    b:f64[3] = sin a
    m:i64[] = add n 1:i64[]
  in (b, m) }"""
SOLVE = "{ lambda ; d:f64[3] b:f64[3]. let x:f64[3] = div b d  y:f64[3] = rev[axes=(0,)] x in (y,) }"
PRODUCT = "{ lambda ; d:f64[3] x:f64[3]. let y:f64[3] = rev[axes=(0,)] x  b:f64[3] = mul d y in (b,) }"
TRANSPOSED = "{ lambda ; d:f64[3] c:f64[3]. let y:f64[3] = rev[axes=(0,)] c  x:f64[3] = div y d in (x,) }"
DIAGONAL = "{ lambda ; d:f64[3] x:f64[3]. let b:f64[3] = mul d x in (b,) }"
QUOTIENT = "{ lambda ; d:f64[3] b:f64[3]. let x:f64[3] = div b d in (x,) }"
CUBE_ROOT = "{ lambda ; a:f64[3] guess:f64[3]. let x:f64[3] = cbrt a in (x,) }"
CUBE = """{ lambda ; a:f64[3] x:f64[3]. let
    b:f64[3] = mul x x
    c:f64[3] = mul b x
    d:f64[3] = sub c a
  in (d,) }"""
OF_CUBE = """{ lambda ; a:f64[3] x:f64[3] y:f64[3]. let
    b:f64[3] = mul x x
    c:f64[3] = mul b 3.0:f64[]
    d:f64[3] = div y c
  in (d,) }"""


def with_operands(op: Op, *before: Any) -> Sample:
    def draw(rng: Rng, d: np.dtype) -> tuple[Any, ...]:
        return (*before, numbers(rng, (3,), d), numbers(rng, (3,), d), np.int64(4))

    return Sample(op, draw, (FLOAT64,))


def saving(sample: Sample) -> Sample:
    """The same for the operation that also yields what its derivative reads."""
    arrays = sample.draw(np.random.default_rng(0), FLOAT64)
    assert isinstance(sample.op, GraphOp)
    return replace(sample, op=sample.op.saving(tuple(np.asarray(x).dtype == FLOAT64 for x in arrays), DERIVE))


def control() -> dict[str, list[Sample]]:
    square = lambda rng, d: (numbers(rng, (3,), d), numbers(rng, (), d))  # noqa: E731
    call = with_operands(ops.Call(graph(SINES), "f"))
    checkpoint = with_operands(ops.Checkpoint(graph(SINES)))
    branches = ops.Cond((graph(SINES), graph(COSINES)))
    three = ops.Cond((graph(SINES), graph(COSINES), graph(SINES)))
    conds = [
        with_operands(branches, np.bool_(False)),
        with_operands(branches, np.bool_(True)),
        with_operands(three, np.int32(5)),
    ]
    pulled = Sample(
        ops.CustomVjp(graph(SQUARE), graph(FORWARD), graph(BACKWARD), 2), square, (FLOAT64,), forward=False
    )
    pushed = Sample(ops.CustomJvp(graph(SQUARE), graph(RULE)), square, (FLOAT64,))
    scans = [
        Sample(
            ops.ScanLoop(graph(ROUND), length, 1, 2, reverse),
            lambda rng, d, n=length: (
                *(numbers(rng, (3,), d) for _ in "wh"),
                np.int64(1),
                numbers(rng, (n, 3), d),
            ),
            (FLOAT64,),
        )
        for length, reverse in ((4, False), (3, True), (0, False))
    ]
    until = Sample(
        ops.WhileLoop(graph(STILL), graph(TURN), 1, 1),
        lambda rng, d: (np.int64(3), numbers(rng, (3,), d), numbers(rng, (3,), d), np.int64(0)),
        (FLOAT64,),
        reverse=False,
    )
    return {
        "scan": scans,
        "scan_saving": [saving(s) for s in scans],
        "while": [until],
        "jit": [call],
        "jit_saving": [saving(call)],
        "checkpoint": [checkpoint],
        "checkpoint_saving": [saving(checkpoint)],
        "cond": conds,
        "cond_saving": [saving(s) for s in conds],
        "custom_vjp_call": [pulled],
        "custom_vjp_saving": [replace(saving(pulled), forward=True)],
        "custom_jvp_call": [pushed],
        "custom_jvp_saving": [saving(pushed)],
        "custom_batch_call": [with_operands(ops.CustomBatch(graph(SINES)))],
    }


def constants() -> dict[str, list[Sample]]:
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (2, 3), d) for d in EVERY] + [np.zeros((0, 2)), np.float64(2.5)]
    return {"constant": [Sample(ops.Constant.of(x), lambda rng, d: (), (FLOAT64,)) for x in arrays]}


def solves() -> dict[str, list[Sample]]:
    two = lambda rng, d: (numbers(rng, (3,), d), numbers(rng, (3,), d))  # noqa: E731
    solve, product, transposed = graph(SOLVE), graph(PRODUCT), graph(TRANSPOSED)
    diagonal, quotient = graph(DIAGONAL), graph(QUOTIENT)
    linear = [
        Sample(ops.LinearSolve(solve, product, (transposed,), 1), two, (FLOAT64,)),
        Sample(ops.LinearSolve(quotient, diagonal, (quotient,), 1, symmetric=True), two, (FLOAT64,)),
    ]
    root = Sample(ops.Root(graph(CUBE_ROOT), graph(CUBE), graph(OF_CUBE), 1), two, (FLOAT64,))
    return {
        "linear_solve": linear,
        "linear_solve_saving": [saving(s) for s in linear],
        "root": [root],
        "root_saving": [saving(root)],
    }


def effects() -> dict[str, list[Sample]]:
    two = lambda rng, d: (numbers(rng, (2, 3), d), numbers(rng, (1, 3), d))  # noqa: E731
    structure = ge2.tree.structure
    both, one = structure(((0, 0), {})), structure(0)
    called = host(lambda x, y: None, (HOLE, HOLE), both)
    pure = host(lambda x, y: x * y, (HOLE, HOLE), both, one)
    whole = (ArrayType((2, 3), INT64),)
    looped = ops.PureCallback(pure, whole, "sequential", ((2, (True, False)),))
    return {
        "debug_print": [Sample(ops.DebugPrint("{} {y}", ("y",)), two, (BOOL, FLOAT64))],
        "debug_callback": [Sample(ops.DebugCallback(called), two, (FLOAT64,))],
        "pure_callback": [
            *(Sample(ops.PureCallback(pure, whole, method), two, (INT64,)) for method in METHODS),
            Sample(looped, lambda rng, d: (numbers(rng, (2, 2, 3), d), numbers(rng, (1, 3), d)), (INT64,)),
        ],
    }


SAMPLES: dict[str, list[Sample]] = {
    **{op.name: list(elementwise(op)) for op in ops.ELEMENTWISE},
    **other_elementwise(),
    **reductions(),
    **shapes(),
    **products(),
    **indexing(),
    **scans(),
    **sorting(),
    **random(),
    **control(),
    **solves(),
    **constants(),
    **effects(),
}


def dtype_id(dtype: np.dtype) -> str:
    return short(dtype)
