"""NVIDIA's driver and the GPUs that it knows, asked through its own library,
which comes with it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache as once
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.errors import DeviceError
from ge2.base.interpreter import after_fork
from ge2.base.record import record
from ge2.targets.cuda.limits import MORE_PARAMETERS, PARAMETERS, Limits

if TYPE_CHECKING:
    import ctypes

LIBRARY: Final = "libcuda.so.1"
KERNEL_MODULE: Final = "/sys/module/nvidia/version"
NO_DEVICE: Final = 100
# attributes of a device, by the driver's numbers; kHz and bits
MAJOR, MINOR, CLOCK, WIDTH = 75, 76, 36, 37
ATTRIBUTES: Final = {
    "multiprocessors": 16,
    "threads_per_block": 1,
    "threads_per_multiprocessor": 39,
    "blocks_per_multiprocessor": 106,
    "registers_per_multiprocessor": 82,
    "shared_static": 8,
    "shared_optin": 97,
    "shared_per_multiprocessor": 81,
    "l2": 38,
    "double": 87,
}


@final
@record
class Driver:
    """`cuda`: the newest CUDA that it runs; `version`: its own; `trouble`: why
    its GPUs cannot be used.
    """

    cuda: tuple[int, int]
    version: str
    gpus: tuple[Limits, ...]
    trouble: str = ""


@once
def driver() -> Driver | None:
    """The driver of this machine; None if there is none."""
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    cuda = number.value // 1000, number.value % 1000 // 10
    status = library.cuInit(0)
    if status not in (0, NO_DEVICE):
        return Driver(cuda, _version(), (), f"cuInit says {words(library, status)}")
    gpus = _gpus(library) if status == 0 else ()
    return Driver(
        cuda, _version(), tuple(replace(each, parameters=parameters(cuda)) for each in gpus)
    )


def parameters(cuda: tuple[int, int]) -> int:
    """The bytes that a kernel's parameters may have, on GPUs from Volta on.

    >>> parameters((12, 0)), parameters((12, 1))
    (4096, 32764)
    """
    return MORE_PARAMETERS if cuda >= (12, 1) else PARAMETERS


_made: list[int] = []  # contexts of this process
# not empty in a child of a process that had one: CUDA does not survive a fork
broken: list[bool] = []
after_fork(lambda: broken.append(True) if _made else None)


def check_process() -> None:
    """DeviceError in a child of a process that had used a GPU."""
    if broken:
        what = (
            "this process was forked from one that had used a GPU, and CUDA does not survive a fork"
        )
        raise DeviceError(
            what, fix="multiprocessing's start method 'spawn', or fork before the first use"
        )


@once
def context(number: int) -> int:
    """The primary context of a GPU, made if it is not there yet, and kept.

    DeviceError if it cannot be.
    """
    import ctypes

    library, device, found = ctypes.CDLL(LIBRARY), ctypes.c_int(), ctypes.c_void_p()
    status = library.cuDeviceGet(ctypes.byref(device), number)
    status = status or library.cuDevicePrimaryCtxRetain(ctypes.byref(found), device)
    if status:
        raise DeviceError(
            f"GPU {number} gives no context: {words(library, status)}", fix="ge2 doctor"
        )
    _made.append(number)
    return found.value or 0


def resident_blocks(function: int, threads: int, shared: int) -> int:
    """Returns how many blocks of a loaded kernel a multiprocessor of the current GPU
    holds at once; 0: not known.

    `function` is the driver's handle, `shared` the bytes of shared memory that its launch asks for.
    """
    import ctypes

    count = ctypes.c_int()
    ask = ctypes.CDLL(LIBRARY).cuOccupancyMaxActiveBlocksPerMultiprocessor
    status = ask(ctypes.byref(count), ctypes.c_void_p(function), threads, ctypes.c_size_t(shared))
    return count.value if status == 0 else 0


def architecture(major: int, minor: int) -> str:
    """Returns what NVRTC compiles for, for a GPU of this compute capability.

    >>> architecture(9, 0), architecture(8, 6)
    ('sm_90a', 'sm_86')
    """
    return f"sm_{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"  # wgmma is in sm_90a alone


def _gpus(library: ctypes.CDLL) -> tuple[Limits, ...]:
    import ctypes

    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_limits(library, number) for number in range(count.value))


def _limits(library: ctypes.CDLL, number: int) -> Limits:
    import ctypes

    name, memory, device = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), number)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    attributes: dict[str, Any] = {
        word: _attribute(library, device, which) for word, which in ATTRIBUTES.items()
    }
    clock, width = _attribute(library, device, CLOCK), _attribute(library, device, WIDTH)
    return Limits(
        name.value.decode("utf-8", "replace"),
        architecture(_attribute(library, device, MAJOR), _attribute(library, device, MINOR)),
        memory=memory.value,
        bandwidth=2e3 * clock * width / 8,  # twice a clock
        **attributes,
    )


def _attribute(library: ctypes.CDLL, device: ctypes.c_int, which: int) -> int:
    import ctypes

    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def words(library: ctypes.CDLL, status: int) -> str:
    """The driver's name for what one of its functions returned."""
    import ctypes

    text = ctypes.c_char_p()
    library.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else f"error {status}"


def _version() -> str:
    try:
        with open(KERNEL_MODULE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # inside some containers
        return ""
