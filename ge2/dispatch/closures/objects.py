"""Objects, classes and modules of the user's: which are looked into, and what their attributes are.

An attribute is looked up without running code of the user's: in the object, in
its slots, in its classes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from ge2.base.gpu import on_gpu
from ge2.base.treedef import kind_of
from ge2.trace import is_traced

MISSING: Final = object()  # a name that is not bound yet
INSTALLED: Final = ("site-packages", "dist-packages")
STORES: Final = (
    "types.SimpleNamespace",
    "argparse.Namespace",
)  # of the library, for attributes of the user's
HEAP: Final = 1 << 9  # the flag of a class that Python code made


def cell_value(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def opens(value: Any) -> bool:
    """True for what is looked at attribute by attribute: the user's modules,
    classes and plain objects.
    """
    if is_namespace(value):
        return True
    if isinstance(value, ModuleType | type):
        return False
    if (
        is_traced(value)
        or isinstance(value, np.ndarray)
        or on_gpu(value)
        or kind_of(type(value)) is not None
    ):
        return False
    return is_plain(value) or (hasattr(value, "__dict__") and not callable(value))


def is_namespace(value: Any) -> bool:
    """True for a module or a class of the user's."""
    if isinstance(value, ModuleType):
        return is_users(value.__name__, getattr(value, "__file__", None))
    return isinstance(value, type) and is_users(value.__module__, None)


def holds_names(value: Any) -> bool:
    """True for a module or a class of the user's, and for a function with attributes."""
    if type(value) is FunctionType:
        return not all(map(is_special, vars(value))) and is_users(value.__module__ or "", None)
    return is_namespace(value)


def is_plain(value: Any) -> bool:
    """True for an object of a class of the user's, which may hold arrays in its attributes."""
    cls: type = type(value)
    return (
        is_plain_class(cls) and kind_of(cls) is None and not on_gpu(value) and not is_traced(value)
    )


@functools.lru_cache(maxsize=1024)
def is_plain_class(cls: type) -> bool:
    """True for a class of the user's whose objects hold nothing but
    attributes, and can be copied.
    """
    if f"{cls.__module__}.{cls.__qualname__}" in STORES:
        return True
    if cls in (FunctionType, MethodType) or issubclass(cls, type | np.ndarray | ModuleType):
        return False
    made = all(base is object or base.__flags__ & HEAP for base in cls.__mro__)
    return made and holds_attributes(cls) and is_users(cls.__module__, None)


def holds_attributes(cls: type) -> bool:
    return bool(cls.__dictoffset__ or slots_of(cls))


@functools.lru_cache(maxsize=1024)
def slots_of(cls: type) -> tuple[str, ...]:
    """The names in the `__slots__` of a class and of its bases."""
    made = [base for base in cls.__mro__ if base.__flags__ & HEAP]
    found = [n for base in made for n, v in vars(base).items() if type(v) is MemberDescriptorType]
    return tuple(dict.fromkeys(found))


def own_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself, in its dict and in its slots."""
    own: dict[str, Any] = getattr(value, "__dict__", {})
    cls: type = type(value)
    names = slots_of(cls)
    if not names:
        return own
    held = {n: inner for n in names if (inner := slot_value(value, n)) is not MISSING}
    return {**own, **held}


def slot_value(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return MISSING


def attributes_of(value: Any, wanted: frozenset[str] | None) -> Iterator[tuple[str, Any]]:
    """The attributes with names in `wanted` (None: all) of an object, a class or a module.

    Those of the object itself and of its classes, without functions and descriptors of classes.
    """
    own = {} if isinstance(value, type) else own_attributes(value)
    for name, inner in own.items():
        if (wanted is None or name in wanted) and not is_special(name):
            yield name, inner
    if not isinstance(value, ModuleType):
        cls = value if isinstance(value, type) else type(value)
        yield from ((n, v) for n, v in class_attributes(cls, wanted) if n not in own)


def is_special(name: str) -> bool:
    """True for `__name__` and its like."""
    return name.startswith("__") and name.endswith("__")


def lookup_order(cls: type) -> tuple[type, ...]:
    """The classes in which an attribute of a class is looked up: its bases',
    then its metaclass's.
    """
    kind: type = type(cls)
    return cls.__mro__ if kind is type else (*cls.__mro__, *kind.__mro__)


def class_attributes(cls: type, wanted: frozenset[str] | None) -> Iterator[tuple[str, Any]]:
    """The data among the attributes of a class, of its bases and of its metaclass."""
    for base in users_classes(cls):
        names = vars(base).keys() if wanted is None else wanted & vars(base).keys()
        for name in sorted(names):
            inner = vars(base)[name]
            if not is_special(name) and not hasattr(inner, "__get__"):
                yield name, inner


@functools.lru_cache(maxsize=1024)
def users_classes(cls: type) -> tuple[type, ...]:
    """The user's own among the classes in which an attribute is looked up."""
    return tuple(base for base in lookup_order(cls) if is_users(base.__module__, None))


def attribute(value: Any, name: str) -> Any:
    """An attribute, as far as no property has to run; else MISSING."""
    own = own_attributes(value) if not isinstance(value, type) else vars(value)
    if name in own and not (isinstance(value, type) and hasattr(own[name], "__get__")):
        return own[name]
    if isinstance(value, ModuleType):
        return MISSING
    for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        if name in vars(cls):
            return MISSING if hasattr(vars(cls)[name], "__get__") else vars(cls)[name]
    return MISSING


@functools.lru_cache(maxsize=1024)
def is_users(module: str, file: str | None) -> bool:
    """True if a module is part of somebody's project rather than an installed library."""
    top = module.partition(".")[0]
    if top in ("ge2", "numpy") or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    file = file or getattr(sys.modules.get(module), "__file__", None) or ""
    return not any(folder in file for folder in INSTALLED)


def methods_of(cls: type) -> Iterator[FunctionType]:
    """The functions and properties of a class and its metaclass, as far as they are the user's."""
    for base in users_classes(cls):
        for found in list(vars(base).values()):
            yield from behind(found)


def behind(found: Any) -> Iterator[FunctionType]:
    """The functions that an entry of a class runs: a method's, a property's, a descriptor's."""
    inner = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    if isinstance(inner, functools.cached_property):  # noqa: TID251 the user's
        inner = inner.func
    if isinstance(inner, FunctionType):
        yield inner
    elif hasattr(type(found), "__get__") and is_users(type(found).__module__, None):
        getter = getattr(type(found), "__get__")  # noqa: B009 - mypy knows no such method
        if isinstance(getter, FunctionType):
            yield getter
