"""C and the emulator's C++ compiled in half of the time, where a test is not about what
optimisation does: at -Og, with the header that all sources begin with compiled already, and
linked to no library, since the process has the functions of those that the code needs. A large
source is compiled whole: in parts, at once, it would take half as much time again, and the other
cores have other tests.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from ge2.base import compiler, detect
from ge2.base.cache import content_key
from ge2.base.command import TookTooLong, run
from ge2.base.config import brief_waits
from ge2.base.detect import Toolchain
from ge2.targets.cuda.emulator import shim as build

FULL = detect.FLAGS
CORES = detect.allowed_cores
EMULATED = build.QUICK
WATCH, LIBRARIES = build.WATCH, build.LIBRARIES
WATCH_ALONE = tuple(flag for flag in WATCH if not flag.startswith(("-l", "-Wl")))
SHARED = ("libm.so.6", "libgcc_s.so.1", "libgomp.so.1")
# what every source of C includes first, and no more, so that what one forgets is missed; of CUDA,
# where NVRTC misses it in other tests, what most include
CORE = '#ifndef GE2_CORE_H\n#include "{folder}/c/include/ge2/core.h"\n#endif\n'
OFTEN = "".join(
    f'#include "ge2/{name}.cuh"\n' for name in ("core", "float", "pack", "team", "cast")
)
SHIM = f'#include "{{folder}}/cuda/shim/shim.h"\nnamespace {{{{\n{OFTEN}}}}}\n'


def compile_quickly(quick: bool, emulator: bool | None = None) -> None:
    """Sets the options of the compilers that were found, and of those that will be; the emulator's
    may be others.
    """
    emulator = quick if emulator is None else emulator
    extra = more()
    build.QUICK = swapped(EMULATED, "-O1", "-Og") if emulator else EMULATED
    build.QUICK += extra if emulator and not quick else ()
    build.LIBRARIES, build.WATCH = ((), WATCH_ALONE) if emulator and extra else (LIBRARIES, WATCH)
    detect.FLAGS = (*swapped(FULL, "-O3", "-Og"), *extra) if quick else FULL
    detect.allowed_cores = (lambda: 1) if quick else CORES
    for place, tools in list(detect._found.items()):
        if tools is not None and ("-Og" in tools.flags) != quick:
            flags = tuple(flag for flag in tools.flags if flag not in extra)
            flags = (
                (*swapped(flags, "-O3", "-Og"), *extra) if quick else swapped(flags, "-Og", "-O3")
            )
            detect._found[place] = replace(tools, flags=flags)


def swapped(flags: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(new if flag == old else flag for flag in flags)


@cache
def more() -> tuple[str, ...]:
    """The options beside -Og; none where the compiler is not gcc, or not on Linux.

    What is linked to nothing finds the functions of `SHARED` in the process, where linking to those
    libraries takes 9 ms of the 57 of a small source; what constructors of C++ and link-time
    optimisation need, which none has, takes one more.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is none, which is no fault of the first test
        tools = detect.toolchain()
    if tools is None or "clang" in tools.version or not sys.platform.startswith("linux"):
        return ()
    c = (*swapped(tools.flags, "-O3", "-Og"), *compiler._include())
    cuda = (*c, *build.FLAGS, *swapped(EMULATED, "-O1", "-Og"), *build._include())
    digests = build._folder(), compiler.include_digest(), build._digest()
    key = content_key(*digests, tools.version, CORE, SHIM, *cuda, *WATCH_ALONE)
    place = Path(os.environ["GE2_CACHE_DIR"], "headers-of-tests", key)
    shim, cuda = place / "shim/shim.h", (*cuda, "-x", "c++-header")
    with suppress(OSError, TookTooLong), one_process(place):
        compile_header(tools, (*c, "-x", "c-header"), place / "ge2/core.h", CORE)
        compile_header(tools, cuda, shim, SHIM)
        compile_header(tools, (*cuda, *WATCH_ALONE), shim, SHIM, "watched")
        with brief_waits():
            for name in SHARED:
                ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        return (f"-I{place}", "-nodefaultlibs", "-nostartfiles", "-fno-use-linker-plugin")
    return ()


@contextmanager
def one_process(place: Path) -> Iterator[None]:
    """Others wait, and find what it makes: seconds of each."""
    import fcntl  # which Windows has not

    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_header(
    tools: Toolchain, flags: tuple[str, ...], path: Path, text: str, kind: str = "plain"
) -> None:
    """A header, and in a folder beside it what gcc takes in its place where the options are the
    same.
    """
    folder = path.with_name(f"{path.name}.gch")
    if (folder / kind).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(f".{os.getpid()}")
    made.write_text(text.format(folder=Path(build._folder()).parent))
    os.replace(made, path)
    outcome = run((*tools.command, *flags, str(path), "-o", str(made)), str(path.parent), 60.0)
    if outcome.status:
        raise OSError(outcome.output)
    os.replace(made, folder / kind)
