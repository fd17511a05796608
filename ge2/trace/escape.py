"""Who still holds a value that should be gone."""

from __future__ import annotations

import gc
from types import CellType, FrameType, ModuleType
from typing import Any


def holder(value: object) -> str:
    """The variable, attribute or container that refers to `value`, in words; empty if none is found."""
    for referrer in gc.get_referrers(value):
        if not isinstance(referrer, FrameType) and (said := _say(referrer, value)):
            return said
    return ""


def _say(referrer: Any, value: object) -> str:
    if isinstance(referrer, dict):
        key = next((k for k, v in referrer.items() if v is value), None)
        if key is None:
            return ""
        if "__name__" in referrer and "__builtins__" in referrer:
            return f"the global {key} of {referrer['__name__']}"
        owner = next((o for o in gc.get_referrers(referrer) if getattr(o, "__dict__", None) is referrer), None)
        if owner is not None and not isinstance(owner, ModuleType):
            return f"the attribute {key} of a {type(owner).__name__}"
        return f"a dict, under {key!r}"
    if isinstance(referrer, list):
        return f"a list, at {next(i for i, v in enumerate(referrer) if v is value)}"
    if isinstance(referrer, CellType):
        return "a variable of an enclosing function"
    named = getattr(type(referrer), "__slots__", ())
    for name in (named,) if isinstance(named, str) else named:
        if getattr(referrer, name, None) is value and type(referrer).__module__.split(".")[0] != "ge2":
            return f"the attribute {name} of a {type(referrer).__name__}"
    return ""
