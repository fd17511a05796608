"""Building graphs without the garbage collector, which would walk every living
equation again and again.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_paused: list[bool] = []  # not empty while a thread has the collector rest


def collector_paused(f: F) -> F:
    """`f`, during which the collector rests: what it makes stays alive,
    there is nothing to collect.
    """

    @wraps(f)
    def paused(*args: Any, **kwargs: Any) -> Any:
        if not gc.isenabled():
            return f(*args, **kwargs)
        try:
            gc.disable()
            _paused.append(True)
            return f(*args, **kwargs)
        finally:
            gc.enable()
            _paused.clear()

    return paused  # type: ignore[return-value]


def _after_fork() -> None:
    """The thread that had the collector rest may not exist in the child."""
    if _paused:
        gc.enable()
        _paused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
