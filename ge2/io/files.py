"""Files that are whole or absent: written beside their path, and renamed when they are on the disk."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

PART: Final = ".part"  # ends the names of files that are being written
NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
YOUNG: Final = 60.0  # seconds in which a file may exist and not be locked yet


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the `with`, and not before all of it is
    on the disk.

    Whenever the process, or the machine, stops, `path` is what it was or what it shall be. An error
    leaves what it was, and no other file.
    """
    path = os.path.realpath(path)  # the file that a link names, not the link
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{PART}")
    try:
        fd = os.open(part, NEW, 0o666)
    except OSError as error:
        error.filename = path  # and not a name that nobody chose
        raise
    try:
        with os.fdopen(fd, "wb") as file:
            lock(fd)
            yield file
            file.flush()
            os.fsync(fd)
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    sync(folder)


def sync(folder: str) -> None:
    """Has the names in a folder written to the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def lock(fd: int) -> bool:
    """Locks an open file until it is closed or its process ends; False if another has it."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no locks on this system, or on this disk
        return False
    return True


def remove_unfinished(folder: str) -> None:
    """Removes the files that processes which were killed have left behind in a folder."""
    for entry in os.scandir(folder):
        if not (entry.name.startswith(".") and entry.name.endswith(PART)):
            continue
        with suppress(OSError):  # another process may remove it as well
            if time.time() - entry.stat(follow_symlinks=False).st_mtime < YOUNG:
                continue
            fd = os.open(entry.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if lock(fd):
                    os.unlink(entry.path)
            finally:
                os.close(fd)
