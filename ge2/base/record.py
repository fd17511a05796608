"""Frozen records, made quickly.

`dataclass(frozen=True, slots=True)` compiles six methods one by one, which for the hundred records
of this package is a third of its import. A `record` is the same thing (a dataclass to
`dataclasses.fields` and `replace`, and to type checkers) with its methods compiled together, once
for all records of like fields, and when the first one is made: most programs make records of a few
classes. A `mutable` is made as quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache
from types import CodeType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, dataclass_transform, final

T = TypeVar("T")
METHODS: Final = ("__init__", "__eq__", "__hash__", "__reduce__")


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
    made = _slotted(cls, _lacking(cls, METHODS), True)
    if any(f.default_factory is not MISSING for f in fields(made)):  # type: ignore[arg-type]
        raise TypeError(
            f"{cls.__name__} has a default_factory: a frozen record has nothing that could be filled later"
        )
    return made


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def single(cls: type[T]) -> type[T]:
    """A frozen, slotted dataclass that is equal to itself alone, unless it says otherwise.

    >>> @single
    ... class Name:
    ...     text: str
    >>> Name("a"), Name("a") == Name("a")
    (Name(text='a'), False)
    """
    return _slotted(cls, _lacking(cls, ("__init__", "__reduce__")), True)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def mutable(cls: type[T]) -> type[T]:
    """A slotted dataclass whose fields may change, and which is equal to itself alone.

    >>> @mutable
    ... class Counter:
    ...     n: int = 0
    ...     seen: list[int] = field(default_factory=list)
    >>> Counter(3), Counter() == Counter()
    (Counter(n=3, seen=[]), False)
    """
    return _slotted(cls, ["__init__"], False)


def _lacking(cls: type, methods: Sequence[str]) -> list[str]:
    """The methods that the class does not define itself; `__init__` never counts as defined."""
    return [name for name in methods if name == "__init__" or name not in cls.__dict__]


def _slotted(cls: type[T], own: Sequence[str], frozen: bool) -> type[T]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # or else dataclass asks `inspect` for a signature
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    found = fields(made)  # type: ignore[arg-type]

    def finish() -> None:
        names: dict[str, Any] = {"_absent": MISSING}
        for f in found:
            # that of the slot: half of the time of `object.__setattr__`, which looks for it by name
            names[f"_set_{f.name}"] = getattr(made, f.name).__set__
            names[f"_default_{f.name}"] = f.default
            names[f"_new_{f.name}"] = f.default_factory
        exec(_methods(tuple(map(_outline, found)), hasattr(cls, "__post_init__"), frozen), names)
        for name in own:
            setattr(made, name, names[name])

    for name in own:
        setattr(made, name, _unfinished(made, name, finish))
    if all(f.init and f.default is not MISSING for f in found) and not hasattr(
        cls, "__post_init__"
    ):
        defaults = tuple((f.name, f.default) for f in found)
        made.__init__ = _by_default(defaults, made.__init__)  # type: ignore[method-assign]
    if made.__repr__ is object.__repr__:
        made.__repr__ = _repr  # type: ignore[method-assign]
    if frozen:
        made.__setattr__ = _frozen  # type: ignore[method-assign]
        made.__delattr__ = _frozen  # type: ignore[method-assign]
    return made


def _unfinished(made: type, name: str, finish: Callable[[], None]) -> Callable[..., Any]:
    """A method that has all of them compiled when it is first called."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        finish()
        return getattr(made, name)(self, *args, **kwargs)

    return method


def _by_default(
    defaults: Sequence[tuple[str, Any]], init: Callable[..., None]
) -> Callable[..., None]:
    """An `__init__` that compiles nothing as long as it is given nothing, as a record of numbers
    that nobody changes.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            init(self, *args, **kwargs)
            return
        for name, value in defaults:
            object.__setattr__(self, name, value)

    return __init__


@final
class Outline(NamedTuple):
    """The facts of a field that the methods need."""

    name: str
    init: bool  # whether it is an argument
    default: bool
    made: bool  # whether its default is made anew
    compared: bool


def _outline(f: Field[Any]) -> Outline:
    return Outline(
        f.name, f.init, f.default is not MISSING, f.default_factory is not MISSING, f.compare
    )


@cache
def _methods(found: tuple[Outline, ...], post_init: bool, frozen: bool) -> CodeType:
    """The text of the methods, compiled."""
    given = [f for f in found if f.init]
    default = {
        f.name: f"=_default_{f.name}" if f.default else "=_absent" if f.made else "" for f in given
    }
    arguments = "".join(f", {name}{text}" for name, text in default.items())
    value = {
        f.name: f"_new_{f.name}() if {f.name} is _absent else {f.name}" if f.made else f.name
        for f in given
    }
    value |= {f.name: f"_default_{f.name}" for f in found if f.default and not f.init}
    value |= {f.name: f"_new_{f.name}()" for f in found if f.made and not f.init}
    store = " _set_{}(self, {})" if frozen else " self.{} = {}"
    stores = [store.format(*item) for item in value.items()]
    own, other = (
        "".join(f"{who}.{f.name}, " for f in found if f.compared) for who in ("self", "other")
    )
    values = "".join(f"self.{f.name}, " for f in given)
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
