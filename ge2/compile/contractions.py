"""The pass that makes a product and the work around it one region, where one kernel is chosen for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import Any, Final, final

from ge2.base.arrays import HALF
from ge2.base.config import config
from ge2.base.record import record
from ge2.choice import Problem, prefs
from ge2.choice.choose import Catalog, Choice, choose
from ge2.codegen.layout import Layout, plain, viewed
from ge2.codegen.text import Operand
from ge2.ir import Atom, Dims, Eqn, Graph, Var, makers_of
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.contraction import (
    bare,
    is_contraction,
    of_steps,
    opened,
    round_halves,
    steps_of,
)
from ge2.ops.graphs.region import Region, is_loop, needed
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import Transpose
from ge2.passes.context import Context

# A launch that waits for another costs more than most of what it does, and so does a pass over
# memory. So a region becomes part of the product whose result it reads first, with sums over all
# rows of what it makes, such as gradients of biases. A region that folds otherwise, or whose sums no
# kernel takes, is split before: what it makes of each element, and returns, goes with the product;
# the rest reads that, and the next product does not wait for it. Two products of one left factor
# that a region reads, such as those of a gated unit, are one region with it. Then a region that
# makes an operand which nobody else reads goes before its product; of one that folds, its last step.
# Each is a question to `choose`, among kernels that take all of it and families that leave steps
# apart (`Family.in_steps`), each of which predicts what its steps would take. In C there are only
# regions that read the product of one pair of arrays, and take all of it: what is left is a step
# like others, which no launch is saved of.


FOLDS: Final = (Reduce, ArgReduce)


@final
@record
class Where:
    """A target: the limits of its chip, the catalog of what a product and a region may be, those of
    its families that take two products, and how a region is split into what goes with products and
    what is left (`splits`).
    """

    target: str
    caps: Any
    catalog: Catalog
    pairs: Catalog
    splits: Callable[[Eqn, Sequence[Eqn]], Iterator[tuple[Eqn, ...]]]
    halved: bool = False  # of a matrix times its own transpose a half is computed, apart


def contractions(graph: Graph, context: Context) -> Graph:
    """The graph with such regions, for the GPU of the context, or in C. `epilogue`, `pairs` and
    `prologue` are names under which parts of it are switched off.
    """
    off = prefs().off
    if not any(isinstance(e.op, DotGeneral) for e in graph.eqns):
        return graph
    where = on_gpu(context.caps) if context.caps is not None else in_c(context)
    if where is None:
        return graph
    if "epilogue" not in off:
        graph = Contractions(graph, where).with_what_follows()
    ours = "prologue" in off or context.caps is None
    return graph if ours else Contractions(graph, where).with_operands()


def on_gpu(limits: object) -> Where | None:
    # what programs in C need not load
    from ge2.targets.cuda.device import Caps
    from ge2.targets.cuda.families import CONTRACTIONS, PAIRS
    from ge2.targets.cuda.limits import Limits

    if not isinstance(limits, Limits):
        return None
    return Where("cuda", Caps.before(limits), CONTRACTIONS, PAIRS, splits)


def in_c(context: Context) -> Where | None:
    """The same of programs in C; None of those that NumPy runs block by block."""
    from ge2.targets.c.families import CONTRACTIONS
    from ge2.targets.c.libraries import limits
    from ge2.targets.c.tuning import TUNING

    if not context.gathers:
        return None
    return Where(
        "c",
        limits(config.thread_count(), config.tuned(TUNING)),
        CONTRACTIONS,
        (),
        in_one,
        halved=True,
    )


class Contractions:
    """Products of a graph, and what becomes one region with them."""

    def __init__(self, graph: Graph, where: Where) -> None:
        self.graph, self.where, self.caps = graph, where, where.caps
        self.makers = makers_of(graph)
        self.reads = Counter([*(a for e in graph.eqns for a in e.inputs), *graph.outputs])
        self.first: dict[Atom, int] = {}  # the equation that reads a value first
        for n, e in enumerate(graph.eqns):
            for a in e.inputs:
                self.first.setdefault(a, n)
        self.known: dict[tuple[Problem, Catalog], Choice] = {}
        # what is in place of an equation, by its identity
        self.instead: dict[int, Sequence[Eqn]] = {}

    def written(self, eqns: Iterable[Eqn]) -> Graph:
        kept = (each for e in eqns for each in self.instead.get(id(e), (e,)))
        return replace(self.graph, eqns=tuple(kept))

    # -- products and the regions that read them

    def with_what_follows(self) -> Graph:
        return self.written(
            [e for n, eqn in enumerate(self.graph.eqns) for e in self.joined(eqn, n)]
        )

    def joined(self, eqn: Eqn, n: int) -> tuple[Eqn, ...]:
        """Equation `n`, a region, with the product that it reads, and what is left of it, if that is
        chosen for one; else as it is. What others read of the product, the kernel writes as well.
        """
        if not is_loop(eqn.op) or not all(isinstance(a, Var) for a in eqn.inputs):
            return (eqn,)
        products = [*self.products(eqn, n)]
        for some in (*self.pairs(products), *((each,) for each in products)):
            for choice, one, parts in self.ways(eqn, some):
                if not choice.family.in_steps:
                    self.instead.update((id(e), ()) for e in some)
                    return (replace(one, choice=choice), *parts[1:])
                eqn = replace(eqn, choice=choice)
        return (eqn,)

    def products(self, eqn: Eqn, n: int) -> Iterator[Eqn]:
        """The products that a region may go on with: equation `n`, which reads them first."""
        for a in eqn.inputs:
            product = self.makers.get(a)
            if product is None or self.first[a] != n or not self.possible(product):
                continue
            if not (self.where.halved and self.is_of_itself(product)):
                yield product

    def is_of_itself(self, product: Eqn) -> bool:
        """True of a matrix times its own transpose."""
        a, b = product.inputs
        pairs = ((x, self.makers.get(y)) for x, y in ((a, b), (b, a)))
        return any(
            maker is not None and isinstance(maker.op, Transpose) and maker.inputs[0] is x
            for x, maker in pairs
        )

    def pairs(self, products: Sequence[Eqn]) -> Iterator[tuple[Eqn, Eqn]]:
        """The pairs that may be one region, unless preferences name families of one product alone."""
        only, off, families = prefs().only, prefs().off, self.where.pairs
        wanted = not only or any(family.name in only for family in families)
        if families and "pairs" not in off and wanted:
            yield from (p for p in combinations(products, 2) if alike(*p))

    def ways(
        self, eqn: Eqn, products: tuple[Eqn, ...]
    ) -> list[tuple[Choice, Eqn, tuple[Eqn, ...]]]:
        """Ways to go on with a product or two, those of families that are preferred and of the least
        prediction first: the choice for each, the steps that it is for as one, and those steps and
        the ones after them.
        """
        kept = [y for e in products for y in e.outs if self.reads[y] > 1]
        parts = [*self.where.splits(eqn, products)]
        ones = [together(products, each[0], kept) for each in parts]
        found = [*zip(map(self.choice, ones), ones, parts, strict=True)]
        if len(found) > 1:  # predictions are dear
            found.sort(key=lambda way: (self.is_other(way[0]), self.predicted(way[0], way[2][1:])))
        return found

    def is_other(self, choice: Choice) -> bool:
        """True if families are preferred, and what was chosen is of none of them."""
        only = prefs().only
        return bool(only) and choice.family.name not in only

    def predicted(self, choice: Choice, after: Sequence[Eqn]) -> float:
        """The seconds of what was chosen for a part of a region, and of the steps after it."""
        problems = (Problem.of(e, self.where.target) for e in after)
        rest: float = sum(map(self.caps.speed.of, problems))
        return (choice.timed.seconds or 0.0) + rest

    def possible(self, eqn: Eqn) -> bool:
        """True of a product of matrices that are in arrays of C order."""
        op, (y, *_) = eqn.op, eqn.outs or (None,)
        if not isinstance(op, DotGeneral) or y is None:
            return False
        matrix = y.type.ndim >= 2 and min(y.type.shape) > 0
        return matrix and None not in map(self.layout, eqn.inputs)

    def choice(self, eqn: Eqn, catalog: Catalog = ()) -> Choice:
        """The choice for steps as a region: one kernel, or some of them apart."""

        def operand(role: str, i: int, a: Atom) -> Operand:
            layout = self.layout(a) or plain(a.type.shape)
            return Operand(role, i, layout.strides, layout.offset)

        key = Problem.of(eqn, self.where.target, operand), catalog or self.where.catalog
        if key not in self.known:  # layers of a network are alike
            self.known[key] = choose(key[0], self.caps, prefs(), key[1])
        return self.known[key]

    def layout(self, a: Atom) -> Layout | None:
        """The layout of an operand in an array of C order, of which it may be a view."""
        if not isinstance(a, Var) or a.type.weak:
            return None
        maker = self.makers.get(a)
        if maker is None or not maker.op.is_view or maker.op.several:
            return plain(a.type.shape)
        source = self.layout(maker.inputs[0])
        return None if source is None else viewed(maker, source)

    # -- products and the regions that make their operands

    def with_operands(self) -> Graph:
        eqns = list[Eqn]()
        for e in self.graph.eqns:
            for a in dict.fromkeys(e.inputs) if is_product(e) else ():
                e = self.with_operand(e, a)
            eqns.append(e)
        return self.written(eqns)

    def with_operand(self, eqn: Eqn, a: Atom) -> Eqn:
        """The product that makes operand `a` as the region does that makes it now, or its last step;
        as it is if that is not chosen.
        """
        given, one, ways = self.seen_through(eqn, a)
        steps = last_steps(ways[-1], given) if ways else ()
        made = making(one, given, steps[-1]) if steps else None
        if made is None or None in map(self.layout, made.inputs):
            return eqn
        from ge2.targets.cuda.families import OF_LAST_STEPS  # what programs in C need not load

        choice = self.choice(made, () if len(steps) == 1 else OF_LAST_STEPS)
        if choice.family.in_steps:
            return eqn
        self.instead.update({id(e): () for e in ways} | {id(ways[-1]): steps[:-1]})
        return replace(made, choice=choice)

    def seen_through(self, eqn: Eqn, a: Atom) -> tuple[Atom, Eqn, list[Eqn]]:
        """An operand of a product, and the equation that makes it, if nobody else reads it; of one that
        is turned, what it was before, which the product then takes as it lies.
        """
        maker = self.makers.get(a) if self.reads[a] == 1 else None
        if maker is None or not isinstance(maker.op, Transpose):
            return a, eqn, [maker] if maker is not None else []
        (x,) = maker.inputs
        first = self.makers.get(x) if self.reads[x] == 1 else None
        if first is None or not isinstance(x, Var):
            return a, eqn, []
        one = as_it_lies(eqn, a, x, maker.op.order)
        return (a, eqn, []) if one is None else (x, one, [maker, first])


# --------------------------------------------------------------------- a product and what follows


def alike(one: Eqn, other: Eqn) -> bool:
    """True of products of the same left factor with right ones of one type."""
    (a, b), (c, d) = one.inputs, other.inputs
    return one.op == other.op and a is c and b.type == d.type


def together(products: Sequence[Eqn], rest: Eqn, kept: Sequence[Var] = ()) -> Eqn:
    """Products and a region as one; `kept`: the products' results that it gives, too."""
    found, inner = list[Eqn](), list[Var]()
    for product in products:
        (y,) = product.outs
        if y in kept:
            v = Var(y.type)
            product, rest = replace(product, outs=(v,)), keeping(rest, y, v)
        found.append(product)
        inner += product.outs
    return of_steps((*found, rounded(rest, inner)))


