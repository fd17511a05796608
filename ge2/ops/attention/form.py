"""The form of attention in a graph: which of its values are scores, weights and results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, final

import numpy as np

from ge2.base.arrays import BOOL, FLOAT32, FLOATS, HALF
from ge2.base.record import record
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Op, Var, applied
from ge2.ops.attention import ALIKE, VIEWS, Along, Sink, reshaped
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, DIV, EXP, MUL, SUB, WHERE, ConvertElementType
from ge2.ops.pointlike import Pointlike, Pointwise
from ge2.ops.random import RandomBits
from ge2.ops.shape import Iota, Reshape, Transpose

FAINT: Final = -9e3  # scores so low are masks: what has them is not seen beside others
MILD: Final = -(2.0**14)  # and none need be lower


@final
@record
class Chain:
    """An operand of a product: the value `base`, and the views, casts and scalings after it."""

    base: Var
    eqns: tuple[Eqn, ...]


@final
@record
class Form:
    """Attention in a graph `plain`, whose only result it is.

    `dot` is the product of queries and keys, of which operand `query` are the queries, and axis
    `key` counts keys. `scores` is made of it by `between`, in order; `dims` says which axis of the
    product each of its axes is. `values` is the product of weights and values; `weights` are the
    axes of its weights, and `result` those of what `after` makes of it, the result. Dropout makes
    these weights of `soft`, which add up to 1, by `dropping`, in order. A `sink` takes weight, too; it
    is made of `sunk`, if it is no literal.
    """

    plain: Graph
    dot: Eqn
    query: int
    key: int
    scores: Var
    dims: Dims
    between: tuple[Eqn, ...]
    values: Eqn
    side: int
    weights: Dims
    after: tuple[Eqn, ...]
    result: Dims
    queries: Chain
    keys: Chain
    read: Chain
    soft: Var | None = None
    dropping: tuple[Eqn, ...] = ()
    sink: Sink | None = None
    sunk: Chain | None = None

    @property
    def product(self) -> Var:
        return self.dot.outs[0]

    @property
    def chains(self) -> tuple[Chain, Chain, Chain]:
        """Of queries, keys and values."""
        return self.queries, self.keys, self.read

    @property
    def others(self) -> tuple[Var, ...]:
        """The inputs that scores are made of beside the product."""
        read = {a for e in (*self.between, *self.dropping) for a in e.inputs}
        return tuple(v for v in self.plain.inputs if v in read)

    @property
    def scalars(self) -> tuple[Var, ...]:
        """The inputs that are numbers by which queries and keys are multiplied."""
        eqns = filter(is_scaling, (*self.queries.eqns, *self.keys.eqns))
        read = {a for e in eqns for a in e.inputs} - {*self.others}
        return tuple(v for v in self.plain.inputs if v in read and not v.type.shape)

    @property
    def row(self) -> int:
        """The axis of the product that counts queries: the last that only these have."""
        op, (a, b) = self.dot.op, (x.type for x in self.dot.inputs)
        assert isinstance(op, DotGeneral)
        free = op.free(a, b)
        first = len(op.beside[0])
        numbers = range(first, first + len(free[0])), range(first + len(free[0]), self.rank)
        mine = [n for n in numbers[self.query] if n != self.key]
        long = [n for n in mine if self.product.type.shape[n] > 1]
        return (long or mine)[-1]

    @property
    def rank(self) -> int:
        return len(self.product.type.shape)

    @property
    def batch(self) -> Dims:
        """The other axes of the product."""
        apart = self.key, self.row
        return tuple(a for a in range(self.rank) if a not in apart)

    @property
    def sums(self) -> Dims:
        """The shape of the logarithms of the sums: batches, then queries."""
        return tuple(self.product.type.shape[a] for a in (*self.batch, self.row))


def starts_of(graph: Graph) -> set[Var]:
    """Products from which a way without another product leads to an exponential, and from that
    to a product: of all others, no scores are made.
    """
    multiplied, raised, found = set[Atom](), set[Atom](), set[Var]()
    for eqn in reversed(graph.eqns):
        is_product = isinstance(eqn.op, DotGeneral)
        if is_product and eqn.outs[0] in raised:
            found.update(eqn.outs)
        if is_product or not multiplied.isdisjoint(eqn.outs):
            multiplied.update(eqn.inputs)
            if eqn.op is EXP:
                raised.update(eqn.inputs)
        if not is_product and not raised.isdisjoint(eqn.outs):
            raised.update(eqn.inputs)
    return found


def made_of(graph: Graph, starts: Iterable[Atom]) -> set[Atom]:
    """Returns these values and all that are computed from them without a product."""
    found = set(starts)
    for e in graph.eqns:
        if not isinstance(e.op, DotGeneral) and not found.isdisjoint(e.inputs):
            found.update(e.outs)
    return found


@final
class Finder:
    """The equation that makes each value of a graph, and those that read it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers: dict[Atom, int] = {v: n for n, e in enumerate(graph.eqns) for v in e.outs}
        self.readers: dict[Atom, list[int]] = {}
        for n, e in enumerate(graph.eqns):
            for a in dict.fromkeys(e.inputs):
                if type(a) is Var:
                    self.readers.setdefault(a, []).append(n)
        self.outputs = set(graph.outputs)

    def forms(self) -> Iterator[tuple[Form, set[int], tuple[Var, ...]]]:
        """Each attention found: its form, the numbers of the equations that it replaces, and the
        values of the graph that it reads. None of them reads what is inside of another.
        """
        taken: set[int] = set()
        starts = starts_of(self.graph)
        for eqn in self.graph.eqns:
            if eqn.outs[:1] and eqn.outs[0] in starts and (found := self.at(eqn)) is not None:
                _, numbers, _ = found
                if taken.isdisjoint(numbers):
                    taken |= numbers
                    yield found

    def at(self, dot: Eqn) -> tuple[Form, set[int], tuple[Var, ...]] | None:
        """Attention whose scores begin with this product."""
        op, types = dot.op, [a.type for a in dot.inputs]
        assert isinstance(op, DotGeneral)
        if dot.outs[0].type.dtype not in FLOATS or not self.readers.get(dot.outs[0]):
            return None
        if len(op.contract[0]) != 1:
            return None
        free, first = op.free(*types), len(op.beside[0])
        for side, axes in enumerate(free):
            if not free[1 - side]:  # nothing counts queries: `with_rows` mends that
                continue
            start = first + (len(free[0]) if side else 0)
            for key in range(start, start + len(axes)):
                if dot.outs[0].type.shape[key] == 1:
                    continue
                along = Along(self.graph.eqns, self.readers, self.makers, dot, key)
                result = along.run()
                if result is not None:
                    return self.built(along, result, 1 - side)
        return None

    def built(
        self, along: Along, result: Var, query: int
    ) -> tuple[Form, set[int], tuple[Var, ...]] | None:
        """The form, if nothing else reads what is inside."""
        end = self.extended(result)
        inner = self.inside(along, end)
        if inner is None:
            return None
        product = next(
            along.products[v] for n in inner for v in self.graph.eqns[n].outs if v in along.products
        )
        side = 0 if product.inputs[0] in along.facts else 1
        given, values = along.dot.inputs, product.inputs[1 - side]
        if any(not isinstance(a, Var) for a in (*given, values)):
            return None
        chains = [self.chain(a) for a in (given[query], given[1 - query])]
        chains.append(self.chain(values, scaled=False))
        fact = along.facts[product.inputs[side]]
        scores = fact.scores
        assert scores is not None
        if along.has_more_axes(scores):
            return None
        build = Builder(self, along, chains)
        between = build.between(scores)
        found = build.dropping(product.inputs[side])
        if found is None:
            return None
        tail = self.tail(product, end, along)
        if tail is None:
            return None
        dims = along.facts[product.outs[0]].dims
        form = build.form(
            product,
            side,
            query,
            scores,
            between,
            tail,
            inner,
            end,
            fact.dims,
            moved(dims, tail),
            *found,
        )
        return form, inner, tuple(build.inputs)

    def extended(self, result: Var) -> Var:
        """The result after the transpositions and the rounding that alone read it."""
        while result not in self.outputs and len(self.readers.get(result, ())) == 1:
            eqn = self.graph.eqns[self.readers[result][0]]
            rounds = isinstance(eqn.op, ConvertElementType) and eqn.op.dtype in HALF
            if not rounds and not isinstance(eqn.op, Transpose):
                break
            (result,) = eqn.outs
        return result

    def inside(self, along: Along, end: Var) -> set[int] | None:
        """The numbers of the equations between the product and the result; None if others read
        what they make.
        """
        found: set[int] = set()
        waiting: list[Atom] = [end]
        while waiting:
            a = waiting.pop()
            n = self.makers.get(a)
            known = a in along.facts or a is end or self.is_after(a, along, end)
            if n is None or n in found or not known:
                continue
            found.add(n)
            eqn = self.graph.eqns[n]
            if eqn is not along.dot:
                waiting += eqn.inputs
        for n in found:
            for v in self.graph.eqns[n].outs:
                if v is not end and (v in self.outputs or not found.issuperset(self.readers[v])):
                    return None
        return found

    def is_after(self, a: Atom, along: Along, end: Var) -> bool:
        """True of what is made of the mean on the way to the result."""
        n = self.makers.get(a)
        while n is not None and isinstance(self.graph.eqns[n].op, Transpose | ConvertElementType):
            (a,) = self.graph.eqns[n].inputs
            if a is along.result:
                return True
            n = self.makers.get(a)
        return False

    def tail(self, product: Eqn, end: Var, along: Along) -> tuple[Eqn, ...] | None:
        """The equations after weights times values but for the division by their sum, in order."""
        found = list[Eqn]()
        a: Atom = end
        while a is not product.outs[0]:
            eqn = self.graph.eqns[self.makers[a]]
            if eqn.op is DIV or eqn.op is MUL:
                a = next(
                    x for x in eqn.inputs if x in along.facts and along.facts[x].kind == "part"
                )
                if a.type.dtype != eqn.outs[0].type.dtype:
                    return None
                found.append(eqn)
                continue
            if not isinstance(eqn.op, Transpose | ConvertElementType | Reshape):
                return None
            found.append(eqn)
            (a,) = eqn.inputs
        return tuple(reversed(found))

    def sunk(self, sink: Sink) -> Chain | None:
        """The operations that compute the logit of a sink from an input; None if it is a number."""
        if not isinstance(sink.value, Var):
            return None
        found = self.chain(sink.value, scaled=False)
        if not sink.raised:
            return found
        raised = self.graph.eqns[self.makers[found.base]]
        assert raised.op is EXP
        before = self.chain(raised.inputs[0], scaled=False)
        return Chain(before.base, (*before.eqns, raised, *found.eqns))

    def chain(self, operand: Atom, scaled: bool = True) -> Chain:
        """An operand, from the last value before what a kernel does as it reads: views, casts that
        widen, and scalings, if scores can be scaled in its place.
        """
        assert isinstance(operand, Var)
        eqns, base = list[Eqn](), operand
        while (n := self.makers.get(base)) is not None:
            eqn = self.graph.eqns[n]
            source = eqn.inputs[0]
            if scaled and is_scaling(eqn):
                source = next(x for x in eqn.inputs if x.type.shape)
            elif not isinstance(eqn.op, VIEWS) and not is_widening(eqn):
                break
            if not isinstance(source, Var) or not source.type.shape:
                break
            eqns.append(eqn)
            base = source
        return Chain(base, tuple(reversed(eqns)))


