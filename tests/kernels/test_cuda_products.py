"""Products in tiles, of what BLAS does not multiply, on the CPU in a GPU's place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2.base.config import config
from ge2.choice import Problem
from ge2.compile import compile_graph
from ge2.compile.catalog import select
from ge2.ir import ArrayType
from ge2.ops.dot import DotGeneral
from ge2.targets.cuda.emulator import ShimDevice
from ge2.test_util.laws import graph_of, types_of
from tests.together import needs_compiler

pytestmark = needs_compiler

PLAIN = DotGeneral(((1,), (0,)))
EXACT = [np.dtype(t) for t in ["i1", "u1", "i2", "i4", "u4", "i8", "u8", "?"]]
SHAPES = {
    "turned": (DotGeneral(((0,), (1,))), (17, 33), (5, 17)),
    "batches that do not merge": (
        DotGeneral(((3,), (3,)), ((0, 2), (0, 2))),
        (2, 5, 3, 7),
        (2, 4, 3, 7),
    ),
    "two sums in other orders": (DotGeneral(((0, 2), (2, 0))), (3, 5, 4), (4, 6, 3)),
    "no sum": (DotGeneral(((), ())), (3,), (4,)),
    "a sum of nothing": (PLAIN, (3, 0), (0, 4)),
    "nothing": (PLAIN, (0, 3), (3, 4)),
    "one number": (DotGeneral(((0,), (0,))), (40,), (40,)),
    "one tile and one more": (PLAIN, (17, 17), (17, 17)),
}


def integers(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    if dtype.kind == "b":
        return rng.random(shape) < 0.2
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def run(op: DotGeneral, a: Any, b: Any) -> Any:
    return compile_graph(graph_of(op, types_of([a, b])), device=ShimDevice())(a, b)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_integers_wrap(dtype: np.dtype, rng: np.random.Generator) -> None:
    a, b = integers(rng, dtype, (17, 33)), integers(rng, dtype, (33, 5))
    found = run(PLAIN, a, b)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, PLAIN.reference(a, b))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, rng: np.random.Generator) -> None:
    op, *shapes = SHAPES[name]
    for dtype in (np.dtype(np.int32), np.dtype(np.float32)):
        a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in shapes)
        np.testing.assert_array_equal(run(op, a, b), op.reference(a, b))


def test_a_wider_result(rng: np.random.Generator) -> None:
    op = DotGeneral(((1,), (0,)), out=np.dtype(np.int32))
    a, b = (integers(rng, np.dtype(np.int8), shape) for shape in ((9, 40), (40, 3)))
    np.testing.assert_array_equal(run(op, a, b), op.reference(a, b))


def test_short_floats_are_summed_in_float32(rng: np.random.Generator) -> None:
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float16):
        a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((9, 40), (40, 3)))
        np.testing.assert_array_equal(run(PLAIN, a, b), PLAIN.reference(a, b))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [*map(np.dtype, ("f2", "f4", "f8", "c8", "c16"))], ids=str)
def test_floats_that_no_library_multiplies(
    dtype: np.dtype, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((9, 40), (40, 3)))
    a, b = (a * 1j + 1, b - 2j) if dtype.kind == "c" else (a, b)
    a, b = a.astype(dtype), b.astype(dtype)
    monkeypatch.setattr(ShimDevice, "product", lambda device, wanted: None)
    with config.using(passes_off=("small_products",)):
        run = compile_graph(graph_of(PLAIN, types_of([a, b])), device=ShimDevice())
        assert run.kernels[0].kind == "product"
        np.testing.assert_array_equal(run(a, b)[0], PLAIN.reference(a, b))


def test_who_multiplies() -> None:
    def chosen(a: Any, out: Any, k: int = 5) -> str:
        types = ArrayType((3, k), np.dtype(a)), ArrayType((k, 4), np.dtype(a))
        op = DotGeneral(((1,), (0,)), out=np.dtype(out))
        return select(Problem(op, types, op.infer(*types), "cuda")).family.name

    assert chosen("f4", "f4") == chosen("f2", "f4") == chosen("c8", "c8") == "product by BLAS"
    assert chosen("f4", "f4", 0) == chosen("i4", "i4") == chosen("i1", "i4") == "product in CUDA"
    assert chosen("f2", "f8") == "product in CUDA"
