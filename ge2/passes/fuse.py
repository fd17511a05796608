"""Elementwise work, views and reductions that share an iteration space become one Region.

Producers and consumers are grouped greedily, in the order of the equations. Every group and every
other equation has a level above those it reads from; a group takes an equation in only if it can
stay below all that read from it, so that no cycle arises. Views of three kinds (broadcast,
transpose, reshape by axes of size 1) belong to whoever reads through them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import count, pairwise
from typing import Final

from ge2.base.arrays import HALF
from ge2.ir import Atom, Dims, Eqn, Graph, Var, without_dead_code
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.contraction import round_halves
from ge2.ops.graphs.region import Region, alternating
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.context import Fusion as Sizes
from ge2.passes.fold import early, on_host
from ge2.passes.fusion_group import (
    NONE,
    Group,
    Incoming,
    Uses,
    Writer,
    better_shared,
    costly,
    cuts,
    depths,
    dims_of,
    elements_of,
    folding,
    folds,
    fusible,
    joint,
    leader,
    merged,
    named,
    numbering,
    only_readers,
    picked,
    plain,
    shifted_multiples,
    short,
    sideways,
    spans_of,
    too_large,
    when_needed,
)
from ge2.passes.split_edges import crossing, masks_apart
from ge2.trace.tracer import SNAPSHOT

NO_AXES: frozenset[int] = frozenset()
VIEWS: Final = (BroadcastInDim, Transpose, Reshape, Iota)
BETWEEN: Final = "another step reads from the one and is read by the other"


def fuse(graph: Graph, context: Context = NOTHING) -> Graph:
    return gathered(graph, context).rebuilt()


def gathered(graph: Graph, context: Context = NOTHING, once: bool = False) -> Fusion:
    """The groups of a graph's equations that become regions; gathered `once`, by their order alone."""
    graph, tuning = masks_apart(without_dead_code(graph), fusible, context), context.tuning.fusion
    units = context.caps.multiprocessors if context.tails and context.caps else 0
    apart = shifted_multiples(graph) if units else {}
    gathers = context.gathers or context.caps is not None

    def fused(parts: Mapping[int, int], late: frozenset[int] = NO_AXES) -> Fusion:
        return Fusion(graph, tuning, parts, gathers, context.tails, units, late).gather()

    fusion = fused(apart)
    if late := NO_AXES if once else fusion.made_late():
        fusion = min(fused(apart, late), fusion, key=Fusion.moved)
    parts = fusion.parts_of_long()
    return fused({**apart, **parts}, fusion.late) if parts else fusion


