"""Values a function reads from around it, if all can be seen again, and a test
that each is what it was.

This is stricter than what `jit` follows, for an eager call must never be answered from an older
trace: a function that names anything but numbers, strings, small arrays, containers of them,
NumPy's and our functions, and Python functions of that kind is traced at each call.
"""

from __future__ import annotations

import builtins
import dis
import math
import operator
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

import ge2.numpy
from ge2.base.arrays import EXTENDED, PYTHON
from ge2.base.source import is_package
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.elementwise import WHERE
from ge2.ops.pointlike import Elementwise
from ge2.trace import Tracer

LARGEST: Final = 1 << 16  # bytes of an array whose elements are compared at each call
FUNCTIONS, VALUES = 32, 64  # more of either are not worth looking at
MODULES: Final = frozenset(
    (
        "numpy",
        "numpy.linalg",
        "numpy.fft",
        "math",
        "operator",
        "ge2",
        "ge2.numpy",
        "ge2.lax",
        "ge2.nn",
    )
)
CONTROL: Final = (
    "lax",
    "cond",
    "switch",
    "scan",
    "while_loop",
    "fori_loop",
    "stop_gradient",
    "numpy",
)
METHODS: Final = (
    "items",
    "keys",
    "values",
    "get",
    "append",
    "extend",
    "pop",
    "insert",
    "copy",
    "index",
    "join",
)
ATTRIBUTES: Final = frozenset(
    n
    for names in (
        dir(ge2.numpy),
        dir(Tracer),
        dir(math),
        dir(operator),
        CONTROL,
        METHODS,
        ("linalg", "fft"),
    )
    for n in names
    if not n.startswith("_")
) - {"empty", "empty_like", "random", "attrgetter", "methodcaller", "setitem", "delitem"}
BUILTINS: Final = frozenset(
    getattr(builtins, n)
    for n in (
        "abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float", "int",
        "isinstance", "len", "list", "map", "max", "min", "pow", "range", "reversed", "round", "set", "slice",
        "sorted", "str", "sum", "tuple", "zip", "ValueError", "TypeError", "IndexError", "KeyError",
    )
)  # fmt: skip
CONSTANTS: Final = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.dtype)
REFUSED: Final = frozenset(
    (
        "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM",
        "LOAD_NAME", "LOAD_BUILD_CLASS", "BEFORE_WITH", "SETUP_WITH", "LOAD_SPECIAL", "BEFORE_ASYNC_WITH",
        "GET_AWAITABLE", "LOAD_SUPER_ATTR", "LOAD_LOCALS", "LOAD_FROM_DICT_OR_GLOBALS",
    )
)  # fmt: skip
LIBRARIES: Final = (np, np.linalg, np.fft, math, operator, ge2.numpy)
MISSING: Final = object()
_plain: WeakKeyDictionary[CodeType, tuple[str, ...] | None] = WeakKeyDictionary()


def global_names(code: CodeType) -> tuple[str, ...] | None:
    """The global names that code reads; None if it does what is not seen from
    outside, or writes there.
    """
    if code not in _plain:
        names: dict[str, None] = {}
        fine = all(is_plain(step, code, names) for step in dis.get_instructions(code))
        inner = [global_names(c) for c in code.co_consts if isinstance(c, CodeType)]
        fine = fine and None not in inner
        _plain[code] = (
            tuple(dict.fromkeys((*names, *(n for ns in inner for n in ns or ())))) if fine else None
        )
    return _plain[code]


def is_plain(step: dis.Instruction, code: CodeType, names: dict[str, None]) -> bool:
    """True for an instruction that reads only what `names` learns, and writes nothing outside."""
    if step.opname in REFUSED:
        return False
    if step.opname in ("STORE_DEREF", "DELETE_DEREF"):
        return step.argval not in code.co_freevars
    if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return step.argval in ATTRIBUTES
    if step.opname == "LOAD_GLOBAL":
        names[step.argval] = None
    return True


