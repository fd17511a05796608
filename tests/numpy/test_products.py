"""Products, einsum, norms: values, dtypes, shapes and errors as NumPy's."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2.numpy as gnp
from ge2.base.errors import ArgumentError, ShapeError
from ge2.ir import type_of
from ge2.trace import Input, stage
from tests.numpy.agreement import DTYPES, FEW, agree, compare, draw, traced

SHAPES = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3),
          (5, 3, 4)),
          ((5, 2, 3), (3,)), ((3,), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((5, 2, 3), (5, 3, 4)),
          ((1, 2, 3), (5, 3, 4)),
          ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (2, 3)), ((2, 2, 3), (5, 3, 4)), ((), (3,)), ((3,),
          ())]  # fmt: skip
name = lambda f: f.__name__  # noqa: E731


@pytest.mark.exhaustive("f")
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
@pytest.mark.parametrize(
    "f",
    [np.matmul, np.dot, np.inner, np.vdot, np.outer, np.vecdot, np.kron, np.multiply.outer],
    ids=name,
)
def test_shapes(f: Any, a: tuple[int, ...], b: tuple[int, ...], rng: np.random.Generator) -> None:
    ours = gnp.ufunc_method(np.multiply, "outer") if f == np.multiply.outer else None
    agree(f, draw(rng, "f4", a), draw(rng, "f4", b), ours=ours)


@pytest.mark.skipif(not hasattr(np, "matvec"), reason="NumPy 2.2 brought matvec and vecmat")
@pytest.mark.parametrize(("a", "b"), SHAPES, ids=str)
def test_matvec_and_vecmat(
    a: tuple[int, ...], b: tuple[int, ...], rng: np.random.Generator
) -> None:
    for f in (np.matvec, np.vecmat):
        agree(f, draw(rng, "c8", a), draw(rng, "c8", b))


@pytest.mark.parametrize(
    "f",
    [np.matmul, np.dot, np.inner, np.vdot, np.outer, np.vecdot, np.tensordot, np.kron],
    ids=name,
)
def test_dtypes(f: Any, rng: np.random.Generator) -> None:
    for da, db in itertools.product(FEW, FEW):
        shapes = ((3,), (3,)) if f not in (np.matmul, np.dot, np.tensordot) else ((2, 3), (3, 2))
        more = {"axes": 1} if f is np.tensordot else {}
        agree(f, draw(rng, da, shapes[0]), draw(rng, db, shapes[1]), trace=da == db, **more)


def test_operators(rng: np.random.Generator) -> None:
    a, b = draw(rng, "f4", (2, 3)), draw(rng, "f8", (3, 4))
    compare([a @ b], [traced(lambda a: a @ b, a)], False, "@")
    compare([a @ b], [traced(lambda b: a @ b, b)], False, "@")


@pytest.mark.parametrize(
    "axes",
    [0, 1, 2, (1, 0), ([0, 1], [1, 0]), ((-1,), (0,)), ([0], [0, 1]), 3, ((5,), (0,))],
    ids=str,
)
def test_tensordot(axes: Any, rng: np.random.Generator) -> None:
    agree(np.tensordot, draw(rng, "f4", (3, 4)), draw(rng, "f4", (4, 3)), axes=axes)
    agree(np.tensordot, draw(rng, "f4", (2, 3, 3)), draw(rng, "f4", (3, 3, 4)), axes=axes)


@pytest.mark.parametrize("dtype", [np.dtype(d) for d in ("u2", "i8", "f4", "c16")], ids=str)
def test_cross_of_vectors_of_two(dtype: np.dtype, rng: np.random.Generator) -> None:
    for m, n in ((2, 2), (2, 3), (3, 2)):
        agree(np.cross, draw(rng, dtype, (m,)), draw(rng, dtype, (n,)))
        agree(np.cross, draw(rng, dtype, (5, 1, m)), draw(rng, "i2", (4, n)))
        agree(np.cross, draw(rng, dtype, (m, 4)), draw(rng, dtype, (4, n)), axisa=0, axisc=0)
        for wrong in ((4, n), (m, 1), (4, 4)):
            agree(np.cross, np.ones(wrong[0]), np.ones(wrong[1]))
        agree(np.linalg.cross, np.ones(m), np.ones(n))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cross(dtype: np.dtype, rng: np.random.Generator) -> None:
    agree(np.cross, draw(rng, dtype, (4, 3)), draw(rng, dtype, (3,)))
    agree(np.cross, draw(rng, dtype, (3, 4)), draw(rng, dtype, (4, 3)), axisa=0, axisc=0)
    agree(np.cross, draw(rng, dtype, (3, 4)), draw(rng, dtype, (3, 4)), axis=0)
    agree(np.linalg.cross, draw(rng, dtype, (3, 4)), draw(rng, dtype, (3, 4)), axis=0)
    with pytest.raises(ShapeError, match=r"vectors of 3 elements, or 2; got .*\[4\]"):
        gnp.cross(np.ones(4), np.ones(4))


# ------------------------------------------------------------------------------------------- einsum

TERMS = ["i,i->", "i,i", "ij,jk", "ij,jk->ki", "ij,j->i", "ij->ji", "ii", "ii->i", "ij->", "ij,ij->ij",
         "ij,ij->i", "i,j->ij",
         "bij,bjk->bik", "bij,jk->bik", "...ij,...jk->...ik", "...i,...i->...", "i...,i...", "ij,kl->ijkl",
         "iij,j->i",
         "ij,ji->", "abc,cd,db->ab", "i,i,i->i", "ij,j,jk->ik", "ij,kj->ik", "i,->i", "...->...",
         "...ij->...", "ba", "bij,ij->",
         "ij, jk -> ik"]  # fmt: skip
SIZES = {"i": 3, "j": 4, "k": 2, "l": 2, "a": 2, "b": 3, "c": 4, "d": 5}


def operands(terms: str, rng: np.random.Generator, dots: tuple[int, ...] = (2, 3)) -> list[Any]:
    inputs = terms.replace(" ", "").split("->")[0].split(",")
    shapes = []
    for n, t in enumerate(inputs):
        head, some, tail = t.partition("...")
        wild = dots[n % 2 :] if some else ()
        shapes.append((*(SIZES[c] for c in head), *wild, *(SIZES[c] for c in tail)))
    return [draw(rng, "f4", s) for s in shapes]


@pytest.mark.parametrize("terms", TERMS)
def test_einsum(terms: str, rng: np.random.Generator) -> None:
    agree(np.einsum, terms, *operands(terms, rng))


@given(st.data())
def test_einsum_of_any_two(data: st.DataObject) -> None:
    letters = st.text("ijkab", max_size=4)
    a, b = data.draw(letters), data.draw(letters)
    result = data.draw(st.permutations(sorted(set(a + b)))) if a + b else []
    kept = "".join(result[: data.draw(st.integers(0, len(result)))])
    rng = np.random.default_rng(0)
    sizes = {c: SIZES[c] for c in a + b}
    xs = [draw(rng, "f8", tuple(sizes[c] for c in t)) for t in (a, b)]
    agree(np.einsum, f"{a},{b}->{kept}", *xs)


def test_einsum_otherwise(rng: np.random.Generator) -> None:
    a, b = draw(rng, "f4", (2, 3)), draw(rng, "f4", (3, 4))
    agree(np.einsum, a, [0, 1], b, [1, 2], [0, 2])
    agree(np.einsum, a, [0, 1], b, [1, 2])
    agree(np.einsum, a, [Ellipsis, 1], b, [1, 2], [Ellipsis, 2])
    for dtype in DTYPES:
        agree(np.einsum, "ij,jk->ik", a.astype(dtype), b.astype(dtype))
        agree(np.einsum, "ij->i", a.astype(dtype))
    agree(np.einsum, "ij,jk", a, b, dtype="f8")
    agree(np.einsum, "ij,jk", a, b, optimize=True)
    agree(np.einsum, "ij,jk->ik", a[:, :1], b)
    for bad in ("ij,jk", "ij,jj", "ijk,jk", "ij->iz", "ij->ii", "ij,jk,kl"):
        agree(np.einsum, bad, a, a)


def test_three_operands_and_more_are_multiplied_in_the_cheapest_order() -> None:
    """Points of a Bezier surface: the outer product of both weights is 25 times the result's size."""
    u, v, c = (np.ones(shape, np.float32) for shape in ((40, 5), (30, 5), (5, 5, 3)))
    graph = stage(
        lambda *xs: [np.einsum("ui,vj,ijk->uvk", *xs)], [*map(Input, map(type_of, (u, v, c)))]
    ).graph
    assert max(x.type.size for e in graph.eqns for x in e.outs) == 40 * 30 * 3
    left_to_right = stage(
        lambda *xs: [np.einsum("ij,jk,kl", *xs)], [Input(type_of(np.ones((3, 3))))] * 3
    ).graph
    assert left_to_right.eqns[0].inputs == left_to_right.inputs[:2]
    rng = np.random.default_rng(0)
    five = [draw(rng, "f8", s) for s in ((3, 40), (40, 2), (2, 40), (40, 3), (3,))]
    agree(np.einsum, "ab,bc,cd,de,e->a", *five)


