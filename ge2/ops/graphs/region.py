"""Regions, which become one kernel, and halves of graphs of which one will run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from operator import mul
from typing import Any, Final, TypeGuard, final

from ge2.base.arrays import BOOL, INEXACT
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Evaluate,
    Flags,
    Graph,
    GraphOp,
    Literal,
    Op,
    Reversing,
    Var,
    read,
    rename,
    renamed,
)  # fmt: skip
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import WHERE, ConvertElementType
from ge2.ops.graphs import Rolled
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import BroadcastInDim, Reshape, Slice, StopGradient

# -------- A Region: an operation that holds a graph, which becomes one kernel.


LOOPS: Final = ("pointwise", "rowwise", "reduce")
CONTRACTION: Final = "contraction"
KINDS: Final = (*LOOPS, CONTRACTION)
EVALUATE = Evaluate()


class Fused(GraphOp):
    """A graph whose equations are one kernel: made after all derivatives, of no rule but the
    meaning of its equations.
    """

    __slots__ = ()
    graph: Graph

    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if types != tuple(v.type for v in self.graph.inputs):
            what = f"a {self.name.replace('_', ' ')} of {len(self.graph.inputs)} inputs was given"
            raise TypeRuleError(f"{what} {', '.join(map(str, types))}")
        return tuple(a.type for a in self.graph.outputs)

    def reference(self, *arrays: Any) -> Any:
        return evaluated(self.graph, arrays)


@final
@record
class Region(Fused):
    """A graph whose equations run over one iteration space, so that a block of
    it at a time stays in cache.

    `axes` says for each equation which axis of `space` each axis of its result is (for a reduction:
    of its input), -1 for an axis of size 1. Views in the graph are index expressions. A reduction
    whose result is read inside has its axes whole in a block.

    A contraction has a matrix product as its root, or two of one left operand, before them what
    makes their operands, and after them what is done to their elements; the last axes of its space
    are those that are summed over (`ops/graphs/contraction.py`). It is made after all derivatives.
    """

    kind: str
    space: Dims
    axes: tuple[Dims, ...]
    graph: Graph
    name = "region"

    @property
    def root(self) -> Eqn | None:
        """The product, of a contraction."""
        if self.kind != CONTRACTION:
            return None
        return next(e for e in self.graph.eqns if isinstance(e.op, DotGeneral))

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        if self.kind not in KINDS:
            raise TypeRuleError(f"a region is {', '.join(KINDS)}; got {self.kind}")
        return Fused.infer(self, *types)


def kind_of(eqns: Sequence[Eqn]) -> str:
    """The kind of a region without a root: rowwise if a reduction is read again."""
    folded = {v for e in eqns if isinstance(e.op, Reduce | ArgReduce) for v in e.outs}
    read = {a for e in eqns for a in e.inputs}
    return "rowwise" if folded & read else "reduce" if folded else "pointwise"


def needed(graph: Graph, wanted: Iterable[Atom], there: Set[Atom] = frozenset()) -> list[int]:
    """The numbers of the equations that some values need, but for what is there."""
    makers: dict[Atom, int] = {v: n for n, e in enumerate(graph.eqns) for v in e.outs}
    found, waiting = set[int](), [*wanted]
    while waiting:
        n = makers.get(waiting.pop())
        if n is not None and n not in found:
            found.add(n)
            waiting += [a for a in graph.eqns[n].inputs if a not in there]
    return sorted(found)


def spread_out(eqn: Eqn, graph: Graph) -> Iterator[Eqn]:
    """The equations of the graph that an operation holds in place of it, which read and make what it
    does.
    """
    env: dict[Var, Atom] = dict(zip(graph.inputs, eqn.inputs, strict=True))
    outs = dict(zip(graph.outputs, eqn.outs, strict=True))
    for each in graph.eqns:
        made = tuple(outs.get(v) or Var(v.type) for v in each.outs)
        yield Eqn(each.op, rename(env, each.inputs), made, each.source)
        env.update(zip(each.outs, made, strict=True))


def is_loop(op: object) -> TypeGuard[Region]:
    """True of a region whose elements are computed one by one, or folded: one without a root."""
    return isinstance(op, Region) and op.kind != CONTRACTION


def evaluated(graph: Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a graph by the references of its operations."""
    env: dict[Var, Any] = dict(zip(graph.inputs, arrays, strict=True))
    for eqn in graph.eqns:
        env.update(zip(eqn.outs, EVALUATE.apply(eqn.op, read(env, eqn.inputs)), strict=True))
    return tuple(read(env, graph.outputs))


