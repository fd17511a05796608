"""The price of equations in seconds: what the C compiler takes for them, and
what it costs to store values.

Only ratios matter: which of two programs is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable

from ge2.ir import Eqn

CALLS = 100  # of a compiled function, over which its compile time is spread
CACHE = 1 << 19  # bytes that stay in a core's own cache
FROM_CACHE = 4e10  # bytes a second
FROM_MEMORY = 8e9
DISPATCH = 1e-7  # seconds for a call of a kernel


def compile_seconds(eqns: Iterable[Eqn]) -> float:
    """The time in which a C compiler makes code of elementwise equations that are one kernel."""
    return sum(e.op.cost.compile_seconds for e in eqns)


def traffic_seconds(nbytes: int) -> float:
    """The time in which a kernel writes bytes that the next one reads."""
    return DISPATCH + 2 * nbytes / (FROM_CACHE if nbytes <= CACHE else FROM_MEMORY)
