"""Rewrites for a GPU: orders of sums at indices, loops that are one kernel, random bits where they
are read, whole numbers in 32 bits, writes at indices that are all different.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, FLOAT64, INT64
from ge2.choice import Problem, prefs
from ge2.choice.choose import Candidate, Choice, choose
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.ir import (
    ArrayType,
    Atom,
    Dims,
    Eqn,
    Graph,
    Literal,
    Var,
    applied,
    makers_of,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import SUB, WHERE, ConvertElementType
from ge2.ops.graphs import Makers
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import Region, Resident, readers_of
from ge2.ops.index import Gather, Scatter, ScatterAdd, ScatterReduce, SumsInOrder, UpdateOrder
from ge2.ops.pointlike import Pointlike
from ge2.ops.random import Draw, RandomBits
from ge2.ops.reduce import CumSum
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Slice
from ge2.ops.sort import ArgSort, ToFront
from ge2.passes.context import NOTHING, Context
from ge2.passes.indices import SumsAt, Wrap, in_order, is_zero, orientation
from ge2.passes.loops import trim
from ge2.passes.take_to_mask import INT32
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.words import FAR
from ge2.targets.cuda.kernels import CudaResident
from ge2.targets.cuda.kernels.scatter import (
    CudaSumsAt,
    CudaSumsInOrder,
    CudaUpdateOrder,
)
from ge2.targets.cuda.kernels.tensor_cores import LoopApart
from ge2.targets.cuda.limits import ASSUMED, Limits
from ge2.targets.cuda.persistent.nodes import Unwritten
from ge2.targets.cuda.persistent.steps import CONTROL, Fit, Steps, count, taken_in
from ge2.targets.cuda.tuning import Rule

# -------- Sums at the same indices have the order of their updates once: those of several layers, of
# a value and its derivative, of all iterations of a loop.
# y = scatter_add 0 u i; z = scatter_add 0 v i
#   -> o, p = update_order i; y = sums_in_order u o p; z = sums_in_order v o p


# of sums by themselves, of an order, and of sums in it
SUMS: Final = (CudaSumsAt(), CudaUpdateOrder(), CudaSumsInOrder())
Places = tuple[tuple[Atom, ...], Dims]  # indices, and the sizes of the axes that they index


def shared_orders(graph: Graph, context: Context) -> Graph:
    """The graph in which sums at the same indices share the order of their updates, where that is
    quicker than what each would do.
    """
    caps = Caps.before(context.caps if isinstance(context.caps, Limits) else ASSUMED)
    eqns = tuple(with_order_before(e, caps) for e in graph.eqns)
    if eqns != graph.eqns:
        graph = trim(replace(graph, eqns=eqns), context)
    alike = sums_by_places(graph)
    return in_order_of(
        graph, {k for k, found in alike.items() if is_worth(found, len(found), caps)}
    )


def with_order_before(eqn: Eqn, caps: Caps) -> Eqn:
    """A scan whose sums at indices that no iteration changes are in an order, which `trim` has made
    before it.
    """
    op = eqn.op
    if not isinstance(op, ScanLoop) or op.length < 2:
        return eqn
    known = {*op.parts(op.body.inputs)[0]}
    for e in op.body.eqns:
        if known.issuperset(a for a in e.inputs if isinstance(a, Var)) and not e.op.effect:
            known.update(e.outs)
    alike = {k: f for k, f in sums_by_places(op.body).items() if known.issuperset(k[0])}
    shared = {k for k, f in alike.items() if is_worth(f, len(f) * op.length, caps)}
    body = in_order_of(op.body, shared)
    return eqn if body is op.body else replace(eqn, op=replace(op, body=body))


def sums_by_places(graph: Graph) -> dict[Places, list[Eqn]]:
    """The sums at indices of zeros, by where they go."""
    makers, found = makers_of(graph), dict[Places, list[Eqn]]()
    for e in graph.eqns:
        x = makers.get(e.inputs[0]) if isinstance(e.op, ScatterAdd) else None
        if x is not None and is_zero(x) and not e.op.window:  # type: ignore[attr-defined]
            found.setdefault(places_of(e), []).append(e)
    return found


def alone(eqn: Eqn) -> Eqn:
    """Sums at indices of zeros, without these."""
    if not isinstance(eqn.op, ScatterAdd):
        return eqn
    return replace(eqn, op=SumsAt(eqn.op.axes, eqn.outs[0].type.shape), inputs=eqn.inputs[1:])


def places_of(eqn: Eqn) -> Places:
    op = alone(eqn).op
    assert isinstance(op, SumsAt)
    return alone(eqn).inputs[1:], tuple(op.shape[a] for a in op.axes)


def is_worth(sums: Sequence[Eqn], times: int, caps: Caps) -> bool:
    """True if an order for sums that are alike is predicted to be quicker; `times`: how many there
    are of one.
    """
    eqn, unwanted = sums[0], prefs().refuses
    sizes = [a.type.size for a in eqn.inputs]
    if times < 2 or not min(sizes) or max(sizes) >= FAR or any(unwanted(f.name) for f in SUMS):
        return False
    order, last = ordered(eqn)
    each, once, then = (
        choose(Problem.of(e, "cuda", in_c_order), caps, prefs(), (family,)).candidates[0].seconds
        for e, family in zip((alone(eqn), order, last), SUMS, strict=True)
    )
    return None not in (each, once, then) and times * each > once + times * then  # type: ignore[operator]


def ordered(eqn: Eqn, order: Eqn | None = None) -> tuple[Eqn, Eqn]:
    """The order of the updates, and their sums in it."""
    eqn = alone(eqn)
    op, (updates, *indices) = eqn.op, eqn.inputs
    assert isinstance(op, SumsAt)
    if order is None:
        made = UpdateOrder(places_of(eqn)[1])
        outs = tuple(map(Var, made.infer(*(a.type for a in indices))))
        order = Eqn(made, tuple(indices), outs, eqn.source)
    over = next((a.type.shape for a in indices if a.type.shape), ())
    then = SumsInOrder(op.axes, op.shape, over)
    return order, replace(eqn, op=then, inputs=(updates, *order.outs))


def in_order_of(graph: Graph, shared: set[Places]) -> Graph:
    """The graph with an order for all sums at these places."""
    if not shared:
        return graph
    eqns: list[Eqn] = []
    sums = {id(e): k for k, found in sums_by_places(graph).items() if k in shared for e in found}
    orders: dict[Places, Eqn] = {}
    for e in graph.eqns:
        key = sums.get(id(e))
        if key is None:
            eqns.append(e)
            continue
        first = key not in orders
        orders[key], then = ordered(e, orders.get(key))
        eqns += [orders[key], then] if first else [then]
    return without_dead_code(replace(graph, eqns=tuple(eqns)))


# -------- The pass that decides which loops and branches become one kernel, together with the small
# steps around them.
# Each alone, or with others as one kernel, is a question to `choose`: a persistent kernel, or
# launches step by step; `targets/cuda/persistent/steps.py` has the rule. What is asked is decided
# here:
# * A kernel has about so many `equations` at most. * Among the steps is a loop or a branch: others
# are launched anyway, and over the whole GPU. * What one block does is looked for first, then what
# all blocks do together.


def resident(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with `resident` steps in place of loops and branches that are
    small, and of what is near.
    """
    limits = context.caps if isinstance(context.caps, Limits) else ASSUMED
    tuning = limits.tuning.persistent
    if any(v.type.size >= FAR for v in (*graph.inputs, *(v for e in graph.eqns for v in e.outs))):
        return graph  # places in parts of such need 64 bits
    steps = Steps()
    for rule in (tuning.block, tuning.grid):
        if any(isinstance(e.op, CONTROL) for e in graph.eqns):
            graph = Sweep(graph, rule, Caps.before(limits), steps).run()
    steps.clear()
    return graph


