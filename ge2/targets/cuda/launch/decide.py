"""The kernel that decides conditional nodes of graphs
(`templates/cuda/launch/decide.cu`), loaded on a GPU.

It calls a device function that no library has but the driver itself, which
links it when it loads PTX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ge2.base.errors import CompileError
from ge2.base.log import logger
from ge2.base.source import templates
from ge2.targets.cuda.load.cubins import loaded
from ge2.targets.cuda.load.driver import driver
from ge2.targets.cuda.load.nvrtc import ptx

if TYPE_CHECKING:
    from ge2.targets.cuda.load.gpu import CudaDevice

LOOPS: Final = (12, 4)  # the CUDA of the oldest driver with loops, and branches of one list
SWITCHES: Final = (12, 8)
EARLY: Final = (12, 4)  # with waits before whose end a kernel is launched


def knows(cuda: tuple[int, int]) -> bool:
    """True if the driver is one of that CUDA, or newer."""
    known = driver()
    return known is not None and known.cuda >= cuda


def decider(device: CudaDevice) -> Any:
    """CuPy's `Function` of the kernel; None where the driver has no conditional nodes."""
    if not knows(LOOPS):
        return None
    try:
        module = loaded(device, ptx(source(), "decide"), "decide")
        with device.here():
            return module.get_function("ge2_decide")
    except (CompileError, OSError, device.xp.cuda.driver.CUDADriverError) as trouble:
        logger().debug("the host decides loops and branches: %s", trouble)
        return None


def source() -> str:
    with open(templates("cuda", "launch", "decide.cu"), encoding="utf-8") as file:
        return file.read()
