"""Memory that programs have for themselves while they run: the same on each call, so that graphs of it last.

On one stream programs run one after another, so they may share an arena. A program has it alone while its
launches are handed over, whichever thread does so; what comes later on the stream finds it free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

KEPT: Final = 4  # arenas of a stream: as many threads may hand over launches at once and find theirs again
STREAMS: Final = 64  # that are remembered


@final
class Scratch:
    """The arenas of a device. `empty` makes an array of so many bytes, `stream` tells the current one."""

    def __init__(self, empty: Callable[[int], Any], stream: Callable[[], int]) -> None:
        self.empty, self.stream = empty, stream
        self.idle: dict[int, list[Any]] = {}

    def take(self, nbytes: int) -> Any:
        """An array of at least so many bytes, which nobody else takes until it is given back."""
        idle = self.idle.get(self.stream())
        while idle:
            try:
                found = idle.pop()
            except IndexError:  # another thread was faster
                break
            if found.nbytes >= nbytes:
                return found  # else it goes: a larger one takes its place
        try:
            return self.empty(nbytes)
        except MemoryError:
            self.release()
            return self.empty(nbytes)

    def give(self, memory: Any) -> None:
        """It may be taken by what comes later on the current stream."""
        if len(self.idle) >= STREAMS:
            self.release()
        idle = self.idle.setdefault(self.stream(), [])
        if len(idle) < KEPT:
            idle.append(memory)

    def release(self) -> None:
        """Lets go of what is idle."""
        self.idle.clear()
