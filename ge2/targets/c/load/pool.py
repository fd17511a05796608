"""A few threads that share the blocks of a kernel; made when first needed, and
again in a forked child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, final

import numpy as np

from ge2.base.interpreter import after_fork

Kernel = Callable[..., None]


@final
class Job:
    """One thread's share of a launch. Whoever claims it first runs it, or lets it go."""

    __slots__ = ("arguments", "claim", "done", "error", "kernel")

    def __init__(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.claim, self.done = Lock(), Lock()
        self.done.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            self.kernel(*self.arguments)
        except BaseException as error:  # noqa: BLE001 it is raised again where the result is awaited
            self.error = error
        finally:
            self.done.release()

    def settle(self) -> None:
        """Waits for the job if some thread has begun it; otherwise nobody will."""
        if not self.claim.acquire(blocking=False):
            self.done.acquire()


_jobs: SimpleQueue[Job] = SimpleQueue()
_threads: list[Thread] = []
_lock = Lock()


def launch(
    kernel: Kernel, parts: int, arrays: Sequence[Any], scratch: Sequence[Sequence[Any]]
) -> None:
    """Runs all parts of a kernel, as many at a time as there are sets of
    scratch; the caller takes part.
    """
    if len(scratch) == 1:
        kernel(range(parts), *arrays, *scratch[0])
        return
    shared: Iterator[int] = iter(range(parts))  # its next() is atomic
    jobs = [Job(kernel, (shared, *arrays, *own)) for own in scratch[1 : min(len(scratch), parts)]]
    staff(len(jobs))
    for job in jobs:
        _jobs.put(job)
    try:
        kernel(shared, *arrays, *scratch[0])
    finally:
        for _ in shared:  # after an error or Ctrl-C, the others stop too
            pass
        for job in jobs:
            job.settle()
    for job in jobs:
        if job.error is not None:
            raise job.error


def staff(count: int) -> None:
    """Sees to it that there are at least that many threads."""
    if len(_threads) >= count:
        return
    with _lock:
        while len(_threads) < count:
            thread = Thread(target=work, args=(_jobs,), name=f"ge2-{len(_threads)}", daemon=True)
            thread.start()
            _threads.append(thread)


def work(jobs: SimpleQueue[Job]) -> None:
    np.seterr(all="ignore")  # for this thread alone
    while True:
        jobs.get().run()


@after_fork
def _after_fork() -> None:
    """The threads of the parent do not exist in the child."""
    global _jobs, _lock
    _jobs, _lock = SimpleQueue(), Lock()
    _threads.clear()
