"""Small products by a kernel of ours: against NumPy on the CPU in a GPU's
place, and compiled for GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.config import config
from ge2.codegen.text import Operand
from ge2.compile import compile_graph
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.emulator import EMULATED, ShimDevice, limits_of
from ge2.targets.cuda.kernels.products import predicted, why_not_small
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.products import Along, contraction
from ge2.targets.cuda.products.small import read
from ge2.test_util.laws import graph_of, types_of
from tests.codegen.texts import kernels
from tests.exhaustive import examples
from tests.kernels.product_cases import BF16, DTYPES, F32, TURNS, judge, normal, turned
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

PLAIN = DotGeneral(((1,), (0,)))
SMALL = "small product"


def run(f: Any, *xs: Any, device: Any = None) -> Any:
    """What the kernels of `f` give, one of which is a small product."""
    graph = ge2.make_jaxpr(f)(*xs).graph
    executable = compile_graph(graph, device=device or ShimDevice())
    assert [k.kind for k in executable.kernels].count(SMALL) == 1
    return executable(*xs)[0]


# ------------------------------------------------------------------------------------ against NumPy


@pytest.mark.exhaustive("turn")
@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turn", TURNS)
def test_every_turn(turn: str, dtype: np.dtype) -> None:
    """Tiles and stages that are full, and such as are not; accesses of 16 bytes."""
    for m, n, k in ((32, 16, 64), (20, 36, 12)):
        a, b = normal(dtype, m, k), normal(dtype, k, n, seed=1)
        x, y = turned(turn, a, b)
        judge(run(TURNS[turn], x, y), a, b, dtype)


SIZE = st.integers(1, 70)


@needs_compiler
@settings(max_examples=examples(25), deadline=None)
@given(m=SIZE, n=SIZE, k=SIZE, turn=st.sampled_from([*TURNS]), odd=st.booleans())
def test_any_size(m: int, n: int, k: int, turn: str, odd: bool) -> None:
    """Rows of any length: of a multiple of four elements, and of none."""
    m, n, k = (2 * m - 1, 2 * n - 1, 2 * k + 1) if odd else (4 * m, 4 * n, 4 * k)
    a, b = normal(F32, m, k), normal(F32, k, n, seed=1)
    x, y = turned(turn, a, b)
    judge(run(TURNS[turn], x, y), a, b, F32)


@needs_compiler
@pytest.mark.parametrize("k", [63, 64, 65, 256, 257, 320, 321, 641])
def test_long_sums_go_round_the_stages(k: int) -> None:
    a, b = normal(F32, 17, k), normal(F32, k, 5, seed=1)
    judge(run(TURNS["as they are"], a, b), a, b, F32)


@needs_compiler
@given(start=st.integers(0, 3), stop=st.integers(0, 3), step=st.sampled_from([1, 2]))
@settings(max_examples=examples(12), deadline=None)
def test_parts_of_arrays(start: int, stop: int, step: int) -> None:
    """Offsets and pitches that let one access have four elements, or two, or one."""
    a, b = normal(F32, 24, 40), normal(F32, 40, 20, seed=1)

    def cut(a: Any, b: Any) -> Any:
        return (
            a[::step, start : 36 + start - stop] @ b[stop : 36 + start - start, start : 12 + start]
        )

    judge(run(cut, a, b), a[::step, start : 36 + start - stop], b[stop:36, start : 12 + start], F32)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("stored", ["f4", "f2", "i1", "?"])
def test_operands_that_are_made_of_narrower_ones(stored: str) -> None:
    """A thread brings as much of a stage as its elements are wide once they are made."""
    a, b = normal(np.dtype("f8"), 6, 32), (normal(F32, 32, 8) * 3).astype(stored)
    bias = normal(F32, 8)
    with config.using(executor="emulator"):
        found = ge2.jit(lambda a, b, bias: a @ b + bias)(a, b, bias)
        other = ge2.jit(lambda a, b, bias: np.tanh(b.T @ a.T) + bias[:, None])(a, b, bias)
    np.testing.assert_allclose(found, a @ b + bias, rtol=1e-12)
    np.testing.assert_allclose(other, np.tanh(b.T @ a.T) + bias[:, None], rtol=1e-12)


def test_products_of_no_axes_are_made_where_they_are_joined() -> None:
    """`np.array` of products of lines: each is an element of an array, which no tensor map writes."""
    a, b = normal(F32, 5, 40), normal(F32, 40)
    with config.using(executor="emulator"):
        found = ge2.jit(lambda a, b: np.array([np.dot(line, b) for line in a]))(a, b)
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


def test_batches() -> None:
    q, k = normal(F32, 2, 33, 3, 16), normal(F32, 2, 17, 3, 16, seed=1)
    op = DotGeneral(((3,), (3,)), ((0, 2), (0, 2)))
    executable = compile_graph(graph_of(op, types_of([q, k])), device=ShimDevice())
    assert [x.kind for x in executable.kernels] == [SMALL]
    found = executable(q, k)[0]
    for i in range(2):
        for j in range(3):
            judge(found[i, j], q[i, :, j], k[i, :, j].T, F32)


@needs_compiler
def test_more_batches_than_blocks() -> None:
    """A block that goes on leaves nothing of one product to the next."""
    a, b = normal(F32, 7, 5, 70), normal(F32, 7, 70, 3, seed=1)
    device = ShimDevice(replace(EMULATED, grid=(1 << 31, 2, 1)))
    found = run(lambda a, b: a @ b, a, b, device=device)
    for y, left, right in zip(found, a, b, strict=True):
        judge(y, left, right, F32)


@needs_compiler
@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2")], ids=str)
def test_half_types_give_float32_unrounded(dtype: np.dtype) -> None:
    op = DotGeneral(((1,), (0,)), out=F32)
    a, b = normal(dtype, 17, 65), normal(dtype, 65, 33, seed=1)
    executable = compile_graph(graph_of(op, types_of([a, b])), device=ShimDevice())
    assert executable.kernels[0].kind == SMALL
    judge(executable(a, b)[0], a, b, F32)


@needs_compiler
def test_what_is_no_number_stays_where_it_is() -> None:
    """What fills up tiles and stages is 0 times 0; a NaN meets its own row and column alone."""
    a, b = normal(F32, 20, 70), normal(F32, 70, 20, seed=1)
    a[3, 69], b[5, 17] = np.nan, np.inf
    found = run(TURNS["as they are"], a, b)
    rows, columns = np.isnan(found), np.isinf(found)
    assert rows[3].all() and not rows[np.arange(20) != 3].any()
    assert columns[np.arange(20) != 3, 17].all() and columns.sum() == 19


@needs_compiler
@pytest.mark.parametrize("seed", [1, 2])
def test_threads_in_any_order_and_each_access_looked_at(seed: int) -> None:
    a, b = normal(F32, 33, 333), normal(F32, 333, 18, seed=1)
    plain = run(TURNS["as they are"], a, b)
    again = run(TURNS["as they are"], a, b, device=ShimDevice(seed=seed, watch=True))
    assert plain.tobytes() == again.tobytes()


# -------------------------------------------------------------------------------- compiled for GPUs


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("turn", TURNS)
def test_no_spills(turn: str, architecture: str) -> None:
    wide, narrow = (32, F32), (9, F32)
    more = [(9, np.dtype("f8")), (9, np.dtype("f2"))] if turn in ("as they are", "both") else []
    for n, dtype in (wide, narrow, *more):
        x = np.zeros((n, n), dtype)
        ((kernel, text),) = kernels(TURNS[turn], x, x, arch=architecture)
        (usage,) = compiled(text, architecture).kernels
        assert (
            kernel.kind == SMALL
            and not usage.spills
            and usage.shared == 0 < kernel.shared <= 48 << 10
        )
        assert usage.registers * kernel.block * 2 <= 1 << 16  # two blocks a multiprocessor


@pytest.mark.parametrize("turn", TURNS)
def test_sizes_are_no_text(turn: str) -> None:
    found = {
        kernel.kind: text
        for m, n, k in ((128, 256, 256), (96, 256, 64), (128, 12, 100), (4, 8, 1000))
        for kernel, text in kernels(
            TURNS[turn],
            np.zeros((m, k) if turn in ("as they are", "the second") else (k, m), F32),
            np.zeros((k, n) if turn in ("as they are", "the first") else (n, k), F32),
        )
    }
    assert len(found) == 1


# ----------------------------------------------------------------------------------------- the rule


def asked(m: int, n: int, k: int, dtype: Any = F32, batch: int = 1, rounded: bool = False) -> str:
    types = ArrayType((batch, m, k), np.dtype(dtype)), ArrayType((batch, k, n), np.dtype(dtype))
    op = DotGeneral(((2,), (1,)), ((0,), (0,)))
    axes = contraction(op, *types, ((m * k, k, 1), (k * n, n, 1), (m * n, n, 1)))
    return why_not_small(axes, types[0].dtype, types[0].dtype, rounded, H200)


def test_what_is_small() -> None:
    """The digits' network, and what is thin in a larger one."""
    digits = [
        (128, 256, 64), (128, 256, 256), (128, 10, 256), (128, 256, 10), (256, 10, 128),
        (256, 256, 128),
    ]  # fmt: skip
    thin = [(256, 10, 1024), (256, 1024, 10), (1024, 10, 256)]
    assert [asked(*shape) for shape in digits + thin] == [""] * 9
    assert [asked(*shape, rounded=True) for shape in thin] == [""] * 3
    assert asked(32, 32, 32, batch=64) == ""


