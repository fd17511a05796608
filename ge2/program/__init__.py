"""Programs: steps in order, where each array is, and what the steps cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.config import config
from ge2.base.record import mutable, record
from ge2.base.source import Source, warn
from ge2.codegen.layout import Layout, plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var, makers_of
from ge2.ir.graph import GraphOp, Op
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.control import Cond, CondSaving
from ge2.ops.graphs.loops import RepeatLoop, ScanLoop, ScanSaving
from ge2.ops.graphs.region import Region
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.index import Indexed, Scatter, ScatterReduce, UpdateSlice
from ge2.ops.pointlike import Elementwise, Pointlike
from ge2.ops.random import Keyed
from ge2.ops.reduce import ArgReduce, Reduce, Running
from ge2.ops.shape import Barrier, Concatenate, Constant, Identity, Iota, Unary
from ge2.ops.sort import Ordering, SearchSorted, TopK
from ge2.ops.user_ops import Own
from ge2.passes.loops.roll import compile_seconds
from ge2.passes.reads import FirstRanks, OrderStatistics
from ge2.passes.take_to_mask import Index

# -------- The program that the runtime sees of a graph: steps in order, and where each array is and
# how long it is needed.


END = 1 << 60  # in place of a step: to the end of the call


@final
@mutable
class Buffer:
    """An array of the program; needed from step `first` to step `last`, views of it included."""

    name: str
    type: ArrayType
    # "input": given by the caller; "host": a Python number; "arena"; "output": made for the caller;
    # "library": made by the step that computes it; "view": the same memory as another
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

    # "host": Python numbers; "view": no work; "copy": a view that has to be a copy; "kernel": a region;
    # "hosted": a loop or branch whose iterations Python launches, in the memory of the whole; "loop",
    # "matmul", "library"
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

    def home(self, v: Var) -> Buffer:
        """The buffer in whose memory a value is: of a view, that of its base."""
        found = self.buffers[v]
        return found.base or found

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
    makers = makers_of(graph)
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
    Reduce, ArgReduce, Running, Ordering, TopK, FirstRanks,
    OrderStatistics, SearchSorted,
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

    @staticmethod
    def alone(run: Callable[..., list[Any]]) -> Inner:
        """A program that needs nothing of another program's arena."""
        return Inner(0, lambda arena: (), lambda bound, *arrays: run(*arrays))


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


# -------- The work and the traffic of a step, counted from its types: to be compared with a
# machine's speed.


CHOICES = (Cond, CondSaving)
COUNTED_LOOPS = (ScanLoop, ScanSaving, RepeatLoop)


@final
@record
class Cost:
    """Operations on elements (a product and a sum count each), transcendental
    ones apart; bytes of arrays.
    """

    flops: int = 0
    transcendentals: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.read + other.read,
            self.written + other.written,
        )

    def __mul__(self, times: int) -> Cost:
        return Cost(
            self.flops * times,
            self.transcendentals * times,
            self.read * times,
            self.written * times,
        )

    @property
    def operations(self) -> int:
        return self.flops + self.transcendentals


def cost(eqn: Eqn, nbytes: Callable[[Atom], int] | None = None) -> Cost:
    """The cost of a step of a program; `nbytes` says what of an array it reads, if not all."""
    found = computing(eqn)
    sizes = nbytes or array_bytes
    return found + Cost(
        0, 0, sum(map(sizes, dict.fromkeys(eqn.inputs))), sum(map(array_bytes, eqn.outs))
    )


def array_bytes(atom: Atom) -> int:
    return atom.type.nbytes if isinstance(atom, Var) and not atom.type.weak else 0


def bytes_behind(layouts: Mapping[Var, Layout], atom: Atom) -> int:
    """The bytes behind a view: elements that repeat are there once."""
    layout = layouts.get(atom) if isinstance(atom, Var) else None
    if layout is None:
        return array_bytes(atom)
    shape = atom.type.shape
    return atom.type.dtype.itemsize * math.prod(
        n for n, s in zip(shape, layout.strides, strict=True) if s
    )


def computing(eqn: Eqn) -> Cost:
    """The operations of an equation. Those that only move elements have none."""
    op: Any = eqn.op
    if isinstance(op, CHOICES):
        return max((total(branch.eqns) for branch in op.branches), key=lambda c: c.operations)
    if isinstance(op, COUNTED_LOOPS):
        return total(op.body.eqns) * op.length
    if isinstance(op, GraphOp):  # of a while loop one iteration: how many there are is not known
        return total(e for graph in op.graphs() for e in graph.eqns)
    if not eqn.outs:
        return Cost()
    out, inputs = eqn.outs[0].type, eqn.inputs
    if isinstance(op, DotGeneral):
        a = inputs[0].type
        return Cost(2 * out.size * volume(a.shape, op.contract[0]))
    if isinstance(op, Own):
        return Cost(op.operations(*(a.type for a in inputs)))
    if isinstance(op, Pointlike):
        elements = 0 if op.retypes or out.weak else out.size
        return Cost(0, elements) if op.cost.transcendental else Cost(elements)
    if isinstance(op, Reduce | ArgReduce | Running):
        return Cost(inputs[0].type.size)
    return Cost()


