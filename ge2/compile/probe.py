"""Limits of a device, measured: what it moves and computes by programs that do nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ge2.base.config import config
from ge2.base.dtypes import FLOAT32, FLOAT64
from ge2.choice import speed as speeds
from ge2.choice.speed import Speed
from ge2.compile.compile import compile_graph
from ge2.program.timer import Ceilings, Clock, HostClock, best
from ge2.targets.c.tuning import TUNING
from ge2.transforms.inspect import ShapeDtypeStruct, make_jaxpr

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Device

COPIED: Final = 1 << 26  # elements of float32: what no cache holds
CACHED: Final = 1 << 15  # those that the caches of one core hold
ELEMENTS: Final = 1 << 20
CHAINS, STEPS = 8, 16  # sums beside each other, and multiply-adds of each
SIDE: Final = 512  # of matrices
SCALE: Final = 8  # times smaller: a probe takes a second at most


def processor_ceilings(clock: Clock, double: bool, scale: int = 1) -> Ceilings:
    """As programs reach them under the settings of now. With `scale`, of arrays so much smaller."""
    moved = best_of(negated, FLOAT32, COPIED // scale, clock)
    dtypes = [FLOAT32, *([FLOAT64] if double else [])]
    times = [best_of(multiplied, dtype, ELEMENTS // scale, clock) for dtype in dtypes]
    rates = [2 * CHAINS * STEPS * (ELEMENTS // scale) / each for each in times]
    return Ceilings(2 * FLOAT32.itemsize * (COPIED // scale) / moved, *rates)


def best_of(f: Any, dtype: np.dtype, size: int, clock: Clock) -> float:
    """The seconds of a function of one array.

    Loops in it stay unrolled, so that sums stay in registers.
    """
    graph = make_jaxpr(f)(ShapeDtypeStruct((size,), dtype)).graph
    off = (*config.passes_off, "roll")
    with config.using(passes_off=off, debug_nans=False, debug_infs=False, tune="off"):
        program = compile_graph(graph, name=f.__name__)
        program.build()
    x = np.full(size, 0.5, dtype)
    return best(clock, lambda: program(x))


def negated(x: Any) -> Any:
    return -x


def multiplied(x: Any) -> Any:
    """Sums that do not wait for each other: a product and an addition, which ge2 rounds apart."""
    sums = [x + i / CHAINS for i in range(CHAINS)]
    for _ in range(STEPS):
        sums = [s * x + x for s in sums]
    return sum(sums[1:], sums[0])


# ------------------------------------------------------------------------------------------- probe


def probe(caps: Any, device: Device | None) -> Speed:
    """The speed of a device, from the record or else measured now, in a second, and kept there."""
    known = speeds.probed(caps.kind)
    if known is None:
        known = processor(caps) if device is None else gpu(device, caps.usual)
        speeds.keep(caps.kind, known)
        if device is None and caps.threads > 1:  # variants do with one
            probe(replace(caps, threads=1), None)
    return known


def processor(caps: Any) -> Speed:
    """With as many threads as kernels have: the launch is that of a team of them."""
    clock, threads = HostClock(), max(caps.threads, 1)
    with config.using(threads=threads):
        most = processor_ceilings(clock, True, SCALE)
        cached = best_of(negated, FLOAT32, CACHED, clock)
        a = np.ones((SIDE, SIDE), np.float32)
        product = best(clock, lambda: a @ a)
        regions = replace(TUNING.regions, grain=1, task=1)
        with config.using(tuning=(replace(TUNING, regions=regions),)):
            launch = best_of(negated, FLOAT32, 64, clock)
    return Speed(
        most.moved, 2 * FLOAT32.itemsize * CACHED / cached, caps.usual.cache, most.single, most.double,
        2 * SIDE**3 / product, launch, caps.usual.functions,
    )  # fmt: skip


def gpu(device: Device, usual: Speed) -> Speed:
    """The speed that its own kernels reach; products of the library as the data sheet has them."""
    from ge2.targets.cuda.bench import clock_of
    from ge2.targets.cuda.load.timing import ceilings

    with device.here():
        clock = clock_of(device, False)
        most, launch = ceilings(device, clock, True), clock.nothing()
    found = replace(usual, moved=most.moved, single=most.single, double=most.double)
    return replace(found, launch=max(launch, usual.launch))
