"""What times the steps of a program while it runs: its text calls each
through a function made here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, final

from ge2.base.record import record
from ge2.ir import Eqn
from ge2.program.cost import Cost
from ge2.program.timing import Clock


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
        """What calls a function with its arguments, in the place of that call."""
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
