"""Products on tensor cores whose operands are made as they are read, on a GPU: against NumPy, the same bits
each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.choice import Pin
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.made_cases import (
    BY_GROUPS,
    BY_WARPS,
    CASES,
    FLOATS,
    WARPS_ALONE,
    Random,
    bound,
    drawn,
    prologues,
    tf32,
)
from tests.kernels.test_cuda_made import GROUP_TILES, TF32, TILES, judge
from tests.kernels.wgmma_cases import BF16, DIGITS, F32

HOPPER = 90


def lacks(family: str) -> bool:
    return family == BY_GROUPS and current_gpu().limits.generation != HOPPER


def again(compiled: Any, xs: Any, first: Any) -> None:
    for _ in range(5):
        found = compiled(*xs)
        pairs = zip(found, first, strict=True) if isinstance(first, tuple) else [(found, first)]
        assert all(bool((y == x).all()) for y, x in pairs), "other bits again"


@pytest.mark.parametrize("family", [BY_WARPS, BY_GROUPS])
@pytest.mark.parametrize("name", [*CASES, *WARPS_ALONE])
def test_values_are_those_of_numpy(name: str, family: str) -> None:
    if family == BY_GROUPS and (name in (*WARPS_ALONE, *FLOATS) or lacks(family)):
        pytest.skip("warp groups do not make these")
    function, given = {**CASES, **WARPS_ALONE}[name]
    xp, rng = current_gpu().xp, np.random.default_rng(0)
    xs = [drawn(rng, *each) for each in given]
    arrays = [xp.asarray(x) for x in xs]
    with config.using(prefer=(family,)):
        compiled = ge2.jit(tf32(function) if name in FLOATS else function)
        assert (family, 2 if name == "both" else 1) in prologues(compiled.lower(*arrays))
        found = compiled(*arrays)
        again(compiled, arrays, found)
    host = tuple(map(xp.asnumpy, found)) if isinstance(found, tuple) else xp.asnumpy(found)
    judge(host, function(*xs), {F32: TF32} if name in FLOATS else DIGITS)


@pytest.mark.parametrize("k", [72, 768, 4104])
@pytest.mark.parametrize(
    ("family", "tile"),
    [*((BY_WARPS, tile) for tile in TILES), *((BY_GROUPS, tile) for tile in GROUP_TILES)],
)
def test_tiles(family: str, tile: str, k: int) -> None:
    """More tiles than a GPU has multiprocessors, and sums of many stages."""
    if lacks(family):
        pytest.skip("not a GPU of warp groups")
    xp, rng = current_gpu().xp, np.random.default_rng(4)
    xs = [drawn(rng, F32, 4100, k), drawn(rng, BF16, k, 1032), drawn(rng, BF16, 1032)]
    arrays = [xp.asarray(x) for x in xs]

    def layer(x: Any, w: Any, c: Any) -> Any:
        return np.maximum(x.astype(BF16) @ w + c, 0)

    with config.using(prefer=(family,), pins=(Pin(family, tile),)):
        compiled = ge2.jit(layer)
        (choice,) = compiled.lower(*arrays).choices.values()
        assert choice.taken.title == f"{family}, {tile}"
        found = compiled(*arrays)
        again(compiled, arrays, found)
    with config.using(passes_off=("prologue",)):
        apart = ge2.jit(layer)(*arrays)
    judge(xp.asnumpy(found), xp.asnumpy(apart).astype(np.float64))


@pytest.mark.parametrize("seed", range(40))
def test_random_operands(seed: int) -> None:
    case, xp = Random(seed), current_gpu().xp
    xs = case.arrays()
    with config.using(prefer=(BY_GROUPS, BY_WARPS)):
        found = xp.asnumpy(ge2.jit(case)(*map(xp.asarray, xs)))
    a, b = (x.astype(np.float64) for x in case.operands(*xs))
    exact = a @ b if case.after is None else case.after(a @ b)
    limit = bound(a, b, exact, case.dtype, 1 + max(map(len, case.steps)))
    assert (np.abs(found.astype(np.float64) - exact) <= limit).all()
