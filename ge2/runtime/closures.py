"""What a function reads besides its arguments, looked at again at each call: arrays become hidden inputs.

A function's code names cells and globals; functions found there are followed, containers are taken apart.
Arrays are inputs that the user did not write down, numbers and strings are part of the key by value, all else
by identity. What the code only writes (`count += 1`, `seen.append(x)`) is not looked at.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import is_, itemgetter
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, final
from weakref import WeakKeyDictionary

import numpy as np

from ge2.base.dtypes import NUMBERS
from ge2.base.errors import PytreeError
from ge2.base.pytree import flatten
from ge2.base.source import PACKAGE
from ge2.base.structure import kind_of
from ge2.runtime.bytecode import Path, Reads, reads_of
from ge2.runtime.signature import Same, Static
from ge2.trace import is_traced

MISSING: Final = object()  # a name that is not bound yet
INSTALLED: Final = ("site-packages", "dist-packages")
VALUES = (*NUMBERS, str, bytes, np.generic, np.dtype)
LIMIT = 512  # functions that are followed from one
Follow = Callable[[Any], Sequence[Any] | None]


@final
class Token:
    """The part of a key that stays while the same objects are bound; its hash is worked out once."""

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Token) and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash


class Seen(NamedTuple):
    """What was found: the key, and the arrays in a fixed order."""

    key: Any
    arrays: tuple[Any, ...]


@final
class Scope:
    """One function's names: cells, globals, paths through modules and objects, defaults."""

    __slots__ = ("cells", "function", "getter", "globals", "labels", "names", "paths")

    def __init__(self, function: FunctionType, reads: Reads) -> None:
        self.function = function
        free = function.__code__.co_freevars
        closure = dict(zip(free, function.__closure__ or (), strict=True))
        self.globals = {} if of_package(function) else function.__globals__
        roots = {n: cell_value(c) for n, c in closure.items()} | self.globals if reads.paths else {}
        self.paths = [p for p in reads.paths if p.names[0] in roots and opens(roots[p.names[0]])]
        through = {p.names[0] for p in self.paths}
        self.cells = [closure[n] for n in free if n in reads.free and n not in through]
        names = [n for n in reads.globals if n in self.globals and n not in through]
        self.names = [n for n in names if not isinstance(self.globals[n], ModuleType | type)]
        self.getter = itemgetter(*self.names) if len(self.names) > 1 else None
        self.labels = [n for n in free if n in reads.free and n not in through] + self.names

    @property
    def empty(self) -> bool:
        f = self.function
        return not (self.cells or self.names or self.paths or f.__defaults__ or f.__kwdefaults__)

    def values(self) -> list[Any]:
        """What the names are bound to now."""
        found: list[Any] = [cell_value(c) for c in self.cells]
        if self.getter is not None:
            try:
                found += self.getter(self.globals)
            except KeyError:
                found += [self.globals.get(n, MISSING) for n in self.names]
        elif self.names:
            found.append(self.globals.get(self.names[0], MISSING))
        found += [self.at(p) for p in self.paths]
        f = self.function
        found += f.__defaults__ or ()
        found += (f.__kwdefaults__ or {}).values()
        return found

    def at(self, path: Path) -> Any:
        """The value at the end of `a.b.c`, or as far as it goes without running code of the user's."""
        root, *attributes = path.names
        f = self.function
        free = f.__code__.co_freevars
        value = cell_value(f.__closure__[free.index(root)]) if root in free else self.globals.get(root, MISSING)  # type: ignore[index]
        for name in attributes:
            if not opens(value):
                break
            value = attribute(value, name)
        return value


