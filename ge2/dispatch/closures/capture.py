"""The values that a function reads besides its arguments: found, observed at each call, and bound.

The values that a function reads besides its arguments, checked again at each call: arrays become
hidden inputs.

A function's code names cells and globals; functions found there are followed,
containers are taken apart. Arrays are inputs that the user did not write down, numbers
and strings are part of the key by value, all else by identity. What the code only
writes (`count += 1`, `seen.append(x)`) is not looked at.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import accumulate, zip_longest
from operator import attrgetter, is_, itemgetter, methodcaller
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, final

from ge2.base.arrays import loaded, numpy_generators
from ge2.base.pytree import Structure, key_paths, keystr
from ge2.base.record import record
from ge2.base.source import PACKAGE
from ge2.base.tracebacks import inside
from ge2.base.treedef import kind_of
from ge2.dispatch.closures import (
    MISSING,
    Path,
    Reads,
    attribute,
    attributes_of,
    cell_value,
    class_attributes,
    held_by,
    is_namespace,
    is_plain,
    is_users,
    methods_of,
    module_of,
    opens,
    own_attributes,
    reads_of,
    users_classes,
)
from ge2.dispatch.signature import is_live, leaves_of, look_into, still_key

DYNAMIC: Final = frozenset(
    (
        "getattr",
        "vars",
        "__dict__",
        "__getattr__",
        "__getattribute__",
        "__match_args__",
        "attrgetter",
        "methodcaller",
        "getmembers",
    )
)
GETTERS: Final = (attrgetter, methodcaller)
NO_NAMES: Final = frozenset[str]()
CALM: Final = 2  # equal looks in a row that are worth code of their own
GENERATED: Final = "<string>"  # the file of what dataclasses and named tuples define
LIMIT = 512  # functions that are followed from one


@final
class Token:
    """The part of a key that stays while the same objects are bound; its hash
    is worked out once.
    """

    __slots__ = ("_hash", "parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Token) and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash


class Seen(NamedTuple):
    """The observed values: the key, and the arrays in a fixed order."""

    key: Any
    arrays: tuple[Any, ...]


NOTHING: Final = Seen(None, ())


@final
class Scope:
    """One function's names: cells, globals, paths through modules and objects, defaults."""

    __slots__ = (
        "called", "cells", "closure", "function", "getter", "globals", "handed", "labels", "modules", "names",
        "paths",
    )  # fmt: skip

    def __init__(self, function: FunctionType, reads: Reads, called: bool) -> None:
        self.function, self.called = function, called
        free = function.__code__.co_freevars
        self.closure = dict(zip(free, function.__closure__ or (), strict=True))
        self.globals = {} if of_package(function) else function.__globals__
        self.paths = [p for p in reads.paths if opens(self.root(p.names[0]))]
        through = {p.names[0] for p in self.paths}
        inner = [n for n in free if n in reads.free and n not in through]
        outer = [
            n
            for n in reads.globals
            if n not in through and (n in self.globals or not hasattr(builtins, n))
        ]
        self.cells = [self.closure[n] for n in inner]
        self.names = (
            []
            if of_package(function)
            else [n for n in outer if not isinstance(self.root(n), ModuleType | type)]
        )
        self.getter = itemgetter(*self.names) if len(self.names) > 1 else None
        self.modules = sorted(
            modules_of(reads.imports, function.__globals__.get("__package__") or "")
        )
        self.labels = [*inner, *self.names, *(".".join(p.names) for p in self.paths)]
        self.labels += self.modules
        self.handed = reads.handed

    def values(self) -> list[Any]:
        """The values that the names are bound to now."""
        found: list[Any] = [cell_value(c) for c in self.cells]
        if self.getter is not None:
            try:
                found += self.getter(self.globals)
            except KeyError:
                found += [self.globals.get(n, MISSING) for n in self.names]
        elif self.names:
            found.append(self.globals.get(self.names[0], MISSING))
        if self.paths:
            found += [self.at(p) for p in self.paths]
        if self.modules:
            found += [sys.modules.get(n, MISSING) for n in self.modules]
        f = self.function
        if f.__defaults__:
            found += f.__defaults__
        if f.__kwdefaults__:
            found += f.__kwdefaults__.values()
        if self.called or found:  # nobody looks at what names nothing
            found.append(f.__code__)
        return found

    def root(self, name: str) -> Any:
        cell = self.closure.get(name)
        return self.globals.get(name, MISSING) if cell is None else cell_value(cell)

    def at(self, path: Path) -> Any:
        """The value at the end of `a.b.c`, or as far as it goes without
        running code of the user's.
        """
        return self.steps(path)[-1]

    def steps(self, path: Path) -> list[Any]:
        """The values along the way, from the root on."""
        found = [self.root(path.names[0])]
        for name in path.names[1:]:
            inner = attribute(found[-1], name) if opens(found[-1]) else MISSING
            if inner is MISSING:
                break
            found.append(inner)
        return found


