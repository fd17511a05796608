"""Arrays that are rows of others: which they are, and lists of them as one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var
from ge2.ops.loops import RepeatLoop, stacked
from ge2.ops.shape import Concatenate, Reshape, Rev, Slice


@final
@record
class Row:
    """`base[at]`, under any shape."""

    base: Var
    at: int


@final
@record
class Run:
    """`count` rows of `base` in a row, by `step`; or one array that is no row of another, with no step."""

    base: Atom
    first: int
    step: int
    count: int
    row: bool = True

    def then(self, row: Row | None) -> Run | None:
        """The run with one more row; None if that is another run's."""
        if row is None or not self.row or row.base is not self.base:
            return None
        step = row.at - (self.first + (self.count - 1) * self.step)
        if step == 0 or (self.count > 1 and step != self.step):
            return None
        return replace(self, step=step, count=self.count + 1)


Rows = dict[Atom, Row]


def note(rows: Rows, eqn: Eqn) -> None:
    """Adds what an equation makes, if that is a row."""
    op = eqn.op
    if isinstance(op, Reshape) and eqn.inputs[0] in rows:
        rows[eqn.outs[0]] = rows[eqn.inputs[0]]
    elif isinstance(op, Slice) and isinstance(base := eqn.inputs[0], Var) and one_row(op, base.type.shape):
        rows[eqn.outs[0]] = Row(base, op.start[0])


def one_row(op: Slice, shape: Dims) -> bool:
    rest = slice(1, None)
    if not shape or op.stop[0] != op.start[0] + 1:
        return False
    whole = op.start[rest] == (0,) * (len(shape) - 1) and op.stop[rest] == shape[rest]
    return whole and set(op.step[rest]) <= {1}


def rows_of(graph: Graph) -> Rows:
    """All of a graph; what a rolled loop makes of each round counts as rows of a stack."""
    found: Rows = {}
    for eqn in graph.eqns:
        note(found, eqn)
        if isinstance(eqn.op, RepeatLoop):
            n, results = eqn.op.length, eqn.outs[eqn.op.carry :]
            for i in range(0, len(results), n):
                stack = Var(stacked(results[i].type, n))
                found.update((v, Row(stack, t)) for t, v in enumerate(results[i : i + n]))
    return found


def runs(atoms: Sequence[Atom], rows: Mapping[Atom, Row]) -> list[Run]:
    """The arrays as runs of rows, in their order."""
    found: list[Run] = []
    for a in atoms:
        row = rows.get(a)
        longer = found[-1].then(row) if found else None
        if longer is not None:
            found[-1] = longer
        else:
            found.append(Run(a, 0, 0, 1, False) if row is None else Run(row.base, row.at, 0, 1))
    return found


def one_array(parts: Sequence[Run], shape: Dims, source: Source | None) -> tuple[list[Eqn], Var]:
    """The equations that make one array of all rows, each under that shape; and the array."""
    made: list[Eqn] = []

    def make(op: Op, *atoms: Atom) -> Var:
        out = Var(op.infer(*(a.type for a in atoms))[0])
        made.append(Eqn(op, atoms, (out,), source))
        return out

    def of(part: Run) -> Atom:
        x = part.base
        if part.row:
            n, rest = x.type.shape[0], x.type.shape[1:]
            ends = part.first, part.first + (part.count - 1) * part.step
            start, stop, step = min(ends), max(ends) + 1, max(abs(part.step), 1)
            if (start, stop, step) != (0, n, 1):
                zeros, ones = (0,) * len(rest), (1,) * len(rest)
                x = make(Slice((start, *zeros), (stop, *rest), (step, *ones)), x)
            if part.step < 0:
                x = make(Rev((0,)), x)
        wanted = (part.count, *shape)
        return x if x.type.shape == wanted else make(Reshape(wanted), x)

    arrays = [of(part) for part in parts]
    whole = arrays[0] if len(arrays) == 1 else make(Concatenate(0), *arrays)
    assert isinstance(whole, Var)
    return made, whole
