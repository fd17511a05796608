"""Steps of a program: their kinds, and where their results are without copies."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from ge2.choice import Family, Problem
from ge2.choice.choose import Choice
from ge2.codegen.kernel_values import NONE, Blocks
from ge2.codegen.layout import Layout, plain, reshaped
from ge2.compile.catalog import catalog_of, select
from ge2.compile.writes import is_view
from ge2.ir import (
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs import InRuns, Rolled, Windows, stored_rolls
from ge2.ops.graphs.contraction import ProductSteps, is_contraction, steps_of
from ge2.ops.graphs.region import Region, is_loop, readers_of
from ge2.ops.index import Gather
from ge2.ops.reduce import Reduce
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context, Results
from ge2.passes.fold import on_host
from ge2.passes.reads import made_of
from ge2.program import CONTROL, WRITES, Buffer
from ge2.targets import Library
from ge2.targets.c.blocked import tile

if TYPE_CHECKING:
    from ge2.compile.writes import Scheduler


# -------- The kind of step that an equation is on a target.


NATIVE = ("c", "cuda")  # targets whose kernels take arrays by their layouts


Served = dict[Problem, Family[Any, Any] | None]


def kind_of(eqn: Eqn, target: str, known: Served | None = None) -> str:
    """`known`: the families of problems that were met before."""
    if on_host(eqn):
        return "host"
    if isinstance(eqn.op, Region):
        return "kernel" if served(eqn, target, known) else "library"
    if target == "cuda" and isinstance(eqn.op, CONTROL) and not weakly(eqn):
        return "hosted"
    constant = isinstance(eqn.op, Iota) or (
        isinstance(eqn.op, BroadcastInDim) and isinstance(eqn.inputs[0], Literal)
    )
    if constant:
        return "kernel" if target in NATIVE else "view"
    if eqn.op.is_view:
        return (
            "view" if all(isinstance(a, Var) and not a.type.weak for a in eqn.inputs) else "library"
        )
    family = served(eqn, target, known)
    return "library" if family is None else family.step_kind


def weakly(eqn: Eqn) -> bool:
    """True if Python numbers go in or come out."""
    return any(a.type.weak for a in (*eqn.inputs, *eqn.outs))


def served(eqn: Eqn, target: str, known: Served | None = None) -> Family[Any, Any] | None:
    """The family of kernels of ours that serves the equation, if one does."""
    if len(eqn.outs) == 1 and eqn.outs[0].type.weak:
        return None
    problem, known = Problem.of(eqn, target), {} if known is None else known
    if problem not in known:
        family = select(problem).family
        known[problem] = None if isinstance(family, Library) else family
    return known[problem]


# -------- The places of a step's inputs within its result, where they may be made instead of copied
# there.


def places_in(eqn: Eqn, around: Layout | None) -> dict[int, Layout]:
    """The layouts of inputs within the result of an equation that joins or pads them, as they are;
    `around` is the layout of the result, if it is part of another array.
    """
    op, (out,) = eqn.op, eqn.outs[:1]
    whole = around or plain(out.type.shape)
    if isinstance(op, Concatenate):
        found, at = {}, 0
        for i, a in enumerate(eqn.inputs):
            found[i] = Layout(whole.offset + at * whole.strides[op.axis], whole.strides)
            at += a.type.shape[op.axis]
        return found
    if isinstance(op, Pad) and min(*op.low, *op.high, 0) >= 0 and not any(op.inner):
        offset = sum(n * s for n, s in zip(op.low, whole.strides, strict=True))
        return {0: Layout(whole.offset + offset, whole.strides)}
    return {}


def is_anywhere(op: Op, target: str) -> bool:
    """True if all kernels of an operation write results of any strides."""
    found = [f for f in catalog_of(target) if f.serves(op) and not isinstance(f, Library)]
    return bool(found) and all(f.anywhere for f in found)


def is_small(eqn: Eqn, there: Collection[int]) -> bool:
    """True if a GPU joins arrays in one launch, which takes as long as the copy of one of several
    parts that are not made in their places.
    """
    from ge2.targets.cuda.limits import ASSUMED

    most, parts = ASSUMED.tuning.joins, {i for i, a in enumerate(eqn.inputs) if a.type.size}
    few = len(parts) <= most.parts and eqn.outs[0].type.size <= most.elements
    return few and len(parts - set(there)) > 1


def crowded(graph: Graph) -> set[Atom]:
    """Windows, and views of them, that something else than a view or a loop over elements reads: many
    of their elements are one in memory, which products and all else are spared.
    """
    found = set[Atom]()
    for e in graph.eqns:
        if isinstance(e.op, Windows) or (e.op.is_view and not found.isdisjoint(e.inputs)):
            found.update(e.outs)
    if not found:
        return found
    return {a for e in graph.eqns if not (e.op.is_view or is_loop(e.op)) for a in e.inputs} & found


def before(eqn: Eqn, place: Layout) -> Layout | None:
    """The layout of the input of a reshape or transpose whose result has the layout `place`."""
    op, (x, *_), (out, *_) = eqn.op, eqn.inputs, eqn.outs
    if isinstance(op, Reshape):
        return reshaped(place, out.type.shape, x.type.shape)
    assert isinstance(op, Transpose)
    strides = tuple(place.strides[op.order.index(i)] for i in range(len(op.order)))
    return Layout(place.offset, strides)


def has_rows(place: Layout, v: Var) -> bool:
    """True if elements are side by side along the last axis, as kernels of attention read features,
    and no axis runs backwards.
    """
    *outer, last = place.strides or (1,)
    return (last == 1 or v.type.shape[-1] == 1) and all(each >= 0 for each in outer)


def is_mappable(place: Layout, v: Var) -> bool:
    """True if a tensor map can write this layout: last axis contiguous, other strides and the offset
    multiples of 16 bytes.
    """
    *outer, last = place.strides or (1,)
    some = max(1, 16 // v.type.dtype.itemsize)
    return last == 1 and not any(each % some for each in (place.offset, *outer))


def multiplies_into(eqn: Eqn, layouts: Mapping[Var, Layout], strides: Dims) -> bool:
    """True of a product that a GPU's library writes with such strides in one call."""
    from ge2.targets.cuda.limits import ASSUMED
    from ge2.targets.cuda.products import by_blas

    if not isinstance(eqn.op, DotGeneral):
        return False
    a, b = (v.type for v in eqn.inputs)
    first, second = (
        (layouts.get(v) if isinstance(v, Var) else None) or plain(v.type.shape) for v in eqn.inputs
    )
    lie = first.strides, second.strides, strides
    found = by_blas(eqn.op, a, b, lie, ASSUMED.tuning.products.call)
    return found is not None and len(found[1].calls) == 1


