"""The values of traced arrays, where they can be known; searches for NaNs and escaped tracers."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import CO_OPTIMIZED
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, final

import numpy as np

from ge2.base.arrays import FLOATS, INEXACT, INTEGERS, host, python_type
from ge2.base.config import config
from ge2.base.errors import (
    ArgumentError,
    ConcretizationTypeError,
    Ge2Error,
    InputError,
    NonFiniteError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)
from ge2.base.record import record
from ge2.base.source import PACKAGE, here, user_frame
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    interpreting,
    is_traced,
    read,
    type_of,
)
from ge2.ir.graph import Evaluate
from ge2.ops.graphs.control import Call

if TYPE_CHECKING:

    class Trace(Protocol):
        """A trace as the question for a value knows it."""

        title: str
        kind: str
        eqns: list[Eqn]
        known: Known
        active: set[Var]
        arguments: dict[Var, Any]
        names: dict[Any, str]
        reasons: dict[Var, str]
        looked: bool
        refused: Callable[[], Exception] | None
        swallowed: bool

        @property
        def captures(self) -> Sequence[Any]: ...
        @property
        def bound(self) -> Mapping[int, tuple[Any, Any]]: ...

    class Tracer(Protocol):
        """A traced value as the question for its elements knows it."""

        @property
        def owner(self) -> Trace: ...
        @property
        def cell(self) -> Any: ...
        @property
        def atom(self) -> Atom: ...
        @property
        def type(self) -> ArrayType: ...
        @property
        def usable(self) -> bool: ...
        def label(self) -> str: ...
        def escaped(self) -> Exception: ...


# -------- The value of a traced value, where it can be known: just what it needs is evaluated,
# once.
# Outside `jit` a trace knows the arrays it was called with, so `if x > 0` works under `grad`. What
# an argument of `jit` or a batched argument of `vmap` decides cannot be known; nor may a value that
# a derivative flows through be turned into a plain number, for its derivative would be lost.


AMBIGUOUS = (
    "The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()"
)
# fmt: off
DOING = {
    "bool":   "the truth of {0} was asked for",
    "int":    "{0} was used as a Python int",
    "float":  "{0} was used as a Python number",
    "array":  "NumPy asked for the elements of {0}",
    "format": "{0} was formatted as a number",
    "key":    "{0} was used as a key, or as an element of a set",
}
ERRORS = {
    "bool":  TracerBoolConversionError,
    "int":   TracerIntegerConversionError,
    "array": TracerArrayConversionError,
}
# fmt: on
SWALLOWING = ("array_equal", "array_equiv")  # functions of NumPy's that make results of errors
LOSSY = ("float", "array")  # uses that turn a value into plain numbers, which carry no derivative


class Known:
    """The facts that a trace has learnt of its values: who makes them, which are computed, which a
    derivative reaches.

    Each equation is looked at once, however often a value is asked for.
    """

    __slots__ = ("asked", "flowed", "indexed", "makers", "reached", "settled", "unknown", "values")

    def __init__(self) -> None:
        self.values: dict[Var, Any] = {}
        self.settled: set[Var] = set()  # those that are the same whatever the arguments
        self.makers: dict[Var, Eqn] = {}
        self.reached: set[Atom] = set()
        # those that were asked for in vain, and on the way: with an input that is to blame
        self.unknown: dict[Atom, Var] = {}
        self.indexed = self.flowed = self.asked = 0

    def maker(self, trace: Trace, var: Var) -> Eqn | None:
        """The equation that makes a value; None for an input."""
        for eqn in trace.eqns[self.indexed :]:
            self.makers.update(dict.fromkeys(eqn.outs, eqn))
        self.indexed = len(trace.eqns)
        return self.makers.get(var)


def value_of(x: Tracer, use: str) -> Any:
    """The elements of a traced value as an array, or the error that says why they are not known."""
    trace = x.owner
    if not x.usable:
        raise x.escaped()
    atom = x.atom
    if use in LOSSY and x.type.dtype in INEXACT and flows(trace, atom):
        raise ERRORS.get(use, ConcretizationTypeError)(
            f"{DOING[use].format(x.label())}, but a derivative flows through it and would be lost",
            where=here(),
            fix=fix_of(x, use, lost=True),
        )
    return elements(x, x, use)


def elements(value: Any, x: Tracer, use: str) -> Any:
    """The elements of `value`, on which `x` depends, in the trace it belongs to; an array is
    itself.
    """
    if not is_traced(value):
        return value
    trace, atom = value.owner, value.atom
    if isinstance(atom, Literal):
        return atom.value
    known = trace.known
    todo: list[Var] = [atom]
    begun: list[Var] = []  # of these, those that wait for what is above them
    while todo:
        var = known.unknown.get(todo[-1], todo[-1])
        if var in known.values:
            todo.pop()
        elif (eqn := known.maker(trace, var)) is None:
            try:
                known.values[var] = given(trace, var, x, use)
            except Ge2Error:
                known.unknown.update((v, var) for v in begun if v not in known.values)
                raise
        elif missing := [a for a in eqn.inputs if isinstance(a, Var) and a not in known.values]:
            begun.append(var)
            todo += missing
        else:
            compute(known, eqn)
    if atom not in known.settled:
        trace.looked = True
    return known.values[atom]


def knowable(value: Any) -> bool:
    """True if the elements of a value may be looked at; what is not traced is known."""
    if not is_traced(value):
        return True
    trace, todo, seen = value.owner, [value.atom], set()
    unknown = trace.known.unknown
    while todo:
        atom = todo.pop()
        if atom in unknown:
            unknown[value.atom] = unknown[atom]
            return False
        if isinstance(atom, Literal) or atom in trace.known.values or atom in seen:
            continue
        seen.add(atom)
        eqn = trace.known.maker(trace, atom)
        if eqn is not None:
            todo += eqn.inputs
        elif not knowable_input(trace, atom):
            unknown[value.atom] = atom
            return False
    return True


def knowable_input(trace: Trace, var: Var) -> bool:
    if var in trace.arguments:
        return knowable(trace.arguments[var])
    capture = next((c for c in trace.captures if c.var is var), None)
    return capture is not None and knowable(capture.value)


def compute(known: Known, eqn: Eqn) -> None:
    args = [a.value if isinstance(a, Literal) else known.values[a] for a in eqn.inputs]
    known.values.update(zip(eqn.outs, Evaluate().apply(eqn.op, args), strict=True))
    if all(isinstance(a, Literal) or a in known.settled for a in eqn.inputs):
        known.settled.update(eqn.outs)


def given(trace: Trace, var: Var, x: Tracer, use: str) -> Any:
    """The value of an argument, of a captured array or of a captured value of an outer trace."""
    if var in trace.arguments:
        return elements(trace.arguments[var], x, use)
    capture = next((c for c in trace.captures if c.var is var), None)
    if capture is None:
        refuse(trace, var, x, use)
    if not is_traced(capture.value):
        trace.known.settled.add(var)
    return elements(capture.value, x, use)


def refuse(trace: Trace, var: Var, x: Tracer, use: str) -> NoReturn:
    if use == "bool" and is_stored():
        use = "array"  # an array of booleans takes the truth of what it is given
    name = trace.names.get(var, "an argument")
    unknown = f"not known while {trace.title} is traced"
    why = f"that is {unknown}" if x.atom is var else f"it depends on {name}, which is {unknown}"
    what = f"{DOING[use].format(x.label())}, but {trace.reasons.get(var) or why}"
    place, fix = here(), fix_of(x, use, var)
    trace.refused = lambda: ERRORS.get(use, ConcretizationTypeError)(what, where=place, fix=fix)
    trace.swallowed = trace.swallowed or is_swallowed()
    raise trace.refused()


def fix_of(x: Tracer, use: str, root: Var | None = None, lost: bool = False) -> str:
    """The code to write instead, which the user's line decides; `root` is the argument asked for.
    `lost`: it is for the sake of a derivative alone that the number may not be had.
    """
    from ge2.base.source import expression  # here: only errors pay for them
    from ge2.trace.hints import STOPPED, asks_for_number, hint, of_known, static_argument

    trace = x.owner
    if root is not None and not root.type.shape and root.type.dtype in INTEGERS and in_numpy():
        name = trace.names.get(root, "") if trace.kind == "jit" else ""
        return of_known(name if name.isidentifier() else "")
    name = trace.names.get(x.atom, "") if trace.kind == "jit" else ""
    # by a closure, not by the call
    given = any(t.cell.atom is x.atom for _, t in trace.bound.values())
    found = expression()
    label = name if name.isidentifier() and not given else ""
    fix = hint(use, label, found)
    if label and use == "bool" and x.type.weak and x.type.dtype == np.bool_:  # Python's, so a flag
        fix = f"{static_argument(label)}, or {fix}"
    return fix + STOPPED if lost and asks_for_number(found) else fix


def is_swallowed() -> bool:
    """True if NumPy's caller takes any error for a `False`: `np.array_equal([x], [1])`."""
    user, frame = user_frame(), sys._getframe(1)
    while frame is not user and frame.f_back is not None:
        if frame.f_code.co_name in SWALLOWING:
            return True
        frame = frame.f_back
    return False


