"""What moves elements on CUDA, through the shim: the references' bits, in any
order of the threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.base.arrays import INTEGERS, SHORT
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble
from ge2.choice import Prefs, Problem
from ge2.choice.choose import choose
from ge2.codegen.text import whole
from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.ir import ArrayType, Graph, Op
from ge2.ops.index import Gather, Scatter, ScatterAdd, ScatterMax, ScatterMin, UpdateSlice
from ge2.ops.random import UNSIGNED, RandomBits, RandomFold
from ge2.ops.shape import Concatenate, Constant, Pad, Transpose
from ge2.passes.indices import SumsAt
from ge2.passes.take_to_mask import Index
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit import Source
from ge2.targets.cuda.emit.special_reductions import Kernels
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, ShimDevice
from ge2.targets.cuda.families import FAMILIES
from ge2.targets.cuda.limits import H200, Limits
from ge2.targets.cuda.load import place
from ge2.targets.cuda.load.nvrtc import compile
from tests.compared import all_close, all_equal
from tests.exhaustive import sampled
from tests.kernels.programs import Programs, alike, needs_compiler, numbers
from tests.kernels.test_indexing_c import drawn
from tests.small import planned_by

pytestmark = needs_compiler
SIZES = (1, 31, 32, 33, 1023, 1025, 4099)
DTYPES = list(SHORT)

CAPS = Caps.of(OfflineDevice(H200))


def built(programs: Programs, device: ShimDevice) -> Executable:
    graph = Graph(tuple(programs.inputs), tuple(programs.eqns), tuple(programs.outs))
    with config.using(passes_off=("simplify", "fold", "match")):
        return compile_graph(graph, device=device)


def results(programs: Programs, *seeds: int, chip: Limits = EMULATED) -> list[Any]:
    """Those of the program, the same to the bit whichever thread comes
    first; nothing runs elsewhere.
    """
    found: list[list[Any]] = []
    for seed in seeds or (0, 7):
        executable = built(programs, ShimDevice(chip, seed))
        assert {s.kind for s in executable.program.steps} <= {"kernel", "copy", "view"}
        found.append(executable(*programs.arrays))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()
    return found[0]


def matches(programs: Programs) -> None:
    for y, wanted in zip(results(programs), programs.wanted, strict=True):
        alike(y, wanted)


def launches(op: Op, *types: ArrayType) -> list[Source]:
    """The kernels of an operation, without a program around it."""
    outs = op.infer(*types)
    ins = [whole("in", i, t.shape) for i, t in enumerate(types)]
    results = [whole("out", i, t.shape) for i, t in enumerate(outs)]
    problem = Problem(op, types, outs, "cuda", operands=(*ins, *results))
    found: Kernels = choose(problem, CAPS, Prefs(), FAMILIES).kernels()
    return [Source(k.kind.replace(" ", "_"), k) for k in found.kernels]


def names(op: Op, *types: ArrayType) -> list[str]:
    return [source.name for source in launches(op, *types)]


# -------------------------------------------------------------------------------- as the references


@settings(max_examples=3)
@given(st.data(), st.sampled_from((Gather, ScatterAdd, ScatterMax, ScatterMin, Scatter)))
def test_at_indices(data: st.DataObject, op: type[Any]) -> None:
    programs = Programs()
    for _ in range(4):
        drawn(data.draw, programs, op)
    matches(programs)


@settings(max_examples=3)
@given(st.data())
def test_parts(data: st.DataObject) -> None:
    programs, draw = Programs(), data.draw
    for _ in range(3):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        dtype = draw(st.sampled_from(DTYPES))
        shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 5, 33)), min_size=1, max_size=3)))
        rank = len(shape)
        x = programs.view(draw, numbers(rng, shape, dtype))
        inner = tuple(int(n) for n in rng.integers(0, 3, rank))
        low, high = (tuple(int(n) for n in rng.integers(0, 4, rank)) for _ in range(2))
        programs.add(Pad(low, high, inner), x)
        axis = draw(st.integers(0, rank - 1))
        other = (*shape[:axis], 4, *shape[axis + 1 :])
        programs.add(Concatenate(axis), x, programs.view(draw, numbers(rng, other, dtype)), x)
        step = tuple(int(n) for n in rng.integers(1, 4, rank))
        part = tuple(-(-n // s) for n, s in zip(shape, step, strict=True))
        update = programs.view(draw, numbers(rng, part, dtype))
        programs.add(UpdateSlice((0,) * rank, step), x, update)
    matches(programs)


@settings(max_examples=3)
@given(st.data())
def test_draws(data: st.DataObject) -> None:
    programs, draw = Programs(), data.draw
    sizes = st.lists(st.sampled_from((0, 1, 2, 3, 7, 16)), max_size=2).map(tuple)
    for _ in range(3):
        rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
        keys, shape = draw(sizes), draw(sizes)
        key = programs.view(draw, rng.integers(0, 1 << 32, (*keys, 2), np.uint32))
        programs.add(RandomBits(shape, draw(st.sampled_from(UNSIGNED))), key)
        more = programs.view(draw, rng.integers(0, 1 << 32, (*keys, *shape), np.uint32))
        programs.add(RandomFold(draw(st.integers(0, 3))), key, more)
    matches(programs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: int, rng: np.random.Generator) -> None:
    programs = Programs()
    for width in (1, 4, 7):
        x = numbers(rng, (size, width), np.dtype(np.float32))
        index = rng.integers(-size, size, size + 2)
        updates = numbers(rng, (size + 2, width), np.dtype(np.float32), small=True)
        given_ = [(programs.given(a), a) for a in (x, updates, index)]
        programs.add(Gather((0,)), given_[0], given_[2])
        programs.add(Scatter((0,)), *given_)
        programs.add(Pad((1, 0), (2, 0), (0, 0)), given_[0])
        programs.add(Pad((1, 2), (-1, 0), (1, 0)), given_[0])
        programs.add(Concatenate(1), given_[0], given_[0])
        programs.add(Index(size, 0), given_[2])
        # whose sums are alike in any order
        whole_numbers = rng.integers(-9, 9, x.shape).astype(np.float32)
        more = rng.integers(-9, 9, updates.shape).astype(np.float32)
        operands = [(programs.given(a), a) for a in (whole_numbers, more)]
        programs.add(ScatterAdd((0,)), *operands, given_[2])
    matches(programs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_wide_rows_of_every_dtype(dtype: np.dtype, rng: np.random.Generator) -> None:
    programs = Programs()
    x, updates = numbers(rng, (9, 48), dtype), numbers(rng, (40, 48), dtype)
    index = rng.integers(-9, 9, 40).astype(np.int16)
    given_ = [(programs.given(a), a) for a in (x, updates, index)]
    programs.add(Gather((0,)), given_[0], given_[2])
    programs.add(Scatter((0,)), *given_)
    programs.add(ScatterAdd((0,)), *given_)
    matches(programs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", UNSIGNED, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_streams(dtype: np.dtype, size: int) -> None:
    programs, key = Programs(), np.array([[1, 2], [3, 4]], np.uint32)
    programs.add(RandomBits((size,), dtype), (programs.given(key), key))
    programs.add(RandomBits((size,), dtype), (programs.given(key[0]), key[0]))
    matches(programs)


# ----------------------------------------------------------------------------------- at all indices


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", sorted(INTEGERS, key=str), ids=str)
def test_indices_wrap_and_reach_nothing_else(kind: np.dtype) -> None:
    """As CuPy's, in every kernel that has some; watched, so that an access outside is an error."""
    low, high = max(-23, np.iinfo(kind).min), 23
    far = [np.iinfo(kind).min, np.iinfo(kind).max]
    index = np.array([*range(low if kind.kind == "i" else 0, high), *far], kind)
    inside = np.array([int(i) % 5 for i in index])
    x, updates = np.arange(5.0), np.arange(1.0, 1 + len(index))
    for op, given_, wanted in (
        (Gather((0,)), (x,), x[inside]),
        (Scatter((0,)), (x, updates), Scatter((0,)).reference(x, updates, inside)),
        (ScatterAdd((0,)), (x, updates), ScatterAdd((0,)).reference(x, updates, inside)),
        (Index(5, 0), (), inside.astype(np.int32)),
    ):
        programs = Programs()
        programs.outs = [programs.apply(op, *map(programs.given, given_), programs.given(index))]
        (found,) = built(programs, ShimDevice(watch=True))(*programs.arrays)
        np.testing.assert_array_equal(found, wanted)


