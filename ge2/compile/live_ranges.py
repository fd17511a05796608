"""Live ranges are split: a value live across the step with most memory is recomputed after it.

  h, g = ...; y = dot g w; ...; w' = dot g ct; d = region h ct    ->
  h, g = ...; y = dot g w; ...; d, g' = region h ct; w' = dot g' ct

A derivative reads values of the forward pass: the argument of a gelu in a kernel of its own, and
the gelu in a product, whose operands are in memory. The region that reads the argument makes the
gelu as well, and writes it as a further result, right before the product reads it: the first one
need not wait. A cast of an argument is made again before it is read. And where a region can read
what a value is the sum of, a half type of half its bytes and what waits in any case, that waits:

  z = add x y; d = region z ct    ->    z = add x y; d = region x y ct

The pass moves a few per cent more bytes, at most, and only in programs whose values take much memory.
Below it are what is read where it is written, and rows that sums at indices make as they read them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add
from typing import Any, final

from ge2.base.arrays import FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.choice import Problem, prefs
from ge2.choice.choose import choose
from ge2.compile.recompute import Inlined, as_var, axes_read, region_of, trimmed
from ge2.compile.rewrites.persistent import SUMS, Places, in_c_order, ordered, places_of
from ge2.ir import (
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
from ge2.ops.elementwise import MUL
from ge2.ops.graphs.region import Region, is_loop, readers_of
from ge2.ops.index import Gather, SumsInOrder, UpdateSlice
from ge2.ops.shape import Barrier, BroadcastInDim, Concatenate, Reshape, Slice
from ge2.passes.context import NOTHING, Context
from ge2.passes.indices import SumsAt
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.words import FAR
from ge2.targets.cuda.kernels.scatter import DIGITS, RANKS
from ge2.targets.cuda.limits import ASSUMED, Limits
from ge2.transforms.graphs.partition import NEVER, Choice, work_in_bytes


def split_live_ranges(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph in which what is cheap to make again does not wait across the fullest step."""
    if context.body or not any(isinstance(e.op, Region) for e in graph.eqns):
        return graph
    return Splitting(graph, context).run()


Key = tuple[float, ...]  # equations run in the order of their keys


