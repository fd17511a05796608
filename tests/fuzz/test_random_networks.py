"""Random networks, forward, gradient and an optimiser's step: in C, as CUDA on
the CPU, compiled for GPUs.

Each is as near to a run in float64 as its reference is. `GE2_TEST_NETWORKS=200
pytest tests/fuzz` does more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge2.base.config import config
from ge2.cli.show import assemblers
from ge2.compile import compile_graph
from ge2.compile.catalog import Reference
from ge2.ir import Graph
from ge2.targets.cuda.device import Device, download, upload
from ge2.targets.cuda.emulator import OfflineDevice, ShimDevice, limits_of
from ge2.targets.cuda.load.nvrtc import Order, compile_all
from tests.exhaustive import sampled
from tests.fuzz.networks import Step, build
from tests.laws.test_cuda_compiled import ARCHITECTURES
from tests.nvrtc import needs_nvrtc
from tests.together import needs_compiler, together
from tests.together_in_cuda import together_in_cuda

COUNT, FIRST = (
    int(os.environ.get(f"GE2_TEST_{name}", n)) for name, n in (("NETWORKS", 10), ("FIRST", 0))
)
# then each meets one of the three tests, one architecture
PLAIN = "GE2_TEST_NETWORKS" not in os.environ
PARTS = ((0, 1), (2, 3), (4,))  # in C, in the emulator, by NVRTC: remainders of seeds
SHARE = COUNT if PLAIN else 4
ROUNDINGS = 16  # of a result's own type, beyond what the reference errs
in_shares = pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SHARE))


def seeds(first: int, test: int) -> list[int]:
    """The seeds of a share that one of the three tests takes."""
    share = range(first, min(first + SHARE, FIRST + COUNT))
    return [seed for seed in share if not PLAIN or seed % 5 in PARTS[test]]


def judged(made: Step, results: list[Any], seed: int) -> Iterator[str]:
    """What is wrong with the results of a step."""
    return faults(made, build(seed, np.float64), results)


def faults(made: Step, wide: Step, results: list[Any]) -> Iterator[str]:
    """What is wrong: an error of more than thrice the reference's, and some roundings."""
    with np.errstate(all="ignore"):
        near, exact = (Reference(each.graph)(*each.arrays) for each in (made, wide))
    eps = float(ml_dtypes.finfo(made.dtype).eps)
    for i, (y, r, e) in enumerate(zip(results, near, exact, strict=True)):
        if (np.asarray(y).dtype, np.shape(y)) != (np.asarray(r).dtype, np.shape(r)):
            yield f"result {i} is {np.asarray(y).dtype}{np.shape(y)}, not {np.asarray(r).dtype}{np.shape(r)}"
            continue
        y, r, e = (np.asarray(a, np.float64) for a in (y, r, e))
        ours, theirs = (np.abs(a - e).max(initial=0) for a in (y, r))
        most = 3 * theirs + ROUNDINGS * eps * max(np.abs(e).max(initial=0), 1)
        if not ours <= most:
            yield f"result {i} {made.dtype}: error {ours:.3g}, {theirs:.3g} of the reference"


def on_device(graph: Graph, device: Device) -> Any:
    executable = compile_graph(graph, device=device)
    executable.build()
    return lambda *arrays: [
        download(y) for y in executable(*(upload(device, np.asarray(x)) for x in arrays))
    ]


def agree(runs: dict[int, tuple[Step, Any]]) -> None:
    failures = [
        f"seed {seed}: {why}"
        for seed, (made, run) in runs.items()
        for why in judged(made, run(*made.arrays), seed)
    ]
    assert not failures, "\n".join(failures)


@needs_compiler
@in_shares
def test_networks_in_c(first: int) -> None:
    runs = {}
    with together("-Og"):
        for seed in seeds(first, 0):
            made = build(seed)
            with config.using(threads=2):
                runs[seed] = made, compile_graph(made.graph)
                runs[seed][1].build()
    agree(runs)


@needs_compiler
@in_shares
def test_networks_in_cuda(first: int) -> None:
    with together_in_cuda():
        made = {seed: build(seed) for seed in seeds(first, 1)}
        agree({seed: (each, on_device(each.graph, ShimDevice())) for seed, each in made.items()})


@needs_nvrtc
@in_shares
def test_networks_compile_for_gpus(first: int) -> None:
    orders = {
        Order(source.text(), arch): None
        for seed in seeds(first, 2)
        for arch in (ARCHITECTURES[seed % 3 :][:1] if PLAIN else ARCHITECTURES)
        for assembler in assemblers(
            compile_graph(build(seed).graph, device=OfflineDevice(limits_of(arch)))
        )
        for source in assembler.kernels.sources.values()
    }
    of_kernels = sampled(orders, lambda order: order.source, lambda order: order.file)
    drawn = of_kernels if PLAIN else list(orders)
    assert drawn and all(binary.cubin for binary in compile_all(drawn))