def test_what_is_not() -> None:
    large = [(256, 1024, 784), (1024, 1024, 256), (8, 1024, 784), (8192, 3072, 768)]
    assert all("elements" in asked(*shape) for shape in large)
    assert "elements" in asked(64, 64, 64, batch=4096)
    long = [(512, 512, 512), (10, 64, 8192), (64, 64, 4096)]
    assert all("clocks" in asked(*shape) for shape in long)
    assert (
        asked(64, 64, 64, np.float16)
        == asked(64, 64, 64, rounded=True)
        == "tensor cores have enough to do"
    )
    assert asked(8, 8, 8, np.complex64) == "complex64 to complex64 is none of ours"
    assert asked(8, 8, 8, np.int32) == "int32 to int32 is none of ours"


def test_an_operand_none_of_whose_axes_is_contiguous() -> None:
    a, b = ArrayType((8, 8), F32), ArrayType((8, 8), F32)
    lies = contraction(PLAIN, a, b, ((32, 2), (8, 1), (8, 1)))
    assert why_not_small(lies, F32, F32, False, H200) == "no axis of an operand is contiguous"
    apart = contraction(
        DotGeneral(((2,), (0,))), ArrayType((4, 4, 8), F32), b, ((64, 8, 1), (8, 1), (32, 8, 1))
    )
    assert "do not merge" in why_not_small(apart, F32, F32, False, H200)


