"""Memory that programs have for themselves while they run: the same on each
call, so that graphs of it last.

On one stream programs run one after another, so they may share an arena. A program has
it alone while its launches are handed over, whichever thread does so; what comes later
on the stream finds it free.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Final, Protocol, TypeVar, final

STREAMS: Final = 64  # whose arenas are kept
T = TypeVar("T")


class Growing(Protocol):
    """Arenas that grow where they lie, each an array of bytes."""

    @property
    def nbytes(self) -> int:
        """Returns what they take of the device's memory."""

    def made(self, nbytes: int, stream: int) -> Any:
        """A new one, for a stream. MemoryError if there is no memory for it."""

    def grown(self, arena: Any, nbytes: int) -> Any:
        """An array in place of one that nobody uses, with the same beginning.

        MemoryError likewise.
        """

    def release(self, arenas: list[Any]) -> None:
        """Gives memory back, when nothing runs in it any more."""

    def close(self) -> None:
        """Gives back what was released, addresses too."""


@final
class Scratch:
    """The arenas of a device.

    `empty` makes an array of so many bytes; `stream` tells the current stream, and None where the
    user captures it: the graph that comes of it has its scratch for good.

    `growing` makes arenas that grow where they lie, or None where there is no such thing: then an
    arena is an array like any other, and a larger one takes its place. `free` has others let go of
    memory that they keep for later.
    """

    def __init__(
        self,
        empty: Callable[[int], Any],
        stream: Callable[[], int | None],
        growing: Callable[[], Growing | None] = lambda: None,
        free: Callable[[], Any] = lambda: None,
    ) -> None:
        self.empty, self.stream, self.begin, self.free = empty, stream, growing, free
        self.idle: dict[int, list[Any]] = {}
        self.captured: list[Any] = []
        self.lock = RLock()  # of all that is not done at each call
        self.begun = False
        self._growing: Growing | None = None

    @property
    def growing(self) -> Growing | None:
        if not self.begun:
            with self.lock:
                if not self.begun:
                    self._growing, self.begun = self.begin(), True
        return self._growing

    @property
    def nbytes(self) -> int:
        """The memory of arenas that grow; others are counted by whose arrays they are."""
        return 0 if self._growing is None else self._growing.nbytes

    def take(self, nbytes: int) -> tuple[Any, list[Any]]:
        """An array of at least so many bytes, and the list that it is to be put back into.

        Nobody else takes it until then. A smaller one that was kept grows or goes, so
        each is as large as what needs most. MemoryError if there is no memory even when
        all that is idle was given back.
        """
        stream = self.stream()
        if stream is None:
            return self.surely(lambda: self.empty(nbytes)), self.captured
        idle = self.idle.get(stream)
        if idle is None:
            if len(self.idle) >= STREAMS:
                self.release()
            idle = self.idle.setdefault(stream, [])
        while idle:
            try:
                found = idle.pop()
            except IndexError:  # another thread was faster
                break
            if found.nbytes >= nbytes:
                return found, idle
            if self._growing is not None:
                return self.grown(found, nbytes, idle), idle
        return self.made(nbytes, stream), idle

    def grown(self, arena: Any, nbytes: int, idle: list[Any]) -> Any:
        growing = self._growing
        assert growing is not None
        with self.lock:
            try:
                return self.surely(lambda: growing.grown(arena, nbytes))
            except BaseException:
                idle.append(arena)
                raise

    def made(self, nbytes: int, stream: int) -> Any:
        growing = self.growing
        with self.lock:
            if growing is None:
                return self.surely(lambda: self.empty(nbytes))
            return self.surely(lambda: growing.made(nbytes, stream))

    def surely(self, make: Callable[[], T]) -> T:
        """Returns what `make` gives; again when memory was given back, if there was none."""
        try:
            return make()
        except Exception as error:
            if not ran_out(error):
                raise
        self.spare()
        return make()

    def spare(self) -> None:
        """Gives back what nobody uses, here and where others keep it.

        Inside a capture, in which the device cannot be waited for, arenas stay.
        """
        if self.stream() is not None:
            self.release()
        self.free()

    def release(self) -> None:
        """Lets go of what is idle."""
        with self.lock:
            arenas = [each for idle in [*self.idle.values()] for each in emptied(idle)]
            if len(self.idle) >= STREAMS:  # else what is out comes back to where it was
                self.idle.clear()
            if self._growing is not None:
                self._growing.release(arenas)

    def close(self) -> None:
        """Gives back all that is idle, for good."""
        with self.lock:
            self.release()
            if self._growing is not None:
                self._growing.close()


def ran_out(error: BaseException) -> bool:
    """True if it says that a device has no more memory, in CuPy's words, ours, or torch's."""
    if isinstance(error, MemoryError):
        return not type(error).__module__.startswith("numpy")  # NumPy's is of the host
    return type(error).__name__ == "OutOfMemoryError"


def emptied(idle: list[Any]) -> list[Any]:
    """Returns what was in a list that other threads take from."""
    found = []
    while idle:
        try:
            found.append(idle.pop())
        except IndexError:
            break
    return found
