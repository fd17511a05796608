"""Two products and the region that reads both as one kernel: in the emulator against NumPy, and
compiled for GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import kernels
from tests.kernels.families import kinds
from tests.kernels.pair_cases import FAMILIES, GATES, LAYERS, MMA, TILES, WGMMA, gated, gradients
from tests.kernels.random_epilogues import programs
from tests.kernels.test_random_epilogues import SMALL, bounds
from tests.kernels.wgmma_cases import (
    BF16,
    F16,
    F32,
    drawn,
    emulated,
    exactly,
    judge,
    odd,
    silu,
)
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

SHAPES = (136, 72), (72, 88), (72, 88)


@needs_compiler
@pytest.mark.exhaustive("kind", table="gates of pairs")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_gates(kind: str, gate: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    shapes = SHAPES if kind == "wgmma" else tuple(map(odd, SHAPES))
    xs = [drawn(rng, s, dtype) for s in shapes]
    emulated((FAMILIES[kind],), gated(gate), xs, FAMILIES[kind], 72)


@needs_compiler
@pytest.mark.exhaustive("kind", "dtype", table="pairs")
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", FAMILIES)
def test_layers(kind: str, name: str, dtype: Any) -> None:
    function, shapes = LAYERS[name]
    rng = np.random.default_rng(1)
    xs = [drawn(rng, s, dtype) for s in shapes]
    through = {"through": dtype} if name == "an array in float32" else {}
    emulated((FAMILIES[kind],), function, xs, FAMILIES[kind], 72, **through)


@needs_compiler
@pytest.mark.exhaustive("k")
@pytest.mark.parametrize("k", [40, 328])
@pytest.mark.parametrize("tile", [*((k, t) for k in TILES for t in TILES[k])])
def test_tiles(tile: tuple[str, str], k: int) -> None:
    """More stages than there are, and fewer; watched, no access meets another that is not ordered."""
    rng, family = np.random.default_rng(4), FAMILIES[tile[0]]
    xs = [drawn(rng, s, BF16) for s in ((130, k), (k, 136), (k, 136), (130, 136))]
    with config.using(pins=(Pin(family, tile[1]),), shim_watch=True, shim_seed=k):
        emulated((family,), lambda x, w, v, r: silu(x @ w) * (x @ v) + r, xs, family, k)


@needs_compiler
@pytest.mark.parametrize("kind", FAMILIES)
def test_float32_rounded_to_tf32(kind: str) -> None:
    rng = np.random.default_rng(3)
    x, w, v = (drawn(rng, s, BF16).astype(F32) for s in ((136, 72), (88, 72), (88, 72)))

    def layer(x: Any, w: Any, v: Any) -> Any:
        one, other = (ge2.numpy.matmul(x, y.T, precision="tf32") for y in (w, v))
        return np.maximum(one, 0) * other

    with config.using(executor="shim", prefer=(FAMILIES[kind],)):
        assert kinds(ge2.jit(layer), x, w, v) == [FAMILIES[kind]]
        wanted = exactly(lambda x, w, v: np.maximum(x @ w.T, 0) * (x @ v.T), x, w, v)
        judge(ge2.jit(layer)(x, w, v), wanted, 72 * 72)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_types_of_which_no_kernel_has_two_products(dtype: str) -> None:
    """One product after the other is all there is."""
    rng = np.random.default_rng(5)
    x, w, v = (rng.integers(-3, 4, s).astype(dtype) for s in SHAPES)
    with config.using(executor="shim"):
        found = ge2.jit(lambda x, w, v: np.maximum(x @ w, 0) * (x @ v))(x, w, v)
    np.testing.assert_array_equal(found, np.maximum(x @ w, 0) * (x @ v))


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(64))
def test_random_work_is_no_further_from_float64_than_in_two_steps(seed: int) -> None:
    kind = [*FAMILIES][seed // 2 % 2]
    multiple = 8 if kind == "wgmma" else 2
    program = next(
        p
        for p in programs(seed, multiple, pair=True)
        if all(np.abs(x).max() < SMALL for x in p.exactly()[: len(p.nodes)])
    )
    xs, function = tuple(program.arrays.values()), ge2.jit(program.function)
    with config.using(executor="shim", prefer=(FAMILIES[kind],)):
        one = len(program.nodes) == 1 and "turned" not in program.names
        assert not one or FAMILIES[kind] in kinds(function, *xs)
        found = function(*xs)
    exact, values = program.exactly(), [np.asarray(y, np.float64) for y in found]
    pairs = zip(program.roughly(), found, strict=True)
    stored = [np.asarray(two.astype(y.dtype), np.float64) for two, y in pairs]
    errors = [np.abs(y - wanted).max() for y, wanted in zip(values, exact, strict=True)]
    assert all(map(float.__le__, map(float, errors), bounds(program, exact, stored)))


@needs_nvrtc
@pytest.mark.exhaustive("architecture", "name", table="pairs that compile", share=20)
@pytest.mark.parametrize("name", ["swiglu", "products kept", "gradients", "a turned array"])
@pytest.mark.parametrize("tile", [*((k, t) for k in TILES for t in TILES[k])])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_spills(architecture: str, tile: tuple[str, str], name: str) -> None:
    kind, variant = tile
    if kind == "wgmma" and architecture != "sm_90a":
        pytest.skip("these kernels are for compute capability 9.0")
    if name == "swiglu":
        function, count = gated(name), 3
    elif name == "gradients":
        function, count = gradients, 4
    else:
        function, count = LAYERS[name][0], len(LAYERS[name][1])
    xs = [np.zeros((512, 512), BF16)] * count
    with config.using(prefer=(FAMILIES[kind],), pins=(Pin(FAMILIES[kind], variant),)):
        found = kernels(function, *xs, arch=architecture)
    ((kernel, text),) = [each for each in found if each[0].kind == "contraction"]
    (usage,) = compiled(text, architecture).kernels
    assert not usage.spills and usage.registers * kernel.block <= 1 << 16


@pytest.mark.parametrize(
    ("function", "sizes", "family"),
    [
        (gated("swiglu"), (8192, 768, 3072), WGMMA),
        (gated("swiglu"), (1024, 1024, 2816), WGMMA),
        (gated("swiglu"), (4096, 4096, 11008), WGMMA),
        (gradients, (8192, 768, 3072), WGMMA),
        (gated("swiglu"), (16, 4096, 11008), MMA),
    ],
)
def test_what_is_chosen_on_an_h200(function: Any, sizes: Any, family: str) -> None:
    """By prediction, which counts one kernel and one product after the other."""
    m, k, n = sizes
    shapes = ((m, k), (k, n), (k, n), (m, n))[: 4 if function is gradients else 3]
    with config.using(tuning=(H200,), executor="shim"):
        lowered = ge2.jit(function).lower(*(ge2.ShapeDtypeStruct(s, BF16) for s in shapes))
    found = {k.choice.family.name for k in lowered.kernels}
    assert found == {family}


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w, v: np.tanh(x @ w) * (x @ v.T), ((72, 72), (72, 72), (72, 72))),
        (lambda x, z, w: np.tanh(x @ w) * (z @ w), ((72, 72), (72, 72), (72, 72))),
        (lambda x, w, v: np.tanh(x @ w) * (x[::2] @ v), ((144, 72), (72, 72), (72, 72))),
    ],
)
def test_other_products_stay_apart(function: Any, shapes: Any) -> None:
    xs = [np.zeros(s, BF16) for s in shapes]
    if shapes[0][0] == 144:
        function = lambda x, w, v: np.tanh(x[1::2] @ w) * (x[::2] @ v)  # noqa: E731
    with config.using(executor="shim", prefer=(WGMMA, MMA)):
        assert not {WGMMA, MMA} & {*kinds(ge2.jit(function), *xs)}