# -------------------------------------------------------------------------------------- persistent
# Steps that are one kernel together, loops and branches among them: small
# enough to stay in a block.


@final
@record
class Resident(Fused):
    """A graph, loops and branches and what is around them, whose values live in
    a block's shared memory.

    `grid`: all blocks of a GPU do it together, and what is wide is in their registers and in its
    L2 cache. `rows` is 0, or the size of an axis along which no element knows of another: blocks
    then share its rows. How many rows and iterations there are is passed to the kernel. It is made
    after all derivatives, of steps that are already chosen for a GPU.
    """

    graph: Graph
    rows: int = 0
    grid: bool = False
    name = "resident"


# -------- Forward and backward halves of several graphs, one of which will run, made to hand over
# the same types.


Graphs = tuple[Graph, ...]
Half = tuple[Graph, Graph, int]  # forward, backward, and how many residuals the one hands the other


def joined_halves(halves: Sequence[Half], outputs: int) -> tuple[Graphs, Graphs, int, Dims]:
    """The forward graphs, the backward graphs, how many residuals, and what the
    backward graphs read beside.

    Those inputs and results of the forward graphs, by number, that some backward graph reads are
    given to all of them, before the residuals. A residual of one graph takes the place that others
    have for theirs, if it has the same type; an empty place is zeros.
    """
    halves = [reading_ends(*half) for half in halves]
    slots: list[ArrayType] = []
    placed = [slots_for(f.outputs[outputs:], slots) for f, _, _ in halves]
    forward = [
        with_slots(f, outputs, places, slots)
        for (f, _, _), places in zip(halves, placed, strict=True)
    ]
    ends = len(halves[0][0].inputs) + outputs
    again = [i for i in range(ends) if any(b.inputs[i] in read_by(b) for _, b, _ in halves)]
    backward = []
    for (_, b, n), places in zip(halves, placed, strict=True):
        kept = [
            b.inputs[ends + places.index(i)] if i in places else Var(t) for i, t in enumerate(slots)
        ]
        inputs = (*(b.inputs[i] for i in again), *kept, *b.inputs[ends + n :])
        backward.append(Graph(inputs, b.eqns, b.outputs))
    return tuple(forward), tuple(backward), len(slots), tuple(again)


def read_by(graph: Graph) -> set[Atom]:
    return {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)


def writing_twice(eqn: Eqn, x: Atom, copy: Var) -> Eqn | None:
    """A region that writes one of its results into another array as well; None of a result that is
    not made element by element, or of what is no region.
    """
    op = eqn.op
    if not is_loop(op) or x not in eqn.outs:
        return None
    graph, inner = op.graph, op.graph.outputs[eqn.outs.index(x)]
    pairs = zip(graph.eqns, op.axes, strict=True)
    made = (at for e, at in pairs if inner in e.outs and not isinstance(e.op, Rolled))
    at = next(made, ())
    if not at or len(at) != inner.type.ndim:
        return None
    same = Eqn(ConvertElementType(inner.type.dtype), (inner,), (Var(inner.type),), eqn.source)
    graph = replace(graph, eqns=(*graph.eqns, same), outputs=(*graph.outputs, *same.outs))
    again = replace(op, graph=graph, axes=(*op.axes, at))
    return replace(eqn, op=again, outs=(*eqn.outs, copy))


def readers_of(graph: Graph) -> dict[Atom, list[Eqn]]:
    """The equations that read each value, in their order."""
    found: dict[Atom, list[Eqn]] = {}
    for eqn in graph.eqns:
        for a in dict.fromkeys(eqn.inputs):
            found.setdefault(a, []).append(eqn)
    return found


