"""Products of bytes, whose sums are int32: in the emulator against NumPy, and compiled for GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import chosen_kernels, kernels
from tests.kernels.test_cuda_mma import SKINNY, TILES
from tests.kernels.wgmma_cases import TURNS
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

I8, U8, I32, F32 = np.int8, np.uint8, np.int32, np.float32
MMA: Final = "mma product", "mma product and region"
WGMMA: Final = "wgmma product", "wgmma product and region"
PAIRS: Final = "mma pair of products and region", "wgmma pair of products and region"
TYPES: Final = [(I8, I8), (U8, U8), (I8, U8), (U8, I8)]
WGMMA_TILES: Final = ["128 x 192", "128 x 128", "64 x 64"]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Bytes of all kinds, the least and the largest among them."""
    found = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    found.flat[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return found


def wide(a: Any, b: Any) -> Any:
    return a.astype(I32) @ b.astype(I32)


def turned(turn: str, shape: tuple[int, int, int], types: Any, seed: int) -> tuple[Any, Any]:
    """A product of TURNS of bytes made wide, and its operands."""
    (function, first, second), (m, n, k) = TURNS[turn], shape
    rng = np.random.default_rng(seed)
    a = drawn(rng, (k, m) if first else (m, k), types[0])
    b = drawn(rng, (n, k) if second else (k, n), types[1])
    return (lambda a, b: function(a.astype(I32), b.astype(I32))), (a, b)


def judged(prefer: Any, function: Any, xs: Any, family: str, tile: str = "") -> None:
    """Runs a function by a kernel of the family: all is NumPy's to the last bit."""
    pins = (Pin(family, tile),) if tile else ()
    with config.using(executor="shim", prefer=prefer, pins=pins, tuning=(H200,)):
        chosen = ge2.jit(function).lower(*xs).choices.values()
        assert family in {c.family.name for c in chosen}
        found = ge2.jit(function)(*xs)
    wanted = function(*xs)
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for y, w in pairs:
        np.testing.assert_array_equal(y, w, strict=True)


@needs_compiler
@pytest.mark.exhaustive("turn", "types", table="turns of bytes")
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(
    "shape", [(133, 87, 71), (72, 96, 48), (16, 64, 264), (70, 5, 300), (64, 64, 64)]
)
@pytest.mark.parametrize("turn", TURNS)
def test_products_by_warps(turn: str, shape: tuple[int, int, int], types: Any) -> None:
    function, xs = turned(turn, shape, types, 0)
    judged(MMA, function, xs, MMA[0])


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("turn", ["as they lie", "both turned"])
def test_tiles_of_warps(turn: str, tile: str) -> None:
    """More stages than there are; watched, no access meets another that is not ordered."""
    function, xs = turned(turn, (144, 272, 336), (I8, I8), 1)
    with config.using(shim_watch=True):
        judged(MMA, function, xs, MMA[0], tile)


@needs_compiler
@pytest.mark.parametrize("tile", ["64 x 64 by 4, 2 parts", "64 x 64 by 4, of copies"])
def test_parts_and_copies(tile: str) -> None:
    function, xs = turned("as they lie", (65, 71, 529), (U8, I8), 2)
    judged(MMA, function, xs, MMA[0], tile)


@needs_compiler
@pytest.mark.exhaustive("types", "tile", table="bytes by groups")
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("tile", WGMMA_TILES)
@pytest.mark.parametrize("shape", [(133, 87, 80), (200, 272, 304)])
def test_products_by_warp_groups(tile: str, shape: tuple[int, int, int], types: Any) -> None:
    function, xs = turned("second turned", shape, types, 3)
    judged(WGMMA, function, xs, WGMMA[0], tile)


@needs_compiler
@pytest.mark.parametrize("turn", ["as they lie", "first turned"])
def test_copies_for_warp_groups(turn: str) -> None:
    name = "wgmma product of copies"
    function, xs = turned(turn, (80, 96, 112), (I8, I8), 4)
    judged((name,), function, xs, name)


@needs_compiler
@pytest.mark.parametrize("turn", TURNS)
def test_products_of_a_library(turn: str) -> None:
    """Terms are neighbours there, as they lie or of copies."""
    function, xs = turned(turn, (64, 48, 96), (I8, I8), 5)
    judged(("product by BLAS",), function, xs, "product by BLAS")


@needs_compiler
def test_batches_of_a_library() -> None:
    rng = np.random.default_rng(6)
    xs = drawn(rng, (2, 32, 3, 80), I8), drawn(rng, (2, 48, 3, 80), I8)
    heads = lambda a, b: np.einsum("bihk,bjhk->bhij", a.astype(I32), b.astype(I32))  # noqa: E731
    judged(("product by BLAS",), heads, xs, "product by BLAS")


@needs_compiler
@pytest.mark.parametrize("family", [MMA[0], "product in CUDA"])
def test_sums_wrap(family: str) -> None:
    """The sums of 33,040 products of 255 by itself are more than int32 has."""
    a, b = np.full((16, 33040), 255, U8), np.full((24, 33040), 255, U8)
    assert wide(a, b.T).min() < 0
    judged((family,), lambda a, b: wide(a, b.T), (a, b), family)


F = Callable[..., Any]
# what follows a product of a, and of the turned b
LAYERS: Final[dict[str, F]] = {
    "scales": lambda y, s, t, r: y.astype(F32) * s[:, None] * t,
    "scales and an array": lambda y, s, t, r: y.astype(F32) * s[:, None] * t + r.astype(F32),
    "int32": lambda y, s, t, r: np.maximum(y + r, 0),
    "bytes": lambda y, s, t, r: np.clip(np.round(y.astype(F32) * t * F32(1e-4)), -128, 127).astype(I8),
    "two results": lambda y, s, t, r: (y >> 3, y.astype(F32) * t),
    "another order": lambda y, s, t, r: (y[::-1], (y.astype(F32) * t).T),
}  # fmt: skip


@needs_compiler
@pytest.mark.exhaustive("families", table="layers of bytes")
@pytest.mark.parametrize("families", [MMA, WGMMA])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, families: tuple[str, str]) -> None:
    rng = np.random.default_rng(7)
    a, b = drawn(rng, (136, 96), U8), drawn(rng, (80, 96), I8)
    s, t = rng.normal(size=136).astype(F32), rng.normal(size=80).astype(F32)
    r = rng.integers(-(10**6), 10**6, (136, 80)).astype(I32)
    family = families[name != "another order"]
    judged(families, lambda a, b, *xs: LAYERS[name](wide(a, b.T), *xs), (a, b, s, t, r), family)


