"""Compile times of a program, by stage, pass and kernel.

Who makes one counts, nobody else pays for it.

A `Tally` is open while a signature is traced or compiled; `spent` around a stage adds
to the one that is open in this context, in the thread that opened it. A stage inside
another one stops the other's clock.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache as once
from threading import Timer, get_ident
from time import perf_counter
from typing import Final, final

from ge2.base.config import config
from ge2.base.record import holding, record
from ge2.base.source import Printed, is_heard, say, table

STAGES: Final = ("trace", "import", "passes", "schedule", "render", "compile", "load", "other")
SHOWN: Final = 5e-5  # seconds from which on a stage is worth a line
HOW: Final = ("compiled", "disk", "memory")
EMPTY: Final[Mapping[str, float]] = {}
Found = tuple[str, float]  # how a kernel was had, as in HOW, and the seconds that its compiler took


@final
@record
class Had:
    """A kernel's code:

    `how` is "compiled", or where it was found, "disk" or "memory"; `seconds` compiled.
    """

    name: str
    how: str
    seconds: float = 0.0

    @property
    def words(self) -> tuple[str, str]:
        """The time it took, and where it came from, in words."""
        new = self.how == "compiled"
        return (seconds_words(self.seconds), self.how) if new else ("", f"from {self.how}")


@final
@record
class CompileTimes(Printed):
    """The seconds that the first call of a signature spent before it could run. Printed, a table.

    `capture`: making graphs of launches on a GPU, which later calls do; no part of the total.
    """

    title: str
    stages: tuple[tuple[str, float], ...]
    passes: tuple[tuple[str, float], ...]
    kernels: tuple[Had, ...]
    capture: float = 0.0

    @property
    def total(self) -> float:
        return sum(seconds for _, seconds in self.stages)

    def count(self, how: str) -> int:
        """The number of kernels that were "compiled", or found in "memory" or on "disk"."""
        return sum(each.how == how for each in self.kernels)

    def seconds(self, stage: str) -> float:
        """Of a stage; 0 if there was none such."""
        return dict(self.stages).get(stage, 0.0)

    def __str__(self) -> str:
        worth = [(stage, spent) for stage, spent in self.stages if spent >= SHOWN]
        rows = [(f"  {stage}", seconds_words(spent), self._about(stage)) for stage, spent in worth]
        if self.capture:
            rows.append(
                ("  capture", seconds_words(self.capture), "graphs of launches, by later calls")
            )
        at = next((n + 1 for n, (stage, _) in enumerate(worth) if stage == "compile"), len(rows))
        rows[at:at] = [(f"    {each.name}", *each.words) for each in self.kernels]
        head = f"{self.title}: ready in {seconds_words(self.total)}"
        return f"{head}\n{table(rows, right=frozenset((1,)))}" if rows else head

    def _about(self, stage: str) -> str:
        if stage == "compile" and self.kernels:
            return kernels_words(self.kernels)
        if stage == "passes" and self.passes:
            name, seconds = max(self.passes, key=lambda each: each[1])
            return f"most of it {name}, {seconds_words(seconds)}"
        return ""


def seconds_words(seconds: float) -> str:
    """
    >>> seconds_words(0.0123), seconds_words(2.5)
    ('12.3 ms', '2.50 s')
    """
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def kernels_words(kernels: Sequence[Had], device: str = "") -> str:
    """
    >>> kernels_words([Had("softmax", "compiled", 0.2), Had("gelu", "disk"), Had("gelu", "disk")], "H200")
    '3 kernels for H200: 1 compiled, 2 from disk'
    """
    met = Counter(each.how for each in kernels)
    said = [
        f"{met['compiled']} compiled",
        *(f"{met[how]} from {how}" for how in HOW[1:] if met[how]),
    ]
    count = f"{len(kernels)} kernel{'' if len(kernels) == 1 else 's'}"
    return f"{count}{f' for {device}' if device else ''}: {', '.join(said)}"


# ----------------------------------------------------------------------------------------- counting


@final
class Spent:
    """The compile times that are kept for each signature, of which there may be many: in few bytes."""

    __slots__ = ("kernels", "names", "values")

    def __init__(
        self,
        spent: Mapping[str, float] = EMPTY,
        passes: Mapping[str, float] = EMPTY,
        kernels: Iterable[Had] = (),
    ) -> None:
        self.names = _shared((*spent, "", *passes))
        self.values = array("f", (*spent.values(), 0.0, *passes.values()))
        self.kernels = tuple(kernels)

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """The seconds of stages, and those of passes."""
        n, pairs = self.names.index(""), list(zip(self.names, self.values, strict=True))
        return dict(pairs[:n]), dict(pairs[n + 1 :])

    def compile_times(self, title: str, capture: float = 0.0) -> CompileTimes:
        spent, passes = self.parts()
        stages = tuple((name, spent[name]) for name in STAGES if name in spent)
        kernels = tuple(sorted(self.kernels, key=lambda each: -each.seconds))
        return CompileTimes(title, stages, tuple(passes.items()), kernels, capture)


@once
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same tuple for all compile times with these stages."""
    return names


