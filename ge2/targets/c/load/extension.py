"""The launcher as an extension in C.

It is compiled once a machine; until it is there, ctypes calls programs.

So the first program of a machine runs as soon as it is compiled itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import copy_context
from threading import Thread
from typing import Any, Final

import numpy as np

from ge2.base.errors import CompilerTrouble
from ge2.base.log import logger
from ge2.base.source import templates
from ge2.base.toolchain.command import ABI, Awaited, Provisional
from ge2.base.toolchain.compiler import extension, is_known
from ge2.base.toolchain.detect import toolchain

Launcher = Callable[..., list[Any]]
Native = Callable[..., Launcher]  # the extension's type

NAME: Final = "ge2_launcher"
PATIENCE: Final = 0.02  # seconds in which the first program has the processor to itself


def launcher(native: Callable[[Native], Launcher], plain: Callable[[], Launcher]) -> Launcher:
    """A program as it is called by the extension, or by ctypes for as long as there is none."""
    if not EXTENSION.ready():
        found = Provisional(plain(), native)
        if EXTENSION.tell(found):
            return found
    made = EXTENSION.now()
    return plain() if made is None else native(made)


def prepare() -> None:
    """Has another thread load what calls programs, while this one waits for the compiler of one."""
    if not EXTENSION.begun():
        Thread(target=copy_context().run, args=(_prepared,), name=EXTENSION.name).start()


def _prepared() -> None:
    if not EXTENSION.ready():
        import ge2.targets.c.load.plain_launcher  # noqa: F401


def native() -> Native | None:
    """The extension's type; None where it cannot be made or C is not wanted,
    which ctypes makes up for.
    """
    found: Native | None = EXTENSION.now()
    return found


def is_at_hand() -> bool:
    """True if nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts(), ABI)
    except OSError:
        return True


def compiled() -> Native | None:
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
    path = templates("c", "launcher.c")
    with open(path, encoding="utf-8") as file:
        source = file.read()
    found = ["-O2", "-fno-openmp", "-pthread"]
    if sys.platform == "darwin":  # Python's own symbols are found when it is loaded
        found += ["-undefined", "dynamic_lookup"]
    return source, (*found, *(word for folder in folders.values() for word in ("-isystem", folder)))


EXTENSION: Final = Awaited("ge2-launcher", is_at_hand, compiled, PATIENCE)
