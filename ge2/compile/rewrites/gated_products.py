"""A product of whose columns a region reads one half beside the other becomes two products, of halves
of its right factor, where those and the region are better as one kernel.

  h = x @ w; a, b = split h; y = silu a * b
  ->  a = x @ w[:, :n]; b = x @ w[:, n:]; y = silu a * b

Halves of a matrix are views of it, so nothing is copied, and the product is never stored. What is done
to both halves alike before they are told apart, such as adding a bias, is done to each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ge2.compile.rewrites.product_epilogue import PAIRS, Epilogues, together
from ge2.ir import Atom, Dims, Eqn, Graph, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import MUL
from ge2.ops.graphs.region import Region
from ge2.ops.pointlike import Pointlike
from ge2.ops.shape import BroadcastInDim, Slice
from ge2.passes.context import Context
from ge2.passes.slices_first import pushed, slices_of
from ge2.targets.cuda.kernels.apart import OneByOne
from ge2.targets.cuda.limits import Limits

Readers = Mapping[Atom, Sequence[Eqn]]
Values = Collection[Atom]


def gated_products(graph: Graph, context: Context) -> Graph:
    """The graph with two products in place of each such one, for the GPU of the context."""
    limits = context.caps
    if not isinstance(limits, Limits) or not any(isinstance(e.op, Slice) for e in graph.eqns):
        return graph
    readers = defaultdict[Atom, list[Eqn]](list)
    for e in graph.eqns:
        for a in dict.fromkeys(e.inputs):
            readers[a].append(e)
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
        for e in readers[v]:
            if isinstance(e.op, Slice):
                cuts[e.op].append(e.outs[0])
            elif isinstance(e.op, Pointlike) and len(e.outs) == 1:
                waiting += [y for y in e.outs if y not in whole]
                whole.update(dict.fromkeys(e.outs))
            else:
                return ()
    if {*cuts} != {*halves(h.type.shape)} or not whole.keys().isdisjoint(outputs):
        return ()
    one, other = (made_of(each, readers) for each in cuts.values())
    return () if one.isdisjoint(other) else whole.keys()


def halves(shape: Dims) -> list[Slice]:
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
        for e in readers[waiting.pop()]:
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
    one, other = (Var(*cut.infer(h.type)) for cut in halves(h.type.shape))
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
            found = [cuts[e.outs[0]][cut] for cut in halves(e.outs[0].type.shape)]
            gone.update(v for v, first in same.items() if first in found)
            for each in parts(e, found):
                eqns += each
        elif gone.isdisjoint(e.outs):
            inputs = tuple(same[a] if a in gone else a for a in e.inputs)
            eqns.append(replace(e, inputs=inputs))
    outputs = tuple(same[a] if a in gone else a for a in graph.outputs)
    return Graph(graph.inputs, tuple(eqns), outputs, graph.consts)
