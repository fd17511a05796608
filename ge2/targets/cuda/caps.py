"""Limits and libraries of a device for CUDA kernels."""

from __future__ import annotations

from functools import cache
from typing import final

from ge2.base.config import config
from ge2.base.record import record
from ge2.choice.speed import Speed, speed_of
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.launch.attention import WantedAttention
from ge2.targets.cuda.launch.library_call import Callee
from ge2.targets.cuda.launch.product import Wanted
from ge2.targets.cuda.limits import Limits


@final
@record
class Caps:
    """A chip, its limits as its driver tells them, and the device whose library multiplies
    matrices; None in a pass, which knows the limits alone. `workspace`: bytes of scratch that a
    call of the library may have.
    """

    chip: Chip
    limits: Limits
    device: Device | None = None
    workspace: int = 32 << 20

    @staticmethod
    def of(device: Device) -> Caps:
        return Caps(Chip.of(device.limits), device.limits, device, config.workspace << 20)

    @staticmethod
    def before(limits: Limits) -> Caps:
        return Caps(Chip.of(limits), limits)

    def product(self, wanted: Wanted) -> Callee | None:
        """The library's product of matrices; None if it has none such."""
        return None if self.device is None else self.device.product(wanted)

    def attention(self, wanted: WantedAttention) -> Callee | str | None:
        """The library's attention, or the reason why it has none; None before the device is known."""
        return None if self.device is None else self.device.attention(wanted)

    @property
    def kind(self) -> str:
        """The chip as the record of measurements names it."""
        x = self.limits
        return kind_of(x.name, x.multiprocessors, x.architecture, x.emulated)

    @property
    def usual(self) -> Speed:
        """The speed of a chip that was not probed: its memory as documented, 128 lanes of each
        multiprocessor at some 1.5 GHz, and products in the library as many times that as tensor cores
        are in float32.
        """
        x = self.limits
        return usual_of(x.multiprocessors, x.bandwidth, x.l2, x.double)

    @property
    def speed(self) -> Speed:
        return speed_of(self.kind, self.usual)

    @property
    def is_measured(self) -> bool:
        """True of the chips on which the order of the catalog was measured."""
        return self.limits.name.removeprefix("NVIDIA ").startswith(("H100", "H200"))

    @property
    def driver(self) -> str:
        """The version of the driver."""
        from ge2.targets.cuda.load.driver import driver

        found = driver()
        return "" if found is None else str(found.version)

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The versions of what makes kernels."""
        from ge2.targets.cuda.load.toolkit import nvrtc

        return (("nvrtc", "{}.{}".format(*nvrtc().version)),)


@cache
def kind_of(name: str, multiprocessors: int, architecture: str, emulated: bool) -> str:
    kind = f"{name.removeprefix('NVIDIA ').split()[0]} {multiprocessors} x {architecture}"
    return f"an emulator of {kind}" if emulated else kind


@cache
def usual_of(multiprocessors: int, bandwidth: float, l2: int, double: int) -> Speed:
    single = multiprocessors * 128 * 2 * 1.5e9
    return Speed(
        moved=bandwidth, cached=2 * bandwidth, cache=l2 // 2, single=single, double=single / double,
        products=single, launch=2.5e-6, functions=4,
    )  # fmt: skip
