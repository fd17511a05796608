"""Products with a vector, and products of few elements with long sums, become sums of products of
elements, which fuse with what is around them.

dot_general contract=([1], [0]) a[m,k] x[k]
->  reduce_sum[axes=(1,)] (mul a (broadcast_in_dim x))

Such a product reads each number once or a few times: it is a reduction, and what a library adds is
a launch that waits, and arrays between it and what is done to its operands and its result. Axes
are in the order of the array that is read most, so that neighbours in memory are read together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from ge2.base.dtypes import FLOAT32, FLOAT64, HALF
from ge2.base.record import record
from ge2.ir import Atom, Dims, Eqn, Graph, Op, Var
from ge2.ir.graph import without_dead_code
from ge2.ir.op import DIVISION
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import MUL, ConvertElementType
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import ReduceSum, kept
from ge2.ops.shape import Barrier, BroadcastInDim, Transpose, inverse
from ge2.passes.context import NOTHING, Context
from ge2.passes.tuning import ProductsToSums

Makers = Mapping[Var, Eqn]


def products_to_sums(graph: Graph, context: Context = NOTHING) -> Graph:
    """The graph with elementwise work and sums in place of such products."""
    tuning = context.tuning.products_to_sums
    found = {id(e) for e in graph.eqns if is_sum(e, tuning)}
    if not found:
        return graph
    makers = {v: e for e in graph.eqns for v in e.outs}
    eqns = [
        new for e in graph.eqns for new in (Sums(e, makers).eqns() if id(e) in found else (e,))
    ]  # fmt: skip
    # a transposed array that was read as it is stored
    return without_dead_code(Graph(graph.inputs, tuple(eqns), graph.outputs, graph.consts))


def is_sum(eqn: Eqn, tuning: ProductsToSums) -> bool:
    """True for a product that is worth a reduction."""
    op = eqn.op
    if not isinstance(op, DotGeneral) or not op.contract[0]:
        return False
    a, b = (x.type for x in eqn.inputs)
    out = eqn.outs[0].type.dtype
    if a.dtype not in (FLOAT32, FLOAT64, *HALF) or out not in (a.dtype, FLOAT32):
        return False
    free_a, free_b = op.free(a, b)
    rows, columns = math.prod(a.shape[i] for i in free_a), math.prod(b.shape[i] for i in free_b)
    terms = math.prod(a.shape[i] for i in op.contract[0])
    result = rows * columns * math.prod(a.shape[i] for i in op.beside[0])
    if rows == columns == 1:
        return True
    if min(rows, columns) == 1:
        return result * terms >= tuning.smallest
    if a.dtype in HALF or op.precision in ("tf32", "bf16"):
        return False  # tensor cores are for such
    few = result <= tuning.few and terms >= tuning.long
    return few and result * terms <= tuning.most


@final
@record
class Factor:
    """An operand, read where it is: which axis of the product each of its axes is."""

    value: Atom
    axes: Dims


@final
class Sums:
    """A product over axes that are numbered: those of the result, then those summed over."""

    def __init__(self, eqn: Eqn, makers: Makers) -> None:
        self.eqn, self.made = eqn, list[Eqn]()
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
            a, b = (self.computed_once(x, makers) for x in (a, b))
        self.factors = [
            plain(x, dict(zip((*b_axes, *free, *terms), (*beside, *mine, *last), strict=True)), makers)
            for x, b_axes, free, mine, terms in zip(
                (a, b), op.beside, (free_a, free_b), (rows, columns), op.contract, strict=True
            )
        ]  # fmt: skip

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
        order = self.order()
        space = tuple(self.sizes[axis] for axis in order)
        left, right = (self.summed_in(self.spread(each, order, space)) for each in self.factors)
        product = self.add(MUL, left, right)
        over = tuple(n for n, axis in enumerate(order) if axis >= self.rank)
        result = tuple(order[n] for n in kept(over, len(order)))
        ops: list[Op] = [ReduceSum(over)]
        if result != tuple(range(self.rank)):
            ops.append(Transpose(tuple(result.index(axis) for axis in range(self.rank))))
        if self.eqn.outs[0].type.dtype in HALF:
            ops.append(ConvertElementType(self.eqn.outs[0].type.dtype))
        for op in ops[:-1]:
            product = self.add(op, product)
        return [*self.made, Eqn(ops[-1], (product,), self.eqn.outs, self.eqn.source)]

    def summed_in(self, value: Atom) -> Atom:
        """A factor in the type of sums."""
        half = value.type.dtype in HALF
        return self.add(ConvertElementType(FLOAT32), value) if half else value

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
        var = Var(*op.infer(*(x.type for x in inputs)))
        self.made.append(Eqn(op, inputs, (var,), self.eqn.source))
        return var


def plain(value: Atom, axes: Mapping[int, int], makers: Makers) -> Factor:
    """An operand whose axes are those of a product; of a transposed array the array."""
    found = tuple(axes[n] for n in range(len(value.type.shape)))
    maker = makers.get(value) if isinstance(value, Var) else None
    while maker is not None and isinstance(maker.op, Transpose):
        (value,) = maker.inputs
        found = tuple(found[n] for n in inverse(maker.op.order))
        maker = makers.get(value) if isinstance(value, Var) else None
    return Factor(value, found)