def is_repeated(x: Atom, readers: dict[Atom, list[Eqn]]) -> bool:
    """True of what is repeated along several axes: what makes it for one of them, row by row, does not
    for another, so that it is stored.
    """
    waiting, along = [x], set[Dims]()
    while waiting:
        for e in readers.get(waiting.pop(), ()):
            if isinstance(e.op, Reshape):
                waiting += e.outs
            elif isinstance(e.op, BroadcastInDim) and e.outs[0].type.size > x.type.size:
                along.add(e.op.dims)
    return len(along) > 1


def alternating(graph: Graph) -> dict[Var, Var]:
    """For slices that alternate along the last axis, as x[::2] and x[1::2] do, the first of them."""
    first, found, roots = dict[object, Var](), dict[Var, Var](), dict[Atom, tuple[Atom, Dims]]()
    for e in graph.eqns:
        if isinstance(e.op, Slice):
            (x, *_), (y,) = e.inputs, e.outs
            root, steps = roots.get(x, (x, (1,) * y.type.ndim))
            roots[y] = root, tuple(map(mul, steps, e.op.step))
            if e.op.step[-1:] > (1,):
                found[y] = first.setdefault((*roots[y], y.type.shape), y)
    return found


def reading_ends(forward: Graph, backward: Graph, count: int) -> Half:
    """Halves of which the second is given inputs and results again, so that
    none of them is a residual.
    """
    at = len(forward.outputs) - count
    results = {a: Var(a.type) for a in forward.outputs[:at]}
    ends: dict[Atom, Atom] = {**results, **{v: v for v in forward.inputs}}
    pairs = list(zip(backward.inputs, forward.outputs[at:], strict=False))
    names = {v: ends[a] for v, a in pairs if a in ends}
    rest = [(v, a) for v, a in pairs if a not in ends]
    eqns = tuple(renamed(names, e) for e in backward.eqns)
    given = [results.pop(a) if a in results else Var(a.type) for a in forward.outputs[:at]]
    read = (*forward.inputs, *given, *(v for v, _ in rest), *backward.inputs[count:])
    first = Graph(forward.inputs, forward.eqns, (*forward.outputs[:at], *(a for _, a in rest)))
    return first, Graph(read, eqns, rename(names, backward.outputs)), len(rest)


def slots_for(residuals: Sequence[Atom], slots: list[ArrayType]) -> list[int]:
    """A place of its own for each residual, among those there are or a new one."""
    places: list[int] = []
    for a in residuals:
        free = (i for i, t in enumerate(slots) if t == a.type and i not in places)
        places.append(next(free, len(slots)))
        if places[-1] == len(slots):
            slots.append(a.type)
    return places


def with_slots(
    graph: Graph, outputs: int, places: Sequence[int], slots: Sequence[ArrayType]
) -> Graph:
    """The graph, its residuals in their places and zeros in the others."""
    zeros = {i: zero_equation(t) for i, t in enumerate(slots) if i not in places}
    kept = [
        zeros[i].outs[0] if i in zeros else graph.outputs[outputs + places.index(i)]
        for i in range(len(slots))
    ]
    return Graph(graph.inputs, (*graph.eqns, *zeros.values()), (*graph.outputs[:outputs], *kept))


def zero_equation(type: ArrayType) -> Eqn:
    zero = (Literal.of(type.dtype.type(0)),)
    op: Op = (
        ConvertElementType(type.dtype, weak=True) if type.weak else BroadcastInDim(type.shape, ())
    )
    return Eqn(op, zero, (Var(type),))


# ----------------------------------------------------------------------------------------- untaken
# Branches of a batched cond: all are computed, and derivatives see those that are taken.
#
# Zero times an infinite derivative is NaN, so it is not enough to select among results: cotangents
# are cut off where they enter a branch and where they leave it
# (https://github.com/jax-ml/jax/issues/1052).


FLAG: Final = ArrayType((), BOOL)


def shielded(
    branch: Graph, batched: Flags, calls: tuple[type[GraphOp], ...]
) -> tuple[Graph, Flags]:
    """The branch with two further inputs, before its own: if an element takes
    it, and if any element does.

    `batched` says which inputs differ from element to element; the second result says it of the
    outputs. Operations of the kinds `calls` are rebuilt around their own graph by a method `of`.
    """
    shield = Shield(branch, batched, calls)
    for eqn in branch.eqns:
        shield.equation(eqn)
    outputs = rename(shield.names, branch.outputs)
    graph = Graph((shield.taken, shield.some, *shield.inputs), tuple(shield.eqns), outputs)
    return graph, tuple(a in shield.split for a in outputs)