def keeping(rest: Eqn, y: Var, inner: Var) -> Eqn:
    """The region with a result more: `y`, the product's, which it is given as `inner`."""
    region = rest.op
    assert isinstance(region, Region)
    graph, n = region.graph, rest.inputs.index(y)
    stored = Eqn(ConvertElementType(y.type.dtype), (graph.inputs[n],), (Var(y.type),), rest.source)
    more = Graph(graph.inputs, (*graph.eqns, stored), (*graph.outputs, *stored.outs), graph.consts)
    axes = (*region.axes, tuple(range(len(region.space))))
    inputs = (*rest.inputs[:n], inner, *rest.inputs[n + 1 :])
    op = replace(region, graph=more, axes=axes)
    return replace(rest, op=op, inputs=inputs, outs=(*rest.outs, y))


def rounded(rest: Eqn, products: Iterable[Var]) -> Eqn:
    """The region, which is to read sums in float32 where it read them rounded to a half type."""
    region = rest.op
    assert isinstance(region, Region)
    halves = [y for y in products if y.type.dtype in HALF]
    inexact = [region.graph.inputs[rest.inputs.index(y)] for y in halves]
    inner, axes = round_halves(region.graph, region.axes, inexact)
    return replace(rest, op=replace(region, graph=inner, axes=axes))


