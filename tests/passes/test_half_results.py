"""Products of mixed precision on a GPU: low where they are stored, float32 where they are results."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.compile.rewrites.products import half_results, narrow_operands
from ge2.passes.context import ThreeParts
from tests.compared import all_close, all_equal
from tests.together import needs_compiler

X, W = (np.random.default_rng(n).normal(size=(6, 6)).astype("f4") for n in range(2))


def lowered(f, *xs):
    graph = half_results(ge2.make_jaxpr(ge2.autocast(f))(*xs).graph)
    return [v.type.dtype.name for e in graph.eqns if e.op.name == "dot_general" for v in e.outs]


def test_what_is_read_is_low_and_what_is_returned_is_not() -> None:
    assert lowered(lambda x, w: np.tanh(x @ w), X, W) == ["bfloat16"]
    assert lowered(lambda x, w: (x @ w).reshape(4, 9), X, W) == ["float32"]
    assert lowered(lambda x, w: np.tanh(x @ w) @ w, X, W) == ["bfloat16", "float32"]


def test_a_rounding_of_it_is_the_product_itself() -> None:
    """`x @ w` is read by a product and by a sum: one array of half the bytes serves both."""

    def f(x, w):
        y = x @ w
        return y @ w, y.sum()

    graph = half_results(ge2.make_jaxpr(ge2.autocast(f))(X, W).graph)
    first, second = (e for e in graph.eqns if e.op.name == "dot_general")
    assert first.outs[0] in second.inputs


def test_products_that_the_user_made_wide_stay_so() -> None:
    def f(x, w):
        dims = (((1,), (0,)), ((), ()))
        return np.tanh(ge2.lax.dot_general(x, w, dims, preferred_element_type=np.float32))

    low = X.astype(ge2.bfloat16), W.astype(ge2.bfloat16)
    graph = ge2.make_jaxpr(f)(*low).graph
    assert half_results(graph) is graph


@needs_compiler
def test_the_numbers_are_those_of_a_product_rounded_once_at_most() -> None:
    def f(x, w):
        h = x @ w
        return np.tanh(h).sum(0), h.max(1)

    with config.using(executor="shim"):
        found = ge2.jit(ge2.autocast(f))(X, W)
    wanted = f(X.astype(ge2.bfloat16).astype("f8"), W.astype(ge2.bfloat16).astype("f8"))
    all_close(found, wanted, rtol=2**-8, atol=6 * 2**-9)


def test_operands_that_the_program_made_wide_are_read_as_they_are() -> None:
    def f(x, w):
        wide = x.astype(ge2.bfloat16).astype(np.float32)
        return wide.T @ w.astype(ge2.bfloat16).astype(np.float32), wide @ x

    graph = ge2.make_jaxpr(f)(X, W).graph
    found = narrow_operands(graph, ThreeParts())
    first, second = (e for e in found.eqns if e.op.name == "dot_general")
    assert [a.type.dtype.name for a in (*first.inputs, *first.outs)] == [
        "bfloat16",
        "bfloat16",
        "float32",
    ]
    assert second.inputs[0].type.dtype == np.float32  # its other operand is float32
    all_close(found(X, W), graph(X, W), rtol=1e-6)
    plain = ge2.make_jaxpr(lambda x, w: x @ w)(X, W).graph
    assert narrow_operands(plain, ThreeParts()) is plain


@pytest.mark.parametrize(
    ("a", "b", "half"),
    [("bf16", "i8", "bfloat16"), ("u8", "f16", "float16"), ("i8", "u8", "bfloat16")],
)
def test_bytes_are_multiplied_as_half_types_which_have_them_all(a: str, b: str, half: str) -> None:
    """As queries by a cache of keys that is kept in int8, turned after it was made wide."""
    dtypes = {"bf16": ge2.bfloat16, "f16": np.float16, "i8": np.int8, "u8": np.uint8}
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 127, (6, 6)).astype(dtypes[t]) for t in (a, b))

    def f(x, w):
        return x.astype(np.float32) @ w.astype(np.float32).T

    graph = ge2.make_jaxpr(f)(x, w).graph
    found = narrow_operands(graph, ThreeParts())
    (product,) = (e for e in found.eqns if e.op.name == "dot_general")
    types = [v.type.dtype.name for v in (*product.inputs, *product.outs)]
    assert types == [half, half, "float32"]
    all_equal(found(x, w), graph(x, w))
    short = ge2.make_jaxpr(f)(x, w.astype(np.int16)).graph
    assert narrow_operands(short, ThreeParts()) is short  # no half type has all of these
