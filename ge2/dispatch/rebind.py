"""A copy of a function whose names stand for traced values, so that what it computes
from them is traced too.

`x @ W.T` with a global `W` would ask NumPy for `W.T` at once, and the trace would hold
the weights of its first call for ever. So while a function is traced, the cells and
globals in which arrays were found hold traced values: in copies of the cells and of the
namespace, for other threads go on with the real ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, final

from ge2.base.errors import ImpureError
from ge2.base.source import here, of_function, warn
from ge2.base.treedef import kind_of
from ge2.dispatch.closures import (
    BUILTIN_METHODS,
    MISSING,
    Path,
    cell_value,
    is_plain,
    own_attributes,
    reads_of,
    slots_of,
)
from ge2.dispatch.closures.capture import Plan, Scope, all_leaves, functions_in
from ge2.dispatch.signature import is_array, leaves_of, title
from ge2.trace import is_traced
from ge2.transforms.arguments import containers
from ge2.transforms.custom import CustomRule


@final
class Rebound:
    """The copies that one trace needs."""

    def __init__(self, plans: Sequence[Plan], traced: Mapping[int, Any]) -> None:
        self.traced = traced
        self.scopes = affected(plans)
        self.roots: set[int] = set()  # objects that are reached through attributes
        self.made: dict[int, FunctionType] = {}
        self.rules: dict[int, CustomRule[..., Any]] = {}
        self.namespaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, CellType] = {}
        self.containers: dict[int, tuple[Any, Any]] = {}  # what each is here, by its id
        self.nodes: list[Node] = []  # of the containers that hold traced values here
        self.opening: set[int] = set()
        self.objects: dict[int, Copied] = {}
        self.copies: dict[int, FunctionType] = {}  # by what was made here: what it was made of
        self.outer: dict[int, dict[str, Any]] = {}
        self.real: dict[int, CellType] = {}
        self.roots |= {
            id(s.root(p.names[0]))
            for s in self.scopes.values()
            for p in s.paths
            if self.holds(s.at(p))
        }
        self.frozen: set[int] = set()  # arrays that could not be replaced: attributes of classes
        self.placed: list[
            tuple[Scope, str, Any, Any]
        ] = []  # scope, name, cell or namespace, the traced value in it

    def value(self, x: Any) -> Any:
        """The value with traced values for its arrays; the value itself if it holds none."""
        if id(x) in self.traced:
            return self.traced[id(x)]
        if isinstance(x, FunctionType):
            return self.function(x)
        if isinstance(x, MethodType):
            f, owner = self.value(x.__func__), self.value(x.__self__)
            return x if f is x.__func__ and owner is x.__self__ else MethodType(f, owner)
        if isinstance(x, functools.partial):
            return self.partial(x)
        if isinstance(x, BUILTIN_METHODS):
            owner = self.value(x.__self__)
            return x if owner is x.__self__ else getattr(owner, x.__name__)
        if isinstance(x, CustomRule):
            return self.rule(x)
        if is_plain(x):
            return self.opened(x)
        return x if kind_of(type(x)) is None else self.container(x)

    def opened(self, x: Any) -> Any:
        """An object of the user's with traced values in its attributes;
        itself if it holds no arrays.
        """
        if id(x) not in self.opening:
            self.opening.add(id(x))  # it may refer to itself
            for name, old in list(own_attributes(x).items()):
                new = self.value(old)
                if new is not old:
                    self.copied(x).put(name, new)
        return self.objects[id(x)].copy if id(x) in self.objects else x

    def container(self, x: Any) -> Any:
        """A container with traced values in it, one for all that name it;
        itself if it holds none.
        """
        if id(x) not in self.containers:
            leaves, structure = leaves_of(x)
            new = [self.value(leaf) for leaf in leaves]
            same = structure is None or all(a is b for a, b in zip(leaves, new, strict=True))
            made = x if same or structure is None else structure.unflatten(new)
            kept = self.containers.setdefault(id(x), (x, made))  # functions in it may name it, too
            if kept[1] is made is not x:
                pairs = zip(containers(x, ()), containers(made, ()), strict=True)
                self.nodes += [Node(old, new) for (old, _), (new, _) in pairs]
        return self.containers[id(x)][1]

    def partial(self, x: functools.partial[Any]) -> Any:
        func, args, keywords = self.value(x.func), self.value(x.args), self.value(x.keywords)
        same = func is x.func and args is x.args and keywords is x.keywords
        return x if same else functools.partial(func, *args, **keywords)

    def rule(self, x: CustomRule[..., Any]) -> CustomRule[..., Any]:
        """A function with a derivative of its own: its parts are functions."""
        if id(x) not in self.rules:
            self.rules[id(x)] = x
            if any(id(f) in self.scopes for f in functions_in(x)):
                new = self.rules[id(x)] = copy(x)
                vars(new).update((name, self.value(part)) for name, part in vars(x).items())
        return self.rules[id(x)]

    def function(self, f: FunctionType) -> FunctionType:
        scope = self.scopes.get(id(f))
        if scope is None:
            return f
        new = self.made.get(id(f))
        if new is None:
            cells = tuple(self.cell(c) for c in f.__closure__ or ())
            new = FunctionType(
                f.__code__, self.namespace(f.__globals__), f.__name__, f.__defaults__, cells
            )
            self.made[id(f)] = new
            self.copies[id(new)] = f
            new.__kwdefaults__, new.__qualname__ = f.__kwdefaults__, f.__qualname__
            new.__dict__.update(f.__dict__)
            self.fill(scope, new)
        return new

    def fill(self, scope: Scope, new: FunctionType) -> None:
        f = scope.function
        for name, old in scope.closure.items():
            self.place(scope, name, cell_value(old), self.cells[id(old)])
        for name in scope.names:
            self.place(scope, name, scope.globals.get(name, MISSING), new.__globals__)
        for path in scope.paths:
            if id(scope.root(path.names[0])) in self.roots:
                self.graft(scope, path, new)
        if f.__defaults__:
            new.__defaults__ = tuple(map(self.value, f.__defaults__))
        if f.__kwdefaults__:
            new.__kwdefaults__ = {k: self.value(v) for k, v in f.__kwdefaults__.items()}

    def graft(self, scope: Scope, path: Path, function: FunctionType) -> None:
        """Puts a copy of the object that `a.b.c` begins at in its place, with a
        traced value at the end.
        """
        steps = scope.steps(path)
        value = self.value(steps[-1])
        if value is steps[-1]:
            return
        for owner, name in zip(steps[-2::-1], path.names[len(steps) - 1 : 0 : -1], strict=True):
            if isinstance(owner, type):
                self.frozen.update(id(x) for x in leaves_of(steps[-1])[0])
                return
            value = self.copied(owner).put(name, value)
        name = path.names[0]
        cell = scope.closure.get(name)
        at: Any = function.__globals__ if cell is None else self.cells[id(cell)]
        self.put(scope, name, at, value)

    def copied(self, owner: Any) -> Copied:
        if id(owner) not in self.objects:
            self.objects[id(owner)] = Copied(owner)
        return self.objects[id(owner)]

    def place(self, scope: Scope, name: str, old: Any, at: Any) -> None:
        new = old if old is MISSING else self.value(old)
        if new is not old:
            self.put(scope, name, at, new)

    def put(self, scope: Scope, name: str, at: Any, new: Any) -> None:
        if isinstance(at, CellType):
            at.cell_contents = new
        else:
            at[name] = new
        self.placed.append((scope, name, at, new))

    def cell(self, old: CellType) -> CellType:
        """The cell itself if it holds nothing that is traced, so that
        counters in it go on counting.
        """
        if id(old) not in self.cells:
            value = cell_value(old)
            keep = value is MISSING or not self.holds(value)
            new = self.cells[id(old)] = old if keep else CellType(value)
            self.real[id(new)] = old
        return self.cells[id(old)]

    def holds(self, value: Any) -> bool:
        if id(value) in self.roots:
            return True
        if any(id(f) in self.scopes for f in functions_in(value)):
            return True
        return any(id(x) in self.traced for x in inner_leaves(value))

    def namespace(self, old: dict[str, Any]) -> dict[str, Any]:
        if id(old) not in self.namespaces:
            new = self.namespaces[id(old)] = dict(old)
            self.outer[id(new)] = old
        return self.namespaces[id(old)]

    def original(self, x: Any) -> Any:
        """The user's own for a copy made here; a function defined in one is
        made to read the real arrays.
        """
        if isinstance(x, FunctionType):
            return self.original_function(x)
        if isinstance(x, MethodType):
            return MethodType(self.original(x.__func__), self.original(x.__self__))
        if isinstance(x, functools.partial):
            return functools.partial(self.original(x.func), *x.args, **x.keywords)
        return next((c.original for c in self.objects.values() if c.copy is x), x)

    def original_function(self, f: FunctionType) -> FunctionType:
        if id(f) in self.copies:
            return self.copies[id(f)]
        names = self.outer.get(id(f.__globals__), f.__globals__)
        cells = tuple(self.real.get(id(c), c) for c in f.__closure__ or ())
        if names is f.__globals__ and cells == (f.__closure__ or ()):
            return f
        found = FunctionType(f.__code__, names, f.__name__, f.__defaults__, cells)
        found.__kwdefaults__ = f.__kwdefaults__
        return found

    def unreached(self) -> set[int]:
        """Arrays named by methods that had to run as they are: what
        they make of those is not traced.
        """
        found: set[int] = set()
        for key, scope in self.scopes.items():
            inside = scope.function.__qualname__.rpartition(".")[0]
            if key not in self.made and inside and not inside.endswith("<locals>"):
                found.update(id(x) for value in scope.values() for x in leaves_of(value)[0])
        return found & set(self.traced)

    def close(self) -> None:
        """After the trace: assigns what the function assigned; an array
        that it replaced is an error.
        """
        for scope, name, at, new in self.placed:
            now = cell_value(at) if isinstance(at, CellType) else at.get(name, MISSING)
            if now is not new:
                what = f"{title(scope.function)} assigns to {name}, an array from outside: compiled, it cannot"
                raise ImpureError(
                    what,
                    where=of_function(scope.function),
                    fix=f"return the new {name} and assign it where the function is called",
                )
        for copied in self.objects.values():
            copied.close()
        for node in self.nodes:
            node.close({id(x) for x in self.traced.values()})
        for scope in self.scopes.values():
            new_globals = self.namespaces.get(id(scope.function.__globals__), {})
            for name in reads_of(scope.function.__code__).written:
                if name in new_globals:
                    scope.function.__globals__[name] = new_globals[name]


def inner_leaves(value: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """The leaves of a value, and those in the attributes of objects among them."""
    for leaf in all_leaves(value):
        yield leaf
        if is_plain(leaf) and id(leaf) not in around:
            for inner in own_attributes(leaf).values():
                yield from inner_leaves(inner, (*around, id(leaf)))


@final
class Copied:
    """A stand-in for an object of the user's, with other values in some of its attributes."""

    def __init__(self, original: Any) -> None:
        self.original = original
        module = isinstance(original, ModuleType)
        self.copy = ModuleType(original.__name__) if module else new_of(type(original))
        self.before = dict(own_attributes(original))
        for name, value in self.before.items():
            set_attribute(self.copy, name, value)
        self.replaced: set[str] = set()

    def put(self, name: str, value: Any) -> Any:
        set_attribute(self.copy, name, value)
        self.before[name] = value
        self.replaced.add(name)
        return self.copy

    def close(self) -> None:
        """Assigns to the object what was assigned to the stand-in; an array
        that it replaced is an error.
        """
        for name, value in own_attributes(self.copy).items():
            if value is not self.before.get(name, MISSING):
                if name in self.replaced:
                    owner = type(self.original).__name__
                    what = f"the attribute {name} of a {owner} was assigned: compiled, it cannot be"
                    raise ImpureError(
                        what, where=here(), fix=f"return the new {name} and assign it outside"
                    )
                set_attribute(self.original, name, value)


