"""Random programs as CUDA kernels, run on the CPU: as exact as the other executors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ge2.compile import compile_graph
from ge2.targets.cuda.device import Device, download, upload
from ge2.targets.cuda.emulator import ShimDevice
from tests.fuzz.programs import build
from tests.fuzz.test_random_programs import judged
from tests.laws.test_cuda import holds
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

PROGRAMS, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("PROGRAMS", 100), ("FIRST", 0))
)
SHARE = 25
in_shares = pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, SHARE))


def on_device(seed: int, device: Device) -> Callable[..., list[Any]]:
    """The program of a seed, of NumPy's arrays."""
    executable = compile_graph(build(seed).graph, device=device)
    executable.build()

    def run(*arrays: Any) -> list[Any]:
        given = [upload(device, np.asarray(x)) if hasattr(x, "dtype") else x for x in arrays]
        return [download(y) for y in executable(*given)]

    return run


def agree(first: int, device: Device) -> None:
    seeds = range(first, min(first + SHARE, FIRST + PROGRAMS))
    made = {seed: on_device(seed, device) for seed in seeds if holds(device, build(seed).graph)}
    failures = [
        f"seed {seed}: {why}"
        for seed, run in made.items()
        for _, why in judged(seed, {"cuda": run})
    ]
    assert not failures, "\n".join(failures)


@pytest.mark.exhaustive
@needs_compiler
@in_shares
def test_programs_in_cuda_agree_with_float64(first: int) -> None:
    """Also where blocks begin in another order: the last first, or far apart."""
    with together_in_cuda():
        agree(first, ShimDevice(seed=1 + first // SHARE % 2 * 2))


@needs_compiler
@pytest.mark.parametrize("seed", [62, 588, 765, 1560, 1606, 1608, 1610])
def test_programs_that_once_failed(seed: int) -> None:
    """Values of a row taken for those of neighbours, results beside
    empty ones, values read too early.
    """
    assert not list(judged(seed, {"cuda": on_device(seed, ShimDevice())}))
