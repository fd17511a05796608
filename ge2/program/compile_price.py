"""The price of compiling a Python loop, announced before a compiler begins.

A long loop that cannot be rolled, since its iterations differ in more than offsets and
sizes, is a kernel or more for each iteration. If these need longer than
`config.compile_patience`, the user is warned; a target says what it does instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ge2.base.config import config
from ge2.base.log import warn
from ge2.base.source import Source
from ge2.ir import Eqn
from ge2.ops.graphs.region import Region
from ge2.passes.loops.roll import compile_seconds
from ge2.program.tuning import CompilePrice


def kernel_seconds(eqn: Eqn, price: CompilePrice) -> float:
    """The time for a kernel of an equation."""
    inside = compile_seconds(eqn.op.graph.eqns) if isinstance(eqn.op, Region) else 0.0
    return price.kernel_seconds + price.share * inside


def is_too_long(seconds: float, sources: Iterable[Source | None], price: CompilePrice) -> bool:
    """True of a loop that compiles longer than the user's patience."""
    if not config.compile_patience or seconds <= config.compile_patience:
        return False
    return longest_loop(sources)[1] >= price.line


def announce(
    title: str, sources: Iterable[Source | None], kernels: int, seconds: float, way: str
) -> None:
    """The warning; `way`: what is done about it."""
    line, iterations = longest_loop(sources)
    warn(
        f"{title} has a Python loop that is no loop of one body: {iterations} iterations became "
        f"{kernels} kernels, some {seconds:.0f} s of compiling; {way}\n  at   {line}",
        fix="ge2.lax.fori_loop(0, n, body, x) or ge2.lax.scan, whose body is compiled once; "
        "GE2_COMPILE_PATIENCE=0 waits for any compiler",
    )


def longest_loop(sources: Iterable[Source | None]) -> tuple[Source | None, int]:
    """The line that made most of the equations, and how many."""
    return next(iter(Counter(s for s in sources if s is not None).most_common(1)), (None, 0))