class Shield:
    """A branch as it is rewritten. `split` are the values that differ from element to element.

    A shared value stays shared where that is right: its cotangent is the sum of all elements', each
    of which must then be zero where the branch is not taken.
    """

    def __init__(self, branch: Graph, batched: Flags, calls: tuple[type[GraphOp], ...]) -> None:
        self.taken, self.some, self.calls = Var(FLAG), Var(FLAG), calls
        self.inputs = tuple(Var(v.type) for v in branch.inputs)
        self.eqns: list[Eqn] = []
        self.names: dict[Var, Atom] = {}
        self.split: set[Atom] = {v for v, b in zip(self.inputs, batched, strict=True) if b}
        self.live: set[Atom] = {v for v in self.inputs if v.type.dtype in INEXACT}
        for old, new in zip(branch.inputs, self.inputs, strict=True):
            self.names[old] = self.gated(new, self.taken if new in self.split else self.some, None)

    def equation(self, eqn: Eqn) -> None:
        op = eqn.op.plain() if isinstance(eqn.op, Reversing) else eqn.op
        inputs = rename(self.names, eqn.inputs)
        if isinstance(op, self.calls):
            self.call(op, inputs, eqn)
            return
        mixed = any(a in self.split for a in inputs)
        shared = mixed and any(a in self.live and a not in self.split for a in inputs)
        product = isinstance(op, DotGeneral)
        moves = op.linear and not isinstance(op, Pointlike)
        late = shared and (moves or product or isinstance(op, Gather))
        if shared and not late:
            inputs = tuple(
                a if a in self.split else self.gated(a, self.taken, eqn.source) for a in inputs
            )
        elif late and product:
            inputs = tuple(self.zeroed(a, eqn.source) if a in self.split else a for a in inputs)
        outs = self.record(op, inputs, tuple(v.type for v in eqn.outs), eqn.source)
        found = [self.gated(v, self.taken, eqn.source) if late else v for v in outs]
        self.names.update(zip(eqn.outs, found, strict=True))

    def call(self, op: GraphOp, inputs: tuple[Atom, ...], eqn: Eqn) -> None:
        graph, split = shielded(op.graphs()[0], tuple(a in self.split for a in inputs), self.calls)
        inner: Op = op.of(graph)  # type: ignore[attr-defined]
        outs = self.record(
            inner, (self.taken, self.some, *inputs), tuple(v.type for v in eqn.outs), eqn.source
        )
        self.split.difference_update(v for v, s in zip(outs, split, strict=True) if not s)
        self.names.update(zip(eqn.outs, outs, strict=True))

    def record(
        self, op: Op, inputs: tuple[Atom, ...], types: tuple[ArrayType, ...], source: Source | None
    ) -> tuple[Var, ...]:
        outs = tuple(Var(t) for t in types)
        self.eqns.append(Eqn(op, inputs, outs, source))
        if any(a in self.split or a is self.taken for a in inputs):
            self.split.update(outs)
        if any(a in self.live for a in inputs):
            self.live.update(v for v in outs if v.type.dtype in INEXACT)
        return outs

    def gated(self, x: Atom, mask: Var, source: Source | None) -> Atom:
        """The same value, whose cotangent is zero where the mask does not hold."""
        if x not in self.live:
            return x
        (stopped,) = self.record(StopGradient(), (x,), (x.type,), source)
        return self.chosen(mask, x, stopped, source)

    def zeroed(self, x: Atom, source: Source | None) -> Atom:
        """Zero where the branch is not taken: an infinity there times a
        cotangent of zero would be NaN.
        """
        zero = Literal.of(x.type.dtype.type(0))
        return self.chosen(self.taken, x, zero, source) if x.type.dtype in INEXACT else x

    def chosen(self, mask: Var, x: Atom, other: Atom, source: Source | None) -> Atom:
        strong = ArrayType(x.type.shape, x.type.dtype)
        (y,) = self.record(WHERE, (mask, x, other), (strong,), source)
        if not x.type.weak:
            return y
        return self.record(ConvertElementType(x.type.dtype, weak=True), (y,), (x.type,), source)[0]
