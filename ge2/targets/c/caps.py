"""Limits of this machine's processor for generated C."""

from __future__ import annotations

from functools import cache
from typing import final

from ge2.base.record import record
from ge2.base.toolchain.detect import processor_name
from ge2.choice.speed import Speed, speed_of
from ge2.targets.c.tuning import Tuning


@final
@record
class Caps:
    """`threads`: those that a kernel may share its work among. `blas`: C can call NumPy's BLAS.
    `tuning`: the numbers that are no limits.
    """

    threads: int
    blas: bool = True
    tuning: Tuning = Tuning()

    @property
    def kind(self) -> str:
        """The device as the record of measurements names it."""
        return kind_of(self.threads)

    @property
    def usual(self) -> Speed:
        """The speed of a processor that was not probed: of a server's some years ago."""
        n = max(self.threads, 1)
        return Speed(
            moved=8e9 + 4e9 * n, cached=4e10 * n, cache=1 << 20, single=3e10 * n, double=1.5e10 * n,
            products=8e10 * n, launch=1e-6 if n == 1 else 5e-6, functions=8,
        )  # fmt: skip

    @property
    def speed(self) -> Speed:
        return speed_of(self.kind, self.usual)

    @property
    def driver(self) -> str:
        """The compiler."""
        from ge2.base.toolchain.detect import toolchain

        found = toolchain()
        return "" if found is None else found.version

    @property
    def libraries(self) -> tuple[tuple[str, str], ...]:
        import numpy as np

        return (("numpy", np.__version__),)


@cache
def kind_of(threads: int) -> str:
    return f"{processor_name()}, {max(threads, 1)} threads"
