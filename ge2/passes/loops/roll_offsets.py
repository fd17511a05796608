"""Python loops that write into slices of arrays, found in the graph again: their iterations differ
in where slices start, by the same number each time.

Loops in loops are found from the inside: a loop that is found is one node, whose starts and length
are numbers in which the iterations of the next loop may differ. Nodes are compared by a key of all
that does not change, by their numbers, and by how far before them their operands are made.

It comes before the passes that do something for each of a hundred thousand equations, and in a long
graph before equal equations are one: what an inner loop makes anew each time that the outer one comes
by would be made by the first alone, and all others would read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from ge2.base.source import logger
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.index import UpdateSlice
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, Reshape, Slice
from ge2.passes.context import NOTHING, Context, Offsets, Rolling
from ge2.passes.loops.offset_loops import OF_ANY_SIZE, Loop, Node, Scope, UnevenError, Wire
from ge2.passes.loops.roll import compile_seconds, traffic_seconds
from ge2.trace import tidy

RESULTS = 1 << 10  # more than an equation or a loop has


def roll_offsets(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with loops in place of straight code that differs in the starts of slices."""
    tuning = context.tuning.offsets
    if len(graph.eqns) < tuning.equations:
        return with_loops(graph, context)
    found = with_loops(graph, context)
    plain = tidy(found)
    again = tuning.equations <= len(plain.eqns) < len(found.eqns)
    return with_loops(plain, context) if again else plain


def with_loops(graph: Graph, context: Context) -> Graph:
    """The graph with the loops that are found in it as it is."""
    tuning = context.tuning.offsets
    if len(graph.eqns) < min(tuning.few, tuning.equations):
        return graph
    if sum(isinstance(e.op, UpdateSlice) for e in graph.eqns) < tuning.writes:
        return graph
    few = len(graph.eqns) < tuning.equations
    nodes = Nodes(tuning).of(graph)
    for _ in range(1 if few else tuning.nests):
        search = Search(nodes, graph.outputs, tuning)
        found = search.run()
        if len(found.nodes) == len(nodes.nodes):
            break
        nodes = found
    price = context.tuning.rolling if few else None
    return written(graph, nodes.nodes, tuning, price)


def written(
    graph: Graph, nodes: Sequence[Node], tuning: Offsets, price: Rolling | None = None
) -> Graph:
    """The graph of these nodes; loops that save little are straight code as before. Where straight
    code has a `price`, loops are, too, that cost more.
    """
    scope, found = Scope(tuning.widest), 0
    for n in nodes:
        if n.loop is None or price is None or pays(n, n.loop, price):
            found += place(n, scope, tuning)
        else:
            scope.eqns += n.eqns
    if not found:
        return graph
    eqns = (*scope.first, *scope.eqns)
    return Graph(graph.inputs, eqns, graph.outputs, graph.consts)


def place(node: Node, scope: Scope, tuning: Offsets) -> int:
    """Adds a loop, or the loops in it if its sizes change in a way that no loop has, or straight
    code; the number of loops.
    """
    if node.loop is None or len(node.eqns) < tuning.worth:
        scope.eqns += node.eqns
        return 0
    before = len(scope.eqns)
    try:
        scope.place(node, node.inputs, node.numbers, node.outs)
    except UnevenError as error:
        logger().info("no loop of %d iterations: %s", node.numbers[0], error)
        del scope.eqns[before:]
        return sum(place(n, scope, tuning) for n in node.parts)
    logger().info("%d equations from %s on are a loop", len(node.eqns), node.eqns[0].source)
    return 1


def pays(node: Node, loop: Loop, price: Rolling) -> bool:
    """True if a loop of elementwise work on slices of the same sizes takes less to plan and compile
    than its values cost that are in memory between iterations.
    """
    body, steps = [n.eqns[0] for n in loop.body], iter(loop.steps)
    changes = [[next(steps) for _ in n.numbers] for n in loop.body]
    if any(n.loop is not None for n in loop.body) or not all(map(is_even, body, changes)):
        return False
    between = [body[o].outs[i] for o, i in loop.carries if not isinstance(body[o].op, UpdateSlice)]
    traffic = traffic_seconds(sum(v.type.nbytes for v in between), price)
    straight = price.planning * len(node.eqns) + compile_seconds(node.eqns)
    return price.calls * node.numbers[0] * traffic < straight


