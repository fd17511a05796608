"""Who waits longer than a second for a first call is told once what it is doing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

from ge2.base.compile_times import Tally, counting, current
from ge2.base.config import config
from ge2.base.log import is_heard, say

PATIENCE: Final = 1.0  # seconds


@contextmanager
def making(tally: Tally) -> Iterator[None]:
    """Inside, a program is made: what this thread spends counts, and is told if it
    lasts and somebody cares.

    What is made while something else is, an inner function of a trace, is told as part of that.
    """
    timer = Timer(PATIENCE, tell, (tally,)) if current() is None and is_wanted() else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        with counting(tally):
            yield
    finally:
        if timer is not None:
            timer.cancel()


def is_wanted() -> bool:
    """As the setting says; where it leaves it open, on a terminal, or if somebody
    listens for such things.
    """
    if config.progress != "auto":
        return config.progress == "on"
    return (sys.stderr is not None and sys.stderr.isatty()) or is_heard("INFO")


def tell(tally: Tally) -> None:
    words = "%s is not ready yet: %s (GE2_PROGRESS=off says no such thing)"
    say(words, tally.title, tally.now(), level="INFO")