@final
class Tally:
    """The time spent for a signature. `asked`: the number of kernels that are wanted now."""

    __slots__ = ("_open", "_since", "asked", "kernels", "passes", "spent", "thread", "title")

    def __init__(self, title: str = "", before: Spent | None = None) -> None:
        self.title = title
        self.spent, self.passes = before.parts() if before else ({}, {})
        self.kernels: list[Had] = list(before.kernels) if before else []
        self.asked = 0
        self.thread = 0  # whose stages count; 0: nobody's
        self._open: list[str] = []
        self._since = 0.0

    def so_far(self) -> Spent:
        return Spent(self.spent, self.passes, self.kernels)

    def now(self) -> str:
        """The stage that is going on, in words: `compiling 34 kernels, 12 done`."""
        stage = self._open[-1] if self._open else "other"
        if stage == "compile" and self.asked:
            return f"compiling {self.asked} kernels, {len(self.kernels)} done"
        return DOING.get(stage, "being made ready")

    def begin(self, stage: str) -> None:
        self._add()
        self._open.append(stage)

    def end(self) -> None:
        self._add()
        self._open.pop()
        if not self._open:
            self.thread = 0

    def _add(self) -> None:
        now = perf_counter()
        if self._open:
            stage = self._open[-1]
            self.spent[stage] = self.spent.get(stage, 0.0) + now - self._since
        self._since = now


DOING: Final = {
    "trace": "tracing", "import": "importing", "passes": "in the passes", "schedule": "planning",
    "render": "writing kernels", "compile": "compiling", "load": "loading kernels",
}  # fmt: skip
_tally: ContextVar[Tally | None] = ContextVar("ge2_tally", default=None)
_found: ContextVar[list[Found] | None] = ContextVar("ge2_kernel", default=None)


@contextmanager
def counting(tally: Tally) -> Iterator[None]:
    """Inside, what this thread spends counts for `tally`, unless another thread's does."""
    if tally.thread not in (0, get_ident()):
        yield
        return
    tally.thread = get_ident()
    token = _tally.set(tally)
    tally.begin("other")
    try:
        yield
    finally:
        tally.end()
        _tally.reset(token)


@final
class spent:
    """Inside, the time is that of a stage."""

    __slots__ = ("stage", "tally")

    def __init__(self, stage: str) -> None:
        tally = _tally.get()
        self.stage = stage
        self.tally = tally if tally is not None and tally.thread == get_ident() else None

    def __enter__(self) -> None:
        if self.tally is not None:
            self.tally.begin(self.stage)

    def __exit__(self, *_: object) -> None:
        if self.tally is not None:
            self.tally.end()


def current() -> Tally | None:
    """The one that is open, if its stages are this thread's."""
    tally = _tally.get()
    return tally if tally is not None and tally.thread == get_ident() else None


def passed(name: str, seconds: float) -> None:
    """Counts what a pass took."""
    tally = current()
    if tally is not None:
        tally.passes[name] = tally.passes.get(name, 0.0) + seconds


def finding() -> AbstractContextManager[list[Found]]:
    """The list receives how kernels were had that are asked for inside, in this context."""
    return holding(_found, list[Found]())


def note(how: str, seconds: float = 0.0) -> None:
    """Tells who is `finding` how a kernel was had."""
    found = _found.get()
    if found is not None:
        found.append((how, seconds))


def had(name: str, found: Sequence[Found]) -> Had:
    """A kernel's code by what was noted of it first; where nothing was, somebody had it already."""
    return Had(name, *found[0]) if found else Had(name, "memory")


# ---------------------------------------------------------------------------------------- progress
# Who waits longer than a second for a first call is told once in a message what it is doing.


PATIENCE: Final = 1.0  # seconds


@contextmanager
def making(tally: Tally) -> Iterator[None]:
    """Inside, a program is made: what this thread spends counts, and is told if it
    lasts and somebody cares.

    What is made while something else is, an inner function of a trace, is told as part of that.
    """
    timer = Timer(PATIENCE, tell, (tally,)) if current() is None and is_wanted() else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        with counting(tally):
            yield
    finally:
        if timer is not None:
            timer.cancel()


def is_wanted() -> bool:
    """As the setting says; where it leaves it open, on a terminal, or if somebody
    listens for such things.
    """
    if config.progress != "auto":
        return config.progress == "on"
    return (sys.stderr is not None and sys.stderr.isatty()) or is_heard("INFO")


def tell(tally: Tally) -> None:
    words = "%s is not ready yet: %s (GE2_PROGRESS=off says no such thing)"
    say(words, tally.title, tally.now(), level="INFO")
