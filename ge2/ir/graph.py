"""Operations, and the graph of a traced function: a straight line of equations in SSA form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, ClassVar, Protocol, final

import numpy as np

from ge2.base.arrays import PYTHON, known, on_gpu
from ge2.base.errors import BY_VALUES, NoRuleError, TypeRuleError, VerifyError, locate
from ge2.base.pytree import register_leaf
from ge2.base.record import holding, outlines, record, single
from ge2.base.source import Source
from ge2.ir.types import ArrayType, Number, Value, type_of

# -------- An operation: one frozen value that holds its parameters and all of its rules.


Axis = int | None  # the axis a value is batched along; None for one shared value
Values = Sequence[Value]
Axes = Sequence[Axis]
Batched = tuple[Values, Axes]
Cotangents = Sequence[Value | None]  # None is zero throughout
Pushed = tuple[Values, Cotangents]  # results and their tangents
Flags = tuple[bool, ...]
ADD_RULE = "a rule in the operation's class (CONTRIBUTING.md, 'add an op')"


class Lowering:
    """The way of an operation to a kernel: data that `codegen` reads, never code it calls."""

    __slots__ = ()


@final
@record
class CostClass:
    """The cost of one element of an operation, on any processor.

    `instructions` counts simple ones, such as an addition. A `transcendental` function is counted
    apart from flops, as XLA does. `compile_seconds` is what gcc takes at -O3 for one more of them
    in a kernel, measured on one core of a server.
    """

    name: str
    instructions: int
    transcendental: bool = False
    compile_seconds: float = 0.0007


# fmt: off
FREE      = CostClass("free", 0)  # an index expression of whatever reads it
SIMPLE    = CostClass("simple", 1)
DIVISION  = CostClass("division", 4)  # a rounding and a small power too
BRANCHING = CostClass("branching", 16)  # cases or a loop
ROOT      = CostClass("root",       4, transcendental=True, compile_seconds=0.012)
FUNCTION  = CostClass("function",  16, transcendental=True, compile_seconds=0.012)
LOGARITHM = CostClass("logarithm", 16, transcendental=True, compile_seconds=0.04)  # of two tables
POWER     = CostClass("power",     16, transcendental=True, compile_seconds=0.05)
# of several ranges
PERIODIC  = CostClass("periodic",  16, transcendental=True, compile_seconds=0.06)
# fmt: on


class Op:  # not an ABC, whose `isinstance` costs more than most passes do
    """An operation with its parameters, for example `ReduceSum(axes=(1,))`.

    Subclasses are abstract (a family of operations) or final (one operation); a final
    class is a frozen dataclass, so two equal operations are interchangeable and an
    operation can be part of a cache key.

    What the compiler asks of an operation are the attributes below; they stand in its class, or in
    its line of a table, and nowhere else is there a list of names.
    """

    __slots__ = ()
    name: str
    lowering: Lowering | None = None
    cost: CostClass = SIMPLE  # of an element of its result
    several: ClassVar[bool] = False  # calling it gives a tuple of results rather than one
    linear: bool = False  # in all of its inexact inputs together
    is_view: ClassVar[bool] = False  # result i has elements of input i, under other indices
    retypes: ClassVar[bool] = False  # the same numbers, or the same bits, in another dtype
    may_alias: ClassVar[bool] = True  # what its reference returns may be memory of its inputs
    exact: bool = False  # of numbers that a dtype has it makes numbers that the dtype has
    jumps: bool = False  # an operand's rounding error may change the result by a whole step
    edition: int = 0  # of a user's own operation, which may be defined again under its name

    def graphs(self) -> tuple[Graph, ...]:
        """The graphs it holds."""
        return ()

    @property
    def effect(self) -> str | None:
        """Its kind of effect.

        An equation with one is never dropped, merged, or moved before another such.
        """
        return None

    @abstractmethod
    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        """The types of the results, or a TypeRuleError that says what was wrong."""

    @abstractmethod
    def reference(self, *arrays: Any) -> Any:
        """The meaning, in numpy; a tuple if there are `several` results.

        Kernels are judged against it.
        """

    def vjp(self, cts: Cotangents, ys: Values, xs: Values, wanted: Flags) -> Cotangents:
        """The cotangent of each input, given those of the results; None for
        zero or where none is wanted.
        """
        raise NoRuleError(
            f"{self.name} has no derivative",
            fix=f"ge2.stop_gradient(x), ge2.custom_vjp, or {ADD_RULE}",
        )

    def jvp(self, ts: Cotangents, ys: Values, xs: Values) -> Cotangents:
        """The tangent of each result, given those of the inputs.

        Left out, it is the transpose of `vjp`.
        """
        raise NoRuleError(
            f"{self.name} has no forward derivative", fix=f"ge2.custom_jvp, or {ADD_RULE}"
        )

    def batch(self, xs: Values, axes: Axes, size: int) -> Batched:
        """The operation over one more axis of that size: the results,
        and where each has the new axis.
        """
        raise NoRuleError(
            f"{self.name} cannot be batched", fix=f"a Python loop over the axis, or {ADD_RULE}"
        )

    def __call__(self, *args: Any) -> Any:
        ys = _current.get().apply(self, args)
        return tuple(ys) if self.several else ys[0]

    def params(self) -> dict[str, Any]:
        """Its parameters by name, as the text form prints them."""
        shown = [f.name for f in outlines(type(self)) if f.shown and f.name != "name"]
        return {name: getattr(self, name) for name in shown}

    def __str__(self) -> str:
        return self.name


class Derive(Protocol):
    """Derivatives and batches of graphs, passed to the rules of operations that hold graphs.

    With `apart`, forward rules record values in equations that read no
    tangents, so that these can wait.
    """

    @property
    def apart(self) -> bool: ...

    @property
    def fuses(self) -> bool: ...

    def vjp(
        self, graph: Graph, wanted: Flags, held: Flags | None = None
    ) -> tuple[Graph, Graph, int]:
        """(inputs) -> (outputs, residuals); (residuals, cotangents) ->
        those of the wanted; how many.

        `held` says of the inputs, then of the outputs, which are kept anyway; by default all.
        """

    def again(self, graph: Graph, wanted: Flags, rule: tuple[Any, ...]) -> tuple[Graph, Graph, int]:
        """As `vjp`, but saved is what a policy's rule allows, and all else computed again."""

    def jvp(self, graph: Graph, active: Flags) -> Graph:
        """(inputs, tangents of the active ones) -> (outputs, tangents of the inexact outputs)."""

    def linear(self, graph: Graph, active: Flags) -> tuple[Graph, Graph, int]:
        """(inputs) -> (outputs, residuals); (residuals, tangents) ->
        tangents; how many residuals.
        """

    def batch(
        self, graph: Graph, batched: Flags, size: int, out: Flags | None = None
    ) -> tuple[Graph, Flags]:
        """The graph over a new first axis of the batched inputs; which outputs
        have it (`out`: must have).
        """

    def trace(self, f: Callable[..., Sequence[Any]], types: Sequence[ArrayType]) -> Graph:
        """The graph of a function of arrays of these types."""

    def run(self, graph: Graph, args: Sequence[Any]) -> list[Any]:
        """The results of a graph, as part of what is traced."""

    def zeros(self, t: ArrayType) -> Any:
        """Zeros of a type."""


