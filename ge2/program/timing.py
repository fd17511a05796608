"""How long a device takes: moments on it, and the time between two; here on a
processor, by its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.record import record

TRIES: Final = 7


@final
@record
class Ceilings:
    """What a device does in a second: bytes read and written, and
    operations, of a multiply-add two.

    `double` is 0 where it was not measured.
    """

    moved: float
    single: float
    double: float = 0.0


class Moment(Protocol):
    """A moment on a device, which is now when `record` is called, in the order
    of what it is asked to do.
    """

    def record(self) -> Any: ...


class Clock(Protocol):
    """What times the steps of a program."""

    @property
    def words(self) -> str:
        """How it times, for people."""

    def moment(self) -> Any: ...

    def ready(self) -> None:
        """Called before each step that is timed, outside of its time."""

    def between(self, first: Any, last: Any) -> float:
        """Seconds from one moment to another, once both are past."""

    def wait(self) -> None:
        """Until all that the device was asked to do is done."""

    def nothing(self) -> float:
        """Seconds that a step which does nothing seems to take."""


@final
class HostMoment:
    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()


@final
class HostClock:
    """The processor's clock.

    With `cold` bytes, so many are written before each step, to empty the caches.
    """

    def __init__(self, cold: int = 0) -> None:
        self.spoiler = np.ones(cold, np.uint8) if cold else None

    @property
    def words(self) -> str:
        return "by the host's clock"

    def moment(self) -> HostMoment:
        return HostMoment()

    def ready(self) -> None:
        if self.spoiler is not None:
            self.spoiler += 1

    def between(self, first: HostMoment, last: HostMoment) -> float:
        return last.at - first.at

    def wait(self) -> None:
        """What it times has ended when it returns."""

    def nothing(self) -> float:
        first, last = self.moment(), self.moment()
        first.record()
        last.record()
        return self.between(first, last)


def seconds(clock: Clock, work: Callable[[], Any]) -> float:
    """How long it takes a device to do something."""
    first, last = clock.moment(), clock.moment()
    clock.ready()
    first.record()
    work()
    last.record()
    clock.wait()
    return clock.between(first, last)


def best(clock: Clock, work: Callable[[], Any]) -> float:
    """The least that it takes, of a few tries."""
    work()
    return min(seconds(clock, work) for _ in range(TRIES))