def is_stored() -> bool:
    """True if the user's line writes into an array, as `a[i] = x` and `a[i] |= x` do."""
    from ge2.base.source import expression  # here: only errors pay for it

    found = expression()
    node = found.node if found is not None else None
    target = node.target if isinstance(node, ast.AugAssign) else node
    return isinstance(target, ast.Subscript) and isinstance(target.ctx, ast.Store)


def in_numpy() -> bool:
    """True if a function of `ge2.numpy` asks, which the user's line has called."""
    user, frame = user_frame(), sys._getframe(1)
    while frame is not user and frame.f_back is not None:
        if frame.f_globals.get("__name__", "").startswith("ge2.numpy."):
            return True
        frame = frame.f_back
    return False


def flows(trace: Trace, atom: Atom) -> bool:
    """True if a derivative flows from an active input, of this trace or one around it, into `atom`."""
    known = trace.known
    reached = known.reached
    if not known.flowed:
        reached.update(trace.active)
        reached.update(v for v, given in trace.arguments.items() if flows_into(given))
        known.flowed = 1
    reached.update(c.var for c in trace.captures[known.asked :] if flows_into(c.value))
    known.asked = len(trace.captures)
    for eqn in trace.eqns[known.flowed - 1 :]:
        if eqn.op.name != "stop_gradient" and not reached.isdisjoint(eqn.inputs):
            reached.update(v for v in eqn.outs if v.type.dtype in INEXACT)
    known.flowed = len(trace.eqns) + 1
    return atom in reached


