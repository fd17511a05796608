"""Commands run with a time limit and a bound on their output, in folders removed afterwards.

It outlives nobody: its standard input was a pipe of which this process alone has the
other end, and a process of its group waits for the end of that pipe. So it ends with
us, even where nothing of ours could stop it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import cache as once
from threading import Lock, RLock, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from ge2.base.config import config, environment_with
from ge2.base.record import after_fork, record

if TYPE_CHECKING:
    from ge2.base.program import Program


# ----------------------------------------------------------------------------------------- folders
# Folders for the files of one compilation, removed after it; those of
# killed processes, by the next.
#
# A folder is locked for as long as it is used, and a lock ends with its process: so one
# that can be locked is left over.


PREFIX: Final = "ge2-files-"
TRIES: Final = 8  # of finding a new folder, which another process may take for one left over
_swept: set[str] = set()


# `tempfile` looks for its folder, and for names, once, under a lock of its own, which in a forked child
# would be locked for ever if another thread had it: so a fork waits for who looks. (The lock of Jinja's in
# `codegen/environment.py` is alike; a warm call loads that, and is not to load this file.)
_looking = RLock()


def _before_fork() -> None:
    _looking.acquire()


def _after_fork_in_parent() -> None:
    _looking.release()


def _after_fork_in_child() -> None:
    global _looking
    _looking = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


@contextmanager
def workplace() -> Iterator[str]:
    """A new folder of this user alone. OSError if there is no place for one."""
    import shutil
    import tempfile

    with _looking:
        parent = tempfile.gettempdir()
    sweep(parent)
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
        with _looking:
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


# ----------------------------------------------------------------------------------------- command


KEPT = 16_384  # bytes of output; the rest is read, so that the program can go on, and forgotten
LOOK = 0.05  # seconds between looks at a program that left its output open to another
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
    """The end of a program: its exit status (below 0: the signal that killed it) and how its output
    began.
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
    programs: list[Program] = []
    try:
        for command in commands:
            _start(programs, command, folder, reader)
        return [_ended(program, end) for program in programs]
    finally:
        _writers.discard(writer)
        os.close(reader)
        os.close(writer)  # which stops even one whose number an interrupt kept from us
        for program in programs:
            program.end()  # what it started too, if it has ended itself


def _start(programs: list[Program], command: Sequence[str], folder: str, reader: int) -> None:
    from ge2.base.program import Program

    environment = environment_with(LC_ALL="C", TMPDIR=folder)
    guarded = (SHELL, "-c", GUARD, "sh", *command) if _has_shell() else command
    Program(programs, guarded, folder, environment, reader)


def _ended(program: Program, end: float) -> Outcome:
    output = _heard(program, end)
    return Outcome(_status(program, end), output)


@once
def _has_shell() -> bool:
    return os.access(SHELL, os.X_OK)


def _heard(program: Program, end: float) -> str:
    """The output until the program has ended, or it and all that it started have closed their
    output.
    """
    import selectors

    assert program.stdout is not None
    pipe, heard = program.stdout.fileno(), b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if ready.select(min(left, LOOK)):
                part = os.read(pipe, 65_536)
                if not part:
                    return _text(heard)
                heard += part[: KEPT - len(heard)]
            elif program.poll() is not None:
                return _text(heard)
    raise TookTooLong


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _status(program: Program, end: float) -> int:
    from subprocess import TimeoutExpired

    try:
        return program.wait(max(end - time.monotonic(), 0.0))
    except TimeoutExpired:
        raise TookTooLong from None


@after_fork
def _after_fork() -> None:
    """A child holds no program of its parent's alive."""
    for writer in _writers:
        with suppress(OSError):
            os.close(writer)
    _writers.clear()


# -------------------------------------------------------------------------------- background build
# An extension in C that is compiled once a machine, in another thread; who
# asks for it earlier is notified.
#
# So the first program of a machine waits for no compiler but its own.


# of an extension
ABI: Final = f"{sys.version} {getattr(sys, 'abiflags', '')} NumPy {np.__version__}"


class Waiting(Protocol):
    """A program that runs without the extension until that is there."""

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
        """True if it is there, or surely cannot be; it is loaded if nothing has to be compiled."""
        if not self.begun() and self.at_hand():
            self.settle(config.cc)
        return config.cc in self.made

    def begun(self) -> bool:
        """True if it is there, or a thread is making it."""
        return config.cc in self.made or config.cc in self.waiting

    def tell(self, waiting: Waiting) -> bool:
        """True if a thread will notify somebody who asks too early."""
        return self._made_for([waiting])

    def begin(self) -> None:
        """Has a thread compile it, if that is to be done, before somebody asks for it."""
        if not self.ready():
            self._made_for([])

    def _made_for(self, more: list[Waiting]) -> bool:
        """True if a thread makes it, which will notify these, too."""
        setting = config.cc
        with self.lock:
            if setting in self.made:
                return False
            begun = setting in self.waiting
            self.waiting.setdefault(setting, []).extend(more)
        if not begun:
            Thread(
                target=copy_context().run, args=(self.patiently, setting), name=self.name
            ).start()
        return True

    def patiently(self, setting: str) -> None:
        time.sleep(self.patience)
        self.settle(setting)

    def settle(self, setting: str) -> None:
        """Makes it, or finds that this cannot be done, and notifies all that wait for it."""
        made = self.make()
        with self.lock:
            self.made[setting] = made
            waiting = self.waiting.pop(setting, [])
        for each in waiting:
            each.settle(made)


@final
class Provisional:
    """A program that is called without the extension until that is there.

    `native` makes of the extension the program that it calls; `told` is notified of that program.
    """

    __slots__ = ("native", "run", "told")

    def __init__(self, plain: Callable[..., Any], native: Callable[[Any], Any]) -> None:
        self.run, self.native = plain, native
        self.told: Callable[[Any], None] | None = None

    def __call__(self, *arrays: Any) -> Any:
        return self.run(*arrays)

    def settle(self, made: Any) -> None:
        """Has the extension call it, where that can be made."""
        if made is not None:
            self.run = self.native(made)
        if self.told is not None:
            self.told(self.run)
        self.told = None


_all: list[Awaited] = []


@after_fork
def _forget_waiting() -> None:
    """The threads that would notify them do not exist in the child: who asks next begins anew."""
    for each in _all:
        each.lock = Lock()
        each.waiting.clear()
