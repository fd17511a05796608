"""Generated straight-line code that checks that a closure has not changed since the last call.

What a function closes over hardly ever changes. So all that a look reads (cells, globals,
attributes, the elements of containers) is compared with what was there by identity, and arrays by
their shapes and dtypes, in code of its own; only where that differs, everything is looked at again.
What is compared by its contents, such as a set, is so here, too: that much is read again.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, final
from weakref import ref

import numpy as np

from ge2.base.arrays import known
from ge2.base.treedef import Kind, kind_of
from ge2.dispatch.closures import (
    MISSING,
    attribute,
    attributes_of,
    held_by,
    holds_names,
    is_plain,
    opens,
    slot_value,
    slots_of,
    users_classes,
)
from ge2.dispatch.signature import VALUES, Same, contents, holds_elements
from ge2.trace import is_traced

if TYPE_CHECKING:

    class Seen(Protocol):
        """The observed values: `Seen` of `capture`."""

        @property
        def key(self) -> Any: ...
        @property
        def arrays(self) -> tuple[Any, ...]: ...

    class Scope(Protocol):
        """One function's names: `Scope` of `capture`."""

        @property
        def function(self) -> Any: ...
        @property
        def closure(self) -> Mapping[str, Any]: ...
        @property
        def globals(self) -> Mapping[str, Any]: ...
        @property
        def cells(self) -> Sequence[Any]: ...
        @property
        def names(self) -> Sequence[str]: ...
        @property
        def modules(self) -> Sequence[str]: ...
        @property
        def paths(self) -> Sequence[Any]: ...

    class Plan(Protocol):
        """The places to look at: `Plan` of `capture`."""

        @property
        def outer(self) -> Any: ...
        @property
        def scopes(self) -> Sequence[Scope]: ...
        @property
        def classes(self) -> tuple[type, ...]: ...
        @property
        def live(self) -> Sequence[Any]: ...
        @property
        def attributes(self) -> frozenset[str] | None: ...


MOST: Final = 2000  # conditions that are worth a text
MANY: Final = 8  # elements that are compared together
# containers whose elements, by identity and in their order, are all that they hold
ORDERED: Final = (list, tuple, set, frozenset, deque)
CLASS: Final = attrgetter("__class__")
DICT: Final = attrgetter("__dict__")
TEXT: Final = """def same():
    try:
        return Seen(key, ({arrays})) if {conditions} else None
    except (AttributeError, IndexError, KeyError, ValueError):
        return None
"""


class GivesUp(Exception):
    """Something cannot be compared in a function of its own."""


class TooMany(Exception):
    """There are more conditions than are worth a text."""


def unchanged(plan: Plan, seen: Seen) -> Callable[[], Any] | None:
    """A function that returns what is `seen` as long as all of it is as it is now, and else None.

    None if there is no such function.
    """
    try:
        try:
            return Conditions(plan, seen).function()
        except TooMany:
            return Conditions(plan, seen, Together()).function()
    except (GivesUp, TypeError):  # TypeError: of an object without weak references
        return None


@final
class Together:
    """Compares the attributes of very many objects by identity, in a few loops written in C."""

    def __init__(self) -> None:
        self.objects, self.classes = list[Any](), list[type]()
        self.owners, self.dicts = list[Any](), list[dict[Any, Any]]()
        self.containers, self.elements = list[Collection[Any]](), list[Any]()
        self.named, self.names = list[dict[str, Any]](), list[str]()  # dicts by strings
        self.mappings, self.values = list[dict[Any, Any]](), list[Any]()
        self.lengths = list[int]()

    def instance(self, value: Any, cls: type) -> None:
        self.objects.append(value)
        self.classes.append(cls)

    def attributes(self, value: Any, mine: dict[str, Any]) -> None:
        self.owners.append(value)
        self.dicts.append(mine)
        self.mapping(mine)

    def container(self, values: Collection[Any]) -> None:
        self.containers.append(values)
        self.elements += values

    def mapping(self, values: dict[Any, Any]) -> None:
        if all(type(name) is str for name in values):
            self.named.append(values)
            self.names += values
        else:
            self.container(values)
        self.mappings.append(values)
        self.values += values.values()

    def finish(self) -> None:
        self.lengths += map(len, chain(self.containers, self.mappings))

    def conditions(self) -> Iterator[bool]:
        yield same_each(map(CLASS, self.objects), self.classes)
        yield same_each(map(DICT, self.owners), self.dicts)
        yield [*map(len, chain(self.containers, self.mappings))] == self.lengths
        yield same_each(chain.from_iterable(self.containers), self.elements)
        yield [*chain.from_iterable(self.named)] == self.names
        yield same_each(chain.from_iterable(map(dict.values, self.mappings)), self.values)

    def same(self) -> bool:
        return all(self.conditions())


