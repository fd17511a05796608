"""The time in which a C compiler makes a program, said before it begins: a
Python loop may need too much.

A long loop that cannot be rolled, since its iterations differ in more than offsets and
sizes, is a kernel or more for each iteration. If these need longer than
`config.compile_patience`, the user is warned, and the program is compiled with fewer
optimisations; if that takes too long as well, it is run as blocked NumPy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ge2.base.config import config
from ge2.base.errors import TooLong
from ge2.base.log import warn
from ge2.base.source import Source
from ge2.base.toolchain.compiler import is_known
from ge2.codegen.text import Text
from ge2.ir import Eqn
from ge2.ops.graphs.region import Region
from ge2.passes.loops.roll import compile_seconds
from ge2.targets.c.tuning import Files

if TYPE_CHECKING:
    from ge2.targets.c.native import Native

SOONER = ("-O1",)  # options to compile sooner


def kernel_seconds(eqn: Eqn, tuning: Files) -> float:
    """The time for a kernel of an equation."""
    own = compile_seconds(eqn.op.graph.eqns) if isinstance(eqn.op, Region) else 0.0
    return tuning.kernel_seconds + own


def program_seconds(native: Native) -> float:
    """The time for all kernels of a file, and the functions that call them."""
    called = native.tuning.files.call_seconds * sum(calls(run.calls) for run in native.runs)
    return sum(native.prices.values()) + called


def calls(texts: Iterable[Text]) -> int:
    return sum(calls(text.body) if text.body else 1 for text in texts)


def cheaper(title: str, native: Native, source: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """The options for a file.

    TooLong if no options make a compiler end within the user's patience.
    """
    seconds, patience = program_seconds(native), config.compile_patience
    line, iterations = longest_loop(native.sources)
    tuning, soon = native.tuning.files, not patience or seconds <= patience
    if soon or iterations < tuning.line or is_known(source, flags):
        return flags
    sooner = seconds * tuning.quick <= patience
    if not (sooner and is_known(source, (*flags, *SOONER))):
        way = "compiled with fewer optimisations" if sooner else "run as blocked NumPy"
        warn(
            f"{title} has a Python loop that is no loop of one body: {iterations} iterations became "
            f"{len(native.prices)} kernels, some {seconds:.0f} s of compiling; it is {way}\n  at   {line}",
            fix="ge2.lax.fori_loop(0, n, body, x) or ge2.lax.scan, whose body is compiled once; "
            "GE2_COMPILE_PATIENCE=0 waits for any compiler",
        )
    if not sooner:
        raise TooLong(f"{title} would take some {seconds:.0f} s to compile")
    return (*flags, *SOONER)


def longest_loop(sources: Iterable[Source | None]) -> tuple[Source | None, int]:
    """The line that made most of the equations, and how many."""
    return next(iter(Counter(s for s in sources if s is not None).most_common(1)), (None, 0))
