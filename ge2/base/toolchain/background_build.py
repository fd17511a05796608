"""An extension in C that is compiled once a machine, in another thread; who
asks for it before is told later.

So the first program of a machine waits for no compiler but its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, Final, Protocol, final

import numpy as np

from ge2.base.config import config

# of an extension
ABI: Final = f"{sys.version} {getattr(sys, 'abiflags', '')} NumPy {np.__version__}"


class Waiting(Protocol):
    """What goes on without the extension until it is there."""

    def settle(self, made: Any) -> None:
        """Has the extension do it from now on; None where it cannot be made."""


@final
class Awaited:
    """An extension, one for each compiler that the settings name; None where it cannot be made.

    `make` compiles and loads it, which is `at_hand` if nothing has to be compiled. The thread that
    makes it leaves the processor to others for so many seconds of `patience` first.
    """

    def __init__(
        self, name: str, at_hand: Callable[[], bool], make: Callable[[], Any], patience: float = 0.0
    ) -> None:
        self.name, self.at_hand, self.make, self.patience = name, at_hand, make, patience
        self.made: dict[str, Any] = {}  # by the setting `cc`
        self.waiting: dict[str, list[Waiting]] = {}
        self.lock = Lock()
        _all.append(self)

    def now(self) -> Any:
        """It, made now if it was not before."""
        if config.cc not in self.made:
            self.settle(config.cc)
        return self.made[config.cc]

    def ready(self) -> bool:
        """Whether it is there, or surely cannot be; it is loaded if nothing has to be compiled."""
        if config.cc not in self.made and self.at_hand():
            self.settle(config.cc)
        return config.cc in self.made

    def begun(self) -> bool:
        """Whether it is there, or a thread is making it."""
        return config.cc in self.made or config.cc in self.waiting

    def tell(self, waiting: Waiting) -> bool:
        """Whether a thread will tell somebody of it, who asks too early."""
        setting = config.cc
        with self.lock:
            if setting in self.made:
                return False
            begun = setting in self.waiting
            self.waiting.setdefault(setting, []).append(waiting)
        if not begun:
            Thread(
                target=copy_context().run, args=(self.patiently, setting), name=self.name
            ).start()
        return True

    def patiently(self, setting: str) -> None:
        time.sleep(self.patience)
        self.settle(setting)

    def settle(self, setting: str) -> None:
        """Makes it, or finds that this cannot be done, and tells all that wait for it."""
        made = self.make()
        with self.lock:
            self.made[setting] = made
            waiting = self.waiting.pop(setting, [])
        for each in waiting:
            each.settle(made)


_all: list[Awaited] = []


def _after_fork() -> None:
    """The threads that would tell of them do not exist in the child: who asks next begins anew."""
    for each in _all:
        each.lock = Lock()
        each.waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
