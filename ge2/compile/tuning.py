"""The numbers that a program is planned by, all of them: they are passed from where it begins to
who reads them.
"""

from __future__ import annotations

from typing import final

from ge2.base.config import config
from ge2.base.record import record
from ge2.passes.tuning import TUNING as PASSES
from ge2.passes.tuning import Tuning as Passes
from ge2.program.tuning import PLACEMENT, PLANNING, Placement, Planning
from ge2.targets.c.tuning import TUNING as C
from ge2.targets.c.tuning import Tuning as InC


@final
@record
class Search:
    """The search for values that are computed again instead of being kept, to fit in so much
    memory.
    """

    part: int = 4  # one in so many of the values that wait is given up at a time
    rounds: int = 200  # of smaller and smaller programs, at most
    # a value of so small a part of what is freed may wait instead of being computed again
    small: int = 16
    longest: int = 256  # equations that are computed again for one value, at most
    while_rounds: int = 16  # that a while loop is taken to have
    transcendental: int = 8  # additions that exp or tanh counts as


SEARCH = Search()


@final
@record
class Tuning:
    """The numbers of passes, of planning and placing results, of programs in C, and of the search
    under a memory limit; a GPU's are in the limits of its chip.
    """

    passes: Passes = PASSES
    placement: Placement = PLACEMENT
    planning: Planning = PLANNING
    c: InC = C
    search: Search = SEARCH


def tuning_now() -> Tuning:
    """The records of `config.tuning`, and else each as it is."""
    return Tuning(
        config.tuned(PASSES),
        config.tuned(PLACEMENT),
        config.tuned(PLANNING),
        config.tuned(C),
        config.tuned(SEARCH),
    )


TUNING = Tuning()
