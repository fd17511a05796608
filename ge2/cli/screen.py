"""What a person sees while waiting: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO, final

from ge2.base.errors import Ge2Error

WIDTH = 30


@final
@dataclass(slots=True)
class Progress:
    """Reports the progress of `total` things of one kind, on standard output
    unless told otherwise.
    """

    label: str
    total: int
    unit: str
    out: TextIO | None = None
    quiet: bool = False
    lines: int = 6
    _shown: int = 0

    def __call__(self, done: int, note: str = "") -> None:
        if self.quiet:
            return
        out = self.out or sys.stdout
        if out.isatty():
            self._redraw(out, done, note)
        elif done == self.total or done >= self._shown + math.ceil(self.total / self.lines):
            self._shown = done
            print(f"  {self.label}  {done}/{self.total} {self.unit}   {note}", file=out, flush=True)

    def _redraw(self, out: TextIO, done: int, note: str) -> None:
        filled = round(WIDTH * done / max(self.total, 1))
        full, empty = glyphs(out)
        bar = full * filled + empty * (WIDTH - filled)
        text = f"  {self.label}  {bar}  {done}/{self.total} {self.unit}   {note}"
        end = "\n" if done == self.total else ""
        print(
            f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}",
            end=end,
            file=out,
            flush=True,
        )


def glyphs(out: TextIO) -> tuple[str, str]:
    """The bar's two characters, such as the stream can encode."""
    try:
        "━─".encode(out.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#", "."
    return "━", "─"


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.0012345), milliseconds(0.5)
    ('1.23 ms', '500 ms')
    """
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def columns(rows: list[tuple[str, str]], indent: str = "  ") -> str:
    """
    >>> print(columns([("a", "1"), ("bcd", "2")]))
      a    1
      bcd  2
    """
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{indent}{left:{width}}  {right}" for left, right in rows)


def deliver(text: str, output: str | None) -> None:
    """Prints a text, or writes it to a file. Ge2Error if the file cannot be written."""
    if not output:
        print(text)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise Ge2Error(f"{output} cannot be written: {error.strerror}") from error
