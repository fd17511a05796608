"""What a compilation made, as files, where the setting `dump` names a folder."""

from __future__ import annotations

from pathlib import Path

from ge2.base.config import config
from ge2.base.log import warn
from ge2.ir import Graph


def dump(name: str, text: Graph | str) -> None:
    """Writes a text to the folder, if there is one; a folder that cannot be written to stops nothing."""
    if not config.dump:
        return
    try:
        folder = Path(config.dump)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        warn(f"nothing is dumped: {error}", fix="GE2_DUMP=a folder that can be written to", once="dump")
