"""A rolled loop takes the iterations at its ends that do less than the others.

The derivative of a loop begins with nothing to add to, and its last iteration leaves out what
nobody reads; so both stay outside when equal iterations are rolled. The first becomes one of the
loop that begins with -0.0, to which x may be added and is x, or 1.0; the last computes what is then
not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from ge2.base.record import computed
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    Literal,
    Var,
    anew,
    makers_of,
    rename,
    renamed,
    without_dead_code,
)
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.graphs.loops import RepeatLoop, apart
from ge2.ops.shape import BroadcastInDim
from ge2.passes.loops import nothing_of
from ge2.passes.loops.rolled_to_scan import RUNS, Rows, rows_of, runs


def whole(graph: Graph) -> Graph:
    """The graph whose loops have the iterations at their ends: each in turn, and again as long as one
    takes some.
    """
    code, before = Code(graph), None
    while code is not before:
        before, k = code, 0
        while k < len(code.loops):
            found = absorbed(code, code.loops[k])
            k, code = (k + 1, code) if found is None else (k, Code(found))
    return code.graph


def absorbed(code: Code, at: int) -> Graph | None:
    """The graph with one more iteration in a loop, if there is one."""
    return with_first(code, at) or with_last(code, at, code.rows) or turned(code, at)


@final
class Code:
    """A graph, where its loops are, and the number of the equation that makes each value, and of those
    that read it or have the name of an operation.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.loops = [n for n, e in enumerate(graph.eqns) if isinstance(e.op, RepeatLoop)]

    @computed
    def number(self) -> dict[Var, int]:
        return {v: n for n, e in enumerate(self.graph.eqns) for v in e.outs}

    @computed
    def readers(self) -> dict[Atom, list[int]]:
        found = dict[Atom, list[int]]()
        for n, e in enumerate(self.graph.eqns):
            for a in e.inputs:
                if type(a) is Var:
                    found.setdefault(a, []).append(n)
        return found

    @computed
    def named(self) -> dict[str, list[int]]:
        found = dict[str, list[int]]()
        for n, e in enumerate(self.graph.eqns):
            found.setdefault(e.op.name, []).append(n)
        return found

    @computed
    def rows(self) -> Rows:
        return rows_of(self.graph)


