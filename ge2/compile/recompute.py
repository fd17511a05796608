"""Values are recomputed where they are read, if that moves fewer bytes.

A derivative reads values of the forward pass. Where those are elementwise work on what is in memory
anyway, or on the numbers of a row, the region that will read them makes them from that: the earlier
one does not write them. Which values are kept is a minimum cut (docs/design/partition.md), whose
prices are bytes written and read. Which regions there are is found by fusing; loops are looked for
after it, in the graph without regions, where a barrier keeps apart what is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, final

from ge2.base.arrays import HALF
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Var, makers_of, rename, renamed
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs import is_move
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce
from ge2.ops.shape import Barrier, BroadcastInDim, Pad, Slice
from ge2.passes.context import NOTHING, Context, Repetition
from ge2.passes.fuse import fuse, gathered
from ge2.transforms.graphs.partition import VIEWS, Choice, cheapest, compares, exact, work_in_bytes

Makers = Mapping[Var, Eqn]
UNWISE: Final = 1 << 100  # dearer than any number of bytes


def recompute(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph in which no large value waits for readers that can make it as well."""
    least = context.tuning.fusion.recomputed
    if all(v.type.nbytes < least for e in graph.eqns for v in e.outs):
        return graph  # nothing that a region makes is large enough
    regions, names = named_for_views(gathered(graph, context, once=True).rebuilt(), least)
    work = Recomputation(regions, names, context)
    work.run()
    return without(names, Flat(work).graph(graph)) if work.cloned else graph


def named_for_views(graph: Graph, least: int) -> tuple[Graph, set[Atom]]:
    """The graph in which slices and pads that regions read are of a name of its own for what a region
    makes, given by a region which may make that as well; and these names.
    """
    readers, names, eqns = readers_of(graph), dict[Atom, Var](), list[Eqn]()
    folding = (e for e in graph.eqns if isinstance(e.op, Region) and e.op.kind != "pointwise")
    made = [v for e in folding for v in e.outs]  # elementwise work goes into views by itself
    large = {v for v in made if v.type.nbytes >= least and v not in graph.outputs}
    named = {v for v in large if is_seen_once(v, readers, graph.outputs)}
    for e in graph.eqns:
        x = e.inputs[0] if isinstance(e.op, Slice | Pad) else None
        if isinstance(x, Var) and x in named:
            if x not in names:
                names[x] = Var(x.type)
                eqns.append(renaming(x, names[x]))
            e = replace(e, inputs=(names[x], *e.inputs[1:]))
        eqns.append(e)
    return replace(graph, eqns=tuple(eqns)), {*names.values()}


def is_seen_once(v: Var, readers: Mapping[Atom, Sequence[Eqn]], results: Sequence[Atom]) -> bool:
    """True of a value of which regions read a pad, or slices that are no larger than it together: what
    makes it goes there, and is done once. Other regions may read it as it is.
    """
    views = [e for e in readers.get(v, ()) if isinstance(e.op, Slice | Pad)]
    pads = sum(isinstance(e.op, Pad) for e in views)
    sizes = sum(e.outs[0].type.size for e in views if isinstance(e.op, Slice))
    once = len(views) == 1 if pads else 0 < sizes <= v.type.size
    found = [e for view in views for e in readers.get(view.outs[0], ())]
    kept = any(view.outs[0] in results for view in views)
    return once and not kept and bool(found) and all(isinstance(e.op, Region) for e in found)


def renaming(x: Var, y: Var) -> Eqn:
    """A region that reads one array and gives it another name."""
    read, axes = Var(x.type), tuple(range(x.type.ndim))
    same = Eqn(ConvertElementType(x.type.dtype), (read,), (y,))
    op = Region("pointwise", x.type.shape, (axes,), Graph((read,), (same,), (y,)))
    return Eqn(op, (x,), (y,))


def without(names: Set[Atom], graph: Graph) -> Graph:
    """The graph with the arrays themselves in place of these names of them."""
    known, eqns = dict[Atom, Atom](), list[Eqn]()
    for e in graph.eqns:
        inputs = rename(known, e.inputs)  # type: ignore[arg-type]
        if e.outs and e.outs[0] in names:
            known[e.outs[0]] = inputs[0]
        else:
            eqns.append(replace(e, inputs=inputs))
    return replace(graph, eqns=tuple(eqns))


