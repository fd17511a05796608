"""Limits of this machine's processor for generated C."""

from __future__ import annotations

from typing import final

from ge2.base.record import record
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
