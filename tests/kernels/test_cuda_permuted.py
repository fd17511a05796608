"""Permutations of several axes, by tiles that have parts of all of them, on the CPU, a fiber a thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ge2
from ge2.compile import compile_graph
from ge2.targets.cuda.emulator import EMULATED, OfflineDevice, ShimDevice, limits_of
from tests.exhaustive import examples
from tests.kernels.programs import alike, needs_compiler
from tests.nvrtc import needs_nvrtc
from tests.small import planned_by

pytestmark = needs_compiler
Function = Callable[..., Any]
DTYPES = (np.float32, np.float16, np.uint8, np.float64, np.complex64, bool)


def ran(f: Function, *arrays: Any, seed: int = 0, tiled: bool = True, **numbers: int) -> list[Any]:
    """What a function gives, and whether it has tiles of several axes, as it should."""
    chip = planned_by(EMULATED, "tiles", large=1, **numbers)
    program = compile_graph(
        ge2.make_jaxpr(f)(*arrays).graph, device=ShimDevice(chip, seed, watch=bool(seed % 2))
    )
    found: list[Any] = program(*arrays)
    assert any("_tile[" in kernel.source for kernel in program.kernels) == tiled
    return found


PIXELS: dict[str, tuple[tuple[int, ...], Function]] = {
    "shuffled": (
        (3, 8, 6, 40),
        lambda x: x.reshape(3, 2, 2, 2, 6, 40).transpose(0, 1, 4, 2, 5, 3).reshape(3, 2, 12, 80),
    ),
    "by threes": (
        (2, 9, 5, 33),
        lambda x: x.reshape(2, 3, 3, 5, 33).transpose(0, 3, 1, 4, 2).reshape(2, 15, 99),
    ),
    "gathered": (
        (2, 3, 8, 70),
        lambda x: x.reshape(2, 3, 4, 2, 35, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 12, 4, 35),
    ),
    "channels first": ((2, 9, 31, 3), lambda x: x.transpose(0, 3, 1, 2).copy()),
    "channels last": ((2, 3, 9, 31), lambda x: x.transpose(0, 2, 3, 1).copy()),
    "heads": ((5, 33, 4, 6), lambda x: x.transpose(0, 2, 3, 1).copy()),
    "patches": (
        (2, 3, 16, 20),
        lambda x: x.reshape(2, 3, 4, 4, 5, 4).transpose(0, 2, 4, 3, 5, 1).reshape(2, 20, 48),
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PIXELS)
def test_pixels(name: str, rng: np.random.Generator) -> None:
    shape, f = PIXELS[name]
    for dtype in (ml_dtypes.bfloat16, np.float32):
        x = rng.standard_normal(shape).astype(dtype)
        (found,) = ran(f, x, seed=len(name))
        np.testing.assert_array_equal(found.view(np.uint8), f(x).view(np.uint8))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, tuple[int, ...]]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    sizes = st.lists(st.sampled_from((1, 2, 2, 3, 4, 5, 7, 8)), min_size=2, max_size=6)
    shape = draw(sizes)
    for _ in range(draw(st.integers(1, 2))):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from((16, 33, 40, 70)))
    while math.prod(shape) > 30000:
        shape[shape.index(max(shape))] = 3
    x = rng.standard_normal(shape) * 50
    return x.astype(draw(st.sampled_from(DTYPES))), tuple(draw(st.permutations(range(len(shape)))))


@settings(max_examples=examples(12))
@given(cases(), st.integers(0, 9), st.sampled_from((64, 256, 4096)), st.sampled_from((8, 32, 128)))
def test_any_permutation(case: Any, seed: int, elements: int, run: int) -> None:
    x, order = case
    y = np.ascontiguousarray(x.transpose(order))
    chip = planned_by(EMULATED, "tiles", large=1, elements=elements, run=run)
    for f in (
        lambda x, y: x.transpose(order).copy(),
        lambda x, y: (x[..., ::-1].transpose(order) == y, x.transpose(order) == y),
    ):
        graph = ge2.make_jaxpr(f)(x, y).graph
        program = compile_graph(graph, device=ShimDevice(chip, seed, watch=bool(seed % 2)))
        for one, two in zip(program(x, y), ge2.tree.leaves(f(x, y)), strict=True):
            alike(one, two)


def test_what_is_done_with_them(rng: np.random.Generator) -> None:
    x, y = (
        rng.standard_normal((2, 3, 40)).astype("f4"),
        rng.standard_normal((40, 2, 3)).astype("f4"),
    )
    found = ran(lambda x, y: (x.transpose(2, 0, 1) * y, y + x[::-1].transpose(2, 0, 1)), x, y)
    alike(found[0], x.transpose(2, 0, 1) * y)
    alike(found[1], y + x[::-1].transpose(2, 0, 1))


def test_others_have_none(rng: np.random.Generator) -> None:
    """Neighbours that stay neighbours are copied, and long rows go by square tiles."""
    x = rng.standard_normal((4, 6, 5, 40)).astype("f4")
    ran(lambda x: x.transpose(2, 0, 1, 3).copy(), x, tiled=False)
    ran(lambda x: x.reshape(120, 40).T.copy(), x, tiled=False)


@needs_nvrtc
def test_nvrtc_compiles_it() -> None:
    device = OfflineDevice(limits_of("sm_90a"))
    for shape, f in (
        (
            (8, 8, 64, 64),
            lambda x: x.reshape(8, 2, 2, 2, 64, 64).transpose(0, 1, 4, 2, 5, 3).reshape(8, -1),
        ),
        ((4, 128, 200, 3), lambda x: x.transpose(0, 3, 1, 2).copy()),
    ):
        for dtype in (np.float16, np.float64):
            x = ge2.ShapeDtypeStruct(shape, np.dtype(dtype))
            program = compile_graph(ge2.make_jaxpr(f)(x).graph, device=device)
            program.build()
            for source in program.assembler.kernels.sources.values():  # type: ignore[attr-defined]
                (usage,) = device.module(source.text()).binary.kernels
                assert "_tile[" in source.text() and usage.registers <= 64 and not usage.spills
