"""C sources compiled and loaded as libraries, and the headers that their cache keys depend on."""

from __future__ import annotations

import os
import re
import shlex
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache as once
from functools import lru_cache
from itertools import count
from stat import S_ISREG
from threading import Lock
from types import ModuleType
from typing import Any, Final, final

from ge2.base.cache import VERSION, cache, content_key
from ge2.base.command import workplace
from ge2.base.compile_times import note, spent
from ge2.base.config import brief_waits, config
from ge2.base.detect import (
    ELSE,
    Hang,
    Toolchain,
    build,
    few_libraries,
    settled,
    time_limit,
    toolchain,
)
from ge2.base.detect import excuse as excuse
from ge2.base.detect import replaced as _replaced
from ge2.base.errors import CompilerTrouble
from ge2.base.record import after_fork, record
from ge2.base.source import logger, pattern, templates

# -------- Finds the headers that a C or CUDA source includes, directly or through others, and the
# compiler options that it states.


INCLUDE: Final = pattern(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">\n]+)[">]', re.MULTILINE)
SETTLED: Final = 2.0  # seconds that clocks of file systems tell apart
OPTIONS: Final = pattern(r"^#define GE2_OPTIONS (.*)$", re.MULTILINE)


def with_options(options: Sequence[str]) -> str:
    """Lines of a source that say with which options it is compiled. They are part of its text, and
    so of every key that it is found by.

    >>> options_of(with_options(["-DA=1", "-I/a folder"]))
    ('-DA=1', '-I/a folder')
    """
    return f"#undef GE2_OPTIONS\n#define GE2_OPTIONS {shlex.join(options)}\n" if options else ""


@lru_cache(256)
def options_of(source: str) -> tuple[str, ...]:
    """The options that a source says."""
    if "GE2_OPTIONS" not in source:
        return ()
    return tuple(
        dict.fromkeys(word for found in OPTIONS.findall(source) for word in shlex.split(found))
    )


def headers_key(source: str, folders: tuple[str, ...]) -> str:
    """The contents of all headers that a source reaches; one that no folder
    has counts by its name.
    """
    return _key_of(tuple(sorted(reached(source, folders))))


@lru_cache(256)
def _key_of(headers: tuple[tuple[str, str], ...]) -> str:
    """Most kernels reach the same headers."""
    return content_key(*(part for header in headers for part in header))


