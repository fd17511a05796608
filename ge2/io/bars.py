"""The progress of a loop: on the screen, and as a log of JSON lines."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sized
from importlib.util import find_spec
from typing import Any, Final, Generic, Protocol, TextIO, TypeVar, final

import numpy as np

from ge2.base.errors import ArgumentError, InputError
from ge2.base.formatting import count_words
from ge2.base.gpu import host
from ge2.base.source import here
from ge2.io.log import STEP, LogWriter

T = TypeVar("T")
OFTEN: Final = 0.5  # seconds between two looks at values, which wait for the device
LINES: Final = 20  # of a run, where lines are printed
PAUSE: Final = 60.0  # seconds between two lines, at most


def progress(
    iterable: Iterable[T],
    total: int | None = None,
    *,
    label: str = "",
    tokens: float | None = None,
    flops: float | None = None,
    peak: float | None = None,
    log: str | os.PathLike[str] | None = None,
    start: int = 0,
    every: float = OFTEN,
    out: TextIO | None = None,
) -> Progress[T]:
    """An iterator over the items that shows how far a loop is, and what `record` was given.

    A bar of `rich`, or of `tqdm`, on a terminal where one of them is installed; lines otherwise, on
    `out`, which is stderr. `tokens` and `flops` are of a step, and shown a second; the latter also
    as a share of `peak`, operations that the device could do in a second. `log` is a file to which
    a line of JSON a step is appended; `ge2 plot` draws it. `start` counts the steps before the
    first, in a run that goes on. Values are looked at every half second, and not in between, so
    that the device never waits for the screen.

    >>> bar = progress(range(3), label="train", out=sys.stdout)
    >>> for x in bar:
    ...     bar.record(loss=1.0 / (x + 1))
    train 3/3  loss 0.3333  ... steps/s
    """
    given: dict[str, Any] = {"tokens": tokens, "flops": flops, "peak": peak, "every": every}
    for name, x in given.items():
        if x is not None and not (isinstance(x, int | float | np.number) and x >= 0):
            what = f"progress: {name} is a number of at least 0; got {x!r:.60}"
            raise ArgumentError(what, where=here(), fix="tokens=batch * length")
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    source: Any = iterable
    if not isinstance(source, Iterable):
        what = f"progress takes an iterable; got {iterable!r:.60}"
        raise InputError(what, where=here(), fix="ge2.io.progress(range(steps))")
    rates = Rates(tokens, flops, peak)
    writer = None if log is None else LogWriter(log)
    shown = display(label, None if total is None else start + total, start, out or sys.stderr)
    return Progress(iter(iterable), Run(rates, writer, shown, start, every))


@final
class Progress(Iterator[T], Generic[T]):
    """An iterator that shows how far it is; see `ge2.io.progress`."""

    def __init__(self, source: Iterator[T], run: Run) -> None:
        self._source, self._run = source, run
        self._end = weakref.finalize(self, run.close)  # also at the end of the program

    def __repr__(self) -> str:
        return f"<progress: step {self._run.step}>"

    @property
    def step(self) -> int:
        """The number of the step whose item was given last; 1 for the first."""
        return self._run.step

    def record(self, **values: Any) -> None:
        """Shows and logs numbers, arrays of one element, or words, of this step."""
        for name, x in values.items():
            if not isinstance(x, str | int | float) and getattr(x, "size", None) != 1:
                shape = f" of shape {x.shape}" if hasattr(x, "shape") else ""
                what = f"record takes numbers; {name} is a {type(x).__name__}{shape}"
                raise InputError(what, where=here(), fix=f"{name}={name}.mean()")
        self._run.values = (self._run.values or {}) | values

    def __next__(self) -> T:
        try:
            self._run.done()
            item = next(self._source)
        except BaseException:
            self.close()
            raise
        self._run.begin()
        return item

    def close(self) -> None:
        """Shows and logs what is left, and ends the bar. A loop to the end does so by itself."""
        self._source = iter(())
        self._end()

    def __enter__(self) -> Progress[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Rates:
    """The work of a step, and so of a second."""

    def __init__(self, tokens: float | None, flops: float | None, peak: float | None) -> None:
        self.tokens, self.flops, self.peak = tokens, flops, peak

    def of(self, steps: float) -> dict[str, float]:
        """The logged values of so many steps a second."""
        found = {"steps_per_second": steps}
        if self.tokens is not None:
            found["tokens_per_second"] = steps * self.tokens
        if self.flops is not None:
            found["flops_per_second"] = steps * self.flops
        if self.flops is not None and self.peak:
            found["share_of_peak"] = steps * self.flops / self.peak
        return found


@final
class Run:
    """The steps of a loop: those that are done and not yet shown, and their values."""

    def __init__(
        self, rates: Rates, log: LogWriter | None, shown: Display, start: int, every: float
    ) -> None:
        self.rates, self.log, self.shown, self.step, self.every = rates, log, shown, start, every
        self.values: dict[str, Any] | None = None
        self.pending: list[dict[str, Any]] = []
        self.open = False  # a step was begun
        self.began = self.looked = time.perf_counter()

    def begin(self) -> None:
        if self.values is None:  # the first: rates are those of the loop
            self.looked = time.perf_counter()
        self.step, self.open, self.values = self.step + 1, True, {}

    def done(self) -> None:
        """The step that was begun is done."""
        if not self.open:
            return
        now, self.open = time.perf_counter(), False
        self.pending.append({STEP: self.step, "seconds": now - self.began} | (self.values or {}))
        if now - self.looked >= self.every:
            self.look()

    def look(self) -> None:
        """Shows and logs the steps that are done since it last did."""
        lines = [{name: number(x) for name, x in line.items()} for line in self.pending]
        now = time.perf_counter()  # after the device has computed the values
        rates = self.rates.of(len(lines) / max(now - self.looked, 1e-9))
        self.looked, self.pending = now, []
        if self.log is not None:
            self.log.write(
                {**line, "seconds": round(line["seconds"], 6), **rates} for line in lines
            )
        if lines:
            self.shown.show(self.step, words(lines[-1], rates))

    def close(self) -> None:
        try:
            self.done()
            if self.pending:
                self.look()
        finally:
            self.shown.close()
            if self.log is not None:
                self.log.close()


def number(x: Any) -> Any:
    """The element of an array, which waits for its device; anything else as it is."""
    return x if isinstance(x, str | int | float) else np.asarray(host(x)).reshape(()).item()


def words(line: dict[str, Any], rates: dict[str, float]) -> str:
    """The values of a step, and the rates, on one line."""
    shown = [
        f"{name} {x:.4g}" if isinstance(x, float) else f"{name} {x}"
        for name, x in line.items()
        if name not in (STEP, "seconds")
    ]
    steps = rates["steps_per_second"]
    if "tokens_per_second" in rates:
        shown.append(f"{count_words(int(rates['tokens_per_second']))} tokens/s")
    else:
        shown.append(
            f"{steps:.1f} steps/s" if steps < 1000 else f"{count_words(int(steps))} steps/s"
        )
    if "flops_per_second" in rates:
        shown.append(f"{count_words(int(rates['flops_per_second']))} FLOP/s")
    if "share_of_peak" in rates:
        shown.append(f"{rates['share_of_peak']:.1%} of peak")
    return "  ".join(shown)


# ----------------------------------------------------------------------------------------- display


class Display(Protocol):
    """A display of a step and its values."""

    def show(self, step: int, note: str) -> None: ...

    def close(self) -> None: ...


def display(label: str, total: int | None, start: int, out: TextIO) -> Display:
    """A bar on a terminal, lines anywhere else."""
    if out.isatty() and find_spec("rich"):
        return Rich(label, total, start, out)
    if out.isatty() and find_spec("tqdm"):
        return Tqdm(label, total, start, out)
    return Lines(label, total, start, out)


@final
class Lines:
    """Some twenty lines in all, and one a minute."""

    def __init__(self, label: str, total: int | None, start: int, out: TextIO) -> None:
        self.label, self.total, self.printed, self.out = f"{label} ".lstrip(), total, start, out
        self.first, self.when = True, time.perf_counter()
        self.last: tuple[int, str] = start, ""

    def show(self, step: int, note: str) -> None:
        self.last = step, note
        now = time.perf_counter()
        due = self.total is not None and (step - self.printed) * LINES >= self.total
        if self.first or due or now - self.when >= PAUSE:
            self.first, self.printed, self.when = False, step, now
            of = "" if self.total is None else f"/{self.total}"
            print(f"{self.label}{step}{of}  {note}", file=self.out, flush=True)

    def close(self) -> None:
        if self.last[0] != self.printed:
            self.first = True
            self.show(*self.last)


@final
class Tqdm:
    """A bar of tqdm's."""

    def __init__(self, label: str, total: int | None, start: int, out: TextIO) -> None:
        from tqdm import tqdm

        self.bar = tqdm(desc=label or None, total=total, initial=start, file=out)

    def show(self, step: int, note: str) -> None:
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(step - self.bar.n)

    def close(self) -> None:
        self.bar.close()


@final
class Rich:
    """A bar of rich's."""

    def __init__(self, label: str, total: int | None, start: int, out: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        whole = Column(no_wrap=True)
        of, left = MofNCompleteColumn(table_column=whole), TimeRemainingColumn(table_column=whole)
        note = TextColumn("{task.fields[note]}", table_column=Column(overflow="fold"))
        columns = ("{task.description}", BarColumn(20), of, left, note)
        self.bar = Progress(*columns, console=Console(file=out))
        self.task = self.bar.add_task(label, total=total, completed=start, note="")
        self.bar.start()

    def show(self, step: int, note: str) -> None:
        self.bar.update(self.task, completed=step, note=note)

    def close(self) -> None:
        self.bar.stop()
