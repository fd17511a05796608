"""Products on tensor cores whose operands are made as they are read: in the emulator against NumPy, when
they are chosen, and compiled for GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.compile import race
from ge2.targets.cuda.kernels.made import MadeFirst
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import kernels
from tests.kernels.made_cases import (
    BY_GROUPS,
    BY_WARPS,
    CASES,
    FLOATS,
    WARPS_ALONE,
    WEIGHTS,
    Random,
    bound,
    drawn,
    norm,
    prologues,
    tf32,
)
from tests.kernels.wgmma_cases import BF16, DIGITS, F16, F32
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

TF32 = 2.0**-10  # what is cut off of elements
ALL = {**CASES, **WARPS_ALONE}
TILES = ["128 x 128 by 8", "128 x 64 by 8", "64 x 64 by 4"]
WAITING = ["16 x 64 by 4", "32 x 64 by 4", "64 x 64 by 4", "128 x 64 by 8"]
GROUP_TILES = [
    "128 x 192",
    "128 x 192, narrow strips",
    "128 x 128",
    "128 x 128, narrow strips",
    "64 x 64",
]


def judge(found: Any, wanted: Any, digits: Any = DIGITS) -> None:
    """Each result is that of NumPy, but for few roundings."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for y, w in pairs:
        unit, exact = digits[y.dtype], np.asarray(w, np.float64)
        assert y.shape == exact.shape
        error = np.abs(y.astype(np.float64) - exact)
        np.testing.assert_array_less(error, 4 * unit * np.abs(exact).max() + 1e-30)


@needs_compiler
@pytest.mark.exhaustive("family", table="operands that are made")
@pytest.mark.parametrize(
    ("family", "name"),
    [(BY_WARPS, n) for n in ALL] + [(BY_GROUPS, n) for n in CASES if n not in FLOATS],
)
def test_values_are_those_of_numpy(family: str, name: str) -> None:
    function, given = ALL[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, *each) for each in given]
    called = tf32(function) if name in FLOATS else function
    with config.using(executor="shim", tuning=(H200,), prefer=(family,), shim_watch=True):
        lowered = ge2.jit(called).lower(*xs)
        assert prologues(lowered) == [(family, 2 if name == "both" else 1)]
        found = ge2.jit(called)(*xs)
    judge(found, function(*xs), {F32: TF32} if name in FLOATS else DIGITS)


@needs_compiler
@pytest.mark.parametrize("family", [BY_WARPS, BY_GROUPS])
def test_python_numbers(family: str) -> None:
    """They are no arrays, and another one compiles nothing."""
    rng = np.random.default_rng(1)
    x, w = drawn(rng, BF16, 70, 72), drawn(rng, BF16, 72, 80)
    with config.using(executor="shim", tuning=(H200,), prefer=(family,)):
        scaled = ge2.jit(lambda x, s, w: (x * s) @ w)
        assert prologues(scaled.lower(x, 2.5, w)) == [(family, 1)]
        for s in (2.5, -0.5):
            judge(scaled(x, s, w), (x * BF16.type(s)) @ w)


@needs_compiler
@pytest.mark.parametrize("shape", [(0, 72, 80), (40, 0, 80), (40, 72, 0), (1, 72, 80)])
def test_nothing_and_one_row(shape: tuple[int, int, int]) -> None:
    rng, (m, k, n) = np.random.default_rng(2), shape
    x, w = drawn(rng, F32, m, k), drawn(rng, BF16, k, n)
    with config.using(executor="shim", tuning=(H200,), prefer=(BY_GROUPS, BY_WARPS)):
        found = ge2.jit(lambda x, w: x.astype(BF16) @ w)(x, w)
    wanted = x.astype(BF16) @ w
    assert found.shape == wanted.shape
    if found.size:
        judge(found, wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WARPS_ALONE)
