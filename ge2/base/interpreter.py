"""Settings of the interpreter and of NumPy that are changed for a while: garbage collection,
recursion, floating-point errors.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import get_ident, main_thread
from typing import Any, Final, TypeVar

import numpy as np

# ---------------------------------------------------------------------------------------- gc pause
# Building graphs without the garbage collector, which would walk every living
# equation again and again.


F = TypeVar("F", bound=Callable[..., Any])


def after_fork(forget: F) -> F:
    """Registers a function that runs in each forked child, where the threads of the parent and the
    locks that they hold do not exist.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=forget)
    return forget


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


@after_fork
def _after_fork() -> None:
    """The thread that had the collector rest may not exist in the child."""
    if _paused:
        gc.enable()
        _paused.clear()


# --------------------------------------------------------------------------------------- recursion
# Room for deep nesting: a function that is traced inside another takes a
# dozen frames of Python.


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


# ------------------------------------------------------------------------------------ float errors
# Silence about floating point, as `np.errstate(all="ignore")` gives it, at
# an eighth of its price.


def _direct() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    from numpy._core import umath

    silent, variable = umath._make_extobj(all="ignore"), umath._extobj_contextvar
    return lambda: variable.set(silent), variable.reset


def _public() -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: np.seterr(all="ignore"), lambda old: np.seterr(**old)


try:
    hush, restore = _direct()
    restore(hush())
except (ImportError, AttributeError, TypeError):  # these names are NumPy's own, and may change
    hush, restore = _public()
