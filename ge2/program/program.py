"""The program that the runtime sees of a graph: steps in order, and where each array is and how
long it is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.record import mutable, record
from ge2.codegen.layout import Layout, plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var
from ge2.ir.op import GraphOp, Op
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop
from ge2.ops.graphs.region import Region
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import Indexed, Scatter, ScatterReduce, UpdateSlice
from ge2.ops.pointlike import Elementwise, Pointlike
from ge2.ops.random import Keyed
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.scan import Running
from ge2.ops.shape import Barrier, Concatenate, Constant, Identity, Iota, Unary
from ge2.ops.sort import Ordering, SearchSorted, TopK
from ge2.passes.take_to_mask import Index

# Where an array comes from: given by the caller, a Python number, the arena, made for the caller,
# made by the step that computes it, the same memory as another.
STORAGE = ("input", "host", "arena", "output", "library", "view")
# host: Python numbers. view: no work. copy: a view that has to be a copy. kernel: a region. hosted:
# a loop or branch whose iterations Python launches, in the memory of the whole.
END = 1 << 60  # in place of a step: to the end of the call
KINDS = ("host", "view", "copy", "kernel", "loop", "hosted", "matmul", "library")


@final
@mutable
class Buffer:
    """An array of the program; needed from step `first` to step `last`, views of it included."""

    name: str
    type: ArrayType
    storage: str
    first: int
    last: int
    base: Buffer | None = None  # of a view: what holds the memory
    # of an output: the input whose memory it takes, which was donated or is written
    donor: str = ""
    written: bool = False  # of such an output: the input is an argument that is written
    over: bool = False  # whether its base is a result that is written over it when it is read last


@final
@record
class Step:
    """One equation, and how it is run."""

    kind: str
    name: str
    eqn: Eqn
    number: int
    shared: frozenset[tuple[int, int]] = frozenset()  # results that are in the memory of inputs


@final
@dataclass(frozen=True, slots=True)
class Program:
    graph: Graph
    steps: tuple[Step, ...]
    buffers: dict[Var, Buffer]
    # of views, within what they view; for C alone
    layouts: dict[Var, Layout] = field(default_factory=dict)
    target: str = "cpu"
    # of loops and branches, by the step's number: the programs of their graphs
    inner: dict[int, tuple[Program, ...]] = field(default_factory=dict)
    label: str = ""  # what the files of a graph in a loop begin with, where there are any
    # of loops and branches, by the step's number: by what their iterations were chosen to be run
    choices: dict[int, object] = field(default_factory=dict)

    def count(self, *kinds: str) -> int:
        """The number of steps of these kinds."""
        found = Counter(step.kind for step in self.steps)
        return sum(found[kind] for kind in kinds)

    def layout(self, v: Var) -> Layout:
        return self.layouts.get(v) or plain(v.type.shape)

    def operand(self, role: str, i: int, a: Atom, loose: int = 0) -> Operand:
        """A value as the operand of a kernel."""
        if isinstance(a, Literal) or a.type.weak:
            return Operand(role, i, (), value=True)
        layout = self.layout(a)
        return Operand(role, i, layout.strides, layout.offset, loose=loose)


# ----------------------------------------------------------------------------------------- carries
# Operands that a loop or a branch may write over, so that it works
# where they are and copies nothing.
#
# A carry can be updated where it is if the body does so itself: its result is made in
# the memory of the carry it was given. So loops in loops, branches in loops and loops in
# branches hand one array through.


WRITES = (UpdateSlice, Scatter, ScatterReduce)
COUNTED = (ScanLoop, RepeatLoop)


def overwritten(op: Any, programs: Sequence[Program]) -> dict[int, int]:
    """Results that may take the memory of an operand, each with its number
    among the equation's inputs.
    """
    if isinstance(op, Cond):
        pairs = branch_pairs(op)
        return {i: 1 + k for i, k in pairs.items() if all(reuses_input(p, i, k) for p in programs)}
    first, slot, count = carry_of(op)
    return {i: first + i for i in range(count) if reuses_input(programs[-1], i, slot + i)}


def carry_of(op: Any) -> tuple[int, int, int]:
    """Offsets of the carry among a loop's operands and among its body's inputs, and its length."""
    if isinstance(op, COUNTED):
        return op.consts, op.consts, op.carry
    return op.cond_consts + op.body_consts, op.body_consts, len(op.body.outputs)


def reuses_input(program: Program, i: int, k: int) -> bool:
    """True if result `i` of a program is its input `k`, or is made in its memory."""
    out, given = program.graph.outputs[i], program.graph.inputs[k]
    if out is given:
        return True
    made = isinstance(out, Var) and program.graph.outputs.index(out) == i
    return made and program.buffers[out].donor == program.buffers[given].name  # type: ignore[index]


def branch_pairs(op: Cond) -> dict[int, int]:
    """Results that every branch makes by writing into the same one of their
    inputs, or passes on.
    """
    found: dict[int, int] = {}
    for i in range(len(op.graphs()[0].outputs)):
        origins = {origin(graph, graph.outputs[i]) for graph in op.graphs()}
        (k, *others) = origins
        if not others and k is not None and k not in found.values():
            found[i] = k
    return found


def origin(graph: Graph, a: Atom) -> int | None:
    """The number of the input that a value is, after writes into parts of it."""
    makers = {v: e for e in graph.eqns for v in e.outs}
    while isinstance(a, Var) and a not in graph.inputs:
        eqn = makers[a]
        i = eqn.outs.index(a)
        if isinstance(eqn.op, WRITES):
            a = eqn.inputs[0]
        elif isinstance(eqn.op, (*COUNTED, WhileLoop)) and i < carry_of(eqn.op)[2]:
            a = eqn.inputs[carry_of(eqn.op)[0] + i]
        elif isinstance(eqn.op, Cond) and i in (pairs := branch_pairs(eqn.op)):
            a = eqn.inputs[1 + pairs[i]]
        else:
            return None
    return graph.inputs.index(a) if isinstance(a, Var) else None


# ----------------------------------------------------------------------------------------- failing
# Equations that may end a call with an error after they have begun: an index
# out of range, an interrupt.


# fmt: off
SAFE: Final = (
    Pointlike, Unary, Identity, Barrier, Concatenate, Iota, Constant, DotGeneral, UpdateSlice, Keyed,
    Reduce, ArgReduce, Running, Ordering, TopK, SearchSorted,
)
# fmt: on


def may_fail(eqn: Eqn, target: str, long: int) -> bool:
    """True if an equation may raise an error on the values it is given. On a GPU indices wrap.

    `long`: elements that a counted loop goes through, to look for interrupts.
    """
    op = eqn.op
    if op.effect:
        return True
    if target != "cuda" and looks_for_interrupts(op, long):
        return True
    if isinstance(op, GraphOp):
        return any(may_fail(each, target, long) for graph in op.graphs() for each in graph.eqns)
    if isinstance(op, Indexed | Index):
        return target != "cuda"
    return not isinstance(op, SAFE) or is_integer_power(op, eqn)


def looks_for_interrupts(op: Op, long: int) -> bool:
    """True of a loop without a bound, or of so many elements."""
    if isinstance(op, ScanLoop | RepeatLoop):
        return op.length * elements(op) >= long
    return isinstance(op, WhileLoop)


def elements(op: GraphOp) -> int:
    """The elements that an iteration of a loop, or a branch, goes through, at most."""
    return sum(of_equation(eqn) for graph in op.graphs() for eqn in graph.eqns)


def of_equation(eqn: Eqn) -> int:
    size = max((a.type.size for a in (*eqn.outs, *eqn.inputs)), default=0)
    if not isinstance(eqn.op, GraphOp) or isinstance(eqn.op, Region):
        return size
    return size + elements(eqn.op) * (
        eqn.op.length if isinstance(eqn.op, ScanLoop | RepeatLoop) else 1
    )


def is_integer_power(op: Op, eqn: Eqn) -> bool:
    """A power of integers, which a negative exponent makes an error."""
    return isinstance(op, Elementwise) and op.name == "pow" and eqn.outs[0].type.dtype.kind in "iu"


# ------------------------------------------------------------------------------- host control flow
# Loops and branches that Python runs: each iteration is a program of its own,
# within the arena of the whole.


CONTROL = (ScanLoop, RepeatLoop, WhileLoop, Cond)
Bound = tuple[Any, ...]


@final
@record
class Inner:
    """A program that another one runs:

    `run(bind(arena), *arrays)`, where the arena has `nbytes`.
    """

    nbytes: int
    bind: Callable[[Any], Bound]
    run: Callable[..., list[Any]]


def bound(inner: Sequence[Inner], arena: Any) -> tuple[Bound, ...]:
    """One of them runs at a time, so they share the arena."""
    return tuple(each.bind(arena) for each in inner)


def hosted(
    op: Any, inner: Sequence[Inner], empty: Callable[..., Any] = np.empty
) -> Callable[..., Sequence[Any]]:
    """The operation as a function of its programs, bound, and of arrays. `empty` makes arrays."""
    runs = [each.run for each in inner]
    if isinstance(op, ScanLoop):
        return lambda places, *xs: op.rounds(partial(runs[0], places[0]), *xs, empty=empty)
    if isinstance(op, RepeatLoop):
        return lambda places, *xs: op.rounds(partial(runs[0], places[0]), *xs)
    if isinstance(op, WhileLoop):
        return lambda places, *xs: op.rounds(*map(partial, runs, places), *xs)
    last = len(runs) - 1

    def branch(places: Sequence[Bound], index: Any, *xs: Any) -> Sequence[Any]:
        i = min(max(int(index), 0), last)
        return runs[i](places[i], *xs)

    return branch


def passes(program: Program) -> dict[Var, Buffer]:
    """The results of loops and branches which Python runs, but for those returned."""
    return {
        v: program.buffers[v]
        for step in program.steps
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL)
        for v in step.eqn.outs
        if not v.type.weak and program.buffers[v].last < END
    }


def passing(program: Program) -> int:
    """The most bytes that are in results of loops and branches which Python
    runs, but for those returned.

    The iterations of a loop make arrays of their own, and a carry is there twice
    while the next one is made.
    """
    changes: dict[int, int] = {}

    def lives(nbytes: int, first: int, last: int) -> None:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes

    for buffer in passes(program).values():
        lives(buffer.type.nbytes, buffer.first, buffer.last)
    for step in program.steps:
        if step.kind == "library" and isinstance(step.eqn.op, CONTROL):
            lives(made_by_rounds(step.eqn.op), step.number, step.number)
    most = now = 0
    for n in sorted(changes):
        now += changes[n]
        most = max(most, now)
    return most


def made_by_rounds(op: Any) -> int:
    """Bytes of an iteration's results, besides the carry of the last iteration, which
    is the loop's result.
    """
    return 0 if isinstance(op, Cond) else sum(a.type.nbytes for a in op.body.outputs)
