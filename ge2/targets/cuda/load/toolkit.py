"""NVRTC on this machine: where it is, which it is, and its few functions.

They are called through ctypes, which takes 20 ms to load the library and lets other
threads run meanwhile; importing NVIDIA's own binding takes 200 to 300 ms, for the same
few functions. Nothing here needs a GPU, and a process that finds all its kernels in the
cache does not load the library at all.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import cache as once
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.cache import content_key
from ge2.base.config import config, cuda_folders
from ge2.base.errors import CompilerTrouble
from ge2.base.formatting import pattern
from ge2.base.interpreter import after_fork
from ge2.base.record import record

if TYPE_CHECKING:
    import ctypes

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


def nvrtc() -> Nvrtc:
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
