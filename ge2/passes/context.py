"""The facts that a rewrite may know beside the graph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from ge2.base.config import config
from ge2.base.log import warn
from ge2.base.record import record
from ge2.ir import Graph, Literal
from ge2.ops.attention.band import Band
from ge2.passes.tuning import TUNING, Tuning

if TYPE_CHECKING:
    from pathlib import Path


class Caps(Protocol):
    """Limits of a GPU.

    `double`: how many times as long as float32 a multiply-add of float64 takes.
    """

    @property
    def multiprocessors(self) -> int: ...
    @property
    def double(self) -> int: ...


# inputs that count along an axis, that repeat a number, and masks that are bands: pairs (input, axis,
# number or band)
Iotas = tuple[tuple[int, int | Literal | Band], ...]


@final
@record
class Context:
    """The chip, where a graph is for one, and what the caller knows of the graph's inputs.

    `written`: the inputs that the first outputs are the last contents of. `iotas`: the inputs that
    count along an axis, repeat a number or are bands. `body`: true of the graph of a loop or a branch that the
    code of its target calls, which takes arrays alone. `tuning`: the numbers that passes read.
    `gathers`: true if a region may read an array at indices that are computed in it.
    """

    caps: Caps | None = None
    written: tuple[int, ...] = ()
    iotas: Iotas = ()
    body: bool = False
    tuning: Tuning = TUNING
    gathers: bool = False


NOTHING = Context()


# -------------------------------------------------------------------------------------------- dump
# What a compilation made, as files, where the setting `dump` names a folder.


_taken: Counter[tuple[str, str]] = Counter()  # (folder, name): how many programs had it


def dump(name: str, text: Graph | str) -> None:
    """Writes a text to the folder, if there is one; a folder that cannot be
    written to stops nothing.
    """
    if not name.startswith("-"):  # a program without a name of its own is part of another

        def write(path: Path) -> None:
            path.write_text(f"{text}\n", encoding="utf-8")

        dump_file(name, write)


def dump_file(name: str, write: Callable[[Path], None]) -> None:
    """Has a file of the folder written, if there is one."""
    if not config.dump:
        return
    from pathlib import Path  # which imports much

    try:
        folder = Path(config.dump)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / name)
    except OSError as error:
        warn(
            f"nothing is dumped: {error}",
            fix="GE2_DUMP=a folder that can be written to",
            once="dump",
        )


def label(title: str) -> str:
    """The begin of the names of a program's files: its title, and a number from its second program
    on.

    >>> with config.using(dump="some folder"):
    ...     label("<lambda>"), label("<lambda>"), label("Model.loss")
    ('lambda', 'lambda.2', 'Model.loss')
    """
    if not config.dump:
        return ""
    name = re.sub(r"[^\w.]", "", title) or "f"
    _taken[config.dump, name] += 1
    number = _taken[config.dump, name]
    return name if number == 1 else f"{name}.{number}"