def test_double_counts_as_what_it_costs() -> None:
    few = limits_of("sm_89")
    axes = contraction(
        PLAIN, ArrayType((64, 64), F32), ArrayType((64, 64), F32), ((64, 1), (64, 1), (64, 1))
    )
    double = np.dtype(np.float64)
    assert predicted(axes, double, few) > 5 * predicted(axes, double, H200)
    assert predicted(axes, F32, few) == predicted(axes, F32, H200)


def test_it_can_be_switched_off() -> None:
    a = normal(F32, 8, 8)
    with config.using(passes_off=("small_products",), executor="shim"):
        f = ge2.jit(TURNS["as they are"])
        np.testing.assert_allclose(f(a, a), a @ a, rtol=1e-5)
        assert not f.lower(a, a).executable.kernels


def test_how_wide_an_operand_is_read() -> None:
    lies = Operand("in", 0, ())
    line, sums = Along(16, a=64), Along(64, a=1)
    assert (
        read(line, sums, "a", lies, 4, []).wide == 4
        and read(line, sums, "a", lies, 8, []).wide == 2
    )
    assert read(line, sums, "a", Operand("in", 0, (), offset=2), 4, []).wide == 2
    assert read(line, sums, "a", Operand("in", 0, (), loose=1), 4, []).wide == 1
    assert read(line, sums, "a", lies, 4, [Along(3, a=6)]).wide == 2
    assert read(Along(16, a=66), Along(64, a=1), "a", lies, 4, []).wide == 2
    turned = read(Along(10, a=1), Along(64, a=12), "a", lies, 4, [])
    assert (turned.along, turned.wide, turned.pitch) == (False, 2, 12)
    with pytest.raises(ValueError, match="contiguous"):
        read(Along(16, a=2), Along(64, a=32), "a", lies, 4, [])


@needs_compiler
def test_a_family_that_is_preferred_comes_before_a_way_that_is_quicker() -> None:
    """Tensor cores take in the sum as well, which small products leave to another kernel."""

    def layer(x: Any, w: Any) -> Any:
        y = np.tanh(x @ w)
        return y, y.sum(0)

    x, w = np.ones((130, 24), BF16), np.ones((24, 90), BF16)
    with config.using(executor="emulator"):
        assert families(layer, x, w) == ["mma product and region"]
        with config.using(prefer=("small product and region in CUDA",)):
            assert families(layer, x, w) == ["small product and region in CUDA", "region in CUDA"]


def families(f: Any, *xs: Any) -> list[str]:
    return [k.choice.family.name for k in ge2.jit(f).lower(*xs).kernels]


@needs_compiler
@pytest.mark.parametrize("sizes", [{"i": 2, "j": 3, "k": 5}, {"i": 20, "j": 18, "k": 8}])
@pytest.mark.parametrize(
    "form", ["ijk,k->ij", "ikj,k->ij", "k,kij->ij", "k,ikj->ij", "ik,kj->ij", "ijk,ik->ij"]
)
def test_two_axes_of_one_factor_are_no_matrix(form: str, sizes: dict[str, int]) -> None:
    """What is done to each element goes on with rows and columns of both factors, or apart."""
    rng, (left, right) = np.random.default_rng(0), form.split("->")[0].split(",")
    a, c = (rng.normal(size=[sizes[n] for n in left]) for _ in range(2))
    b, d = (rng.normal(size=[sizes[n] for n in right]) for _ in range(2))

    def f(a: Any, b: Any, c: Any, d: Any) -> Any:
        y = np.einsum(form, a, b) + np.einsum(form, c, d)
        return y, np.tanh(np.einsum(form, a, d)) * 2

    with config.using(executor="emulator"):
        found = ge2.jit(f)(a, b, c, d)
    for y, wanted in zip(found, f(a, b, c, d), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-12)