@final
class Loop:
    """A rolled loop, and what is known of one more iteration of it, which is
    among the equations before it, or `behind` it.
    """

    def __init__(self, code: Code, at: int, behind: bool) -> None:
        self.code, self.at, self.behind, self.graph = code, at, behind, code.graph
        eqn = self.graph.eqns[at]
        assert isinstance(eqn.op, RepeatLoop)
        self.eqn, self.op, self.body = eqn, eqn.op, eqn.op.body
        self.inner = makers_of(self.body)
        consts, self.start, rest = apart(eqn.inputs, self.op.consts, self.op.carry, None)
        inputs = apart(self.body.inputs, self.op.consts, self.op.carry, None)
        self.carry, self.elements, n = inputs[1], inputs[2], self.op.length
        self.lists = [rest[i : i + n] for i in range(0, len(rest), n)]
        results = eqn.outs[self.op.carry :]
        self.results = [list(results[i : i + n]) for i in range(0, len(results), n)]
        self.env: dict[Atom, Atom] = dict(zip(inputs[0], consts, strict=True))
        self.reads = Counter(a for e in self.body.eqns for a in e.inputs)
        self.reads.update(self.body.outputs)
        self.begins = False  # whether the iteration may be the first, with nothing to add to
        self.matched: dict[Eqn, None] = {}
        self.trail: list[tuple[Atom, Atom | None]] = []  # what the environment had before

    # -- the environment, as far as it is tried

    def bind(self, p: Atom, x: Atom) -> None:
        self.trail.append((p, self.env.get(p)))
        self.env[p] = x

    @property
    def length(self) -> tuple[int, int]:
        return len(self.trail), len(self.matched)

    def undo(self, before: tuple[int, int]) -> None:
        """Forgets what was tried since."""
        while len(self.trail) > before[0]:
            p, x = self.trail.pop()
            if x is None:
                del self.env[p]
            else:
                self.env[p] = x
        while len(self.matched) > before[1]:
            self.matched.popitem()

    def other(self, n: int) -> bool:
        """True of the number of an equation that may be of the iteration."""
        return n > self.at if self.behind else n < self.at

    def maker(self, x: Atom) -> Eqn | None:
        """The equation of the iteration that makes a value."""
        n = self.code.number.get(x) if isinstance(x, Var) else None
        return self.graph.eqns[n] if n is not None and self.other(n) else None

    def same(self, p: Atom, x: Atom) -> bool:
        """True if a value of the body can be `x` in this iteration, which then settles what it is
        made of.
        """
        if isinstance(p, Literal) or p in self.env:
            return self.env.get(p, p) == x
        if p not in self.inner:
            if x.type != p.type and not self.filled(p, x):
                return False
            self.bind(p, x)
            return True
        return self.made(self.inner[p], p, x) or self.alone(self.inner[p], p, x)

    def made(self, eqn: Eqn, p: Var, x: Atom) -> bool:
        """The same by the same operation."""
        maker = self.maker(x)
        if (
            maker is None
            or maker.op != eqn.op
            or x.type != p.type
            or maker.outs.index(x) != eqn.outs.index(p)
        ):
            return False
        before = self.length
        if not all(self.same(a, b) for a, b in zip(eqn.inputs, maker.inputs, strict=True)):
            self.undo(before)
            return False
        for q, y in zip(eqn.outs, maker.outs, strict=True):
            self.bind(q, y)
        self.matched[maker] = None
        return True

    def filled(self, p: Atom, x: Atom) -> bool:
        """True if a carry can be a number in the first iteration."""
        number = isinstance(x, Literal) and not x.type.weak and x.type.dtype == p.type.dtype
        return number and self.begins and p in self.carry

    def alone(self, eqn: Eqn, p: Var, x: Atom) -> bool:
        """The same where a carry is nothing yet, to which it is added, or one,
        by which it is multiplied.
        """
        number = neutral(eqn) if self.begins else None
        if number is None:
            return False
        for carry, other in (eqn.inputs, eqn.inputs[::-1]):
            if carry in self.carry and self.env.get(carry, number) == number:
                before = self.length
                self.bind(carry, number)
                if self.same(other, x):
                    self.bind(p, x)
                    return True
                self.undo(before)
        return False

    def alone_in(self, part: Atom) -> list[Eqn] | None:
        """The equations that make a value of elements alone, if nobody else reads them; or None."""
        if part in self.elements and isinstance(part, Var):
            return []
        maker = self.inner.get(part) if isinstance(part, Var) else None
        cone, inputs = dict.fromkeys([maker] if maker else []), set(self.body.inputs)
        for eqn in reversed(self.body.eqns):
            if any(v in e.inputs for v in eqn.outs for e in cone):
                cone[eqn] = None
        read = Counter(a for e in cone for a in e.inputs)
        read[part] += 1
        leaves = inputs & set(read)
        own = all(self.reads[v] == read[v] for e in cone for v in e.outs)
        fine = cone and own and leaves & set(self.elements) and not leaves & set(self.carry)
        return [e for e in self.body.eqns if e in cone] if fine else None

    def find(self, values: Sequence[Atom]) -> None:
        """Looks for values of the body in this iteration: first for what most of it goes into."""
        depth: dict[Atom, int] = {}
        for eqn in self.body.eqns:
            depth.update(dict.fromkeys(eqn.outs, 1 + sum(depth.get(a, 0) for a in eqn.inputs)))
        for p in sorted(values, key=lambda p: -depth.get(p, 0)):
            if isinstance(p, Var) and p not in self.env:
                self.found(p, self.inner[p])

    def found(self, p: Var, maker: Eqn) -> bool:
        eqns = self.graph.eqns
        numbers = (n for n in self.candidates(maker) if self.other(n))
        return any(self.made(maker, p, v) for n in numbers for v in eqns[n].outs)

    def candidates(self, maker: Eqn) -> Sequence[int]:
        """The equations that may be one of the body: those of its name, made of what is known that the
        fewest read.
        """
        way, known = self.way(maker)
        if known is None:
            return self.code.named.get(maker.op.name, ())
        values, numbers, eqns = {known}, set[int](), self.graph.eqns
        for eqn in way:
            read = {n for v in values for n in self.code.readers.get(v, ())}
            numbers = {n for n in read if eqns[n].op.name == eqn.op.name}
            made = {v for n in numbers for v in eqns[n].outs}
            # the first iteration may have nothing to add to
            values = made | values if self.begins else made
        return sorted(numbers)

    def way(self, maker: Eqn) -> tuple[tuple[Eqn, ...], Var | None]:
        """Equations of the body, each of which reads the one before, up to that one; the first reads a
        value that is known in this iteration.
        """
        ways: dict[Eqn, tuple[Eqn, ...]] = {maker: (maker,)}
        best: tuple[int, tuple[Eqn, ...], Var | None] = 0, (maker,), None
        waiting = [maker]
        for eqn in waiting:
            for a in eqn.inputs:
                x, inner = self.env.get(a), self.inner.get(a)
                if isinstance(x, Var):
                    count = len(self.code.readers.get(x, ()))
                    if best[2] is None or count < best[0]:
                        best = count, ways[eqn], x
                elif inner is not None and inner not in ways:
                    ways[inner] = (inner, *ways[eqn])
                    waiting.append(inner)
        return best[1:]

    def settled(self, rows: Rows) -> list[Atom] | None:
        """The elements of this iteration, if they are known and there before the
        loop, in few arrays.
        """
        if not self.matched or any(v not in self.env for v in self.elements):
            return None
        found, number = [self.env[v] for v in self.elements], self.code.number
        if not all(isinstance(a, Var) and number.get(a, -1) < self.at for a in found):
            return None
        for a, each in zip(found, self.lists, strict=True):
            longer = [a, *each] if self.begins else [*each, a]
            if len(runs(each, rows)) <= RUNS < len(runs(longer, rows)):
                return None
        return found

    def image(self, p: Atom, names: dict[Var, Atom]) -> Var:
        """A result of this iteration, by a new name."""
        new, old = Var(p.type), self.env.get(p)
        if isinstance(old, Var):
            new = names.setdefault(old, new)  # type: ignore[assignment]
        return new


