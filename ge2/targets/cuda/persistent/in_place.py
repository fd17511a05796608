"""Carries of which iterations write parts: they have one place, and are written there.

`x[i] = v` then costs what is written. What reads the array before a write must be done when that
begins: a value that would else be computed where it is read, later, is stored where it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, final

from ge2.base.record import mutable
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import UpdateSlice
from ge2.program.program import branch_pairs, carry_of
from ge2.targets.cuda.persistent.nodes import LOOPS, Statement
from ge2.targets.cuda.persistent.reads import Read
from ge2.targets.cuda.persistent.values import POINTS, WRITES, Array

PARTS = (*WRITES, UpdateSlice)


@final
@mutable
class Stays:
    """What of a graph is written in place.

    `arrays`: the numbers of the inputs. `versions`: the results that are one of these after a
    write. `stored`: values that are not computed where they are read, since that is too late.
    """

    arrays: set[int] = field(default_factory=set)
    versions: set[Var] = field(default_factory=set)
    stored: set[Var] = field(default_factory=set)


def stays(graph: Graph, pairs: Sequence[tuple[int, int]], alone: bool) -> Stays:
    """Returns what of a graph is written in place, of results that may be made in inputs, each pair
    by number; `alone`: one block does all, so that a thread that writes an element may read before.
    """
    found = Stays()
    users = Users(graph)
    for i, k in pairs:
        writes = chain(users, graph.outputs[i], graph.inputs[k], alone)
        late = None if writes is None else users.late(writes, graph.inputs[k], alone)
        if writes and late is not None:
            found.arrays.add(k)
            found.versions |= {y for _, y in writes}
            found.stored |= late
    return found


def of_loop(op: Any, alone: bool) -> Stays:
    """Returns what the body of a loop writes in place; the numbers are those of its inputs."""
    _, first, count = carry_of(op)
    seen = {a for e in op.cond.eqns for a in e.inputs} | set(op.cond.outputs) if tests(op) else ()
    more = op.cond_consts if tests(op) else 0
    pairs = [
        (i, first + i)
        for i in range(count)
        if not tests(op) or op.cond.inputs[more + i] not in seen
    ]
    return stays(op.body, pairs, alone)


def tests(op: Any) -> bool:
    return isinstance(op, WhileLoop)


def of_branches(op: Cond, alone: bool) -> dict[int, int]:
    """The results that all branches make by writes into the same operand of theirs, or pass on."""
    return {
        i: k
        for i, k in branch_pairs(op).items()
        if all(
            graph.outputs[i] is graph.inputs[k] or k in stays(graph, [(i, k)], alone).arrays
            for graph in op.branches
        )
    }


def chain(users: Users, y: Atom, x: Var, alone: bool) -> list[tuple[Eqn, Var]] | None:
    """The equations that turn an input into a result by writes alone, each with what it makes."""
    found = list[tuple[Eqn, Var]]()
    while y is not x:
        eqn = users.makers.get(y)
        source = None if eqn is None else written(eqn, y, alone)
        if eqn is None or source is None or eqn.inputs.count(source) != 1:
            return None
        assert isinstance(y, Var)
        found.insert(0, (eqn, y))
        y = source
    return found


def written(eqn: Eqn, y: Atom, alone: bool) -> Atom | None:
    """The operand that an equation writes parts of, where its result `y` is that afterwards."""
    op: Any = eqn.op
    if isinstance(op, PARTS):
        return eqn.inputs[0]
    i = eqn.outs.index(y)
    if isinstance(op, Cond):
        k = of_branches(op, alone).get(i)
        return None if k is None else eqn.inputs[1 + k]
    if not isinstance(op, LOOPS):
        return None
    given, first, count = carry_of(op)
    return eqn.inputs[given + i] if i < count and first + i in of_loop(op, alone).arrays else None


@final
class Users:
    """Who reads the values of a graph, in order."""

    def __init__(self, graph: Graph) -> None:
        self.makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
        self.order = {id(e): n for n, e in enumerate(graph.eqns)}
        self.found: dict[Atom, list[Eqn]] = {}
        self.outputs = set(graph.outputs)
        for eqn in graph.eqns:
            for a in dict.fromkeys(eqn.inputs):
                self.found.setdefault(a, []).append(eqn)

    def late(self, writes: Sequence[tuple[Eqn, Var]], x: Var, alone: bool) -> set[Var] | None:
        """The values to be stored before an array is written; None if it is read afterwards."""
        found, now = set[Var](), x
        for eqn, y in writes:
            if now in self.outputs:
                return None
            for other in self.found[now]:
                if other is eqn:
                    continue
                if self.order[id(other)] > self.order[id(eqn)]:
                    return None
                found |= self.late_of(other, eqn, alone)
            now = y
        return found

    def late_of(self, eqn: Eqn, write: Eqn, alone: bool) -> set[Var]:
        """The values to be stored of those that are computed where they are read, with what an
        equation reads: the last before a read by a write, or after it.
        """
        found = set[Var]()
        for v in eqn.outs if lazy(eqn) else ():
            users = self.found.get(v, ())
            if v in self.outputs or any(self.reads_late(user, write, alone) for user in users):
                found.add(v)
            else:
                found = found.union(*(self.late_of(user, write, alone) for user in users))
        return found

    def reads_late(self, eqn: Eqn, write: Eqn, alone: bool) -> bool:
        """True if an equation reads when a write may have begun. A single thread that writes one
        element reads all it needs before.
        """
        if eqn is not write:
            return self.order[id(eqn)] > self.order[id(write)]
        one = isinstance(eqn.op, PARTS) and eqn.inputs[1].type.size == 1
        return not (alone and one)


def lazy(eqn: Eqn) -> bool:
    """True of what may be computed where it is read."""
    return eqn.op.is_view or isinstance(eqn.op, POINTS)


@final
@mutable
class Order:
    """At which levels arrays are read and written, of those that statements write in place."""

    read: dict[str, int] = field(default_factory=dict)
    wrote: dict[str, int] = field(default_factory=dict)

    def floor(self, s: Statement, found: Sequence[Read]) -> int:
        """The first level at which a statement may be: after writes, and a write after reads."""
        names = {x.name for x, _ in found if isinstance(x, Array)}
        last = max((self.wrote.get(name, -1) for name in names), default=-1)
        if s.into is not None:
            last = max(last, self.wrote.get(s.into.name, -1), self.read.get(s.into.name, -1))
        return last + 1

    def note(self, s: Statement, found: Sequence[Read], at: int) -> None:
        for x, _ in found:
            if isinstance(x, Array):
                self.read[x.name] = max(self.read.get(x.name, -1), at)
        if s.into is not None:
            self.wrote[s.into.name] = max(self.wrote.get(s.into.name, -1), at)
