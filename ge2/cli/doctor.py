"""`ge2 doctor`: what ge2 needs and what it can use, whether it is there and
works, and how to mend it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.cache import cache
from ge2.base.config import allowed_cores, config
from ge2.base.detect import identified, settled, time_limit
from ge2.base.errors import CacheTrouble, DeviceError, Ge2Error
from ge2.base.record import record
from ge2.base.source import counted, size_words, table
from ge2.cli import deliver
from ge2.targets.c.libraries import get_threads
from ge2.targets.cuda.load import driver, library_path, loaded_nvrtc
from ge2.targets.cuda.load.nvrtc import compile, headers, include_folder

if TYPE_CHECKING:
    from ge2.targets.cuda.device import Device

EXTRA: Final = "pip install 'ge2[cuda13]'"
ARCH: Final = "sm_90a"  # for which a trial is compiled where there is no GPU
KERNEL: Final = 'extern "C" __global__ void trial(float *a) { a[threadIdx.x] *= 2.0f; }'
PATIENCE: Final = 120.0  # seconds that a program may take to import a package or to run a kernel
SCANT: Final = 64 << 20  # bytes
FLAWLESS, ABSENT, BROKEN = "ok", "absent", "broken"


@final
@record
class Line:
    """A finding. `fix`: what to do about it, if anything."""

    name: str
    state: str
    found: str
    fix: str = ""


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to a file, not to the screen")


def run_doctor(options: argparse.Namespace) -> int:
    """The exit code says whether something is broken; what is merely absent is no failure."""
    lines = [looked(name, look) for name, look in CHECKS.items()]
    broken = [line.name for line in lines if line.state == BROKEN]
    if options.json:
        checks = [
            {key: getattr(line, key) for key in ("name", "state", "found", "fix")} for line in lines
        ]
        deliver(json.dumps({"ok": not broken, "checks": checks}, indent=1), options.output)
    else:
        deliver(
            "\n".join([table([as_row(line) for line in lines]), "", verdict(lines)]), options.output
        )
    return 1 if broken else 0


def looked(name: str, look: Callable[[], Line]) -> Line:
    try:
        return look()
    except Ge2Error as error:
        return Line(name, BROKEN, *parted(error))


def parted(error: Ge2Error) -> tuple[str, str]:
    """The message of an error, and how it is to be mended."""
    what, *more = str(error).splitlines()
    return what, more[-1].removeprefix("  try  ") if more else ""


def as_row(line: Line) -> tuple[str, ...]:
    return line.state, line.name, f"{line.found}; try {line.fix}" if line.fix else line.found


def verdict(lines: list[Line]) -> str:
    broken = [line.name for line in lines if line.state == BROKEN]
    if broken:
        return f"broken: {', '.join(broken)}"
    gpu = next(line for line in lines if line.name == "GPU")
    return "what is there works" + ("" if gpu.state == FLAWLESS else "; ge2 computes on the CPU")


# ----------------------------------------------------------------------------------- what is needed


def python() -> Line:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    # an older one does not get here: pip refuses to install ge2
    return Line("Python", FLAWLESS, found)


def numpy() -> Line:
    import numpy as np

    wanted = (2, 1, 2)
    state = (
        FLAWLESS if np.lib.NumpyVersion(np.__version__) >= ".".join(map(str, wanted)) else BROKEN
    )
    return Line(
        "NumPy", state, np.__version__, "" if state == FLAWLESS else "pip install 'numpy>=2.1.2'"
    )


def c_compiler() -> Line:
    if config.cc == "none":
        return Line(
            "C compiler", ABSENT, "GE2_CC=none asks for none; NumPy runs instead", "unset GE2_CC"
        )
    try:
        tools = identified(config.cc)
    except Ge2Error as error:
        what, fix = parted(error)
        return Line(
            "C compiler", BROKEN if config.cc else ABSENT, f"{what}; NumPy runs instead", fix
        )
    works = settled(tools, lambda content: None, time.monotonic() + time_limit())
    if works is None:
        return Line(
            "C compiler", BROKEN, f"{tools.version} compiles nothing", "GE2_CC=another compiler"
        )
    lacks = [flag for flag in tools.flags if flag not in works.flags]
    return Line(
        "C compiler", FLAWLESS, tools.version + (f", without {' '.join(lacks)}" if lacks else "")
    )


def threads() -> Line:
    """Finding about threads: ours, those of the BLAS, and the cores there are."""
    cores, own = allowed_cores(), config.thread_count()
    name, count = blas_name(), get_threads()
    words = f"{counted(own, 'thread')} of ours on {counted(cores, 'core')}"
    words += " (GE2_THREADS)" if config.threads else ""
    if count is None:
        words += "; NumPy's BLAS does not tell its threads, and shares no products of ours"
        return Line("threads", FLAWLESS, words)
    words += f"; {name} has {count} in NumPy's own products, and 1 in each of ours, which our threads share"
    return Line("threads", FLAWLESS, words, "GE2_THREADS unset" if own > cores else "")


def blas_name() -> str:
    import numpy as np

    found: Any = np.show_config(mode="dicts")
    return str(found["Build Dependencies"]["blas"].get("name", "BLAS"))


OWN_FOLDER = "GE2_CACHE_DIR=a folder of your own"


def kept() -> Line:
    found = cache()
    if found.path is None:
        return Line("cache", ABSENT, "GE2_CACHE_DIR=none asks for none", "unset GE2_CACHE_DIR")
    try:
        found.check()
        entries = found.entries()
        free = shutil.disk_usage(found.path).free
    except CacheTrouble as error:
        what, fix = parted(error)
        return Line("cache", BROKEN, what, fix or OWN_FOLDER)
    except OSError as error:
        return Line("cache", BROKEN, f"{found.path}: {error.strerror}", OWN_FOLDER)
    size = size_words(sum(entry.size for entry in entries))
    words = f"{found.path} can be written; {len(entries)} entries, {size}; {size_words(free)} free"
    return Line("cache", FLAWLESS, words, "ge2 cache prune, to gain space" if free < SCANT else "")


# --------------------------------------------------------------------------------------------- CUDA


def nvidia_driver() -> Line:
    found = driver()
    if found is None:
        return Line(
            "NVIDIA driver",
            ABSENT,
            "there is none",
            "nvidia.com/drivers, if this machine has a GPU",
        )
    words = f"{found.version or 'of unknown version'}, runs CUDA {dotted(found.cuda)}"
    if found.trouble:
        return Line(
            "NVIDIA driver", BROKEN, f"{words}; {found.trouble}", "nvidia-smi; restart the machine"
        )
    if found.cuda < (13, 0):
        return Line("NVIDIA driver", BROKEN, words, "a driver of CUDA 13, 580 or newer")
    return Line("NVIDIA driver", FLAWLESS, words)


def gpu() -> Line:
    found = driver()
    if found is None or not found.gpus:
        fix = (
            "nvidia-smi, if this machine has one; CUDA_VISIBLE_DEVICES hides some" if found else ""
        )
        return Line("GPU", ABSENT, "there is none", fix)
    words = [
        f"{each.name}, {each.architecture}, {each.multiprocessors} multiprocessors, {size_words(each.memory)}"
        for each in found.gpus
    ]
    return Line("GPU", FLAWLESS, "; ".join(words))


def cuda_compiler() -> Line:
    if not config.nvrtc and not library_path("libnvrtc", "cu13", "cuda_nvrtc"):
        return Line("NVRTC", ABSENT, "not installed", f"{EXTRA}, or pip install nvidia-cuda-nvrtc")
    if config.nvrtc == "none":
        return Line("NVRTC", ABSENT, "GE2_NVRTC=none asks for none", "unset GE2_NVRTC")
    tools = loaded_nvrtc()
    tried(KERNEL, "trial")
    words, known = f"{dotted(tools.version)} at {tools.path}", driver()
    if known is None or tools.version <= known.cuda:
        return Line("NVRTC", FLAWLESS, words)
    words += f", newer than the driver's {dotted(known.cuda)}"
    if tools.version[0] == known.cuda[0]:  # what it makes for a GPU runs, PTX would not
        return Line("NVRTC", FLAWLESS, words)
    fix = f"pip install 'nvidia-cuda-nvrtc=={dotted(known.cuda)}.*'"
    return Line("NVRTC", BROKEN if known.gpus else FLAWLESS, words, fix)


def cuda_headers() -> Line:
    found = headers()
    if not found:
        return Line(
            "headers", BROKEN, f"{include_folder()} has none", "pip install --force-reinstall ge2"
        )
    if (
        not library_path("libnvrtc", "cu13", "cuda_nvrtc") and not config.nvrtc
    ) or config.nvrtc == "none":
        return Line("headers", FLAWLESS, f"{len(found)} in {include_folder()}, not tried")
    tried("".join(f'#include "{name}"\n' for name in found) + KERNEL, "headers")
    return Line("headers", FLAWLESS, f"{len(found)} in {include_folder()}; they compile")


def cupy() -> Line:
    names = sorted(
        {str(d.metadata["Name"]) for d in distributions() if is_cupy(str(d.metadata["Name"]))}
    )
    if not names:
        return Line("CuPy", ABSENT, "not installed", EXTRA)
    words = " and ".join(f"{name} {version(name)}" for name in names)
    if len(names) > 1:
        fix = f"pip uninstall {' '.join(names)}; {EXTRA}"
        return Line("CuPy", BROKEN, f"{words} disturb each other", fix)
    if driver() is None:
        return Line("CuPy", FLAWLESS, f"{words}, not tried: there is no driver")
    return imported("CuPy", "cupy", words)


def is_cupy(name: str) -> bool:
    return name == "cupy" or name.startswith("cupy-cuda")


def bindings() -> Line:
    return package("cuda-bindings", "cuda.bindings.driver")


def nvmath() -> Line:
    return package("nvmath-python", "nvmath")


def cublas() -> Line:
    return library(
        "cuBLASLt", "libcublasLt", "cublasLtGetVersion", ("cu13", "cublas"), "nvidia-cublas"
    )


def cudnn() -> Line:
    return library("cuDNN", "libcudnn", "cudnnGetVersion", ("cudnn",), "nvidia-cudnn-cu13")


def kernel() -> Line:
    """A kernel on each GPU, in a process of its own: what is broken here often ends the process."""
    found = driver()
    if found is None or not found.gpus:
        return Line("a kernel", ABSENT, "there is no GPU that could run one")
    if not any(is_cupy(str(d.metadata["Name"])) for d in distributions()):
        return Line("a kernel", ABSENT, "there is no CuPy to launch it", EXTRA)
    good, said = asked("-m", "ge2.cli.doctor")
    fix = "" if good else "what is said above; python -m ge2.cli.doctor, to see all of it"
    return Line("a kernel", FLAWLESS if good else BROKEN, said, fix)


CHECKS: Final[dict[str, Callable[[], Line]]] = {
    "Python": python,
    "NumPy": numpy,
    "C compiler": c_compiler,
    "threads": threads,
    "cache": kept,
    "NVIDIA driver": nvidia_driver,
    "GPU": gpu,
    "NVRTC": cuda_compiler,
    "headers": cuda_headers,
    "CuPy": cupy,
    "cuda-bindings": bindings,
    "cuBLASLt": cublas,
    "nvmath-python": nvmath,
    "cuDNN": cudnn,
    "a kernel": kernel,
}


# ---------------------------------------------------------------------------------- how it is asked


def tried(source: str, name: str) -> None:
    """Compiles a source now, whatever is kept."""
    with config.using(cache_dir="none"):
        compile(source, target(), name=name)


def target() -> str:
    """The architecture that trials are compiled for: the first GPU, or the one that most is written
    for.
    """
    found = driver()
    return found.gpus[0].architecture if found and found.gpus else ARCH


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def package(name: str, module: str) -> Line:
    try:
        return imported(name, module, version(name))
    except PackageNotFoundError:
        return Line(name, ABSENT, "not installed", EXTRA)


def imported(name: str, module: str, words: str) -> Line:
    good, said = asked("-c", f"import {module}")
    if good:
        return Line(name, FLAWLESS, words)
    return Line(name, BROKEN, f"{words} cannot be imported: {said}", f"{EXTRA} --force-reinstall")


def asked(*words: str) -> tuple[bool, str]:
    """The end of a program of Python's: True if it succeeded, and the last line that it prints."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {PATIENCE:.0f} s"
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    ending = (
        f"it was killed by signal {-done.returncode}" if done.returncode < 0 else "it says nothing"
    )
    return done.returncode == 0, said[-1] if said else ending