# --------------------------------------------------------------------------- a region taken apart


def splits(eqn: Eqn, products: Sequence[Eqn]) -> Iterator[tuple[Eqn, ...]]:
    """Ways to split a region into what goes with products and the steps after it; none if it does
    not read elements of the products where it is.
    """
    from ge2.targets.cuda.products.tensor_epilogue import column_sums  # as above

    region, product, ys = eqn.op, products[0], [e.outs[0] for e in products]
    assert isinstance(region, Region)
    if not all(eqn.inputs.count(y) == 1 and region.space == y.type.shape for y in ys):
        return
    places = {region.graph.inputs[eqn.inputs.index(y)] for y in ys}
    whole = tuple(range(len(region.space)))
    if not all(
        at == whole and not (e.op.is_view or isinstance(e.op, FOLDS))
        for e, at in reading(region, places)
    ):
        return
    dot, (a, b) = product.op, (x.type for x in product.inputs)
    assert isinstance(dot, DotGeneral)
    found: list[tuple[Eqn, ...] | None] = [halves(eqn, region, places)]
    for ways in (eqn,), with_sums(eqn, region, places):
        first = ways[0].op if ways else None
        if isinstance(first, Region) and column_sums(first, len(dot.free(a, b)[1])) is not None:
            found.insert(0, ways)
            break
    yield from filter(None, found)


