"""A subprocess that is killed with all that it started, even if an interrupt comes as it starts.

Imported when one is started: `subprocess` costs an import that most processes do not need.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from signal import SIGKILL
from subprocess import PIPE, STDOUT, Popen, TimeoutExpired
from typing import final

FAREWELL = 1.0  # seconds for the system to end what was killed


@final
class Program(Popen[bytes]):
    """A program in a group of processes of its own; it enters `programs` before it starts, since
    an interrupt may come between its start and the end of this constructor.
    """

    def __init__(
        self,
        programs: list[Program],
        command: Sequence[str],
        folder: str,
        environment: dict[str, str],
        reader: int,
    ) -> None:
        programs.append(self)
        super().__init__(
            command,
            cwd=folder,
            env=environment,
            stdin=reader,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,  # so that it can be killed with all that it starts
        )

    def end(self) -> None:
        """Kills it, if it has started, with what it started itself. Its pipe may be open before."""
        pid = getattr(self, "pid", None)
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, SIGKILL)
            with suppress(TimeoutExpired):
                self.wait(FAREWELL)
        pipe = getattr(self, "stdout", None)
        if pipe is not None:
            pipe.close()

    def __del__(self) -> None:
        """Without the warning of one that runs still: an interrupt of `end` leaves such a one, and
        the pipe that it waits for has ended; `subprocess` asks for its status later.
        """
        super().__del__(_warn=_silent)  # type: ignore[call-arg]


def _silent(*args: object, **kwargs: object) -> None:
    pass
