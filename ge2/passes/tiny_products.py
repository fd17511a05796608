"""Many tiny products become sums of products of elements, which fuse with what is around them.

dot_general beside=([0], [0]) a[n,4,4] b[n,4,4]
->  reduce_sum[axes=(3,)] (mul (broadcast_in_dim a) (broadcast_in_dim b))

A library's batched product of matrices of a few elements spends its time on tiles that are mostly
empty: 20,000 transforms of 4 x 4, composed and applied, took 125 us on an H200, JAX's 35.
"""

from __future__ import annotations

import math

from ge2.base.dtypes import FLOAT32, FLOAT64
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import MUL
from ge2.ops.reduce import ReduceSum
from ge2.ops.shape import BroadcastInDim, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.tuning import TinyProducts


def tiny_products(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work and sums in place of many tiny products side by side."""
    tiny = {id(e) for e in graph.eqns if is_tiny(e, context.tuning.tiny_products)}
    if not tiny:
        return graph
    eqns = [new for e in graph.eqns for new in (spelt_out(e) if id(e) in tiny else (e,))]
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
