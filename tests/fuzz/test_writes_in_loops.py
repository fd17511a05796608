"""Random loops that write parts of their carries, as CUDA on the CPU: as a kernel of a block, of a
grid, and as launches.

`GE2_TEST_PROGRAMS=100 pytest tests/fuzz/test_writes_in_loops.py` does more.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from tests.fuzz.written import Program
from tests.together import needs_compiler

PROGRAMS, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("PROGRAMS", 2), ("FIRST", 0))
)
FORMS = {"block": ((9, 11), ()), "grid": ((90, 110), ()), "launches": ((9, 11), ("resident",))}


@pytest.mark.exhaustive("form")
@needs_compiler
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_writes_in_loops(seed: int, form: str) -> None:
    shape, off = FORMS[form]
    f, draw = Program(seed), np.random.default_rng(seed)
    xs = [draw.normal(size=shape).astype((np.float64, np.float32)[seed % 2]) for _ in f.names]
    with config.using(executor="reference"):
        wanted = ge2.jit(f)(*xs)
    with config.using(executor="shim", passes_off=off, shim_seed=seed % 3):
        run = ge2.jit(f)
        found, again = run(*xs), run(*xs)
    for y, z, w in zip(found, again, wanted, strict=True):
        np.testing.assert_allclose(y, w, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(y, z)