def modules_of(imports: Set[str], package: str) -> set[str]:
    """The modules of the user's that imports may mean, as names: those within
    the package, and others.
    """
    above = ["", *accumulate(package.split("."), "{}.{}".format)] if package else [""]
    found = {f"{each}.{name.strip('.')}".strip(".") for each in above for name in imports}
    return {
        n for n in found if n.partition(".")[0] not in (*sys.stdlib_module_names, "ge2", "numpy")
    }


def of_package(function: FunctionType) -> bool:
    """True if it is ge2's own, such as what `grad` returns: only its closure is the user's."""
    return function.__code__.co_filename.startswith(PACKAGE)


def followed(value: Any) -> Iterator[FunctionType]:
    """The Python functions that a value calls when it is called."""
    if isinstance(value, FunctionType):
        yield value if inside(value).__closure__ else inside(value)
    elif isinstance(value, MethodType):
        yield from followed(value.__func__)
    elif isinstance(value, functools.partial):
        yield from followed(value.func)
    elif module_of(type(value)).startswith("ge2.") and hasattr(value, "__dict__"):
        for inner in list(vars(value).values()):  # a custom rule: the function and its derivatives
            if isinstance(inner, FunctionType | MethodType):
                yield from followed(inner)
    elif is_plain(value):
        yield from methods_of(type(value))
    elif isinstance(value, type) and is_namespace(value):
        yield from methods_of(value)
    wrapped = None if isinstance(value, type) else own_attributes(value).get("__wrapped__")
    if wrapped is not None:
        yield from followed(wrapped)


def functions_in(value: Any) -> Iterator[FunctionType]:
    for leaf in all_leaves(value):
        if callable(leaf) or is_plain(leaf):
            yield from followed(leaf)
        if is_plain(leaf):
            for inner in own_attributes(leaf).values():
                if callable(inner):
                    yield from followed(inner)
    for cls in node_classes(value):
        yield from methods_of(cls)


def all_leaves(value: Any) -> Iterator[Any]:
    """The leaves of a value, and of what callables among them hold."""
    for leaves, _ in taken_apart(value):
        yield from leaves


def taken_apart(value: Any, around: tuple[int, ...] = ()) -> Iterator[tuple[list[Any], Any]]:
    """The leaves and the structure of a value, and of what callables among its leaves hold."""
    leaves, structure = leaves_of(value)
    yield leaves, structure
    for leaf in leaves:
        if leaf is not value and id(leaf) not in around and held_by(leaf) is not None:
            yield from taken_apart(leaf, (*around, id(leaf)))


def node_classes(value: Any) -> Iterator[type]:
    """The user's classes of pytrees in a value, such as dataclasses: their methods are code, too."""
    for _, structure in taken_apart(value):
        if structure is not None:
            yield from coded_classes(structure)


@functools.lru_cache(maxsize=1024)
def coded_classes(structure: Structure) -> tuple[type, ...]:
    """The user's classes among the nodes of a structure, as far as they have methods or data."""
    todo, found = [structure], dict[type, None]()
    while todo:
        node = todo.pop()
        todo += node.children
        if is_namespace(node.kind.type) and has_code(node.kind.type):
            found[node.kind.type] = None
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def has_code(cls: type) -> bool:
    """True for a class that defines more than the fields of a dataclass or a named tuple."""
    files = (f.__code__.co_filename for f in methods_of(cls))
    return any(file != GENERATED for file in files) or any(class_attributes(cls, None))


