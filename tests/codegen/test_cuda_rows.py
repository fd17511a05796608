"""Kernels whose threads lie along what is folded: their short ways give what the long ones do."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.codegen.text import declared_twice
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import EMULATED, ShimDevice
from ge2.targets.cuda.limits import A100, H200, Chip
from tests.codegen.texts import chosen_kernels, kernels
from tests.compared import all_close
from tests.together import needs_compiler

pytestmark = needs_compiler
BF16 = ml_dtypes.bfloat16
DTYPES = (np.float32, np.float16, BF16)


def on_shim(f: Any, *xs: Any) -> Any:
    with config.using(executor="shim"):
        return ge2.jit(f)(*xs)


def chosen(z: Any, y: Any) -> Any:
    """The largest of each row, and how far below it one element is."""
    wide = z.astype(np.float32)
    return wide.max(-1) - np.take_along_axis(wide, y[:, None], -1)[:, 0]


def loss(z: Any, y: Any) -> Any:
    z = z.astype(np.float32)
    top = ge2.lax.stop_gradient(z.max(-1, keepdims=True))
    logs = np.log(np.exp(z - top).sum(-1)) + top[:, 0]
    return (logs - np.take_along_axis(z, y[:, None], -1)[:, 0]).mean()


# the row in a part of a warp, a warp, a block, shared memory (half types), or read
# again; whole packs and not
@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("n", [3, 40, 1000, 1021, 20_000, 20_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_an_element_is_picked_by_its_place(n: int, dtype: Any, rng: np.random.Generator) -> None:
    z, y = rng.normal(size=(4, n)).astype(dtype), rng.integers(0, n, 4)
    y[0], z[0, y[0]] = n - 1, -np.inf
    z[1, (y[1] + 1) % n] = np.nan
    z[2, y[2]] = np.nan
    y[3] -= n  # counted from the end
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(on_shim(chosen, z, y), chosen(z, y))


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("n", [24, 1000, 20_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_cross_entropy_and_its_gradient(n: int, dtype: Any, rng: np.random.Generator) -> None:
    z, y = (4 * rng.normal(size=(6, n))).astype(dtype), rng.integers(0, n, 6)
    found, slope = on_shim(ge2.value_and_grad(loss), z, y)
    wide = z.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    logs = np.log(powers.sum(-1)) + wide.max(-1)
    np.testing.assert_allclose(found, (logs - wide[np.arange(6), y]).mean(), rtol=1e-6)
    want = (powers / powers.sum(-1, keepdims=True) - (np.arange(n) == y[:, None])) / 6
    roundings = {np.float32: 2e-6, np.float16: 2e-3, BF16: 8e-3}
    np.testing.assert_allclose(slope.astype(np.float64), want, rtol=roundings[dtype], atol=2e-7)


def test_a_pick_is_no_comparison_with_each_place(rng: np.random.Generator) -> None:
    z, y = np.zeros((8, 20_000), BF16), np.zeros(8, np.int64)
    (_, text), *_ = kernels(ge2.value_and_grad(loss), z, y)
    before, after = text[text.index("rowwise(") :].split("_sum = 0.0f", 2)[1:]
    assert "ge2_pair_max_bf16" in before and "==" not in before
    # the gradient, in two loops
    assert after.count("(uint32_t)v") == 1 and after.count("= false;") == 1


@pytest.mark.exhaustive("dtype")
@pytest.mark.parametrize("n", [8, 50, 2048, 20_000])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_extremes_by_pairs(n: int, dtype: Any, rng: np.random.Generator) -> None:
    def f(x: Any) -> Any:
        wide = x.astype(np.float32)
        return wide.max(-1), wide.min(-1), (wide - wide.max(-1, keepdims=True)).sum(-1)

    x = rng.normal(size=(5, n)).astype(dtype)
    x[1, n // 2], x[2, n - 1], x[3, 0], x[4] = np.nan, np.inf, -np.inf, -0.0
    with np.errstate(all="ignore"):
        for found, want in zip(on_shim(f, x)[:2], f(x)[:2], strict=True):
            np.testing.assert_array_equal(found, want)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(want))


@pytest.mark.exhaustive
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 1e-42, 0.0, np.inf, np.nan])
def test_divisors_far_from_one(scale: float, rng: np.random.Generator) -> None:
    def f(x: Any) -> Any:
        return (x / x.max(-1, keepdims=True)).sum(0), (x / x.min(-1, keepdims=True)).max(-1)

    x = (np.abs(rng.normal(size=(37, 256))) + 0.5).astype(np.float32)
    x[5] *= np.float32(scale)
    with np.errstate(all="ignore"):
        for found, want in zip(on_shim(f, x), f(x.astype(np.float64)), strict=True):
            tolerance = 2e-6 if scale != 1e-42 else 3e-3  # of subnormal numbers
            np.testing.assert_allclose(found, want, rtol=tolerance)


def test_one_meeting_in_a_loop_waits_for_its_last_round(rng: np.random.Generator) -> None:
    def once(x: Any) -> Any:
        return (x * x.max(-1, keepdims=True)).sum(0)

    def twice(x: Any) -> Any:
        return (x * x.max(-1, keepdims=True) * x.sum(-1, keepdims=True)).sum(0)

    x = rng.normal(size=(64, 1024)).astype(np.float32)
    for f, again in ((once, True), (twice, False)):
        found = [t for _, t in kernels(f, x) if "ge2_team_fold<TEAM" in t]
        assert found and all((", false>" not in t) == again for t in found)
        np.testing.assert_allclose(on_shim(f, x), f(x), rtol=1e-4, atol=1e-3)


def test_results_with_the_same_axes_are_merged_by_one_kernel(rng: np.random.Generator) -> None:
    def f(x: Any, w: Any) -> Any:
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True))
        return scaled * w, (scaled * x).sum(0), x.sum(0), (scaled * scaled).max(0)

    x, w = rng.normal(size=(3000, 128)).astype(np.float32), rng.normal(size=128).astype(np.float32)
    assert [k.kind for k, _ in kernels(f, x, w)].count("finish") == 1
    all_close(on_shim(f, x, w), f(x, w), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_divides_a_row_is_prepared_once(dtype: Any, rng: np.random.Generator) -> None:
    """The quotients are NumPy's, at the ends of the range and for what is no number, too."""
    info = np.finfo(dtype)
    sizes = [1, 3, 1e-3, info.max, info.tiny, info.tiny / 8, np.inf, 0, 7e20, 1e-20]
    by = np.array([*sizes, *(-n for n in sizes), np.nan], dtype)

    def f(x: Any, by: Any) -> Any:
        return x / (by + 0 * x.max(1))[:, None]

    with np.errstate(all="ignore"):
        x = by[:, None] * rng.uniform(0.1, 2, (len(by), 40)).astype(dtype)
        x[~np.isfinite(x)] = 0.5
        np.testing.assert_array_max_ulp(on_shim(f, x, by), f(x, by), 1)
    ((_, text),) = kernels(f, x, by)
    assert f"ge2_divisor_f{info.bits}(" in text


