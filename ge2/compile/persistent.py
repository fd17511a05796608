"""Which loops and branches become one kernel, together with the small steps around them.

A launch costs microseconds, and a round that the host decides tens of them; a phase of a block a
tenth of one. So what is small is put where nobody waits for launches. The rule, in one place,
with the numbers of the chip's `tuning.persistent`:

* No value that a step makes has more than `elements` elements; stacks, and what is only
  read, may have any size.
* A round has at most `work` operations, and a step around loops `around`: so long a block takes no
  longer than one or two launches.
* What is live fits in `room` bytes of shared memory.
* Where the rows of a scan know nothing of each other and a round has more than `alone` operations,
  blocks share them, one a multiprocessor, and `work` counts the rows of one of them. The products
  of a loop whose constants have at most `kept` numbers count for a quarter, since threads keep
  those and need not read them again; and for `wait` each, the time until the lanes that share a
  sum have it.
* A kernel has about so many `equations` at most.
* Among the steps is a loop or a branch: others are launched anyway, and over the whole GPU.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from ge2.ir import ArrayType, Atom, Eqn, Graph, Op, Var, has_effect, rename
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import Region, Resident
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.passes.context import NOTHING, Context
from ge2.passes.pipeline import TIDY, run
from ge2.passes.take_to_mask import Index
from ge2.passes.wrap_indices import Wrap
from ge2.targets.cuda.chip import Chip
from ge2.targets.cuda.emit.kernel_parameters import FAR
from ge2.targets.cuda.limits import ASSUMED, Limits
from ge2.targets.cuda.persistent.kernel import fits_block, fits_grid
from ge2.targets.cuda.persistent.nodes import FOLDS, Unwritten
from ge2.targets.cuda.persistent.rows import Tangled, split
from ge2.targets.cuda.persistent.values import POINTS, spoken
from ge2.targets.cuda.tuning import Rule
from ge2.trace.retrace import strong_op

CONTROL = (ScanLoop, WhileLoop, Cond)


def resident(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with `resident` steps in place of loops and branches that are
    small, and of what is near.
    """
    limits = context.caps if isinstance(context.caps, Limits) else ASSUMED
    chip, tuning = Chip.of(limits), limits.tuning.persistent
    if any(v.type.size >= FAR for v in (*graph.inputs, *(v for e in graph.eqns for v in e.outs))):
        return graph  # places in parts of such need 64 bits
    for rule in (tuning.block, tuning.grid):
        if any(isinstance(e.op, CONTROL) for e in graph.eqns):
            graph = ruled(graph, rule, chip)
    return graph


def ruled(graph: Graph, rule: Rule, chip: Chip) -> Graph:
    """The graph with the steps that a rule allows."""
    tuning = chip.tuning.persistent
    done: list[Eqn] = []
    run: list[tuple[Eqn, list[Eqn]]] = []  # each with what it is without regions
    made: set[Atom] = set()

    def close() -> None:
        done.extend(joined(graph, run, rule, chip))
        run.clear()
        made.clear()

    read = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
    for eqn in graph.eqns:
        shared = None if rule.grid else by_rows(graph, eqn, chip)
        eqn = shared or eqn
        flat = small(eqn, read, rule, tuning.depth) if shared is None else None
        if flat is not None:
            if sum(size(steps) for _, steps in run) + size(flat) > tuning.equations:
                close()
            run.append((eqn, flat))
            made.update(eqn.outs)
        elif made.isdisjoint(eqn.inputs):
            done.append(eqn)  # what comes before it reads nothing of it
        else:
            close()
            done.append(eqn)
    close()
    return Graph(graph.inputs, tuple(done), graph.outputs, graph.consts)


# -------------------------------------------------------------------------------------------- a run


def joined(graph: Graph, run: Sequence[tuple[Eqn, list[Eqn]]], rule: Rule, chip: Chip) -> list[Eqn]:
    """The steps of a run as one, and those that have nothing to do with its
    loops and branches after it.
    """
    chosen = near([eqn for eqn, _ in run], rule)
    rest = [eqn for n, (eqn, _) in enumerate(run) if n not in chosen]
    if not chosen:
        return rest
    flat = [each for n in chosen for each in run[n][1]]
    old = [run[n][0] for n in chosen]
    found = together(graph, old, flat, rule, chip)
    return one_by_one(graph, run, rule, chip) if found is None else [found, *rest]


def one_by_one(
    graph: Graph, run: Sequence[tuple[Eqn, list[Eqn]]], rule: Rule, chip: Chip
) -> list[Eqn]:
    """Loops and branches each for itself, where all of them are too much for one kernel."""
    found = []
    for eqn, flat in run:
        loop = isinstance(eqn.op, CONTROL)
        found.append((together(graph, [eqn], flat, rule, chip) if loop else None) or eqn)
    return found