def library(name: str, stem: str, function: str, packages: tuple[str, ...], wheel: str) -> Line:
    """A library of NVIDIA's that reports its version."""
    path = library_path(stem, *packages)
    if not path:
        return Line(name, ABSENT, "not installed", f"{EXTRA}, or pip install {wheel}")
    ask = f"import ctypes; f = ctypes.CDLL({path!r}).{function}; f.restype = ctypes.c_size_t; print(f())"
    good, said = asked("-c", ask)
    if good:
        return Line(name, FLAWLESS, f"{said} at {path}")
    return Line(
        name, BROKEN, f"{path} cannot be loaded: {said}", f"pip install --force-reinstall {wheel}"
    )


# -------- A kernel compiled, loaded and launched on each GPU of this machine: what
# `python -m ge2.cli.doctor` does.


SIZE: Final = 1000


def trial() -> int:
    """Says how it went in its last line; an exception tells the rest."""
    from ge2.targets.cuda.load.gpu import gpu  # not for all that the doctor looks at

    known = driver()
    for number in range(len(known.gpus) if known else 0):
        with config.using(cache_dir="none"):
            try_on(gpu(number))
    count = len(known.gpus) if known else 0
    sys.stdout.write(f"it gives the right result on {count} GPU{'' if count == 1 else 's'}\n")
    return 0


def try_on(device: Device) -> None:
    """DeviceError if the kernel gives a wrong result."""
    from ge2.targets.cuda.load.gpu import probe

    kernel = device.module(probe("trial")).get_function("trial")
    with device.here():
        a = device.xp.arange(SIZE, dtype=np.float32)
        b = device.xp.empty_like(a)
        kernel(((SIZE + 255) // 256,), (256,), (a, b, np.int32(SIZE), np.float32(3.0)))
        found = device.xp.asnumpy(b)
    if not np.array_equal(found, np.arange(SIZE, dtype=np.float32) * 3):
        raise DeviceError(
            f"{device.limits.name} computes wrong results", fix="nvidia-smi -q, for its errors"
        )


if __name__ == "__main__":
    raise SystemExit(trial())