def with_first(code: Code, at: int) -> Graph | None:
    """The loop with the iteration that makes what it begins with; None if there is none."""
    loop = Loop(code, at, False)
    loop.begins = True
    if not loop.carry or not all(
        loop.same(p, x) for p, x in zip(loop.body.outputs, loop.start, strict=False)
    ):
        return None
    results = loop.body.outputs[loop.op.carry :]
    loop.find(results)
    elements = loop.settled(code.rows)
    if elements is None:
        return None
    names: dict[Var, Atom] = {}
    outs = [[loop.image(p, names), *each] for p, each in zip(results, loop.results, strict=True)]
    before, start = list[Eqn](), list[Atom]()
    for v in loop.carry:
        known = loop.env.get(v, nothing(v.type))
        if isinstance(known, Literal):
            before.append(fill(known, v.type, loop.eqn))
            (known,) = before[-1].outs
        start.append(known)
    lists = [[a, *each] for a, each in zip(elements, loop.lists, strict=True)]
    more = [*before, longer(loop, start, lists, loop.eqn.outs[: loop.op.carry], outs)]
    found = replaced(loop, more, names)
    made = {v for e in found.eqns for v in e.outs}
    return None if any(a in made or loop.maker(a) is None for a in loop.start) else found


def with_last(code: Code, at: int, rows: Rows) -> Graph | None:
    """The loop with the iteration that goes on from its end; None if there is none."""
    loop, carried = Loop(code, at, True), code.graph.eqns[at].outs
    loop.env.update(zip(loop.carry, carried, strict=False))
    ends, results = loop.body.outputs[: loop.op.carry], loop.body.outputs[loop.op.carry :]
    loop.find(loop.body.outputs)
    elements = loop.settled(rows)
    ends_here = set(carried[: loop.op.carry])
    if elements is None or all(ends_here.isdisjoint(e.inputs) for e in loop.matched):
        return None
    names: dict[Var, Atom] = {}
    last = [loop.image(p, names) for p in ends]
    outs = [[*each, loop.image(p, names)] for p, each in zip(results, loop.results, strict=True)]
    lists = [[*each, a] for a, each in zip(elements, loop.lists, strict=True)]
    found = replaced(loop, [longer(loop, loop.start, lists, last, outs)], names)
    read = {a for e in found.eqns for a in e.inputs} | set(found.outputs)
    return found if read.isdisjoint(ends_here) else None


def turned(code: Code, at: int) -> Graph | None:
    """The loop whose iterations begin with what they ended with, if it then takes the last
    iteration.

    That is a sum or a product with something that each iteration has of its own, as of a
    derivative: the last iteration computes none for the iteration before.
    """
    op: Any = code.graph.eqns[at].op
    for i, p in enumerate(op.body.outputs[: op.carry]):
        loop = Loop(code, at, False)
        total = loop.inner[p]
        if neutral(total) is None or loop.reads[p] != 1:
            continue
        for part, rest in (total.inputs, total.inputs[::-1]):
            cone = loop.alone_in(part)
            if cone is None or rest not in loop.inner or not loop.same(part, loop.start[i]):
                continue
            graph, n = begun(loop, i, total, rest, cone)
            found = with_last(Code(graph), n, code.rows)
            if found is not None:
                return found
    return None