def reached(source: str, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each header once, by the name of its first mention."""
    seen: set[object] = set()
    waiting = [(name, "") for name in included(source)]
    while waiting:
        name, beside = waiting.pop()
        path, now = _found(name, beside, folders)
        file = name if now is None else (now.st_dev, now.st_ino)
        if file in seen:
            continue
        seen.add(file)
        text = "" if now is None else _text_now(path, now)
        yield name, text
        waiting += [(each, os.path.dirname(path)) for each in included(text)]


@lru_cache(256)
def included(source: str) -> tuple[str, ...]:
    """The names that a source includes, under whatever condition.

    >>> included('#include "ge2/core.cuh"\\n  # include <math.h>\\n// #include "no.h"')
    ('ge2/core.cuh', 'math.h')
    """
    return tuple(INCLUDE.findall(source))


def _found(name: str, beside: str, folders: tuple[str, ...]) -> tuple[str, os.stat_result | None]:
    """The file that the compiler will take, as it is now: beside the one that includes it,
    else in the first folder.
    """
    for folder in (*filter(None, (beside,)), *folders):
        path = os.path.join(folder, name)
        with suppress(OSError, ValueError):
            now = os.stat(path)
            if S_ISREG(now.st_mode):
                return path, now
    return "", None


def text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _text_now(path: str, now: os.stat_result) -> str:
    """The text of a header, read again once the file has changed; one that has just been written may
    change again, and have the same time.
    """
    if abs(time.time() - now.st_mtime) < SETTLED:
        return text_of(path)
    return kept_text(path, now.st_mtime_ns, now.st_size, now.st_ino)


@lru_cache(64)
def kept_text(path: str, *version: int) -> str:
    """The text of a file. `version`: its modification time, size and inode, by which it is cached."""
    return text_of(path)


# -------- C sources as loaded libraries: each is compiled once a machine, and loaded once a
# process.
# What is loaded are bytes whose checksum was verified, never a file that another process may cut
# short: code on a page that is gone ends the process. Everything that goes wrong is a
# CompilerTrouble, raised again at once for the same source; whoever asked has another way to
# compute.


@final
class Library:
    """A loaded library.

    `cached`: it was compiled before; `seconds`: of compiling; `path`: as loaded.
    """

    __slots__ = ("cached", "handle", "key", "nbytes", "path", "seconds")

    def __init__(
        self, handle: Any, key: str, path: str, cached: bool, seconds: float, nbytes: int = 0
    ) -> None:
        self.handle, self.key, self.path, self.cached, self.seconds = (
            handle,
            key,
            path,
            cached,
            seconds,
        )
        self.nbytes = nbytes

    def address(self, symbol: str) -> int:
        """The address of a function or a variable of the library.

        CompilerTrouble if it has none of that name.
        """
        return _address(self.handle, symbol)


@final
@record
class Order:
    """A source to compile, and what a list of the cache says of it.

    `alone`: it calls no library but those of `few_libraries`.
    """

    source: str
    name: str
    flags: tuple[str, ...]
    include_key: str
    about: tuple[tuple[str, str], ...]
    load: Callable[[str], Any]
    alone: bool = False


def library(
    source: str,
    name: str,
    extra_flags: tuple[str, ...] = (),
    include_key: str = "",
    about: Mapping[str, str] | None = None,
    symbol: str = "ge2_run",
    alone: bool = False,
) -> Library:
    """The library of a C source that defines `symbol`, from this process, from
    the cache, or compiled now. `alone`: it calls no library but C's and OpenMP's.

    `include_key` names the contents of folders that `extra_flags` include; those of
    `templates/c/include` are known. CompilerTrouble if there is no compiler, or it refuses the
    source, hangs, dies, or makes junk.
    """

    def load(path: str) -> Any:
        import ctypes

        handle = ctypes.CDLL(path)
        _address(handle, symbol)
        return handle

    flags = flags_of(source, extra_flags)
    about_it = tuple((about or {}).items())
    return _library(Order(source, name, flags, include_key, about_it, load, alone))


def flags_of(source: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of a source, and those that it says itself, if they are for a C compiler, too."""
    own = (each for each in options_of(source) if each.startswith(FOR_C))
    return (*extra, *own)


def extension(
    source: str,
    name: str,
    extra_flags: tuple[str, ...] = (),
    include_key: str = "",
    about: Mapping[str, str] | None = None,
) -> ModuleType:
    """The Python module of a C source that defines `PyInit_<name>`; else as `library`."""

    def load(path: str) -> ModuleType:
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import module_from_spec, spec_from_file_location

        loader = ExtensionFileLoader(name, path)
        spec = spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        return module

    order = Order(source, name, tuple(extra_flags), include_key, tuple((about or {}).items()), load)
    module: ModuleType = _library(order).handle
    return module


def python_headers() -> str:
    """The folder of `Python.h`. Where it is usually, `sysconfig` and all settings of Python's own
    compilation need not be loaded.
    """
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
    usual = os.path.join(sys.base_prefix, "include", name)
    if os.path.exists(os.path.join(usual, "Python.h")):
        return usual
    from sysconfig import get_path

    return get_path("include")


def is_known(source: str, extra_flags: tuple[str, ...] = (), include_key: str = "") -> bool:
    """True if a library or an extension need not be compiled: it is loaded, in the cache, or was
    refused.
    """
    tools = toolchain()
    if tools is None:
        return False
    key = library_key(tools, source, flags_of(source, extra_flags), include_key)
    return key in _libraries or key in _refused or cache().get(key) is not None


# ------------------------------------------------------------------------------------------ finding

_libraries: dict[str, Library] = {}
_refused: dict[str, str] = {}
FOR_C: Final = ("-D", "-U", "-I")
LEEWAY: Final = 0.5  # seconds for trials after a compilation that took as long as it may
_locks: dict[str, Lock] = {}


def _library(order: Order) -> Library:
    tools = toolchain()
    if tools is None:
        raise CompilerTrouble("there is no C compiler in use", fix=ELSE)
    key = library_key(tools, order.source, order.flags, order.include_key)
    found = _libraries.get(key)
    if found is not None:
        return found
    with _locks.setdefault(key, Lock()):
        found = _libraries.get(key)
        if found is None and key in _refused:
            raise CompilerTrouble(_refused[key])
        if found is None:
            found = _kept(order, key) or _compiled(order, tools, key)
        _libraries[key] = found
    return found


def _kept(order: Order, key: str) -> Library | None:
    content = cache().get(key)
    if content is None:
        return None
    try:
        with spent("load"):
            handle, path = _loaded(content, order)
    # of a system that changed since; what is compiled now fits it
    except CompilerTrouble as trouble:
        logger().info("%s is compiled again: %s", order.name, trouble)
        return None
    note("disk")
    return Library(handle, key, path, cached=True, seconds=0.0, nbytes=len(content))


def _compiled(order: Order, tools: Toolchain, key: str) -> Library:
    began = time.monotonic()
    few = few_libraries(tools) if order.alone else ()
    flags = (*_include(), *order.flags)
    try:
        content = build(tools, order.source, order.name, flags, time_limit(), few)
        with spent("load"):
            handle, path = _loaded(content, order)
    except CompilerTrouble as trouble:
        if few and not isinstance(trouble, Hang):  # it may need more libraries
            return _compiled(replace(order, alone=False), tools, key)
        return _saved(order, tools, key, trouble, began + time_limit() + LEEWAY)
    seconds = time.monotonic() - began
    note("compiled", seconds)
    cache().put(key, content, _about(order, tools, seconds))
    if config.log_compiles:
        logger().info("%s: compiled in %.3f s by %s", order.name, seconds, tools.version)
    return Library(handle, key, path, cached=False, seconds=seconds, nbytes=len(content))


def _saved(
    order: Order, tools: Toolchain, key: str, trouble: CompilerTrouble, end: float
) -> Library:
    """Tries whether fewer options help; if they do not, the source will not be tried again."""
    _refused[key] = str(trouble)
    better = None if isinstance(trouble, Hang) else settled(tools, _check_trial, end)
    if better == tools:
        raise trouble
    _replaced(tools, better)
    if better is None:
        raise trouble
    return _library(order)


def _about(order: Order, tools: Toolchain, seconds: float) -> dict[str, str]:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    options = " ".join((*tools.flags, *order.flags))
    words = {"kind": "C program", "name": order.name, "made": made, "seconds": f"{seconds:.3f}"}
    more = {"version": VERSION, "compiler": tools.version, "options": options}
    return words | more | dict(order.about)


# --------------------------------------------------------------------------------------------- keys

STRINGS_AND_COMMENTS: Final = pattern(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*.*?\*/|//(?:\\.|[^\\\n])*""", re.DOTALL
)


@lru_cache(16)  # it holds the sources
def library_key(
    tools: Toolchain, source: str, flags: tuple[str, ...] = (), include_key: str = ""
) -> str:
    """The name of what a toolchain makes of a source: everything that could
    change it is part of it.
    """
    return content_key(
        "library", VERSION, tools.identity, tools.version, tools.target, "\0".join(tools.flags),
        "\0".join(flags), include_digest(), include_key, significant(source),
    )  # fmt: skip


def significant(source: str) -> str:
    """A C source without its comments, blank lines and indentation.

    >>> significant("int  a; // of model.py:3\\n\\n  char *b = \\"/* a  b */\\"; /* the\\n   rest */")
    'int a;\\nchar *b = "/* a  b */" ;'
    """
    lines = STRINGS_AND_COMMENTS.sub(r"\1 ", source).splitlines()
    return "\n".join(filter(None, map(_line, lines)))


def _line(line: str) -> str:
    """Spaces inside strings mean something, so a line with a quote stays as it is."""
    return line.strip() if '"' in line or "'" in line else " ".join(line.split())


def include_folder() -> str:
    """The headers, where a wheel puts them, or where a checkout keeps them."""
    return templates("c", "include")


def include_folders() -> tuple[str, ...]:
    """The include folders: the headers of C, then those that C and CUDA share."""
    return include_folder(), templates("include")


def _include() -> tuple[str, ...]:
    return tuple(word for folder in include_folders() for word in ("-I", folder))


@once
def include_digest() -> str:
    """The contents of the headers that every source may include."""
    return folders_digest(*include_folders())


def folders_digest(*roots: str) -> str:
    """The contents of all files in these folders."""
    parts: list[str | bytes] = []
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    parts += [os.path.relpath(path, root), file.read()]
    return content_key(*parts)


# ------------------------------------------------------------------------------------------ loading

_numbers = count()


def _loaded(content: bytes, order: Order) -> tuple[Any, str]:
    """The loaded library or module, and the path by which it was loaded.

    CompilerTrouble if it is no library.
    """
    if not _is_whole(content):
        raise CompilerTrouble(f"what the compiler made of {order.name} is no library", fix=ELSE)
    for place in (_in_memory, _in_a_file):
        try:
            with place(content, order.name) as path, brief_waits():
                return order.load(path), path
        except (
            OSError,
            ImportError,
            RuntimeError,
            SystemError,
        ) as error:  # an extension may raise the latter
            trouble = error
    raise CompilerTrouble(f"the library of {order.name} cannot be loaded: {trouble}", fix=ELSE)


def _check_trial(content: bytes) -> None:
    import ctypes

    _loaded(content, Order("", "a trial", (), "", (), ctypes.CDLL))


def _address(handle: Any, symbol: str) -> int:
    import ctypes

    try:
        return ctypes.addressof(ctypes.c_char.in_dll(handle, symbol))
    except ValueError:
        raise CompilerTrouble(f"the library has no {symbol}", fix=ELSE) from None


@contextmanager
def _in_memory(content: bytes, name: str) -> Iterator[str]:
    """A path that no other had: the loader takes a path that it has
    seen before for the same library.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files in memory")
    fd = os.memfd_create(name[:100], os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.write(content)
        yield (
            "/proc/self/fd/" + f"{next(_numbers):b}".replace("0", "./").replace("1", "/") + str(fd)
        )


@contextmanager
def _in_a_file(content: bytes, name: str) -> Iterator[str]:
    with workplace() as folder:
        path = os.path.join(folder, "library.so")
        with open(path, "wb") as file:
            file.write(content)
        yield path


ELF_HEAD: Final = struct.Struct("<16xHHIQQQIHHHHHH")


def _is_whole(content: bytes) -> bool:
    """True if all that an ELF library's own tables speak of is there; the loader judges other
    formats.
    """
    if not content.startswith(b"\x7fELF\x02\x01"):
        return bool(content) and not content.startswith(b"\x7fELF")
    if len(content) < ELF_HEAD.size:
        return False
    _, _, _, _, programs, sections, _, _, size, number, section_size, section_number, _ = (
        ELF_HEAD.unpack_from(content)
    )
    if max(programs + size * number, sections + section_size * section_number) > len(content):
        return False
    places = (struct.unpack_from("<8xQ16xQ", content, programs + size * i) for i in range(number))
    return all(offset + length <= len(content) for offset, length in places)


@after_fork
def _after_fork() -> None:
    """Whoever held a lock does not exist in the child."""
    _locks.clear()