def in_one(eqn: Eqn, products: Sequence[Eqn]) -> Iterator[tuple[Eqn, ...]]:
    """All of a region, if it reads each element of the product where it is."""
    region, ((y,),) = eqn.op, [e.outs for e in products]
    assert isinstance(region, Region)
    if eqn.inputs.count(y) != 1 or region.space != y.type.shape:
        return
    place, whole = region.graph.inputs[eqn.inputs.index(y)], tuple(range(len(region.space)))
    if all(at == whole and not e.op.is_view for e, at in reading(region, {place})):
        yield (eqn,)


def with_sums(eqn: Eqn, region: Region, places: set[Var]) -> tuple[Eqn, ...] | None:
    """Sums and what is of each element, and what is made of the sums alone: a step of a bias."""
    sums = {v for e in region.graph.eqns if isinstance(e.op, FOLDS) for v in e.outs}
    after = after_values(region, sums)
    second: set[Atom] = {v for v in region.graph.outputs if v in after and v not in sums}
    first: set[Atom] = {v for v in region.graph.outputs if v not in second} | sums
    whole = tuple(range(len(region.space)))
    if any(region.axes[n] == whole for n in needed(region.graph, second, {*sums})):
        return None
    return divided(eqn, region, places, first, second)


def halves(eqn: Eqn, region: Region, places: set[Var]) -> tuple[Eqn, ...] | None:
    """Results that are of each element of the products, and all others, which
    read those and not them.
    """
    folded = after_values(
        region, {v for e in region.graph.eqns if isinstance(e.op, FOLDS) for v in e.outs}
    )
    first = {
        v for v in region.graph.outputs if v in after_values(region, places) and v not in folded
    }
    return divided(eqn, region, places, first, {*region.graph.outputs} - first)


def divided(
    eqn: Eqn, region: Region, places: set[Var], first: set[Atom], second: set[Atom]
) -> tuple[Eqn, ...] | None:
    """A region that makes the first values and one that makes the second of these, if that does not
    read the products.
    """
    if not first or not second:
        return None
    late = needed(region.graph, second, first)
    if not all(places.isdisjoint(region.graph.eqns[n].inputs) for n in late):
        return None
    return in_parts(eqn, (needed(region.graph, first), first), (late, second))


def last_steps(maker: Eqn, y: Atom) -> tuple[Eqn, ...]:
    """A region as the steps that make `y`, of which the last is elementwise: itself, or one that
    folds, and makes all else, before what is done to each element with what is folded.
    """
    region = maker.op
    if not is_loop(region) or region.kind == "pointwise" or region.graph.consts:
        return (maker,)
    results = dict(zip(region.graph.outputs, maker.outs, strict=True))
    if len(results) < len(maker.outs) or not all(isinstance(v, Var) for v in results):
        return (maker,)
    inner = next(v for v, out in results.items() if out is y)
    others = results.keys() - {inner}
    late, read = elementwise(region, inner, others)
    if not late:
        return (maker,)
    first = {*read, *others}
    return in_parts(maker, (needed(region.graph, first), first), (late, {inner})) or (maker,)


def in_parts(eqn: Eqn, *parts: tuple[Iterable[int], Set[Atom]]) -> tuple[Eqn, ...] | None:
    """A region as several: the numbers of equations of each, and the values that it makes; None if one
    of those is nothing but a view.
    """
    from ge2.targets.cuda.emit.split_region import half  # as above

    region = eqn.op
    assert isinstance(region, Region)
    known: dict[Atom, Atom] = {v: Var(v.type) for _, made in parts for v in made}
    known.update(zip(region.graph.inputs, eqn.inputs, strict=True))
    known.update(zip(region.graph.outputs, eqn.outs, strict=True))
    found = list[Eqn]()
    for numbers, made in parts:
        part = half(region, [n for n in numbers if not region.graph.eqns[n].op.is_view], {*made})
        if {*part.graph.outputs} != made:
            return None
        outs = tuple(v for a in part.graph.outputs if isinstance(v := known[a], Var))
        found.append(Eqn(part, tuple(known[v] for v in part.graph.inputs), outs, eqn.source))
    return tuple(found)