def test_what_warp_groups_do_not_make(name: str) -> None:
    function, given = WARPS_ALONE[name]
    xs = [ge2.ShapeDtypeStruct(shape, dtype) for dtype, *shape in given]
    with config.using(executor="shim", tuning=(H200,), prefer=(BY_GROUPS,)):
        found = prologues(ge2.jit(function).lower(*xs))
    assert (BY_GROUPS, 1) not in found or name == "both"  # of which they make one


@needs_compiler
@pytest.mark.exhaustive("family")
@pytest.mark.parametrize("k", [72, 264])
@pytest.mark.parametrize(
    ("family", "tile"),
    [*((BY_WARPS, tile) for tile in TILES), *((BY_GROUPS, tile) for tile in GROUP_TILES)],
)
def test_tiles(family: str, tile: str, k: int) -> None:
    """More stages than there are, and fewer; watched, no access meets another that is not ordered."""
    rng = np.random.default_rng(4)
    xs = [drawn(rng, F32, 140, k), drawn(rng, BF16, k, 200), drawn(rng, BF16, 200)]

    def layer(x: Any, w: Any, c: Any) -> Any:
        return np.maximum(x.astype(BF16) @ w + c, 0)

    with config.using(
        executor="shim", prefer=(family,), pins=(Pin(family, tile),), shim_watch=True, shim_seed=k
    ):
        (choice,) = ge2.jit(layer).lower(*xs).choices.values()
        assert choice.taken.title == f"{family}, {tile}"
        found = ge2.jit(layer)(*xs)
    judge(found, layer(*xs))


def pinned(name: str, tile: str) -> Pin:
    """That tile, or the one for few columns where weights are the left operand."""
    rows, _, columns, rest = tile.split(" ", 3)
    return Pin(BY_WARPS, f"{columns} x {rows} {rest}" if "left" in name else tile)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("parts", ["", ", 2 parts"])
@pytest.mark.parametrize("tile", WAITING)
@pytest.mark.parametrize("name", WEIGHTS)
def test_few_rows(name: str, tile: str, parts: str) -> None:
    """Weights in more stages than there are, in parts and whole, of edges that no tile has."""
    (function, given), rng, pin = WEIGHTS[name], np.random.default_rng(5), pinned(name, tile)
    xs = [drawn(rng, BF16, 13, 520), *(drawn(rng, *each) for each in given(520, 72))]
    pin = Pin(BY_WARPS, pin.variant + parts)
    with config.using(executor="shim", tuning=(H200,), pins=(pin,), shim_watch=True, shim_seed=3):
        (choice,) = ge2.jit(function).lower(*xs).choices.values()
        assert choice.taken.title == f"{BY_WARPS}, {pin.variant}"
        judge(ge2.jit(function)(*xs), function(*xs))


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
def test_random_operands(seed: int) -> None:
    case = Random(seed)
    xs = case.arrays()
    with config.using(executor="shim", tuning=(H200,), prefer=(BY_GROUPS, BY_WARPS)):
        found = ge2.jit(case)(*xs)
        lowered = ge2.jit(case).lower(*xs)
    small = any("small" in c.taken.title for c in lowered.choices.values())
    assert small or prologues(lowered), "some operand is made"
    a, b = (x.astype(np.float64) for x in case.operands(*xs))
    exact = a @ b if case.after is None else case.after(a @ b)
    limit = bound(a, b, exact, case.dtype, 1 + max(map(len, case.steps)))
    assert (np.abs(found.astype(np.float64) - exact) <= limit).all()


