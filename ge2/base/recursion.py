"""Room for deep nesting: a function that is traced inside another takes a
dozen frames of Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident, main_thread
from typing import Final

DEEP: Final = 5000  # frames, of 400 nested traces; they take at most 1.2 MB of the stack


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raises Python's recursion limit to 5000 inside; in the main thread alone,
    others may have small stacks.

    >>> import sys
    >>> before = sys.getrecursionlimit()
    >>> with deep_recursion():
    ...     sys.getrecursionlimit() >= 5000
    True
    >>> sys.getrecursionlimit() == before
    True
    """
    before = sys.getrecursionlimit()
    if before >= DEEP or get_ident() != main_thread().ident:  # any other thread may have any stack
        yield
        return
    sys.setrecursionlimit(DEEP)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == DEEP:  # else the function has set its own
            sys.setrecursionlimit(before)
