"""For every operation: parameters to try, and operands that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ge2 import ops
from ge2.base.arrays import BFLOAT16, BOOL, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT64
from ge2.ir import Op
from ge2.ops import elementwise as el
from tests.laws.control_samples import control, effects, solves
from tests.laws.linalg_samples import decompositions, equations, transforms
from tests.laws.sample import (
    COMPLEXES,
    DOMAINS,
    EVERY,
    FLOATS,
    I8,
    I32,
    INTEGERS,
    KINDS,
    NUMERIC,
    SHAPES,
    U8,
    U16,
    U32,
    U64,
    Dims,
    Rng,
    Sample,
    above_one,
    numbers,
    pair,
)

# -------------------------------------------------------------------------------------- elementwise


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
        yield Sample(
            op, lambda rng, d: first_scalar(*pair(op.name, rng, (3,), d)[::-1])[::-1], dtypes
        )


def first_scalar(a: Any, b: Any) -> tuple[Any, Any]:
    return a[0], np.full_like(b, b[0])


def of(op: Op, *shapes: Dims, dtypes: tuple[np.dtype, ...] = EVERY, **more: Any) -> Sample:
    """Operands of these shapes, all of the drawn dtype."""
    return Sample(op, lambda rng, d: tuple(numbers(rng, s, d) for s in shapes), dtypes, **more)


def same_size(dtype: np.dtype) -> tuple[np.dtype, ...]:
    """The dtypes whose bits are those of another."""
    return tuple(d for d in (*INTEGERS, *FLOATS) if d.itemsize == dtype.itemsize)


def other_elementwise() -> dict[str, list[Sample]]:
    def where(s: Dims, t: Dims, u: Dims) -> Sample:
        return Sample(
            ops.Where(),
            lambda rng, d: (numbers(rng, s, BOOL), numbers(rng, t, d), numbers(rng, u, d)),
            EVERY,
        )

    def ldexp(s: Dims, t: Dims) -> Sample:
        return Sample(
            ops.Ldexp(), lambda rng, d: (numbers(rng, s, d), numbers(rng, t, I32)), FLOATS
        )

    real = (FLOAT32, FLOAT64)
    integer_powers = [of(ops.IntegerPow(y), (2, 3), dtypes=NUMERIC) for y in (0, 1, 2, 3, 7)]
    negative = [  # differences need a pole far away
        Sample(
            ops.IntegerPow(y), lambda rng, d: (numbers(rng, (4,), d, 1, 3),), (*FLOATS, *COMPLEXES)
        )
        for y in (-1, -2, -5)
    ]
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
        "bitcast_convert_type": [
            of(ops.BitcastConvertType(d), s, dtypes=same_size(d), constant=True)
            for d in (U8, FLOAT16, BFLOAT16, U16, FLOAT32, I32, FLOAT64, INT64)
            for s in ((2, 3), (0,))
        ],
    }


def families() -> dict[str, list[Sample]]:
    """Special functions with a parameter."""
    bessels = [ops.Bessel(0), ops.Bessel(1, scaled=True), ops.Bessel(2)]
    return {
        "polygamma": [  # differences need a pole far away
            Sample(ops.Polygamma(n), lambda rng, d, s=s: (above_one(rng, s, d),), FLOATS)
            for n, s in ((1, (2, 3)), (2, ()))
        ],
        "bessel": [of(op, (2, 3), dtypes=FLOATS) for op in bessels],
    }


# ---------------------------------------------------------------------- reductions, shape, products


def reductions() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    axes = [
        ((2, 3), (0,)), ((2, 3), (1,)), ((2, 3, 2), (0, 2)), ((3, 4), (0, 1)), ((), ()),
        ((1,), (0,)), ((0, 2), (1,)),
    ]  # fmt: skip
    for cls in (ops.ReduceSum, ops.ReduceProd, ops.ReduceMax, ops.ReduceMin):
        extreme = cls in (ops.ReduceMax, ops.ReduceMin)
        empty = [] if extreme else [((0, 2), (0,)), ((2, 0), (0, 1))]
        found[cls.name] = [of(cls(a), s) for s, a in [*axes, *empty]]
    for cls in (ops.ReduceOr, ops.ReduceAnd):
        found[cls.name] = [of(cls(a), s, dtypes=(BOOL,)) for s, a in [*axes, ((0, 2), (0,))]]
    for cls in (ops.ArgMax, ops.ArgMin):
        found[cls.name] = [
            of(cls(a), s) for s, a in [((2, 3), 0), ((2, 3), 1), ((4,), 0), ((0, 2), 1)]
        ]
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
            for s, t in [
                ((2, 3), (3, 2)), ((4,), (2, 1, 2)), ((1,), ()), ((), (1, 1)), ((0, 3), (0,)),
            ]
        ],
        "slice": [of(ops.Slice(*p), s) for s, *p in slices],
        "rev": [
            of(ops.Rev(a), s)
            for s, a in [((2, 3), (1,)), ((2, 3), (0, 1)), ((0,), (0,)), ((3,), ())]
        ],
        "pad": [of(ops.Pad(*p), s) for s, *p in pads],
        "concatenate": [of(ops.Concatenate(a), *s) for a, *s in joins],
        "iota": [
            Sample(ops.Iota(s, a, d), lambda rng, _: (), (FLOAT64,), batched=False)
            for s, a, d in [
                ((4,), 0, INT64), ((2, 3), 1, FLOAT32), ((3, 2), 0, BFLOAT16), ((0,), 0, U8),
                ((2, 2), 0, COMPLEX64),
            ]
        ],
        "name": [of(ops.Name("kept"), (2, 3)), of(ops.Name("kept"), ())],
        "stop_gradient": [
            of(ops.StopGradient(), (2, 3), constant=True),
            of(ops.StopGradient(), (), constant=True),
        ],
        "barrier": [of(ops.Barrier(), (2, 3), (4,)), of(ops.Barrier(), ())],
    }  # fmt: skip


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


# -------------------------------------------------------------------------- indices, scans, sorting


def indices(rng: Rng, shape: Dims, size: int, dtype: np.dtype = INT64) -> Any:
    return np.asarray(rng.integers(-size if dtype.kind == "i" else 0, max(size, 1), shape)).astype(
        dtype
    )


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

    def sample(cls: Any, s: Dims, axes: Dims, i: tuple[Dims, ...], di: np.dtype) -> Sample:
        selected = (*max(i, key=len), *(n for a, n in enumerate(s) if a not in axes))

        def draw(rng: Rng, d: np.dtype) -> tuple[Any, ...]:
            x, updates = numbers(rng, s, d), numbers(rng, selected, d)
            if issubclass(cls, ops.ScatterMax | ops.ScatterMin):
                both = distinct(rng, (x.size + updates.size,), d)
                x, updates = both[: x.size].reshape(s), both[x.size :].reshape(selected)
            where = [indices(rng, t, s[a], di) for a, t in zip(axes, i, strict=True)]
            return (x, *where) if cls is ops.Gather else (x, updates, *where)

        return Sample(cls(axes), draw, EVERY)

    def windowed(i: Dims, unique: bool = False) -> Sample:
        def draw(rng: Rng, d: np.dtype) -> tuple[Any, ...]:
            at = rng.permutation(3)[: i[0]] if unique else indices(rng, i, 3, INT64)
            return numbers(rng, (6, 3, 4), d), numbers(rng, (*i, 2, 3), d), at

        return Sample(ops.Scatter((1,), ((1, 2, 3), (0, 3, 1)), unique), draw, EVERY)

    writes = {
        c.name: [sample(c, *case) for case in cases]
        for c in (ops.Gather, ops.ScatterAdd, ops.ScatterMax, ops.ScatterMin, ops.Scatter)
    }
    writes["scatter"] += [windowed(()), windowed((2,)), windowed((2,), unique=True)]
    slices: list[tuple[Dims, Dims, Dims, Dims]] = [
        ((4, 3), (2, 2), (1, 0), (2, 1)),
        ((5,), (2,), (0,), (3,)),
        ((3,), (0,), (3,), (1,)),
        ((), (), (), ()),
        ((2,), (2,), (0,), (1,)),
    ]
    return {**writes, "update_slice": [of(ops.UpdateSlice(a, b), s, t) for s, t, a, b in slices]}


REALS = tuple(d for d in EVERY if d not in COMPLEXES)


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
        ((5,), 0, False), ((5,), 0, True), ((3, 4), 0, False), ((2, 6), 1, True),
        ((7, 2), 0, True), ((1,), 0, False), ((2,), 0, False), ((0,), 0, False), ((2, 0), 0, True),
        ((3, 2, 2), 1, False),
    ]  # fmt: skip
    found = {
        c.name: [of(c(a, r), s, dtypes=NUMERIC) for s, a, r in cases]
        for c in (ops.CumSum, ops.CumProd)
    }
    for c in (ops.CumMax, ops.CumMin):
        found[c.name] = [
            Sample(c(a, r), lambda rng, d, s=s: (distinct(rng, s, d),), EVERY) for s, a, r in cases
        ]
    return found


def sorting() -> dict[str, list[Sample]]:
    cases: list[tuple[Dims, int]] = [
        ((5,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 2), 1), ((1,), 0), ((0,), 0), ((2, 0), 0),
    ]  # fmt: skip
    searches: list[tuple[int, Dims, Dims]] = [
        (0, (5,), (2, 3)), (0, (0,), (2,)), (0, (4,), ()), (1, (2, 4), (2, 3)), (1, (2, 4), (2,)),
        (2, (2, 1, 3), (2, 1, 2)), (0, (3,), (0,)),
    ]  # fmt: skip

    def search(side: str, beside: int, s: Dims, t: Dims) -> Sample:
        return Sample(
            ops.SearchSorted(side, beside),
            lambda rng, d: (
                np.sort(distinct(rng, s, as_known(d)), -1).astype(d),
                numbers(rng, t, d),
            ),
            EVERY,
        )

    tops: list[tuple[Dims, int, int]] = [
        ((5,), 3, 0), ((3, 4), 2, 0), ((3, 4), 4, 1), ((2, 3, 2), 1, 1), ((2, 40), 3, 1),
        ((1,), 1, 0), ((0,), 0, 0), ((2, 3), 0, 1), ((0, 3), 2, 1),
    ]  # fmt: skip
    return {
        "top_k": [
            Sample(ops.TopK(k, a), lambda rng, d, s=s: (distinct(rng, s, d),), REALS)
            for s, k, a in tops
        ],
        **{
            c.name: [
                Sample(c(a), lambda rng, d, s=s: (distinct(rng, s, d),), EVERY) for s, a in cases
            ]
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
        ((), U32, ()), ((5,), U32, ()), ((3, 5), U64, ()), ((7,), U8, (2,)), ((2, 3), U16, (2, 1)),
        ((0,), U32, ()), ((9,), U64, (0,)),
    ]  # fmt: skip
    folds: list[tuple[Dims, Dims]] = [
        ((), ()), ((), (3,)), ((2,), (2, 3)), ((2,), (2,)), ((), (0,)),
    ]  # fmt: skip
    return {
        "random_bits": [
            Sample(ops.RandomBits(s, t), lambda rng, _, k=k: (words(rng, *k, 2),), (U32,))
            for s, t, k in bits
        ],
        "random_fold": [
            Sample(
                ops.RandomFold(p),
                lambda rng, _, k=k, s=s: (words(rng, *k, 2), words(rng, *s)),
                (U32,),
            )
            for p in (1, 2)
            for k, s in folds
        ],
    }


def constants() -> dict[str, list[Sample]]:
    rng = np.random.default_rng(0)
    arrays = [numbers(rng, (2, 3), d) for d in EVERY] + [np.zeros((0, 2)), np.float64(2.5)]
    return {"constant": [Sample(ops.Constant.of(x), lambda rng, d: (), (FLOAT64,)) for x in arrays]}


SAMPLES: dict[str, list[Sample]] = {
    **{op.name: list(elementwise(op)) for op in ops.ELEMENTWISE},
    # the others differ in numbers alone
    **{op.name: list(elementwise(op))[:1] for op in ops.SPECIAL},
    **other_elementwise(),
    **families(),
    **reductions(),
    **shapes(),
    **products(),
    **indexing(),
    **scans(),
    **sorting(),
    **random(),
    **equations(),
    **decompositions(),
    **transforms(),
    **control(),
    **solves(),
    **constants(),
    **effects(),
}