@needs_compiler
@pytest.mark.parametrize("family", PAIRS)
def test_two_products_of_one_left_factor(family: str) -> None:
    rng = np.random.default_rng(8)
    xs = drawn(rng, (72, 64), I8), drawn(rng, (80, 64), I8), drawn(rng, (80, 64), I8)
    gate = lambda x, w, v: wide(x, w.T).astype(F32) * wide(x, v.T).astype(F32)  # noqa: E731
    judged((family,), gate, xs, family)


# quantised layers as they are written, of rows and of a matrix that lies either way
WRITTEN: Final[dict[str, F]] = {
    "astype": lambda x, w, s: (x.astype(I32) @ w.astype(I32)).astype(F32) * s,
    "astype of the other way": lambda x, w, s: (x.astype(I32) @ w.T.astype(I32)).astype(F32) * s,
    "int64": lambda x, w, s: (x.astype(np.int64) @ w.astype(np.int64).T).astype(F32) * s,
    "matmul": lambda x, w, s: np.matmul(x, w, dtype=np.int32).astype(F32) * s,
    "einsum": lambda x, w, s: np.einsum("ik,jk->ij", x, w, dtype=np.int32) * s,
    "lax": lambda x, w, s: ge2.lax.dot_general(
        x, w, (((1,), (1,)), ((), ())), preferred_element_type=np.int32
    ).astype(F32) * s,
    "quantised here": lambda x, w, s: (
        np.clip(np.round(x.astype(F32) / s), -127, 127).astype(I8).astype(I32) @ w.T.astype(I32)
    ) * s,
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WRITTEN)
def test_quantised_layers_are_products_of_tensor_cores(name: str) -> None:
    xs = np.zeros((512, 512), I8), np.zeros((512, 512), I8), np.zeros(512, F32)
    graph = ge2.make_jaxpr(WRITTEN[name])(*xs).graph
    found = chosen_kernels(graph, H200, "layer")
    families = [k.choice.family.name for k in found if k.choice is not None]
    assert [f for f in families if "product" in f and "mma" in f], families


@needs_nvrtc
@pytest.mark.exhaustive("architecture", table="spills of bytes", share=20)
@pytest.mark.parametrize("k", [512, 515])
@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("tile", [*TILES, *SKINNY, *WGMMA_TILES])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "sm_89"])
def test_no_spills(architecture: str, tile: str, turn: bool, k: int) -> None:
    families = WGMMA if tile in WGMMA_TILES else MMA
    if families is WGMMA and (architecture != "sm_90a" or k % 16 or not turn):
        pytest.skip("warp groups are Hopper's, and of terms that are neighbours")
    m, n = (8 if tile in SKINNY[1::2] else 512), (8 if tile in SKINNY[::2] else 512)
    xs = np.zeros((m, k), I8), np.zeros((n, k) if turn else (k, n), I8), np.zeros(n, F32)
    with config.using(prefer=families, pins=(Pin(families[1], tile),)):
        layer = lambda a, b, t: wide(a, b.T if turn else b).astype(F32) * t  # noqa: E731
        found = kernels(layer, *xs, arch=architecture)
    ((kernel, text),) = [each for each in found if "s8" in each[1]]
    (usage,) = compiled(text, architecture).kernels
    # a compiler may leave two words in memory so that two blocks have room
    assert usage.spills <= 8 and usage.registers * kernel.block <= 1 << 16