class Order:
    """Equations by number, each with the key of its turn; what makes each value, and who reads it."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.eqns, self.outputs = graph, [*graph.eqns], {*graph.outputs}
        self.keys: list[Key] = [(float(n),) for n in range(len(self.eqns))]
        self.makers: dict[Var, int] = {}
        self.readers: dict[Atom, list[int]] = {}
        self.regions: dict[Var, list[int]] = {}  # that read a value, through barriers or not
        self.batches = 0
        for n, e in enumerate(self.eqns):
            self.makers.update(dict.fromkeys(e.outs, n))
            for a in dict.fromkeys(a for a in e.inputs if isinstance(a, Var)):
                self.readers.setdefault(a, []).append(n)
                if isinstance(e.op, Region):
                    self.regions.setdefault(self.root(a), []).append(n)

    def sorted(self) -> Graph:
        turns = sorted(range(len(self.eqns)), key=self.keys.__getitem__)
        return replace(self.graph, eqns=tuple(self.eqns[n] for n in turns))

    def root(self, v: Var) -> Var:
        """The value that another is by the way of barriers."""
        n = self.makers.get(v)
        while n is not None and isinstance(self.eqns[n].op, Barrier):
            v = as_var(self.eqns[n].inputs[self.eqns[n].outs.index(v)])
            n = self.makers.get(v)
        return v

    def fullest(self) -> tuple[Key, int]:
        """The step at which most bytes are in use, and how many: of no argument, and no result."""
        last, changes = last_readers(self.eqns), [0] * (len(self.eqns) + 1)
        for n, e in enumerate(self.eqns):
            for v in () if e.op.is_view else e.outs:
                if v not in self.outputs and not v.type.weak:
                    changes[n] += v.type.nbytes
                    changes[last.get(v, n) + 1] -= v.type.nbytes
        used = [*accumulate(changes)]
        most = max(used)
        return (float(used.index(most)),), most

    def traffic(self) -> int:
        """The bytes that all steps read and write."""
        return sum(
            a.type.nbytes for e in self.eqns if not e.op.is_view for a in (*e.inputs, *e.outs)
        )

    def behind(self, numbers: Sequence[int], end: int) -> list[int] | None:
        """These of some equations that come before another one, and what needs them and does, too;
        None if that one needs any, or one has an effect.
        """
        stop, found = self.keys[end], set[int]()
        waiting = [n for n in numbers if self.keys[n] < stop]
        while waiting:
            n = waiting.pop()
            if n == end or self.eqns[n].op.effect:
                return None
            if n not in found:
                found.add(n)
                readers = (m for v in self.eqns[n].outs for m in self.readers.get(v, ()))
                waiting += [m for m in readers if self.keys[m] <= stop]
        return sorted(found, key=self.keys.__getitem__)

    def put(self, n: int, eqn: Eqn) -> None:
        """Has another equation in the turn of one."""
        self.makers.update(dict.fromkeys(eqn.outs, n))
        for a in {*eqn.inputs} - {*self.eqns[n].inputs}:
            self.readers.setdefault(a, []).append(n)
        for a in {*self.eqns[n].inputs} - {*eqn.inputs}:
            self.readers[a].remove(n)
        if isinstance(eqn.op, Region):
            for v in {self.root(a) for a in eqn.inputs if isinstance(a, Var)}:
                if n not in self.regions.setdefault(v, []):
                    self.regions[v].append(n)
        self.eqns[n] = eqn

    def readers_of(self, v: Var, n: int) -> list[int]:
        """The equations that read a value by way of one that does: a barrier's readers, or itself."""
        eqn = self.eqns[n]
        if not isinstance(eqn.op, Barrier):
            return [n]
        return self.readers.get(eqn.outs[eqn.inputs.index(v)], [])

    def last(self, v: Var) -> Key:
        """The turn of the last equation that reads a value, through barriers or not."""
        direct = (n for n in self.readers.get(v, ()) if not isinstance(self.eqns[n].op, Barrier))
        through = (n for n in self.regions.get(v, ()) if self.reads(n, v))
        return max((self.keys[n] for n in (*direct, *through)), default=())

    def reads(self, n: int, v: Var) -> bool:
        return any(isinstance(a, Var) and self.root(a) is v for a in self.eqns[n].inputs)

    def untie(self, n: int, v: Var) -> None:
        """Takes a value out of a barrier if nobody reads it behind that."""
        eqn = self.eqns[n]
        if isinstance(eqn.op, Barrier) and not self.readers_of(v, n):
            kept = [(a, out) for a, out in zip(eqn.inputs, eqn.outs, strict=True) if a is not v]
            inputs, outs = zip(*kept, strict=True) if kept else ((), ())
            self.put(n, replace(eqn, inputs=inputs, outs=outs))

    def follow(self, numbers: Sequence[int], end: int) -> None:
        """Has equations follow another one, before all that followed it until now."""
        self.batches += 1
        for i, n in enumerate(numbers):
            self.keys[n] = (*self.keys[end], -self.batches, i)

    def add(self, eqn: Eqn, before: int) -> None:
        """One more equation, right before another one."""
        *outer, at = self.keys[before]
        self.eqns.append(replace(eqn, inputs=()))
        self.keys.append((*outer, at - 0.5))
        self.put(len(self.eqns) - 1, eqn)


def last_readers(eqns: Sequence[Eqn]) -> dict[Atom, int]:
    """The last equation that reads each value, by itself or through a view of it."""
    found: dict[Atom, int] = {}
    for n in range(len(eqns) - 1, -1, -1):
        eqn = eqns[n]
        for i, a in enumerate(eqn.inputs):
            seen = eqn.outs[i : i + 1] if isinstance(eqn.op, Barrier) else eqn.outs
            through = [found.get(v, n) for v in seen] if eqn.op.is_view else []
            found[a] = max([n, found.get(a, n), *through])
    return found


