"""Items of an iterable made ahead of time, in a thread, and put on the GPU there."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from importlib.util import find_spec
from threading import Condition, Thread, current_thread
from typing import Any, Final, Generic, TypeVar, final

import numpy as np

from ge2.base.errors import ArgumentError, InputError
from ge2.base.pytrees.pytree import map_structure
from ge2.base.source import here
from ge2.targets.cuda.device import empty
from ge2.targets.cuda.load.driver import driver
from ge2.targets.cuda.load.gpu import current_gpu

T = TypeVar("T")
PATIENCE: Final = 5.0  # seconds that the end of a program waits for an item that is being made
END: Final = "end", None


def prefetch(iterable: Iterable[T], size: int = 2, device: str | None = None) -> Prefetch[T]:
    """The items of an iterable, of which a thread makes up to `size` ahead of time.

    NumPy arrays in the items, in any container, are CuPy's on the current GPU, where there is one;
    `device="cpu"` leaves them on the host, and "cuda" makes it an error that there is none. An
    error of the iterable is raised when its item is asked for. The thread ends with the iterable,
    when the iterator is closed or given up (as by `break`), or with the program.

    Raises ArgumentError for a size below 1, DeviceError for a GPU that is not there.

    >>> for batch in prefetch({"x": np.full(2, i)} for i in range(2)):
    ...     print(batch["x"].sum())
    0
    2
    """
    if type(size) is not int or size < 1 or device not in (None, "cpu", "cuda"):
        what = f"prefetch takes a size of 1 or more, and device 'cpu' or 'cuda'; got {size!r:.40} and {device!r:.40}"
        raise ArgumentError(what, where=here(), fix="ge2.io.prefetch(batches, size=2)")
    try:
        source = iter(iterable)
    except TypeError:
        what = f"prefetch takes an iterable; got {iterable!r:.60}"
        raise InputError(what, where=here(), fix="a generator, or a list of batches") from None
    return Prefetch(
        source, size, Upload() if device == "cuda" or (device is None and usable()) else None
    )


@final
class Prefetch(Iterator[T], Generic[T]):
    """An iterator whose items a thread makes. It is closed by `close` or a `with`."""

    def __init__(self, source: Iterator[T], size: int, place: Callable[[T], T] | None) -> None:
        self._ahead = Ahead(size)
        run, arguments = copy_context().run, (make, source, place, self._ahead)
        self._thread = Thread(target=run, args=arguments, name="ge2 prefetch", daemon=True)
        self._end = weakref.finalize(self, stop, self._ahead, self._thread, PATIENCE)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<prefetch: {len(self._ahead.items)} of {self._ahead.size} ahead>"

    def __next__(self) -> T:
        kind, value = self._ahead.take(self._thread)
        if kind == "item":
            found: T = value
            return found
        self.close()
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        """Ends the thread; it waits for an item that is being made. No item comes after."""
        self._end.detach()
        stop(self._ahead, self._thread, None)

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Ahead:
    """The items that were made and not taken, between two threads."""

    def __init__(self, size: int) -> None:
        self.size, self.stopped, self.change = size, False, Condition()
        self.items: deque[tuple[str, Any]] = deque()

    def room(self) -> bool:
        """Waits until there is room for one more; False if no more is wanted."""
        with self.change:
            self.change.wait_for(lambda: self.stopped or len(self.items) < self.size)
            return not self.stopped

    def put(self, item: tuple[str, Any]) -> None:
        with self.change:
            self.items.append(item)
            self.change.notify_all()

    def take(self, thread: Thread) -> tuple[str, Any]:
        """The next item, waited for; the end where there can be none."""
        with self.change:
            while not (self.items or self.stopped):
                if not thread.is_alive():  # as in a forked child, which has no other threads
                    return END
                self.change.wait(1.0)
            found = self.items.popleft() if self.items else END
            self.change.notify_all()
            return found


def make(source: Iterator[Any], place: Callable[[Any], Any] | None, ahead: Ahead) -> None:
    """The thread: it has no hold on the iterator, so that one that is given up can end."""
    try:
        while ahead.room():
            item = next(source, END)
            if item is END:
                break
            ahead.put(("item", item if place is None else place(item)))
            del item
    except BaseException as error:  # noqa: BLE001  the one who asks for the item has it
        ahead.put(("error", error))
    ahead.put(END)


def stop(ahead: Ahead, thread: Thread, patience: float | None) -> None:
    with ahead.change:
        ahead.stopped = True
        ahead.items.clear()
        ahead.change.notify_all()
    if thread is not current_thread():
        thread.join(patience)


def usable() -> bool:
    """True if there is a GPU, and CuPy."""
    known = driver()
    return bool(known and known.gpus and find_spec("cupy"))


@final
class Upload:
    """Puts the arrays of an item on the current GPU, by a stream of its own.

    Memory is that of the stream on which they are used: it is given to others in that stream's
    order. So the copy waits for what is on it now, and overlaps with what comes later.
    """

    def __init__(self) -> None:
        self.gpu = current_gpu()
        self.used_on = self.gpu.stream()
        with self.gpu.here():
            self.copies = self.gpu.xp.cuda.Stream(non_blocking=True)

    def __call__(self, item: Any) -> Any:
        pairs: list[tuple[Any, Any]] = []
        with self.gpu.here():
            with self.used_on:
                found = map_structure(lambda x: self.begun(x, pairs), item)
            self.copies.wait_event(self.used_on.record())
            for x, y in pairs:
                y.set(x, stream=self.copies)
            self.copies.synchronize()
        return found

    def begun(self, x: Any, pairs: list[tuple[Any, Any]]) -> Any:
        """An array of the GPU for one of the host; anything else as it is."""
        if type(x) is not np.ndarray:
            return x
        y = empty(self.gpu, x.shape, x.dtype)
        pairs.append((np.ascontiguousarray(x).reshape(x.shape).view(y.dtype), y))
        return y