@final
class Sweep:
    """One way through a graph, by one rule: runs of steps that it allows become one each."""

    def __init__(self, graph: Graph, rule: Rule, caps: Caps, steps: Steps) -> None:
        self.graph, self.rule, self.caps, self.steps = graph, rule, caps, steps
        self.tuning, self.catalog = (
            caps.limits.tuning.persistent,
            (CudaResident(steps), LoopApart(steps)),
        )
        self.read = {a for e in graph.eqns for a in e.inputs} | set(graph.outputs)
        # of loops and branches that stay launches
        loops = [e for e in graph.eqns if isinstance(e.op, CONTROL)]
        self.kept = {e: e.choice for e in loops if isinstance(e.choice, Choice)}
        self.done: list[Eqn] = []
        self.waiting: list[Eqn] = []  # steps of the current run

    def run(self) -> Graph:
        made: set[Atom] = set()  # by the current run
        size = 0
        for eqn in self.graph.eqns:
            shared = None if self.rule.grid else self.by_rows(eqn)
            flat = self.small(eqn) if shared is None else None
            if flat is None:
                if not made.isdisjoint(eqn.inputs):  # else what comes before it may come later
                    self.close()
                    made, size = set(), 0
                self.done.append(shared or self.apart(eqn))
                continue
            if size + count(flat) > self.tuning.equations:
                self.close()
                made, size = set(), 0
            self.waiting.append(eqn)
            made.update(eqn.outs)
            size += count(flat)
        self.close()
        eqns = (replace(e, choice=self.kept[e]) if e in self.kept else e for e in self.done)
        return Graph(self.graph.inputs, tuple(eqns), self.graph.outputs, self.graph.consts)

    def small(self, eqn: Eqn) -> list[Eqn] | None:
        """A step without regions, if the rule allows it. Python numbers may go in, but none come
        out.
        """
        if any(v.type.weak and v in self.read for v in eqn.outs):
            return None
        try:
            flat = self.steps.flat(eqn, self.tuning.depth)
            taken_in(eqn, flat, self.rule)
        except Unwritten:
            return None
        return flat

    def apart(self, eqn: Eqn) -> Eqn:
        """A step that the rule does not allow; of a loop or a branch it is noted why."""
        return (self.one([eqn]) if isinstance(eqn.op, CONTROL) else None) or eqn

    def by_rows(self, eqn: Eqn) -> Eqn | None:
        """A loop whose rows blocks share, if one can be chosen."""
        op = eqn.op
        if not isinstance(op, ScanLoop) or any(a.type.weak for a in eqn.inputs):
            return None
        counts = dict.fromkeys(a.type.shape[0] for a in op.parts(eqn.inputs)[1] if a.type.shape)
        return next(filter(None, (self.one([eqn], rows) for rows in counts if rows)), None)

    def close(self) -> None:
        """Ends a run: its steps become one, those that have nothing to do with its loops and
        branches come after it; or each loop one for itself, where all are too much for one kernel.
        """
        run, self.waiting = self.waiting, []
        chosen = near(run, self.rule)
        rest = [eqn for n, eqn in enumerate(run) if n not in chosen]
        found = self.one([run[n] for n in chosen]) if chosen else None
        if found is not None or not chosen:
            self.done += [*([found] if found else []), *rest]
        elif len(chosen) == 1:
            self.done += run
        else:
            self.done += map(self.apart, run)

    # -- the choice

    def one(self, steps: Sequence[Eqn], rows: int = 0) -> Eqn | None:
        """Steps as a single one, if a persistent kernel is chosen for them."""
        choice = self.choice(steps, rows)
        fit = choice.taken.variant.plan
        if isinstance(fit, Fit):
            body = fit.body
            source = next((e.source for e in steps if isinstance(e.op, CONTROL)), steps[0].source)
            outs = tuple(a for a in body.outputs if isinstance(a, Var))
            return Eqn(Resident(body, rows, self.rule.grid), body.inputs, outs, source, choice)
        if len(steps) == 1:
            self.kept[steps[0]] = replace(choice, refused=(*choice.refused, *slower(choice)))
        return None

    def choice(self, steps: Sequence[Eqn], rows: int) -> Choice:
        """The choice for steps as one problem, with all that was refused for them before."""
        made = dict.fromkeys(v for e in steps for v in e.outs)
        given = [a for e in steps for a in e.inputs if isinstance(a, Var) and a not in made]
        gone = set(steps)
        read = {a for e in self.graph.eqns if e not in gone for a in e.inputs}
        outs = tuple(v for v in made if v in read or v in self.graph.outputs)
        whole = Graph(tuple(dict.fromkeys(given)), tuple(steps), outs)
        one = Eqn(Resident(whole, rows, self.rule.grid), whole.inputs, outs)
        found = choose(Problem.of(one, "cuda", in_c_order), self.caps, prefs(), self.catalog)
        before = [c for e in steps if e in self.kept for c in self.kept[e].refused]
        return replace(found, refused=(*before, *found.refused))


