"""Many tiny products, and products of few terms, become sums of products of elements, which fuse
with what is around them.

dot_general beside=([0], [0]) a[n,4,4] b[n,4,4]
->  reduce_sum[axes=(3,)] (mul (broadcast_in_dim a) (broadcast_in_dim b))

dot_general contract=([1], [1]) a[n,2] b[m,2]
->  add (mul (broadcast_in_dim a[:, 0]) (broadcast_in_dim b[:, 0])) (mul ... a[:, 1] ... b[:, 1])

A library's batched product of matrices of a few elements spends its time on tiles that are mostly
empty: 20,000 transforms of 4 x 4, composed and applied, took 125 us on an H200, JAX's 35. Distances of
all pairs of points by the product of their coordinates are an array that is written, and read again for
a square root and a sum; two or three products an element take less than either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ge2.base.dtypes import FLOAT32, FLOAT64
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, MUL
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce, ReduceSum
from ge2.ops.shape import BroadcastInDim, Reshape, Slice, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.tuning import TinyProducts


def tiny_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work and sums in place of many tiny products side by side, and of
    products of few terms of which nothing but such work is made.
    """
    tuning = context.tuning.tiny_products
    tiny: dict[int, Callable[[Eqn], list[Eqn]]] = {
        id(e): spelt_out for e in graph.eqns if is_tiny(e, tuning)
    }
    short: dict[Atom, Eqn] = {e.outs[0]: e for e in graph.eqns if has_few_terms(e, tuning)}
    for e in graph.eqns if short else ():
        if not isinstance(e.op, Pointlike | Reduce):
            for a in e.inputs:
                short.pop(a, None)
    for a in graph.outputs:
        short.pop(a, None)
    tiny.update({id(e): by_terms for e in short.values()})
    if not tiny:
        return graph
    eqns = [new for e in graph.eqns for new in (tiny[id(e)](e) if id(e) in tiny else (e,))]
    return Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts)


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


def has_few_terms(eqn: Eqn, tuning: TinyProducts) -> bool:
    """True of a large product of so few terms that an element takes less than to write it."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or op.out is not None or op.precision in ("tf32", "bf16"):
        return False
    a, b = (x.type for x in eqn.inputs)
    if a.dtype not in (FLOAT32, FLOAT64) or len(op.contract[0]) != 1 or op.beside[0]:
        return False
    (axis,), (out,) = op.contract[0], eqn.outs
    few = 0 < a.shape[axis] <= tuning.terms and min(a.ndim, b.ndim) > 1
    return few and out.type.size >= tuning.large * max(a.size, b.size) // a.shape[axis]


def by_terms(eqn: Eqn) -> list[Eqn]:
    """The products of each term's elements over the result, and their sum."""
    op, (a, b), (out,) = eqn.op, eqn.inputs, eqn.outs
    assert isinstance(op, DotGeneral)
    made, rows = list[Eqn](), a.type.ndim - 1
    ((left,), (right,)), across = op.contract, range(rows, out.type.ndim)

    def add(new: Op, *inputs: Atom) -> Var:
        var = Var(*new.infer(*(x.type for x in inputs)))
        made.append(Eqn(new, inputs, (var,), eqn.source))
        return var

    def term(x: Atom, axis: int, k: int, dims: Iterable[int]) -> Var:
        shape = x.type.shape
        start = tuple(k if n == axis else 0 for n in range(len(shape)))
        stop = tuple(k + 1 if n == axis else size for n, size in enumerate(shape))
        line = add(Slice(start, stop, (1,) * len(shape)), x)
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

    def add(new: Op, *inputs: Atom) -> Var:
        var = Var(*new.infer(*(x.type for x in inputs)))
        made.append(Eqn(new, inputs, (var,), eqn.source))
        return var

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
