"""What every executor makes of an operation and of its derivative is what the references make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge2.base.config import config
from ge2.base.dtypes import INEXACT
from ge2.base.errors import InputError
from ge2.ir import Graph
from ge2.runtime.compile import compile_graph
from tests.laws.test_laws import (
    drawn,
    eps,
    evaluate,
    every_op,
    graph_of,
    inexact,
    like,
    pulled,
    smooth,
    types_of,
    widened,
)

executors = pytest.mark.parametrize("executor", ["c", "blocked", "reference"])


def check(executor: str, graph: Graph, arrays: Any, want: Any) -> None:
    with config.using(executor=executor, threads=2):
        executable = compile_graph(graph)
        for _ in range(2):  # again in the arena of the first call
            got = executable(*map(np.asarray, arrays))
    for y, w, a in zip(got, want, graph.outputs, strict=True):
        assert np.asarray(y).dtype == a.type.dtype
        assert np.shape(y) == a.type.shape
        rtol = 16 * eps(a.type.dtype) if a.type.dtype in INEXACT else 0  # sums may be taken in another order
        assert np.allclose(widened(y), widened(w), rtol=rtol, atol=rtol, equal_nan=True), f"{graph}"


@executors
@every_op
def test_an_operation(name: str, executor: str, rng: np.random.Generator) -> None:
    for sample, arrays in drawn(name, rng):
        check(executor, graph_of(sample.op, types_of(arrays)), arrays, evaluate(sample.op, arrays))


@executors
@every_op
def test_its_derivative(name: str, executor: str, rng: np.random.Generator) -> None:
    for sample, arrays, wanted in smooth(name, rng):
        joint = pulled(graph_of(sample.op, types_of(arrays)), wanted)
        cts = [like(rng, y) for y in inexact(evaluate(sample.op, arrays))]
        check(executor, joint, (*arrays, *cts), joint(*arrays, *cts))


def test_the_executors_are_all_of_them() -> None:
    with pytest.raises(InputError, match="must be 'c' or 'blocked' or 'reference'"):
        config.using(executor="another").__enter__()