def random_types() -> tuple[type, ...]:
    """The classes of generators of random numbers, as far as anybody has imported them."""
    return (*numpy_generators(), *loaded("random", "Random"))


@final
@record
class Plan:
    """The places to look at, and what was there when the plan was made."""

    outer: Any
    scopes: tuple[Scope, ...]
    classes: tuple[type, ...]  # the user's, whose methods may be replaced
    nodes: tuple[type, ...]  # those of pytrees, whose attributes are read through their instances
    values: list[Any]
    token: Token
    live: list[Any]  # arrays and containers, which are looked into at each call
    code: tuple[int, ...]  # the functions in those
    attributes: frozenset[str] | None  # of plain objects, those that some code reads; None for all

    def gather(self) -> list[Any]:
        found = outer_values(self.outer)
        for scope in self.scopes:
            found += scope.values()
        return [*found, *own_methods(self.classes), *self.nodes]

    def generators(self) -> list[Any]:
        """The generators of random numbers that the function could draw from."""
        kinds = random_types()
        return [x for v in self.reached() for x in all_leaves(v) if isinstance(x, kinds)]

    def reached(self) -> list[Any]:
        """The values, and those of the attributes of objects among them that some code reads."""
        inner = [
            x for v in self.values if is_plain(v) for name, x in attributes_of(v, self.attributes)
        ]
        return [*self.values, *inner]


def plan(function: Any, more: frozenset[str] | None = NO_NAMES) -> Plan:
    """Follows functions from the first until no new ones are found.

    `more` are the attributes that other code reads, to which the function is passed; None for all.
    """
    values = outer_values(function)
    home = (getattr(function, "__module__", "") or "").partition(".")[0]
    todo = [*followed(function), *(f for v in values for f in functions_in(v))]
    first, seen, scopes = set(map(id, todo)), set[int](), []
    methods: set[str] = set()  # those that only callbacks run, later and as they are
    while todo and len(seen) < LIMIT:
        f = todo.pop(0)
        near = id(f) in first or of_package(f) or is_near(f, home)
        if id(f) in seen or not near or f.__name__ in methods:
            continue
        seen.add(id(f))
        reads = reads_of(f.__code__)
        methods |= reads.methods
        scope = Scope(f, reads, id(f) not in first)
        found = scope.values()
        scopes.append(scope)
        values += found
        labelled = zip_longest(scope.labels, found, fillvalue="")
        todo += [g for label, v in labelled if label not in scope.handed for g in functions_in(v)]
    classes = tuple(dict.fromkeys(base for v in values for base in classes_of(v)))
    nodes = tuple(dict.fromkeys(cls for v in values for cls in node_classes(v)))
    values += [*own_methods(classes), *nodes]
    attributes = frozenset[str]().union(*(reads_of(s.function.__code__).attributes for s in scopes))
    names = attributes.union(*(reads_of(s.function.__code__).globals for s in scopes))
    dynamic = more is None or not DYNAMIC.isdisjoint(names)
    dynamic = dynamic or any(gets_by_name(x) for v in values for x in all_leaves(v))
    live = [v for v in values if is_live(v)]
    token = Token(tuple(map(still_key, values)))
    wanted = None if dynamic else attributes | (more or NO_NAMES)
    code = code_in(live)
    return Plan(function, tuple(scopes), classes, nodes, values, token, live, code, wanted)


def gets_by_name(value: Any) -> bool:
    return isinstance(value, GETTERS) or value is getattr or value is vars


def code_in(values: Iterable[Any]) -> tuple[int, ...]:
    """The functions that a call may come to through containers and objects."""
    return tuple(id(f) for v in values for f in functions_in(v))


def classes_of(value: Any) -> Iterator[type]:
    """The user's classes of the objects in a value, of which some code may call methods."""
    for leaf in all_leaves(value):
        if is_plain(leaf):
            cls: type = type(leaf)
            yield from users_classes(cls)
        elif isinstance(leaf, type) and is_namespace(leaf):
            yield from users_classes(leaf)
    for cls in node_classes(value):
        yield from users_classes(cls)


def own_methods(classes: Iterable[type]) -> list[Any]:
    """The functions and descriptors of classes."""
    return [x for cls in classes for x in vars(cls).values() if hasattr(x, "__get__")]


