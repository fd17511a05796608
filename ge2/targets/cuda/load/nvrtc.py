"""CUDA sources compiled to cubins: their headers, calls of NVRTC, and its messages."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache as once
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Final, final

from ge2.base.cache import VERSION, cache, content_key
from ge2.base.compile_times import note
from ge2.base.compiler import headers_key, options_of
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError, CompilerTrouble
from ge2.base.record import after_fork, record
from ge2.base.source import logger, pattern, templates
from ge2.targets.cuda.load import Nvrtc, loaded_nvrtc, place

if TYPE_CHECKING:
    import ctypes


# -------- What NVRTC says, read: the registers and spills of each kernel, and errors with their
# lines marked.


ENTRY: Final = pattern(r"Compiling entry function '([^']+)'")
PROPERTIES: Final = pattern(r"Function properties for (\S+)")
FRAME: Final = pattern(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
USED: Final = pattern(r"Used (\d+) registers")
STACK: Final = pattern(r"(\d+) bytes cumulative stack size")
SHARED: Final = pattern(r"(\d+) bytes smem")
TIME: Final = pattern(r"^ptxas info    : Compile time = .*\n?", re.MULTILINE)
ERROR: Final = pattern(r"^(.+)\((\d+)\): (?:catastrophic )?error(?: #\S+)?: (.+)$", re.MULTILINE)
ASSEMBLER: Final = pattern(
    r"^\0?(?:nvrtc: error: |ptxas .*?(?:error|fatal) *: )(.+)$", re.MULTILINE
)  # of what stands in no line; ptxas begins where the log so far ends, with a character of value 0
AROUND: Final = 2  # lines that are shown before and behind the one at fault


@final
@record
class Usage:
    """The resources that a kernel takes of the device.

    `stack`, `spills`, `shared`: bytes, of shared memory the fixed ones.

    `spills` are of stores and loads together, those of functions that are
    called and not inlined too.
    """

    name: str
    registers: int
    spills: int = 0
    stack: int = 0
    shared: int = 0


def usages(log: str) -> tuple[Usage, ...]:
    """The kernels that a log of `--ptxas-options=-v` tells of, by name."""
    kernels: dict[str, dict[str, int]] = {}
    called = 0
    entry = function = ""
    for line in log.splitlines():
        if found := ENTRY.search(line):
            entry = found[1]
            kernels[entry] = {"registers": 0, "spills": 0}
        elif found := PROPERTIES.search(line):
            function = found[1]
        elif found := FRAME.search(line):
            stack, spills = int(found[1]), int(found[2]) + int(found[3])
            if function in kernels:
                kernels[function] |= {"stack": stack, "spills": spills}
            else:
                called += spills
        elif entry and (found := USED.search(line)):
            kernels[entry] |= {"registers": int(found[1]), **_sizes(line)}
    for figures in kernels.values():
        figures["spills"] += called
    made = (Usage(name, **figures) for name, figures in kernels.items())
    return tuple(sorted(made, key=lambda each: each.name))


def _sizes(line: str) -> dict[str, int]:
    sizes = {"stack": STACK.search(line), "shared": SHARED.search(line)}
    return {name: int(found[1]) for name, found in sizes.items() if found}


def steady(log: str) -> str:
    """A log without what is another each time."""
    return TIME.sub("", log).strip("\0 \n")


@final
@record
class Fault:
    """The first error of a log: in words, where, and how many more there are."""

    words: str
    place: str
    more: int


def fault(log: str, texts: Mapping[str, str]) -> Fault:
    """Returns what a log says was wrong; `texts` are the sources by the names that the log gives
    them.
    """
    errors = ERROR.findall(log)
    if not errors:
        plain = ASSEMBLER.findall(log)
        return Fault(
            plain[0].strip() if plain else "it gives no reason", log.strip(), max(len(plain) - 1, 0)
        )
    file, line, words = errors[0]
    marked = excerpt(texts[file], int(line)) if file in texts else ""
    return Fault(words.strip(), f"{file}:{line}\n{marked}".rstrip(), len(errors) - 1)


def excerpt(source: str, line: int) -> str:
    """The line and those around it, numbered.

    >>> print(excerpt("a\\nb\\nc\\nd\\ne\\nf", 2))
        1 | a
    >   2 | b
        3 | c
        4 | d
    """
    lines = source.splitlines()
    shown = range(max(line - AROUND, 1), min(line + AROUND, len(lines)) + 1)
    return "\n".join(f"{'>' if n == line else ' '} {n:3} | {lines[n - 1]}".rstrip() for n in shown)


# -------- The headers of CUDA kernels, and a source without its comments.


COMMENTS: Final = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)


@once
def include_folder() -> str:
    """The headers of CUDA kernels, where a wheel puts them, or where a checkout keeps them."""
    return templates("cuda", "include")


def folders() -> tuple[str, ...]:
    """Returns where our headers are: those of CUDA, and those that C has, too."""
    return include_folder(), templates("include")


def headers() -> list[str]:
    """The names by which those of the folder are included."""
    root = include_folder()
    found = [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    return sorted(os.path.relpath(path, root) for path in found if path.endswith(".cuh"))


@lru_cache(128)
def told(source: str) -> str:
    """A source without its comments, each line where it was: the binary tells
    the lines of the source.

    >>> told("a; // of model.py:3\\nchar *b = \\"// no\\"; /* the\\n rest */ c;")
    'a;\\nchar *b = "// no";\\n c;'
    """
    bare = COMMENTS.sub(_without_words, source)
    return "\n".join(line.rstrip() for line in bare.split("\n"))


def _without_words(found: re.Match[str]) -> str:
    return found[1] if found[1] is not None else " " + "\n" * found[0].count("\n")


# -------- CUDA sources as cubins, compiled by NVRTC with no GPU at hand: once a machine, several at
# once.
# A cubin depends on nothing but what its key holds, and comes with what the compiler said, from
# which the figures of its kernels are read. It is kept in the cache, and in the process, so where
# no disk can be written nothing is compiled twice either.


FLAGS: Final = (
    "-std=c++17", "-lineinfo", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false",
    "--ptxas-options=-v",
    "--device-as-default-execution-space",  # functions of a user's helpers, which C compiles too
    "--no-cache",  # NVRTC's own tells no registers of what it finds there
    "--minimal",  # no textures, no launches from kernels: a tenth of the time
    "--modify-stack-limit=false",  # or it changes a limit of the whole process while it works
)  # fmt: skip
OLD: Final = "sm_80"  # PTX of it is what any later GPU takes
PTX_FLAGS: Final = ("--gpu-architecture=compute_80", "-std=c++17", "--minimal")
VERSION_LINE: Final = re.compile(
    rb"\.version \d+\.\d+"
)  # a driver refuses that of a toolkit newer than it is
KERNEL: Final = pattern(
    r"__global__\s+(?:void\s+)?(?:__launch_bounds__\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\("
)
KEPT: Final = 1024  # binaries that a process keeps, of which the oldest is forgotten
ARCHITECTURE: Final = pattern(r"sm_\d{2,3}[af]?")
MISSPELT: Final = 5  # what NVRTC returns for an option that it does not take
HEAD: Final = struct.Struct("<QQ")  # bytes of the cubin, bytes of the log


@final
@record
class Order:
    """A source to be compiled. `name`: the file's in messages; "": that of the first kernel in it.

    `about` is for a list of the cache.

    >>> Order('extern "C" __global__ void __launch_bounds__(256) softmax(float *a) {', "sm_90a").file
    'softmax.cu'
    """

    source: str
    arch: str
    options: tuple[str, ...] = ()
    name: str = ""
    about: tuple[tuple[str, str], ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """The options, and those that the source says."""
        return (*self.options, *options_of(self.source))

    @property
    def file(self) -> str:
        found = None if self.name else KERNEL.search(self.source)
        return f"{found[1] if found else self.name or 'kernel'}.cu"


@final
@record
class Binary:
    """A cubin.

    `log`: what the compiler said of it; `seconds`: of compiling, 0 if it was there already.
    """

    cubin: bytes
    log: str
    arch: str
    key: str
    cached: bool = False
    seconds: float = 0.0

    @property
    def kernels(self) -> tuple[Usage, ...]:
        """Registers, spills, stack and shared memory of each kernel."""
        return usages(self.log)


BINARY: Final = pattern(r'#define GE2_BINARY "(.*)@(\w+)"\n')


def binary_text(name: str) -> str:
    """A source in place of which a binary is loaded: its path, and a name for its content.

    >>> BINARY.fullmatch(binary_text("/a/b.cubin@17"))[1]
    '/a/b.cubin'
    """
    return f'#define GE2_BINARY "{name}"\n'


def compile(
    source: str,
    arch: str,
    options: Sequence[str] = (),
    name: str = "",
    about: Mapping[str, str] | None = None,
) -> Binary:
    """The cubin of a CUDA source for an architecture such as "sm_90a".

    `options` come behind `FLAGS`; the headers of `templates/cuda/include` can be included.
    CompileError, with the line of the source, if NVRTC refuses it; CompilerTrouble if no NVRTC
    works; ArgumentError if it knows no such architecture.
    """
    order = Order(source, arch, tuple(options), name, tuple((about or {}).items()))
    return _compile(order, key_of(order))


def ptx(source: str, name: str) -> bytes:
    """A CUDA source as PTX, for what only the driver can link; compiled once a machine.

    CompileError if NVRTC refuses it; CompilerTrouble if no NVRTC works.
    """
    order = Order(source, OLD, (), name)
    key = content_key("ptx", VERSION, place().identity, *PTX_FLAGS, source)
    found = cache().get(key)
    if found is None:
        tools = loaded_nvrtc()
        with _program(tools, order) as program:
            _built(tools, program, order, [option.encode() for option in PTX_FLAGS])
            found = VERSION_LINE.sub(b".version 7.0", _read(tools, program, "PTX"), count=1)
        cache().put(key, found, {"kind": "PTX", "name": order.file, "version": VERSION})
    return found


def compile_all(orders: Sequence[Order]) -> list[Binary]:
    """The cubins of several sources, compiled at once on as many threads as the settings allow."""
    keys = {order: key_of(order) for order in orders}
    missing = [order for order, key in keys.items() if _known(order, key) is None]
    count = min(config.thread_count(), len(missing))
    if count > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(count) as pool:
            made = [
                pool.submit(copy_context().run, _compile, order, keys[order]) for order in missing
            ]
        for each in made:
            each.result()
    return [_compile(order, keys[order]) for order in orders]


def missing(orders: Sequence[Order]) -> int:
    """Returns how many of several sources are yet to be compiled."""
    keys = {key_of(order) for order in orders}
    return sum(key not in _binaries and cache().get(key) is None for key in keys)


def flags(arch: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """All that NVRTC is told."""
    return (f"--gpu-architecture={arch}", *FLAGS, *(f"-I{each}" for each in folders()), *options)


# ------------------------------------------------------------------------------------------ finding

_binaries: dict[str, Binary] = {}
_refused: dict[str, str] = {}
_locks: dict[str, Lock] = {}
_keeping = Lock()


def key_of(order: Order) -> str:
    """The name of what a source becomes: everything that could change it is part of it."""
    if not ARCHITECTURE.fullmatch(order.arch):
        raise ArgumentError(f"{order.arch!r} is no architecture of a GPU", fix='"sm_90a", "sm_80"')
    return content_key(
        "cubin", VERSION, place().identity, order.arch, "\0".join(FLAGS), "\0".join(order.options),
        order.file, headers_key(order.source, _folders(order)), told(order.source),
    )  # fmt: skip


def _folders(order: Order) -> tuple[str, ...]:
    """Returns where headers are looked for."""
    own = (option[2:] for option in order.told if option.startswith("-I"))
    return (*folders(), *own)


def _compile(order: Order, key: str) -> Binary:
    found = _known(order, key)
    if found is not None:
        return found
    with _locks.setdefault(key, Lock()):
        found = _binaries.get(key)
        if found is None and key in _refused:
            raise CompileError(_refused[key])
        if found is None:
            found = _remembered(_compiled(order, key))
    return found


def _known(order: Order, key: str) -> Binary | None:
    """The binary from this process, or from the cache."""
    found = _binaries.get(key)
    content = cache().get(key) if found is None else None
    parts = _unpacked(content) if content is not None else None
    if parts is None:
        return found
    note("disk")
    return _remembered(Binary(*parts, order.arch, key, cached=True))


def _remembered(binary: Binary) -> Binary:
    with _keeping:
        found = _binaries.setdefault(binary.key, binary)
        if len(_binaries) > KEPT:
            _binaries.pop(next(iter(_binaries)))
    return found


def _compiled(order: Order, key: str) -> Binary:
    if prebuilt := BINARY.fullmatch(order.source):
        with open(prebuilt[1], "rb") as file:
            return Binary(file.read(), "", order.arch, key)
    tools = loaded_nvrtc()
    began = time.monotonic()
    try:
        cubin, log = _asked(tools, order)
    except CompileError as error:
        if not isinstance(error, CompilerTrouble):  # which may pass
            _refused[key] = str(error)
        raise
    seconds = time.monotonic() - began
    note("compiled", seconds)
    cache().put(key, _packed(cubin, log), _about(order, tools, seconds))
    if config.log_compiles:
        logger().info("%s: compiled for %s in %.3f s", order.file, order.arch, seconds)
    return Binary(cubin, log, order.arch, key, seconds=seconds)


def _about(order: Order, tools: Nvrtc, seconds: float) -> dict[str, str]:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = {"kind": "cubin", "name": order.file, "made": made, "seconds": f"{seconds:.3f}"}
    compiler = "NVRTC {}.{}".format(*tools.version)
    options = " ".join((order.arch, *FLAGS, *order.told))
    more = {"version": VERSION, "compiler": compiler, "options": options}
    return words | more | dict(order.about)


def _packed(cubin: bytes, log: str) -> bytes:
    words = log.encode()
    return HEAD.pack(len(cubin), len(words)) + cubin + words


def _unpacked(content: bytes) -> tuple[bytes, str] | None:
    if len(content) < HEAD.size:
        return None
    size, words = HEAD.unpack_from(content)
    if HEAD.size + size + words != len(content):
        return None
    return content[HEAD.size : HEAD.size + size], content[HEAD.size + size :].decode()


# ---------------------------------------------------------------------------------------- compiling


def _asked(tools: Nvrtc, order: Order) -> tuple[bytes, str]:
    """The cubin and the log."""
    with _program(tools, order) as program:
        log = _built(
            tools, program, order, [option.encode() for option in flags(order.arch, order.told)]
        )
        return _read(tools, program, "CUBIN"), log


def _built(tools: Nvrtc, program: ctypes.c_void_p, order: Order, given: Sequence[bytes]) -> str:
    """The log of what was compiled."""
    status = tools.functions.nvrtcCompileProgram(program, len(given), _texts(given))
    log = steady(_read(tools, program, "ProgramLog").decode("utf-8", "replace"))
    if status != 0:
        raise _refusal(tools, order, status, log)
    return log


@contextmanager
def _program(tools: Nvrtc, order: Order) -> Iterator[ctypes.c_void_p]:
    import ctypes

    if "\0" in order.source:
        raise CompileError(f"{order.file} has a character of value 0 in it")
    program = ctypes.c_void_p()
    status = tools.functions.nvrtcCreateProgram(
        program, order.source.encode(), order.file.encode(), 0, None, None
    )
    if status != 0:
        raise CompilerTrouble(f"NVRTC does not begin: {_words(tools, status)}", fix="ge2 doctor")
    try:
        yield program
    finally:
        tools.functions.nvrtcDestroyProgram(program)


def _texts(given: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    import ctypes

    return (ctypes.c_char_p * len(given))(*given)


def _read(tools: Nvrtc, program: ctypes.c_void_p, what: str) -> bytes:
    import ctypes

    size = ctypes.c_size_t()
    getattr(tools.functions, f"nvrtcGet{what}Size")(program, size)
    room = ctypes.create_string_buffer(size.value)
    if status := getattr(tools.functions, f"nvrtcGet{what}")(program, room):
        raise CompilerTrouble(f"NVRTC gives no {what}: {_words(tools, status)}", fix="ge2 doctor")
    return room.raw


def _words(tools: Nvrtc, status: int) -> str:
    return str(tools.functions.nvrtcGetErrorString(status).decode())


def _refusal(tools: Nvrtc, order: Order, status: int, log: str) -> Exception:
    if status == MISSPELT and "gpu-architecture" in log:
        who, known = "NVRTC {}.{}".format(*tools.version), ", ".join(tools.architectures())
        return ArgumentError(f"{who} does not compile for {order.arch}", fix=f"one of {known}")
    texts = {order.file: order.source, **_headers(order)}
    found = fault(log, texts)
    more = f", and {found.more} more" if found.more else ""
    what = f"NVRTC refuses {order.file} for {order.arch}: {found.words}{more}"
    if status == MISSPELT:
        return CompileError(what, fix="other options")
    return CompileError(
        what, where=found.place, fix="mend the source; if ge2 wrote it, this is a bug of ge2"
    )


def _headers(order: Order) -> dict[str, str]:
    """The headers by the names that messages give them."""
    found = {}
    for root in _folders(order):
        for folder, _, files in os.walk(root):
            for name in files:
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    found[path] = file.read()
    return found


@after_fork
def _after_fork() -> None:
    """Whoever held a lock does not exist in the child."""
    global _keeping
    _locks.clear()
    _keeping = Lock()