def test_a_product_in_which_nothing_is_summed_is_elementwise() -> None:
    graph = stage(
        lambda a, b: [np.einsum("ij,ij->ij", a, b)], [Input(type_of(np.ones((2, 3))))] * 2
    ).graph
    assert [e.op.name for e in graph.eqns] == ["mul"]


# ---------------------------------------------------------------------------------------- precision


def test_precision_reaches_the_operation() -> None:
    x = Input(type_of(np.ones((3, 3), "f4")))
    for f in (
        gnp.matmul, gnp.dot, gnp.tensordot, gnp.inner,
        lambda a, b, **p: gnp.einsum("ij,jk", a, b, **p),
    ):  # fmt: skip
        (eqn,) = [
            e
            for e in stage(lambda a, b, f=f: [f(a, b, precision="tf32")], [x, x]).graph.eqns
            if e.op.name == "dot_general"
        ]
        assert eqn.op.precision == "tf32"


def test_dot_general(rng: np.random.Generator) -> None:
    a, b = draw(rng, "f4", (5, 2, 3)), draw(rng, "f4", (3, 5, 4))
    want = np.einsum("bij,jbk->bik", a, b)
    np.testing.assert_allclose(gnp.dot_general(a, b, (((2,), (0,)), ((0,), (1,)))), want)
    half = [x.astype(ml_dtypes.bfloat16) for x in (a, b)]
    dims = (((2,), (0,)), ((0,), (1,)))
    assert gnp.dot_general(*half, dims).dtype == ml_dtypes.bfloat16
    assert gnp.dot_general(*half, dims, preferred_element_type="f4").dtype == np.float32


