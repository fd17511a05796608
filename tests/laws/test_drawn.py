"""The laws again, for operations with parameters; hypothesis draws shapes,
axes, dtypes and strides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from ge2 import ops
from ge2.base.arrays import COMPLEX, FLOAT64, INEXACT
from ge2.ir import Op, parse, type_of, verify, write
from ge2.test_util.laws import batch, evaluate, graph_of, inexact, like, paired, pulled, types_of
from ge2.transforms.graphs import DERIVE, jvp_graph
from tests.exhaustive import examples
from tests.laws.sample import EVERY, numbers
from tests.laws.samples import distinct

Dims = tuple[int, ...]
# the operation, operands, and NumPy's function of them
Case = tuple[Op, list[Any], Callable[..., Any]]
Draw = st.DrawFn
# those NumPy reduces and sorts itself, as ge2 does
KNOWN = tuple(d for d in EVERY if d.kind != "V")
# float16 is accumulated in float32 here, not in NumPy
EXACT = tuple(d for d in KNOWN if d != np.float16)
NUMERIC = tuple(d for d in EXACT if d.kind != "b")

shapes = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
some_axes = array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


def generator(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**32)))


def array(draw: Draw, shape: Dims, dtype: np.dtype | None = None, values: Any = numbers) -> Any:
    """Contiguous or not, in any order of axes, read-only or not."""
    dtype = draw(st.sampled_from(KNOWN)) if dtype is None else dtype
    order = draw(st.permutations(range(len(shape))))
    step = draw(st.sampled_from([1, 2, -1]))
    x = values(generator(draw), shape, dtype)
    room = np.zeros(tuple(shape[i] * abs(step) for i in order), dtype)
    room = room[(..., *(slice(None, None, step) for _ in order))]
    view = np.transpose(room, np.argsort(order).astype(int)) if shape else room
    view[...] = x
    view.flags.writeable = draw(st.booleans())
    return view


@st.composite
def reductions(draw: Draw) -> Case:
    shape = draw(shapes)
    cls, f, dtypes = draw(
        st.sampled_from(
            [
                (ops.ReduceSum, np.add, EXACT),
                (ops.ReduceProd, np.multiply, EXACT),
                (ops.ReduceMax, np.maximum, KNOWN),
                (ops.ReduceMin, np.minimum, KNOWN),
                (ops.ReduceOr, np.logical_or, (np.dtype(bool),)),
                (ops.ReduceAnd, np.logical_and, (np.dtype(bool),)),
            ]
        )
    )
    extreme = cls in (ops.ReduceMax, ops.ReduceMin)
    allowed = [i for i, n in enumerate(shape) if n or not extreme]
    axes = tuple(sorted(draw(st.sets(st.sampled_from(allowed))))) if allowed else ()
    x = array(draw, shape, draw(st.sampled_from(dtypes)), distinct if extreme else numbers)
    return cls(axes), [x], lambda x: f.reduce(x, axis=axes, dtype=x.dtype)


@st.composite
def arg_reductions(draw: Draw) -> Case:
    shape = draw(some_axes.filter(lambda s: any(s)))
    axis = draw(st.sampled_from([i for i, n in enumerate(shape) if n]))
    cls, f = draw(st.sampled_from([(ops.ArgMax, np.argmax), (ops.ArgMin, np.argmin)]))
    return cls(axis), [array(draw, shape)], lambda x: f(x, axis)


@st.composite
def transposes(draw: Draw) -> Case:
    shape = draw(shapes)
    order = tuple(draw(st.permutations(range(len(shape)))))
    return ops.Transpose(order), [array(draw, shape)], lambda x: np.transpose(x, order)


@st.composite
def broadcasts(draw: Draw) -> Case:
    shape = draw(shapes)
    dims = tuple(i for i in range(len(shape)) if draw(st.booleans()))
    x = array(draw, tuple(shape[i] for i in dims))
    new = tuple(i for i in range(len(shape)) if i not in dims)
    return (
        ops.BroadcastInDim(shape, dims),
        [x],
        lambda x: np.broadcast_to(np.expand_dims(x, new), shape),
    )


@st.composite
def slices(draw: Draw) -> Case:
    shape = draw(shapes)
    start = tuple(draw(st.integers(0, n)) for n in shape)
    stop = tuple(draw(st.integers(a, n)) for a, n in zip(start, shape, strict=True))
    step = tuple(draw(st.integers(1, 4)) for _ in shape)
    picked = tuple(map(slice, start, stop, step))
    return ops.Slice(start, stop, step), [array(draw, shape)], lambda x: x[picked]


@st.composite
def updates(draw: Draw) -> Case:
    op, (x,), _ = draw(slices())
    assert isinstance(op, ops.Slice)
    picked = tuple(map(slice, op.start, op.stop, op.step))

    def write(x: Any, u: Any) -> Any:
        y = x.copy()
        y[picked] = u
        return y

    return ops.UpdateSlice(op.start, op.step), [x, array(draw, x[picked].shape, x.dtype)], write


def padded(x: Any, low: Dims, high: Dims, inner: Dims) -> Any:
    """One element at a time."""
    shape = tuple(
        a + b + n + max(n - 1, 0) * i for n, a, b, i in zip(x.shape, low, high, inner, strict=True)
    )
    y = np.zeros(shape, x.dtype)
    for at in np.ndindex(x.shape):
        to = tuple(a + k * (i + 1) for a, k, i in zip(low, at, inner, strict=True))
        if all(0 <= t < n for t, n in zip(to, shape, strict=True)):
            y[to] = x[at]
    return y


@st.composite
def pads(draw: Draw) -> Case:
    shape = draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    inner = tuple(draw(st.integers(0, 2)) for _ in shape)
    spread = [n + max(n - 1, 0) * i for n, i in zip(shape, inner, strict=True)]
    low = tuple(draw(st.integers(-n, 3)) for n in spread)
    high = tuple(draw(st.integers(-(n + a), 3)) for n, a in zip(spread, low, strict=True))
    return ops.Pad(low, high, inner), [array(draw, shape)], lambda x: padded(x, low, high, inner)


@st.composite
def joins(draw: Draw) -> Case:
    shape = draw(some_axes)
    axis = draw(st.integers(0, len(shape) - 1))
    dtype = draw(st.sampled_from(KNOWN))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    xs = [array(draw, (*shape[:axis], n, *shape[axis + 1 :]), dtype) for n in sizes]
    return ops.Concatenate(axis), xs, lambda *xs: np.concatenate(xs, axis)


@st.composite
def reversals(draw: Draw) -> Case:
    shape = draw(shapes)
    axes = tuple(i for i in range(len(shape)) if draw(st.booleans()))
    return ops.Rev(axes), [array(draw, shape)], lambda x: np.flip(x, axes)


@st.composite
def reshapes(draw: Draw) -> Case:
    shape = draw(shapes)
    target = tuple(draw(st.permutations([*shape, *(1 for _ in range(draw(st.integers(0, 2))))])))
    if draw(st.booleans()):
        target = (int(np.prod(shape, dtype=int)),)
    return ops.Reshape(target), [array(draw, shape)], lambda x: np.reshape(x, target)


@st.composite
def products(draw: Draw) -> Case:
    """Einsum over letters, each with a size, in any order in either operand."""
    size = {c: draw(st.integers(0, 3)) for c in "abcdef"}
    beside, contract = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    letters = iter("abcdef")
    both = [next(letters) for _ in range(beside + contract)]
    left = draw(st.permutations([*both, *([next(letters)] if draw(st.booleans()) else [])]))
    right = draw(st.permutations([*both, *([next(letters)] if draw(st.booleans()) else [])]))
    kept, gone = both[:beside], both[beside:]
    at = lambda names, found: tuple(names.index(c) for c in found)  # noqa: E731
    op = ops.DotGeneral((at(left, gone), at(right, gone)), (at(left, kept), at(right, kept)))
    out = [*kept, *(c for c in left if c not in both), *(c for c in right if c not in both)]
    dtype = draw(st.sampled_from(NUMERIC))
    a, b = (array(draw, tuple(size[c] for c in names), dtype) for names in (left, right))
    spelled = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
    return op, [a, b], lambda a, b: np.einsum(spelled, a, b)


@st.composite
def scans(draw: Draw) -> Case:
    shape = draw(some_axes)
    axis, reverse = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
    kinds = [
        (ops.CumSum, np.add),
        (ops.CumProd, np.multiply),
        (ops.CumMax, np.maximum),
        (ops.CumMin, np.minimum),
    ]
    cls, f = draw(st.sampled_from(kinds))
    turned = lambda x: np.flip(x, axis) if reverse else x  # noqa: E731
    x = array(
        draw,
        shape,
        draw(st.sampled_from(NUMERIC)),
        distinct if cls in (ops.CumMax, ops.CumMin) else numbers,
    )
    return cls(axis, reverse), [x], lambda x: turned(f.accumulate(turned(x), axis, dtype=x.dtype))


@st.composite
def sorts(draw: Draw) -> Case:
    shape = draw(some_axes)
    axis = draw(st.integers(0, len(shape) - 1))
    cls, f = draw(st.sampled_from([(ops.Sort, np.sort), (ops.ArgSort, np.argsort)]))
    return cls(axis), [array(draw, shape, values=distinct)], lambda x: f(x, axis, kind="stable")


FAMILIES = [
    reductions, arg_reductions, transposes, broadcasts, slices, updates, pads, joins, reversals,
]  # fmt: skip
FAMILIES += [reshapes, products, scans, sorts]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_the_laws_hold_for_any_parameters(family: Any, data: st.DataObject) -> None:
    op, arrays, numpy = data.draw(family())
    graph = graph_of(op, types_of(arrays))
    assert parse(write(graph), ops.TABLE) == graph
    (y,) = verify(graph)(*arrays)
    want = numpy(*arrays)
    assert type_of(y).shape == np.shape(want) == graph.outputs[0].type.shape
    assert type_of(y).dtype == want.dtype == graph.outputs[0].type.dtype
    assert agree(y, want)
    check_duality(op, arrays)
    axes = [data.draw(st.none() | st.integers(0, x.ndim)) for x in arrays]
    if any(a is not None for a in axes):
        size = data.draw(st.integers(1, 3))
        others = [[np.roll(x, k) for x in arrays] for k in range(size)]
        pairs = list(zip(arrays, axes, strict=True))
        operands = [
            x if a is None else np.stack([o[i] for o in others], a)
            for i, (x, a) in enumerate(pairs)
        ]
        one = [[x if a is None else o[i] for i, (x, a) in enumerate(pairs)] for o in others]
        batch(op, operands, axes, arrays, [evaluate(op, xs) for xs in one])


def agree(a: Any, b: Any) -> bool:
    single = np.asarray(a).dtype.itemsize <= 4 or np.asarray(a).dtype in COMPLEX
    rtol = 1e-5 if single else 1e-12
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True))


def check_duality(op: Op, arrays: list[Any]) -> None:
    """Forward and reverse mode are transposes of each other, at whatever parameters."""
    wide = [
        x.astype(np.promote_types(x.dtype, FLOAT64)) if x.dtype in INEXACT else x for x in arrays
    ]
    graph = graph_of(op, types_of(wide))
    wanted = tuple(x.dtype in INEXACT for x in wide)
    if not any(wanted) or graph.outputs[0].type.dtype not in INEXACT:
        return
    rng = np.random.default_rng(0)
    cts = [like(rng, y) for y in inexact(evaluate(op, wide))]
    vs = [like(rng, x) for x, w in zip(wide, wanted, strict=True) if w]
    ts = jvp_graph(graph, wanted, DERIVE)(*wide, *vs)[1:]
    grads = pulled(graph, wanted)(*wide, *cts)[1:]
    assert np.isclose(paired(cts, ts), paired(grads, vs), rtol=1e-9, atol=1e-9)