def is_near(function: FunctionType, home: str) -> bool:
    module = function.__module__ or ""
    return is_users(module, function.__code__.co_filename) or module.partition(".")[0] == home != ""


def outer_values(function: Any) -> list[Any]:
    """The values that a callable holds which is no plain function: the arguments of a partial, the
    object of a method.
    """
    if isinstance(function, FunctionType):
        return []
    if isinstance(function, functools.partial):
        return [function.func, function.args, function.keywords]
    if isinstance(function, MethodType):
        return [function.__self__]
    holds = is_plain(function) or is_namespace(function) or kind_of(type(function)) is not None
    return [function] if holds else []


@final
class Closure:
    """All that one function reads besides its arguments."""

    __slots__ = ("keys", "more", "patience", "plan", "same", "times", "was")

    def __init__(self, function: Any, more: frozenset[str] | None = NO_NAMES) -> None:
        self.more = more
        self.plan = plan(function, more)
        self.same: Callable[[], Seen | None] | None = None  # what was seen, if it still is so
        self.keys: Any = None  # what the live values gave
        self.was: Any = None
        self.times, self.patience = 0, CALM  # how often it was seen, and is to be for a function

    @property
    def empty(self) -> bool:
        """True if there is nothing to look at, ever."""
        return not self.plan.values

    def look(self) -> Seen:
        """The key and the hidden inputs as they are now."""
        same = self.same
        if same is not None:
            found = same()
            if found is not None:
                return found
            self.same, self.patience, self.times = None, 2 * self.patience, 0
        return self.expect(self.looked())

    def expect(self, seen: Seen) -> Seen:
        """Returns what was seen, with the previous key if that is equal: equal keys that are one object
        compare fast.

        Generates code that recognises the same values, once they were seen often enough in a row.
        """
        was = seen.key, [id(x) for x in seen.arrays]  # holding the arrays would keep their memory
        if was == self.was:
            self.times, seen = self.times + 1, seen._replace(key=self.was[0])
        else:
            self.times, self.was = 0, was
        if self.times == self.patience:
            from ge2.dispatch.closures.unchanged import unchanged  # not needed for first calls

            same, again = unchanged(self.plan, seen), self.looked()
            if same is not None and same() is not None and again.key == seen.key:
                self.same = same  # nothing changed while it was made
        return seen

    def looked(self) -> Seen:
        """The same, read anew."""
        now = self.plan
        values = now.gather()
        if len(values) != len(now.values) or not all(map(is_, values, now.values)):
            now = self.plan = plan(now.outer, self.more)
        if not now.live:
            return Seen(now.token, ())
        keys, arrays = self.inside()
        if keys != self.keys:
            if (
                self.keys is not None and code_in(now.live) != now.code
            ):  # a table has another function
                self.plan = plan(now.outer, self.more)
                keys, arrays = self.inside()
            self.keys = keys
        keys = [self.plan.token, *keys]
        if len(set(map(id, arrays))) != len(arrays):
            places = {id(x): i for i, x in enumerate(arrays)}
            keys.append(tuple(places[id(x)] for x in arrays))
        return Seen(tuple(keys), tuple(arrays))

    def inside(self) -> tuple[list[Any], list[Any]]:
        """The keys and the arrays of what may have changed inside."""
        keys: list[Any] = []
        arrays: list[Any] = []
        seen: dict[int, Any] = {}
        for value in self.plan.live:
            look_into(value, keys, arrays, self.plan.attributes, seen)
        return keys, arrays

    def names(self) -> dict[int, str]:
        """The user's name of each array."""
        found: dict[int, str] = {}
        for scope in self.plan.scopes:
            for label, value in zip(scope.labels, scope.values(), strict=False):
                if is_live(value):
                    leaves, structure = leaves_of(value)
                    paths = [()] if structure is None else key_paths(structure)
                    found.update(
                        (id(x), label + keystr(p)) for x, p in zip(leaves, paths, strict=True)
                    )
        return found

    def labels(self) -> list[str]:
        """The user's names of the values that were found, in their order."""
        found = [""] * len(outer_values(self.plan.outer))
        for scope in self.plan.scopes:
            names = scope.labels + [f"a default of {scope.function.__name__}"] * len(scope.values())
            found += names[: len(scope.values())]
        return found