def slower(choice: Choice) -> list[Candidate]:
    """The candidates that were predicted to take longer, with that as the reason, for people."""
    least = choice.taken.predicted
    if choice.by != "predicted" or least is None:
        return []
    return [
        replace(c, refusal=f"predicted {c.predicted * 1e6:.3g} us, launches {least * 1e6:.3g}")
        for c in choice.others
        if c.predicted is not None
    ]


def in_c_order(role: str, i: int, a: Atom) -> Operand:
    """An array in C order, as it is taken to be before layouts are known."""
    return Operand(role, i, plain(a.type.shape).strides, value=a.type.weak)


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


# -------- Random bits that only elementwise regions read are made there, element by element, and
# never stored; so are parts of them, of leading axes. The bits are those of the whole stream.
# It is for targets that make a number faster than they read one.


Made = tuple[Eqn, int]  # random bits, and the element of them that an array begins with


def drawn(graph: Graph) -> Graph:
    """The graph with `draw` in its regions in place of `random_bits` before them."""
    bits = [e for e in graph.eqns if isinstance(e.op, RandomBits) and e.inputs[0].type.ndim == 1]
    if not bits:
        return graph
    readers = readers_of(graph)
    makers: dict[Atom, Made] = {}
    for e in bits:
        found: dict[Atom, Made] = {v: (e, n) for v, n in parts_of(e, readers.get(e.outs[0], []))}
        stored = {e.outs[0], *found}.intersection(graph.outputs)
        if not stored and all(inner(r, v) for v in found for r in readers.get(v, [])):
            makers |= found
    gone = {e.outs[0] for e, _ in makers.values()}
    words: dict[Atom, tuple[Var, Var]] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        if eqn.outs and eqn.outs[0] in gone:
            views = [view for n in (0, 1) for view in word(eqn, n)]
            words[eqn.outs[0]] = views[1].outs[0], views[3].outs[0]
            eqns += views
        elif not (eqn.outs and eqn.outs[0] in makers):
            for var in (a for a in eqn.inputs if isinstance(a, Var) and a in makers):
                eqn = with_draw(eqn, var, makers[var], words[makers[var][0].outs[0]])
            eqns.append(eqn)
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts) if gone else graph


