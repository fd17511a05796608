"""One index a row, as in `z[arange(n), y]`, becomes a comparison with column
numbers, and fuses with the row.

gather z rows y           ->  reduce_max(where(columns == y, z, -inf))
scatter_add 0 ct rows y   ->  where(columns == y, ct, 0.0)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from ge2.base.arrays import FLOATS, FP8, INTEGERS
from ge2.base.errors import TypeRuleError
from ge2.base.record import record
from ge2.ir import ArrayType, Atom, Dims, Eqn, Graph, Literal, Op, Var, without_dead_code
from ge2.ops.dot import DotGeneral
from ge2.ops.elementwise import ADD, BY_NAME, WHERE
from ge2.ops.index import within
from ge2.ops.pointlike import Pointlike
from ge2.ops.reduce import Reduce, ReduceMax
from ge2.ops.shape import BroadcastInDim, Concatenate, Iota, Pad, Reshape, Transpose
from ge2.passes.context import NOTHING, Context
from ge2.passes.fold import RULES as FOLDS
from ge2.passes.simplify import Rules, Sweep, number

INT32 = np.dtype(np.int32)


@final
@record
class Index(Op):
    """The indices counted from the start of an axis of `size` elements;
    IndexError if one is outside.
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


def match(graph: Graph, context: Context = NOTHING) -> Graph:
    products = {v for eqn in graph.eqns if isinstance(eqn.op, DotGeneral) for v in eqn.outs}
    if not any(
        eqn.op.name in INDEXING or (isinstance(eqn.op, Transpose) and eqn.inputs[0] in products)
        for eqn in graph.eqns
    ):
        return graph
    tuning = context.tuning
    if context.gathers:  # a region reads the element itself, which is cheaper than any comparison
        tuning = replace(tuning, columns=0)
    sweep = Sweep(RULES, tuning=tuning)
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
    if x.type.shape[-1] > sweep.tuning.columns and not passing(sweep, x):
        return None  # reading elements of rows that are there is cheaper than comparing all
    chosen = sweep.make(WHERE, (columns(sweep, x.type.shape, indices[-1]), x, least))
    rows = sweep.make(ReduceMax((x.type.ndim - 1,)), (chosen,))
    return sweep.make(Reshape(out.shape), (rows,), out)


def lowest(dtype: np.dtype) -> Literal | None:
    """The number below all others; None for what has none."""
    if dtype in INTEGERS:
        return Literal.of(dtype.type(np.iinfo(dtype).min))
    return Literal.of(dtype.type(-np.inf)) if dtype in FLOATS and dtype not in FP8 else None


def passing(sweep: Sweep, x: Atom) -> bool:
    """True if all of a row is at hand anyway: it is folded elsewhere, or made element by element."""
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
    """True where the number of the column is the index of the row."""
    last = len(shape) - 1
    wrapped = sweep.make(Index(shape[-1], last), (index,))
    rows = sweep.make(Reshape(shape[:-1]), (wrapped,))
    spread = sweep.make(BroadcastInDim(shape, tuple(range(last))), (rows,))
    return sweep.make(BY_NAME["eq"], (sweep.make(Iota(shape, last, INT32), ()), spread))


def one_a_row(sweep: Sweep, axes: Dims, shape: Dims, indices: Sequence[Atom]) -> bool:
    """True if all axes but the last are indexed by their own numbers, so that each row is read
    once.
    """
    *rows, last = indices
    if axes != tuple(range(len(shape))) or len(shape) < 2 or not shape[-1]:
        return False
    if last.type.shape not in (shape[:-1], (*shape[:-1], 1)) or last.type.weak:
        return False
    counted = [counts_along(sweep.maker, a) for a in rows]
    return all(
        c == k and a.type.shape[k] == shape[k]
        for k, (c, a) in enumerate(zip(counted, rows, strict=True))
    )


def counts_along(makers: Mapping[Atom, Eqn], atom: Atom) -> int | None:
    """The axis along which a value counts 0, 1, 2, ...; None if it does not."""
    made = makers.get(atom) if isinstance(atom, Var) else None
    if made is None:
        return None
    if isinstance(made.op, Iota):
        return made.op.axis
    inner = (
        counts_along(makers, made.inputs[0])
        if isinstance(made.op, BroadcastInDim | Reshape | Transpose)
        else None
    )
    return None if inner is None else moved(made, inner)


def moved(eqn: Eqn, axis: int) -> int | None:
    """The axis of the result of a view that an axis of its input becomes."""
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


