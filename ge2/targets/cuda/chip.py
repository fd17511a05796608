"""What a kernel is planned by: how much of a GPU there is, whichever it is."""

from __future__ import annotations

from typing import Protocol, final

from ge2.base.record import record
from ge2.targets.cuda.limits import GRID_MOST
from ge2.targets.cuda.tuning import Tuning


class Known(Protocol):
    """Where the figures come from."""

    @property
    def multiprocessors(self) -> int: ...
    @property
    def threads_per_multiprocessor(self) -> int: ...
    @property
    def registers_per_multiprocessor(self) -> int: ...
    @property
    def shared_per_multiprocessor(self) -> int: ...
    @property
    def shared_optin(self) -> int: ...
    @property
    def shared_static(self) -> int: ...
    @property
    def registers_per_thread(self) -> int: ...
    @property
    def l2(self) -> int: ...
    @property
    def together(self) -> int: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def tuning(self) -> Tuning: ...


@final
@record
class Chip:
    """Multiprocessors, and of each of them its threads, its registers and the bytes of
    its shared memory; `most`: bytes that a single block may have, and
    `static` without asking; `thread_registers`: those of a thread at most; `l2`: bytes of
    the cache of all; `together`: blocks that may wait for each other; `grid`: blocks along each axis
    of a grid, at most; `tuning`: the numbers that are no limits.
    """

    multiprocessors: int
    threads: int
    registers: int
    shared: int
    most: int
    static: int
    thread_registers: int
    l2: int
    together: int = 1
    grid: tuple[int, int, int] = GRID_MOST
    tuning: Tuning = Tuning()

    @staticmethod
    def of(limits: Known) -> Chip:
        return Chip(
            limits.multiprocessors,
            limits.threads_per_multiprocessor,
            limits.registers_per_multiprocessor,
            limits.shared_per_multiprocessor - limits.tuning.spare,
            limits.shared_optin - limits.tuning.spare,
            limits.shared_static,
            limits.registers_per_thread,
            limits.l2,
            limits.together,
            limits.grid,
            limits.tuning,
        )