def cell_value(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def opens(value: Any) -> bool:
    """Whether the attributes that code reads of it are looked at one by one: modules, classes and objects of the user's."""
    if isinstance(value, ModuleType):
        return is_users(value.__name__, getattr(value, "__file__", None))
    if isinstance(value, type):
        return is_users(value.__module__, None)
    return (
        hasattr(value, "__dict__")
        and kind_of(type(value)) is None
        and not callable(value)
        and not is_traced(value)
        and not isinstance(value, np.ndarray)
    )


def attribute(value: Any, name: str) -> Any:
    """What an attribute is, as far as no property has to run."""
    try:
        if name in value.__dict__:
            return value.__dict__[name]
    except (TypeError, AttributeError):
        return MISSING
    for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        if name in vars(cls):
            found = vars(cls)[name]
            return MISSING if hasattr(found, "__get__") else found
    return MISSING


@functools.lru_cache(maxsize=1024)
def is_users(module: str, file: str | None) -> bool:
    """Whether a module is part of somebody's project rather than an installed library."""
    top = module.partition(".")[0]
    if top in ("ge2", "numpy") or top in sys.stdlib_module_names and top != "__main__":
        return False
    file = file or getattr(sys.modules.get(module), "__file__", None) or ""
    return not any(folder in file for folder in INSTALLED)


def of_package(function: FunctionType) -> bool:
    """Whether it is one of ge2's own functions, such as what `grad` returns: only its closure is the user's."""
    return function.__code__.co_filename.startswith(PACKAGE)


def followed(value: Any) -> Iterator[FunctionType]:
    """The Python functions that a value calls when it is called, as far as they are the user's."""
    if isinstance(value, FunctionType):
        if of_package(value) or is_users(value.__module__ or "", value.__code__.co_filename):
            yield value
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and not of_package(value):
            yield from followed(wrapped)
    elif isinstance(value, MethodType):
        yield from followed(value.__func__)
    elif isinstance(value, functools.partial):
        yield from followed(value.func)
    elif type(value).__module__.startswith("ge2.") and hasattr(value, "__wrapped__"):
        for inner in vars(value).values():
            if isinstance(inner, FunctionType | MethodType):
                yield from followed(inner)


@final
class Closure:
    """All that one function reads besides its arguments."""

    __slots__ = ("function", "generators", "live", "scopes", "token", "values")

    def __init__(self, function: Any) -> None:
        self.function = function
        self.plan()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to look at, ever."""
        return not self.values

    def plan(self) -> None:
        """Follows functions from the first until no new ones are found."""
        scopes: list[Scope] = []
        values: list[Any] = outer_values(self.function)
        known: set[int] = set()
        todo = [*followed(self.function)]
        for value in values:
            todo += functions_in(value)
        while todo and len(known) < LIMIT:
            function = todo.pop(0)
            if id(function) not in known:
                known.add(id(function))
                scope = Scope(function, reads_of(function.__code__))
                scopes.append(scope)
                found = scope.values()
                values += found
                for value in found:
                    todo += functions_in(value)
        self.scopes = [s for s in scopes if not s.empty]
        self.values = values
        self.token, self.live = self.split(values)
        self.generators = [v for v in values if isinstance(v, np.random.Generator | np.random.RandomState)]

    def split(self, values: Sequence[Any]) -> tuple[Token, list[Any]]:
        """The part that identity decides, and the values to look into at each call: arrays and containers."""
        live = [v for v in values if is_live(v)]
        return Token(tuple(still_key(v) for v in values)), live

    def look(self) -> Seen:
        """The key and the hidden inputs as they are now."""
        values = outer_values(self.function)
        for scope in self.scopes:
            values += scope.values()
        before = self.values
        if len(values) != len(before) or not all(map(is_, values, before)):
            self.plan()
        if not self.live:
            return Seen(self.token, ())
        keys: list[Any] = [self.token]
        arrays: list[Any] = []
        for value in self.live:
            look_into(value, keys, arrays)
        return Seen(tuple(keys), tuple(arrays))


def outer_values(function: Any) -> list[Any]:
    """What a callable that is no plain function holds: the arguments of a partial, the object of a method."""
    if isinstance(function, functools.partial):
        return [function.args, function.keywords]
    if isinstance(function, MethodType):
        return [function.__self__]
    return [] if isinstance(function, FunctionType) or kind_of(type(function)) is None else [function]


def functions_in(value: Any) -> Iterator[FunctionType]:
    if callable(value):
        yield from followed(value)
    elif kind_of(type(value)) is not None:
        for leaf in leaves_of(value)[0]:
            if callable(leaf):
                yield from followed(leaf)


def is_live(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_traced(value) or kind_of(type(value)) is not None or isinstance(value, functools.partial)


def still_key(value: Any) -> Any:
    """The key of a value that cannot change while it is the same object."""
    if is_live(value):
        return None
    if isinstance(value, VALUES):
        return Static(value)
    return Same(value)


def leaves_of(value: Any) -> tuple[list[Any], Any]:
    if isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    try:
        return flatten(value)
    except PytreeError:  # it contains itself
        return [Same(value)], None


def look_into(value: Any, keys: list[Any], arrays: list[Any]) -> None:
    """Adds the key and the arrays of a value that may have changed."""
    if type(value) is np.ndarray:
        keys.append((value.shape, value.dtype))
        arrays.append(value)
        return
    leaves, structure = leaves_of(value)
    keys.append(structure)
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) or is_traced(leaf):
            t = leaf.type if is_traced(leaf) else leaf
            keys.append((t.shape, t.dtype, getattr(t, "weak", False)))
            arrays.append(leaf)
        else:
            keys.append(still_key(leaf))
