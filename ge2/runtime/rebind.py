"""A copy of a function whose names stand for traced values, so that what it computes from them is traced too.

`x @ W.T` with a global `W` would ask NumPy for `W.T` at once, and the trace would hold the weights of its
first call for ever. So while a function is traced, the cells and globals in which arrays were found hold
traced values: in copies of the cells and of the namespace, for other threads go on with the real ones.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import copy
from types import CellType, FunctionType, MethodType
from typing import Any, final

from ge2.base.errors import ImpureError
from ge2.base.source import of_function
from ge2.base.structure import kind_of
from ge2.runtime.bytecode import reads_of
from ge2.runtime.closures import MISSING, Plan, Scope, cell_value, functions_in, is_array, leaves_of
from ge2.runtime.signature import title
from ge2.transforms.custom import CustomRule


@final
class Rebound:
    """The copies that one trace needs."""

    def __init__(self, plans: Sequence[Plan], traced: Mapping[int, Any]) -> None:
        self.traced = traced
        self.scopes = affected(plans)
        self.made: dict[int, FunctionType] = {}
        self.rules: dict[int, CustomRule] = {}
        self.namespaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, CellType] = {}
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
        if isinstance(x, CustomRule):
            return self.rule(x)
        return x if kind_of(type(x)) is None else self.container(x)

    def container(self, x: Any) -> Any:
        leaves, structure = leaves_of(x)
        new = [self.value(leaf) for leaf in leaves]
        return (
            x
            if structure is None or all(a is b for a, b in zip(leaves, new, strict=True))
            else structure.unflatten(new)
        )

    def partial(self, x: functools.partial[Any]) -> Any:
        func, args, keywords = self.value(x.func), self.value(x.args), self.value(x.keywords)
        same = func is x.func and args is x.args and keywords is x.keywords
        return x if same else functools.partial(func, *args, **keywords)

    def rule(self, x: CustomRule) -> CustomRule:
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
            new = FunctionType(f.__code__, self.namespace(f.__globals__), f.__name__, f.__defaults__, cells)
            self.made[id(f)] = new
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
        if f.__defaults__:
            new.__defaults__ = tuple(map(self.value, f.__defaults__))
        if f.__kwdefaults__:
            new.__kwdefaults__ = {k: self.value(v) for k, v in f.__kwdefaults__.items()}

    def place(self, scope: Scope, name: str, old: Any, at: Any) -> None:
        new = old if old is MISSING else self.value(old)
        if new is not old:
            if isinstance(at, CellType):
                at.cell_contents = new
            else:
                at[name] = new
            self.placed.append((scope, name, at, new))

    def cell(self, old: CellType) -> CellType:
        """The cell itself if it holds nothing that is traced, so that counters in it go on counting."""
        if id(old) not in self.cells:
            value = cell_value(old)
            keep = value is MISSING or not self.holds(value)
            self.cells[id(old)] = old if keep else CellType(value)
        return self.cells[id(old)]

    def holds(self, value: Any) -> bool:
        if any(id(f) in self.scopes for f in functions_in(value)):
            return True
        return any(id(x) in self.traced for x in (leaves_of(value)[0] if not is_array(value) else [value]))

    def namespace(self, old: dict[str, Any]) -> dict[str, Any]:
        if id(old) not in self.namespaces:
            self.namespaces[id(old)] = dict(old)
        return self.namespaces[id(old)]

    def close(self) -> None:
        """After the trace: assigns what the function assigned; an array that it replaced is an error."""
        for scope, name, at, new in self.placed:
            now = cell_value(at) if isinstance(at, CellType) else at.get(name, MISSING)
            if now is not new:
                what = (
                    f"{title(scope.function)} assigns to {name}, an array from outside: compiled, it cannot"
                )
                raise ImpureError(
                    what,
                    where=of_function(scope.function),
                    fix=f"return the new {name} and assign it where the function is called",
                )
        for scope in self.scopes.values():
            new_globals = self.namespaces.get(id(scope.function.__globals__), {})
            for name in reads_of(scope.function.__code__).written:
                if name in new_globals:
                    scope.function.__globals__[name] = new_globals[name]


def affected(plans: Sequence[Plan]) -> dict[int, Scope]:
    """The functions that read an array from outside, themselves or in a function that they call."""
    scopes = {id(s.function): s for p in plans for s in p.scopes}
    values = {i: s.values() for i, s in scopes.items()}
    reached = {i for i, vs in values.items() if any(any(map(is_array, leaves_of(v)[0])) for v in vs)}
    calls = {i: {id(f) for v in vs for f in functions_in(v)} for i, vs in values.items()}
    grew = True
    while grew:
        more = {i for i, inner in calls.items() if i not in reached and not reached.isdisjoint(inner)}
        reached, grew = reached | more, bool(more)
    return {i: scopes[i] for i in reached}