def near(eqns: Sequence[Eqn], rule: Rule) -> list[int]:
    """Numbers of the loops and branches, of what reads their results, and of what either needs.

    Views of more than a grid should copy are left where they are no copies.
    """
    after: set[Atom] = set()
    kept: set[int] = set()
    for n, eqn in enumerate(eqns):
        if isinstance(eqn.op, CONTROL) or not after.isdisjoint(eqn.inputs):
            large = rule.grid and eqn.op.is_view and eqn.outs[0].type.size > rule.around
            kept.update(() if large else (n,))
            after.update(eqn.outs)
    needed: set[Atom] = set()
    for n in reversed(range(len(eqns))):
        if n in kept or not needed.isdisjoint(eqns[n].outs):
            kept.add(n)
            needed.update(eqns[n].inputs)
    return sorted(kept)


def together(
    graph: Graph, old: Sequence[Eqn], flat: Sequence[Eqn], rule: Rule, chip: Chip
) -> Eqn | None:
    """The equations as a single one; None if a block, or the GPU, has no room for them."""
    made = {v for eqn in old for v in eqn.outs}
    inner = {v for eqn in flat for v in eqn.outs}
    given = tuple(
        dict.fromkeys(a for e in flat for a in e.inputs if isinstance(a, Var) and a not in inner)
    )
    gone = {id(eqn) for eqn in old}
    read = {a for e in graph.eqns if id(e) not in gone for a in e.inputs} | set(graph.outputs)
    outs = tuple(v for eqn in old for v in eqn.outs if v in read and v in made)
    if not outs:
        return None
    body = Graph(given, tuple(flat), outs)
    try:
        if not (fits_grid(body, chip) if rule.grid else fits_block(body, chip)):
            return None
    except Unwritten:
        return None
    source = next((e.source for e in old if isinstance(e.op, CONTROL)), old[0].source)
    return Eqn(Resident(body, grid=rule.grid), given, outs, source)


# --------------------------------------------------------------------------------------------- rows


def by_rows(graph: Graph, eqn: Eqn, chip: Chip) -> Eqn | None:
    """A loop whose rows blocks share, where a round is more than a block does in no time."""
    op, tuning = eqn.op, chip.tuning.persistent
    if not isinstance(op, ScanLoop) or any(a.type.weak for a in eqn.inputs) or has_effect(op):
        return None
    if sum(map(work, spread(op.body.eqns))) <= tuning.alone:
        return None
    outs = tuple(
        v for v in eqn.outs if any(v in e.inputs for e in graph.eqns) or v in graph.outputs
    )
    flat = prepared(op, tuning.depth)
    if flat is None or not outs:
        return None
    given = tuple(dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var)))
    body = Graph(given, (replace(eqn, op=flat),), outs)
    for rows in dict.fromkeys(a.type.shape[0] for a in op.parts(eqn.inputs)[1] if a.type.shape):
        if rows and may_split_rows(body, rows, chip):
            return Eqn(Resident(body, rows), given, outs, eqn.source)
    return None


