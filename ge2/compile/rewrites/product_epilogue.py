"""Products and what is done to their elements as one kernel: a thread has the element in a register.

A launch that waits for another costs more than most of what it does. So a pointwise region becomes
part of the product whose result it alone reads, with sums over all rows of what it makes, such as
gradients of biases. A region that folds otherwise, or whose sums no kernel takes, is parted before:
what it makes of each element, and returns, goes with the product; the rest reads that, and the next
product does not wait for it. Two products of one left factor that a region reads, such as those of
a gated unit, become one kernel with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from ge2.base.dtypes import HALF
from ge2.choice.choose import Catalog, Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.layout import Layout, plain, viewed
from ge2.codegen.text import Operand
from ge2.ir import Atom, Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ConvertElementType
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import ProductRegion, Region
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.passes.context import Context
from ge2.passes.fusion_group import round_halves
from ge2.program.cost import computing
from ge2.targets.cuda.caps import Caps
from ge2.targets.cuda.emit.split_region import half
from ge2.targets.cuda.kernels.apart import Apart, OneByOne
from ge2.targets.cuda.kernels.gemm.library import BlasEpilogue
from ge2.targets.cuda.kernels.gemm.mma import GemmMmaPair, GemmMmaRegion
from ge2.targets.cuda.kernels.gemm.wgmma import (
    GemmWgmmaPair,
    GemmWgmmaRegion,
    GemmWgmmaRegionOfCopies,
)
from ge2.targets.cuda.kernels.product_region import CudaProductRegion
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.products.column_sums import column_sums

FOLDS: Final = (Reduce, ArgReduce)
CATALOG: Final = (
    CudaProductRegion(),
    GemmWgmmaRegion(),
    GemmWgmmaRegionOfCopies(),
    BlasEpilogue(),
    GemmMmaRegion(),
    Apart(),
)
PAIRS: Final = (GemmWgmmaPair(), GemmMmaPair(), OneByOne())


def epilogue(graph: Graph, context: Context) -> Graph:
    """The graph with such kernels, for the GPU of the context."""
    limits = context.caps
    return Epilogues(graph, limits).run() if isinstance(limits, Limits) else graph


class Epilogues:
    """Products and regions of a graph that become one."""

    def __init__(self, graph: Graph, limits: Limits) -> None:
        self.graph, self.caps, self.tuning = graph, Caps.before(limits), limits.tuning.products
        self.makers = {v: e for e in graph.eqns for v in e.outs}
        self.reads = Counter([*(a for e in graph.eqns for a in e.inputs), *graph.outputs])
        self.first: dict[Atom, int] = {}  # the equation that reads a value first
        for n, e in enumerate(graph.eqns):
            self.first.update((a, n) for a in e.inputs if a not in self.first)
        self.known: dict[Problem, Choice] = {}
        self.gone: set[int] = set()  # products that are part of a region now
        self.looped = any(isinstance(e.op, ScanLoop | WhileLoop | Cond) for e in graph.eqns)

    def run(self) -> Graph:
        eqns: list[Eqn] = []
        for n, eqn in enumerate(self.graph.eqns):
            eqns += self.joined(eqn, n)
        kept = tuple(e for e in eqns if id(e) not in self.gone)
        return Graph(self.graph.inputs, kept, self.graph.outputs, self.graph.consts)

    def joined(self, eqn: Eqn, n: int) -> tuple[Eqn, ...]:
        """Equation `n`, a region, with the product that it reads, and what is left of it, if that is
        chosen for one; else as it is. What others read of the product, the kernel writes as well.
        """
        if not isinstance(eqn.op, Region) or not all(isinstance(a, Var) for a in eqn.inputs):
            return (eqn,)
        products = [*self.products(eqn, n)]
        for some in (*self.pairs(products), *((each,) for each in products)):
            for choice, one, parts in self.ways(eqn, some):
                if not isinstance(choice.family, Apart):
                    self.gone.update(map(id, some))
                    return (replace(one, choice=choice), *parts[1:])
                eqn = replace(eqn, choice=choice)
        return (eqn,)

    def products(self, eqn: Eqn, n: int) -> Iterator[Eqn]:
        """The products that a region may go on with: equation `n`, which reads them first."""
        for a in eqn.inputs:
            product = self.makers.get(a)  # type: ignore[arg-type]
            if product is not None and self.first[a] == n and self.possible(product):
                yield product

    def pairs(self, products: Sequence[Eqn]) -> Iterator[tuple[Eqn, Eqn]]:
        """The pairs that may be one kernel, unless preferences name families of one product alone."""
        only = prefs().only
        if not only or any(family.name in only for family in PAIRS):
            yield from (p for p in combinations(products, 2) if alike(*p))

    def ways(
        self, eqn: Eqn, products: tuple[Eqn, ...]
    ) -> list[tuple[Choice, Eqn, tuple[Eqn, ...]]]:
        """Ways to go on with a product or two, the preferred one first: the choice for each, the
        steps that it is for as one, and those steps and the ones after them.
        """
        large = eqn.outs[0].type.nbytes > self.caps.speed.launch * self.caps.speed.moved
        kept = [y for e in products for y in e.outs if self.reads[y] > 1]
        parts = [*parted(eqn, products, self.tuning.arrays, large)]
        ones = [together(products, each[0], kept) for each in parts]
        catalog = CATALOG if len(products) == 1 else PAIRS
        choices = (self.choice(one, catalog) for one in ones)
        found = [*zip(choices, ones, parts, strict=True)]
        return sorted(found, key=lambda way: way[0].family is not CATALOG[0])  # which sums nothing

    def possible(self, eqn: Eqn) -> bool:
        """True of a product of matrices that are in arrays of C order, and not beside a loop that
        takes it in.
        """
        op, (y, *_) = eqn.op, eqn.outs or (None,)
        if not isinstance(op, DotGeneral) or y is None:
            return False
        matrix = y.type.ndim >= 2 and min(y.type.shape) > 0
        taken = self.looped and computing(eqn).operations <= self.tuning.tiny
        return matrix and not taken and None not in map(self.layout, eqn.inputs)

    def choice(self, eqn: Eqn, catalog: Catalog) -> Choice:
        """The choice for products and a region: one kernel, or each its own."""

        def operand(role: str, i: int, a: Atom) -> Operand:
            layout = self.layout(a) or plain(a.type.shape)
            return Operand(role, i, layout.strides, layout.offset)

        problem = Problem.of(eqn, "cuda", operand)
        if problem not in self.known:  # layers of a network are alike
            self.known[problem] = choose(problem, self.caps, prefs(), catalog)
        return self.known[problem]

    def layout(self, a: Atom) -> Layout | None:
        """The layout of an operand in an array of C order, of which it may be a view."""
        if not isinstance(a, Var) or a.type.weak:
            return None
        maker = self.makers.get(a)
        if maker is None or not maker.op.is_view or maker.op.several:
            return plain(a.type.shape)
        source = self.layout(maker.inputs[0])
        return None if source is None else viewed(maker, source)


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
    read = (a for e in (*found, rest) for a in e.inputs if a not in inner)
    given = tuple(dict.fromkeys(read))
    op = ProductRegion(Graph(given, (*found, rounded(rest, inner)), rest.outs))  # type: ignore[arg-type]
    return Eqn(op, given, rest.outs, products[0].source)


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


def parted(eqn: Eqn, products: Sequence[Eqn], most: int, large: bool) -> Iterator[tuple[Eqn, ...]]:
    """Ways to split a region into an epilogue of products and the steps after it, the preferred
    way first. It yields nothing if no part fits an epilogue, or if that has more than `most` arrays.
    `large`: it takes longer to read a product's elements again than to launch a kernel.
    """
    region, product, ys = eqn.op, products[0], [e.outs[0] for e in products]
    assert isinstance(region, Region)
    whole_once = all(eqn.inputs.count(y) == 1 and region.space == y.type.shape for y in ys)
    if not whole_once or len(eqn.inputs) > most:
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
    for n, ways in enumerate(((eqn,), with_sums(eqn, region, places))):
        first = ways[0].op if ways else None
        if isinstance(first, Region) and column_sums(first, len(dot.free(a, b)[1])) is not None:
            found.insert(0 if large else n, ways)
            break
    yield from filter(None, found)


def with_sums(eqn: Eqn, region: Region, places: set[Var]) -> tuple[Eqn, Eqn] | None:
    """Sums and what is of each element, and what is made of the sums alone: a step of a bias."""
    sums = {v for e in region.graph.eqns if isinstance(e.op, FOLDS) for v in e.outs}
    after = set[Atom](sums)
    for e in region.graph.eqns:
        if not after.isdisjoint(e.inputs):
            after.update(e.outs)
    second: set[Atom] = {v for v in region.graph.outputs if v in after and v not in sums}
    first: set[Atom] = {v for v in region.graph.outputs if v not in second} | sums
    whole = tuple(range(len(region.space)))
    if any(region.axes[n] == whole for n in needed(region, second, {*sums})):
        return None
    return divided(eqn, region, places, first, second)


def halves(eqn: Eqn, region: Region, places: set[Var]) -> tuple[Eqn, Eqn] | None:
    """Results that are of each element of the products, and all others, which
    read those and not them.
    """
    eqns, outputs = region.graph.eqns, region.graph.outputs
    behind, folded = set[Atom](places), set[Atom]()
    for e in eqns:
        if not behind.isdisjoint(e.inputs):
            behind.update(e.outs)
        if isinstance(e.op, FOLDS) or not folded.isdisjoint(e.inputs):
            folded.update(e.outs)
    first = {v for v in outputs if v in behind and v not in folded}
    second = {v for v in outputs if v not in first}
    return divided(eqn, region, places, first, second)


def divided(
    eqn: Eqn, region: Region, places: set[Var], first: set[Atom], second: set[Atom]
) -> tuple[Eqn, Eqn] | None:
    """A region that makes the first values and one that makes the second of these, if that does not
    read the products.
    """
    graph, outputs = region.graph, region.graph.outputs
    if not first or not second:
        return None
    early, late = needed(region, first, set()), needed(region, second, first)
    if not all(places.isdisjoint(graph.eqns[n].inputs) for n in late) or only_seen(
        region, first | second
    ):
        return None
    known: dict[Atom, Atom] = {v: Var(v.type) for v in first}
    known.update(zip(graph.inputs, eqn.inputs, strict=True))
    known.update(zip(outputs, eqn.outs, strict=True))
    found = [
        half(region, solid(region, numbers), outs)
        for numbers, outs in ((early, first), (late, second))
    ]
    one, other = (
        Eqn(
            r,
            tuple(known[v] for v in r.graph.inputs),
            tuple(v for v in map(known.__getitem__, r.graph.outputs) if isinstance(v, Var)),
            eqn.source,
        )
        for r in found
    )
    return one, other


def reading(region: Region, values: set[Var]) -> Iterable[tuple[Eqn, tuple[int, ...]]]:
    """The equations that read any of some values, and their axes."""
    pairs = zip(region.graph.eqns, region.axes, strict=True)
    return ((e, at) for e, at in pairs if not values.isdisjoint(e.inputs))


def needed(region: Region, wanted: Iterable[Atom], there: set[Atom]) -> list[int]:
    """The numbers of the equations that some values need, but for what is there."""
    makers = {e.outs[0]: n for n, e in enumerate(region.graph.eqns)}
    found, waiting = set[int](), list(wanted)
    while waiting:
        n = makers.get(waiting.pop())  # type: ignore[arg-type]
        if n is not None and n not in found:
            found.add(n)
            waiting += [a for a in region.graph.eqns[n].inputs if a not in there]
    return sorted(found)


def solid(region: Region, numbers: Iterable[int]) -> list[int]:
    return [n for n in numbers if not region.graph.eqns[n].op.is_view]


def only_seen(region: Region, outputs: set[Atom]) -> bool:
    """True if a result is nothing but a view."""
    return any(e.op.is_view and not outputs.isdisjoint(e.outs) for e in region.graph.eqns)
