"""The C compiler of this machine: which it is, what it makes code for, and which options it takes.

Finding it again costs two looks at the disk: its version and the options it takes are
kept in the cache, for as long as the compiler's file does not change. Its options are
tried only when a compilation fails.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache as once
from itertools import pairwise
from threading import Lock
from typing import Final, final

from ge2.base.cache import cache, content_key
from ge2.base.command import Outcome, TookTooLong, run_together, workplace
from ge2.base.config import allowed_cores, compiler_variables, config, program_path
from ge2.base.errors import CompilerTrouble
from ge2.base.record import after_fork, record
from ge2.base.source import warn

CANDIDATES: Final = ("cc", "gcc", "clang")
FLAGS: Final = (
    "-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fwrapv",
)  # fmt: skip
# of gcc: passes that take it 8 % of the time that it takes for our kernels, which are no slower
# without
WITHOUT: Final = (
    "-fno-gcse", "-fno-store-merging", "-fno-tree-switch-conversion",
    "-fno-tree-tail-merge", "-fno-crossjumping", "-fno-optimize-sibling-calls",
    "-fno-isolate-erroneous-paths-dereference", "-fno-reorder-blocks-and-partition",
    "-fno-reorder-functions",
)  # fmt: skip
# tried in turn
DISPENSABLE: Final = (
    (), WITHOUT, (*WITHOUT, "-fopenmp"), (*WITHOUT, "-march=native"),
    (*WITHOUT, "-march=native", "-fopenmp"),
)  # fmt: skip
TRIAL: Final = """#include <complex.h>
#include <stdint.h>
#include <string.h>

int ge2_run(int64_t n, double *x) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) x[i] += creal(1.0 + 2.0 * I);
    return 0;
}
"""
ELSE: Final = "GE2_CC=the path of a C compiler; GE2_CC=none to do without"
PARTED: Final = "GE2_IN_PART"  # of a source that may be compiled in parts, each under one of these
NEVER: Final = 1e9  # seconds
SHOWN: Final = 4000  # characters of what a compiler says
CPU_WORDS: Final = (
    "vendor_id", "cpu family", "model", "flags", "Features", "isa", "uarch", "cpu",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part",
)  # fmt: skip


@final
@record
class Toolchain:
    """A compiler and how it is called.

    `target`: machine and CPU, since the code may run on no other.
    """

    command: tuple[str, ...]
    path: str
    version: str
    identity: str
    target: str
    flags: tuple[str, ...]


_lock = Lock()
_found: dict[tuple[str, str], Toolchain | None] = {}


def toolchain() -> Toolchain | None:
    """The compiler of the settings; None, with one warning, if there is none that works."""
    place = (config.cc, program_path())
    if place not in _found:
        with _lock:
            if place not in _found:
                _found[place] = _tried(config.cc)
    return _found[place]


def replaced(old: Toolchain, new: Toolchain | None) -> None:
    """From now on, the new toolchain is used in place of the old one; None:

    C is not compiled any more.
    """
    for place, tools in list(_found.items()):
        if tools == old:
            _found[place] = new


def _tried(setting: str) -> Toolchain | None:
    try:
        return identified(setting)
    except CompilerTrouble as trouble:
        excuse(trouble)
        return None


def identified(setting: str) -> Toolchain:
    """The compiler that a setting names; "": that of this machine.

    CompilerTrouble says why there is none.
    """
    if setting == "none":
        what = "GE2_CC=none asks for no compiler"
        raise CompilerTrouble(what, fix="GE2_EXECUTOR=blocked, which says nothing")
    return _identified(_command(setting))


def excuse(trouble: CompilerTrouble) -> None:
    """Says, once a process, that NumPy runs where C should."""
    warn(f"C kernels are not compiled, NumPy runs instead: {trouble}", once="no C compiler")


def time_limit() -> float:
    """Seconds that a compilation may take."""
    return config.compile_timeout or NEVER


# ---------------------------------------------------------------------------------------- who it is


def _command(setting: str) -> tuple[str, ...]:
    """The words that start the compiler, the first of them a path."""
    if not setting:
        path = next(filter(None, map(_which, CANDIDATES)), None)
        if path is None:
            raise CompilerTrouble("there is no C compiler", fix=f"install gcc or clang; {ELSE}")
        return (path,)
    words = [setting] if os.path.exists(setting) else _words(setting)
    path = _which(words[0]) if words else None
    if path is None:
        raise CompilerTrouble(f"there is no program {setting!r}, which GE2_CC names", fix=ELSE)
    return (path, *words[1:])


def _words(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return []


def _which(name: str) -> str | None:
    """The program of a name; a path is its own."""
    folders = [""] if os.path.dirname(name) else program_path().split(os.pathsep)
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, name))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _identified(command: tuple[str, ...]) -> Toolchain:
    path = os.path.realpath(command[0])
    state = os.stat(path)
    cpu = _cpu()
    target = f"{os.uname().sysname} {os.uname().machine} {content_key(cpu)}"
    file = f"{path} {state.st_size} {state.st_mtime_ns}"
    identity = content_key(file, *command, *compiler_variables())
    kept = cache().get(_record_key(identity, target))
    if kept is not None:
        version, *flags = kept.decode().split("\n")
        return Toolchain(command, path, version, identity, target, tuple(flags))
    # without a name for the target it has none
    flags = [f for f in FLAGS if cpu or f != "-march=native"]
    version = _version(command)
    flags += WITHOUT if of_gcc(version) else ()
    tools = Toolchain(command, path, version, identity, target, tuple(flags))
    _remember(tools)
    return tools


def of_gcc(version: str) -> bool:
    """True of gcc, which may have another name, and of what takes its options."""
    return "clang" not in version


def _record_key(identity: str, target: str) -> str:
    return content_key("toolchain", *FLAGS, *WITHOUT, identity, target)


def _remember(tools: Toolchain) -> None:
    text = "\n".join((tools.version, *tools.flags))
    about = {"kind": "compiler", "name": "C compiler", "compiler": tools.version}
    about["options"] = " ".join(tools.flags)
    cache().put(_record_key(tools.identity, tools.target), text.encode(), about)


def _version(command: tuple[str, ...]) -> str:
    outcome = called((*command, "--version"), os.path.abspath(os.sep), time_limit())
    lines = outcome.output.split("\n")
    if outcome.status != 0 or not lines[0].strip():
        raise CompilerTrouble(
            f"{command[0]} --version {ending(outcome)}", where=said(outcome), fix=ELSE
        )
    return lines[0].strip()[:200]


@once
def _cpu() -> str:
    """The processor that `-march=native` stands for, as the system describes it; "" if it does not."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(1 << 16).split(b"\n\n")[0].decode("utf-8", "replace")
    except OSError:
        return _cpu_of_sysctl()
    lines = (line.partition(":") for line in first.splitlines())
    return "\n".join(
        f"{name.strip()}:{value}" for name, _, value in lines if name.strip() in CPU_WORDS
    )