# -------- Results written over arrays that their step reads: the test whether that is right, and
# the arrays of a GPU's program for which it is done.


def in_place(eqn: Eqn, i: int, x: Var, target: str, tuning: Blocks) -> bool:
    """True if result `i` of a step may be written over input `x` element by element."""
    op = eqn.op
    if isinstance(op, WRITES):
        return target in NATIVE and x is eqn.inputs[0] and eqn.inputs.count(x) == 1
    if not isinstance(op, Region):
        return False
    if is_contraction(op):
        return behind_product(eqn, steps_of(op), i, x, target, tuning)
    inner, out = op.graph.inputs[eqn.inputs.index(x)], op.graph.outputs[i]
    if eqn.inputs.count(x) != 1 or (target == "cuda" and is_divided(op, inner, out)):
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
            if len(at) != len(e.outs[0].type.shape) or isinstance(e.op, Rolled):
                return False  # a reduction, or elements that belong elsewhere
            orientation = at
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        elsewhere = e.op.is_view or isinstance(e.op, Gather | Pad | InRuns)
        if inner in e.inputs and (elsewhere or at != orientation):
            return False
    if target in NATIVE:  # the loops of any other axis may read it again
        return {a for a, n in enumerate(op.space) if n > 1} <= set(orientation or ())
    blocks = tile(op, tuning)
    return blocks.blocks == 1 or bool(set(orientation or ()) & set(blocks.cut))


def is_divided(op: Region, x: Var, out: Atom) -> bool:
    """True if kernels of a GPU may be several, of which one reads an array that another wrote over."""
    from ge2.targets.cuda.emit.split_region import is_read_later  # what programs in C need not load

    return is_read_later(op, x, out)


def behind_product(eqn: Eqn, op: ProductSteps, i: int, x: Var, target: str, tuning: Blocks) -> bool:
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
        if scheduler.target != "cuda" or not isinstance(eqn.op, Region):
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


# -------- Reads of a value before the write over it, which needs no copy of the value then.
# update_slice x y; gather x i -> gather x i; update_slice x y
# A write into a part of an array is made where the array is if nobody reads the array later. A
# loop's body reads elements after a write in the order of the user's lines, or of derivatives: each
# iteration would copy all of what it carries.


