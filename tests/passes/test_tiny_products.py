"""Many tiny products are sums of products of elements."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.compile.catalog import interpret
from ge2.ir import verify
from ge2.passes.linear_algebra import tiny_products
from ge2.passes.simplify import simplify
from tests.compared import all_close, all_equal
from tests.passes.graphs import after, lines, names

EINSUMS = {
    "nij,njk->nik": ((300, 4, 3), (300, 3, 5)),
    "nij,nj->ni": ((300, 4, 3), (300, 3)),
    "ni,ni->n": ((300, 4), (300, 4)),
    "ijn,kjn->nki": ((4, 3, 300), (5, 3, 300)),
    "abij,abjk->abik": ((20, 30, 2, 2), (20, 30, 2, 8)),
    "nijk,njkl->nil": ((300, 4, 2, 3), (300, 2, 3, 5)),
}


@pytest.mark.parametrize("spec", EINSUMS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_same(spec: str, dtype: str, rng: np.random.Generator) -> None:
    arrays = [rng.integers(-9, 9, shape).astype(dtype) for shape in EINSUMS[spec]]
    graph = ge2.make_jaxpr(lambda a, b: np.einsum(spec, a, b))(*arrays).graph
    found = verify(tiny_products(graph))
    assert "dot_general" in names(graph)
    assert "dot_general" not in names(found)
    all_equal(interpret(found, arrays), interpret(graph, arrays))


@pytest.mark.parametrize(
    "shapes", [((255, 4, 4), (255, 4, 4)), ((300, 4, 9), (300, 9, 4)), ((300, 4), (4, 4))]
)
def test_others_are_products(shapes: tuple[tuple[int, ...], ...]) -> None:
    graph = ge2.make_jaxpr(lambda a, b: a @ b)(*map(np.ones, shapes)).graph
    assert tiny_products(graph) is graph


def test_as_text() -> None:
    text = """{ lambda ; a:f32[256,2,3] b:f32[256,3]. let
        c:f32[256,2] = dot_general[contract=((2,), (1,)) beside=((0,), (0,)) precision=None out=None] a b
        in (c,) }"""
    assert after(tiny_products, text) == lines("""
        c:f32[256,2,3] = broadcast_in_dim[dims=(0, 1, 2) shape=(256, 2, 3)] a
        d:f32[256,2,3] = broadcast_in_dim[dims=(0, 2) shape=(256, 2, 3)] b
        e:f32[256,2,3] = mul c d
        f:f32[256,2] = reduce_sum[axes=(2,)] e
        in (f,) }""")


@pytest.mark.parametrize("spec", ["ik,jk->ij", "ki,kj->ij", "ik,kjl->ijl"])
def test_products_of_few_terms(spec: str, rng: np.random.Generator) -> None:
    """Of which elementwise work and sums are made; others are the library's."""
    sizes = {"i": 300, "j": 70, "k": 3, "l": 5}
    arrays = [
        rng.integers(-9, 9, tuple(sizes[c] for c in side)).astype("f8")
        for side in spec.split("->")[0].split(",")
    ]
    product = lambda a, b: np.einsum(spec, a, b)  # noqa: E731
    work = lambda a, b: np.sqrt(abs(product(a, b)) + 1).sum(1)  # noqa: E731
    for f, few in ((work, True), (product, False), (lambda a, b: product(a, b)[1:].sum(), False)):
        graph = simplify(ge2.make_jaxpr(f)(*arrays).graph)
        found = verify(tiny_products(graph))
        assert few == ("dot_general" not in names(found))
        all_close(interpret(found, arrays), interpret(graph, arrays), rtol=1e-14)
    five = ge2.make_jaxpr(lambda a, b: abs(a @ b))(np.ones((300, 5)), np.ones((5, 300))).graph
    assert tiny_products(five) is five


@pytest.mark.parametrize("spec", ["ni,ij->nj", "ij,nj->in", "nki,ij->nkj", "ni,ji->nj"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_many_rows_times_a_tiny_matrix(spec: str, dtype: str, rng: np.random.Generator) -> None:
    sizes = {"n": 17000, "k": 2, "i": 3, "j": 4}
    arrays = [
        rng.integers(-9, 9, [sizes[c] for c in term]).astype(dtype)
        for term in spec.split("->")[0].split(",")
    ]
    graph = ge2.make_jaxpr(lambda a, b: np.einsum(spec, a, b))(*arrays).graph
    found = verify(tiny_products(graph))
    assert "dot_general" not in names(found)
    all_equal(interpret(found, arrays), interpret(graph, arrays))
