"""Products and what is done to their elements as one kernel, products of halves, products of fp8."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

import numpy as np

from ge2.base.arrays import BFLOAT16, FLOAT16, FLOAT32, FP8, HALF
from ge2.choice.choose import Catalog, Choice, choose
from ge2.choice.problem import Problem, prefs
from ge2.codegen.layout import Layout, plain, viewed
from ge2.codegen.text import Operand
from ge2.ir import Atom, Dims, Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import DIV, MUL, ConvertElementType
from ge2.ops.graphs.contraction import of_steps
from ge2.ops.graphs.control import Cond
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.graphs.while_loop import WhileLoop
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ArgReduce, Reduce
from ge2.ops.shape import BroadcastInDim, Slice
from ge2.passes.context import Context
from ge2.passes.fusion_group import round_halves
from ge2.passes.reads import pushed, slices_of
from ge2.passes.simplify import Sweep
from ge2.program import computing
from ge2.targets.cuda.device import Caps
from ge2.targets.cuda.emit.split_region import half
from ge2.targets.cuda.kernels.libraries import BlasEpilogue
from ge2.targets.cuda.kernels.products import CudaSmallContraction, no_fp8, no_groups_fp8
from ge2.targets.cuda.kernels.tensor_cores import (
    Apart,
    GemmMmaPair,
    GemmMmaRegion,
    GemmWgmmaPair,
    GemmWgmmaRegion,
    GemmWgmmaRegionOfCopies,
    OneByOne,
)
from ge2.targets.cuda.limits import Limits
from ge2.targets.cuda.products.tensor_epilogue import column_sums

# -------- Products and what is done to their elements as one kernel: a thread has the element in a
# register.
# A launch that waits for another costs more than most of what it does. So a pointwise region
# becomes part of the product whose result it alone reads, with sums over all rows of what it makes,
# such as gradients of biases. A region that folds otherwise, or whose sums no kernel takes, is
# parted before: what it makes of each element, and returns, goes with the product; the rest reads
# that, and the next product does not wait for it. Two products of one left factor that a region
# reads, such as those of a gated unit, become one kernel with it.


FOLDS: Final = (Reduce, ArgReduce)
CATALOG: Final = (
    CudaSmallContraction(),
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


# -------- A product of whose columns a region reads one half beside the other becomes two products,
# of halves of its right factor, where those and the region are better as one kernel.
# h = x @ w; a, b = split h; y = silu a * b -> a = x @ w[:, :n]; b = x @ w[:, n:]; y = silu a * b
# Halves of a matrix are views of it, so nothing is copied, and the product is never stored. What is
# done to both halves alike before they are told apart, such as adding a bias, is done to each.


Readers = Mapping[Atom, Sequence[Eqn]]
Values = Collection[Atom]


def gated_products(graph: Graph, context: Context) -> Graph:
    """The graph with two products in place of each such one, for the GPU of the context."""
    limits = context.caps
    if not isinstance(limits, Limits) or not any(isinstance(e.op, Slice) for e in graph.eqns):
        return graph
    readers = readers_of(graph)
    known = Epilogues(graph, limits)
    whole = dict[Var, Values]()  # of each product, with what is done to both halves of it
    for e in graph.eqns:
        if isinstance(e.op, DotGeneral) and known.possible(e):
            alike = before_halves(e.outs[0], readers, graph.outputs)
            if alike and is_better(e, known):
                whole[e.outs[0]] = alike
    if not whole:
        return graph
    pointlike = {v for each in whole.values() for v in each}
    beside = {a for v in pointlike - {*whole} for a in known.makers[v].inputs}  # type: ignore[index]
    return halved(pushed(graph, lambda y, _: y in pointlike or is_spread(y, beside, known)), whole)


def is_spread(y: Var, beside: Values, known: Epilogues) -> bool:
    """True of a vector, or a number, that is repeated to be added to a product, or the like."""
    return y in beside and isinstance(known.makers[y].op, BroadcastInDim)


def before_halves(h: Var, readers: Readers, outputs: Values) -> Values:
    """The product `h` and what is computed of each element of it, if of all of those nothing is read
    but both halves of the columns, which elementwise work brings together; else nothing.
    """
    whole, cuts = dict.fromkeys([h]), defaultdict[Slice, list[Var]](list)
    for v in (waiting := [h]):
        for e in readers.get(v, ()):
            if isinstance(e.op, Slice):
                cuts[e.op].append(e.outs[0])
            elif isinstance(e.op, Pointlike) and len(e.outs) == 1:
                waiting += [y for y in e.outs if y not in whole]
                whole.update(dict.fromkeys(e.outs))
            else:
                return ()
    if {*cuts} != {*halves_of_columns(h.type.shape)} or not whole.keys().isdisjoint(outputs):
        return ()
    one, other = (made_of(each, readers) for each in cuts.values())
    return () if one.isdisjoint(other) else whole.keys()


def halves_of_columns(shape: Dims) -> list[Slice]:
    """The slices that are the left and the right half of the columns; none if they are not equal."""
    *before, columns = shape
    ones = (1,) * len(shape)
    return [
        Slice((*(0 for _ in before), at), (*before, at + columns // 2), ones)
        for at in (0, columns // 2)
        if columns and columns % 2 == 0
    ]


def made_of(values: Iterable[Var], readers: Readers) -> set[Var]:
    """Returns all values that elementwise operations compute from the given ones."""
    found, waiting = set[Var](), [*values]
    while waiting:
        for e in readers.get(waiting.pop(), ()):
            if isinstance(e.op, Pointlike):
                waiting += [y for y in e.outs if y not in found]
                found.update(e.outs)
    return found


def parts(eqn: Eqn, outs: Sequence[Var]) -> tuple[list[Eqn], list[Eqn]]:
    """The halves of the right factor of a product, and the products with each."""
    op, (a, b) = eqn.op, eqn.inputs
    assert isinstance(op, DotGeneral)
    column, shape = op.free(a.type, b.type)[1][-1], b.type.shape
    cuts, products = list[Eqn](), list[Eqn]()
    for n, y in enumerate(outs):
        start, stop, half = [0] * len(shape), [*shape], shape[column] // 2
        start[column], stop[column] = n * half, (n + 1) * half
        cut = Slice(tuple(start), tuple(stop), (1,) * len(shape))
        cuts.append(Eqn(cut, (b,), (Var(*cut.infer(b.type)),), eqn.source))
        products.append(Eqn(op, (a, *cuts[n].outs), (y,), eqn.source))
    return cuts, products


def is_better(eqn: Eqn, known: Epilogues) -> bool:
    """True if products with both halves and a gate are chosen to be one kernel."""
    op, (a, b), (h,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, DotGeneral)
    free = op.free(a.type, b.type)[1]
    if not free or b.type.shape[free[-1]] != h.type.shape[-1] or not isinstance(b, Var):
        return False
    one, other = (Var(*cut.infer(h.type)) for cut in halves_of_columns(h.type.shape))
    cuts, products = parts(eqn, (one, other))
    known.makers.update((e.outs[0], e) for e in cuts)
    if not any(known.pairs(products)):
        return False
    y, (m, n) = Var(one.type), (Var(one.type), Var(one.type))
    space = one.type.shape
    inner = Graph((m, n), (Eqn(MUL, (m, n), (y,)),), (y,))
    gate = Region("pointwise", space, (tuple(range(len(space))),), inner)
    joint = together(products, Eqn(gate, (one, other), (Var(one.type),), eqn.source))
    return not isinstance(known.choice(joint, PAIRS).family, OneByOne)


def halved(graph: Graph, products: Collection[Var]) -> Graph:
    """The graph with two products in place of each, all of whose readers are slices: its halves."""
    cuts, same = slices_of(graph)
    eqns, gone = list[Eqn](), set[Atom]()
    for e in graph.eqns:
        if isinstance(e.op, DotGeneral) and e.outs[0] in products:
            found = [cuts[e.outs[0]][cut] for cut in halves_of_columns(e.outs[0].type.shape)]
            gone.update(v for v, first in same.items() if first in found)
            for each in parts(e, found):
                eqns += each
        elif gone.isdisjoint(e.outs):
            inputs = tuple(same[a] if a in gone else a for a in e.inputs)
            eqns.append(replace(e, inputs=inputs))
    outputs = tuple(same[a] if a in gone else a for a in graph.outputs)
    return Graph(graph.inputs, tuple(eqns), outputs, graph.consts)


# -------- Products of fp8: by tensor cores of fp8 where those serve, and else by those of bfloat16,
# which has every number of either type.
# dot_general (convert[bf16] a:f8_e4m3fn) (convert[bf16] b:f8_e4m3fn) -> dot_general[out=bf16
# precision=fp8] a b
# dot_general a:f8_e5m2 b:f8_e5m2 -> convert[f8_e5m2] (dot_general[out=f32] (convert[bf16] a)
# (convert[bf16] b))
# Tensor cores of fp8 keep some 14 bits of a sum, and the library adds those up in float32: enough
# for results of half types, and for those in float32 that are scaled and cast to one; not for other
# float32, unless `precision="fp8"` asks for it.


def fp8_products(graph: Graph, context: Context) -> Graph:
    """The graph with such products, for the GPU of the context."""
    limits = context.caps
    if not isinstance(limits, Limits) or not any(has_fp8(e) for e in graph.eqns):
        return graph
    makers: dict[Atom, Eqn] = {v: e for e in graph.eqns for v in e.outs}
    rounded = cast_at_last(graph)
    eqns = [new for e in graph.eqns for new in rewritten(e, makers, rounded, limits)]
    return Sweep({}).run(replace(graph, eqns=tuple(eqns)))  # of which casts may be left unread


def has_fp8(eqn: Eqn) -> bool:
    return any(a.type.dtype in FP8 for a in eqn.inputs)


def cast_at_last(graph: Graph) -> set[Atom]:
    """The values of which nothing is read but casts to half types, scaled it may be: of a product with
    anything the relative error is no larger than the factor's.
    """
    read = set[Atom](graph.outputs)  # by anything else
    found = set[Atom]()
    for e in reversed(graph.eqns):
        casts = isinstance(e.op, ConvertElementType) and e.op.dtype in HALF
        alike = e.op in (MUL, DIV) or (e.op.is_view and len(e.outs) == 1)
        if casts or (alike and e.outs[0] in found and e.outs[0] not in read):
            found.update(a for a in e.inputs if a.type.size > 1)
        else:
            read.update(e.inputs)
    return found - read


def rewritten(
    eqn: Eqn, makers: Mapping[Atom, Eqn], rounded: Collection[Atom], limits: Limits
) -> tuple[Eqn, ...]:
    op, (y, *_) = eqn.op, eqn.outs or (None,)
    if not isinstance(op, DotGeneral) or y is None:
        return (eqn,)
    views, out = list[Eqn](), y.type.dtype
    factors = [before_cast(a, makers, views) for a in eqn.inputs]
    if not all(isinstance(a, Var) and a.type.dtype in FP8 for a in factors):
        return (eqn,)
    stored = out in (BFLOAT16, FLOAT16) or y in rounded or op.precision == "fp8"
    direct = factors == [*eqn.inputs]
    a, b = (x.type for x in factors)
    serves = not no_fp8(op, a, b, limits) or not no_groups_fp8(op, a, b, limits)
    if serves and (stored or out in FP8):
        return (*views, *by_tensor_cores(eqn, factors, out))
    return by_bfloat16(eqn, out) if direct else (eqn,)


def before_cast(a: Atom, makers: Mapping[Atom, Eqn], views: list[Eqn]) -> Atom:
    """The fp8 value that `a` is cast from, else `a` itself. Views on the way are made again of that
    value, and added to `views`.
    """
    maker = makers.get(a)
    if maker is None or len(maker.inputs) != 1 or a.type.dtype in FP8:
        return a
    (given,), op = maker.inputs, maker.op
    if isinstance(op, ConvertElementType):
        return given if given.type.dtype in FP8 else a
    found = before_cast(given, makers, views) if op.is_view else given
    if found is given:
        return a
    views.append(Eqn(op, (found,), (Var(*op.infer(found.type)),), maker.source))
    return views[-1].outs[0]


def by_tensor_cores(eqn: Eqn, factors: list[Atom], out: np.dtype) -> tuple[Eqn, ...]:
    """The product of fp8. Its result is not the library's fp8, which stops at the largest number
    where NumPy's has none.
    """
    wide = FLOAT32 if out in FP8 else out
    op = replace(eqn.op, out=wide, precision="fp8")  # type: ignore[type-var]
    return cast_after(Eqn(op, tuple(factors), eqn.outs, eqn.source), wide, out)


def by_bfloat16(eqn: Eqn, out: np.dtype) -> tuple[Eqn, ...]:
    """The product of what bfloat16 has of both factors, rounded once."""
    cast = ConvertElementType(BFLOAT16)
    casts = [Eqn(cast, (a,), (Var(*cast.infer(a.type)),), eqn.source) for a in eqn.inputs]
    op = replace(eqn.op, out=FLOAT32, precision=None)  # type: ignore[type-var]
    product = Eqn(op, tuple(e.outs[0] for e in casts), eqn.outs, eqn.source)
    return (*casts, *cast_after(product, FLOAT32, out))


def cast_after(eqn: Eqn, wide: np.dtype, out: np.dtype) -> tuple[Eqn, ...]:
    """A product whose results are of a wider type, and its cast to another."""
    if wide == out:
        return (eqn,)
    (y,) = eqn.outs
    v = Var(replace(y.type, dtype=wide))
    return replace(eqn, outs=(v,)), Eqn(ConvertElementType(out), (v,), (y,), eqn.source)
