"""Launches that follow each other on a GPU, as one call of an extension in C (`templates/cuda/launches.c`).

The extension launches them one by one, or from the second call on as a captured graph, which it patches where
pointers or numbers changed. It is compiled once a machine; until it is there, and where no C can be compiled,
Python launches one after another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.backends.cpu.compiler import extension, include_folder, is_known
from ge2.backends.cpu.extension import ABI
from ge2.backends.cpu.toolchain import toolchain
from ge2.backends.cuda.blas import LtProduct
from ge2.backends.cuda.driver import LIBRARY
from ge2.backends.device import address
from ge2.backends.launches import Call, Launch, LaunchList, Number, Pointer, Run, Straight, one_by_one
from ge2.base.bill import seconds_words
from ge2.base.config import config
from ge2.base.errors import CompilerTrouble, KernelError
from ge2.base.gpu import look_by
from ge2.base.log import logger, say

if TYPE_CHECKING:
    from ge2.backends.cuda.device import CudaDevice

NAME: Final = "ge2_launches"
HEADERS: Final = ("arrays.h", "calls.h")
FEW: Final = 3  # launches that are no slower one by one than as a graph
Program = Callable[..., list[Any]]
_made: dict[str, Any] = {}  # the extension by the compiler's setting; None where it cannot be made
_waiting: dict[str, list[Meanwhile | Later]] = {}
_lock = Lock()


def launches(device: CudaDevice, work: LaunchList) -> Run:
    """The list as a function, on CuPy's current stream. KernelError, with the user's line, for a launch that
    the driver refuses."""
    waiting = Meanwhile(device, work)
    made = extension_or(waiting)
    return waiting if made is waiting else waiting.run if made is None else run_of(made, device, work)


def call(device: CudaDevice, work: Straight, otherwise: Program) -> Program:
    """A program as one call; `otherwise` is the same in Python, for where the extension does not serve."""
    waiting = Later(device, work, otherwise)
    made = extension_or(waiting)
    return (
        waiting if made is waiting else otherwise if made is None else call_of(made, device, work, otherwise)
    )


def extension_or(waiting: Meanwhile | Later) -> Any:
    """The extension; None if it cannot be made; what is to wait for it while it is compiled."""
    setting = config.cc
    if setting not in _made and is_at_hand():
        make(setting)
    with _lock:
        if setting in _made:
            return _made[setting]
        if not _waiting.setdefault(setting, []):
            Thread(target=copy_context().run, args=(make, setting), name="ge2-launches").start()
        _waiting[setting].append(waiting)
        return waiting


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
    def seconds(self) -> float:
        """As the extension's."""
        return float(getattr(self.run, "seconds", 0.0))

    @property
    def trouble(self) -> Exception | None:
        """As the extension's."""
        return getattr(self.run, "trouble", None)


@final
class Later:
    """A program as Python text, until the extension is there."""

    __slots__ = ("device", "run", "told", "work")

    def __init__(self, device: CudaDevice, work: Straight, otherwise: Program) -> None:
        self.device, self.work, self.run = device, work, otherwise
        self.told: Callable[[Program], None] | None = None  # what wants to call the program directly

    def __call__(self, *arrays: Any) -> list[Any]:
        return self.run(*arrays)

    def settle(self, made: Any) -> None:
        """Has the extension make the calls from now on. The launches were told before, being older."""
        self.run = call_of(made, self.device, self.work, self.run)
        if self.told is not None:
            self.told(self.run)
        self.told = None


def call_of(made: Any, device: CudaDevice, work: Straight, otherwise: Program) -> Program:
    launched = work.run.run if isinstance(work.run, Meanwhile) else work.run
    take, lost = work.take if work.nbytes else None, getattr(device, "lost", [])
    found: Program = made.Call(
        work.given, work.empty, work.made, work.constants, work.numbers, work.asked, work.compute, take,
        work.nbytes, work.handed, work.results,
        device.xp.cuda.runtime.getDevice, device.number, device.xp.cuda.get_current_stream, lost, otherwise,
        launched,
    )  # fmt: skip
    return found


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
    run: Run = made.Run(
        LIBRARY, device.context, callers, work.numbers, tuple(nodes), work.captured and pays,
        work.ready, stream, failed, work, partial(told, work) if config.log_compiles else None,
    )  # fmt: skip
    return run


def told(work: LaunchList, count: int, seconds: float) -> None:
    """Says that a graph was made."""
    first = work.launches[0].name
    say("%d launches, the first of them %s, are a graph now: %s", count, first, seconds_words(seconds))


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
    """The error of a launch."""
    raise KernelError(f"{what} fails with {name} ({status})" + (f" in {of}" if of else ""))


def is_at_hand() -> bool:
    """Whether nothing has to be compiled for it: it was before, or cannot be."""
    if toolchain() is None:
        return True
    try:
        return is_known(*parts(), ABI)
    except OSError:
        return True


def make(setting: str) -> None:
    """Makes the extension, or finds that this cannot be done, and tells all that waits for it."""
    made: Any = None
    try:
        source, flags = parts()
        made = extension(source, NAME, flags, ABI, {"name": "launches"})
        look_by(made)
        learn(made)
    except (CompilerTrouble, OSError, ImportError, AttributeError) as trouble:
        logger().debug("launches go one by one from Python: %s", trouble)
    with _lock:
        _made[setting] = made
        waiting = _waiting.pop(setting, [])
    for each in waiting if made is not None else ():
        each.settle(made)


def learn(made: Any) -> None:
    """Shows the extension arrays of CuPy's, from which it learns how they lie; else it asks Python."""
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


def parts() -> tuple[str, tuple[str, ...]]:
    """The extension's source, and the options that it needs. OSError if a header is missing."""
    from sysconfig import get_path

    headers = get_path("include")
    os.stat(os.path.join(headers, "Python.h"))
    folder = os.path.join(os.path.dirname(os.path.dirname(include_folder())), "cuda")
    texts = {}
    for name in (*HEADERS, "launches.c"):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            texts[name] = file.read()
    whole = texts["launches.c"]
    for name in HEADERS:  # in one text, so the cache knows them too
        whole = whole.replace(f'#include "{name}"\n', texts[name])
    return whole, ("-O2", "-fno-openmp", "-ldl", "-isystem", headers)


def _after_fork() -> None:
    """The thread that would tell the lists does not exist in the child: the next one begins anew."""
    global _lock
    _lock = Lock()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
