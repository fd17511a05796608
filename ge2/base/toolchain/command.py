"""A program run to its end, but no longer than it may take, and heard no more than one can read.

It outlives nobody: its standard input was a pipe of which this process alone has the
other end, and a process of its group waits for the end of that pipe. So it ends with
us, even where nothing of ours could stop it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from typing import TYPE_CHECKING, Final, final

from ge2.base.config import environment_with
from ge2.base.record import record

if TYPE_CHECKING:
    from subprocess import Popen

KEPT = 16_384  # bytes of output; the rest is read, so that the program can go on, and forgotten
LOOK = 0.05  # seconds between looks at a program that left its output open to another
FAREWELL = 1.0  # seconds for the system to end what was killed
SHELL: Final = "/bin/sh"
GUARD: Final = """
exec 3<&0 </dev/null
(read -r _ <&3; kill -9 0) >/dev/null 2>&1 &
exec "$@" 3<&-
"""  # the program takes the shell's place: its status and its signals are its own
_writers: set[int] = set()  # ends of pipes that no child may have


@final
class TookTooLong(Exception):
    """The program was killed, with all that it had started."""


@final
@record
class Outcome:
    """How a program ended: its exit status (below 0: the signal that killed it)
    and how its output began.
    """

    status: int
    output: str


def run(command: Sequence[str], folder: str, seconds: float) -> Outcome:
    """Runs a program in a folder, which also holds its temporary files.

    OSError if it cannot be started.
    """
    return run_together([command], folder, seconds)[0]


def run_together(commands: Sequence[Sequence[str]], folder: str, seconds: float) -> list[Outcome]:
    """Runs programs at the same time; all are stopped if one takes too long, or by an interrupt."""
    end = time.monotonic() + seconds
    reader, writer = os.pipe()
    _writers.add(writer)
    processes: list[Popen[bytes]] = []
    try:
        processes.extend(_started(command, folder, reader) for command in commands)
        return [_ended(process, end) for process in processes]
    finally:
        _writers.discard(writer)
        os.close(reader)
        os.close(writer)  # which stops even one that an interrupt kept from the list
        for process in processes:
            _kill(process)  # what it started too, if it has ended itself


def _started(command: Sequence[str], folder: str, reader: int) -> Popen[bytes]:
    from subprocess import PIPE, STDOUT, Popen

    return Popen(
        (SHELL, "-c", GUARD, "sh", *command) if _has_shell() else command,
        cwd=folder,
        env=environment_with(LC_ALL="C", TMPDIR=folder),
        stdin=reader,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,  # so that it can be killed with all that it starts
    )


def _ended(process: Popen[bytes], end: float) -> Outcome:
    output = _heard(process, end)
    return Outcome(_status(process, end), output)


@once
def _has_shell() -> bool:
    return os.access(SHELL, os.X_OK)


def _heard(process: Popen[bytes], end: float) -> str:
    """What it says until it has ended, or it and all that it started have closed their output."""
    import selectors

    assert process.stdout is not None
    pipe, heard = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if ready.select(min(left, LOOK)):
                part = os.read(pipe, 65_536)
                if not part:
                    return _text(heard)
                heard += part[: KEPT - len(heard)]
            elif process.poll() is not None:
                return _text(heard)
    raise TookTooLong


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _status(process: Popen[bytes], end: float) -> int:
    from subprocess import TimeoutExpired

    try:
        return process.wait(max(end - time.monotonic(), 0.0))
    except TimeoutExpired:
        raise TookTooLong from None


def _kill(process: Popen[bytes]) -> None:
    from signal import SIGKILL
    from subprocess import TimeoutExpired

    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, SIGKILL)
    with suppress(TimeoutExpired):
        process.wait(FAREWELL)
    assert process.stdout is not None
    process.stdout.close()


def _after_fork() -> None:
    """A child holds no program of its parent's alive."""
    for writer in _writers:
        with suppress(OSError):
            os.close(writer)
    _writers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