def reads_first(graph: Graph, context: Context = NOTHING) -> Graph:
    if not any(isinstance(e.op, WRITES) for e in graph.eqns):
        return graph
    order = Order(graph, context.tuning.before_writes)
    for eqn in graph.eqns:
        if isinstance(eqn.op, WRITES) and type(eqn.inputs[0]) is Var:
            order.clear(eqn, eqn.inputs[0])
    if not order.before:
        return graph
    return Graph(graph.inputs, tuple(order.eqns()), graph.outputs, graph.consts)


@final
class Order:
    """Equations that are to come before others."""

    def __init__(self, graph: Graph, most: int) -> None:
        self.graph, self.most = graph, most
        self.at = {e: i for i, e in enumerate(graph.eqns)}
        self.makers = makers_of(graph)
        self.users = readers_of(graph)
        self.returned = {a for a in graph.outputs if type(a) is Var}
        self.before: dict[Eqn, Sequence[Eqn]] = {}

    def clear(self, write: Eqn, x: Var) -> None:
        """Lists what reads x after a write over it, if all of that may come before the write."""
        if x in self.returned:
            return
        late = [e for e in self.readers(x) if self.at[e] > self.at[write]]
        moved: set[Eqn] = set()
        if not late or not all(self.gather(e, write, moved) for e in late):
            return
        results = {v for e in moved if not is_view(e) for v in e.outs}
        if sum(v.type.nbytes for v in results) < x.type.nbytes:
            self.before[write] = sorted(moved, key=self.at.__getitem__)

    def readers(self, x: Var) -> Iterator[Eqn]:
        """The equations that read a value or a view of it."""
        for e in self.users.get(x, ()):
            yield e
            if is_view(e):
                for v in e.outs:
                    yield from self.readers(v)

    def gather(self, eqn: Eqn, write: Eqn, moved: set[Eqn]) -> bool:
        """Adds an equation, and what it needs, to those that are moved before a write; False if one
        of them may not be.
        """
        if self.at[eqn] < self.at[write] or eqn in moved:
            return True
        runs = bool(eqn.op.graphs()) and not isinstance(eqn.op, Region)  # a loop, a branch
        fixed = eqn is write or isinstance(eqn.op, WRITES) or runs or bool(eqn.op.effect)
        kept = is_view(eqn) and not self.returned.isdisjoint(eqn.outs)
        if fixed or kept or len(moved) == self.most:
            return False
        moved.add(eqn)
        makers = [self.makers[a] for a in eqn.inputs if type(a) is Var and a in self.makers]
        return all(self.gather(e, write, moved) for e in makers)

    def eqns(self) -> Iterator[Eqn]:
        done: set[Eqn] = set()
        for eqn in self.graph.eqns:
            for e in (*self.before.get(eqn, ()), eqn):
                if e not in done:
                    done.add(e)
                    yield e


# -------- Moves regions that compute results of the program one beside another: small ones to its
# end.
# b', m', v' = region b m v g; ...; c', n', w' = region c n w h; ... -> ...; b', m', v' = region b m
# v g; c', n', w' = region c n w h
# The weights of a network are updated by a kernel each, as soon as their gradients are there.
# Between the large kernels of a backward pass each is a launch of its own, which begins and ends
# with an idle GPU; next to one another they become one launch (`launch/bundle`). A gradient waits
# for that, so all that wait at once have to be few bytes.


def results_together(graph: Graph, context: Context = NOTHING) -> Graph:
    """Returns the graph with regions whose results no equation reads side by side."""
    if context.body:
        return graph
    tuning = context.tuning.results
    read = {a for e in graph.eqns for a in e.inputs if isinstance(a, Var)}
    last = [e for e in graph.eqns if is_loop(e.op) and read.isdisjoint(e.outs)]
    small = [e for e in last if sum(v.type.nbytes for v in (*e.inputs, *e.outs)) <= tuning.small]
    small = small if len(small) >= tuning.few else []
    made = {v for e in graph.eqns for v in e.outs}
    moved = {id(e) for e in small}
    groups = waiting([e for e in last if id(e) not in moved], made, tuning)
    if not small and not groups:
        return graph
    behind = {id(group[-1]): group for group in groups}  # of each last one all of its group
    moved |= {id(e) for group in groups for e in group}
    eqns = list[Eqn]()
    for e in graph.eqns:
        eqns += behind.get(id(e), [] if id(e) in moved else [e])
    return replace(graph, eqns=(*eqns, *small))


