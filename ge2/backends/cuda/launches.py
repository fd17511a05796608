"""Launches that follow each other on a GPU, as one call of an extension in C (`templates/cuda/launches.c`).

The extension launches them one by one, or from the second call on as a captured graph, which it patches where
pointers or numbers changed. It is compiled once a machine; until it is there, and where no C can be compiled,
Python launches one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.backends.cpu.compiler import extension, include_folder, is_known
from ge2.backends.cpu.extension import ABI
from ge2.backends.cpu.toolchain import toolchain
from ge2.backends.cuda.driver import LIBRARY
from ge2.backends.cuda.nodes import AT, Nodes, count, title
from ge2.backends.device import address
from ge2.backends.launches import Branch, LaunchList, Run, While, one_by_one
from ge2.base.cache import content_key
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble, KernelError
from ge2.base.log import logger

if TYPE_CHECKING:
    from ge2.backends.cuda.device import CudaDevice

NAME: Final = "ge2_launches"
FEW: Final = 3  # launches that are no slower one by one than as a graph
IN_CAPTURE: Final = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
DECIDED: Final = "what the host decides"
_made: dict[str, Any] = {}  # the extension's type by the compiler's setting; None where it cannot be made
_waiting: dict[str, list[Meanwhile]] = {}
_lock = Lock()


def launches(device: CudaDevice, work: LaunchList) -> Run:
    """The list as a function, on CuPy's current stream. KernelError, with the user's line, for a launch that
    the driver refuses."""
    setting = config.cc
    if setting not in _made and is_at_hand():
        make(setting)
    with _lock:
        if setting not in _made:
            found = Meanwhile(device, work)
            if not _waiting.setdefault(setting, []):
                Thread(target=copy_context().run, args=(make, setting), name="ge2-launches").start()
            _waiting[setting].append(found)
            return found
    made = _made[setting]
    return from_python(device, work) if made is None else run_of(made, device, work)


def from_python(device: CudaDevice, work: LaunchList) -> Run:
    return one_by_one(work, address, partial(downloaded, device))


def downloaded(device: CudaDevice, item: While | Branch, place: int) -> Any:
    """The number by which a loop or a branch goes on, once all that was launched has ended."""
    stream, found = device.xp.cuda.get_current_stream(), np.empty((), item.dtype)
    if stream.ptr and stream.is_capturing():
        failed(DECIDED, IN_CAPTURE, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", title(item))
    to_host = device.xp.cuda.runtime.memcpyDeviceToHost
    device.xp.cuda.runtime.memcpyAsync(found.ctypes.data, place, found.nbytes, to_host, stream.ptr)
    stream.synchronize()
    return found[()]


@final
class Meanwhile:
    """Launches from Python, until the extension is there."""

    __slots__ = ("device", "run", "work")

    def __init__(self, device: CudaDevice, work: LaunchList) -> None:
        self.device, self.work = device, work
        self.run = from_python(device, work)

    def __call__(self, *given: Any) -> None:
        self.run(*given)

    def settle(self, made: Any) -> None:
        """Has the extension launch from now on; what it refuses stays with Python."""
        try:
            self.run = run_of(made, self.device, self.work)
        except (TypeError, ValueError, OSError, MemoryError) as trouble:
            logger().debug("a list of launches stays with Python: %s", trouble)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """As the extension's."""
        found: tuple[int, int, int, int] = getattr(self.run, "counts", (0, 0, 0, 0))
        return found

    @property
    def choices(self) -> tuple[int, int]:
        """As the extension's."""
        found: tuple[int, int] = getattr(self.run, "choices", (0, 0))
        return found

    @property
    def trouble(self) -> Exception | None:
        """As the extension's."""
        return getattr(self.run, "trouble", None)


def run_of(made: Any, device: CudaDevice, work: LaunchList) -> Run:
    choices = any(isinstance(each, While | Branch) for each in work.launches)
    pays = config.capture == "on" or (config.capture == "auto" and (choices or count(work.launches) > FEW))
    captured = work.captured and pays
    nodes = Nodes(device.decider if choices and captured else 0, not choices or device.switches)
    nodes.add_lists(work.launches)
    stream: Callable[[], Any] = device.xp.cuda.get_current_stream
    callers = bytes(i in work.callers for i in range(work.arrays))
    run: Run = made(
        LIBRARY, device.context, callers, work.numbers, tuple(nodes.nodes), tuple(nodes.lists), captured,
        work.ready, stream, failed, work,
    )  # fmt: skip
    return run


def failed(what: str, status: int, name: str, of: str | None) -> None:
    """The error of a launch."""
    if what != DECIDED:
        raise KernelError(f"{what} fails with {name} ({status})" + (f" in {of}" if of else ""))
    title, _, where = (of or "").partition(AT)
    why = f"{title} goes on by a number on the GPU, for which nobody can wait while a stream is captured"
    raise KernelError(
        why, where=where, fix="call it outside of the capture: ge2 makes a graph of its own of it"
    )


def is_at_hand() -> bool:
    """Whether nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts())
    except OSError:
        return True


def make(setting: str) -> None:
    """Makes the extension, or finds that this cannot be done, and tells all lists that wait for it."""
    made: Any = None
    try:
        source, flags, key = parts()
        made = extension(source, NAME, flags, key, {"name": "launches"}).Run
    except (CompilerTrouble, OSError, ImportError, AttributeError) as trouble:
        logger().debug("launches go one by one from Python: %s", trouble)
    with _lock:
        _made[setting] = made
        waiting = _waiting.pop(setting, [])
    for each in waiting if made is not None else ():
        each.settle(made)


def parts() -> tuple[str, tuple[str, ...], str]:
    """The extension's source, the options that it needs, and what else it depends on. OSError if a header is
    missing."""
    from sysconfig import get_path

    headers = get_path("include")
    os.stat(os.path.join(headers, "Python.h"))
    folder = os.path.join(os.path.dirname(os.path.dirname(include_folder())), "cuda")
    source, driver = (read(os.path.join(folder, name)) for name in ("launches.c", "driver.h"))
    flags = ("-O2", "-fno-openmp", "-ldl", "-isystem", headers, "-I", folder)
    return source, flags, content_key(ABI, driver)


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _after_fork() -> None:
    """The thread that would tell the lists does not exist in the child: the next one begins anew."""
    global _lock
    _lock = Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
