"""Lines in order, in CUDA, against NumPy's stable sort: NaN last, equals in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import COMPLEX, SHORT
from ge2.base.config import config
from ge2.choice.problem import Problem
from ge2.compile.catalog import select
from ge2.compile.compile import compile_graph
from ge2.ir import ArrayType
from ge2.ops.sort import ArgSort, Sort
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.kernels.lines import longest
from ge2.targets.cuda.limits import H200
from tests.exhaustive import examples
from tests.kernels.programs import alike, needs_compiler, numbers
from tests.kernels.test_top_k import graph_of
from tests.nvrtc import needs_nvrtc

pytestmark = needs_compiler
DTYPES = [d for d in SHORT if d not in COMPLEX]
MOST = longest(H200.shared_static)
SIZES = (0, 1, 2, 31, 32, 33, 127, 128, 129, 255, 257, 1023, 1025)


def judged(op: Any, x: Any, device: Device, lying: str = "") -> None:
    graph = graph_of(op, ArrayType(x.shape, x.dtype), lying)
    with config.using(passes_off=("simplify", "fold", "match")):
        program = compile_graph(graph, device=device)
    assert {s.kind for s in program.program.steps} <= {"kernel", "copy", "view"}
    for y, wanted in zip(program(x), graph(x), strict=True):
        alike(y, wanted)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Any, str]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    shape = draw(st.sampled_from((1, 2, 3, 5))), draw(st.sampled_from(SIZES))
    shape = shape if draw(st.booleans()) else shape[::-1]
    x = numbers(rng, shape, draw(st.sampled_from(DTYPES)), small=draw(st.booleans()))
    lying = draw(st.sampled_from(("", "turned", "apart") if shape[1] > 2 else ("", "turned")))
    lying = lying if shape[0] else ""
    return draw(st.sampled_from((Sort, ArgSort)))(draw(st.integers(0, 1))), x, lying


@settings(max_examples=examples(30))
@given(cases(), st.integers(0, 9))
def test_in_any_order_of_threads(case: tuple[Any, Any, str], seed: int) -> None:
    op, x, lying = case
    judged(op, x, ShimDevice(seed=seed, watch=bool(seed % 2)), lying)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_ties_and_special_numbers(n: int) -> None:
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -np.nan, 1.0], np.float32)
    for x in (
        np.zeros((2, n), np.float32),
        np.resize(values, (2, n)),
        np.full((1, n), np.nan),
        np.ones((1, n), bool),
        np.full((1, n), 255, np.uint8),  # whose key is that of what fills a line up
    ):
        for op in (Sort(1), ArgSort(1)):
            judged(op, x, ShimDevice(seed=n))


def test_the_longest_line(rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (1, MOST))
    judged(ArgSort(1), x, ShimDevice())
    judged(Sort(1), np.nextafter(x.astype(float), 0), ShimDevice())


def test_the_choice() -> None:
    def chosen(n: int, dtype: str = "f4") -> Any:
        t = ArrayType((3, n), np.dtype(dtype))
        return select(Problem(Sort(1), (t,), (t,), "cuda"))

    assert chosen(700).family.name == "sort in CUDA"
    assert f"a block sorts {MOST} elements, not {MOST + 1}" in str(chosen(MOST + 1))
    assert "complex numbers are sorted by CuPy" in str(chosen(7, "c8"))


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_nvrtc_compiles_it(arch: str) -> None:
    device = OfflineDevice(limits_of(arch))
    for dtype in DTYPES if arch == "sm_90a" else map(np.dtype, ("f4", "i8", "?")):
        for op, n in ((Sort(1), 9), (ArgSort(1), 700), (Sort(1), MOST)):
            program = compile_graph(graph_of(op, ArrayType((3, n), dtype)), device=device)
            program.build()
            for source in program.assembler.kernels.sources.values():  # type: ignore[attr-defined]
                (usage,) = device.module(source.text()).binary.kernels
                assert usage.registers <= 48 and usage.spills == 0
