"""The laws of every operation, and of its derivative, on a GPU."""

from __future__ import annotations

import numpy as np

from ge2.backends.cuda.device import current_gpu
from tests.laws.test_cuda import derivatives, operations, run
from tests.laws.test_targets import in_groups


@in_groups
def test_operations_on_a_gpu(group: int, rng: np.random.Generator) -> None:
    run(operations(group, rng), current_gpu())


@in_groups
def test_derivatives_on_a_gpu(group: int, rng: np.random.Generator) -> None:
    run(derivatives(group, rng), current_gpu())