@final
class Builder:
    """The graph of one attention, as its inputs become known."""

    def __init__(self, finder: Finder, along: Along, chains: Sequence[Chain]) -> None:
        self.finder, self.along, self.chains = finder, along, chains
        self.inputs: list[Var] = list(dict.fromkeys(c.base for c in chains))

    def read(self, a: Var) -> None:
        if a not in self.inputs:
            self.inputs.append(a)

    def between(self, scores: Var) -> tuple[Eqn, ...]:
        """The equations that make scores of the product, in order."""
        found: dict[Atom, Eqn] = {}
        self.collect(scores, found)
        return tuple(found.values())

    def dropping(self, a: Atom) -> tuple[Var | None, tuple[Eqn, ...]] | None:
        """The weights that add up to 1, and the equations of dropout after them, in order; None if
        these do more.
        """
        along, main = self.along, list[Eqn]()
        if along.facts[a].kind != "dropped":
            return None, ()
        while along.facts[a].kind == "dropped":
            eqn = self.finder.graph.eqns[self.finder.makers[a]]
            if not isinstance(eqn.op, Pointlike):
                return None
            main.append(eqn)
            a = next(x for x in eqn.inputs if x in along.facts)
        found: dict[Atom, Eqn] = {}
        for eqn in reversed(main):
            for x in eqn.inputs:
                if x not in along.facts:
                    self.collect(x, found)
            found[eqn.outs[0]] = eqn
        assert isinstance(a, Var)
        return a, tuple(found.values())

    def collect(self, a: Atom, found: dict[Atom, Eqn]) -> None:
        if not isinstance(a, Var) or a in found or a is self.along.dot.outs[0]:
            return
        eqn, n = self.along.made.get(a), self.finder.makers.get(a)
        if eqn is None and (n is None or (a not in self.along.facts and not self.cheap(a))):
            self.read(a)
            return
        if eqn is None:
            assert n is not None
            eqn = milder(self.finder.graph.eqns[n])
        for x in eqn.inputs:
            self.collect(x, found)
        found[a] = eqn

    def cheap(self, a: Var) -> bool:
        """True if what makes a value is to be done where it is read: it reads less than it makes, or
        the same under other indices.
        """
        made = self.finder.graph.eqns[self.finder.makers[a]]
        leaves = self.leaves(a, 0)
        return leaves is not None and (leaves < a.type.size or adds_axes(made))

    def leaves(self, a: Atom, depth: int) -> int | None:
        """The number of elements that a value is made of; None if it is not to be computed again."""
        if not isinstance(a, Var):
            return 0
        n = self.finder.makers.get(a)
        if n is None or depth > 24:
            return a.type.size
        eqn = self.finder.graph.eqns[n]
        op = eqn.op
        if isinstance(op, Iota):
            return 0
        if isinstance(op, RandomBits) and eqn.inputs[0].type.ndim == 1:  # made where they are read
            return 2
        plain = isinstance(op, Pointlike) and isinstance(op.lowering, Pointwise)
        if len(eqn.outs) != 1 or a in self.along.facts or not (plain or isinstance(op, VIEWS)):
            return a.type.size
        parts = [self.leaves(x, depth + 1) for x in eqn.inputs]
        total = sum(p for p in parts if p is not None)
        return min(total, a.type.size)

    def form(
        self, product: Eqn, side: int, query: int, scores: Var, between: tuple[Eqn, ...],
        tail: tuple[Eqn, ...], inner: set[int], end: Var, weights: Dims, result: Dims,
        soft: Var | None, dropping: tuple[Eqn, ...],
    ) -> Form:  # fmt: skip
        makers, sink = self.finder.makers, self.along.sink
        sunk = None if sink is None else self.finder.sunk(sink)
        chains = (*self.chains, *([sunk] if sunk is not None else []))
        parts = [e for c in chains for e in c.eqns] + list(between) + list(dropping)
        parts += self.rows(inner)
        numbers = inner | {makers[e.outs[0]] for e in parts if e.outs[0] in makers}
        eqns = tuple(self.finder.graph.eqns[n] for n in sorted(numbers))
        made = {v for e in eqns for v in e.outs}
        for e in eqns:
            for a in e.inputs:
                if isinstance(a, Var) and a not in made:
                    self.read(a)
        plain = Graph(tuple(self.inputs), eqns, (end,))
        along, (queries, keys, values) = self.along, self.chains
        return Form(
            plain, along.dot, query, along.key, scores, along.facts[scores].dims, between, product,
            side, weights, tail, result, queries, keys, values, soft, dropping, sink, sunk,
        )  # fmt: skip

    def rows(self, inner: set[int]) -> list[Eqn]:
        """The equations that compute values which are equal for all keys, in order."""
        found: dict[Atom, Eqn] = {}
        for n in sorted(inner):
            e = self.finder.graph.eqns[n]
            fact = self.along.facts.get(e.outs[0])
            for a in e.inputs if fact is not None and fact.kind in ALIKE else ():
                if a not in self.along.facts:
                    self.collect(a, found)
        return [*found.values()]


