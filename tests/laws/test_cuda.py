"""What CUDA kernels make of an operation and of its derivative is what the references make of them.

They run on the CPU, a fibre a thread.
"""

from __future__ import annotations

import numpy as np

from ge2.compile.compile import compile_graph
from ge2.ir import Graph
from ge2.targets.cuda.device import Device, download, kept_as, upload
from ge2.targets.cuda.emulator.device import ShimDevice
from tests.laws.test_targets import Case, as_bytes, derivatives, in_groups, operations
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

pytestmark = needs_compiler


def run(cases: list[Case], device: Device) -> None:
    """Each case twice, with the same bits. Names every case that fails."""
    failures, made = [], []
    for case in cases:
        if not holds(device, case.graph):
            continue
        try:
            made.append((case, compile_graph(case.graph, device=device)))
            made[-1][1].build()
        except Exception as trouble:  # noqa: BLE001 - as below
            failures.append(f"{case.name}: {type(trouble).__name__}: {trouble}")
    for case, executable in made:
        try:
            arrays = [
                x if v.type.weak else upload(device, np.asarray(x))
                for x, v in zip(case.arrays, case.graph.inputs, strict=True)
            ]
            found = [[download(y) for y in executable(*arrays)] for _ in range(2)]
            case.judge(case.graph, found[0], case.want)
            assert [as_bytes(y) for y in found[0]] == [as_bytes(y) for y in found[1]], (
                "other bits again"
            )
        except Exception as trouble:  # noqa: BLE001 - one of many failures, all of which are named
            failures.append(f"{case.name}: {type(trouble).__name__}: {trouble}")
    assert not failures, f"{len(failures)} of {len(cases)}\n" + "\n".join(failures)


def holds(device: Device, graph: Graph) -> bool:
    """Whether arguments and results are arrays that the device knows: CuPy has none of fp8."""
    types = [a.type.dtype for a in (*graph.inputs, *graph.outputs)]
    return all(kept_as(device, dtype) == dtype for dtype in types)


@in_groups
def test_operations_in_cuda(group: int, rng: np.random.Generator) -> None:
    with together_in_cuda():
        run(operations(group, rng), ShimDevice())


@in_groups
def test_derivatives_in_cuda(group: int, rng: np.random.Generator) -> None:
    with together_in_cuda():
        run(derivatives(group, rng), ShimDevice())
