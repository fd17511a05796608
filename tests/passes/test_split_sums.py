"""Products of few elements and long sums, as batches of parts and their sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import expecting
from ge2.compile.catalog import interpret
from ge2.compile.rewrites.products import split_sums
from ge2.ir import verify
from ge2.passes.context import TUNING, Context, SplitSums
from tests.compared import all_equal

SMALL = Context(tuning=TUNING.__class__(split_sums=SplitSums(terms=20, part=8, parts=6)))


def products(
    spec: str, shapes: tuple[tuple[int, ...], ...], dtype: str = "f8"
) -> list[tuple[int, ...]]:
    """The shapes of the products of the rewritten graph, which has the same results."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    graph = ge2.make_jaxpr(lambda a, b: np.einsum(spec, a, b))(*arrays).graph
    found = verify(split_sums(graph, SMALL))
    all_equal(interpret(found, arrays), interpret(graph, arrays))
    return [e.outs[0].type.shape for e in found.eqns if e.op.name == "dot_general"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("spec", ["ki,kj->ij", "ik,kj->ij", "ik,jk->ij", "ki,jk->ij"])
def test_parts_of_equal_length(spec: str, dtype: str) -> None:
    shapes = tuple((48, 5) if each[0] == "k" else (5, 48) for each in spec[:5].split(","))
    assert products(spec, shapes, dtype) == [(6, 5, 5)]


def test_a_number_of_terms_that_has_no_divisors_leaves_some() -> None:
    """Of 47 terms 5 parts of 9, and two more."""
    assert products("ki,kj->ij", ((47, 3), (47, 4))) == [(5, 3, 4), (3, 4)]


@given(st.integers(20, 300), st.integers(2, 32), st.integers(2, 32))
def test_any_sizes(terms: int, rows: int, columns: int) -> None:
    first, *rest = products("ki,kj->ij", ((terms, rows), (terms, columns)))
    parts, *sides = first
    assert 2 <= parts <= 12 and sides == [rows, columns] and rest in ([], [(rows, columns)])
    assert bool(rest) is bool(terms % parts)


@pytest.mark.parametrize(
    ("spec", "shapes", "dtype"),
    [
        ("ki,kj->ij", ((19, 3), (19, 3)), "f8"),  # short sums
        ("ki,kj->ij", ((40, 33), (40, 3)), "f8"),  # a result that is no tile
        ("ki,k->i", ((40, 3), (40,)), "f8"),  # a vector
        ("bki,bkj->bij", ((2, 40, 3), (2, 40, 3)), "f8"),  # a batch
        ("ki,kj->ij", ((40, 3), (40, 3)), "f2"),  # tensor cores
    ],
)
def test_what_stays_as_it_is(spec: str, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    assert len(products(spec, shapes, dtype)) <= 1
    assert [len(each) for each in products(spec, shapes, dtype)] in ([], [len(spec.split(">")[1])])


def test_what_may_be_rounded_stays() -> None:
    x = np.ones((40, 3), "f4")
    graph = ge2.make_jaxpr(ge2.autocast(lambda x: x.T @ x, "tf32"))(x).graph
    assert split_sums(graph, SMALL) is graph


def test_a_gpu_computes_long_sums_in_parts() -> None:
    x = ge2.ShapeDtypeStruct((100_000, 20), np.float64)
    with expecting("sm_90a"), ge2.config.using(executor="shim"):
        steps = ge2.jit(lambda x, y: x.T @ y / 3).lower(x, x).executable.program.graph.eqns
    (product,) = (e for e in steps if e.op.name == "dot_general")
    assert product.outs[0].type.shape == (200, 20, 20)
