"""Frozen records, properties computed once, locks that a fork cannot leave locked, paths in trees."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import cache, partial, wraps
from importlib import import_module
from operator import attrgetter
from threading import Lock, RLock, get_ident, main_thread
from types import CodeType, FunctionType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    Self,
    TypeVar,
    dataclass_transform,
    final,
    overload,
)
from weakref import WeakValueDictionary

# -------- Frozen records, made quickly.
# `dataclass(frozen=True, slots=True)` compiles six methods one by one, which for the hundred
# records of this package is a third of its import. A `record` is the same thing (a dataclass to
# `dataclasses.fields` and `replace`, and to type checkers) with its methods compiled together, once
# for all records of as many fields, renamed for each class, and when the first one is made: most
# programs make records of a few classes. A `mutable` is made as quickly.


T = TypeVar("T")
METHODS: Final = ("__init__", "__eq__", "__hash__", "__reduce__")
KEPT_HASH: Final = "_hash"


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
    if any(f.factory is not MISSING for f in made.__record_fields__):  # type: ignore[attr-defined]
        raise TypeError(
            f"{cls.__name__} has a default_factory: a frozen record has nothing that could be filled later"
        )
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hashed_record(cls: type[T]) -> type[T]:
    """A record that keeps its hash, for what holds many others and is looked up again and again."""
    own = _lacking(cls, [name for name in METHODS if name != "__hash__"])
    made: Any = _slotted(cls, own, True, (KEPT_HASH,))
    parts = attrgetter(*(f.name for f in made.__record_fields__ if f.compared))
    keep = getattr(made, KEPT_HASH).__set__

    def __hash__(self: Any) -> int:
        try:
            return self._hash  # type: ignore[no-any-return]
        except AttributeError:
            keep(self, found := hash(parts(self)))
            return found

    made.__hash__ = __hash__
    return made  # type: ignore[no-any-return]


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


def finished(made: type[T]) -> type[T]:
    """The record with all of its methods compiled, and its fields found: one whose contents are
    compared, as those of a user's class are, does not change when it is first used.
    """
    for name in METHODS:
        if hasattr(made.__dict__.get(name), "finish"):
            made.__dict__[name].finish()
    fields(made)  # type: ignore[arg-type]
    return made


def _lacking(cls: type, methods: Sequence[str]) -> list[str]:
    """The methods that the class does not define itself; `__init__` never counts as defined."""
    return [name for name in methods if name == "__init__" or name not in cls.__dict__]


def _slotted(cls: type[T], own: Sequence[str], frozen: bool, more: tuple[str, ...] = ()) -> type[T]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # or else dataclass asks `inspect` for a signature
    found = _outlines(cls)
    made = _with_slots(cls, [*(f.name for f in found), *more])
    made.__record_fields__ = found  # type: ignore[attr-defined]
    made.__dataclass_fields__ = _Fields(cls, made)  # type: ignore[attr-defined]
    made.__match_args__ = tuple(f.name for f in found if f.init)  # type: ignore[attr-defined, misc]

    def finish(name: str) -> None:
        names: dict[str, Any] = {"_absent": MISSING}
        for i, f in enumerate(found):
            # that of the slot: half of the time of `object.__setattr__`, which looks for it by name
            names[f"_set_a{i}"] = getattr(made, f.name).__set__
            names[f"_default_a{i}"], names[f"_new_a{i}"] = f.default, f.factory
        code = _code(name, tuple(map(_kind, found)), hasattr(cls, "__post_init__"), frozen)
        setattr(made, name, _function(code, names, found))

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


@final
class Outline(NamedTuple):
    """The facts of a field that the methods need."""

    name: str
    init: bool  # whether it is an argument
    default: Any
    factory: Any  # makes its default anew
    compared: bool
    shown: bool  # whether it is printed


def outlines(cls: type) -> tuple[Outline, ...]:
    """The fields of a record or another dataclass, those of its bases first; quicker than
    `dataclasses.fields`.
    """
    found: tuple[Outline, ...] | None = getattr(cls, "__record_fields__", None)
    return tuple(_outline(f.name, f) for f in fields(cls)) if found is None else found


def _outline(name: str, f: Any) -> Outline:
    return Outline(name, f.init, f.default, f.default_factory, f.compare, f.repr)


def _outlines(cls: type) -> tuple[Outline, ...]:
    """The fields of a class, those of its bases first."""
    found: dict[str, Outline] = {}
    for base in reversed(cls.__mro__[1:]):
        found |= {f.name: f for f in base.__dict__.get("__record_fields__", ())}
    for name, kind in cls.__annotations__.items():
        if "ClassVar" not in str(kind)[: len("typing.ClassVar")]:  # text, or a class made in a call
            given = cls.__dict__.get(name, MISSING)
            if not isinstance(given, Field):
                given = field(default=given)
            found[name] = _outline(name, given)
    return tuple(found.values())


def _with_slots(cls: type[T], names: Sequence[str]) -> type[T]:
    """The class made again with slots for its fields, since `__slots__` cannot be set later."""
    inherited = {slot for base in cls.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
    left_out = {*names, "__dict__", "__weakref__"}
    space = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    space["__slots__"] = tuple(name for name in names if name not in inherited)
    meta: Any = type(cls)
    made: type[T] = meta(cls.__name__, cls.__bases__, space)
    made.__qualname__ = cls.__qualname__
    return made


@final
class _Fields:
    """`__dataclass_fields__` of a record, made when it is first asked for: of most, never."""

    __slots__ = ("cls", "made")

    def __init__(self, cls: type, made: type) -> None:
        self.cls, self.made = cls, made

    def __get__(self, instance: object, owner: type) -> Any:
        cls: Any = dataclass(init=False, repr=False, eq=False)(self.cls)
        made: Any = self.made
        made.__dataclass_fields__ = cls.__dataclass_fields__
        made.__dataclass_params__ = cls.__dataclass_params__  # which those of subclasses ask
        return cls.__dataclass_fields__


def _unfinished(made: type, name: str, finish: Callable[[str], None]) -> Callable[..., Any]:
    """A method that is compiled when it is first called."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        finish(name)
        return getattr(made, name)(self, *args, **kwargs)

    method.finish = partial(finish, name)  # type: ignore[attr-defined]
    return method


