"""Results written over arrays that their step reads: the test whether that is right, and the
arrays of a GPU's program for which it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ge2.choice.choose import Choice
from ge2.codegen.layout import plain
from ge2.codegen.tuning import Blocks
from ge2.compile.steps.kinds import NATIVE
from ge2.ir import Atom, Dims, Eqn, Var
from ge2.ops.graphs.region import InRuns, ProductRegion, Region
from ge2.ops.index import Gather
from ge2.ops.reduce import Reduce
from ge2.ops.shape import Iota, Pad
from ge2.program.program import WRITES, Buffer
from ge2.targets.c.blocked.region import tile

if TYPE_CHECKING:
    from ge2.compile.schedule import Scheduler


def in_place(eqn: Eqn, i: int, x: Var, target: str, tuning: Blocks) -> bool:
    """True if result `i` of a step may be written over input `x` element by element."""
    op = eqn.op
    if isinstance(op, WRITES):
        return target in NATIVE and x is eqn.inputs[0] and eqn.inputs.count(x) == 1
    if isinstance(op, ProductRegion):
        return behind_product(eqn, op, i, x, target, tuning)
    if not isinstance(op, Region):
        return False
    inner, out = op.graph.inputs[eqn.inputs.index(x)], op.graph.outputs[i]
    if eqn.inputs.count(x) != 1:
        return False
    if (
        target in NATIVE
        and op.kind == "rowwise"
        and not (target == "cuda" and in_last_pass(op, out))
    ):
        return False  # a row is read again after its first elements are written
    orientation = None
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        if out in e.outs:
            if len(at) != len(e.outs[0].type.shape):
                return False  # a reduction
            orientation = at
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        elsewhere = e.op.is_view or isinstance(e.op, Gather | Pad | InRuns)
        if inner in e.inputs and (elsewhere or at != orientation):
            return False
    if target in NATIVE:  # the loops of any other axis may read it again
        return {a for a, n in enumerate(op.space) if n > 1} <= set(orientation or ())
    blocks = tile(op, tuning)
    return blocks.blocks == 1 or bool(set(orientation or ()) & set(blocks.cut))


def behind_product(
    eqn: Eqn, op: ProductRegion, i: int, x: Var, target: str, tuning: Blocks
) -> bool:
    """The same of a product that goes on, whose threads read what they go on with at their own places."""
    if isinstance(eqn.choice, Choice) and not eqn.choice.family.over:
        return False
    rest, out = op.rest, op.graph.outputs[i]
    x = op.graph.inputs[eqn.inputs.index(x)]
    factors = [a for e in (*op.prologues, *op.products) for a in e.inputs]
    apart = eqn.inputs.count(x) == 1 and x not in factors
    return apart and in_place(rest, rest.outs.index(out), x, target, tuning)


def in_last_pass(op: Region, out: Atom) -> bool:
    """True if a GPU writes a result of rows when it goes through them for the last time.

    In each pass a thread reads the elements at its own places. A fold that picks one element reads
    those of others, and waits for another fold of its pass alone.
    """
    depth: dict[Any, int] = {}  # the pass in which a value is made
    passes: list[tuple[Eqn, Dims, int]] = []
    folds: list[tuple[int, frozenset[int]]] = []
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        now = max((depth.get(a, 0) for a in e.inputs), default=0)
        fold = len(at) != len(e.outs[0].type.shape)
        if fold:
            if not isinstance(e.op, Reduce):
                return False
            folds.append((now, frozenset(at[a] for a in e.op.axes)))
        passes.append((e, at, now))
        depth.update(dict.fromkeys(e.outs, now + fold))
    orientation, end = next((at, now) for e, at, now in passes if out in e.outs)
    within = {over for now, over in folds if now < end}
    rows = len(within) == 1 and all(set(orientation[-len(over) :]) == over for over in within)
    last = all(now <= end for _, at, now in passes if at == orientation)
    picks = any(isinstance(e.op, Iota) for e in op.graph.eqns)
    return rows and last and not (picks and sum(now == end for now, _ in folds) > 1)


def write_over(scheduler: Scheduler) -> None:
    """Makes large results of a GPU's kernels where an array is that they read last, element by
    element: the gradient of 800 MB of logits needs no other 800 MB.
    """
    views: dict[int, list[Buffer]] = {}
    for buffer in scheduler.buffers.values():
        if buffer.base is not None:
            views.setdefault(id(buffer.base), []).append(buffer)
    for n, eqn in enumerate(scheduler.graph.eqns):
        if scheduler.target != "cuda" or not isinstance(eqn.op, Region | ProductRegion):
            continue
        for out in eqn.outs if scheduler.kinds[n] == "kernel" else ():
            new, found = scheduler.buffers[out], under(scheduler, n, out)
            if found is not None:
                new.first = min(new.first, found.first)
                moved = [*views.pop(id(found), ()), found]
                for buffer in moved:
                    buffer.base = new
                views.setdefault(id(new), []).extend(moved)
                found.storage, found.over = "view", True


def under(scheduler: Scheduler, n: int, out: Var) -> Buffer | None:
    """The array over which step `n` may write a result, if there is one."""
    eqn, least = scheduler.graph.eqns[n], scheduler.tuning.placement.over
    if out.type.nbytes < least or not owned(scheduler, out):
        return None
    for x in eqn.inputs:
        if not isinstance(x, Var) or x.type != out.type or x in scheduler.parts:
            continue
        home = scheduler.buffers[x].base or scheduler.buffers[x]
        whole = home.storage == "arena" and home.type.nbytes == x.type.nbytes
        plainly = scheduler.layouts.get(x, plain(x.type.shape)) == plain(x.type.shape)
        if whole and plainly and home.last == n and scheduler.in_place(n, eqn.outs.index(out), x):
            return home
    return None


def owned(scheduler: Scheduler, out: Var) -> bool:
    """True if a result has memory of its own in the arena, from its own step on."""
    buffer = scheduler.buffers[out]
    own = (
        buffer.storage == "arena" and buffer.base is None and buffer.first == scheduler.number(out)
    )
    return own and out not in scheduler.layouts and out not in scheduler.parts