@needs_compiler
@pytest.mark.parametrize("family", [BY_WARPS, BY_GROUPS])
def test_gradients(family: str) -> None:
    """The same with operands that are made as with those in memory."""

    def loss(x: Any, w: Any) -> Any:
        return np.tanh(np.maximum(x, 0) @ w).astype(F32).sum()

    rng = np.random.default_rng(3)
    xs = [drawn(rng, BF16, 70, 72), drawn(rng, BF16, 72, 80)]
    with config.using(executor="shim", tuning=(H200,), prefer=(family,)):
        found = ge2.jit(ge2.value_and_grad(loss, (0, 1)))(*xs)
    with config.using(executor="shim", tuning=(H200,), passes_off=("prologue",)):
        wanted = ge2.jit(ge2.value_and_grad(loss, (0, 1)))(*xs)
    for y, w in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True):
        y, w = np.asarray(y, np.float64), np.asarray(w, np.float64)
        assert np.abs(y - w).max() <= 2.0**-7 * np.abs(w).max()


def titles(function: Any, *given: Any, **settings: Any) -> list[str]:
    structs = [ge2.ShapeDtypeStruct(shape, dtype) for dtype, *shape in given]
    with config.using(executor="shim", tuning=(H200,), tune="off", **settings):
        return [c.taken.title for c in ge2.jit(function).lower(*structs).choices.values()]


def test_it_is_chosen_where_it_is_predicted_to_take_less_time() -> None:
    """To write an operand and to read it costs more than to make it again for each tile beside
    another, unless there are many of these, or much is done.
    """
    few = (F16, 8192, 768), (F16, 8192, 768), (F16, 768, 192)
    (title,) = titles(lambda x, y, w: (x * y) @ w, *few)
    assert title.startswith(BY_GROUPS)
    assert len(titles(lambda x, y, w: (x * y) @ w, *few, passes_off=("prologue",))) == 2
    many = titles(lambda x, w: x.astype(BF16) @ w, (F32, 8192, 8192), (BF16, 8192, 8192))
    assert len(many) == 2
    costly = titles(
        lambda x, w: np.sin(np.exp(np.cosh(x))).astype(BF16) @ w,
        (F32, 4096, 4096),
        (BF16, 4096, 8192),
    )
    assert len(costly) == 2


def test_weights_of_bytes_are_made_for_few_rows() -> None:
    """They are read once, and half types of them neither written nor read."""
    function, given = WEIGHTS["bytes times scales of columns"]
    weights = given(4096, 4096)
    for rows in (4, 16, 32):
        (title,) = titles(function, (BF16, rows, 4096), *weights)
        assert title.startswith(BY_WARPS)
    assert len(titles(function, (BF16, 1024, 4096), *weights)) == 2


def test_the_candidate_in_memory_has_a_prediction() -> None:
    structs = [ge2.ShapeDtypeStruct(s, BF16) for s in ((8192, 768), (768, 768))]
    with config.using(executor="shim", tuning=(H200,), tune="off"):
        (choice,) = ge2.jit(lambda x, w: np.abs(x) @ w).lower(*structs).choices.values()
    names = {c.family.name for c in choice.candidates if c.predicted}
    assert names == {BY_GROUPS, BY_WARPS, "operands in memory, then the product"}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (y := np.maximum(x, 0), y @ w),  # others read it
        lambda x, w: np.sort(x, axis=1) @ w,  # made by no region
        lambda x, w: (x[:1].T * x[:1]) @ w[: x.shape[1]],  # of no array that is as large
    ],
)
def test_what_is_made_before(function: Any) -> None:
    structs = [ge2.ShapeDtypeStruct(s, BF16) for s in ((512, 512), (512, 512))]
    with config.using(executor="shim", tuning=(H200,), prefer=(BY_GROUPS, BY_WARPS)):
        assert not prologues(ge2.jit(function).lower(*structs))


NVRTC = {
    "cast": (lambda x, w: x.astype(BF16) @ w, ((F32, 512, 512), (BF16, 512, 512))),
    "mask": (
        lambda m, a, b: np.where(m, a, np.float32(0).astype(F16)) @ b,
        ((bool, 512, 512), (F16, 512, 512), (F16, 512, 512)),
    ),
    "norm": (
        lambda x, g, b, w, c: np.tanh(norm(x.astype(F32), g, b).astype(BF16) @ w + c),
        ((BF16, 512, 512), (F32, 512), (F32, 512), (BF16, 512, 512), (BF16, 512)),
    ),
}


