"""The price of compiling a Python loop, announced before a compiler begins.

A long loop that cannot be rolled, since its iterations differ in more than offsets and
sizes, is a kernel or more for each iteration. If these need longer than
`config.compile_patience`, the user is warned; a target says what it does instead. So is who has a
loop that is one of one body for the compiler, and still long to plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ge2.base.config import config
from ge2.base.log import warn
from ge2.base.source import Source
from ge2.ir import Eqn, Graph
from ge2.ops.graphs.region import Region
from ge2.passes.loops.roll import compile_seconds
from ge2.program.tuning import CompilePrice, Planning


def kernel_seconds(eqn: Eqn, price: CompilePrice) -> float:
    """The time for a kernel of an equation."""
    inside = compile_seconds(eqn.op.graph.eqns) if isinstance(eqn.op, Region) else 0.0
    return price.kernel_seconds + price.share * inside


def is_too_long(seconds: float, sources: Sequence[Source | None], price: CompilePrice) -> bool:
    """True of a program whose Python loops compile longer than the user's patience.

    `seconds` is the time for the whole program, of whose steps `sources` are the lines.
    """
    if not config.compile_patience or seconds <= config.compile_patience:
        return False
    return seconds * share_of_loops(sources, price) > config.compile_patience


def share_of_loops(sources: Sequence[Source | None], price: CompilePrice) -> float:
    """The part of a program's steps that loops made: a function has one if a place in it made many
    steps; others of its places made some of them in branches.
    """
    steps = steps_of(sources)
    looping = {s.code for s, n in steps.items() if n >= price.line}
    return sum(n for s, n in steps.items() if n > 1 and s.code in looping) / max(len(sources), 1)


def steps_of(sources: Sequence[Source | None]) -> Counter[Source]:
    """The number of steps that each place in the user's program made."""
    return Counter(s for s in sources if s is not None)


def announce_straight(title: str, graph: Graph, planning: Planning) -> None:
    """Warns of a Python loop that stays straight code, if it is so long that to plan it takes more
    than the user's patience, however quick the compiler is.
    """
    seconds, price = planning.equation * len(graph.eqns), CompilePrice(planning.equation)
    if seconds <= config.compile_patience:
        return  # before anybody counts lines
    sources = [e.source for e in graph.eqns]
    if is_too_long(seconds, sources, price):
        steps = sum(not e.op.is_view for e in graph.eqns)
        announce(title, sources, steps, seconds, price, "it is compiled all the same")


def announce(
    title: str,
    sources: Sequence[Source | None],
    kernels: int,
    seconds: float,
    price: CompilePrice,
    way: str,
) -> None:
    """The warning; `way`: what is done about it."""
    steps = steps_of(sources)
    line = steps.most_common(1)[0][0]
    # a call may make several steps in an iteration, and more for its derivative, or be made twice
    iterations = min(n for n in steps.values() if n >= price.line)
    share = share_of_loops(sources, price)
    warn(
        f"{title} has a Python loop that is no loop of one body: some {iterations} iterations "
        f"became {share * kernels:.0f} kernels, some {share * seconds:.0f} s of compiling; {way}\n"
        f"  at   {line}",
        fix="ge2.lax.fori_loop(0, n, body, x) or ge2.lax.scan, whose body is compiled once; "
        "GE2_COMPILE_PATIENCE=0 waits for any compiler",
    )
