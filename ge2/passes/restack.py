"""A repeat whose rounds read one array slice by slice is a scan of it, and its results are slices of stacks.

    b0 b1 b2 = repeat[..] (a[0]) (a[1]) (a[2])  ->  b = scan[..] a;  b0 b1 b2 = b[0] b[1] b[2]

So a Python loop over `xs[t]`, once rolled up, is what `lax.scan` would have been: what its rounds only gather
is computed after it, and on a GPU all of its rounds may be one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ge2.base.record import record
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.loops import RepeatLoop, ScanLoop
from ge2.ops.shape import Concatenate, Reshape, Slice
from ge2.passes.trim import trim

Makers = dict[Var, Eqn]
Place = tuple[Var, int]  # a row along the first axis of an array
LEAST: Final = 2  # rows side by side that are one slice


@record
class Run:
    """Rows of `stack` from `first` on, one after another; `step` is 1, or -1 for the last one first."""

    stack: Var
    first: int
    step: int


def restack(graph: Graph) -> Graph:
    if not any(isinstance(e.op, RepeatLoop) for e in graph.eqns):
        return graph
    read = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    makers: Makers = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        found = [eqn]
        if isinstance(eqn.op, RepeatLoop):
            found = scanned(eqn, eqn.op, makers, read) or found
        elif isinstance(eqn.op, Concatenate) and eqn.op.axis == 0:
            found = joined(eqn, makers)
        makers.update((v, e) for e in found for v in e.outs)
        eqns += found
    return trim(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def scanned(eqn: Eqn, op: RepeatLoop, makers: Makers, read: set[Atom]) -> list[Eqn]:
    """The scan and the slices around it; nothing where elements of rounds are no rows of one array each."""
    at, n = op.consts + op.carry, op.length
    given = [eqn.inputs[i : i + n] for i in range(at, len(eqn.inputs), n)]
    runs = [run_of(rows, makers) for rows in given]
    steps = {run.step for run in runs if run is not None}
    if None in runs or len(steps) > 1 or n < LEAST:
        return []
    reverse = steps == {-1}
    before, stacks = list[Eqn](), list[Var]()
    for run, rows in zip(runs, given, strict=True):
        assert run is not None
        low = run.first - (n - 1 if reverse else 0)
        made = rows_of(run.stack, low, low + n, (n, *rows[0].type.shape), eqn)
        before += made
        stacks.append(made[-1].outs[0] if made else run.stack)
    body = unshaped(op)
    outs = [Var(a.type.with_shape((n, *a.type.shape))) for a in body.outputs[op.carry :]]
    scan = Eqn(
        ScanLoop(body, n, op.consts, op.carry, reverse), (*eqn.inputs[:at], *stacks),
        (*eqn.outs[: op.carry], *outs), eqn.source,
    )  # fmt: skip
    after = list[Eqn]()
    for i, y in enumerate(eqn.outs[op.carry :]):
        if y in read:
            t = n - 1 - i % n if reverse else i % n
            after += rows_of(outs[i // n], t, t + 1, y.type.shape, eqn, y)
    return [*before, scan, *after]


def unshaped(op: RepeatLoop) -> Graph:
    """A round without reshapes of what it only returns: they are made of the stacks."""
    makers = {v: e for e in op.body.eqns for v in e.outs}
    outputs = list(op.body.outputs)
    for i in range(op.carry, len(outputs)):
        a = outputs[i]
        while isinstance(a, Var) and a in makers and isinstance(makers[a].op, Reshape):
            (a,) = makers[a].inputs
        outputs[i] = a
    return Graph(op.body.inputs, op.body.eqns, tuple(outputs), op.body.consts)


# ------------------------------------------------------------------------------------------------- rows


def run_of(rows: Sequence[Atom], makers: Makers) -> Run | None:
    """What rows that follow each other are of."""
    places = [place_of(a, makers) for a in rows]
    first = places[0]
    if first is None or len(places) < LEAST or places[1] is None:
        return None
    stack, begin = first
    step = places[1][1] - begin
    wanted = [(stack, begin + step * i) for i in range(len(places))]
    return Run(stack, begin, step) if step in (1, -1) and places == wanted else None


def place_of(a: Atom, makers: Makers) -> Place | None:
    """The row of an array that a value is, whatever its shape."""
    maker = makers.get(a) if isinstance(a, Var) else None
    while maker is not None and isinstance(maker.op, Reshape):
        (x,) = maker.inputs
        maker = makers.get(x) if isinstance(x, Var) else None
    if maker is None or not isinstance(maker.op, Slice):
        return None
    (x,), op = maker.inputs, maker.op
    whole = op.start[1:] == (0,) * (len(op.start) - 1) and op.stop[1:] == x.type.shape[1:]
    one = op.start and op.stop[0] == op.start[0] + 1 and set(op.step[1:]) <= {1}
    return (x, op.start[0]) if whole and one and isinstance(x, Var) else None


def rows_of(
    stack: Var, low: int, high: int, shape: tuple[int, ...], eqn: Eqn, out: Var | None = None
) -> list[Eqn]:
    """Rows of an array in such a shape: a slice, and a reshape of it, where they are needed."""
    t, found, x = stack.type, list[Eqn](), stack
    part = (high - low, *t.shape[1:])
    if part != t.shape or out is not None:
        ends = (low, *(0,) * (t.ndim - 1)), (high, *t.shape[1:]), (1,) * t.ndim
        x = out if out is not None and part == shape else Var(t.with_shape(part))
        found.append(Eqn(Slice(*ends), (stack,), (x,), eqn.source))
    if part != shape:
        found.append(Eqn(Reshape(shape), (x,), (out or Var(t.with_shape(shape)),), eqn.source))
    return found


def joined(eqn: Eqn, makers: Makers) -> list[Eqn]:
    """A concatenation, of which rows of one array that follow each other are one piece."""
    pieces, found = list[Atom](), list[Eqn]()
    at, inputs = 0, eqn.inputs
    while at < len(inputs):
        end = at + 1
        first = place_of(inputs[at], makers) if inputs[at].type.shape[0] == 1 else None
        while first is not None and end < len(inputs) and inputs[end].type.shape[0] == 1:
            if place_of(inputs[end], makers) != (first[0], first[1] + end - at):
                break
            end += 1
        if first is None or end - at < LEAST:
            pieces.append(inputs[at])
            at += 1
            continue
        shape = (end - at, *inputs[at].type.shape[1:])
        alone = eqn.outs[0] if (at, end) == (0, len(inputs)) else None
        made = rows_of(first[0], first[1], first[1] + end - at, shape, eqn, alone)
        found += made
        pieces.append(made[-1].outs[0] if made else first[0])
        at = end
    if pieces and pieces[-1] is eqn.outs[0]:
        return found
    if len(pieces) == len(inputs):
        return [eqn]
    return [*found, Eqn(eqn.op, tuple(pieces), eqn.outs, eqn.source)]
