"""Products of fp8: which are the library's, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice.problem import Problem
from ge2.compile.product_rewrites import fp8_products
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.passes.context import Context
from ge2.targets.cuda.emulator import limits_of
from ge2.targets.cuda.kernels.products import CudaBlas, no_fp8
from ge2.targets.cuda.limits import H200
from tests.kernels.fp8_cases import CASES, E4M3, E5M2, exact, quantised, wide
from tests.kernels.library_cases import called
from tests.kernels.wgmma_cases import BF16, F32, drawn, judge
from tests.together import needs_compiler

PLAIN = DotGeneral(((1,), (0,)))


@needs_compiler
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(48, 64, 80), (37, 64, 80), (48, 60, 80)], ids=str)
def test_values_are_those_of_numpy(name: str, sizes: tuple[int, int, int]) -> None:
    function, family, scales, out = CASES[name]
    (m, k, n), rng = sizes, np.random.default_rng(0)
    x, y = drawn(rng, (m, k), F32), drawn(rng, (k, n), F32)
    s, t = np.asarray(0.25, F32), np.asarray(1.5, F32)
    with config.using(executor="shim", tuning=(H200,)):
        lowered = ge2.jit(quantised(function)).lower(x, y, s, t)
        found = ge2.jit(quantised(function))(x, y, s, t)
    products = [c.problem.op for c in lowered.choices.values() if c.taken.family.name == family]
    native = any("precision=fp8" in str(op) or "fp8" in repr(op) for op in products)
    assert native == all(n % 16 == 0 for n in sizes)
    assert found.dtype == out
    judge(found, exact(x, y, s, t, scales), k, roundings=1 if native else 2)


def after(function: Any, *types: ArrayType, limits: Any = H200) -> str:
    structs = [ge2.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    return str(fp8_products(ge2.make_jaxpr(function)(*structs).graph, Context(limits)))


@needs_compiler
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
    ("function", "dtype", "shape"),
    [
        (lambda a, b: a @ b, E5M2, (32, 48)),  # the library has no such product
        (lambda a, b: a @ b, E4M3, (33, 48)),
    ],
)
def test_what_the_library_does_not_multiply_is_bfloat16s(
    function: Any, dtype: Any, shape: Any
) -> None:
    """Which has each number of fp8, so that products are exact, and sums are in float32."""
    low = after(function, ArrayType(shape, dtype), ArrayType((48, 64), dtype))
    assert low.count("dtype=bf16") == 2 and "out=f32 precision=None" in low


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
