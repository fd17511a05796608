"""One thread does a piece of work while others wait for it; a forked child starts with nobody at work."""

from __future__ import annotations

import os
from collections.abc import Hashable
from threading import Lock, RLock
from typing import Any
from weakref import WeakValueDictionary

_locks: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_guard = Lock()


def alone(work: Hashable) -> Any:
    """The lock of a piece of work, the same for all who ask for it meanwhile. It may be taken again."""
    with _guard:
        lock = _locks.get(work)
        if lock is None:
            lock = _locks[work] = RLock()
        return lock


def _forget() -> None:
    global _guard
    _guard = Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
