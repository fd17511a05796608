"""The price of equations in seconds: what the C compiler takes for them, and what it costs to store values.

Measured with gcc at -O3 on one core of a server. Only ratios matter: which of two programs is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ge2.ir import Eqn
from ge2.ops.elementwise import TRANSCENDENTAL

CALLS = 100  # of a compiled function, over which its compile time is spread
COMPILE = 0.0007  # seconds for a simple equation of a kernel
LONG_FUNCTION = 0.012  # seconds for exp, tanh and their like, which are inlined
COMPILES: Mapping[str, float] = {  # seconds for functions of more than one range, or of two tables
    "sin": 0.06, "cos": 0.06, "tan": 0.06, "pow": 0.05,
    "log": 0.04, "log1p": 0.04, "log2": 0.04, "log10": 0.04,
}  # fmt: skip
CACHE = 1 << 19  # bytes that stay in a core's own cache
FROM_CACHE = 4e10  # bytes a second
FROM_MEMORY = 8e9
DISPATCH = 1e-7  # seconds for a call of a kernel


def compile_seconds(eqns: Iterable[Eqn]) -> float:
    """The time in which a C compiler makes code of elementwise equations that are one kernel."""
    return sum(COMPILES.get(e.op.name, long_or_short(e.op.name)) for e in eqns)


def long_or_short(name: str) -> float:
    return LONG_FUNCTION if name in TRANSCENDENTAL else COMPILE


def traffic_seconds(nbytes: int) -> float:
    """The time in which a kernel writes bytes that the next one reads."""
    return DISPATCH + 2 * nbytes / (FROM_CACHE if nbytes <= CACHE else FROM_MEMORY)
