"""Arrays that are rows of others: which they are, and lists of them as one array."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var
from ge2.ops.loops import RepeatLoop, stacked
from ge2.ops.shape import Concatenate, Reshape, Rev, Slice, Transpose

RUNS = 3  # that a list of elements may have: those of a loop, and what comes before and after


@final
@record
class Row:
    """`base[at]`, under any shape."""

    base: Var
    at: int


def along_first(graph: Graph, fewest: int) -> Graph:
    """The graph where many parts of one index along another axis are rows of the array turned."""
    places = [
        (e.inputs[0], thin(e.op, e.inputs[0].type.shape))
        for e in graph.eqns
        if isinstance(e.op, Slice)
    ]
    many = {place for place, count in Counter(places).items() if count >= fewest and place[1] > 0}
    if not many:
        return graph
    turned: dict[tuple[Atom, int], Var] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        place = isinstance(eqn.op, Slice) and (
            eqn.inputs[0],
            thin(eqn.op, eqn.inputs[0].type.shape),
        )
        if not place or place not in many:
            eqns.append(eqn)
            continue
        (base, axis), at = place, eqn.op.start[place[1]]  # type: ignore[attr-defined]
        if place not in turned:
            order = (axis, *(i for i in range(base.type.ndim) if i != axis))
            turned[place] = Var(base.type.with_shape(tuple(base.type.shape[i] for i in order)))
            eqns.append(Eqn(Transpose(order), (base,), (turned[place],), eqn.source))
        eqns += row(turned[place], at, eqn.outs[0], eqn.source)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def thin(op: Slice, shape: Dims) -> int:
    """The one axis of which a part takes a single index; -1 if it takes less of another, or all."""
    cut = [i for i, n in enumerate(shape) if (op.start[i], op.stop[i]) != (0, n)]
    single = len(cut) == 1 and op.stop[cut[0]] == op.start[cut[0]] + 1
    return cut[0] if single and set(op.step) == {1} else -1


def row(base: Var, at: int, out: Var, source: Source | None) -> list[Eqn]:
    """The equations that make `base[at]`, under the shape of `out`."""
    shape, zeros = base.type.shape, (0,) * (base.type.ndim - 1)
    part = Var(base.type.with_shape((1, *shape[1:])))
    cut = Slice((at, *zeros), (at + 1, *shape[1:]), (1,) * len(shape))
    return [
        Eqn(cut, (base,), (part,), source),
        Eqn(Reshape(out.type.shape), (part,), (out,), source),
    ]


@final
@record
class Run:
    """`count` rows of `base` in a row, by `step`; or one array that is no row
    of another, with no step.
    """

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
    elif (
        isinstance(op, Slice)
        and isinstance(base := eqn.inputs[0], Var)
        and one_row(op, base.type.shape)
    ):
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
