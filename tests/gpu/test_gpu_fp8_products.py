"""Products of fp8 on a GPU: by the library's tensor cores of fp8, or those of bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ge2
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import is_contraction
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.fp8_cases import CASES, E4M3, E5M2, FEW, exact, quantised
from tests.kernels.wgmma_cases import F32, drawn

UNITS: Any = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}


@pytest.mark.parametrize(
    "sizes", [(64, 64, 64), (1040, 528, 2064), (2048, 4096, 2048), (333, 520, 77)]
)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str, sizes: tuple[int, int, int]) -> None:
    gpu = current_gpu()
    function, family, scales, out = CASES[name]
    (m, k, n), rng = sizes, np.random.default_rng(0)
    x, y = drawn(rng, (m, k), F32), drawn(rng, (k, n), F32)
    s, t = np.asarray(0.25, F32), np.asarray(1.5, F32)
    given = tuple(map(gpu.xp.asarray, (x, y, s, t)))
    compiled = ge2.jit(quantised(function))
    found = compiled(*given)
    chosen = [
        c for c in compiled.lower(*given).choices.values()
        if isinstance(c.problem.op, DotGeneral) or is_contraction(c.problem.op)
    ]  # fmt: skip
    some = [c for c in chosen if E4M3 in {t.dtype for t in c.problem.inputs}]
    whole = gpu.limits.generation >= 89 and all(size % 16 == 0 for size in sizes)
    assert bool(some) == (whole or gpu.limits.generation == 90)
    assert gpu.limits.generation == 90 or all(c.family.name == family for c in some)
    scale = (1.0, 0.25, 0.375)[scales]
    low = [a.astype(E4M3).astype("f8") for a in (x, y)]
    wanted, most = exact(x, y, s, t, scales), scale * (np.abs(low[0]) @ np.abs(low[1]))
    bound = 2 * UNITS[out.name] * np.abs(wanted) + FEW * most + 1e-6
    error = np.abs(np.asarray(gpu.xp.asnumpy(found), "f8") - wanted)
    assert (error <= bound).all(), (error / bound).max()
    for _ in range(5):
        again = compiled(*map(gpu.xp.array, given))
        assert bool((again.view(np.uint8) == found.view(np.uint8)).all()), "other bits again"


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("sizes", [(64, 64, 64), (333, 521, 77)])
def test_a_product_that_is_stored_as_fp8(sizes: tuple[int, int, int], dtype: Any) -> None:
    """It is rounded once, and what is too large is NumPy's NaN or infinity."""
    gpu = current_gpu()
    (m, k, n), rng = sizes, np.random.default_rng(1)
    x, y = drawn(rng, (m, k), F32), drawn(rng, (k, n), F32)
    x[0] = y[:, 0] = 16.0  # a result of 256 times as many terms
    given = tuple(map(gpu.xp.asarray, (x, y)))
    f = ge2.jit(lambda x, y: (x.astype(dtype) @ y.astype(dtype)).astype(F32))
    found = gpu.xp.asnumpy(f(*given)).astype("f8")
    left, right = x.astype(dtype).astype("f8"), y.astype(dtype).astype("f8")
    wide = left @ right
    of_sums = 2.0**-13 * (np.abs(left) @ np.abs(right))  # as docs/design/fp8.md has it
    wanted = wide.astype(F32).astype(dtype).astype("f8")
    unit = 2.0**-3 if dtype == E4M3 else 2.0**-2
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    fine = np.isfinite(wanted)
    error = np.abs(found[fine] - wide[fine])
    assert (error <= 0.5 * unit * np.abs(wide[fine]) + (1 + unit) * of_sums[fine] + 2.0**-10).all()
