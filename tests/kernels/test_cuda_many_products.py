"""Many products of small matrices, and what is done to their elements: against NumPy on the CPU in a
GPU's place, and compiled for GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import EMULATED, ShimDevice
from tests.codegen.texts import kernels
from tests.compared import all_close
from tests.exhaustive import examples
from tests.kernels.product_cases import BF16, DIGITS, DTYPES, F32, F64, TURNS, judge, normal, turned
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

MANY, CALLED = "cuda/product/many.cu.jinja", "ge2_many_product"
# a chip on which no product is small by the count of its elements, and the library is slow: all are many
SLOW = replace(EMULATED.tuning.products, elements=0, tile=1 << 30)
MANY_ALONE = replace(EMULATED, tuning=replace(EMULATED.tuning, products=SLOW))


def run(f: Any, *xs: Any) -> tuple[Any, ...]:
    """What `f` gives by one kernel of many products."""
    graph = ge2.make_jaxpr(f)(*xs).graph
    executable = compile_graph(graph, device=ShimDevice(MANY_ALONE))
    assert [CALLED in k.source for k in executable.kernels] == [True]
    return executable(*xs)


# ------------------------------------------------------------------------------------ against NumPy


@pytest.mark.exhaustive
@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turn", TURNS)
def test_every_turn(turn: str, dtype: np.dtype) -> None:
    for count, m, n, k in ((3, 16, 16, 16), (100, 6, 5, 10), (1000, 8, 20, 6)):
        a, b = normal(dtype, count, m, k), normal(dtype, count, k, n, seed=1)
        judge(run(TURNS[turn], *turned(turn, a, b))[0], a, b, a.dtype)


SIZE = st.integers(2, 32)


@needs_compiler
@settings(max_examples=examples(12), deadline=None)
@given(m=SIZE, n=SIZE, k=SIZE, turn=st.sampled_from([*TURNS]), count=st.sampled_from([2, 7, 70]))
def test_any_size(m: int, n: int, k: int, turn: str, count: int) -> None:
    a, b = normal(F32, count, m, k), normal(F32, count, k, n, seed=1)
    judge(run(TURNS[turn], *turned(turn, a, b))[0], a, b, a.dtype)


@needs_compiler
@pytest.mark.parametrize("lead", [(6, 1), (1, 6), (2, 3)])
def test_axes_of_one_place(lead: tuple[int, ...]) -> None:
    a, b = normal(F32, *lead, 8, 9), normal(F32, *lead, 9, 12, seed=1)
    judge(run(TURNS["as they are"], a, b)[0], a, b, a.dtype)


@needs_compiler
def test_factors_that_repeat_and_several_axes_of_batches() -> None:
    a, b = normal(F32, 5, 1, 7, 6), normal(F32, 1, 9, 6, 8, seed=1)
    judge(run(lambda a, b: np.broadcast_to(a, (5, 9, 7, 6)) @ b, a, b[0])[0], a, b, a.dtype)


@needs_compiler
def test_parts_of_arrays() -> None:
    a, b = normal(F32, 40, 12, 20), normal(F32, 40, 20, 12, seed=1)
    found = run(lambda a, b: a[::2, 1::2, 3:17] @ b[::2, 2:16, 1:6], a, b)[0]
    judge(found, a[::2, 1::2, 3:17], b[::2, 2:16, 1:6], a.dtype)


@needs_compiler
def test_what_is_no_number_stays_where_it_is() -> None:
    a, b = normal(F32, 9, 7, 5), normal(F32, 9, 5, 3, seed=1)
    a[4, 6, 4], b[8, 0, 2] = np.nan, np.inf
    found = run(TURNS["as they are"], a, b)[0]
    assert np.isnan(found).sum() == 3 and np.isnan(found[4, 6]).all()
    assert np.isinf(found[8, :, 2]).all() and np.isinf(found).sum() == 7


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("turn", TURNS)
def test_each_access_looked_at(turn: str) -> None:
    """Threads of rows that are none read nothing, at the end of arrays as elsewhere."""
    for m, n, k in ((9, 10, 11), (16, 12, 20), (1, 9, 3)):
        a, b = normal(F32, 5, m, k), normal(F32, 5, k, n, seed=1)
        graph = ge2.make_jaxpr(TURNS[turn])(*turned(turn, a, b)).graph
        device = ShimDevice(MANY_ALONE, seed=1, watch=True)
        executable = compile_graph(graph, device=device)
        assert any(CALLED in x.source for x in executable.kernels) or m == 1
        judge(executable(*turned(turn, a, b))[0], a, b, a.dtype)


# ------------------------------------------------------------------------------------ what follows


def layer(a: Any, b: Any, bias: Any, x: Any) -> Any:
    h = a @ b + bias
    return np.tanh(h) + x, h > 0


@needs_compiler
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("lead", [(3,), (100,), (4, 5)])
@pytest.mark.parametrize("sides", [(16, 16, 16), (13, 5, 32), (8, 24, 9)])
def test_bias_residual_and_several_results(
    dtype: np.dtype, lead: tuple[int, ...], sides: tuple[int, int, int]
) -> None:
    m, n, k = sides
    a, b = normal(dtype, *lead, m, k), normal(dtype, *lead, k, n, seed=1)
    biases = normal(dtype, n), normal(dtype, *lead, 1, n), normal(dtype, *lead, m, n)
    for bias in biases:
        x = normal(dtype, m, n, seed=2)
        y, positive = run(layer, a, b, bias, x)
        h = (a.astype("f8") @ b.astype("f8")) + bias
        np.testing.assert_allclose(y, np.tanh(h) + x, rtol=0, atol=200 * DIGITS[dtype])
        clear = abs(h) > 100 * DIGITS[dtype]
        assert (positive == (h > 0))[clear].all()


@needs_compiler
@pytest.mark.parametrize("turn", TURNS)
def test_factors_that_are_turned(turn: str) -> None:
    a, b = normal(F32, 10, 6, 12), normal(F32, 10, 12, 8, seed=1)
    found = run(lambda a, b: np.maximum(TURNS[turn](a, b), 0), *turned(turn, a, b))[0]
    np.testing.assert_allclose(found, np.maximum(a @ b, 0), rtol=0, atol=1e-5)


@needs_compiler
def test_half_types_are_rounded_as_if_stored() -> None:
    for dtype in (BF16, np.dtype("f2")):
        a, b = normal(dtype, 20, 8, 8), normal(dtype, 20, 8, 8, seed=1)
        found = run(lambda a, b: np.maximum(a @ b, 0), a, b)[0]
        want = np.maximum(a.astype("f4") @ b.astype("f4"), 0)
        off = abs(found.astype("f4") - want)
        assert found.dtype == dtype and (off <= 2 * DIGITS[dtype] * want + 1e-4).all()


@needs_compiler
def test_a_gradient_of_many_layers() -> None:
    """It gives what the derivative needs, too, and its factors are turned."""
    a, b = normal(F32, 12, 8, 8), normal(F32, 12, 8, 8, seed=1)
    graph = ge2.make_jaxpr(ge2.grad(lambda a, b: np.sum(np.tanh(a @ b)), (0, 1)))(a, b).graph
    executable = compile_graph(graph, device=ShimDevice(MANY_ALONE))
    assert any(CALLED in k.source for k in executable.kernels)
    g = 1 - np.tanh(a.astype("f8") @ b) ** 2
    all_close(executable(a, b), (g @ b.swapaxes(1, 2), a.swapaxes(1, 2) @ g), rtol=0, atol=2e-5)


@needs_compiler
def test_sums_of_what_follows_are_apart() -> None:
    a, b = normal(F32, 20, 8, 8), normal(F32, 20, 8, 8, seed=1)
    graph = ge2.make_jaxpr(lambda a, b: np.sum(np.tanh(a @ b), 1))(a, b).graph
    found = compile_graph(graph, device=ShimDevice(MANY_ALONE))(a, b)[0]
    np.testing.assert_allclose(found, np.tanh(a @ b).sum(1), rtol=0, atol=1e-5)


# ------------------------------------------------------------------------- compiled, and the choice


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("turn", TURNS)
def test_no_spills(turn: str, architecture: str) -> None:
    for n, dtype in ((16, F32), (32, F32), (7, F32), (32, F64), (24, BF16)):
        x = np.zeros((100, n, n), dtype)
        f = lambda a, b: np.tanh(TURNS[turn](a, b))  # noqa: E731
        ((kernel, text),) = kernels(f, x, x, arch=architecture)
        (usage,) = compiled(text, architecture).kernels
        assert kernel.template == MANY and not usage.spills
        assert usage.registers * kernel.block * kernel.resident <= 1 << 16


def text_of(f: Any, *shape: int, dtype: Any = F32) -> list[tuple[str, str]]:
    x = np.zeros(shape, dtype)
    return [(kernel.template, text[text.index("#include") :]) for kernel, text in kernels(f, x, x)]


def test_how_many_is_no_text() -> None:
    f = lambda a, b: np.tanh(a @ b)  # noqa: E731
    assert text_of(f, 65536, 16, 16) == text_of(f, 1000, 16, 16) != text_of(f, 1000, 8, 8)


def test_which_are_many() -> None:
    """Blocks have one each as long as they are few; the library has what is no smaller than its tiles."""
    bare = TURNS["as they are"]
    assert [t for t, _ in text_of(bare, 65536, 16, 16)] == [MANY]
    assert [t for t, _ in text_of(bare, 64, 16, 16)] == ["cuda/product/small.cu.jinja"]
    assert MANY not in [t for t, _ in text_of(bare, 16384, 64, 64)]


# ------------------------------------------------------------- larger matrices: blocks of tiles have them


BLOCKS = "ge2_small_product"


@needs_compiler
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("lead", [(3,), (2, 3)])
@pytest.mark.parametrize("turn", TURNS)
def test_blocks_go_on_with_many_larger_products(
    turn: str, lead: tuple[int, ...], dtype: np.dtype
) -> None:
    m, n, k = 37, 18, 40
    a, b = normal(dtype, *lead, m, k), normal(dtype, *lead, k, n, seed=1)
    x, bias = normal(dtype, *lead, m, n, seed=2), normal(dtype, *lead, 1, n, seed=3)

    def f(a: Any, b: Any, x: Any, bias: Any) -> Any:
        h = TURNS[turn](a, b) + bias
        return np.maximum(h, 0) * x, h > 0

    given = (*turned(turn, a, b), x, bias)
    executable = compile_graph(ge2.make_jaxpr(f)(*given).graph, device=ShimDevice(EMULATED))
    assert [BLOCKS in k.source for k in executable.kernels] == [True]
    y, positive = executable(*given)
    h = a.astype("f8") @ b.astype("f8") + bias.astype("f8")
    want = np.maximum(h, 0) * x.astype("f8")
    np.testing.assert_allclose(y.astype("f8"), want, rtol=0, atol=400 * DIGITS[dtype])
    assert (positive == (h > 0))[abs(h) > 100 * DIGITS[dtype]].all()


@needs_compiler
def test_blocks_that_take_several_products_each() -> None:
    """A grid has fewer blocks than there are products: each takes the next when one is stored."""
    few = replace(EMULATED, grid=(*EMULATED.grid[:1], 2, *EMULATED.grid[2:]))
    a, b = normal(F32, 7, 40, 33), normal(F32, 7, 33, 40, seed=1)
    graph = ge2.make_jaxpr(lambda a, b: np.tanh(a @ b))(a, b).graph
    executable = compile_graph(graph, device=ShimDevice(few))
    assert [BLOCKS in k.source for k in executable.kernels] == [True]
    np.testing.assert_allclose(executable(a, b)[0], np.tanh(a @ b), rtol=0, atol=1e-5)
