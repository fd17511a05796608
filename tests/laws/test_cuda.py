"""What CUDA kernels make of an operation and of its derivative is what the references make of them.

They run on the CPU, a fiber a thread.
"""

from __future__ import annotations

import numpy as np
import pytest

from ge2.compile import compile_graph
from ge2.compile.executable import Executable
from ge2.ir import Graph
from ge2.targets.cuda.device import Device, download, kept_as, upload
from ge2.targets.cuda.emulator import ShimDevice
from tests.laws.batched import Batch
from tests.laws.batched import batch as batch
from tests.laws.batched import selected as selected
from tests.laws.test_laws import every_op
from tests.laws.test_targets import Case, as_bytes, derivatives, half_of, operations
from tests.together import needs_compiler
from tests.together_in_cuda import together_in_cuda

pytestmark = needs_compiler


def run(cases: list[Case], device: Device) -> list[str]:
    """Each case twice, with the same bits: the error of each, or nothing."""
    made = [built(case, device) for case in cases]
    errors = []
    for case, executable in zip(cases, made, strict=True):
        try:
            if isinstance(executable, Exception):
                raise executable
            if executable is not None:
                launched_twice(case, executable, device)
            errors.append("")
        except Exception as error:  # noqa: BLE001 - one of many failures, all of which are named
            errors.append(f"{case.name}: {type(error).__name__}: {error}")
    return errors


def built(case: Case, device: Device) -> Executable | Exception | None:
    """The program of a case, or what went wrong; None if the device lacks its dtypes."""
    if not holds(device, case.graph):
        return None
    try:
        made = compile_graph(case.graph, device=device)
        made.build()
    except Exception as error:  # noqa: BLE001 - as above
        return error
    return made


def launched_twice(case: Case, executable: Executable, device: Device) -> None:
    arrays = [
        x if v.type.weak else upload(device, np.asarray(x))
        for x, v in zip(case.arrays, case.graph.inputs, strict=True)
    ]
    found = [[download(y) for y in executable(*arrays)] for _ in range(2)]
    case.judge(case.graph, found[0], case.want)
    assert [as_bytes(y) for y in found[0]] == [as_bytes(y) for y in found[1]], "other bits again"


def holds(device: Device, graph: Graph) -> bool:
    """Whether arguments and results are arrays that the device knows: CuPy has none of fp8."""
    types = [a.type.dtype for a in (*graph.inputs, *graph.outputs)]
    return all(kept_as(device, dtype) == dtype for dtype in types)


@every_op
def test_operations_in_cuda(batch: Batch) -> None:
    batch.check(half_of(operations, 1), emulated)


@pytest.mark.exhaustive
@every_op
def test_derivatives_in_cuda(batch: Batch) -> None:
    batch.check(derivatives, emulated)


def emulated(cases: list[Case]) -> list[str]:
    with together_in_cuda():
        return run(cases, ShimDevice())
