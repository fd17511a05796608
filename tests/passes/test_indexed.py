"""One index a row: which comparisons it becomes, and where its index is counted from the start."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.catalog import interpret
from ge2.passes.context import TUNING, Context
from ge2.passes.indices import Wrap, indexed
from ge2.passes.take_to_mask import match
from tests.passes.graphs import after, graph, lines, same
from tests.passes.test_counted import cross_entropy
from tests.passes.test_small_passes import PICK, PUT
from tests.together import needs_compiler

LONG = str(TUNING.columns + 1)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("text", [PICK, PUT])
def test_half_types_are_compared_too(text: str, dtype: str) -> None:
    before = graph(text.replace("f32", dtype))
    found = match(before)
    assert not {"gather", "scatter_add"} & {e.op.name for e in found.eqns}
    kind = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    rows = np.array([[-0.0, np.nan, np.inf, -np.inf, 3]] * 4).astype(kind)
    given = (rows if text is PICK else rows[0][:4], np.array([0, -3, 3, -1]))
    one, two = (interpret(g, given)[0].astype(np.float32) for g in (before, found))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(np.signbit(one), np.signbit(two))


def test_of_long_rows_only_those_that_are_gone_through_anyway() -> None:
    """An element of an array that is there is read; of a row that is
    folded, or never stored, compared.
    """
    text = PICK.replace("4,5]", f"4,{LONG}]")
    assert match(graph(text)) == graph(text)
    made = text.replace("let\n", f"let\n    m:f32[4,{LONG}] = exp z\n").replace(
        "gather[axes=(0, 1)] z", "gather[axes=(0, 1)] m"
    )
    folded = text.replace("let\n", "let\n    s:f32[4] = reduce_max[axes=(1,)] z\n").replace(
        "in (p,)", "in (p, s)"
    )
    for seen in (made, folded, PUT.replace("4,5]", f"4,{LONG}]").replace("4, 5", f"4, {LONG}")):
        assert not {"gather", "scatter_add"} & {e.op.name for e in match(graph(seen)).eqns}


def test_where_regions_read_at_indices_no_row_is_compared_for_an_element_alone() -> None:
    beside_gathers = Context(gathers=True)
    for text in (PICK, PICK.replace("4,5]", "4,300]")):
        assert match(graph(text), beside_gathers) == graph(text) != match(graph(text))
    folded = PICK.replace("let\n", "let\n    s:f32[4] = reduce_max[axes=(1,)] z\n")
    assert match(graph(folded.replace("in (p,)", "in (p, s)")), beside_gathers) != graph(folded)


REGION = """{ lambda ; z:f32[4,5] y:i64[4]. let
    i:i32[4] = index[axis=1 size=5] y
    p:f32[4,5] = region[axes=((0,), (0, 1), (0, 1), (0, 1), (0, 1)) graph={ lambda ; a:f32[4,5] b:i32[4]. let
        c:i32[4] = reshape[shape=(4,)] b
        d:i32[4,5] = broadcast_in_dim[dims=(0,) shape=(4, 5)] c
        e:i32[4,5] = iota[axis=1 dtype=i32 shape=(4, 5)]
        f:bool[4,5] = eq d e
        g:f32[4,5] = where f a 0.0:f32[]
      in (g,) } kind=pointwise space=(4, 5)] z i
  in (p,) }"""


def test_a_region_wraps_the_index_that_it_reads() -> None:
    found = after(indexed, REGION)
    assert "index[" not in found
    assert (
        lines("""
        c:i32[4] = wrap[size=5] b
        d:i32[4] = reshape[shape=(4,)] c""")
        in found
    )
    z = np.arange(20, dtype=np.float32).reshape(4, 5)
    same(graph(REGION), indexed(graph(REGION)), z, np.array([0, -5, 4, 2]))


def test_an_index_that_is_read_elsewhere_stays() -> None:
    text = REGION.replace("in (p,) }", "in (p, i) }")
    names = [e.op.name for e in indexed(graph(text)).eqns]
    assert names == ["index", "region"]
    assert indexed(graph(PICK)) == graph(PICK)


def test_wrapped() -> None:
    np.testing.assert_array_equal(
        Wrap(5).reference(np.array([-6, -5, -1, 0, 4, 5, 12])), [4, 0, 4, 0, 4, 0, 2]
    )


@pytest.mark.exhaustive("dtype")
@needs_compiler
@pytest.mark.parametrize("columns", [33, 2000, 40_000])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
def test_cross_entropy_and_its_gradient_read_rows_once(
    columns: int, dtype: Any, rng: np.random.Generator
) -> None:
    """On CUDA they are one kernel of rows, and the mean of the rows' losses; labels wrap around."""
    z, y = rng.normal(size=(3, columns)).astype(dtype), np.array([0, -1, columns + 7])

    def loss(z: Any, y: Any) -> Any:
        return cross_entropy(z.astype(np.float32), y)

    with config.using(executor="shim"):
        f = ge2.jit(ge2.value_and_grad(loss))
        value, gradient = f(z, y)
        kernels = [k.kind for k in f.lower(z, y).executable.kernels]
    assert not {"gather", "scatter_add", "index"} & set(kernels)
    assert columns < 40_000 or kernels.count("rowwise") == 1
    wide, inside = z.astype(np.float64), (np.arange(3), y % columns)
    e = np.exp(wide - wide.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(value, -np.log(p[inside]).mean(), rtol=1e-5)
    p[inside] -= 1
    near = 1e-6 if dtype == np.float32 else 4e-3
    np.testing.assert_allclose(gradient.astype(np.float64), p / 3, rtol=near, atol=1e-7)
