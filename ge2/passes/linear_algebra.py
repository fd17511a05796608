"""Products of matrices and systems of equations: sums in their place, halves, shared factors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOAT32, FLOAT64, HALF, INT64, INTEGERS, accumulator
from ge2.base.record import record
from ge2.base.source import Source
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var, applied, makers_of
from ge2.ir.graph import DIVISION, without_dead_code
from ge2.ops.dot import DotGeneral, is_outer
from ge2.ops.elementwise import ADD, MUL, WHERE, ConvertElementType
from ge2.ops.graphs.loops import ScanLoop
from ge2.ops.linalg import Cholesky, Solve
from ge2.ops.linalg.decompositions import Lu, LuSolve
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce, ReduceSum, kept
from ge2.ops.shape import (
    Barrier,
    BroadcastInDim,
    Concatenate,
    Iota,
    Reshape,
    Transpose,
    inverse,
    place_along,
)  # fmt: skip
from ge2.passes.context import NOTHING, Context, ProductsToSums, TinyProducts

# -------- Products with a vector, and products of few elements with long sums, become sums of
# products of elements, which fuse with what is around them.
# dot_general contract=([1], [0]) a[m,k] x[k] -> reduce_sum[axes=(1,)] (mul a (broadcast_in_dim x))
# Such a product reads each number once or a few times: it is a reduction, and what a library adds
# is a launch that waits, and arrays between it and what is done to its operands and its result.
# Axes are in the order of the array that is read most: neighbours in memory are read together.


Makers = Mapping[Var, Eqn]


def products_to_sums(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work and sums in place of such products."""
    tuning = context.tuning.products_to_sums
    graph = with_few_columns(graph, tuning)
    makers = makers_of(graph)
    found = {id(e): lambda e: Sums(e, makers).eqns() for e in graph.eqns if is_sum(e, tuning)}
    # a transposed array that was read as it is stored
    return without_dead_code(with_sums(graph, found)) if found else graph


