"""CUDA sources as C++ for the CPU: translated, and compiled with the emulator's runtime."""

from __future__ import annotations

import os
import re
import sys
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache as once
from functools import lru_cache
from typing import Any, Final, final

from ge2.base.cache import cache
from ge2.base.command import TookTooLong, run, workplace
from ge2.base.compiler import Library, folders_digest, is_known, library
from ge2.base.errors import CompileError, CompilerTrouble
from ge2.base.record import record
from ge2.base.source import templates

# -------- A CUDA source as C++ for the CPU: it stands between the emulator's words and a list of the
# kernels found in it.
# All of it stands in an unnamed namespace, so that nothing in it meets a name of the C library.


COMMENTS: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)
KERNEL: Final = re.compile(
    r"""extern\s+"C"\s+
        (?: (?:__global__|void|__launch_bounds__\s*\((?P<bounds>[^()]*(?:\([^()]*\)[^()]*)*)\)) \s+ )+
        (?P<name>\w+)\s*\(""",
    re.VERBOSE,
)
DYNAMIC: Final = re.compile(
    r"""extern\s+__shared__\s+
        (?: (?:alignas|__align__)\s*\([^()]*\)\s* )?
        (?P<type>[\w:<>,\s]+?)\s*\b(?P<name>\w+)\s*\[\s*\](?P<rest>(?:\s*\[[^\]]*\])*)\s*;""",
    re.VERBOSE,
)


@final
@record
class Entry:
    """A kernel of a source. `most_threads`: of its launch bounds, where they are a number."""

    name: str
    most_threads: int | None


def entries(source: str) -> tuple[Entry, ...]:
    """The kernels of a source, which are declared as `extern "C" __global__ void name(`.

    >>> entries('extern "C" __global__ void __launch_bounds__(256) f(int n) {}')
    (Entry(name='f', most_threads=256),)
    """
    found = {}
    for match in KERNEL.finditer(COMMENTS.sub(r"\1 ", source)):
        if "__global__" in match[0]:
            found[match["name"]] = Entry(match["name"], _bound(match["bounds"], source))
    if not found:
        raise CompileError(
            "a CUDA source has no kernel", fix='extern "C" __global__ void name(...)'
        )
    return tuple(found.values())


def _bound(words: str | None, source: str) -> int | None:
    """The first of the launch bounds, if it is a number or a constant of the source."""
    first = (words or "").split(",")[0].strip()
    constant = (
        re.search(rf"constexpr\s+int\s+{first}\s*=\s*(\d+)\s*;", source)
        if first.isidentifier()
        else None
    )
    number = constant[1] if constant else first
    return int(number) if number.isdecimal() else None


def as_cpp(source: str, name: str) -> str:
    """The C++ that a source becomes; its lines keep their numbers."""
    kernels = "\n".join(f"GE2_SHIM_KERNEL({entry.name})" for entry in entries(source))
    body = DYNAMIC.sub(_pointer, source)
    return "\n".join(
        (
            '#include "shim/shim.h"',
            "namespace {",
            f'#line 1 "{name}.cu"',
            body,
            "}",
            "GE2_SHIM_MODULE",
            kernels,
            "",
        )
    )


def _pointer(found: re.Match[str]) -> str:
    """Shared memory whose size the launch gives has one address."""
    kind, name, rest = found["type"].strip(), found["name"], found["rest"]
    of = (
        f"{kind} (*const {name}){rest} = ({kind} (*){rest})"
        if rest
        else f"{kind} *const {name} = ({kind} *)"
    )
    return f"{of}ge2_shim_dynamic;" + "\n" * found[0].count("\n")


# -------- The runtime of the emulator and the sources that it runs, compiled by the C compiler and kept
# by the cache.


FLAGS: Final = (
    "-x", "c++", "-std=c++17", "-fno-openmp", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics",
    "-fno-strict-aliasing", "-fvisibility=hidden",
)  # fmt: skip
FRAME: Final = 96 << 10  # bytes of local variables, for which a fiber's stack has room
QUICK: Final = ("-O1", "-fdata-sections", f"-Werror=frame-larger-than={FRAME}")
LIBRARIES: Final = ("-Wl,--no-as-needed", "-lm")
WATCH: Final = (
    "-DGE2_SHIM_WATCH", "-gdwarf-4", "-g1", "-fsanitize=thread,bounds,alignment,null",
    "--param", "tsan-distinguish-volatile=1", "--param", "tsan-instrument-func-entry-exit=0",
    "-nodefaultlibs", "-Wl,--no-as-needed", "-lgcc_s", "-lc",  # without those of the sanitizers
)  # fmt: skip
RUNTIME: Final = '#include "shim/runtime.cc"\n'


