"""The steps of a program that one persistent kernel takes in: without regions, and small enough.

A launch costs microseconds, and an iteration that the host decides tens of them; a phase of a block
a tenth of one. So what is small is put where nobody waits for launches. The rule, in one place,
with the numbers of the chip's `tuning.persistent`:

* No value that a step makes has more than `elements` elements; stacks, and what is only
  read, may have any size.
* An iteration has at most `work` operations, and a step around loops `around`: so long a block
  takes no longer than one or two launches.
* What is live fits in `room` bytes of shared memory.
* Where the rows of a scan know nothing of each other and an iteration has more than `alone`
  operations, blocks share them, one a multiprocessor, and `work` counts the rows of one of them.
  The products of a loop whose constants have at most `kept` numbers count for a quarter, since
  threads keep those and need not read them again; and for `wait` each, the time until the lanes
  that share a sum have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, final

from ge2.base.arrays import FLOAT32
from ge2.base.record import record
from ge2.base.source import count_words, size_words
from ge2.ir import ArrayType, Atom, Eqn, Graph, Op, Var, has_effect
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs import Windows
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import Region, Resident, spread_out
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.reduce import ReduceDeviations, ReduceSumExp
from ge2.passes import TIDY
from ge2.passes.context import Context, run
from ge2.passes.fuse import fuse
from ge2.passes.indices import Wrap
from ge2.passes.moves_inside import moves_inside
from ge2.passes.take_to_mask import Index
from ge2.targets.cuda.limits import Chip
from ge2.targets.cuda.persistent import Trial
from ge2.targets.cuda.persistent.nodes import FOLDS, Barriers, Unwritten
from ge2.targets.cuda.persistent.rows import split
from ge2.targets.cuda.persistent.values import POINTS, spoken
from ge2.targets.cuda.tuning import Persistent, Rule
from ge2.trace.stage import strong_op

CONTROL: Final = (ScanLoop, WhileLoop, Cond)
ROUND: Final = Context(
    body=True, gathers=True
)  # how the rounds of a loop are fused when they are launched
HELD_APART: Final = (ReduceSumExp, ReduceDeviations)  # whose states are no numbers


@final
class Steps:
    """Steps without regions, each worked out once a pass, or why it cannot be."""

    def __init__(self) -> None:
        self._known: dict[Eqn, list[Eqn] | Unwritten] = {}
        self._fused: dict[int, tuple[Graph, Sequence[Eqn]]] = {}  # by the identity of a body

    def flat(self, eqn: Eqn, depth: int) -> list[Eqn]:
        """A step without regions, loops within each other `depth` at most; Python numbers may go
        in. Unwritten if no persistent kernel has such a step.
        """
        if eqn not in self._known:
            try:
                self._known[eqn] = flattened(eqn, depth)
            except Unwritten as why:
                self._known[eqn] = why
        found = self._known[eqn]
        if isinstance(found, Unwritten):
            raise found
        return found

    def fused(self, body: Graph) -> Sequence[Eqn]:
        """The steps of a loop's round as they are launched."""
        if id(body) not in self._fused:
            self._fused[id(body)] = body, moves_inside(fuse(body, ROUND)).eqns
        return self._fused[id(body)][1]

    def clear(self) -> None:
        self._known.clear()
        self._fused.clear()


# ------------------------------------------------------------------------------- without regions


def flattened(eqn: Eqn, depth: int) -> list[Eqn]:
    op = eqn.op
    if has_effect(op) or not eqn.outs:
        raise Unwritten(f"{op.name} has an effect")
    if isinstance(op, CONTROL):
        *before, eqn = strengthened(eqn)
        return [*before, replace(eqn, op=prepared(eqn.op, depth))]
    if isinstance(op, Resident) and (op.rows or op.grid):
        raise Unwritten("a kernel of several blocks is no part of another")
    return spread([eqn])


def strengthened(eqn: Eqn) -> list[Eqn]:
    """A loop or a branch on arrays alone, after what makes such of Python numbers."""
    if not any(a.type.weak for a in (*eqn.inputs, *eqn.outs)):
        return [eqn]
    made: dict[Atom, Eqn] = {}
    for a in eqn.inputs:
        if a.type.weak and a not in made:
            convert = ConvertElementType(a.type.dtype)
            made[a] = Eqn(convert, (a,), (Var(ArrayType((), a.type.dtype)),), eqn.source)
    inputs = tuple(made[a].outs[0] if a in made else a for a in eqn.inputs)
    outs = tuple(Var(ArrayType((), v.type.dtype)) if v.type.weak else v for v in eqn.outs)
    return [*made.values(), replace(eqn, op=strong_op(eqn.op), inputs=inputs, outs=outs)]


