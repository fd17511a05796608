"""Sums at indices that atomics add, through the emulator: exact before they are rounded once, and
the same bits in any order of the threads.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import HALF
from ge2.base.errors import CompilerTrouble
from ge2.ir import ArrayType
from ge2.ops.index import ScatterAdd
from ge2.passes.indices import SumsAt
from ge2.targets.cuda.emulator import EMULATED, ShimDevice
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.load import place
from ge2.targets.cuda.load.nvrtc import compile
from tests.exhaustive import examples, sampled
from tests.kernels.programs import Programs, needs_compiler
from tests.kernels.test_cuda_moves import built, launches, names, results
from tests.small import planned_by

pytestmark = needs_compiler
# where no order is quicker
EARLY = planned_by(
    EMULATED, "scatters", few=0, unordered=2, ranges=0, compared=1.0, digit=1.0, lane_columns=1 << 30
)  # fmt: skip
RANGED = planned_by(EARLY, "scatters", ranged=2)
COPIED = planned_by(EARLY, "scatters", meeting=2, sparse=1000)
SHARED = planned_by(
    EARLY, "scatters", ranges=3, shared_block=32, shared_run=70, busy=0, sparse=1000
)
CHIPS = {"exact": EARLY, "ranged": RANGED, "shared": SHARED}
by_both = pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
FLOATS = ["f4", "f8", "f2", "c8", "c16", *(str(d) for d in sorted(HALF, key=str))]


def added(x: Any, updates: Any, *indices: Any, chip: Limits = EARLY) -> Any:
    """What the kernels make of it, by three orders of the threads that agree to the bit."""
    programs = Programs()
    operands = [(programs.given(a), a) for a in (x, updates, *indices)]
    programs.add(ScatterAdd(tuple(range(len(indices)))), *operands)
    return results(programs, 0, 1, 2, chip=chip)[0]


def exactly(x: Any, updates: Any, index: Any) -> Any:
    """Sums of finite doubles, each rounded once."""
    sums = [Fraction(v) for v in x.ravel().tolist()]
    width = math.prod(x.shape[1:])
    for row, values in zip(
        index.tolist(), updates.reshape(-1, width).tolist() if width else [], strict=True
    ):
        for u, v in enumerate(values):
            sums[row * width + u] += Fraction(v)
    return np.array([float(s) for s in sums]).reshape(x.shape)


@settings(max_examples=examples(12))
@given(st.data())
def test_sums_are_rounded_once(data: st.DataObject) -> None:
    """Of float64 twice: the sum, and what there was and it. In shared memory that of each block, too."""
    rows, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    count = data.draw(st.integers(max(rows, 65), 400))
    seed, spread = data.draw(st.integers(0, 999)), data.draw(st.sampled_from([0, 3, 9]))
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8"])))
    far = data.draw(st.sampled_from([0, -290, 290] if dtype == np.float64 else [0, -25, 25]))
    rng = np.random.default_rng(seed)
    scale = 10.0 ** (far + rng.integers(-spread, spread + 1, (count, width)))
    updates = (rng.normal(size=(count, width)) * scale).astype(dtype)
    index = rng.integers(0, rows, count)
    x = (rng.normal(size=(rows, width)) * 10.0**far).astype(dtype)
    chip = data.draw(st.sampled_from([EARLY, COPIED, RANGED, SHARED]))
    found, wanted = added(x, updates, index, chip=chip), exactly(x, updates, index)
    near = (np.abs(wanted) + np.abs(x)) * np.finfo(dtype).eps
    if chip is SHARED and dtype == np.float64:
        near += exactly(np.zeros_like(x), np.abs(updates), index) * np.finfo(dtype).eps / 2
    # what is cut off: 53 or 106 bits, without twice those of the number of updates
    lost = count * np.abs(updates).max() * 2.0 ** (-35 if dtype == np.float32 else -87)
    assert (np.abs(found - wanted) <= near + lost).all()


@by_both
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", FLOATS)
def test_few_updates_of_a_place_have_the_bits_of_the_reference(kind: str, chip: Limits) -> None:
    rng, dtype = np.random.default_rng(0), np.dtype(kind)
    x = rng.normal(size=(300, 2)).astype(dtype)
    updates = rng.normal(size=(200, 2)).astype(dtype)
    index = rng.permutation(300)[:200] - 150
    found = added(x, updates, index, chip=chip)
    assert found.tobytes() == ScatterAdd((0,)).reference(x, updates, index).tobytes()


@by_both
@pytest.mark.parametrize("kind", ["f4", "f8", "c8"])
def test_zeros_that_a_mask_makes_add_nothing_to_zeros(kind: str, chip: Limits) -> None:
    """Zeros of either sign, beside what is not finite, and at places that have nothing else."""
    rng = np.random.default_rng(4)
    updates = np.where(rng.random(900) < 0.3, rng.integers(-9, 9, 900) * 1.0, 0.0).astype(kind)
    updates[:5], updates[5:40] = (np.nan, np.inf, -np.inf, np.inf, -0.0), -0.0
    index = np.concatenate([np.arange(60), rng.integers(0, 300, 840)])
    programs = Programs()
    operands = [(programs.given(a), a) for a in (updates, index)]
    programs.add(SumsAt((0,), (310,)), *operands)
    found = results(programs, 0, 1, 2, chip=chip)[0]
    np.testing.assert_array_equal(found, programs.wanted[0])
    assert not np.signbit(found.real[np.isfinite(found) & (found == 0)]).any()


@pytest.mark.parametrize("kind", ["i4", "u8"])
def test_whole_zeros_need_no_atomic(kind: str, rng: np.random.Generator) -> None:
    updates = np.where(rng.random(900) < 0.3, rng.integers(1, 9, 900), 0).astype(kind)
    x, index = rng.integers(0, 9, 300).astype(kind), rng.integers(0, 300, 900)
    np.testing.assert_array_equal(
        added(x, updates, index), ScatterAdd((0,)).reference(x, updates, index)
    )


@by_both
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", FLOATS)
def test_what_is_not_finite_and_zeros_are_as_in_numpy(kind: str, chip: Limits) -> None:
    dtype, special = np.dtype(kind), [math.inf, -math.inf, math.nan, -0.0, 0.0, 1.5, -1.5]
    if dtype == np.dtype("float8_e4m3fn"):  # which has no infinities
        special = special[2:]
    values = np.array(special).astype(dtype)
    n = len(values)
    pairs = np.array(np.meshgrid(np.arange(n), np.arange(n))).reshape(2, -1)
    index = np.repeat(np.arange(n * n), 2)
    updates = values[pairs.T.ravel()]
    for start in (0.0, -0.0, 2.0):
        x = np.full(n * n + 3, start).astype(dtype)
        found = added(x, updates, index, chip=chip)
        with np.errstate(invalid="ignore"):
            wanted = ScatterAdd((0,)).reference(x, updates, index)
        a, b = (np.atleast_1d(v).astype(np.complex128).view(np.float64) for v in (found, wanted))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a)[~np.isnan(b)], np.signbit(b)[~np.isnan(b)])


@by_both
def test_the_ends_of_the_range(chip: Limits) -> None:
    tiny, huge = 5e-324, float(np.finfo(float).max)
    index = np.repeat(np.arange(5), 20)
    updates = np.zeros((5, 20))
    updates[0] = tiny
    updates[1, :2] = huge, -huge
    updates[2, :3] = huge, huge, -huge
    updates[3, :2] = huge, huge
    updates[4, :3] = 1e-310, 3e-310, -tiny
    found = added(np.zeros(5), updates.ravel(), index, chip=chip)
    assert found.tolist() == [20 * tiny, 0.0, huge, math.inf, 1e-310 + 3e-310 - tiny]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "u8"])
def test_whole_numbers_wrap(kind: str, rng: np.random.Generator) -> None:
    dtype = np.dtype(kind)
    info = np.iinfo(dtype)
    x, updates = (
        rng.integers(info.min, info.max, 9, dtype),
        rng.integers(info.min, info.max, 400, dtype),
    )
    index = rng.integers(-9, 9, 400)
    wanted = x.copy()
    np.add.at(wanted, index, updates)
    np.testing.assert_array_equal(added(x, updates, index, chip=SHARED), wanted)


def test_which_sums_blocks_have_in_shared_memory() -> None:
    def kinds(places: int, count: int, dtype: Any) -> list[str]:
        types = ArrayType((places,), np.dtype(dtype)), ArrayType((count,), np.dtype(dtype))
        return names(ScatterAdd((0,)), *types, ArrayType((count,), np.dtype(np.int64)))[1:]

    assert kinds(4096, 100_000, "f8") == kinds(20_000, 100_000, "c8") == ["block_sum", "merged_sum"]
    assert kinds(256, 1 << 20, "i4") == ["block_sum"]
    assert kinds(1 << 16, 1 << 20, "i4") == ["scatter_add"], "each block would add all of its sums"
    assert "exact_sum" in kinds(1 << 18, 1 << 18, "f8"), "too many for the memory of a block"


def test_what_they_are_predicted_to_take() -> None:
    """Global atomics are most of it, where each update takes some."""

    def at(x: Any, i: Any, u: Any) -> Any:
        return x.at[i].add(u)

    types = [((4096,), "f8"), ((200_000,), "i8"), ((200_000,), "f8")]
    given = [ge2.ShapeDtypeStruct(shape, np.dtype(t)) for shape, t in types]
    options = ge2.explain(at, arch="sm_90a")(*given).kernels[-1].options
    times = {o.name.partition(", ")[2]: o.predicted for o in options if o.predicted}
    assert times["in shared memory, by blocks"] < 1e-5 < times["by parts that are exact"]


def test_two_indices_and_rows(rng: np.random.Generator) -> None:
    x, updates = rng.normal(size=(3, 4, 5)), rng.normal(size=(40, 30, 5))
    i, j = rng.integers(-3, 3, (40, 30)), rng.integers(0, 4, (40, 30))
    wanted = x.copy()
    np.add.at(wanted, (i, j), updates)
    for chip in (EARLY, COPIED, SHARED):
        np.testing.assert_allclose(added(x, updates, i, j, chip=chip), wanted, rtol=1e-13)


def test_in_a_loop_and_in_a_derivative(rng: np.random.Generator) -> None:
    index, start = rng.integers(0, 30, 3000), rng.uniform(size=30)

    def loop(x: Any) -> Any:
        for _ in range(5):
            x = np.bincount(index, weights=x[index], minlength=30) * 0.01
        return x

    np.testing.assert_allclose(by_kernels(loop, start), loop(start), rtol=1e-12)
    square = ge2.grad(lambda x: (x[index] ** 2).sum())
    wanted = 2 * start * np.bincount(index, minlength=30)
    np.testing.assert_allclose(by_kernels(square, start), wanted, rtol=1e-12)


def by_kernels(f: Any, *args: Any) -> Any:
    from ge2.base.config import config

    with config.using(executor="shim"):
        step = ge2.jit(f)
        assert "block_sum" in step.lower(*args).as_text("cuda")
        return step(*args)


def test_where_an_order_is_kept() -> None:
    f4, at = np.dtype(np.float32), np.dtype(np.int64)

    def exact(rows: int, count: int, width: int, dtype: np.dtype = f4) -> bool:
        types = ArrayType((rows, width), dtype), ArrayType((count, width), dtype)
        return {"finish", "merged_sum"} & {
            *names(ScatterAdd((0,)), *types, ArrayType((count,), at))
        } != set()

    assert exact(300, 5000, 1) and exact(300, 5000, 16) and exact(9000, 5000, 1)
    assert not exact(300, 2000, 1), "few updates are ordered at once"
    assert not exact(30_000, 5000, 64), "of long rows the order is soon known"
    assert not exact(1 << 20, 5000, 1), "few of many elements are touched"
    assert not exact(1 << 20, 1 << 25, 1), "so many are not exact"
    assert not exact(300, 5000, 1, np.dtype(np.int16))


def test_no_two_threads_meet(rng: np.random.Generator) -> None:
    programs = Programs()
    x, updates, index = rng.normal(size=(7, 3)), rng.normal(size=(300, 3)), rng.integers(0, 7, 300)
    programs.add(ScatterAdd((0,)), *[(programs.given(a), a) for a in (x, updates, index)])
    for chip in (COPIED, SHARED):
        (found,) = built(programs, ShimDevice(chip, watch=True))(*programs.arrays)
        np.testing.assert_allclose(found, programs.wanted[0], rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_they_are_compiled(architecture: str) -> None:
    try:
        place()
    except CompilerTrouble:
        pytest.skip("no NVRTC")
    at = np.dtype(np.int64)
    for kind in sampled([*FLOATS, "i4", "u8"], lambda kind: f"{kind} for {architecture}"):
        for rows, count in ((300, 5000), (200_000, 100_000)):  # in blocks; in all of memory
            types = ArrayType((rows, 3), np.dtype(kind)), ArrayType((count, 3), np.dtype(kind))
            for source in launches(ScatterAdd((0,)), *types, ArrayType((count,), at)):
                made = compile(source.text(), architecture)
                assert "warning" not in made.log, made.log
                assert not any(kernel.spills for kernel in made.kernels)