def total(eqns: Iterable[Eqn]) -> Cost:
    return sum(map(computing, eqns), Cost())


def volume(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[a] for a in axes)


# -------- The numbers that programs are planned by, whichever device runs them: a target passes
# them.


@final
@record
class Placement:
    """The choice of memory for results."""

    # bytes of a donated argument whose memory is worth another address in a captured graph
    patched: int = 1 << 24
    # bytes of a result which a GPU's kernel writes over what it reads last: so much keeps all of it
    # busy, and what knows nothing of the two steps waits for either of them in any case
    over: int = 4 << 20


PLACEMENT = Placement()


@final
@record
class Planning:
    """The time in which passes, the schedule and the text of straight code are made in Python."""

    equation: float = 7e-5  # seconds for each: 12 s for 110,000 of a loop over elements


PLANNING = Planning()


@final
@record
class CompilePrice:
    """The time in which a target's compiler makes a kernel, as long as it has a core."""

    kernel_seconds: float  # of one with little in it
    share: float = 1.0  # of what gcc needs at -O3 for what is in it
    line: int = 8  # equations of one line of Python from which on it stands in a loop


@final
@record
class Concurrent:
    """The choice of arrays that are apart, since their steps may run at once, though their
    lifetimes do not meet.
    """

    arrays: int = 512  # beyond which nobody looks for independent ones
    large: int = 4 << 20  # bytes of an array; who writes more keeps the whole device busy
    tiny: int = 64 << 10  # of one that nobody misses, though it is there from the first step on
    unhurried: int = 8 << 20  # that launches may cost which are one
    more: int = 64 << 20  # bytes that all of it may cost


# -------- The price of compiling a Python loop, announced before a compiler begins.
# A long loop that cannot be rolled, since its iterations differ in more than offsets and sizes, is
# a kernel or more for each iteration. If these need longer than `config.compile_patience`, the user
# is warned; a target says what it does instead. So is who has a loop that is one of one body for
# the compiler, and still long to plan.


def kernel_seconds(eqn: Eqn, price: CompilePrice) -> float:
    """The time for a kernel of an equation."""
    inside = compile_seconds(eqn.op.graph.eqns) if isinstance(eqn.op, Region) else 0.0
    return price.kernel_seconds + price.share * inside


def is_too_long(seconds: float, sources: Sequence[Source | None], price: CompilePrice) -> bool:
    """True of a program whose Python loops compile longer than the user's patience.

    `seconds` is the time for the whole program, of whose steps `sources` are the lines.
    """
    if not config.compile_patience or seconds <= config.compile_patience:
        return False
    return seconds * share_of_loops(sources, price) > config.compile_patience


def share_of_loops(sources: Sequence[Source | None], price: CompilePrice) -> float:
    """The part of a program's steps that loops made: a function has one if a place in it made many
    steps; others of its places made some of them in branches.
    """
    steps = steps_of(sources)
    looping = {s.code for s, n in steps.items() if n >= price.line}
    return sum(n for s, n in steps.items() if n > 1 and s.code in looping) / max(len(sources), 1)


def steps_of(sources: Sequence[Source | None]) -> Counter[Source]:
    """The number of steps that each place in the user's program made."""
    return Counter(s for s in sources if s is not None)


def announce_straight(title: str, graph: Graph, planning: Planning) -> None:
    """Warns of a Python loop that stays straight code, if it is so long that to plan it takes more
    than the user's patience, however quick the compiler is.
    """
    seconds, price = planning.equation * len(graph.eqns), CompilePrice(planning.equation)
    if seconds <= config.compile_patience:
        return  # before anybody counts lines
    sources = [e.source for e in graph.eqns]
    if is_too_long(seconds, sources, price):
        steps = sum(not e.op.is_view for e in graph.eqns)
        announce(title, sources, steps, seconds, price, "it is compiled all the same")


def announce(
    title: str,
    sources: Sequence[Source | None],
    kernels: int,
    seconds: float,
    price: CompilePrice,
    way: str,
) -> None:
    """The warning; `way`: what is done about it."""
    steps = steps_of(sources)
    line = steps.most_common(1)[0][0]
    # a call may make several steps in an iteration, and more for its derivative, or be made twice
    iterations = min(n for n in steps.values() if n >= price.line)
    share = share_of_loops(sources, price)
    warn(
        f"{title} has a Python loop that is no loop of one body: some {iterations} iterations "
        f"became {share * kernels:.0f} kernels, some {share * seconds:.0f} s of compiling; {way}\n"
        f"  at   {line}",
        fix="ge2.lax.fori_loop(0, n, body, x) or ge2.lax.scan, whose body is compiled once; "
        "GE2_COMPILE_PATIENCE=0 waits for any compiler",
    )