def _by_default(defaults: Sequence[tuple[str, Any]], init: Any) -> Callable[..., None]:
    """An `__init__` that compiles nothing as long as it is given nothing, as a record of numbers
    that nobody changes.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            init(self, *args, **kwargs)
            return
        for name, value in defaults:
            object.__setattr__(self, name, value)

    __init__.finish = init.finish  # type: ignore[attr-defined]
    return __init__


# whether a field is an argument, has a default that is none, a factory, and is compared
Kind = tuple[bool, bool, bool, bool]


def _kind(f: Outline) -> Kind:
    default = f.default is not MISSING and not f.init
    return f.init, default, f.factory is not MISSING, f.compared


def _code(name: str, kinds: tuple[Kind, ...], post_init: bool, frozen: bool) -> CodeType:
    """A method of all records with fields of these kinds, which are called a0, a1, ... here."""
    if name == "__init__":
        return _compiled(name, kinds, post_init, frozen)
    given = name == "__reduce__"  # of what is no argument, or is not compared, nothing is read
    return _compiled(name, tuple(kind[0 if given else 3] for kind in kinds))


@cache
def _compiled(name: str, kinds: tuple[Any, ...], *more: bool) -> CodeType:
    """Only what is called is compiled: a record is hardly ever compared, hashed and pickled."""
    text = compile("\n".join(WRITTEN[name](kinds, *more)), "<a record>", "exec")
    return next(code for code in text.co_consts if isinstance(code, CodeType))


def _init(kinds: tuple[Kind, ...], post_init: bool, frozen: bool) -> list[str]:
    given, stores = [], []
    for i, (init, default, made, _) in enumerate(kinds):
        given += [f"a{i}"] * init
        anew = f"_new_a{i}()"
        value = (f"{anew} if a{i} is _absent else a{i}" if made else f"a{i}") if init else anew
        value = f"_default_a{i}" if default else value
        if init or default or made:
            stores.append(
                (" _set_{}(self, {})" if frozen else " self.{} = {}").format(f"a{i}", value)
            )
    head = f"def __init__(self{''.join(f', {name}' for name in given)}):"
    return [head, *stores, " self.__post_init__()" if post_init else " pass"]


def _of(who: str, counts: tuple[bool, ...]) -> str:
    """The text of a tuple of the fields that count."""
    return f"({''.join(f'{who}.a{i}, ' for i, counted in enumerate(counts) if counted)})"


WRITTEN: Final[dict[str, Callable[..., list[str]]]] = {
    "__init__": _init,
    "__eq__": lambda counts: [
        "def __eq__(self, other):",
        " if other.__class__ is not self.__class__: return NotImplemented",
        f" return self is other or {_of('self', counts)} == {_of('other', counts)}",
    ],
    "__hash__": lambda counts: ["def __hash__(self):", f" return hash({_of('self', counts)})"],
    "__reduce__": lambda given: [
        "def __reduce__(self):",
        f" return self.__class__, {_of('self', given)}",
    ],
}


def _function(code: CodeType, names: dict[str, Any], found: Sequence[Outline]) -> FunctionType:
    """A method of one class: the code of its kind, with the names of its fields."""
    renamed = {f"a{i}": f.name for i, f in enumerate(found)}
    made = FunctionType(
        code.replace(
            co_names=tuple(renamed.get(name, name) for name in code.co_names),
            co_varnames=tuple(renamed.get(name, name) for name in code.co_varnames),
        ),
        names,
    )
    if code.co_name == "__init__":
        given = [f for f in found if f.init]
        usual = [f for f in given if (f.default, f.factory) != (MISSING, MISSING)]
        if usual != given[len(given) - len(usual) :]:
            raise TypeError(f"a field without a default after {usual[0].name}, which has one")
        made.__defaults__ = tuple(f.default for f in usual)
    return made


def _frozen(self: object, name: str, *_: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r} of a {type(self).__name__}")


def _repr(self: Any) -> str:
    shown = ", ".join(
        f"{f.name}={getattr(self, f.name)!r}" for f in outlines(type(self)) if f.shown
    )
    return f"{type(self).__qualname__}({shown})"


# -------- Locks that a fork in another thread cannot leave locked: one a key, and properties that
# are computed once.
# One thread does a piece of work while others wait for it; a forked child
# starts with nobody at work.


_locks: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_guard = Lock()
_importing: dict[str, Any] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
WAITED_FOR: Final = {"ge2", "jinja2", "numpy", "ml_dtypes", *sys.stdlib_module_names}  # by a fork


def alone(work: Hashable) -> Any:
    """The lock of a piece of work, the same for all who ask for it meanwhile.

    It may be taken again.
    """
    with _guard:
        lock = _locks.get(work)
        if lock is None:
            lock = _locks[work] = RLock()
        return lock


def _finish_imports() -> None:
    """Waits for other threads to have imported what we import late: in a child
    nobody would go on with it.
    """
    finished: set[str] = set()  # or this thread itself imports it
    while (
        names := {name for name in list(_importing) if name.partition(".")[0] in WAITED_FOR}
        - finished
    ):
        for name in names:
            with suppress(Exception):  # the error is raised where it was asked for
                import_module(name)
        finished |= names


def _forget() -> None:
    global _guard
    _guard = Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finish_imports, after_in_child=_forget)


# ---------------------------------------------------------------------------------------- computed
# A property that is computed once, without a lock: a fork beside another
# thread may leave one locked.
#
# `functools.cached_property` has a lock for all objects of a class before Python 3.12.


@final
class computed(Generic[T]):
    """A property that is computed when it is first read; each of two threads
    may do so, and one value stays.

    >>> class Square:
    ...     @computed
    ...     def area(self) -> int:
    ...         print("once")
    ...         return 4
    >>> square = Square()
    >>> square.area + square.area
    once
    8
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> T | Self:
        if owner is None:
            return self
        found: T = owner.__dict__.setdefault(self.name, self.compute(owner))
        return found


