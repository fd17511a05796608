"""One index a row, as in `z[arange(n), y]`, becomes a comparison with column
numbers, and fuses with the row.

gather z rows y           ->  reduce_max(where(columns == y, z, -inf))
scatter_add 0 ct rows y   ->  where(columns == y, ct, 0.0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ge2.base.dtypes import FLOATS, FP8, INTEGERS
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import BY_NAME, WHERE, Pointlike
from ge2.ops.index import within
from ge2.ops.reduce import Reduce, ReduceMax
from ge2.ops.shape import BroadcastInDim, Iota, Reshape, Transpose
from ge2.passes.fold import RULES as FOLDS
from ge2.passes.sweep import Rules, Sweep, number

COLUMNS = 1024  # beyond, reading elements of rows that are there is cheaper than comparing all
INT32 = np.dtype(np.int32)


@final
@record
class Index(Op):
    """The indices counted from the start of an axis of `size` elements;
    IndexError if one lies outside.
    """

    size: int
    axis: int
    name = "index"
    may_alias = False

    def infer(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        (x,) = types
        if x.dtype not in INTEGERS:
            raise TypeRuleError(f"index takes integers; got {x}")
        return (ArrayType(x.shape, INT32),)

    def reference(self, *arrays: Any) -> Any:
        return within(np.asarray(arrays[0]), self.size, self.axis).astype(INT32)


def match(graph: Graph) -> Graph:
    products = {v for eqn in graph.eqns if isinstance(eqn.op, DotGeneral) for v in eqn.outs}
    if not any(
        eqn.op.name in INDEXING or (isinstance(eqn.op, Transpose) and eqn.inputs[0] in products)
        for eqn in graph.eqns
    ):
        return graph
    sweep = Sweep(RULES)
    sweep.uses.update(a for eqn in graph.eqns for a in eqn.inputs if isinstance(a, Var))
    sweep.uses.update(a for a in graph.outputs if isinstance(a, Var))
    sweep.folded.update(e.inputs[0] for e in graph.eqns if folds_rows(e))
    return sweep.run(graph)


def folds_rows(eqn: Eqn) -> bool:
    return isinstance(eqn.op, Reduce) and eqn.inputs[0].type.ndim - 1 in eqn.op.axes


def turned_product(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The transpose of a product is the product of its operands in the other order."""
    made = sweep.made_by(inputs[0], "dot_general")
    if made is None or sweep.uses[inputs[0]] != 1:
        return None
    product, (a, b) = made.op, made.inputs
    assert isinstance(product, DotGeneral)
    free_a, free_b = (len(free) for free in product.free(a.type, b.type))
    batch = len(product.beside[0])
    if op.order != (
        *range(batch),
        *range(batch + free_a, batch + free_a + free_b),
        *range(batch, batch + free_a),
    ):
        return None
    other = replace(product, contract=product.contract[::-1], beside=product.beside[::-1])
    return sweep.make(other, (b, a), out)


def pick(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """The element of each row that an index names: the largest of it and nothing."""
    x, *indices = inputs
    least = lowest(x.type.dtype)
    if least is None or not one_a_row(sweep, op.axes, x.type.shape, indices):
        return None
    if x.type.shape[-1] > COLUMNS and not passing(sweep, x):
        return None
    chosen = sweep.make(WHERE, (columns(sweep, x.type.shape, indices[-1]), x, least))
    rows = sweep.make(ReduceMax((x.type.ndim - 1,)), (chosen,))
    return sweep.make(Reshape(out.shape), (rows,), out)


def lowest(dtype: np.dtype) -> Literal | None:
    """The number below all others; None for what has none."""
    if dtype in INTEGERS:
        return Literal.of(dtype.type(np.iinfo(dtype).min))
    return Literal.of(dtype.type(-np.inf)) if dtype in FLOATS and dtype not in FP8 else None


def passing(sweep: Sweep, x: Atom) -> bool:
    """Whether all of a row is at hand anyway: it is folded elsewhere, or made
    element by element.
    """
    if x in sweep.folded:
        return True
    made = sweep.maker.get(x) if isinstance(x, Var) else None
    return made is not None and isinstance(made.op, Pointlike)


def put(sweep: Sweep, op: Any, inputs: Sequence[Atom], out: ArrayType) -> Atom | None:
    """Zeros, but for one element of each row."""
    zeros, updates, *indices = inputs
    made = sweep.made_by(zeros, "broadcast_in_dim")
    if made is None or number(made.inputs[0]) != 0:
        return None
    if not one_a_row(sweep, op.axes, out.shape, indices):
        return None
    zero = Literal.of(out.dtype.type(0))
    rows = sweep.make(Reshape(out.shape[:-1]), (updates,))
    rows = sweep.make(BY_NAME["add"], (rows, zero))  # 0.0 + -0.0 is 0.0
    spread = sweep.make(BroadcastInDim(out.shape, tuple(range(len(out.shape) - 1))), (rows,))
    return sweep.make(WHERE, (columns(sweep, out.shape, indices[-1]), spread, zero), out)


def columns(sweep: Sweep, shape: Dims, index: Atom) -> Atom:
    """Where the number of the column is the index of the row."""
    last = len(shape) - 1
    wrapped = sweep.make(Index(shape[-1], last), (index,))
    rows = sweep.make(Reshape(shape[:-1]), (wrapped,))
    spread = sweep.make(BroadcastInDim(shape, tuple(range(last))), (rows,))
    return sweep.make(BY_NAME["eq"], (sweep.make(Iota(shape, last, INT32), ()), spread))


def one_a_row(sweep: Sweep, axes: Dims, shape: Dims, indices: Sequence[Atom]) -> bool:
    """Whether all axes but the last are indexed by their own numbers,
    so that each row is read once.
    """
    *rows, last = indices
    if axes != tuple(range(len(shape))) or len(shape) < 2 or not shape[-1]:
        return False
    if last.type.shape not in (shape[:-1], (*shape[:-1], 1)) or last.type.weak:
        return False
    counted = [counts_along(sweep, a) for a in rows]
    return all(
        c == k and a.type.shape[k] == shape[k]
        for k, (c, a) in enumerate(zip(counted, rows, strict=True))
    )


def counts_along(sweep: Sweep, atom: Atom) -> int | None:
    """The axis along which a value counts 0, 1, 2, ...; None if it does not."""
    made = sweep.maker.get(atom) if isinstance(atom, Var) else None
    if made is None:
        return None
    if isinstance(made.op, Iota):
        return made.op.axis
    inner = (
        counts_along(sweep, made.inputs[0])
        if isinstance(made.op, BroadcastInDim | Reshape | Transpose)
        else None
    )
    return None if inner is None else moved(made, inner)


def moved(eqn: Eqn, axis: int) -> int | None:
    """Where an axis of the input of a view is in its result."""
    op, before, after = eqn.op, eqn.inputs[0].type.shape, eqn.outs[0].type.shape
    if isinstance(op, BroadcastInDim):
        return op.dims[axis]
    if isinstance(op, Transpose):
        return op.order.index(axis)
    if [n for n in before if n != 1] != [n for n in after if n != 1] or before[axis] == 1:
        return None
    place = sum(n != 1 for n in before[:axis])
    return [d for d, n in enumerate(after) if n != 1][place]


INDEXING: Rules = {"gather": (pick,), "scatter_add": (put,)}
RULES: Rules = {**FOLDS, **INDEXING, "transpose": (*FOLDS["transpose"], turned_product)}
