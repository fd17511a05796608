"""Locks that a fork in another thread cannot leave locked: one a key, and properties that are
computed once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib import import_module
from threading import Lock, RLock
from typing import Any, Final, Generic, Self, TypeVar, final, overload
from weakref import WeakValueDictionary

# -------------------------------------------------------------------------------------- keyed lock
# One thread does a piece of work while others wait for it; a forked child
# starts with nobody at work.


_locks: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_guard = Lock()
_importing: dict[str, Any] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
WAITED_FOR: Final = {"ge2", "jinja2", "numpy", "ml_dtypes", *sys.stdlib_module_names}  # by a fork


def alone(work: Hashable) -> Any:
    """The lock of a piece of work, the same for all who ask for it meanwhile.

    It may be taken again.
    """
    with _guard:
        lock = _locks.get(work)
        if lock is None:
            lock = _locks[work] = RLock()
        return lock


def _finish_imports() -> None:
    """Waits for other threads to have imported what we import late: in a child
    nobody would go on with it.
    """
    finished: set[str] = set()  # or this thread itself imports it
    while (
        names := {name for name in list(_importing) if name.partition(".")[0] in WAITED_FOR}
        - finished
    ):
        for name in names:
            with suppress(Exception):  # the error is raised where it was asked for
                import_module(name)
        finished |= names


def _forget() -> None:
    global _guard
    _guard = Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports, after_in_child=_forget)


# ---------------------------------------------------------------------------------------- computed
# A property that is computed once, without a lock: a fork beside another
# thread may leave one locked.
#
# `functools.cached_property` has a lock for all objects of a class before Python 3.12.


T = TypeVar("T")


@final
class computed(Generic[T]):
    """A property that is computed when it is first read; each of two threads
    may do so, and one value stays.

    >>> class Square:
    ...     @computed
    ...     def area(self) -> int:
    ...         print("once")
    ...         return 4
    >>> square = Square()
    >>> square.area + square.area
    once
    8
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> T | Self:
        if owner is None:
            return self
        found: T = owner.__dict__.setdefault(self.name, self.compute(owner))
        return found