def test_nothing_can_be_read_of_an_empty_axis() -> None:
    for op in (Gather((0,)), Scatter((0,)), ScatterAdd((0,))):
        programs = Programs()
        given_ = [np.zeros((0, 3)), np.zeros((2, 3)), np.zeros(2, int)]
        arrays = [a for n, a in enumerate(given_) if n != 1 or not isinstance(op, Gather)]
        programs.outs = [programs.apply(op, *map(programs.given, arrays))]
        with pytest.raises(IndexError, match="empty axes|out of bounds for axis 0 with size 0"):
            built(programs, ShimDevice())(*programs.arrays)


# --------------------------------------------------------------------------------------------- sums


def added(x: Any, updates: Any, index: Any, chip: Limits = EMULATED) -> list[Any]:
    programs = Programs()
    operands = [(programs.given(a), a) for a in (x, updates, index)]
    programs.add(ScatterAdd((0,)), *operands)
    return [*results(programs, 0, 1, 2, chip=chip), *programs.wanted]


# by counting, by digits in few launches, and in more, where no block has all sums
RANKED = [
    planned_by(EMULATED, "scatters", ranges=0, ranked=n, in_tiles=some)
    for n, some in ((1 << 13, 1 << 18), (16, 1 << 18), (16, 0))
]
WAYS = ["ranked", "tiles", "digits"]