@final
class Recomputation:
    """The equations so far, what makes each value, and what reads it; the `names` for views."""

    def __init__(self, graph: Graph, names: Set[Atom], context: Context) -> None:
        self.names = names
        self.eqns, self.least = list(graph.eqns), context.tuning.fusion.recomputed
        self.most = context.tuning.fusion.folding
        self.kept: set[Atom] = {*graph.inputs, *graph.outputs}
        self.makers = {v: n for n, e in enumerate(graph.eqns) for v in e.outs}
        self.readers: dict[Atom, set[int]] = {}
        for n, e in enumerate(graph.eqns):
            for a in e.inputs:
                self.readers.setdefault(a, set()).add(n)
        self.cloned: dict[int, int] = {}  # how many equations of a region are computed again

    def run(self) -> None:
        """Cuts each region, and again: what a reader took in may have it read what others are made of."""
        for n in 2 * [n for n, eqn in enumerate(self.eqns) if isinstance(eqn.op, Region)]:
            self.region(n)

    def region(self, n: int) -> None:
        """Cuts what region `n` writes for others down to what is cheapest."""
        eqn = self.eqns[n]
        inner = region_of(eqn)
        wanted = [v for v in eqn.outs if self.may_go(v, n)]
        if not wanted:
            return
        names = dict(zip(eqn.outs, inner.graph.outputs, strict=True))
        late = set[int]().union(*(self.readers[v] for v in wanted))
        choice = self.choice(eqn, [as_var(names[v]) for v in wanted], late)
        gone = [v for v in wanted if names[v] not in choice.saved]
        if gone:
            self.move(n, gone, choice)

    # -- which values may go

    def may_go(self, v: Var, n: int) -> bool:
        """True of a large value that only regions read, all of them elementwise, along axes that are alike."""
        if v in self.kept or v.type.nbytes < self.least or not self.readers.get(v):
            return False
        return all(self.takes(m, v, n) for m in self.readers[v])

    def takes(self, m: int, v: Var, n: int) -> bool:
        eqn = self.eqns[m]
        if not isinstance(eqn.op, Region) or len(eqn.op.graph.eqns) >= self.most:
            return False
        if axes_read(eqn, v) is None:
            return False
        return not is_compared(eqn, v) or self.is_exact(v, n)

    def is_exact(self, v: Var, n: int) -> bool:
        """True of a value of region `n` that has the same bits wherever it is made."""
        source, graph = self.eqns[n], region_of(self.eqns[n]).graph
        makers = makers_of(graph)
        return exact(dict(zip(source.outs, graph.outputs, strict=True))[v], makers)

    # -- the cut

    def choice(self, eqn: Eqn, wanted: Sequence[Var], late: set[int]) -> Choice:
        """The minimum cut: the values to store so that the equations `late` can compute the wanted ones."""
        graph, times = region_of(eqn).graph, len(late)
        makers = makers_of(graph)
        outer = dict(zip(graph.inputs, eqn.inputs, strict=True))
        written = dict(zip(graph.outputs, eqn.outs, strict=True))
        seen = any(self.is_view(m) for m in late)  # behind a barrier no region does a move

        def price(v: Var) -> int:
            there = outer.get(v, written.get(v))
            if v in makers and isinstance(makers[v].op, VIEWS):
                return UNWISE
            if seen and there in self.makers and is_move(self.eqns[self.makers[as_var(there)]]):
                return UNWISE
            if v in written and v not in wanted:
                there = written[v]
            elif there is None or v in wanted or not self.is_kept(as_var(there), eqn):
                return v.type.nbytes * (1 + times) + 1
            read = self.readers.get(there, set())
            return v.type.nbytes * len(late - read) + 1

        return cheapest(wanted, makers, price, lambda e: work_in_bytes(e, makers) * times)

    def is_kept(self, v: Var, reader: Eqn) -> bool:
        """True of a value that is in memory, whoever reads it; what a product hands to one region is not."""
        n = self.makers.get(v)
        if n is None or isinstance(self.eqns[n].op, Region):
            return True
        others = self.readers.get(v, set()) - {self.makers[reader.outs[0]]}
        return bool(others) or not is_product(self.eqns[n])

    # -- the change

    def move(self, n: int, gone: Sequence[Var], choice: Choice) -> None:
        """Has the readers of values compute them, and region `n` write what they are made of."""
        eqn = self.eqns[n]
        op = region_of(eqn)
        names = dict(zip(eqn.outs, op.graph.outputs, strict=True))
        outer: dict[Atom, Atom] = dict(zip(op.graph.inputs, eqn.inputs, strict=True))
        outer |= {inner: v for v, inner in names.items()}
        for m in sorted(set[int]().union(*(self.readers[v] for v in gone))):
            mine = [v for v in gone if m in self.readers[v]]
            made = Inlined(self.eqns[m], eqn, mine, choice, outer)
            self.update(m, made.equation())
            self.cloned[m] = self.cloned.get(m, 0) + len(made.eqns)
        kept = [v for v in eqn.outs if v not in gone]
        inner_outs = {outer[v]: v for v in choice.saved if v in outer}
        more = [
            (v, inner) for v, inner in inner_outs.items()
            if isinstance(v, Var) and v not in eqn.outs and v not in eqn.inputs and self.readers.get(v)
        ]  # fmt: skip
        outs = (*kept, *(v for v, _ in more))
        results = (*(names[v] for v in kept), *(inner for _, inner in more))
        self.update(n, trimmed(eqn, outs, results))

    def is_view(self, n: int) -> bool:
        """True of what gives an array a name for views, and of these."""
        eqn = self.eqns[n]
        return not self.names.isdisjoint((*eqn.outs, *eqn.inputs))

    def update(self, n: int, eqn: Eqn) -> None:
        for a in self.eqns[n].inputs:
            self.readers[a].discard(n)
        for a in eqn.inputs:
            self.readers.setdefault(a, set()).add(n)
        self.makers.update(dict.fromkeys(eqn.outs, n))
        self.eqns[n] = eqn


