"""Work on threads of its own."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


def on_threads(*works: Callable[[], object]) -> None:
    """Each on a thread of its own, all at once, until all are done."""
    threads = [Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
