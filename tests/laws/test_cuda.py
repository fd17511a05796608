"""What CUDA kernels make of an operation and of its derivative is what the references make of them.

They run on the CPU, a fibre a thread.
"""

from __future__ import annotations

import numpy as np
import pytest

from ge2 import ops
from ge2.base.config import config
from ge2.ops.elementwise import BY_NAME
from ge2.runtime.compile import compile_graph
from ge2.test_util.laws import evaluate, graph_of, inexact, like, pulled, types_of
from tests.laws.test_laws import smooth
from tests.laws.test_targets import EVERY, Case, as_bytes, chosen, in_group, in_groups, left_out, named, special
from tests.together import needs_compiler

pytestmark = needs_compiler


def run(cases: list[Case]) -> None:
    """Each case twice, with the same bits. Names every case that fails."""
    failures = []
    for case in cases:
        try:
            with config.using(executor="shim"):
                executable = compile_graph(case.graph)
                found = [executable(*map(np.asarray, case.arrays)) for _ in range(2)]
            case.judge(case.graph, found[0], case.want)
            assert [as_bytes(y) for y in found[0]] == [as_bytes(y) for y in found[1]], "other bits again"
        except Exception as trouble:  # noqa: BLE001 - one of many failures, all of which are named
            failures.append(f"{case.name}: {type(trouble).__name__}: {trouble}")
    assert not failures, f"{len(failures)} of {len(cases)}\n" + "\n".join(failures)


@in_groups
def test_operations_in_cuda(group: int, rng: np.random.Generator) -> None:
    cases = []
    for name in in_group(group):
        for sample, arrays in chosen(name, rng):
            graph = graph_of(sample.op, types_of(arrays))
            cases.append(Case(named(sample.op, arrays), graph, arrays, evaluate(sample.op, arrays)))
        if name in BY_NAME and isinstance(BY_NAME[name], ops.elementwise.Elementwise):
            cases += special(name)
    run(cases)


@in_groups
def test_derivatives_in_cuda(group: int, rng: np.random.Generator) -> None:
    cases = []
    for name in in_group(group):
        for i, (sample, arrays, wanted) in enumerate(smooth(name, rng)):
            if not sample.reverse or (not EVERY and left_out(name, i, arrays)):
                continue
            joint = pulled(graph_of(sample.op, types_of(arrays)), wanted)
            cts = [like(rng, y) for y in inexact(evaluate(sample.op, arrays))]
            given = (*arrays, *cts)
            cases.append(Case(f"the derivative of {named(sample.op, arrays)}", joint, given, joint(*given)))
    run(cases)