def adds_axes(eqn: Eqn) -> bool:
    """True of an equation that gives an array axes of size 1, or takes such away."""
    if not isinstance(eqn.op, Reshape):
        return False
    old, new = (a.type.shape for a in (*eqn.inputs, *eqn.outs))
    return [n for n in old if n != 1] == [n for n in new if n != 1]


def faint(a: Atom) -> float | None:
    """A number so low that it is a mask's; None for any other value."""
    if not isinstance(a, Literal) or a.type.dtype not in FLOATS:
        return None
    number = float(a.value)  # type: ignore[arg-type]
    return number if number <= FAINT else None


def milder(eqn: Eqn) -> Eqn:
    """A mask with the highest number that is low enough: the logarithm of a sum of weights of lower ones
    would have no digits left for the sum.
    """
    if eqn.op is not WHERE:
        return eqn
    inputs = list(eqn.inputs)
    for n, a in enumerate(inputs):
        number = faint(a)
        if number is not None and -np.inf < number < MILD:
            inputs[n] = Literal.of(a.type.dtype.type(MILD))
    return Eqn(WHERE, tuple(inputs), eqn.outs, eqn.source)


# -------- Arrays that are one number where a mask holds, and another elsewhere.


ARITHMETIC: Final[Mapping[Op, Callable[[float, float], float]]] = {
    ADD: operator.add,
    SUB: operator.sub,
    MUL: operator.mul,
}


