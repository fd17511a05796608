"""Messages that ge2 gives unasked: a logger, silent until listened to, and warnings at the user's
line.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from ge2.base.source import user_frame

if TYPE_CHECKING:
    import logging

_said: set[object] = set()


def logger() -> logging.Logger:
    """The logger "ge2"; `logging` is imported when something is first said."""
    import logging

    found = logging.getLogger("ge2")
    if not found.handlers:
        found.addHandler(logging.NullHandler())
    return found


def is_heard(level: str) -> bool:
    """True if somebody listens to the logger for messages of that level."""
    if "logging" not in sys.modules:
        return False
    import logging

    found: logging.Logger | None = logger()
    if not logger().isEnabledFor(logging.getLevelName(level)):
        return False
    while found is not None:
        if any(type(handler) is not logging.NullHandler for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False


def mention(text: str, *given: object) -> None:
    """A message of level DEBUG, for whoever listens; nothing is imported for it."""
    if is_heard("DEBUG"):
        logger().debug(text, *given, stacklevel=2)


def say(text: str, *given: object, level: str = "WARNING") -> None:
    """Gives a message that a setting asks for: to those who listen to the logger; where nobody
    does, on stderr.
    """
    import logging

    if is_heard(level):
        logger().log(logging.getLevelName(level), text, *given, stacklevel=2)
    elif sys.stderr is not None:
        sys.stderr.write(f"ge2: {text % given}\n")
        sys.stderr.flush()


class Ge2Warning(UserWarning):
    """Something is not as asked for, and ge2 goes on without it."""


def warn(what: str, fix: str = "", once: object = None) -> None:
    """A Ge2Warning at the user's line. With a key `once`, only the first of that key is given."""
    if once is not None:
        if once in _said:
            return
        _said.add(once)
    text = f"{what}\n  try  {fix}" if fix else what
    frame = user_frame(2)
    if frame is None:
        warnings.warn(text, Ge2Warning, stacklevel=2)
        return
    seen: dict[Any, Any] = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__", "<unknown>")
    warnings.warn_explicit(text, Ge2Warning, frame.f_code.co_filename, frame.f_lineno, module, seen)