def is_sum(eqn: Eqn, tuning: ProductsToSums) -> bool:
    """True for a product that is worth a reduction."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or not op.contract[0]:
        return is_outer(eqn)
    a, b = (x.type for x in eqn.inputs)
    out = eqn.outs[0].type.dtype
    whole = {a.dtype, out} <= INTEGERS
    if not whole and (a.dtype not in (FLOAT32, FLOAT64, *HALF) or out not in (a.dtype, FLOAT32)):
        return False
    free_a, free_b = op.free(a, b)
    rows, columns = math.prod(a.shape[i] for i in free_a), math.prod(b.shape[i] for i in free_b)
    terms = math.prod(a.shape[i] for i in op.contract[0])
    result = rows * columns * math.prod(a.shape[i] for i in op.beside[0])
    if rows == columns == 1:
        return True
    if min(rows, columns) == 1:
        return result * terms >= tuning.smallest
    if whole or a.dtype in HALF or op.precision in ("tf32", "bf16"):
        return False  # tensor cores are for such
    few = result <= tuning.few and terms >= tuning.long
    return few and result * terms <= (tuning.most_double if a.dtype == FLOAT64 else tuning.most)


def with_few_columns(graph: Graph, tuning: ProductsToSums) -> Graph:
    """The graph with products with each column by itself, where a matrix has few: sums that read the
    other matrix together, and may make it. A library's tiles are mostly empty there.
    """
    eqns = tuple(each for e in graph.eqns for each in column_by_column(e, tuning))
    return replace(graph, eqns=eqns) if len(eqns) > len(graph.eqns) else graph


def column_by_column(eqn: Eqn, tuning: ProductsToSums) -> list[Eqn]:
    """The products with the columns of an operand side by side; the one product where neither has
    few, or tensor cores multiply them.
    """
    op = eqn.op
    if not isinstance(op, DotGeneral) or not op.contract[0] or op.beside[0] or op.precision:
        return [eqn]
    types = tuple(x.type for x in eqn.inputs)
    dtypes, free = {t.dtype for t in (*types, eqn.outs[0].type)}, op.free(*types)
    terms = math.prod(types[0].shape[i] for i in op.contract[0])
    counts = [t.size // max(terms, 1) for t in types]
    few = 0 if counts[0] < counts[1] else 1
    if not 1 < counts[few] <= tuning.columns or len(free[few]) > 1 or terms < tuning.terms:
        return [eqn]
    if types[1 - few].size < tuning.large or dtypes not in ({FLOAT32}, {FLOAT64}):
        return [eqn]
    eqns, x, (axis,) = list[Eqn](), eqn.inputs[few], free[few]
    made = partial(applied, eqns, source=eqn.source)
    columns = [made(place_along(x.type.shape, axis, n), x) for n in range(counts[few])]
    if axis and types[1 - few].size >= tuning.rows * terms:  # so many read them one by one
        shape = columns[0].type.shape
        lines = [made(Reshape((1, *shape[:axis], *shape[axis + 1 :])), c) for c in columns]
        stored = made(Barrier(), made(Concatenate(0), *lines))
        lines = [made(place_along(stored.type.shape, 0, n), stored) for n in range(len(columns))]
        columns = [made(Reshape(shape), line) for line in lines]
    parts = [made(op, eqn.inputs[0], c) if few else made(op, c, eqn.inputs[1]) for c in columns]
    return [*eqns, Eqn(Concatenate(len(free[0]) * few), tuple(parts), eqn.outs, eqn.source)]


@final
@record
class Factor:
    """An operand, read where it is: which axis of the product each of its axes is."""

    value: Atom
    axes: Dims


@final
class Sums:
    """A product over axes by number: those of the result and of sums; or as a factor is `stored`."""

    def __init__(self, eqn: Eqn, makers: Makers, stored: bool = True) -> None:
        self.eqn, self.made, self.stored = eqn, list[Eqn](), stored
        op, (a, b), (out,) = eqn.op, eqn.inputs, eqn.outs
        assert isinstance(op, DotGeneral)
        free_a, free_b = op.free(a.type, b.type)
        batch, rank = len(op.beside[0]), len(out.type.shape)
        self.rank, self.sizes = rank, (*out.type.shape, *(a.type.shape[i] for i in op.contract[0]))
        beside, last = tuple(range(batch)), tuple(range(rank, len(self.sizes)))
        rows = tuple(range(batch, batch + len(free_a)))
        columns = tuple(range(batch + len(free_a), rank))
        sides = [math.prod(self.sizes[axis] for axis in each) for each in (rows, columns)]
        if min(sides) > 1:
            a, b = (self.operand(x, makers) for x in (a, b))
        self.factors = [
            plain(x, dict(zip((*b_axes, *free, *terms), (*beside, *mine, *last), strict=True)), makers)
            for x, b_axes, free, mine, terms in zip(
                (a, b), op.beside, (free_a, free_b), (rows, columns), op.contract, strict=True
            )
        ]  # fmt: skip

    def operand(self, value: Atom, makers: Makers) -> Atom:
        """An operand that is read behind a barrier where what is costly in it has as many bytes."""
        begin, found = len(self.made), self.computed_once(value, makers)
        parts = [e.outs[0].type.nbytes for e in self.made[begin:] if isinstance(e.op, Barrier)]
        if found is value or sum(parts) < value.type.nbytes:
            return found
        del self.made[begin:]
        return self.add(Barrier(), value)

    def computed_once(self, value: Atom, makers: Makers) -> Atom:
        """An operand that many elements of the result read: what is costly is behind a barrier,
        or would be computed for each of them.
        """
        maker = makers.get(value) if isinstance(value, Var) else None
        if maker is None or not isinstance(maker.op, Pointlike | BroadcastInDim | Transpose):
            return value
        if value.type.size < math.prod(self.sizes[self.rank :]):
            return value
        if maker.op.cost.instructions >= DIVISION.instructions:
            return self.add(Barrier(), value)
        inputs = tuple(self.computed_once(x, makers) for x in maker.inputs)
        return value if inputs == maker.inputs else self.add(maker.op, *inputs)

    def eqns(self) -> list[Eqn]:
        order = self.order() if self.stored else tuple(range(len(self.sizes)))
        space = tuple(self.sizes[axis] for axis in order)
        left, right = (self.summed_in(self.spread(each, order, space)) for each in self.factors)
        product = self.add(MUL, left, right)
        over = tuple(n for n, axis in enumerate(order) if axis >= self.rank)
        result = tuple(order[n] for n in kept(over, len(order)))
        ops: list[Op] = [ReduceSum(over)] if over else []
        if result != tuple(range(self.rank)):
            ops.append(Transpose(tuple(result.index(axis) for axis in range(self.rank))))
        if self.eqn.outs[0].type.dtype in HALF:
            ops.append(ConvertElementType(self.eqn.outs[0].type.dtype))
        if not ops:
            return [*self.made[:-1], replace(self.made[-1], outs=self.eqn.outs)]
        for op in ops[:-1]:
            product = self.add(op, product)
        return [*self.made, Eqn(ops[-1], (product,), self.eqn.outs, self.eqn.source)]

    def summed_in(self, value: Atom) -> Atom:
        """A factor in the type of sums."""
        dtype, out = value.type.dtype, self.eqn.outs[0].type.dtype
        wide = out if dtype in INTEGERS else accumulator(dtype)
        return value if dtype == wide else self.add(ConvertElementType(wide), value)

    def order(self) -> Dims:
        """The axes of the larger factor as they are stored; those that only the other has keep
        their place in it, behind the axes before them, or last.
        """
        large, small = sorted(self.factors, key=lambda each: -each.value.type.size)
        order = list(large.axes)
        for n, axis in enumerate(small.axes):
            if axis not in order:
                before = [order.index(other) for other in small.axes[:n]]
                order.insert(max(before, default=len(order) - 1) + 1, axis)
        return tuple(order)

    def spread(self, factor: Factor, order: Dims, space: Dims) -> Atom:
        dims = tuple(order.index(axis) for axis in factor.axes)
        value = factor.value
        if dims != tuple(sorted(dims)):
            turned = tuple(sorted(range(len(dims)), key=dims.__getitem__))
            value, dims = self.add(Transpose(turned), value), tuple(sorted(dims))
        if dims == tuple(range(len(space))):
            return value
        return self.add(BroadcastInDim(space, dims), value)

    def add(self, op: Op, *inputs: Atom) -> Var:
        return applied(self.made, op, *inputs, source=self.eqn.source)


def plain(value: Atom, axes: Mapping[int, int], makers: Makers) -> Factor:
    """An operand whose axes are those of a product; of a transposed array the array."""
    found = tuple(axes[n] for n in range(len(value.type.shape)))
    maker = makers.get(value) if isinstance(value, Var) else None
    while maker is not None and isinstance(maker.op, Transpose):
        (value,) = maker.inputs
        found = tuple(found[n] for n in inverse(maker.op.order))
        maker = makers.get(value) if isinstance(value, Var) else None
    return Factor(value, found)


# -------- Many tiny products, and products of few terms, become sums of products of elements, which
# fuse with what is around them.
# dot_general beside=([0], [0]) a[n,4,4] b[n,4,4] -> reduce_sum[axes=(3,)] (mul (broadcast_in_dim a)
# (broadcast_in_dim b))
# dot_general contract=([1], [1]) a[n,2] b[m,2] -> add (mul (broadcast_in_dim a[:, 0])
# (broadcast_in_dim b[:, 0])) (mul ... a[:, 1] ... b[:, 1])
# A library's batched product of matrices of a few elements spends its time on tiles that are mostly
# empty: 20,000 transforms of 4 x 4, composed and applied, took 125 us on an H200, JAX's 35.
# Distances of all pairs of points by the product of their coordinates are an array that is written,
# and read again for a root and a sum; two or three products an element take less than either.


def tiny_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work and sums in place of many tiny products side by side, and of
    products of few terms of which nothing but such work is made.
    """
    tuning = context.tuning.tiny_products
    tiny: dict[int, Callable[[Eqn], list[Eqn]]] = {
        id(e): spelt_out for e in graph.eqns if is_tiny(e, tuning)
    }
    tiny.update((id(e), by_terms) for e in products_of_few_terms(graph, tuning))
    tiny.update((id(e), by_terms) for e in graph.eqns if is_by_tiny(e, tuning))
    return with_sums(graph, tiny)