def flows_into(value: Any) -> bool:
    return is_traced(value) and value.type.dtype in INEXACT and flows(value.owner, value.cell.atom)


def hash_of(x: Tracer) -> int:
    """The hash of the number that a traced scalar is known to be; an array has none, as in NumPy."""
    if x.cell.is_array or x.type.shape:
        raise InputError(
            f"unhashable: {x.label()} is no key of a dict",
            where=here(),
            fix="id(x), a name or a number as the key",
        )
    return hash(number(x, "key"))


def number(x: Tracer, use: str) -> Any:
    """The value as a Python number; TypeError, as in NumPy, unless it has one element."""
    if x.type.size != 1:
        if use == "bool":
            what = AMBIGUOUS if x.type.size else "The truth value of an empty array is ambiguous."
            raise ArgumentError(f"{what}: a traced {x.type}", where=here(), fix=fix_of(x, "bools"))
        raise TypeError(
            f"only arrays of one element become Python numbers; this is a traced {x.type}"
        )
    return np.asarray(host(value_of(x, use))).item()


# -------- The search for the equation that made a NaN: a graph is run again op by op, and each NaN
# followed from where it first was.
# Only what reaches a result counts: a NaN that `where` throws away is none.


EVALUATE = Evaluate()
SHOWN = 8  # elements up to which an operand is shown whole
SILENCE = (
    "ge2.debug.print of what it reads, or np.where around what it reads (not around its result)"
)


def watching() -> bool:
    return config.debug_nans or config.debug_infs


def bad(x: Any) -> Any:
    """True where an array holds what is looked for; None if it cannot."""
    x = np.asarray(x)
    if x.dtype not in INEXACT:
        return None
    nans = x != x if config.debug_nans else np.zeros(x.shape, bool)
    return nans | np.isinf(x) if config.debug_infs else nans


def is_bad(x: Any) -> bool:
    found = bad(x)
    return found is not None and bool(found.any())


