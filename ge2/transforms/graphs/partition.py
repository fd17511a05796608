"""Joint graphs: norms rewritten before they are differentiated, and the cut into two graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, final

import numpy as np

from ge2.base.arrays import COMPLEX, FLOATS, HALF, INEXACT
from ge2.base.errors import VerifyError
from ge2.base.record import collector_paused, record
from ge2.base.source import Source
from ge2.ir import (
    Atom,
    Eqn,
    Flags,
    Graph,
    Literal,
    Op,
    Var,
    applied,
    makers_of,
    rename,
    without_dead_code,
)
from ge2.ir.graph import FREE
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import (
    ABS,
    ADD,
    DIV,
    EQ,
    HYPOT,
    IMAG,
    MAX,
    MUL,
    POSITIVE,
    REAL_PART,
    SQRT,
    SQUARE,
    WHERE,
    ConvertElementType,
    IntegerPow,
)
from ge2.ops.graphs.control import Rule
from ge2.ops.index import Gather
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce, ReduceMax, ReduceMin, ReduceSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Transpose
from ge2.trace import tidy
from ge2.transforms.graphs.policies import (
    by_label,
    is_looked_into,
    labels,
    looked_into,
    may_save,
    renamed,
    twins,
    unnamed,
)

# -------- Cutting a joint graph in two: what can be computed now, and what waits for the cotangents
# (or tangents).
# The late half reads values of the early half. Each of them is either saved, or computed again from
# others that are: the cheapest choice is a minimum cut, in which saving a value costs its bytes and
# computing an equation again costs the part of a pass over memory that it is worth.


BYTE: Final = (
    1 << 20
)  # the price of a byte saved, so that a number of arrays or equations decides between equals
DISPATCH: Final = 1 << 10  # bytes that an operation is worth where each is a call of NumPy's

Halves = tuple[Graph, Graph, int]
Price = Callable[[Var], int]
Again = Callable[[Eqn], int]


def split(joint: Graph, known: int, outputs: int) -> Halves:
    """(the first `known` inputs) -> (the first `outputs`, residuals);
    (residuals, other inputs) -> the rest.

    The last result is the number of residuals. Nothing is computed twice but what costs nothing:
    constants and broadcasts of them.
    """
    return cut(joint, known, outputs, lambda v: v.type.nbytes * BYTE, constants)


def partition(
    joint: Graph, known: int, outputs: int, held: Flags | None = None, dispatch: int = 0
) -> Halves:
    """As `split`, with the fewest bytes saved.

    What is cheap is computed again instead; matrix products, random bits, scans, sorts and
    operations that hold graphs never are. `held` says of the known inputs, then of the first
    outputs, which are kept anyway and so cost nothing; by default all. `dispatch` is what one more
    operation costs, in bytes.
    """
    atoms = (*joint.inputs[:known], *joint.outputs[:outputs])
    same = unnamed(joint.eqns)
    free = {a for a, is_held in zip(atoms, held or (True,) * len(atoms), strict=True) if is_held}
    free |= set(rename(same, free))
    price = lambda v: 1 if v in free else v.type.nbytes * BYTE + 1  # noqa: E731
    return cut(joint, known, outputs, price, lambda e: effort(e, dispatch))


def obeying(joint: Graph, known: int, outputs: int, rule: Rule) -> Halves:
    """As `split`, where a policy says what is saved if it is needed; all else is computed again.

    An equation with an effect never is: a loop or a branch is run again without those within. What
    the policy saves within loops and branches is passed on, too.
    """
    marked = labels(joint.eqns)
    makers = makers_of(joint)
    known_of: dict[Eqn, bool] = {}

    def may(eqn: Eqn) -> bool:
        if eqn not in known_of:
            known_of[eqn] = may_save(rule, eqn, marked)
        return known_of[eqn]

    def price(v: Var) -> int:
        if v not in makers:
            return 1
        kept = may(makers[v]) or (is_looked_into(makers[v]) and by_label(rule, v, marked))
        return v.type.nbytes * BYTE if kept else NEVER

    chosen = {m for each in twins(joint.eqns).values() for m in each}

    def again(eqn: Eqn) -> int:
        if eqn.op.effect and not is_looked_into(eqn):
            return NEVER
        return constants(eqn) if may(eqn) and eqn not in chosen else 1

    return cut(joint, known, outputs, price, again, rule)


# ------------------------------------------------------------------------------------ what it costs


def constants(eqn: Eqn) -> int:
    """Nothing, if an equation reads no array; else too much."""
    return NEVER if eqn.op.effect or not all(isinstance(a, Literal) for a in eqn.inputs) else 0


AGAIN = (Pointlike, Reduce, ArgReduce, Pad, Concatenate, Gather)  # what may be computed again


def effort(eqn: Eqn, dispatch: int) -> int:
    """The cost of computing an equation again, as a part of the time that saving its bytes takes."""
    op: Any = eqn.op
    if op.effect or not (op.cost is FREE or isinstance(op, AGAIN)):
        return NEVER
    if not eqn.inputs or all(isinstance(a, Literal) for a in eqn.inputs):
        return 0
    if op.cost is FREE:
        return 1
    nbytes = eqn.outs[0].type.nbytes
    if isinstance(op, Reduce | ArgReduce):  # a pass over what it reads, and a wait for its end
        nbytes, parts = eqn.inputs[0].type.nbytes, 4
    else:
        parts = 8 if op.cost.transcendental else 4 if isinstance(op, Gather) else 32
    return (nbytes // parts + dispatch) * BYTE + 1


# ------------------------------------------------------------------------------------------ the cut


@final
@record
class Choice:
    """The values that are saved, and the equations that are computed again."""

    saved: frozenset[Var]
    again: frozenset[Eqn]
    price: int


def cheapest(
    wanted: Iterable[Var],
    makers: Mapping[Var, Eqn],
    price: Price,
    again: Again,
    together: Mapping[Eqn, Sequence[Eqn]] | None = None,
) -> Choice:
    """The cheapest way to have the wanted values a second time.

    `together` names for an equation others that are computed again whenever it is.
    """
    network = Network()
    nodes: dict[Var | Eqn, int] = {}
    waiting: list[Var] = []
    linked = together or {}
    effort = efforts(again, linked)

    def node(x: Var | Eqn) -> int:
        if x not in nodes:
            nodes[x] = network.node()
            if isinstance(x, Var):
                waiting.append(x)
        return nodes[x]

    for v in wanted:
        network.join(node(v), 1, NEVER)
    begun: set[Eqn] = set()
    while waiting:
        v = waiting.pop()
        eqn = makers.get(v)
        if eqn is None or effort(eqn) >= NEVER:
            network.join(0, nodes[v], min(price(v), NEVER - 1))
            continue
        if eqn not in begun:
            begun.add(eqn)
            network.join(0, node(eqn), effort(eqn))
            for u in dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var)):
                network.join(node(u), nodes[eqn], NEVER)
            for other in linked.get(eqn, ()):
                network.join(node(other), nodes[eqn], NEVER)
                node(other.outs[0])
        network.join(nodes[eqn], nodes[v], price(v))
    total, late = network.cut()
    found = [x for x, n in nodes.items() if n in late]
    made = frozenset(x for x in found if isinstance(x, Eqn))
    saved = frozenset(x for x in found if isinstance(x, Var) and makers.get(x) not in made)
    return Choice(saved, made, total)


def efforts(again: Again, linked: Mapping[Eqn, Sequence[Eqn]]) -> Callable[[Eqn], int]:
    """The cost of computing an equation again; NEVER as well if one that is linked to it is that."""
    known: dict[Eqn, int] = {}

    def effort(eqn: Eqn) -> int:
        if eqn not in known:
            own = again(eqn)
            dear = own >= NEVER or any(effort(e) >= NEVER for e in linked.get(eqn, ()))
            known[eqn] = NEVER if dear else own
        return known[eqn]

    return effort


@collector_paused
def cut(
    joint: Graph, known: int, outputs: int, price: Price, again: Again, rule: Rule | None = None
) -> Halves:
    early, late = apart(joint, known, outputs)
    rest = joint.outputs[outputs:]
    same = unnamed(early)
    back = without_dead_code(Graph((), tuple(renamed(late, same)), rename(same, rest)))
    made = {*joint.inputs[known:], *(v for e in back.eqns for v in e.outs)}
    makers = {v: e for e in early for v in e.outs}
    chosen = cheapest(reads(back, made), makers, price, again, twins(joint.eqns))
    repeated = renamed([e for e in early if e in chosen.again], same)
    if rule is not None:
        ends = set(reads(back, made)), set(joint.outputs[:outputs])
        early, repeated = looked_into(rule, early, repeated, *ends)
    back = without_dead_code(Graph((), (*repeated, *back.eqns), back.outputs))
    residuals = reads(back, made | {v for e in repeated for v in e.outs})
    forward = tidy(
        Graph(joint.inputs[:known], tuple(early), (*joint.outputs[:outputs], *residuals))
    )
    backward = Graph((*residuals, *joint.inputs[known:]), back.eqns, back.outputs)
    return forward, backward, len(residuals)


def apart(joint: Graph, known: int, outputs: int) -> tuple[list[Eqn], list[Eqn]]:
    """The equations that the known inputs settle, and the others."""
    waits: set[Atom] = set(joint.inputs[known:])
    early: list[Eqn] = []
    late: list[Eqn] = []
    for eqn in joint.eqns:
        if waits.isdisjoint(eqn.inputs):
            early.append(eqn)
        else:
            waits.update(eqn.outs)
            late.append(eqn)
    if not waits.isdisjoint(joint.outputs[:outputs]):
        raise VerifyError("a result depends on what its derivative waits for", where=joint)
    return early, late


def reads(graph: Graph, made: set[Any]) -> tuple[Var, ...]:
    """The values that a graph reads from elsewhere, each once."""
    atoms = [a for e in graph.eqns for a in e.inputs] + list(graph.outputs)
    return tuple(dict.fromkeys(a for a in atoms if isinstance(a, Var) and a not in made))


# ------------------------------------------------------------------------------------------ mincut
# The cheapest cut of a network: Dinic's algorithm, as in Dinitz (1970), on Python integers.
#
# A flow is sent along shortest paths, all of one length at a time, until no path is left; what then
# can still reach the sink is behind the cut.


NEVER: Final = 1 << 200  # the capacity of what must not be cut


@final
class Network:
    """Nodes are numbered from 0, the source; 1 is the sink."""

    __slots__ = ("edges", "room", "to")

    def __init__(self) -> None:
        self.to: list[int] = []  # of each edge; the next one, of odd number, is its way back
        self.room: list[int] = []
        self.edges: list[list[int]] = [[], []]  # of each node

    def node(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def join(self, a: int, b: int, capacity: int) -> None:
        """An edge from `a` to `b`."""
        if capacity <= 0:
            return
        for start, end, room in ((a, b, capacity), (b, a, 0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.room.append(room)

    def cut(self) -> tuple[int, frozenset[int]]:
        """The least total capacity that parts the sink from the source, and the
        nodes on the sink's side. The layers of a network are alike: it is found once for all.
        """
        return cut_of(len(self.edges), tuple(self.to), tuple(self.room))

    def flow(self) -> tuple[int, frozenset[int]]:
        """The same, by as much flow as goes through; the network is used up."""
        total = 0
        while (level := self.levels()) is not None:
            total += self.blocked(level)
        return total, self.behind()

    def levels(self) -> list[int] | None:
        """The distance of each node from the source; None if the sink is out of reach."""
        found = [-1] * len(self.edges)
        found[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                if self.room[edge] and found[self.to[edge]] < 0:
                    found[self.to[edge]] = found[node] + 1
                    waiting.append(self.to[edge])
        return found if found[1] >= 0 else None

    def blocked(self, level: list[int]) -> int:
        """Sends all that goes along shortest paths; how much that was."""
        total, path = 0, list[int]()
        tried = [0] * len(self.edges)  # how many of the edges of each node lead nowhere any more
        node = 0
        while True:
            if node == 1:
                total += self.sent(path)
                path.clear()
                node = 0
            edges, at = self.edges[node], tried[node]
            while at < len(edges) and not self.goes_on(edges[at], level[node] + 1, level):
                at += 1
            tried[node] = at
            if at < len(edges):
                path.append(edges[at])
                node = self.to[edges[at]]
            elif node == 0:
                return total
            else:
                level[node] = -1  # a dead end
                node = self.to[path.pop() ^ 1]

    def goes_on(self, edge: int, wanted: int, level: list[int]) -> bool:
        return self.room[edge] > 0 and level[self.to[edge]] == wanted

    def sent(self, path: list[int]) -> int:
        amount = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= amount
            self.room[edge ^ 1] += amount
        return amount

    def behind(self) -> frozenset[int]:
        """The nodes from which the sink can be reached still."""
        found, waiting = {1}, [1]
        while waiting:
            for edge in self.edges[waiting.pop()]:
                before = self.to[edge]
                if self.room[edge ^ 1] and before not in found:
                    found.add(before)
                    waiting.append(before)
        return frozenset(found)


@lru_cache(256)
def cut_of(nodes: int, to: tuple[int, ...], room: tuple[int, ...]) -> tuple[int, frozenset[int]]:
    """The cut of a network of so many nodes and these edges, each before its way back."""
    network = Network()
    network.to, network.room = [*to], [*room]
    network.edges = [[] for _ in range(nodes)]
    for edge in range(len(to)):
        network.edges[to[edge ^ 1]].append(edge)
    return network.flow()


# -------- Lengths before they are differentiated: absolute values, `hypot`, roots of sums of
# squares.
# A length has no derivative where it is 0; it counts as 0 there, in every order. Its even powers
# have all derivatives, which the chain rule would lose: they are computed from its square.


LENGTHS: Final = (ABS, HYPOT, SQRT)
MOVES: Final = (ReduceSum, BroadcastInDim, Reshape, Transpose, ConvertElementType)


def smooth(graph: Graph) -> Graph:
    """The graph with even powers of lengths as powers of squares, and lengths of 0 held constant."""
    if not any(e.op in LENGTHS for e in graph.eqns):
        return graph
    return Smoothing(tidy(graph)).graph()  # tidy: equal values are one


@final
class Smoothing:
    """The equations so far, and what is known of their results."""

    def __init__(self, graph: Graph) -> None:
        self.given = graph
        self.eqns: list[Eqn] = []
        self.env: dict[Var, Atom] = {}
        self.sums: set[Atom] = set()  # sums of squares of real numbers, by a positive number
        self.positive: set[Atom] = set()  # numbers that are not negative
        self.squares: dict[Atom, tuple[Atom, ...]] = {}  # a length: whose squares add up to its own
        self.roots: dict[Atom, Atom] = {}  # a length: its square
        self.source: Source | None = None

    def graph(self) -> Graph:
        for eqn in self.given.eqns:
            self.source = eqn.source
            inputs = rename(self.env, eqn.inputs)
            eqn = eqn if inputs == eqn.inputs else Eqn(eqn.op, inputs, eqn.outs, eqn.source)
            if len(eqn.outs) != 1 or not self.power(eqn):
                self.eqns.append(eqn)
                self.learn(eqn)
        g = self.given
        return Graph(g.inputs, tuple(self.eqns), rename(self.env, g.outputs), g.consts)

    def made(self, op: Op, *inputs: Atom) -> Atom:
        return applied(self.eqns, op, *inputs, source=self.source)

    def power(self, eqn: Eqn) -> bool:
        """Puts an even power of a length as one of its square; False for another equation."""
        times, base = even_power(eqn)
        parts = self.squares.get(base)
        if not times or (parts is None and base not in self.roots):
            return False
        if parts is not None and len(parts) == 1:  # of an absolute value: the sign is no matter
            self.eqns.append(Eqn(eqn.op, parts * len(eqn.inputs), eqn.outs, eqn.source))
            self.learn(eqn)
            return True
        square = self.roots.get(base)
        if square is None:
            assert parts is not None
            square = self.roots[base] = self.made(ADD, *(self.made(SQUARE, p) for p in parts))
        op: Op = POSITIVE if times == 1 else IntegerPow(times)
        self.eqns.append(Eqn(op, (square,), eqn.outs, eqn.source))
        return True

    def learn(self, eqn: Eqn) -> None:
        """Records what the equation makes known."""
        op, (out, *more) = eqn.op, eqn.outs
        if more or not eqn.inputs:
            return
        a = eqn.inputs[0]
        if is_sum(eqn, self.sums, self.positive):
            self.sums.add(out)
        bounded = op is MAX and any(map(is_positive, eqn.inputs))
        if bounded or (isinstance(op, MOVES) and a in self.positive):
            self.positive.add(out)
        if op is ABS and a.type.dtype in COMPLEX:
            self.squares[out] = self.made(REAL_PART, a), self.made(IMAG, a)
        elif (op is ABS and a.type == out.type) or op is HYPOT:
            self.squares[out] = eqn.inputs
        elif op is SQRT and a in self.sums and a.type == out.type:
            self.hold(eqn, a)
        elif isinstance(op, ConvertElementType) and a in self.squares:  # of a Python number, say
            self.squares[out] = tuple(self.made(op, p) for p in self.squares[a])
        elif isinstance(op, ConvertElementType) and a in self.roots:
            self.roots[out] = self.made(op, self.roots[a])

    def hold(self, eqn: Eqn, total: Atom) -> None:
        """Puts a root of 0 as the number 0, which has no derivative."""
        self.eqns.pop()
        (out,) = eqn.outs
        nothing, one = (number(total, n) for n in (0, 1))
        none = self.made(EQ, total, nothing)
        root = self.made(SQRT, self.made(WHERE, none, one, total))
        self.eqns.append(Eqn(WHERE, (none, nothing, root), eqn.outs, eqn.source))
        self.roots[out] = total


def number(like: Atom, value: int) -> Literal:
    t = like.type
    return Literal.of(float(value) if t.weak else t.dtype.type(value))


def even_power(eqn: Eqn) -> tuple[int, Atom]:
    """Half the exponent and the base of an even power that is positive; 0 for another equation."""
    op, a = eqn.op, eqn.inputs[0] if eqn.inputs else eqn.outs[0]
    if op is SQUARE or (op is MUL and a is eqn.inputs[1]):
        return 1, a
    if isinstance(op, IntegerPow) and op.y > 0 and op.y % 2 == 0:
        return op.y // 2, a
    return 0, a


def is_positive(x: Atom) -> bool:
    return (
        isinstance(x, Literal)
        and x.type.dtype not in COMPLEX
        and bool(np.greater_equal(x.value, 0))
    )


def is_no_number(x: Atom) -> bool:
    """True for 0 and NaN."""
    return isinstance(x, Literal) and bool(x.value == 0 or x.value != x.value)


def is_sum(eqn: Eqn, sums: set[Atom], positive: set[Atom]) -> bool:
    """True if the result is a sum of squares of real numbers, by a positive number."""
    op, a = eqn.op, eqn.inputs[0]
    if eqn.outs[0].type.dtype not in FLOATS:
        return False
    if even_power(eqn)[0] == 1:
        return True
    if isinstance(op, DotGeneral):
        (mine, theirs), beside = op.contract, op.beside
        whole = len(mine) + len(beside[0]) == len(a.type.shape)
        return a is eqn.inputs[1] and mine == theirs and beside[0] == beside[1] and whole
    if isinstance(op, MOVES):
        return a in sums
    if op is ADD:
        return all(x in sums for x in eqn.inputs)
    if op is WHERE:
        return all(x in sums or is_no_number(x) for x in eqn.inputs[1:])
    if op is not MUL and op is not DIV:
        return False
    total, by = eqn.inputs if a in sums or op is DIV else eqn.inputs[::-1]
    return total in sums and (by in positive or is_positive(by))


# -------- What it costs to compute an equation of a region again, and whether its bits may differ.

VIEWS: Final = (BroadcastInDim, Reshape, Transpose)
COMPARED: Final = ("eq", "ne")


def compares(eqn: Eqn) -> bool:
    """True of what asks where a value equals another: made twice, it may differ in its last bit."""
    return eqn.op.name in COMPARED and eqn.inputs[0].type.dtype in INEXACT


def exact(a: Atom, makers: Mapping[Var, Eqn]) -> bool:
    """True of an element of what a region reads, the largest or smallest of those, and either with
    more bits: nothing is rounded on the way to it.
    """
    eqn = makers.get(a) if isinstance(a, Var) else None
    if eqn is None:
        return True
    op, x = eqn.op, eqn.inputs[0] if eqn.inputs else None
    plain = isinstance(op, (*VIEWS, ReduceMax, ReduceMin)) or (
        isinstance(op, ConvertElementType) and (x is None or widens(x.type.dtype, op.dtype))
    )
    return plain and x is not None and exact(x, makers)


def widens(old: np.dtype, new: np.dtype) -> bool:
    return old == new or (old in HALF and new in FLOATS and new not in HALF)


def work_in_bytes(eqn: Eqn, makers: Mapping[Var, Eqn] | None = None) -> int:
    """The bytes that could be moved while an equation is computed again; `makers`: of the values of
    its region, where what is exact may be compared again.
    """
    op = eqn.op
    if isinstance(op, VIEWS) or (isinstance(op, Iota | Pointlike) and not reads_arrays(eqn)):
        return 0
    if not isinstance(op, Pointlike) or op.effect or len(eqn.outs) != 1:
        return NEVER
    if compares(eqn) and (makers is None or not all(exact(a, makers) for a in eqn.inputs)):
        return NEVER
    return eqn.outs[0].type.nbytes // (8 if op.cost.transcendental else 32) + 1


def reads_arrays(eqn: Eqn) -> bool:
    return any(isinstance(a, Var) for a in eqn.inputs)
