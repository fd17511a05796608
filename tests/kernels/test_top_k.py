"""The largest elements of lines, in C and in CUDA, against the references:

NaN first, equals in order.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge2.base.arrays import COMPLEX, FLOATS, SHORT
from ge2.base.config import config
from ge2.choice import Problem
from ge2.compile import compile_graph
from ge2.compile.catalog import select
from ge2.ir import ArrayType, Eqn, Graph, Op, Var
from ge2.ops.shape import Slice, Transpose
from ge2.ops.sort import Sort, TopK
from ge2.passes.reads import FirstRanks
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.kernels import lines
from tests.exhaustive import examples, sampled
from tests.kernels.programs import alike, needs_compiler, numbers
from tests.nvrtc import needs_nvrtc
from tests.small import planned_by

pytestmark = needs_compiler
DTYPES = [d for d in SHORT if d not in COMPLEX]
SIZES = (1, 31, 32, 33, 127, 129, 1023, 1025)


def graph_of(op: Op, x: ArrayType, lying: str = "") -> Graph:
    """The graph of the operation on an array, or a view of one."""
    given, eqns = Var(x), list[Eqn]()
    seen = given
    if lying == "turned":
        seen = Var(x.with_shape(x.shape[::-1]))
        eqns.append(Eqn(Transpose((1, 0)), (given,), (seen,)))
    elif lying == "apart":
        view = Slice((0, 1), x.shape, (1, 2))
        seen = Var(*view.infer(x))
        eqns.append(Eqn(view, (given,), (seen,)))
    outs = tuple(map(Var, op.infer(seen.type)))
    return Graph((given,), (*eqns, Eqn(op, (seen,), outs)), outs)


def judged(op: Op, x: Any, device: Device | None = None, lying: str = "") -> None:
    graph = graph_of(op, ArrayType(x.shape, x.dtype), lying)
    with config.using(passes_off=("simplify", "fold", "match"), threads=2):
        program = compile_graph(graph, device=device)
    assert {s.kind for s in program.program.steps} <= {"kernel", "copy", "view"}
    for y, wanted in zip(program(x), graph(x), strict=True):
        alike(y, wanted)
        assert y.flags.c_contiguous


@st.composite
def arrays(draw: st.DrawFn, sizes: tuple[int, ...]) -> tuple[Any, str]:
    """Lines along either axis, and how an operation sees them."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    shape = draw(st.sampled_from((1, 2, 3, 5))), draw(st.sampled_from(sizes))
    shape = shape if draw(st.booleans()) else shape[::-1]
    x = numbers(rng, shape, draw(st.sampled_from(DTYPES)), small=draw(st.booleans()))
    return x, draw(st.sampled_from(("", "turned", "apart") if shape[1] > 2 else ("", "turned")))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Op, Any, str]:
    x, lying = draw(arrays(SIZES))
    seen = {"": x, "turned": x.T, "apart": x[:, 1::2]}[lying]
    axis = draw(st.integers(0, 1))
    most = min(seen.shape[axis], lines.MOST)
    k = draw(st.sampled_from((0, 1, 2, most // 9, most))) if most > 1 else most
    orders = (TopK(k, axis), FirstRanks(k, axis), FirstRanks(k, axis, x.dtype in FLOATS))
    return draw(st.sampled_from(orders)), x, lying


@settings(max_examples=examples(25))
@given(cases())
def test_in_c(case: tuple[Op, Any, str]) -> None:
    op, x, lying = case
    judged(op, x, None, lying)


@settings(max_examples=examples(25))
@given(cases(), st.integers(0, 9))
def test_in_cuda(case: tuple[Op, Any, str], seed: int) -> None:
    """In any order of the threads, each access looked at."""
    op, x, lying = case
    judged(op, x, ShimDevice(seed=seed, watch=bool(seed % 2)), lying)


def ties(n: int) -> list[Any]:
    """Lines of equal and of special numbers."""
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -np.nan, 1.0], np.float32)
    same = np.zeros((2, n), np.float32), np.full((1, n), np.nan), np.ones((1, n), bool)
    return [np.resize(values, (2, n)), *same]


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", SIZES)
def test_ties_and_special_numbers(n: int) -> None:
    for x in ties(n):
        for k in {1, n // 2, min(n, lines.MOST)}:
            judged(TopK(k, 1), x)
            judged(TopK(k, 1), x, ShimDevice(seed=n))


def test_keys_that_differ_in_one_byte(rng: np.random.Generator) -> None:
    """Each digit decides once, and so does each of an index."""
    for shift in range(0, 64, 8):
        x = rng.permutation(np.arange(300, dtype=np.int64) % 200)[None] << shift
        judged(TopK(97, 1), x)
        judged(TopK(97, 1), x, ShimDevice())
    judged(TopK(300, 1), np.zeros((1, 70000), np.int8), ShimDevice())  # 17 bits of equal places


def test_larger_blocks(rng: np.random.Generator) -> None:
    """Lines of so many elements, of which more are equal than a block keeps, or some of each kind."""
    for op in (TopK(500, 1), FirstRanks(9, 1, True)):
        x = rng.integers(0, 3, (1, lines.LONG + 70)).astype(np.float16)
        judged(op, x, ShimDevice(seed=3, watch=True))


CUT = (((2, 700), 5, ""), ((1, 1000), 129, ""), ((701, 2), 3, "turned"), ((2, 901), 9, "apart"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CUT, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lines_that_are_cut(dtype: np.dtype, case: Any, rng: np.random.Generator) -> None:
    """Two kernels: the largest of parts, then the largest of these."""
    device = ShimDevice(planned_by(EMULATED, "top_k", long=300, part=130), 1, watch=True)
    shape, k, lying = case
    judged(TopK(k, 1), numbers(rng, shape, dtype, small=True), device, lying)


def test_what_is_left_to_the_array_module(rng: np.random.Generator) -> None:
    """More than a block keeps are the end of what is sorted; the reference is not asked."""
    for dtype in DTYPES:
        x = numbers(rng, (3, 700), dtype, small=True)
        for axis in (0, 1):
            k = 600 if axis else 2
            op = TopK(k, axis) if rng.integers(2) else FirstRanks(k, axis, dtype in FLOATS)
            program = compile_graph(graph_of(op, ArrayType(x.shape, dtype)), device=ShimDevice())
            assert [s.kind for s in program.program.steps] == ["library" if axis else "kernel"]
            for y, wanted in zip(program(x), op.reference(x), strict=True):
                alike(y, wanted)


def test_the_choice() -> None:
    t = ArrayType((3, 700), np.dtype(np.float32))
    for target, k, name in (
        ("c", 3, "top_k in C"),
        ("cuda", 3, "top_k in CUDA"),
        ("cuda", 600, ""),
    ):
        op = TopK(k, 1)
        choice = select(Problem(op, (t,), op.infer(t), target))
        assert choice.family.name == name or (
            not name and "a block keeps 512 elements, not 600" in str(choice)
        )
    z = t.with_dtype(np.dtype(np.complex64))
    words = select(Problem(Sort(0), (z,), (z,), "cuda")).in_words(every=True)
    assert "not top_k in CUDA: it serves other operations than sort" in words


@pytest.mark.exhaustive
@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_nvrtc_compiles_it(arch: str) -> None:
    device = OfflineDevice(limits_of(arch))
    dtypes = DTYPES if arch == "sm_90a" else [np.dtype(t) for t in ("f4", "i8", "?")]
    lines = product((((3, 5), 2), ((3, 700), 300), ((1, 1 << 20), 5)), dtypes)
    name = lambda case: f"{case} for {arch}"  # noqa: E731
    for (shape, k), dtype in sampled(lines, name, lambda case: case[0]):
        program = compile_graph(graph_of(TopK(k, 1), ArrayType(shape, dtype)), device=device)
        program.build()
        for source in program.assembler.kernels.sources.values():  # type: ignore[attr-defined]
            (usage,) = device.module(source.text()).binary.kernels
            assert usage.registers <= 40 and usage.spills <= 16  # bytes