def test_weights_are_read_where_they_are_needed() -> None:
    def norm(x: Any, w: Any) -> Any:
        away = x - x.mean(-1, keepdims=True)
        return away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5) * w

    (_, text), *_ = kernels(norm, np.zeros((64, 4096), BF16), np.zeros(4096, BF16))
    assert text.index("ge2_divisor_f32(") < text.index("ge2_read<PACK, 8>(b + j)")
    assert "4096.0f" in text  # the length of a row is in the text, so what it divides is multiplied


def test_rows_stay_within_what_a_chip_has() -> None:
    z, y = np.zeros((8, 50_304), BF16), np.zeros(8, np.int64)
    f = ge2.value_and_grad(loss)
    asked = {
        arch: max(k.shared for k, _ in kernels(f, z, y, arch=arch))
        for arch in ("sm_80", "sm_90a", "sm_86")
    }
    assert asked["sm_90a"] == asked["sm_80"] == 104 << 10 and asked["sm_86"] == 0  # which has 99 KB
    resident = {
        arch: max(k.resident for k, _ in kernels(f, z, y, arch=arch))
        for arch in ("sm_80", "sm_90a")
    }
    assert resident == {"sm_80": 1, "sm_90a": 2}
    assert Chip.of(H200).shared > Chip.of(A100).shared > 0


