"""What ran a function of ours in the end: a program that does not
compile falls back; its line says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge2 import config

NAMES = {"cpu": "blocked"}  # of a program's target, as the setting calls its executor


def executor_of(compiled: Any, *arguments: Any) -> str:
    executable = compiled.lower(*arguments).executable
    executable.build()
    target = executable.program.target
    return executable.executor if executable.executor == "reference" else NAMES.get(target, target)


def remarks(ran: str) -> Mapping[str, str]:
    """The note of a line, if something else ran than the settings say."""
    return {} if ran == config.executor else {"ge2": f"ran as {ran}, not as {config.executor}"}
