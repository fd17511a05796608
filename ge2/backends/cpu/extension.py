"""The launcher as an extension in C. It is compiled once a machine; until it is there, ctypes calls programs.

So the first program of a machine runs as soon as it is compiled itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, Final, final

import numpy as np

from ge2.backends.cpu.compiler import extension, include_folder, is_known
from ge2.backends.cpu.toolchain import toolchain
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble
from ge2.base.log import logger

Launcher = Callable[..., list[Any]]
Native = Callable[..., Launcher]  # the extension's type

NAME: Final = "ge2_launcher"
ABI: Final = f"{sys.version} {getattr(sys, 'abiflags', '')} NumPy {np.__version__}"  # of the extension
PATIENCE: Final = 0.02  # seconds in which the first program has the processor to itself
_made: dict[str, Native | None] = {}  # by the compiler's setting; None where it cannot be made
_waiting: dict[str, list[Meanwhile]] = {}
_lock = Lock()


@final
class Meanwhile:
    """A program called by ctypes, until the extension is there."""

    __slots__ = ("native", "run", "told")

    def __init__(self, plain: Launcher, native: Callable[[Native], Launcher]) -> None:
        self.run, self.native = plain, native
        self.told: Callable[[Launcher], None] | None = None  # what wants to call the program directly

    def __call__(self, *arrays: Any) -> list[Any]:
        return self.run(*arrays)

    def settle(self, made: Native | None) -> None:
        if made is not None:
            self.run = self.native(made)
        if self.told is not None:
            self.told(self.run)
        self.told = None


def launcher(native: Callable[[Native], Launcher], plain: Callable[[], Launcher]) -> Launcher:
    """A program as it is called by the extension, or by ctypes for as long as there is none."""
    setting = config.cc
    if setting not in _made and is_at_hand():
        _make(setting)
    if setting not in _made:
        found = Meanwhile(plain(), native)
        if _is_awaited(found, setting):
            return found
    made = _made[setting]
    return plain() if made is None else native(made)


def prepare() -> None:
    """Has another thread load what calls programs, while this one waits for the compiler of one."""
    if config.cc not in _made and config.cc not in _waiting:
        Thread(target=copy_context().run, args=(_prepared, config.cc), name="ge2-launcher").start()


def _prepared(setting: str) -> None:
    if is_at_hand():
        _make(setting)
    else:
        import ge2.backends.cpu.plain_launcher  # noqa: F401


def native() -> Native | None:
    """The extension's type; None where it cannot be made or C is not wanted, which ctypes makes up for."""
    if config.cc not in _made:
        _make(config.cc)
    return _made[config.cc]


def is_at_hand() -> bool:
    """Whether nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts(), ABI)
    except OSError:
        return True


def _is_awaited(program: Meanwhile, setting: str) -> bool:
    """Whether a thread will tell the program of the extension, which is not there yet."""
    with _lock:
        if setting in _made:
            return False
        begun = setting in _waiting
        _waiting.setdefault(setting, []).append(program)
    if not begun:
        Thread(target=copy_context().run, args=(_make, setting, PATIENCE), name="ge2-launcher").start()
    return True


def _make(setting: str, patience: float = 0.0) -> None:
    """Makes it, or finds that this cannot be done, and tells all programs that wait for it."""
    time.sleep(patience)
    made = _compiled()
    with _lock:
        _made[setting] = made
        waiting = _waiting.pop(setting, [])
    for program in waiting:
        program.settle(made)


def _compiled() -> Native | None:
    try:
        source, flags = parts()
        module: Any = extension(source, NAME, flags, ABI, {"name": "launcher"})
    except (CompilerTrouble, OSError) as trouble:
        logger().debug("programs are called by ctypes: %s", trouble)
        return None
    found: Native = module.Launcher
    return found


def parts() -> tuple[str, tuple[str, ...]]:
    """The extension's source, and the options that it needs. OSError if a header is missing."""
    from sysconfig import get_path

    folders = {"Python.h": get_path("include"), "numpy/arrayobject.h": np.get_include()}
    for header, folder in folders.items():
        os.stat(os.path.join(folder, header))
    path = os.path.join(os.path.dirname(include_folder()), "launcher.c")
    with open(path, encoding="utf-8") as file:
        source = file.read()
    found = ["-O2", "-fno-openmp", "-pthread"]
    if sys.platform == "darwin":  # Python's own symbols are found when it is loaded
        found += ["-undefined", "dynamic_lookup"]
    return source, (*found, *(word for folder in folders.values() for word in ("-isystem", folder)))


def _after_fork() -> None:
    """The thread that would tell the programs does not exist in the child: the next one begins anew."""
    global _lock
    _lock = Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