@final
@record
class Maker:
    """An equation that made a NaN of operands that have none."""

    eqn: Eqn
    operands: tuple[Any, ...]
    result: Any


@final
class Watch:
    """A meaning of operations: they are computed, and it is kept who made each bad value."""

    def __init__(self) -> None:
        # by the identity of a bad value; None: it was given
        self.makers: dict[int, Maker | None] = {}
        self.kept: list[Any] = []  # those values, lest another takes their identity
        self.inner: Maker | None = None  # of a bad result of the graph that was run last

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        if isinstance(op, Call):
            return op.jaxpr(*args)
        return EVALUATE.apply(op, args)

    def walk(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        env: dict[Var, Any] = dict(zip(graph.inputs, args, strict=True))
        for eqn in graph.eqns:
            if eqn.outs or not eqn.op.effect:  # what only prints has done so
                self.equation(eqn, env)
        results = read(env, graph.outputs)
        found = [self.makers.get(id(y)) for y in results if is_bad(y)]
        self.inner = next((maker for maker in found if maker is not None), None)
        return results

    def equation(self, eqn: Eqn, env: dict[Var, Any]) -> None:
        operands = read(env, eqn.inputs)
        self.inner = None
        ys = self.apply(eqn.op, operands)
        for var, y in zip(eqn.outs, ys, strict=True):
            value = env[var] = python_type(var.type.dtype)(y) if var.type.weak else y
            if is_bad(value) and id(value) not in self.makers:
                self.keep(value, self.maker(eqn, operands, value))

    def keep(self, value: Any, maker: Maker | None) -> None:
        self.kept.append(value)
        self.makers[id(value)] = maker

    def maker(self, eqn: Eqn, operands: Sequence[Any], value: Any) -> Maker | None:
        """The maker of a bad result: that of a bad operand, an equation inside, or this one."""
        given = [x for x in operands if is_bad(x)]
        if given:
            return next((m for x in given if (m := self.makers.get(id(x))) is not None), None)
        return self.inner or Maker(eqn, tuple(operands), value)


def check_finite(graph: Graph, args: Sequence[Any], results: Sequence[Any], title: str) -> None:
    """NonFiniteError if a result holds a NaN (or what else is looked for) that an
    equation of the graph made.

    One that came with the arguments is theirs to have.
    """
    args, results = [*map(host, args)], [*map(host, results)]
    if not any(map(is_bad, results)):
        return
    watch = Watch()
    with interpreting(watch), np.errstate(all="ignore"):
        again = graph(*args)
    if watch.inner is not None:
        raise error_of(watch.inner, title)
    if not any(map(is_bad, again)):
        at = next(i for i, y in enumerate(results) if is_bad(y))
        what = f"result {at} of {title} holds {kind(results[at])}, which NumPy's own functions do not give"
        raise NonFiniteError(
            what, fix="GE2_DUMP=folder, and report the repro.py that is written there"
        )


def error_of(maker: Maker, title: str) -> NonFiniteError:
    where = bad(maker.result)
    place = tuple(int(i) for i in np.argwhere(where)[0])
    count, size = int(where.sum()), where.size
    extent = f" ({count} of {size} elements, the first at {list(place)})" if where.ndim else ""
    what = f"{maker.eqn.op.name} made {kind(maker.result)} in {title}{extent}"
    lines = [f"  of   {shown(x, where.shape, place)}" for x in maker.operands]
    return NonFiniteError("\n".join([what, *lines]), where=maker.eqn.source, fix=SILENCE)


def kind(x: Any) -> str:
    return "a NaN" if config.debug_nans and bool((np.asarray(x) != x).any()) else "an infinity"


def shown(x: Any, shape: tuple[int, ...], place: tuple[int, ...]) -> str:
    """An operand in a line: its type, its elements or their range, and
    that at the place of the NaN.
    """
    t, x = type_of(x), np.asarray(x)
    if x.size == 0:
        return str(t)
    if x.ndim == 0:
        return f"{t} {x[()]!s}"
    if x.size <= SHOWN:
        return f"{t} {np.array2string(x, separator=', ').replace(chr(10), '')}"
    there = f"; {x[place]!s} there" if x.shape == shape else ""
    span = f" from {x.min()!s} to {x.max()!s}" if x.dtype in FLOATS or x.dtype.kind in "iub" else ""
    return f"{t}{span}{there}"


# -------- The search for those who still hold a value that should be gone.


DEPTH = 4  # containers inside containers


def holder(value: object) -> str:
    """The variable, attribute or container that refers to `value`, in
    words; empty if none is found.
    """
    return _holder(value, DEPTH, _own_containers())


def _holder(value: object, depth: int, passed: set[int]) -> str:
    """The best of what refers to it: a name a reader knows before a container that nobody names."""
    found: list[str] = []
    referrers = gc.get_referrers(value)
    passed.add(id(referrers))
    for referrer in referrers:
        if id(referrer) not in passed and not isinstance(referrer, FrameType):
            passed.add(id(referrer))
            found += filter(None, [_say(referrer, value, depth, passed)])
    return min(found, key=lambda text: (text.startswith("a "), len(text)), default="")


def _own_containers() -> set[int]:
    """The containers of the frames that run now while the error is made."""
    frame: FrameType | None = sys._getframe(1)
    own: set[int] = set()
    while frame is not None:
        # else its variables are a module's, whose dict counts
        if frame.f_code.co_flags & CO_OPTIMIZED:
            own.add(id(frame.f_locals))
            if frame.f_code.co_filename.startswith(PACKAGE):
                own.update(map(id, frame.f_locals.values()))
        frame = frame.f_back
    return own


def _say(referrer: Any, value: object, depth: int, passed: set[int]) -> str:
    if isinstance(referrer, dict):
        return _in_dict(referrer, value, depth, passed)
    if isinstance(referrer, list | tuple):
        at = next((i for i, v in enumerate(referrer) if v is value), None)
        return (
            ""
            if at is None
            else _inside(
                f"a {type(referrer).__name__}, at {at}", f"[{at}]", referrer, depth, passed
            )
        )
    if isinstance(referrer, set):
        return "a set"
    if isinstance(referrer, CellType):
        return _variable(referrer)
    names = getattr(type(referrer), "__slots__", ())
    for name in (names,) if isinstance(names, str) else names:
        if (
            getattr(referrer, name, None) is value
            and type(referrer).__module__.split(".")[0] != "ge2"
        ):
            return f"the attribute {name} of a {type(referrer).__name__}"
    return _attribute(referrer, value)


def _attribute(owner: Any, value: object) -> str:
    """An attribute of an object of the user's, if it holds the value."""
    if isinstance(owner, ModuleType) or type(owner).__module__.split(".")[0] == "ge2":
        return ""
    attributes = getattr(owner, "__dict__", None)
    name = (
        next((k for k, v in attributes.items() if v is value), "")
        if isinstance(attributes, dict)
        else ""
    )
    return f"the attribute {name} of a {type(owner).__name__}" if name else ""


def _in_dict(referrer: dict[Any, Any], value: object, depth: int, passed: set[int]) -> str:
    key = next((k for k, v in referrer.items() if v is value), None)
    if key is None:
        return ""
    if "__name__" in referrer and "__builtins__" in referrer:
        return f"the global {key} of {referrer['__name__']}"
    owner = next((o for o in gc.get_referrers(referrer) if _dict_of(o) is referrer), None)
    if owner is not None and not isinstance(owner, ModuleType):
        return f"the attribute {key} of a {type(owner).__name__}"
    return _inside(f"a dict, under {key!r}", f"[{key!r}]", referrer, depth, passed)


def _dict_of(owner: Any) -> Any:
    return None if isinstance(owner, FrameType) else getattr(owner, "__dict__", None)


def _inside(plain: str, part: str, container: Any, depth: int, passed: set[int]) -> str:
    """A container's own name with the place in it, if it has one."""
    outer = _holder(container, depth - 1, passed) if depth else ""
    return f"{part} of {outer}" if outer else plain


def _variable(cell: CellType) -> str:
    """A variable that a function inside another one refers to."""
    for closure in gc.get_referrers(cell):
        if not isinstance(closure, tuple):
            continue
        for f in gc.get_referrers(closure):
            if isinstance(f, FunctionType) and f.__closure__ is closure:
                name = f.__code__.co_freevars[next(i for i, c in enumerate(closure) if c is cell)]
                return f"the variable {name} of a function around {f.__name__}"
    return "a variable of an enclosing function"
