"""Launches that follow each other on a GPU, as one call of an extension in C (`templates/cuda/launches.c`).

The extension launches them one by one, or from the second call on as a captured graph, which it patches where
pointers or numbers changed. It is compiled once a machine; until it is there, and where no C can be compiled,
Python launches one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import copy_context
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.backends.cpu.compiler import extension, include_folder, is_known
from ge2.backends.cpu.extension import ABI
from ge2.backends.cpu.toolchain import toolchain
from ge2.backends.cuda.blas import LtProduct
from ge2.backends.cuda.driver import LIBRARY
from ge2.backends.device import address
from ge2.backends.launches import Call, Launch, LaunchList, Number, Pointer, Run, one_by_one
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble, KernelError
from ge2.base.log import logger

if TYPE_CHECKING:
    from ge2.backends.cuda.device import CudaDevice

NAME: Final = "ge2_launches"
NO_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
LIBRARYS: Final = "a library"  # whose numbers are not the driver's
FEW: Final = 3  # launches that are no slower one by one than as a graph
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
    return one_by_one(work, address) if made is None else run_of(made, device, work)


@final
class Meanwhile:
    """Launches from Python, until the extension is there."""

    __slots__ = ("device", "run", "work")

    def __init__(self, device: CudaDevice, work: LaunchList) -> None:
        self.device, self.work = device, work
        self.run = one_by_one(work, address)

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
    def trouble(self) -> Exception | None:
        """As the extension's."""
        return getattr(self.run, "trouble", None)


def run_of(made: Any, device: CudaDevice, work: LaunchList) -> Run:
    nodes, last = list[tuple[Any, ...]](), list[int]()  # last: the last node of each launch
    for each in work.launches:
        before = tuple(last[n] for n in each.after)
        for function, parts in described(each):  # a product may be several
            nodes.append((isinstance(each, Call), function, *parts, before, title(each)))
            before = (len(nodes) - 1,)
        last.append(len(nodes) - 1)
    pays = config.capture == "on" or (config.capture == "auto" and len(nodes) > FEW)
    stream: Callable[[], Any] = device.xp.cuda.get_current_stream
    callers = bytes(i in work.callers for i in range(work.arrays))
    run: Run = made(
        LIBRARY, device.context, callers, work.numbers, tuple(nodes), work.captured and pays,
        work.ready, stream, failed, work,
    )  # fmt: skip
    return run


def title(each: Launch | Call) -> str:
    return f"{each.name}\n  at   {each.where}" if each.where else each.name


def described(each: Launch | Call) -> list[tuple[int, tuple[Any, ...]]]:
    """The functions that a launch calls, and for each grid, block, shared memory and arguments."""
    if isinstance(each, Launch):
        grid, block = ((*size, 1, 1)[:3] for size in (each.grid, each.block))
        return [(each.kernel.ptr, (grid, block, each.shared, tuple(map(parameter, each.arguments))))]
    product, one = each.product, (1, 1, 1)
    assert isinstance(product, LtProduct)
    places = (each.first, each.other, each.result, each.scratch or 0)
    calls = product.words(*places, moved)
    return [
        (product.function, (one, one, 0, tuple(w if isinstance(w, int) else parameter(w) for w in words)))
        for words in calls
    ]


def moved(place: Pointer | int, offset: int) -> Pointer | int:
    return place + offset if isinstance(place, int) else Pointer(place.array, place.offset + offset)


def parameter(a: Any) -> Any:
    """An argument of a kernel: bytes, or (is it a number, which one, offset)."""
    if isinstance(a, Pointer):
        return False, a.array, a.offset
    if isinstance(a, Number):
        return True, a.number, 0
    return np.asarray(a).tobytes()


def failed(what: str, status: int, name: str, of: str | None) -> None:
    """The error of a launch; of one for which there is no memory, what its program makes an error of."""
    said = f"{what} fails with {name} ({status})" + (f" in {of}" if of else "")
    raise MemoryError(said) if (status == NO_MEMORY and what != LIBRARYS) else KernelError(said)


def is_at_hand() -> bool:
    """Whether nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts(), ABI)
    except OSError:
        return True


def make(setting: str) -> None:
    """Makes the extension, or finds that this cannot be done, and tells all lists that wait for it."""
    made: Any = None
    try:
        source, flags = parts()
        made = extension(source, NAME, flags, ABI, {"name": "launches"}).Run
    except (CompilerTrouble, OSError, ImportError, AttributeError) as trouble:
        logger().debug("launches go one by one from Python: %s", trouble)
    with _lock:
        _made[setting] = made
        waiting = _waiting.pop(setting, [])
    for each in waiting if made is not None else ():
        each.settle(made)


def parts() -> tuple[str, tuple[str, ...]]:
    """The extension's source, and the options that it needs. OSError if a header is missing."""
    from sysconfig import get_path

    headers = get_path("include")
    os.stat(os.path.join(headers, "Python.h"))
    templates = os.path.dirname(os.path.dirname(include_folder()))
    with open(os.path.join(templates, "cuda", "launches.c"), encoding="utf-8") as file:
        return file.read(), ("-O2", "-fno-openmp", "-ldl", "-isystem", headers)


def _after_fork() -> None:
    """The thread that would tell the lists does not exist in the child: the next one begins anew."""
    global _lock
    _lock = Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
