"""The graph of a traced function: a straight line of equations in SSA form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ge2.base.arrays import PYTHON, known
from ge2.base.errors import BY_VALUES, ParseError, TypeRuleError, VerifyError, locate
from ge2.base.pytree import register_leaf
from ge2.base.record import single
from ge2.base.source import Source
from ge2.ir.op import ArrayType, Number, Op, current, type_of


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

    def __post_init__(self) -> None:
        value = self.value
        if value != value:
            bits: object = repr(value)  # NaNs differ in bits that mean nothing
        else:
            bits = value.tobytes() if isinstance(value, np.generic) else repr(value)
        object.__setattr__(self, "key", (bits, self.type))

    @staticmethod
    def of(value: np.generic | Number) -> Literal:
        weak = PYTHON.get(type(value))
        if weak is not None:
            return Literal(value, ArrayType((), weak, weak=True))
        assert isinstance(value, np.generic)
        return Literal(value, ArrayType((), value.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


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
        types = []
        for v in values:
            number[v] = len(number)
            types.append(v.type)
        return tuple(types)

    def old(atoms: Iterable[Atom]) -> tuple[object, ...]:
        return tuple(number[a] if isinstance(a, Var) else a for a in atoms)

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
    return tuple(env.get(a, a) if type(a) is Var else a for a in atoms)


def renamed(env: Mapping[Any, Atom], eqn: Eqn) -> Eqn:
    """An equation that reads atoms as `env` calls them: the same one if it knows none of them."""
    for a in eqn.inputs:
        if type(a) is Var and a in env:
            return Eqn(eqn.op, rename(env, eqn.inputs), eqn.outs, eqn.source, eqn.choice)
    return eqn


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
            raise VerifyError(f"equation {n}, {shown(eqn)}: {error}", where=eqn.source) from None
    for i, atom in enumerate(graph.outputs):
        check_defined(defined, atom, f"output {i}")
    if before is None or before._verified:
        graph._verified.append(True)
    return graph


def verify_equation(defined: set[Var], eqn: Eqn, seen: bool) -> None:
    """`seen`: it was verified as part of another graph."""
    for i, atom in enumerate(eqn.inputs):
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


def shown(eqn: Eqn) -> str:
    from ge2.ir.text import op_text

    try:
        op = op_text(eqn.op)
    except ParseError:
        op = eqn.op.name
    return f"{op} of {listed(getattr(a, 'type', a) for a in eqn.inputs)}"