@final
class Inlined:
    """A region that computes values which it read of another, and what for.

    `outer`: what each value of the other's graph is called outside; those that are to be written
    get a name here.
    """

    def __init__(
        self, reader: Eqn, source: Eqn, gone: Sequence[Var], choice: Choice, outer: dict[Atom, Atom]
    ) -> None:
        self.reader, self.source, self.choice, self.outer = reader, source, choice, outer
        self.op, self.given = region_of(reader), region_of(source)
        self.inputs = dict(zip(reader.inputs, self.op.graph.inputs, strict=True))
        self.gone = {v: self.inputs.pop(v) for v in gone}
        self.makers = {
            v: (e, at)
            for e, at in zip(self.given.graph.eqns, self.given.axes, strict=True)
            for v in e.outs
        }
        self.eqns, self.axes = list[Eqn](), list[Dims]()

    def equation(self) -> Eqn:
        names = dict(zip(self.source.outs, self.given.graph.outputs, strict=True))
        env: dict[Atom, Atom] = {}
        done: dict[Dims, dict[Atom, Var]] = {}  # by the axes that they have here
        for v, inside in self.gone.items():
            inner = as_var(names[v])
            at = axes_read(self.reader, v)
            assert at is not None
            axes = dict(zip(self.makers[inner][1], at, strict=True))
            found = self.value(inner, axes, done.setdefault((*axes, *axes.values()), {}))
            env[inside] = self.rounded(found, at)
        eqns = [renamed(env, e) for e in self.op.graph.eqns]
        inputs = tuple(self.inputs)
        graph = Graph(
            tuple(self.inputs.values()), (*self.eqns, *eqns), self.op.graph.outputs, self.op.graph.consts,
        )  # fmt: skip
        op = replace(self.op, graph=graph, axes=(*self.axes, *self.op.axes))
        return replace(self.reader, op=op, inputs=inputs)

    def value(self, v: Atom, axes: Mapping[int, int], done: dict[Atom, Var]) -> Atom:
        """A value of the other region, here; `axes`: which axis of this space one of the other's is."""
        if isinstance(v, Literal):
            return v
        if v in done:
            return done[v]
        maker = self.makers.get(v)
        if maker is None or v in self.choice.saved or maker[0] not in self.choice.again:
            return self.read(v)
        eqn, at = maker
        inputs = tuple(self.value(a, axes, done) for a in eqn.inputs)
        (out,) = (Var(u.type) for u in eqn.outs)
        self.eqns.append(replace(eqn, inputs=inputs, outs=(out,)))
        self.axes.append(tuple(a if a < 0 else axes[a] for a in at))
        done[v] = out
        return out

    def read(self, v: Var) -> Var:
        """A value that is in memory, as an input."""
        there = self.outer.setdefault(v, Var(v.type))
        assert isinstance(there, Var)
        if there not in self.inputs:
            self.inputs[there] = Var(v.type)
        return self.inputs[there]

    def rounded(self, x: Atom, at: Dims) -> Atom:
        """The value as it would have been written: of its type, to which half types are rounded."""
        if x.type.dtype not in HALF:
            return x
        out = Var(x.type)
        self.eqns.append(Eqn(ConvertElementType(x.type.dtype), (x,), (out,), self.reader.source))
        self.axes.append(at)
        return out


