"""Limits and libraries of a device for CUDA kernels."""

from __future__ import annotations

from typing import final

from ge2.base.record import record
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.device import Device
from ge2.targets.cuda.launch.library_call import Callee
from ge2.targets.cuda.launch.product import Wanted
from ge2.targets.cuda.limits import Limits


@final
@record
class Caps:
    """A chip, its limits as its driver tells them, and the device whose library multiplies
    matrices; None in a pass, which knows the limits alone.
    """

    chip: Chip
    limits: Limits
    device: Device | None = None

    @staticmethod
    def of(device: Device) -> Caps:
        return Caps(Chip.of(device.limits), device.limits, device)

    @staticmethod
    def before(limits: Limits) -> Caps:
        return Caps(Chip.of(limits), limits)

    def product(self, wanted: Wanted) -> Callee | None:
        """The library's product of matrices; None if it has none such."""
        return None if self.device is None else self.device.product(wanted)
