"""Objects, classes and modules of the user's: which are looked into, and what their attributes are.

An attribute is looked up without running code of the user's: in the object, in
its slots, in its classes.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from ge2.base.arrays import on_gpu
from ge2.base.record import record
from ge2.base.source import pattern
from ge2.base.treedef import kind_of
from ge2.trace import is_traced

# ---------------------------------------------------------------------------------------- bytecode
# Which outer names a code object reads, and through which attributes.


WRITING: Final = frozenset(
    ("append", "appendleft", "extend", "add", "update", "insert", "put", "info", "debug", "warning")
)
CALLBACKS: Final = ("callback", "pure_callback")
# how the cells of a function are gathered
AROUND: Final = ("LOAD_CLOSURE", "LOAD_FAST", "BUILD_TUPLE")
GENERATORS: Final = ("default_rng", "RandomState", "Random", "SystemRandom")
LOADS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
SILENT: Final = ("CACHE", "PUSH_NULL", "EXTENDED_ARG", "NOP", "RESUME", "NOT_TAKEN", "PRECALL")
COUNTING: Final = ("BINARY_OP", "SWAP", "SWAP", "STORE_SUBSCR")
# how an instruction on two variables spells its halves
PAIRED: Final = pattern("(?:LOAD|STORE)_FAST")
LATER: Final = {  # names that Pythons after 3.11 have for instructions of 3.11
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_CHECK": "LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "LOAD_SUPER_ATTR": "LOAD_ATTR",
    "LOAD_FROM_DICT_OR_DEREF": "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_GLOBALS": "LOAD_NAME",
}


class Path(NamedTuple):
    """`a.b.c` as code spells it."""

    names: tuple[str, ...]


@record
class Reads:
    """The reads of some code: global names, free variables, and the paths that start at them."""

    globals: tuple[str, ...]
    free: frozenset[str]
    paths: tuple[Path, ...]
    attributes: frozenset[str]  # names of attributes of whatever it is
    written: frozenset[str]  # global names that it assigns
    # lines that make a generator of random numbers without a seed
    unseeded: frozenset[tuple[CodeType, int]]
    handed: frozenset[str]  # paths that it only hands to a callback, which runs later
    methods: frozenset[str]  # attributes of its own variables that it only hands to a callback
    imports: frozenset[str]  # modules that it imports when it runs


_known: WeakKeyDictionary[CodeType, Reads] = WeakKeyDictionary()


def steps_of(code: CodeType) -> list[dis.Instruction]:
    """The instructions of code, as Python 3.11 would name them, without those that do nothing."""
    return [
        step for i in dis.get_instructions(code) if i.opname not in SILENT for step in halves(i)
    ]


def halves(step: dis.Instruction) -> Iterator[dis.Instruction]:
    """An instruction, or the two that later Pythons have made one of."""
    names = PAIRED.findall(step.opname)
    if len(names) == 2:
        for name, variable in zip(names, step.argval, strict=True):
            yield step._replace(opname=name, argval=variable)
    else:
        yield step._replace(opname=LATER.get(step.opname, step.opname))


def reads_of(code: CodeType) -> Reads:
    """Read off the byte code of a function and of those defined in it."""
    found = _known.get(code)
    if found is None:
        found = _known[code] = _reads(code)
    return found


def _reads(code: CodeType) -> Reads:
    names: dict[str, None] = {}
    free: set[str] = set()
    paths: dict[Path, None] = {}
    attributes: set[str] = set()
    written: set[str] = set()
    unseeded: set[tuple[CodeType, int]] = set()
    handed: set[str] = set()
    called: set[str] = set()
    methods: set[str] = set()
    read: set[str] = set()
    imports: set[str] = set()
    for inner in nested(code):
        steps = steps_of(inner)
        written.update(i.argval for i in steps if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
        unseeded.update((inner, line) for line in unseeded_lines(steps))
        imports.update(imported_modules(steps))
        attributes.update(i.argval for i in steps if i.opname == "IMPORT_FROM")
        attributes.update("__match_args__" for i in steps if i.opname == "MATCH_CLASS")
        for at, step in enumerate(steps):
            if step.opname in ATTRIBUTES and not counts(steps, at):
                attributes.add(step.argval)
                own = steps[at - 1].opname == "LOAD_FAST" and after_callback(steps, at - 1)
                (methods if own else read).add(step.argval)
            if step.opname in LOADS and not only_writes(steps, at):
                if "DEREF" in step.opname:
                    free.add(step.argval)
                else:
                    names[step.argval] = None
                path = path_from(steps, at)
                paths[path] = None
                (handed if after_callback(steps, at) else called).add(".".join(path.names))
    return Reads(
        tuple(names),
        frozenset(free & set(code.co_freevars)),
        tuple(paths),
        frozenset(attributes),
        frozenset(written),
        frozenset(unseeded),
        frozenset(handed - called),
        frozenset(methods - read),
        frozenset(imports),
    )


def uses(code: CodeType) -> Iterator[tuple[CodeType, dis.Instruction, Path]]:
    """Each `a.b.c` of the code and of that defined in it: where it begins, and its names.

    One that begins with a name imported there is spelt from that module on.
    """
    for inner in nested(code):
        steps = steps_of(inner)
        imported = dict(imported_names(steps))
        for at, step in enumerate(steps):
            if step.opname in LOADS:
                yield inner, step, path_from(steps, at)
            elif step.opname == "LOAD_FAST" and step.argval in imported:
                path = path_from(steps, at)
                yield inner, step, Path((*imported[step.argval], *path.names[1:]))


def imported_modules(steps: Sequence[dis.Instruction]) -> Iterator[str]:
    """The modules that code may import, as it spells them:

    `from a import b` is of `a`, and of `a.b`.
    """
    module = ""
    for step in steps:
        if step.opname == "IMPORT_NAME":
            module = step.argval
            yield module
        elif step.opname == "IMPORT_FROM":
            yield f"{module}.{step.argval}"


def imported_names(steps: Sequence[dis.Instruction]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The local names that imports bind, and what they stand for."""
    module = ""
    for step, after in pairwise(steps):
        if step.opname == "IMPORT_NAME":
            module = step.argval
            if after.opname.startswith("STORE_"):
                yield after.argval, (module.partition(".")[0],)
        elif step.opname == "IMPORT_FROM" and after.opname.startswith("STORE_"):
            yield after.argval, (module, step.argval)


