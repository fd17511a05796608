"""What a compilation made, as files, where the setting `dump` names a folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ge2.base.config import config
from ge2.base.log import warn
from ge2.ir import Graph

if TYPE_CHECKING:
    from pathlib import Path

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
    """What the files of a program begin with: its title, and a number from its second program on.

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