@pytest.mark.exhaustive("chip", table="order of sums")
@pytest.mark.parametrize("chip", RANKED, ids=WAYS)
def test_short_sums_are_in_the_order_of_the_indices(chip: Limits, rng: np.random.Generator) -> None:
    """So they have the reference's bits, however the updates are ordered and
    whatever comes first.
    """
    for rows, count, width in ((1, 60, 3), (9, 33, 4), (700, 900, 4), (70_001, 2500, 1)):
        x = rng.normal(size=(rows, width)).astype(np.float32)
        index = rng.permutation(np.arange(count) % rows) if rows > 1 else np.zeros(count, int)
        found, wanted = added(x, rng.normal(size=(count, width)).astype(np.float32), index, chip)
        np.testing.assert_array_equal(found, wanted)


# a thread clears one place after another where multiprocessors have many
ALONE = replace(RANKED[1], multiprocessors=1)


@pytest.mark.exhaustive("chip", table="order of sums")
@pytest.mark.parametrize("chip", [*RANKED, EMULATED, ALONE], ids=[*WAYS, "others", "alone"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=str)
def test_sums_of_zeros_are_written_whole(
    dtype: Any, chip: Limits, rng: np.random.Generator
) -> None:
    """Whatever place has no update is cleared: before, between and behind those that have some, and
    beside one that has all.
    """
    programs = Programs()
    some = [
        (90, 7, rng.integers(0, 90, 100)), (70, 4, rng.permutation(70)), (300, 3, np.full(500, 150)),
        (1000, 1, rng.integers(400, 410, 70)), (33, 8, np.array([32])), (65, 2, np.arange(0, 65, 2)),
        (1000, 3, rng.integers(200, 900, 2100)), (1500, 64, rng.integers(300, 900, 700)),
    ]  # fmt: skip
    for rows, width, index in some:
        updates = rng.integers(-9, 9, (len(index), width)).astype(dtype)
        given_ = [(programs.given(a), a) for a in (updates, index)]
        programs.add(SumsAt((0,), (rows, width)), *given_)
    both = rng.integers(0, 9, 80), rng.integers(0, 11, 80)
    given_ = [(programs.given(a), a) for a in (rng.integers(-9, 9, (80, 4)).astype(dtype), *both)]
    programs.add(SumsAt((0, 1), (9, 11, 4)), *given_)
    for found, wanted in zip(results(programs, 0, 1, 2, chip=chip), programs.wanted, strict=True):
        alike(found, wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64], ids=str)
def test_long_sums_are_nearer(dtype: Any, rng: np.random.Generator) -> None:
    """A place with more updates than a window is summed in pieces; a
    half type is rounded at the end.
    """
    x = np.zeros((5, 8), dtype)
    updates = rng.normal(size=(3001, 8)).astype(dtype)
    index = np.sort(rng.integers(0, 2, 3001)) * 3
    found, _ = added(x, updates, index)
    wide = np.complex128 if dtype == np.complex64 else np.float64
    exact = np.zeros((5, 8), wide)
    np.add.at(exact, index, updates.astype(wide))
    near = np.finfo(dtype).eps if dtype == np.float16 else 1e-6
    np.testing.assert_allclose(
        found, exact, rtol=near, atol=100 * near if dtype != np.float16 else 1e-4
    )