def thin_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """The same, in C, of products of few terms alone that are read once, of those without sums, and
    of vectors by large matrices that are made for them.
    """
    makers, tuning = makers_of(graph), context.tuning
    reads = Counter[Atom]([*(a for e in graph.eqns for a in e.inputs), *graph.outputs])
    single = {a: maker for a, maker in makers.items() if reads[a] == 1}
    sums = [e for e in graph.eqns if is_outer(e) or makes_matrix(e, single, tuning.made_matrix)]
    found = products_of_few_terms(graph, tuning.thin_products)
    once = [e for e in found if reads[e.outs[0]] == 1 and is_by_rows(e, makers)]
    instead = dict.fromkeys(map(id, sums), lambda e: Sums(e, makers).eqns())
    return with_sums(graph, instead | dict.fromkeys(map(id, once), by_terms))


def makes_matrix(eqn: Eqn, single: Makers, smallest: int) -> bool:
    """True of a vector by a matrix that elementwise work makes for it alone, of so many bytes that
    no cache keeps it until a library reads it.
    """
    if not isinstance(eqn.op, DotGeneral):
        return False
    vector, matrix = sorted(eqn.inputs, key=lambda a: a.type.size)
    maker = single.get(matrix)  # type: ignore[arg-type]
    if maker is None or not isinstance(maker.op, Pointlike) or matrix.type.nbytes < smallest:
        return False
    if matrix.type.shape[-1] < 16:  # a loop over its lines has no vectors
        return False
    return vector.type.size == terms_of(eqn) and vector.type.dtype == matrix.type.dtype


