"""A log of a training run as JSON lines: an object a step, whose values are numbers and words."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from ge2.base.errors import FileError
from ge2.base.source import here
from ge2.io.stored import Path, path_text

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
    columns = {n: [number_of(line.get(n)) for line in lines.values()] for n in names}
    return {n: np.array(xs) for n, xs in columns.items() if any(x == x for x in xs) or n == STEP}


def parsed(text: bytes) -> dict[str, Any] | None:
    """A line as a dict; None if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number_of(x: Any) -> float:
    return x if isinstance(x, int | float) and not isinstance(x, bool) else math.nan