@final
class Splitting:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.order, self.tuning = Order(graph), context.tuning.live_ranges
        self.most = context.tuning.fusion.folding
        self.full, self.peak = self.order.fullest()
        self.left = self.order.traffic() * self.tuning.share

    def run(self) -> Graph:
        if self.peak <= self.tuning.ample:
            return self.order.graph
        values = sorted(self.waiting(), key=lambda v: -v.type.nbytes)
        for way, given in (
            (self.joined, values),
            (self.derived, [*self.regional()]),
            (self.alone, values),
        ):
            for v in given:
                if late := self.late(v):
                    way(v, late)
        return self.order.sorted()

    def waiting(self) -> Iterator[Var]:
        """Large values of regions before the fullest step that are read behind it, and not viewed."""
        order = self.order
        for n, eqn in enumerate(order.eqns):
            for v in eqn.outs if isinstance(eqn.op, Region) and order.keys[n] < self.full else ():
                readers = [order.eqns[m] for m in order.readers.get(v, ())]
                large = v.type.nbytes >= self.tuning.least
                if large and v not in order.outputs and not any(e.op.is_view for e in readers):
                    yield v

    def regional(self) -> Iterator[Var]:
        """Large values of regions before the fullest step, which no result is."""
        order = self.order
        for n, eqn in enumerate(order.eqns):
            for v in eqn.outs if isinstance(eqn.op, Region) and order.keys[n] < self.full else ():
                if v.type.nbytes >= self.tuning.least and v not in order.outputs:
                    yield v

    def late(self, v: Var) -> list[int]:
        """The equations behind the fullest step that read a value."""
        return [n for n in self.order.readers.get(v, ()) if self.order.keys[n] > self.full]

    def joined(self, v: Var, late: Sequence[int]) -> None:
        """Has a region behind the fullest step make it as a further result, if one can."""
        order = self.order
        regional = any(isinstance(order.eqns[n].op, Region) for n in late)
        cone = None if regional or v.type.nbytes > self.left else Cone.of(v, order)
        if cone is None:
            return
        for host in self.hosts(cone):
            made = cone.within(order.eqns[host], order.root)
            moved = None if made is None else order.behind(late, host)
            if made is None or moved is None or len(region_of(made).graph.eqns) > self.most:
                continue
            order.put(host, made)
            order.follow(moved, host)
            self.read(v, made, late, v.type.nbytes)
            return

    def hosts(self, cone: Cone) -> Iterator[int]:
        """The regions behind the fullest step that read the large values that one is made of."""
        order, least = self.order, cone.value.type.nbytes // self.tuning.small
        large = [v for v in cone.leaves if v.type.nbytes > least]
        if any(v in order.makers for v in large):  # arguments are there without one
            for n in order.regions.get(large[0], ()):
                alike = all(n in order.regions.get(v, ()) for v in large)
                if alike and order.keys[n] > self.full:
                    yield n

    def alone(self, v: Var, late: Sequence[int]) -> None:
        """Has a region of its own make it, if what that reads is there still."""
        order = self.order
        eqn = order.eqns[order.makers[v]]
        first = min(late, key=order.keys.__getitem__)
        again = trimmed(eqn, (v,), (region_of(eqn).graph.outputs[eqn.outs.index(v)],))
        made = replace(again, outs=(Var(v.type),))
        moved = sum(a.type.nbytes for a in (*made.inputs, *made.outs))
        there = all(
            any(order.keys[n] > order.keys[first] for n in order.readers[a]) for a in made.inputs
        )
        cheap = all(work_in_bytes(e) < NEVER for e in region_of(made).graph.eqns)
        if there and cheap and moved <= self.left:
            order.add(made, first)
            self.read(v, made, late, moved)

    def derived(self, v: Var, late: Sequence[int]) -> None:
        """Has the regions behind the fullest step make it of what waits there, or has half its bytes."""
        order = self.order
        readers = {n for m in late for n in order.readers_of(v, m)}
        cone = Cone.of(v, order) if readers else None
        if cone is None or not all(isinstance(order.eqns[n].op, Region) for n in readers):
            return
        end = max(order.keys[n] for n in readers)
        new = sum(a.type.nbytes for a in cone.leaves if not self.is_there(a, end))
        made = cone.inlined(readers, order)
        long = (n for n, eqn in made.items() if len(region_of(eqn).graph.eqns) > self.most)
        if 2 * new > v.type.nbytes or made.keys() != readers or any(long):
            return
        moved = sum(bytes_read(eqn) - bytes_read(order.eqns[n]) for n, eqn in made.items())
        moved += new  # which its kernel might not have written else
        if moved > self.left:
            return
        for n, eqn in made.items():
            order.put(n, eqn)
        for n in late:
            order.untie(n, v)
        self.left -= moved
        self.peak -= v.type.nbytes - new

    def is_there(self, v: Var, end: Key) -> bool:
        """True of a value that is in memory until the equation of a turn in any case."""
        order = self.order
        return v not in order.makers or v in order.outputs or order.last(v) >= end

    def read(self, v: Var, made: Eqn, late: Sequence[int], moved: int) -> None:
        """Has the late readers read what is made again."""
        order = self.order
        for n in late:
            inputs = tuple(made.outs[-1] if a is v else a for a in order.eqns[n].inputs)
            order.put(n, replace(order.eqns[n], inputs=inputs))
        self.left -= moved
        self.peak -= v.type.nbytes


