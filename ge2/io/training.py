"""Tools for a training loop: progress, its log, and items that are prepared ahead of time."""

from __future__ import annotations

import json
import math
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import copy_context
from importlib.util import find_spec
from threading import Condition, Thread, current_thread
from typing import Any, Final, Generic, Protocol, TextIO, TypeVar, final

import numpy as np

from ge2.base.arrays import host
from ge2.base.errors import ArgumentError, FileError, InputError
from ge2.base.pytree import map_structure
from ge2.base.source import count_words, here
from ge2.io.files import Path, path_text
from ge2.targets.cuda.device import empty
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.gpu import current_gpu

# -------- A log of a training run as JSON lines: an object a step, whose values are numbers and
# words.


STEP: Final = "step"


class LogWriter:
    """Appends lines to a file; each call leaves whole lines in it."""

    def __init__(self, path: Path) -> None:
        self.file = open(path_text(path), "a+b")  # noqa: SIM115  open as long as the run
        if self.file.tell():
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":  # of a run that was killed
                self.file.write(b"\n")

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        texts = (json.dumps({k: plain(x) for k, x in line.items()}) for line in lines)
        self.file.write("".join(f"{text}\n" for text in texts).encode())
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def plain(x: Any) -> Any:
    """A value as JSON has it, which knows no NaN and no infinity: null."""
    return None if isinstance(x, float) and not math.isfinite(x) else x


def read_log(path: Path) -> dict[str, Any]:
    """The numbers of a log that `ge2.io.progress` wrote: an array for each name, NaN where a line
    lacks it.

    A run that went on from an earlier step replaces what came after it. A last line that was not
    written to its end is left out. Raises FileError, with the number of the line, for a file that
    is no such log.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "run.jsonl")
    >>> with open(path, "w") as file:
    ...     print('{"step": 1, "loss": 3.5}', '{"step": 2, "loss": 2.5}', sep=os.linesep, file=file)
    >>> read_log(path)["loss"]
    array([3.5, 2.5])
    """
    lines: dict[int, dict[str, Any]] = {}
    with open(path_text(path), "rb") as file:
        for number, text in enumerate(file, 1):
            line = parsed(text)
            if line is None and (not text.strip() or not text.endswith(b"\n")):
                continue
            if line is None or type(line.get(STEP)) is not int:
                what = f"{path_text(path)}:{number} is no line of a log: {text[:60]!r}"
                fix = "a file that ge2.io.progress(..., log=path) wrote"
                raise FileError(what, where=here(), fix=fix)
            while lines and next(reversed(lines)) >= line[STEP]:
                lines.popitem()
            lines[line[STEP]] = line
    names = dict.fromkeys(name for line in lines.values() for name in line)
    columns = {n: [line.get(n, "") for line in lines.values()] for n in names}
    return {n: np.array([*map(number_of, xs)]) for n, xs in columns.items() if any(map(counts, xs))}