@final
class Node:
    """A container with traced values in it, beside the user's own, of which it is a copy."""

    def __init__(self, original: Any, copy: Any) -> None:
        self.original, self.copy = original, copy
        self.old, self.before = entries(original), entries(copy)

    def close(self, arrays: Set[int]) -> None:
        """Puts into the original what was put into the copy; an array that it replaced is an error."""
        now = entries(self.copy)
        kept = {id(x) for x in now.values()}
        added = {k: x for k, x in now.items() if x is not self.before.get(k, MISSING)}
        if not added and len(now) == len(self.before):
            return
        kind = type(self.original).__name__
        for key, part in self.before.items():
            if id(part) not in kept and any(id(x) in arrays for x in inner_leaves(part)):
                what = (
                    f"element {key!r} of a {kind} from outside was replaced: compiled, it cannot be"
                )
                raise ImpureError(
                    what, where=here(), fix="return the new one and put it there outside"
                )
        back = {id(x): self.old[k] for k, x in self.before.items() if k in self.old}
        if any(is_traced(x) for y in added.values() if id(y) not in back for x in inner_leaves(y)):
            what = f"a traced value was put into a {kind} from outside, which stays as it was"
            warn(what, "return the value and put it there where the function is called")
            return
        self.assign({k: back.get(id(x), x) for k, x in now.items()})

    def assign(self, found: Mapping[Any, Any]) -> None:
        """Has the original hold these parts, by their keys, numbers or names, and no others."""
        if isinstance(self.original, dict):
            self.original.clear()
            self.original.update(found)
        elif isinstance(self.original, list):
            self.original[:] = found.values()
        else:
            for name, x in found.items():
                if x is not self.old.get(name, MISSING):
                    set_attribute(self.original, name, x)