@needs_nvrtc
@pytest.mark.exhaustive("architecture", table="spills of made operands", share=20)
@pytest.mark.parametrize("name", NVRTC)
@pytest.mark.parametrize(
    ("family", "tile", "architecture"),
    [
        *((BY_WARPS, tile, arch) for tile in TILES for arch in ARCHITECTURES),
        *((BY_GROUPS, tile, "sm_90a") for tile in GROUP_TILES),
    ],
)
def test_no_spills(family: str, tile: str, architecture: str, name: str) -> None:
    function, given = NVRTC[name]
    xs = [np.zeros(shape, dtype) for dtype, *shape in given]
    with config.using(prefer=(family,), pins=(Pin(family, tile),)):
        found = kernels(function, *xs, arch=architecture)
    ((kernel, text),) = [each for each in found if "left_made" in each[1]]
    (usage,) = compiled(text, architecture).kernels
    assert not usage.spills and usage.registers * kernel.block <= 1 << 16


@needs_nvrtc
@pytest.mark.exhaustive(share=20)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tile", WAITING)
@pytest.mark.parametrize("name", WEIGHTS)
def test_no_spills_of_few_rows(name: str, tile: str, architecture: str) -> None:
    function, given = WEIGHTS[name]
    xs = [np.zeros((16, 512), BF16), *(np.zeros(s, d) for d, *s in given(512, 512))]
    with config.using(prefer=(BY_WARPS,), pins=(pinned(name, tile),)):
        ((kernel, text),) = kernels(function, *xs, arch=architecture)
    assert "_made" in text
    (usage,) = compiled(text, architecture).kernels
    assert not usage.spills and usage.registers * kernel.block <= 1 << 16


@needs_nvrtc
@pytest.mark.exhaustive("dtype", table="made operands that wait")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "name", ["abs", "tanh", "reciprocal", "sqrt", "sin", "log1p", "divide", "power", "maximum"]
)
def test_no_product_waits_for_the_one_before(name: str, dtype: Any) -> None:
    """Compilers say it where branches between products have them do so."""
    function = getattr(np, name)
    given = [np.zeros((512, 512), F32)] * function.nin
    w = np.zeros((512, 512), dtype)
    with config.using(prefer=(BY_GROUPS,), pins=(Pin(BY_GROUPS, "128 x 128"),)):
        found = kernels(lambda w, *xs: function(*xs).astype(dtype) @ w, w, *given, arch="sm_90a")
    ((_, text),) = [each for each in found if "left_made" in each[1]]
    log = compiled(text, "sm_90a").log
    assert "registers" in log and "serialized" not in log


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("winner", [BY_WARPS, MadeFirst.name])
@pytest.mark.parametrize("name", ["cast", "a norm's last step"])
def test_it_is_raced_with_operands_in_memory(
    name: str, winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(bench: Any, racers: list[Any], end: float) -> None:
        for racer in racers:
            racer.times.append(1e-6 if racer.candidate.family.name == winner else 1e-3)

    monkeypatch.setattr(race, "timed", timed)
    function, given = CASES[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, *each) for each in given]
    with config.using(executor="shim", tuning=(H200,)):
        ge2.clear_caches()
        with config.using(prefer=(BY_GROUPS,)):
            tuned = race.tune(ge2.jit(function).lower(*xs).executable, again=True)
        (found,) = (r for r in tuned.races if MadeFirst.name in dict(r.predicted))
        assert found.winner.startswith(winner)
        assert not any(row.failure for row in found.entry.rows)
        ge2.clear_caches()
        made = prologues(ge2.jit(function).lower(*xs))
        assert made == ([(winner, 1)] if winner == BY_WARPS else [])
        judge(ge2.jit(function)(*xs), function(*xs))