class Fusion:
    """`parts` gives equations of groups that would be too long a number each: unlike ones are kept
    apart. `gathers`: regions may read arrays at indices made in regions; on a GPU single elements and
    short rows, where an index outside wraps around. `tails`: they may go on with sums that no block has
    whole. `units`: multiprocessors of the GPU. `late`: equations that wait for what reads them.
    """

    def __init__(
        self, graph: Graph, tuning: Sizes, parts: Mapping[int, int] | None = None,
        gathers: bool = False, tails: bool = False, units: int = 0, late: frozenset[int] = NO_AXES,
    ) -> None:  # fmt: skip
        self.graph, self.tuning, self.parts, self.gathers = graph, tuning, parts or {}, gathers
        self.late = late
        # sums of what a product makes are for its own kernel, which goes on with none
        products = (e.outs for e in graph.eqns if isinstance(e.op, DotGeneral))
        self.units, self.tails, self.products = units, tails, {v for outs in products for v in outs}
        captured = graph.inputs[: graph.consts]  # nobody writes to the copy of a small one
        self.captured = {v for v in captured if v.type.nbytes <= SNAPSHOT}
        self.arguments = {*graph.inputs} - self.captured
        self.leaders: dict[Group, Group] = {}
        self.home: dict[Var, Group] = {}  # the group that makes a value
        self.level: dict[Var, int] = {}  # of values that no group makes
        self.views: dict[Var, tuple[Var, Dims]] = {}  # of what, and its axes as those of the result
        self.view_eqns: dict[Var, Eqn] = {}
        self.readers: dict[Var, Group] = {}  # the last that reads a value, or one beside it, whole
        self.group_of: dict[int, Group] = {}
        self.effects, self.early = 0, early(graph, fusible, tuning.easy)
        self.only, self.beside = only_readers(graph), alternating(graph)
        self.depths = depths(graph, fusible)
        self.scalars = Group(0, tuning)  # of arguments alone: any other group may read them

    def gather(self) -> Fusion:
        for index, eqn in enumerate(self.graph.eqns):
            if index in self.early:
                self.scalars.entries[index] = ()
                self.group_of[index] = self.home[eqn.outs[0]] = self.scalars
            elif not self.view(eqn):
                if (fusible(eqn) or self.reads_inside(eqn)) and not on_host(eqn):
                    self.take(index, eqn)
                else:
                    self.alone(eqn)
        self.settle()
        self.groups = dict.fromkeys(leader(self.leaders, g) for g in self.group_of.values())
        return self

    # -- where values come from

    def view(self, eqn: Eqn) -> bool:
        op = eqn.op
        if not isinstance(op, VIEWS):
            return False
        if isinstance(op, Iota):
            self.view_eqns[eqn.outs[0]] = eqn
            self.level[eqn.outs[0]] = 0
            return True
        (x,), (out,) = eqn.inputs, eqn.outs
        if not isinstance(x, Var) or x.type.weak:
            return False
        if (dims := dims_of(op, x, out.type.shape)) is None:
            return False
        base, of_base = self.source(x)
        self.views[out] = base, tuple(NONE if d == NONE else dims[d] for d in of_base)
        self.view_eqns[out] = eqn
        return True

    def source(self, x: Var) -> tuple[Var, Dims]:
        """The value that a value is a view of, itself if of nothing else."""
        found = self.views.get(x)
        if found is None:
            found = self.views[x] = x, plain(x.type.shape)
        return found

    def group(self, var: Var) -> Group | None:
        found = self.home.get(var)
        if found is None or found not in self.leaders:
            return found
        root = self.home[var] = leader(self.leaders, found)
        return root

    def made_at(self, var: Var) -> tuple[Group | None, int]:
        """The group that makes a value, if one does, and its level, or that of the value."""
        group = self.group(var)
        return group, self.level.get(var, 0) if group is None else group.level

    def bases(self, eqn: Eqn) -> list[Var]:
        """The values that an equation reads, each itself or what it is a view of."""
        return [self.source(a)[0] for a in eqn.inputs if type(a) is Var]

    def reads_inside(self, eqn: Eqn) -> bool:
        """True for a gather at indices that regions make, or in C at those that a trace has copied.

        Another thread of the caller may write to an argument while it is read. Such an index is
        looked at once, by a kernel of its own, where one outside is an error.
        """
        if not (self.gathers and isinstance(eqn.op, Gather) and isinstance(eqn.inputs[0], Var)):
            return False
        x, *indices = eqn.inputs
        bases = [self.source(a)[0] for a in indices if isinstance(a, Var) and not a.type.weak]
        known = {a for a in bases if self.counts(a)} if self.units else self.captured
        apart = None, self.scalars
        made = [a for a in bases if a.type.size > 1 and (a in known or self.group(a) not in apart)]
        empty = not (eqn.outs[0].type.size and x.type.size)
        safe = short(eqn, self.tuning.gathered) if self.units else self.arguments.isdisjoint(bases)
        narrow = x.type.dtype in HALF and not self.units
        return bool(made) and safe and not (empty or narrow)

    def counts(self, base: Var) -> bool:
        """True of what a region of a GPU makes where it reads at it: 0, 1, 2, ... along an axis."""
        made = self.view_eqns.get(base)
        return self.units > 0 and made is not None and isinstance(made.op, Iota)

    # -- equations one by one

    def alone(self, eqn: Eqn) -> None:
        """An equation that no region takes."""
        bases = self.bases(eqn)
        level = max([self.made_at(base)[1] for base in bases], default=0)
        if not on_host(eqn):  # which reads what no group makes, and is done before any runs
            level += 1
        if eqn.op.effect:
            level = self.effects = max(level, self.effects + 1)
        for base in bases:
            if group := self.group(base):
                group.ceiling = min(group.ceiling, level)
        self.level.update(dict.fromkeys(eqn.outs, level))

    def take(self, index: int, eqn: Eqn) -> None:
        """Puts an equation into a group it fits, and joins those it reads from where they fit."""
        reduces, views, source = folds(eqn.op), self.views, self.source
        shape = eqn.inputs[0].type.shape if reduces else eqn.outs[0].type.shape
        uses: Uses = [views.get(a) or source(a) for a in elements_of(eqn) if type(a) is Var]
        tables, before = self.tables(eqn), len(self.leaders)
        read = [self.made_at(var) for var in (*[v for v, _ in uses], *tables)]
        made = [g for g, _ in read[: len(uses)] if g is not None and g is not self.scalars]
        producers = self.with_numbers(eqn, uses, made)
        if index in self.late:
            producers = {g: None for g in producers if self.late.issuperset(g.entries)}
        if len(self.leaders) > before:  # some are part of others now
            read = [self.made_at(var) for var in (*[v for v, _ in uses], *tables)]
        waiting = 0 if self.units else picked(eqn)  # other warps of a GPU work while one waits
        one = Incoming(index, eqn, uses, shape, tables, read, reduces, waiting, costly(eqn))
        near = self.near(one, producers, index in self.late or self.waits(eqn, made))
        home = next((group for group in near if self.joined(group, one)), None)
        if home is None:
            level = 1 + max([level for _, level in read], default=0)
            home = Group(level, self.tuning, self.parts.get(index, 0))
            self.joined(home, one)
        for (var, dims), (made_by, _) in zip(uses, read, strict=False):
            if made_by is not None and made_by is not home:
                made_by.consumers.add(home)
            elif made_by is None and len(dims) == len(shape):
                self.readers[self.beside.get(var, var)] = home
        home.tables.update(tables)
        for made_by in filter(None, [g for g, _ in read[len(uses) :]]):
            made_by.consumers.add(home)
        for group in producers:
            if group is not home:
                self.merge(home, group)

    def near(self, one: Incoming, producers: Mapping[Group, None], waits: bool) -> Iterator[Group]:
        """The groups that an equation may join: those it reads from, then others that read the same."""
        yield from sorted(producers, key=lambda g: -g.level)
        if one.shape and not waits:
            found = (self.readers.get(self.beside.get(v, v)) for v, _ in one.uses)
            read = (leader(self.leaders, g) for g in found if g)
            yield from dict.fromkeys([g for g in read if g not in producers])

    def with_numbers(self, eqn: Eqn, uses: Uses, made: Sequence[Group]) -> dict[Group, None]:
        """The groups that are read from: numbers that one equation alone reads become part of another."""
        numbers = [g for g in made if not (g.axes or g.consumers)]
        if not numbers or len(numbers) == len(made):
            return dict.fromkeys(made)
        into = max((g for g in made if g.axes), key=lambda g: g.level, default=None)
        for group in numbers if into else ():
            if into and any(v in group.made and self.only.get(v) is eqn for v, _ in uses):
                self.merge(into, group)
        return dict.fromkeys(leader(self.leaders, g) for g in made)

    def waits(self, eqn: Eqn, made: Sequence[Group]) -> bool:
        """True for work on one array that is there, read by one later equation alone, with what comes
        after a step that no region takes: it is done there, and not where the array is read now.
        """
        reader = self.only.get(eqn.outs[0])
        if made or reader is None or not isinstance(eqn.op, Pointlike) or not fusible(reader):
            return False
        arrays = sum(bool(a.type.shape) for a in self.bases(eqn))
        same = reader.outs[0].type.shape == eqn.outs[0].type.shape
        depth = max(self.depths.get(a, 0) for a in reader.inputs) - self.depths.get(eqn.outs[0], 0)
        return arrays == 1 and same and depth > 0

    def tables(self, eqn: Eqn) -> list[Var]:
        """The values that an equation of a region reads at indices."""
        x = eqn.inputs[0] if type(eqn.op) is Gather else None
        return [self.source(x)[0]] if isinstance(x, Var) else []

    def joined(self, group: Group, one: Incoming) -> bool:
        """Puts an equation into a group, if it fits."""
        level, index, eqn, uses, shape = group.level, one.index, one.eqn, one.uses, one.shape
        for found, before in one.read:
            if found is not group and before >= level:
                level = 1 + before
        if (
            group.full(one.reduces)
            or (one.tables and not group.made.isdisjoint(one.tables))
            or ((one.picked or group.picked) and group.keeps_apart(one.picked, one.costly))
            or group.part != self.parts.get(index, 0)
            or level >= group.limit(self.leaders)
        ):
            return False
        entry = group.place(uses, shape)
        if entry is None:
            return False
        (var,), op = eqn.outs, eqn.op
        whole = group.closes(uses)
        over, out = folding(op, entry) if one.reduces else (NO_AXES, entry)
        if isinstance(op, ArgReduce):
            whole |= over
        axes = group.with_axes(entry, shape)
        other = group.tails and over and over not in group.folded.values()
        spans = [*group.spans, (over, out)] if self.units and not whole else []
        if other or sideways(axes, max(group.widest, entry, key=len), spans):
            return False
        tail: frozenset[int] = NO_AXES
        changed = whole is not group.whole or axes is not group.axes or bool(one.tables)
        again = self.units > 0 and bool(group.tables or one.tables)
        if changed and (
            too_large(axes, whole, self.tuning, again)
            or better_shared(axes, whole, (*group.entries.values(), entry), self.tuning, self.units)
        ):
            tail = self.tail(group, eqn, entry, uses)
            if tail:
                whole, axes = group.whole, group.axes
                group.tails += 1
            elif group.entries:
                return False
            if isinstance(op, ArgReduce):
                whole, group.ceiling = NO_AXES, 0  # it stays alone
        group.level, group.whole, group.axes = level, whole, axes
        group.picked = max(group.picked, one.picked)
        group.costly = max(group.costly, one.costly)
        group.add(index, var, entry, out, uses)
        self.group_of[index] = self.home[var] = group
        if over or tail:
            group.folded[var] = over or tail
        return True

    def tail(self, group: Group, eqn: Eqn, entry: Dims, uses: Uses) -> frozenset[int]:
        """The axes folded to all, but for numbers, that elementwise work goes on with; else none."""
        if not (self.tails and isinstance(eqn.op, Pointlike)) or group.whole:
            return NO_AXES
        if group.tails >= self.tuning.tail or not self.products.isdisjoint(group.embed):
            return NO_AXES
        others = any(var.type.size > 1 and var not in group.folded for var, _ in uses)
        over, *unlike = {*group.folded.values(), NO_AXES} - {NO_AXES} or {NO_AXES}
        kept = group.axes.keys() - over
        return NO_AXES if others or unlike or kept != set(entry) - {NONE} else over

    def merge(self, a: Group, b: Group) -> None:
        """Takes `b`, from which `a` reads, into `a`, if the two fit."""
        if self.apart(a, b) or (names := merged(a, b)) is None:
            return
        axes, folded, whole = joint(a, b, names)
        entries = *a.entries.values(), *(named(names, e) for e in b.entries.values())
        if too_large(axes, whole, self.tuning, self.units > 0 and bool(a.tables or b.tables)):
            return
        if better_shared(axes, whole, entries, self.tuning, self.units):
            return
        widest = max(a.widest, named(names, b.widest), key=len)
        if self.units and not whole and sideways(axes, widest, spans_of(a, b, names)):
            return
        if (a.tails or b.tails) and len({*folded.values()} - {NO_AXES}) > 1:
            return
        a.level, a.axes, a.folded, a.whole = max(a.level, b.level), axes, folded, whole
        for var, at in b.embed.items():
            a.read(var, named(names, at))
        a.entries.update((index, named(names, entry)) for index, entry in b.entries.items())
        a.widest = widest
        a.made |= b.made
        a.twisted |= b.twisted
        a.tables |= b.tables
        a.tails += b.tails
        a.picked, a.costly = max(a.picked, b.picked), max(a.costly, b.costly)
        a.consumers |= b.consumers
        a.ceiling = min(a.ceiling, b.ceiling)
        self.leaders[b] = a

    def apart(self, a: Group, b: Group) -> str:
        """The reason why `a` cannot take `b` in whatever their axes are; "" if there is none."""
        if a.full(b.folds, b) or b.full(a.folds, a):
            return "together they have more equations than a region may have"
        if a.part != b.part:
            return "a region that was too long was cut here, where fewest bytes cross"
        if not (a.tables.isdisjoint(b.made) and b.tables.isdisjoint(a.made)):
            return "one reads elements at indices from an array that the other makes"
        if a.keeps_apart(b.picked, b.costly):
            return "one waits for elements at indices, while the other computes functions of many"
        if max(a.level, b.level) >= min(a.limit(self.leaders, b), b.limit(self.leaders, a)):
            return BETWEEN
        return ""

    def settle(self) -> None:
        """Gives early scalars to the group that reads them, if it is the only reader."""
        made = {v for i in self.early for v in self.graph.eqns[i].outs}
        readers: set[Group | None] = set()
        for i, eqn in enumerate(self.graph.eqns if made else ()):
            viewing = bool(eqn.outs) and eqn.outs[0] in self.view_eqns
            if i not in self.early and not viewing and not made.isdisjoint(self.bases(eqn)):
                readers.add(leader(self.leaders, self.group_of[i]) if i in self.group_of else None)
        group = readers.pop() if len(readers) == 1 else None
        if group is not None and len(group.entries) + len(self.early) <= self.tuning.members:
            group.entries.update(self.scalars.entries)
            self.leaders[self.scalars] = group

    def parts_of_long(self) -> dict[int, int]:
        """The part of each equation of a group that is too long, cut where fewest bytes cross."""
        found, numbers, most = dict[int, int](), count(1), self.tuning.members
        few = most // (1 + 4 * self.tuning.array)  # hardly any equation moves more arrays
        large = [g for g in self.groups if len(g.entries) > few and g.longest > most]
        readers = self.reading({v for g in large for v in g.made})
        for group in large:
            entries = when_needed(sorted(group.entries), self.graph, self.bases)
            lengths = self.lengths(group, entries, readers)
            if sum(lengths) <= most:
                continue
            inner = cuts(crossing([self.graph.eqns[n] for n in entries], self.bases), lengths, most)
            for start, stop in pairwise([0, *inner, len(entries)]):
                found.update(dict.fromkeys(entries[start:stop], next(numbers)))
        return found

    def moved(self) -> tuple[int, int]:
        """The bytes that groups write and read, and how many they are."""
        homes: dict[Atom, Group | None] = {
            v: self.group(v) for v in (*self.home, *self.graph.inputs)
        }
        others = {
            v: found - {homes[v]} for v, found in self.reading({*homes}).items() if v in homes
        }
        each = (
            v.type.nbytes * (len(found) + bool(found and homes[v])) for v, found in others.items()
        )
        return sum(each), len(self.groups)

    def made_late(self) -> frozenset[int]:
        """The equations whose results are stored for one reader, of another group, where that moves
        fewer bytes if it makes them as it reads what they are made of.
        """
        eqns, found, least = self.graph.eqns, set[int](), self.tuning.recomputed
        if not (apart := dict.fromkeys(v for n in self.group_of for v in self.read_apart(n))):
            return NO_AXES
        makers = {v: n for n in self.group_of for v in eqns[n].outs}
        reading = (e for e in eqns if not (e.outs and e.outs[0] in self.view_eqns))
        counts = Counter(v for e in reading for v in dict.fromkeys(self.bases(e)))
        counts.update(self.source(a)[0] for a in self.graph.outputs if isinstance(a, Var))
        groups = self.reading({*makers})
        for first in apart:
            waiting, work, read, stored = [first], set[int](), dict[Var, int](), first.type.nbytes
            while waiting:
                v = waiting.pop()
                op = eqns[makers[v]].op if v in makers else None
                if v.type.size == first.type.size and counts[v] == 1 and isinstance(op, Pointlike):
                    work.add(makers[v])
                    waiting += self.bases(eqns[makers[v]])
                else:  # what a group makes may be stored for this alone
                    inside = op is not None and groups.get(v, set()) <= {self.group(v)}
                    read[v] = v.type.nbytes * (2 if inside else 1)
            if stored * (2 if stored >= least else 1) > sum(read.values()):
                found |= work
        return frozenset(found)

    def read_apart(self, n: int) -> list[Var]:
        """The values of other groups that a reduction reads, or large ones that an elementwise
        equation reads.
        """
        eqn, home = self.graph.eqns[n], leader(self.leaders, self.group_of[n])
        found = [v for v in self.bases(eqn) if self.group(v) not in (None, home)]
        size, least = math.prod(home.axes.values()) if found else 0, self.tuning.recomputed
        whole = isinstance(eqn.op, Reduce)
        return [v for v in found if whole or (v.type.size == size and v.type.nbytes >= least)]

    def lengths(
        self, group: Group, entries: Sequence[int], readers: Mapping[Atom, set[Group | None]]
    ) -> list[int]:
        """The length of each equation, with the arrays that it reads first or stores."""
        seen, found, inside, tuning = set(group.made), list[int](), {group}, self.tuning
        for index in entries:
            eqn = self.graph.eqns[index]
            read = {v for v in self.bases(eqn) if v.type.size > 1 and v not in seen}
            stored = [v for v in eqn.outs if not readers.get(v, inside) <= inside]
            halves = sum(v.type.dtype in HALF for v in (*read, *stored))
            arrays = len(read) + len(stored) - halves
            found.append(1 + tuning.conversion * halves + tuning.array * arrays)
            seen |= read
        return found

    def reading(self, values: set[Atom]) -> dict[Atom, set[Group | None]]:
        """The groups that read each value, itself or by a view; None: the caller, or no group."""
        found: dict[Atom, set[Group | None]] = {}
        for index, eqn in enumerate(self.graph.eqns if values else ()):
            if not (eqn.outs and eqn.outs[0] in self.view_eqns):
                group = self.group_of.get(index)
                for v in filter(values.__contains__, self.bases(eqn)):
                    found.setdefault(v, set()).add(group and leader(self.leaders, group))
        for a in self.graph.outputs if values else ():
            if isinstance(a, Var):
                found.setdefault(self.source(a)[0], set()).add(None)
        return found

    # -- the graph of regions

    def rebuilt(self) -> Graph:
        """Regions and single equations in an order as near to the old one as may be."""
        members: dict[Group, list[int]] = {}
        nodes: list[list[int]] = []
        for index, eqn in enumerate(self.graph.eqns):
            if eqn.outs and eqn.outs[0] in self.view_eqns:
                continue
            found = self.group_of.get(index)
            if found is None:
                nodes.append([index])
                continue
            root = leader(self.leaders, found)
            if root not in members:
                members[root] = []
                nodes.append(members[root])
            members[root].append(index)
        return Rebuild(self, nodes).run()