class Surroundings:
    """The values that a function reads from around it, and what they were.

    Raises LookupError from its constructor if there is something that cannot be seen.
    """

    __slots__ = ("functions", "values")

    def __init__(self, function: Any) -> None:
        self.functions: dict[int, tuple[FunctionType, CodeType, Any, Any]] = {}
        self.values: list[
            tuple[Callable[[], Any], Any, Any]
        ] = []  # how to read it, what it was, its contents
        self.follow(function)

    def follow(self, f: Any) -> None:
        """Notes what a Python function reads, and what functions that it reads do."""
        if type(f) is not FunctionType:
            raise LookupError(f)
        if id(f) in self.functions:
            return
        ours = is_package(f.__code__)
        if ours and f.__closure__ is None:
            return
        names = () if ours else global_names(f.__code__)
        self.functions[id(f)] = (f, f.__code__, f.__defaults__, f.__kwdefaults__)
        if names is None or len(self.functions) > FUNCTIONS:
            raise LookupError(f)
        for default in (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()):
            self.note(lambda default=default: default)  # type: ignore[misc]
        for cell in f.__closure__ or ():
            self.note(lambda cell=cell: contents_of(cell))  # type: ignore[misc]
        for name in names:
            at = f.__globals__
            self.note(lambda at=at, name=name: at.get(name, getattr(builtins, name, MISSING)))  # type: ignore[misc]

    def note(self, read: Callable[[], Any]) -> None:
        value = read()
        if getattr(type(value), "decides_nothing", False):
            return
        if type(value) is FunctionType and not is_known(value):
            self.follow(value)
            contents = None
        else:
            contents = fingerprint(value)
        self.values.append((read, value, contents))
        if len(self.values) > VALUES:
            raise LookupError(value)

    def unchanged(self) -> bool:
        """True if all of it is what it was."""
        for f, code, defaults, keywords in self.functions.values():
            if (
                f.__code__ is not code
                or f.__defaults__ is not defaults
                or f.__kwdefaults__ is not keywords
            ):
                return False
        for read, before, contents in self.values:
            now = read()
            if now is before and contents is None:
                continue
            if contents is None or not same(now, contents):
                return False
        return True


def contents_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def same(value: Any, contents: Any) -> bool:
    try:
        return bool(fingerprint(value) == contents)
    except LookupError:
        return False


def fingerprint(value: Any) -> Any:
    """A key that equal values share, and no others; None where only identity decides.

    LookupError: unknown.
    """
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind in "biufc" and value.nbytes <= LARGEST:
        return kind, value.shape, value.dtype, value.tobytes()
    if kind in CONSTANTS or isinstance(value, np.number | np.bool_):
        return kind, repr(value)
    if kind in (tuple, list) and len(value) <= VALUES:
        return kind, *map(fingerprint_inside, value)
    if kind is dict and len(value) <= VALUES:
        return kind, *((fingerprint_inside(k), fingerprint_inside(v)) for k, v in value.items())
    if is_known(value):
        return None
    raise LookupError(value)


def fingerprint_inside(value: Any) -> Any:
    found = fingerprint(value)
    # what is known by identity lives as long as its module
    return (id(value),) if found is None else found


def is_known(value: Any) -> bool:
    """True for modules and functions that are the same whenever they are called."""
    if isinstance(value, ModuleType):
        return value.__name__ in MODULES
    if isinstance(value, type):
        return value in BUILTINS or issubclass(value, np.generic)
    if isinstance(value, np.ufunc) or any(value is b for b in BUILTINS):
        return True
    name = getattr(value, "__name__", None)
    return name in ATTRIBUTES and any(getattr(m, name, None) is value for m in LIBRARIES)


def is_built_in(tree: Any) -> bool:
    """True for tuples, lists and dicts of arrays and numbers, whose methods are known."""
    if type(tree) in (tuple, list):
        return all(map(is_built_in, tree))
    if type(tree) is dict:
        return all(map(is_built_in, tree.values()))
    return type(tree) is np.ndarray or type(tree) in PYTHON or isinstance(tree, np.generic)


# ---------------------------------------------------------------------------------------- straight
# A graph as straight-line Python over NumPy: for one that is evaluated op by
# op again and again.