@final
@record
class Cone:
    """The equations of a region that make one of its results from what is in memory.

    `leaves`: values in memory outside, each with its name inside and the axes of the region's space
    that index it, None if none tells.
    """

    value: Var
    inner: Var
    eqns: tuple[tuple[Eqn, Dims], ...]
    leaves: dict[Var, tuple[Var, Dims | None]]

    @staticmethod
    def of(v: Var, order: Order) -> Cone | None:
        """None if a reduction, or what is dear, is between."""
        eqn = order.eqns[order.makers[v]]
        op = region_of(eqn)
        graph = op.graph
        pairs = {e.outs[0]: (e, at) for e, at in zip(graph.eqns, op.axes, strict=True)}
        outside: dict[Atom, Atom] = dict(zip(graph.outputs, eqn.outs, strict=True))
        inner = as_var(graph.outputs[eqn.outs.index(v)])
        del outside[inner]
        named = dict(zip(graph.inputs, eqn.inputs, strict=True))
        needed: dict[Var, None] = {}
        leaves: dict[Var, tuple[Var, Dims | None]] = {}
        waiting = [inner]
        while waiting:
            x = waiting.pop()
            if x in named:
                leaves[order.root(as_var(named[x]))] = x, axes_read(eqn, as_var(named[x]))
            elif x in outside:
                leaves[as_var(outside[x])] = x, pairs[x][1]
            elif x not in pairs or work_in_bytes(pairs[x][0]) >= NEVER:
                return None
            elif x not in needed:
                needed[x] = None
                waiting += [a for a in pairs[x][0].inputs if isinstance(a, Var)]
        kept = tuple(pair for out, pair in pairs.items() if out in needed)
        return Cone(v, inner, kept, leaves)

    def within(self, host: Eqn, root: Callable[[Var], Var]) -> Eqn | None:
        """A region that makes the value as its last result; None if its loops are other ones."""
        op = region_of(host)
        read = {root(a): a for a in host.inputs if isinstance(a, Var)}
        axes = self.axes(host, read)
        if axes is None:
            return None
        inputs = dict(zip(host.inputs, op.graph.inputs, strict=True))
        env: dict[Atom, Atom] = {}
        for v, (name, _) in self.leaves.items():
            there = read.get(v, v)
            env[name] = inputs.setdefault(there, Var(v.type))
        eqns, spaces = [*op.graph.eqns], [*op.axes]
        known = {(e.op, e.inputs, at): e.outs[0] for e, at in zip(eqns, spaces, strict=True)}
        for e, at in self.eqns:
            given = tuple(a if isinstance(a, Literal) else env[a] for a in e.inputs)
            there_at = tuple(a if a < 0 else axes[a] for a in at)
            found = known.get((e.op, given, there_at))
            if found is None:
                found = known[e.op, given, there_at] = Var(e.outs[0].type)
                eqns.append(replace(e, inputs=given, outs=(found,)))
                spaces.append(there_at)
            env[e.outs[0]] = found
        results = (*op.graph.outputs, env[self.inner])
        graph = Graph(tuple(map(as_var, inputs.values())), tuple(eqns), results, op.graph.consts)
        region = replace(op, graph=graph, axes=tuple(spaces))
        return replace(
            host, op=region, inputs=tuple(inputs), outs=(*host.outs, Var(self.value.type))
        )

    def inlined(self, readers: Iterable[int], order: Order) -> dict[int, Eqn]:
        """The regions that make the value where they read it; none for one whose loops are others."""
        source = order.eqns[order.makers[self.value]]
        again = frozenset(eqn for eqn, _ in self.eqns)
        choice = Choice(frozenset(x for x, _ in self.leaves.values()), again, 0)
        found = {}
        for n in readers:
            reader = order.eqns[n]
            mine = [a for a in reader.inputs if isinstance(a, Var) and order.root(a) is self.value]
            if len(mine) == 1 and axes_read(reader, mine[0]) is not None:
                inputs = tuple(self.value if a is mine[0] else a for a in reader.inputs)
                there = {order.root(a): a for a in reader.inputs if isinstance(a, Var)}
                outer: dict[Atom, Atom] = {x: there.get(v, v) for v, (x, _) in self.leaves.items()}
                reader = replace(reader, inputs=inputs)
                found[n] = Inlined(reader, source, [self.value], choice, outer).equation()
        return found

    def axes(self, host: Eqn, read: Mapping[Var, Var]) -> dict[int, int] | None:
        """The axis of another region's space that each axis of this one's is."""
        found: dict[int, int] = {}
        for v, (_, at) in self.leaves.items():
            there = axes_read(host, read[v]) if v in read else None
            if at is None or there is None or len(at) != len(there):
                continue
            for a, b in zip(at, there, strict=True):
                if found.setdefault(a, b) != b:
                    return None
        needed = {a for _, at in self.eqns for a in at if a >= 0}
        ours = {found[a] for a in needed if a in found}
        if not needed <= found.keys() or len(ours) != len(needed) or -1 in ours:
            return None
        return found if ours == {*range(len(region_of(host).space))} else None