def test_half_types_are_rounded_once(rng: np.random.Generator) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        a, b = (rng.standard_normal((64, 64)).astype(dtype) for _ in range(2))
        np.testing.assert_array_equal(
            gnp.matmul(a, b), (a.astype("f4") @ b.astype("f4")).astype(dtype)
        )


# -------------------------------------------------------------------------------------------- norms


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms(dtype: np.dtype, rng: np.random.Generator) -> None:
    x = draw(rng, dtype, (3, 4, 5))
    agree(np.linalg.norm, x)
    powers = (3, -1, 0.5) if dtype != "f2" else ()  # of which NumPy rounds every partial sum
    for order in (None, 0, 1, 2, np.inf, -np.inf, *powers):
        agree(np.linalg.norm, x[0, 0], order)
        agree(np.linalg.norm, x, order, 1, True)
        agree(np.linalg.vector_norm, x, axis=(0, 2), ord=2 if order is None else order)
    for order in (None, "fro", 1, -1, np.inf, -np.inf):
        agree(np.linalg.norm, x[0], order)
        agree(np.linalg.norm, x, order, (0, 2))
        agree(np.linalg.norm, x, order, (2, -2), True)
        agree(np.linalg.matrix_norm, x, ord="fro" if order is None else order)
    with pytest.raises(ArgumentError, match="Invalid norm order"):
        gnp.linalg.norm(x[0], 7)


def test_linalg(rng: np.random.Generator) -> None:
    x, y = draw(rng, "f8", (2, 3, 3)), draw(rng, "f8", (3,))
    for n in range(6):
        agree(np.linalg.matrix_power, x, n)
    agree(np.linalg.trace, x, offset=1)
    agree(np.linalg.diagonal, x, offset=-1)
    agree(np.linalg.outer, y, y)
    agree(np.linalg.outer, x, y)
    agree(np.linalg.matmul, x, x)
    agree(np.linalg.vecdot, x, y)
    agree(np.linalg.tensordot, x, x, axes=1)
    agree(np.linalg.matrix_transpose, x)
    agree(np.linalg.multi_dot, [x[0], x[1], y], trace=False)
    agree(np.linalg.multi_dot, [x[0]], trace=False)
    agree(np.linalg.matrix_power, y, 2)


def test_errors_name_both_types() -> None:
    a, b = np.ones((2, 3), "f4"), np.ones((4, 5), "f4")
    with pytest.raises(ShapeError, match=r"f32\[2,3\] and f32\[4,5\] not aligned(.|\n)*try"):
        gnp.matmul(a, b)
    with pytest.raises(
        ShapeError, match=r"stacks of f32\[2,1,3\] and f32\[5,3,1\]|do not broadcast"
    ):
        gnp.matmul(np.ones((2, 1, 3), "f4"), np.ones((5, 3, 1), "f4"))
    with pytest.raises(ShapeError, match=r"does not have enough dimensions(.|\n)*x \* y"):
        gnp.matmul(a, 3)