def test_bits_are_the_same_each_time(rng: np.random.Generator) -> None:
    z, y = rng.normal(size=(7, 5000)).astype(BF16), rng.integers(0, 5000, 7)
    first, again = (on_shim(partial(ge2.value_and_grad(loss)), z, y) for _ in range(2))
    assert [np.asarray(x).tobytes() for x in first] == [np.asarray(x).tobytes() for x in again]


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", [4, 300])  # that a block's teams have at once, or in turns
def test_what_is_alike_in_all_groups_is_made_in_each(rows: int, rng: np.random.Generator) -> None:
    """Blocks have one group each: no loop over rows comes before they know which."""

    def mixture(x: Any, means: Any, spread: Any) -> Any:
        logs = np.log(2 * np.pi * spread)
        scores = -0.5 * ((x[:, None] - means) ** 2 / spread + logs).sum(-1)
        top = scores.max(axis=1, keepdims=True)
        return top, np.exp(scores - top).sum(axis=1), logs

    x, means = rng.normal(size=(5, 3)), rng.normal(size=(rows, 3))
    spread = rng.uniform(0.5, 2, (rows, 3))
    all_close(on_shim(mixture, x, means, spread), mixture(x, means, spread), rtol=1e-12)


def nearest(x: Any, centres: Any) -> Any:
    return ((x[:, None, :] - centres[None, :, :]) ** 2).sum(-1).argmin(1)


def slopes(x: Any, w: Any, y: Any) -> Any:
    p = 1 / (1 + np.exp(-(x * w).sum(1)))
    return ((p - y)[:, None] * x).sum(0), ((p - y) ** 2).sum()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "width"), [(3, 3), (16, 8), (100, 5)])
def test_rows_of_each_group_leave_one_part(rows: int, width: int, rng: np.random.Generator) -> None:
    """A block has the few rows of a group, no more threads than these, and the result."""
    x, centres = rng.normal(size=(37, width)), rng.normal(size=(rows, width))
    centres[-1] = centres[0]  # of equals the first
    np.testing.assert_array_equal(on_shim(nearest, x, centres), nearest(x, centres))
    assert (len(kernels(nearest, x, centres)) == 1) == (rows <= 64)


@pytest.mark.parametrize(("rows", "teams"), [(16, 2), (5, 4), (40, 1)])
def test_many_groups_leave_one_part_each(rows: int, teams: int, rng: np.random.Generator) -> None:
    """No lane of a group of few rows is idle, and its parts are not more than what they are of."""
    x, centres = rng.normal(size=(37, 8)), rng.normal(size=(rows, 8))
    few = replace(EMULATED, multiprocessors=1, threads_per_multiprocessor=64)
    with config.using(tuning=(few,)):
        np.testing.assert_array_equal(on_shim(nearest, x, centres), nearest(x, centres))
    ((_, text),) = kernels(nearest, x, centres, chip=few)
    assert f"TEAM     = {teams:4};" in text


def largest_of_groups(x: Any) -> Any:
    """Along a row and over the rows of each group: of each element, and of all."""
    y = x - x.mean(2, keepdims=True)
    return y.max(1), (y**2).sum((1, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(9, 5, 12), (40, 64, 8), (6, 300, 4), (300, 3, 70)])
def test_of_each_group_what_its_rows_come_to(shape: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=shape)
    all_close(on_shim(largest_of_groups, x), largest_of_groups(x), rtol=1e-11, atol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [3, 8, 12, 60])
def test_short_rows_of_a_block_leave_one_part(width: int, rng: np.random.Generator) -> None:
    x, w, y = rng.normal(size=(5000, width)), rng.normal(size=width), rng.integers(0, 2, 5000)
    all_close(on_shim(slopes, x, w, y), slopes(x, w, y), rtol=1e-11, atol=1e-9)
    assert "ge2_column_fold<TEAM" in kernels(slopes, x, w, y)[0][1]


