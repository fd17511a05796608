"""Frozen records, made quickly.

`dataclass(frozen=True, slots=True)` compiles six methods one by one, which for the hundred records of this
package is a third of its import. A `record` is the same thing (a dataclass to `dataclasses.fields` and
`replace`, and to type checkers) with its methods compiled together, once for all records of like fields.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from types import CodeType
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A frozen, slotted dataclass that is equal to another of its class with equal fields.

    >>> @record
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1))
    (Point(x=1, y=0), True, True)
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # or else dataclass asks `inspect` for a signature
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    found = fields(made)  # type: ignore[arg-type]
    if any(f.default_factory is not MISSING for f in found):
        raise TypeError(
            f"{cls.__name__} has a default_factory: a frozen record has nothing that could be filled later"
        )
    names: dict[str, Any] = {"_set": object.__setattr__}
    names.update((f"_default_{f.name}", f.default) for f in found)
    exec(_methods(tuple(map(_outline, found)), hasattr(cls, "__post_init__")), names)
    for name in ("__init__", "__eq__", "__hash__", "__reduce__"):
        if name == "__init__" or name not in cls.__dict__:
            setattr(made, name, names[name])
    made.__setattr__ = _frozen  # type: ignore[method-assign]
    made.__delattr__ = _frozen  # type: ignore[method-assign]
    if made.__repr__ is object.__repr__:
        made.__repr__ = _repr  # type: ignore[method-assign]
    return made


Outline = tuple[
    str, bool, bool, bool
]  # of a field: name, whether it is an argument, has a default, is compared


def _outline(f: Field[Any]) -> Outline:
    return f.name, f.init, f.default is not MISSING, f.compare


@cache
def _methods(found: tuple[Outline, ...], post_init: bool) -> CodeType:
    """The text of the methods, compiled."""
    arguments = "".join(
        f", {name}=_default_{name}" if has_default else f", {name}"
        for name, init, has_default, _ in found
        if init
    )
    stores = [f" _set(self, {name!r}, {name})" for name, init, _, _ in found if init]
    own, other = (
        "".join(f"{who}.{name}, " for name, _, _, compared in found if compared) for who in ("self", "other")
    )
    values = "".join(f"self.{name}, " for name, init, _, _ in found if init)
    lines = [
        f"def __init__(self{arguments}):",
        *stores,
        " self.__post_init__()" if post_init else " pass",
        "def __eq__(self, other):",
        " if other.__class__ is not self.__class__: return NotImplemented",
        f" return self is other or ({own}) == ({other})",
        "def __hash__(self):",
        f" return hash(({own}))",
        "def __reduce__(self):",
        f" return self.__class__, ({values})",
    ]
    return compile("\n".join(lines), "<a record>", "exec")


def _frozen(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of a {type(self).__name__}")


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"
