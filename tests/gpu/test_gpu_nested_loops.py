"""Random loops and branches in each other on a GPU: small ones as one kernel,
and as launches of a graph.
"""

from __future__ import annotations

import os
from functools import partial

import pytest

from ge2.base.config import config
from ge2.targets.cuda.load.gpu import current_gpu
from tests.fuzz.test_nested_loops import agrees, on_device

PROGRAMS, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("PROGRAMS", 60), ("FIRST", 0))
)


@pytest.mark.parametrize("off", [(), ("resident",)], ids=["resident", "launches"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_nested_loops_on_a_gpu(seed: int, off: tuple[str, ...]) -> None:
    with config.using(passes_off=off, capture="on"):
        agrees(seed, partial(on_device, current_gpu()))
