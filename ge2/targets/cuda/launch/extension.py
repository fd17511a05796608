"""The extension in C that launches (`templates/cuda/launch/launches.c`) and calls: how it is had.

It is compiled once a machine; what asks for it before it is there is told when it is.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from ge2.base.cache import content_key
from ge2.base.errors import CompilerTrouble
from ge2.base.gpu import look_by
from ge2.base.log import logger
from ge2.base.source import templates
from ge2.base.toolchain.command import ABI, Awaited, Waiting
from ge2.base.toolchain.compiler import extension, is_known
from ge2.base.toolchain.detect import toolchain

NAME: Final = "ge2_launches"
HEADERS: Final = ("driver.h", "arrays.h", "graphs.h", "reading.h", "calls.h")


def extension_or(waiting: Waiting) -> Any:
    """The extension; None if it cannot be made; what is to wait for it while it is compiled."""
    if EXTENSION.ready() or not EXTENSION.tell(waiting):
        return EXTENSION.now()
    return waiting


def is_at_hand() -> bool:
    """True if nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts())
    except OSError:
        return True


def made_now() -> Any:
    """The extension, made now if it was not before; None if it cannot be."""
    return EXTENSION.now()


def compiled() -> Any:
    """The extension, told of the classes whose arrays it looks at; None if it cannot be made."""
    made: Any = None
    try:
        source, flags, key = parts()
        made = extension(source, NAME, flags, key, {"name": "launches"})
        look_by(made)
        learn(made)
    except (CompilerTrouble, OSError, ImportError, AttributeError) as trouble:
        logger().debug("launches go one by one from Python: %s", trouble)
    return made


def learn(made: Any) -> None:
    """Shows the extension arrays of CuPy's, from which it learns how they
    lie; else it asks Python.
    """
    cupy: Any = sys.modules.get("cupy")
    if not hasattr(cupy, "_core"):  # a stand-in
        return
    try:
        learned = made.learn(examples(cupy))
    except (TypeError, ValueError, AttributeError, RuntimeError) as trouble:
        learned = trouble
    if learned is not True:
        logger().debug("arrays of this CuPy are looked at through Python: %s", learned)


def examples(cupy: Any) -> list[tuple[Any, ...]]:
    """Arrays over memory that nobody reads, and what is known of them."""
    shapes: list[tuple[int, ...]] = [(), (7,), (3, 5), (5, 3), (2, 3, 4), (1, 9, 2, 8)]
    cases = list(zip(shapes, ("f4", "f8", "i4", "i8", "f4", "f2"), strict=True))
    found = []
    for n, (shape, dtype) in enumerate(cases * 2):
        memory = cupy.cuda.UnownedMemory(4096 * (n + 1), 1 << 16, None, n % 5)
        pointer = cupy.cuda.MemoryPointer(memory, 16 * n)
        x = cupy.ndarray(shape, dtype, pointer, order="CF"[n // len(cases)])
        known = x.data.ptr, x.data.device_id, x.data.mem
        found.append((x, x.shape, x.dtype, x.data, bool(x._c_contiguous), *known))
    return found


def parts() -> tuple[str, tuple[str, ...], str]:
    """The extension's source, the options that it needs, and what else it depends on.

    OSError if a header is missing.
    """
    from sysconfig import get_path

    headers = get_path("include")
    os.stat(os.path.join(headers, "Python.h"))
    folder = templates("cuda", "launch")
    source, *others = (read(os.path.join(folder, name)) for name in ("launches.c", *HEADERS))
    flags = ("-O2", "-fno-openmp", "-ldl", "-isystem", headers, "-I", folder)
    return source, flags, content_key(ABI, *others)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


EXTENSION: Final = Awaited("ge2-launches", is_at_hand, compiled)