def begun(loop: Loop, i: int, total: Eqn, rest: Atom, cone: Sequence[Eqn]) -> tuple[Graph, int]:
    """The loop that carries the rest of a total, which the next iteration makes; and where it is."""
    op, old, number = loop.op, loop.carry[i], neutral(total)
    assert isinstance(old, Var) and isinstance(number, Literal)
    carry, end, first = Var(rest.type), Var(rest.type), fill(number, rest.type, loop.eqn)
    own = [v for v in loop.elements if any(v in e.inputs for e in (*cone, total))]
    fresh: dict[Var, Atom] = {v: Var(v.type) for v in own}
    moved = [renamed(fresh, e) for e in cone]
    moved.append(Eqn(total.op, rename({**fresh, rest: carry}, total.inputs), (old,), total.source))  # type: ignore[dict-item]
    others = [e for e in loop.body.eqns if e is not total and e not in cone]
    read = {a for e in others for a in e.inputs} | set(loop.body.outputs)
    lists = dict(zip(loop.elements, loop.lists, strict=True))
    kept: dict[Atom, Sequence[Atom]] = {v: each for v, each in lists.items() if v in read}
    kept.update((fresh[v], [loop.env[v], *lists[v][:-1]]) for v in own)
    inputs = (
        *loop.body.inputs[: op.consts],
        *(carry if v is old else v for v in loop.carry),
        *kept,
    )
    outputs = (*loop.body.outputs[:i], rest, *loop.body.outputs[i + 1 :])
    turning = RepeatLoop(Graph(inputs, (*moved, *others), outputs), op.length, op.consts, op.carry)  # type: ignore[arg-type]
    start = (*loop.start[:i], *first.outs, *loop.start[i + 1 :])
    given = (*loop.eqn.inputs[: op.consts], *start, *(a for each in kept.values() for a in each))
    outs = (*loop.eqn.outs[:i], end, *loop.eqn.outs[i + 1 :])
    after = at_end(
        loop, (*cone, total), loop.eqn.outs[i], {v: lists[v][-1] for v in own} | {rest: end}
    )
    graph, at, made = loop.graph, loop.at, Eqn(turning, given, outs, loop.eqn.source)
    eqns = (*graph.eqns[:at], first, made, *after, *graph.eqns[at + 1 :])
    return Graph(graph.inputs, eqns, graph.outputs, graph.consts), at + 1


def at_end(loop: Loop, eqns: Sequence[Eqn], result: Var, values: Mapping[Atom, Atom]) -> list[Eqn]:
    """The equations of an iteration after the loop, the last of which makes the result."""
    env: dict[Var, Atom] = dict(
        zip(loop.body.inputs, loop.eqn.inputs[: loop.op.consts], strict=False)
    )
    env.update(values)  # type: ignore[arg-type]
    *before, last = [anew(env, eqn) for eqn in eqns]
    return [*before, replace(last, outs=(result,))]


def nothing(type_: ArrayType) -> Literal:
    return Literal.of(nothing_of(type_.dtype))


def neutral(eqn: Eqn) -> Literal | None:
    """The number with which an operation gives its other operand, to the bit."""
    if eqn.op != ADD and eqn.op != MUL:
        return None
    dtype = eqn.outs[0].type.dtype
    if eqn.op == ADD:
        return nothing(eqn.outs[0].type)
    return Literal.of(dtype.type(1)) if dtype.kind != "c" else None  # inf * (1 + 0j) has NaN


def fill(number: Literal, type_: ArrayType, loop: Eqn) -> Eqn:
    return Eqn(BroadcastInDim(type_.shape, ()), (number,), (Var(type_),), loop.source)


def longer(
    loop: Loop,
    start: Sequence[Atom],
    lists: Sequence[Sequence[Atom]],
    ends: Sequence[Var],
    results: Sequence[Sequence[Var]],
) -> Eqn:
    """The loop of one more iteration. What is carried at the end and a result is read as the
    latter.
    """
    op = RepeatLoop(loop.body, loop.op.length + 1, loop.op.consts, loop.op.carry)
    given = (*loop.eqn.inputs[: loop.op.consts], *start, *(a for each in lists for a in each))
    returned = [v for each in results for v in each]
    seen = set(returned)
    carried = [Var(v.type) if v in seen or v in ends[:i] else v for i, v in enumerate(ends)]
    return Eqn(op, given, (*carried, *returned), loop.eqn.source)


def replaced(loop: Loop, eqns: Sequence[Eqn], names: Mapping[Var, Atom]) -> Graph:
    """The graph with other equations for the loop, after which values have other names."""
    graph, at = loop.graph, loop.at
    after = [renamed(names, e) for e in graph.eqns[at + 1 :]]
    outputs = rename(names, graph.outputs)
    return without_dead_code(
        Graph(graph.inputs, (*graph.eqns[:at], *eqns, *after), outputs, graph.consts)
    )
