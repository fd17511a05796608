"""The laws of every operation, and of its derivative, on a GPU."""

from __future__ import annotations

import numpy as np

from ge2.targets.cuda.load.gpu import current_gpu
from tests.laws.test_cuda import run
from tests.laws.test_targets import Case, derivatives, in_groups, operations


def unsigned(cases: list[Case]) -> list[Case]:
    """Without eigenvectors and singular vectors, whose signs each library
    chooses: see test_gpu_linalg.py.
    """
    return [
        c
        for c in cases
        if not ("vectors=True" in c.name and ("eigh[" in c.name or "svd[" in c.name))
    ]


@in_groups
def test_operations_on_a_gpu(group: int, rng: np.random.Generator) -> None:
    run(unsigned(operations(group, rng)), current_gpu())


@in_groups
def test_derivatives_on_a_gpu(group: int, rng: np.random.Generator) -> None:
    run(unsigned(derivatives(group, rng)), current_gpu())
