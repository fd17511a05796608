"""A Python loop of equal iterations, found in the graph again and made one loop:
compiled once, not an iteration each.

Equations in a row that repeat with a period are iterations if what each reads is made in the same
iteration, or in the one before (a carry), or is the same for all (a constant), or is made before
all of them (an element). Numbers that differ, such as those of steps in time, are elements, too.
What later equations read of every iteration is a result of every iteration. Iterations of
elementwise work alone could be one kernel, which keeps values in registers and takes long to
compile; several of them may be one of the loop. Which it is to be is a question of price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, final

from ge2.base.record import computed, mutable
from ge2.base.source import logger
from ge2.ir import Atom, Eqn, Graph, GraphOp, Literal, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.graphs.loops import RepeatLoop
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import (
    Barrier,
    BroadcastInDim,
    Iota,
    Reshape,
    Rev,
    Slice,
    StopGradient,
    Transpose,
    inverse,
)
from ge2.passes.context import NOTHING, Context, Rolling
from ge2.passes.loops.rolled_to_scan import along_first, as_array, as_rows
from ge2.trace.stage import strong as on_arrays

# ------------------------------------------------------------------------------------------- price
# The price of equations in seconds: what the C compiler takes for them, and
# what it costs to store values.
#
# Only ratios matter: which of two programs is cheaper.


def compile_seconds(eqns: Iterable[Eqn]) -> float:
    """The time in which a C compiler makes code of elementwise equations that are one kernel."""
    return sum(e.op.cost.compile_seconds for e in eqns)


def traffic_seconds(nbytes: int, tuning: Rolling) -> float:
    """The time in which a kernel writes bytes that the next one reads."""
    speed = tuning.from_cache if nbytes <= tuning.cache else tuning.from_memory
    return tuning.dispatch + 2 * nbytes / speed


# -------------------------------------------------------------------------------------------- roll

FUSED = (
    Pointlike,
    Reduce,
    ArgReduce,
    Iota,
    BroadcastInDim,
    Transpose,
    Reshape,
    Slice,
    Rev,
    StopGradient,
    Barrier,
)
MOVES = (Reduce, ArgReduce, Transpose, Slice, Rev)  # that read what other threads make
Place = tuple[int, int, int]  # iteration, equation of the iteration, result


def roll(graph: Graph, context: Context = NOTHING) -> Graph:
    tuning = context.tuning.rolling
    if len(graph.eqns) < tuning.equations:
        return graph
    first, eqns = parted(along_first(graph, tuning.rounds))
    made: list[Eqn] = []
    at = 0
    # the long ones find loops of elementwise work, which a GPU has in straight code
    grams = tuning.grams if context.caps is None else tuning.grams[:1]
    cache = None if context.caps is None else context.caps.l2
    code = Straight(graph, eqns)
    for start, stop, period in repetitions(eqns, grams, tuning):
        found = rolled(code, max(start, at), stop, period, tuning, cache)
        if found is None:
            longer = longer_periods(code, start, stop, period, tuning)
            tried = (rolled(code, max(start, at), stop, p, tuning, cache) for p in longer)
            found = next(filter(None, tried), None)
        if found is not None and context.caps is not None and not worth_planning(found, tuning):
            found = None
        if found is not None:
            made += [*eqns[at : found.start], *found.tables, found.equation]
            at = found.end
    if not made:
        return graph
    return Graph(graph.inputs, (*first, *made, *eqns[at:]), graph.outputs, graph.consts)


def worth_planning(found: Rolled, tuning: Rolling) -> bool:
    """True if a loop on a GPU saves more of the compiler's time than it costs over many calls.

    Rounds that are several kernels are compiled once in straight code, too; there, values need not
    lie in arrays of their own between rounds.
    """
    op = found.equation.op
    assert isinstance(op, RepeatLoop)
    body = op.body.eqns
    if all(isinstance(e.op, FUSED) for e in body):
        return True
    moved = op.length * sum(v.type.nbytes for e in body if not e.op.is_view for v in e.outs)
    saved = tuning.planning * (found.end - found.start)
    return tuning.steps * tuning.apart * moved / tuning.device_memory < saved


def parted(graph: Graph) -> tuple[list[Eqn], list[Eqn]]:
    """Views of the inputs that are in one piece, which cost nothing and come
    first; the other equations.

    Among those a view of what is made is right after it, not in the iteration that reads it.
    """
    known: set[Atom] = set(graph.inputs)
    first, rest = list[Eqn](), list[Eqn]()
    views: dict[Atom, list[Eqn]] = {}
    for eqn in graph.eqns:
        if not in_one_piece(eqn):
            rest.append(eqn)
        elif known.issuperset(eqn.inputs):
            known.update(eqn.outs)
            first.append(eqn)
        else:
            views.setdefault(eqn.inputs[0], []).append(eqn)
    return first, [each for eqn in rest for each in followed(eqn, views)]


def followed(eqn: Eqn, views: Mapping[Atom, list[Eqn]]) -> Iterator[Eqn]:
    """An equation, and the views of what it makes, and of those."""
    yield eqn
    for v in eqn.outs:
        for view in views.get(v, ()):
            yield from followed(view, views)


def in_one_piece(eqn: Eqn) -> bool:
    op = eqn.op
    if isinstance(op, Reshape):
        return True
    if not isinstance(op, Slice):
        return False
    shape, inner = eqn.inputs[0].type.shape, slice(1, None)
    whole = op.start[inner] == (0,) * (len(shape) - 1) and op.stop[inner] == shape[inner]
    return bool(shape) and whole and set(op.step) == {1}


def repetitions(
    eqns: Sequence[Eqn], grams: Sequence[int], tuning: Rolling
) -> list[tuple[int, int, int]]:
    """The ranges in which names of operations repeat: the first equation, the one after the last,
    and the period. `grams`: the numbers of names in a row that are looked for.
    """
    # cheap; whether all else is equal is looked at where these repeat
    names = [e.op.name for e in eqns]
    # long ones repeat with the whole iteration, where what is in it repeats as well
    periods = {p for gram in grams for p in common(names, gram, tuning.periods)}
    found = {p: runs(names, p, tuning) for p in periods}
    around = {q for ranges in found.values() for q in outer(ranges, tuning)}
    found.update((q, runs(names, q, tuning)) for q in around - periods)
    return sorted((start, stop, p) for p, ranges in found.items() for start, stop in ranges)


def longer_periods(
    code: Straight, start: int, stop: int, period: int, tuning: Rolling
) -> Iterator[int]:
    """The periods that equations may have whose names repeat sooner: of a loop around one, which
    begins again where operands are made at other distances, and some times as long.
    """
    at = code.at
    apart = [
        (e.op.name, *(n - at[a][0] if a in at else 0 for a in e.inputs))
        for n, e in enumerate(code.eqns[start:stop], start)
    ]
    yield from outer(runs(apart, period, tuning), tuning)
    yield from (period * n for n in range(2, tuning.turns + 1))


def outer(ranges: Sequence[tuple[int, int]], tuning: Rolling) -> list[int]:
    """The period of a loop around those whose iterations are in these ranges, if there is one: inside
    of it the names a period before are found nearer.
    """
    starts = Counter(b[0] - a[0] for a, b in pairwise(ranges) if b[1] - b[0] == a[1] - a[0])
    return [period for period, count in starts.most_common(1) if count + 2 >= tuning.rounds]


def common(names: Sequence[str], length: int, count: int) -> list[int]:
    """The most common distances between so many names in a row and the same ones before."""
    last: dict[tuple[str, ...], int] = {}
    distances: Counter[int] = Counter()
    for i in range(len(names) - length + 1):
        gram = tuple(names[i : i + length])
        if gram in last:
            distances[i - last[gram]] += 1
        last[gram] = i
    return [period for period, _ in distances.most_common(count)]


def runs(keys: Sequence[Any], period: int, tuning: Rolling) -> list[tuple[int, int]]:
    """The ranges in which keys equal those a period later for so long that it may be a loop."""
    found, start, least = [], 0, max(period * tuning.rounds, tuning.equations)
    unlike = [i for i, (a, b) in enumerate(zip(keys, keys[period:], strict=False)) if a != b]
    for i in (*unlike, len(keys) - period):
        stop = i + period
        if stop - start >= least:
            found.append((start, stop))
        start = i + 1
    return found


def key_of(eqn: Eqn, differ: bool) -> Any:
    """All that is equal in every iteration; numbers may `differ` in elementwise operations."""
    types = tuple([a.type for a in eqn.inputs])
    if differ and isinstance(eqn.op, Pointlike):
        return eqn.op, types, tuple([type(a) is Literal for a in eqn.inputs])
    return eqn.op, types, tuple([a if type(a) is Literal else None for a in eqn.inputs])


@final
class Straight:
    """Straight code, and what is known of its equations once somebody asks."""

    def __init__(self, graph: Graph, eqns: Sequence[Eqn]) -> None:
        self.graph, self.eqns = graph, eqns

    @computed
    def at(self) -> dict[Atom, tuple[int, int]]:
        """The equation that makes each value, and which of its results it is."""
        return {v: (n, i) for n, e in enumerate(self.eqns) for i, v in enumerate(e.outs)}

    @computed
    def keys(self) -> list[Any]:
        return [key_of(e, True) for e in self.eqns]

    @computed
    def exact_keys(self) -> list[Any]:
        return [key_of(e, False) for e in self.eqns]


@final
@mutable
class Rolled:
    tables: list[Eqn]  # equations of numbers that it reads as rows of arrays
    equation: Eqn
    start: int  # the first equation of the first iteration
    end: int  # the first equation after the last iteration


def rolled(
    code: Straight, start: int, stop: int, period: int, tuning: Rolling, cache: int | None
) -> Rolled | None:
    """The first loop that there is between two equations, perhaps
    without the first ones that repeat. `cache`: the bytes of a GPU's, where products do not read turned
    arrays as quickly as others.
    """
    # rounds of several kernels are compiled once in straight code, too, and run quicker there
    body = code.eqns[start : start + period]
    loops = any(isinstance(e.op, GraphOp) for e in body)  # which straight code has one by one
    differ = cache is None and (loops or all(isinstance(e.op, FUSED) for e in body))
    keys = code.keys if differ else code.exact_keys
    for first, last in runs(keys[start:stop], period, tuning):
        for skipped in range(min(2 * period, last - first)):
            count = (last - first - skipped) // period
            if count < tuning.rounds or count * period < tuning.equations:
                break
            loop = Rounds(code, start + first + skipped, period, count, cache)
            if not skipped and not (loop.can_repeat() and loop.pays(tuning)):
                break  # nor do the same equations in another order
            if loop.read():
                several = loop.at_once(tuning)
                if several:
                    if several > 1:
                        return loop.by(several)
                    loop = loop.from_product(last - first - skipped)
                    loop = loop.from_least_carried(start + last)
                    return loop.in_turns(tuning).rolled()
    return None


@final
@mutable
class Rounds:
    """Equations `start + t * period + o`: iteration t, equation o."""

    code: Straight
    start: int
    period: int
    count: int
    cache: int | None  # of a GPU, in bytes
    places: dict[Atom, Place] = field(default_factory=dict)
    consts: dict[Atom, Var] = field(default_factory=dict)  # what they are within an iteration
    # by what makes the next
    carries: dict[tuple[int, int], tuple[Var, Atom]] = field(default_factory=dict)
    elements: dict[tuple[Atom, ...], Var] = field(default_factory=dict)
    # of each equation
    inputs: dict[tuple[int, int], Atom | tuple[int, int]] = field(default_factory=dict)

    def can_repeat(self) -> bool:
        """True if equations neither have effects nor make Python numbers."""
        return not any(e.op.effect or any(v.type.weak for v in e.outs) for e in self.round(0))

    def pays(self, tuning: Rolling) -> bool:
        """False of elementwise iterations that compile at once as they are."""
        body = self.round(0)
        plain = self.cache is None and all(isinstance(e.op, FUSED) for e in body)
        return not plain or compile_seconds(body) * self.count >= tuning.worth

    def at_once(self, tuning: Rolling) -> int:
        """The number of iterations that are to be one of the loop; 0 if all of them are to be one kernel,
        or on a GPU a few, whose threads have what they read of many iterations on its way at once.
        """
        body = self.round(0)
        if any(isinstance(e.op, GraphOp) or not isinstance(e.op, FUSED) for e in body):
            return 1
        once, on_gpu = compile_seconds(body), self.cache is not None
        made = {v for e in body for v in e.outs} | {a for _, a in self.carries.values()}
        waits = any(isinstance(e.op, MOVES) and not made.isdisjoint(e.inputs) for e in body)
        if on_gpu and not waits and len(body) * self.count <= tuning.straight:
            return 0
        if not (on_gpu and waits) and once * self.count < tuning.worth:
            return 0
        stored = sum(a.type.nbytes for _, a in self.carries.values())
        stored += sum(self.value(0, o, i).type.nbytes for o, i in self.results()[0])

        def price(several: int) -> float:
            """The price of iterations taken `several` at a time: the rest is a kernel too."""
            loops, left = divmod(self.count, several)
            traffic = (loops + (left > 0)) * traffic_seconds(stored, tuning)
            return once * (several + left) + tuning.calls * traffic

        # a GPU's loop is one kernel, or launches the same ones again
        most = 1 if on_gpu else self.count // 2
        best = min((*range(1, most + 1), self.count), key=price)
        return 0 if best == self.count else best

    def from_product(self, equations: int) -> Rounds:
        """The same loop, of as many of so many equations, with the product that makes its only carry
        as the first one of an iteration: only within an iteration is what follows a product one
        kernel with it. Of several carries some are sums, which `stack` makes one product of all
        iterations.
        """
        made = [o for o, _ in self.carries if isinstance(self.round(0)[o].op, DotGeneral)]
        if len(self.carries) != 1 or not made:
            return self
        count = (equations - made[0]) // self.period
        loop = self.other(self.start + made[0], self.period, count)
        alike = count > 1 and loop.read() and len(loop.carries) == 1
        return loop if alike else self

    def from_least_carried(self, stop: int) -> Rounds:
        """The same loop on a GPU, up to an equation, as of the place in a round where the fewest bytes are
        carried: what is carried are arrays, which a round writes and the next one reads.
        """
        if self.cache is None or self.count < 3 or isinstance(self.round(0)[0].op, DotGeneral):
            return self
        carried = self.carried()
        turn = min(range(self.period), key=carried.__getitem__)
        if 4 * carried[turn] > 3 * carried[0]:
            return self
        start = self.start + turn
        loop = self.other(start, self.period, (stop - start) // self.period)
        return loop if loop.read() else self

    def carried(self) -> list[int]:
        """The bytes that rounds carry, if they began at each of their equations."""
        made, last = dict[Atom, int](), dict[Atom, int]()
        for n, e in enumerate((*self.round(0), *self.round(1), *self.round(2))):
            last.update((a, n) for a in e.inputs if a in made)
            made.update(dict.fromkeys(e.outs, n))
        found = [0] * self.period
        for v, n in last.items():
            for c in range(max(made[v] + 1, self.period), min(n, made[v] + self.period) + 1):
                if c < 2 * self.period:
                    found[c - self.period] += v.type.nbytes
        return found

    def in_turns(self, tuning: Rolling) -> Rounds:
        """The loop of so many iterations at once that all arrays which they read in turns are the same
        each time: a matrix and its transpose are two constants, and no stack of copies.
        """
        for turns in range(2, tuning.turns + 1):
            same = all(
                each[t] is each[t - turns]
                for each in self.elements
                for t in range(turns, self.count)
            )
            if same and self.elements and self.count // turns > 1:
                period, count = self.period * turns, self.count // turns
                loop = self.other(self.start, period, count)
                return loop if loop.read() else self
        return self

    def by(self, several: int) -> Rolled | None:
        """The loop each of whose iterations is several of these; what
        is left of them comes after it.
        """
        loop = self.other(self.start, self.period * several, self.count // several)
        return loop.rolled() if loop.read() else None

    def other(self, start: int, period: int, count: int) -> Rounds:
        """A loop of the same equations."""
        return Rounds(self.code, start, period, count, self.cache)

    def round(self, t: int) -> Sequence[Eqn]:
        at = self.start + t * self.period
        return self.code.eqns[at : at + self.period]

    def read(self) -> bool:
        """Finds out what each equation reads; whether that is a loop."""
        if self.count > 2 and not self.repeats():
            return False
        for t in range(self.count):
            body = enumerate(self.round(t))
            self.places.update((v, (t, o, i)) for o, e in body for i, v in enumerate(e.outs))
        return all(
            self.operand(o, k)
            for o, eqn in enumerate(self.round(0))
            for k in range(len(eqn.inputs))
        )

    def repeats(self) -> bool:
        """True if the third iteration reads what the second does, made as far before: a first look."""
        at, begin = self.code.at, self.start
        for one, two in zip(self.round(1), self.round(2), strict=True):
            for a, b in zip(one.inputs, two.inputs, strict=True):
                (n, i), (m, j) = at.get(a, (-1, 0)), at.get(b, (-1, 0))
                if a is not b and max(n, m) >= begin and (m - n, j) != (self.period, i):
                    return False
        return True

    def operand(self, o: int, k: int) -> bool:
        """Finds out what input `k` of equation `o` is in every iteration."""
        atoms = [
            self.code.eqns[self.start + t * self.period + o].inputs[k] for t in range(self.count)
        ]
        found = [self.places.get(a) for a in atoms]
        first, later = found[0], found[1:]
        if all(a is atoms[0] or a == atoms[0] for a in atoms):
            if first is not None:
                return False
            if isinstance(atoms[0], Literal):
                self.inputs[o, k] = atoms[0]
            else:
                self.inputs[o, k] = self.consts.setdefault(atoms[0], Var(atoms[0].type))
            return True
        if atoms[0].type.weak:
            return False
        if all(p is None for p in found):
            self.inputs[o, k] = self.elements.setdefault(tuple(atoms), Var(atoms[0].type))
            numbers = [isinstance(a, Literal) for a in atoms]
            return all(numbers) or not any(numbers)
        made = found[1]
        if made is None:
            return False
        _, source, i = made
        if all(p == (t, source, i) for t, p in enumerate(found)):
            self.inputs[o, k] = (source, i)
            return True
        if first is None and all(p == (t, source, i) for t, p in enumerate(later)):
            if isinstance(atoms[0], Literal):
                return False
            known = self.carries.setdefault((source, i), (Var(atoms[0].type), atoms[0]))
            self.inputs[o, k] = known[0]
            return known[1] is atoms[0]
        return False

    def rolled(self) -> Rolled:
        names: dict[tuple[int, int], Var] = {}
        body: list[Eqn] = []
        for o, eqn in enumerate(self.round(0)):
            read = [self.inputs[o, k] for k in range(len(eqn.inputs))]
            outs = tuple(Var(v.type) for v in eqn.outs)
            names.update(((o, i), v) for i, v in enumerate(outs))
            inputs = tuple(names[a] if isinstance(a, tuple) else a for a in read)
            body.append(Eqn(eqn.op, inputs, outs, eqn.source))
        body[:0] = self.spread()
        results, outs = self.results()
        carry = [names[key] for key in self.carries]
        graph = Graph(
            (
                *self.consts.values(),
                *(v for v, _ in self.carries.values()),
                *self.elements.values(),
            ),
            tuple(body),
            (*carry, *(names[key] for key in results)),
        )
        op = RepeatLoop(on_arrays(graph), self.count, len(self.consts), len(self.carries))
        source, tables = body[0].source, list[Eqn]()
        given = (
            *(as_array(a, tables, source) for a in self.consts),
            *(a for _, a in self.carries.values()),
            *(a for each in self.elements for a in as_rows(each, tables, source)),
        )
        logger().info(
            "%d equal rounds from %s on are one loop of %d equations",
            self.count,
            source,
            self.period,
        )
        end = self.start + self.count * self.period
        return Rolled(tables, Eqn(op, given, outs, source), self.start, end)

    def spread(self) -> list[Eqn]:
        """The equations of constants that are smaller arrays, repeated, or that products read as
        another array turned: they stand in an iteration, which reads those.
        """
        makers = {v: e for e in self.code.eqns[: self.start] for v in e.outs}
        found = list[Eqn]()
        for outer in list(self.consts):
            maker = makers.get(outer) if isinstance(outer, Var) else None
            if maker is None or outer not in self.consts:
                continue
            source = maker.inputs[0] if maker.inputs else outer
            if isinstance(maker.op, BroadcastInDim) or self.turned_for_products(maker):
                found.append(self.view(outer, maker.op, source, maker))
            elif isinstance(maker.op, Transpose) and self.is_chained(outer, source):
                found.append(self.view(source, Transpose(inverse(maker.op.order)), outer, maker))
        return found

    def view(self, outer: Atom, op: Op, given: Atom, maker: Eqn) -> Eqn:
        """The equation of a constant that an iteration reads in what is `given`."""
        inner = self.consts.pop(outer)
        if isinstance(given, Var):
            given = self.consts.setdefault(given, Var(given.type))
        return Eqn(op, (given,), (inner,), maker.source)

    def turned_for_products(self, maker: Eqn) -> bool:
        """True of an array with its axes in another order, which products alone read. On a GPU one that is
        read often is copied, since a sum over columns takes longer than one over rows, unless one
        kernel reads rows for both.
        """
        if not isinstance(maker.op, Transpose):
            return False
        (source,), turned = maker.inputs, maker.outs[0]
        products = all(isinstance(e.op, DotGeneral) for e in self.readers(turned))
        return products if self.cache is None else self.is_chained(source, turned)

    def is_chained(self, first: Atom, second: Atom) -> bool:
        """True if a vector times a constant matrix is what a vector times the same matrix, turned, is made
        of, and half of a GPU's cache does not hold both: then one kernel reads a row for both.
        """
        both_fit = self.cache is not None and 4 * first.type.nbytes <= self.cache
        if first not in self.consts or second not in self.consts or both_fit:
            return False
        both = [*self.readers(first), *self.readers(second)]
        if len(both) != 2 or not all(map(is_by_vector, both)):
            return False
        made = {*both[0].outs}
        for e in self.round(0):
            if isinstance(e.op, Pointlike) and not made.isdisjoint(e.inputs):
                made.update(e.outs)
        return not made.isdisjoint(both[1].inputs)

    def readers(self, x: Atom) -> list[Eqn]:
        return [e for e in self.round(0) if x in e.inputs]

    def results(self) -> tuple[list[tuple[int, int]], tuple[Var, ...]]:
        """The results of an iteration that are read outside, and all that the loop makes."""
        outside = {a for e in self.code.eqns[: self.start] for a in e.inputs}
        outside.update(
            a for e in self.code.eqns[self.start + self.count * self.period :] for a in e.inputs
        )
        outside.update(self.code.graph.outputs)
        last = self.count - 1
        read = {self.places[a] for a in outside if a in self.places}
        carried = [self.value(last, o, i) for o, i in self.carries]
        results = sorted({(o, i) for t, o, i in read if t != last or (o, i) not in self.carries})
        outs = [
            Var(v.type) if key in results else v
            for key, v in zip(self.carries, carried, strict=True)
        ]
        return results, (
            *outs,
            *(self.value(t, *key) for key in results for t in range(self.count)),
        )

    def value(self, t: int, o: int, i: int) -> Var:
        return self.round(t)[o].outs[i]


def is_by_vector(eqn: Eqn) -> bool:
    """True of a matrix times a vector, or of a vector times a matrix that is turned: sums over rows."""
    op, ranks = eqn.op, [a.type.ndim for a in eqn.inputs]
    if not isinstance(op, DotGeneral) or sorted(ranks) != [1, 2]:
        return False
    return op.contract[ranks.index(2)] == (1,)
