"""The numbers that programs are planned by, whichever device runs them: a target passes them."""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Placement:
    """The choice of memory for results."""

    # bytes of a donated argument whose memory is worth another address in a captured graph
    patched: int = 1 << 24
    # bytes of a result which a GPU's kernel writes over what it reads last: so much keeps all of it
    # busy, and what knows nothing of the two steps waits for either of them in any case
    over: int = 4 << 20


PLACEMENT = Placement()


@final
@record
class Planning:
    """The time in which passes, the schedule and the text of straight code are made in Python."""

    equation: float = 7e-5  # seconds for each: 12 s for 110,000 of a loop over elements


PLANNING = Planning()


@final
@record
class CompilePrice:
    """The time in which a target's compiler makes a kernel, as long as it has a core."""

    kernel_seconds: float  # of one with little in it
    share: float = 1.0  # of what gcc needs at -O3 for what is in it
    line: int = 8  # equations of one line of Python from which on it stands in a loop


@final
@record
class Concurrent:
    """The choice of arrays that are apart, since their steps may run at once, though their
    lifetimes do not meet.
    """

    arrays: int = 512  # beyond which nobody looks for independent ones
    large: int = 4 << 20  # bytes of an array; who writes more keeps the whole device busy
    tiny: int = 64 << 10  # of one that nobody misses, though it is there from the first step on
    unhurried: int = 8 << 20  # that launches may cost which are one
    more: int = 64 << 20  # bytes that all of it may cost
