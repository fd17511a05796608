"""Small products that make their operands of other arrays as they read them: in the emulator against
NumPy, and when predictions have them do so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.limits import H200
from tests.codegen.texts import kernels
from tests.kernels.prologue_cases import CASES, F32, NAME, drawn, judge, prologues
from tests.nvrtc import needs_nvrtc
from tests.templates.cuda_harness import ARCHITECTURES, compiled
from tests.together import needs_compiler


@needs_compiler
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str) -> None:
    function, given = CASES[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, *each) for each in given]
    with config.using(executor="shim", tuning=(H200,), shim_watch=True):
        assert prologues(ge2.jit(function).lower(*xs)) == [2 if name == "both" else 1]
        found = ge2.jit(function)(*xs)
    judge(found, xs, name)


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
    found = [c for c in choice.candidates if not c.other]
    assert [c.title for c in found if c.predicted] == [NAME, "operands that are made before"]
    assert choice.by == "predicted"
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
