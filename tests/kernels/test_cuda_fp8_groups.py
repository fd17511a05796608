"""Products of fp8 by Hopper's warp groups: in the emulator against float64, and compiled for the chip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin, Problem
from ge2.codegen.text import Operand
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emulator import limits_of
from ge2.targets.cuda.kernels.products import no_groups_fp8
from ge2.targets.cuda.kernels.tensor_cores import GemmMma, GemmWgmma, at_once, seconds
from ge2.targets.cuda.limits import H200
from ge2.targets.cuda.products import contraction
from ge2.targets.cuda.products.tensor_epilogue import stored_alone
from tests.codegen.texts import kernels
from tests.kernels.fp8_cases import (
    E4M3,
    E5M2,
    FEW,
    GROUP,
    LAYERS,
    OF_GROUPS,
    TILES,
    TYPES,
    all_types,
    arguments,
    beyond,
    copies_are_near,
    exact_sums,
    factors,
    layer_is_near,
    low,
    most_of,
    of_fp8,
    one_sign_is_near,
    pair_is_near,
    product_is_near,
    two_layers,
)
from tests.kernels.wgmma_cases import BF16, F16, F32, drawn
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import compiled
from tests.together import needs_compiler

BARE, FUSED = OF_GROUPS
PLAIN = DotGeneral(((1,), (0,)), out=BF16, precision="fp8")


def ran(
    function: Any, xs: Any, family: str, tile: str = "", prefer: Any = OF_GROUPS, chip: Any = H200
) -> Any:
    """What a kernel of the family makes, in the emulator."""
    pins = (Pin(family, tile),) if tile else ()
    with config.using(executor="shim", tuning=(chip,), prefer=prefer, pins=pins):
        chosen = ge2.jit(function).lower(*xs).choices.values()
        assert family in {c.family.name for c in chosen}
        return ge2.jit(function)(*xs)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(136, 88, 144), (64, 64, 400), (264, 136, 16)])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("types", TYPES)
def test_products(types: str, tile: str, shape: tuple[int, int, int]) -> None:
    product_is_near(ran, types, tile, shape)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tile: str) -> None:
    layer_is_near(ran, name, tile, 200, 144, 272)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("out", [E4M3, E5M2])
@pytest.mark.parametrize("tile", TILES)
def test_results_of_fp8_have_the_bits_of_a_cast(tile: str, out: Any) -> None:
    xs, wanted = exact_sums(136, 144, out)
    found = ran(lambda a, b, c: (of_fp8(a, b) + c).astype(out), xs, FUSED, tile=tile)
    assert not np.isfinite(wanted.astype("f4")).all()
    np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))


@needs_compiler
def test_results_of_one_layer_are_factors_of_the_next() -> None:
    (a, b), rng = factors(136, 80, 144), np.random.default_rng(3)
    c, w = drawn(rng, (80,), BF16), drawn(rng, (96, 80), F32)
    found = ran(two_layers, (a, b, c, w), FUSED)
    first = np.tanh(low(a) @ low(b).T + c.astype("f8"))
    slack = most_of(np.ones_like(first) * 2.0**-4, np.abs(low(w)).T)  # of roundings to fp8, each
    assert (np.abs(found.astype("f8") - low(first) @ low(w).T) <= slack).all()


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", ["128 x 128", "64 x 64"])
def test_results_and_arrays_of_each_size(tile: str) -> None:
    a, b = factors(200, 144, 144)
    r = np.random.default_rng(4).uniform(0.25, 1, (200, 144)).astype(BF16)
    small, half, whole = ran(all_types, (a, b, r), FUSED, tile=tile)
    wanted, most = low(a) @ low(b).T + low(a) * r.astype("f8"), most_of(low(a), low(b).T)
    assert beyond(half, wanted, most) <= 1
    assert (np.abs(whole - 2 * wanted) <= 2 * (2.0**-8 * np.abs(wanted) + FEW * most)).all()
    assert (np.abs(small - 1 - wanted) <= 2.0**-3 * np.abs(wanted) + FEW * most + 2.0**-8).all()


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", ["128 x 64", "64 x 64"])
def test_pairs(tile: str) -> None:
    pair_is_near(ran, tile, 136, 88, 272)


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [(40, 48, 77), (333, 40, 41), (64, 64, 144)], ids=str)
@pytest.mark.parametrize("types", TYPES)
def test_copies_of_operands_whose_terms_are_apart(types: str, shape: tuple[int, int, int]) -> None:
    copies_are_near(ran, types, shape, F16)


@needs_compiler
def test_batches_and_rows_that_lie_anyhow() -> None:
    """Rows of an odd number of elements leave by packs."""
    rng = np.random.default_rng(6)
    a, b = drawn(rng, (3, 72, 48), F32), drawn(rng, (3, 41, 48), F32)
    for function, family, slope in (
        (lambda a, b: of_fp8(a, b, E5M2, E5M2), BARE, lambda x: x),
        (lambda a, b: np.tanh(of_fp8(a, b, E5M2, E5M2)), FUSED, np.tanh),
    ):
        found = ran(function, (a, b), family)
        left, right = low(a, E5M2), low(b, E5M2).swapaxes(1, 2)
        assert beyond(found, slope(left @ right), most_of(left, right)) <= 1


def cut(terms: Any, bits: int = 14) -> Any:
    """What tensor cores make of the sum of numbers of a row: none has a bit below so many of the largest."""
    last = np.frexp(np.abs(terms).max(axis=-1, keepdims=True))[1] - bits
    return np.ldexp(np.trunc(np.ldexp(terms, -last)), last).sum(axis=-1)


def in_steps(terms: Any, whole: int) -> Any:
    """Sums of rows by steps of 32 terms, and of so many terms in float32."""
    total = np.zeros(terms.shape[:-1], F32)
    for first in range(0, terms.shape[-1], whole):
        sums = np.zeros_like(total)
        for k in range(first, first + whole, 32):
            sums = cut(np.concatenate([sums[..., None], terms[..., k : k + 32]], axis=-1))
        total += sums.astype(F32)
    return total


@needs_compiler
def test_long_sums_are_added_in_float32() -> None:
    """Of numbers of one sign, by tensor cores alone the smaller ones would be lost, 7 % of all."""
    k = 4096
    a, b, found = one_sign_is_near(ran, 64, k)
    whole = low(a)[:8] @ low(b)[:8].T
    terms = low(a)[:8, None] * low(b)[None, :8]
    np.testing.assert_array_equal(found[:8, :8], in_steps(terms, GROUP))
    assert (np.abs(in_steps(terms, k) - whole) / whole).min() > 0.06


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", TILES)
def test_no_tile_takes_the_place_of_the_one_before(tile: str) -> None:
    """Several of a warp group, with accesses watched: copies and products are as late as they may be."""
    a, b = factors(200, 200, 80)
    with config.using(shim_watch=True):
        found = ran(of_fp8, (a, b), BARE, tile=tile, chip=replace(H200, multiprocessors=1))
    assert beyond(found, low(a) @ low(b).T, most_of(low(a), low(b).T)) <= 1


@needs_nvrtc
@pytest.mark.exhaustive
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", [*LAYERS, "bare", "fp8"])
def test_no_spills(name: str, tile: str) -> None:
    """And products that are under way together: the compiler says if it makes them wait."""
    whole = [np.zeros((1024, 1024), F32)] * 2
    function, others = of_fp8, ""
    if name == "fp8":
        function = lambda a, b: np.tanh(of_fp8(a, b)).astype(E4M3)  # noqa: E731
    elif name != "bare":
        function, others, _ = LAYERS[name]
    xs = arguments(others, 1024, 1024, np.random.default_rng(0))
    family = BARE if name == "bare" else FUSED
    with config.using(prefer=OF_GROUPS, pins=(Pin(family, tile),)):
        found = kernels(function, *whole, *xs, arch="sm_90a")
    texts = [text for kernel, text in found if kernel.kind in ("product", "contraction")]
    (made,) = (compiled(text, "sm_90a") for text in texts)
    (usage,) = made.kernels
    assert not usage.spills and usage.registers <= 168
    assert not any(f"C75{n}" in made.log for n in (10, 14, 17, 19))


def test_refusals_in_words() -> None:
    a, b = ArrayType((64, 48), E4M3), ArrayType((48, 64), E5M2)
    assert no_groups_fp8(PLAIN, a, b, H200) == ""
    assert "9.0" in no_groups_fp8(PLAIN, a, b, limits_of("sm_100"))
    assert "fewer than 32 rows" in no_groups_fp8(PLAIN, ArrayType((16, 48), E4M3), b, H200)


@pytest.mark.parametrize(
    ("strides", "why"), [((64, 1), "terms of two bytes"), ((1, 47), "multiples of 16 bytes")]
)
def test_refusals_of_operands(strides: tuple[int, int], why: str) -> None:
    """The right operand has its terms side by side, in rows that tensor maps take."""
    a, b = ArrayType((64, 48), E4M3), ArrayType((48, 64), E4M3)
    operands = Operand("in", 0, (48, 1)), Operand("in", 1, strides), Operand("out", 0, (64, 1))
    problem = Problem(PLAIN, (a, b), PLAIN.infer(a, b), "cuda", operands=operands)
    caps = Caps.before(H200)
    assert why in GemmWgmma().refusal(problem, caps)
    assert "float8" in GemmMma().refusal(problem, caps)


def test_float32_is_ieee_but_where_it_may_not_be() -> None:
    """As for the library: sums of fp8 have few bits, however they are added."""
    a, b = (ge2.ShapeDtypeStruct(s, F32) for s in ((256, 256), (256, 256)))

    def product(precision: str | None) -> Any:
        def run(a: Any, b: Any) -> Any:
            left, right = a.astype(E4M3).astype(F32), b.astype(E4M3).T.astype(F32)
            return np.tanh(ge2.numpy.matmul(left, right, precision=precision) + 1)

        return run

    for precision, native in (None, False), ("fp8", True):
        with config.using(executor="shim", tuning=(H200,)):
            chosen = ge2.jit(product(precision)).lower(a, b).choices.values()
        assert native == any(
            E4M3 in (t.dtype for t in c.problem.inputs) and "wgmma" in c.family.name for c in chosen
        )


@needs_compiler
def test_mixed_types_by_others(rng: np.random.Generator) -> None:
    """By the library, and by the kernel that multiplies anything, of copies in bfloat16."""
    a, b = drawn(rng, (48, 64), F32), drawn(rng, (80, 64), F32)
    for family in "product by BLAS", "product in CUDA":
        found = ran(lambda a, b: of_fp8(a, b, E4M3, E5M2), (a, b), family, "", (family,))
        assert beyond(found, low(a) @ low(b, E5M2).T, 0.0) <= 1


@pytest.mark.parametrize("tiles", range(1, 9))
@pytest.mark.parametrize("left", [0, 1, 3, 7])
def test_groups_that_multiply_at_once(tiles: int, left: int) -> None:
    """No less than the tensor cores are busy, nor than a group takes alone."""
    found = at_once(tiles, 3, left, 1.5)
    assert found >= 3 * tiles + left and found >= -(-tiles // 2) * (4.5 + left)


@pytest.mark.parametrize(
    ("sizes", "columns", "narrow", "microseconds"),
    [
        ((8192, 3072, 768), 128, False, 39.3), ((8192, 3072, 768), 128, True, 40.0),
        ((8192, 8192, 8192), 128, True, 848), ((4096, 4096, 4096), 128, True, 112),
        ((4096, 4096, 4096), 128, False, 115),
    ],
)  # fmt: skip
def test_predictions_are_near_what_was_measured(
    sizes: tuple[int, int, int], columns: int, narrow: bool, microseconds: float
) -> None:
    """Bare products that are stored as bfloat16: docs/design/fp8.md."""
    rows, n, terms = sizes
    types = ArrayType((rows, terms), E4M3), ArrayType((terms, n), E4M3)
    axes = contraction(PLAIN, *types, ((terms, 1), (1, terms), (n, 1)))
    caps = Caps.before(H200)
    tile = next(t for t in caps.chip.tuning.wgmma.few.tiles if t.columns == columns)
    after = stored_alone(BF16, Operand("out", 0, (n, 1)), n, rows, n)
    found = seconds(axes, E4M3, replace(tile, narrow=narrow), after, caps)
    assert found == pytest.approx(microseconds * 1e-6, rel=0.05)


@pytest.mark.parametrize(
    ("name", "sizes", "title"),
    [
        ("bare", (8192, 8192, 8192), "product by BLAS"),
        ("bias and tanh", (8192, 768, 3072), f"{FUSED}, 128 x 128"),
        ("bias and tanh", (8192, 8192, 8192), f"{FUSED}, 128 x 128, narrow strips"),
        ("scales of rows and columns", (4096, 4096, 4096), f"{FUSED}, 128 x 128, narrow strips"),
    ],
)  # fmt: skip
def test_what_is_chosen_on_an_h200(name: str, sizes: tuple[int, int, int], title: str) -> None:
    m, k, n = sizes
    function, others = (of_fp8, "") if name == "bare" else LAYERS[name][:2]
    xs = arguments(others, m, n, np.random.default_rng(0))
    structs = [ge2.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
    whole = [ge2.ShapeDtypeStruct(s, F32) for s in ((m, k), (n, k))]
    with config.using(executor="shim", tuning=(H200,)):
        chosen = ge2.jit(function).lower(*whole, *structs).choices.values()
    assert title in [c.taken.title for c in chosen]