def prepared(op: Op, depth: int) -> Any:
    """A loop or a branch whose graphs are simplified and have no regions."""
    if not depth:
        raise Unwritten("too many loops are within each other")
    if isinstance(op, ScanLoop) and not op.length:
        raise Unwritten("it has no iterations")
    graphs = [inside(graph, depth) for graph in op.graphs()]
    if isinstance(op, ScanLoop):
        return replace(op, body=graphs[0])
    if isinstance(op, WhileLoop):
        return replace(op, cond=graphs[0], body=graphs[1])
    return Cond(tuple(graphs))


def inside(graph: Graph, depth: int) -> Graph:
    """The graph of an iteration or of a branch, for a persistent kernel."""
    if graph.effect:
        raise Unwritten("what it runs has an effect")
    graph = run(TIDY, graph, Context(body=True))
    eqns = [
        replace(e, op=prepared(e.op, depth - 1)) if isinstance(e.op, CONTROL) else e
        for e in spread(graph.eqns)
    ]
    types = [a.type for a in (*graph.inputs, *graph.outputs)]
    if any(t.weak for t in types):
        raise Unwritten("what it runs takes Python numbers")
    if not all(t.size for t in types):
        raise Unwritten("an array is empty")
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def spread(eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations with those of a region in its place."""
    found: list[Eqn] = []
    for eqn in eqns:
        op = eqn.op
        if isinstance(op, Region | Resident):
            found += spread_out(eqn, op.graph)
        elif isinstance(op, Index) and op.size:
            found.append(replace(eqn, op=Wrap(op.size)))
        else:
            found.append(eqn)
    return found


# -------------------------------------------------------------------------------- little enough


def taken_in(eqn: Eqn, flat: Sequence[Eqn], rule: Rule) -> None:
    """Unwritten, with the reason, if a step, `flat` without regions, is more than a rule allows."""
    if isinstance(eqn.op, CONTROL):
        iterations(flat[-1].op, rule)
    else:
        little(flat, replace(rule, work=rule.around), "a step")


def iterations(op: Any, rule: Rule) -> None:
    """Unwritten if the iterations of a loop, or of the loops in it, or the branches are too much."""
    what = "a branch" if isinstance(op, Cond) else "an iteration"
    for graph in op.graphs():
        little(graph.eqns, rule, what, constants(op, graph))
    for graph in op.graphs():
        for eqn in graph.eqns:
            if isinstance(eqn.op, CONTROL):
                iterations(eqn.op, rule)


def little(eqns: Sequence[Eqn], rule: Rule, what: str, constants: Sequence[Atom] = ()) -> None:
    """Unwritten if equations are too much for who is to do them."""
    for eqn in eqns:
        possible(eqn, rule.elements)
    done = operations(eqns, rule, constants)
    if done > rule.work:
        most = count_words(int(rule.work))
        raise Unwritten(f"{what} has {count_words(int(done))} operations, more than {most}")


def operations(eqns: Sequence[Eqn], rule: Rule, constants: Sequence[Atom] = ()) -> float:
    """The operations of a round: a product of what is the same in all rounds counts as kept."""
    same = set(constants)
    for eqn in eqns:
        if eqn.op.is_view and same.issuperset(eqn.inputs):
            same.update(eqn.outs)
    return sum(work(e, rule.product if same.isdisjoint(e.inputs) else rule.kept) for e in eqns)


def constants(op: Any, graph: Graph) -> Sequence[Atom]:
    """Returns what is the same in all iterations."""
    if isinstance(op, ScanLoop):
        return graph.inputs[: op.consts]
    return graph.inputs[: op.body_consts] if isinstance(op, WhileLoop) and graph is op.body else ()


def possible(eqn: Eqn, elements: int) -> None:
    """Unwritten if an equation is none of a persistent kernel, or makes too large a value."""
    op, outs = eqn.op, [v.type for v in eqn.outs]
    if not all(t.size for t in (*(a.type for a in eqn.inputs), *outs)):
        raise Unwritten("an array is empty")
    if any(t.weak for t in outs):
        raise Unwritten(f"{op.name} makes a Python number")
    if isinstance(op, CONTROL):
        return  # its own iterations are looked at
    if isinstance(op, Windows):
        raise Unwritten("it reads windows, whose elements are one in memory")
    if op.is_view and all(isinstance(a, Var) for a in eqn.inputs):
        return
    known = (isinstance(op, (*FOLDS, DotGeneral)) and not isinstance(op, HELD_APART)) or (
        isinstance(op, POINTS) and spoken(eqn)
    )
    if not (known or op.is_view):
        raise Unwritten(f"{op.name} is no step of it")
    if (most := max(t.size for t in outs)) > elements:
        raise Unwritten(f"{op.name} makes {most} elements, more than {elements}")


def work(eqn: Eqn, product: float = 1) -> float:
    """Returns how many elements are computed, or gone through; a product of two
    numbers counts for so many.
    """
    op: Any = eqn.op
    if op.is_view or isinstance(op, CONTROL):
        return 0
    size = eqn.outs[0].type.size
    if isinstance(op, DotGeneral):
        return product * size * math.prod(eqn.inputs[0].type.shape[i] for i in op.contract[0])
    return eqn.inputs[0].type.size if isinstance(op, FOLDS) else size


def count(eqns: Sequence[Eqn]) -> int:
    """Returns how many equations there are, those of iterations and branches among them."""
    inner = [g.eqns for e in eqns if isinstance(e.op, CONTROL) for g in e.op.graphs()]
    return len(eqns) + sum(map(count, inner))


# -------------------------------------------------------------------------------- how long it takes
# Who does the rounds of a loop in one kernel waits for others instead of launches: all blocks meet in
# the time of one launch, so a loop whose rounds are one kernel each is quicker launched; one that
# would be several, or that one block does, is not. Measured on an H200: stencils, products of a
# matrix with a vector, and rounds of conjugate gradients, of 32 to 1024 elements along an axis.


def together(op: Resident, fit: Fit, chip: Chip) -> float | None:
    """The predicted seconds of steps as one kernel; None where rounds are not counted."""
    tuning, barriers = chip.tuning.persistent, fit.barriers
    if barriers is None:
        return None
    times, each = tuning.prediction, -(-op.rows // chip.multiprocessors) if op.rows else 1
    met = barriers.grid * times.grid_barrier + barriers.block * times.block_barrier
    eqns = op.graph.eqns if fit.part is None else fit.part.eqns
    seconds = by_all_blocks if op.grid else by_block
    return met + each * sum(seconds(e, tuning) for e in eqns)


def by_all_blocks(eqn: Eqn, tuning: Persistent) -> float:
    """The seconds of a step beside waiting, in all rounds: all blocks keep parts of matrices."""
    times, rule, op = tuning.prediction, tuning.grid, eqn.op
    if not isinstance(op, ScanLoop):
        return operations(spread([eqn]), rule) / times.grid_rate
    eqns = spread(op.body.eqns)
    inner = sum(by_all_blocks(e, tuning) for e in eqns if isinstance(e.op, ScanLoop))
    products = sum(isinstance(e.op, DotGeneral) and e.outs[0].type.size > 1 for e in eqns)
    done = operations(eqns, rule, constants(op, op.body)) / times.grid_rate
    return op.length * (done + inner + products * times.product)


def by_block(eqn: Eqn, tuning: Persistent) -> float:
    """The same of one block, which reads a large matrix again where threads do not keep it."""
    times, op = tuning.prediction, eqn.op
    if not isinstance(op, ScanLoop):
        return operations(spread([eqn]), tuning.block) / times.block_rate
    eqns, same = spread(op.body.eqns), constants(op, op.body)
    inner = sum(by_block(e, tuning) for e in eqns if isinstance(e.op, ScanLoop))
    done = operations(eqns, tuning.block) / times.block_rate
    read = [
        work(e) * a.type.dtype.itemsize
        for e in eqns
        if isinstance(e.op, DotGeneral) and not keeps_matrix(e, op, tuning.kept)
        for a in e.inputs
        if a in same and a.type.size >= tuning.matrix
    ]
    return op.length * (done + inner + sum(read) / times.read_rate)


def one_by_one(op: Resident, most: int, tuning: Persistent, steps: Steps) -> float | None:
    """The predicted seconds of steps as launches, of which the host gives none while they run; None
    if it would: they are more than `most`, or a number on the GPU decides.
    """
    launches, seconds = launched(op.graph.eqns, tuning, steps)
    return None if launches > most else seconds / tuning.prediction.margin


def launched(eqns: Sequence[Eqn], tuning: Persistent, steps: Steps) -> tuple[float, float]:
    """The number of launches of equations, and their seconds; infinite where nobody knows, and for a
    round that is too long for a persistent kernel.
    """
    times, launches, seconds = tuning.prediction, 0.0, 0.0
    for e in eqns:
        if isinstance(e.op, ScanLoop) and len(e.op.body.eqns) <= tuning.equations:
            inner = launched(steps.fused(e.op.body), tuning, steps)
            launches, seconds = launches + e.op.length * inner[0], seconds + e.op.length * inner[1]
        elif isinstance(e.op, CONTROL):
            return math.inf, math.inf
        elif not e.op.is_view:
            inside = spread([e])
            folds = any(isinstance(each.op, (*FOLDS, DotGeneral)) for each in inside)
            done = sum(work(each, times.launch_product) for each in inside)
            seconds += (times.fold_launch if folds else times.launch) + done / times.grid_rate
            launches += 1
    return launches, seconds


# ------------------------------------------------------------------------- by rows, a block, a grid


@final
@record
class Fit:
    """Steps that one kernel may be: its graph, and that kernel for arrays in C order, unless blocks
    share its rows; the barriers that it passes; and what a block does of each row, where they share them.
    """

    body: Graph
    trial: Trial | None = None
    barriers: Barriers | None = None
    part: Graph | None = None


def on_all_blocks(body: Graph, chip: Chip) -> Fit:
    """The fit of a graph that all blocks do. Unwritten if they have no room for its values in shared
    memory, or the L2 cache has none.
    """
    trial = Trial.on_grid(body, chip)
    most, live = chip.tuning.persistent.live * chip.l2, sum(trial.kernels.temps)
    if live > most:
        has, room = size_words(live), size_words(int(most))
        raise Unwritten(f"values of {has} are live at once, more than {room} of the L2 cache")
    return roomy(body, trial, chip)


def in_block(body: Graph, chip: Chip) -> Fit:
    """The fit of a graph that one block does. Unwritten if it has no room for its values."""
    return roomy(body, Trial.in_block(body, chip), chip)


def roomy(body: Graph, trial: Trial, chip: Chip) -> Fit:
    room = min(chip.tuning.persistent.room, chip.most)
    if trial.shared > room:
        has, most = size_words(trial.shared), size_words(room)
        raise Unwritten(f"its values take {has} of shared memory, more than {most}")
    return Fit(body, trial, trial.barriers)


def by_rows(body: Graph, rows: int, chip: Chip) -> Fit:
    """The fit of a loop whose rows blocks share. Unwritten if rows know of each other, or a block
    has too much to do for each.
    """
    tuning = chip.tuning.persistent
    most = tuning.block.work
    one = split(body, rows, 1, tuning.tries).graph
    loop: Any = one.eqns[0].op
    each = sum(
        work(e) // 4 + tuning.wait if keeps_matrix(e, loop, tuning.kept) else work(e)
        for e in loop.body.eqns
    )
    iterations(loop, replace(tuning.block, work=4 * most))
    if (done := -(-rows // chip.multiprocessors) * each) > most:
        raise Unwritten(
            f"an iteration has {count_words(int(done))} operations of a block, more than {count_words(most)}"
        )
    return Fit(body, barriers=in_block(one, chip).barriers, part=one)


def quick(eqn: Eqn, alone: int) -> None:
    """Unwritten if an iteration of a loop is what one block does in no time."""
    op: Any = eqn.op
    if (done := sum(work(e) for e in spread(op.body.eqns))) <= alone:
        few, most = count_words(int(done)), count_words(alone)
        raise Unwritten(f"an iteration has {few} operations, which one block does up to {most}")


def keeps_matrix(eqn: Eqn, loop: Any, most: int) -> bool:
    """True if the threads of a block can keep the matrix of a product over all iterations: float32
    alone is kept.
    """
    if not isinstance(eqn.op, DotGeneral) or eqn.inputs[0].type.dtype != FLOAT32:
        return False
    consts = loop.body.inputs[: loop.consts]
    found = [a for a in eqn.inputs if a in consts]
    return bool(found) and sum(v.type.size for v in consts) <= most