@final
@record
class TwoValued:
    """An array that is one number where a mask holds, and another elsewhere, under views."""

    mask: Atom
    seen: float
    hidden: float
    views: tuple[Eqn, ...]


def two_valued(makers: Mapping[Atom, Eqn], a: Atom) -> TwoValued | None:
    """Returns the mask and both numbers of an array made as `where(mask, number, number)`, through views,
    casts and arithmetic with constants; None for any other array.
    """
    made = makers.get(a)
    if made is None or not made.inputs:
        return None
    op, (x, *more) = made.op, made.inputs
    if op is WHERE and all(map(is_literal, more)):
        seen, hidden = map(value_of, more)
        return TwoValued(x, seen, hidden, ())
    if isinstance(op, VIEWS) and (of := two_valued(makers, x)) is not None:
        return replace(of, views=(*of.views, made))
    if isinstance(op, ConvertElementType):
        if x.type.dtype == BOOL and op.dtype != BOOL:
            return TwoValued(x, 1.0, 0.0, ())
        return two_valued(makers, x) if op.dtype in FLOATS else None
    if op not in ARITHMETIC or sum(map(is_literal, made.inputs)) != 1:
        return None
    f, n = ARITHMETIC[op], int(is_literal(x))
    of, number = two_valued(makers, made.inputs[n]), value_of(made.inputs[1 - n])
    if of is None:
        return None
    both, rounded = (of.seen, of.hidden), made.outs[0].type.dtype.type
    with np.errstate(all="ignore"):  # as the program's own arithmetic, where it runs
        seen, hidden = (rounded(f(number, y) if n else f(y, number)) for y in both)
    return replace(of, seen=float(seen), hidden=float(hidden))


