"""A rolled loop over rows of arrays is a scan over the arrays, and what it
makes of each iteration is stacked.

What reads all of these one after another, as a concatenation or another such
loop does, reads the stack.

repeat (x[0]) (x[1]) ... -> y0 y1 ...; concatenate y0 y1 ...  ->  scan x
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import final

import numpy as np

from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop, apart, stacked
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce
from ge2.ops.shape import BroadcastInDim, Concatenate, Constant, Reshape, Rev, Slice, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.loops import after_first, trim

# ---------------------------------------------------------------------------------------- row runs
# Arrays that are rows of others: which they are, and lists of them as one array.


RUNS = 3  # that a list of elements may have: those of a loop, and what comes before and after


@final
@record
class Row:
    """`base[at]`, under any shape."""

    base: Var
    at: int


def along_first(graph: Graph, fewest: int) -> Graph:
    """The graph where many parts of one index along another axis are rows of the array turned, and
    blocks along the first axis are rows of the array cut into blocks.
    """
    places = {e: place_of(e) for e in graph.eqns if isinstance(e.op, Slice)}
    counts = Counter(place for place in places.values() if place is not None)
    many = {place for place, count in counts.items() if count >= fewest}
    if not many:
        return graph
    turned: dict[tuple[Atom, int, int], Var] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        place = places.get(eqn)
        if place is None or place not in many:
            eqns.append(eqn)
            continue
        (base, axis, n), start = place, eqn.op.start  # type: ignore[attr-defined]
        if place not in turned:
            shape = base.type.shape
            order = (axis, *(i for i in range(len(shape)) if i != axis))
            cut = Transpose(order) if axis else Reshape((shape[0] // n, n, *shape[1:]))
            turned[place] = applied(eqns, cut, base, source=eqn.source)
        eqns += row(turned[place], start[axis] // n, eqn.outs[0], eqn.source)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def place_of(eqn: Eqn) -> tuple[Atom, int, int] | None:
    """The array of a slice, the axis along which it is a block, and of how many elements: one along
    another axis than the first, more of them along the first.
    """
    op, (x,) = eqn.op, eqn.inputs
    assert isinstance(op, Slice)
    axis = thin(op, x.type.shape)
    if axis > 0:
        return x, axis, 1
    if axis < 0 and x.type.shape:
        (n, *inner), (all_of_it, *whole) = eqn.outs[0].type.shape, x.type.shape
        even = 1 < n < all_of_it and op.start[0] % n == all_of_it % n == 0 and set(op.step) == {1}
        if even and inner == whole:
            return x, 0, n
    return None


def thin(op: Slice, shape: Dims) -> int:
    """The one axis of which a part takes a single index; -1 if it takes less of another, or all."""
    cut = [i for i, n in enumerate(shape) if (op.start[i], op.stop[i]) != (0, n)]
    single = len(cut) == 1 and op.stop[cut[0]] == op.start[cut[0]] + 1
    return cut[0] if single and set(op.step) == {1} else -1


def as_rows(atoms: Sequence[Atom], tables: list[Eqn], source: Source | None) -> Sequence[Atom]:
    """The values that every iteration reads; numbers as rows of an array, whose equations are
    added.
    """
    numbers = [a.value for a in atoms if isinstance(a, Literal)]
    if not numbers:
        return atoms
    op = Constant.of(np.array(numbers, atoms[0].type.dtype))
    table, outs = Var(op.infer()[0]), [Var(a.type) for a in atoms]
    tables.append(Eqn(op, (), (table,), source))
    for t, out in enumerate(outs):
        tables += row(table, t, out, source)
    return outs


def as_array(atom: Atom, tables: list[Eqn], source: Source | None) -> Atom:
    """A value that every iteration reads; a Python number as an array, whose equation is added."""
    if not atom.type.weak:
        return atom
    op = ConvertElementType(atom.type.dtype)
    tables.append(Eqn(op, (atom,), (Var(op.infer(atom.type)[0]),), source))
    return tables[-1].outs[0]


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
    """All of a graph; what a rolled loop makes of each iteration counts as rows of a stack."""
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
    made = list[Eqn]()
    make = partial(applied, made, source=source)

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


# ---------------------------------------------------------------------------------- rolled to scan


ALIKE = (Pointlike, BroadcastInDim, Transpose, Reshape, Reduce)


def stack(graph: Graph, context: Context = NOTHING) -> Graph:
    return stacked_loops(graph, context.tuning.stacking.returned, context)


def stack_all(graph: Graph, context: Context = NOTHING) -> Graph:
    """The same, however many results the caller gets: on a GPU a copy of each costs less than its
    iteration does as launches, and a scan of them may be one kernel.
    """
    return stacked_loops(graph, len(graph.outputs), context)


def stacked_loops(graph: Graph, most: int, context: Context) -> Graph:
    """The loops as scans, those of which at most so many results are the caller's."""
    if not any(isinstance(e.op, RepeatLoop) for e in graph.eqns):
        return graph
    stacking = Stacking(graph, most, context.tuning.stacking.deep)
    for eqn in graph.eqns:
        stacking.take(eqn)
    if not stacking.scans:
        return graph
    outputs = rename(stacking.names, graph.outputs)
    found = Graph(graph.inputs, tuple(stacking.eqns), outputs, graph.consts)
    return trim(without_dead_code(found), context)