@final
class Flat:
    """The equations of regions as they are outside of them."""

    def __init__(self, work: Recomputation) -> None:
        self.work, self.eqns = work, list[Eqn]()
        # by what is made last, the names of what is tied to it
        self.tied: dict[Var, dict[Var, Var]] = {}

    def graph(self, given: Graph) -> Graph:
        for n, eqn in enumerate(self.work.eqns):
            if isinstance(eqn.op, Region):
                self.region(eqn, self.work.cloned.get(n, 0))
            else:
                self.eqns.append(eqn)
        return replace(given, eqns=tuple(self.eqns))

    def region(self, eqn: Eqn, again: int) -> None:
        """The equations of a region; what the first `again` of them read comes through a barrier."""
        graph = region_of(eqn).graph
        env: dict[Atom, Atom] = dict(zip(graph.inputs, eqn.inputs, strict=True))
        if again:
            read = {a for e in graph.eqns[:again] for a in e.inputs}
            folds = region_of(eqn).kind != "pointwise"
            self.barrier(env, [v for v in graph.inputs if v in read], eqn.inputs, folds)
        names = dict(zip(graph.outputs, eqn.outs, strict=True))
        for e in graph.eqns:
            inputs = rename(env, e.inputs)  # type: ignore[arg-type]
            if rounds_nothing(e) and e.outs[0] not in names:
                env[e.outs[0]] = inputs[0]
                continue
            # several regions write a view of one name, each for itself
            outs = tuple([as_var(names[v]) if v in names else Var(v.type) for v in e.outs])
            env.update(zip(e.outs, outs, strict=True))
            self.eqns.append(Eqn(e.op, inputs, outs, e.source, e.choice))

    def barrier(
        self, env: dict[Atom, Atom], read: Sequence[Var], inputs: Sequence[Atom], folds: bool
    ) -> None:
        """Ties what is read again to the last of what the region reads: no pass computes it sooner.
        Folds for which that is one value have one name of each, as folds of the same arrays have, which
        are one kernel; other work may be part of different ones.
        """
        given = dict.fromkeys(as_var(env[v]) for v in read)
        last = self.latest(inputs)
        known = self.tied.setdefault(last, {}) if folds else {}
        if new := [v for v in given if v not in known]:
            tied = [*new, *([last] if last not in new else [])]
            outs = tuple(Var(v.type) for v in tied)
            self.eqns.append(Eqn(Barrier(), tuple(tied), outs))
            known.update(zip(new, outs, strict=False))
        env.update({v: known[as_var(a)] for v, a in env.items() if a in given})

    def latest(self, inputs: Sequence[Atom]) -> Var:
        """The value that is made last; for what a product makes, what it reads: with another
        reader, even a barrier, the product and the region could not be one kernel. So for views, and
        what is named for them: their readers could not make what they see.
        """
        makers, eqns = self.work.makers, self.work.eqns
        found = max((v for v in inputs if isinstance(v, Var)), key=lambda v: makers.get(v, -1))
        made = makers.get(found)
        if made is None or not (is_product(eqns[made]) or self.work.is_view(made)):
            return found
        return self.latest(eqns[made].inputs)


def as_var(a: Atom) -> Var:
    assert isinstance(a, Var)
    return a


def region_of(eqn: Eqn) -> Region:
    assert isinstance(eqn.op, Region)
    return eqn.op


def is_product(eqn: Eqn) -> bool:
    return eqn.op.name == "dot_general"


def is_compared(reader: Eqn, v: Var) -> bool:
    """True if a region asks where an input, or what it makes of it, equals something."""
    graph = region_of(reader).graph
    found = {graph.inputs[reader.inputs.index(v)]}
    for e in graph.eqns if any(map(compares, graph.eqns)) else ():
        if not found.isdisjoint([a for a in e.inputs if isinstance(a, Var)]):
            if compares(e):
                return True
            found.update(e.outs)
    return False