def may_split_rows(graph: Graph, rows: int, chip: Chip) -> bool:
    """True if blocks can share the rows of a loop, and no block then has too much work."""
    tuning = chip.tuning.persistent
    rule, most = tuning.block, tuning.block.work
    try:
        one = split(graph, rows, 1, tuning.tries).graph
        loop: Any = one.eqns[0].op
        each = sum(
            work(e) // 4 + tuning.wait if keeps_matrix(e, loop, tuning.kept) else work(e)
            for e in loop.body.eqns
        )
        little = fitting(loop, replace(rule, work=4 * most))
        little = little and -(-rows // chip.multiprocessors) * each <= most
        return little and fits_block(one, chip)
    except (Tangled, Unwritten):
        return False


def keeps_matrix(eqn: Eqn, loop: Any, most: int) -> bool:
    """True if the threads of a block can keep the matrix of a product over all iterations."""
    consts = loop.body.inputs[: loop.consts]
    found = [a for a in eqn.inputs if isinstance(eqn.op, DotGeneral) and a in consts]
    return bool(found) and sum(v.type.size for v in consts) <= most


# ------------------------------------------------------------------------------------------- a step


def small(eqn: Eqn, read: Container[Atom], rule: Rule, depth: int) -> list[Eqn] | None:
    """A step without regions, if a rule allows it, and loops within loops are no more than `depth`.
    Python numbers may go in, but none come out.
    """
    weak = any(v.type.weak and v in read for v in eqn.outs)
    if has_effect(eqn.op) or not eqn.outs or weak:
        return None
    if isinstance(eqn.op, CONTROL):
        *before, eqn = strengthened(eqn)
        op = prepared(eqn.op, depth)
        return [*before, replace(eqn, op=op)] if op is not None and fitting(op, rule) else None
    if isinstance(eqn.op, Resident) and (eqn.op.rows or eqn.op.grid):
        return None
    flat = spread([eqn])
    return flat if fits(flat, replace(rule, work=rule.around)) else None


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


def size(eqns: Sequence[Eqn]) -> int:
    """How many equations there are, those of rounds and branches among them."""
    inner = [g.eqns for e in eqns if isinstance(e.op, CONTROL) for g in e.op.graphs()]
    return len(eqns) + sum(map(size, inner))


def fits(eqns: Sequence[Eqn], rule: Rule, constants: Sequence[Atom] = ()) -> bool:
    """Whether equations of a round, or one step, are little enough for who can do them."""
    same = set(constants)
    for eqn in eqns:
        if eqn.op.is_view and same.issuperset(eqn.inputs):
            same.update(eqn.outs)
    each = [work(e, rule.product if same.isdisjoint(e.inputs) else rule.kept) for e in eqns]
    return all(possible(e, rule.elements) for e in eqns) and sum(each) <= rule.work


def fitting(op: Any, rule: Rule) -> bool:
    """Whether the rounds of a loop, and of the loops in it, are little enough; or the branches."""
    inner = [e.op for g in op.graphs() for e in g.eqns if isinstance(e.op, CONTROL)]
    return all(fits(g.eqns, rule, constants(op, g)) for g in op.graphs()) and all(
        fitting(each, rule) for each in inner
    )


def constants(op: Any, graph: Graph) -> Sequence[Atom]:
    """What is the same in all rounds."""
    if isinstance(op, ScanLoop):
        return graph.inputs[: op.consts]
    return graph.inputs[: op.body_consts] if isinstance(op, WhileLoop) and graph is op.body else ()


def possible(eqn: Eqn, elements: int) -> bool:
    op = eqn.op
    types = [a.type for a in (*eqn.inputs, *eqn.outs)]
    if not all(t.size for t in types) or any(t.weak for t in (v.type for v in eqn.outs)):
        return False
    if isinstance(op, CONTROL):
        return True  # its own rounds were looked at
    if op.is_view:
        return all(isinstance(a, Var) for a in eqn.inputs) or eqn.outs[0].type.size <= elements
    known = isinstance(op, (*FOLDS, DotGeneral)) or (isinstance(op, POINTS) and spoken(eqn))
    return known and all(v.type.size <= elements for v in eqn.outs)


def work(eqn: Eqn, product: float = 1) -> float:
    """How many elements are computed, or gone through; a product of two
    numbers counts for so many.
    """
    op: Any = eqn.op
    if op.is_view or isinstance(op, CONTROL):
        return 0
    size = eqn.outs[0].type.size
    if isinstance(op, DotGeneral):
        return product * size * math.prod(eqn.inputs[0].type.shape[i] for i in op.contract[0])
    return eqn.inputs[0].type.size if isinstance(op, FOLDS) else size


# ------------------------------------------------------------------------------- loops and branches


def prepared(op: Op, depth: int) -> Any:
    """A loop or a branch whose graphs are simplified and have no regions, `depth` loops within
    each other at most; None if one is not for a block.
    """
    if not depth or (isinstance(op, ScanLoop) and not op.length):
        return None
    graphs: list[Graph] = []
    for graph in op.graphs():  # type: ignore[attr-defined]
        found = inside(graph, depth)
        if found is None:
            return None
        graphs.append(found)
    if isinstance(op, ScanLoop):
        return replace(op, body=graphs[0])
    if isinstance(op, WhileLoop):
        return replace(op, cond=graphs[0], body=graphs[1])
    return Cond(tuple(graphs))


def inside(graph: Graph, depth: int) -> Graph | None:
    """The graph of a round or of a branch, for a block; None if it is not for one."""
    if graph.effect:
        return None
    graph = run(TIDY, graph, Context(body=True))
    eqns: list[Eqn] = []
    for eqn in spread(graph.eqns):
        if isinstance(eqn.op, CONTROL):
            op = prepared(eqn.op, depth - 1)
            if op is None:
                return None
            eqn = replace(eqn, op=op)
        eqns.append(eqn)
    if any(a.type.weak or not a.type.size for a in (*graph.inputs, *graph.outputs)):
        return None
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def spread(eqns: Sequence[Eqn]) -> list[Eqn]:
    """The equations with those of a region in its place."""
    found: list[Eqn] = []
    for eqn in eqns:
        op = eqn.op
        if isinstance(op, Region | Resident):
            env: dict[Var, Atom] = dict(zip(op.graph.inputs, eqn.inputs, strict=True))
            outs = dict(zip(op.graph.outputs, eqn.outs, strict=True))
            for each in op.graph.eqns:
                made = tuple(outs.get(v) or Var(v.type) for v in each.outs)
                found.append(Eqn(each.op, rename(env, each.inputs), made, each.source))
                env.update(zip(each.outs, made, strict=True))
        elif isinstance(op, Index) and op.size:
            found.append(replace(eqn, op=Wrap(op.size)))
        else:
            found.append(eqn)
    return found
