"""Shapes, axes, joining, splitting, padding, repeating, triangles; arrays that are made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ge2
import ge2.numpy as gnp
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    InputError,
    ShapeError,
    TypeRuleError,
)
from ge2.ir import type_of
from ge2.trace import Input, stage
from tests.numpy.agreement import DTYPES, FEW, agree, compare, draw, traced

X = np.arange(24).reshape(2, 3, 4).astype("f4")
CASES: list[tuple[Any, ...]] = [
    (np.reshape, X, (6, 4)), (np.reshape, X, (-1, 8)), (np.reshape, X, -1), (np.reshape, X, (5, -1)),
    (np.reshape, X, (2, 3)),
    (np.reshape, X, (-1, -1)), (np.reshape, X[:0], (0, -1)), (np.reshape, X[:0], (3, -1)),
    (np.reshape, np.float32(3), (1, 1)),
    (np.reshape, X.T[::-1], 24),
    (np.ravel, X), (np.ravel, X[:, :0]), (np.ravel, np.int8(3)),
    (np.squeeze, X[:1]), (np.squeeze, X[:1, :, :1], 0), (np.squeeze, X[:1, :, :1], (0, -1)),
    (np.squeeze, X, 0),
    (np.expand_dims, X, 0), (np.expand_dims, X, -1), (np.expand_dims, X, (0, 2, -1)), (np.expand_dims, X, 9),
    (np.broadcast_to, X, (5, 2, 3, 4)), (np.broadcast_to, X[:, :1], (2, 3, 4)), (np.broadcast_to, X, (2, 3)),
    (np.broadcast_to, 3, (2,)), (np.broadcast_to, X[:1], (0, 3, 4)), (np.broadcast_to, X, (2, 0, 4)),
    (np.transpose, X), (np.transpose, X, (2, 0, 1)), (np.transpose, X, (-1, 0, 1)),
    (np.transpose, X, (0, 1)), (np.transpose, X, (0, 0, 1)),
    (np.permute_dims, X, (1, 0, 2)), (np.matrix_transpose, X), (np.matrix_transpose, X[0, 0]),
    (np.swapaxes, X, 0, -1), (np.swapaxes, X, 0, 3), (np.moveaxis, X, 0, -1), (np.moveaxis, X, (0, 1),
    (-1, 0)), (np.moveaxis, X, (0, 1), (0,)),
    (np.rollaxis, X, 2), (np.rollaxis, X, 0, 3), (np.rollaxis, X, 1, -1),
    (np.flip, X), (np.flip, X, 1), (np.flip, X, (0, -1)), (np.fliplr, X), (np.flipud, X),
    *((np.rot90, X, k, axes) for k in range(-1, 5) for axes in ((0, 1), (2, 0))), (np.rot90, X, 1, (0, 0)),
    (np.roll, X, 5), (np.roll, X, -1, 1), (np.roll, X, (1, 2), (0, 2)), (np.roll, X, 1, (0, 1)),
    (np.roll, X[:0], 1, 0), (np.roll, X, 9, -1),
    (np.tile, X, 2), (np.tile, X, (2, 1, 3)), (np.tile, X, (2, 1, 1, 2)), (np.tile, X, ()),
    (np.tile, 3, (2, 2)), (np.tile, X, (0, 1)),
    (np.repeat, X, 2), (np.repeat, X, 2, 1), (np.repeat, X, [1, 0, 2], 1), (np.repeat, X, [3], 0),
    (np.repeat, X, [1, 2], 1),
    (np.repeat, 3, 4), (np.repeat, X, 0, 0),
    (np.tril, X), (np.triu, X, 1), (np.tril, X, -2), (np.triu, X[0, 0]), (np.tril, X[:, :0]),
    *((np.diag, X[0, 0], k) for k in range(-2, 3)), *((np.diag, X[0], k) for k in range(-4, 5)), (np.diag, X),
    (np.diagflat, X[0], 1), (np.diagonal, X), (np.diagonal, X, 1, 0, 2), (np.diagonal, X, -1, 1, 2),
    (np.diagonal, X, 9), (np.diagonal, X[0, 0]),
    (np.trace, X), (np.trace, X, 1, 1, 2), (np.trace, X.astype("i1")), (np.trace, X, 0, 0, 1, "f8"),
    (np.atleast_1d, 3), (np.atleast_1d, X), (np.atleast_2d, 3), (np.atleast_2d, X[0, 0]),
    (np.atleast_2d, X, X[0, 0]),
    (np.atleast_3d, 3), (np.atleast_3d, X[0, 0]), (np.atleast_3d, X[0]), (np.atleast_3d, X[0], X),
    (np.broadcast_arrays, X, X[0], 3), (np.broadcast_arrays, X, X[:, 0]),
    (np.split, X, 3, 1), (np.split, X, 5, 1), (np.split, X, [1, 2], 1), (np.split, X, [3, 1, 9], 1),
    (np.array_split, X, 3, 2),
    (np.array_split, X, 7), (np.hsplit, X, 3), (np.hsplit, X[0, 0], 2), (np.vsplit, X, 2),
    (np.dsplit, X, 2), (np.unstack, X),
    (np.array_split, X, 0),
    (np.meshgrid, X[0, 0], X[0, :, 0]), (np.meshgrid, X[0, 0], [1, 2], X[0, :, 0]), (np.meshgrid, X[0, 0]),
    (np.append, X, X), (np.append, X, X[:1], 0), (np.append, X, 3), (np.append, X, X[0], 0),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c[0].__name__}-{'-'.join(str(a)[:9] for a in c[2:])}"
)
def test_as_numpy(case: tuple[Any, ...]) -> None:
    agree(*case, exact=True)


def test_keywords() -> None:
    for indexing, sparse in itertools.product(("xy", "ij"), (False, True)):
        agree(np.meshgrid, X[0, 0], X[0, :, 0], X[:, 0, 0], indexing=indexing, sparse=sparse)
    agree(np.meshgrid, X[0, 0], indexing="yx")
    agree(np.unstack, X, axis=1)
    agree(np.reshape, X, shape=(4, 6))
    agree(np.stack, [X[0], X[1]], axis=-1, trace=False)


def test_order_other_than_rows_first_is_an_error() -> None:
    for shape in (24, (6, 4), (2, -1, 3)):
        agree(np.reshape, X, shape, order="F")
    agree(np.ravel, X, order="F")
    with pytest.raises(ArgumentError, match=r"order='K' follows the layout in memory"):
        gnp.ravel(X, order="K")


# --------------------------------------------------------------------------- several arrays at once


def joined(f: Any, arrays: Sequence[Any], **more: Any) -> None:
    """As `agree`, with the arrays in a list, all or the first of them traced."""
    agree(
        lambda *xs: f(list(xs), **more),
        *arrays,
        ours=lambda *xs: gnp.FUNCTIONS[f](list(xs), **more),
    )
    want = f(list(arrays), **more)
    got = traced(lambda x: f([x, *arrays[1:]], **more), arrays[0])
    compare([want], [got], True, f.__name__)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("da", "db"), list(itertools.product(FEW, FEW)))
def test_joining_promotes(da: np.dtype, db: np.dtype, rng: np.random.Generator) -> None:
    a, b = draw(rng, da, (2, 3)), draw(rng, db, (2, 3))
    for f in (np.concatenate, np.stack, np.vstack, np.hstack, np.dstack, np.column_stack):
        joined(f, [a, b])
    joined(np.concatenate, [a, b[:0], b], axis=0)
    joined(np.concatenate, [a, b[0]], axis=None)
    joined(np.stack, [a, b, a], axis=-1)


def test_joining(rng: np.random.Generator) -> None:
    a = draw(rng, "f4", (3,))
    for f in (np.vstack, np.hstack, np.dstack, np.column_stack, np.stack):
        joined(f, [a, a + 1])
    joined(np.hstack, [np.float32(1), np.float32(2)])
    joined(np.concatenate, [a, a], dtype="f8")
    for bad in ([], [X, X[0]], [X, X[:, :2]], [np.float32(1), np.float32(2)]):
        agree(np.concatenate, bad, axis=0)
    agree(np.stack, [X, X[0]])
    agree(np.concatenate, [a, a], dtype="i4")
    agree(np.concatenate, [a, a], dtype="i4", casting="unsafe")
    blocks = [[np.ones((2, 2)), np.zeros((2, 1))], [np.full((1, 2), 5.0), np.ones((1, 1))]]
    np.testing.assert_array_equal(gnp.block(blocks), np.block(blocks))
    np.testing.assert_array_equal(gnp.block([1, np.ones(2), [3]][:2]), np.block([1, np.ones(2)]))
    np.testing.assert_array_equal(
        traced(lambda x: np.block([[x, x], [x, x]]), X[0]), np.block([[X[0]] * 2] * 2)
    )


def test_lists_that_hold_traced_values() -> None:
    for f in (gnp.exp, gnp.sum, lambda x: gnp.concatenate([x, [1.0, 2.0]])):
        np.testing.assert_allclose(
            traced(lambda x, f=f: f([x[0], x[1], x[0]]), X[0, 0]), f(X[0, 0][[0, 1, 0]])
        )
    got = traced(lambda x: gnp.array([[x[0], 1.0], [2, x[1]]]), X[0, 0])
    assert got.dtype == np.float64 and got.tolist() == [[0.0, 1.0], [2.0, 1.0]]
    assert traced(lambda x: gnp.array([x, x]), 2, only=[0]).dtype == np.int64
    with pytest.raises(ShapeError, match=r"different shapes: f32\[3,4\], f32\[4\]"):
        traced(lambda x: gnp.array([x, x[0]]), X[0])


# ------------------------------------------------------------------------------------------ padding


@given(
    hnp.arrays(np.int32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)),
    st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]),
    st.data(),
)
def test_padding(x: Any, mode: str, data: st.DataObject) -> None:
    side = st.integers(0, 9)
    pair = st.tuples(side, side)
    width = data.draw(side | pair | st.lists(pair, min_size=x.ndim, max_size=x.ndim))
    agree(np.pad, x, width, mode, exact=True)


def test_padding_with_numbers() -> None:
    for values in (3, (1, 2), ((1, 2),), ((1, 2), (3, 4), (5, 6)), 2.5):
        agree(np.pad, X, ((1, 2), (0, 1), (3, 0)), constant_values=values)
    agree(np.pad, X, {-1: (1, 2), 0: 3}) if np.lib.NumpyVersion(np.__version__) >= "2.3.0" else None
    agree(np.pad, X, -1)
    agree(np.pad, X, (1, 2, 3))
    agree(np.pad, X[:0], 1, "edge")
    with pytest.raises(ArgumentError, match="mode 'middle' is not supported"):
        gnp.pad(X, 1, "middle")
    value = traced(lambda x: np.pad(x, 1, constant_values=x[0]), X[0, 0] + 1)
    assert value.tolist() == [1, 1, 2, 3, 4, 1]


@given(
    hnp.arrays(
        st.sampled_from((np.int16, np.float64, np.float32)),
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
        elements=st.integers(-9, 9),
    ),
    st.sampled_from(["linear_ramp", "maximum", "mean", "median", "minimum"]),
    st.data(),
)
def test_padding_by_what_the_ends_give(x: Any, mode: str, data: st.DataObject) -> None:
    side = st.integers(0, 5)
    pairs = st.lists(st.tuples(side, side), min_size=x.ndim, max_size=x.ndim)
    if mode == "linear_ramp":
        option = {"end_values": data.draw(side | st.floats(-2, 2) | pairs)}
    else:
        length = st.integers(1, 5)
        lengths = st.lists(st.tuples(length, length), min_size=x.ndim, max_size=x.ndim)
        option = {"stat_length": data.draw(st.none() | length | lengths)}
    agree(np.pad, x, data.draw(side | pairs), mode, **option)


def test_padding_needs_elements_to_pad_by() -> None:
    for x, options, what in (
        (X[:0], {"mode": "mean"}, "can't extend empty axis 0"),
        (X, {"mode": "maximum", "stat_length": 0}, "stat_length of 0"),
        (X, {"mode": "mean", "stat_length": -1}, "negative"),
        (X, {"mode": "mean", "end_values": 1}, "unsupported keyword arguments"),
        (X, {"mode": lambda *a: None}, "not supported"),
    ):
        with pytest.raises(ValueError, match=what):
            gnp.pad(x, 1, **options)


def test_padding_by_its_own_elements_is_slices() -> None:
    graph = stage(lambda x: [np.pad(x, ((1, 2), (1, 1)), "reflect")], [Input(type_of(X[0]))]).graph
    assert {e.op.name for e in graph.eqns} <= {
        "slice", "rev", "concatenate", "broadcast_in_dim", "reshape",
    }  # fmt: skip


# -------------------------------------------------------------------------------------- arrays made


CREATED: list[tuple[str, tuple[Any, ...]]] = [
    *((f, (shape, *dtype)) for f in ("zeros", "ones") for shape in (3, (2, 3), (), (0, 2),
    [2, 2]) for dtype in ((), ("i1",), (bool,))),
    *(("full",
      (shape, value, *dtype)) for shape in (3, (2, 3)) for value in (1, 2.5, True, 1j, [1, 2, 3])
      for dtype in ((), ("c8",))),
    *(("arange", args) for args in ((5,), (2, 7), (2, 7, 2), (7, 2, -2), (0.5,), (0, 1, 0.1),
    (1, 2, 0.3, "f4"), (5.0,), (0,), (-3,), (True,), (3, None), (1, 9, 2, "i2"), (np.float32(3),),
    (0.1, 2.3, 0.7, "f4"))),
    *(("linspace", args) for args in ((0, 1), (0, 1, 5), (0, 1, 5, False), (3, 3, 4), (0, 1, 1), (0, 1, 0),
    (2, -1, 4, True, False, "i4"), ([0, 1], [2, 5], 3), (0, 1j, 3), (np.float32(0), np.float32(1), 7),
    (1e-320, 2e-320, 5), (0, 1, -1))),
    *(("eye", args) for args in ((3,), (2, 3), (3, 2, 1), (3, 4, -1, "i4"), (0,))), ("identity", (3,)),
    ("identity", (3, bool)),
    *(("tri", args) for args in ((3,), (2, 4, 1), (4, 2, -1, "i1"))),
    ("indices", ((2, 3),)), ("indices", ((2, 3), "f4")), ("indices", ((2, 3), int, True)), ("logspace",
    (0, 2, 3)), ("geomspace", (1, 100, 3)),
    ("vander", ([1, 2, 3],)), ("vander", ([1.5, 2.0], 4, True)),
    ("array", ([1, 2],)), ("array", ([[1.5], [2]],)), ("array", (3,)), ("array", ([],)), ("array", ([1, 2],
    "f4")), ("asarray", ((1, True),)),
    ("asarray", (X, "i8")), ("ascontiguousarray", (3,)), ("array", (X,)), ("array", (range(3),)), ("array",
    (2**63,)), ("array", ([[1, 2], [3]],)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), CREATED, ids=str)
def test_creation(name: str, args: tuple[Any, ...]) -> None:
    theirs, ours = getattr(np, name), getattr(gnp, name)
    agree(
        theirs,
        *args,
        ours=ours,
        trace=False,
        exact=name not in ("linspace", "logspace", "geomspace"),
    )
    try:
        want = theirs(*args)
    except (ValueError, TypeError):
        return
    recorded = stage(lambda: as_list(ours(*args)), [])()
    compare(as_list(want), recorded, False, name)
    for y in as_list(ours(*args)):
        assert y.flags.writeable or args[0] is X


def as_list(y: Any) -> list[Any]:
    return list(y) if isinstance(y, tuple | list) else [y]


def test_linspace_gives_its_step() -> None:
    for endpoint in (True, False):
        want, got = (m.linspace(0, 2, 5, endpoint, True) for m in (np, gnp))
        compare(list(want), list(got), False, "linspace")
    agree(np.linspace, 0, [1, 2, 3], 4, axis=1)
    np.testing.assert_allclose(
        traced(lambda x: np.linspace(x[0], x[1], 4), X[0, 0]),
        np.linspace(X[0, 0, 0], X[0, 0, 1], 4),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_likes(dtype: np.dtype) -> None:
    x = np.ones((2, 3), dtype)
    for f in (np.zeros_like, np.ones_like):
        agree(f, x)
        agree(f, x, dtype="f4", shape=(3,))
    agree(np.full_like, x, 1)
    agree(np.full_like, x, 2.5, shape=(4,), dtype=float)
    assert gnp.empty_like(x).shape == gnp.empty((2, 3)).shape == (2, 3)
    agree(np.zeros_like, 3)


def test_an_array_made_while_tracing_is_no_constant() -> None:
    closed = stage(lambda: [gnp.zeros((1000, 1000)), gnp.arange(1000), gnp.eye(100)], [])
    assert not closed.captured


def test_full_of_a_traced_value() -> None:
    np.testing.assert_array_equal(
        traced(lambda x: gnp.full((2, 4), x), X[0, 0]), np.broadcast_to(X[0, 0], (2, 4))
    )
    found = traced(lambda x: np.full((2, 4), x), X[0, 0])
    np.testing.assert_array_equal(found, np.full((2, 4), X[0, 0]))


def test_copies_are_copies() -> None:
    for f in (
        gnp.copy, gnp.array, gnp.positive, lambda x: gnp.tile(x, 1), lambda x: gnp.roll(x, 0),
        gnp.conj, gnp.round,
    ):  # fmt: skip
        x = np.ones(3)
        f(x)[0] = 5
        assert x[0] == 1


def test_a_length_that_depends_on_traced_values_is_an_error() -> None:
    n = np.int64(3)
    for f in (lambda n: gnp.arange(n), lambda n: np.repeat(X, n[None], 0)):
        with pytest.raises(ConcretizationTypeError, match="depend"):
            traced(f, n)
    with pytest.raises(InputError, match="a shape is made of integers; got 2.5"):
        gnp.zeros(2.5)
    with pytest.raises(ValueError, match="negative dimensions"):
        gnp.zeros((2, -1))


def test_a_roll_by_a_traced_number() -> None:
    x, few = np.arange(24.0).reshape(2, 3, 4), np.zeros((0, 3))

    def rolled(by: Any, two: Any) -> list[Any]:
        return [
            *(
                np.roll(x + 0 * by, by),
                np.roll(x + 0 * by, -by, 1),
                np.roll(x + 0 * by, by * 7, axis=-1),
            ),
            *(np.roll(x + 0 * by, (by, 1), (0, 2)), np.roll(x + 0 * by, by, (0, 1))),
            *(
                np.roll(x + 0 * by, two, (0, 2)),
                np.roll(few + 0 * by, by, 0),
                np.roll(few + 0 * by, by),
            ),
            np.roll(x + 0 * by, [1, by], [2, 2]),
        ]

    for by, two in ((1, [1, -2]), (-5, [0, 3]), (np.int8(2), [4, 5])):
        found = ge2.jit(rolled)(by, np.array(two))
        for y, expected in zip(found, rolled(by, np.array(two)), strict=True):
            np.testing.assert_array_equal(y, expected)

    def stepped(i: Any, y: Any) -> Any:
        return np.roll(y, i) + i

    expected = x[0, 0]
    for i in range(4):
        expected = stepped(i, expected)
    np.testing.assert_array_equal(ge2.lax.fori_loop(0, 4, stepped, x[0, 0]), expected)
    with pytest.raises(TypeRuleError, match="roll takes integers as shifts; got ~f64"):
        ge2.jit(lambda y, by: np.roll(y, by))(x, 1.5)
    with pytest.raises(ShapeError, match="a shift for each axis; got 2 shifts for 3 axes"):
        gnp.roll(x, (1, 2), (0, 1, 2))


def test_the_number_of_a_diagonal_may_be_traced() -> None:
    x, ks = np.arange(12.0).reshape(3, 4), np.array([-9, -2, 0, 1, 9, 100])
    for ours, theirs in (
        (lambda k: gnp.eye(3, 4, k), lambda k: np.eye(3, 4, k)),
        (lambda k: gnp.tri(3, 4, k), lambda k: np.tri(3, 4, k)),
        (lambda k: np.tril(x + 0 * k, k), lambda k: np.tril(x, k)),
        (lambda k: np.triu(x + 0 * k, k=k), lambda k: np.triu(x, k)),
    ):
        wanted = np.stack([theirs(k) for k in ks])
        np.testing.assert_array_equal(ge2.vmap(ours)(ks), wanted)
        np.testing.assert_array_equal(
            ge2.vmap(ours)(np.maximum(ks, 0).astype("u1"))[2:], wanted[2:]
        )
    with pytest.raises(ArgumentError, match="number of a diagonal is one integer"):
        ge2.jit(lambda k: gnp.eye(3, k=k))(1.5)


def test_shapes_and_axes_are_arrays() -> None:
    """Of numbers that are known: constants, and what the function itself wrote."""
    x = np.arange(6.0).reshape(2, 3)
    sized: dict[str, Any] = {
        "zeros": lambda x, n: gnp.zeros(n) + x.reshape(3, 2),
        "reshape": lambda x, n: x.reshape(n),
        "broadcast_to": lambda x, n: np.broadcast_to(x[0, 0], n),
        "resize": lambda x, n: np.resize(x, n),
        "transpose": lambda x, n: x.transpose(n - 2),
        "moveaxis": lambda x, n: np.moveaxis(x, n - 2, n[::-1] - 2),
        "tensordot": lambda x, n: np.tensordot(x, x.T, axes=n[:, None] - 2),
    }
    constant = np.array([3, 2])

    def written(x: Any) -> Any:
        n = gnp.empty(2, dtype=np.int64)
        n[0], n[1] = x.shape[::-1]
        return n

    for name, f in sized.items():
        want = f(x, constant)
        for g in (lambda x: f(x, constant), lambda x: f(x, written(x))):  # noqa: B023
            np.testing.assert_array_equal(ge2.make_jaxpr(g)(x)(x)[0], want, name)
    for name in ("reshape", "resize"):
        np.testing.assert_array_equal(getattr(gnp, name)(x, constant), sized[name](x, constant))


def test_functions_of_shapes_make_arrays_of_numbers() -> None:
    """Eager ones too, whose elements a traced mask chooses: `np.broadcast_arrays(x, 0)[1][x > 0]`."""
    for f in ("block", "copy", "pad", "reshape", "squeeze", "transpose"):
        args = {"pad": (0,), "reshape": ((),)}.get(f, ())
        assert type(getattr(gnp, f)(2.5, *args)) is np.ndarray, f
    a, b = gnp.broadcast_arrays(2.5, 1)
    assert type(a) is type(b) is type(gnp.broadcast_to(1, ())) is np.ndarray
    assert type(gnp.flip(2.5)) is np.float64