def masks_chosen(graph: Graph, scores: Set[Atom]) -> Graph:
    """The graph in which weights made of scores are 0 where a mask is, in place of their products with 1
    and 0.

    Weights of 0 are scores of -inf. What NumPy has of a row whose every seen weight is too small for
    its type, as when the maximum is of a key that the mask hides, is 0 / 0; attention has their mean.
    """
    raised = made_of(graph, [v for e in graph.eqns if e.op is EXP for v in e.outs if v in scores])
    makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
    eqns = list[Eqn]()
    for e in graph.eqns:
        sides = [n for n, a in enumerate(e.inputs) if a in raised] if e.op is MUL else []
        two = two_valued(makers, e.inputs[1 - sides[0]]) if len(sides) == 1 else None
        if two is None or {two.seen, two.hidden} != {0, 1}:
            eqns.append(e)
            continue
        mask, x = two.mask, e.inputs[sides[0]]
        for view in two.views:
            mask = applied(eqns, view.op, mask, source=view.source)
        nothing = Literal.of(x.type.dtype.type(0))
        inputs = (mask, x, nothing) if two.seen else (mask, nothing, x)
        eqns.append(Eqn(WHERE, inputs, e.outs, e.source))
    return replace(graph, eqns=tuple(eqns)) if len(eqns) else graph


def is_literal(a: Atom) -> bool:
    return isinstance(a, Literal) and not a.type.shape and a.type.dtype.kind != "c"


def value_of(a: Atom) -> float:
    return float(a.value)  # type: ignore[union-attr,arg-type]


def moved(dims: Dims, tail: Iterable[Eqn]) -> Dims:
    """The axes of a value after views of it."""
    for e in tail:
        if isinstance(e.op, Transpose):
            dims = tuple(dims[i] for i in e.op.order)
        elif isinstance(e.op, Reshape):
            found = reshaped(e.inputs[0].type.shape, dims, e.op.shape)
            assert found is not None
            dims = found
    return dims


def is_widening(eqn: Eqn) -> bool:
    """True of a cast of a half type to float32, which changes no number."""
    op = eqn.op
    return (
        isinstance(op, ConvertElementType)
        and op.dtype == FLOAT32
        and eqn.inputs[0].type.dtype in HALF
    )


def is_scaling(eqn: Eqn) -> bool:
    """True of an array times a number."""
    if eqn.op is not MUL and eqn.op is not DIV:
        return False
    a, b = eqn.inputs
    return bool(a.type.shape) != bool(b.type.shape) and (eqn.op is MUL or not b.type.shape)