def test_zeros_keep_their_sign() -> None:
    x, updates = np.full(2, -0.0, np.float32), np.full(200, -0.0, np.float32)
    found, wanted = added(x, updates, np.zeros(200, int))
    alike(found, wanted)
    assert np.signbit(found).all()


@pytest.mark.exhaustive("chip", table="order of sums")
@pytest.mark.parametrize("chip", RANKED, ids=WAYS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8], ids=str)
def test_extremes_have_the_references_bits(
    dtype: Any, chip: Limits, rng: np.random.Generator
) -> None:
    """NaN and zeros of either sign included, in places that have more updates than a window, too."""
    programs = Programs()
    for rows, count, width in ((5, 60, 3), (2, 900, 4), (300, 900, 1)):
        x = np.full((rows, width), -0.0).astype(dtype)
        updates = rng.integers(-3, 3, (count, width)).astype(dtype)
        if updates.dtype.kind == "f":
            updates *= rng.choice(np.array([-1.0, 1.0], dtype), updates.shape)
            updates[rng.choice(count, 3)] = np.nan
        operands = [programs.given(a) for a in (x, updates, rng.integers(-rows, rows, count))]
        given_ = [(v, a) for v, a in zip(operands, programs.arrays[-3:], strict=True)]
        programs.add(ScatterMax((0,)), *given_)
        programs.add(ScatterMin((0,)), *given_)
    for found, wanted in zip(results(programs, 0, 1, 2, chip=chip), programs.wanted, strict=True):
        alike(found, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_extremes_of_many_floats_need_no_order(dtype: Any, rng: np.random.Generator) -> None:
    """NaN wins, which is there or comes; of zeros that meet the larger or smaller by its sign."""
    programs, chip = Programs(), planned_by(EMULATED, "scatters", unordered=2)
    x = rng.normal(size=(300, 2)).astype(dtype)
    updates = rng.normal(size=(900, 2)).astype(dtype)
    x[:40], x[40:44], x[44] = -0.0, np.nan, -np.nan
    updates[:300] = np.where(rng.random((300, 2)) < 0.5, 0.0, -0.0)
    updates[300:304], updates[304:306] = np.nan, (np.inf, -np.inf)
    index = rng.integers(-300, 300, 900)
    operands = [(programs.given(a), a) for a in (x, updates, index)]
    programs.add(ScatterMax((0,)), *operands)
    programs.add(ScatterMin((0,)), *operands)
    all_equal(results(programs, 0, 1, 2, chip=chip), programs.wanted)
    rows = Programs()  # whose neighbours a thread takes in together
    for width in (4, 8, 12):
        x, updates = rng.normal(size=(50, width)).astype(dtype), rng.normal(size=(700, width))
        updates[3, 1], updates[5], x[7, :2] = np.nan, -np.inf, np.nan
        integers = [rng.integers(-(1 << 31), 1 << 31, a.shape).astype("i4") for a in (x, updates)]
        given_ = (x, updates.astype(dtype), rng.integers(-50, 50, 700))
        operands = [(rows.given(a), a) for a in given_]
        rows.add(ScatterMax((0,)), *operands)
        rows.add(ScatterMin((0,)), *operands)
        rows.add(ScatterAdd((0,)), *((rows.given(a), a) for a in integers), operands[2])
    all_equal(results(rows, 0, 1, 2, chip=chip), rows.wanted)
    signs = Programs()
    for op, start in ((ScatterMax, [-1.0, -2.0]), (ScatterMin, [1.0, 2.0])):
        given_ = (
            np.array(start, dtype),
            np.array([0.0, -0.0, -0.0, 0.0], dtype),
            np.array([0, 0, 1, 1]),
        )
        signs.add(op((0,)), *[(signs.given(a), a) for a in given_])
    largest, smallest = results(signs, 0, 1, 2, chip=chip)
    assert not np.signbit(largest).any()
    assert np.signbit(smallest).all()
    types = ArrayType((9,), np.dtype(dtype)), ArrayType((1 << 14,), np.dtype(dtype))
    assert names(ScatterMax((0,)), *types, ArrayType((1 << 14,), np.dtype("i8")))[1:] == [
        "scatter_max"
    ]


def test_which_kernels_add() -> None:
    f32, i32, at = (np.dtype(t) for t in (np.float32, np.int32, np.int64))

    def kernels(dtype: np.dtype, count: int, rows: int = 300) -> list[str]:
        types = ArrayType((rows, 32), dtype), ArrayType((count, 32), dtype), ArrayType((count,), at)
        return names(ScatterAdd((0,)), *types)[1:]

    ordered = ["digit_count", "digit_start", "digit_move"]
    assert kernels(i32, 5000) == ["scatter_add"]
    assert names(ScatterMax((0,)), *[ArrayType((9,), i32)] * 2, ArrayType((9,), at))[1:] == [
        "scatter_max"
    ]
    assert kernels(f32, 1) == ["scatter_add"]
    assert kernels(f32, 64) == ["scatter_add"]
    assert kernels(f32, 65) == ["placing", "ranking", "sum_by_window", "sum_of_windows"]
    assert kernels(f32, 8193) == ["block_sum", "merged_sum"]
    summed = ["sum_by_window", "sum_of_windows"]
    assert kernels(f32, 8193, 1 << 16) == ["placing", *["digit_move"] * 2, *summed]
    assert kernels(f32, 8193, 1 << 19) == ["placing", *["digit_move"] * 3, *summed]
    many = kernels(f32, (1 << 18) + 1, 1 << 18)
    assert many == ["placing", *ordered[1:], *ordered, *ordered, *summed]


def test_no_two_threads_meet() -> None:
    """Every access is looked at: what no barrier sets apart would be an error."""
    rng, programs = np.random.default_rng(0), Programs()
    for count in (300, 50):
        x, updates, index = (
            rng.normal(size=(7, 3)),
            rng.normal(size=(count, 3)),
            rng.integers(0, 7, count),
        )
        operands = [(programs.given(a), a) for a in (x, updates, index)]
        programs.add(ScatterAdd((0,)), *operands)
        programs.add(Scatter((0,)), *operands)
    for chip in RANKED:
        found = built(programs, ShimDevice(chip, watch=True))(*programs.arrays)
        all_close(found, programs.wanted, rtol=1e-12)


# ----------------------------------------------------------------------------------- without a copy


def texts(f: Any, *args: Any, **more: Any) -> str:
    with config.using(executor="shim"):
        low = ge2.jit(f, **more).lower(*args)
        found = low.executable.text("python")
    assert found
    return str(found)


def test_what_is_joined_is_made_there() -> None:
    x = np.ones((3, 4), np.float32)
    assert texts(lambda x: np.concatenate([x * 2, np.exp(x)]), x).count("<<<") == 1
    # and zeros after it
    assert texts(lambda x: np.pad(x * 2, ((0, 2), (0, 0))), x).count("<<<") == 1
    assert texts(lambda x: np.pad(x, ((1, 2), (3, 0))), x).count("<<<") == 1
    assert texts(lambda x, i: x[:, i], x, np.array([1, 3])).count("<<<") == 1


def test_what_is_returned_in_another_shape_and_read_is_made_there() -> None:
    def seen(x: Any) -> Any:
        y = np.exp(x)
        return y.reshape(-1), np.flip(y, 1) * 2

    def updated(x: Any) -> Any:
        y = np.exp(x)
        z = y.copy()
        z[0] = 0
        return y.reshape(-1), z

    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    assert texts(seen, x).count("<<<") == 2
    for executor in ("shim", "c"):
        with config.using(executor=executor):
            for f in (seen, updated):
                all_close(ge2.jit(f)(x), f(x), rtol=1e-6)


@pytest.mark.parametrize("small", [0, EMULATED.tuning.joins.elements])
def test_small_parts_are_one_kernel(small: int) -> None:
    chip = planned_by(EMULATED, "joins", elements=small)

    def rolled(x: Any) -> Any:
        return np.roll(x, (1, 2), (0, 1))

    def turned(x: Any) -> Any:
        return np.concatenate([x[::-1], x[:0], x[:, ::-1], x[1::3], x[:1]])

    for dtype in sampled((np.float32, np.int8, np.complex128, np.float16)):
        x = np.arange(60).reshape(6, 10).astype(dtype)
        with config.using(executor="shim", shim_watch=True, tuning=(chip,)):
            for f in (rolled, turned):
                np.testing.assert_array_equal(ge2.jit(f)(x), f(x))
    with config.using(tuning=(chip,)):
        assert texts(rolled, x).count("<<<") == 1
        assert texts(turned, x).count("<<<") == (1 if small else 4)
        assert texts(lambda x: np.concatenate([x] * 5), x).count("<<<") == 5


def test_what_is_updated_is_made_there(rng: np.random.Generator) -> None:
    def updated(x: Any, i: Any, u: Any) -> Any:
        y = np.tanh(x)
        y[i] = u
        return y

    def donated(x: Any, i: Any, u: Any) -> Any:
        x = x.copy()
        x[i] += u
        return x

    x, i, u = rng.normal(size=(6, 4)), np.array([1, -1, 1]), np.ones((3, 4))
    assert re.findall(r"# (\w+)<<<", texts(updated, x, i, u)) == ["pointwise_0", "scatter_1"]
    with config.using(executor="shim", check=False):
        np.testing.assert_allclose(ge2.jit(updated)(x, i, u), updated(x, i, u))
        mine = x.copy()
        found = ge2.jit(donated, donate_argnums=(0,))(mine, i, u)
    assert np.shares_memory(found, mine)
    np.testing.assert_array_equal(found, donated(x, i, u))


def test_an_update_of_itself_reads_before_it_writes() -> None:
    def shifted(x: Any) -> Any:
        x = x.copy()
        x[1:] = x[:-1]
        return x

    with config.using(executor="shim"):
        f = ge2.jit(shifted, donate_argnums=(0,))
        np.testing.assert_array_equal(f(np.arange(600.0)), shifted(np.arange(600.0)))


def test_gathered_columns_are_written_in_their_order(rng: np.random.Generator) -> None:
    x, index = rng.normal(size=(33, 70)), rng.integers(0, 70, 31)
    programs = Programs()
    turned = programs.apply(Gather((1,)), programs.given(x), programs.given(index))
    programs.outs = [programs.apply(Transpose((1, 0)), turned)]
    np.testing.assert_array_equal(results(programs)[0], x[:, index])


def test_a_constant_is_uploaded_once() -> None:
    programs = Programs()
    programs.outs = [programs.apply(Constant.of(np.arange(6.0).reshape(2, 3)))]
    executable = built(programs, ShimDevice())
    one, two = executable(), executable()
    np.testing.assert_array_equal(one[0], np.arange(6.0).reshape(2, 3))
    assert not np.shares_memory(one[0], two[0])


# -------------------------------------------------------------------------------------------- texts


def test_another_size_compiles_nothing() -> None:
    f4, at = np.dtype(np.float32), np.dtype(np.int64)
    found = set()
    for n, m in ((200, 300), (212, 770)):
        x, u, i = ArrayType((n, 4), f4), ArrayType((m, 4), f4), ArrayType((m,), at)
        kernels = [*launches(Gather((0,)), x, i), *launches(ScatterAdd((0,)), x, u, i)]
        kernels += [*launches(Scatter((0,)), x, u, i), *launches(Pad((1, 0), (2, 0), (0, 0)), x)]
        kernels += launches(
            RandomBits((n * 4,), np.dtype(np.uint32)), ArrayType((2,), np.dtype(np.uint32))
        )
        found.add("".join(source.text().partition("*/")[2] for source in kernels))
    assert len(found) == 1


def huge() -> list[Source]:
    """Of arrays of which some elements are beyond 2^31."""
    f2, at, u4 = (np.dtype(t) for t in (np.float16, np.int64, np.uint32))
    x, u, i = ArrayType((1 << 22, 1024), f2), ArrayType((9001, 1024), f2), ArrayType((9001,), at)
    problems: list[tuple[Op, tuple[ArrayType, ...]]] = [
        (Gather((0,)), (x, i)), (Scatter((0,)), (x, u, i)), (ScatterAdd((0,)), (x, u, i)),
        (ScatterAdd((0,)), (x, ArrayType((91, 99, 1024), f2), ArrayType((91, 99), at))),
        (Pad((1, 0), (2, 0), (0, 0)), (x,)), (RandomBits((1 << 33,), u4), (ArrayType((2,), u4),)),
    ]  # fmt: skip
    return [source for op, types in problems for source in launches(op, *types)]


def test_places_beyond_32_bits() -> None:
    for source in huge():
        signature = source.text().partition("__global__")[2].partition("{")[0]
        assert "int64_t n" in signature or source.name in ("digit_start", "pointwise"), (
            source.text()
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_they_are_compiled(architecture: str) -> None:
    try:
        place()
    except CompilerTrouble:
        pytest.skip("no NVRTC")
    for source in huge():
        made = compile(source.text(), architecture)
        assert "warning" not in made.log, made.log
        assert not any(kernel.spills for kernel in made.kernels)


# ------------------------------------------------------------------------------ the order by itself

ORDER = """
#include "ge2/order.cuh"
extern "C" __global__ void __launch_bounds__(256) ranked(const int *places, int n, int *order, int *sorted) {
    ge2_rank(places, n, order, sorted);
}
extern "C" __global__ void __launch_bounds__(256) counted(
    const int *places, int *copy, int n, int shift, int *counts) {
    ge2_digit_counts<RUN>([&](int k) { return places[k]; }, copy, n, shift, counts);
}
extern "C" __global__ void __launch_bounds__(256) started(int *counts, int *totals, int tiles) {
    ge2_digit_starts(counts, totals, tiles);
}
extern "C" __global__ void __launch_bounds__(256) moved(
    const int *places, const int *numbers, int n, int shift, const int *counts, const int *totals,
    int *order, int *sorted) {
    ge2_digit_moves<RUN>(places, numbers, n, shift, counts, totals, order, sorted);
}
"""
IN_TILES = """
#include "ge2/order.cuh"
extern "C" __global__ void __launch_bounds__(1024) in_tiles(
    const int *places, const int *numbers, int n, int turn, int *counts, int *order, int *sorted) {
    ge2_digit_tile_moves<6, 2048, LAST>(places, numbers, n, turn, counts, order, sorted);
}
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [*SIZES, 2047, 2048, 2049, 5000])
def test_the_order_of_places(size: int, rng: np.random.Generator) -> None:
    device = ShimDevice(seed=size)
    modules = {run: device.module(ORDER.replace("RUN", str(run))) for run in (1, 8)}
    tiles = [device.module(IN_TILES.replace("LAST", last)) for last in ("false", "true")]
    for high in (1, 3, 250, 70_000):
        places = rng.integers(0, high, size, np.int32)
        wanted = np.argsort(places, kind="stable")
        order, ordered = np.full((2, size), -1, np.int32)
        blocks = -(-size * 8 // 256)
        modules[1].get_function("ranked")(
            (blocks,), (256,), (places, np.int32(size), order, ordered)
        )
        np.testing.assert_array_equal(order, wanted)
        np.testing.assert_array_equal(ordered, places[wanted])
        run = (1, 8)[high % 2]
        np.testing.assert_array_equal(by_digits(modules[run], places, high, 256 * run), wanted)
        np.testing.assert_array_equal(by_tiles(tiles, places, high), wanted)


def by_tiles(modules: Sequence[Any], places: Any, high: int) -> Any:
    n, tiles, turns = len(places), -(-len(places) // 2048), -(-high.bit_length() // 6)
    counts = np.zeros((turns, tiles, 64), np.int32)
    np.add.at(counts[0], (np.arange(n) // 2048, places & 63), 1)
    numbers: Any = None
    for turn in range(turns):
        order, ordered = np.empty((2, n), np.int32)
        given_: Sequence[Any] = (
            places, numbers, np.int32(n), np.int32(turn), counts, order, ordered,
        )  # fmt: skip
        modules[turn + 1 == turns].get_function("in_tiles")((tiles,), (1024,), given_)
        places, numbers = ordered, order
    return numbers


def by_digits(module: Any, places: Any, high: int, tile: int) -> Any:
    n, tiles = np.int32(len(places)), -(-len(places) // tile)
    numbers: Any = None
    for shift in range(0, high.bit_length(), 8):
        counts, totals = np.empty(256 * tiles, np.int32), np.empty(256, np.int32)
        order, ordered = np.empty((2, len(places)), np.int32)
        sizes, copy = (n, np.int32(shift)), np.full_like(places, -1) if shift else None
        module.get_function("counted")((tiles,), (256,), (places, copy, *sizes, counts))
        assert copy is None or np.array_equal(copy, places)
        module.get_function("started")((256,), (256,), (counts, totals, np.int32(tiles)))
        given_: Sequence[Any] = (
            places, numbers, *sizes, counts, totals, order, ordered,
        )  # fmt: skip
        module.get_function("moved")((tiles,), (256,), given_)
        places, numbers = ordered, order
    return numbers


def test_half_types_are_moved_as_they_are() -> None:
    """The payload of a NaN too."""
    x = np.array([0x7E01, 0xFE00, 0x0001], np.uint16).view(np.float16)
    programs = Programs()
    programs.outs = [
        programs.apply(Gather((0,)), programs.given(x), programs.given(np.array([2, 0, 1])))
    ]
    assert results(programs)[0].view(np.uint16).tolist() == [1, 0x7E01, 0xFE00]


def test_runs_begin_and_end_anywhere_in_windows(rng: np.random.Generator) -> None:
    """On a chip of one multiprocessor, where a thread looks through several places for those to clear."""
    chip = planned_by(replace(EMULATED, multiprocessors=1), "scatters", ranked=0)
    for n, places in ((1203, 40), (1500, 2500)):
        x, i = rng.standard_normal((n, 64)).astype("f4"), rng.integers(0, places, n).astype("i4")

        def sums(x: Any, i: Any, places: int = places) -> Any:
            y = ge2.numpy.zeros((places, 64), x.dtype)
            np.add.at(y, i, x)
            return y

        graph = ge2.make_jaxpr(sums)(x, i).graph
        program = compile_graph(graph, device=ShimDevice(chip, seed=n, watch=True))
        (found,) = program(x, i)
        wanted = np.zeros((places, 64))
        np.add.at(wanted, i, x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
        several = any("CHUNK    =   16;" in kernel.source for kernel in program.kernels)
        assert several == (places > n)  # a small result is cleared before


@pytest.mark.exhaustive
@pytest.mark.parametrize("hot", [63, 64, 65, 128, 191, 1000, 2999, 3001])
def test_a_place_of_very_many_updates(hot: int, rng: np.random.Generator) -> None:
    """Its windows are found by steps that double and halve, wherever its run begins."""
    n = 3001
    places = np.sort(rng.integers(0, 40, n))
    first = int(rng.integers(0, n - hot + 1))
    places[first : first + hot] = places[first]
    places = rng.permutation(np.maximum.accumulate(places))
    updates = rng.integers(-4, 5, (n, 20)).astype(np.float32)
    found, wanted = added(np.ones((40, 20), np.float32), updates, places, chip=RANKED[1])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("often", [0.0, 0.5, 0.9, 1.0])
def test_the_last_update_of_a_place_that_many_name(often: float, rng: np.random.Generator) -> None:
    """Updates of a warp that name one place leave it to the last of them; the last warp is no whole one."""
    n, places = 32 * 67 + 5, 900
    i = np.where(rng.random(n) < often, places - 1, rng.integers(-places, places, n))
    x, updates = rng.standard_normal(places), rng.standard_normal(n)

    def f(x: Any, i: Any, updates: Any) -> Any:
        y = x.copy()
        y[i] = updates
        return y

    with config.using(executor="emulator"):
        np.testing.assert_array_equal(ge2.jit(f)(x, i, updates), f(x, i, updates))
        kernels = ge2.jit(f).lower(x, i, updates).kernels
    assert any("ge2_last<int>" in kernel.source for kernel in kernels)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8"])
def test_indices_far_outside_wrap_around(dtype: str) -> None:
    """As if by a remainder of whole numbers, which the kernels have by quotients in double."""
    info, powers = np.iinfo(dtype), (7, 8, 31, 32, 53, 62, 63, 64)
    near = {s * 2**p + d for p in powers for d in (-3, -1, 0, 1) for s in (-1, 1)} | {0, 5, -5}
    given = [v for v in sorted(near) if info.min <= v <= info.max]
    index = np.array(given, dtype)
    for n in (1, 3, 1000, 65_537):
        x = np.arange(2.0 * n).reshape(2, n)
        with config.using(executor="emulator"):
            rows, pairs = ge2.jit(lambda x, i: (x[0][i], x[np.zeros(len(i), int), i] * 1))(x, index)
        wanted = [v % n for v in given]
        assert rows.tolist() == wanted
        assert pairs.tolist() == wanted
