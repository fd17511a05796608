"""What a rewrite may know beside the graph."""

from __future__ import annotations

from typing import Protocol, final

from ge2.base.record import record


class Caps(Protocol):
    """Limits of a GPU.

    `double`: how many times as long as float32 a multiply-add of float64 takes.
    """

    @property
    def multiprocessors(self) -> int: ...
    @property
    def double(self) -> int: ...


Iotas = tuple[tuple[int, int], ...]  # inputs that count along an axis, as pairs (input, axis)


@final
@record
class Context:
    """The chip, where a graph is for one, and what the caller knows of the graph's inputs.

    `written`: the inputs that the first outputs are the last contents of. `iotas`: the inputs that
    count along an axis. `body`: true of the graph of a loop or a branch that the code of its target
    calls, which takes arrays alone.
    """

    caps: Caps | None = None
    written: tuple[int, ...] = ()
    iotas: Iotas = ()
    body: bool = False


NOTHING = Context()