def is_even(eqn: Eqn, steps: Sequence[int]) -> bool:
    """True of elementwise work, and of views and writes whose sizes do not change."""
    op = eqn.op
    if isinstance(op, Slice | UpdateSlice):
        return not any(steps[len(op.start) :])
    return isinstance(op, Pointlike | Reshape | BroadcastInDim) and not any(steps)


@final
class Nodes:
    """Nodes, and a number for each key."""

    def __init__(self, tuning: Offsets) -> None:
        self.tuning = tuning
        self.nodes: list[Node] = []
        self.keys: dict[Any, int] = {}

    def key(self, key: Any) -> int:
        return self.keys.setdefault(key, len(self.keys))

    def of(self, graph: Graph) -> Nodes:
        self.nodes = [self.node(e) for e in views_where_read(graph)]
        return self

    def node(self, eqn: Eqn) -> Node:
        variables = tuple(a for a in eqn.inputs if type(a) is Var)
        numbers, key = described(eqn)
        literal = len(variables) < len(eqn.inputs) and type(eqn.op) in (Slice, UpdateSlice)
        weak = any(v.type.weak for v in eqn.outs)
        if literal or weak or eqn.op.effect:
            return Node(-1, variables, eqn.outs, numbers, (eqn,))
        return Node(self.key(key), variables, eqn.outs, numbers, (eqn,))


def described(eqn: Eqn) -> tuple[tuple[int, ...], Any]:
    """The numbers in which an equation may differ from that of another iteration, and all else."""
    op, inputs = eqn.op, eqn.inputs
    kinds = tuple([(a.type.dtype, a.type.ndim) if type(a) is Var else a for a in inputs])
    if isinstance(op, Slice):
        return (*op.start, *eqn.outs[0].type.shape), ("slice", op.step, kinds)
    if isinstance(op, UpdateSlice):
        return (*op.start, *inputs[1].type.shape), ("update", op.step, kinds)
    if isinstance(op, Reshape):
        return op.shape, ("reshape", len(op.shape), kinds)
    if isinstance(op, BroadcastInDim):
        return op.shape, ("broadcast", op.dims, len(op.shape), kinds)
    if isinstance(op, OF_ANY_SIZE):
        return (), (op, kinds)
    return (), (op, *(a.type if type(a) is Var else a for a in inputs))


def views_where_read(graph: Graph) -> list[Eqn]:
    """The equations, each after slices of its own of arrays that are never written into: that two
    iterations read one of them makes it no constant of the loop.
    """
    written = {e.inputs[0] for e in graph.eqns if type(e.op) is UpdateSlice}
    views: dict[Atom, Eqn] = {}
    found = list[Eqn]()
    for eqn in graph.eqns:
        op, inputs = eqn.op, eqn.inputs
        given = inputs[0] if inputs and type(inputs[0]) is Var else None
        whole = type(op) is Slice and given is not None and given not in written
        if whole or (type(op) is Reshape and given in views):
            views[eqn.outs[0]] = eqn
        elif views and not views.keys().isdisjoint(inputs):
            read = tuple([again(a, views, found) for a in inputs])
            found.append(Eqn(op, read, eqn.outs, eqn.source, eqn.choice))
        else:
            found.append(eqn)
    for a in graph.outputs:
        if a in views:
            found += chain(a, views)
    return found


def again(a: Atom, views: Mapping[Atom, Eqn], found: list[Eqn]) -> Atom:
    """The atom, or what a copy of its equations makes, if it is such a slice."""
    if type(a) is not Var or a not in views:
        return a
    eqn = views[a]
    read = again(eqn.inputs[0], views, found)
    found.append(Eqn(eqn.op, (read,), (Var(a.type),), eqn.source))
    return found[-1].outs[0]


def chain(a: Atom, views: Mapping[Atom, Eqn]) -> list[Eqn]:
    """The equations of a slice, under their own names."""
    if a not in views:
        return []
    return [*chain(views[a].inputs[0], views), views[a]]