def elementwise(region: Region, y: Atom, there: Set[Atom]) -> tuple[list[int], set[Atom]]:
    """The equations over the whole space that make a result of what is folded, of inputs and of what
    is there; and what is folded, or made of that for each row, that they read.
    """
    eqns, whole = region.graph.eqns, tuple(range(len(region.space)))
    makers = {v: n for n, e in enumerate(eqns) for v in e.outs}
    folded = after_values(region, {v for e in eqns if isinstance(e.op, FOLDS) for v in e.outs})
    late, read, waiting = set[int](), set[Atom](), [y]
    while waiting:
        a = waiting.pop()
        n = makers.get(a)  # type: ignore[arg-type]
        if n is None or n in late or a in there:
            continue
        of_each = region.axes[n] == whole and isinstance(eqns[n].op, Pointlike)
        if a in folded and not of_each and not eqns[n].op.is_view:
            read.add(a)
        else:
            late.add(n)
            waiting += eqns[n].inputs
    read |= {a for n in late for a in eqns[n].inputs if a in there}
    return sorted(late) if read & folded else [], read


def reading(region: Region, values: set[Var]) -> Iterable[tuple[Eqn, Dims]]:
    """The equations that read any of some values, and their axes."""
    pairs = zip(region.graph.eqns, region.axes, strict=True)
    return ((e, at) for e, at in pairs if not values.isdisjoint(e.inputs))


def after_values(region: Region, values: Iterable[Atom]) -> set[Atom]:
    """Some values, and all that is made of them."""
    found = set(values)
    for e in region.graph.eqns:
        if not found.isdisjoint(e.inputs):
            found.update(e.outs)
    return found


# ------------------------------------------------------------------------ a product and its operands


def is_product(eqn: Eqn) -> bool:
    """True of a product, or one and a region, that has something to multiply."""
    joint = is_contraction(eqn.op) and len(steps_of(eqn.op).products) == 1
    return (joint or isinstance(eqn.op, DotGeneral)) and all(a.type.size for a in eqn.inputs)


def as_it_lies(eqn: Eqn, a: Atom, x: Var, order: Dims) -> Eqn | None:
    """A product of `x` in place of operand `a`, which is that with its axes in another order; None if
    those that stay would be in another order, too.
    """
    if is_contraction(eqn.op):
        steps = opened(eqn)
        product, *others = (e for e in steps if a in e.inputs)
        one = None if others else as_it_lies(product, a, x, order)
        if one is None:
            return None
        given = (x if each is a else each for each in eqn.inputs)
        return of_steps([one if e is product else e for e in steps], given)
    dot = eqn.op
    if not isinstance(dot, DotGeneral) or eqn.inputs.count(a) > 1:
        return None
    n = eqn.inputs.index(a)
    p, q = eqn.inputs
    kept = [order[i] for i in dot.free(p.type, q.type)[n]]
    if kept != sorted(kept):
        return None
    pairs = [[*dot.contract], [*dot.beside]]
    for pair in pairs:
        pair[n] = tuple(order[i] for i in pair[n])
    (c, d), (f, g) = pairs
    op = replace(dot, contract=(c, d), beside=(f, g))
    return replace(eqn, op=op, inputs=tuple(x if each is a else each for each in eqn.inputs))


def making(eqn: Eqn, a: Atom, maker: Eqn) -> Eqn | None:
    """A product and the region that makes its operand `a` as one; None if that does more, or the
    operand is read twice.
    """
    op, (y, *others) = maker.op, maker.outs
    if not isinstance(op, Region) or op.kind != "pointwise" or others or op.space != y.type.shape:
        return None
    product, rest = bare(eqn) if isinstance(eqn.op, DotGeneral) else (eqn, eqn)
    steps = opened(eqn if product is eqn else together([product], rest))
    read = [e for e in steps for x in e.inputs if x is a]
    if len(read) > 1 or not isinstance(read[0].op, DotGeneral):
        return None
    return of_steps((maker, *steps), (*(x for x in eqn.inputs if x is not a), *maker.inputs))
