"""Small products that make their operands of other arrays as they read them: in the emulator against
NumPy, and when predictions have them do so.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.ops.graphs.region import ProductRegion
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import kernels
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
NAME = "small product and region in CUDA"
Function = Any

CASES: dict[str, tuple[Function, tuple[Any, ...]]] = {
    "bytes that are scaled": (
        lambda x, w, b: np.maximum((x.astype(F32) / np.float32(255) - np.float32(0.5)) @ w + b, 0),
        (("u1", 37, 64), ("f4", 64, 40), ("f4", 40)),
    ),
    "an activation": (
        lambda x, w, b: np.tanh(np.maximum(x, 0) @ w + b),
        (("f4", 33, 70), ("f4", 70, 24), ("f4", 24)),
    ),
    "the right one": (
        lambda x, w, b: np.tanh(x @ (w * np.float32(0.25)) + b),
        (("f4", 20, 18), ("f4", 18, 24), ("f4", 24)),
    ),
    "both": (
        lambda x, w, b: np.tanh((x.astype(F32) * 2) @ np.abs(w) + b),
        (("i2", 20, 36), ("f4", 36, 28), ("f4", 28)),
    ),
    "float64": (
        lambda x, w, b: np.exp(-((x * 0.1) @ w)) + b, (("f8", 19, 33), ("f8", 33, 17), ("f8", 17))
    ),
    "half types are rounded before": (
        lambda x, w, b: np.maximum(x.astype(BF16) @ w + b, 0),
        (("f4", 20, 30), (BF16, 30, 24), (BF16, 24)),
    ),
    "constants of both regions": (
        lambda x, w, b: (x * np.float32(1.7) - np.float32(255)) @ w * np.float32(3.3) + b * np.float32(77),
        (("f4", 12, 20), ("f4", 20, 12), ("f4", 12)),
    ),
}  # fmt: skip


def drawn(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


def prologues(lowered: Any) -> list[int]:
    """How many operands each product of a program makes."""
    ops = [choice.problem.op for choice in lowered.choices.values()]
    return [len(op.prologues) for op in ops if isinstance(op, ProductRegion)]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str) -> None:
    function, given = CASES[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, *each) for each in given]
    with config.using(executor="shim", tuning=(H200,), shim_watch=True):
        assert prologues(ge2.jit(function).lower(*xs)) == [2 if name == "both" else 1]
        found = ge2.jit(function)(*xs)
    wanted = np.asarray(function(*xs), np.float64)
    assert found.dtype == np.dtype(given[1][0])
    unit = 2.0**-7 if found.dtype == BF16 else 2e-5
    size = np.abs(wanted).max()
    np.testing.assert_allclose(found.astype("f8"), wanted, rtol=unit, atol=unit * size)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: (np.maximum(x, 0), np.tanh(np.maximum(x, 0) @ w + b)),  # others read it
        lambda x, w, b: np.tanh((x * b[:1]) @ w + b),  # of several arrays
        lambda x, w, b: np.tanh(np.sort(x, axis=1) @ w + b),  # made by no region
        lambda x, w, b: np.tanh(np.maximum(x.T, 0) @ w + b),
        lambda x, w, b: np.tanh(np.maximum(x[:, ::2], 0) @ w[:10] + b),  # no neighbours
    ],
)
def test_what_is_made_before(function: Any) -> None:
    structs = [ge2.ShapeDtypeStruct(s, F32) for s in ((20, 20), (20, 24), (24,))]
    with config.using(executor="shim", tuning=(H200,)):
        assert not any(prologues(ge2.jit(function).lower(*structs)))


@pytest.mark.parametrize(
    ("function", "joint"),
    [(lambda x: np.maximum(x, 0), True), (lambda x: np.tanh(np.exp(np.sin(np.cosh(x)))), False)],
)
def test_work_is_not_repeated_too_often(function: Any, joint: bool) -> None:
    """Each of 19 tiles beside another makes its rows again."""
    structs = [ge2.ShapeDtypeStruct(s, F32) for s in ((300, 400), (400, 300), (300,))]
    with config.using(executor="shim", tuning=(H200,), tune="off"):
        lowered = ge2.jit(lambda x, w, b: np.tanh(function(x) @ w + b)).lower(*structs)
    assert any(prologues(lowered)) == joint


def test_both_ways_are_candidates() -> None:
    function, given = CASES["bytes that are scaled"]
    structs = [ge2.ShapeDtypeStruct(s, d) for d, *s in given]
    with config.using(executor="shim", tuning=(H200,)):
        (choice,) = ge2.jit(function).lower(*structs).choices.values()
    titles = [candidate.title for candidate in choice.candidates]
    assert titles == [NAME, "operands that are made before"] and choice.by == "predicted"
    assert all(c.predicted for c in choice.candidates)
    with config.using(executor="shim", tuning=(H200,), passes_off=("prologue",)):
        assert not any(prologues(ge2.jit(function).lower(*structs)))


@needs_nvrtc
@pytest.mark.parametrize("name", ["bytes that are scaled", "half types are rounded before"])
def test_it_compiles_without_spills(name: str) -> None:
    function, given = CASES[name]
    xs = [np.zeros(s, d) for d, *s in given]
    ((_, text),) = kernels(function, *xs, arch=ARCHITECTURES[-1])
    (usage,) = compiled(text, ARCHITECTURES[-1]).kernels
    assert not usage.spills
