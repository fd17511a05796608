"""Folders for the files of one compilation, removed after it; those of
killed processes, by the next.

A folder is locked for as long as it is used, and a lock ends with its process: so one
that can be locked is left over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

PREFIX: Final = "ge2-files-"
TRIES: Final = 8  # of finding a new folder, which another process may take for one left over
_swept: set[str] = set()


@contextmanager
def workplace() -> Iterator[str]:
    """A new folder of this user alone. OSError if there is no place for one."""
    import shutil
    import tempfile

    sweep(tempfile.gettempdir())
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(parent: str) -> None:
    """Removes, once a process, the folders that other processes of this user left behind."""
    import shutil

    if parent in _swept:
        return
    _swept.add(parent)
    with suppress(OSError), os.scandir(parent) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(PREFIX)]:
            lock = _lock(path, wait=False)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked() -> tuple[str, int | None]:
    """A new folder and its lock; None where the system has no such locks."""
    import tempfile

    for _ in range(TRIES):
        folder = tempfile.mkdtemp(prefix=PREFIX)
        lock = _lock(folder, wait=True)
        if os.path.isdir(folder):
            return folder, lock
        if lock is not None:
            os.close(lock)
    raise OSError("new folders are removed at once")


def _lock(folder: str, wait: bool) -> int | None:
    """The open folder, locked; None if another has it, it is not this user's,
    or nothing can be locked.
    """
    try:
        import fcntl

        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (ImportError, AttributeError, OSError):
        return None
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
