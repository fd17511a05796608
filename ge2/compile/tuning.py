"""What the search for a program that fits in so much memory goes by."""

from __future__ import annotations

from typing import final

from ge2.base.record import record


@final
@record
class Search:
    """How values are found that are computed again instead of being kept."""

    part: int = 4  # one in so many of the values that wait is given up at a time
    rounds: int = 200  # of smaller and smaller programs, at most
    # a value of so small a part of what is freed may wait instead of being computed again
    small: int = 16
    longest: int = 256  # equations that are computed again for one value, at most
    while_rounds: int = 16  # that a while loop is taken to have
    transcendental: int = 8  # additions that exp or tanh counts as


SEARCH = Search()