class Rebuild:
    """Writes the fused graph: each node (a region or an equation) after those it reads from."""

    def __init__(self, fusion: Fusion, nodes: Sequence[list[int]]) -> None:
        self.fusion, self.nodes, self.old = fusion, nodes, fusion.graph.eqns
        self.eqns: list[Eqn] = []
        self.written: set[Var] = set()  # views that the outer graph has
        self.maker = {v: n for n, node in enumerate(nodes) for i in node for v in self.old[i].outs}
        self.reads: list[dict[Var, None]] = [self.bases(node) for node in nodes]
        self.wanted = {self.fusion.source(a)[0] for a in fusion.graph.outputs if isinstance(a, Var)}
        for n, reads in enumerate(self.reads):
            self.wanted.update(v for v in reads if self.maker.get(v) != n)

    def bases(self, node: Sequence[int]) -> dict[Var, None]:
        source, old = self.fusion.source, self.old
        return dict.fromkeys([source(a)[0] for i in node for a in old[i].inputs if type(a) is Var])

    def run(self) -> Graph:
        graph = self.fusion.graph
        for n in self.order():
            node = self.nodes[n]
            eqn = self.old[node[0]]
            one = len(node) == 1 and isinstance(eqn.op, Gather)
            alone = one and not any(map(self.fusion.counts, self.bases(node)))
            if alone or self.fusion.group_of.get(node[0]) is None:
                self.write_views(eqn.inputs)
                self.eqns.append(eqn)
            else:
                self.write_views([e.inputs[0] for e in self.gathers(node)])
                self.eqns.append(self.region(node))
        self.write_views(graph.outputs)
        return Graph(graph.inputs, tuple(self.eqns), graph.outputs, graph.consts)

    def order(self) -> list[int]:
        before: dict[int, set[int]] = {}
        last_effect = None
        for n, reads in enumerate(self.reads):
            before[n] = {self.maker[v] for v in reads if v in self.maker} - {n}
            if any(self.old[i].op.effect for i in self.nodes[n]):
                before[n] |= set() if last_effect is None else {last_effect}
                last_effect = n
        sorter, ready, found = TopologicalSorter(before), list[tuple[int, int]](), list[int]()
        sorter.prepare()
        while sorter.is_active():
            for n in sorter.get_ready():
                heapq.heappush(ready, (self.nodes[n][-1], n))
            _, n = heapq.heappop(ready)
            found.append(n)
            sorter.done(n)
        return found

    def write_views(self, atoms: Sequence[Atom]) -> None:
        """The views that an equation outside regions reads, before it."""
        for atom in atoms:
            eqn = self.fusion.view_eqns.get(atom) if isinstance(atom, Var) else None
            if eqn is not None and eqn.outs[0] not in self.written:
                self.written.add(eqn.outs[0])
                self.write_views(eqn.inputs)
                self.eqns.append(eqn)

    def gathers(self, node: Sequence[int]) -> list[Eqn]:
        return [self.old[i] for i in node if isinstance(self.old[i].op, Gather)]

    def region(self, node: Sequence[int]) -> Eqn:
        group = leader(self.fusion.leaders, self.fusion.group_of[node[0]])
        number = numbering(group)
        writer = Writer(self.fusion.view_eqns, {a: number[a] for a in group.axes} | {NONE: NONE})
        for i in node:
            writer.equation(self.old[i], group.entries[i])
        outs = tuple(v for i in node for v in self.old[i].outs if v in self.wanted)
        inner = Graph(tuple(writer.inputs), tuple(writer.eqns), outs)
        inner, axes = round_halves(inner, tuple(writer.axes))
        space = tuple(n for _, n in sorted((number[a], n) for a, n in group.axes.items()))
        kind = "rowwise" if group.whole else "reduce" if group.folded else "pointwise"
        # an index that is outside is an error of the line that reads there
        last = next(iter(self.gathers(node)), self.old[node[-1]])
        return Eqn(Region(kind, space, axes, inner), tuple(writer.inputs), outs, last.source)
