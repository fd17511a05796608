"""NVIDIA's driver and the GPUs that it knows, asked through its own library, which comes with it."""

from __future__ import annotations

from functools import cache as once
from typing import TYPE_CHECKING, Final, final

from ge2.base.record import record

if TYPE_CHECKING:
    import ctypes

LIBRARY: Final = "libcuda.so.1"
KERNEL_MODULE: Final = "/sys/module/nvidia/version"
NO_DEVICE: Final = 100
MAJOR, MINOR, MULTIPROCESSORS = 75, 76, 16  # attributes of a device


@final
@record
class Card:
    """A GPU: its name, its compute capability, its multiprocessors, and the bytes of its memory."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int


@final
@record
class Driver:
    """`cuda`: the newest CUDA that it runs; `version`: its own; `trouble`: why its GPUs cannot be used."""

    cuda: tuple[int, int]
    version: str
    cards: tuple[Card, ...]
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
        return Driver(cuda, _version(), (), f"cuInit says {_words(library, status)}")
    return Driver(cuda, _version(), _cards(library) if status == 0 else ())


def architecture(capability: tuple[int, int]) -> str:
    """What NVRTC compiles for, for a GPU of this compute capability.

    >>> architecture((9, 0)), architecture((8, 6))
    ('sm_90a', 'sm_86')
    """
    major, minor = capability
    return f"sm_{major}{minor}{'a' if capability == (9, 0) else ''}"  # its products are for no other GPU


def _cards(library: ctypes.CDLL) -> tuple[Card, ...]:
    import ctypes

    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_card(library, number) for number in range(count.value))


def _card(library: ctypes.CDLL, number: int) -> Card:
    import ctypes

    name, memory, device = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(device), number)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    capability = _attribute(library, device, MAJOR), _attribute(library, device, MINOR)
    units = _attribute(library, device, MULTIPROCESSORS)
    return Card(name.value.decode("utf-8", "replace"), capability, units, memory.value)


def _attribute(library: ctypes.CDLL, device: ctypes.c_int, which: int) -> int:
    import ctypes

    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _words(library: ctypes.CDLL, status: int) -> str:
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
