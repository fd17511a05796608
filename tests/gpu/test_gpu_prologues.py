"""Small products that make their operands as they read them, on a GPU: against NumPy, the same bits each run."""

from __future__ import annotations

import numpy as np
import pytest

import ge2
from ge2.base.config import config
from ge2.targets.cuda.load.gpu import current_gpu
from tests.kernels.prologue_cases import CASES, NAME, drawn, judge, prologues


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_numpy(name: str, times: int) -> None:
    """Of one tile or two, and of several stages."""
    xp = current_gpu().xp
    function, given = CASES[name]
    rng = np.random.default_rng(0)
    xs = [drawn(rng, dtype, *(n * times for n in shape)) for dtype, *shape in given]
    arrays = [xp.asarray(x) for x in xs]
    with config.using(prefer=(NAME,)):
        compiled = ge2.jit(function)
        found = compiled(*arrays)
        made = prologues(compiled.lower(*arrays))
        # larger ones of half types are made before, where that is predicted to take less time
        assert made == [2 if name == "both" else 1] or (times > 1 and name.startswith("half"))
        for _ in range(5):
            assert bool((compiled(*arrays) == found).all()), "other bits again"
    judge(xp.asnumpy(found), xs, name)