@final
class Conditions:
    """The conditions, each once. An array is held by a weak reference: nobody needs it sooner
    than the next call.
    """

    def __init__(self, plan: Plan, seen: Seen, together: Together | None = None) -> None:
        self.plan, self.seen = plan, seen
        self.names: dict[str, Any] = {"Seen": type(seen), "key": seen.key}
        self.names |= {"read": slot_value, "same_each": same_each, "same_node": same_node}
        self.names |= {"same_weak": same_weak, "contents": contents}
        self.known: dict[int, str] = {}  # the names of objects
        self.tests: dict[str, None] = {}  # in their order
        self.classes: set[type] = set()  # of which all entries are compared
        self.arrays = {id(x) for x in seen.arrays}
        self.opened: set[int] = set()  # objects whose attributes are compared
        self.constants: set[int] = set()  # what is compared by its contents
        self.together = together

    def function(self) -> Callable[[], Any]:
        self.outer()
        for scope in self.plan.scopes:
            self.scope(scope)
        for base in self.plan.classes:
            self.entries(base)
        for value in self.plan.live:
            self.inside(value)
        arrays = "".join(f"{self.name(x)}, " for x in self.seen.arrays)
        if self.together is not None:
            self.together.finish()
            self.add(f"{self.name(self.together)}.same()")
        text = TEXT.format(arrays=arrays, conditions=" and ".join(self.tests) or "True")
        exec(text, self.names)
        found: Callable[[], Any] = self.names["same"]
        return found

    def name(self, value: Any) -> str:
        """The text that stands for an object."""
        name = self.known.get(id(value))
        if name is None:
            name, weak = f"x{len(self.known)}", self.is_weak(value)
            self.names[name] = ref(value) if weak else value
            name = self.known[id(value)] = f"{name}()" if weak else name
        return name

    def add(self, test: str) -> None:
        if self.together is None and len(self.tests) == MOST:
            raise TooMany
        self.tests[test] = None

    def same(self, text: str, value: Any) -> None:
        self.add(f"{text} is {self.name(value)}")

    def entry(self, names: Mapping[str, Any], text: str, name: str) -> Any:
        """The value that a name is bound to; MISSING if it is not."""
        value = names.get(name, MISSING)
        if value is MISSING:
            self.add(f"{name!r} not in {text}")
        else:
            self.same(f"{text}[{name!r}]", value)
        return value

    # -- names

    def outer(self) -> None:
        """The parts of a partial; what else a callable is made of never changes."""
        if isinstance(self.plan.outer, functools.partial):
            self.parts(self.plan.outer)

    def parts(self, f: functools.partial[Any]) -> None:
        for part in ("func", "args", "keywords"):
            self.same(f"{self.name(f)}.{part}", getattr(f, part))

    def scope(self, scope: Scope) -> None:
        f = scope.function
        for cell in scope.cells:
            self.same(f"{self.name(cell)}.cell_contents", cell.cell_contents)
        for name in scope.names:
            self.entry(scope.globals, self.name(scope.globals), name)
        for path in scope.paths:
            self.path(scope, path.names)
        for name in scope.modules:
            self.entry(sys.modules, self.name(sys.modules), name)
        self.of_function(f)

    def of_function(self, f: FunctionType) -> None:
        text = self.name(f)
        self.same(f"{text}.__code__", f.__code__)
        self.same(f"{text}.__defaults__", f.__defaults__)
        self.same(f"{text}.__kwdefaults__", f.__kwdefaults__)
        if f.__kwdefaults__:
            self.dictionary(f.__kwdefaults__)

    def path(self, scope: Scope, names: tuple[str, ...]) -> None:
        """The values along `a.b.c`, as `Scope.steps` finds them."""
        cell = scope.closure.get(names[0])
        if cell is None:
            value = self.entry(scope.globals, self.name(scope.globals), names[0])
        else:
            value = cell.cell_contents
            self.same(f"{self.name(cell)}.cell_contents", value)
        for name in names[1:]:
            if value is MISSING or not opens(value):
                return
            self.lookup(value, name)
            value = attribute(value, name)

    def lookup(self, value: Any, name: str) -> None:
        """The places in which `attribute` looks, up to the first that has the name."""
        if isinstance(value, ModuleType):
            self.entry(vars(value), f"{self.name(value)}.__dict__", name)
            return
        cls = value
        if not isinstance(value, type):
            cls = value.__class__
            self.same(f"{self.name(value)}.__class__", cls)
            if name in slots_of(cls):
                self.slot(value, name)
                return
            if self.entry(own(value), self.own(value), name) is not MISSING:
                return
        self.same(f"{self.name(cls)}.__mro__", cls.__mro__)
        for base in cls.__mro__:
            if self.entry(vars(base), f"{self.name(base)}.__dict__", name) is not MISSING:
                return

    def slot(self, value: Any, name: str) -> None:
        self.same(f"read({self.name(value)}, {name!r})", slot_value(value, name))

    def own(self, value: Any) -> str:
        """The text of an object's own attributes; slots alone have no dict."""
        return f"{self.name(value)}.__dict__" if hasattr(value, "__dict__") else "()"

    # -- what may change inside

    def inside(self, value: Any, around: tuple[int, ...] = ()) -> None:
        """Adds what `look_into` reads of a value."""
        kind: type = type(value)
        if is_plain(value) or holds_names(value):
            if id(value) in self.opened:
                return
            self.opened.add(id(value))
        if is_traced(value) or id(value) in around:
            raise GivesUp
        around = (*around, id(value))
        if id(value) in self.arrays:
            self.array(value)
        elif kind_of(kind) is not None or held_by(value) is not None:
            self.all_inside(self.elements(value), around)
        elif is_plain(value) or holds_names(value):
            self.attributes(value, around, constant=not is_plain(value))
        elif holds_elements(kind) or kind is np.ndarray:
            self.constant(value)

    def constant(self, value: Any) -> None:
        """Adds what `contents` reads of a value: elements by identity, if that tells all of them."""
        if isinstance(value, VALUES) or id(value) in self.constants:
            return
        self.constants.add(id(value))
        kind: type = type(value)
        if kind is dict:
            self.dictionary(value)
            inner = (*value, *value.values())
        elif kind in ORDERED:
            self.sequence(value)
            inner = (*value,)
        elif is_traced(value):
            raise GivesUp
        else:
            inner, before = (), contents(value)
            if holds_elements(kind) or type(before) is not Same:
                self.add(f"contents({self.name(value)}) == {self.name(before)}")
        for each in inner:
            self.constant(each)

    def elements(self, value: Any) -> Iterable[Any]:
        """The elements of a container, which are to be the same."""
        kind: type = type(value)
        held = held_by(value)
        if held is not None:
            if isinstance(value, functools.partial):
                self.parts(value)
            elif kind is FunctionType:
                raise GivesUp  # it may have another function to choose from
            return held
        if kind is dict:
            self.dictionary(value)
            return value.values()  # type: ignore[no-any-return]
        if kind is list:
            self.sequence(value)
            return value  # type: ignore[no-any-return]
        return (value or ()) if value is None or isinstance(value, tuple) else self.node(value)

    def all_inside(self, values: Iterable[Any], around: tuple[int, ...]) -> None:
        for value in values:
            self.inside(value, around)

    def array(self, value: Any) -> None:
        if not known(value.dtype):
            raise GivesUp
        text = self.name(value)
        self.add(f"{text}.shape == {value.shape}")
        self.add(f"{text}.dtype == {self.name(value.dtype)}")

    def node(self, value: Any) -> Sequence[Any]:
        """A container of any other kind, taken apart again each time."""
        kind = kind_of(type(value))
        assert kind is not None
        parts, aux = kind.split(value)
        texts = "".join(f"{self.name(part)}, " for part in parts)
        self.same(f"{self.name(value)}.__class__", type(value))
        given = ", ".join(map(self.name, (kind, value, kind.token(aux))))
        self.add(f"same_node({given}, ({texts}))")
        return parts

    def sequence(self, values: Collection[Any]) -> None:
        """The elements, in the order in which a set has them, too, until it changes."""
        if self.together is not None and not any(map(self.is_weak, values)):
            self.together.container(values)
            return
        text = self.name(values)
        self.add(f"len({text}) == {len(values)}")
        if not isinstance(values, list) or len(values) > MANY:
            self.each(text, values)
            return
        for i, value in enumerate(values):
            self.same(f"{text}[{i}]", value)

    def dictionary(self, values: dict[Any, Any]) -> None:
        if self.together is not None and not any(map(self.is_weak, values.values())):
            self.together.mapping(values)
            return
        text, named = self.name(values), all(type(name) is str for name in values)
        if named:
            self.add(f"[*{text}] == {[*values]}")
        else:
            self.sequence(values)
        if not named or len(values) > MANY:
            self.each(f"{text}.values()", values.values())
            return
        for name, value in values.items():
            self.same(f"{text}[{name!r}]", value)

    def attributes(self, value: Any, around: tuple[int, ...], constant: bool = False) -> None:
        """The attributes that some code reads, an object's own and its classes'; `constant`: of
        something whose arrays and containers are compared by their contents.
        """
        cls: type = value if isinstance(value, type) else type(value)
        mine = {} if value is cls else self.instance(value, cls)
        for name, inner in attributes_of(value, self.plan.attributes):
            if name in mine:
                self.same(f"{self.own(value)}[{name!r}]", inner)
            if constant:
                self.constant(inner)
            else:
                self.inside(inner, around)
        self.same(f"{self.name(cls)}.__mro__", cls.__mro__)
        for base in users_classes(cls):
            self.entries(base)

    def instance(self, value: Any, cls: type) -> dict[str, Any]:
        """Adds the class of an object, and its slots; returns its attributes, of which the names
        are added, unless all of them are compared together.
        """
        mine = own(value)
        self.slots(value, cls)
        if self.together is not None:
            self.together.instance(value, cls)
            if self.plan.attributes is None and not any(map(self.is_weak, mine.values())):
                if hasattr(value, "__dict__"):
                    self.together.attributes(value, mine)
                return {}
        else:
            self.same(f"{self.name(value)}.__class__", cls)
        if hasattr(value, "__dict__"):
            self.add(f"[*{self.own(value)}] == {[*mine]}")
        return mine

    def slots(self, value: Any, cls: type) -> None:
        for name in slots_of(cls):
            if self.plan.attributes is None or name in self.plan.attributes:
                self.slot(value, name)

    def entries(self, base: type) -> None:
        """All that a class defines."""
        if base in self.classes:
            return
        self.classes.add(base)
        text, names = f"{self.name(base)}.__dict__", vars(base)
        self.add(f"[*{text}] == {[*names]}")
        self.each(f"{text}.values()", names.values())

    def each(self, text: str, values: Iterable[Any]) -> None:
        """Compares elements together."""
        held = tuple(ref(x) if self.is_weak(x) else x for x in values)
        weak = any(type(x) is ref for x in held)
        self.add(f"{'same_weak' if weak else 'same_each'}({text}, {self.name(held)})")

    def is_weak(self, value: Any) -> bool:
        return type(value) is np.ndarray or id(value) in self.arrays


def same_each(now: Iterable[Any], before: Iterable[Any]) -> bool:
    return all(map(is_, now, before))


def same_weak(now: Iterable[Any], before: Iterable[Any]) -> bool:
    """The same of what is held by weak references in part."""
    return all((b() if type(b) is ref else b) is a for a, b in zip(now, before, strict=True))


def same_node(kind: Kind, value: Any, token: Any, parts: Sequence[Any]) -> bool:
    now, aux = kind.split(value)
    return len(now) == len(parts) and same_each(now, parts) and bool(kind.token(aux) == token)


def own(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(value, "__dict__", {})
    return found