def parts_of(bits: Eqn, readers: Sequence[Eqn]) -> list[tuple[Var, int]]:
    """The arrays that are read of random bits, and where each begins in the stream: parts of leading
    axes, if nothing else reads the bits; else all of them.
    """
    (whole,) = bits.outs
    found = [(e.outs[0], first_of(e)) for e in readers]
    if found and all(first is not None for _, first in found):
        return [(v, first) for v, first in found if first is not None]
    return [(whole, 0)]


def first_of(eqn: Eqn) -> int | None:
    """The first element of a part whose elements lie one after another; None of anything else."""
    op, shape = eqn.op, eqn.inputs[0].type.shape
    if not isinstance(op, Slice) or any(step != 1 for step in op.step):
        return None
    cut = [a for a, n in enumerate(shape) if op.stop[a] - op.start[a] != n]
    last = max(cut, default=0)
    if any(op.stop[a] - op.start[a] != 1 for a in range(last)):
        return None
    return sum(start * math.prod(shape[a + 1 :]) for a, start in enumerate(op.start))


def word(eqn: Eqn, n: int) -> tuple[Eqn, Eqn]:
    """One word of a key, as views."""
    (key,) = eqn.inputs
    part, number = Slice((n,), (n + 1,), (1,)), Reshape(())
    (one,) = part.infer(key.type)
    (none,) = number.infer(one)
    cut, scalar = Var(one), Var(none)
    return Eqn(part, (key,), (cut,), eqn.source), Eqn(number, (cut,), (scalar,), eqn.source)


