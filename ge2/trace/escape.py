"""The search for those who still hold a value that should be gone."""

from __future__ import annotations

import gc
import sys
from inspect import CO_OPTIMIZED
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

from ge2.base.source import PACKAGE

DEPTH = 4  # containers inside containers


def holder(value: object) -> str:
    """The variable, attribute or container that refers to `value`, in
    words; empty if none is found.
    """
    return _holder(value, DEPTH, _own_containers())


def _holder(value: object, depth: int, passed: set[int]) -> str:
    """The best of what refers to it: a name a reader knows before a container that nobody names."""
    found: list[str] = []
    referrers = gc.get_referrers(value)
    passed.add(id(referrers))
    for referrer in referrers:
        if id(referrer) not in passed and not isinstance(referrer, FrameType):
            passed.add(id(referrer))
            found += filter(None, [_say(referrer, value, depth, passed)])
    return min(found, key=lambda text: (text.startswith("a "), len(text)), default="")


def _own_containers() -> set[int]:
    """The containers of the frames that run now while the error is made."""
    frame: FrameType | None = sys._getframe(1)
    own: set[int] = set()
    while frame is not None:
        # else its variables are a module's, whose dict counts
        if frame.f_code.co_flags & CO_OPTIMIZED:
            own.add(id(frame.f_locals))
            if frame.f_code.co_filename.startswith(PACKAGE):
                own.update(map(id, frame.f_locals.values()))
        frame = frame.f_back
    return own


def _say(referrer: Any, value: object, depth: int, passed: set[int]) -> str:
    if isinstance(referrer, dict):
        return _in_dict(referrer, value, depth, passed)
    if isinstance(referrer, list | tuple):
        at = next((i for i, v in enumerate(referrer) if v is value), None)
        return (
            ""
            if at is None
            else _inside(
                f"a {type(referrer).__name__}, at {at}", f"[{at}]", referrer, depth, passed
            )
        )
    if isinstance(referrer, set):
        return "a set"
    if isinstance(referrer, CellType):
        return _variable(referrer)
    names = getattr(type(referrer), "__slots__", ())
    for name in (names,) if isinstance(names, str) else names:
        if (
            getattr(referrer, name, None) is value
            and type(referrer).__module__.split(".")[0] != "ge2"
        ):
            return f"the attribute {name} of a {type(referrer).__name__}"
    return _attribute(referrer, value)


def _attribute(owner: Any, value: object) -> str:
    """An attribute of an object of the user's, if it holds the value."""
    if isinstance(owner, ModuleType) or type(owner).__module__.split(".")[0] == "ge2":
        return ""
    attributes = getattr(owner, "__dict__", None)
    name = (
        next((k for k, v in attributes.items() if v is value), "")
        if isinstance(attributes, dict)
        else ""
    )
    return f"the attribute {name} of a {type(owner).__name__}" if name else ""


def _in_dict(referrer: dict[Any, Any], value: object, depth: int, passed: set[int]) -> str:
    key = next((k for k, v in referrer.items() if v is value), None)
    if key is None:
        return ""
    if "__name__" in referrer and "__builtins__" in referrer:
        return f"the global {key} of {referrer['__name__']}"
    owner = next((o for o in gc.get_referrers(referrer) if _dict_of(o) is referrer), None)
    if owner is not None and not isinstance(owner, ModuleType):
        return f"the attribute {key} of a {type(owner).__name__}"
    return _inside(f"a dict, under {key!r}", f"[{key!r}]", referrer, depth, passed)


def _dict_of(owner: Any) -> Any:
    return None if isinstance(owner, FrameType) else getattr(owner, "__dict__", None)


def _inside(plain: str, part: str, container: Any, depth: int, passed: set[int]) -> str:
    """A container's own name with the place in it, if it has one."""
    outer = _holder(container, depth - 1, passed) if depth else ""
    return f"{part} of {outer}" if outer else plain


def _variable(cell: CellType) -> str:
    """A variable that a function inside another one refers to."""
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        for f in gc.get_referrers(closure):
            if isinstance(f, FunctionType) and f.__closure__ is closure:
                name = f.__code__.co_freevars[next(i for i, c in enumerate(closure) if c is cell)]
                return f"the variable {name} of a function around {f.__name__}"
    return "a variable of an enclosing function"