class Place(Structure):
    _fields_ = (("x", c_uint32), ("y", c_uint32), ("z", c_uint32))


class Span(Structure):
    """`ge2_shim_span` of abi.h."""

    _fields_ = (("begin", c_uint64), ("end", c_uint64), ("argument", c_int64))


class Launch(Structure):
    """`ge2_shim_launch_of` of abi.h."""

    _fields_ = (
        ("grid", Place),
        ("block", Place),
        ("dynamic", c_uint64),
        ("seed", c_uint64),
        ("spans", POINTER(Span)),
        ("span_count", c_int),
        ("closed", c_int),
        ("watched", c_int),
        ("waits", c_int),
    )


class Report(Structure):
    """`ge2_shim_report` of abi.h."""

    _fields_ = (
        ("code", c_int),
        ("has_thread", c_int),
        ("block", Place),
        ("thread", Place),
        ("code_at", c_uint64 * 2),
        ("site", c_char * 160),
        ("text", c_char * 480),
    )


class Parameter(Structure):
    """`ge2_shim_parameter` of abi.h."""

    _fields_ = (("kind", c_int), ("size", c_int))


class Kernel(Structure):
    """`ge2_shim_kernel` of abi.h."""

    _fields_ = (
        ("name", c_char_p),
        ("call", c_void_p),
        ("parameters", POINTER(Parameter)),
        ("count", c_int),
    )


class Module(Structure):
    """`ge2_shim_module` of abi.h."""

    _fields_ = (
        ("runtime", c_void_p),
        ("shared", c_void_p),
        ("shared_end", c_void_p),
        ("dynamic", c_void_p),
        ("dynamic_size", c_uint64),
        ("code", c_void_p),
        ("end", c_void_p),
        ("fenced", c_uint64),
    )


LAUNCH: Final = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(Launch), POINTER(Report))


@once
def launcher() -> Any:
    """The function that runs a kernel. CompilerTrouble if it cannot be compiled."""
    found = library(
        RUNTIME, "CUDA shim", (*FLAGS, "-O2", *_include()), _digest(), symbol="ge2_shim_launch"
    )
    return LAUNCH(found.address("ge2_shim_launch"))


@lru_cache(1024)
def compiled(source: str, watched: bool) -> Library:
    """The library of a CUDA source; `watched`: each access is shown to the runtime.

    CompileError with what the compiler says.
    """
    name = entries(source)[0].name
    try:
        return library(
            as_cpp(source, name), name, _flags(watched), _digest(), symbol="ge2_shim_module_of"
        )
    except CompilerTrouble as trouble:
        raise CompileError(f"the CUDA source of {name} is no C++", where=_told(trouble)) from None


def is_compiled(source: str, watched: bool) -> bool:
    """True if the library of a CUDA source is there already."""
    return is_known(as_cpp(source, entries(source)[0].name), _flags(watched), _digest())


def lines(module: Library, places: list[int]) -> list[str]:
    """The lines of the source, "file:line", to which places in a watched library
    belong, if one can tell.
    """
    content = cache().get(module.key)
    if content is None:
        return []
    with workplace() as folder:
        path = os.path.join(folder, "library.so")
        with open(path, "wb") as file:
            file.write(content)
        try:
            outcome = run(("addr2line", "-e", path, *map(hex, places)), folder, 10.0)
        except (OSError, TookTooLong):
            return []
    found = (os.path.basename(line.split(" ")[0]) for line in outcome.output.splitlines())
    return [line for line in found if outcome.status == 0 and "?" not in line]


def _flags(watched: bool) -> tuple[str, ...]:
    return (*FLAGS, *QUICK, *_include(), *_script(), *(WATCH if watched else ()), *LIBRARIES)


def _told(trouble: CompilerTrouble) -> str:
    """Returns what the compiler says, without what it says of options for C."""
    return "\n".join(
        line for line in str(trouble).splitlines() if "is valid for C/ObjC" not in line
    )


def _folder() -> str:
    """Returns where the headers of CUDA kernels and those of the emulator are."""
    return templates("cuda")


def _include() -> tuple[str, ...]:
    folders = _folder(), os.path.join(_folder(), "include"), templates("include")
    return tuple(word for folder in folders for word in ("-I", folder))


def _script() -> tuple[str, ...]:
    """Returns how the linker sets shared memory together; where it cannot be told,
    blocks are not run in turns.
    """
    return (
        ("-T", os.path.join(_folder(), "shim", "shared.ld"))
        if sys.platform.startswith("linux")
        else ()
    )


@once
def _digest() -> str:
    """The contents of all that a source may include."""
    return folders_digest(_folder(), templates("include"))