class GraphOp(Op):
    """An operation that holds graphs; its rules are given `derive`.

    Before reverse mode reads an equation's results, the operation may become one that also yields
    what its cotangents need (`saving`); `vjp` is then asked of that one.
    """

    __slots__ = ()
    several: ClassVar[bool] = True

    @property
    def effect(self) -> str | None:
        """The effect of something in its graphs."""
        return next((graph.effect for graph in self.graphs() if graph.effect), None)

    @abstractmethod
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs it holds."""

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        """The same operation with further results, the residuals of its derivative."""
        return self

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        """The results and their tangents."""
        raise NoRuleError(
            f"{self.name} has no forward derivative", fix=f"ge2.custom_jvp, or {ADD_RULE}"
        )

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        """As `batch`."""
        return self.batch(xs, axes, size)


def has_effect(op: Op) -> bool:
    """True if an operation, or one in the graphs that it holds, has an effect."""
    return op.effect is not None


class Reversing(GraphOp):
    """The form of an operation in reverse mode, so that its `vjp` can be asked.

    All other rules are those of the operation that it was, the residuals counted among its results.
    """

    __slots__ = ()

    @abstractmethod
    def plain(self) -> GraphOp:
        """The operation that it was."""

    def saving(self, wanted: Flags, derive: Derive) -> Op:
        return self.plain().saving(wanted, derive)

    def jvp_with(self, derive: Derive, ts: Cotangents, xs: Values) -> Pushed:
        return self.plain().jvp_with(derive, ts, xs)

    def batch_with(self, derive: Derive, xs: Values, axes: Axes, size: int) -> Batched:
        return self.plain().batch_with(derive, xs, axes, size)


class Interpreter(Protocol):
    """Gives operations their meaning: compute them, record them, or match them."""

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]: ...


# what computes there; the runtime's
ON_GPU: list[Callable[[Op, Sequence[Any]], Sequence[Any]]] = []


class Evaluate:
    """The meaning when there is no other: compute with the references, weak
    numbers staying weak.
    """

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        elsewhere = False
        for x in args:
            if hasattr(x, "escaped"):  # a traced value has no elements to compute with
                raise x.escaped(op)
            elsewhere = elsewhere or on_gpu(x)
        if elsewhere:
            return ON_GPU[0](op, args)
        with np.errstate(all="ignore"):
            ys = op.reference(*args)
        ys = ys if op.several else (ys,)
        if all(type(x) in PYTHON for x in args):
            types = op.infer(*map(type_of, args))
            return [np.asarray(y).item() if t.weak else y for y, t in zip(ys, types, strict=True)]
        return ys


_current: ContextVar[Interpreter] = ContextVar("interpreter", default=Evaluate())  # noqa: B039 it has no state
current = _current.get


def interpreting(interpreter: Interpreter) -> AbstractContextManager[Interpreter]:
    """Runs the body with `interpreter` giving operations their meaning."""
    return holding(_current, interpreter)


# -------- A graph: equations from inputs to outputs.


@single
class Var:
    """A value computed once. Compared by identity; named only when printed."""

    type: ArrayType


@single
class Literal:
    """A scalar constant, written into the equation that uses it; a Python number is a weak one.

    Two literals are equal if they have the same bits: 0.0 and -0.0
    differ, but a NaN equals any NaN.
    """

    value: np.generic | Number
    type: ArrayType
    key: tuple[object, ...] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        value, t = self.value, self.type
        plain = value == value and isinstance(value, np.generic)  # NaNs differ in bits for nothing
        bits: object = value.tobytes() if plain else repr(value)  # type: ignore[union-attr]
        # not the type itself, whose hash and equality are worked out in Python
        key = bits, t.shape, t.dtype, t.weak
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "_hash", hash(key))

    @staticmethod
    def of(value: np.generic | Number) -> Literal:
        weak = PYTHON.get(type(value))
        dtype: Any = value.dtype if isinstance(value, np.generic) else weak
        return Literal(value, ArrayType((), dtype, weak is not None))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Literal) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash


Atom = Var | Literal


@single
class Eqn:
    """`outs = op inputs`, and the user's line it came from.

    `choice`: that of its kernel, if a pass has made it; no part of the meaning.
    """

    op: Op
    inputs: tuple[Atom, ...]
    outs: tuple[Var, ...]
    source: Source | None = None
    choice: object = None


@register_leaf  # a function that holds one is no container of values
@single
class Graph:
    """Equations from inputs to outputs. The first `consts` inputs stand for captured arrays.

    Two graphs are equal if they are the same but for the names of their values
    and the lines they came from.
    """

    inputs: tuple[Var, ...]
    eqns: tuple[Eqn, ...]
    outputs: tuple[Atom, ...]
    consts: int = 0
    # worked out once, when asked for, and then its hash; a graph that `replace` makes of this one
    # has its own
    _key: list[Any] = field(default_factory=list, init=False, repr=False)
    _effect: list[str | None] = field(default_factory=list, init=False, repr=False)  # likewise
    _verified: list[bool] = field(default_factory=list, init=False, repr=False)  # true, once it was

    def __call__(self, *args: Any) -> list[Any]:
        """Interprets the graph with whatever meaning is current, which
        may have a `walk` of its own.
        """
        walk = getattr(current(), "walk", None)
        if walk is not None:
            return walk(self, args)  # type: ignore[no-any-return]
        env: dict[Var, Any] = dict(zip(self.inputs, args, strict=True))
        for eqn in self.eqns:
            try:
                ys = eqn.op(*read(env, eqn.inputs))
            except BY_VALUES as error:
                locate(error, eqn.source)
                raise
            env.update(zip(eqn.outs, ys if eqn.op.several else (ys,), strict=True))
        return read(env, self.outputs)

    @property
    def key(self) -> tuple[object, ...]:
        """Its canonical form: values are numbered in the order in which they are made."""
        if not self._key:
            self._key.append(canonical(self))
        return self._key[0]  # type: ignore[no-any-return]

    @property
    def effect(self) -> str | None:
        """The effect of an equation in it, the first that has one."""
        if not self._effect:
            self._effect.append(next((e.op.effect for e in self.eqns if e.op.effect), None))
        return self._effect[0]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.key == other.key)

    def __hash__(self) -> int:
        key, known = self.key, self._key
        if len(known) == 1:
            known.append(hash(key))
        return known[1]  # type: ignore[no-any-return]

    def __str__(self) -> str:
        from ge2.ir.text import write

        return write(self)

    __repr__ = __str__


def canonical(graph: Graph) -> tuple[object, ...]:
    number: dict[Var, int] = {}

    def new(values: Iterable[Var]) -> tuple[ArrayType, ...]:
        for v in values:
            number[v] = len(number)
        return types_of(values)

    def old(atoms: Iterable[Atom]) -> tuple[object, ...]:
        return tuple([number[a] if type(a) is Var else a for a in atoms])

    inputs = new(graph.inputs)
    eqns = tuple((e.op, old(e.inputs), new(e.outs)) for e in graph.eqns)
    return (graph.consts, inputs, eqns, old(graph.outputs))


def lines_of(eqn: Eqn) -> tuple[object, ...]:
    """The user's lines of an equation and of those in its graphs, which equality leaves out."""
    inner = (lines_of(each) for graph in eqn.op.graphs() for each in graph.eqns)
    return (eqn.source, *inner)


