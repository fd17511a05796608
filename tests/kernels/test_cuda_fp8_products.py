"""Products of fp8: which are the library's, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Problem
from ge2.compile.rewrites.products import fp8_products
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import is_contraction
from ge2.passes.context import Context
from ge2.targets.cuda.emulator import limits_of
from ge2.targets.cuda.kernels.products import CudaBlas, no_fp8
from ge2.targets.cuda.limits import H200
from tests.kernels.fp8_cases import CASES, E4M3, E5M2, beyond, exact, most_of, quantised, wide
from tests.kernels.library_cases import called
from tests.kernels.wgmma_cases import BF16, F32, drawn, judge
from tests.together import needs_compiler

PLAIN = DotGeneral(((1,), (0,)))


@needs_compiler
@pytest.mark.exhaustive("chip")
@pytest.mark.parametrize("chip", ["sm_89", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(48, 64, 80), (37, 64, 80), (48, 60, 80)], ids=str)
def test_values_are_those_of_numpy(name: str, sizes: tuple[int, int, int], chip: str) -> None:
    """On Hopper of any size, by the library or by warp groups."""
    function, family, scales, out = CASES[name]
    (m, k, n), rng = sizes, np.random.default_rng(0)
    x, y = drawn(rng, (m, k), F32), drawn(rng, (k, n), F32)
    s, t = np.asarray(0.25, F32), np.asarray(1.5, F32)
    hopper = chip == "sm_90a"
    with config.using(executor="shim", tuning=(H200 if hopper else limits_of(chip),)):
        lowered = ge2.jit(quantised(function)).lower(x, y, s, t)
        found = ge2.jit(quantised(function))(x, y, s, t)
    products = [
        c
        for c in lowered.choices.values()
        if isinstance(c.problem.op, DotGeneral) or is_contraction(c.problem.op)
    ]
    some = [c for c in products if E4M3 in {t.dtype for t in c.problem.inputs}]
    assert bool(some) == (hopper or all(n % 16 == 0 for n in sizes))
    assert hopper or all(c.family.name == family for c in some)
    assert found.dtype == out
    most = most_of(x.astype(E4M3), y.astype(E4M3)) * (1.0, 0.25, 0.375)[scales]
    wanted = exact(x, y, s, t, scales)
    assert (
        beyond(found, wanted, most) <= 1 if some else judge(found, wanted, k, roundings=2) is None
    )


def after(function: Any, *types: ArrayType, limits: Any = H200) -> str:
    structs = [ge2.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    return str(fp8_products(ge2.make_jaxpr(function)(*structs).graph, Context(limits)))


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("out", [None, F32, BF16], ids=str)
def test_products_that_are_fp8_as_their_factors(dtype: Any, out: Any) -> None:
    """Factors are cast to fp8, as all of fp8 are that a program has, and multiplied as they are."""

    def product(a: Any, b: Any) -> Any:
        y = a.astype(dtype) @ b.astype(dtype).T
        return y.astype(F32) * 2 if out is None else y.astype(out)

    rng = np.random.default_rng(4)
    xs = [rng.normal(size=s).astype(F32) for s in ((48, 64), (80, 64))]
    with config.using(executor="shim", tuning=(H200,)):
        low = ge2.jit(product).lower(*xs)
        found = np.asarray(ge2.jit(product)(*xs), "f8")
    assert not any("product in CUDA" in str(c.taken) for c in low.choices.values())
    a, b = (x.astype(dtype).astype("f8") for x in xs)
    wanted = (a @ b.T) * (2 if out is None else 1)
    step = 2.0 ** -(3 if dtype == E4M3 else 2)
    np.testing.assert_allclose(found, wanted, rtol=step, atol=step / 8)


def test_casts_become_part_of_the_product() -> None:
    types = ArrayType((32, 48), E4M3), ArrayType((48, 64), E4M3)
    low = after(lambda a, b: a.astype(BF16) @ b.astype(BF16), *types)
    assert "convert" not in low and "out=bf16 precision=fp8] a b" in low
    direct = after(lambda a, b: a @ b, *types)
    assert "out=f32 precision=fp8] a b" in direct and "dtype=f8_e4m3fn" in direct


@pytest.mark.parametrize(
    ("dtype", "shape", "chip"),
    [(E5M2, (32, 48), "sm_89"), (E4M3, (33, 48), "sm_89"), (E4M3, (16, 8), "sm_90a")],
)
def test_what_nobody_multiplies_in_fp8_is_bfloat16s(dtype: Any, shape: Any, chip: str) -> None:
    """Which has each number of fp8, so that products are exact, and sums are in float32."""
    types = ArrayType(shape, dtype), ArrayType((shape[1], 64), dtype)
    low = after(lambda a, b: a @ b, *types, limits=limits_of(chip))
    assert low.count("dtype=bf16") == 2 and "out=f32 precision=None" in low


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_warp_groups_multiply_any_two_arrays(dtype: Any) -> None:
    low = after(lambda a, b: a @ b, ArrayType((33, 47), dtype), ArrayType((47, 64), dtype))
    assert "dtype=bf16" not in low and "out=f32 precision=fp8" in low


def test_what_scales_a_product_leaves_it_one_of_fp8() -> None:
    """Whatever it is multiplied with, or divided by; views on the way are none the less."""
    types = ArrayType((32, 48), E4M3), ArrayType((48, 64), E4M3), ArrayType((32, 1), F32)
    for function in (
        lambda a, b, r: (wide(a, b) * r).astype(BF16),
        lambda a, b, r: (wide(a, b) / r).T.astype(BF16),
        lambda a, b, r: ((wide(a, b) * r).reshape(2, 16, 64) * 0.5).astype(E4M3),
    ):
        assert "precision=fp8" in after(function, *types)
    assert "precision=fp8" not in after(lambda a, b, r: (r / wide(a, b)).astype(F32), *types)


def test_float32_is_not_summed_by_fewer_bits() -> None:
    """But where nothing is made of it but numbers of half types, scaled it may be."""
    types = ArrayType((32, 48), E4M3), ArrayType((48, 64), E4M3)
    for function in (
        wide,
        lambda a, b: (lambda y: (y, y.astype(BF16)))(wide(a, b) * 0.5),
        lambda a, b: (wide(a, b) + 1).astype(BF16),
    ):
        assert "precision=fp8" not in after(function, *types)
    assert "precision=fp8" in after(lambda a, b: (0.5 * wide(a, b)).astype(BF16), *types)


def test_refusals_in_words() -> None:
    a, b = ArrayType((32, 48), E4M3), ArrayType((48, 64), E4M3)
    wide_b, odd = ArrayType((48, 64), E5M2), ArrayType((33, 48), E4M3)
    assert no_fp8(PLAIN, a, b, H200) == ""
    assert "no two arrays of float8_e5m2" in no_fp8(PLAIN, wide_b, wide_b, H200)
    assert no_fp8(PLAIN, a, wide_b, H200) == ""
    assert "multiples of 16" in no_fp8(PLAIN, odd, b, H200)
    assert "older than compute capability 8.9" in no_fp8(PLAIN, a, b, limits_of("sm_80"))
    batched = DotGeneral(((2,), (1,)), ((0,), (0,)))
    many = ArrayType((2, 32, 48), E4M3), ArrayType((2, 48, 64), E4M3)
    assert "no batches" in no_fp8(batched, *many, H200)
    types = (a, b), PLAIN.infer(a, b)
    assert "does not multiply" in CudaBlas().refusal(Problem(PLAIN, *types, "cuda"), None)


def test_older_gpus_have_bfloat16() -> None:
    types = ArrayType((32, 48), E4M3), ArrayType((48, 64), E4M3)
    low = after(lambda a, b: a @ b, *types, limits=limits_of("sm_80"))
    assert "precision=fp8" not in low and "out=f32" in low


def test_what_is_chosen_on_an_h200() -> None:
    a, b = (ge2.ShapeDtypeStruct(s, F32) for s in ((4096, 4096), (4096, 4096)))
    s = ge2.ShapeDtypeStruct((), F32)
    with config.using(executor="shim", tuning=(H200,)):
        lowered = ge2.jit(quantised(CASES["a scale"][0])).lower(a, b, s, s)
    assert "product by BLAS and its epilogue" in called(lowered)
