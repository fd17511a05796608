"""Loading: NVRTC and NVIDIA's driver on this machine, where they are found, and which versions."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache as once
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.cache import content_key
from ge2.base.config import config, cuda_folders
from ge2.base.errors import CompilerTrouble, DeviceError
from ge2.base.record import after_fork, record
from ge2.base.source import pattern
from ge2.targets.cuda.limits import MORE_PARAMETERS, PARAMETERS, Limits

if TYPE_CHECKING:
    import ctypes


# -------- NVRTC on this machine: where it is, which it is, and its few functions.
# They are called through ctypes, which takes 20 ms to load the library and lets other threads run
# meanwhile; importing NVIDIA's own binding takes 200 to 300 ms, for the same few functions. Nothing
# here needs a GPU, and a process that finds all its kernels in the cache does not load the library
# at all.


INSTALL: Final = "pip install nvidia-cuda-nvrtc, or ge2[cuda13]; GE2_NVRTC=the path of libnvrtc.so"
OLDEST: Final = (12, 8)  # knows sm_100
PACKAGES: Final = ("cu13", "cuda_nvrtc")  # folders of NVIDIA's packages, the newer first
NUMBERED: Final = pattern(r"\.so(\.\d+)*$")


@final
@record
class Place:
    """A library that was found. `identity`: another file has another one; asking loads nothing."""

    path: str
    identity: str


@final
class Nvrtc:
    """The loaded library. `functions` checks what it is given, and releases Python's lock."""

    __slots__ = ("functions", "path", "version")

    def __init__(self, path: str, functions: ctypes.CDLL) -> None:
        self.path, self.functions = path, functions
        self.version = _version(functions)

    def architectures(self) -> tuple[str, ...]:
        """Returns what it can compile for, without the variants of a letter: sm_80, sm_90, ..."""
        import ctypes

        count = ctypes.c_int()
        self.functions.nvrtcGetNumSupportedArchs(count)
        numbers = (ctypes.c_int * count.value)()
        self.functions.nvrtcGetSupportedArchs(numbers)
        return tuple(f"sm_{n}" for n in numbers)


def place() -> Place:
    """The library of the settings, not loaded yet. CompilerTrouble if there is none."""
    return _place(config.nvrtc)


def loaded_nvrtc() -> Nvrtc:
    """The library of the settings, loaded. CompilerTrouble if there is none, or it is damaged."""
    path = place().path
    with _lock:
        return _loaded(path)


_lock = Lock()


@once
def _place(setting: str) -> Place:
    if setting == "none":
        raise CompilerTrouble("GE2_NVRTC=none asks for no CUDA compiler", fix="unset GE2_NVRTC")
    path = setting or library_path("libnvrtc", *PACKAGES)
    if not path:
        raise CompilerTrouble("there is no CUDA compiler: NVRTC is not installed", fix=INSTALL)
    try:
        state = os.stat(path)
    except OSError as error:
        raise CompilerTrouble(
            f"NVRTC cannot be used: {path}: {error.strerror}", fix=INSTALL
        ) from error
    real = os.path.realpath(path)
    return Place(path, content_key("nvrtc", real, str(state.st_size), str(state.st_mtime_ns)))


def library_path(name: str, *packages: str) -> str:
    """Returns where a library of NVIDIA's is: in the folder of a Python package, or in a
    toolkit; "" for nowhere.
    """
    for folder in (*_package_folders(packages), *cuda_folders()):
        paths = glob.glob(os.path.join(glob.escape(folder), f"{name}.so*"))
        found = [path for path in paths if NUMBERED.search(path) and os.path.isfile(path)]
        if found:
            return min(found, key=len)
    return ""


def _package_folders(packages: tuple[str, ...]) -> Iterator[str]:
    from importlib.util import find_spec

    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for package in packages:
        yield from (os.path.join(root, package, "lib") for root in roots)


# ------------------------------------------------------------------------------------------ loading


@once
def _loaded(path: str) -> Nvrtc:
    import ctypes

    try:
        for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so*")):
            # it looks for them by name alone, and finds what is loaded already
            ctypes.CDLL(builtins)
        found = Nvrtc(path, _declared(ctypes.CDLL(path)))
    except (OSError, AttributeError) as error:
        raise CompilerTrouble(
            f"NVRTC cannot be loaded from {path}: {error}", fix=INSTALL
        ) from error
    if found.version < OLDEST:
        what = "NVRTC {}.{} is too old: it knows neither our options nor".format(*found.version)
        raise CompilerTrouble(f"{what} today's GPUs", where=path, fix=INSTALL)
    return found


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p

    program, size, text = c_void_p, POINTER(c_size_t), c_char_p
    texts, number = POINTER(c_char_p), POINTER(c_int)
    declared: dict[str, tuple[Any, ...]] = {
        "nvrtcVersion": (number, number),
        "nvrtcGetNumSupportedArchs": (number,),
        "nvrtcGetSupportedArchs": (number,),
        "nvrtcCreateProgram": (POINTER(program), text, text, c_int, texts, texts),
        "nvrtcDestroyProgram": (POINTER(program),),
        "nvrtcCompileProgram": (program, c_int, texts),
        "nvrtcGetCUBINSize": (program, size),
        "nvrtcGetCUBIN": (program, text),
        "nvrtcGetPTXSize": (program, size),
        "nvrtcGetPTX": (program, text),
        "nvrtcGetProgramLogSize": (program, size),
        "nvrtcGetProgramLog": (program, text),
    }
    for name, types in declared.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    library.nvrtcGetErrorString.argtypes = (c_int,)
    library.nvrtcGetErrorString.restype = c_char_p
    return library


def _version(functions: ctypes.CDLL) -> tuple[int, int]:
    import ctypes

    major, minor = ctypes.c_int(), ctypes.c_int()
    functions.nvrtcVersion(major, minor)
    return major.value, minor.value


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = Lock()


# -------- NVIDIA's driver and the GPUs that it knows, asked through its own library, which comes
# with it.


LIBRARY: Final = "libcuda.so.1"
KERNEL_MODULE: Final = "/sys/module/nvidia/version"
NO_DEVICE: Final = 100
# attributes of a device, by the driver's numbers; kHz and bits
MAJOR, MINOR, CLOCK, WIDTH = 75, 76, 36, 37
ATTRIBUTES: Final = {
    "multiprocessors": 16,
    "threads_per_block": 1,
    "threads_per_multiprocessor": 39,
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
        return Driver(cuda, _driver_version(), (), f"cuInit says {words(library, status)}")
    gpus = _gpus(library) if status == 0 else ()
    return Driver(
        cuda, _driver_version(), tuple(replace(each, parameters=parameters(cuda)) for each in gpus)
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


def _driver_version() -> str:
    try:
        with open(KERNEL_MODULE, encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # inside some containers
        return ""