@final
class Search:
    """One pass over the nodes, which makes loops of those that are in no other loop yet."""

    def __init__(self, nodes: Nodes, outputs: Sequence[Atom], tuning: Offsets) -> None:
        self.all, self.nodes, self.tuning = nodes, nodes.nodes, tuning
        self.keys = [n.key for n in self.nodes]
        self.inputs = [n.inputs for n in self.nodes]
        self.at: dict[Var, int] = {}  # of each value, its node and which of its results it is
        self.last: dict[Var, int] = {}  # of each value, its last reader
        for i, n in enumerate(self.nodes):
            for j, v in enumerate(n.outs):
                self.at[v] = i * RESULTS + j
            for v in n.inputs:
                self.last[v] = i
        self.last.update((a, len(self.nodes)) for a in outputs if isinstance(a, Var))
        self.steps: dict[int, tuple[int, ...]] = {}  # of nodes of the run that is looked at
        self.failed: dict[int, int] = {}  # of periods, up to which node there is no run
        self.floor = 0  # the first node that is in no loop
        self.tries = tuning.tries * (len(self.nodes) + 20_000)  # nodes that may be compared in vain

    def run(self) -> Nodes:
        """The nodes, some of them loops."""
        gram, made = self.tuning.gram, list[Node]()
        keys, before = self.keys, dict[tuple[int, ...], int]()
        earlier = [-1] * len(keys)  # the same keys in a row, begun before
        i, known = 0, 0
        while i < len(keys):
            while known <= i:  # those in a loop, too
                these = tuple(keys[known : known + gram])
                earlier[known] = before.get(these, -1)
                before[these] = known
                known += 1
            found = self.loop_at(i, earlier)
            if found is None:
                i += 1
                continue
            start, stop, loop = found
            made += [*self.nodes[self.floor : start], loop]
            self.floor = i = stop
            self.failed.clear()
        made += self.nodes[self.floor :]
        result = Nodes(self.tuning)
        result.nodes, result.keys = made, self.all.keys
        return result

    def loop_at(self, i: int, earlier: Sequence[int]) -> tuple[int, int, Node] | None:
        """A loop whose second iteration has node `i`: its first node, the one after it, itself."""
        at, tuning = earlier[i], self.tuning
        for _ in range(tuning.periods):
            if self.tries < 0 or at < self.floor or i - at > tuning.longest:
                return None
            period, at = i - at, earlier[at]
            if self.failed.get(period, -1) >= i:
                continue
            stop = self.equal_until(i, period)
            if (stop - i) // period + 2 >= tuning.rounds:
                found = self.aligned(i, stop, period)
                if found is not None:
                    return found
                self.failed[period] = stop
            self.tries -= stop - i + 2
        return None

    def equal_until(self, i: int, period: int) -> int:
        """The first node from `i` on that is not what a period before is, one iteration later."""
        keys, inputs, at, steps = self.keys, self.inputs, self.at, self.steps
        nodes, step = self.nodes, period * RESULTS
        steps.clear()
        for j in range(i, len(keys)):
            k = j - period
            if keys[j] != keys[k] or keys[j] < 0:
                self.failed[period] = j
                return j
            for a, b in zip(inputs[j], inputs[k], strict=True):
                if a is not b and at.get(a, 0) - at.get(b, -1) != step:
                    self.failed[period] = j
                    return j
            if nodes[j].numbers:
                change = self.change(j, k)
                if steps.setdefault(k, change) != change:
                    self.failed[period] = max(self.failed.get(period, 0), k)
                    return j
                steps[j] = change
        return len(keys)

    def change(self, j: int, k: int) -> tuple[int, ...]:
        """The differences of the numbers of two nodes; () if there are none."""
        new, old = self.nodes[j].numbers, self.nodes[k].numbers
        return () if new == old else tuple([a - b for a, b in zip(new, old, strict=True)])

    def aligned(self, i: int, stop: int, period: int) -> tuple[int, int, Node] | None:
        """The loop with the fewest carries, then the longest, that begins as far before node `i` as
        its first iteration may: that reads other values for carries.
        """
        start = max(i - period, self.floor)
        while start > self.floor and start > i - 2 * period and self.alike(start - 1, period):
            start -= 1
        best: Iterations | None = None
        for first in range(start, min(start + self.tuning.alignments, i - period + 1)):
            count = (stop - first) // period
            if count < self.tuning.rounds:
                break
            loop = Iterations(self, first, period, count)
            if loop.valid() and (best is None or len(loop.carries) < len(best.carries)):
                best = loop
        if best is None:
            return None
        return best.start, best.stop, best.node()

    def alike(self, k: int, period: int) -> bool:
        """True if a node may be that of the first iteration, of which the next one is known."""
        j = k + period
        if self.keys[k] != self.keys[j]:
            return False
        return not self.nodes[j].numbers or self.change(j, k) == self.steps.get(j, ())