REUSED: Final = 4096  # elements from which on the memory of an operand that dies holds the result


def straight(graph: Graph) -> Callable[..., Sequence[Any]]:
    """A function of the inputs' values to the results', each value released after its last use.

    It computes what the references do under `ir.Evaluate`, without looking at each operand again.
    """
    return Writer(graph).function()


class Writer:
    """The text of one function and what its names stand for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Atom, str] = {v: f"x{i}" for i, v in enumerate(graph.inputs)}
        self.known: dict[str, Any] = {"errstate": np.errstate}
        self.last: dict[Atom, int] = {}
        for i, eqn in enumerate(graph.eqns):
            self.last.update((a, i) for a in eqn.inputs if isinstance(a, Var))
        self.kept = {a for a in graph.outputs if isinstance(a, Var)} | set(graph.inputs)
        self.fresh: set[Atom] = set()  # arrays that a ufunc made
        # there may be views of them
        self.shared = {a for e in graph.eqns if not copies(e) for a in e.inputs}

    def function(self) -> Callable[..., Sequence[Any]]:
        lines = [line for i, eqn in enumerate(self.graph.eqns) for line in self.lines(i, eqn)]
        results = ", ".join(map(self.name, self.graph.outputs))
        inputs = ", ".join(self.names[v] for v in self.graph.inputs)
        body = "".join(f"        {line}\n" for line in (*lines, f"return ({results},)"))
        text = f"def run({inputs}):\n    with errstate(all='ignore'):\n{body}"
        exec(compile(text, "<ge2 straight>", "exec"), self.known)
        return self.known["run"]  # type: ignore[no-any-return]

    def name(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.names[atom]
        return self.constant(atom.value)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.known)}"
        self.known[name] = value
        return name

    def lines(self, i: int, eqn: Eqn) -> list[str]:
        args = [self.name(a) for a in eqn.inputs]
        dead = [
            v for v in dict.fromkeys(eqn.inputs) if self.last.get(v) == i and v not in self.kept
        ]
        into = self.reusable(eqn, dead)
        outs = [f"v{i}_{k}" for k in range(len(eqn.outs))]
        self.names.update(zip(eqn.outs, outs, strict=True))
        call = f"{self.callee(eqn)}({', '.join([*args, *([self.names[into]] if into else [])])})"
        found = [f"{', '.join(outs)}{',' if eqn.op.several else ''} = {call}"]
        if all(a.type.weak for a in eqn.inputs) and eqn.inputs:
            number = self.constant(lambda y: np.asarray(y).item())
            found += [
                f"{y} = {number}({y})" for y, v in zip(outs, eqn.outs, strict=True) if v.type.weak
            ]
        unread = [self.names[v] for v in eqn.outs if v not in self.last and v not in self.kept]
        gone = [*(self.names[v] for v in dead), *unread]
        return [*found, f"del {', '.join(gone)}"] if gone else found

    def callee(self, eqn: Eqn) -> str:
        op = eqn.op
        half = any(a.type.dtype in EXTENDED for a in (*eqn.inputs, *eqn.outs))
        plain = isinstance(op, Elementwise) and not half
        return self.constant(op.ufunc if plain else op.reference)  # type: ignore[attr-defined]

    def reusable(self, eqn: Eqn, dead: Sequence[Atom]) -> Atom | None:
        """An operand whose memory may hold the result: an array of that type,
        which nothing else reads.
        """
        out = eqn.outs[0]
        if eqn.op is WHERE or not copies(eqn) or out.type.size < REUSED:
            return None
        if out.type.dtype in EXTENDED or any(a.type.dtype in EXTENDED for a in eqn.inputs):
            return None
        self.fresh.add(out)
        usable = self.fresh - self.shared
        return next((v for v in dead if v in usable and v.type == out.type), None)


def copies(eqn: Eqn) -> bool:
    """True if the result shares no memory with the operands."""
    op = eqn.op
    return op is WHERE or (isinstance(op, Elementwise) and isinstance(op.ufunc, np.ufunc))