# -------- What is changed for a while: context variables, garbage collection, recursion.


@final
class holding(AbstractContextManager[T]):
    """A context variable has a value inside of `with`, which yields it, and then what it had before.

    >>> depth = ContextVar("depth", default=0)
    >>> with holding(depth, 1) as now:
    ...     now, depth.get()
    (1, 1)
    >>> depth.get()
    0
    """

    __slots__ = ("token", "value", "variable")
    token: Token[Any]

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self.variable, self.value = variable, value

    def __enter__(self) -> T:
        self.token = self.variable.set(self.value)
        return self.value

    def __exit__(self, *_: object) -> None:
        self.variable.reset(self.token)


# ---------------------------------------------------------------------------------------- gc pause
# Building graphs without the garbage collector, which would walk every living
# equation again and again.


F = TypeVar("F", bound=Callable[..., Any])


def after_fork(forget: F) -> F:
    """Registers a function that runs in each forked child, where the threads of the parent and the
    locks that they hold do not exist.
    """
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=forget)
    return forget


_paused: list[bool] = []  # not empty while a thread has the collector rest


def collector_paused(f: F) -> F:
    """`f`, during which the collector rests: what it makes stays alive,
    there is nothing to collect.
    """

    @wraps(f)
    def paused(*args: Any, **kwargs: Any) -> Any:
        if not gc.isenabled():
            return f(*args, **kwargs)
        try:
            gc.disable()
            _paused.append(True)
            return f(*args, **kwargs)
        finally:
            gc.enable()
            _paused.clear()

    return paused  # type: ignore[return-value]