def bytes_read(eqn: Eqn) -> int:
    return sum(a.type.nbytes for a in eqn.inputs)


# -------- What a region makes is read where it is written, once it is.
# u = region a; y = update_slice x u; v = region u y -> ...; y = update_slice x u; v = region y[1:-1] y
# A part that nothing else reads is made where it goes, and an update of an array in place is no
# kernel then. Each step of a stencil in time reads its last part, between shifts of the array.


def read_where_written(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose regions read parts of arrays in those, behind the updates that write them."""
    readers = readers_of(graph)
    at = {id(e): n for n, e in enumerate(graph.eqns)}
    makers, eqns, env = makers_of(graph), list[Eqn](), dict[Atom, Atom]()
    for n, e in enumerate(graph.eqns):
        eqns.append(renamed(env, e))
        u = e.inputs[1] if isinstance(e.op, UpdateSlice) else None
        if not isinstance(u, Var) or u in graph.outputs or set(e.op.step) != {1}:  # type: ignore[attr-defined]
            continue
        others = [at[id(each)] for each in readers[u] if each is not e]
        over = [
            at[id(each)] for each in readers.get(e.outs[0], ()) if isinstance(each.op, UpdateSlice)
        ]
        made = u in makers and is_loop(makers[u].op) and u.type.nbytes >= context.tuning.returned
        plain = all(
            isinstance(graph.eqns[k].op, Barrier) or is_loop(graph.eqns[k].op) for k in others
        )
        if (
            others
            and made
            and plain
            and n < min(others)
            and max(others) <= min(over, default=len(at))
        ):
            env[u] = applied(eqns, part_written(e), e.outs[0], source=e.source)
    return replace(graph, eqns=tuple(eqns)) if env else graph


def part_written(eqn: Eqn) -> Slice:
    """The slice that an update writes."""
    start, size = eqn.op.start, eqn.inputs[1].type.shape  # type: ignore[attr-defined]
    return Slice(start, tuple(map(add, start, size)), (1,) * len(start))


# -------- Rows at indices times weights, of which sums at other indices are all that is read, are made
# there, as messages along the edges of a graph are: neither written nor read as an array.
# y = sums_at (mul (gather x j) (broadcast w)) i
#   -> o, p = update_order i; y = sums_in_order x o p j w


def made_where_summed(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose sums at indices make such rows themselves, where they have an order."""
    caps = Caps.before(context.caps if isinstance(context.caps, Limits) else ASSUMED)
    makers, reads = makers_of(graph), Counter(a for e in graph.eqns for a in e.inputs)
    reads.update(a for a in graph.outputs if isinstance(a, Var))
    eqns, orders = list[Eqn](), dict[Places, Eqn]()
    for e in graph.eqns:
        made = list[Eqn]()
        once = isinstance(e.op, SumsAt | SumsInOrder) and reads[e.inputs[0]] == 1
        rows = rows_of(e, makers, made) if once else None
        then = in_given_order(e, orders, made, caps) if rows is not None else None
        if rows is not None and then is not None:
            (x, *named), factors = rows
            _, *order = then.inputs
            op = replace(then.op, over=order[0].type.shape, factors=len(factors))  # type: ignore[type-var]
            e = replace(then, op=op, inputs=(x, *order, *named, *factors))
            eqns += made
        eqns.append(e)
    return without_dead_code(replace(graph, eqns=tuple(eqns)))


def in_given_order(e: Eqn, orders: dict[Places, Eqn], made: list[Eqn], caps: Caps) -> Eqn | None:
    """Sums in an order, which may be made for them; None of those that are quicker without."""
    if isinstance(e.op, SumsInOrder):
        return e
    if not is_quicker_in_order(e, caps):
        return None
    known = orders.get(places_of(e))
    orders[places_of(e)], then = ordered(e, known)
    made += [] if known else [orders[places_of(e)]]
    return then


def is_quicker_in_order(e: Eqn, caps: Caps) -> bool:
    """True of sums at indices for which an order is chosen, or would be if it spares them the array
    of their updates, which is neither written nor read then.
    """
    unwanted, sizes = prefs().refuses, [a.type.size for a in (*e.inputs, *e.outs)]
    if not min(sizes) or max(sizes) >= FAR or any(unwanted(f.name) for f in SUMS):
        return False
    choice = choose(Problem.of(e, "cuda", in_c_order), caps, prefs(), SUMS[:1])
    ordered = [c for c in choice.candidates if c.variant.name in (RANKS, DIGITS)]
    if choice.taken in ordered or choice.by in ("pinned", "measured"):
        return choice.taken in ordered
    each, taken = [c.seconds for c in ordered if c.seconds is not None], choice.taken.seconds
    spared = 2 * e.inputs[0].type.nbytes / caps.speed.moved
    return taken is not None and min(each, default=math.inf) < taken + spared


Rows = tuple[
    tuple[Atom, ...], tuple[Atom, ...]
]  # an array, the rows of it, if any; factors of each


def rows_of(e: Eqn, makers: Mapping[Any, Eqn], made: list[Eqn]) -> Rows | None:
    """The array whose rows the updates of sums are, with an index for each, and their factors; None of
    other updates. Joined parts are of one array, whose rows need no index if each part has all of them.
    """
    assert isinstance(e.op, SumsAt | SumsInOrder)
    updates, maker = e.inputs[0], makers.get(e.inputs[0])
    over = updates.type.shape[: updates.type.ndim - len(e.op.shape) + len(e.op.axes)]
    joined = maker is not None and maker.op == Concatenate(0) and len(over) == 1
    parts = maker.inputs if joined and maker is not None else (updates,)
    found = [factored(a, len(over), makers) for a in parts]
    (x, *named), _ = found[0]
    alike = {(a[0], len(a), len(factors)) for a, factors in found}
    real = x.type.dtype in (FLOAT32, FLOAT64, *HALF)
    if len(alike) > 1 or not real or len(over) == updates.type.ndim or x.type.size >= FAR:
        return None
    whole = joined and found[0][1] and {a.type.shape for a in parts} == {x.type.shape}
    if not named and not whole:
        return None

    def of_all(arrays: tuple[Atom, ...]) -> Atom:
        whole = applied(made, Concatenate(0), *arrays) if joined else arrays[0]
        return whole if len(over) == 1 else applied(made, Reshape((math.prod(over),)), whole)

    index = map(of_all, zip(*(a[1:] for a, _ in found), strict=True))
    factors = map(of_all, zip(*(each for _, each in found), strict=True))
    return (x, *index), (*factors,)


def factored(x: Atom, rank: int, makers: Mapping[Any, Eqn]) -> Rows:
    """An array with indices along so many axes: that whose rows it is, and which, if these are named;
    and the factors of each.
    """
    factors = tuple[Atom, ...]()
    while (e := makers.get(x)) is not None and e.op is MUL:
        pairs = zip(e.inputs, e.inputs[::-1], strict=True)
        found = ((a, by) for a, b in pairs if (by := of_rows(b, rank, makers)) is not None)
        a, by = next(found, (x, None))
        if by is None:
            break
        x, factors = a, (by, *factors)
    named = e is not None and e.op == Gather((0,)) and e.inputs[1].type.ndim == rank
    return e.inputs if named and e is not None else (x,), factors


def of_rows(x: Atom, rank: int, makers: Mapping[Any, Eqn]) -> Atom | None:
    """The factors, one for each index, of which `x` repeats each along its row; None of other arrays."""
    e = makers.get(x)
    along = e is not None and isinstance(e.op, BroadcastInDim) and e.op.dims == (*range(rank),)
    same = along and e is not None and e.inputs[0].type.shape == x.type.shape[:rank]
    return e.inputs[0] if same and e is not None else None