def unseeded_lines(steps: Sequence[dis.Instruction]) -> Iterator[int]:
    """The lines with `default_rng()` or `RandomState()`, whatever they belong to."""
    for step, after in pairwise(steps):
        if (
            step.argval in GENERATORS
            and after.opname == "CALL"
            and after.argval == 0
            and after.positions
            and after.positions.lineno
        ):
            yield after.positions.lineno


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions defined in it; not of those that it
    hands to a callback at once.
    """
    yield code
    steps = steps_of(code)
    for at, step in enumerate(steps):
        if isinstance(step.argval, CodeType):
            first = at
            while first and steps[first - 1].opname in AROUND:
                first -= 1
            if not after_callback(steps, first):
                yield from nested(step.argval)


def after_callback(steps: Sequence[dis.Instruction], at: int) -> bool:
    """True if what is loaded here is the first argument of a callback."""
    before = steps[at - 1] if at else None
    return (
        before is not None and before.opname in (*ATTRIBUTES, *LOADS) and before.argval in CALLBACKS
    )


def path_from(steps: Sequence[dis.Instruction], at: int) -> Path:
    names = [steps[at].argval]
    for step in steps[at + 1 :]:
        if step.opname not in ATTRIBUTES:
            break
        names.append(step.argval)
    return Path(tuple(names))


def counts(steps: Sequence[dis.Instruction], at: int) -> bool:
    """True if the load of an attribute is part of `a.b += 1`."""
    after = [(i.opname, i.argval) for i in steps[at + 1 : at + 5]]
    kinds = [name for name, _ in after]
    return kinds[1:] == ["BINARY_OP", "SWAP", "STORE_ATTR"] and after[3][1] == steps[at].argval


def only_writes(steps: Sequence[dis.Instruction], at: int) -> bool:
    """True if a load begins `n += 1`, `xs.append(y)`, `d[k] = y` or `d[k] += 1`: nothing is learnt."""
    load, after = steps[at], [*steps[at + 1 : at + 10]]
    ops = [i.opname for i in after]
    if (
        len(ops) > 2
        and ops[0].startswith("LOAD_")
        and ops[1] == "BINARY_OP"
        and ops[2].startswith("STORE_")
    ):
        return after[1].argrepr.endswith("=") and after[2].argval == load.argval
    if ops and ops[0] in ATTRIBUTES:
        return after[0].argval in WRITING
    if ops and (ops[0] == "STORE_ATTR" or (ops[:2] == ["COPY", "LOAD_ATTR"] and counts(after, 1))):
        return True
    if len(ops) > 1 and ops[0].startswith("LOAD_") and ops[1] == "STORE_SUBSCR":
        return True
    return (
        ops[:3] in (["LOAD_CONST", "COPY", "COPY"], ["LOAD_FAST", "COPY", "COPY"])
        and tuple(ops[5:9]) == COUNTING
    )


# ----------------------------------------------------------------------------------------- objects


MISSING: Final = object()  # a name that is not bound yet
INSTALLED: Final = ("site-packages", "dist-packages")
STORES: Final = (
    "types.SimpleNamespace",
    "argparse.Namespace",
)  # of the library, for attributes of the user's
# where functions are from that Python puts into classes, such as the `__repr__` of dataclasses
LIBRARY: Final = tuple(
    os.path.join(os.path.dirname(os.__file__), name)
    for name in ("dataclasses", "collections", "typing")
)
BUILTIN_METHODS: Final = (BuiltinMethodType, MethodWrapperType)
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


def held_by(value: Any) -> tuple[Any, ...] | None:
    """The values that a callable holds: the parts of a partial, the owner of a method, the
    functions that `singledispatch` chooses from; None for what holds nothing.
    """
    if not callable(value):
        return None
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, BUILTIN_METHODS):
        owner = value.__self__
        free = owner is None or isinstance(owner, ModuleType | type) or value.__name__ in WRITING
        return None if free else (owner,)
    if type(value) is FunctionType:
        chosen = vars(value).get("registry")
        return tuple(chosen.values()) if isinstance(chosen, MappingProxyType) else None
    return None


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
    return tuple(base for base in lookup_order(cls) if is_users(module_of(base), None))


def module_of(cls: type) -> str:
    """The module of a class: builtins, where its own instances have what a class has there.

    So it is in the metaclass of Cython's functions, such as those of numpy.random.
    """
    module: object = cls.__module__
    return module if isinstance(module, str) else "builtins"


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
            for f in behind(found):
                if not f.__code__.co_filename.startswith(LIBRARY):
                    yield f


def behind(found: Any) -> Iterator[FunctionType]:
    """The functions that an entry of a class runs: a method's, a property's, a descriptor's."""
    inner = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    if isinstance(inner, functools.cached_property):  # noqa: TID251 the user's
        inner = inner.func
    if isinstance(inner, FunctionType):
        yield inner
    elif hasattr(type(found), "__get__") and is_users(module_of(type(found)), None):
        getter = getattr(type(found), "__get__")  # noqa: B009 - mypy knows no such method
        if isinstance(getter, FunctionType):
            yield getter