def is_by_rows(eqn: Eqn, makers: Makers) -> bool:
    """True if neighbours of the right operand are of one term: others are packed by products alone."""
    op, b = eqn.op, eqn.inputs[1]
    assert isinstance(op, DotGeneral)
    (axis,), turned = op.contract[1], makers.get(b)  # type: ignore[arg-type]
    if turned is not None and isinstance(turned.op, Transpose):
        axis = turned.op.order[axis]
    return axis != b.type.ndim - 1


def with_sums(graph: Graph, found: Mapping[int, Callable[[Eqn], list[Eqn]]]) -> Graph:
    """The graph with what is made in place of some products, by their identity."""
    if not found:
        return graph
    eqns = [new for e in graph.eqns for new in (found[id(e)](e) if id(e) in found else (e,))]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


def products_of_few_terms(graph: Graph, tuning: TinyProducts) -> list[Eqn]:
    """The products of few terms of which nothing but elementwise work and sums is made."""
    short: dict[Atom, Eqn] = {e.outs[0]: e for e in graph.eqns if has_few_terms(e, tuning)}
    for e in graph.eqns if short else ():
        if not isinstance(e.op, Pointlike | Reduce):
            for a in e.inputs:
                short.pop(a, None)
    for a in graph.outputs:
        short.pop(a, None)
    return [*short.values()]


