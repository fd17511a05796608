"""The timer of the steps of a program while it runs: its text calls each through a function made
here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.record import record
from ge2.ir import Eqn
from ge2.program.cost import Cost

# ------------------------------------------------------------------------------------------ timing
# How long a device takes: moments on it, and the time between two; here on a
# processor, by its own clock.


TRIES: Final = 7


@final
@record
class Ceilings:
    """The peaks of a device in a second: bytes read and written, and operations, of a multiply-add
    two.

    `double` is 0 where it was not measured.
    """

    moved: float
    single: float
    double: float = 0.0


class Clock(Protocol):
    """A clock for the steps of a program."""

    @property
    def words(self) -> str:
        """The way of timing, for people."""

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
        """Waits until what it times has ended."""

    def nothing(self) -> float:
        first, last = self.moment(), self.moment()
        first.record()
        last.record()
        return self.between(first, last)


def seconds(clock: Clock, work: Callable[[], Any]) -> float:
    """The seconds that a device takes at least."""
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


# ------------------------------------------------------------------------------------------- timer


class KernelText(Protocol):
    """A kernel that can be written out."""

    def text(self) -> str: ...


@final
@record
class Call:
    """A call in the text of a program: its name there, what computes it, its
    part of a step, what that costs.

    `kernel` is the CUDA of a launch.
    """

    program: str
    name: str
    by: str
    eqn: Eqn | None
    cost: Cost
    kernel: KernelText | None = None


@final
class Meter:
    """Times the calls of a program, and of those that it runs, while it is `on`."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.on = clock, False
        self.calls: list[Call] = []
        self._met: list[tuple[int, Any, Any]] = []

    def timed(self, call: Call) -> Callable[..., Any]:
        """A function that calls another with its arguments, and times it."""
        self.calls.append(call)
        return partial(self._run, len(self.calls) - 1)

    def _run(self, number: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not self.on:
            return function(*args, **kwargs)
        first, last = self.clock.moment(), self.clock.moment()
        self.clock.ready()
        first.record()
        result = function(*args, **kwargs)
        last.record()
        self._met.append((number, first, last))
        return result

    def round(self) -> list[list[float]]:
        """Of each call, the seconds of each time that it was made since this was asked last."""
        self.clock.wait()
        found: list[list[float]] = [[] for _ in self.calls]
        for number, first, last in self._met:
            found[number].append(self.clock.between(first, last))
        self._met.clear()
        return found