def inner(eqn: Eqn, var: Atom) -> bool:
    """True if a region reads the value once, in the order in which it is stored."""
    op = eqn.op
    if not isinstance(op, Region) or op.kind != "pointwise" or eqn.inputs.count(var) != 1:
        return False
    at = orientation(op, op.graph.inputs[eqn.inputs.index(var)])
    return at is not None and in_order(at)


def with_draw(eqn: Eqn, var: Var, made: Made, words: tuple[Var, Var]) -> Eqn:
    """A region that is given the words of a key."""
    op, i, (bits, first) = eqn.op, eqn.inputs.index(var), made
    assert isinstance(op, Region)
    assert isinstance(bits.op, RandomBits)
    inside, given = op.graph, (Var(words[0].type), Var(words[1].type))
    value = inside.inputs[i]
    at = orientation(op, value)
    assert at is not None
    begin = (Literal(np.int64(first), ArrayType((), INT64)),) if first else ()
    draw = Eqn(Draw(value.type.shape, bits.op.dtype), (*given, *begin), (value,), bits.source)
    inputs = (*inside.inputs[:i], *given, *inside.inputs[i + 1 :])
    whole = Graph(inputs, (draw, *inside.eqns), inside.outputs, inside.consts)
    return replace(
        eqn, op=replace(op, axes=(at, *op.axes), graph=whole),
        inputs=(*eqn.inputs[:i], *words, *eqn.inputs[i + 1 :]),
    )  # fmt: skip


# -------- Whole numbers in 32 bits: running sums of masks and bytes, which NumPy has in 64, and the
# places of writes that regions compute, which are stored for them alone.
# y = cumsum[axis=0] (convert i64 mask) -> y = convert i64 (cumsum[axis=0] (convert i32 ...))
# y = scatter_add x u i -> y = scatter_add x u (wrap[size=n] i)