@final
class Stacking:
    """The equations so far, and which values are rows."""

    def __init__(self, graph: Graph, most: int, deep: int) -> None:
        self.returned, self.most, self.deep = set(graph.outputs), most, deep
        self.eqns: list[Eqn] = []
        self.rows: Rows = {}
        self.makers: dict[Atom, Eqn] = {}
        self.arrays: dict[tuple[tuple[Run, ...], Dims], Var] = {}
        self.names: dict[Var, Atom] = {}
        self.scans = 0

    def take(self, eqn: Eqn) -> None:
        eqn = renamed(self.names, eqn)
        if isinstance(eqn.op, RepeatLoop) and self.scan(eqn, eqn.op):
            self.scans += 1
        elif not (isinstance(eqn.op, Concatenate) and self.joined(eqn, eqn.op)):
            self.add(eqn)

    def add(self, eqn: Eqn) -> None:
        self.eqns.append(eqn)
        self.makers.update(dict.fromkeys(eqn.outs, eqn))
        note(self.rows, eqn)

    def array(self, atoms: Sequence[Atom], eqn: Eqn, shape: Dims | None = None) -> Var:
        """One array of all of them, which are few runs of rows; each has that shape, or its own."""
        parts, shape = runs(atoms, self.rows), atoms[0].type.shape if shape is None else shape
        key = tuple(parts), shape
        if key not in self.arrays:
            made, self.arrays[key] = one_array(parts, shape, eqn.source)
            self.eqns += made
        return self.arrays[key]

    def few(self, atoms: Sequence[Atom], deep: int) -> bool:
        """True if arrays of one type are rows of few others, after what makes each is done for all."""
        if len(runs(atoms, self.rows)) <= RUNS:
            return True
        if not deep or any(isinstance(a, Literal) or a.type != atoms[0].type for a in atoms):
            return False
        makers = [self.makers.get(a) for a in atoms]
        for _, group in groupby(zip(atoms, makers, strict=True), lambda pair: kind(pair[1])):
            alike = [(a, e) for a, e in group if e is not None and isinstance(e.op, ALIKE)]
            if len(alike) > RUNS:
                self.at_once(alike, deep - 1)
        return len(runs(atoms, self.rows)) <= RUNS

    def all_few(self, lists: Sequence[Sequence[Atom]]) -> bool:
        return all(self.few(each, self.deep) for each in lists)

    def at_once(self, pairs: Sequence[tuple[Atom, Eqn]], deep: int) -> None:
        """Makes values, each by the same operation, as rows of one array, if
        what they are made of is.
        """
        lists = list(zip(*(e.inputs for _, e in pairs), strict=True))
        varied = [each for each in lists if any(a != each[0] for a in each)]
        if not varied or pairs[0][0].type.weak or not all(self.few(each, deep) for each in varied):
            return
        if isinstance(pairs[0][1].op, Reshape):
            self.rows.update(
                (a, self.rows[e.inputs[0]]) for a, e in pairs if e.inputs[0] in self.rows
            )
            return
        if self.backwards(varied):
            pairs, lists = pairs[::-1], [each[::-1] for each in lists]
        eqn = pairs[0][1]
        given = [
            self.array(each, eqn) if any(a != each[0] for a in each) else each[0] for each in lists
        ]
        stack = self.lifted(eqn, given, len(pairs))
        self.rows.update((a, Row(stack, t)) for t, (a, _) in enumerate(pairs))

    def lifted(self, eqn: Eqn, given: Sequence[Atom], n: int) -> Var:
        """The operation of an equation on `n` rows each."""
        op, (old,) = eqn.op, eqn.outs
        if isinstance(op, BroadcastInDim):
            op = BroadcastInDim((n, *op.shape), (0, *after_first(op.dims)))
        elif isinstance(op, Transpose):
            op = Transpose((0, *after_first(op.order)))
        elif isinstance(op, Reduce):
            op = replace(op, axes=after_first(op.axes))  # type: ignore[type-var]
        else:
            shape = (n, *(old.type.shape))
            given = [
                self.stretched(x, a, shape, eqn) for x, a in zip(given, eqn.inputs, strict=True)
            ]
        return self.make(op, given, eqn)

    def stretched(self, x: Atom, row: Atom, shape: Dims, eqn: Eqn) -> Atom:
        """An operand for all rows; a number that is the same for all is one."""
        if x.type.shape == (() if x is row else shape):
            return x
        dims = tuple(range(1, len(shape))) if x is row else tuple(range(x.type.ndim))
        return self.make(BroadcastInDim(shape, dims), [x], eqn)

    def make(self, op: Op, given: Sequence[Atom], eqn: Eqn) -> Var:
        out = Var(op.infer(*(a.type for a in given))[0])
        self.add(Eqn(op, tuple(given), (out,), eqn.source))
        return out

    def backwards(self, lists: Sequence[Sequence[Atom]]) -> bool:
        """True if most rows come last first."""
        parts = [part for each in lists for part in runs(each, self.rows) if part.step]
        return sum(part.count if part.step > 0 else -part.count for part in parts) < 0

    # -- loops

    def scan(self, eqn: Eqn, op: RepeatLoop) -> bool:
        """Adds the loop as a scan, if its elements are in few arrays."""
        n, results = op.length, eqn.outs[op.carry :]
        consts, carry, rest = apart(eqn.inputs, op.consts, op.carry, None)
        lists = [rest[i : i + n] for i in range(0, len(rest), n)]
        if sum(v in self.returned for v in results) > self.most or not self.all_few(lists):
            return False
        reverse = self.backwards(lists)
        elements = [self.array(each[::-1] if reverse else each, eqn) for each in lists]
        inner = [unshaped(op.body, a) for a in op.body.outputs[op.carry :]]
        stacks = {a: Var(stacked(a.type, n)) for a in inner}
        body = Graph(op.body.inputs, op.body.eqns, (*op.body.outputs[: op.carry], *stacks))
        loop = ScanLoop(without_dead_code(body), n, op.consts, op.carry, reverse)
        outs = (*eqn.outs[: op.carry], *stacks.values())
        self.eqns.append(Eqn(loop, (*consts, *carry, *elements), outs, eqn.source))
        for i, v in enumerate(results):
            t = i % n
            self.row(v, stacks[inner[i // n]], n - 1 - t if reverse else t, eqn)
        return True

    def row(self, v: Var, base: Var, at: int, eqn: Eqn) -> None:
        """Makes a value as a row of a stack."""
        self.eqns += row(base, at, v, eqn.source)
        self.rows[v] = Row(base, at)

    # -- what is put together of rows

    def joined(self, eqn: Eqn, op: Concatenate) -> bool:
        """Adds a concatenation of rows as one of what they are rows of, if that is fewer arrays."""
        pieces = list[list[Atom]]()
        for _, each in groupby(eqn.inputs, lambda a: a.type):
            alike, at = list(each), 0
            if len(alike) > RUNS:
                self.few(alike, self.deep)
            for part in runs(alike, self.rows):
                pieces.append(alike[at : at + part.count])
                at += part.count
        if len(pieces) > len(eqn.inputs) // 2:
            return False
        arrays = [
            self.side_by_side(each, op.axis, eqn) if len(each) > 1 else each[0] for each in pieces
        ]
        self.names[eqn.outs[0]] = arrays[0] if len(arrays) == 1 else self.make(op, arrays, eqn)
        return True

    def side_by_side(self, atoms: Sequence[Atom], axis: int, eqn: Eqn) -> Var:
        """Rows that follow each other in an array, along an axis of theirs."""
        shape = atoms[0].type.shape
        row = shape[:axis] + shape[axis + (shape[axis] == 1) :]
        found = self.array(atoms, eqn, row)
        if axis:
            order = (*range(1, axis + 1), 0, *range(axis + 1, len(row) + 1))
            found = self.make(Transpose(order), [found], eqn)
        wanted = (*shape[:axis], len(atoms) * shape[axis], *shape[axis + 1 :])
        return found if found.type.shape == wanted else self.make(Reshape(wanted), [found], eqn)


def kind(maker: Eqn | None) -> tuple[Op, tuple[ArrayType, ...]] | None:
    """The facts that equations have in common which may be done at once: the results of others may
    be alike, and what they are made of not.
    """
    return None if maker is None else (maker.op, tuple(a.type for a in maker.inputs))


def unshaped(body: Graph, a: Atom) -> Atom:
    """The value that a result is a reshape of, which is stacked as well, and read by more."""
    makers = makers_of(body)
    while (
        isinstance(a, Var)
        and (maker := makers.get(a)) is not None
        and isinstance(maker.op, Reshape)
    ):
        if maker.inputs[0] not in makers:
            break
        a = maker.inputs[0]
    return a