@after_fork
def _after_fork() -> None:
    """The thread that had the collector rest may not exist in the child."""
    if _paused:
        gc.enable()
        _paused.clear()


# --------------------------------------------------------------------------------------- recursion
# Room for deep nesting: a function that is traced inside another takes a
# dozen frames of Python.


DEEP: Final = 5000  # frames, of 400 nested traces; they take at most 1.2 MB of the stack


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Raises Python's recursion limit to 5000 inside; in the main thread alone,
    others may have small stacks.

    >>> import sys
    >>> before = sys.getrecursionlimit()
    >>> with deep_recursion():
    ...     sys.getrecursionlimit() >= 5000
    True
    >>> sys.getrecursionlimit() == before
    True
    """
    before = sys.getrecursionlimit()
    if before >= DEEP or get_ident() != main_thread().ident:  # any other thread may have any stack
        yield
        return
    sys.setrecursionlimit(DEEP)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == DEEP:  # else the function has set its own
            sys.setrecursionlimit(before)


# -------- The keys by which a leaf is reached from the root of a tree, and how they are written.


KeyPath = tuple[Any, ...]


@final
@record
class DictKey:
    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@final
@record
class SequenceKey:
    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@final
@record
class GetAttrKey:
    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@final
@record
class FlattenedIndexKey:
    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def keystr(path: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """The path as it is written after the name of the tree; `simple` gives the bare keys.

    >>> path = (DictKey("w"), SequenceKey(0), GetAttrKey("bias"))
    >>> keystr(path)
    "['w'][0].bias"
    >>> keystr(path, simple=True, separator="/")
    'w/0/bias'
    """
    return separator.join(_bare(key) if simple else str(key) for key in path)


def _bare(key: Any) -> str:
    match key:
        case DictKey(name) | SequenceKey(name) | GetAttrKey(name) | FlattenedIndexKey(name):
            return str(name)
    return str(key)
