"""The graph of a traced function: a straight line of equations in SSA form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ge2.base.dtypes import PYTHON
from ge2.base.pytree import register_leaf
from ge2.base.record import single
from ge2.base.source import Source
from ge2.ir.op import Op, current
from ge2.ir.types import ArrayType
from ge2.ir.value import Number


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
    """`outs = op inputs`, and the user's line it came from."""

    op: Op
    inputs: tuple[Atom, ...]
    outs: tuple[Var, ...]
    source: Source | None = None


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
    _key: list[tuple[object, ...]] = field(
        default_factory=list, repr=False
    )  # worked out once, when asked for
    _effect: list[str | None] = field(default_factory=list, repr=False)  # likewise

    def __call__(self, *args: Any) -> list[Any]:
        """Interprets the graph with whatever meaning is current, which
        may have a `walk` of its own.
        """
        walk = getattr(current(), "walk", None)
        if walk is not None:
            return walk(self, args)  # type: ignore[no-any-return]
        env: dict[Var, Any] = dict(zip(self.inputs, args, strict=True))
        for eqn in self.eqns:
            ys = eqn.op(*read(env, eqn.inputs))
            env.update(zip(eqn.outs, ys if eqn.op.several else (ys,), strict=True))
        return read(env, self.outputs)

    @property
    def key(self) -> tuple[object, ...]:
        """Its canonical form: values are numbered in the order in which they are made."""
        if not self._key:
            self._key.append(canonical(self))
        return self._key[0]

    @property
    def effect(self) -> str | None:
        """The effect of an equation in it, the first that has one."""
        if not self._effect:
            self._effect.append(next((e.op.effect for e in self.eqns if e.op.effect), None))
        return self._effect[0]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Graph) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

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


def read(env: Mapping[Var, Any], atoms: Sequence[Atom]) -> list[Any]:
    return [env[a] if type(a) is Var else a.value for a in atoms]  # type: ignore[union-attr]


def rename(env: Mapping[Var, Atom], atoms: Iterable[Atom]) -> tuple[Atom, ...]:
    """The atoms as `env` calls them; those it does not know keep their name."""
    return tuple(env.get(a, a) if type(a) is Var else a for a in atoms)


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
