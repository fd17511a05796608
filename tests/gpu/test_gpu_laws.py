"""The laws of every operation, and of its derivative, on a GPU."""

from __future__ import annotations

from ge2.targets.cuda.load.gpu import current_gpu
from tests.laws.batched import rng_of
from tests.laws.test_cuda import run
from tests.laws.test_laws import every_op
from tests.laws.test_targets import Case, derivatives, operations


def unsigned(cases: list[Case]) -> list[Case]:
    """Without eigenvectors and singular vectors, whose signs each library
    chooses: see test_gpu_linalg.py.
    """
    return [
        c
        for c in cases
        if not ("vectors=True" in c.name and ("eigh[" in c.name or "svd[" in c.name))
    ]


@every_op
def test_operations_on_a_gpu(name: str) -> None:
    judge(operations(name, rng_of(name)))


@every_op
def test_derivatives_on_a_gpu(name: str) -> None:
    judge(derivatives(name, rng_of(name)))


def judge(cases: list[Case]) -> None:
    assert not [*filter(None, run(unsigned(cases), current_gpu()))]
