"""Products of whose columns halves gate each other, of fp8, of operands that were made wide, and in another order."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ge2.base.arrays import (
    BFLOAT16,
    BYTES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FP8,
    HALF,
    INT32,
    INTEGERS,
)
from ge2.base.source import Source
from ge2.compile.contractions import Contractions, on_gpu, together
from ge2.ir import Atom, Dims, Eqn, Graph, Literal, Var, applied, makers_of, renamed
from ge2.ir.graph import without_dead_code
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, DIV, EQ, MUL, SUB, WHERE, ConvertElementType
from ge2.ops.graphs.region import Region, readers_of
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim, Concatenate, Reshape, Slice, Transpose
from ge2.passes.context import Context, SplitSums, ThreeParts
from ge2.passes.simplify import Sweep
from ge2.passes.slices import pushed, slices_of
from ge2.targets.cuda.kernels.products import no_fp8, no_groups_fp8
from ge2.targets.cuda.kernels.tensor_cores import Apart
from ge2.targets.cuda.limits import Limits

WIDER = INTEGERS | {FLOAT32}  # than bytes
Readers = Mapping[Atom, Sequence[Eqn]]
Values = Collection[Atom]

# -------- A product whose every reader has the rows of its left factor last, as heads that are mixed, is that
# of its factors the other way round: it is stored along those rows, and not with a few columns beside one another.
# y = h @ mix [batch, query, key, head]; s = transpose y [batch, head, query, key]
# -> y = mix.T @ h.T [head, batch, query, key]; s = transpose y


def rows_last(graph: Graph) -> Graph:
    """The graph with such products the other way round, where columns are fewer than the rows last."""
    readers, outputs = readers_of(graph), set(graph.outputs)
    turned: dict[Var, tuple[Var, Dims]] = {}
    eqns = list[Eqn]()
    for e in graph.eqns:
        op, given = e.op, e.inputs[0] if e.inputs else None
        if isinstance(op, DotGeneral) and has_rows_last(e, readers, outputs):
            free = op.free(*(a.type for a in e.inputs))
            swapped = replace(op, contract=op.contract[::-1], beside=op.beside[::-1])
            new = applied(eqns, swapped, *e.inputs[::-1], source=e.source)
            n, left, right = len(op.beside[0]), len(free[0]), len(free[1])
            # where each axis of the product is now
            turned[e.outs[0]] = (
                new,
                (*range(n), *range(n + right, n + right + left), *range(n, n + right)),
            )
        elif isinstance(op, Transpose) and isinstance(given, Var) and given in turned:
            x, at = turned[given]
            eqns.append(replace(e, op=Transpose(tuple(at[a] for a in op.order)), inputs=(x,)))
        else:
            eqns.append(e)
    return replace(graph, eqns=tuple(eqns)) if turned else graph


def has_rows_last(dot: Eqn, readers: Readers, outputs: Values) -> bool:
    """True of a product all of whose readers have the last free axis of its left factor last."""
    op, (y,) = dot.op, dot.outs
    assert isinstance(op, DotGeneral)
    left, right = op.free(*(a.type for a in dot.inputs))
    last = len(op.beside[0]) + len(left) - 1
    columns = math.prod(y.type.shape[last + 1 :])
    if not left or not right or y in outputs or columns >= y.type.shape[last]:
        return False
    # of two axes either order is read by other products as it lies
    return y.type.ndim > 2 and all(
        isinstance(e.op, Transpose) and e.op.order[-1] == last for e in readers.get(y, [])
    )


# -------- A product of whose columns a region reads one half beside the other becomes two products,
# of halves of its right factor, where those and the region are better as one kernel.
# h = x @ w; a, b = split h; y = silu a * b -> a = x @ w[:, :n]; b = x @ w[:, n:]; y = silu a * b
# Halves of a matrix are views of it, so nothing is copied, and the product is never stored. What is
# done to both halves alike before they are told apart, such as adding a bias, is done to each.


def gated_products(graph: Graph, context: Context) -> Graph:
    """The graph with two products in place of each such one, for the GPU of the context."""
    where = on_gpu(context.caps)
    if where is None or not any(cuts_in_halves(e) for e in graph.eqns):
        return graph
    readers = readers_of(graph)
    known = Contractions(graph, where)
    whole = dict[Var, Values]()  # of each product, with what is done to both halves of it
    for e in graph.eqns:
        if isinstance(e.op, DotGeneral) and known.possible(e):
            alike = before_halves(e.outs[0], readers, graph.outputs)
            if alike and is_better(e, known):
                whole[e.outs[0]] = alike
    if not whole:
        return graph
    pointlike = {v for each in whole.values() for v in each}
    beside = {a for v in pointlike - {*whole} for a in known.makers[v].inputs}
    work = {v for v in pointlike if v not in whole}
    may = lambda e, _: e.outs[0] in work or is_spread(e.outs[0], beside, known)  # noqa: E731
    return halved(pushed(graph, may), whole)


def is_spread(y: Var, beside: Values, known: Contractions) -> bool:
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


def cuts_in_halves(eqn: Eqn) -> bool:
    op = eqn.op
    return isinstance(op, Slice) and op in halves_of_columns(eqn.inputs[0].type.shape)


def halves_of_columns(shape: Dims) -> list[Slice]:
    """The slices that are the left and the right half of the columns; none if they are not equal."""
    *before, columns = shape or (0,)
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


# -------- Products of few elements and long sums are products of parts, side by side, and their sum.
# x[n,k] y[n,m] over n -> reduce_sum[axes=(0,)] of (x[p,n/p,k] y[p,n/p,m] over n/p, beside p)
# A result of few elements is one tile of a library's kernel, and one multiprocessor's: libraries that split
# such sums do it in few parts. As a batch all of the GPU has some. The order of sums is fixed by the sizes.


def split_sums(graph: Graph, context: Context) -> Graph:
    """The graph with batches of parts, and sums over them, in place of such products."""
    tuning = context.tuning.split_sums
    found = {id(e) for e in graph.eqns if is_long(e, tuning)}
    if not found:
        return graph
    eqns = [new for e in graph.eqns for new in (in_parts(e, tuning) if id(e) in found else (e,))]
    return replace(graph, eqns=tuple(eqns))


def is_long(eqn: Eqn, tuning: SplitSums) -> bool:
    """True of a product of two matrices, of long sums that no tensor cores add up, for few elements."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.beside[0] or len(op.contract[0]) != 1:
        return False
    if op.precision not in (None, "highest"):
        return False
    types = tuple(x.type for x in (*eqn.inputs, *eqn.outs))
    if {t.dtype for t in types} not in ({FLOAT32}, {FLOAT64}) or any(t.ndim != 2 for t in types):
        return False
    sides = eqn.outs[0].type.shape
    return 1 < min(sides) <= max(sides) <= tuning.sides and sums_of(eqn) >= tuning.terms


