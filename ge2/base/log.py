"""What ge2 says without being asked: a logger, silent until listened to, and warnings at the user's line."""

from __future__ import annotations

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