def is_tiny(eqn: Eqn, tuning: TinyProducts) -> bool:
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.out is not None:
        return False
    a, b = (x.type for x in eqn.inputs)
    if a.dtype not in (FLOAT32, FLOAT64):
        return False
    free_a, free_b = op.free(a, b)
    sides = [[a.shape[i] for i in free_a], [b.shape[i] for i in free_b]]
    sides.append([a.shape[i] for i in op.contract[0]])
    beside = math.prod(a.shape[i] for i in op.beside[0])
    tiny = all(0 < math.prod(sizes) <= tuning.largest for sizes in sides)
    return tiny and beside >= tuning.fewest and bool(op.contract[0])


def is_by_tiny(eqn: Eqn, tuning: TinyProducts) -> bool:
    """True of many rows times one matrix of few rows and columns, as points that are turned."""
    terms, most = terms_of(eqn), tuning.largest
    rows = sorted(x.type.size // terms for x in eqn.inputs) if 0 < terms <= most else [0]
    return 0 < rows[0] <= most and rows[-1] >= tuning.fewest * tuning.large


def terms_of(eqn: Eqn) -> int:
    """The terms of a product of two IEEE arrays over one axis of each; 0 of all else."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.out is not None or op.precision in ("tf32", "bf16"):
        return 0
    a, axes = eqn.inputs[0].type, op.contract[0]
    plain = a.dtype in (FLOAT32, FLOAT64) and len(axes) == 1 and not op.beside[0]
    return a.shape[axes[0]] if plain else 0


def has_few_terms(eqn: Eqn, tuning: TinyProducts) -> bool:
    """True of a large product of so few terms that an element takes less than to write it."""
    terms = terms_of(eqn)
    if not 0 < terms <= tuning.terms:
        return False
    (a, b), size = (x.type for x in eqn.inputs), eqn.outs[0].type.size
    many = size * terms > tuning.smallest and size >= tuning.large * max(a.size, b.size) // terms
    return many and min(a.ndim, b.ndim) > 1


def by_terms(eqn: Eqn) -> list[Eqn]:
    """The products of each term's elements over the result, and their sum."""
    op, (a, b), (out,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, DotGeneral)
    made, rows = list[Eqn](), a.type.ndim - 1
    ((left,), (right,)), across = op.contract, range(rows, out.type.ndim)
    add = partial(applied, made, source=eqn.source)

    def term(x: Atom, axis: int, k: int, dims: Iterable[int]) -> Var:
        shape = x.type.shape
        line = add(place_along(shape, axis, k), x)
        line = add(Reshape((*shape[:axis], *shape[axis + 1 :])), line)
        return add(BroadcastInDim(out.type.shape, tuple(dims)), line)

    total: Var | None = None
    for k in range(a.type.shape[left]):
        product = add(MUL, term(a, left, k, range(rows)), term(b, right, k, across))
        total = product if total is None else add(ADD, total, product)
    return [*made[:-1], Eqn(made[-1].op, made[-1].inputs, (out,), eqn.source)]


def spelt_out(eqn: Eqn) -> list[Eqn]:
    """Both operands over all axes of the result, and those summed over as the last; their
    products, and the sums of these.
    """
    op, (a, b), (out,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, DotGeneral)
    free_a, free_b = op.free(a.type, b.type)
    terms = tuple(a.type.shape[i] for i in op.contract[0])
    space = (*out.type.shape, *terms)
    batch, rank = len(op.beside[0]), len(out.type.shape)
    made = list[Eqn]()
    add = partial(applied, made, source=eqn.source)

    def spread(x: Atom, order: Dims, dims: Dims) -> Var:
        turned = x if order == tuple(range(len(order))) else add(Transpose(order), x)
        return add(BroadcastInDim(space, dims), turned)

    beside, last = tuple(range(batch)), tuple(range(rank, rank + len(terms)))
    rows = tuple(range(batch, batch + len(free_a)))
    columns = tuple(range(batch + len(free_a), rank))
    left = spread(a, (*op.beside[0], *free_a, *op.contract[0]), (*beside, *rows, *last))
    right = spread(b, (*op.beside[1], *free_b, *op.contract[1]), (*beside, *columns, *last))
    product = add(MUL, left, right)
    return [*made, Eqn(ReduceSum(last), (product,), (out,), eqn.source)]


# -------- Systems of equations with one matrix, or with its transpose, share its factors.
# solve a b, solve a c -> lu a, lu_solve lu b, lu_solve lu c
# A triangular matrix, as `np.tril(a)` or what `cholesky` gives, is its own factor, with no rows
# swapped. LAPACK has matrices by columns, so that a lower triangle is an upper one there.


WIDER = {FLOAT32: FLOAT64, np.dtype("c8"): np.dtype("c16")}
OTHER_SIDE = {"lower": "upper", "upper": "lower", "": ""}
SIDES = {"le": "lower", "lt": "lower", "ge": "upper", "gt": "upper"}  # where column op row holds


def side_of(a: Atom, makers: Mapping[Any, Eqn]) -> str:
    """The triangle, lower or upper, that has all elements of a matrix but zeros; "" if not known."""
    if (maker := makers.get(a)) is None:
        return ""
    if isinstance(maker.op, Transpose):
        return OTHER_SIDE[side_of(maker.inputs[0], makers)]
    if isinstance(maker.op, Cholesky):
        return "lower"
    if isinstance(maker.op, ConvertElementType) or maker.op.name in ("conj", "neg"):
        return side_of(maker.inputs[0], makers)
    compare = makers.get(maker.inputs[0]) if maker.op is WHERE else None
    places = () if compare is None else [makers.get(x) for x in compare.inputs]
    axes = [m.op.axis for m in places if m is not None and isinstance(m.op, Iota)]
    if compare is None or sorted(axes) != [0, 1]:
        return ""
    _, chosen, other = maker.inputs
    if compare.op.name == "eq":
        return side_of(other, makers)  # the diagonal is another
    side = SIDES.get(compare.op.name, "")
    side = side if axes == [1, 0] else OTHER_SIDE[side]
    return side if is_zero(other) else OTHER_SIDE[side] if is_zero(chosen) else ""


def is_zero(a: Atom) -> bool:
    return isinstance(a, Literal) and a.value == 0


def factors(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph whose systems of one matrix share its factors."""
    return Sharing(graph).run() if any(map(solves, graph.eqns)) else graph


def solves(eqn: Eqn) -> bool:
    """True of a system of equations, and of a loop with one in its iterations."""
    if isinstance(eqn.op, ScanLoop):
        return eqn.op.length > 1 and any(system(each) for each in eqn.op.body.eqns)
    return system(eqn)


def system(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Solve) and not eqn.op.quiet and eqn.inputs[0].type.ndim == 2


Carriers = Mapping[Atom, Eqn]
Matrix = tuple[Atom, bool]  # and whether it is its transpose that is meant


def matrix_of(a: Atom, makers: Carriers) -> Matrix:
    """The matrix of which `a` is a transpose, or which it is."""
    turned = False
    while (maker := makers.get(a)) is not None and isinstance(maker.op, Transpose):
        a, turned = maker.inputs[0], turned != (maker.op.order == (1, 0))
    return a, turned


@final
class Sharing:
    """The equations so far, and the factors of each matrix of several systems."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.makers = graph, makers_of(graph)
        self.eqns: list[Eqn] = []
        self.factors: dict[Atom, tuple[Var, Var]] = {}
        self.count = Counter[Atom]()
        for eqn in graph.eqns:
            if isinstance(eqn.op, ScanLoop):
                found = constant_matrices(eqn) if solves(eqn) else {}
                self.count.update(2 * [self.matrix(a)[0] for a, _ in found.values()])
            elif system(eqn) and not side_of(eqn.inputs[0], self.makers):
                self.count[self.matrix(eqn.inputs[0])[0]] += 1

    def matrix(self, a: Atom) -> Matrix:
        return matrix_of(a, self.makers)

    def run(self) -> Graph:
        for eqn in self.graph.eqns:
            if isinstance(eqn.op, ScanLoop) and solves(eqn):
                self.eqns.append(self.loop(eqn, eqn.op))
            elif system(eqn) and side_of(eqn.inputs[0], self.makers):
                self.by_triangle(eqn)
            elif system(eqn) and self.count[self.matrix(eqn.inputs[0])[0]] > 1:
                a, turned = self.matrix(eqn.inputs[0])
                given = (*self.of(a, eqn.source), eqn.inputs[1])
                self.eqns.append(Eqn(LuSolve(turned), given, eqn.outs, eqn.source))
            else:
                self.eqns.append(eqn)
        graph = self.graph
        return Graph(graph.inputs, tuple(self.eqns), graph.outputs, graph.consts)

    def by_triangle(self, eqn: Eqn) -> None:
        """A system of a triangular matrix, which is solved as it is, in double as others are."""
        add = partial(applied, self.eqns, source=eqn.source)
        (a, turned), b, out = self.matrix(eqn.inputs[0]), eqn.inputs[1], eqn.outs[0]
        if side_of(a, self.makers) == "upper":
            a, turned = add(Transpose((1, 0)), a), not turned
        wide = WIDER.get(out.type.dtype)
        a, b = (x if wide is None else add(ConvertElementType(wide), x) for x in (a, b))
        one = Literal(np.int64(1), ArrayType((), INT64))
        swaps = add(ADD, add(Iota((a.type.shape[0],), 0, INT64)), one)
        x = add(LuSolve(not turned, triangular=True), a, swaps, b)
        rounded = Eqn(ConvertElementType(out.type.dtype), (x,), eqn.outs, eqn.source)
        self.eqns.append(rounded if wide else replace(self.eqns.pop(), outs=eqn.outs))

    def of(self, a: Atom, source: Source | None) -> tuple[Var, Var]:
        """The factors of a matrix, made here if nobody has asked for them."""
        if a not in self.factors:
            lu, swaps = (Var(t) for t in Lu().infer(a.type))
            self.eqns.append(Eqn(Lu(), (a,), (lu, swaps), source))
            self.factors[a] = lu, swaps
        return self.factors[a]

    def loop(self, eqn: Eqn, loop: ScanLoop) -> Eqn:
        """The loop, whose systems with a constant matrix are given its factors."""
        found = constant_matrices(eqn)
        inner: dict[Atom, tuple[Var, Var]] = {}
        given, body = list[Atom](), list[Eqn]()
        for each in loop.body.eqns:
            if each.outs[0] not in found:
                body.append(each)
                continue
            outer, turned = found[each.outs[0]]
            a, again = self.matrix(outer)
            if a not in inner:
                pair = self.of(a, each.source)
                given += pair
                inner[a] = Var(pair[0].type), Var(pair[1].type)
            solve = LuSolve(turned != again)
            body.append(Eqn(solve, (*inner[a], each.inputs[1]), each.outs, each.source))
        new = [v for pair in inner.values() for v in pair]
        n, old = loop.consts, loop.body
        inputs = (*old.inputs[:n], *new, *old.inputs[n:])
        op = loop.of(Graph(inputs, tuple(body), old.outputs, old.consts), n + len(new), loop.carry)
        return Eqn(op, (*eqn.inputs[:n], *given, *eqn.inputs[n:]), eqn.outs, eqn.source)


def constant_matrices(eqn: Eqn) -> dict[Var, Matrix]:
    """For the result of each system in a loop whose matrix no iteration changes, that matrix."""
    assert isinstance(eqn.op, ScanLoop)
    body, n = eqn.op.body, eqn.op.consts
    makers, outer = makers_of(body), dict(zip(body.inputs[:n], eqn.inputs[:n], strict=True))
    found = dict[Var, Matrix]()
    for each in filter(system, body.eqns):
        a, turned = matrix_of(each.inputs[0], makers)
        if isinstance(a, Var) and a in outer:
            found[each.outs[0]] = outer[a], turned
    return found
