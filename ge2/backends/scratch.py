"""Memory that programs have for themselves while they run: the same on each call, so that graphs of it last.

On one stream programs run one after another, so they may share an arena. A program has it alone while its
launches are handed over, whichever thread does so; what comes later on the stream finds it free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

STREAMS: Final = 64  # whose arenas are kept


@final
class Scratch:
    """The arenas of a device. `empty` makes an array of so many bytes; `stream` tells the current stream, and
    None where the user captures it: the graph that comes of it has its scratch for good.
    """

    def __init__(self, empty: Callable[[int], Any], stream: Callable[[], int | None]) -> None:
        self.empty, self.stream = empty, stream
        self.idle: dict[int, list[Any]] = {}
        self.captured: list[Any] = []

    def take(self, nbytes: int) -> tuple[Any, list[Any]]:
        """An array of at least so many bytes, and the list that it is to be put back into.

        Nobody else takes it until then. A smaller one that was kept goes, so each is as large as what needs
        most.
        """
        stream = self.stream()
        if stream is None:
            return self.made(nbytes), self.captured
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
        return self.made(nbytes), idle

    def made(self, nbytes: int) -> Any:
        try:
            return self.empty(nbytes)
        except MemoryError:
            self.release()
            return self.empty(nbytes)

    def release(self) -> None:
        """Lets go of what is idle."""
        self.idle.clear()