def narrow_integers(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with running sums of masks and bytes, and computed indices of writes, in 32 bits."""
    sizes, makers, least = sizes_indexed(graph), makers_of(graph), context.tuning.narrowed
    others = [e.inputs for e in graph.eqns if not isinstance(e.op, Pointlike)]
    stored = {a for each in (*others, graph.outputs) for a in each if isinstance(a, Var)}
    names, eqns = dict[Atom, Var](), list[Eqn]()
    for e in graph.eqns:
        if is_small_sum(e, makers, least) and stored.isdisjoint(e.outs):
            x = applied(eqns, ConvertElementType(INT32), *e.inputs, source=e.source)
            y = applied(eqns, e.op, x, source=e.source)
            e = replace(e, op=ConvertElementType(e.outs[0].type.dtype), inputs=(y,))
        if is_count(e, makers, least):
            e = counted(replace(e, inputs=tuple(names.get(a, a) for a in e.inputs)), eqns)
        eqns.append(replace(e, inputs=tuple(names.get(a, a) for a in e.inputs)) if names else e)
        for v in e.outs if isinstance(e.op, Pointlike) else ():
            of, n = v.type, max(sizes.get(v, {0}))
            if (of.dtype, sizes.get(v)) == (INT64, {n}) and of.size >= least and 0 < n < FAR:
                names[v] = applied(eqns, Wrap(n), v, source=e.source)
    return graph if len(eqns) == len(graph.eqns) else replace(graph, eqns=tuple(eqns))


def is_small_sum(e: Eqn, makers: Mapping[Any, Eqn], least: int) -> bool:
    """True of so many running sums of masks or bytes, in 64 bits, that fit in 32."""
    if not isinstance(e.op, CumSum) or e.outs[0].type.dtype != INT64:
        return False
    largest = largest_of(e.inputs[0], makers)
    return least <= e.outs[0].type.size and 0 < e.outs[0].type.size * largest < 1 << 31


def largest_of(x: Atom, makers: Mapping[Any, Eqn]) -> int:
    """A bound of whole numbers that are masks or bytes, or one number; 0 of others."""
    if isinstance(x, Literal):
        return int(x.value.real) if x.value.real in range(1, 256) else 0
    while x.type.dtype.itemsize > 1:
        if x not in makers or not isinstance(makers[x].op, ConvertElementType):
            return 0
        (x,) = makers[x].inputs
    return 1 if x.type.dtype == BOOL else 256 if x.type.dtype.kind in "iu" else 0


def is_count(e: Eqn, makers: Mapping[Any, Eqn], least: int) -> bool:
    """True of sums at indices, in floating point, that are whole numbers which it has exactly."""
    if not isinstance(e.op, SumsAt) or e.outs[0].type.dtype not in (FLOAT32, FLOAT64):
        return False
    n = max(a.type.size for a in e.inputs)
    if math.prod(e.op.shape) > n:  # which is gone through once more
        return False
    exact = 24 if e.outs[0].type.dtype == FLOAT32 else 30
    return n >= least and 0 < n * largest_of(e.inputs[0], makers) <= 1 << exact


def counted(e: Eqn, eqns: list[Eqn]) -> Eqn:
    """The same by sums of int32, which atomics add in any order."""
    assert isinstance(e.op, SumsAt)
    x, *indices = e.inputs
    made, zero = partial(applied, eqns, source=e.source), Literal.of(np.int32(0))
    whole: Atom = (
        made(ConvertElementType(INT32), x)
        if isinstance(x, Var)
        else Literal.of(np.int32(int(x.value.real)))
    )
    zeros = made(BroadcastInDim(e.op.shape, ()), zero)
    total = made(ScatterAdd(e.op.axes), zeros, whole, *indices)
    return replace(e, op=ConvertElementType(e.outs[0].type.dtype), inputs=(total,))


def sizes_indexed(graph: Graph) -> dict[Atom, set[int]]:
    """The sizes of the axes that values index, where those are written at; 0 for all other reads."""
    found = dict[Atom, set[int]]((a, {0}) for a in graph.outputs if isinstance(a, Var))
    for e in graph.eqns:
        read, sizes = e.inputs, list[int]()
        if isinstance(e.op, SumsAt):
            sizes = [e.op.shape[a] for a in e.op.axes]
        elif isinstance(e.op, Scatter | ScatterReduce):
            sizes = [e.inputs[0].type.shape[a] for a in e.op.axes]
        others = [0] * (len(read) - len(sizes))
        for a, n in zip(read, (*others, *sizes), strict=True):
            if isinstance(a, Var):
                found.setdefault(a, set()).add(n)
    return found


# -------- Writes at indices that are all different need not look for the last of each place; and writes
# of what a mask chooses to the places that its running sum counts are its elements, moved to the front.
# y = scatter x u (argsort v) -> y = scatter[unique=True] x u (argsort v)
# y = (scatter (broadcast r) u (where m (cumsum m - 1) n))[:n] -> y = to_front m u r


def distinct_writes(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose writes at indices that are known to be different say so."""
    makers, readers, instead = makers_of(graph), readers_of(graph), dict[Any, Atom]()
    eqns = list[Eqn]()
    for e in graph.eqns:
        if isinstance(e.op, Scatter) and not e.op.window and not e.op.unique:
            x, parts = e.inputs[0].type, readers.get(e.outs[0], [])
            kept = e.outs[0] in graph.outputs or not all(isinstance(r.op, Slice) for r in parts)
            front = None if kept else moved_to_front(e, parts, makers, eqns)
            if front is not None:
                instead |= {r.outs[0]: front for r in parts if r.outs[0].type == front.type}
                instead[e.outs[0]] = front
                continue
            sizes = [x.shape[a] for a in e.op.axes]
            distinct = len(sizes) == 1 and 0 < below(e.inputs[2], makers) <= sizes[0]
            e = replace(e, op=replace(e.op, unique=distinct))
        eqns.append(renamed(instead, e))
    outputs = tuple(instead.get(a, a) for a in graph.outputs)
    return without_dead_code(replace(graph, eqns=tuple(eqns), outputs=outputs))


def below(x: Atom, makers: Makers) -> int:
    """A number that the elements of a vector are below, none of which is negative, if it is known that
    they are all different; else 0.
    """
    e = makers.get(x)
    if e is None or x.type.ndim != 1 or x.type.dtype.itemsize < INT32.itemsize:
        return 0
    if isinstance(e.op, ArgSort | Iota):
        return x.type.size
    named = isinstance(e.op, Gather) and 0 < below(e.inputs[1], makers) <= e.inputs[0].type.size
    passed = named or isinstance(e.op, ConvertElementType | Slice)
    return below(e.inputs[0], makers) if passed else 0


def moved_to_front(e: Eqn, parts: Sequence[Eqn], makers: Makers, eqns: list[Eqn]) -> Atom | None:
    """A vector whose elements that a mask chooses come first, followed by the number that was there. It
    replaces a write that puts them where the mask's running sum says, and all others behind the
    parts that are read. None of other writes.
    """
    (u, index), number = e.inputs[1:3], makers.get(e.inputs[0])
    at = makers.get(as_counted(index, makers))
    if at is None or at.op is not WHERE or number is None or len(e.outs[0].type.shape) != 1:
        return None
    mask, place, behind = at.inputs
    less = makers.get(as_counted(place, makers))
    by = less.inputs[1] if less is not None and less.op is SUB else mask
    total = makers.get(as_counted(less.inputs[0], makers)) if isinstance(by, Literal) else None  # type: ignore[union-attr]
    if total is None or total.op != CumSum(0) or by.value != 1 or not isinstance(behind, Literal):  # type: ignore[union-attr]
        return None
    read, same = max((r.op.stop[0] for r in parts), default=FAR), u.type.shape == mask.type.shape  # type: ignore[attr-defined]
    far = read <= u.type.size <= int(behind.value.real) < FAR
    constant = isinstance(number.op, BroadcastInDim) and not number.inputs[0].type.shape
    if as_counted(total.inputs[0], makers) is not mask or not (far and same and constant):
        return None
    return applied(eqns, ToFront(), mask, u, *number.inputs, source=e.source)


def as_counted(x: Atom, makers: Makers) -> Atom:
    """Whole numbers before they were made those of a type of 32 bits or more."""
    e = makers.get(x)
    if e is None or not isinstance(e.op, ConvertElementType) or x.type.dtype.kind not in "iu":
        return x
    wide = x.type.dtype.itemsize >= INT32.itemsize and e.inputs[0].type.dtype.kind in "bi"
    return as_counted(e.inputs[0], makers) if wide else x
