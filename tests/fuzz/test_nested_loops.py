"""Random loops and branches in each other as CUDA kernels, on the CPU: one
kernel where small, and not.
"""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.device import Device, download, upload
from tests.fuzz.nested import function
from tests.together import needs_compiler

PROGRAMS, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("PROGRAMS", 8), ("FIRST", 0))
)
SEEDS = range(FIRST, FIRST + PROGRAMS)
# elsewhere than by the reference
ROUNDED = {np.dtype(np.float16): 0.1, np.dtype(ml_dtypes.bfloat16): 0.5}


def error(found: Any, wanted: Any, rough: bool) -> str:
    """What is wrong with a result; nothing if it is right."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"is {found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if wanted.dtype.kind in "iu":
        return "" if (found == wanted).all() else "other integers"
    bound = ROUNDED.get(wanted.dtype, 0.05 if rough else 2e-3)
    near = np.allclose(
        found.astype(np.float64), wanted.astype(np.float64), bound, bound, equal_nan=True
    )
    return "" if near else "other numbers"


def agrees(seed: int, run: Any) -> None:
    """That a jitted function gives what the reference does, twice to the bit,
    whatever `run` makes of it.
    """
    f, xs = function(seed)
    rough = any(x.dtype in ROUNDED for x in xs)
    with config.using(executor="reference"):
        wanted = ge2.jit(f)(*xs)
    found, again = run(f, xs)
    assert [y.tobytes() for y in map(np.asarray, found)] == [
        y.tobytes() for y in map(np.asarray, again)
    ]
    wrong = [error(y, w, rough) for y, w in zip(found, wanted, strict=True)]
    assert not any(wrong), wrong


def on_device(device: Device, f: Any, xs: list[Any]) -> Any:
    g = ge2.jit(f)
    return [[download(y) for y in g(*(upload(device, x) for x in xs))] for _ in range(2)]


def in_shim(f: Any, xs: list[Any]) -> Any:
    g = ge2.jit(f)
    return g(*xs), g(*xs)


@pytest.mark.exhaustive("off")
@needs_compiler
@pytest.mark.parametrize("off", [(), ("resident",)], ids=["resident", "launches"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nested_loops(seed: int, off: tuple[str, ...]) -> None:
    with config.using(executor="shim", passes_off=off, shim_seed=seed % 3):
        agrees(seed, in_shim)