def axes_read(eqn: Eqn, v: Var) -> Dims | None:
    """The axes of a region's space that index an input; None if readers differ or one is a view."""
    op = region_of(eqn)
    inner = op.graph.inputs[eqn.inputs.index(v)]
    found = set[Dims | None]()
    for e, at in zip(op.graph.eqns, op.axes, strict=True):
        if inner in e.inputs:
            plain = not isinstance(e.op, VIEWS) and len(at) == v.type.ndim
            found.add(at if plain else None)
    if inner in op.graph.outputs or len(found) != 1:
        return None
    return found.pop()


def rounds_nothing(eqn: Eqn) -> bool:
    """True of a rounding that regions have of values of half types: there it has a meaning."""
    op = eqn.op
    return isinstance(op, ConvertElementType) and (op.dtype, False) == (
        eqn.inputs[0].type.dtype,
        eqn.inputs[0].type.weak,
    )


def trimmed(eqn: Eqn, outs: tuple[Var, ...], results: tuple[Atom, ...]) -> Eqn:
    """A region that writes these results alone, without what none of them needs."""
    op = region_of(eqn)
    live = {a for a in results if isinstance(a, Var)}
    kept = list[tuple[Eqn, Dims]]()
    for e, at in reversed([*zip(op.graph.eqns, op.axes, strict=True)]):
        if not live.isdisjoint(e.outs) or e.op.effect:
            kept.append((e, at))
            live.update(a for a in e.inputs if isinstance(a, Var))
    kept.reverse()
    pairs = [(v, a) for v, a in zip(op.graph.inputs, eqn.inputs, strict=True) if v in live]
    graph = Graph(tuple(v for v, _ in pairs), tuple(e for e, _ in kept), results)
    region = replace(op, graph=graph, axes=tuple(at for _, at in kept))
    return replace(eqn, op=region, inputs=tuple(a for _, a in pairs), outs=outs)


# -------- The opposite: what would be computed again for each element along a new axis is stored.
# A thread computes once what its few neighbours have in common; the other threads along that axis
# do so again. For nine bins of the angle of each pixel that was five times its arctangent.


