"""Writes into slices, done by the kernels that compute what is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from ge2.base.command import Provisional
from ge2.codegen.layout import Layout, around, plain, viewed
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, makers_of, without_dead_code
from ge2.ops.graphs.region import writing_twice
from ge2.ops.index import Indexed, UpdateSlice
from ge2.ops.shape import BroadcastInDim, Identity, Pad, Reshape, Slice, StopGradient, Transpose
from ge2.passes.context import Context
from ge2.passes.take_to_mask import Index
from ge2.program import WRITES, Buffer
from ge2.trace.writes import Writes

if TYPE_CHECKING:

    class Scheduler(Protocol):
        """The attributes of a scheduler that are read to choose where results are made."""

        graph: Graph
        target: str
        kinds: list[str]
        layouts: dict[Var, Layout]
        buffers: dict[Var, Buffer]
        makers: dict[Var, Eqn]
        donated: list[Var]
        there: dict[int, set[tuple[int, int]]]
        boxes: dict[int, Box]
        firsts: dict[Atom, Atom]
        parts: set[Var]

        @property
        def tuning(self) -> Any: ...
        @property
        def written(self) -> Mapping[Var, Var]: ...
        def number(self, a: Atom) -> int: ...
        def is_elementwise(self, eqn: Eqn, i: int, x: Var) -> bool: ...
        def in_place(self, n: int, i: int, x: Var) -> bool: ...
        def fails(self, m: int, first: int) -> bool: ...
        def made_for(self, a: Atom, place: Layout) -> Sequence[tuple[Var, Layout]]: ...
        def put(self, made: Sequence[tuple[Var, Layout]], whole: Buffer) -> None: ...


# -------- Zeros written by slices are the largest slice, padded, and the others written into that.
# So nobody fills what is written anyway: `y = np.zeros_like(x); y[0] = a; y[1:-1] = f(x)` needs
# zeros at the last place alone. Slices that have no element in common may be written in any order.
# update_slice (update_slice 0 a) b -> update_slice (pad b) a


Box = tuple[range, ...]  # the indices along each axis


def writes(graph: Graph) -> Graph:
    makers = makers_of(graph)
    zeros = {e.outs[0] for e in graph.eqns if is_zeros(e)}
    if not zeros:
        return graph
    uses = Counter(a for e in graph.eqns for a in e.inputs if isinstance(a, Var))
    uses.update(a for a in graph.outputs if isinstance(a, Var))
    ends = [e for e in graph.eqns if isinstance(e.op, UpdateSlice)]
    between = {x for e in ends if isinstance(x := e.inputs[0], Var) and uses[x] == 1}
    chains = [chain(e, makers, zeros, uses) for e in ends if e.outs[0] not in between]
    new: dict[Eqn, Sequence[Eqn]] = {}
    for each in filter(None, chains):
        new.update(dict.fromkeys(each, ()))
        new[each[-1]] = padded(each)
    if not new:
        return graph
    eqns = tuple(each for e in graph.eqns for each in new.get(e, (e,)))
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def is_zeros(eqn: Eqn) -> bool:
    """True for an array of zeros; those of -0.0 are no padding."""
    if not isinstance(eqn.op, BroadcastInDim) or not isinstance(eqn.inputs[0], Literal):
        return False
    value = complex(eqn.inputs[0].value)
    return value == 0 and math.copysign(1.0, value.real) + math.copysign(1.0, value.imag) == 2


def chain(last: Eqn, makers: Mapping[Var, Eqn], zeros: set[Var], uses: Counter[Var]) -> list[Eqn]:
    """The updates of zeros that end with this one, if one may come first:
    nobody reads what is between.
    """
    found, x = [last], last.inputs[0]
    while x not in zeros:
        maker = makers.get(x) if isinstance(x, Var) and uses[x] == 1 else None
        if maker is None or not isinstance(maker.op, UpdateSlice):
            return []
        found.insert(0, maker)
        x = maker.inputs[0]
    return found if set(found[largest(found)].op.step) == {1} else []  # type: ignore[attr-defined]


def largest(chain: Sequence[Eqn]) -> int:
    """The update that writes most, of those that may come first."""
    boxes = list(map(written_box, chain))
    by_size = sorted(range(len(chain)), key=lambda i: -chain[i].inputs[1].type.size)
    return next(i for i in by_size if all(disjoint(boxes[i], other) for other in boxes[:i]))


def padded(chain: Sequence[Eqn]) -> list[Eqn]:
    """The same array by padding, then the other updates in their order."""
    at = largest(chain)
    (out,), u = chain[-1].outs, chain[at].inputs[1]
    start, shape = chain[at].op.start, u.type.shape  # type: ignore[attr-defined]
    high = tuple(n - a - m for n, a, m in zip(out.type.shape, start, shape, strict=True))
    others = [e for e in chain if e is not chain[at]]
    made = [Var(out.type) for _ in others] + [out]
    eqns = [Eqn(Pad(start, high, (0,) * len(shape)), (u,), (made[0],), chain[at].source)]
    for e, x, y in zip(others, made, made[1:], strict=False):
        eqns.append(Eqn(e.op, (x, e.inputs[1]), (y,), e.source))
    return eqns


# ---------------------------------------------------------------------------------- parts of arrays


def box(start: Dims, stop: Dims, step: Dims) -> Box:
    return tuple(map(range, start, stop, step))


def written_box(eqn: Eqn) -> Box:
    """The elements that an update of a slice writes."""
    op = eqn.op
    assert isinstance(op, UpdateSlice)
    return box(op.start, op.stop(eqn.inputs[1].type.shape), op.step)


def disjoint(a: Box, b: Box) -> bool:
    """True if two boxes of one array have no element in common, as far as single axes show.

    >>> disjoint((range(0, 1),), (range(1, 9),)), disjoint((range(0, 9, 2),), (range(1, 9, 2),))
    (True, True)
    >>> disjoint((range(0, 5),), (range(4, 9),))
    False
    """
    return any(apart(p, q) for p, q in zip(a, b, strict=True))


def apart(a: range, b: range) -> bool:
    outside = not a or not b or a[-1] < b[0] or b[-1] < a[0]
    return outside or (a.step == b.step and (a.start - b.start) % a.step != 0)


def read_box(makers: Mapping[Var, Eqn], a: Atom) -> tuple[Atom, Box] | None:
    """The array that a value is a slice of, reshaped or transposed, and the
    elements it is made of.
    """
    maker = makers.get(a) if isinstance(a, Var) else None
    while maker is not None and isinstance(maker.op, Reshape | Transpose):
        a = maker.inputs[0]
        maker = makers.get(a) if isinstance(a, Var) else None
    if maker is None or not isinstance(maker.op, Slice):
        return None
    return maker.inputs[0], box(maker.op.start, maker.op.stop, maker.op.step)


def reads_elsewhere(makers: Mapping[Var, Eqn], eqn: Eqn) -> bool:
    """True if an update writes elements of an array that its other operand, a
    slice of it, has none of.
    """
    x, u = eqn.inputs
    found = read_box(makers, u)
    return found is not None and found[0] is x and disjoint(found[1], written_box(eqn))


# ----------------------------------------------------------------------------------- before writes
# Graphs of functions that write their arguments, made such that what is written can be there.
#
# What is read of an argument after it was written is copied before: a view of it, where
# that is less work than to write a copy of the argument and copy that back; and another
# argument whose contents it takes over.


def with_copies(graph: Graph, context: Context) -> Graph:
    """The graph, in which last contents that are an input, or those of
    another argument, are copies.

    Each stands behind the last equation that reads the argument it is for.
    """
    written = context.written
    if not written:
        return graph
    eqns, outputs = list(graph.eqns), list(graph.outputs)
    homes = {outputs[n]: n for n in reversed(range(len(written)))}
    makers = {v: eqn for eqn in eqns for v in eqn.outs}
    homes |= {
        a: n for n, i in enumerate(written) if begun(makers, a := outputs[n]) is graph.inputs[i]
    }
    for n, i in enumerate(written):
        a, x = outputs[n], graph.inputs[i]
        if isinstance(a, Var) and a.type == x.type and (a in graph.inputs or homes[a] != n):
            copy = Var(a.type)
            eqns.insert(behind(eqns, x, a), Eqn(StopGradient(), (a,), (copy,)))
            outputs[n] = copy
    return Graph(graph.inputs, tuple(eqns), tuple(outputs), graph.consts)


def is_view(eqn: Eqn) -> bool:
    """True if the result is a view of the input.

    A `stop_gradient` is the copy that `with_copies` makes.
    """
    return eqn.op.is_view and not isinstance(eqn.op, Identity)


def begun(makers: dict[Var, Eqn], a: Atom) -> Atom:
    """The value that a chain of updates begins with."""
    while isinstance(a, Var) and a in makers and isinstance(makers[a].op, WRITES):
        a = makers[a].inputs[0]
    return a


def results_apart(graph: Graph, context: Context) -> Graph:
    """The graph with copies of results that are arguments, or that were returned before: nobody else
    has the memory of a result, and a kernel is several times as fast as the library's copy.
    """
    if not context.outer:  # what stands around it takes results where they lie
        return graph
    views = views_of(graph)
    last = len(context.written)
    met: set[Atom] = {*graph.inputs, *graph.outputs[:last]}
    eqns, outputs = list(graph.eqns), list(graph.outputs)
    for n, a in enumerate(outputs[last:], last):
        x: Atom = a
        while isinstance(x, Var) and x in views and x not in met:
            x = views[x]
        if x in met and isinstance(a, Var) and a.type.nbytes >= context.tuning.returned:
            copy = Var(a.type)
            again = ((i, writing_twice(e, a, copy)) for i, e in enumerate(eqns))
            at, made = next(((i, e) for i, e in again if e), (len(eqns), None))
            eqns[at : at + 1] = [made or Eqn(StopGradient(), (a,), (copy,))]
            outputs[n] = copy
        met.add(a)
    return Graph(graph.inputs, tuple(eqns), tuple(outputs), graph.consts)


def views_of(graph: Graph) -> dict[Atom, Atom]:
    """Maps each view to the value it views. A reshape that strides cannot express is no view."""
    views, layouts = dict[Atom, Atom](), dict[Atom, Layout]()
    for eqn in filter(is_view, graph.eqns):
        x = eqn.inputs[0]
        if (layout := viewed(eqn, layouts.get(x) or plain(x.type.shape))) is not None:
            views[eqn.outs[0]], layouts[eqn.outs[0]] = x, layout
    return views


def behind(eqns: Sequence[Eqn], x: Var, a: Var) -> int:
    """The place behind all that reads `x`, itself or by a view, and behind what makes `a`."""
    views: set[Atom] = {x}
    place = 0
    for n, eqn in enumerate(eqns):
        if not views.isdisjoint(eqn.inputs) or a in eqn.outs:
            place = n + 1
        if is_view(eqn) and eqn.inputs[0] in views:
            views.update(eqn.outs)
    return place


def views_first(graph: Graph, context: Context) -> Graph:
    """The graph with the views of written arguments before all else."""
    known: set[Atom] = {graph.inputs[i] for i in context.written}
    first: list[Eqn] = []
    rest: list[Eqn] = []
    for eqn in graph.eqns:
        early = is_view(eqn) and eqn.inputs[0] in known
        (first if early else rest).append(eqn)
        known.update(eqn.outs if early else ())
    return Graph(graph.inputs, (*first, *rest), graph.outputs, graph.consts) if first else graph


def checked_early(graph: Graph, context: Context) -> Graph:
    """The graph with all indices looked at as soon as they are known, if arguments are written.

    An update may write where an argument is if no index is found out of range after that.
    """
    users = [e for e in graph.eqns if isinstance(e.op, Indexed) and all(map(is_var, indices(e)))]
    one = len(users) < 2 and all(
        e.inputs[0] in graph.inputs and isinstance(e.op, WRITES) for e in users
    )
    if one or not context.written:
        return graph
    wanted: dict[Atom, list[Eqn]] = {}
    for e in users:
        for op, index in checks(e):
            wanted.setdefault(index, []).append(Eqn(op, (index,), op_outs(op, index), e.source))
    eqns = [check for v in graph.inputs for check in wanted.get(v, ())]
    for e in numbers_first(graph):
        eqns += [e, *(check for v in e.outs for check in wanted.get(v, ()))]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def checks(eqn: Eqn) -> list[tuple[Index, Atom]]:
    """The operations that look at the indices of an equation, each with its index."""
    shape = eqn.inputs[0].type.shape
    return [(Index(shape[a], a), index) for index, a in zip(indices(eqn), axes(eqn), strict=True)]


def made_at_checked(graph: Graph) -> set[Var]:
    """The values that are made at indices which an equation before them has checked."""
    looked: set[tuple[Op, Atom]] = set()
    found: set[Var] = set()
    for e in graph.eqns:
        if isinstance(e.op, Index):
            looked.add((e.op, e.inputs[0]))
        elif isinstance(e.op, Indexed) and looked.issuperset(checks(e)):
            found.add(e.outs[0])
    return found


def numbers_first(graph: Graph) -> list[Eqn]:
    """The equations, those on Python numbers alone before all else."""
    known: set[Atom] = {v for v in graph.inputs if v.type.weak}
    first: list[Eqn] = []
    rest: list[Eqn] = []
    for eqn in graph.eqns:
        early = not eqn.op.effect and all(a in known for a in eqn.inputs if is_var(a))
        early = early and any(map(is_var, eqn.inputs)) and all(not v.type.shape for v in eqn.outs)
        (first if early else rest).append(eqn)
        known.update(eqn.outs if early else ())
    return [*first, *rest]


def is_var(a: Atom) -> bool:
    return isinstance(a, Var)


def axes(eqn: Eqn) -> Sequence[int]:
    op = eqn.op
    assert isinstance(op, Indexed)
    return op.axes


def indices(eqn: Eqn) -> Sequence[Atom]:
    """The operands that are indices, one an axis."""
    return eqn.inputs[len(eqn.inputs) - len(axes(eqn)) :]


def op_outs(op: Index, index: Atom) -> tuple[Var, ...]:
    return tuple(Var(t) for t in op.infer(index.type))


def saved_views(graph: Graph, contents: dict[Var, Var]) -> set[Atom]:
    """The views of arguments to be copied, so that updates can write where the arguments are.

    `contents`: the inputs that are written, by their last contents.
    """
    makers = {v: n for n, eqn in enumerate(graph.eqns) for v in eqn.outs}
    found: set[Atom] = set()
    for out, x in contents.items():
        first = first_update(graph, makers, out, x)
        late = read_later(graph, x, first) if first is not None else None
        if late and sum(a.type.size for a in late) <= 2 * x.type.size:
            found |= late
    return found | own_parts(graph)


def own_parts(graph: Graph) -> set[Atom]:
    """Views that are written into the array they are views of, where that was made inside, unless
    their elements are others than those that are written.
    """
    makers = makers_of(graph)
    of: dict[Atom, Atom] = {}  # what each view is a view of
    found: set[Atom] = set()
    for eqn in graph.eqns:
        if is_view(eqn):
            of[eqn.outs[0]] = of.get(eqn.inputs[0], eqn.inputs[0])
        elif isinstance(eqn.op, UpdateSlice) and reads_elsewhere(makers, eqn):
            continue
        elif isinstance(eqn.op, WRITES) and eqn.inputs[0] not in graph.inputs:
            found.update(a for a in eqn.inputs[1:] if of.get(a) is eqn.inputs[0])
    return found


def first_update(graph: Graph, makers: dict[Var, int], out: Var, x: Var) -> int | None:
    """The number of the update that begins a chain of them from an argument
    to its last contents.
    """
    a: Atom = out
    while isinstance(a, Var) and a in makers:
        eqn = graph.eqns[makers[a]]
        if not isinstance(eqn.op, WRITES):
            return None
        if eqn.inputs[0] is x:
            return makers[a]
        a = eqn.inputs[0]
    return None


def read_later(graph: Graph, x: Var, first: int) -> set[Atom] | None:
    """The views of an argument that an update, or what comes after it, reads;
    None if it is read itself.
    """
    views: set[Atom] = {x}
    found: set[Atom] = set()
    for n, eqn in enumerate(graph.eqns):
        if is_view(eqn) and eqn.inputs[0] in views:
            views.update(eqn.outs)
        elif n >= first:
            found.update(a for a in eqn.inputs[n == first :] if a in views)
    found.update(a for a in graph.outputs if a in views)
    return None if x in found else found


# -------- Writes into slices without passes of their own: a region makes its result where it goes.
# `y[1:-1] = f(x)` is an update of a slice by what a region makes. If y is written in place, the
# region writes into y, unless somebody reads y between the two, or the region itself reads it
# anywhere else. If y is a copy, the region writes into the copy, and the rest is copied around it.


LARGE: Final = 1 << 18  # elements whose copy takes a GPU longer than two launches


def join_update(scheduler: Scheduler, n: int, eqn: Eqn) -> None:
    """Has the region whose result step `n` writes into a slice make it there,
    if that is the same.
    """
    op, (x, u), (out,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, UpdateSlice)
    lent = (0, 0) in scheduler.there.get(n, ())
    if (
        out in scheduler.layouts
        or x in scheduler.layouts
        or not (lent or is_copied_around(scheduler, x, u, op))
    ):
        return
    strides = plain(out.type.shape).strides
    place = Layout(
        sum(a * s for a, s in zip(op.start, strides, strict=True)),
        tuple(a * s for a, s in zip(op.step, strides, strict=True)),
    )
    found = scheduler.made_for(u, place)
    if not found:
        return
    part, layout = found[-1]
    source, whole = scheduler.buffers[part], scheduler.buffers[out]
    home = whole.base or whole
    first = source.first
    if home.written and any(scheduler.fails(k, first) for k in range(first, n)):
        return
    if lent and not Undisturbed(scheduler, n, home, first).by(part, layout):
        return
    scheduler.put(found, home)
    home.last = max(home.last, source.last)
    scheduler.there.setdefault(n, set()).add((0, 1))


def is_copied_around(scheduler: Scheduler, x: Atom, u: Atom, op: UpdateSlice) -> bool:
    """True if the rest of an array can be copied around the slice, and not written in the caller's
    memory; on a GPU, where each copy is a launch, if that takes no longer.
    """
    kept = isinstance(x, Var) and x not in scheduler.donated and x not in scheduler.written.values()
    quick = scheduler.target != "cuda" or len(around(op.start, u.type.shape, x.type.shape)) <= 2
    return kept and set(op.step) <= {1} and (quick or u.type.size > LARGE)


class Undisturbed:
    """The steps from `m`, which would write into `home`, to the update `n`, which does so today."""

    def __init__(self, scheduler: Scheduler, n: int, home: Buffer, m: int) -> None:
        self.scheduler, self.n, self.home, self.m = scheduler, n, home, m
        self.eqns = scheduler.graph.eqns

    def by(self, part: Var, layout: Layout) -> bool:
        """True if all that is in `home` is there before step `m`, and nobody
        else looks until step `n`.
        """
        others = self.others()
        if others is None:
            return False
        if any(self.touched(k) for k in range(self.m + 1, self.n) if k not in others):
            return False
        eqn = self.eqns[self.m]
        inputs = [a for a in eqn.inputs if isinstance(a, Var) and self.is_home(a)]
        return all(self.elsewhere(a) or self.same_place(eqn, a, part, layout) for a in inputs)

    def others(self) -> set[int] | None:
        """Updates of other elements between the two; None if what is written
        over is not there before.
        """
        mine, found = self.box(self.n), set[int]()
        x = self.eqns[self.n].inputs[0]
        if self.scheduler.number(self.first(x)) >= self.m:  # nothing is there before
            return None
        while (k := self.scheduler.number(x)) >= self.m:
            if k == self.m:  # it makes all of the array, in an order that nobody knows
                return None
            eqn = self.eqns[k]
            fits = isinstance(eqn.op, UpdateSlice) and (0, 0) in self.scheduler.there.get(k, ())
            given = self.scheduler.number(eqn.inputs[0]) < 0  # and copied where it is not lent
            if not fits or given or not disjoint(mine, self.box(k)) or self.is_home(eqn.inputs[1]):
                return None
            found.add(k)
            x = eqn.inputs[0]
        return found

    def first(self, x: Atom) -> Atom:
        """The array that updates of slices began with, known of those after `x`: most of them ask."""
        firsts, passed = self.scheduler.firsts, list[Atom]()
        while x not in firsts:
            maker = self.scheduler.makers.get(x) if isinstance(x, Var) else None
            if maker is None or not isinstance(maker.op, UpdateSlice):
                firsts[x] = x
                break
            passed.append(x)
            x = maker.inputs[0]
        firsts.update(dict.fromkeys(passed, firsts[x]))
        return firsts[x]

    def box(self, k: int) -> Box:
        """Returns the elements that update `k` writes, computed once: many updates ask for them."""
        boxes = self.scheduler.boxes
        if k not in boxes:
            boxes[k] = written_box(self.eqns[k])
        return boxes[k]

    def is_home(self, a: Atom) -> bool:
        if not isinstance(a, Var) or a.type.weak:
            return False
        buffer = self.scheduler.buffers[a].base or self.scheduler.buffers[a]
        return buffer is self.home or buffer.name == self.home.donor

    def touched(self, k: int) -> bool:
        """True if step `k` reads or writes the array; a view does neither."""
        if self.scheduler.kinds[k] == "view":
            return False
        return any(map(self.is_home, (*self.eqns[k].inputs, *self.eqns[k].outs)))

    def elsewhere(self, a: Var) -> bool:
        """True if a value is a slice of the array with none of the elements that are written."""
        found = read_box(self.scheduler.makers, a)
        if found is None or not self.is_home(found[0]) or found[0] in self.scheduler.layouts:
            return False
        return disjoint(found[1], self.box(self.n))

    def same_place(self, eqn: Eqn, a: Var, part: Var, layout: Layout) -> bool:
        """True if the region reads each element where it writes it, and then alone."""
        if a.type != part.type or self.scheduler.layouts.get(a) != layout:
            return False
        return self.scheduler.is_elementwise(eqn, eqn.outs.index(part), a)


# ------------------------------------------------------------------------------- written arguments
# A program that changes its arguments: in their own memory, or by a copy when it has succeeded.
#
# The plan has the last contents of an argument computed in its own memory where nothing else reads
# the old ones and nothing can fail from then on (`schedule`); elsewhere they are copied at the end.


Run = Callable[..., list[Any]]


@final
class Writing:
    """A program whose first results are the contents of arguments, as a
    function that changes those.
    """

    __slots__ = ("ready", "run", "writes")

    def __init__(self, run: Run, writes: Writes, ready: Callable[[Any], Any] | None = None) -> None:
        self.run, self.writes = run, writes
        # what makes an argument as a device's kernels read it: itself, or a copy
        self.ready = ready
        if isinstance(run, Provisional):  # it knows of a better way soon
            run.told = self.on_ready

    def on_ready(self, run: Run) -> None:
        self.run = run

    def __call__(self, *arrays: Any) -> list[Any]:
        writes = self.writes
        writes.check(arrays)
        given = arrays if self.ready is None else self.made_ready(arrays)
        found: list[list[Any]] = []
        try:
            # no interrupt comes between the run and its results
            found.extend(starmap(self.run, (given,)))
            return writes.of(writes.carried(arrays, found[0]))
        except BaseException:
            # only an interrupt can have come: some arguments have changed, so all of them do
            if found:
                writes.carried(arrays, found[0])
            raise

    def made_ready(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays, those that are written as kernels write them."""
        assert self.ready is not None
        given = list(arrays)
        for w in self.writes.each:
            given[w.input] = self.ready(given[w.input])
        return given