@once
def has_long_vectors() -> bool:
    """True if the processor has vectors of 64 bytes."""
    return "avx512f" in _cpu().split()


@once
def processor_name() -> str:
    """The processor as its maker calls it; the machine's kind where the system does not say."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            lines = file.read(1 << 12).decode("utf-8", "replace").splitlines()
    except OSError:
        return _cpu_of_sysctl() or os.uname().machine
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or os.uname().machine


def _cpu_of_sysctl() -> str:
    import ctypes

    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return ""
    size = ctypes.c_size_t(256)
    text = ctypes.create_string_buffer(size.value)
    failed = ask(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------- what it does


@final
class Hang(CompilerTrouble):
    """The compiler did not end in time; asking it again would cost as long."""


def called(command: tuple[str, ...], folder: str, seconds: float) -> Outcome:
    return called_together([command], folder, seconds)[0]


def called_together(commands: list[tuple[str, ...]], folder: str, seconds: float) -> list[Outcome]:
    name = commands[0][0]
    try:
        return run_together(commands, folder, seconds)
    except TookTooLong:
        what = f"{name} took longer than {config.compile_timeout} s and was stopped"
        raise Hang(what, fix=f"GE2_COMPILE_TIMEOUT=seconds; {ELSE}") from None
    except OSError as error:
        raise CompilerTrouble(f"{name} cannot be run: {error.strerror}", fix=ELSE) from error


def ending(outcome: Outcome) -> str:
    if outcome.status < 0:
        return f"was killed by signal {-outcome.status}"
    return f"ended with status {outcome.status}" if outcome.status else "said nothing"


def said(outcome: Outcome) -> str:
    text = outcome.output.strip()
    return f"{text[:SHOWN]} ..." if len(text) > SHOWN else text


def few_libraries(tools: Toolchain) -> tuple[str, ...]:
    """Options, last of the command, for a library that calls OpenMP, the compiler's own functions and
    the C library, which the process has: gcc's linker reads that for 9 ms. () where others may
    be needed.
    """
    if not of_gcc(tools.version) or not sys.platform.startswith("linux"):
        return ()
    openmp = ("-lgomp",) if "-fopenmp" in tools.flags else ()
    return ("-nodefaultlibs", *openmp, "-lgcc")


def build(
    tools: Toolchain,
    source: str,
    name: str,
    flags: tuple[str, ...],
    seconds: float,
    libraries: tuple[str, ...] = (),
) -> bytes:
    """A shared library of one C file. CompilerTrouble if the compiler gives none."""
    try:
        with workplace() as folder:
            return _built(tools, source, name, flags, seconds, libraries, folder)
    except OSError as error:
        what = f"there is no place for the files of a compilation: {error}"
        raise CompilerTrouble(what, fix="TMPDIR=a folder with space") from error


def _built(
    tools: Toolchain,
    source: str,
    name: str,
    flags: tuple[str, ...],
    seconds: float,
    libraries: tuple[str, ...],
    folder: str,
) -> bytes:
    file = _file_name(name)
    with open(os.path.join(folder, f"{file}.c"), "w", encoding="utf-8") as text:
        text.write(source)
    command = (*tools.command, *tools.flags, *flags)
    inputs = [f"{file}.c"]
    end = time.monotonic() + seconds
    jobs = min(source.count(PARTED), allowed_cores(), config.thread_count())
    if jobs > 1:
        inputs = _in_parts(command, file, name, folder, seconds, shares(source.count(PARTED), jobs))
    outcome = called(
        (*command, *inputs, "-o", f"{file}.so", *libraries),
        folder,
        max(end - time.monotonic(), 0.0),
    )
    _check(outcome, command[0], name)
    try:
        with open(os.path.join(folder, f"{file}.so"), "rb") as made:
            return made.read()
    except FileNotFoundError:
        what = f"{tools.command[0]} compiling {name} wrote no library"
        raise CompilerTrouble(what, where=said(outcome), fix=ELSE) from None


def _in_parts(
    command: tuple[str, ...],
    file: str,
    name: str,
    folder: str,
    seconds: float,
    parts: list[tuple[int, int]],
) -> list[str]:
    """The parts of a large source, some each by compilers that run at once."""
    objects = [f"{file}{first}.o" for first, _ in parts]
    calls = [
        (*command, "-c", f"-DGE2_FIRST={first}", f"-DGE2_LAST={last}", f"{file}.c", "-o", made)
        for made, (first, last) in zip(objects, parts, strict=True)
    ]
    for outcome in called_together(calls, folder, seconds):
        _check(outcome, command[0], name)
    return objects


def shares(parts: int, jobs: int) -> list[tuple[int, int]]:
    """The first and the last part that each of some jobs takes.

    >>> shares(8, 3)
    [(1, 2), (3, 5), (6, 8)]
    """
    bounds = [parts * job // jobs for job in range(jobs + 1)]
    return [(first + 1, last) for first, last in pairwise(bounds)]


def _check(outcome: Outcome, compiler: str, name: str) -> None:
    if outcome.status != 0:
        what = f"{compiler} compiling {name} {ending(outcome)}"
        raise CompilerTrouble(what, where=said(outcome), fix=ELSE)


def _file_name(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)[:60] or "kernel"


def settled(tools: Toolchain, check: Callable[[bytes], None], end: float) -> Toolchain | None:
    """The toolchain with the options that it can do, found by trials; None if it can do nothing.

    `check(content)` raises CompilerTrouble for a library that cannot be
    loaded. `end`: when to give up.
    """
    for left_out in DISPENSABLE:
        tried = replace(tools, flags=tuple(f for f in tools.flags if f not in left_out))
        try:
            check(build(tried, TRIAL, "trial", (), max(end - time.monotonic(), 0.0)))
        except Hang:
            return None
        except CompilerTrouble:
            continue
        if tried != tools:
            _remember(tried)
        return tried
    return None


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = Lock()
