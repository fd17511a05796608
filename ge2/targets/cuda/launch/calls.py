"""Programs whose whole call is made in C (`templates/cuda/launch/calls.h`):
arrays for results, then launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ge2.base.toolchain.command import Provisional
from ge2.targets.cuda.launch.extension import extension_or
from ge2.targets.cuda.launch.graph import Meanwhile
from ge2.targets.cuda.launch.launches import Straight

if TYPE_CHECKING:
    from ge2.targets.cuda.load.gpu import CudaDevice

Program = Callable[..., list[Any]]


def call(device: CudaDevice, work: Straight, otherwise: Program) -> Program:
    """A program as one call; `otherwise` is the same in Python, for where the
    extension does not serve.
    """
    waiting = Provisional(otherwise, lambda made: call_of(made, device, work, otherwise))
    made = extension_or(waiting)
    if made is None or made is waiting:
        return otherwise if made is None else waiting
    return call_of(made, device, work, otherwise)


def call_of(made: Any, device: CudaDevice, work: Straight, otherwise: Program) -> Program:
    launched = work.run.run if isinstance(work.run, Meanwhile) and work.run.settled else work.run
    take, lost = work.take if work.nbytes else None, device.lost
    found: Program = made.Call(
        work.given, work.empty, work.made, work.constants, work.numbers, work.asked, work.compute, take,
        work.nbytes, work.handed, work.results,
        device.xp.cuda.runtime.getDevice, device.number, device.xp.cuda.get_current_stream, lost, otherwise,
        work.explain, launched,
    )  # fmt: skip
    return found