def sums_of(eqn: Eqn) -> int:
    """The terms of a sum of a product over one axis."""
    op = eqn.op
    assert isinstance(op, DotGeneral)
    return eqn.inputs[0].type.shape[op.contract[0][0]]


def in_parts(eqn: Eqn, tuning: SplitSums) -> list[Eqn]:
    """The product of parts of equal length, its sum, and what is left if no such parts are all terms."""
    made, terms, source = list[Eqn](), sums_of(eqn), eqn.source
    wanted = min(max(terms // tuning.part, 2), tuning.parts)
    fit = [n for n in range(max(wanted // 2, 2), 2 * wanted) if terms % n == 0]
    parts = min(fit, key=lambda n: abs(n - wanted), default=wanted)
    length = terms // parts
    whole = [cut(made, x, a, 0, parts * length, source) for x, a in factors_of(eqn)]
    sides = [
        applied(made, Reshape((*x.type.shape[:a], parts, length, *x.type.shape[a + 1 :])), x, source=source)
        for x, (_, a) in zip(whole, factors_of(eqn), strict=True)
    ]  # fmt: skip
    op = eqn.op
    assert isinstance(op, DotGeneral)
    (first,), (second,) = op.contract
    beside = replace(op, beside=((first,), (second,)), contract=((first + 1,), (second + 1,)))
    products = applied(made, beside, *sides, source=source)
    if parts * length == terms:
        return [*made, Eqn(ReduceSum((0,)), (products,), eqn.outs, source)]
    total = applied(made, ReduceSum((0,)), products, source=source)
    rest = [cut(made, x, a, parts * length, terms, source) for x, a in factors_of(eqn)]
    left = applied(made, op, *rest, source=source)
    return [*made, Eqn(ADD, (total, left), eqn.outs, source)]


def factors_of(eqn: Eqn) -> list[tuple[Atom, int]]:
    """The factors of a product over one axis, each with that axis."""
    op = eqn.op
    assert isinstance(op, DotGeneral)
    return [(x, axis) for x, (axis,) in zip(eqn.inputs, op.contract, strict=True)]


def cut(made: list[Eqn], x: Atom, axis: int, start: int, stop: int, source: Source | None) -> Atom:
    """A part of an array along an axis; the array if it is all."""
    shape = x.type.shape
    if (start, stop) == (0, shape[axis]):
        return x
    bounds = [(start, stop) if a == axis else (0, n) for a, n in enumerate(shape)]
    starts, stops = zip(*bounds, strict=True)
    return applied(made, Slice(starts, stops, (1,) * len(shape)), x, source=source)


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


def is_better(eqn: Eqn, known: Contractions) -> bool:
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
    return not isinstance(known.choice(joint).family, Apart)


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
    makers = makers_of(graph)
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


# -------- Products of operands that are narrow numbers made wide are products of those.
# dot_general (convert[float32] a:bf16) (convert[float32] b:bf16) -> dot_general[out=float32] a b
# dot_general (convert[float32] a:bf16) (convert[float32] b:i8) -> dot_general[out=float32] a (convert[bf16] b)
# dot_general (convert[int32] a:i8) (convert[int32] b:i8) -> dot_general[out=int32] a b
# The product of two numbers of half types is exact in float32, and the sum is of float32 as before. So a
# program that rounds its operands itself, to have mixed precision, has tensor cores; so has one with
# weights or keys of bytes, all of which half types have. Bytes are
# multiplied by them as they are, and summed in int32, which wraps: what is of no more bits is the same
# number, and of 64 bits if the sum is of so few terms that it never wraps.


def narrow_operands(graph: Graph, tuning: ThreeParts) -> Graph:
    """The graph whose products read operands of half types and bytes as they are, not made wide
    before.
    """
    makers, eqns, made = makers_of(graph), list[Eqn](), list[Eqn]()

    def narrow(x: Atom) -> Atom | None:
        """The narrow array that was converted to `x`, seen by the same views; None of others."""
        eqn = makers.get(x)
        if eqn is None or len(eqn.inputs) != 1:
            return None
        (of,) = eqn.inputs
        if isinstance(eqn.op, ConvertElementType):
            return of if is_widened(of.type.dtype, x.type.dtype) else None
        inner = narrow(of) if eqn.op.is_view else None
        return None if inner is None else applied(made, eqn.op, inner, source=eqn.source)

    for eqn in graph.eqns:
        product = [eqn]
        if may_be_narrow(eqn):
            a, b = map(narrow, eqn.inputs)
            if a is not None and b is not None and not a.type.weak and not b.type.weak:
                product = [*made, *narrowed(eqn, a, b)]
            elif (some := a if b is None else b) is not None:
                few = is_few(eqn, a is not None, some, tuning)
                product = [*made, *in_three(eqn, a is not None, some)] if few else product
            made.clear()
        eqns += product
    found = Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)
    return graph if found.eqns == graph.eqns else without_dead_code(found)


def may_be_narrow(eqn: Eqn) -> bool:
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.out is not None:
        return False
    return op.precision in (None, "tf32", "bf16")


def is_widened(dtype: np.dtype, wide: np.dtype) -> bool:
    """True of a conversion that a product of narrow numbers does itself."""
    return (dtype in HALF and wide == FLOAT32) or (dtype in BYTES and wide in WIDER)


def narrowed(eqn: Eqn, a: Atom, b: Atom) -> list[Eqn]:
    """The product of narrow operands; as it is, if that has another result."""
    op, (y,) = eqn.op, eqn.outs
    assert isinstance(op, DotGeneral)
    dtypes = a.type.dtype, b.type.dtype
    if y.type.dtype == FLOAT32:
        return of_halves(eqn, (a, b))
    terms = math.prod(a.type.shape[i] for i in op.contract[0])
    largest = math.prod(max(-np.iinfo(d).min, np.iinfo(d).max) for d in dtypes)
    if y.type.dtype.itemsize > 4 and terms * largest > np.iinfo(INT32).max:
        return [eqn]
    product = replace(op, precision=None, out=INT32)
    if y.type.dtype == INT32:
        return [replace(eqn, op=product, inputs=(a, b))]
    sums = Var(y.type.with_dtype(INT32))
    return [
        replace(eqn, op=product, inputs=(a, b), outs=(sums,)),
        Eqn(ConvertElementType(y.type.dtype), (sums,), (y,), eqn.source),
    ]


# Few rows of float32 by many narrow numbers, as weights of a query by a cache of bytes or bfloat16, are
# three parts of bfloat16 by those: each has 8 bits of the 24 of a number, less what the ones before have, and
# all products are exact. Made wide in memory, what is narrow would be most of what is moved.


def is_few(eqn: Eqn, side: int, narrow: Atom, tuning: ThreeParts) -> bool:
    """True if the operand on a side has so few rows of float32 beside what is narrow."""
    op, types = eqn.op, [a.type for a in eqn.inputs]
    assert isinstance(op, DotGeneral)
    other = {types[side].dtype, narrow.type.dtype} != {FLOAT32, FLOAT16} and not types[side].weak
    if (
        not other
        or types[side].dtype != FLOAT32
        or op.precision
        or narrow.type.size < tuning.elements
    ):
        return False
    sizes = zip(op.free(*types), types, strict=True)
    count = [math.prod(t.shape[a] for a in axes) if axes else 0 for axes, t in sizes]
    terms = math.prod(types[side].shape[a] for a in op.contract[side])
    if terms < 4 * 3 * count[side]:  # sums of three parts would be no less than what is narrow
        return False
    return 0 < 3 * count[side] <= tuning.rows <= count[1 - side]


def in_three(eqn: Eqn, side: int, narrow: Atom) -> list[Eqn]:
    """A product of an operand of float32 as that of its three parts, one after another along its rows."""
    op, eqns, parts = eqn.op, list[Eqn](), list[Atom]()
    assert isinstance(op, DotGeneral)
    made, nothing = partial(applied, eqns, source=eqn.source), Literal.of(np.float32(0))
    low, rest = ConvertElementType(BFLOAT16), eqn.inputs[side]
    for _ in range(3):
        parts.append(made(low, rest))
        whole = made(ConvertElementType(FLOAT32), parts[-1])
        # of what is infinite nothing is left
        rest = made(WHERE, made(EQ, whole, rest), nothing, made(SUB, rest, whole))
    free = op.free(*(a.type for a in eqn.inputs))
    axis, n = free[side][0], eqn.inputs[side].type.shape[free[side][0]]
    other = narrow if narrow.type.dtype == BFLOAT16 else made(low, narrow)
    pair = made(Concatenate(axis), *parts), other
    sums = made(replace(op, out=FLOAT32), *(pair[::-1] if side else pair))
    at = len(op.beside[0]) + (len(free[0]) if side else 0)
    some = [cut(eqns, sums, at, i * n, (i + 1) * n, eqn.source) for i in range(3)]
    eqns.append(Eqn(ADD, (some[0], made(ADD, *some[1:])), eqn.outs, eqn.source))
    return eqns


def of_halves(eqn: Eqn, factors: Sequence[Atom]) -> list[Eqn]:
    """The product with float32 results of the half type that has every number of both factors; as it
    is, if none has.
    """
    dtypes, casts = {x.type.dtype for x in factors}, list[Eqn]()
    alike = iter((*(dtypes if len(dtypes) == 1 else ()), BFLOAT16, FLOAT16))
    half = next((t for t in alike if t in HALF and dtypes <= {t, *BYTES}), None)
    if half is None:
        return [eqn]
    cast = ConvertElementType(half)
    inputs = [x if x.type.dtype == half else applied(casts, cast, x) for x in factors]
    op = replace(eqn.op, precision=None, out=FLOAT32)  # type: ignore[type-var]
    return [*casts, replace(eqn, op=op, inputs=tuple(inputs))]


# -------- Products of mixed precision whose float32 results would be stored between kernels give
# low ones.
# `ge2.autocast` makes products of half types with float32 results (precision "half"). What follows
# a product is computed in the kernel that makes it, or reads it again: there a result in the
# product's own low type is half the bytes to write, to keep for derivatives and to read. A result
# of the program stays what it is.


def half_results(graph: Graph) -> Graph:
    """The graph in which products of precision "half" give their operands' type, cast to float32."""
    returned = results(graph)
    low: dict[Atom, Var] = {}  # by the float32 value that stands for it
    env: dict[Atom, Atom] = {}
    eqns: list[Eqn] = []
    for eqn in graph.eqns:
        eqn = renamed(env, eqn)
        if is_wide(eqn) and eqn.outs[0] not in returned:
            op, (wide,) = eqn.op, eqn.outs
            assert isinstance(op, DotGeneral)
            low[wide] = Var(replace(wide.type, dtype=eqn.inputs[0].type.dtype))
            product = replace(eqn, op=replace(op, out=None), outs=(low[wide],))
            eqns += [product, Eqn(ConvertElementType(FLOAT32), (low[wide],), (wide,), eqn.source)]
        elif rounds_again(eqn, low) and eqn.outs[0] not in returned:
            env[eqn.outs[0]] = low[eqn.inputs[0]]
        else:
            eqns.append(eqn)
    return replace(graph, eqns=tuple(eqns)) if low else graph


def results(graph: Graph) -> set[Atom]:
    """The results of the program, and the values that those are views of."""
    found = set(graph.outputs)
    for eqn in reversed(graph.eqns):
        if eqn.op.is_view and not found.isdisjoint(eqn.outs):
            found.update(eqn.inputs)
    return found


def is_wide(eqn: Eqn) -> bool:
    """True of a product of half types with a float32 result that autocast made."""
    op = eqn.op
    return (
        isinstance(op, DotGeneral)
        and (op.precision, op.out) == ("half", FLOAT32)
        and all(a.type.dtype == eqn.inputs[0].type.dtype for a in eqn.inputs)
        and eqn.inputs[0].type.dtype in HALF
    )


def rounds_again(eqn: Eqn, low: dict[Atom, Var]) -> bool:
    """True of a cast of a product's result to the type that it is stored in."""
    op, (given, *_) = eqn.op, eqn.inputs or (None,)
    return (
        isinstance(op, ConvertElementType) and given in low and eqn.outs[0].type == low[given].type
    )