def parsed(text: bytes) -> dict[str, Any] | None:
    """A line as a dict; None if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def counts(x: Any) -> bool:
    """True of a number; null stands for a NaN and for infinities, which JSON lacks."""
    return x is None or number_of(x) == number_of(x)


def number_of(x: Any) -> float:
    return x if isinstance(x, int | float) and not isinstance(x, bool) else math.nan


# -------- The progress of a loop: on the screen, and as a log of JSON lines.


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


# -------- Items of an iterable made ahead of time, in a thread, and put on the GPU there.


PATIENCE: Final = 5.0  # seconds that the end of a program waits for an item that is being made
END: Final = "end", None


def prefetch(iterable: Iterable[T], size: int = 2, device: str | None = None) -> Prefetch[T]:
    """The items of an iterable, of which a thread makes up to `size` ahead of time.

    NumPy arrays in the items, in any container, are CuPy's on the current GPU, where there is one;
    `device="cpu"` leaves them on the host, and "cuda" makes it an error that there is none. An
    error of the iterable is raised when its item is asked for. The thread ends with the iterable,
    when the iterator is closed or given up (as by `break`), or with the program.

    Raises ArgumentError for a size below 1, DeviceError for a GPU that is not there.

    >>> for batch in prefetch({"x": np.full(2, i)} for i in range(2)):
    ...     print(batch["x"].sum())
    0
    2
    """
    if type(size) is not int or size < 1 or device not in (None, "cpu", "cuda"):
        what = f"prefetch takes a size of 1 or more, and device 'cpu' or 'cuda'; got {size!r:.40} and {device!r:.40}"
        raise ArgumentError(what, where=here(), fix="ge2.io.prefetch(batches, size=2)")
    try:
        source = iter(iterable)
    except TypeError:
        what = f"prefetch takes an iterable; got {iterable!r:.60}"
        raise InputError(what, where=here(), fix="a generator, or a list of batches") from None
    return Prefetch(
        source, size, Upload() if device == "cuda" or (device is None and usable()) else None
    )


@final
class Prefetch(Iterator[T], Generic[T]):
    """An iterator whose items a thread makes. It is closed by `close` or a `with`."""

    def __init__(self, source: Iterator[T], size: int, place: Callable[[T], T] | None) -> None:
        self._ahead = Ahead(size)
        run, arguments = copy_context().run, (make, source, place, self._ahead)
        self._thread = Thread(target=run, args=arguments, name="ge2 prefetch", daemon=True)
        self._end = weakref.finalize(self, stop, self._ahead, self._thread, PATIENCE)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<prefetch: {len(self._ahead.items)} of {self._ahead.size} ahead>"

    def __next__(self) -> T:
        kind, value = self._ahead.take(self._thread)
        if kind == "item":
            found: T = value
            return found
        self.close()
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        """Ends the thread; it waits for an item that is being made. No item comes after."""
        self._end.detach()
        stop(self._ahead, self._thread, None)

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@final
class Ahead:
    """The items that were made and not taken, between two threads."""

    def __init__(self, size: int) -> None:
        self.size, self.stopped, self.change = size, False, Condition()
        self.items: deque[tuple[str, Any]] = deque()

    def room(self) -> bool:
        """Waits until there is room for one more; False if no more is wanted."""
        with self.change:
            self.change.wait_for(lambda: self.stopped or len(self.items) < self.size)
            return not self.stopped

    def put(self, item: tuple[str, Any]) -> None:
        with self.change:
            self.items.append(item)
            self.change.notify_all()

    def take(self, thread: Thread) -> tuple[str, Any]:
        """The next item, waited for; the end where there can be none."""
        with self.change:
            while not (self.items or self.stopped):
                if not thread.is_alive():  # as in a forked child, which has no other threads
                    return END
                self.change.wait(1.0)
            found = self.items.popleft() if self.items else END
            self.change.notify_all()
            return found


def make(source: Iterator[Any], place: Callable[[Any], Any] | None, ahead: Ahead) -> None:
    """The thread: it has no hold on the iterator, so that one that is given up can end."""
    try:
        while ahead.room():
            item = next(source, END)
            if item is END:
                break
            ahead.put(("item", item if place is None else place(item)))
            del item
    except BaseException as error:  # noqa: BLE001  the one who asks for the item has it
        ahead.put(("error", error))
    ahead.put(END)


def stop(ahead: Ahead, thread: Thread, patience: float | None) -> None:
    with ahead.change:
        ahead.stopped = True
        ahead.items.clear()
        ahead.change.notify_all()
    if thread is not current_thread():
        thread.join(patience)


def usable() -> bool:
    """True if there is a GPU, and CuPy."""
    known = driver()
    return bool(known and known.gpus and find_spec("cupy"))


@final
class Upload:
    """Puts the arrays of an item on the current GPU, by a stream of its own.

    Memory is that of the stream on which they are used: it is given to others in that stream's
    order. So the copy waits for what is on it now, and overlaps with what comes later.
    """

    def __init__(self) -> None:
        self.gpu = current_gpu()
        self.used_on = self.gpu.stream()
        with self.gpu.here():
            self.copies = self.gpu.xp.cuda.Stream(non_blocking=True)

    def __call__(self, item: Any) -> Any:
        pairs: list[tuple[Any, Any]] = []
        with self.gpu.here():
            with self.used_on:
                found = map_structure(lambda x: self.begun(x, pairs), item)
            self.copies.wait_event(self.used_on.record())
            for x, y in pairs:
                y.set(x, stream=self.copies)
            self.copies.synchronize()
        return found

    def begun(self, x: Any, pairs: list[tuple[Any, Any]]) -> Any:
        """An array of the GPU for one of the host; anything else as it is."""
        if type(x) is not np.ndarray:
            return x
        y = empty(self.gpu, x.shape, x.dtype)
        pairs.append((np.ascontiguousarray(x).reshape(x.shape).view(y.dtype), y))
        return y
