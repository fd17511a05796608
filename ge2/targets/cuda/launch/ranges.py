"""Ranges with names, in which a profiler's time line shows what is launched;
for tests, a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, final

_events: ContextVar[list[str] | None] = ContextVar("ge2_ranges", default=None)
END: Final = "end"


@final
class Range:
    """A range of the program: `with range_:` begins it, and ends it whatever happens inside."""

    __slots__ = ("begin", "end", "name")

    def __init__(self, name: str, begin: Callable[[str], Any], end: Callable[[], Any]) -> None:
        self.name, self.begin, self.end = name, begin, end

    def __enter__(self) -> None:
        self.begin(self.name)

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def recording() -> Iterator[list[str]]:
    """Returns what begins and ends inside, in order, on a device that is no GPU: names, and "end".

    >>> with recording() as events, recorded("a"), recorded("b"):
    ...     pass
    >>> events
    ['a', 'b', 'end', 'end']
    """
    events: list[str] = []
    token = _events.set(events)
    try:
        yield events
    finally:
        _events.reset(token)


def recorded(name: str) -> Range:
    """A range that `recording` tells of, and nobody else."""
    return Range(name, _write, _close)


def _write(word: str) -> None:
    events = _events.get()
    if events is not None:
        events.append(word)


def _close() -> None:
    _write(END)
