"""Lines in order, in CUDA, against NumPy's stable sort: NaN last, equals in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.config import config
from ge2.choice import Pin, Problem, prefs
from ge2.choice.choose import choose
from ge2.codegen.text import whole
from ge2.compile import compile_graph
from ge2.compile.catalog import select
from ge2.ir import ArrayType
from ge2.ops.sort import ArgSort, Sort
from ge2.passes.reads import OrderStatistics
from ge2.targets.cuda.device import Caps, Device
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.kernels.sort import (
    BY_ALL,
    DIGITS,
    RANKED,
    REGISTERS,
    SHARED,
    CudaSort,
    longest,
    merge_exchange,
    merged_halves,
    pruned,
)
from ge2.targets.cuda.limits import H200
from tests.exhaustive import examples, sampled
from tests.kernels.programs import alike, needs_compiler, numbers
from tests.kernels.test_top_k import DTYPES, arrays, graph_of, ties
from tests.nvrtc import needs_nvrtc
from tests.small import planned_by

pytestmark = needs_compiler
MOST = longest(H200.shared_static)
SIZES = (0, 1, 2, 7, 31, 32, 33, 64, 65, 128, 129, 255, 257, 1023, 1025)
WAYS = ("", REGISTERS, RANKED, SHARED, DIGITS)


def judged(op: Any, x: Any, device: Device, lying: str = "", way: str = "") -> None:
    graph = graph_of(op, ArrayType(x.shape, x.dtype), lying)
    pins = (Pin("sort in CUDA", way),) if way else ()
    with config.using(passes_off=("simplify", "fold", "match"), pins=pins):
        program = compile_graph(graph, device=device)
        program.build()  # with these pins
    assert {s.kind for s in program.program.steps} <= {"kernel", "copy", "view"}
    for y, wanted in zip(program(x), graph(x), strict=True):
        if isinstance(op, OrderStatistics):  # of zeros it may be either
            y, wanted = plus_zero(y), plus_zero(wanted)
        alike(y, wanted)


def plus_zero(x: Any) -> Any:
    return np.where(x == 0, np.zeros((), x.dtype), x)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, str]:
    x, lying = draw(arrays(SIZES))
    lying = lying if x.shape[0] else ""
    return draw(st.sampled_from((Sort, ArgSort)))(draw(st.integers(0, 1))), x, lying


@st.composite
def selections(draw: st.DrawFn) -> tuple[Any, Any, str]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    n, lines = draw(st.sampled_from(SIZES[1:])), draw(st.sampled_from((1, 3, 33, 130)))
    x = numbers(rng, (lines, n), draw(st.sampled_from(DTYPES)), small=draw(st.booleans()))
    lying = draw(st.sampled_from(("", "turned")))
    ranks = sorted({*rng.integers(0, n, draw(st.integers(1, 4))).tolist()})
    return OrderStatistics(int(not lying), tuple(ranks)), x, lying


@settings(max_examples=examples(30))
@given(cases(), st.integers(0, 9), st.sampled_from(WAYS))
def test_in_any_order_of_threads(case: tuple[Any, Any, str], seed: int, way: str) -> None:
    op, x, lying = case
    judged(op, x, ShimDevice(seed=seed, watch=bool(seed % 2)), lying, way)


@settings(max_examples=examples(20))
@given(selections(), st.integers(0, 9))
def test_elements_of_some_ranks(case: tuple[Any, Any, str], seed: int) -> None:
    op, x, lying = case
    judged(op, x, ShimDevice(seed=seed, watch=bool(seed % 2)), lying)


def test_ranks_of_columns_that_lanes_share() -> None:
    """Lanes without an element look for none in the list of ranks."""
    x = np.arange(255 * 3, dtype=np.int8).reshape(255, 3)
    judged(OrderStatistics(0, (53, 112, 195, 196)), x, ShimDevice(seed=1, watch=True))


@settings(max_examples=examples(30))
@given(selections(), st.integers(0, 9), st.sampled_from((5, 64, 700)))
def test_ranks_that_all_blocks_seek(case: tuple[Any, Any, str], seed: int, part: int) -> None:
    """In parts of any length, with keys that differ and keys that are alike, whatever the order."""
    op, x, lying = case
    chip = planned_by(planned_by(limits_of("sm_90a"), "top_k", long=2), "sorts", part=part)
    judged(op, x, ShimDevice(seed=seed, watch=bool(seed % 2), limits=chip), lying, BY_ALL)


def test_equal_keys_and_neighbours_among_ranks_that_all_blocks_seek() -> None:
    chip = planned_by(limits_of("sm_90a"), "top_k", long=2)
    rng = np.random.default_rng(0)
    for x in (np.full(5000, 2.5), np.round(rng.normal(size=(2, 5000))), rng.normal(size=5000)):
        op = OrderStatistics(x.ndim - 1, (0, 7, 2499, 2500, 2501, 4999))
        judged(op, x, ShimDevice(seed=1, watch=True, limits=chip), "", BY_ALL)


@pytest.mark.parametrize("n", range(1, 13))
def test_networks_put_zeros_before_ones(n: int) -> None:
    """So they put everything in order (Knuth, 5.3.4, theorem Z); and what is left of them finds the
    ranks that it is left for.
    """
    bits = np.arange(1 << n)[:, None] >> np.arange(n) & 1
    wanted = np.sort(bits, 1)
    np.testing.assert_array_equal(applied(merge_exchange(n), bits), wanted)
    for rank in range(n):
        found = applied(pruned(merge_exchange(n), frozenset({rank})), bits)
        np.testing.assert_array_equal(found[:, rank], wanted[:, rank])
    if n & (n - 1) == 0:
        turned = np.arange(n) >= np.arange(n + 1)[:, None]  # falls from ones, or rises to them
        for rotated in (np.roll(turned, k, 1).astype(int) for k in range(n)):
            merged = applied(merged_halves(n), rotated)
            np.testing.assert_array_equal(merged, np.sort(rotated, 1))


def applied(network: Any, x: Any) -> Any:
    keys = x.T.copy()
    for i, j in network:
        keys[i], keys[j] = np.minimum(keys[i], keys[j]), np.maximum(keys[i], keys[j])
    return keys.T


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_ties_and_special_numbers(n: int) -> None:
    # the key of the last one's numbers is that of what fills a line up
    for x in (*ties(n), np.full((1, n), 255, np.uint8)):
        for op in (Sort(1), ArgSort(1)):
            judged(op, x, ShimDevice(seed=n))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [5, 32, 70])
def test_equal_elements_keep_their_bits(n: int, rng: np.random.Generator) -> None:
    """Zeros of both signs, and NaN of different bits, come in the order in which they were."""
    bits = np.array([0, 1 << 31, 0x7FC00001, 0xFFC00002, 0x7F800000, 0x3F800000], np.uint32)
    x = bits[rng.integers(0, 6, (40, n))].view(np.float32)
    x[::4] = np.where(x[::4] == 0, np.float32(2), x[::4])
    x[1::4] = np.where(np.isnan(x[1::4]), np.float32(2), x[1::4])
    for axis, given_ in ((1, x), (0, x.T.copy())):
        graph = graph_of(Sort(axis), ArrayType(given_.shape, given_.dtype))
        (y,) = compile_graph(graph, device=ShimDevice())(given_)
        wanted = np.sort(given_, axis, kind="stable")
        np.testing.assert_array_equal(y.view(np.uint32), wanted.view(np.uint32))


def test_the_longest_line(rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (1, MOST))
    judged(ArgSort(1), x, ShimDevice())
    judged(Sort(1), np.nextafter(x.astype(float), 0), ShimDevice(), way=SHARED)


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", [Sort(1), ArgSort(0)], ids=["elements", "places"])
def test_longer_lines_by_their_digits(op: Any, rng: np.random.Generator) -> None:
    """Of several tiles, with digits that all keys share, both zeros and NaN, side by side and not."""
    x = numbers(rng, (2, MOST + 300), np.dtype(np.float32), small=True)
    x[1, ::3] = np.resize(np.array([0.0, -0.0, np.nan, -np.nan], np.float32), x[1, ::3].shape)
    judged(op, x if op.axis else x.T.copy(), ShimDevice(seed=1, watch=True))


def test_the_choice() -> None:
    def chosen(n: int, dtype: str = "f4", lines: int = 3) -> Any:
        t = ArrayType((lines, n), np.dtype(dtype))
        return select(Problem(Sort(1), (t,), (t,), "cuda"))

    assert chosen(700).family.name == "sort in CUDA"
    assert chosen(MOST + 1).family.name == "sort in CUDA"
    longest = H200.tuning.sorts.longest
    assert f"a block sorts {longest} elements, not {longest + 1}" in str(chosen(longest + 1))
    assert f"one line of {MOST + 1} elements is sorted by all blocks" in str(
        chosen(MOST + 1, lines=1)
    )
    assert "complex numbers are sorted by CuPy" in str(chosen(7, "c8"))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize(("lines", "n"), [(1 << 20, 3), (1 << 20, 32), (1 << 17, 256), (5, 1024)])
def test_short_lines_are_sorted_in_registers(lines: int, n: int, dtype: str) -> None:
    t = ArrayType((lines, n), np.dtype(dtype))
    for op in (Sort(1), ArgSort(1)):
        out = t if isinstance(op, Sort) else t.with_dtype(np.dtype("i8"))
        arrays = whole("in", 0, t.shape), whole("out", 0, t.shape)
        problem = Problem(op, (t,), (out,), "cuda", operands=arrays)
        choice = choose(problem, Caps.before(H200), prefs(), (CudaSort(),))
        assert choice.taken.variant.name == REGISTERS


FEW = [np.dtype(name) for name in ("f4", "i8", "?")]
COMPILED = [(arch, dtype) for arch in ("sm_80", "sm_100") for dtype in FEW]


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize(("arch", "dtype"), [*COMPILED, *(("sm_90a", dtype) for dtype in DTYPES)])
def test_nvrtc_compiles_it(arch: str, dtype: np.dtype) -> None:
    device = OfflineDevice(limits_of(arch))
    lines = (
        (Sort(1), 9),
        (Sort(1), 32),
        (ArgSort(1), 32),
        (OrderStatistics(1, (15, 16)), 32),
        (ArgSort(1), 700),
        (Sort(1), MOST),
        (Sort(1), 9 * MOST),
        (ArgSort(1), 9 * MOST),
    )
    name = lambda case: f"{case} of {dtype} for {arch}"  # noqa: E731
    for op, n in sampled(lines, name, lambda case: type(case[0])):
        program = compile_graph(graph_of(op, ArrayType((3, n), dtype)), device=device)
        program.build()
        for source in program.assembler.kernels.sources.values():  # type: ignore[attr-defined]
            (usage,) = device.module(source.text()).binary.kernels
            assert usage.registers <= 168 and usage.spills == 0