def computed_once(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph in which costly work is stored before elementwise regions repeat it along new axes,
    where that is predicted to be quicker.
    """
    tuning = context.tuning.repetition
    spread = {e.inputs[0] for e in graph.eqns if is_repeated(e, tuning)}
    makers = makers_of(graph) if spread else {}
    if not any(
        isinstance(v, Var) and is_costly(base_of(v, makers), makers, tuning) for v in spread
    ):
        return graph
    regions = [e for e in fuse(graph, context).eqns if isinstance(e.op, Region)]
    stored = {v for e in regions for v in Repeated(e, tuning).stored()}
    return with_barriers(graph, stored) if stored else graph


def is_repeated(eqn: Eqn, tuning: Repetition) -> bool:
    """True of an array that is spread along a new axis, to many elements."""
    if not isinstance(eqn.op, BroadcastInDim) or eqn.outs[0].type.size < tuning.elements:
        return False
    return 1 < eqn.inputs[0].type.size * tuning.times <= eqn.outs[0].type.size


def base_of(v: Var, makers: Makers) -> Var:
    """The value that a value is a view of, itself if of nothing else."""
    while v in makers and isinstance(makers[v].op, VIEWS) and isinstance(makers[v].inputs[0], Var):
        v = as_var(makers[v].inputs[0])
    return v


def is_work(v: Var, makers: Makers) -> bool:
    return v in makers and isinstance(makers[v].op, Pointlike)


def is_costly(v: Var, makers: Makers, tuning: Repetition) -> bool:
    """True of a value that more than a little elementwise work makes; not of sums, with which rows
    are a kernel that does such work once for each of them.
    """
    waiting, seen, instructions = [v], set[Atom](), 0
    while waiting:
        e = makers.get(waiting.pop())
        if e is None or e.outs[0] in seen or not isinstance(e.op, (Pointlike, Reduce, *VIEWS)):
            continue
        if isinstance(e.op, Reduce):
            return False
        seen.add(e.outs[0])
        instructions += e.op.cost.instructions + tuning.function * e.op.cost.transcendental
        waiting += [a for a in e.inputs if isinstance(a, Var)]
    return is_work(v, makers) and instructions > tuning.easy


@final
class Repeated:
    """A region, and the values of fewer axes than its space that it computes again for others."""

    def __init__(self, eqn: Eqn, tuning: Repetition) -> None:
        self.eqn, self.op, self.tuning = eqn, region_of(eqn), tuning
        self.makers = makers_of(self.op.graph)
        self.axes = {
            v: at for e, at in zip(self.op.graph.eqns, self.op.axes, strict=True) for v in e.outs
        }
        self.last, self.size = len(self.op.space) - 1, math.prod(self.op.space)

    def stored(self) -> set[Var]:
        """The values that are worth being stored; none if the region is sooner done as it is."""
        if self.op.kind != "pointwise":
            return set()
        edges = {self.narrow(v) for v in self.edges()}
        edges = {v for v in edges if sum(map(self.cost, self.before([v]))) > self.tuning.easy}
        if not edges:
            return edges
        moved = sum(a.type.nbytes for a in (*self.eqn.inputs, *self.eqn.outs))
        outs = self.op.graph.outputs
        together = max(self.work(self.before(outs), self.times), moved)
        later = max(self.work(self.before(outs, edges), self.times), moved)
        first = self.work(self.before(edges), once_each), 2 * sum(v.type.nbytes for v in edges)
        gain = together - later - max(first) - self.tuning.launch
        return edges if gain * self.tuning.gain > together else set()

    def edges(self) -> Iterator[Var]:
        """The values made here that a view spreads along new axes."""
        for e in self.op.graph.eqns:
            if is_repeated(e, self.tuning):
                v = base_of(as_var(e.inputs[0]), self.makers)
                if is_work(v, self.makers):
                    yield v

    def narrow(self, v: Var) -> Var:
        """The value that a cast made this of, if that has no more bytes and is made here, too."""
        e = self.makers[v]
        while isinstance(e.op, ConvertElementType) and e.inputs[0] in self.makers:
            x = as_var(e.inputs[0])
            if x.type.nbytes > v.type.nbytes or x.type.weak:
                break
            v, e = x, self.makers[x]
        return v

    def before(self, values: Iterable[Atom], known: Set[Var] = frozenset()) -> list[Eqn]:
        """The equations that make these values, of inputs and of what is known."""
        waiting, found = list(values), dict[Var, Eqn]()
        while waiting:
            v = waiting.pop()
            if isinstance(v, Var) and v in self.makers and v not in found and v not in known:
                found[v] = self.makers[v]
                waiting += found[v].inputs
        return list(found.values())

    def work(self, eqns: Iterable[Eqn], times: Callable[[Eqn], int]) -> int:
        """The bytes that could be moved while these are computed so often."""
        return sum(self.cost(e) * times(e) for e in eqns) // self.tuning.instructions

    def cost(self, eqn: Eqn) -> int:
        """Instructions for an element: those of a function, and of what is read for it."""
        read = sum(a.type.size > 1 and a not in self.makers for a in eqn.inputs)
        function = self.tuning.function if eqn.op.cost.transcendental else 0
        return eqn.op.cost.instructions + function + self.tuning.read * read

    def times(self, eqn: Eqn) -> int:
        """Returns how often an equation is computed: a thread does so once for its neighbours."""
        if self.last in self.axes[eqn.outs[0]]:
            return self.size
        widest = max(v.type.dtype.itemsize for v in self.eqn.outs)
        return self.size // math.gcd(self.op.space[self.last], max(self.tuning.access // widest, 1))


def once_each(eqn: Eqn) -> int:
    return eqn.outs[0].type.size


def with_barriers(graph: Graph, stored: set[Var]) -> Graph:
    """The graph in which views and casts read these values behind a barrier each."""
    names, eqns = dict[Atom, Var](), list[Eqn]()
    for e in graph.eqns:
        if isinstance(e.op, (*VIEWS, ConvertElementType)) and e.inputs[0] in names:
            e = replace(e, inputs=(names[e.inputs[0]],))
        eqns.append(e)
        for v in stored.intersection(e.outs):
            names[v] = Var(v.type)
            eqns.append(Eqn(Barrier(), (v,), (names[v],), e.source))
    return replace(graph, eqns=tuple(eqns))