# ----------------------------------------------------------------------------- pads to concatenate
# A sum of arrays that are zero but for parts of their own is those parts side by side.
#
# So it is where each of many parts of an array is read on its own, as a Python loop over
# `xs[t]` does: each has a derivative as large as the whole, and their sum took time that
# grows with the square of their number.
#
# add (pad a) (pad b) ...  ->  concatenate a b ...


@final
@record
class Part:
    """A part from `start` on along `axis`, among zeros."""

    value: Atom
    axis: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.value.type.shape[self.axis]


def join(graph: Graph, context: Context = NOTHING) -> Graph:
    fewest = context.tuning.joined
    pads = [e for e in graph.eqns if isinstance(e.op, Pad)]
    if len(pads) < 2:
        return graph
    sums = [e for e in graph.eqns if e.op == ADD]
    makers = {e.outs[0]: e for e in (*pads, *sums)}
    uses = Counter([a for e in graph.eqns for a in e.inputs if type(a) is Var])
    uses.update(a for a in graph.outputs if type(a) is Var)
    inner = {a for e in sums for a in e.inputs if type(a) is Var and uses[a] == 1}
    roots = [e for e in sums if e.outs[0] not in inner]
    found = {e.outs[0]: made for e in roots if (made := joined(e, makers, uses, fewest))}
    if not found:
        return graph
    eqns = tuple(
        each for e in graph.eqns for each in (found.get(e.outs[0], [e]) if e.outs else [e])
    )
    return without_dead_code(Graph(graph.inputs, eqns, graph.outputs, graph.consts))


def joined(
    eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var], fewest: int
) -> list[Eqn] | None:
    """The equations that make the sum of its parts; None if it is no such sum."""
    parts, others = list[Part](), list[Atom]()
    for leaf in leaves(eqn, makers, uses):
        part = part_of(leaf, makers)
        if part is None:
            others.append(leaf)
        else:
            parts.append(part)
    if len(parts) < (fewest if others else 2) or len(others) > 1:
        return None
    parts.sort(key=lambda part: part.start)
    if len(parts) < fewest and not are_all(parts, eqn.outs[0].type.shape):
        return None
    if any(a.axis != b.axis or a.end > b.start for a, b in pairwise(parts)):
        return None
    return side_by_side(eqn, parts, others)


def are_all(parts: list[Part], shape: Dims) -> bool:
    """True if parts, of which none lies on another, leave nothing between them."""
    return sum(part.value.type.size for part in parts) == math.prod(shape)


def leaves(eqn: Eqn, makers: Mapping[Var, Eqn], uses: Counter[Var]) -> list[Atom]:
    """The terms that a tree of sums adds, where nobody else reads a sum within it."""
    found, waiting = list[Atom](), list(eqn.inputs)
    while waiting:
        a = waiting.pop()
        maker = makers.get(a) if isinstance(a, Var) and uses[a] == 1 else None
        if maker is not None and maker.op == ADD:
            waiting += maker.inputs
        else:
            found.append(a)
    return found


def part_of(a: Atom, makers: Mapping[Var, Eqn]) -> Part | None:
    maker = makers.get(a) if isinstance(a, Var) else None
    if (
        maker is None
        or not isinstance(op := maker.op, Pad)
        or any(op.inner)
        or min(*op.low, *op.high) < 0
    ):
        return None
    axes = [i for i, (low, high) in enumerate(zip(op.low, op.high, strict=True)) if low or high]
    return Part(maker.inputs[0], axes[0], op.low[axes[0]]) if len(axes) == 1 else None


def side_by_side(eqn: Eqn, parts: list[Part], others: list[Atom]) -> list[Eqn]:
    """The parts, zeros between them, and what is added to all of it."""
    (result,), axis, at = eqn.outs, parts[0].axis, 0
    made, pieces = list[Eqn](), list[Atom]()
    for part in [*parts, None]:
        start = result.type.shape[axis] if part is None else part.start
        if start > at:
            shape = list(result.type.shape)
            shape[axis] = start - at
            zeros = Var(result.type.with_shape(tuple(shape)))
            zero = Literal.of(result.type.dtype.type(0))
            made.append(Eqn(BroadcastInDim(zeros.type.shape, ()), (zero,), (zeros,), eqn.source))
            pieces.append(zeros)
        if part is not None:
            pieces.append(part.value)
            at = part.end
    whole = result if not others else Var(result.type)
    made.append(Eqn(Concatenate(axis), tuple(pieces), (whole,), eqn.source))
    return made if not others else [*made, Eqn(ADD, (whole, *others), (result,), eqn.source)]