def waiting(eqns: Sequence[Eqn], made: Collection[Var], tuning: Results) -> list[list[Eqn]]:
    """Groups of equations that are alike, of which all but the last wait, with what they alone may
    read of what the program has made.
    """
    groups, room = dict[Hashable, list[list[Eqn]]](), dict[Hashable, int]()
    for e in eqns:
        key = likeness(e)
        needed = sum(a.type.nbytes for a in e.inputs if a in made)
        room[key] = room.get(key, -1) - needed
        if room[key] < 0:  # the first, or one for which there is none
            groups.setdefault(key, []).append([])
            room[key] = max(tuning.waiting - needed, 0)
        groups[key][-1].append(e)
    return [group for alike in groups.values() for group in alike if len(group) >= tuning.few]


def likeness(e: Eqn) -> Hashable:
    """Returns a key that is equal for regions whose kernels probably have the same text."""
    assert isinstance(e.op, Region)
    types = (*(a.type for a in e.inputs), *(v.type for v in e.outs))
    return e.op.kind, len(e.op.graph.eqns), tuple([(t.dtype, t.ndim) for t in types])


# -------- Results of elementwise work that are rolled are written where their elements belong.
# y = region x; z = concatenate y[5:] y[:5] -> z = region (rolled[shifts=(n - 5,)] x)
# Else a kernel writes an array, and two more copy its parts; or each part is computed by a kernel of its own.