def entries(container: Any) -> dict[Any, Any]:
    """The parts of a container by their keys, numbers or names."""
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, list | tuple):
        return dict(enumerate(container))
    return dict(own_attributes(container))


def new_of(cls: type) -> Any:
    """An object without attributes, by no code of the user's."""
    try:
        return object.__new__(cls)
    except TypeError:  # a class of the library, such as SimpleNamespace
        made: Any = cls.__new__
        return made(cls)


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Assigns past the `__setattr__` of the class, to a slot or to the object's dict."""
    cls: type = type(owner)
    if name in slots_of(cls):
        object.__setattr__(owner, name, value)
    else:
        vars(owner)[name] = value


def affected(plans: Sequence[Plan]) -> dict[int, Scope]:
    """The functions that read an array from outside, themselves or in a function that they call."""
    scopes = {id(s.function): s for p in plans for s in p.scopes}
    values = {i: s.values() for i, s in scopes.items()}
    reached = {
        i for i, vs in values.items() if any(any(map(is_array, inner_leaves(v))) for v in vs)
    }
    calls = {i: {id(f) for v in vs for f in functions_in(v)} for i, vs in values.items()}
    grew = True
    while grew:
        more = {
            i for i, inner in calls.items() if i not in reached and not reached.isdisjoint(inner)
        }
        reached, grew = reached | more, bool(more)
    return {i: scopes[i] for i in reached}
