"""Launches that follow each other on a GPU, as one call of an extension in C
(`templates/cuda/launch/launches.c`).

The extension launches them one by one, or from the second call on as a captured graph, which it
patches where pointers or numbers changed. Until it is there, and where no C can be compiled, Python
launches one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ge2.base.compile_times import seconds_words
from ge2.base.config import config
from ge2.base.errors import KernelError
from ge2.base.log import logger, say
from ge2.targets.cuda.device import address
from ge2.targets.cuda.launch.extension import extension_or
from ge2.targets.cuda.launch.launches import (
    Branch,
    Item,
    Launch,
    LaunchList,
    Run,
    While,
    one_by_one,
)
from ge2.targets.cuda.launch.library_call import LibraryCall
from ge2.targets.cuda.launch.nodes import AT, Nodes, count, title
from ge2.targets.cuda.load.driver import LIBRARY

if TYPE_CHECKING:
    from ge2.targets.cuda.load.gpu import CudaDevice

NO_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY
IN_CAPTURE: Final = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
DECIDED: Final = "what the host decides"


def launches(device: CudaDevice, work: LaunchList) -> Run:
    """The list as a function, on CuPy's current stream.

    KernelError, with the user's line, for a launch that the driver refuses.
    """
    waiting = Meanwhile(device, work)
    made = extension_or(waiting)
    return (
        waiting if made is waiting else waiting.run if made is None else run_of(made, device, work)
    )


def from_python(device: CudaDevice, work: LaunchList) -> Run:
    return one_by_one(
        work,
        address,
        partial(downloaded, device),
        lambda: int(device.xp.cuda.get_current_stream().ptr),
    )


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
        if made is None:
            return
        try:
            self.run = run_of(made, self.device, self.work)
        except (TypeError, ValueError, OSError, MemoryError) as trouble:
            logger().debug("a list of launches stays with Python: %s", trouble)

    @property
    def settled(self) -> bool:
        """True if the extension launches."""
        return self.run.counts is not None

    def __getattr__(self, name: str) -> Any:
        """Counts of calls are those of what launches now."""
        return getattr(self.run, name)


def run_of(made: Any, device: CudaDevice, work: LaunchList) -> Run:
    choices = any(isinstance(each, While | Branch) for each in work.launches)
    pays = config.capture == "on" or (
        config.capture == "auto"
        and (choices or gains(work.launches, device.limits.tuning.launches.few))
    )
    captured = work.captured and pays
    early = captured and config.overlap and any(map(waits, work.launches)) and device.early
    nodes = Nodes(
        work, device.decider if choices and captured else 0, not choices or device.switches, early
    )
    nodes.add_lists(work.launches)
    stream: Callable[[], Any] = device.xp.cuda.get_current_stream
    callers, sizes = (
        bytes(a in work.callers for a in work.arrays),
        tuple(n.nbytes for n in work.numbers),
    )
    run: Run = made.Run(
        LIBRARY, device.context, callers, sizes, tuple(nodes.nodes), tuple(nodes.lists), captured,
        work.ready, stream, failed, work, partial(told, work) if config.log_compiles else None,
    )  # fmt: skip
    return run


def gains(items: Sequence[Item], few: int) -> bool:
    """True if a graph of launches is faster than they are one by one: of more than a few, and of
    functions in Python, which are called when it is captured alone.
    """
    calls = [each.function for each in items if isinstance(each, Launch) and each.of_library]
    return count(items) > few or any(isinstance(f, LibraryCall) and f.in_python for f in calls)


def waits(item: Item) -> bool:
    """True if a kernel, or one in the lists of an item, waits by itself."""
    if isinstance(item, Launch):
        return item.pdl_wait
    return any(waits(each) for inner in item.lists for each in inner)


def told(work: LaunchList, count: int, seconds: float) -> None:
    """Says that a graph was made."""
    first = work.launches[0].name
    say(
        "%d launches, the first of them %s, are a graph now: %s",
        count,
        first,
        seconds_words(seconds),
    )


def failed(what: str, status: int, name: str, of: str | None, library: bool = False) -> None:
    """The error of a launch; of one for which there is no memory, what its program makes an error
    of. The numbers of a library are its own.
    """
    if what != DECIDED:
        said = f"{what} fails with {name} ({status})" + (f" in {of}" if of else "")
        raise MemoryError(said) if status == NO_MEMORY and not library else KernelError(said)
    title, _, where = (of or "").partition(AT)
    why = f"{title} goes on by a number on the GPU, for which nobody can wait while a stream is captured"
    raise KernelError(
        why, where=where, fix="call it outside of the capture: ge2 makes a graph of its own of it"
    )
