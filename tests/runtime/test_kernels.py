"""Kernels as text: how regions are cut and chosen for, and that the
text reads as code a person wrote.
"""

from __future__ import annotations

import ast
import math

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.base.errors import NoRuleError
from ge2.choice import Problem
from ge2.codegen.kernel_values import Tiling, tiling
from ge2.compile import compile_graph
from ge2.compile.catalog import select
from ge2.ir import parse
from ge2.ir.types import ArrayType
from ge2.passes import TABLE, Region

F32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def in_numpy():
    """These are the kernels of blocked NumPy."""
    with config.using(executor="blocked"):
        yield


SOFTMAX = """{ lambda ; x:f32[128,10]. let
    m:f32[128] = reduce_max[axes=(1,)] x
    b:f32[128,10] = broadcast_in_dim[shape=(128, 10) dims=(0,)] m
    s:f32[128,10] = sub x b
    e:f32[128,10] = exp s
    t:f32[128] = reduce_sum[axes=(1,)] e
    u:f32[128,10] = broadcast_in_dim[shape=(128, 10) dims=(0,)] t
    p:f32[128,10] = div e u
  in (p,) }"""

WANTED = """
def rowwise(a, h, s_0):
    maximum.reduce(a, 1, out=s_0, keepdims=True)                    # b = reduce_max[axes=(1,)] a
    subtract(a, s_0, out=h)                                         # d = sub a c
    exp(h, out=h)                                                   # e = exp d
    add.reduce(h, 1, out=s_0, keepdims=True)                        # f = reduce_sum[axes=(1,)] e
    divide(h, s_0, out=h)                                           # h = div e g
"""


def test_the_kernel_of_a_softmax():
    (kernel,) = compile_graph(parse(SOFTMAX, TABLE)).kernels
    assert kernel.source[kernel.source.index("\ndef") :].strip() == WANTED.strip()


def test_a_kernel_is_python_and_shows_its_graph():
    (kernel,) = compile_graph(parse(SOFTMAX, TABLE)).kernels
    assert ast.get_docstring(ast.parse(kernel.source)).startswith(
        "A rowwise region.\n\n{ lambda ; a:f32[128,10]."
    )


def test_small_spaces_are_one_block():
    assert tiling((128, 10), (), 4) == Tiling((128, 10))
    assert tiling((), (), 4).blocks == 1
    assert tiling((0, 5), (), 4).blocks == 1


def test_large_spaces_are_cut_along_the_outermost_axis_that_may_be():
    rows = tiling((100_000, 64), {1}, 4)
    assert (rows.axis, rows.single) == (0, ())
    assert rows.blocks * rows.step >= 100_000
    columns = tiling((64, 100_000), {0}, 4)
    assert columns.axis == 1
    deep = tiling((4, 3, 1_000_000), (), 4)
    assert (deep.single, deep.axis) == ((0, 1), 2)
    assert tiling((1 << 22,), {0}, 4).blocks == 1


@pytest.mark.parametrize("n", [1 << 20, (1 << 20) + 1, 10_000_000])
def test_runs_of_blocks_cover_the_space_once(n):
    cut = tiling((n,), (), 4)
    blocks = [
        b
        for part in range(cut.parts)
        for b in range(part * cut.run, min((part + 1) * cut.run, cut.blocks))
    ]
    assert blocks == list(range(-(-n // cut.step)))


def test_a_choice_explains_itself():
    region = compile_graph(parse(SOFTMAX, TABLE)).graph.eqns[0].op
    assert isinstance(region, Region)
    chosen = select(Problem(region, (), ()))
    assert str(chosen) == "not blocked pointwise: the region is rowwise\nblocked rowwise"
    product = TABLE["dot_general"](contract=((1,), (0,)))
    half = ArrayType((4, 4), np.dtype(np.float16))
    assert "multiplied in another type" in str(select(Problem(product, (half, half), (half,))))
    full = ArrayType((4, 4), F32)
    assert select(Problem(product, (full, full), (full,))).family.name == "matmul"


def test_without_a_family_there_is_an_error():
    with pytest.raises(NoRuleError, match="no kernel for"):
        select(Problem(TABLE["dot_general"](contract=((1,), (0,))), (), ()), catalog=())


@pytest.mark.parametrize("n", [262_145, 300_001, 1_000_003])
def test_large_sums_are_taken_by_halves_and_lose_nothing(n: int) -> None:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    f = ge2.jit(lambda x: np.sum(np.square(x)))
    assert "halved(" in f.lower(x).kernels[0].source
    exact = np.sum(x.astype(np.float64) ** 2)
    assert abs(float(f(x)) - exact) <= 1e-7 * exact


def test_a_sum_by_halves_leaves_what_is_read_again() -> None:
    x = np.random.default_rng(0).standard_normal(600_000).astype(np.float32)
    total, top, squares = ge2.jit(
        lambda x: (np.sum(np.square(x)), np.max(np.square(x)), np.square(x))
    )(x)
    np.testing.assert_array_equal(squares, np.square(x))
    assert top == np.square(x).max()
    np.testing.assert_allclose(total, np.square(x.astype(np.float64)).sum(), rtol=1e-6)


def test_names_of_what_is_read_twice_are_no_names_of_the_kernels_own() -> None:
    """The nineteenth array is s, and s2 where it is read as a column."""
    arrays = list(np.random.default_rng(0).standard_normal((20, 4)))

    def f(*xs):
        scale, x = math.prod(xs[:18]), xs[18]
        outer = x[:, None] * x
        y = np.exp(outer) + np.sin(outer) * np.cos(outer + 1)
        return (y * scale).sum(axis=1, keepdims=True) * y + np.tanh(y)

    np.testing.assert_allclose(ge2.jit(f)(*arrays), f(*arrays), rtol=1e-12)