@final
class Iterations:
    """Nodes `start + t * period + o`: iteration t, node o."""

    def __init__(self, search: Search, start: int, period: int, count: int) -> None:
        self.search, self.start, self.period, self.count = search, start, period, count
        self.stop = start + period * count
        self.wires: list[tuple[Wire, ...]] = []
        self.read: dict[Var, int] = {}
        self.carries: dict[tuple[int, int], Var] = {}  # by what makes the next value, the first
        self.inside: set[Var] = set()

    def valid(self) -> bool:
        """True if these are iterations of a loop, none but the last of which is read outside."""
        if not self.moves():
            return False
        for o in range(self.period):
            wires = self.wired(o)
            if wires is None:
                return False
            self.wires.append(wires)
        last, ends = self.search.last, self.stop
        early = self.search.nodes[self.start : ends - self.period]
        return all(last.get(v, -1) < ends for n in early for v in n.outs)

    def moves(self) -> bool:
        """True if a slice changes its start, and the loop writes into one: others are scans over
        rows, which come later.
        """
        nodes, steps = self.search.nodes, self.search.steps
        second = range(self.start + self.period, self.start + 2 * self.period)
        writes = any(
            nodes[k].loop is not None or isinstance(nodes[k].eqns[0].op, UpdateSlice)
            for k in second
        )
        return writes and any(any(steps.get(k, ())) for k in second)

    def wired(self, o: int) -> tuple[Wire, ...] | None:
        """The inputs of a node of every iteration; None if they are not those of one."""
        found, inputs, begin = list[Wire](), self.search.inputs, self.start + self.period
        first, second, third = (inputs[self.start + t * self.period + o] for t in range(3))
        for a, b, c in zip(first, second, third, strict=True):
            at = self.search.at.get(b, -1)
            node, i = divmod(at, RESULTS) if at >= 0 else (-1, 0)
            if node < self.start:
                if a is not b or b is not c:
                    return None
                found.append(("outside", self.read.setdefault(b, len(self.read)), 0))
            elif b is c or a is b:
                return None
            elif node >= begin:
                if self.search.at.get(a, -1) != at - self.period * RESULTS:
                    return None
                found.append(("inside", node - begin, i))
            else:
                source = node - self.start, i
                if self.search.at.get(a, -1) >= self.start * RESULTS:
                    return None
                if self.carries.setdefault(source, a) is not a or a.type != b.type:
                    return None
                found.append(("carry", list(self.carries).index(source), 0))
        return tuple(found)

    def node(self) -> Node:
        search, period = self.search, self.period
        nodes = search.nodes
        body = tuple(nodes[self.start : self.start + period])
        second = range(self.start + period, self.start + 2 * period)
        same = [(0,) * len(nodes[k].numbers) for k in second]
        steps = tuple(
            s for k, none in zip(second, same, strict=True) for s in search.steps.get(k, ()) or none
        )
        ends = self.stop - period
        carries = list(self.carries)
        for o in range(period):  # what is read after the last iteration
            for i, v in enumerate(nodes[ends + o].outs):
                if search.last.get(v, -1) >= self.stop and (o, i) not in self.carries:
                    carries.append((o, i))
        outs = tuple(nodes[ends + o].outs[i] for o, i in carries)
        inputs = (*self.read, *self.carries.values())
        loop = Loop(body, tuple(self.wires), steps, tuple(carries), len(self.read))
        key = "loop", tuple(n.key for n in body), loop.wires, steps, loop.carries
        types = tuple(v.type for v in inputs)
        parts = nodes[self.start : self.stop]
        eqns = [e for n in parts for e in n.eqns]
        numbers = (self.count, *(s for n in body for s in n.numbers))
        return Node(search.all.key((key, types)), inputs, outs, numbers, eqns, loop, parts)
