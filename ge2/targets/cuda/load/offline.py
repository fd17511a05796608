"""A GPU that is not at hand: sources are compiled for it, and nothing can be launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import NoReturn, final

import numpy as np

from ge2.base.errors import DeviceError
from ge2.base.record import record
from ge2.targets.cuda.device import Device, address
from ge2.targets.cuda.launch.launches import LaunchList, Run, one_by_one
from ge2.targets.cuda.launch.product import HostProduct, Wanted
from ge2.targets.cuda.launch.ranges import Range, recorded
from ge2.targets.cuda.limits import KB, KNOWN, MB, Limits, double_ratio, multiprocessor
from ge2.targets.cuda.load.nvrtc import Binary, Order, compile, compile_all, missing


@final
@record
class OfflineDevice(Device):
    """Keeps the contract of a device but for launches. Its arrays are NumPy's.

    >>> OfflineDevice(limits_of("sm_90a")).limits.name
    'H100'
    """

    limits: Limits

    @property
    def xp(self) -> ModuleType:
        return np

    def prepare(self, sources: list[str]) -> None:
        """Compiles sources, so that `module` finds them compiled."""
        compile_all([Order(source, self.limits.architecture) for source in sources])

    def missing(self, sources: list[str]) -> int:
        """Returns how many of the sources are yet to be compiled."""
        return missing([Order(source, self.limits.architecture) for source in sources])

    def module(self, source: str) -> OfflineModule:
        """A source, compiled. CompileError if NVRTC refuses it."""
        return OfflineModule(compile(source, self.limits.architecture))

    def product(self, wanted: Wanted) -> HostProduct | None:
        """A product of matrices, which takes the place of one in a text; None of further algorithms."""
        return None if wanted.algorithm else HostProduct(wanted)

    def launches(self, work: LaunchList) -> Run:
        """Launches, each of which is an error."""
        return one_by_one(work, address)

    def stream(self) -> None:
        """There is none."""

    def span(self, name: str) -> Range:
        """A range that nobody sees."""
        return recorded(name)


@final
@record
class OfflineModule:
    """A cubin, and what the compiler said of it."""

    binary: Binary

    def get_function(self, name: str) -> Callable[..., NoReturn]:
        def launch(*_: object, **__: object) -> NoReturn:
            raise DeviceError(
                f"{name} was compiled for {self.binary.arch}, with no GPU at hand to run it"
            )

        return launch


def limits_of(arch: str) -> Limits:
    """Returns what a GPU of an architecture has; of one that we do not know,
    what the least of its time have.
    """
    for known in KNOWN:
        if known.architecture.rstrip("a") == arch.rstrip("af"):
            return replace(known, architecture=arch)
    threads, most, shared = multiprocessor(arch)
    return Limits(
        arch,
        arch,
        46,
        threads_per_multiprocessor=threads,
        shared_optin=most * KB,
        shared_per_multiprocessor=shared * KB,
        l2=4 * MB,
        double=double_ratio(arch),
    )