def pulls(x: Any, y: Any) -> Any:
    r = y[None, :, :] - x[:, None, :]
    return (r / ((r * r).sum(-1)[..., None] + 0.1) ** 1.5).sum(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_thread_has_a_short_row_where_rows_are_many(width: int, rng: np.random.Generator) -> None:
    """What is computed for a row is computed once, not by each thread of a team."""
    few = replace(EMULATED, multiprocessors=1)
    x, y = rng.normal(size=(40, width)), rng.normal(size=(61, width))
    with config.using(tuning=(few,)):
        np.testing.assert_allclose(on_shim(pulls, x, y), pulls(x, y), rtol=1e-11)
    if width > 1:
        assert "TEAM     =    1;" in kernels(pulls, x, y, chip=few)[0][1]
        assert "TEAM     =    1;" not in kernels(pulls, x, y)[0][1]


def test_what_a_thread_keeps_has_a_name_of_its_own():
    """A row is kept for late stages, and computed again in those between: a decoder's step of one token."""

    def norm(x, gain, shift):
        apart = x - x.mean(-1, keepdims=True)
        return apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * gain + shift

    def block(a, b, c, d, e, w, g, h, i):
        x = c + (a + b)
        y = np.tanh(norm(x, d, e) @ w + g) @ h + i
        return norm(x + y, d, e)

    row, vector = np.zeros((1, 1, 64), np.float32), np.zeros(64, np.float32)
    up, wide = np.zeros((64, 256), np.float32), np.zeros(256, np.float32)
    args = (row, vector, row, vector, vector, up, wide, up.T.copy(), vector)
    ((_, text),) = kernels(block, *args)
    assert re.search(r"float (\w+)_kept\[PACKS\];", text)
    assert not declared_twice(text)


def test_few_elements_that_take_long_are_shared_by_many_small_blocks() -> None:
    def angles(y: Any, x: Any) -> Any:
        return (np.arctan2(y, x) * np.hypot(y, x) * np.arcsinh(y)).sum()

    def squares(y: Any, x: Any) -> Any:
        return (y * x).sum()

    given = [ge2.ShapeDtypeStruct((800, 800), "f8")] * 2
    assert "TEAM     =  256;" in kernels(angles, *given)[0][1]
    assert "TEAM     = 1024;" in kernels(squares, *given)[0][1]


def scaled(x: Any, y: Any, functions: int) -> Any:
    """Each element times what is summed of its row, after so many functions."""
    p = x
    for _ in range(functions):
        p = np.log(np.exp(p) + y)
    return p * (p * y).sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("rows", "functions", "kernel"),
    [
        (64, 3, "in two"),
        (64, 0, "rows along axis 1"),
        (4, 3, "rows along axis 1"),
        (80, 3, "rows along axis 1"),
    ],
)
def test_few_long_rows_of_costly_work_are_two_kernels(
    rows: int, functions: int, kernel: str
) -> None:
    """So that several blocks fold one; but one has a row, with all its threads, where it is soon done."""
    x = ge2.ShapeDtypeStruct((rows, 1 << 16), np.float32)
    graph = ge2.make_jaxpr(partial(scaled, functions=functions))(x, x).graph
    (step,) = chosen_kernels(graph, H200)
    assert str(step.choice).startswith(f"region in CUDA, {kernel}")
    assert kernel == "in two" or "TEAM     = 1024;" in step.source


def test_what_is_folded_first_and_gone_on_with_is_numpys(rng: np.random.Generator) -> None:
    """By two kernels, the first of which has several blocks a row."""
    x, y = (rng.random((2, 1 << 16)).astype(np.float32) + 0.5 for _ in range(2))
    rowwise = replace(EMULATED.tuning.rowwise, many_divided=1 << 17)
    device = ShimDevice(replace(EMULATED, tuning=replace(EMULATED.tuning, rowwise=rowwise)))
    graph = ge2.make_jaxpr(partial(scaled, functions=3))(x, y).graph
    (found,) = compile_graph(graph, device=device)(x, y)
    wanted = scaled(x.astype(np.float64), y.astype(np.float64), 3)
    np.testing.assert_allclose(found, wanted, rtol=2e-4)