def rolled_results(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions write results that are rolled, and stored, where their elements belong;
    what is rolled along several axes is one copy else.
    """
    found = stored_rolls(graph, lambda e: is_loop(e.op))
    wanted = dict[Var, list[tuple[Var, Dims]]]()
    for y, (x, shifts) in found.items():
        wanted.setdefault(x, []).append((y, shifts))
    eqns, done = list[Eqn](), set[Var]()
    for e in graph.eqns if found else ():
        for x in e.outs:
            new = rolling(e, x, wanted[x], context.tuning.results) if x in wanted else None
            if new is not None:
                e = new
                done.update(y for y, _ in wanted[x])
        if e.outs and e.outs[0] in found and isinstance(e.op, Concatenate):
            x, shifts = found[e.outs[0]]
            if e.outs[0] in done:
                continue
            e = copy_rolled(e, x, shifts) if sum(map(bool, shifts)) > 1 else e
        eqns.append(e)
    if not found:
        return graph
    graph = without_dead_code(replace(graph, eqns=tuple(eqns)))
    read = {a for e in graph.eqns for a in e.inputs} | {*graph.outputs}
    made = (only_read(e, read) if not done.isdisjoint(e.outs) else e for e in graph.eqns)
    return replace(graph, eqns=tuple(made))


def only_read(eqn: Eqn, read: Collection[Atom]) -> Eqn:
    """A region without results that nobody reads, which are values of others that it makes."""
    op, kept = eqn.op, [n for n, v in enumerate(eqn.outs) if v in read]
    assert isinstance(op, Region)
    graph = replace(op.graph, outputs=tuple(op.graph.outputs[n] for n in kept))
    return replace(eqn, op=replace(op, graph=graph), outs=tuple(eqn.outs[n] for n in kept))


def rolling(eqn: Eqn, x: Var, wanted: Sequence[tuple[Var, Dims]], tuning: Results) -> Eqn | None:
    """A region that makes its result `x` rolled, too; None of what is made otherwise, or is left of so
    many elements that blocks may share them.
    """
    op = eqn.op
    if not is_loop(op) or tuning.folded * x.type.size < math.prod(op.space):
        return None
    graph, inner = op.graph, op.graph.outputs[eqn.outs.index(x)]
    made = zip(graph.eqns, op.axes, strict=True)
    at = next((at for e, at in made if inner in e.outs and not isinstance(e.op, Rolled)), ())
    if len(at) != x.type.ndim:
        return None
    more = [Eqn(Rolled(by), (inner,), (Var(y.type),), eqn.source) for y, by in wanted]
    results = (*graph.outputs, *(v for e in more for v in e.outs))
    graph = replace(graph, eqns=(*graph.eqns, *more), outputs=results)
    region = replace(op, axes=(*op.axes, *[at] * len(more)), graph=graph)
    return replace(eqn, op=region, outs=(*eqn.outs, *(y for y, _ in wanted)), choice=None)


def copy_rolled(eqn: Eqn, x: Var, shifts: Dims) -> Eqn:
    """The copy of an array whose elements are elsewhere along several axes."""
    shape = x.type.shape
    at = tuple(NONE if n == 1 else d for d, n in enumerate(shape))
    made = Eqn(Rolled(shifts), (given := Var(x.type),), (Var(eqn.outs[0].type),), eqn.source)
    region = Region("pointwise", shape, (at,), Graph((given,), (made,), made.outs))
    return replace(eqn, op=region, inputs=(x,))


# -------- Columns of points that a region of pairs reads along its threads are rows of the points turned.
# y = region[space=(n, n)] z[:, 0:1] z[:, 1:2] ... -> t = transpose z; y = region t[0:1] t[1:2] ...
# Else each of a warp's threads reads a line of memory of its own, for every row of pairs again.


def turned_columns(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose large regions read columns of points where neighbours lie side by side."""
    makers, eqns, turned = makers_of(graph), list[Eqn](), dict[Atom, Var]()
    for e in graph.eqns:
        if is_loop(e.op) and math.prod(e.op.space) >= context.tuning.results.pairs:
            e = by_columns(e, makers, turned, eqns, context.tuning.results)
        eqns.append(e)
    return replace(graph, eqns=tuple(eqns)) if turned else graph


def by_columns(
    eqn: Eqn, makers: Mapping[Var, Eqn], turned: dict[Atom, Var], before: list[Eqn], tuning: Results
) -> Eqn:
    """A region that reads several columns of one small array where that is turned; `before` takes what
    turns it.
    """
    op, found = eqn.op, dict[Atom, list[Eqn]]()
    assert isinstance(op, Region)
    for a, v in zip(eqn.inputs, op.graph.inputs, strict=True):
        made = makers.get(a) if isinstance(a, Var) else None
        if made is not None and is_column(made, tuning.neighbours) and is_along(op, v):
            found.setdefault(made.inputs[0], []).append(made)
    names = dict[Var, Atom]()
    for x, columns in found.items():
        if len(columns) < tuning.columns or tuning.beside * x.type.size > math.prod(op.space):
            continue
        if x not in turned:
            given, y = Var(x.type), Var(*Transpose((1, 0)).infer(x.type))
            turn = Eqn(Transpose((1, 0)), (given,), (y,), eqn.source)
            turned[x] = made_of(turn, given, x, before)
        for made in columns:
            (y,), at = made.outs, made.op.start[1]  # type: ignore[attr-defined]
            row = Slice((at, 0), (at + 1, x.type.shape[0]), (1, 1))
            names[y] = applied(before, Reshape(y.type.shape), applied(before, row, turned[x]))
    return renamed(names, eqn) if names else eqn


def is_column(eqn: Eqn, least: int) -> bool:
    """True of one column, of so many elements, of a matrix of several."""
    x, y = (*eqn.inputs, None)[0], eqn.outs[0].type
    return (
        isinstance(eqn.op, Slice) and x is not None and x.type.ndim == 2
        and y.shape == (x.type.shape[0], 1) != x.type.shape and y.shape[0] >= least
    )  # fmt: skip


def is_along(region: Region, v: Var) -> bool:
    """True if a region reads an input along the axis of its threads."""
    lane = len(region.space) - 1
    pairs = zip(region.graph.eqns, region.axes, strict=True)
    return lane > 0 and any(lane in at for e, at in pairs if v in e.inputs)


# -------- An array of constants is made right before it is read for the first time.
# z = broadcast_in_dim 0.0; ...; y = scatter_reduce z i u -> ...; z = broadcast_in_dim 0.0; y =
# scatter_reduce z i u
# A derivative makes the zeros into which it adds as soon as anything is differentiated; those of an
# embedding, 150 MB, would wait through the whole backward pass. Made late, they take memory for two
# steps, and are in the cache when they are read.


def constants_late(graph: Graph) -> Graph:
    """The graph with each array of constants before what reads it first; others keep their order."""
    waiting: dict[Var, Eqn] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if is_constant(eqn):
            waiting[eqn.outs[0]] = eqn
            continue
        needed = dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var) and a in waiting)
        eqns += [*map(waiting.pop, needed), eqn]
    return replace(graph, eqns=(*eqns, *waiting.values()))


def is_constant(eqn: Eqn) -> bool:
    """True if an equation makes an array of literals, or of places, alone."""
    literals = all(isinstance(a, Literal) for a in eqn.inputs)
    return isinstance(eqn.op, BroadcastInDim | Iota) and literals
