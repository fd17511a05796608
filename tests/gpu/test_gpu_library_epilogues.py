"""Products with the library's epilogues on a GPU: against NumPy in float64, the same bits each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.errors import CompileError
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.library_cases import CASES, LAYERS, NAME, called, gelu, relu
from tests.kernels.wgmma_cases import BF16, F16, F32, drawn, exactly, judge

EVEN = {37: 1001, 48: 520, 72: 2056, 73: 2057, 96: 1040}
ODD = {37: 1001, 48: 521, 72: 2053, 73: 2054, 96: 1042}
UNITS = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}


@pytest.fixture(autouse=True)
def gpu() -> Any:
    return current_gpu().xp


def run_of(xp: Any, function: Any, xs: Any) -> Any:
    """The results by the library's epilogue, of arrays that are elsewhere each time."""
    with config.using(prefer=(NAME,)):
        compiled = ge2.jit(function)
        try:
            found = compiled(*map(xp.asarray, xs))
        except CompileError as error:
            pytest.skip(str(error))  # the library has no such epilogue, which this says
        assert NAME in called(compiled.lower(*map(xp.asarray, xs)))
        some = found if isinstance(found, tuple) else (found,)
        kept = []
        for _ in range(10):
            kept.append(tuple(map(xp.array, xs)))
            again = compiled(*kept[-1])
            again = again if isinstance(again, tuple) else (again,)
            for y, x in zip(again, some, strict=True):
                assert bool((y.view(np.uint8) == x.view(np.uint8)).all()), "other bits again"
    return tuple(map(xp.asnumpy, some))


@pytest.mark.parametrize("sizes", [EVEN, ODD], ids=["rows of whole 16 bytes", "odd rows"])
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_values_are_those_of_numpy(gpu: Any, name: str, dtype: Any, sizes: Any) -> None:
    kind, function, exact, shapes = LAYERS[name]
    if sizes is ODD and "GELU" in kind:
        pytest.skip("whose tanh is too coarse there, and has rows of multiples of 8 elements")
    rng = np.random.default_rng(0)
    xs = [drawn(rng, tuple(sizes.get(n, n) for n in s), dtype) for s in shapes]
    terms = sizes[48] * (sizes[37] if kind.endswith("BGRAD") else 1)
    judge(run_of(gpu, function, xs), exactly(exact, *xs), terms, roundings=2, slope=1.0)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_relu_of_what_is_no_number(gpu: Any, dtype: Any) -> None:
    """NaN stays, as np.maximum has it; infinities, and zeros of both signs, too."""
    rng = np.random.default_rng(1)
    for m, n, k in ((64, 64, 64), (1000, 1024, 520), (4096, 2048, 1024)):
        a, b, c = (drawn(rng, s, dtype) for s in ((m, k), (k, n), (n,)))
        a[3, 5], a[7, 1] = np.nan, np.inf
        c[2], c[4] = np.nan, -np.inf
        (found,) = run_of(gpu, lambda a, b, c: relu(a @ b + c), (a, b, c))
        with np.errstate(invalid="ignore"):
            wanted = exactly(lambda a, b, c: relu(a @ b + c), a, b, c)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(found[7].astype("f8") == np.inf, wanted[7] == np.inf)
        np.testing.assert_array_equal(found[:3, 4].astype("f8"), 0)


@pytest.mark.parametrize(("activation", "dtype"), [("gelu", BF16), ("relu", BF16), ("relu", F16)])
def test_the_largest_error_is_that_of_two_steps_and_one_unit(
    gpu: Any, activation: str, dtype: Any
) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (drawn(rng, s, dtype) for s in ((2048, 1024), (1024, 2048), (2048,)))
    plain: Any = {"gelu": ge2.nn.gelu, "relu": relu}[activation]
    wanted = exactly(lambda a, b, c: {"gelu": gelu, "relu": relu}[activation](a @ b + c), a, b, c)
    (found,) = run_of(gpu, lambda a, b, c: plain(a @ b + c), (a, b, c))
    with config.using(passes_off=(*config.passes_off, "epilogue")):
        apart = gpu.asnumpy(ge2.jit(lambda a, b, c: plain(a @ b + c))(*map(gpu.asarray, (a, b, c))))
    errors = [np.abs(y.astype("f8") - wanted).max() for y in (found, apart)]
    assert errors[0] <= errors[1] + 2 * UNITS[dtype] * np.abs(wanted).max(), errors


def test_two_programs_have_their_own_addresses(gpu: Any) -> None:
    """In turns, of biases that are elsewhere."""
    rng = np.random.default_rng(3)
    a, b = (gpu.asarray(drawn(rng, s, F32)) for s in ((512, 640), (640, 768)))
    biases = [gpu.asarray(drawn(rng, (768,), F32)) for _ in range(4)]
    with config.using(prefer=(NAME,)):
        one = ge2.jit(lambda a, b, c: relu(a @ b + c))
        other = ge2.jit(lambda c, a, b: relu(a @ b + c))
        for c in biases * 3:
            pair = one(a, b, c), other(biases[0], a, b)
            for y, x in zip(pair, (c, biases[0]), strict=True):
                exact = relu(gpu.asnumpy(a).astype("f8") @ gpu.asnumpy(b) + gpu.asnumpy(x))
                judge(gpu.asnumpy(y), exact, 640)
