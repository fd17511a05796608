"""A program run to its end, but no longer than it may take, and heard no more than one can read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, final

from ge2.base.config import environment_with
from ge2.base.record import record

if TYPE_CHECKING:
    from subprocess import Popen

KEPT = 16_384  # bytes of output; the rest is read, so that the program can go on, and forgotten
LOOK = 0.05  # seconds between looks at a program that left its output open to another
FAREWELL = 1.0  # seconds for the system to end what was killed


@final
class TookTooLong(Exception):
    """The program was killed, with all that it had started."""


@final
@record
class Outcome:
    """How a program ended: its exit status (below 0: the signal that killed it) and how its output began."""

    status: int
    output: str


def run(command: Sequence[str], folder: str, seconds: float) -> Outcome:
    """Runs a program in a folder, which also holds its temporary files. OSError if it cannot be started."""
    from subprocess import DEVNULL, PIPE, STDOUT, Popen

    process = Popen(
        command,
        cwd=folder,
        env=environment_with(LC_ALL="C", TMPDIR=folder),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,  # so that it can be killed with all that it starts
    )
    end = time.monotonic() + seconds
    try:
        output = _heard(process, end)
        return Outcome(_status(process, end), output)
    finally:
        _kill(process)  # what it started too, if it has ended itself
        assert process.stdout is not None
        process.stdout.close()


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