def read(env: Mapping[Var, Any], atoms: Sequence[Atom]) -> list[Any]:
    return [env[a] if type(a) is Var else a.value for a in atoms]  # type: ignore[union-attr]


def rename(env: Mapping[Var, Atom], atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """The atoms as `env` calls them; those it does not know keep their name."""
    return tuple([env.get(a, a) if type(a) is Var else a for a in atoms])


def renamed(env: Mapping[Any, Atom], eqn: Eqn) -> Eqn:
    """An equation that reads atoms as `env` calls them: the same one if it knows none of them."""
    for a in eqn.inputs:
        if type(a) is Var and a in env:
            return Eqn(eqn.op, rename(env, eqn.inputs), eqn.outs, eqn.source, eqn.choice)
    return eqn


def anew(env: dict[Any, Atom], eqn: Eqn) -> Eqn:
    """The equation once more, of atoms as `env` calls them: it has results of its own, as which `env`
    then knows those of the first.
    """
    outs = tuple([Var(v.type) for v in eqn.outs])
    made = Eqn(eqn.op, rename(env, eqn.inputs), outs, eqn.source)
    env.update(zip(eqn.outs, outs, strict=True))
    return made


def applied(eqns: list[Eqn], op: Op, *inputs: Atom, source: Source | None = None) -> Var:
    """The result of an operation, whose equation is added to others."""
    out = Var(*op.infer(*types_of(inputs)))
    eqns.append(Eqn(op, inputs, (out,), source))
    return out


def makers_of(graph: Graph) -> dict[Any, Eqn]:
    """The equation that makes each value of a graph but its inputs."""
    return {v: e for e in graph.eqns for v in e.outs}


def without_dead_code(graph: Graph) -> Graph:
    """Only what the outputs need, and what has an effect."""
    live: set[Atom] = {a for a in graph.outputs if type(a) is Var}
    kept: list[Eqn] = []
    add = live.add
    for eqn in reversed(graph.eqns):
        outs = eqn.outs
        needed = outs[0] in live if len(outs) == 1 else not live.isdisjoint(outs)
        if needed or eqn.op.effect:
            kept.append(eqn)
            for a in eqn.inputs:
                if type(a) is Var:  # a literal's hash is worked out in Python
                    add(a)
    if len(kept) == len(graph.eqns):
        return graph
    return Graph(graph.inputs, tuple(reversed(kept)), graph.outputs, graph.consts)


# ------------------------------------------------------------------------------------------ verify
# Checks that a graph is well formed; every pass is followed by it in the tests.


def verify(graph: Graph, before: Graph | None = None) -> Graph:
    """The graph itself, if values are defined once, before use, and typed by
    their rules; or VerifyError.

    `before`: a graph that was verified; what its equations compute is not looked at again.
    """
    if graph._verified:
        return graph
    seen = frozenset(map(id, before.eqns)) if before is not None else frozenset()
    if not 0 <= graph.consts <= len(graph.inputs):
        raise VerifyError(f"{graph.consts} of {len(graph.inputs)} inputs are said to be captured")
    defined: set[Var] = set()
    define(defined, graph.inputs, "the inputs")
    for n, eqn in enumerate(graph.eqns):
        try:
            verify_equation(defined, eqn, id(eqn) in seen)
        except VerifyError as error:
            from ge2.ir.text import shown

            raise VerifyError(f"equation {n}, {shown(eqn)}: {error}", where=eqn.source) from None
    for i, atom in enumerate(graph.outputs):
        check_defined(defined, atom, f"output {i}")
    if before is None or before._verified:
        graph._verified.append(True)
    return graph


def verify_equation(defined: set[Var], eqn: Eqn, seen: bool) -> None:
    """`seen`: it was verified as part of another graph."""
    for i, atom in enumerate(eqn.inputs):
        if type(atom) is not Var or atom not in defined:  # or it is well
            check_defined(defined, atom, f"input {i}")
    if not seen:
        verify_types(eqn)
    define(defined, eqn.outs, "its results")


def verify_types(eqn: Eqn) -> None:
    for inner in eqn.op.graphs():
        verify(inner)
    got = types_of(eqn.outs)
    try:
        want = eqn.op.infer(*types_of(eqn.inputs))
    except TypeRuleError as error:
        raise VerifyError(f"its type rule refuses it: {error}") from None
    if got != want:
        raise VerifyError(f"it yields {listed(want)}, but is typed {listed(got)}")


def check_defined(defined: set[Var], atom: Atom, what: str) -> None:
    if isinstance(atom, Literal):
        verify_literal(atom, what)
    elif not isinstance(atom, Var):
        raise VerifyError(f"{what} is a {type(atom).__name__}, neither a value nor a literal")
    elif atom not in defined:
        raise VerifyError(f"{what} reads a value that is not defined yet")


def verify_literal(literal: Literal, what: str) -> None:
    if type_of(literal.value) != literal.type:
        raise VerifyError(f"{what}, the literal {literal.value!r}, is typed {literal.type}")


def define(defined: set[Var], new: Sequence[Var], what: str) -> None:
    if len(set(new)) != len(new) or not defined.isdisjoint(new):
        raise VerifyError(f"{what} define a value twice")
    for v in new:
        if not known(v.type.dtype):
            raise VerifyError(f"{what} hold a value of dtype {v.type.dtype}")
        if v.type.weak and (v.type.shape or v.type.dtype not in PYTHON.values()):
            raise VerifyError(f"{what} hold a weak {v.type}, which no Python number has")
    defined.update(new)


def types_of(atoms: Iterable[Atom]) -> tuple[ArrayType, ...]:
    return tuple([a.type for a in atoms])


def listed(types: Iterable[object]) -> str:
    return ", ".join(map(str, types)) or "nothing"
